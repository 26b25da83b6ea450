// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iostream>

#include "cli/commands.h"
#include "planner/evaluate.h"

namespace orrery::cli {
namespace {

struct Options {
  std::string plan, trace, window;
};

// The part of a timeline between two times, "0 s:2 s"; slices that reach into it stay whole.
Timeline within(Timeline timeline, const std::string& window) {
  const std::size_t colon = std::min(window.find(':'), window.size());
  const auto bound = [&](const std::string& text, std::optional<Time> otherwise) {
    const auto time = text.empty() ? otherwise : parse_time(text);
    if (!time || colon == window.size()) {
      throw InputError("--window", "", fmt::format("\"{}\" is no window", window),
                       "two times such as 0s:500ms; either may be left out");
    }
    return *time;
  };
  const Time from = bound(window.substr(0, colon), Time{0}),
             to = bound(window.substr(std::min(colon + 1, window.size())), timeline.length());
  std::erase_if(timeline.slices, [&](const Slice& s) { return s.end < from || s.start > to; });
  return timeline;
}

void execute(App& app, const Options& o) {
  const Chosen chosen = load_plan_or_scenario(o.plan, app);
  const sim::Topology topology(chosen.problem.cluster);
  const planner::Evaluation e = planner::evaluate(chosen.problem, topology, chosen.plan, !o.trace.empty());
  if (!o.trace.empty()) {
    const Timeline& all = e.simulation.timeline;
    save_text(o.trace, to_chrome_trace(o.window.empty() ? all : within(all, o.window)));
  }
  const Predicted& p = e.predicted;
  if (app.json) {
    Json out = {{"schema", "orrery.simulation/1"},
                {"plan", write_fields(chosen.plan)},
                {"ops", e.simulation.ops},
                {"classes", e.simulation.classes.size()},
                {"program_bytes", e.program.footprint_bytes()}};
    out["predicted"] = write_fields(p);
    out["shared_links"] = Json::array();
    for (const sim::LinkReport& l : e.simulation.links)
      out["shared_links"].push_back({{"link", l.link.name},
                                     {"alike", l.link.alike},
                                     {"bytes_per_s", l.link.capacity.value},
                                     {"lost_s", seconds(l.lost)}});
    return print_json(out);
  }
  fmt::print("{}: step {} (80 % of measured runs: {} to {}), {:.0f} tokens/s, MFU {:.1f} %, peak memory {}\n",
             short_name(chosen.plan), format(from_seconds(p.step_time_s)),
             format(from_seconds(p.step_time_low_s)), format(from_seconds(p.step_time_high_s)),
             p.tokens_per_s, 100 * p.mfu, format(Bytes{p.peak_memory_bytes}));
  fmt::print("{} ranks in {} classes, {} op instances, program of {}\n", e.program.binding.ranks(),
             e.simulation.classes.size(), e.simulation.ops, format(Bytes{e.program.footprint_bytes()}));
  fmt::print("{:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "stage", "compute", "recompute",
             "wait tp", "wait dp", "wait pp", "host", "memory");
  for (std::size_t i = 0; i < e.simulation.classes.size(); ++i) {
    const sim::ClassReport& c = e.simulation.classes[i];
    Time pp{0};
    for (const auto s : {program::kSend, program::kRecv, program::kGradSend, program::kGradRecv})
      pp += c.exposed[s];
    fmt::print("{:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", i,
               format(c.forward + c.backward + c.optimizer), format(c.recompute),
               format(c.exposed[program::kTp]), format(c.exposed[program::kDp]), format(pp), format(c.host),
               format(Bytes{p.memory[i].total}));
  }
  constexpr std::size_t kMostShown = 5;
  for (std::size_t i = 0; i < std::min(kMostShown, e.simulation.links.size()); ++i) {
    const sim::LinkReport& l = e.simulation.links[i];
    fmt::print("shared: {} ({} alike, {}): transfers of all stages lost {} to each other\n", l.link.name,
               l.link.alike, format(l.link.capacity), format(l.lost));
  }
  if (!o.trace.empty()) fmt::print("timeline: {} (open in ui.perfetto.dev or chrome://tracing)\n", o.trace);
}

}  // namespace

void add_simulate(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "simulate", "one plan through the event engine");
  auto o = std::make_shared<Options>();
  command->add_option("plan", o->plan, "plan or scenario file")->required();
  auto* trace = command->add_option("--trace", o->trace, "write the timeline (Chrome JSON)");
  command->add_option("--window", o->window, "only what happens between two times of the step, as 0s:500ms")
      ->needs(trace);
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
