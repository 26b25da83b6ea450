// SPDX-License-Identifier: Apache-2.0
//
// What can be opened: scenarios, plans, timelines (predicted or measured, Chrome JSON or binary, or traces of
// other software) and topologies, told apart by what is in the file.
#pragma once

#include <filesystem>
#include <optional>

#include "core/plan_file.h"
#include "gui/run.h"

namespace orrery::gui {

// One of a problem, a run and a cluster.
struct Opened {
  std::shared_ptr<const Problem> problem;
  std::optional<Plan> plan;  // of a plan file
  RunPtr run;
  std::shared_ptr<const Cluster> cluster;
};

// Throws InputError that says what is wrong where, or what kinds of files there are. May take seconds.
Opened open_file(const std::filesystem::path& path, const DataFolders& data);
// A scenario that stands in no file: `from` is named where it is wrong.
Opened open_scenario(const Json& scenario, const std::string& from, const DataFolders& data);

}  // namespace orrery::gui
