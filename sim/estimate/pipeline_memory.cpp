// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "program/pieces.h"
#include "sim/estimate/pipeline_parts.h"

namespace orrery::sim {
namespace {

// Follows the bytes of one stage through its order of work, `n` equal slots at a time.
struct Held {
  std::int64_t live = 0, peak = 0;
  void run(const WorkCost& w, std::int64_t n = 1) {
    if (n <= 0) return;
    peak = std::max({peak, live + w.peak, live + (n - 1) * w.net + w.peak});
    live += n * w.net;
  }
  // n times a forward and a backward side by side.
  void side_by_side(const PairCost& forward, const PairCost& backward, std::int64_t n) {
    if (n <= 0) return;
    const PieceBytes both = sim::side_by_side(forward, backward);
    peak = std::max({peak, live + both.peak, live + (n - 1) * both.net + both.peak});
    live += n * both.net;
  }
  // n times `a` and then `b`.
  void pairs(const WorkCost& a, const WorkCost& b, std::int64_t n) {
    if (n <= 0) return;
    const std::int64_t per = a.net + b.net, last = live + (n - 1) * per;
    peak = std::max({peak, live + a.peak, live + a.net + b.peak, last + a.peak, last + a.net + b.peak});
    live += n * per;
  }
};

std::int64_t one_chunk_peak(const PipelineShape& s, const ChunkCost& cost, const PairCost* pair,
                            std::int64_t stage) {
  const bool split = program::splits_backward(s.schedule);
  const WorkCost &f = cost[kChunkForward], &b = cost[split ? kChunkBackwardInput : kChunkBackward],
                 &w = cost[kChunkWeight];
  Held held;
  const std::int64_t warm_up = s.schedule == Schedule::kGPipe   ? s.m
                               : s.schedule == Schedule::kNaive ? 0
                               : s.in_pairs                     ? std::min(s.m, 2 * (s.p - 1 - stage) + 1)
                                                                : std::min(s.m, s.p - 1 - stage);
  held.run(f, warm_up);
  if (!split) {
    if (s.in_pairs)
      held.side_by_side(*pair, *pair, s.m - warm_up);
    else
      held.pairs(f, b, s.m - warm_up);
    held.run(b);
    return held.peak;
  }
  // Weight gradients begin after `stage` micro-batches; from then on nothing grows.
  const std::int64_t before = std::min(stage, s.m);
  const std::int64_t both = std::min(before, s.m - warm_up);
  held.pairs(f, b, both);
  held.run(b, before - both);
  if (before < s.m) {
    if (warm_up + before < s.m) held.run(f);
    held.run(b);
  }
  held.run(w);
  return held.peak;
}

// Goes round the chunks, p micro-batches on each.
struct Round {
  std::int64_t p, v;
  std::int64_t chunk = 0, left = p;
  void advance(std::int64_t n) {
    left -= n;
    if (left > 0) return;
    left = p;
    chunk = chunk + 1 == v ? 0 : chunk + 1;
  }
};

std::int64_t interleaved_peak(const PipelineShape& s, const ChunkCost* const* chunks,
                              const PairCost* const* pairs, std::int64_t stage) {
  // Rounds repeat; two of them have every state, and in pairs, which begin a forward later, three.
  const std::int64_t all = std::min(s.m, (s.in_pairs ? 3 : 2) * s.p) * s.v;
  const std::int64_t warm_up = std::min(all, 2 * (s.p - 1 - stage) + (s.v - 1) * s.p + s.in_pairs);
  Round down{s.p, s.v}, up{s.p, s.v};
  const auto forward = [&]() -> const WorkCost& { return (*chunks[down.chunk])[kChunkForward]; };
  const auto backward = [&]() -> const WorkCost& { return (*chunks[s.v - 1 - up.chunk])[kChunkBackward]; };
  Held held;
  for (std::int64_t left = warm_up; left > 0;) {
    const std::int64_t n = std::min(left, down.left);
    held.run(forward(), n);
    down.advance(n);
    left -= n;
  }
  for (std::int64_t left = all - warm_up; left > 0;) {
    const std::int64_t n = std::min({left, down.left, up.left});
    if (s.in_pairs)
      held.side_by_side(*pairs[down.chunk], *pairs[s.v - 1 - up.chunk], n);
    else
      held.pairs(forward(), backward(), n);
    down.advance(n);
    up.advance(n);
    left -= n;
  }
  for (std::int64_t left = warm_up; left > 0;) {
    const std::int64_t n = std::min(left, up.left);
    held.run(backward(), n);
    up.advance(n);
    left -= n;
  }
  return held.peak;
}

}  // namespace

PieceBytes side_by_side(const PairCost& forward, const PairCost& backward) {
  std::int64_t f = 0, b = 0, most = 0;  // bytes that each has left so far
  for (const program::Turn& turn : program::side_by_side(forward.forward.size(), backward.backward.size())) {
    const PieceBytes& piece =
        (turn.of_forward ? forward.forward : backward.backward)[static_cast<std::size_t>(turn.piece)];
    most = std::max(most, piece.peak + (turn.of_forward ? b : f));
    (turn.of_forward ? f : b) = piece.net;
  }
  return {most, f + b};
}

std::int64_t stage_peak(const PipelineShape& shape, const PipelineCosts& costs, std::size_t run,
                        std::int64_t stage) {
  const std::size_t first = run * static_cast<std::size_t>(shape.v);
  const PairCost* const* pairs = shape.in_pairs ? &costs.pairs[first] : nullptr;
  return shape.schedule == Schedule::kInterleaved
             ? interleaved_peak(shape, &costs.chunks[first], pairs, stage)
             : one_chunk_peak(shape, *costs.chunks[first], pairs == nullptr ? nullptr : *pairs, stage);
}

}  // namespace orrery::sim
