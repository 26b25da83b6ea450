// SPDX-License-Identifier: Apache-2.0
//
// What a plan may turn out to take, where predictions of its time and its memory have errors. A search finds
// plans whose predictions err to their advantage, so plans are ranked by a time that holds with some
// certainty.
#pragma once

#include <cstdint>

#include "core/published_fit.h"

namespace orrery::planner {

// The step time that is exceeded with the probability `risk`, where a plan that does not fit takes forever.
// With P the probability that it fits and F the distribution of its step time about the prediction
// (lognormal, as plans for one question spread), it is the time t with
//   P F(t) = 1 - risk
// and infinite where P is no more than 1 - risk. A risk of 1 leaves the prediction as it is.
double pessimistic_time(double step_s, double fits_probability, const PredictionSpread& spread, double risk);

// That time over the one of a plan that is predicted alike and fits for sure: 1 or more.
double risk_factor(double fits_probability, const PredictionSpread& spread, double risk);

// 80 % of plans that are predicted to need so many bytes would need what lies between: bytes.
struct MemoryRange {
  double low = 0, high = 0;
};
MemoryRange memory_range(std::int64_t predicted, const PredictionSpread& spread);

}  // namespace orrery::planner
