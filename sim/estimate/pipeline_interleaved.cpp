// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/estimate/pipeline_parts.h"

namespace orrery::sim {
namespace {

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
        out.last_start[at] = out.last_end[at] - b_latency(station, c);
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
  const WorkCost& forward(std::size_t station, std::int64_t c) const {
    return cost_of(costs_, stations_[station].run, v_, c, kChunkForward);
  }
  const WorkCost& backward(std::size_t station, std::int64_t c) const {
    return cost_of(costs_, stations_[station].run, v_, c, kChunkBackward);
  }
  std::int64_t f(std::size_t station, std::int64_t c) const { return forward(station, c).time; }
  std::int64_t b(std::size_t station, std::int64_t c) const { return backward(station, c).time; }
  std::int64_t f_row(std::size_t station, std::int64_t c) const { return forward(station, c).row; }
  std::int64_t b_row(std::size_t station, std::int64_t c) const { return backward(station, c).row; }
  // On the way of the first micro-batch down and of the last one up, stages wait for their input.
  std::int64_t f_latency(std::size_t station, std::int64_t c) const { return forward(station, c).latency; }
  std::int64_t b_latency(std::size_t station, std::int64_t c) const { return backward(station, c).latency; }
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
          a = first[index(i - 1, c)] + gap(i) * (f_latency(i, c) + hop_);
          z = last[index(i - 1, c)] + gap(i) * (f_latency(i, c) + hop_);
        } else if (c > 0) {
          a = first[index(n - 1, c - 1)] + hop_ + f_latency(i, c);
          z = last[index(n - 1, c - 1)] + hop_ + f_latency(i, c);
        } else {
          a = f_latency(i, c);
        }
        if (c > 0) a = std::max(a, last[index(i, c - 1)] + f_row(i, c));
        z = std::max(z, a + (p_ - 1) * f_row(i, c));
      }
    }
    backward_.assign(n, 0);
    for (std::size_t i = n; i-- > 0;) {
      const std::int64_t w = warm_up_of(i);
      const auto time = [&](std::int64_t c) { return f_row(i, c); };
      const std::int64_t own =
          std::max(last[index(i, v_ - 2)] + slots((v_ - 1) * p_, std::min(w + 1, m_ * v_), time),
                   w + 1 >= p_ * v_ ? last[index(i, v_ - 1)] + slots(p_ * v_, std::min(w + 1, m_ * v_), time)
                                    : first[index(i, v_ - 1)] + (w - (v_ - 1) * p_) * f_row(i, v_ - 1));
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
    std::int64_t down = 0, up = 0, detour = 0;
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
        return around + stay(i, enter_at, to, forward) - f(i, 1);  // its forward is in both
      };
      if (turns > enter_at) down = std::max(down, from_round(turns, true));
      if (leave_at <= enter_at) continue;
      const std::int64_t left =
          std::max(backward_[i] + stay(i, 1, leave_at, false), from_round(leave_at, false));
      detour = std::max(
          detour, left + up + hop_ + b(bottom, 0) + stay(bottom, leave_at + p_ + 1, bottom_turns, true));
    }
    down = std::max({down, detour, backward_[bottom] + slow_transfers()});
    auto& turn = last_[index(bottom, v_ - 1)];
    turn = std::max(turn, down + b(bottom, v_ - 1));
  }

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
        if (c + 1 < v_) at = std::max(at, last_[index(i, c + 1)] + p_ * b_row(i, c));
        if (i + 1 < n)
          at = std::max(at, last_[index(i + 1, c)] + hop_ + (gap(i + 1) - 1) * (b_latency(i + 1, c) + hop_) +
                                b_latency(i, c));
        else if (c + 1 < v_)
          at = std::max(at, last_[index(0, c + 1)] + hop_ + b_latency(i, c));
      }
    }
  }

  std::int64_t p_, v_, m_, hop_;
  const PipelineCosts& costs_;
  std::vector<Station> stations_;
  std::vector<std::int64_t> backward_;  // end of a station's first backward
  std::vector<std::int64_t> last_;      // end of the last micro-batch's backward, by station and chunk
};

}  // namespace

void interleaved_times(const PipelineShape& shape, const PipelineCosts& costs, PipelineTimes& out) {
  Interleaved(shape, costs).times(out);
}

}  // namespace orrery::sim
