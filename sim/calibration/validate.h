// SPDX-License-Identifier: Apache-2.0
//
// Predicted against published. Each reader takes a data set as it is, predicts every row it can express
// with the stack of the row's source, and counts the others by reason. Errors are fractions:
// predicted / published - 1.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/scenario.h"

namespace orrery::sim {

struct ValidationRow {
  std::string id, source, quantity;     // quantity: step_time, memory, time
  double predicted = 0, published = 0;  // seconds or bytes
  std::vector<std::string> assumed;     // configuration that the row does not state
  std::int64_t bytes = 0;               // of a collective
  // Of a training run: what may differ between two of a source, by name. Two runs that differ in one of these
  // alone are an intervention.
  std::map<std::string, std::string> knobs;
  double error() const { return predicted / published - 1; }
};

struct ErrorSummary {
  std::int64_t n = 0;
  double mape = 0, bias = 0, median = 0;  // of |error|, error, |error|
  double low = 0, high = 0;               // 10th and 90th percentile of published over predicted
};
struct RowFilter {
  std::string quantity;
  std::string source;            // empty: all
  bool firm = false;             // only rows that leave nothing open
  std::int64_t least_bytes = 0;  // of a collective
};
ErrorSummary summarise(const std::vector<ValidationRow>& rows, const RowFilter& filter);

// Pairs of runs of one source that differ in one knob:
// predicted against published change, (predicted b / predicted a) / (published b / published a) - 1.
struct KnobSummary {
  std::int64_t pairs = 0;
  double mape = 0, median = 0;  // of |error of the change|
  // Pairs whose published step changes by 3 % or more, and of them those that are predicted to change the
  // same way.
  std::int64_t clear = 0, right_way = 0;
};
std::map<std::string, KnobSummary> interventions(const std::vector<ValidationRow>& rows);

// Of a run that fitted, or one that ran out of memory.
struct FitRow {
  std::string id, source;
  double needs = 0, has = 0;  // bytes of a device: predicted, and there
  bool fitted = true;
};
// How well it is told which plans fit, where ln(needed / predicted) is normal with the mean and the standard
// deviation that the memory rows have.
struct FitSummary {
  std::int64_t out_of_memory = 0, told = 0;   // and of them, with a probability of fitting below a half
  std::int64_t fitted = 0, fitted_told = 0;   // and of them, with one above it
  double mean = 0, deviation = 0, brier = 0;  // Brier: mean squared error of the probability
};
double probability_of_fitting(const FitRow& row, double mean, double deviation);

struct Validation {
  std::int64_t read = 0;
  std::vector<ValidationRow> rows;
  std::vector<ValidationRow> conflicting;       // predicted, not scored: published runs of the group disagree
  std::map<std::string, std::int64_t> skipped;  // reason -> rows
  std::vector<FitRow> fits;                     // of runs that leave nothing open, or ran out of memory
  std::vector<std::string> sources() const;
};

// None where no row has its memory measured, or none ran out of it.
std::optional<FitSummary> summarise_fits(const Validation& all);

// Published training runs: a JSON array of rows with model, gpu, parallel and measured.
Validation validate_training(const Json& rows, const std::string& file, const DataFolders& data);
// Published runs whose rows name the model and its mapping (gpu_type, tp, pp, ep, etp, ...): an array of
// rows.
Validation validate_mapped(const Json& rows, const std::string& file, const DataFolders& data);
// Published collectives: a JSON array of rows with system, collective, gpus, message_bytes and time_us. A
// group (system, collective, GPUs) is predicted without the curves that were measured on the system with this
// collective and number of GPUs. Groups in which two runs of one size differ by more than a quarter are not
// scored, nor are thresholds and statements.
Validation validate_collectives(const Json& rows, const std::string& file, const DataFolders& data);
// Measured kernels: gemm.csv or attention_forward.csv, told apart by their header.
Validation validate_kernels(const std::string& csv, const std::string& file, const DataFolders& data);

// By content.
Validation validate_file(const std::string& file, const DataFolders& data);

}  // namespace orrery::sim
