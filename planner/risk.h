// SPDX-License-Identifier: Apache-2.0
//
// What a plan may turn out to be, where predictions of its time and its memory have errors. A search finds the
// plan whose prediction errs most to its advantage, so plans are ranked by a time that holds with some
// certainty, not by the predicted one.
#pragma once

#include "core/published_fit.h"

namespace orrery::planner {

struct Outlook {
  double fits = 1;         // probability that the plan fits into its devices' memory
  double pessimistic_s = 0;  // step time that is exceeded with the probability `risk`; infinite: see below
};

// A plan that does not fit takes forever. With P the probability that it fits and F the distribution of its
// step time about the prediction (lognormal, of the spread between plans), the time t is
//   P F(t) = 1 - risk
// and infinite where P is no more than 1 - risk. With a risk of 1 it is the prediction itself, of every plan.
Outlook outlook(double step_s, double needs_bytes, double has_bytes, const PredictionSpread& spread, double risk);

}  // namespace orrery::planner
