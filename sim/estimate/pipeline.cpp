// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/pipeline.h"

#include <algorithm>

namespace orrery::sim {
namespace {

// Times p micro-batches, after which a schedule is in its steady state.
constexpr std::int64_t kSettled = 3;

std::int64_t time_of(const PipelineCosts& costs, std::int64_t run, std::int64_t v, std::int64_t chunk,
                     ChunkWork work) {
  return (*costs.chunks[static_cast<std::size_t>(run * v + chunk)])[work].time;
}

// The ends of runs. The first stage of a run holds most and ends last; where a stage's weight gradients wait
// for longer the further down it is, so may the last one.
void add_places(const PipelineShape& s, const PipelineCosts& costs, PipelineTimes& out) {
  out.end = 0;
  out.places.clear();
  const bool both = s.schedule == Schedule::kZeroBubbleH1;
  for (std::size_t r = 0; r < costs.runs.size(); ++r) {
    const StageRun& run = costs.runs[r];
    out.places.push_back({run.first, static_cast<std::int64_t>(r), 0, 0});
    if (both && run.count > 1) out.places.push_back({run.last(), static_cast<std::int64_t>(r), 0, 0});
  }
  out.last_start.resize(out.places.size() * static_cast<std::size_t>(s.v));
  out.last_end.resize(out.last_start.size());
}

// --- one chunk per stage -------------------------------------------------------------------------

class OneChunk {
 public:
  OneChunk(const PipelineShape& shape, const PipelineCosts& costs)
      : p_(shape.p), m_(shape.m), hop_(shape.p > 1 ? costs.transfer : 0), costs_(costs) {
    for (std::size_t r = 0; r < costs.runs.size(); ++r) {
      const std::int64_t n = costs.runs[r].count;
      fill_ += n * (f(r) + b(r) + 2 * hop_);
    }
    fill_ -= 2 * hop_;
  }

  void naive(PipelineTimes& out) const {
    for (std::size_t i = 0; i < out.places.size(); ++i) ends(out, i, m_ * fill_ - above(out.places[i].stage));
  }

  // Two flow shops of m equal jobs, the links being machines too.
  void gpipe(PipelineTimes& out) const {
    std::int64_t slowest = p_ > 1 ? hop_ : 0;
    for (std::size_t r = 0; r < costs_.runs.size(); ++r) slowest = std::max(slowest, f(r));
    const std::int64_t forward = (m_ - 1) * slowest;
    for (std::size_t i = 0; i < out.places.size(); ++i) {
      const PipelinePlace& place = out.places[i];
      std::int64_t below = place.stage + 1 < p_ ? hop_ : 0;
      for (auto r = static_cast<std::size_t>(place.run); r < costs_.runs.size(); ++r)
        below = std::max(below, b(r));
      ends(out, i, fill_ + forward + (m_ - 1) * below - above(place.stage));
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
      std::int64_t longest = most;
      // Nor need a slow stage wait for the last micro-batch to come back up: it has others to finish.
      for (std::size_t r = static_cast<std::size_t>(place.run); r < costs_.runs.size(); ++r) {
        const std::int64_t s = std::max(costs_.runs[r].first, place.stage);
        longest =
            std::max(longest, m_ > p_ - s ? stay(r, s, split) + shortcut(r, s, exit_time)
                                          : (m_ - 1) * b(r) + std::max<std::int64_t>(0, m_ - 1 - s) * w(r));
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
  std::int64_t f(std::size_t r) const {
    return time_of(costs_, static_cast<std::int64_t>(r), 1, 0, kChunkForward);
  }
  std::int64_t b(std::size_t r) const {
    return time_of(costs_, static_cast<std::int64_t>(r), 1, 0, kChunkBackward);
  }
  std::int64_t w(std::size_t r) const {
    return time_of(costs_, static_cast<std::int64_t>(r), 1, 0, kChunkWeight);
  }

  // Backwards of the stages before `stage`, and the transfers to them.
  std::int64_t above(std::int64_t stage) const {
    std::int64_t sum = 0;
    for (std::size_t r = 0; r < costs_.runs.size() && costs_.runs[r].first < stage; ++r)
      sum += std::min(costs_.runs[r].count, stage - costs_.runs[r].first) * (b(r) + hop_);
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
    out.last_start[i] = end - b(static_cast<std::size_t>(out.places[i].run));
    out.end = std::max(out.end, end);
  }

  std::int64_t p_, m_, hop_;
  const PipelineCosts& costs_;
  std::int64_t fill_ = 0;  // one micro-batch down and up
};

// --- interleaved ---------------------------------------------------------------------------------

// Slots of a stage are numbered over chunks: forward k is chunk k % (p v) / p, backward k the mirrored one.
// The paths followed: the first group of p micro-batches down the laps, each lap either round the stages or
// on one of them; then one stage from its first backward on; then the last group's laps back up.
class Interleaved {
 public:
  Interleaved(const PipelineShape& shape, const PipelineCosts& costs)
      : p_(shape.p), v_(shape.v), m_(shape.m), hop_(costs.transfer), costs_(costs) {
    for (std::size_t r = 0; r < costs.runs.size(); ++r) {
      stations_.push_back({costs.runs[r].first, r});
      if (costs.runs[r].count > 1) stations_.push_back({costs.runs[r].last(), r});
    }
  }

  void times(PipelineTimes& out) {
    warm_up();
    steady();
    cool_down();
    for (std::size_t i = 0; i < out.places.size(); ++i) {
      PipelinePlace& place = out.places[i];
      const auto station =
          static_cast<std::size_t>(std::find_if(stations_.begin(), stations_.end(),
                                                [&](const Station& s) { return s.stage == place.stage; }) -
                                   stations_.begin());
      for (std::int64_t c = 0; c < v_; ++c) {
        const auto at = i * static_cast<std::size_t>(v_) + static_cast<std::size_t>(c);
        out.last_end[at] = last_[index(station, c)];
        out.last_start[at] = out.last_end[at] - b(station, c);
      }
      place.end = last_[index(station, 0)];
      out.end = std::max(out.end, place.end);
    }
  }

 private:
  struct Station {  // the ends of runs
    std::int64_t stage;
    std::size_t run;
  };
  std::size_t index(std::size_t station, std::int64_t c) const {
    return station * static_cast<std::size_t>(v_) + static_cast<std::size_t>(c);
  }
  std::int64_t f(std::size_t station, std::int64_t c) const {
    return time_of(costs_, static_cast<std::int64_t>(stations_[station].run), v_, c, kChunkForward);
  }
  std::int64_t b(std::size_t station, std::int64_t c) const {
    return time_of(costs_, static_cast<std::int64_t>(stations_[station].run), v_, c, kChunkBackward);
  }
  // Stages between a station and the one before it.
  std::int64_t gap(std::size_t station) const {
    return stations_[station].stage - stations_[station - 1].stage;
  }
  std::int64_t warm_up_of(std::size_t i) const { return 2 * (p_ - 1 - stations_[i].stage) + (v_ - 1) * p_; }

  // Time of forward slots from .. to - 1 of a station, or of backward ones.
  template <class Time>
  std::int64_t slots(std::int64_t from, std::int64_t to, Time time) const {
    const std::int64_t period = p_ * v_;
    std::int64_t sum = 0;
    for (std::int64_t c = 0; c < v_; ++c) {
      const auto before = [&](std::int64_t n) {
        return n / period * p_ + std::clamp<std::int64_t>(n % period - c * p_, 0, p_);
      };
      sum += (before(to) - before(from)) * time(c);
    }
    return sum;
  }

  // When the first group's first and last forward of each chunk end; then each stage's first backward.
  void warm_up() {
    const std::size_t n = stations_.size();
    std::vector<std::int64_t> first(n * static_cast<std::size_t>(v_)), last(first.size());
    for (std::int64_t c = 0; c < v_; ++c) {
      for (std::size_t i = 0; i < n; ++i) {
        std::int64_t& a = first[index(i, c)];
        std::int64_t& z = last[index(i, c)];
        if (i > 0) {
          a = first[index(i - 1, c)] + gap(i) * (f(i, c) + hop_);
          z = last[index(i - 1, c)] + gap(i) * (f(i, c) + hop_);
        } else if (c > 0) {
          a = first[index(n - 1, c - 1)] + hop_ + f(i, c);
          z = last[index(n - 1, c - 1)] + hop_ + f(i, c);
        } else {
          a = f(i, c);
        }
        if (c > 0) a = std::max(a, last[index(i, c - 1)] + f(i, c));
        z = std::max(z, a + (p_ - 1) * f(i, c));
      }
    }
    backward_.assign(n, 0);
    for (std::size_t i = n; i-- > 0;) {
      const std::int64_t w = warm_up_of(i);
      const auto forward = [&](std::int64_t c) { return f(i, c); };
      const std::int64_t own = std::max(
          last[index(i, v_ - 2)] + slots((v_ - 1) * p_, std::min(w + 1, m_ * v_), forward),
          w + 1 >= p_ * v_ ? last[index(i, v_ - 1)] + slots(p_ * v_, std::min(w + 1, m_ * v_), forward)
                           : first[index(i, v_ - 1)] + (w - (v_ - 1) * p_) * f(i, v_ - 1));
      const std::int64_t below =
          i + 1 < n ? backward_[i + 1] + hop_ + (gap(i + 1) - 1) * (b(i, v_ - 1) + hop_) : 0;
      backward_[i] = std::max(own, below) + b(i, v_ - 1);
    }
  }

  // When the last micro-batch's last forward and first backward end. A path stays on one stage, or on the
  // last one but for a detour to another: forwards go round from the last stage to the first one chunk on,
  // and backwards the other way, for the price of two slots.
  void steady() {
    const std::size_t n = stations_.size(), bottom = n - 1;
    const std::int64_t all = m_ * v_, to_last_backward = (m_ - p_) * v_ + p_;
    // Slots k >= from of station i until its forward, or its backward, of slot `to`.
    const auto stay = [&](std::size_t i, std::int64_t from, std::int64_t to, bool to_forward) {
      const std::int64_t w = warm_up_of(i);
      const auto slot = [&](std::int64_t k) { return std::min(all, w + k); };
      return slots(slot(from), slot(to + 1), [&](std::int64_t c) { return f(i, c); }) +
             slots(from, to_forward ? to : to + 1, [&](std::int64_t c) { return b(i, v_ - 1 - c); });
    };
    const std::int64_t leave_at = (m_ - p_) * v_ - 1 - p_;  // last backward that goes round before the end
    const std::int64_t bottom_turns = all - 1 - warm_up_of(bottom);
    // The first forward that goes round: the second group's first, one chunk on.
    std::int64_t around = backward_[bottom] + (bottom_turns > p_ ? stay(bottom, 1, p_, true) : 0);
    std::int64_t down = 0, up = 0;
    last_.assign(n * static_cast<std::size_t>(v_), 0);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t count = i == 0 ? 1 : gap(i), turns = all - 1 - warm_up_of(i);
      if (i > 0) down += count * (hop_ + f(i, v_ - 1));
      if (i > 0) up += (count - 1) * (hop_ + b(i, 1)) + hop_ + b(i - 1, 1);
      around += count * (hop_ + f(i, 1));
      last_[index(i, v_ - 1)] = backward_[i] + stay(i, 1, to_last_backward - 1, false);
      if (turns > 0) down = std::max(down, backward_[i] + stay(i, 1, turns, true));
      if (i == bottom || m_ < 3 * p_) continue;
      const std::int64_t enter_at = p_ * v_ + p_ - warm_up_of(i);  // the slot whose forward came round
      const auto from_round = [&](std::int64_t to, bool forward) {
        return around + stay(i, enter_at, to, forward) - f_of_slot(i, p_ * v_ + p_);
      };
      if (turns > enter_at) down = std::max(down, from_round(turns, true));
      if (leave_at <= enter_at) continue;
      const std::int64_t left =
          std::max(backward_[i] + stay(i, 1, leave_at, false), from_round(leave_at, false));
      round_ = std::max(
          round_, left + up + hop_ + b(bottom, 0) + stay(bottom, leave_at + p_ + 1, bottom_turns, true));
    }
    down = std::max({down, round_, backward_[bottom] + slow_transfers()});
    auto& turn = last_[index(bottom, v_ - 1)];
    turn = std::max(turn, down + b(bottom, v_ - 1));
  }
  std::int64_t round_ = 0;
  std::int64_t f_of_slot(std::size_t i, std::int64_t k) const { return f(i, k % (p_ * v_) / p_); }

  // Where transfers are slow: up and down all stages (one further down is two slots on), or with every group
  // round them for all chunks but one.
  std::int64_t slow_transfers() const {
    const std::size_t n = stations_.size(), bottom = n - 1;
    std::int64_t forward = 0, backward = 0, all = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t count = i == 0 ? 1 : gap(i);
      for (std::int64_t c = 0; c < v_; ++c) {
        all += count * (f(i, c) + b(i, c));
        if (c == 0) continue;
        forward += count * f(i, c);
        backward += count * b(i, c);
      }
    }
    const std::int64_t slot = f(bottom, v_ - 1) + b(bottom, v_ - 1), laps = (v_ - 1) * p_;
    std::int64_t most = 0;
    if (laps * hop_ > std::min(forward, backward))
      most = (m_ / p_ - 1) * (std::max(forward, backward) + laps * hop_ + p_ * slot) + (p_ - 1) * slot;
    if (2 * laps * hop_ > forward + backward) {
      const std::int64_t slots = m_ * v_ - 1 - laps, length = 2 * p_ - 1;
      const std::int64_t cycle = all / v_ + 2 * hop_ * (p_ - 1);
      most = std::max(most, slots / length * cycle + slots % length * cycle / length);
    }
    return most;
  }

  void cool_down() {
    const std::size_t n = stations_.size();
    for (std::int64_t c = v_ - 1; c >= 0; --c) {
      for (std::size_t i = n; i-- > 0;) {
        std::int64_t& at = last_[index(i, c)];
        if (c + 1 < v_) at = std::max(at, last_[index(i, c + 1)] + p_ * b(i, c));
        if (i + 1 < n)
          at =
              std::max(at, last_[index(i + 1, c)] + hop_ + (gap(i + 1) - 1) * (b(i + 1, c) + hop_) + b(i, c));
        else if (c + 1 < v_)
          at = std::max(at, last_[index(0, c + 1)] + hop_ + b(i, c));
      }
    }
  }

  std::int64_t p_, v_, m_, hop_;
  const PipelineCosts& costs_;
  std::vector<Station> stations_;
  std::vector<std::int64_t> backward_;  // end of a station's first backward
  std::vector<std::int64_t> last_;      // end of the last micro-batch's backward, by station and chunk
};

// --- memory --------------------------------------------------------------------------------------

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

std::int64_t interleaved_peak(const PipelineShape& s, const ChunkCost* const* chunks, std::int64_t stage) {
  // Periods repeat; two of them have every state.
  const std::int64_t period = s.p * s.v, all = std::min(s.m, 2 * s.p) * s.v;
  const std::int64_t warm_up = std::min(all, 2 * (s.p - 1 - stage) + (s.v - 1) * s.p);
  const auto forward = [&](std::int64_t k) -> const WorkCost& {
    return (*chunks[k % period / s.p])[kChunkForward];
  };
  const auto backward = [&](std::int64_t k) -> const WorkCost& {
    return (*chunks[s.v - 1 - k % period / s.p])[kChunkBackward];
  };
  const auto to_end = [&](std::int64_t k) { return s.p - k % s.p; };
  Held held;
  for (std::int64_t k = 0; k < warm_up;) {
    const std::int64_t n = std::min(warm_up - k, to_end(k));
    held.run(forward(k), n);
    k += n;
  }
  std::int64_t k = 0;
  while (warm_up + k < all) {
    const std::int64_t n = std::min({all - warm_up - k, to_end(warm_up + k), to_end(k)});
    held.pairs(forward(warm_up + k), backward(k), n);
    k += n;
  }
  while (k < all) {
    const std::int64_t n = std::min(all - k, to_end(k));
    held.run(backward(k), n);
    k += n;
  }
  return held.peak;
}

// All chunks alike but the model's first and last.
bool even_chunks(const PipelineCosts& costs) {
  const auto begin = costs.chunks.begin() + 1, end = costs.chunks.end() - 1;
  return std::adjacent_find(begin, end, std::not_equal_to<>()) == end;
}

}  // namespace

// A long step is a short one and more of its steady state, p micro-batches at a time.
void Pipeline::walk(const PipelineShape& shape, const PipelineCosts& costs) {
  const auto walk_some = [&](std::int64_t m, PipelineTimes& out) {
    PipelineShape s = shape;
    s.m = m;
    const auto [found, added] = orders_.try_emplace(s);
    if (added) found->second = program::pipeline_schedule(s.schedule, s.p, s.v, s.m);
    walk_pipeline(s, found->second, costs, out);
  };
  const std::int64_t enough = (kSettled + 1) * shape.p;
  walk_some(std::min(shape.m, enough), times_);
  if (shape.m <= enough) return;
  walk_some(enough - shape.p, shorter_);
  const std::int64_t more = shape.m - enough;
  const auto extend = [&](std::int64_t& longer, std::int64_t shorter) {
    longer += (longer - shorter) * more / shape.p;
  };
  extend(times_.end, shorter_.end);
  for (std::size_t i = 0; i < times_.places.size(); ++i) extend(times_.places[i].end, shorter_.places[i].end);
  for (std::size_t i = 0; i < times_.last_end.size(); ++i) {
    const std::int64_t length = times_.last_end[i] - times_.last_start[i];
    extend(times_.last_end[i], shorter_.last_end[i]);
    times_.last_start[i] = times_.last_end[i] - length;
  }
}

const PipelineTimes& Pipeline::run(const PipelineShape& shape, const PipelineCosts& costs) {
  if (shape.schedule == Schedule::kZeroBubbleV ||
      (shape.schedule == Schedule::kInterleaved && !even_chunks(costs))) {
    walk(shape, costs);
    return times_;
  }
  add_places(shape, costs, times_);
  switch (shape.schedule) {
    case Schedule::kNaive:
      OneChunk(shape, costs).naive(times_);
      break;
    case Schedule::kGPipe:
      OneChunk(shape, costs).gpipe(times_);
      break;
    case Schedule::kInterleaved:
      Interleaved(shape, costs).times(times_);
      break;
    default:
      OneChunk(shape, costs).one_f_one_b(program::splits_backward(shape.schedule), times_);
  }
  for (PipelinePlace& place : times_.places) {
    const ChunkCost* const* chunks = &costs.chunks[static_cast<std::size_t>(place.run * shape.v)];
    place.peak = shape.schedule == Schedule::kInterleaved ? interleaved_peak(shape, chunks, place.stage)
                                                          : one_chunk_peak(shape, *chunks[0], place.stage);
  }
  return times_;
}

}  // namespace orrery::sim
