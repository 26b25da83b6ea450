// SPDX-License-Identifier: Apache-2.0
#include "program/races.h"

#include <algorithm>
#include <bit>
#include <span>

#include "program/passes.h"

namespace orrery::program {
namespace {

// The arena, cut where any copy of a buffer begins or ends: each copy is a run of whole pieces.
class Pieces {
 public:
  struct Run {
    std::size_t begin, end;
  };

  explicit Pieces(const RankClass& rank) : rank_(rank) {
    std::vector<std::int64_t> cuts;
    for_each_copy([&](std::int64_t begin, std::int64_t end) {
      cuts.push_back(begin);
      cuts.push_back(end);
    });
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    count_ = cuts.size();
    const auto index = [&](std::int64_t cut) {
      return static_cast<std::size_t>(std::lower_bound(cuts.begin(), cuts.end(), cut) - cuts.begin());
    };
    for_each_copy([&](std::int64_t begin, std::int64_t end) { runs_.push_back({index(begin), index(end)}); });
    std::size_t first = 0;
    for (const Buffer& b : rank.buffers) {
      first_.push_back(first);
      first += static_cast<std::size_t>(b.instances);
    }
    forget_lone_streams();
  }

  std::size_t size() const { return count_; }
  // Empty where one stream alone uses the buffer's bytes: its ops follow each other.
  Run of(const Ref& r, std::int32_t micro_batch) const {
    const auto b = static_cast<std::size_t>(r.buffer);
    const std::int32_t copies = rank_.buffers[b].instances;
    return runs_[first_[b] + static_cast<std::size_t>(copies == 1 ? 0 : micro_batch % copies)];
  }

 private:
  void forget_lone_streams() {
    const auto copies = [&](std::size_t b) {
      return std::span(runs_).subspan(first_[b], static_cast<std::size_t>(rank_.buffers[b].instances));
    };
    std::vector<std::uint32_t> of_buffer(rank_.buffers.size()), of_piece(count_);
    for (const Segment& segment : rank_.segments) {
      for (const Op& op : segment.ops) {
        for (const Ref& r : op.reads) of_buffer[static_cast<std::size_t>(r.buffer)] |= 1U << op.stream;
        for (const Ref& r : op.writes) of_buffer[static_cast<std::size_t>(r.buffer)] |= 1U << op.stream;
      }
    }
    for (std::size_t b = 0; b < of_buffer.size(); ++b) {
      for (const Run& run : copies(b)) {
        for (std::size_t p = run.begin; p < run.end; ++p) of_piece[p] |= of_buffer[b];
      }
    }
    const auto lone = [&](std::size_t p) { return std::popcount(of_piece[p]) <= 1; };
    for (Run& run : runs_) {
      while (run.begin < run.end && lone(run.begin)) ++run.begin;
      while (run.begin < run.end && lone(run.end - 1)) --run.end;
    }
  }

  template <class Visit>
  void for_each_copy(Visit visit) const {
    for (const Buffer& b : rank_.buffers) {
      for (std::int64_t copy = 0; copy < b.instances; ++copy) {
        const std::int64_t begin = b.arena_offset + copy * b.arena_stride;
        visit(begin, begin + b.bytes.value);
      }
    }
  }

  const RankClass& rank_;
  std::size_t count_ = 0;
  std::vector<Run> runs_;           // of all copies of all buffers
  std::vector<std::size_t> first_;  // by buffer: the run of its first copy
};

// The last op of each stream, counted from 1. Of a width that compilers make vectors of.
using Uses = std::array<std::int32_t, 16>;
static_assert(std::tuple_size_v<Uses> >= kMostStreams);

class Finder {
 public:
  Finder(const RankClass& rank, std::size_t most)
      : rank_(rank), most_(most), pieces_(rank), written_(pieces_.size()), read_(pieces_.size()) {}

  std::vector<Race> run() {
    for (std::size_t i = 0; i < rank_.steps.size() && found_.size() < most_; ++i)
      walk(static_cast<std::int32_t>(i));
    return std::move(found_);
  }

 private:
  void walk(std::int32_t index) {
    const Step& step = rank_.steps[static_cast<std::size_t>(index)];
    const Segment& segment = rank_.segments[static_cast<std::size_t>(step.segment)];
    const Counts base = issued_;
    std::int32_t wait = step.first_wait;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(segment.ops.size()); ++i) {
      const Op& op = segment.ops[static_cast<std::size_t>(i)];
      std::vector<Counts>& stream = before_[op.stream];
      Counts before = stream.empty() ? Counts{} : stream.back();
      before[op.stream] = issued_[op.stream];
      for (std::size_t q = 0; q < kMostStreams; ++q) {
        if (op.after[q] > 0) join(before, q, base[q] + op.after[q]);
      }
      for (; wait < step.first_wait + step.waits && rank_.waits[static_cast<std::size_t>(wait)].op == i;
           ++wait) {
        const ExternalWait& w = rank_.waits[static_cast<std::size_t>(wait)];
        join(before, w.stream, w.count);
      }
      stream.push_back(before);
      ++issued_[op.stream];
      const Uses need = conflicts(op, step.micro_batch);
      for (std::size_t q = 0; q < kMostStreams; ++q) {
        if (q != op.stream && need[q] > before[q] && found_.size() < most_)
          found_.push_back({index, i, static_cast<StreamIndex>(q)});
      }
      touch(op, step.micro_batch);
    }
  }

  // What happens before the n-th op of a stream happens before who waits for it.
  void join(Counts& before, std::size_t stream, std::int64_t n) const {
    before[stream] = std::max(before[stream], n);
    if (n < 1 || n > issued_[stream]) return;
    const Counts& earlier = before_[stream][static_cast<std::size_t>(n) - 1];
    for (std::size_t q = 0; q < kMostStreams; ++q) before[q] = std::max(before[q], earlier[q]);
  }

  // The last op of each stream so far that this op must come after, counted from 1.
  Uses conflicts(const Op& op, std::int32_t micro_batch) const {
    Uses need{};
    const auto look = [&](const std::vector<Ref>& refs, const std::vector<Uses>& uses) {
      for (const Ref& r : refs) {
        const Pieces::Run run = pieces_.of(r, micro_batch);
        for (std::size_t p = run.begin; p < run.end; ++p) {
          for (std::size_t q = 0; q < need.size(); ++q) need[q] = std::max(need[q], uses[p][q]);
        }
      }
    };
    look(op.reads, written_);
    look(op.writes, written_);
    look(op.writes, read_);
    return need;
  }

  void touch(const Op& op, std::int32_t micro_batch) {
    const auto now = static_cast<std::int32_t>(issued_[op.stream]);
    const auto mark = [&](const std::vector<Ref>& refs, std::vector<Uses>& uses) {
      for (const Ref& r : refs) {
        const Pieces::Run run = pieces_.of(r, micro_batch);
        for (std::size_t p = run.begin; p < run.end; ++p) uses[p][op.stream] = now;
      }
    };
    mark(op.reads, read_);
    mark(op.writes, written_);
  }

  const RankClass& rank_;
  std::size_t most_;
  Pieces pieces_;
  std::vector<Uses> written_, read_;  // by piece
  Counts issued_{};
  std::array<std::vector<Counts>, kMostStreams> before_;  // by stream and op: what happens before it
  std::vector<Race> found_;
};

}  // namespace

std::vector<Race> find_races(const RankClass& rank, std::size_t most) {
  return Finder(rank, most).run();
}

}  // namespace orrery::program
