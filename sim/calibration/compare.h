// SPDX-License-Identifier: Apache-2.0
//
// Joins a predicted with a measured timeline by op key: (segment, chunk, micro-batch, op) on the same
// stage. A folded prediction has one rank per stage; measured ranks of that stage are averaged.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/timeline.h"

namespace orrery::sim {

struct OpComparison {
  std::string name;                        // op without its layer: "attn/qkv/dgrad"
  std::int64_t count = 0;                  // matched (rank, micro-batch, layer) instances
  double predicted_s = 0, measured_s = 0;  // sums of active-to-end
  Bound bound = Bound::kUnknown;           // what the prediction says limits it
};

// Ops of one kind of limit together: where the step's time goes, and where its prediction errs.
struct BoundComparison {
  Bound bound = Bound::kUnknown;
  double predicted_s = 0, measured_s = 0;
};

struct Comparison {
  bool same_program = false;  // equal program hashes
  std::int64_t matched = 0, only_predicted = 0, only_measured = 0;
  double predicted_step_s = 0, measured_step_s = 0;
  std::vector<OpComparison> ops;  // by measured time, largest first
  std::vector<BoundComparison> bounds;
};

// What two timelines spend on each class of op, where their ops have different names: of a prediction and of
// a trace by other software. All numbers are of one rank and one step, on average.
struct ClassTimes {
  double count = 0, active_s = 0, waiting_s = 0;
};
struct ClassComparison {
  OpClass is{};
  ClassTimes predicted, measured;
  // Where the first measured rank has as many in a step as its counterpart, they are matched in order: how
  // predicted and measured times of one compare, at the 10th, 50th and 90th of a hundred.
  bool in_order = false;
  std::array<double, 3> ratio{};
};
struct ClassComparisons {
  double predicted_step_s = 0, measured_step_s = 0;
  bool by_rank = false;  // the measured ranks are compared with the same ranks of the prediction
  std::vector<ClassComparison> classes;  // longest first
};

// `measured` covers so many steps. `ranks`: of its processes, which are compared with what the prediction has
// of those ranks; where one is -1 (not said), or is not of the prediction, all are compared with all.
ClassComparisons compare_classes(const Timeline& predicted, const Timeline& measured, std::int64_t steps,
                                 const std::vector<std::int64_t>& ranks);

// Each rank of the second is compared with its stage in the first, of several places with the first one.
Comparison compare(const Timeline& predicted, const Timeline& measured);

}  // namespace orrery::sim
