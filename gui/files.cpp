// SPDX-License-Identifier: Apache-2.0
#include "gui/files.h"

#include "core/error.h"
#include "gui/jobs.h"
#include "program/program.h"
#include "trace/load.h"

namespace orrery::gui {
namespace {

Opened open_plan(const Json& json, const Cursor& at, const DataFolders& data) {
  const PlanFile f = read_fields<PlanFile>(json, at);
  auto problem = std::make_shared<const Problem>(resolve(f.scenario, at.child("scenario"), data));
  program::check_plan(problem->scenario.model, f.plan, problem->scenario.training, at.child("plan"));
  check_ranks(f.plan, problem->cluster, at.child("plan"));
  return {.problem = std::move(problem), .plan = f.plan};
}

Opened scenario_at(const Json& json, const Cursor& at, const DataFolders& data) {
  auto problem = std::make_shared<const Problem>(resolve(read_scenario(json, at), at, data));
  const Scenario& s = problem->scenario;
  if (s.plan) program::check_plan(s.model, *s.plan, s.training, at.child("plan"));
  return {.problem = std::move(problem)};
}

template <class AnyTimeline>
Opened as_run(const std::filesystem::path& path, AnyTimeline timeline) {
  return {.run = make_large<Run>(QString::fromStdString(path.filename().string()), std::move(timeline))};
}

}  // namespace

Opened open_scenario(const Json& scenario, const std::string& from, const DataFolders& data) {
  return scenario_at(scenario, {from, ""}, data);
}

Opened open_file(const std::filesystem::path& path, const DataFolders& data) {
  if (trace::is_binary_timeline(path)) return as_run(path, load_packed(path));
  if (trace::is_foreign(path)) return as_run(path, trace::load({path}).merged.timeline);
  const std::string text = load_text(path, kLargestTimelineFile);
  const std::string file = path.string();
  const Json json = parse_json(text, file, kLargestTimelineFile);
  const Cursor at{file, ""};
  if (json.is_object()) {
    if (json.contains("traceEvents")) return as_run(path, trace::of_events(json, file));
    if (json.contains("predicted")) return open_plan(json, at, data);
    if (json.contains("model") || json.contains("training")) return scenario_at(json, at, data);
    if (json.contains("devices_per_node"))
      return {.cluster = std::make_shared<const Cluster>(load_cluster(file, {}, at, data))};
  }
  at.fail("is none of the files that can be opened",
          "allowed: a scenario, a plan, a timeline (Chrome JSON or binary), a topology");
}

}  // namespace orrery::gui
