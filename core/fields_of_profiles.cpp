// SPDX-License-Identifier: Apache-2.0
//
// Reading, writing and schemas of clusters, profiles and lives of runs: compiled here alone.
#include "core/cluster.h"
#include "core/device.h"
#include "core/jobs.h"
#include "core/links.h"
#include "core/published_fit.h"
#include "core/reliability_profile.h"
#include "core/run_life.h"
#include "core/stack.h"

namespace orrery {

ORRERY_FIELDS(, Cluster);
ORRERY_FIELDS(, Device);
ORRERY_FIELDS(, LinkProfile);
ORRERY_FIELDS(, Stack);
ORRERY_FIELDS(, ReliabilityProfile);
ORRERY_FIELDS(, LifeLog);
ORRERY_FIELDS(, RunLife);
ORRERY_FIELDS(, JobsFile);
ORRERY_FIELDS(, PublishedFitFile);

}  // namespace orrery
