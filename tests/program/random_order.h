// SPDX-License-Identifier: Apache-2.0
//
// Pipeline schedules that nobody designed.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "program/order.h"

namespace orrery::program {

// The plan with its stages' work in a random order in which every piece comes behind what it needs: all
// stages at one clock, of which a random one does a random piece that can be done, tensors of other stages as
// they came. Its chunks lie as those of its schedule, and its backwards are whole, split or either.
inline Plan in_random_order(Plan p, std::mt19937& random) {
  const std::int64_t chunks = p.pp * p.vpp, m = p.micro_batches;
  const Backwards backwards = backwards_of(p);
  struct Done {
    std::int64_t forward = 0, backward = 0, weight = 0;  // a whole backward is both
  };
  struct Stage {
    std::deque<std::int64_t> forwards, backwards;  // chunks whose inputs, and gradients, came
  };
  std::vector<Done> done(static_cast<std::size_t>(chunks));
  std::vector<Stage> stages(static_cast<std::size_t>(p.pp));
  ScheduleOrder order{.chunks = chunk_placement(p),
                      .stages = std::vector<std::string>(static_cast<std::size_t>(p.pp))};
  const auto home = [&](std::int64_t g) { return static_cast<std::size_t>(stage_of_chunk(p, g)); };
  enum class Kind { kForward, kBackward, kWeight };
  for (;;) {
    std::vector<std::pair<Kind, std::int64_t>> ready;
    if (done.front().forward < m) ready.emplace_back(Kind::kForward, 0);
    if (done.back().backward < done.back().forward) ready.emplace_back(Kind::kBackward, chunks - 1);
    for (const Stage& s : stages) {
      if (!s.forwards.empty()) ready.emplace_back(Kind::kForward, s.forwards.front());
      if (!s.backwards.empty()) ready.emplace_back(Kind::kBackward, s.backwards.front());
    }
    for (std::int64_t g = 0; g < chunks; ++g) {
      const Done& d = done[static_cast<std::size_t>(g)];
      if (d.weight < d.backward) ready.emplace_back(Kind::kWeight, g);
    }
    if (ready.empty()) break;
    const auto [kind, g] = ready[random() % ready.size()];
    Done& d = done[static_cast<std::size_t>(g)];
    std::string piece;
    switch (kind) {
      case Kind::kForward:
        piece = fmt::format("F{}", d.forward++);
        if (g > 0) stages[home(g)].forwards.pop_front();
        if (g + 1 < chunks) stages[home(g + 1)].forwards.push_back(g + 1);
        break;
      case Kind::kBackward: {
        // A whole one comes behind the weight gradients of those before it.
        const bool whole = backwards == Backwards::kWhole ||
                           (backwards == Backwards::kBoth && d.weight == d.backward && random() % 2 == 0);
        piece = fmt::format("{}{}", whole ? "B" : "Bi", d.backward++);
        if (whole) d.weight = d.backward;
        if (g + 1 < chunks) stages[home(g)].backwards.pop_front();
        if (g > 0) stages[home(g - 1)].backwards.push_back(g - 1);
        break;
      }
      case Kind::kWeight:
        piece = fmt::format("W{}", d.weight++);
    }
    std::string& text = order.stages[home(g)];
    text += (text.empty() ? "" : " ") + piece;
    if (g >= p.pp) text += fmt::format(".{}", g / p.pp);
  }
  p.schedule = Schedule::kListed;
  p.schedule_order = std::move(order);
  return p;
}

// Why the plan's list cannot run; empty if it can.
inline std::string order_problem(const Plan& p) {
  try {
    check_order(p, Cursor{"plan.json", "/plan/schedule_order"});
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

}  // namespace orrery::program
