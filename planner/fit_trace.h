// SPDX-License-Identifier: Apache-2.0
//
// A device and a cluster fitted to one profiled step of a run by other software: what each class of op took
// in all. Names differ, so single ops cannot be joined (sim/calibration/calibrate.h does that with our own
// runs), but sums can: products fix the efficiency of products, attention that of attention, element-wise ops
// and routing the share of the memory's bandwidth, the optimizer its factor on that, and collectives the
// bandwidth inside a node. Each constant stays within its field's bounds.
#pragma once

#include <string>
#include <vector>

#include "sim/calibration/compare.h"
#include "sim/cost.h"

namespace orrery::planner {

struct FittedClass {
  OpClass is{};
  std::string constant;          // the one that it fixes
  double before = 0, after = 0;  // of the constant
  // Predicted over measured time before and after the fit.
  double ratio_before = 0, ratio_after = 0;
};

struct TraceFit {
  Device device;
  Cluster cluster;
  std::vector<FittedClass> classes;
  std::vector<OpClass> left;  // measured or predicted, and no constant of theirs is fitted
  double step_before_s = 0, step_s = 0, measured_s = 0;
};

// `measured` covers so many steps of the plan, and `ranks` are those of its processes (compare_classes).
// Throws InputError where the plan is not sound, and Error where no class of op is both predicted and
// measured.
TraceFit fit_trace(const Problem& problem, const Plan& plan, const Timeline& measured, std::int64_t steps,
                   const std::vector<std::int64_t>& ranks);

}  // namespace orrery::planner
