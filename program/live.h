// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of a rank are live when: the program walked in issue order, as the allocator sees it. What an
// op frees is free once the next one is issued.
//
//   const OpNumbers number(rank);
//   starts[number(step, op)] = ...;
//   std::vector<MemoryPoint> series = live_bytes(rank, 0, starts);
//
// Its highest point is RankClass::logical_peak, split by class like RankClass::at_peak.
#pragma once

#include <span>

#include "core/timeline.h"
#include "program/program.h"

namespace orrery::program {

// The op instances of a rank's step, numbered in issue order.
class OpNumbers {
 public:
  explicit OpNumbers(const RankClass& rank);
  std::size_t operator()(std::int32_t step, std::int32_t op) const {
    return first_[static_cast<std::size_t>(step)] + static_cast<std::size_t>(op);
  }
  std::size_t size() const { return first_.back(); }

 private:
  std::vector<std::size_t> first_;  // by step: instances before it
};

// Live bytes of process `process` over a step whose op instances started when `starts` says, by OpNumbers.
// Changes of less than 1/500 of the peak are left out, so that a series has as many points as one can see.
std::vector<MemoryPoint> live_bytes(const RankClass& rank, std::int32_t process,
                                    std::span<const Time> starts);

// A buffer at the moment of the peak, with all its live copies.
struct LiveBuffer {
  std::int32_t buffer = 0;
  std::int64_t copies = 0;
  Bytes bytes;
};
struct Peak {
  std::int32_t step = 0, op = 0;    // during which it is reached first
  std::vector<LiveBuffer> buffers;  // largest first; their bytes add up to logical_peak
};
Peak find_peak(const RankClass& rank);

}  // namespace orrery::program
