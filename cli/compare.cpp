// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iostream>

#include "cli/commands.h"
#include "cli/traces.h"
#include "core/text.h"
#include "sim/calibration/compare.h"
#include "trace/load.h"

namespace orrery::cli {
namespace {

struct CompareAsked {
  std::string predicted;
  std::vector<std::string> measured;
  std::int64_t steps = 0;
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
             title(right), printable(o.measured.front()), source(measured));
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

// Of ops that have names in common.
void compare_ops(App& app, const CompareAsked& o, const Timeline& predicted, const Timeline& measured) {
  const sim::Comparison c = sim::compare(predicted, measured);
  const std::string reason = mismatch(c);
  if (!reason.empty()) app.exit = ExitCode::kOutOfTolerance;
  if (app.json) return print_json(to_json(c, predicted, measured));
  if (!reason.empty()) fmt::print("{}\n", reason);
  print_table(o, c, predicted, measured);
}

Json to_json(const sim::ClassTimes& s) {
  return {{"count", s.count}, {"active_s", s.active_s}, {"waiting_s", s.waiting_s}};
}

Json to_json(const sim::ClassComparisons& c, std::int64_t steps, const trace::Merged& merged) {
  Json out = {{"schema", "orrery.compare/1"},
              {"predicted_step_s", c.predicted_step_s},
              {"measured_step_s", c.measured_step_s},
              {"steps", steps},
              {"classes", Json::array()}};
  for (const sim::ClassComparison& w : c.classes) {
    Json& row = out["classes"].emplace_back();
    row = {{"class", name_of(w.is)}, {"predicted", to_json(w.predicted)}, {"measured", to_json(w.measured)}};
    if (w.in_order) row["ratio_in_order"] = w.ratio;
  }
  out["by_rank"] = c.by_rank;
  out.update(json_of(merged));
  return out;
}

void print_classes(const sim::ClassComparisons& c) {
  constexpr auto kRow = "{:<15} {:>8} {:>8} {:>11} {:>11} {:>7} {:>11} {:>11}  {}\n";
  fmt::print("of a rank and a step, on average over {}; p: predicted, m: measured\n",
             c.by_rank ? "the ranks of the traces" : "all ranks of each side");
  fmt::print(kRow, "class", "count p", "count m", "time p", "time m", "p/m", "waiting p", "waiting m",
             "p/m one by one, in order");
  const auto time = [](double s) { return s > 0 ? format(from_seconds(s)) : std::string("-"); };
  const auto count = [](double n) { return fmt::format("{:.1f}", n); };
  for (const sim::ClassComparison& w : c.classes) {
    const auto &p = w.predicted, &m = w.measured;
    const bool both = p.active_s > 0 && m.active_s > 0;
    fmt::print(
        kRow, name_of(w.is), count(p.count), count(m.count), time(p.active_s), time(m.active_s),
        both ? fmt::format("{:.2f}", p.active_s / m.active_s) : "-", time(p.waiting_s), time(m.waiting_s),
        w.in_order ? fmt::format("{:.2f} ({:.2f} to {:.2f})", w.ratio[1], w.ratio[0], w.ratio[2]) : "");
  }
  fmt::print(kRow, "step", "", "", time(c.predicted_step_s), time(c.measured_step_s),
             fmt::format("{:.2f}", c.predicted_step_s / c.measured_step_s), "", "", "");
}

// Of a trace by other software: by class of op, and in order.
void compare_foreign(App& app, const CompareAsked& o, const Timeline& predicted,
                     const trace::Merged& measured) {
  if (predicted.classes.empty())
    throw InputError(o.predicted, "/", "does not say of which class its ops are",
                     "allowed: a timeline that orrery simulate --trace writes");
  const std::int64_t steps = o.steps > 0 ? o.steps : std::max<std::int64_t>(1, measured.steps);
  const sim::ClassComparisons c =
      sim::compare_classes(predicted, measured.timeline, steps, ranks_of(measured));
  if (app.json) return print_json(to_json(c, steps, measured));
  fmt::print("predicted: {}\n{}, {}, {}{}\n", printable(o.predicted), printable(measured.timeline.source),
             counted(measured.timeline.rank_labels.size(), "rank", "ranks"),
             counted(static_cast<std::size_t>(steps), "step", "steps"),
             o.steps > 0 || measured.steps > 0 ? "" : " (the trace does not say; --steps does)");
  print_classes(c);
  print_merged(measured, o.top);
}

void execute(App& app, const CompareAsked& o) {
  const trace::Loaded first = trace::load({o.predicted});
  if (first.foreign)
    throw InputError(o.predicted, "/", "was measured by other software, so it predicts nothing",
                     "allowed: a timeline that orrery simulate --trace writes");
  const Timeline& predicted = first.merged.timeline;
  const trace::Loaded measured = trace::load({o.measured.begin(), o.measured.end()});
  if (measured.foreign) return compare_foreign(app, o, predicted, measured.merged);
  if (o.steps > 0)
    throw InputError("command line", "/steps", "is for traces of other software, and this is one of ours",
                     "allowed: no --steps");
  compare_ops(app, o, predicted, measured.merged.timeline);
}

}  // namespace

void add_compare(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(
      parent, app, "compare", "join a predicted with a measured timeline, or with other software's traces");
  auto o = std::make_shared<CompareAsked>();
  command->add_option("predicted", o->predicted, "timeline of orrery simulate --trace")->required();
  command
      ->add_option(
          "measured", o->measured,
          "timeline of orrery run --trace, or traces of the PyTorch profiler, Nsight Systems or Chakra")
      ->required();
  command->add_option("--steps", o->steps, "how many steps the traces cover, where they do not say")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--top", o->top, "rows shown")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
