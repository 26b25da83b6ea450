// SPDX-License-Identifier: Apache-2.0
//
// Weights in and out: those that a run starts from, and those of a checkpoint as a file for others.
#include "cli/weights.h"

#include <fmt/format.h>

#include "core/text.h"
#include "exec/checkpoint.h"

namespace orrery::cli {

exec::Weights load_weights(const std::string& path, const Model& model, const program::Program& program,
                           bool tells) {
  exec::Weights out = exec::read_weights(
      path, model, program.training.adapter ? exec::frozen_tensors_of(program) : exec::tensors_of(program));
  if (tells && !out.unused.empty())
    alert(fmt::format("{} of the tensors in {} are not the model's: {}{}", out.unused.size(), printable(path),
                      printable(out.unused.front()), out.unused.size() > 1 ? ", .." : ""));
  return out;
}

void load_adapters(const std::string& folder, const Model& model, const program::Program& program,
                   exec::Weights& to) {
  const std::optional<Adapter>& adapter = program.training.adapter;
  if (!adapter)
    Cursor{"command line", "/adapter"}.fail("the scenario trains no adapters",
                                            "allowed: with a training.adapter");
  exec::read_adapters(folder, model, *adapter, exec::tensors_of(program), to);
}

exec::RestoredState load_checkpoint(const std::string& folder, const program::Program& program) {
  std::vector<std::string> passed_over;
  auto restored = exec::restore_newest(folder, program, passed_over);
  for (const std::string& why : passed_over) fmt::print(stderr, "passed over: {}\n", printable(why));
  if (!restored)
    Cursor{"command line", "/checkpoints"}.fail(fmt::format("\"{}\" has no checkpoint", printable(folder)));
  return std::move(*restored);
}

void require_same_adapter(const exec::RestoredState& checkpoint, const Training& training) {
  const auto trained = checkpoint.recipe.adapter, asked = exec::in_order(training.adapter);
  if (trained == asked) return;
  const auto text = [](const std::optional<Adapter>& a) { return a ? write_fields(*a).dump() : "none"; };
  Cursor{checkpoint.index, ""}.child("recipe").child("adapter").fail(
      fmt::format("is {}, and the scenario's is {}", text(trained), text(asked)));
}

void export_weights(const App& app, const WeightsAsked& o) {
  const Chosen chosen = load_plan_or_scenario(o.plan, app);
  const Scenario& s = chosen.problem.scenario;
  const auto program = program::compile(s.model, chosen.plan, s.training, chosen.problem.stack);
  if (!s.training.adapter) require_writable("/output", o.output);
  const exec::RestoredState restored = load_checkpoint(o.checkpoints, program);
  const auto tensors = exec::tensors_of(program);
  require_same_adapter(restored, s.training);
  if (s.training.adapter)
    exec::write_adapters(o.output, s.model, *s.training.adapter, tensors, restored.states.front(), o.type);
  else
    exec::write_weights(o.output, s.model, tensors, restored.states.front(), o.type);
  if (app.json)
    return print_json({{"schema", "orrery.weights/1"}, {"file", o.output}, {"step", restored.step}});
  fmt::print("{}: the {} of {} after step {}\n", printable(o.output),
             s.training.adapter ? "adapters" : "weights", printable(s.model.name), restored.step);
}

}  // namespace orrery::cli
