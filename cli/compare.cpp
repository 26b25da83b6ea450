// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iostream>

#include "cli/commands.h"
#include "core/text.h"
#include "sim/calibration/compare.h"

namespace orrery::cli {
namespace {

struct CompareAsked {
  std::string predicted, measured;
  std::size_t top = 20;
};

// Why the two timelines are not of the same ops; empty when each op of one has its twin in the other.
std::string mismatch(const sim::Comparison& c) {
  if (c.only_predicted == 0 && c.only_measured == 0) return {};
  const std::string programs = c.same_program ? "" : "; they come from different programs";
  if (c.matched == 0) return "the timelines have no op in common" + programs;
  return fmt::format(
      "the timelines differ: {} ops match, {} are only in the first and {} only in the second{}", c.matched,
      c.only_predicted, c.only_measured, programs);
}

Json to_json(const sim::Comparison& c, const Timeline& predicted, const Timeline& measured) {
  Json out = {{"schema", "orrery.compare/1"},
              {"mismatch", mismatch(c)},
              {"predicted_source", predicted.source},
              {"measured_source", measured.source},
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
  return out;
}

void print_table(const CompareAsked& o, const sim::Comparison& c, const Timeline& predicted,
                 const Timeline& measured) {
  const bool known = !predicted.source.empty() && !measured.source.empty();
  const bool told_apart = known && kind_of(predicted) != kind_of(measured);
  const std::string left = told_apart ? kind_of(predicted) : "first";
  const std::string right = told_apart ? kind_of(measured) : "second";
  constexpr std::size_t kWidth = 12;
  const auto title = [](const std::string& side) { return printable(side).substr(0, kWidth); };
  const auto source = [](const Timeline& t) {
    return t.source.empty() ? "the file does not say its source" : printable(t.source);
  };
  fmt::print("{}: {} ({})\n{}: {} ({})\n", title(left), printable(o.predicted), source(predicted),
             title(right), printable(o.measured), source(measured));
  fmt::print("{:<34} {:<13} {:>7} {:>12} {:>12} {:>7}\n", "op", "limited by", "count", title(left),
             title(right), "ratio");
  const auto row = [](std::string_view name, std::string_view bound, const std::string& count,
                      double expected, double actual) {
    fmt::print("{:<34} {:<13} {:>7} {:>12} {:>12} {:>7.2f}\n", printable(name), bound, count,
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
}

void execute(App& app, const CompareAsked& o) {
  const Timeline predicted = load_timeline(o.predicted);
  const Timeline measured = load_timeline(o.measured);
  const sim::Comparison c = sim::compare(predicted, measured);
  const std::string reason = mismatch(c);
  if (!reason.empty()) app.exit = ExitCode::kOutOfTolerance;
  if (app.json) return print_json(to_json(c, predicted, measured));
  if (!reason.empty()) fmt::print("{}\n", reason);
  print_table(o, c, predicted, measured);
}

}  // namespace

void add_compare(CLI::App& parent, App& app) {
  CLI::App* command =
      subcommand(parent, app, "compare", "join a predicted with a measured timeline, op by op");
  auto o = std::make_shared<CompareAsked>();
  command->add_option("predicted", o->predicted, "timeline of orrery simulate --trace")->required();
  command->add_option("measured", o->measured, "timeline of orrery run --trace")->required();
  command->add_option("--top", o->top, "rows shown")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
