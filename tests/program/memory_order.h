// SPDX-License-Identifier: Apache-2.0
//
// An oracle for races, written apart from the linker and the checker. It reads the plain data of a rank's
// program: the ops in issue order, their waits, and the bytes of the arena that they touch. Op a happens
// before op b where a chain of stream order and waits leads from a to b. Two ops race when they touch a
// common byte, at least one of them writes, and neither happens before the other.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "program/program.h"

namespace orrery::program {

class MemoryOrder {
 public:
  explicit MemoryOrder(const RankClass& rank) {
    Clock issued{};
    for (const Step& step : rank.steps) {
      const Segment& segment = rank.segments[at(step.segment)];
      const Clock base = issued;
      for (std::size_t i = 0; i < segment.ops.size(); ++i) {
        const Op& op = segment.ops[i];
        Item item{describe_op(rank, step, op), op.stream, ++issued[op.stream], {}, {}, {}};
        for (std::size_t q = 0; q < kMostStreams; ++q) {
          if (op.after[q] > 0) item.waits.push_back({q, base[q] + op.after[q]});
        }
        for (int w = step.first_wait; w < step.first_wait + step.waits; ++w) {
          const ExternalWait& wait = rank.waits[at(w)];
          if (wait.op == static_cast<std::int32_t>(i)) item.waits.push_back({wait.stream, wait.count});
        }
        for (const Ref& r : op.reads) item.reads.push_back(bytes(rank, r, step.micro_batch));
        for (const Ref& r : op.writes) item.writes.push_back(bytes(rank, r, step.micro_batch));
        items_.push_back(std::move(item));
      }
    }
    close();
  }

  // For each op: how many ops of each stream happen before it, or are it.
  using Clock = std::array<std::int64_t, kMostStreams>;
  const std::vector<Clock>& clocks() const { return clocks_; }

  // Two ops that race, described, or nothing.
  std::optional<std::string> race() const {
    for (std::size_t b = 0; b < items_.size(); ++b) {
      for (std::size_t a = 0; a < b; ++a) {
        if (!before(a, b) && !before(b, a) && conflict(items_[a], items_[b]))
          return items_[a].name + " races with " + items_[b].name;
      }
    }
    return std::nullopt;
  }

 private:
  struct Range {
    std::int64_t begin, end;
  };
  struct Wait {
    std::size_t stream;
    std::int64_t count;
  };
  struct Item {
    std::string name;
    std::size_t stream;
    std::int64_t ordinal;  // on its stream, from 1
    std::vector<Wait> waits;
    std::vector<Range> reads, writes;
  };

  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  static Range bytes(const RankClass& rank, const Ref& r, std::int32_t micro_batch) {
    const Buffer& b = rank.buffers[at(r.buffer)];
    const std::int64_t begin = b.arena_offset + micro_batch % b.instances * b.arena_stride;
    return {begin, begin + b.bytes.value};
  }

  // The transitive closure: an op's clock is the largest of those that it waits for. Passes in issue order
  // are repeated until no clock grows.
  void close() {
    std::array<std::vector<std::size_t>, kMostStreams> on;
    for (std::size_t i = 0; i < items_.size(); ++i) on[items_[i].stream].push_back(i);
    clocks_.assign(items_.size(), Clock{});
    const auto join = [&](Clock& into, std::size_t stream, std::int64_t count) {
      if (count < 1) return;
      const Clock& other = clocks_[on[stream].at(static_cast<std::size_t>(count) - 1)];
      for (std::size_t q = 0; q < kMostStreams; ++q) into[q] = std::max(into[q], other[q]);
      into[stream] = std::max(into[stream], count);
    };
    for (bool grew = true; grew;) {
      grew = false;
      for (std::size_t i = 0; i < items_.size(); ++i) {
        Clock clock = clocks_[i];
        join(clock, items_[i].stream, items_[i].ordinal - 1);
        for (const Wait& w : items_[i].waits) join(clock, w.stream, w.count);
        clock[items_[i].stream] = std::max(clock[items_[i].stream], items_[i].ordinal);
        grew = grew || clock != clocks_[i];
        clocks_[i] = clock;
      }
    }
  }

  bool before(std::size_t a, std::size_t b) const {
    return clocks_[b][items_[a].stream] >= items_[a].ordinal;
  }

  static bool overlap(const std::vector<Range>& a, const std::vector<Range>& b) {
    for (const Range& x : a) {
      for (const Range& y : b) {
        if (x.begin < y.end && y.begin < x.end) return true;
      }
    }
    return false;
  }
  static bool conflict(const Item& a, const Item& b) {
    return overlap(a.writes, b.writes) || overlap(a.writes, b.reads) || overlap(a.reads, b.writes);
  }

  std::vector<Item> items_;
  std::vector<Clock> clocks_;
};

}  // namespace orrery::program
