// SPDX-License-Identifier: Apache-2.0
#include "planner/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "core/parallel.h"
#include "planner/choices.h"
#include "planner/explain.h"
#include "planner/families.h"
#include "planner/risk.h"

namespace orrery::planner {
namespace {

// Plans that differ only in a placement that changes nothing have the same numbers; show one.
std::vector<Candidate> without_twins(const std::vector<Candidate>& all) {
  std::vector<Candidate> out;
  for (const Candidate& c : all) {
    const bool twin = std::any_of(out.begin(), out.end(), [&](const Candidate& o) {
      Plan a = o.plan;
      a.rank_order = c.plan.rank_order;
      return a == c.plan && o.estimate == c.estimate;
    });
    if (!twin) out.push_back(c);
  }
  return out;
}

std::string needs(const Candidate& c) {
  return fmt::format("needs {} on stage {}, has {}", format(c.device), c.estimate.fullest_stage,
                     format(c.capacity));
}

// The best time of the kept plans on changed hardware; placement and layout stay what they were.
Sensitivity on_changed(const Problem& problem, const std::vector<Candidate>& kept, double base_s,
                       const char* change, const std::function<void(Problem&)>& apply) {
  Problem changed = problem;
  apply(changed);
  const sim::Topology topology(changed.cluster);
  sim::Estimator estimator(changed, topology);
  Sensitivity s;
  s.change = change;
  double best = std::numeric_limits<double>::infinity();
  for (const Candidate& c : kept) {
    const double t = seconds(estimator.estimate(c.plan).step);
    const double ranked = t * seconds(c.ranked) / seconds(c.estimate.step);
    if (ranked >= best) continue;
    best = ranked;
    s.step_time_s = t;
    s.plan = c.plan;
  }
  s.speedup = base_s / s.step_time_s;
  return s;
}

void measure_sensitivity(const Problem& problem, int threads, Answer& a) {
  const auto& kept = a.search.best;
  const double base = seconds(kept.front().estimate.step);
  const auto twice = [](Bandwidth& b) { b = b * 2; };
  a.sensitivity.push_back(on_changed(problem, kept, base, "2x NIC bandwidth", [&](Problem& p) {
    for_each_type(p.cluster, [&](NodeType& t) { twice(t.nic_bandwidth); });
  }));
  a.sensitivity.push_back(on_changed(problem, kept, base, "2x NVLink bandwidth", [&](Problem& p) {
    for_each_type(p.cluster, [&](NodeType& t) { twice(t.intra_bandwidth); });
    for (Cable& c : p.cluster.inside) twice(c.bandwidth);
  }));
  a.sensitivity.push_back(on_changed(problem, kept, base, "2x memory bandwidth", [&](Problem& p) {
    for (Device& d : p.devices) twice(d.memory_bandwidth);
  }));
  if (problem.cluster.fabric.sites > 1) {
    a.sensitivity.push_back(on_changed(problem, kept, base, "2x bandwidth between sites",
                                       [&](Problem& p) { twice(p.cluster.fabric.site_bandwidth); }));
  }
  if (kept.front().plan.offloads()) {
    const auto hosts = [&](const char* change, Bandwidth Host::*of) {
      a.sensitivity.push_back(on_changed(problem, kept, base, change, [&](Problem& p) {
        for_each_type(p.cluster, [&](NodeType& t) { twice(t.host.value().*of); });
      }));
    };
    hosts("2x link to the host", &Host::link);
    hosts("2x host memory bandwidth", &Host::memory_bandwidth);
    if (kept.front().plan.optimizer_on_drives()) {
      a.sensitivity.push_back(on_changed(problem, kept, base, "2x bandwidth of the drives", [&](Problem& p) {
        for_each_type(p.cluster, [&](NodeType& t) {
          Drives& drives = t.host.value().nvme.value();
          twice(drives.read);
          twice(drives.write);
        });
      }));
    }
  }
  // Twice the memory lets in the fastest of those that did not fit, or not for sure.
  Sensitivity memory{"2x device memory", base, 1, kept.front().plan};
  for (const auto* list : {&a.search.risky, &a.search.too_big}) {
    for (const Candidate& c : *list) {
      const double t = seconds(c.estimate.step);
      if (c.device > c.capacity * 2 || t >= memory.step_time_s) continue;
      memory.step_time_s = t;
      memory.plan = c.plan;
    }
  }
  memory.speedup = base / memory.step_time_s;
  a.sensitivity.push_back(memory);
  // Twice the nodes: a narrower search around the best plan.
  Problem larger = problem;
  larger.cluster.nodes *= 2;
  larger.scenario.search.tp = {kept.front().plan.tp};
  larger.scenario.search.sequence_parallel = {kept.front().plan.sequence_parallel};
  larger.scenario.search.schedule = {kept.front().plan.schedule};
  larger.scenario.search.recompute = {kept.front().plan.recompute};
  larger.scenario.search.recompute_parts = kept.front().plan.recompute_parts;
  larger.scenario.search.recompute_layers = {kept.front().plan.recompute_layers};
  larger.scenario.search.rank_order = {kept.front().plan.rank_order};
  larger.scenario.search.offload.clear();
  if (kept.front().plan.offload) larger.scenario.search.offload = {*kept.front().plan.offload};
  const Plan& best = kept.front().plan;
  larger.scenario.search.islands = {best.islands};
  larger.scenario.search.loss_chunks = {best.loss_chunks};
  larger.scenario.search.cp = {best.cp};
  larger.scenario.search.ulysses = {best.ulysses};
  if (best.cp_keys) larger.scenario.search.cp_keys = {*best.cp_keys};
  if (best.splits_experts()) {
    larger.scenario.search.ep = {best.ep};
    larger.scenario.search.etp = {best.expert_tp()};
    if (best.expert_exchange) larger.scenario.search.expert_exchange = {*best.expert_exchange};
    larger.scenario.search.overlap_exchanges = {best.overlap_exchanges};
  }
  larger.scenario.search.vpp = {};
  larger.scenario.search.dp = {};
  try {
    const sim::Topology topology(larger.cluster);
    const SearchResult more = search(larger, topology, {.keep = 1, .threads = threads});
    if (more.best.empty()) return;
    const double t = seconds(more.best.front().estimate.step);
    a.sensitivity.push_back({"2x nodes", t, base / t, more.best.front().plan});
  } catch (
      const Error&) {  // a graph joins the nodes that its cables name, and the largest network has no double
  }
}

bool acceptable(const Scenario& s, double days, double cost_usd) {
  if (s.goal == Goal::kCostByDeadline) return days * 86400 <= s.deadline.value;
  return s.goal != Goal::kTimeInBudget || cost_usd <= dollars(s.budget);
}

// What is less is better. What misses a deadline comes after all that meets it, fastest first; what misses a
// budget, cheapest first. Time and cost of a step are pessimistic.
std::tuple<bool, double, double> rank(const Scenario& s, double step, double step_usd, double days,
                                      double usd) {
  const bool misses = !acceptable(s, days, usd);
  const bool by_cost = s.goal == Goal::kCost || (s.goal == Goal::kCostByDeadline && !misses) ||
                       (s.goal == Goal::kTimeInBudget && misses);
  return by_cost ? std::tuple{misses, step_usd, step} : std::tuple{misses, step, step_usd};
}
// Without its wait for samples.
double compute_s(const Predicted& p) {
  return p.loading ? p.loading->compute_s : p.step_time_s;
}
// What may well not fit comes after all that fits, by how probably it does not. Of plans that wait for the
// same samples, to the picosecond, the one that computes faster goes first.
auto rank(const Scenario& s, const Ranked& r) {
  const Predicted& p = r.predicted;
  const double times = r.risky() ? 1 : r.pessimistic_s / p.step_time_s;
  const double step = seconds(from_seconds(p.step_time_s));
  return std::tuple{r.risky(), r.risky() ? -p.fits_probability : 0,
                    rank(s, step * times, p.cost_per_step_usd * times, p.days, p.cost_usd), compute_s(p)};
}
auto rank(const Scenario& s, const Size& z) {
  const double times = z.risk_factor;
  return std::pair{z.risky, rank(s, z.step_time_s * times, z.cost_per_step_usd * times, z.days, z.cost_usd)};
}
bool acceptable(const Scenario& s, const Predicted& p) {
  return acceptable(s, p.days, p.cost_usd);
}

Ranked simulate(const Problem& problem, const sim::Topology& topology, const Plan& plan,
                const sim::Estimate& estimate, std::int64_t paid_nodes = 0) {
  Ranked r;
  r.plan = plan;
  r.estimate = estimate;
  r.capacity = usable(problem, estimate.memory);
  r.predicted = evaluate(problem, topology, plan, {.paid_nodes = paid_nodes}).predicted;
  const Fit memory = fit(problem, plan, r.predicted);
  r.hosts_fit = memory.fits_hosts();
  r.pessimistic_s = pessimistic_time(r.predicted.step_time_s, r.predicted.fits_probability, problem.spread,
                                     problem.scenario.search.risk);
  return r;
}

// Candidates that would be faster than the first plan and may well not fit, fastest first.
void name_risky(const Problem& problem, std::size_t most, Answer& a) {
  std::vector<Rejected> out;
  std::set<Degrees> seen;
  for (const Candidate& c : a.search.risky) {
    const double step = seconds(c.estimate.step);
    if (out.size() == most || step >= a.plans.front().predicted.step_time_s) break;
    if (!seen.insert(degrees_of(c.plan)).second) continue;
    out.push_back(
        {c.plan,
         fmt::format("fits with a probability of {:.0f} %, and more than {:.0f} % is wanted (risk {})",
                     100 * fits_probability(problem, c), 100 * (1 - problem.scenario.search.risk),
                     problem.scenario.search.risk),
         step});
  }
  a.rejected.insert(a.rejected.begin(), out.begin(), out.end());
}

// Which list of the scenario's search leaves a plan out; empty, or "tp 8".
std::string left_out(const Search& s, const Plan& p) {
  std::string out;
  const auto check = [&](const auto& list, const auto& value, const char* name) {
    if (out.empty() && !list.empty() && std::find(list.begin(), list.end(), value) == list.end())
      out = fmt::format("{} {}", name, value);
  };
  check(s.tp, p.tp, "tp");
  check(s.pp, p.pp, "pp");
  check(s.dp, p.dp, "dp");
  if (p.islands > 1 || !s.islands.empty()) check(s.islands, p.islands, "islands");
  check(s.cp, p.cp, "cp");
  if (p.cp > 1) check(s.ulysses, p.ulysses, "ulysses");
  check(s.ep, p.ep, "ep");
  if (p.splits_experts()) check(s.etp, p.expert_tp(), "etp");
  check(s.micro_batch, p.micro_batch, "micro_batch");
  check(s.zero, p.zero, "zero");
  if (p.vpp > 1) check(s.vpp, p.vpp, "vpp");
  if (p.shard_group > 0) check(s.shard_group, p.shard_group, "shard_group");
  if (p.zero == 3) check(s.reshard_after_forward, p.reshards(), "reshard_after_forward");
  if (p.tp > 1) check(s.sequence_parallel, p.sequence_parallel, "sequence_parallel");
  const auto check_name = [&](const auto& list, const auto& value, const char* name) {
    if (out.empty() && !list.empty() && std::find(list.begin(), list.end(), value) == list.end())
      out = fmt::format("{} {}", name, name_of(value));
  };
  if (p.pp > 1) check_name(s.schedule, p.schedule, "schedule");
  check_name(s.recompute, p.recompute, "recompute");
  for (const RecomputePart part : p.recompute_parts) check_name(s.recompute_parts, part, "recompute_parts");
  check_name(s.rank_order, p.rank_order, "rank_order");
  if (p.ring() > 1)
    check_name(s.cp_keys, p.rings() ? ContextKeys::kRing : ContextKeys::kAllGather, "cp_keys");
  if (p.ep > 1)
    check_name(s.expert_exchange, p.exchanges_by_node() ? ExpertExchange::kByNode : ExpertExchange::kFlat,
               "expert_exchange");
  if (p.ep > 1) check(s.overlap_exchanges, p.overlap_exchanges, "overlap_exchanges");
  if (p.recompute == Recompute::kFull) {
    check(s.recompute_layers, p.recompute_layers, "recompute_layers");
    if (p.recompute_by_chunk.empty())
      check(s.recompute_first, p.recompute_first, "recompute_first");
    else if (out.empty() && !s.recompute_first.empty())
      out = "recompute_by_chunk";
  }
  check(s.loss_chunks, p.loss_chunks, "loss_chunks");
  const Offload offload = p.offload.value_or(Offload{});
  const bool tried = s.offload.empty()
                         ? offload == Offload{}
                         : std::find(s.offload.begin(), s.offload.end(), offload) != s.offload.end();
  if (out.empty() && !tried) out = "offload";
  return out;
}

// A rule of thumb that is so much slower than the best plan by the estimate, and has so many chunks of
// micro-batches, is not simulated.
constexpr double kOutOfTheRace = 2;
constexpr std::int64_t kQuicklySimulated = 1 << 16;

// The scenario's plan and the rules of thumb: shown with what they cost on their own nodes, and ranked with
// the others, where all nodes are paid, if they fit.
void compare_others(const Problem& problem, const sim::Topology& topology, Answer& a) {
  sim::Estimator estimator(problem, topology);
  const auto beside = [&](const Plan& p, const std::string& note) {
    const sim::Estimate estimate = estimator.estimate(p);
    Ranked r = simulate(problem, topology, p, estimate, nodes_of(p, problem.cluster));
    r.note = note;
    const bool known =
        std::any_of(a.plans.begin(), a.plans.end(), [&](const Ranked& x) { return x.plan == p; });
    if (!known && r.fits()) a.plans.push_back(simulate(problem, topology, p, estimate));
    a.alongside.push_back(std::move(r));
  };
  const auto reject = [&](const Plan& p, const std::string& name, const std::string& why) {
    a.rejected.push_back({p, name + ": " + why, 0});
  };
  if (problem.scenario.plan) {
    const Plan& own = *problem.scenario.plan;
    if (const std::string why_not = plan_problem(problem, own); why_not.empty())
      beside(own, "the scenario's plan");
    else
      reject(own, "the scenario's plan", why_not);
  }
  const auto too_slow = [&](const Plan& p) -> std::string {
    if (a.search.best.empty() || p.pp * p.vpp * p.micro_batches <= kQuicklySimulated) return {};
    const double step = seconds(estimator.estimate(p).compute);
    const double times = step / seconds(a.search.best.front().estimate.compute);
    if (times < kOutOfTheRace) return {};
    return fmt::format("takes {:.3g} s by the estimate, {:.1f} times as long as the best plan", step, times);
  };
  for (const Heuristic& h : heuristics(problem)) {
    const std::string without = left_out(problem.scenario.search, h.plan);
    if (!h.problem.empty())
      reject(h.plan, h.name, h.problem);
    else if (!without.empty())
      reject(h.plan, h.name, "the scenario's search leaves out " + without);
    else if (const std::string slow = too_slow(h.plan); !slow.empty())
      reject(h.plan, h.name, slow);
    else
      beside(h.plan, h.name);
  }
}

// Whether a plan is another one, with more work that is done again.
bool repeats_more(Plan p, const Plan& than, std::int64_t layers) {
  const auto more_layers = [&] {
    if (p.recompute != Recompute::kFull || than.recompute != Recompute::kFull) return false;
    bool more = false;
    std::int64_t chunk = 0;
    for (const std::int64_t n : layers_by_chunk(than, layers)) {
      const std::int64_t mine = recomputed_layers(p, chunk, n), others = recomputed_layers(than, chunk, n);
      if (mine < others) return false;
      more = more || mine > others;
      ++chunk;
    }
    return more;
  };
  if (p.pp * p.vpp != than.pp * than.vpp || p.chunk_layers != than.chunk_layers) return false;
  const bool more_parts = p.recompute == Recompute::kSelective && than.recompute == Recompute::kSelective &&
                          p.repeated() != than.repeated() && than.repeated().without(p.repeated()).empty();
  const bool more = p.recompute > than.recompute || more_parts || more_layers();
  p.recompute = than.recompute;
  p.recompute_parts = than.recompute_parts;
  p.recompute_layers = than.recompute_layers;
  p.recompute_first = than.recompute_first;
  p.recompute_by_chunk = than.recompute_by_chunk;
  return more && p == than;
}

// The first candidates of each family, and those of each kind that could win if their estimate were too slow:
// by the largest gap seen of their kind, or by kUnseenGap before one was seen.
void simulate_best(const Problem& problem, const sim::Topology& topology, const PlanOptions& options,
                   Answer& a) {
  // The estimate is within it for 999 of 1000 plans (tests/planner/scenarios_test.cpp).
  constexpr double kUnseenGap = 0.1;
  std::vector<Candidate> candidates = a.search.best;
  const auto add = [&](const Candidate& c) {
    const bool known = std::any_of(candidates.begin(), candidates.end(),
                                   [&](const Candidate& x) { return x.plan == c.plan; });
    if (!known) candidates.push_back(c);
  };
  for (const auto& [kind, c] : a.search.by_kind) add(c);
  for (const auto& [degrees, c] : a.search.by_degrees) add(c);
  candidates = without_twins(candidates);
  const std::size_t families = best_of_families_first(candidates);
  // Some at a time, side by side, the first ones whatever they are. How many does not depend on the threads,
  // and so the answer does not.
  constexpr std::size_t kAtATime = 4;
  const auto threads = static_cast<std::size_t>(std::max(1, options.threads));
  double best = std::numeric_limits<double>::infinity();
  std::size_t shown = 0;  // families with a plan that fits as surely as is wanted
  for (std::size_t next = 0; next < candidates.size();) {
    std::vector<const Candidate*> batch;
    const bool first = next == 0;
    for (; next < candidates.size() &&
           batch.size() < (first ? std::max<std::size_t>(1, options.top) : kAtATime);
         ++next) {
      const Candidate& c = candidates[next];
      const auto seen = a.gaps.find(kind_of(c.plan));
      const double gap = seen == a.gaps.end() ? kUnseenGap : seen->second;
      const bool wins = c.ranked != kNever && seconds(c.ranked) * (1 - gap) <= best &&
                        std::none_of(a.simulated.begin(), a.simulated.end(), [&](const Plan& p) {
                          return repeats_more(c.plan, p, problem.scenario.model.layers);
                        });
      if (first || wins || (next < families && shown < options.top)) batch.push_back(&c);
    }
    std::vector<Ranked> done(batch.size());
    on_threads(threads, 0, batch.size(), [&](std::size_t, std::size_t i) {
      done[i] = simulate(problem, topology, batch[i]->plan, batch[i]->estimate);
    });
    for (std::size_t i = 0; i < batch.size(); ++i) {
      a.simulated.push_back(batch[i]->plan);
      const double step = done[i].predicted.step_time_s;
      const double error = std::abs(seconds(batch[i]->estimate.compute) / compute_s(done[i].predicted) - 1);
      a.largest_gap = std::max(a.largest_gap, error);
      double& of_kind = a.gaps[kind_of(batch[i]->plan)];
      of_kind = std::max(of_kind, error);
      shown += !done[i].risky() && done[i].hosts_fit &&
               std::none_of(a.plans.begin(), a.plans.end(), [&](const Ranked& other) {
                 return !other.risky() && degrees_of(other.plan) == degrees_of(done[i].plan);
               });
      if (!done[i].risky())
        best = std::min(best, step * risk_factor(done[i].predicted.fits_probability, problem.spread,
                                                 problem.scenario.search.risk));
      if (done[i].hosts_fit) a.plans.push_back(std::move(done[i]));
    }
  }
}

Answer plan_on(const Problem& problem, const PlanOptions& options) {
  const sim::Topology topology(problem.cluster);
  Answer a;
  SearchOptions so;
  so.keep = std::max<std::size_t>(24, 2 * options.top);
  so.threads = options.threads;
  so.progress = options.progress;
  a.search = search(problem, topology, so);

  simulate_best(problem, topology, options, a);

  std::set<Degrees> seen;
  for (const Candidate& c : a.search.too_big) {
    if (a.rejected.size() >= options.top) break;
    if (!seen.insert(degrees_of(c.plan)).second) continue;
    a.rejected.push_back({c.plan, needs(c), seconds(c.estimate.step)});
  }
  if (a.search.best.empty() && a.search.smallest_too_big) {
    const Candidate& c = *a.search.smallest_too_big;
    a.rejected.insert(a.rejected.begin(),
                      {c.plan, needs(c) + ", the least of all", seconds(c.estimate.step)});
  }
  for (const Candidate& c : a.search.pareto) a.pareto.push_back(c.plan);

  compare_others(problem, topology, a);
  const Scenario& scenario = problem.scenario;
  std::stable_sort(a.plans.begin(), a.plans.end(),
                   [&](const Ranked& x, const Ranked& y) { return rank(scenario, x) < rank(scenario, y); });
  const auto misses = std::find_if(a.plans.begin(), a.plans.end(),
                                   [&](const Ranked& r) { return !acceptable(scenario, r.predicted); });
  if (misses != a.plans.begin()) a.plans.erase(misses, a.plans.end());
  const auto risky = std::find_if(a.plans.begin(), a.plans.end(), [](const Ranked& r) { return r.risky(); });
  if (risky != a.plans.begin()) {
    a.plans.erase(risky, a.plans.end());
    name_risky(problem, options.top, a);
  }
  a.plans = folded(std::move(a.plans));
  if (a.plans.size() > options.top) a.plans.resize(options.top);
  if (!a.plans.empty() && (scenario.training.expert_load || scenario.training.documents)) {
    Ranked& best = a.plans.front();
    const Predicted drawn = evaluate(problem, topology, best.plan, {.draws = kLoadDraws}).predicted;
    best.predicted.imbalance = drawn.imbalance;
    best.predicted.documents = drawn.documents;
  }
  if (!a.search.best.empty()) measure_sensitivity(problem, options.threads, a);
  if (!a.plans.empty())
    a.choices = choices(problem, a, [&](const Candidate& c) -> std::optional<Ranked> {
      Ranked r = simulate(problem, topology, c.plan, c.estimate);
      if (!r.fits() || r.risky() || !acceptable(scenario, r.predicted)) return std::nullopt;
      return r;
    });
  explain(problem, a);
  return a;
}

Size size_of(const Problem& problem, std::int64_t nodes, const Candidate& c) {
  const Training& t = problem.scenario.training;
  Size z{
      .nodes = nodes, .plan = c.plan, .step_time_s = seconds(c.estimate.step), .risky = c.ranked == kNever};
  if (!z.risky) z.risk_factor = seconds(c.ranked) / z.step_time_s;
  z.cost_per_step_usd = problem.cluster.dollars_per_hour(nodes) / 3600 * z.step_time_s;
  const double steps = t.tokens > 0 ? t.tokens / t.tokens_per_step() : 0;
  z.days = steps * z.step_time_s / 86400;
  z.cost_usd = steps * z.cost_per_step_usd;
  return z;
}

// The fastest plan for every number of nodes up to the cluster's, fewest first.
std::vector<Size> all_sizes(const Problem& problem, int threads) {
  const sim::Topology topology(problem.cluster);
  std::vector<Size> out;
  for (const auto& [nodes, c] : search(problem, topology, {.threads = threads, .by_nodes = true}).by_nodes)
    out.push_back(size_of(problem, nodes, c));
  return out;
}

// The fewest nodes, more than there are, that meet the deadline.
std::optional<Size> size_that_meets(const Problem& problem, int threads) {
  constexpr std::int64_t kMost = 64;  // times as many as there are
  for (std::int64_t times = 2; times <= kMost; times *= 2) {
    Problem larger = problem;
    larger.cluster.nodes *= times;
    try {
      for (const Size& z : all_sizes(larger, threads)) {
        if (z.nodes > problem.cluster.nodes && acceptable(problem.scenario, z.days, z.cost_usd)) return z;
      }
    } catch (const Error&) {  // the network has no such size
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::string unmet(const Problem& problem, const Answer& a, int threads) {
  const auto days = [](double d) { return format(RunTime{d * 86400}); };
  const Scenario& s = problem.scenario;
  const Predicted& best = a.plans.front().predicted;
  if (s.goal == Goal::kTimeInBudget) {
    return fmt::format("no plan keeps to the budget of {}: the cheapest takes ${:.0f}, on {} nodes in {}",
                       format(s.budget), best.cost_usd, a.nodes, days(best.days));
  }
  const std::string late = fmt::format(
      "no plan on {} meets the deadline of {}: the best takes {}",
      problem.cluster.nodes == 1 ? "one node" : fmt::format("up to {} nodes", problem.cluster.nodes),
      format(s.deadline), days(best.days));
  const auto z = size_that_meets(problem, threads);
  if (!z) return late + ", and no larger number of nodes was found that does";
  return fmt::format("{}; {} nodes would meet it by the estimate: {}, {}, ${:.0f}", late, z->nodes,
                     short_name(z->plan), days(z->days), z->cost_usd);
}

// Of two sizes that cost nearly the same the slower one is a poor bargain.
std::string trade_off(const Answer& a) {
  constexpr double kLittle = 1.05, kMuch = 0.8;
  const auto chosen =
      std::find_if(a.sizes.begin(), a.sizes.end(), [&](const Size& z) { return z.nodes == a.nodes; });
  if (chosen == a.sizes.end()) return {};
  const Size* faster = nullptr;
  for (const Size& z : a.sizes) {
    if (z.cost_per_step_usd <= kLittle * chosen->cost_per_step_usd &&
        z.step_time_s <= kMuch * (faster ? faster->step_time_s : chosen->step_time_s))
      faster = &z;
  }
  if (faster == nullptr) return {};
  return fmt::format("{} nodes in place of {} take {:.0f} % of the time and cost {:.1f} % more: {}",
                     faster->nodes, a.nodes, 100 * faster->step_time_s / chosen->step_time_s,
                     100 * (faster->cost_per_step_usd / chosen->cost_per_step_usd - 1),
                     short_name(faster->plan));
}

// The best answer of these sizes; the smallest that fits where that is the goal.
Answer plan_on_best(const Problem& problem, const std::vector<std::int64_t>& sizes,
                    const PlanOptions& options) {
  Answer best;
  for (const std::int64_t nodes : sizes) {
    Problem sized = problem;
    sized.cluster.nodes = nodes;
    const std::vector<std::int64_t>& listed = problem.scenario.search.nodes;
    if (const auto at = std::find(listed.begin(), listed.end(), nodes); at != listed.end()) {
      const auto index = static_cast<std::size_t>(at - listed.begin());
      sized.cluster.sized = problem.at.child("search").child("nodes").child(index);
    }
    Answer a = plan_on(sized, options);
    a.nodes = nodes;
    const bool fits = !a.plans.empty() && !a.plans.front().risky();
    const bool better =
        best.plans.empty() || (!a.plans.empty() && rank(problem.scenario, a.plans.front()) <
                                                       rank(problem.scenario, best.plans.front()));
    if (better) best = std::move(a);
    if (problem.scenario.goal == Goal::kSmallest && fits) break;
  }
  return best;
}

}  // namespace

std::string why_none(const Problem& problem, const SearchResult& r) {
  if (r.counts.considered == r.counts.invalid)
    return "no combination of the search is a plan of this model, batch and stack on this cluster";
  const Scenario& s = problem.scenario;
  std::string out = fmt::format("no plan fits {} of device memory", format(r.capacity));
  if (r.counts.too_large_for_hosts > 0)
    out += fmt::format("; {} plans do, and need more than the hosts' memory or drives",
                       r.counts.too_large_for_hosts);
  const Plan offloaded{.zero = 1, .offload = Offload{.optimizer = 1}};
  if (s.search.offload.empty() && host_problem(problem.cluster, true, false).empty() &&
      runs_plan(problem.stack, s.model, offloaded, s.training) &&
      !program::offload_problem(offloaded, s.training))
    out += "; the hosts' memory was not tried: \"search\": {\"offload\": [{\"optimizer\": 1}]}";
  return out;
}

Answer plan(const Problem& problem, const PlanOptions& options) {
  const Scenario& s = problem.scenario;
  std::vector<std::int64_t> nodes = s.search.nodes;
  std::sort(nodes.begin(), nodes.end());
  if (nodes.empty() && s.goal == Goal::kTime) nodes = {problem.cluster.nodes};
  std::vector<Size> sizes;
  if (nodes.empty() || options.sizes) sizes = all_sizes(problem, options.threads);
  if (nodes.empty()) {
    std::vector<Size> promising = sizes;  // fewest nodes first, which is the order of the goal "smallest"
    if (s.goal != Goal::kSmallest) {
      std::stable_sort(promising.begin(), promising.end(),
                       [&](const Size& x, const Size& y) { return rank(s, x) < rank(s, y); });
    }
    constexpr std::size_t kPlanned = 3;  // the estimate may put near ones in the wrong order
    for (const Size& z : promising) {
      if (nodes.size() < kPlanned) nodes.push_back(z.nodes);
    }
    if (nodes.empty()) nodes = {problem.cluster.nodes};  // which says why nothing fits
  }
  Answer a = plan_on_best(problem, nodes, options);
  a.sizes = std::move(sizes);
  if (a.plans.empty()) return a;
  if (!acceptable(s, a.plans.front().predicted)) a.unmet = unmet(problem, a, options.threads);
  if (s.goal == Goal::kCost || s.goal == Goal::kCostByDeadline) a.trade_off = trade_off(a);
  return a;
}

std::optional<Advice> learning_rate_advice(const Problem& problem) {
  const Training& training = problem.scenario.training;
  if (training.lamb || training.adapter || training.precision == Precision::kSgd) return std::nullopt;
  // 6e-4 at 125M and 0.5M tokens to 0.6e-4 at 175B and 3.2M tokens: exponents -0.32 and 0.26 in N.
  const double n = static_cast<double>(count_parameters(problem.scenario.model));
  const double tokens = training.tokens_per_step();
  const double reference_batch = 0.5e6 * std::pow(n / 125e6, 0.256);
  Advice a;
  a.learning_rate = 6e-4 * std::pow(125e6 / n, 0.32) * std::sqrt(tokens / reference_batch);
  a.learning_rate = std::min(a.learning_rate, 6e-4 * std::pow(125e6 / n, 0.32) * 4);
  a.warm_up_tokens = 375e6;
  a.warm_up_steps = static_cast<std::int64_t>(std::ceil(a.warm_up_tokens / tokens));
  // A run that is shorter than GPT-3's warms up for at most a tenth of its steps.
  if (training.tokens > 0)
    a.warm_up_steps = std::min(a.warm_up_steps, static_cast<std::int64_t>(training.tokens / tokens / 10));
  return a;
}

std::string words_of_adapter(const Scenario& s) {
  const Adapter& a = s.training.adapter.value();
  const auto trained = static_cast<double>(count_adapter_parameters(s.model, a)),
             all = static_cast<double>(count_parameters(s.model));
  std::vector<std::string_view> targets;
  for (const AdapterTarget t : a.targets) targets.push_back(name_of(t));
  std::string out =
      fmt::format("trains {:.4g} M of {:.4g} G parameters ({:.2g} %): adapters of rank {} on {}",
                  trained / 1e6, all / 1e9, 100 * trained / all, a.rank,
                  targets.empty() ? "all matrices of layers" : fmt::format("{}", fmt::join(targets, ", ")));
  if (a.base != BaseStorage::kAsComputed)
    out += fmt::format("; the matrices of layers are stored as {}", name_of(a.base));
  return out;
}

}  // namespace orrery::planner
