// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iostream>

#include "cli/commands.h"
#include "planner/evaluate.h"

namespace orrery::cli {
namespace {

struct Options {
  std::string plan, trace;
};

void execute(App& app, const Options& o) {
  const Chosen chosen = load_plan_or_scenario(o.plan, app);
  const sim::Topology topology(chosen.problem.cluster);
  const planner::Evaluation e = planner::evaluate(chosen.problem, topology, chosen.plan, !o.trace.empty());
  if (!o.trace.empty()) save_text(o.trace, to_chrome_trace(e.simulation.timeline));
  const Predicted& p = e.predicted;
  if (app.json) {
    Json out = {{"schema", "orrery.simulation/1"},
                {"plan", write_fields(chosen.plan)},
                {"ops", e.simulation.ops},
                {"classes", e.simulation.classes.size()},
                {"program_bytes", e.program.footprint_bytes()}};
    out["predicted"] = write_fields(p);
    return print_json(out);
  }
  fmt::print("{}: step {}, {:.0f} tokens/s, MFU {:.1f} %, peak memory {}\n", short_name(chosen.plan),
             format(from_seconds(p.step_time_s)), p.tokens_per_s, 100 * p.mfu,
             format(Bytes{p.peak_memory_bytes}));
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
  if (!o.trace.empty()) fmt::print("timeline: {} (open in ui.perfetto.dev or chrome://tracing)\n", o.trace);
}

}  // namespace

void add_simulate(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "simulate", "one plan through the event engine");
  auto o = std::make_shared<Options>();
  command->add_option("plan", o->plan, "plan or scenario file")->required();
  command->add_option("--trace", o->trace, "write the timeline (Chrome JSON)");
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
