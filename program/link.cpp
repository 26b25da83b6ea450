// SPDX-License-Identifier: Apache-2.0
//
// Waits from data flow. An op must come after the last write of what it reads, after the last write and all
// later reads of what it writes, and, where it begins a local buffer's life, after all uses of the buffers
// that had its memory before. On its own stream that holds by order; on another stream it becomes a wait
// "stream s has completed n ops". Waits already implied by an earlier op of the stream are left out.
#include <algorithm>
#include <boost/container/static_vector.hpp>

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
  // Of a buffer, what is asked at every op.
  struct Place {
    std::int32_t first = -1;  // its first instance in accesses_, or -1 where it needs no following
    std::int32_t instances = 1;
    bool shared = false;              // a local buffer, which shares memory
    std::int64_t moved_in = -1;       // the last step in which it did
    std::int64_t begin = 0, end = 0;  // its range of the arena
  };
  struct Tenant {
    std::int32_t buffer = 0, access = 0;
    std::int64_t begin = 0, end = 0;
  };
  Access* access(const Ref& r, std::int32_t micro_batch);
  void move_in(std::int32_t buffer, Counts& need);

  std::vector<Place> places_;  // by buffer
  std::vector<Access> accesses_;
  std::vector<Tenant> tenants_;  // who stood where last: ranges that do not overlap, in order
  std::int64_t step_ = 0;
};

Hazards::Hazards(const RankClass& rank) : places_(rank.buffers.size()) {
  std::vector<std::uint32_t> streams(rank.buffers.size());
  for (const Segment& segment : rank.segments) {
    for (const Op& op : segment.ops) {
      for (const Ref& r : op.reads) streams[static_cast<std::size_t>(r.buffer)] |= 1U << op.stream;
      for (const Ref& r : op.writes) streams[static_cast<std::size_t>(r.buffer)] |= 1U << op.stream;
    }
  }
  std::int32_t total = 0;
  for (std::size_t b = 0; b < rank.buffers.size(); ++b) {
    const Buffer& buffer = rank.buffers[b];
    Place& place = places_[b];
    place.instances = buffer.instances;
    place.shared = buffer.life == Life::kLocal && buffer.instances == 1;
    place.begin = buffer.arena_offset;
    place.end = buffer.arena_offset + std::max<std::int64_t>(1, buffer.bytes.value);
    const bool one_stream = (streams[b] & (streams[b] - 1)) == 0;
    if (one_stream && !place.shared) continue;  // the stream's order suffices
    place.first = total;
    total += buffer.instances;
  }
  accesses_.resize(static_cast<std::size_t>(total));
}

Hazards::Access* Hazards::access(const Ref& r, std::int32_t micro_batch) {
  const Place& place = places_[static_cast<std::size_t>(r.buffer)];
  if (place.first < 0) return nullptr;
  const std::int32_t copy = place.instances == 1 ? 0 : micro_batch % place.instances;
  return &accesses_[static_cast<std::size_t>(place.first + copy)];
}

// The buffer takes its place: what stood there must be done with.
void Hazards::move_in(std::int32_t buffer, Counts& need) {
  const Place& mine = places_[static_cast<std::size_t>(buffer)];
  const auto first = std::partition_point(tenants_.begin(), tenants_.end(),
                                          [&](const Tenant& t) { return t.end <= mine.begin; });
  auto last = first;
  boost::container::static_vector<Tenant, 3> now;  // in place of them: what is left on both sides, and it
  for (; last != tenants_.end() && last->begin < mine.end; ++last) {
    if (last->buffer != buffer) {
      const Access& a = accesses_[static_cast<std::size_t>(last->access)];
      if (a.write_stream >= 0) {
        auto& n = need[static_cast<std::size_t>(a.write_stream)];
        n = std::max(n, a.write);
      }
      for (std::size_t s = 0; s < kMostStreams; ++s) need[s] = std::max(need[s], a.reads[s]);
    }
    if (last->begin < mine.begin) now.push_back({last->buffer, last->access, last->begin, mine.begin});
  }
  now.push_back({buffer, mine.first, mine.begin, mine.end});
  if (last != first && std::prev(last)->end > mine.end) {
    now.push_back(*std::prev(last));
    now.back().begin = mine.end;
  }
  const auto fresh = static_cast<std::ptrdiff_t>(now.size());
  const auto room = std::min(fresh, last - first);
  const auto at = std::copy(now.begin(), now.begin() + room, first);
  if (room == fresh)
    tenants_.erase(at, last);
  else
    tenants_.insert(at, now.begin() + room, now.end());
}

Counts Hazards::requirements(const Op& op, std::int32_t micro_batch) {
  Counts need{};
  for (const std::vector<Ref>* refs : {&op.reads, &op.writes}) {
    for (const Ref& r : *refs) {
      Place& place = places_[static_cast<std::size_t>(r.buffer)];
      if (place.moved_in == step_ || !place.shared) continue;
      place.moved_in = step_;
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
      for (std::size_t s = 0; s < kMostStreams; ++s) need[s] = std::max(need[s], a->reads[s]);
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

  // A walk, before which nothing runs.
  void run(std::vector<Step>& steps) {
    done_.assign(rank_.segments.size(), false);
    for (Step& step : steps) {
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
      for (std::size_t s = 0; s < kMostStreams; ++s) {
        if (s == op.stream) continue;
        if (need[s] > base[s]) {  // work of this very step: the same wait in every instance
          if (first_time) op.after[s] = static_cast<std::int32_t>(need[s] - base[s]);
        } else if (need[s] > seen[s]) {
          rank_.waits.push_back({static_cast<std::int32_t>(i), static_cast<StreamIndex>(s), need[s]});
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
  std::array<Counts, kMostStreams> seen_{};
};

}  // namespace

void link_waits(RankClass& rank) {
  for (Segment& segment : rank.segments) {
    segment.stream_ops.fill(0);
    for (const Op& op : segment.ops) ++segment.stream_ops[op.stream];
  }
  Linker(rank).run(rank.steps);
  Linker(rank).run(rank.outer);
}

}  // namespace orrery::program
