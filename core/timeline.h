// SPDX-License-Identifier: Apache-2.0
//
// A timeline: what each op of a step did when. Predicted and measured timelines have the same form, so
// they join by key: (rank, segment, chunk, micro-batch, op).
//
//   ready   its inputs were there            start   it began (a collective: this rank arrived)
//   active  the last member arrived, so that waiting is never taken for transfer        end
//
// A folded timeline holds one representative rank per rank class.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "core/units.h"

namespace orrery {

struct Slice {
  std::int32_t name = 0;     // index in Timeline::names
  std::int32_t segment = 0;  // index in Timeline::segments
  std::int32_t chunk = 0;
  std::int32_t micro_batch = 0;
  std::int32_t rank = 0;
  std::int32_t stream = 0;  // index in Timeline::streams
  Time ready, start, active, end;
  friend bool operator==(const Slice&, const Slice&) = default;
};

// What limits an op: arithmetic, memory, or the network.
enum class Bound : std::uint8_t { kUnknown, kCompute, kMemory, kCommunication };
constexpr auto enum_names(Bound) {
  return std::array{std::pair{Bound::kUnknown, "unknown"}, std::pair{Bound::kCompute, "compute"},
                    std::pair{Bound::kMemory, "memory"}, std::pair{Bound::kCommunication, "communication"}};
}

struct Timeline {
  std::string source;  // "predicted" or "measured", and by what
  std::int64_t program_hash = 0;
  std::vector<std::string> names, segments, streams;
  std::vector<Bound> bounds;             // by name; none where nobody knows (measured timelines)
  std::vector<std::string> rank_labels;  // by rank: "stage 1 (tp 0, dp 0)"
  std::vector<Slice> slices;

  Time length() const;
};

// Chrome trace events (also read by Perfetto): one process per rank, one thread per stream.
std::string to_chrome_trace(const Timeline& t);
Timeline from_chrome_trace(const Json& trace, const std::string& file);

}  // namespace orrery
