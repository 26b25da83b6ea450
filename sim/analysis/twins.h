// SPDX-License-Identifier: Apache-2.0
//
// The same op in two timelines: of the same stage, segment, chunk and micro-batch, by name.
#pragma once

#include <optional>
#include <unordered_map>

#include "sim/analysis/lanes.h"

namespace orrery::sim {

// A rank's place on an axis; -1 where the timeline does not have that axis.
std::int64_t coordinate(const TimelineHead& timeline, std::int64_t rank, std::string_view axis);

// The pipeline stage of a process: by the timeline's axes or, without them, as its label says ("stage 3 ...",
// "rank 3 (tp 1, dp 0, pp 1)"); without either every process is one.
class Stages {
 public:
  explicit Stages(const TimelineHead& timeline);
  std::int32_t operator()(std::int32_t process) const;

 private:
  const TimelineHead& timeline_;
  std::unordered_map<std::int32_t, std::int64_t> first_rank_;  // by process, where several ranks are one
};

// Of the processes of the same stage in `there` the one with the same number, or the first. O(slices of its
// lane).
std::optional<std::size_t> twin(const Lanes& here, std::size_t slice, const Lanes& there);

}  // namespace orrery::sim
