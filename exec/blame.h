// SPDX-License-Identifier: Apache-2.0
//
// Which rank keeps the others waiting. Internal to exec/.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "exec/communicator.h"

namespace orrery::exec {

// A call to which some ranks have come and others have not.
struct Incomplete {
  std::string name;
  std::uint64_t number = 0;                    // of the group's calls, or of the channel's messages
  std::vector<std::int64_t> present, missing;  // none missing: those of other hosts
  Clock::time_point since;                     // the first rank came
};

// Who waits for whom, and the ranks whose processes do not answer.
struct Waits {
  std::vector<Incomplete> calls;
  std::set<std::int64_t> silent;
};

// "rank 3", "ranks 3 5".
std::string ranks_text(const std::vector<std::int64_t>& ranks);

struct Blame {
  std::string sentence;
  bool sure = true;  // not: each rank that could be to blame waits for another
};

// Which ranks keep the others waiting: `calls[late]` has waited for the whole deadline. A
// missing rank may itself wait for others: those are followed, through all calls, to the ranks whose
// processes are `silent`; where all answer, to those that wait for nobody.
Blame blame(const std::vector<Incomplete>& calls, std::size_t late, const std::set<std::int64_t>& silent,
            std::chrono::milliseconds deadline);
// The indices of the calls that are followed, the late one first.
std::vector<std::size_t> followed(const std::vector<Incomplete>& calls, std::size_t late);

}  // namespace orrery::exec
