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
  std::string id, source, quantity;     // quantity: step_time, memory, time, ttft, tpot
  double predicted = 0, published = 0;  // seconds or bytes
  std::vector<std::string> assumed;     // configuration that the row does not state
  std::int64_t bytes = 0;               // of a collective
  // Of a training run, by name: what was asked for (model, GPUs, batch), and what a plan chooses. Empty for
  // others.
  std::map<std::string, std::string> asked, knobs;
  std::int64_t sequences = 1;  // of a step
  bool suspect = false;        // its own study doubts it: it has an error, and no say in which plan is faster
  double error() const { return predicted / published - 1; }
};

// Of a run that fitted, or one that ran out of memory.
struct FitRow {
  std::string id, source;
  double needs = 0, has = 0;  // bytes of a device: predicted, and there
  bool fitted = true;
};
struct Validation {
  std::int64_t read = 0;
  std::vector<ValidationRow> rows;
  std::vector<ValidationRow> conflicting;       // predicted, not scored: published runs of the group disagree
  std::map<std::string, std::int64_t> skipped;  // reason -> rows
  std::vector<FitRow> fits;                     // of runs that leave nothing open, or ran out of memory
  std::vector<std::string> sources() const;
  void add(const Validation& other);
};

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
// Published runs of serving: an array of rows with serving_stack, model, topology, tp, concurrency, lengths
// and the mean times that were measured.
Validation validate_serving(const Json& rows, const std::string& file, const DataFolders& data);
// Measured kernels: gemm.csv or attention_forward.csv, told apart by their header.
Validation validate_kernels(const std::string& csv, const std::string& file, const DataFolders& data);

// By content.
Validation validate_file(const std::string& file, const DataFolders& data);

}  // namespace orrery::sim
