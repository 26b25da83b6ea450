// SPDX-License-Identifier: Apache-2.0
//
// orrery gradient-noise: how large a batch of a scenario's model may be before more samples hardly help.
#include "exec/gradient_noise.h"

#include <fmt/format.h>

#include <cmath>

#include "cli/commands.h"
#include "cli/weights.h"
#include "core/text.h"
#include "exec/data.h"

namespace orrery::cli {
namespace {

struct NoiseAsked {
  std::string file, data, checkpoints, weights;
  std::int64_t batch = 1, batches = 16, repeats = 4, seed = 1;
};

program::Program program_of(const Problem& problem, const NoiseAsked& o) {
  if (!problem.stack.executable)
    problem.at.child("stack").fail(fmt::format("the stack \"{}\" can be predicted only", problem.stack.name),
                                   "allowed: orrery");
  const Model& model = problem.scenario.model;
  Training training = problem.scenario.training;
  training.global_batch = o.batch;
  training.outer.reset();
  if (training.scales_loss())
    problem.at.child("training")
        .child("math")
        .fail("gradients of scaled losses are not compared", "allowed: what is not fp16");
  const Plan plan{.micro_batches = o.batch};
  program::check_plan(model, plan, training, problem.at.child("training"));
  program::Program out = program::compile(model, plan, training, problem.stack);
  if (const auto why = exec::run_problem(out, exec::Backend::kCpu, Launch::kEager); !why.empty())
    problem.at.child("training").fail(why);
  return out;
}

void execute(const App& app, const NoiseAsked& o) {
  const Problem problem = load_problem(o.file, app.data);
  const program::Program program = program_of(problem, o);
  const Model& model = problem.scenario.model;
  const std::unique_ptr<exec::Dataset> data =
      o.data.empty() ? exec::built_in_data(static_cast<std::uint64_t>(o.seed), model)
                     : exec::open_data(o.data, model, program.training);
  std::optional<exec::RestoredState> state;
  if (!o.checkpoints.empty()) state = load_checkpoint(o.checkpoints, program);
  std::optional<exec::Weights> weights;
  exec::RunOptions options{.steps = o.batches * o.repeats, .seed = static_cast<std::uint64_t>(o.seed)};
  options.timeline = false;
  if (!o.weights.empty()) options.weights = &weights.emplace(load_weights(o.weights, model, program));
  const exec::GradientNoise n =
      exec::measure_noise(program, options, *data, state ? &*state : nullptr, o.batches, o.repeats);
  const bool seen = std::isfinite(n.scale);
  const auto tokens = static_cast<double>(program.training.sequence);
  if (app.json) {
    return print_json({{"schema", "orrery.gradient_noise/1"},
                       {"step", state ? Json(state->step) : Json(nullptr)},
                       {"loss", n.loss},
                       {"gradient_squared", n.gradient},
                       {"noise", n.noise},
                       {"noise_scale", seen ? Json(n.scale) : Json(nullptr)},
                       {"noise_scale_error", seen && std::isfinite(n.error) ? Json(n.error) : Json(nullptr)},
                       {"noise_scale_tokens", seen ? Json(n.scale * tokens) : Json(nullptr)},
                       {"samples", n.samples * n.batches * n.repeats}});
  }
  fmt::print("{}{}: loss {:.4f}, |G|^2 {:.4g}, noise of a sample {:.4g}, of {} samples\n",
             printable(model.name), state ? fmt::format(" after {} steps", state->step) : std::string(),
             n.loss, n.gradient, n.noise, n.samples * n.batches * n.repeats);
  if (!seen) {
    fmt::print("no gradient is seen above the noise: more samples (--batches, --repeats) would show it\n");
    return;
  }
  const double batch = static_cast<double>(problem.scenario.training.global_batch);
  fmt::print("gradient noise scale: {:.4g} samples ({:.4g} tokens), give or take {:.2g}\n", n.scale,
             n.scale * tokens, n.error);
  fmt::print(
      "the scenario's batch of {} takes {:.2f} times the samples of the smallest batches, and {:.2f} "
      "times the steps of the largest\n",
      problem.scenario.training.global_batch, 1 + batch / n.scale, 1 + n.scale / batch);
  fmt::print("a scenario with \"noise_scale\": {:.0f} in its training is planned with that\n",
             std::max(1.0, n.scale));
}

}  // namespace

void add_gradient_noise(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "gradient-noise",
                                 "the batch size beyond which more samples hardly help, measured");
  auto o = std::make_shared<NoiseAsked>();
  const auto whole = [&](const char* name, std::int64_t& value, std::int64_t least, std::int64_t most,
                         const char* help) {
    command->add_option(name, value, help)->check(CLI::Range(least, most))->capture_default_str();
  };
  command->add_option("scenario", o->file, "a scenario whose stack is \"orrery\"")->required();
  whole("--batch", o->batch, 1, 1 << 16, "samples of the gradients that are compared");
  whole("--batches", o->batches, 2, 1 << 16, "gradients that are compared");
  whole("--repeats", o->repeats, 1, 1 << 16, "how often, with other samples");
  command->add_option("--data", o->data, "as `orrery run` takes it");
  command->add_option(
      "--checkpoints", o->checkpoints,
      "a folder that `orrery run --checkpoints` wrote; without it weights are those of the seed");
  command->add_option("--weights", o->weights, "Hugging Face's, as `orrery run` takes them");
  whole("--seed", o->seed, 0, 1 << 30, "of initial weights and the order of data");
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
