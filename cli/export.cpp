// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iostream>

#include "cli/commands.h"
#include "planner/evaluate.h"
#include "planner/export/export.h"

namespace orrery::cli {
namespace {

struct ExportAsked {
  std::string plan;
  planner::Target target = planner::Target::kMegatron;
  std::optional<planner::Launcher> launcher;
  bool force = false;
};

void execute(App& app, const ExportAsked& o) {
  Chosen chosen = load_plan_or_scenario(o.plan, app);
  Problem& problem = chosen.problem;
  problem.stack = load_stack(planner::stack_of(o.target), chosen.scenario, app.data);
  check_stack(problem, chosen.plan, chosen.scenario, Cursor{o.plan, "/plan"});
  const planner::Fit fit = planner::fit(problem, chosen.plan);
  if (!fit.fits()) {
    fmt::print(stderr, "{}: {}\n", o.force ? "warning" : "orrery", fit.text(problem));
    if (!o.force) {
      fmt::print(stderr, "nothing is exported; --force exports it all the same\n");
      app.exit = ExitCode::kNoPlanFits;
      return;
    }
  }
  const planner::Exported out =
      o.launcher ? planner::export_job(*o.launcher, o.target, problem, chosen.plan, chosen.scenario)
                 : planner::export_plan(o.target, problem, chosen.plan, chosen.scenario);
  for (const std::string& note : out.notes) fmt::print(stderr, "note: {}\n", note);
  if (!app.json) return fmt::print("{}", out.text);
  Json json = {
      {"schema", "orrery.export/1"}, {"target", name_of(o.target)}, {"text", out.text}, {"notes", out.notes}};
  if (o.launcher) json["launcher"] = name_of(*o.launcher);
  json.update(planner::fit_json(fit));
  print_json(json);
}

}  // namespace

void add_export(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "export",
                                 "a plan for other software: a script, a configuration or a command; and "
                                 "with --launcher a job of Slurm, "
                                 "Kubernetes or SkyPilot that starts it on all nodes");
  auto o = std::make_shared<ExportAsked>();
  command->add_option("plan", o->plan, "plan or scenario file")->required();
  add_choice<planner::Target>(*command, "--to", o->target, "software that trains with it")->required();
  add_choice<planner::Launcher>(*command, "--launcher", o->launcher, "what starts it on the nodes");
  command->add_flag("--force", o->force, "export a plan that needs more memory than the device has");
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
