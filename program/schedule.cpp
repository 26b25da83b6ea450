// SPDX-License-Identifier: Apache-2.0
#include "program/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <stdexcept>

#include "program/order.h"

namespace orrery::program {
namespace {

Slot slot(Work work, std::int64_t chunk, std::int64_t micro_batch) {
  return {.work = work,
          .chunk = static_cast<std::int32_t>(chunk),
          .micro_batch = static_cast<std::int32_t>(micro_batch)};
}

// Warm-up forwards, then forward and backward in turn, then the remaining backwards, over a numbering
// k = 0 .. total-1 of forward and of backward work.
template <class ForwardOf, class BackwardOf>
std::vector<Slot> warm_up_then_alternate(std::int64_t total, std::int64_t warm_up, bool in_pairs,
                                         ForwardOf forward, BackwardOf backward) {
  std::vector<Slot> out;
  out.reserve(static_cast<std::size_t>(2 * total));
  for (std::int64_t k = 0; k < warm_up; ++k) out.push_back(forward(k));
  for (std::int64_t k = 0; k < total; ++k) {
    const bool both = warm_up + k < total;
    if (both) out.push_back(forward(warm_up + k));
    out.push_back(backward(k));
    out.back().beside = in_pairs && both;
  }
  return out;
}

std::vector<Slot> one_chunk(std::int64_t m, std::int64_t warm_up, bool in_pairs = false) {
  const auto forward = [](std::int64_t k) { return slot(Work::kForward, 0, k); };
  const auto backward = [](std::int64_t k) { return slot(Work::kBackward, 0, k); };
  return warm_up_then_alternate(m, std::min(m, warm_up), in_pairs, forward, backward);
}

// Narayanan et al. 2021: micro-batches go through the chunks in groups of p.
std::vector<Slot> interleaved(std::int64_t p, std::int64_t v, std::int64_t m, std::int64_t stage,
                              bool in_pairs) {
  const auto at = [&](std::int64_t k, bool forward) {
    const std::int64_t chunk = k % (p * v) / p;
    const std::int64_t micro_batch = k / (p * v) * p + k % p;
    return slot(forward ? Work::kForward : Work::kBackward, forward ? chunk : v - 1 - chunk, micro_batch);
  };
  const std::int64_t warm_up = std::min(m * v, (p - stage - 1) * 2 + (v - 1) * p + in_pairs);
  return warm_up_then_alternate(
      m * v, warm_up, in_pairs, [&](std::int64_t k) { return at(k, true); },
      [&](std::int64_t k) { return at(k, false); });
}

// ZB-H1: 1F1B's order of F and B. Stage i holds its weight gradients back by i micro-batches, which
// fills its in-flight count up to the first stage's p and leaves W for the gaps of the cool-down.
std::vector<Slot> zero_bubble_h1(std::int64_t p, std::int64_t m, std::int64_t stage) {
  std::vector<Slot> out;
  for (const Slot& s : one_chunk(m, p - 1 - stage)) {
    if (s.work == Work::kForward) {
      out.push_back(s);
      continue;
    }
    out.push_back(slot(Work::kBackwardInput, 0, s.micro_batch));
    if (s.micro_batch >= stage) out.push_back(slot(Work::kBackwardWeight, 0, s.micro_batch - stage));
  }
  for (std::int64_t k = std::max<std::int64_t>(0, m - stage); k < m; ++k)
    out.push_back(slot(Work::kBackwardWeight, 0, k));
  return out;
}

// DualPipeV (github.com/deepseek-ai/DualPipe, dualpipev.py), in its eight steps.
class DualPipeV {
 public:
  DualPipeV(std::int64_t p, std::int64_t m, std::int64_t stage, bool in_pairs)
      : p_(p), m_(m), stage_(stage), in_pairs_(in_pairs) {}

  std::vector<Slot> run() {
    const std::int64_t behind = p_ - 1 - stage_, ahead = stage_ + 1;
    repeat(2 * behind, [&](std::int64_t) { forward(0); });
    repeat(ahead, [&](std::int64_t) {
      forward(0);
      forward(1);
    });
    repeat(behind, [&](std::int64_t) {
      backward(1, true);
      weight();
      forward(1);
    });
    repeat(m_ - 2 * p_ + ahead, [&](std::int64_t i) {
      // The last stage's first pair is none: its backward begins sooner, for which all stages wait.
      side_by_side(0, 1, i > 0 || behind > 0);
      side_by_side(1, 0, true);
    });
    repeat(behind, [&](std::int64_t) {
      backward(1, false);
      side_by_side(1, 0, true);
    });
    bool split = false;
    repeat(ahead, [&](std::int64_t i) {
      const bool half = i == ahead / 2;
      split = split || (half && stage_ % 2 == 1);
      backward(1, split);
      split = split || half;
      backward(0, split);
    });
    repeat(behind, [&](std::int64_t) {
      weight();
      backward(0, true);
    });
    repeat(ahead, [&](std::int64_t) { weight(); });
    return std::move(out_);
  }

 private:
  template <class Body>
  static void repeat(std::int64_t n, Body body) {
    for (std::int64_t i = 0; i < n; ++i) body(i);
  }
  void forward(std::size_t chunk) {
    out_.push_back(slot(Work::kForward, static_cast<std::int64_t>(chunk), forwards_[chunk]++));
  }
  void backward(std::size_t chunk, bool split) {
    out_.push_back(slot(split ? Work::kBackwardInput : Work::kBackward, static_cast<std::int64_t>(chunk),
                        backwards_[chunk]++));
    if (!split) return;
    weights_.push_back(out_.back());
    weights_.back().work = Work::kBackwardWeight;
  }
  void weight() {
    out_.push_back(weights_.front());
    weights_.pop_front();
  }
  void side_by_side(std::size_t down, std::size_t up, bool overlapped) {
    forward(down);
    backward(up, false);
    out_.back().beside = in_pairs_ && overlapped;
  }

  const std::int64_t p_, m_, stage_;
  const bool in_pairs_;
  std::array<std::int64_t, 2> forwards_{}, backwards_{};
  std::deque<Slot> weights_;  // that wait
  std::vector<Slot> out_;
};

// Zero-bubble V schedules by list scheduling with unit times: a stage that can run a backward does, else a
// forward if its memory allows, else a weight gradient. Memory is counted in chunk activations held
// from F to W and capped at what 1F1B's first stage holds (p micro-batches).
class ZeroBubbleV {
 public:
  ZeroBubbleV(std::int64_t p, std::int64_t m)
      : p_(p), m_(m), cap_(p * kChunks), stages_(static_cast<std::size_t>(p)) {
    for (auto& stage : stages_) {
      stage.done_forward.assign(static_cast<std::size_t>(kChunks), 0);
      stage.done_backward = stage.done_weight = stage.done_forward;
    }
  }

  std::vector<std::vector<Slot>> run() {
    const auto all = static_cast<std::size_t>(3 * m_ * kChunks);
    for (std::size_t finished = 0; finished < stages_.size();) {
      // Everything of this time step sees the state at its start.
      std::vector<Slot> chosen(stages_.size());
      std::vector<bool> runs(stages_.size());
      for (std::size_t i = 0; i < stages_.size(); ++i)
        runs[i] = choose(static_cast<std::int64_t>(i), chosen[i]);
      finished = 0;
      for (std::size_t i = 0; i < stages_.size(); ++i) {
        if (runs[i]) commit(stages_[i], chosen[i]);
        if (stages_[i].order.size() == all) ++finished;
      }
    }
    std::vector<std::vector<Slot>> out;
    for (auto& stage : stages_) out.push_back(std::move(stage.order));
    return out;
  }

 private:
  struct Stage {
    std::vector<std::int64_t> done_forward, done_backward, done_weight;
    std::vector<Slot> order;
  };

  // The global chunk of (stage, local chunk), and where a global chunk lives.
  std::int64_t global(std::int64_t stage, std::int64_t c) const {
    return c == 0 ? stage : 2 * p_ - 1 - stage;
  }
  const Stage& home(std::int64_t chunk, std::int64_t& local) const {
    local = chunk / p_;
    return stages_[static_cast<std::size_t>(local == 0 ? chunk : 2 * p_ - 1 - chunk)];
  }
  bool input_ready(std::int64_t stage, std::int64_t c, std::int64_t mb) const {
    const std::int64_t chunk = global(stage, c);
    if (chunk == 0) return true;
    std::int64_t local = 0;
    const Stage& from = home(chunk - 1, local);
    return from.done_forward[static_cast<std::size_t>(local)] > mb;
  }
  bool gradient_ready(std::int64_t stage, std::int64_t c, std::int64_t mb) const {
    const std::int64_t chunk = global(stage, c);
    std::int64_t local = 0;
    if (chunk == p_ * kChunks - 1) {
      return home(chunk, local).done_forward[static_cast<std::size_t>(local)] > mb;
    }
    const Stage& from = home(chunk + 1, local);
    return from.done_backward[static_cast<std::size_t>(local)] > mb;
  }

  bool choose(std::int64_t stage, Slot& out) const {
    const Stage& s = stages_[static_cast<std::size_t>(stage)];
    std::int64_t held = 0;
    for (std::int64_t c = 0; c < kChunks; ++c) {
      const auto i = static_cast<std::size_t>(c);
      held += s.done_forward[i] - s.done_weight[i];
    }
    for (std::int64_t c = kChunks - 1; c >= 0; --c) {
      const std::int64_t mb = s.done_backward[static_cast<std::size_t>(c)];
      if (mb < s.done_forward[static_cast<std::size_t>(c)] && gradient_ready(stage, c, mb)) {
        out = slot(Work::kBackwardInput, c, mb);
        return true;
      }
    }
    for (std::int64_t c = kChunks - 1; c >= 0; --c) {
      const std::int64_t mb = s.done_forward[static_cast<std::size_t>(c)];
      if (mb >= m_ || !input_ready(stage, c, mb)) continue;
      // A first-chunk forward also reserves the place its second chunk will need.
      const std::int64_t owed = s.done_forward[0] - s.done_forward[1];
      const bool reserved = c == 1;
      if (reserved || held + owed + (kChunks - 1) < cap_) {
        out = slot(Work::kForward, c, mb);
        return true;
      }
    }
    for (std::int64_t c = kChunks - 1; c >= 0; --c) {
      const std::int64_t mb = s.done_weight[static_cast<std::size_t>(c)];
      if (mb < s.done_backward[static_cast<std::size_t>(c)]) {
        out = slot(Work::kBackwardWeight, c, mb);
        return true;
      }
    }
    return false;
  }

  static void commit(Stage& s, const Slot& chosen) {
    auto& counter = chosen.work == Work::kForward         ? s.done_forward
                    : chosen.work == Work::kBackwardInput ? s.done_backward
                                                          : s.done_weight;
    ++counter[static_cast<std::size_t>(chosen.chunk)];
    s.order.push_back(chosen);
  }

  static constexpr std::int64_t kChunks = 2;
  std::int64_t p_, m_, cap_;
  std::vector<Stage> stages_;
};

}  // namespace

std::string schedule_problem(Schedule schedule, std::int64_t p, std::int64_t v, std::int64_t m) {
  const std::string name(name_of(schedule));
  if (p * v * m > kMostWork) {
    return fmt::format(
        "{} stages x {} chunks x {} micro-batches are more than the {} pieces of work we schedule", p, v, m,
        kMostWork);
  }
  switch (schedule) {
    case Schedule::kNaive:
    case Schedule::kGPipe:
    case Schedule::k1F1B:
    case Schedule::kZeroBubbleH1:
      if (v != 1) return fmt::format("{} has one chunk per stage, not {}", name, v);
      break;
    case Schedule::kInterleaved:
      if (v < 2) return "interleaved needs at least two chunks per stage";
      if (p < 2) return "interleaved needs at least two stages";
      if (m % p != 0)
        return fmt::format("interleaved needs micro-batches ({}) in multiples of pp ({})", m, p);
      break;
    case Schedule::kZeroBubbleV:
      if (v != 2) return fmt::format("zb-v has two chunks per stage, not {}", v);
      break;
    case Schedule::kDualPipeV:
      if (v != 2) return fmt::format("dualpipe-v has two chunks per stage, not {}", v);
      if (m < 2 * p)
        return fmt::format("dualpipe-v needs {} micro-batches or more, twice as many as stages, not {}",
                           2 * p, m);
      break;
    case Schedule::kListed:  // check_order
      break;
  }
  return {};
}

Backwards backwards_of(const Plan& p) {
  return p.schedule == Schedule::kListed && p.schedule_order ? backwards_of(*p.schedule_order)
                                                             : backwards_of(p.schedule);
}

std::vector<std::vector<Slot>> pipeline_schedule(const Plan& p) {
  if (p.schedule == Schedule::kListed) return slots_of(p.schedule_order.value());
  return pipeline_schedule(p.schedule, p.pp, p.vpp, p.micro_batches,
                           p.overlap_exchanges && pairs_up(p.schedule));
}

std::vector<std::vector<Slot>> pipeline_schedule(Schedule schedule, std::int64_t p, std::int64_t v,
                                                 std::int64_t m, bool in_pairs) {
  const auto stage = [&](std::int64_t i) {
    switch (schedule) {
      case Schedule::kNaive:
        return one_chunk(m, 0);
      case Schedule::kGPipe:
        return one_chunk(m, m);
      case Schedule::k1F1B:
        return in_pairs ? one_chunk(m, 2 * (p - 1 - i) + 1, true) : one_chunk(m, p - 1 - i);
      case Schedule::kInterleaved:
        return interleaved(p, v, m, i, in_pairs);
      case Schedule::kZeroBubbleH1:
        return zero_bubble_h1(p, m, i);
      case Schedule::kDualPipeV:
        return DualPipeV(p, m, i, in_pairs).run();
      case Schedule::kZeroBubbleV:
      case Schedule::kListed:
        break;
    }
    throw std::logic_error("a schedule that is not made stage by stage");
  };
  if (schedule == Schedule::kZeroBubbleV) return ZeroBubbleV(p, m).run();
  std::vector<std::vector<Slot>> out;
  for (std::int64_t i = 0; i < p; ++i) out.push_back(stage(i));
  return out;
}

std::vector<std::vector<Slot>> forward_schedule(std::int64_t p, std::int64_t v, std::int64_t m) {
  std::vector<Slot> stage;
  for (std::int64_t micro_batch = 0; micro_batch < m; ++micro_batch) {
    for (std::int64_t chunk = 0; chunk < v; ++chunk)
      stage.push_back(
          {.chunk = static_cast<std::int32_t>(chunk), .micro_batch = static_cast<std::int32_t>(micro_batch)});
  }
  return std::vector<std::vector<Slot>>(static_cast<std::size_t>(p), stage);
}

std::vector<std::int32_t> in_flight(const std::vector<Slot>& slots, std::int64_t v) {
  std::vector<std::int32_t> live(static_cast<std::size_t>(v)), most(static_cast<std::size_t>(v));
  for (const Slot& s : slots) {
    const auto c = static_cast<std::size_t>(s.chunk);
    if (s.work == Work::kForward)
      most[c] = std::max(most[c], ++live[c]);
    else if (s.work == Work::kBackward || s.work == Work::kBackwardWeight)
      --live[c];
  }
  return most;
}

}  // namespace orrery::program
