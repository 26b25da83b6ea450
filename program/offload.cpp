// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <optional>

#include "program/passes.h"

namespace orrery::program {
namespace {

template <class Use>
void for_each_ref(const Op& op, Use use) {
  for (const Ref& r : op.reads) use(r);
  for (const Ref& r : op.writes) use(r);
}

// An op that is put before, or behind, the op at `index`.
struct Insertion {
  std::size_t index;
  Op op;
};

class ChunkOffloader {
 public:
  ChunkOffloader(RankClass& rank, std::int32_t chunk, std::int64_t layers, std::int64_t of_model)
      : rank_(rank),
        uses_(rank.buffers.size()),
        fetched_(rank.buffers.size(), -1),
        first_uses_(rank.segments.size()),
        insertions_(rank.segments.size()) {
    for (std::size_t s = 0; s < rank.segments.size(); ++s) {
      const Segment& segment = rank.segments[s];
      if (segment.chunk != chunk || follows_chunks(segment.kind)) continue;
      segments_.push_back(s);
      first_uses_[s].assign(rank.buffers.size(), segment.ops.size());
      if (segment.kind == SegmentKind::kForward) forward_ = s;
    }
    // Backward work of an earlier kind comes first.
    std::stable_sort(segments_.begin(), segments_.end(), [&](std::size_t a, std::size_t b) {
      return rank.segments[a].kind < rank.segments[b].kind;
    });
    std::int32_t first = std::numeric_limits<std::int32_t>::max();
    for (const Op& op : rank.segments[forward_].ops) {
      if (op.layer >= 0) first = std::min(first, op.layer);
    }
    end_layer_ = std::min(first + layers, of_model);
  }

  void run() {
    look();
    for (std::size_t b = 0; b < uses_.size(); ++b) {
      if (goes(b)) offload(static_cast<std::int32_t>(b));
    }
    for (const std::size_t s : segments_) {
      std::vector<Op>& ops = rank_.segments[s].ops;
      if (s != forward_) read_fetched(ops);
      insert(ops, insertions_[s], s == forward_);
    }
  }

 private:
  // What the chunk does with a buffer.
  struct Uses {
    std::int64_t written = -1;        // in the forward pass: the last op that writes it
    std::optional<SegmentKind> kind;  // of the backward work that uses it first
    std::int32_t layer = -1;          // that does
    bool passes_stages = false;
  };

  void look() {
    for (const std::size_t s : segments_) {
      const Segment& segment = rank_.segments[s];
      for (std::size_t i = 0; i < segment.ops.size(); ++i) {
        const Op& op = segment.ops[i];
        for_each_ref(op, [&](const Ref& r) {
          Uses& u = uses_[static_cast<std::size_t>(r.buffer)];
          std::size_t& first = first_uses_[s][static_cast<std::size_t>(r.buffer)];
          first = std::min(first, i);
          u.passes_stages |= op.is_transfer();
          if (!is_backward(segment.kind) || u.kind) return;
          u.kind = segment.kind;
          u.layer = op.layer;
        });
        if (segment.kind != SegmentKind::kForward) continue;
        for (const Ref& r : op.writes)
          uses_[static_cast<std::size_t>(r.buffer)].written = static_cast<std::int64_t>(i);
      }
    }
  }
  bool goes(std::size_t b) const {
    const Uses& u = uses_[b];
    return rank_.buffers[b].life != Life::kStatic && u.written >= 0 && u.kind && !u.passes_stages &&
           u.layer >= 0 && u.layer < end_layer_;
  }

  std::int32_t like(std::int32_t buffer, const char* suffix, Space space) {
    Buffer made = rank_.buffers[static_cast<std::size_t>(buffer)];
    made.name += suffix;
    made.space = space;
    rank_.buffers.push_back(std::move(made));
    return static_cast<std::int32_t>(rank_.buffers.size() - 1);
  }
  Op copy(std::int32_t from, std::int32_t to, ops::CopyWay way, const Op& beside) const {
    const Buffer& b = rank_.buffers[static_cast<std::size_t>(from)];
    const auto size = static_cast<std::int64_t>(bytes_of(b.type));
    Op op;
    op.name = rank_.buffers[static_cast<std::size_t>(to)].name;
    op.kind = ops::Copy{b.bytes.value / size, size, way};
    op.stream = stream_of(way);
    op.layer = beside.layer;
    op.traffic = op.payload = b.bytes;
    op.reads = {{from}};
    op.writes = {{to}};
    return op;
  }

  void offload(std::int32_t buffer) {
    const Uses uses = uses_[static_cast<std::size_t>(buffer)];
    const std::int32_t host = like(buffer, "/to-host", Space::kHost),
                       fetched = like(buffer, "/from-host", Space::kDevice);
    const auto written = static_cast<std::size_t>(uses.written);
    insertions_[forward_].push_back(
        {written, copy(buffer, host, ops::CopyWay::kToHost, rank_.segments[forward_].ops[written])});
    for (const std::size_t s : segments_) {
      const Segment& segment = rank_.segments[s];
      if (segment.kind != *uses.kind) continue;
      const std::size_t at = fetched_at(segment, first_uses_[s][static_cast<std::size_t>(buffer)]);
      insertions_[s].push_back({at, copy(host, fetched, ops::CopyWay::kFromHost, segment.ops[at])});
    }
    fetched_[static_cast<std::size_t>(buffer)] = fetched;
  }
  // Where the work before that of the layer which uses it first begins: most often of the layer behind.
  static std::size_t fetched_at(const Segment& segment, std::size_t used) {
    const auto back = [&](std::size_t i) {
      const std::int32_t layer = segment.ops[i].layer;
      while (i > 0 && segment.ops[i - 1].layer == layer) --i;
      return i;
    };
    const std::size_t begin = back(used);
    return begin == 0 ? 0 : back(begin - 1);
  }

  void read_fetched(std::vector<Op>& ops) const {
    for (Op& op : ops) {
      for (std::vector<Ref>* refs : {&op.reads, &op.writes}) {
        for (Ref& r : *refs) {
          const auto b = static_cast<std::size_t>(r.buffer);
          if (b < fetched_.size() && fetched_[b] >= 0) r.buffer = fetched_[b];
        }
      }
    }
  }

  static void insert(std::vector<Op>& ops, std::vector<Insertion>& more, bool behind) {
    std::stable_sort(more.begin(), more.end(),
                     [](const Insertion& a, const Insertion& b) { return a.index < b.index; });
    std::vector<Op> out;
    out.reserve(ops.size() + more.size());
    auto next = more.begin();
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const auto take = [&] {
        for (; next != more.end() && next->index == i; ++next) out.push_back(std::move(next->op));
      };
      if (!behind) take();
      out.push_back(std::move(ops[i]));
      if (behind) take();
    }
    ops = std::move(out);
  }

  RankClass& rank_;
  std::vector<std::size_t> segments_;  // of the chunk
  std::size_t forward_ = 0;
  std::int64_t end_layer_ = 0;
  std::vector<Uses> uses_;             // by buffer
  std::vector<std::int32_t> fetched_;  // by buffer: what backward work reads in its place, or -1
  std::vector<std::vector<std::size_t>> first_uses_;  // by segment and buffer: the op, or how many there are
  std::vector<std::vector<Insertion>> insertions_;    // by segment
};

}  // namespace

void offload_activations(RankClass& rank, std::int64_t layers, std::int64_t of_model) {
  for (std::int32_t c = 0; c < std::ssize(rank.chunks); ++c) ChunkOffloader(rank, c, layers, of_model).run();
}

}  // namespace orrery::program
