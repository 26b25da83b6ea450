// SPDX-License-Identifier: Apache-2.0
//
// orrery generate: the answer of a small model on this processor, with a cache of keys and values.
#include "exec/generate.h"

#include <fmt/format.h>

#include <charconv>
#include <numeric>

#include "cli/commands.h"
#include "cli/weights.h"
#include "core/text.h"
#include "exec/checkpoint.h"
#include "program/serving.h"

namespace orrery::cli {
namespace {

struct GenerateAsked {
  std::string file, prompt, ids, checkpoints, weights, adapter;
  std::int64_t tokens = 32, seed = 1;
};

constexpr std::int64_t kBytes = 256;  // a token for each byte, as in text that `orrery run --data` reads
constexpr std::int64_t kMostPrompt = 1 << 16;

std::vector<std::int32_t> ids_of(const std::string& text, std::int64_t vocabulary) {
  std::vector<std::int32_t> out;
  const Cursor at{"command line", "/ids"};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::int32_t id = -1;
    const char *const first = text.data() + begin, *const last = text.data() + end;
    if (std::from_chars(first, last, id).ptr != last || first == last || id < 0 || id >= vocabulary)
      at.fail(fmt::format("{} is not a token", shown(Json(text.substr(begin, end - begin)))),
              fmt::format("allowed: numbers from 0 to {}, like 5,6,7", vocabulary - 1));
    out.push_back(id);
    begin = end + 1;
  }
  return out;
}

std::vector<std::int32_t> prompt_of(const GenerateAsked& o, const Model& model) {
  if (!o.ids.empty()) return ids_of(o.ids, model.vocab);
  if (o.prompt.empty()) return {1, 2, 3, 4};
  if (model.vocab < kBytes)
    Cursor{"command line", "/prompt"}.fail(
        fmt::format("text has a token for each of {} bytes, and the model's vocabulary has {}", kBytes,
                    model.vocab),
        "allowed: --ids");
  std::vector<std::int32_t> out;
  for (const char c : o.prompt) out.push_back(static_cast<unsigned char>(c));
  return out;
}

std::string text_of(const std::vector<std::int32_t>& tokens) {
  std::string out;
  for (const std::int32_t t : tokens) {
    if (t < 0 || t >= kBytes) return {};
    out += static_cast<char>(t);
  }
  return out;
}

// Of a scenario whose stack our engine executes, the model's plan: its tensor ranks.
Plan plan_of(const Problem& p, const Cursor& at) {
  if (!p.stack.executable)
    at.child("stack").fail(fmt::format("the stack \"{}\" can be predicted only", p.stack.name),
                           "allowed: orrery, orrery-graph");
  const Plan plan{.tp = p.scenario.plan ? p.scenario.plan->tp : 1};
  if (const std::string why = program::serving_problem(p.scenario.model, plan); !why.empty())
    at.child("model").fail(why);
  if (const std::string why = program::adapter_problem(p.scenario.model, p.scenario.training); !why.empty())
    at.child("training").child("adapter").fail(why);
  return plan;
}

void check_length(const Model& model, std::int64_t prompt, std::int64_t tokens) {
  const Cursor at{"command line", "/tokens"};
  if (prompt > kMostPrompt)
    at.fail(fmt::format("a prompt of {} tokens", prompt), fmt::format("allowed: {}", kMostPrompt));
  if (model.positions == Positions::kLearned && prompt + tokens > model.max_positions)
    at.fail(fmt::format("{} tokens behind a prompt of {} are more than the model's {} learned positions",
                        tokens, prompt, model.max_positions),
            fmt::format("allowed: {}", std::max<std::int64_t>(0, model.max_positions - prompt)));
}

// Adapters say nothing without the weights that they were trained beside.
void require_same_base(const exec::RestoredState& checkpoint, const std::string& weights,
                       const GenerateAsked& o) {
  const exec::Recipe& r = checkpoint.recipe;
  if (r.weights != weights)
    Cursor{"command line", "/weights"}.fail(
        fmt::format("the adapters of the checkpoint were trained beside {}",
                    r.weights.empty() ? fmt::format("the weights of seed {}", r.seed) : r.weights),
        "allowed: the same weights");
  if (o.weights.empty() && r.seed != o.seed)
    Cursor{"command line", "/seed"}.fail(
        fmt::format("the adapters of the checkpoint were trained beside the weights of seed {}", r.seed),
        fmt::format("allowed: {}", r.seed));
}

void execute(const App& app, const GenerateAsked& o) {
  const Problem problem = load_problem(o.file, app.data);
  const Cursor& at = problem.at;
  const Model& model = problem.scenario.model;
  const Plan plan = plan_of(problem, at);
  const std::vector<std::int32_t> prompt = prompt_of(o, model);
  check_length(model, std::ssize(prompt), o.tokens);
  Training training = problem.scenario.training;
  training.global_batch = 1;
  program::check_plan(model, plan, program::pass_of(training, 1, {.room = 1}), at.child("plan"));
  const auto program =
      program::compile(model, plan, program::pass_of(training, 1, {.room = 1}), problem.stack);
  if (const auto why = exec::run_problem(program, exec::Backend::kCpu, Launch::kEager); !why.empty())
    at.child("training").fail(why);
  std::optional<exec::RestoredState> restored;
  if (!o.checkpoints.empty()) restored = load_checkpoint(o.checkpoints, program);
  std::optional<exec::Weights> given;
  if (!o.weights.empty()) given = load_weights(o.weights, model, program);
  if (!o.adapter.empty()) load_adapters(o.adapter, model, program, given ? *given : given.emplace());
  // A checkpoint of adapters has no other weights: those are Hugging Face's, or the seed's.
  if (restored && given && !training.adapter)
    Cursor{"command line", "/weights"}.fail("a checkpoint has all weights",
                                            "allowed: with a training.adapter");
  if (restored && training.adapter) {
    require_same_adapter(*restored, training);
    require_same_base(*restored, given ? given->identity : "", o);
  }
  if (restored && given) {
    for (auto& [name, values] : restored->states.front()) given->tensors[name] = std::move(values);
  }
  const exec::Generated out = exec::generate(model, plan, training, problem.stack, {prompt},
                                             {.tokens = o.tokens,
                                              .seed = static_cast<std::uint64_t>(o.seed),
                                              .weights = given      ? &given->tensors
                                                         : restored ? &restored->states.front()
                                                                    : nullptr});
  const double decodes = std::accumulate(out.decode_s.begin(), out.decode_s.end(), 0.0);
  const double each = out.decode_s.empty() ? 0 : decodes / static_cast<double>(out.decode_s.size());
  if (app.json) {
    print_json({{"schema", "orrery.generated/1"},
                {"model", model.name},
                {"weights", restored ? Json(restored->step)
                                     : Json(!given              ? "initial"
                                            : o.weights.empty() ? o.adapter
                                                                : o.weights)},
                {"prompt", prompt},
                {"tokens", out.tokens.front()},
                {"ttft_s", out.prefill_s},
                {"tpot_s", each},
                {"cache_bytes", out.cache.value}});
    return;
  }
  fmt::print("{}\n", fmt::join(out.tokens.front(), " "));
  if (!o.prompt.empty()) fmt::print("{}{}\n", printable(o.prompt), printable(text_of(out.tokens.front())));
  fmt::print("{}, weights {}: first token after {}, then {} a token; cache {}\n", printable(model.name),
             restored ? fmt::format("of step {}", restored->step)
             : given  ? fmt::format("of {}", printable(o.weights.empty() ? o.adapter : o.weights))
                      : fmt::format("of seed {}", o.seed),
             format(from_seconds(out.prefill_s)), format(from_seconds(each)), format(out.cache));
}

}  // namespace

void add_generate(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(
      parent, app, "generate", "the likeliest continuation of a prompt, by a small model on this processor");
  auto o = std::make_shared<GenerateAsked>();
  command->add_option("scenario", o->file, "a scenario whose stack is \"orrery\"")->required();
  CLI::Option* prompt = command->add_option("--prompt", o->prompt, "text, a token for each byte");
  command->add_option("--ids", o->ids, "tokens, like 5,6,7")->excludes(prompt);
  command->add_option("--tokens", o->tokens, "of the answer")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 16))
      ->capture_default_str();
  command->add_option(
      "--checkpoints", o->checkpoints,
      "a folder that `orrery run --checkpoints` wrote; without it weights are those of the seed");
  command->add_option(
      "--weights", o->weights,
      "Hugging Face's: a *.safetensors file, an index, or a folder; with --checkpoints, the frozen "
      "weights beside adapters");
  command->add_option("--adapter", o->adapter, "adapters of PEFT: a folder");
  command->add_option("--seed", o->seed, "of initial weights")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
