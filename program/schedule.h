// SPDX-License-Identifier: Apache-2.0
//
// Pipeline schedules: the order in which a stage runs forward (F), backward (B) and, where it is split
// off, weight-gradient (W) work. Pure functions of (schedule, stages p, chunks per stage v,
// micro-batches m); i is the stage.
//
//   naive        F0 B0 F1 B1 ..                      one micro-batch in the whole pipeline
//   gpipe        F0..Fm-1 B0..Bm-1                   m in flight
//   1f1b         min(m, p-1-i) warm-up F, then F B   min(m, p-i) in flight
//   interleaved  chunks in groups of p micro-batches (Narayanan et al. 2021); p divides m
//   zb-h1        1f1b whose B is split; W fills the bubbles (Qi et al. 2023); memory as 1f1b
//   zb-v         two chunks in a V, W fills the bubbles (Qi et al. 2024)
//   dualpipe-v   two chunks in a V, a forward of one beside a backward of the other; B is whole in the middle
//                and split where the pipeline fills and empties (DeepSeek-AI 2025, the half of DualPipe that
//                Sea AI Lab cut out); 2p <= m, 2p+1 half stages in flight
//   listed       as the plan lists it (program/order.h)
//
// Side by side, a forward of 1f1b, interleaved or dualpipe-v runs beside the backward that comes after it, so
// that each has compute while the other exchanges tokens (Megatron-core's
// --overlap-moe-expert-parallel-comm). Neither may need the other: of the first two there is one more warm-up
// F, and in 1f1b twice as many, since a pair takes its stage until both are done: 2(p-1-i)+1 in place of
// p-1-i, min(m, 2(p-i)) in flight.
//
// Bubble, as idle over ideal time with equal stages: (p-1)/m for gpipe and 1f1b, (p-1)/(v m)
// interleaved, (p-1)(T_F+T_B-T_W)/(m (T_F+T_B+T_W)) for zb-h1. DualPipeV idles for (p-1)(T_FB+T_B-2 T_W),
// times of chunks, where T_F, T_B and T_W are equal; T_FB is a forward and a whole backward side by side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan.h"

namespace orrery::program {

enum class Work : std::uint8_t { kForward, kBackward, kBackwardInput, kBackwardWeight };

struct Slot {
  Work work = Work::kForward;
  std::int32_t chunk = 0;  // local: 0 .. v-1
  std::int32_t micro_batch = 0;
  bool beside = false;  // a backward that runs side by side with the forward before it
  friend bool operator==(const Slot&, const Slot&) = default;
};

// Forward pieces of work of one step, over all stages. Real steps have thousands.
inline constexpr std::int64_t kMostWork = 1 << 22;

// What must hold of (p, v, m) for the schedule; empty when it does, else the reason.
std::string schedule_problem(Schedule schedule, std::int64_t p, std::int64_t v, std::int64_t m);

// Whether weight gradients come with their backwards, apart, or either way.
enum class Backwards : std::uint8_t { kWhole, kSplit, kBoth };
// Of a schedule that is not listed, and of a plan's.
constexpr Backwards backwards_of(Schedule s) {
  switch (s) {
    case Schedule::kZeroBubbleH1:
    case Schedule::kZeroBubbleV:
      return Backwards::kSplit;
    case Schedule::kDualPipeV:
      return Backwards::kBoth;
    case Schedule::kNaive:
    case Schedule::kGPipe:
    case Schedule::k1F1B:
    case Schedule::kInterleaved:
    case Schedule::kListed:
      break;
  }
  return Backwards::kWhole;
}
Backwards backwards_of(const Plan& p);
// Whether some come apart.
constexpr bool splits_backward(Schedule s) {
  return backwards_of(s) != Backwards::kWhole;
}
inline bool splits_backward(const Plan& p) {
  return backwards_of(p) != Backwards::kWhole;
}

// The model's chunk that is a stage's local one, of p stages.
constexpr std::int64_t global_chunk(ChunkPlacement placement, std::int64_t p, std::int64_t stage,
                                    std::int64_t chunk) {
  return placement == ChunkPlacement::kThereAndBack && chunk % 2 == 1 ? (chunk + 1) * p - 1 - stage
                                                                      : chunk * p + stage;
}

// Whether the activations that a chunk sends go from later stages to earlier ones: the second way of a V.
constexpr bool comes_back(ChunkPlacement placement, std::int64_t p, std::int64_t chunk) {
  return placement == ChunkPlacement::kThereAndBack && chunk / p % 2 == 1;
}

// Whether forwards and backwards of the schedule can run side by side.
constexpr bool pairs_up(Schedule s) {
  return s == Schedule::k1F1B || s == Schedule::kInterleaved || s == Schedule::kDualPipeV;
}

// Each stage's work in order, of a plan that check_plan takes.
std::vector<std::vector<Slot>> pipeline_schedule(const Plan& p);

// The same of a schedule that is not listed; in pairs where asked for, of those that have them. O(p v m).
std::vector<std::vector<Slot>> pipeline_schedule(Schedule schedule, std::int64_t p, std::int64_t v,
                                                 std::int64_t m, bool in_pairs = false);

// Of passes that have no backward: the micro-batches one after the other, each through all chunks.
std::vector<std::vector<Slot>> forward_schedule(std::int64_t p, std::int64_t v, std::int64_t m);

// Most micro-batches of each local chunk between their forward and the end of their backward.
std::vector<std::int32_t> in_flight(const std::vector<Slot>& slots, std::int64_t v);

}  // namespace orrery::program
