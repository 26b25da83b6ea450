// SPDX-License-Identifier: Apache-2.0
//
// From a scenario to ranked, explained plans: search under the estimate, then the event engine for the
// best, widening until no plan it has not run could win at the gap seen between the two for its kind.
#pragma once

#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "planner/evaluate.h"
#include "planner/search.h"

namespace orrery::planner {

// A plan of the same degrees as a better one (planner/families.h).
struct Variant {
  Plan plan;
  double step_time_s = 0;
};

struct Ranked {
  Plan plan;
  sim::Estimate estimate;
  Predicted predicted;
  // The step time that is exceeded with the probability that the scenario allows (planner/risk.h), by which
  // plans are ranked; infinite where the plan may well not fit.
  double pessimistic_s = 0;
  bool risky() const { return std::isinf(pessimistic_s); }
  std::vector<Variant> variants;  // of Answer::plans: others of its family that were simulated, fastest first
  std::string note;               // "the scenario's plan", a heuristic's name, or empty
  Bytes capacity;                 // of a device on the stage that fills its devices most, less the margin
  bool hosts_fit = true;          // what it keeps in the hosts' memory and on their drives
  bool fits() const { return hosts_fit && predicted.peak_memory_bytes <= capacity.value; }
};

// Why one would choose another plan than the fastest (planner/choices.h).
enum class Reason { kSafest, kSmallest, kSimplest };
constexpr auto enum_names(Reason) {
  return std::array{std::pair{Reason::kSafest, "safest"}, std::pair{Reason::kSmallest, "smallest"},
                    std::pair{Reason::kSimplest, "simplest"}};
}
struct Choice {
  std::vector<Reason> reasons;
  Ranked plan;
};

struct Rejected {
  Plan plan;
  std::string reason;      // "needs 93.1 GiB on stage 0, has 75.2 GiB", "fits with a probability of 64 %"
  double step_time_s = 0;  // it would take, did it fit; 0 for what is not searched or is no plan at all
};

struct Sensitivity {
  std::string change;      // "2x NIC bandwidth"
  double step_time_s = 0;  // of the best plan then
  double speedup = 1;
  Plan plan;
};

// What a number of nodes would do, by the estimate: the fastest plan that takes so many.
struct Size {
  std::int64_t nodes = 0;
  Plan plan;
  double step_time_s = 0;
  double days = 0, cost_usd = 0;  // of the run; zero as in Predicted
  double cost_per_step_usd = 0;
  double risk_factor = 1;  // by which its time is ranked (planner/risk.h)
  bool risky = false;      // it may well not fit
};

struct Answer {
  std::int64_t nodes = 0;  // of the cluster this answer is for
  // Where the goal has a deadline or a budget that no plan meets: that, and what comes nearest. `plans` are
  // then those that miss it. Empty otherwise.
  std::string unmet;
  // Where the goal is about cost: a size that is much faster for little more. Empty otherwise.
  std::string trade_off;
  std::vector<Size> sizes;  // where the goal is about cost or size, or they are asked for: fewest nodes first
  SearchResult search;
  std::vector<Plan> simulated;      // of the search's candidates
  double largest_gap = 0;           // |estimate / engine - 1| over the simulated plans
  std::map<PlanKind, double> gaps;  // the same by kind
  std::vector<Ranked> plans;        // the best of each family, best first
  std::vector<Choice> choices;      // plans that there are other reasons to choose
  std::vector<Ranked> alongside;    // the scenario's own plan and the rules of thumb
  std::vector<Rejected> rejected;
  std::vector<Sensitivity> sensitivity;
  std::vector<Plan> pareto;
  std::vector<std::string> why;  // sentences
};

struct PlanOptions {
  std::size_t top = 5;  // families
  int threads = 1;
  bool sizes = false;  // whatever the goal: Answer::sizes
  std::function<void(double)> progress;
};

// Goals: the objective decides the order of `plans`; deadline and budget filter. Where the scenario lists
// cluster sizes, each is planned and the best answer is returned; where it does not and its goal is about
// cost or size, every number of nodes up to the cluster's is searched, and the most promising are planned.
// Plans of the scenario and of rules of thumb that fit are ranked among the others. Empty `plans` when
// nothing fits or the search holds no plan.
Answer plan(const Problem& problem, const PlanOptions& options);
// Of a search without a plan that fits: a sentence.
std::string why_none(const Problem& problem, const SearchResult& r);

// Rules of thumb in circulation, as plans for this problem; those that are not valid plans carry why.
struct Heuristic {
  std::string name, rule;
  Plan plan;
  std::string problem;  // why it is no plan here, or empty
};
std::vector<Heuristic> heuristics(const Problem& problem);

// Learning rate and warm-up for the batch, from GPT-3's table (Brown et al. 2020, table 2.1) and
// square-root scaling with the batch: of Adam, so nothing for LAMB and SGD.
struct Advice {
  double learning_rate = 0, warm_up_tokens = 0;
  std::int64_t warm_up_steps = 0;
};
std::optional<Advice> learning_rate_advice(const Problem& problem);

// "trains 32.8 M of 69.0 G parameters (0.048 %): adapters of rank 16 on q, v; the matrices of layers are
// stored as nf4-dq". Of a scenario that trains adapters.
std::string words_of_adapter(const Scenario& s);

}  // namespace orrery::planner
