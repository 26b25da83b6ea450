// SPDX-License-Identifier: Apache-2.0
//
// A device and a cluster fitted to a profiled run of other software: what each class of op took in all. Names
// differ, so single ops cannot be joined (sim/calibration/calibrate.h does that with our own runs), but sums
// can: products fix the efficiency of products, attention that of attention, element-wise ops and routing the
// share of the memory's bandwidth, the optimizer its factor on that, and collectives the bandwidth inside a
// node.
//
// A class takes L + k x, x being the constant, or its inverse where more of it takes less time; L, its
// latencies, is not fitted. Where measured time is no more than L, or a bound is met, the constant stays as
// it was.
#pragma once

#include <string>
#include <vector>

#include "core/scenario.h"
#include "sim/calibration/compare.h"
#include "sim/cost.h"

namespace orrery::planner {

struct FittedClass {
  OpClass is{};
  std::string constant;          // the one that it fixes
  double before = 0, after = 0;  // of the constant
  // Predicted over measured time before and after the fit.
  double ratio_before = 0, ratio_after = 0;
  std::string kept;  // why the constant stays as it was; empty: it is fitted
};

struct TraceFit {
  Device device;
  Cluster cluster;
  std::vector<FittedClass> classes;
  std::vector<OpClass> left;  // measured or predicted, and no constant of theirs is fitted
  double step_before_s = 0, step_s = 0, measured_s = 0;
};

struct ProfiledRun {
  const Timeline* timeline = nullptr;
  std::int64_t steps = 1;           // that it covers
  std::vector<std::int64_t> ranks;  // of its processes (sim::compare_classes)
  bool tells_waits = true;          // of collectives, whose members are all in the traces
};

// Throws InputError where the plan is not sound, and Error where no class of op is both predicted and
// measured.
TraceFit fit_trace(const Problem& problem, const Plan& plan, const ProfiledRun& run);

}  // namespace orrery::planner
