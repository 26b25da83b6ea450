// SPDX-License-Identifier: Apache-2.0
//
// orrery serve: plans that serve a model within bounds on the time to the first token and on each other
// token.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/progress.h"
#include "core/text.h"
#include "planner/serve.h"

namespace orrery::cli {
namespace {

struct ServeAsked {
  std::string file;
  std::size_t top = 5;
  std::int64_t requests = 1000, seed = 1;
};

// A scenario that only serves needs no training.
Problem load(const ServeAsked& o, const App& app) {
  Json json = load_json(o.file);
  const Cursor at{o.file, ""};
  if (json.is_object() && json.contains("serving") && !json.contains("training"))
    json["training"] = {{"global_batch", 1}, {"sequence", 1}};
  Scenario scenario = read_scenario(json, at);
  if (!scenario.serving)
    at.child("serving").fail("is missing", "allowed: an object; {} serves with defaults");
  const Serving& s = *scenario.serving;
  if (s.requests_per_s && s.concurrency)
    at.child("serving")
        .child("concurrency")
        .fail("requests arrive at a rate too (requests_per_s)", "allowed: one of them");
  if (!s.requests.empty() && (s.requests_per_s || s.concurrency))
    at.child("serving")
        .child("requests")
        .fail("requests arrive at a rate, or so many at a time, too", "allowed: one of them");
  if (s.disaggregated.value_or(false)) {
    if (s.concurrency)
      at.child("serving")
          .child("concurrency")
          .fail("prefills and decodes apart are planned for a rate", "allowed: requests_per_s");
    if (!s.requests.empty())
      at.child("serving")
          .child("requests")
          .fail("prefills and decodes apart are simulated at a rate", "allowed: requests_per_s");
  }
  Stack stack = sim::load_serving_stack(s.stack, at.child("serving").child("stack"), app.data);
  const Serving serving = s;
  Problem problem =
      sim::served_problem(resolve(std::move(scenario), at, app.data), serving, std::move(stack));
  for (std::size_t i = 0; i < problem.cluster.types(); ++i) {
    const Device& d = problem.devices[i];
    if (serving.weights == ServedFormat::kFp8 && d.fp8 == FlopRate{0})
      at.child("serving").child("weights").fail(fmt::format("\"{}\" has no products of 8-bit floats", d.name),
                                                "allowed: bf16");
  }
  return problem;
}

double milliseconds(double s) {
  return 1e3 * s;
}

std::string name_of_plan(const planner::ServedPlan& p) {
  const auto pool = [](const planner::ServingPool& of) {
    return fmt::format("{} x {}", of.instances, planner::serving_name(of.plan));
  };
  return p.prefill ? fmt::format("{} prefill + {} decode", pool(*p.prefill), pool(p.pool)) : pool(p.pool);
}

// Dollars of a million answered tokens: of the devices that the plan uses, at the price of their nodes.
double dollars_per_million(const Problem& problem, const Serving& s, const planner::ServedPlan& p) {
  const double hour = problem.cluster.dollars_per_hour(problem.cluster.nodes) /
                      static_cast<double>(problem.cluster.devices()) * static_cast<double>(p.devices());
  const double served = std::min(p.offered_per_s, p.requests_per_s) * static_cast<double>(s.output_tokens);
  return hour / 3600 / served * 1e6;
}

Json pool_json(const planner::ServingPool& p) {
  return {{"plan", planner::serving_name(p.plan)},
          {"tp", p.plan.tp},
          {"pp", p.plan.pp},
          {"ep", p.plan.ep},
          {"instances", p.instances},
          {"devices", p.devices()},
          {"sequences", p.sequences}};
}

Json run_json(const planner::ServingRun& r) {
  const auto spread = [](const double(&v)[4]) {
    return Json{{"mean", v[0]}, {"p50", v[1]}, {"p95", v[2]}, {"p99", v[3]}};
  };
  return {{"requests", r.requests},
          {"ttft_s", spread(r.ttft_s)},
          {"tpot_s", spread(r.tpot_s)},
          {"within_bounds", r.within},
          {"requests_per_s", r.requests_per_s},
          {"goodput_per_s", r.within * r.requests_per_s},
          {"output_tokens_per_s", r.output_tokens_per_s},
          {"mean_batch", r.mean_batch},
          {"busy", r.busy}};
}

Json to_json(const Problem& problem, const Serving& s, const planner::ServingAnswer& a) {
  Json out = {{"schema", "orrery.serving/1"},
              {"scenario", problem.scenario.name},
              {"model", problem.scenario.model.name},
              {"cluster", problem.cluster.name},
              {"device", problem.device_names()},
              {"stack", problem.stack.name},
              {"considered", a.considered}};
  out["plans"] = out["others"] = Json::array();
  for (const planner::ServedPlan& p : a.plans) {
    Json j = {{"name", name_of_plan(p)},
              {"decode", pool_json(p.pool)},
              {"prefill", p.prefill ? pool_json(*p.prefill) : Json()},
              {"devices", p.devices()},
              {"steady", {{"ttft_s", p.steady.ttft_s}, {"tpot_s", p.steady.tpot_s}}},
              {"most_requests_per_s", p.requests_per_s},
              {"output_tokens_per_device_s", p.output_tokens_per_device_s(s)},
              {"transfer_s", p.transfer_s},
              {"simulated", p.run ? run_json(*p.run) : Json()}};
    j["memory"] = {{"device_bytes", p.memory.device},       {"weights_bytes", p.memory.weights},
                   {"workspace_bytes", p.memory.workspace}, {"overhead_bytes", p.memory.overhead},
                   {"cache_bytes", p.cache_bytes},          {"cache_bytes_per_token", p.cache_per_token}};
    const double usd = dollars_per_million(problem, s, p);
    j["usd_per_million_output_tokens"] = usd > 0 ? Json(usd) : Json();
    out["plans"].push_back(std::move(j));
  }
  for (const planner::Unserved& u : a.others)
    out["others"].push_back({{"plan", planner::serving_name(u.plan)}, {"why", u.why}});
  return out;
}

void print_plan(const Problem& problem, const Serving& s, std::size_t rank, const planner::ServedPlan& p) {
  const double usd = dollars_per_million(problem, s, p);
  fmt::print(
      "{:>3} {:<44} {:>5} {:>6} {:>9.0f} {:>8.2f} {:>9.2f} {:>9.1f} {:>8.1f} {:>8}\n", rank, name_of_plan(p),
      p.devices(), p.pool.sequences, milliseconds(p.steady.ttft_s), milliseconds(p.steady.tpot_s),
      p.requests_per_s, p.output_tokens_per_device_s(s),
      static_cast<double>(p.memory.weights + p.memory.workspace + p.memory.overhead + p.cache_bytes) / kGiB,
      usd > 0 ? fmt::format("{:.2f}", usd) : "-");
}

void print_runs(const Serving& s, const planner::ServingAnswer& a) {
  constexpr const char* kHeads[] = {"p50",   "p95",   "p99",   "p50",   "p95",       "p99",
                                    "req/s", "tok/s", "batch", "busy%", "in bounds%"};
  fmt::print("\nsimulated request by request, ms: ttft{:>37}\n{:>15}", "tpot", "");
  for (const char* head : kHeads) fmt::print(" {:>9}", head);
  fmt::print("\n");
  for (std::size_t i = 0; i < a.plans.size() && a.plans[i].run; ++i) {
    const planner::ServingRun& r = *a.plans[i].run;
    fmt::print("{:>3} {:<11}", i + 1, fmt::format("{} requests", r.requests));
    for (std::size_t p = 1; p <= 3; ++p) fmt::print(" {:>9.0f}", milliseconds(r.ttft_s[p]));
    for (std::size_t p = 1; p <= 3; ++p) fmt::print(" {:>9.2f}", milliseconds(r.tpot_s[p]));
    fmt::print(" {:>9.2f} {:>9.0f} {:>9.1f} {:>9.0f} {:>10.1f}\n", r.requests_per_s, r.output_tokens_per_s,
               r.mean_batch, 100 * r.busy, 100 * r.within);
    if (r.within < s.percentile && (s.ttft || s.tpot))
      fmt::print("    fewer than {:.0f} % of its requests keep to the bounds\n", 100 * s.percentile);
  }
}

// The reasons, each once, with the plans that it stops.
void print_others(const planner::ServingAnswer& a) {
  if (a.others.empty()) return;
  constexpr std::size_t kShown = 12;
  fmt::print("\nplans that do not serve it\n");
  for (std::size_t i = 0; i < std::min(kShown, a.others.size()); ++i)
    fmt::print("  {:<16} {}\n", planner::serving_name(a.others[i].plan), printable(a.others[i].why));
  if (a.others.size() > kShown) fmt::print("  and {} others (--json has all)\n", a.others.size() - kShown);
}

std::string served_load_text(const Serving& s) {
  if (!s.requests.empty()) return fmt::format("{} listed requests", s.requests.size());
  if (s.requests_per_s) return fmt::format("{:g} requests/s", *s.requests_per_s);
  if (s.concurrency) return fmt::format("{} requests at a time", *s.concurrency);
  return "as many requests as it serves";
}

void print_text(const Problem& problem, const Serving& s, const planner::ServingAnswer& a,
                const ServeAsked& o) {
  fmt::print("{}: {} on {} x {} ({}), stack {}, weights {}, cache {}\n{} tokens and an answer of {}, {}",
             printable(problem.scenario.name.empty() ? problem.scenario.model.name : problem.scenario.name),
             printable(problem.scenario.model.name), problem.cluster.nodes, printable(problem.cluster.name),
             printable(problem.counted_devices()), printable(problem.stack.name), name_of(s.weights),
             name_of(s.cache), s.input_tokens, s.output_tokens, served_load_text(s));
  if (s.ttft) fmt::print(", ttft up to {}", format(*s.ttft));
  if (s.tpot) fmt::print(", tpot up to {}", format(*s.tpot));
  fmt::print("; {} plans of an instance considered, {} ways serve it\n", a.considered, a.plans.size());
  if (!a.plans.empty()) {
    fmt::print("\n{:>3} {:<44} {:>5} {:>6} {:>9} {:>8} {:>9} {:>9} {:>8} {:>8}\n", "", "plan", "GPUs",
               "batch", "ttft ms", "tpot ms", "req/s", "tok/s/GPU", "GiB", "$/Mtok");
    for (std::size_t i = 0; i < std::min(o.top, a.plans.size()); ++i)
      print_plan(problem, s, i + 1, a.plans[i]);
    const planner::ServedPlan& best = a.plans.front();
    fmt::print(
        "\nmemory of a device of the first: weights {}, cache {} ({} for a token), workspace {}, software "
        "{}, "
        "of {:.0f} % of {}\n",
        format(Bytes{best.memory.weights}), format(Bytes{best.cache_bytes}),
        format(Bytes{best.cache_per_token}), format(Bytes{best.memory.workspace}),
        format(Bytes{best.memory.overhead}), 100 * s.memory_share, format(Bytes{best.memory.device}));
    if (best.prefill)
      fmt::print("a prompt's cache takes {} to the device that decodes\n",
                 format(from_seconds(best.transfer_s)));
    print_runs(s, a);
  }
  print_others(a);
}

void execute(App& app, const ServeAsked& o) {
  const Problem problem = load(o, app);
  const Serving serving = *problem.scenario.serving;
  planner::ServeOptions options{
      .top = o.top, .requests = o.requests, .seed = static_cast<std::uint64_t>(o.seed)};
  std::optional<Progress> progress(std::in_place, "pricing plans");
  options.progress = [&](const char* phase, double share) { (*progress)(phase, share); };
  planner::ServingAnswer answer;
  try {
    answer = planner::serve(problem, serving, options);
  } catch (const InputError&) {
    throw;
  } catch (const Error& e) {
    problem.at.child("serving").fail(e.what(), "allowed: shorter answers, or fewer requests (--requests)");
  }
  progress.reset();
  if (app.json)
    print_json(to_json(problem, serving, answer));
  else
    print_text(problem, serving, answer, o);
  if (answer.plans.empty()) app.exit = ExitCode::kNoPlanFits;
}

}  // namespace

void add_serve(CLI::App& parent, App& app) {
  CLI::App* command =
      subcommand(parent, app, "serve",
                 "plans that serve a model: time to the first token and of the others, cache, price");
  auto o = std::make_shared<ServeAsked>();
  command->add_option("scenario", o->file, "a scenario with an object \"serving\"")->required();
  command->add_option("--top", o->top, "plans to show and to simulate request by request")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("--requests", o->requests, "simulated requests of each plan, of one lane")
      ->check(CLI::Range(std::int64_t{10}, std::int64_t{100'000}))
      ->capture_default_str();
  command->add_option("--seed", o->seed, "of arrivals and lengths")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
