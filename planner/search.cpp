// SPDX-License-Identifier: Apache-2.0
#include "planner/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <numeric>

#include "core/parallel.h"
#include "planner/balance.h"
#include "planner/recompute.h"
#include "planner/risk.h"
#include "planner/space.h"
#include "program/program.h"
#include "sim/estimate/samples.h"

namespace orrery::planner {
namespace {

// Plans that need up to so many times the memory there is are named, with what they would gain.
constexpr std::int64_t kNamed = 2;
// The front of smaller plans reaches to plans this much slower than the fastest.
constexpr double kFrontWindow = 1.25;
// Outer combinations are searched in batches, each as large as all before it together: the best of those
// bound it. The first one has so many.
constexpr std::size_t kFirstBatch = 4;

// A total order, so that merging does not depend on which thread found what. Of plans that wait for the same
// samples, the one that computes faster goes first.
std::tuple<std::int64_t, std::int64_t, std::int64_t> rank_of(const Candidate& c) {
  return {c.ranked.value, c.estimate.compute.value, c.device.value};
}

// What the scenario's risk makes of a candidate's time.
Time ranked(const Problem& p, const Candidate& c) {
  const double factor = risk_factor(fits_probability(p, c), p.spread, p.scenario.search.risk);
  return std::isinf(factor) ? kNever : from_seconds(seconds(c.estimate.step) * factor);
}

bool faster(const Candidate& a, const Candidate& b) {
  if (rank_of(a) != rank_of(b)) return rank_of(a) < rank_of(b);
  return canonical(a.plan) < canonical(b.plan);
}

// The `keep` fastest, as a heap whose top is the slowest kept.
class Fastest {
 public:
  explicit Fastest(std::size_t keep) : keep_(keep) {}
  // Nothing slower is wanted here.
  Time slowest() const { return heap_.size() < keep_ ? kNever : heap_.front().ranked; }
  // Nor for the front.
  Time limit() const {
    if (heap_.size() < keep_) return kNever;
    const auto window = static_cast<std::int64_t>(static_cast<double>(fastest_.value) * kFrontWindow);
    return std::max(slowest(), Time{window});
  }
  void add(const Candidate& c) {
    fastest_ = std::min(fastest_, c.ranked);
    if (heap_.size() == keep_ && !faster(c, heap_.front())) return;
    if (heap_.size() == keep_) {
      std::pop_heap(heap_.begin(), heap_.end(), faster);
      heap_.pop_back();
    }
    heap_.push_back(c);
    std::push_heap(heap_.begin(), heap_.end(), faster);
  }
  std::vector<Candidate> sorted() && {
    std::sort(heap_.begin(), heap_.end(), faster);
    return std::move(heap_);
  }

 private:
  std::size_t keep_;
  Time fastest_ = kNever;
  std::vector<Candidate> heap_;
};

// Plans with no other both faster and smaller, sorted by time, whatever their risk.
class Pareto {
 public:
  void add(Candidate c) {
    c.ranked = c.estimate.step;
    const auto at = std::lower_bound(front_.begin(), front_.end(), c, faster);
    if (at != front_.begin() && std::prev(at)->device <= c.device) return;
    auto end = at;
    while (end != front_.end() && end->device >= c.device) ++end;
    front_.insert(front_.erase(at, end), c);
  }
  const std::vector<Candidate>& front() const { return front_; }

 private:
  std::vector<Candidate> front_;
};

// The fastest plan for every number of nodes, where no plan on fewer is as fast.
class Sizes {
 public:
  // On so many nodes nothing slower is wanted.
  Time limit(std::int64_t nodes) const {
    const auto after = all_.upper_bound(nodes);
    return after == all_.begin() ? kNever : std::prev(after)->second.ranked;
  }
  void add(std::int64_t nodes, const Candidate& c) {
    const auto after = all_.upper_bound(nodes);
    if (after != all_.begin()) {
      const auto& [n, known] = *std::prev(after);
      if (n < nodes ? known.ranked <= c.ranked : !faster(c, known)) return;
    }
    auto slower = all_.insert_or_assign(nodes, c).first;
    for (++slower; slower != all_.end() && slower->second.ranked >= c.ranked;) slower = all_.erase(slower);
  }
  const std::map<std::int64_t, Candidate>& all() const { return all_; }

 private:
  std::map<std::int64_t, Candidate> all_;
};

// 0 to n - 1, any first few of them far apart.
std::vector<std::size_t> spread(std::size_t n) {
  const auto reversed = [](std::size_t i) {
    std::size_t out = 0;
    for (int bit = 0; bit < std::numeric_limits<std::size_t>::digits; ++bit, i >>= 1)
      out = out << 1 | (i & 1);
    return out;
  };
  std::vector<std::size_t> out(n);
  std::iota(out.begin(), out.end(), std::size_t{0});
  std::sort(out.begin(), out.end(), [&](std::size_t a, std::size_t b) { return reversed(a) < reversed(b); });
  return out;
}

template <class Key>
void keep_faster(std::map<Key, Candidate>& fastest, const Key& key, const Candidate& c) {
  const auto [known, added] = fastest.try_emplace(key, c);
  if (!added && faster(c, known->second)) known->second = c;
}

// Of the fastest known: nothing slower is wanted.
struct Limits {
  Time best = kNever, too_big = kNever;
  bool fits = false;  // some plan does; otherwise the smallest is wanted
  Bytes smallest{std::numeric_limits<std::int64_t>::max()};
  const Sizes* sizes = nullptr;  // where each number of nodes has its own
};

struct Partial {
  explicit Partial(std::size_t keep) : best(keep), risky(keep), too_big(keep) {}
  SearchCounts counts;
  Fastest best, risky, too_big;
  Pareto pareto;
  std::map<PlanKind, Candidate> by_kind;
  std::map<Degrees, Candidate> by_degrees;
  Sizes sizes;
  std::optional<Candidate> smallest;  // of those that are too big
};

// Their time is not known yet.
void keep_smaller(std::optional<Candidate>& smallest, const Candidate& c) {
  if (!smallest || c.device < smallest->device ||
      (c.device == smallest->device && canonical(c.plan) < canonical(smallest->plan)))
    smallest = c;
}

class Worker {
 public:
  Worker(const Problem& problem, const sim::Topology& topology, const Space& space,
         const SearchOptions& options, std::shared_ptr<sim::Samples> samples)
      : problem_(problem),
        space_(space),
        options_(options),
        cluster_(problem.cluster),
        mixed_(problem.cluster.types() > 1),
        spared_(problem.stack.communicator),
        estimator_(problem, topology, std::move(samples)) {}

  // Plans slower than the limits are not wanted.
  void run(const Space::Outer& outer, const Limits& limits, Partial& into) {
    limits_ = limits;
    const Plan whole = outer.plan();
    // What one type of nodes does in a time bounds no plan that uses others.
    const bool bound = options_.bound && !mixed_ && whole.ranks() <= cluster_.devices();
    work_ = bound ? estimator_.least_work(whole) : Time{0};
    const auto wanted = [&](const Plan& p) { return least_time(p) <= limit(p, into); };
    const Space::Counts c =
        space_.visit(outer, {.plan = [&](const Plan& plan) { return consider(plan, into); },
                             .wanted = wanted,
                             .may_hold = [&](const Plan& plan) { return may_hold(plan, into); }});
    into.counts.considered += c.considered;
    into.counts.invalid += c.invalid;
    into.counts.bounded += c.unwanted + c.hopeless;
  }

 private:
  // As far as it is known before anything of the plan is priced.
  Time least_time(const Plan& p) const { return work_ * p.micro_batches / p.pp; }

  Time limit(const Plan& plan, const Partial& into) const {
    if (!options_.by_nodes) return std::min(limits_.best, into.best.limit());
    const std::int64_t nodes = nodes_of(plan, cluster_);
    return std::min(limits_.sizes->limit(nodes), into.sizes.limit(nodes));
  }

  // Of plans that do not fit.
  Time too_big_limit(const Partial& into) const { return std::min(limits_.too_big, into.too_big.slowest()); }

  // False: what it holds all through a step is so much too large that no answer names such a plan.
  bool may_hold(const Plan& plan, const Partial& into) {
    if (!options_.bound || mixed_) return true;
    const Bytes device = estimator_.device_bytes(plan, estimator_.held_bytes(plan).most);
    return device <= capacity() * kNamed || may_be_smallest(device, into);
  }
  // Where none fits, the smallest is named.
  bool may_be_smallest(Bytes device, const Partial& into) const {
    return !limits_.fits && into.counts.feasible == 0 &&
           device < std::min(limits_.smallest, into.smallest ? into.smallest->device : limits_.smallest);
  }
  // A plan of at least so many bytes, and that time.
  bool may_be_named(Bytes device, Time least, const Partial& into) const {
    if (device <= capacity() || may_be_smallest(device, into)) return true;
    return device <= capacity() * kNamed && least <= too_big_limit(into);
  }
  // Of one type of nodes.
  Bytes capacity() const { return usable(problem_, problem_.devices[0].memory); }

  // Shards of fewer replicas are no smaller, but may be on other nodes.
  Space::Verdict consider(const Plan& plan, Partial& into) {
    const Space::Verdict verdict = consider_one(plan, into);
    if (!mixed_) return verdict;
    if (plan.chunk_layers.empty()) {
      const auto usable = [&](Bytes memory) { return planner::usable(problem_, memory); };
      if (auto layers = balanced_layers(estimator_, plan, usable)) {
        Plan balanced = plan;
        balanced.chunk_layers = std::move(*layers);
        const Scenario& s = problem_.scenario;
        if (runs_plan(problem_.stack, s.model, balanced, s.training)) {
          ++into.counts.considered;
          consider_one(balanced, into);
        }
      }
    }
    return Space::Verdict::kSeen;
  }

  Space::Verdict consider_one(const Plan& plan, Partial& into) {
    Bytes device{0};
    const auto too_large = [&] {
      ++into.counts.bounded;
      return device <= capacity() + spared_ ? Space::Verdict::kSeen : Space::Verdict::kTooLarge;
    };
    if (options_.bound && !mixed_) {
      device = estimator_.device_bytes(plan, estimator_.least_peak(plan, estimator_.held_bytes(plan)));
      // The one that recomputes nothing comes first: where it is too slow, nothing of the others is priced.
      if (plan.recompute != Recompute::kNone && !may_be_named(device, least_time(plan), into))
        return too_large();
    }
    const Time least = options_.bound ? estimator_.lower_bound(plan) : Time{0};
    if (least > limit(plan, into)) {
      ++into.counts.bounded;
      return Space::Verdict::kTooSlow;
    }
    if (!may_be_named(device, least, into)) return too_large();
    ++into.counts.costed;
    const sim::Estimate peak = estimator_.peak(plan);
    Candidate c{.plan = plan,
                .device = estimator_.device_bytes(plan, peak.peak),
                .capacity = usable(problem_, peak.memory)};
    if (c.fits() && !estimator_.host_memory(plan).fits()) {
      ++into.counts.too_large;
      ++into.counts.too_large_for_hosts;
      return Space::Verdict::kSeen;
    }
    if (c.fits()) {
      ++into.counts.feasible;
      c.estimate = estimator_.estimate(plan);
      c.ranked = ranked(problem_, c);
      into.pareto.add(c);
      if (options_.by_nodes) into.sizes.add(nodes_of(plan, cluster_), c);
      if (c.ranked == kNever) {
        c.ranked = c.estimate.step;
        into.risky.add(c);
      } else {
        into.best.add(c);
        keep_faster(into.by_kind, kind_of(c.plan), c);
        keep_faster(into.by_degrees, degrees_of(c.plan), c);
      }
      return Space::Verdict::kSeen;
    }
    ++into.counts.too_large;
    keep_smaller(into.smallest, c);
    if (c.device <= c.capacity * kNamed && least <= too_big_limit(into)) {
      c.estimate = estimator_.estimate(plan);
      c.ranked = c.estimate.step;
      into.too_big.add(c);
    }
    const bool hopeful = !options_.bound || c.device <= c.capacity + spared_;
    return hopeful ? Space::Verdict::kSeen : Space::Verdict::kTooLarge;
  }

  const Problem& problem_;
  const Space& space_;
  const SearchOptions& options_;
  const Cluster& cluster_;
  const bool mixed_;    // nodes are of several types
  const Bytes spared_;  // what one replica alone needs less than several
  Limits limits_;
  Time work_{0};  // of a micro-batch through all layers, of the outer combination
  sim::Estimator estimator_;
};

// Of plans that may all well not fit.
std::vector<Candidate> most_probable(const Problem& problem, const SearchResult& r) {
  std::vector<Candidate> out = r.risky;
  for (const Candidate& c : r.pareto) {
    if (std::none_of(out.begin(), out.end(), [&](const Candidate& o) { return o.plan == c.plan; }))
      out.push_back(c);
  }
  for (Candidate& c : out) c.ranked = kNever;
  std::stable_sort(out.begin(), out.end(), [&](const Candidate& a, const Candidate& b) {
    return fits_probability(problem, a) > fits_probability(problem, b);
  });
  return out;
}

// Whether plans may recompute any number of a chunk's first layers.
bool tries_some_layers(const Problem& problem) {
  const Search& s = problem.scenario.search;
  const auto& strides = s.recompute_layers;
  return s.recompute_first.empty() && (!problem.stack.runs || problem.stack.runs->recompute_first) &&
         (strides.empty() || std::find(strides.begin(), strides.end(), 1) != strides.end());
}

// Gives plans that recompute whole layers the number of each chunk's first layers that ranks first: fewer
// take less time, and fit less surely. Then, where the stack has it, each chunk a number of its own
// (planner/recompute.h).
class Recomputed {
 public:
  Recomputed(const Problem& problem, sim::Estimator& estimator)
      : problem_(problem),
        estimator_(estimator),
        by_chunk_(!problem.stack.runs || problem.stack.runs->recompute_by_chunk) {}

  void choose(Candidate& c) const {
    if (c.plan.recompute != Recompute::kFull || c.plan.recompute_layers > 1 || c.ranked == kNever) return;
    choose_first(c);
    if (by_chunk_ && c.plan.pp > 1) choose_by_chunk(c);
  }

  // Several may become the same plan.
  void choose(std::vector<Candidate>& best) const {
    for (Candidate& c : best) choose(c);
    std::sort(best.begin(), best.end(), faster);
    for (std::size_t i = 0; i < best.size(); ++i) {
      const auto same = [&](const Candidate& c) { return c.plan == best[i].plan; };
      best.erase(std::remove_if(best.begin() + static_cast<std::ptrdiff_t>(i) + 1, best.end(), same),
                 best.end());
    }
  }

 private:
  void choose_first(Candidate& c) const {
    const auto layers = layers_by_chunk(c.plan, problem_.scenario.model.layers);
    const std::int64_t all = *std::max_element(layers.begin(), layers.end());
    const auto with_first = [&](std::int64_t first) {
      Plan plan = c.plan;
      plan.recompute_first = first == all ? 0 : first;
      return priced(std::move(plan));
    };
    std::int64_t low = 1, high = c.plan.recompute_first > 0 ? c.plan.recompute_first : all;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      const Time at = with_first(middle).ranked;
      if (at != kNever && at <= with_first(middle + 1).ranked)
        high = middle;
      else
        low = middle + 1;
    }
    keep_better(c, with_first(low));
  }

  // Of all budgets that a choice fills, then exactly in the best.
  void choose_by_chunk(Candidate& c) const {
    const RecomputeChoices choices(estimator_, c.plan);
    std::optional<double> best;
    for (const double budget : choices.budgets()) {
      if (budget > 1 - problem_.scenario.search.memory_margin) continue;
      Candidate found = priced(choices.in_order(budget));
      if (found.estimate.step >= c.ranked) break;  // smaller budgets take longer
      if (keep_better(c, std::move(found))) best = budget;
    }
    if (best && c.plan.vpp > 1) keep_better(c, priced(choices.fastest(*best)));
  }

  static bool keep_better(Candidate& c, Candidate&& found) {
    if (found.ranked >= c.ranked) return false;
    c = std::move(found);
    return true;
  }

  Candidate priced(Plan plan) const {
    const sim::Estimate estimate = estimator_.estimate(plan);
    Candidate c{.plan = std::move(plan), .estimate = estimate, .capacity = usable(problem_, estimate.memory)};
    c.device = estimator_.device_bytes(c.plan, estimate.peak);
    c.ranked = c.fits() && estimator_.host_memory(c.plan).fits() ? ranked(problem_, c) : kNever;
    return c;
  }

  const Problem& problem_;
  sim::Estimator& estimator_;
  const bool by_chunk_;
};

}  // namespace

double fits_probability(const Problem& problem, const Candidate& c) {
  return problem.spread.memory.fits(static_cast<double>(c.device.value),
                                    static_cast<double>(c.estimate.memory.value));
}

SearchCounts& SearchCounts::operator+=(const SearchCounts& o) {
  considered += o.considered;
  invalid += o.invalid;
  too_large += o.too_large;
  too_large_for_hosts += o.too_large_for_hosts;
  bounded += o.bounded;
  costed += o.costed;
  feasible += o.feasible;
  return *this;
}

PlanKind kind_of(const Plan& plan) {
  return {plan.schedule, plan.zero >= 2};
}

Bytes usable(const Problem& problem, Bytes memory) {
  return Bytes{static_cast<std::int64_t>(static_cast<double>(memory.value) *
                                         (1 - problem.scenario.search.memory_margin))};
}

std::int64_t nodes_of(const Plan& plan, const Cluster& cluster) {
  return (plan.ranks() + cluster.devices_per_node - 1) / cluster.devices_per_node;
}

std::string plan_problem(const Problem& problem, const Plan& plan) {
  try {
    program::check_plan(problem.scenario.model, plan, problem.scenario.training, Cursor{"", "/plan"});
  } catch (const InputError& e) {
    return e.what();
  }
  const Scenario& s = problem.scenario;
  if (const auto wrong = stack_problem(problem.stack, s.model, plan, s.training))
    return wrong->pointer + ": " + wrong->text;
  if (const std::string wrong = host_problem(problem.cluster, plan.offloads(), plan.optimizer_on_drives());
      !wrong.empty())
    return "/plan/offload: " + wrong;
  if (plan.ranks() > problem.cluster.devices()) {
    return fmt::format("/plan: {} ranks are more than the cluster's {} devices", plan.ranks(),
                       problem.cluster.devices());
  }
  return {};
}

SearchResult search(const Problem& problem, const sim::Topology& topology, const SearchOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const Space space(problem);
  SearchResult result;
  for (std::size_t i = 0; i < problem.cluster.types(); ++i)
    result.capacity = std::max(result.capacity, usable(problem, problem.devices[i].memory));

  // One partial result per outer combination, and limits that only earlier batches set: what is pruned never
  // depends on the threads.
  const auto& outer = space.outer();
  std::vector<Partial> parts(outer.size(), Partial(options.keep));
  std::atomic<std::size_t> done = 0;
  Fastest best(options.keep), risky(options.keep), too_big(options.keep);
  Pareto pareto;
  Sizes sizes;
  const auto samples =
      std::make_shared<sim::Samples>(problem.scenario.model, problem.scenario.training, problem.stack);
  std::deque<Worker> workers;
  for (int t = 0; t < std::max(1, options.threads); ++t)
    workers.emplace_back(problem, topology, space, options, samples);
  const std::vector<std::size_t> order = spread(outer.size());
  for (std::size_t first = 0, end = 0; first < order.size(); first = end) {
    end = std::min(order.size(), std::max(kFirstBatch, 2 * first));
    const Sizes known = sizes;
    Limits limits{.best = best.limit(),
                  .too_big = too_big.slowest(),
                  .fits = result.counts.feasible > 0,
                  .sizes = &known};
    if (result.smallest_too_big) limits.smallest = result.smallest_too_big->device;
    on_threads(workers.size(), first, end, [&](std::size_t thread, std::size_t i) {
      workers[thread].run(outer[order[i]], limits, parts[i]);
      if (options.progress) options.progress(static_cast<double>(++done) / static_cast<double>(outer.size()));
    });
    for (std::size_t i = first; i < end; ++i) {
      Partial& p = parts[i];
      result.counts += p.counts;
      for (const Candidate& c : std::move(p.best).sorted()) best.add(c);
      for (const Candidate& c : std::move(p.risky).sorted()) risky.add(c);
      for (const Candidate& c : std::move(p.too_big).sorted()) too_big.add(c);
      for (const Candidate& c : p.pareto.front()) pareto.add(c);
      for (const auto& [kind, c] : p.by_kind) keep_faster(result.by_kind, kind, c);
      for (const auto& [degrees, c] : p.by_degrees) keep_faster(result.by_degrees, degrees, c);
      for (const auto& [nodes, c] : p.sizes.all()) sizes.add(nodes, c);
      if (p.smallest) keep_smaller(result.smallest_too_big, *p.smallest);
    }
  }
  for (const Candidate& c : pareto.front()) {
    if (c.estimate.step <= best.limit()) result.pareto.push_back(c);
  }
  const auto slow = [&](const auto& of) { return of.second.ranked > best.limit(); };
  std::erase_if(result.by_kind, slow);
  std::erase_if(result.by_degrees, slow);
  if (result.counts.feasible > 0) result.smallest_too_big.reset();
  if (result.smallest_too_big)
    result.smallest_too_big->estimate =
        sim::Estimator(problem, topology, samples).estimate(result.smallest_too_big->plan);
  result.by_nodes = sizes.all();
  result.best = std::move(best).sorted();
  result.risky = std::move(risky).sorted();
  if (tries_some_layers(problem)) {
    sim::Estimator estimator(problem, topology, samples);
    const Recomputed recomputed(problem, estimator);
    if (options.by_nodes)
      for (auto& [nodes, c] : result.by_nodes) recomputed.choose(c);
    else
      recomputed.choose(result.best);
  }
  if (result.best.empty()) result.best = most_probable(problem, result);
  result.too_big = std::move(too_big).sorted();
  result.counts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace orrery::planner
