// SPDX-License-Identifier: Apache-2.0
//
// What readers of published training runs share. Internal to sim/calibration/.
#pragma once

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

// Where the row does not say how, as the stack does by default: the first way that it has.
void share_sequences(Plan& plan, std::int64_t cp, const Stack& stack, std::vector<std::string>& assumed);

// Nodes of `per_node` GPUs; more of them are one domain of NVLink where the rule's cluster has such.
// Throws Skip.
void set_nodes(Problem& problem, const GpuRule& rule, std::int64_t gpus, std::int64_t per_node,
               double gbit_per_node, const Cursor& at, const DataFolders& data);

// Whether the plan is predicted to fit into so many times its devices' memory; plans that cannot be said fit.
bool fits(const Problem& problem, const Plan& plan, double room);

struct Published {
  std::string id, source;
  double step_s = 0;
  double memory_gib = 0;    // 0: none
  std::string memory_kind;  // what of the memory was measured
};
// Predicts the run. Throws Skip where the plan is none for the model or the stack.
void score(const Published& published, const Problem& problem, const Plan& plan,
           const std::vector<std::string>& assumed, Validation& out);

// Of the problem's model, one layer: how long attention takes, exchanges between ranks included, forward and,
// if wanted, backward.
Time attention_alone(const Problem& problem, const Plan& plan, bool backward);

}  // namespace orrery::sim
