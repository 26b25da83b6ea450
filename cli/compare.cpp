// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iostream>

#include "cli/commands.h"
#include "sim/calibration/compare.h"

namespace orrery::cli {
namespace {

struct Options {
  std::string predicted, measured;
  std::size_t top = 20;
};

// An op without its twin means that something else ran than was predicted.
void expect_twins(const sim::Comparison& c) {
  if (c.only_predicted == 0 && c.only_measured == 0) return;
  throw Error(fmt::format("{} op instances were only predicted and {} only measured{}", c.only_predicted,
                          c.only_measured,
                          c.same_program ? "" : ": the timelines come from different programs"));
}

void execute(App& app, const Options& o) {
  const Timeline predicted = load_timeline(o.predicted);
  const Timeline measured = load_timeline(o.measured);
  const sim::Comparison c = sim::compare(predicted, measured);
  if (app.json) {
    Json out = {{"schema", "orrery.compare/1"},
                {"same_program", c.same_program},
                {"matched", c.matched},
                {"only_predicted", c.only_predicted},
                {"only_measured", c.only_measured},
                {"predicted_step_s", c.predicted_step_s},
                {"measured_step_s", c.measured_step_s},
                {"ops", Json::array()},
                {"bounds", Json::array()}};
    for (const auto& op : c.ops) {
      out["ops"].push_back({{"name", op.name},
                            {"count", op.count},
                            {"bound", name_of(op.bound)},
                            {"predicted_s", op.predicted_s},
                            {"measured_s", op.measured_s}});
    }
    for (const auto& b : c.bounds) {
      out["bounds"].push_back(
          {{"bound", name_of(b.bound)}, {"predicted_s", b.predicted_s}, {"measured_s", b.measured_s}});
    }
    print_json(out);
    return expect_twins(c);
  }
  fmt::print("{:<34} {:<13} {:>7} {:>12} {:>12} {:>7}\n", "op", "limited by", "count", "predicted",
             "measured", "ratio");
  const auto row = [](std::string_view name, std::string_view bound, const std::string& count,
                      double expected, double actual) {
    fmt::print("{:<34} {:<13} {:>7} {:>12} {:>12} {:>7.2f}\n", name, bound, count,
               format(from_seconds(expected)), format(from_seconds(actual)),
               actual > 0 ? expected / actual : 0.0);
  };
  for (std::size_t i = 0; i < std::min(o.top, c.ops.size()); ++i) {
    const auto& op = c.ops[i];
    row(op.name, name_of(op.bound), std::to_string(op.count), op.predicted_s, op.measured_s);
  }
  for (const auto& b : c.bounds) row("all ops", name_of(b.bound), "", b.predicted_s, b.measured_s);
  row("step", "", "", c.predicted_step_s, c.measured_step_s);
  fmt::print("{} op instances matched\n", c.matched);
  expect_twins(c);
}

}  // namespace

void add_compare(CLI::App& parent, App& app) {
  CLI::App* command =
      subcommand(parent, app, "compare", "join a predicted with a measured timeline, op by op");
  auto o = std::make_shared<Options>();
  command->add_option("predicted", o->predicted, "timeline of orrery simulate --trace")->required();
  command->add_option("measured", o->measured, "timeline of orrery run --trace")->required();
  command->add_option("--top", o->top, "rows shown")->capture_default_str();
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
