// SPDX-License-Identifier: Apache-2.0
//
// Waits from data flow. An op must come after the last write of what it reads, after the last write and all
// later reads of what it writes, and, where it begins a local buffer's life, after all uses of the buffers
// that had its memory before. On its own stream that holds by order; on another stream it becomes a wait
// "stream s has completed n ops". Waits already implied by an earlier op of the stream are left out.
#include <algorithm>

#include "program/passes.h"

namespace orrery::program {
namespace {

// What each op of a walk in issue order must come after, by stream: the writes of what it reads, all uses of
// what it writes, and all uses of what stood in the memory of a buffer that begins to live. Static and kept
// buffers that one stream touches need no following. Ordinals count a stream's ops from 1.
class Hazards {
 public:
  explicit Hazards(const RankClass& rank);
  void begin_step() { ++step_; }
  Counts requirements(const Op& op, std::int32_t micro_batch);
  void record(const Op& op, std::int32_t micro_batch, std::int64_t ordinal);

 private:
  struct Access {
    std::int32_t write_stream = -1;
    std::int64_t write = 0;
    Counts reads{};
  };
  Access* access(const Ref& r, std::int32_t micro_batch);
  void move_in(std::int32_t buffer, Counts& need);

  const RankClass& rank_;
  std::vector<std::int32_t> first_;  // buffer -> its first instance in accesses_, or -1
  std::vector<Access> accesses_;
  // Local buffers share memory: who stood where last, and the step in which each moved in.
  std::vector<std::int32_t> tenants_;
  std::vector<std::int64_t> moved_in_;
  std::int64_t step_ = 0;
};

bool shares_memory(const Buffer& b) {
  return b.life == Life::kLocal && b.instances == 1;
}

Hazards::Hazards(const RankClass& rank)
    : rank_(rank), first_(rank.buffers.size(), -1), moved_in_(rank.buffers.size(), -1) {
  std::vector<std::uint32_t> streams(rank.buffers.size());
  for (const Segment& segment : rank.segments) {
    for (const Op& op : segment.ops) {
      for (const Ref& r : op.reads) streams[static_cast<std::size_t>(r.buffer)] |= 1U << op.stream;
      for (const Ref& r : op.writes) streams[static_cast<std::size_t>(r.buffer)] |= 1U << op.stream;
    }
  }
  std::int32_t total = 0;
  for (std::size_t b = 0; b < rank.buffers.size(); ++b) {
    const bool one_stream = (streams[b] & (streams[b] - 1)) == 0;
    if (one_stream && !shares_memory(rank.buffers[b])) continue;  // the stream's order suffices
    first_[b] = total;
    total += rank.buffers[b].instances;
  }
  accesses_.resize(static_cast<std::size_t>(total));
}

Hazards::Access* Hazards::access(const Ref& r, std::int32_t micro_batch) {
  const std::int32_t first = first_[static_cast<std::size_t>(r.buffer)];
  if (first < 0) return nullptr;
  const std::int32_t copies = rank_.buffers[static_cast<std::size_t>(r.buffer)].instances;
  return &accesses_[static_cast<std::size_t>(first + micro_batch % copies)];
}

// The buffer takes its place: what stood there must be done with.
void Hazards::move_in(std::int32_t buffer, Counts& need) {
  struct Range {
    std::int64_t begin, end;
  };
  const auto range = [&](std::int32_t b) -> Range {
    const Buffer& of = rank_.buffers[static_cast<std::size_t>(b)];
    return {of.arena_offset, of.arena_offset + std::max<std::int64_t>(1, of.bytes.value)};
  };
  const Range mine = range(buffer);
  std::erase_if(tenants_, [&](std::int32_t other) {
    const Range theirs = range(other);
    if (other == buffer || theirs.end <= mine.begin || theirs.begin >= mine.end) return other == buffer;
    const Access& a = accesses_[static_cast<std::size_t>(first_[static_cast<std::size_t>(other)])];
    if (a.write_stream >= 0) {
      auto& n = need[static_cast<std::size_t>(a.write_stream)];
      n = std::max(n, a.write);
    }
    for (std::size_t s = 0; s < kStreamCount; ++s) need[s] = std::max(need[s], a.reads[s]);
    return mine.begin <= theirs.begin && theirs.end <= mine.end;
  });
  tenants_.push_back(buffer);
}

Counts Hazards::requirements(const Op& op, std::int32_t micro_batch) {
  Counts need{};
  for (const std::vector<Ref>* refs : {&op.reads, &op.writes}) {
    for (const Ref& r : *refs) {
      const auto b = static_cast<std::size_t>(r.buffer);
      if (moved_in_[b] == step_ || !shares_memory(rank_.buffers[b])) continue;
      moved_in_[b] = step_;
      move_in(r.buffer, need);
    }
  }
  const auto after_write = [&](const Access& a) {
    if (a.write_stream < 0) return;
    auto& n = need[static_cast<std::size_t>(a.write_stream)];
    n = std::max(n, a.write);
  };
  for (const Ref& r : op.reads) {
    if (const Access* a = access(r, micro_batch)) after_write(*a);
  }
  for (const Ref& r : op.writes) {
    if (const Access* a = access(r, micro_batch)) {
      after_write(*a);
      for (std::size_t s = 0; s < kStreamCount; ++s) need[s] = std::max(need[s], a->reads[s]);
    }
  }
  return need;
}

void Hazards::record(const Op& op, std::int32_t micro_batch, std::int64_t ordinal) {
  for (const Ref& r : op.reads) {
    if (Access* a = access(r, micro_batch)) a->reads[op.stream] = ordinal;
  }
  for (const Ref& r : op.writes) {
    if (Access* a = access(r, micro_batch)) {
      a->write_stream = op.stream;
      a->write = ordinal;
      a->reads.fill(0);
    }
  }
}

class Linker {
 public:
  explicit Linker(RankClass& rank) : rank_(rank), hazards_(rank) {}

  void run() {
    for (Segment& segment : rank_.segments) {
      segment.stream_ops.fill(0);
      for (const Op& op : segment.ops) ++segment.stream_ops[op.stream];
    }
    done_.assign(rank_.segments.size(), false);
    for (Step& step : rank_.steps) {
      step.first_wait = static_cast<std::int32_t>(rank_.waits.size());
      link_step(step);
      step.waits = static_cast<std::int32_t>(rank_.waits.size()) - step.first_wait;
    }
  }

 private:
  void link_step(const Step& step) {
    Segment& segment = rank_.segments[static_cast<std::size_t>(step.segment)];
    const bool first_time = !done_[static_cast<std::size_t>(step.segment)];
    done_[static_cast<std::size_t>(step.segment)] = true;
    hazards_.begin_step();
    const Counts base = issued_;
    for (std::size_t i = 0; i < segment.ops.size(); ++i) {
      Op& op = segment.ops[i];
      const Counts need = hazards_.requirements(op, step.micro_batch);
      Counts& seen = seen_[op.stream];
      for (std::size_t s = 0; s < kStreamCount; ++s) {
        if (s == op.stream) continue;
        if (need[s] > base[s]) {  // work of this very step: the same wait in every instance
          if (first_time) op.after[s] = static_cast<std::int32_t>(need[s] - base[s]);
        } else if (need[s] > seen[s]) {
          rank_.waits.push_back({static_cast<std::int32_t>(i), static_cast<Stream>(s), need[s]});
        }
        seen[s] = std::max(seen[s], need[s]);
      }
      hazards_.record(op, step.micro_batch, ++issued_[op.stream]);
    }
  }

  RankClass& rank_;
  Hazards hazards_;
  std::vector<bool> done_;
  Counts issued_{};
  std::array<Counts, kStreamCount> seen_{};
};

}  // namespace

void link_waits(RankClass& rank) {
  Linker(rank).run();
}

}  // namespace orrery::program
