// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

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
  // n times `a` and then `b`.
  void pairs(const WorkCost& a, const WorkCost& b, std::int64_t n) {
    if (n <= 0) return;
    const std::int64_t per = a.net + b.net, last = live + (n - 1) * per;
    peak = std::max({peak, live + a.peak, live + a.net + b.peak, last + a.peak, last + a.net + b.peak});
    live += n * per;
  }
};

std::int64_t one_chunk_peak(const PipelineShape& s, const ChunkCost& cost, std::int64_t stage) {
  const WorkCost &f = cost[kChunkForward], &b = cost[kChunkBackward], &w = cost[kChunkWeight];
  Held held;
  const std::int64_t warm_up = s.schedule == Schedule::kGPipe   ? s.m
                               : s.schedule == Schedule::kNaive ? 0
                                                                : std::min(s.m, s.p - 1 - stage);
  held.run(f, warm_up);
  if (!program::splits_backward(s.schedule)) {
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

std::int64_t interleaved_peak(const PipelineShape& s, const ChunkCost* const* chunks, std::int64_t stage) {
  // Rounds repeat; two of them have every state.
  const std::int64_t all = std::min(s.m, 2 * s.p) * s.v;
  const std::int64_t warm_up = std::min(all, 2 * (s.p - 1 - stage) + (s.v - 1) * s.p);
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

std::int64_t stage_peak(const PipelineShape& shape, const ChunkCost* const* chunks, std::int64_t stage) {
  return shape.schedule == Schedule::kInterleaved ? interleaved_peak(shape, chunks, stage)
                                                  : one_chunk_peak(shape, *chunks[0], stage);
}

}  // namespace orrery::sim
