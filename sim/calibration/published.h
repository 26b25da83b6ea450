// SPDX-License-Identifier: Apache-2.0
//
// Published training runs, read as problems and plans: what readers share, and what the fit needs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/scenario.h"
#include "sim/calibration/validate.h"

namespace orrery::sim {

// Why a row is not predicted.
struct Skip {
  std::string reason;
};

struct GpuRule {
  const char* pattern;
  const char* topology;  // fabric constants of the node
  const char* device;
  double nic_gbit_per_gpu;  // where the row does not say
};
// Throws Skip.
const GpuRule& rule_of(std::string_view gpu);

// The format that a row names, which rounds operands; none: it names another. Fine-grained factors are those
// of the hardware, where it has such.
std::optional<Math> narrow_format(std::string_view text, const std::vector<Device>& devices);

// Layers of chunks, of a model with multi-token prediction, whose modules are more than a layer: no source
// has left them on a stage that has as many layers as the others, and none says how many.
void deal_around_mtp(const Model& model, Plan& plan, std::vector<std::string>& assumed);

// How ranks share sequences, which no row says: as the stack does by default, which is the first way that it
// has. Latent attention has keys and values of every head: a ring between nodes would take five times as long
// as the attention beside it, and ranks of a node share heads first where the stack can (Megatron's a2a+p2p).
void share_sequences(Plan& plan, std::int64_t cp, const Problem& problem, std::vector<std::string>& assumed);

// Nodes of `per_node` GPUs; more of them are one domain of NVLink where the rule's cluster has such.
// Throws Skip.
void set_nodes(Problem& problem, const GpuRule& rule, std::int64_t gpus, std::int64_t per_node,
               double gbit_per_node, const Cursor& at, const DataFolders& data);

// Whether the plan is predicted to fit into so many times its devices' memory; plans that cannot be said fit.
bool fits(const Problem& problem, const Plan& plan, double room);
// Whether it may have run as it stands: it fits into so much, or Grace's memory, at the other end of NVLink,
// takes its activations at no cost.
bool keeps_activations(const Problem& problem, const Plan& plan, double room);

// What of a run was timed: a step; attention alone of one layer, exchanges between ranks included; or nothing
// that is predicted, where memory alone was published, or the lengths of samples were not.
enum class Timed { kStep, kAttention, kAttentionWithBackward, kNothing };

// A published run as what is predicted.
struct PublishedRun {
  std::string id, source;
  std::string study;        // who measured it: runs of one are left out together
  double step_s = 0;        // 0: it ran out of memory
  double memory_gib = 0;    // 0: none
  std::string memory_kind;  // what of the memory was measured
  Timed timed = Timed::kStep;
  Problem problem;
  Plan plan;
  std::vector<std::string> assumed;  // that the row does not state
  bool suspect = false;              // its study doubts the measurement
  bool ran() const { return step_s > 0 || timed == Timed::kNothing; }
};
struct PublishedRuns {
  std::int64_t read = 0;
  std::vector<PublishedRun> runs;
  std::map<std::string, std::int64_t> skipped;  // reason -> rows
};
// Adds the run; its source gets the kind of its model and its number format. Throws Skip where the plan is
// none for the model or the stack.
void add(PublishedRun run, PublishedRuns& to);

// Readers: see validate_training and validate_mapped.
PublishedRuns read_training(const Json& rows, const std::string& file, const DataFolders& data);
PublishedRuns read_mapped(const Json& rows, const std::string& file, const DataFolders& data);

// Either, by content. Throws InputError for other data.
PublishedRuns read_published(const std::string& file, const DataFolders& data);

// What is predicted of a run with a device and a stack of other constants.
double predict_seconds(const PublishedRun& run, const Problem& problem);
Validation validate(const PublishedRuns& runs);

// Of the problem's model, one layer: how long attention takes, exchanges between ranks included, forward and,
// if wanted, backward.
Time attention_alone(const Problem& problem, const Plan& plan, bool backward);

}  // namespace orrery::sim
