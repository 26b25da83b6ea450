// SPDX-License-Identifier: Apache-2.0
//
// Who waited for whom: in each exchange, members wait from their own beginning until the last one's.
#pragma once

#include <vector>

#include "sim/analysis/lanes.h"

namespace orrery::sim {

// Of one process, for which others waited.
struct WaitedFor {
  std::int32_t process = 0;
  std::int64_t exchanges = 0;  // in which it came last and somebody waited
  Time waited;                 // of all others together
  std::int32_t longest = 0;    // the process that waited longest for it
  Time by_longest;             // how long that one did
};

// The one that others waited for longest comes first. Who exchanged with whom is found from times.
std::vector<WaitedFor> waited_for(const Lanes& lanes);
// The same where it is known: `exchanges` are slices of the timeline, all members of one each.
std::vector<WaitedFor> waited_for(const Timeline& timeline,
                                  const std::vector<std::vector<std::size_t>>& exchanges);

}  // namespace orrery::sim
