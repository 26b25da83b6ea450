// SPDX-License-Identifier: Apache-2.0
#include "planner/choices.h"

#include <algorithm>

namespace orrery::planner {
namespace {

constexpr double kSafestLonger = 1.05, kSmallestLonger = 1.1, kSimplestLonger = 1.05;
constexpr double kSaferBy = 0.01, kSmallerBy = 0.9;

// What the search kept, once each.
std::vector<const Candidate*> kept_candidates(const Answer& a) {
  std::vector<const Candidate*> out;
  const auto add = [&](const Candidate& c) {
    const bool known =
        std::any_of(out.begin(), out.end(), [&](const Candidate* other) { return other->plan == c.plan; });
    if (!known && c.ranked != kNever && c.fits()) out.push_back(&c);
  };
  for (const Candidate& c : a.search.best) add(c);
  for (const auto& [kind, c] : a.search.by_kind) add(c);
  for (const auto& [degrees, c] : a.search.by_degrees) add(c);
  for (const Candidate& c : a.search.pareto) add(c);
  return out;
}

}  // namespace

int mechanisms(const Plan& p) {
  int out = 0;
  for (const std::int64_t ranks : {p.tp, p.pp, p.cp, p.ep, p.islands}) out += ranks > 1;
  out += p.zero > 0;
  out += p.shard_group > 0 && p.shard_group < p.dp;
  out += p.vpp > 1;
  out += p.pp > 1 && p.schedule != Schedule::k1F1B && p.schedule != Schedule::kInterleaved;
  out += p.ulysses > 1 && p.ulysses < p.cp;
  out += p.etp.has_value() && *p.etp != p.tp;
  out += p.recompute != Recompute::kNone;
  out += p.recompute_first > 0 || !p.recompute_by_chunk.empty() || p.recompute_layers > 1 ||
         p.recompute_parts.size() > 1;
  out += p.offloads();
  out += !p.chunk_layers.empty();
  out += p.overlap_exchanges;
  out += p.exchanges_by_node();
  return out;
}

std::vector<Choice> choices(const Problem& problem, const Answer& a,
                            const std::function<std::optional<Ranked>(const Candidate&)>& simulated) {
  const std::vector<const Candidate*> kept = kept_candidates(a);
  const Ranked& fastest = a.plans.front();
  const Time base = fastest.estimate.step;
  const auto own =
      std::find_if(kept.begin(), kept.end(), [&](const Candidate* c) { return c->plan == fastest.plan; });
  if (own == kept.end()) return {};
  std::vector<Choice> out;
  // The candidate with the least of `unwanted`, where it has that much less than the fastest.
  const auto choose = [&](Reason reason, double longer, const auto& unwanted, const auto& counts) {
    const Candidate* best = *own;
    for (const Candidate* c : kept) {
      if (ratio(c->estimate.step, base) > longer) continue;
      const auto a_has = unwanted(*c), best_has = unwanted(*best);
      if (a_has < best_has || (a_has == best_has && c->estimate.step < best->estimate.step)) best = c;
    }
    if (!counts(unwanted(*best), unwanted(**own))) return;
    const auto known =
        std::find_if(out.begin(), out.end(), [&](const Choice& c) { return c.plan.plan == best->plan; });
    if (known != out.end())
      known->reasons.push_back(reason);
    else if (std::optional<Ranked> r = simulated(*best))
      out.push_back({{reason}, std::move(*r)});
  };
  choose(
      Reason::kSafest, kSafestLonger, [&](const Candidate& c) { return 1 - fits_probability(problem, c); },
      [](double less, double own_risk) { return less + kSaferBy <= own_risk; });
  choose(
      Reason::kSmallest, kSmallestLonger, [](const Candidate& c) { return c.device.value; },
      [](std::int64_t less, std::int64_t own_bytes) {
        return static_cast<double>(less) <= kSmallerBy * static_cast<double>(own_bytes);
      });
  choose(
      Reason::kSimplest, kSimplestLonger, [](const Candidate& c) { return mechanisms(c.plan); },
      [](int less, int own_count) { return less < own_count; });
  return out;
}

}  // namespace orrery::planner
