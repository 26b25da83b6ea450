// SPDX-License-Identifier: Apache-2.0
#include "planner/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace orrery::planner {

using sim::PassModel;

std::string serving_name(const Plan& p) {
  std::string out = fmt::format("TP{}", p.tp);
  if (p.pp > 1) out += fmt::format(" PP{}", p.pp);
  if (p.ep > 1) out += fmt::format(" EP{}", p.ep);
  return out;
}

ServingSteady steady(const PassModel& passes, const Serving& s, std::int64_t sequences) {
  const auto b = static_cast<double>(sequences), in = static_cast<double>(s.input_tokens),
             out = static_cast<double>(s.output_tokens);
  const double context = in + out / 2;
  const std::int64_t beside = std::max<std::int64_t>(1, s.pass_tokens - sequences);
  const std::int64_t parts = (s.input_tokens + beside - 1) / beside;
  const sim::PromptPart part{(s.input_tokens + parts - 1) / parts, 0};
  const double decode = seconds(passes.decode(sequences, context));
  const double mixed = seconds(passes.time({sequences, context, {&part, 1}}));
  const double prompts = std::min(b * in / out, static_cast<double>(beside));
  ServingSteady r;
  r.tpot_s = decode + (mixed - decode) * prompts / static_cast<double>(part.tokens);
  r.ttft_s = r.tpot_s / 2 + static_cast<double>(parts) * mixed;
  r.requests_per_s =
      std::min(b / (r.ttft_s + (out - 1) * r.tpot_s), static_cast<double>(beside) / (in * r.tpot_s));
  return r;
}

namespace {

// Of prefills' time, what they are used: beyond, requests wait for long.
constexpr double kPrefillUse = 0.7;
constexpr std::int64_t kMostSequences = 4096;
constexpr std::int64_t kMostPlans = 2000;  // each takes a few compiled passes

std::vector<std::int64_t> powers_up_to(std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t n = 1; n <= most; n *= 2) out.push_back(n);
  return out;
}
std::vector<std::int64_t> listed_or(const std::vector<std::int64_t>& listed,
                                    std::vector<std::int64_t> other) {
  return listed.empty() ? std::move(other) : listed;
}

// Numbers of sequences to try: as many as there is room for, in steps of a third or a half.
std::vector<std::int64_t> batches(const Search& search, std::int64_t most) {
  std::vector<std::int64_t> out;
  if (!search.micro_batch.empty()) {
    for (const std::int64_t n : search.micro_batch) {
      if (n <= most) out.push_back(n);
    }
    return out;
  }
  for (std::int64_t n = 1; n <= most; n *= 2) {
    out.push_back(n);
    if (n >= 4 && n + n / 2 <= most) out.push_back(n + n / 2);
  }
  return out;
}

class ServingSearch {
 public:
  ServingSearch(const Problem& problem, const Serving& serving, const ServeOptions& options)
      : problem_(problem), serving_(serving), options_(options), topology_(problem.cluster) {
    const auto all = serving.requests.empty() ? sim::draw_requests(serving, 0, options.requests, options.seed)
                                              : sim::listed_requests(serving, 1);
    for (const sim::Request& r : all) longest_ = std::max(longest_, r.input + r.output);
  }

  ServingAnswer run() {
    const std::vector<Plan> plans = all_plans();
    answer_.considered = std::ssize(plans);
    if (answer_.considered > kMostPlans)
      problem_.at.child("search").fail(
          fmt::format("{} plans to serve", plans.size()),
          fmt::format("allowed: {}; shorter lists of tp, pp and ep", kMostPlans));
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (options_.progress)
        options_.progress("pricing plans", static_cast<double>(i) / static_cast<double>(plans.size()));
      consider(plans[i]);
    }
    if (serving_.disaggregated.value_or(true) && serving_.requests.empty()) pair_up();
    if (serving_.disaggregated.value_or(false))
      std::erase_if(answer_.plans, [](const ServedPlan& p) { return !p.prefill; });
    std::stable_sort(answer_.plans.begin(), answer_.plans.end(),
                     [&](const ServedPlan& a, const ServedPlan& b) { return better(a, b); });
    for (std::size_t i = 0; i < std::min(options_.top, answer_.plans.size()); ++i) {
      if (options_.progress)
        options_.progress("simulating requests", static_cast<double>(i) / static_cast<double>(options_.top));
      answer_.plans[i].run = simulate(answer_.plans[i]);
    }
    return std::move(answer_);
  }

 private:
  // A plan of an instance with what its passes take.
  struct Candidate {
    Plan plan;
    std::unique_ptr<PassModel> passes;
    sim::ServedMemory memory;
    std::int64_t most = 0;  // sequences of a lane that there is memory for
  };

  const Model& model() const { return problem_.scenario.model; }
  std::int64_t devices() const { return problem_.cluster.devices(); }

  std::vector<Plan> all_plans() const {
    const Search& s = problem_.scenario.search;
    const bool sparse = !experts_of(model()).empty();
    const std::vector<std::int64_t> in_node = powers_up_to(problem_.cluster.scale_up_domain());
    std::vector<Plan> out;
    for (const std::int64_t tp : listed_or(s.tp, in_node)) {
      for (const std::int64_t pp : listed_or(s.pp, powers_up_to(std::min<std::int64_t>(8, model().layers)))) {
        for (const std::int64_t ep :
             listed_or(s.ep, sparse ? powers_up_to(std::min<std::int64_t>(64, devices()))
                                    : std::vector<std::int64_t>{1})) {
          Plan p{.tp = tp, .pp = pp, .dp = ep, .ep = ep, .schedule = Schedule::kGPipe};
          if (p.ranks() <= devices()) out.push_back(p);
        }
      }
    }
    return out;
  }

  void refuse(const Plan& plan, std::string why) { answer_.others.push_back({plan, std::move(why)}); }

  // Bytes of a rank that are left for caches.
  double free_bytes(const sim::ServedMemory& m) const {
    return serving_.memory_share * static_cast<double>(m.device) -
           static_cast<double>(m.weights + m.workspace + m.overhead);
  }

  std::optional<Candidate> candidate(const Plan& plan) {
    try {
      // Whatever the number of sequences: a plan that shares what the model has evenly.
      Training any = problem_.scenario.training;
      any.math = Math::kBf16;
      any.global_batch = plan.dp;
      program::check_plan(model(), plan, any, Cursor{"plan", ""});
    } catch (const InputError& e) {
      refuse(plan, e.what());
      return std::nullopt;
    }
    Candidate c{
        plan, std::make_unique<PassModel>(problem_, topology_, plan, bytes_of(serving_.cache)), {}, 0};
    c.memory = c.passes->memory(std::min(serving_.pass_tokens, longest_pass()), 1);
    const double each =
        static_cast<double>(c.passes->cache_bytes(serving_.input_tokens + serving_.output_tokens));
    const double room = free_bytes(c.memory);
    // The lanes of a pipeline share the memory of its stages.
    const double fits = room / (each * static_cast<double>(plan.pp));
    c.most = fits < 1 ? 0 : std::min<std::int64_t>(kMostSequences, static_cast<std::int64_t>(fits));
    if (c.most == 0) {
      refuse(plan,
             fmt::format("a device needs {} for weights and passes and {} for the cache of one sequence, of "
                         "{:.0f} % of {}",
                         format(Bytes{c.memory.weights + c.memory.workspace + c.memory.overhead}),
                         format(Bytes{static_cast<std::int64_t>(each)}), 100 * serving_.memory_share,
                         format(Bytes{c.memory.device})));
      return std::nullopt;
    }
    const auto longest = static_cast<double>(c.passes->cache_bytes(longest_) * plan.pp);
    if (room < longest) {
      refuse(plan,
             fmt::format(
                 "the cache of the longest request, {} tokens with its answer, takes {}, and {} are left",
                 longest_, format(Bytes{static_cast<std::int64_t>(longest)}),
                 format(Bytes{static_cast<std::int64_t>(room)})));
      return std::nullopt;
    }
    return c;
  }
  std::int64_t longest_pass() const { return std::max<std::int64_t>(serving_.input_tokens, 256); }

  // The bound that is not kept; empty when both are.
  std::string broken(const ServingSteady& s) const {
    if (serving_.ttft && s.ttft_s > seconds(*serving_.ttft))
      return fmt::format("ttft {} of {}", format(from_seconds(s.ttft_s)), format(*serving_.ttft));
    if (serving_.tpot && s.tpot_s > seconds(*serving_.tpot))
      return fmt::format("tpot {} of {}", format(from_seconds(s.tpot_s)), format(*serving_.tpot));
    return {};
  }

  void consider(const Plan& plan) {
    std::optional<Candidate> c = candidate(plan);
    if (!c) return;
    const std::int64_t instances = devices() / plan.ranks();
    const double lanes = static_cast<double>(c->passes->lanes());
    std::optional<ServedPlan> best;
    std::string closest;
    std::int64_t most = c->most;
    if (serving_.concurrency) {
      const std::int64_t all = instances * c->passes->lanes();
      most = std::min(most, (*serving_.concurrency + all - 1) / all);
    }
    for (const std::int64_t b :
         serving_.concurrency ? std::vector<std::int64_t>{most} : batches(problem_.scenario.search, most)) {
      const ServingSteady s = steady(*c->passes, serving_, b);
      if (const std::string why = broken(s); !why.empty()) {
        if (closest.empty()) closest = fmt::format("with {} sequences {}", b, why);
        continue;
      }
      ServedPlan p;
      p.pool = {plan, instances, b};
      p.steady = s;
      p.requests_per_s = s.requests_per_s * lanes * static_cast<double>(instances);
      if (best && best->requests_per_s >= p.requests_per_s) continue;
      p.memory = c->memory;
      describe_cache(*c->passes, p);
      best = p;
    }
    if (!best) return refuse(plan, closest);
    if (!take_load(*best))
      refuse(plan, fmt::format("serves {:.3g} requests/s of {:.3g} on {} devices", best->requests_per_s,
                               *serving_.requests_per_s, best->devices()));
    else
      answer_.plans.push_back(*best);
    candidates_.push_back(std::move(*c));
  }

  void describe_cache(const PassModel& passes, ServedPlan& p) const {
    const std::int64_t tokens = serving_.input_tokens + serving_.output_tokens;
    p.cache_bytes = p.pool.sequences * p.pool.plan.pp * passes.cache_bytes(tokens);
    p.cache_per_token = passes.cache_bytes(tokens) / tokens;
  }

  // As many instances as the rate needs; false where there are not so many.
  bool take_load(ServedPlan& p) const {
    p.offered_per_s = p.requests_per_s;
    if (!serving_.requests_per_s) return true;
    const double of_one = p.requests_per_s / static_cast<double>(p.pool.instances);
    const auto needed = static_cast<std::int64_t>(std::ceil(*serving_.requests_per_s / of_one));
    if (needed > p.pool.instances) return false;
    p.pool.instances = needed;
    p.requests_per_s = of_one * static_cast<double>(needed);
    p.offered_per_s = *serving_.requests_per_s;
    return true;
  }

  // Cheaper for what is asked for: fewer devices for a rate; else more for each device.
  bool better(const ServedPlan& a, const ServedPlan& b) const {
    if (serving_.requests_per_s && a.devices() != b.devices()) return a.devices() < b.devices();
    const double x = a.output_tokens_per_device_s(serving_), y = b.output_tokens_per_device_s(serving_);
    if (x != y) return x > y;
    return a.steady.tpot_s < b.steady.tpot_s;
  }

  // --- prefills and decodes apart -----------------------------------------------------------------
  double transfer_s(const Candidate& from, const Candidate& to, std::int64_t tokens) const {
    const std::int64_t width = std::min(from.plan.tp, to.plan.tp);
    const Plan pair{.tp = width, .pp = 2, .schedule = Schedule::kGPipe};
    if (pair.ranks() > devices()) return 0;
    const std::int64_t bytes = std::max(from.passes->cache_bytes(tokens), to.passes->cache_bytes(tokens));
    // Ranks of the two pools are as far apart as neighbouring instances.
    const std::int64_t apart = std::max(from.plan.ranks(), to.plan.ranks());
    const std::int64_t stride = 2 * apart <= devices() ? apart : width;
    return seconds(
        sim::transfer_cost(Bytes{bytes}, topology_.pairs(stride, 2, 2 * stride), problem_.cluster));
  }

  void pair_up() {
    for (const Candidate& prefill : candidates_) {
      if (prefill.plan.pp > 1)
        continue;  // a prompt passes all stages: tensor ranks shorten it, stages do not
      for (const Candidate& decode : candidates_) {
        if (auto p = paired(prefill, decode)) answer_.plans.push_back(*p);
      }
    }
  }

  std::optional<ServedPlan> paired(const Candidate& prefill, const Candidate& decode) const {
    const double out = static_cast<double>(serving_.output_tokens);
    if (serving_.output_tokens < 2 || serving_.concurrency) return std::nullopt;
    const double f = seconds(prefill.passes->prefill(serving_.input_tokens));
    const double ttft = f + f * kPrefillUse / (2 * (1 - kPrefillUse));
    const double context = static_cast<double>(serving_.input_tokens) + out / 2;
    const double transfer = transfer_s(prefill, decode, serving_.input_tokens);
    const double prompts = kPrefillUse / f * static_cast<double>(prefill.passes->lanes());  // of an instance
    std::optional<ServedPlan> best;
    for (const std::int64_t b : batches(problem_.scenario.search, decode.most)) {
      const double d = seconds(decode.passes->decode(b, context));
      ServedPlan p;
      p.steady = {ttft, d + transfer / (out - 1), static_cast<double>(b) / (transfer + (out - 1) * d)};
      if (!broken(p.steady).empty()) continue;
      const double answers = p.steady.requests_per_s * static_cast<double>(decode.passes->lanes());
      p.pool = {decode.plan, 0, b};
      p.prefill = ServingPool{prefill.plan, 0, 1};
      if (!share_devices(p, prompts, answers)) continue;
      if (best && !better(p, *best)) continue;
      p.memory = decode.memory;
      p.transfer_s = transfer;
      describe_cache(*decode.passes, p);
      best = p;
    }
    return best;
  }

  // How many instances of each: for a rate as many as it needs, else those that serve most with each device.
  bool share_devices(ServedPlan& p, double prompts, double answers) const {
    const auto up = [](double x) { return static_cast<std::int64_t>(std::ceil(x - 1e-9)); };
    const auto set = [&](std::int64_t x, std::int64_t y) {
      p.prefill->instances = x;
      p.pool.instances = y;
      p.requests_per_s = std::min(static_cast<double>(x) * prompts, static_cast<double>(y) * answers);
      return p.devices() <= devices();
    };
    if (serving_.requests_per_s) {
      p.offered_per_s = *serving_.requests_per_s;
      const double x = *serving_.requests_per_s / prompts, y = *serving_.requests_per_s / answers;
      if (x + y > static_cast<double>(devices())) return false;
      return set(up(x), up(y));
    }
    double best = 0;
    std::int64_t best_x = 0, best_y = 0;
    const std::int64_t most = devices() / p.prefill->plan.ranks();
    for (std::int64_t x = 1; x <= std::min<std::int64_t>(most, 64); ++x) {
      const std::int64_t rest = devices() - x * p.prefill->plan.ranks();
      const std::int64_t y =
          std::min<std::int64_t>(rest / p.pool.plan.ranks(), up(static_cast<double>(x) * prompts / answers));
      if (y < 1 || !set(x, y)) continue;
      const double each = p.requests_per_s / static_cast<double>(p.devices());
      if (each <= best) continue;
      best = each;
      best_x = x;
      best_y = y;
    }
    if (best == 0) return false;
    set(best_x, best_y);
    p.offered_per_s = p.requests_per_s;
    return true;
  }

  // --- request by request -------------------------------------------------------------------------
  const Candidate& candidate_of(const Plan& plan) const {
    return *std::find_if(candidates_.begin(), candidates_.end(),
                         [&](const Candidate& c) { return c.plan == plan; });
  }
  sim::LaneLimits limits_of(const Candidate& c, std::int64_t sequences) const {
    return {sequences, serving_.pass_tokens, free_bytes(c.memory) / static_cast<double>(c.plan.pp)};
  }

  ServingRun simulate(const ServedPlan& p) const {
    const Candidate& decode = candidate_of(p.pool.plan);
    const std::int64_t lanes = p.pool.instances * decode.passes->lanes();
    if (p.prefill) {
      const Candidate& prefill = candidate_of(p.prefill->plan);
      const sim::Pools pools{
          .prefill_costs = sim::costs_of(*prefill.passes),
          .decode_costs = sim::costs_of(*decode.passes),
          .prefill = limits_of(prefill, kMostSequences),
          .decode = limits_of(decode, p.pool.sequences),
          .prefill_lanes = p.prefill->instances * prefill.passes->lanes(),
          .decode_lanes = lanes,
          .transfer = [&](std::int64_t tokens) { return transfer_s(prefill, decode, tokens); }};
      const auto requests = sim::draw_requests(serving_, load(p), options_.requests, options_.seed);
      return summary(p, sim::serve_in_pools(pools, requests), 1,
                     static_cast<double>(lanes + pools.prefill_lanes));
    }
    const auto costs = sim::costs_of(*decode.passes);
    const sim::LaneLimits limits = limits_of(decode, p.pool.sequences);
    const double of_all = static_cast<double>(lanes);
    if (!serving_.requests.empty())
      return summary(p, sim::serve(costs, limits, sim::listed_requests(serving_, lanes)), of_all, 1);
    if (serving_.requests_per_s) {
      const auto requests = sim::draw_requests(serving_, load(p) / of_all, options_.requests, options_.seed);
      return summary(p, sim::serve(costs, limits, requests), of_all, 1);
    }
    const auto requests = sim::draw_requests(serving_, 0, options_.requests, options_.seed);
    return summary(p, sim::serve(costs, limits, requests, p.pool.sequences), of_all, 1);
  }
  double load(const ServedPlan& p) const { return p.offered_per_s; }

  // `copies`: lanes that do the same as those that were simulated, which have `simulated` lanes.
  ServingRun summary(const ServedPlan&, const sim::LaneRun& run, double copies, double simulated) const {
    ServingRun out;
    std::vector<double> ttft, tpot;
    double tokens = 0, within = 0;
    for (const sim::Served& s : run.requests) {
      ttft.push_back(s.ttft);
      if (s.tpot >= 0) tpot.push_back(s.tpot);
      tokens += static_cast<double>(s.output);
      const bool first = !serving_.ttft || s.ttft <= seconds(*serving_.ttft);
      const bool others = !serving_.tpot || s.tpot <= seconds(*serving_.tpot);
      within += first && others ? 1 : 0;
    }
    const auto describe = [](const std::vector<double>& values, double(&to)[4]) {
      double sum = 0;
      for (const double v : values) sum += v;
      to[0] = values.empty() ? 0 : sum / static_cast<double>(values.size());
      for (std::size_t i = 0; i < 3; ++i) to[i + 1] = sim::percentile(values, kServingPercentiles[i]);
    };
    const auto n = static_cast<double>(run.requests.size());
    out.requests = std::ssize(run.requests);
    describe(ttft, out.ttft_s);
    describe(tpot, out.tpot_s);
    out.within = within / n;
    out.requests_per_s = copies * n / run.ended;
    out.output_tokens_per_s = copies * tokens / run.ended;
    out.mean_batch = run.mean_batch;
    out.busy = run.busy / (run.ended * simulated);
    return out;
  }

  const Problem& problem_;
  const Serving& serving_;
  const ServeOptions& options_;
  const sim::Topology topology_;
  std::int64_t longest_ = 1;  // tokens of a request that is simulated, with its answer
  std::vector<Candidate> candidates_;
  ServingAnswer answer_;
};

}  // namespace

ServingAnswer serve(const Problem& problem, const Serving& serving, const ServeOptions& options) {
  if (const std::string why = program::serving_problem(problem.scenario.model, Plan{}); !why.empty())
    problem.at.child("model").fail(why);
  if (const std::string why = program::adapter_problem(problem.scenario.model, problem.scenario.training);
      !why.empty())
    problem.at.child("training").child("adapter").fail(why);
  return ServingSearch(problem, serving, options).run();
}

}  // namespace orrery::planner
