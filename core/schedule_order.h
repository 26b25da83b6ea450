// SPDX-License-Identifier: Apache-2.0
//
// A pipeline schedule as a list of what each stage does, for plans whose schedule is "listed".
//
//   "schedule": "listed",
//   "schedule_order": {"stages": ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]}
//
// F3 is the forward of micro-batch 3, B3 its backward. Bi3 and W3 are the backward in two: the gradients of
// its inputs, which the stage before waits for, and those of weights. A stage's second chunk is named behind
// a point: F3.1. program/order.h says which lists there can be.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace orrery {

// How the model's chunks lie over stages 0 .. p-1: in turns, 0 .. p-1 and again from 0; or there and back,
// 0 .. p-1 and then p-1 .. 0.
enum class ChunkPlacement : std::uint8_t { kInTurns, kThereAndBack };
constexpr auto enum_names(ChunkPlacement) {
  return std::array{std::pair{ChunkPlacement::kInTurns, "in-turns"},
                    std::pair{ChunkPlacement::kThereAndBack, "there-and-back"}};
}

struct ScheduleOrder {
  ChunkPlacement chunks = ChunkPlacement::kInTurns;
  std::vector<std::string> stages;  // of each, its work in order, with spaces between
  friend bool operator==(const ScheduleOrder&, const ScheduleOrder&) = default;
};

template <class V>
void describe(V& v, ScheduleOrder& o) {
  v(Field{.name = "chunks", .help = "how chunks lie over the stages: in turns, or there and back"}, o.chunks);
  v(Field{.name = "stages",
          .help = "each stage's work in order: F, B, Bi or W with a micro-batch, and a chunk behind a point",
          .required = true,
          .most = static_cast<std::size_t>(limits::kMostLayers),
          .longest = limits::kLongestWork},
    o.stages);
}

}  // namespace orrery
