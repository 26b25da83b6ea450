// SPDX-License-Identifier: Apache-2.0
//
// The chain of ops that decided how long a timeline took: from the end of the last op backwards, each time to
// what the op had waited for. Found from times alone, so it works for measured timelines as for predicted
// ones:
//   * an op that waited for partners (active > start) goes on at the partner that came last (meetings.h);
//   * any other goes on at the op of its process that ended last before it began, on any stream. What lies
//     between the two is a gap: launch latency, or something the timeline does not show.
#pragma once

#include <vector>

#include "sim/analysis/meetings.h"

namespace orrery::sim {

struct Link {
  std::size_t slice = 0;  // of the timeline
  Time from, to;          // the part of it on the path
  Time gap{0};            // between the link before it in time and this one
};

// In order of time. Their lengths and gaps add up to the length of the timeline, exactly.
std::vector<Link> critical_path(const Lanes& lanes, const Meetings& meetings);

}  // namespace orrery::sim
