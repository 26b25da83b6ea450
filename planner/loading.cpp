// SPDX-License-Identifier: Apache-2.0
#include "planner/loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "sim/loading/loading.h"

namespace orrery::planner {
namespace {

constexpr double kEnough = 1.02;  // times the compute
constexpr double kHoursPerMonth = 730;

// A property of loading that can be had in sizes from 1 to `most`, of which the smallest is looked for.
struct Knob {
  std::int64_t now, most;
  std::function<void(Loading&, std::int64_t)> set;
  std::function<std::string(std::int64_t)> text;                 // "5 workers in place of 2"
  std::function<std::optional<double>(std::int64_t)> usd_month;  // none: without a price
};

std::optional<double> free_of_charge(std::int64_t) {
  return 0;
}
std::optional<double> no_price(std::int64_t) {
  return std::nullopt;
}

std::vector<Knob> knobs_of(const Loading& l) {
  constexpr std::int64_t kMostWorkers = 64, kMostPrefetch = 64, kMostCores = 1024, kMostTimes = 4096;
  const auto in_place = [](std::string what, std::int64_t now) {
    return [what, now](std::int64_t n) { return fmt::format("{} {} in place of {}", n, what, now); };
  };
  std::vector<Knob> out;
  out.push_back({l.workers, kMostWorkers, [](Loading& x, std::int64_t n) { x.workers = n; },
                 in_place("workers", l.workers), free_of_charge});
  if (l.variation > 0)
    out.push_back({l.prefetch, kMostPrefetch, [](Loading& x, std::int64_t n) { x.prefetch = n; },
                   in_place("batches ready", l.prefetch), free_of_charge});
  if (l.cores)
    out.push_back({*l.cores, kMostCores, [](Loading& x, std::int64_t n) { x.cores = n; },
                   in_place("cores of a node", *l.cores), no_price});
  // In twentieths of what there is.
  const auto bandwidth = [&](const char* what, const std::optional<Bandwidth>& now,
                             std::optional<Bandwidth> Loading::*of, const auto& usd_month) {
    if (!now) return;
    const auto times = [now = *now](std::int64_t n) { return Bandwidth{mul_div(now.value, n, 20)}; };
    out.push_back({20, 20 * kMostTimes, [times, of](Loading& x, std::int64_t n) { x.*of = times(n); },
                   [times, what, now = *now](std::int64_t n) {
                     return fmt::format("{} of {} in place of {}", what, format(times(n)), format(now));
                   },
                   usd_month});
  };
  bandwidth("storage", l.storage_bandwidth, &Loading::storage_bandwidth,
            [&l](std::int64_t n) -> std::optional<double> {
              if (!l.bandwidth_month) return std::nullopt;
              return dollars(*l.bandwidth_month) * static_cast<double>(l.storage_bandwidth->value) / 1e9 *
                     static_cast<double>(n - 20) / 20;
            });
  bandwidth("a node's link", l.node_bandwidth, &Loading::node_bandwidth, no_price);
  bandwidth("a worker's reads", l.worker_bandwidth, &Loading::worker_bandwidth, no_price);
  return out;
}

// Of sizes up to `most`, the smallest that is enough, where a larger one is no worse.
std::optional<std::int64_t> smallest(std::int64_t now, std::int64_t most,
                                     const std::function<bool(std::int64_t)>& enough) {
  if (now >= most || !enough(most)) return std::nullopt;
  std::int64_t too_small = now;
  while (most - too_small > 1) {
    const std::int64_t middle = too_small + (most - too_small) / 2;
    (enough(middle) ? most : too_small) = middle;
  }
  return most;
}

class Fixes {
 public:
  Fixes(const Problem& problem, const Plan& plan, double compute_s)
      : problem_(problem), plan_(plan), compute_s_(compute_s), now_(*problem.scenario.loading) {}

  std::vector<LoadingFix> all() const {
    std::vector<LoadingFix> out;
    for (const Choice& c : choices()) {
      if (enough(c.loading)) out.push_back({c.text, step_s(c.loading), 0});
    }
    for (const Knob& k : knobs_of(now_)) {
      const auto n = smallest(k.now, k.most, [&](std::int64_t size) { return enough(with(now_, k, size)); });
      if (n) out.push_back({k.text(*n), step_s(with(now_, k, *n)), k.usd_month(*n)});
    }
    if (out.empty()) {
      std::vector<Choice> begins = choices();
      begins.push_back({"", now_});
      for (const Choice& c : begins) {
        if (auto several = together(c)) out.push_back(std::move(*several));
      }
    }
    std::stable_sort(out.begin(), out.end(), [](const LoadingFix& a, const LoadingFix& b) {
      return a.usd_month && (!b.usd_month || *a.usd_month < *b.usd_month);
    });
    return out;
  }

 private:
  // Of what costs nothing: one or several.
  struct Choice {
    std::string text;
    Loading loading;
  };
  std::vector<Choice> choices() const {
    std::vector<Choice> out;
    const auto choose = [&](const char* text, const auto& set) {
      const std::vector<Choice> before = out;
      out.push_back({text, now_});
      set(out.back().loading);
      for (Choice c : before) {
        c.text = fmt::format("{} and {}", c.text, text);
        set(c.loading);
        out.push_back(std::move(c));
      }
    };
    if (now_.readers == Readers::kRank)
      choose("one rank of a replica reads for all in place of every rank",
             [](Loading& l) { l.readers = Readers::kReplica; });
    if (now_.shuffle == Shuffle::kGlobal && now_.cache_bytes)
      choose("shards in place of a global shuffle", [](Loading& l) { l.shuffle = Shuffle::kShard; });
    return out;
  }
  static Loading with(Loading l, const Knob& k, std::int64_t n) {
    k.set(l, n);
    return l;
  }
  double step_s(const Loading& l) const {
    return sim::loaded_step(problem_, l, plan_, compute_s_, true).step_s;
  }
  bool enough(const Loading& l) const { return step_s(l) <= kEnough * compute_s_; }

  // Every knob at its most would do: one after the other, each goes back as far as it can.
  std::optional<LoadingFix> together(const Choice& from) const {
    const std::vector<Knob> knobs = knobs_of(now_);
    Loading l = from.loading;
    for (const Knob& k : knobs) k.set(l, std::max(k.now, k.most));
    if (!enough(l)) return std::nullopt;
    LoadingFix out;
    out.usd_month = 0;
    out.change = from.text;
    // What costs most goes back first.
    for (auto k = knobs.rbegin(); k != knobs.rend(); ++k) {
      if (enough(with(l, *k, k->now))) {
        k->set(l, k->now);
        continue;
      }
      const auto n = smallest(k->now, k->most, [&](std::int64_t size) { return enough(with(l, *k, size)); });
      k->set(l, *n);
      out.change = out.change.empty() ? k->text(*n) : fmt::format("{} and {}", k->text(*n), out.change);
      const auto usd = k->usd_month(*n);
      out.usd_month = usd && out.usd_month ? std::optional(*usd + *out.usd_month) : std::nullopt;
    }
    out.step_s = step_s(l);
    return out;
  }

  const Problem& problem_;
  const Plan& plan_;
  double compute_s_;
  const Loading& now_;
};

}  // namespace

std::vector<LoadingFix> loading_fixes(const Problem& problem, const Plan& plan, const LoadedStep& now) {
  if (now.step_s <= kEnough * now.compute_s) return {};
  return Fixes(problem, plan, now.compute_s).all();
}

double waiting_usd_month(const Problem& problem, const LoadedStep& now) {
  return problem.cluster.dollars_per_hour(problem.cluster.nodes) * kHoursPerMonth * now.waiting();
}

Json loading_json(const Problem& problem, const Plan& plan, const LoadedStep& now) {
  Json out = {{"waiting_usd_month", waiting_usd_month(problem, now)}, {"fixes", Json::array()}};
  for (const LoadingFix& f : loading_fixes(problem, plan, now)) {
    out["fixes"].push_back({{"change", f.change},
                            {"step_s", f.step_s},
                            {"usd_month", f.usd_month ? Json(*f.usd_month) : Json()}});
  }
  return out;
}

std::vector<std::string> loading_lines(const Problem& problem, const Plan& plan, const LoadedStep& now) {
  std::vector<std::string> out{sim::text_of(now)};
  const std::vector<LoadingFix> fixes = loading_fixes(problem, plan, now);
  if (const double usd = waiting_usd_month(problem, now); usd >= 1)
    out.front() += fmt::format(", ${:.0f} a month of nodes", usd);
  for (const LoadingFix& f : fixes) {
    const std::string price = !f.usd_month        ? "the scenario has no price for it"
                              : *f.usd_month == 0 ? "at no cost"
                                                  : fmt::format("for ${:.0f} a month", *f.usd_month);
    out.push_back(fmt::format("  {}, {}: steps take {}", f.change, price, format(from_seconds(f.step_s))));
  }
  if (fixes.empty() && now.waiting() > 0.02) out.push_back("  no change of what `loading` says would end it");
  return out;
}

}  // namespace orrery::planner
