// SPDX-License-Identifier: Apache-2.0
#include "planner/recompute.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

namespace orrery::planner {
namespace {

// Of choices for the first chunks of a stage.
constexpr std::size_t kMostChoices = 4096;

// When a stage's work begins: of each chunk, micro-batches that wait for their backward, and those whose
// weight gradients are to come; and what runs then.
struct Moment {
  std::vector<std::int32_t> forward_done, backward_done;
  std::size_t chunk = 0;
  sim::ChunkWork work = sim::kChunkForward;
  friend auto operator<=>(const Moment&, const Moment&) = default;
};

// The model's chunk that is a stage's local one.
std::size_t model_chunk(const Plan& plan, std::size_t stage, std::size_t local) {
  return static_cast<std::size_t>(program::global_chunk(
      chunk_placement(plan), plan.pp, static_cast<std::int64_t>(stage), static_cast<std::int64_t>(local)));
}

std::vector<Moment> moments_of(const StageChoices& stage) {
  Moment now;
  now.forward_done.resize(stage.chunks.size());
  now.backward_done = now.forward_done;
  std::vector<Moment> out;
  for (const program::Slot& slot : stage.slots) {
    now.chunk = static_cast<std::size_t>(slot.chunk);
    now.work = sim::chunk_work(slot.work);
    out.push_back(now);
    switch (slot.work) {
      case program::Work::kForward:
        ++now.forward_done[now.chunk];
        break;
      case program::Work::kBackwardInput:
        --now.forward_done[now.chunk];
        ++now.backward_done[now.chunk];
        break;
      case program::Work::kBackward:
        --now.forward_done[now.chunk];
        break;
      case program::Work::kBackwardWeight:
        --now.backward_done[now.chunk];
        break;
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Of one of the stage's chunks at a moment.
std::int64_t bytes_at(const Moment& m, std::size_t chunk, const ChunkChoice& choice) {
  const std::int64_t after_forward = choice.work[sim::kChunkForward].net;
  const std::int64_t after_backward = after_forward + choice.work[sim::kChunkBackwardInput].net;
  return m.forward_done[chunk] * after_forward + m.backward_done[chunk] * after_backward +
         (m.chunk == chunk ? choice.work[m.work].peak : 0);
}

// A choice for the first chunks of a stage.
struct Begun {
  std::int64_t time = 0;
  std::vector<std::int64_t> bytes;       // by moment
  std::vector<std::int64_t> recomputed;  // by chunk
  bool covers(const Begun& o) const {    // whatever follows, it is no worse
    return time <= o.time && std::equal(bytes.begin(), bytes.end(), o.bytes.begin(), std::less_equal<>());
  }
};

// Those that no other covers, the fastest first.
std::vector<Begun> uncovered(std::vector<Begun> all) {
  std::sort(all.begin(), all.end(), [](const Begun& a, const Begun& b) {
    return std::tie(a.time, a.bytes, a.recomputed) < std::tie(b.time, b.bytes, b.recomputed);
  });
  std::vector<Begun> out;
  for (Begun& b : all) {
    if (out.size() == kMostChoices) break;
    if (std::none_of(out.begin(), out.end(), [&](const Begun& o) { return o.covers(b); }))
      out.push_back(std::move(b));
  }
  return out;
}

}  // namespace

std::int64_t peak_bytes(const StageChoices& stage, const std::vector<std::int64_t>& recomputed) {
  std::int64_t most = stage.least;
  for (const Moment& m : moments_of(stage)) {
    std::int64_t bytes = 0;
    for (std::size_t c = 0; c < stage.chunks.size(); ++c)
      bytes += bytes_at(m, c, stage.chunks[c][static_cast<std::size_t>(recomputed[c])]);
    most = std::max(most, bytes);
  }
  return stage.fixed + most;
}

std::optional<std::vector<std::int64_t>> fastest_within(const StageChoices& stage, std::int64_t bytes) {
  const std::int64_t room = bytes - stage.fixed;
  if (room < stage.least) return std::nullopt;
  // What the chunks from c on hold at a moment, at least and at most.
  const auto at = [&](const Moment& m, std::size_t from, auto pick) {
    std::int64_t sum = 0;
    for (std::size_t c = from; c < stage.chunks.size(); ++c) {
      std::int64_t found = bytes_at(m, c, stage.chunks[c].front());
      for (const ChunkChoice& choice : stage.chunks[c]) found = pick(found, bytes_at(m, c, choice));
      sum += found;
    }
    return sum;
  };
  constexpr auto kLeast = [](std::int64_t a, std::int64_t b) { return std::min(a, b); };
  constexpr auto kMost = [](std::int64_t a, std::int64_t b) { return std::max(a, b); };
  std::vector<Moment> moments = moments_of(stage);
  std::erase_if(moments, [&](const Moment& m) { return at(m, 0, kMost) <= room; });
  std::vector<Begun> begun(1);
  begun.front().bytes.resize(moments.size());
  for (std::size_t c = 0; c < stage.chunks.size(); ++c) {
    std::vector<std::int64_t> rest;  // least of the chunks behind, by moment
    for (const Moment& m : moments) rest.push_back(at(m, c + 1, kLeast));
    std::vector<Begun> longer;
    for (const Begun& b : begun) {
      for (std::size_t r = 0; r < stage.chunks[c].size(); ++r) {
        Begun next = b;
        bool fits = true;
        for (std::size_t t = 0; t < moments.size(); ++t) {
          next.bytes[t] += bytes_at(moments[t], c, stage.chunks[c][r]);
          fits = fits && next.bytes[t] + rest[t] <= room;
        }
        if (!fits) continue;
        next.time += stage.chunks[c][r].time;
        next.recomputed.push_back(static_cast<std::int64_t>(r));
        longer.push_back(std::move(next));
      }
    }
    begun = uncovered(std::move(longer));
  }
  return begun.empty() ? std::nullopt : std::optional(begun.front().recomputed);
}

std::vector<StageChoices> stage_choices(sim::Estimator& estimator, const Plan& plan) {
  const std::vector<std::int64_t> layers = layers_by_chunk(plan, estimator.layers());
  const auto stages = static_cast<std::size_t>(plan.pp), v = static_cast<std::size_t>(plan.vpp);
  // After so many micro-batches no stage holds more.
  Plan enough = plan;
  if (plan.schedule != Schedule::kGPipe && plan.schedule != Schedule::kListed)
    enough.micro_batches = std::min(plan.micro_batches, 4 * plan.pp);
  auto slots = program::pipeline_schedule(enough);
  std::vector<StageChoices> out(stages);
  for (std::size_t i = 0; i < stages; ++i) {
    out[i].slots = std::move(slots[i]);
    out[i].chunks.resize(v);
  }
  for (std::int64_t n = 0, most = *std::max_element(layers.begin(), layers.end()); n <= most; ++n) {
    std::vector<std::int64_t> alike;
    for (const std::int64_t of_chunk : layers) alike.push_back(std::min(n, of_chunk));
    const auto held = estimator.stage_bytes(with_recomputed(plan, std::move(alike), estimator.layers()));
    for (std::size_t i = 0; i < stages; ++i) {
      StageChoices& stage = out[i];
      stage.fixed = held[i].fixed;
      stage.least = held[i].least;
      stage.memory = held[i].memory;
      for (std::size_t c = 0; c < v; ++c) {
        if (n > layers[model_chunk(plan, i, c)]) continue;
        ChunkChoice& choice = stage.chunks[c].emplace_back();
        for (std::size_t w = 0; w < choice.work.size(); ++w) {
          const sim::WorkCost& cost = held[i].chunks[c][w];
          choice.work[w] = {cost.peak, cost.net};
        }
        choice.time = sim::of_micro_batch(held[i].chunks[c], &sim::WorkCost::time);
      }
    }
  }
  return out;
}

RecomputeChoices::RecomputeChoices(sim::Estimator& estimator, const Plan& plan)
    : estimator_(estimator), plan_(plan), stages_(stage_choices(estimator, plan)) {
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    std::vector<Level>& levels = levels_.emplace_back();
    const auto add = [&](const std::vector<std::int64_t>& recomputed) {
      levels.push_back({recomputed, share(i, peak_bytes(stages_[i], recomputed))});
      budgets_.push_back(levels.back().share);
    };
    std::vector<std::int64_t> recomputed(stages_[i].chunks.size());
    add(recomputed);
    for (std::size_t c = 0; c < recomputed.size(); ++c) {
      while (recomputed[c] + 1 < std::ssize(stages_[i].chunks[c])) {
        ++recomputed[c];
        add(recomputed);
      }
    }
  }
  std::sort(budgets_.begin(), budgets_.end(), std::greater<>());
  budgets_.erase(std::unique(budgets_.begin(), budgets_.end()), budgets_.end());
}

double RecomputeChoices::share(std::size_t stage, std::int64_t bytes) const {
  return static_cast<double>(estimator_.device_bytes(plan_, Bytes{bytes}).value) /
         static_cast<double>(stages_[stage].memory.value);
}

const RecomputeChoices::Level& RecomputeChoices::level(std::size_t stage, double budget) const {
  const std::vector<Level>& levels = levels_[stage];
  const auto found =
      std::find_if(levels.begin(), levels.end(), [&](const Level& l) { return l.share <= budget; });
  if (found != levels.end()) return *found;
  return *std::min_element(levels.begin(), levels.end(),
                           [](const Level& a, const Level& b) { return a.share < b.share; });
}

template <class Choose>
Plan RecomputeChoices::plan_of(Choose choose) const {
  std::vector<std::int64_t> by_chunk(static_cast<std::size_t>(plan_.pp * plan_.vpp));
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const std::vector<std::int64_t> recomputed = choose(i);
    for (std::size_t c = 0; c < recomputed.size(); ++c) by_chunk[model_chunk(plan_, i, c)] = recomputed[c];
  }
  return with_recomputed(plan_, std::move(by_chunk), estimator_.layers());
}

Plan RecomputeChoices::in_order(double budget) const {
  return plan_of([&](std::size_t stage) { return level(stage, budget).recomputed; });
}

Plan RecomputeChoices::fastest(double budget) const {
  return plan_of([&](std::size_t stage) {
    // The most bytes within the budget.
    std::int64_t low = 0, high = stages_[stage].memory.value * 2;
    while (low < high) {
      const std::int64_t middle = high - (high - low) / 2;
      if (share(stage, middle) <= budget)
        low = middle;
      else
        high = middle - 1;
    }
    return fastest_within(stages_[stage], low).value_or(level(stage, budget).recomputed);
  });
}

}  // namespace orrery::planner
