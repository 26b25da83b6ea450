// SPDX-License-Identifier: Apache-2.0
//
// Reading, writing and schemas of scenarios and plans: compiled here alone.
#include "core/loading.h"
#include "core/model.h"
#include "core/plan.h"
#include "core/plan_file.h"
#include "core/reliability.h"
#include "core/scenario.h"
#include "core/serving.h"
#include "core/training.h"

namespace orrery {

ORRERY_FIELDS(, Model);
ORRERY_FIELDS(, Plan);
ORRERY_FIELDS(, Training);
ORRERY_FIELDS(, ReliabilityAssumptions);
ORRERY_FIELDS(, Reliability);
ORRERY_FIELDS(, Serving);
ORRERY_FIELDS(, Loading);
ORRERY_FIELDS(, Search);
ORRERY_FIELDS(, Scenario);
ORRERY_FIELDS(, Predicted);
ORRERY_FIELDS(, PlanFile);

}  // namespace orrery
