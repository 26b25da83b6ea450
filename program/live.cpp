// SPDX-License-Identifier: Apache-2.0
#include "program/live.h"

#include <algorithm>

#include "program/passes.h"

namespace orrery::program {
namespace {

static_assert(kMemoryClasses == kBufferClasses);

// Calls `at(step, op)` for each op in issue order, when what it allocates is live, and
// `change(buffer, copies)` for what comes and goes.
template <class Change, class At>
void walk(const RankClass& rank, Change&& change, At&& at) {
  for (std::size_t b = 0; b < rank.buffers.size(); ++b)
    change(static_cast<std::int32_t>(b), copies_always_live(rank, rank.buffers[b]));
  for (std::size_t i = 0; i < rank.steps.size(); ++i) {
    const Segment& s = rank.segments[static_cast<std::size_t>(rank.steps[i].segment)];
    auto event = s.memory.begin();
    for (std::int32_t op = 0; op < static_cast<std::int32_t>(s.ops.size()); ++op) {
      const auto of_op = [&](bool allocate) {
        for (; event != s.memory.end() && event->op == op && event->allocate == allocate; ++event)
          change(event->buffer, allocate ? 1 : -1);
      };
      of_op(true);
      at(static_cast<std::int32_t>(i), op);
      of_op(false);
    }
  }
}

}  // namespace

OpNumbers::OpNumbers(const RankClass& rank) : first_{0} {
  for (const Step& s : rank.steps)
    first_.push_back(first_.back() + rank.segments[static_cast<std::size_t>(s.segment)].ops.size());
}

std::vector<MemoryPoint> live_bytes(const RankClass& rank, std::int32_t process,
                                    std::span<const Time> starts) {
  const OpNumbers number(rank);
  const std::int64_t least = std::max<std::int64_t>(1, rank.logical_peak.value / 500);
  std::vector<MemoryPoint> out;
  MemoryPoint now{.rank = process};
  bool peak_seen = false;
  walk(
      rank,
      [&](std::int32_t buffer, std::int64_t copies) {
        const Buffer& b = rank.buffers[static_cast<std::size_t>(buffer)];
        now.bytes[static_cast<std::size_t>(b.cls)] += copies * b.bytes.value;
      },
      [&](std::int32_t step, std::int32_t op) {
        // Streams overlap: an op issued later may have started earlier.
        now.at = std::max(now.at, starts[number(step, op)]);
        const bool peak = !peak_seen && now.total() == rank.logical_peak.value;
        peak_seen |= peak;
        bool seen = out.empty() || peak;
        for (std::size_t c = 0; c < kMemoryClasses && !seen; ++c)
          seen = std::abs(now.bytes[c] - out.back().bytes[c]) >= least;
        if (seen) out.push_back(now);
      });
  return out;
}

Peak find_peak(const RankClass& rank) {
  Peak out;
  std::vector<std::int64_t> copies(rank.buffers.size()), at_peak;
  std::int64_t live = 0, most = -1;
  walk(
      rank,
      [&](std::int32_t buffer, std::int64_t more) {
        copies[static_cast<std::size_t>(buffer)] += more;
        live += more * rank.buffers[static_cast<std::size_t>(buffer)].bytes.value;
      },
      [&](std::int32_t step, std::int32_t op) {
        if (live <= most) return;
        most = live;
        out.step = step;
        out.op = op;
        at_peak = copies;
      });
  for (std::size_t b = 0; b < at_peak.size(); ++b) {
    const Bytes bytes{at_peak[b] * rank.buffers[b].bytes.value};
    if (bytes.value > 0) out.buffers.push_back({static_cast<std::int32_t>(b), at_peak[b], bytes});
  }
  std::stable_sort(out.buffers.begin(), out.buffers.end(),
                   [](const LiveBuffer& a, const LiveBuffer& b) { return a.bytes > b.bytes; });
  return out;
}

}  // namespace orrery::program
