// SPDX-License-Identifier: Apache-2.0
#include "planner/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "planner/space.h"
#include "program/program.h"
#include "sim/estimate/samples.h"

namespace orrery::planner {
namespace {

// The front of smaller plans reaches to plans this much slower than the fastest.
constexpr double kFrontWindow = 1.25;
// One in so many outer combinations is searched first; their best bounds the others.
constexpr std::size_t kScouts = 8;
constexpr Time kNoLimit{std::numeric_limits<std::int64_t>::max()};

// A total order, so that merging does not depend on which thread found what.
std::tuple<std::int64_t, std::int64_t> rank_of(const Candidate& c) {
  return {c.estimate.step.value, c.device.value};
}

bool faster(const Candidate& a, const Candidate& b) {
  if (rank_of(a) != rank_of(b)) return rank_of(a) < rank_of(b);
  return canonical(a.plan) < canonical(b.plan);
}

// The `keep` fastest, as a heap whose top is the slowest kept.
class Fastest {
 public:
  explicit Fastest(std::size_t keep) : keep_(keep) {}
  // Nothing slower is wanted, neither here nor for the front.
  Time limit() const {
    if (heap_.size() < keep_) return kNoLimit;
    const auto window = static_cast<std::int64_t>(static_cast<double>(fastest_.value) * kFrontWindow);
    return std::max(heap_.front().estimate.step, Time{window});
  }
  void add(const Candidate& c) {
    fastest_ = std::min(fastest_, c.estimate.step);
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
  Time fastest_ = kNoLimit;
  std::vector<Candidate> heap_;
};

// Plans with no other both faster and smaller, sorted by time.
class Pareto {
 public:
  void add(const Candidate& c) {
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

struct Partial {
  explicit Partial(std::size_t keep) : best(keep), too_big(keep) {}
  SearchCounts counts;
  Fastest best, too_big;
  Pareto pareto;
  std::optional<Candidate> smallest;  // of those that are too big
};

void keep_smaller(std::optional<Candidate>& smallest, const Candidate& c) {
  if (!smallest || c.device < smallest->device || (c.device == smallest->device && faster(c, *smallest)))
    smallest = c;
}

class Worker {
 public:
  Worker(const Problem& problem, const sim::Topology& topology, const Space& space,
         const SearchOptions& options, Bytes capacity, std::shared_ptr<sim::Samples> samples)
      : space_(space),
        options_(options),
        capacity_(capacity),
        estimator_(problem, topology, std::move(samples)) {}

  // Plans slower than `limit` are not wanted.
  void run(const Space::Outer& outer, Time limit, Partial& into) {
    limit_ = limit;
    space_.visit(outer, into.counts.considered, into.counts.invalid,
                 [&](const Plan& plan) { consider(plan, into); });
  }

 private:
  void consider(const Plan& plan, Partial& into) {
    if (options_.bound && estimator_.lower_bound(plan) > std::min(limit_, into.best.limit())) {
      ++into.counts.bounded;
      return;
    }
    Candidate c;
    c.plan = plan;
    c.estimate = estimator_.estimate(plan);
    c.device = estimator_.device_bytes(plan, c.estimate.peak);
    ++into.counts.costed;
    if (c.device > capacity_) {
      ++into.counts.too_large;
      if (c.device <= capacity_ * 2) into.too_big.add(c);
      keep_smaller(into.smallest, c);
      return;
    }
    ++into.counts.feasible;
    into.best.add(c);
    into.pareto.add(c);
  }

  const Space& space_;
  const SearchOptions& options_;
  Bytes capacity_;
  Time limit_ = kNoLimit;
  sim::Estimator estimator_;
};

}  // namespace

SearchCounts& SearchCounts::operator+=(const SearchCounts& o) {
  considered += o.considered;
  invalid += o.invalid;
  too_large += o.too_large;
  bounded += o.bounded;
  costed += o.costed;
  feasible += o.feasible;
  return *this;
}

std::string plan_problem(const Problem& problem, const Plan& plan) {
  try {
    program::check_plan(problem.scenario.model, plan, problem.scenario.training, Cursor{"", "/plan"});
  } catch (const InputError& e) {
    return e.what();
  }
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
  result.capacity = Bytes{static_cast<std::int64_t>(static_cast<double>(problem.device.memory.value) *
                                                    (1 - problem.scenario.search.memory_margin))};

  // One partial result per outer combination, and a limit that only the scouts set: what is pruned never
  // depends on the threads.
  const auto& outer = space.outer();
  std::vector<Partial> parts(outer.size(), Partial(options.keep));
  std::atomic<std::size_t> done = 0;
  Fastest best(options.keep), too_big(options.keep);
  Pareto pareto;
  const auto samples =
      std::make_shared<sim::Samples>(problem.scenario.model, problem.scenario.training, problem.stack);
  for (const bool scouts : {true, false}) {
    const Time limit = best.limit();
    std::atomic<std::size_t> next = 0;
    std::exception_ptr failure;
    std::mutex failing;
    const auto try_work = [&] {
      Worker worker(problem, topology, space, options, result.capacity, samples);
      for (std::size_t i = next++; i < outer.size(); i = next++) {
        if ((i % kScouts == 0) != scouts) continue;
        worker.run(outer[i], limit, parts[i]);
        if (options.progress)
          options.progress(static_cast<double>(++done) / static_cast<double>(outer.size()));
      }
    };
    // What one thread finds wrong ends the search.
    const auto work = [&] {
      try {
        try_work();
      } catch (...) {
        const std::lock_guard lock(failing);
        failure = std::current_exception();
        next = outer.size();
      }
    };
    {
      std::vector<std::jthread> threads;
      for (int t = 1; t < options.threads; ++t) threads.emplace_back(work);
      work();
    }
    if (failure) std::rethrow_exception(failure);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if ((i % kScouts == 0) != scouts) continue;
      Partial& p = parts[i];
      result.counts += p.counts;
      for (const Candidate& c : std::move(p.best).sorted()) best.add(c);
      for (const Candidate& c : std::move(p.too_big).sorted()) too_big.add(c);
      for (const Candidate& c : p.pareto.front()) pareto.add(c);
      if (p.smallest) keep_smaller(result.smallest_too_big, *p.smallest);
    }
  }
  for (const Candidate& c : pareto.front()) {
    if (c.estimate.step <= best.limit()) result.pareto.push_back(c);
  }
  result.best = std::move(best).sorted();
  result.too_big = std::move(too_big).sorted();
  result.counts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace orrery::planner
