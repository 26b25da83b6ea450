// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/estimate/pipeline_parts.h"

namespace orrery::sim {
namespace {

class OneChunk {
 public:
  OneChunk(const PipelineShape& shape, const PipelineCosts& costs)
      : p_(shape.p),
        m_(shape.m),
        hop_(shape.p > 1 ? costs.transfer : 0),
        backward_(program::splits_backward(shape.schedule) ? kChunkBackwardInput : kChunkBackward),
        costs_(costs) {
    for (std::size_t r = 0; r < costs.runs.size(); ++r) {
      const std::int64_t n = costs.runs[r].count;
      fill_ += n * (f_latency(r) + b_latency(r) + 2 * hop_);
    }
    const std::size_t last = costs.runs.size() - 1;  // turns round without a wait
    fill_ += b(last) - b_latency(last) - 2 * hop_;
    if (p_ == 1 || costs.reductions.empty() || program::splits_backward(shape.schedule)) return;
    const Hop& slowest = *std::max_element(costs.hops.begin(), costs.hops.end(), shorter);
    if (!slowest.beside_reductions) return;
    for (std::size_t r = 0; r < costs.runs.size(); ++r) {
      const std::int64_t together = costs.reductions[r] - b_latency(r) - slowest.latency;
      slowed_.push_back(std::clamp<std::int64_t>(together / 2, 0, slowest.flow));
    }
  }

  void naive(PipelineTimes& out) const {
    const std::int64_t round = around_above(p_ - 1);
    for (std::size_t i = 0; i < out.places.size(); ++i) {
      const std::int64_t stage = out.places[i].stage;
      ends(out, i, m_ * round - above(stage) + slowed(stage, p_ - 1));
    }
  }

  // Two flow shops of m equal jobs, the links being machines too.
  void gpipe(PipelineTimes& out) const {
    std::int64_t slowest = p_ > 1 ? hop_ : 0;
    for (std::size_t r = 0; r < costs_.runs.size(); ++r) slowest = std::max(slowest, f(r));
    const std::int64_t forward = (m_ - 1) * slowest;
    for (std::size_t i = 0; i < out.places.size(); ++i) {
      const PipelinePlace& place = out.places[i];
      std::int64_t back = (place.stage + 1 < p_ ? (m_ - 1) * hop_ : 0) + slowed(place.stage, p_ - 1);
      for (auto r = static_cast<std::size_t>(place.run); r < costs_.runs.size(); ++r)
        back = std::max(back, (m_ - 1) * b(r) + slowed(place.stage, costs_.runs[r].last()));
      ends(out, i, fill_ + forward + back - above(place.stage));
    }
  }

  // 1F1B, and ZB-H1 where the weight gradients have a time of their own.
  void one_f_one_b(bool split, PipelineTimes& out) const {
    // A stage's weight gradients begin after as many micro-batches as there are stages before it.
    const auto exit_time = [&](std::size_t r, std::int64_t turn) {
      return b(r) + (split && costs_.runs[r].last() <= m_ - p_ + turn ? w(r) : 0);
    };
    // The longest walk between the first backward and the last forward of the last stage.
    std::int64_t most = p_ > 1 ? (m_ - 1) * hop_ : 0;
    for (std::size_t a = 0; a < costs_.runs.size(); ++a) {
      const StageRun& top = costs_.runs[a];
      most = std::max({most, stay(a, top.first, split), stay(a, top.last(), split)});
      // A stage that all micro-batches reach before the first comes back starts them one after the other.
      most = std::max(most, std::min(m_ - 1, p_ - 1 - top.first) * f(a));
      if (hop_ == 0) continue;
      Window w;
      for (std::size_t d = a; d < costs_.runs.size(); ++d) {
        add(w, d);
        most = std::max(most, zigzag(w, a, d, split));
      }
    }
    for (std::size_t i = 0; i < out.places.size(); ++i) {
      const PipelinePlace& place = out.places[i];
      std::int64_t longest = most + slowed(place.stage, p_ - 1);
      // Nor need a slow stage wait for the last micro-batch to come back up: it has others to finish.
      for (std::size_t r = static_cast<std::size_t>(place.run); r < costs_.runs.size(); ++r) {
        const std::int64_t s = std::max(costs_.runs[r].first, place.stage);
        const std::int64_t here = m_ > p_ - s
                                      ? stay(r, s, split) + shortcut(r, s, exit_time)
                                      : (m_ - 1) * b(r) + std::max<std::int64_t>(0, m_ - 1 - s) * w(r);
        longest = std::max(longest, here + slowed(place.stage, s));
      }
      const std::int64_t last_backward = fill_ + longest - above(place.stage);
      if (!split) {
        ends(out, i, last_backward);
        continue;
      }
      const auto r = static_cast<std::size_t>(place.run);
      const std::int64_t end = last_backward + (std::min(place.stage, m_ - 1) + 1) * w(r);
      out.places[i].end = out.last_end[i] = end;
      out.last_start[i] = end - w(r);
      out.end = std::max(out.end, end);
    }
  }

 private:
  std::int64_t f(std::size_t r) const { return cost_of(costs_, r, 1, 0, kChunkForward).time; }
  std::int64_t b(std::size_t r) const { return cost_of(costs_, r, 1, 0, backward_).time; }
  std::int64_t w(std::size_t r) const { return cost_of(costs_, r, 1, 0, kChunkWeight).time; }
  // On the way of the first micro-batch down and of the last one up, stages wait for their input.
  std::int64_t f_latency(std::size_t r) const { return cost_of(costs_, r, 1, 0, kChunkForward).latency; }
  std::int64_t b_latency(std::size_t r) const { return cost_of(costs_, r, 1, 0, backward_).latency; }

  // Backwards of the stages before `stage`, and the transfers to them.
  std::int64_t above(std::int64_t stage) const {
    std::int64_t sum = 0;
    for (std::size_t r = 0; r < costs_.runs.size() && costs_.runs[r].first < stage; ++r)
      sum += std::min(costs_.runs[r].count, stage - costs_.runs[r].first) * (b_latency(r) + hop_);
    return sum;
  }

  // What reductions take from the transfers of the last micro-batch's way up from one stage to another.
  std::int64_t slowed(std::int64_t to, std::int64_t from) const {
    std::int64_t sum = 0;
    for (std::size_t r = 0; r < slowed_.size(); ++r) {
      const StageRun& run = costs_.runs[r];
      sum += std::max<std::int64_t>(0, std::min(from, run.last()) - std::max(to + 1, run.first) + 1) *
             slowed_[r];
    }
    return sum;
  }

  // Once down and up the stages after `stage`.
  std::int64_t around_below(std::size_t run, std::int64_t stage) const {
    std::int64_t sum = (costs_.runs[run].last() - stage) * (f(run) + b(run) + 2 * hop_);
    for (std::size_t r = run + 1; r < costs_.runs.size(); ++r)
      sum += costs_.runs[r].count * (f(r) + b(r) + 2 * hop_);
    return sum;
  }

  // Up and down stages 0 .. stage.
  std::int64_t around_above(std::int64_t stage) const {
    std::int64_t sum = -2 * hop_;
    for (std::size_t r = 0; r < costs_.runs.size() && costs_.runs[r].first <= stage; ++r)
      sum += std::min(costs_.runs[r].count, stage + 1 - costs_.runs[r].first) * (f(r) + b(r) + 2 * hop_);
    return sum;
  }

  // Up from the last stage to s, there for as long as possible, and down again.
  std::int64_t stay(std::size_t run, std::int64_t s, bool split) const {
    const std::int64_t below = p_ - 1 - s, turns = m_ - 1 - below;
    if (turns < 1) return 0;
    std::int64_t sum = turns * (f(run) + b(run));
    if (split) {
      // The first s weight gradients of stage s come later; a walk up to stage 0 passes that time better.
      sum += std::max<std::int64_t>(0, turns - s) * w(run);
      if (turns > s)
        sum = std::max(sum, (turns - s - 1) * (f(run) + b(run) + w(run)) + around_above(s) + w(0));
    }
    // At the start, too, a slow stage has others to start while the first is below.
    return sum + around_below(run, s) + shortcut(run, s, [&](std::size_t r, std::int64_t) { return f(r); });
  }

  // What a walk from s gains that turns at a stage further down instead of at the last, and spends the
  // micro-batches it would have met there one after the other on the slowest stage above.
  template <class Time>
  std::int64_t shortcut(std::size_t run, std::int64_t s, Time time) const {
    std::int64_t most = 0;
    for (std::size_t r = run; r < costs_.runs.size(); ++r) {
      const std::int64_t turn = r == run ? s : costs_.runs[r].last();
      std::int64_t slowest = 0;
      for (std::size_t i = 0; i <= r; ++i) slowest = std::max(slowest, time(i, turn));
      most = std::max(most, (p_ - 1 - turn) * slowest - around_below(r, turn));
    }
    return most;
  }

  struct Window {  // whole runs a .. d
    std::int64_t stages = 0, work = 0, slowest = 0;
  };
  void add(Window& w, std::size_t d) const {
    const std::int64_t n = costs_.runs[d].count, t = f(d) + b(d);
    w.stages += n;
    w.work += n * t;
    w.slowest = std::max(w.slowest, t);
  }

  // Between the first stage of run a and the last of run d, over and over.
  std::int64_t zigzag(const Window& win, std::size_t a, std::size_t d, bool split) const {
    const std::int64_t below = p_ - 1 - costs_.runs[d].last();
    const std::int64_t turns = m_ - 1 - below;
    if (turns < 1) return 0;
    const std::int64_t whole = turns / win.stages, rest = turns % win.stages;
    std::int64_t sum = around_below(d, costs_.runs[d].last());
    sum += whole * (win.work + 2 * hop_ * (win.stages - 1));
    if (split) {
      const std::int64_t without = (costs_.runs[a].first + win.stages - 1) / win.stages;
      sum += std::max<std::int64_t>(0, whole - without) * w(a);
    }
    if (rest > 0) {
      // What is left goes round fewer stages, or stays on the slowest.
      std::int64_t fewer = 2 * hop_ * (rest - 1);
      for (std::int64_t left = rest, r = static_cast<std::int64_t>(d); left > 0; --r) {
        const auto at = static_cast<std::size_t>(r);
        const std::int64_t n = std::min(left, costs_.runs[at].count);
        fewer += n * (f(at) + b(at));
        left -= n;
      }
      sum += std::max(fewer, whole > 0 ? rest * win.slowest : 0);
    }
    return sum + shortcut(d, costs_.runs[d].last(), [&](std::size_t r, std::int64_t) { return f(r); });
  }

  void ends(PipelineTimes& out, std::size_t i, std::int64_t end) const {
    out.places[i].end = out.last_end[i] = end;
    out.last_start[i] = end - b_latency(static_cast<std::size_t>(out.places[i].run));
    out.end = std::max(out.end, end);
  }

  std::int64_t p_, m_, hop_;
  ChunkWork backward_;  // that the stage above waits for
  const PipelineCosts& costs_;
  std::int64_t fill_ = 0;             // one micro-batch down and up
  std::vector<std::int64_t> slowed_;  // by run: of a transfer from its stages after the last backward
};

}  // namespace

void one_chunk_times(const PipelineShape& shape, const PipelineCosts& costs, PipelineTimes& out) {
  const OneChunk paths(shape, costs);
  if (shape.schedule == Schedule::kNaive)
    paths.naive(out);
  else if (shape.schedule == Schedule::kGPipe)
    paths.gpipe(out);
  else
    paths.one_f_one_b(program::splits_backward(shape.schedule), out);
}

}  // namespace orrery::sim
