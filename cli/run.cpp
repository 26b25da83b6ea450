// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iostream>

#include "cli/commands.h"
#include "exec/run.h"

namespace orrery::cli {
namespace {

struct Options {
  std::string plan, trace;
  std::int64_t steps = 5, seed = 1, deadline_s = 120;
  double learning_rate = 3e-3;
};

void print_ranks(const program::Binding& b) {
  fmt::print("{:>4} {:>4} {:>4} {:>4}\n", "rank", "tp", "dp", "pp");
  for (std::int64_t r = 0; r < b.ranks(); ++r) {
    const auto c = b.coordinates(r);
    fmt::print("{:>4} {:>4} {:>4} {:>4}\n", r, c.tp, c.dp, c.pp);
  }
}

void execute(App& app, const Options& o) {
  const Chosen chosen = load_plan_or_scenario(o.plan, app);
  const Scenario& s = chosen.problem.scenario;
  const Cursor at{o.plan, "/plan"};
  if (!chosen.problem.stack.executable) {
    at.fail(fmt::format("the stack \"{}\" can be predicted only", chosen.problem.stack.name),
            "allowed: orrery");
  }
  const auto program = program::compile(s.model, chosen.plan, s.training, chosen.problem.stack);
  if (const auto problem = exec::run_problem(program); !problem.empty()) at.fail(problem);
  if (!app.json) print_ranks(program.binding);
  exec::RunOptions options;
  options.steps = o.steps;
  options.seed = static_cast<std::uint64_t>(o.seed);
  options.learning_rate = static_cast<float>(o.learning_rate);
  options.deadline = std::chrono::seconds(o.deadline_s);
  const exec::RunResult r = exec::run(program, options);
  if (!o.trace.empty()) save_text(o.trace, to_chrome_trace(r.timeline));

  // The first step pays for warming up.
  double seconds_sum = 0;
  for (std::size_t i = r.steps.size() > 1 ? 1 : 0; i < r.steps.size(); ++i) seconds_sum += r.steps[i].seconds;
  const double per_step = seconds_sum / static_cast<double>(std::max<std::size_t>(1, r.steps.size() - 1));
  const double tokens_per_s = s.training.tokens_per_step() / per_step;
  if (app.json) {
    Json out = {{"schema", "orrery.run/1"},
                {"steps", Json::array()},
                {"tokens_per_s", tokens_per_s},
                {"memory", Json::object()}};
    for (const auto& step : r.steps)
      out["steps"].push_back(
          {{"loss", step.loss}, {"grad_norm", step.gradient_norm}, {"seconds", step.seconds}});
    for (std::size_t i = 0; i < r.arena_bytes.size(); ++i)
      out["memory"][std::to_string(i)] = {{"arena", r.arena_bytes[i]}};
    return print_json(out);
  }
  for (std::size_t i = 0; i < r.steps.size(); ++i) {
    fmt::print("step {:>3}  loss {:.6f}  gradient norm {:.4f}  {:>10}  {:>8.0f} tokens/s\n", i + 1,
               r.steps[i].loss, r.steps[i].gradient_norm, format(from_seconds(r.steps[i].seconds)),
               s.training.tokens_per_step() / r.steps[i].seconds);
  }
  std::int64_t most = 0;
  for (const std::int64_t b : r.arena_bytes) most = std::max(most, b);
  fmt::print("{} on {} thread ranks: {:.0f} tokens/s, arena of the fullest rank {}\n",
             short_name(chosen.plan), program.binding.ranks(), tokens_per_s, format(Bytes{most}));
  if (!o.trace.empty()) fmt::print("measured timeline: {}\n", o.trace);
}

}  // namespace

void add_run(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "run", "train a plan for real: ranks as threads on the CPU");
  auto o = std::make_shared<Options>();
  command->add_option("plan", o->plan, "plan or scenario file")->required();
  command->add_option("--steps", o->steps, "optimizer steps")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--seed", o->seed, "of weights and data")->capture_default_str();
  command->add_option("--learning-rate", o->learning_rate, "of AdamW")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command->add_option("--deadline", o->deadline_s, "seconds any rank may wait for another")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  command->add_option("--trace", o->trace, "write the measured timeline of the last step (Chrome JSON)");
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
