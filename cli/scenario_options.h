// SPDX-License-Identifier: Apache-2.0
//
// A scenario from a file, from options, or from a file with options over its fields.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace orrery::cli {

struct ScenarioAsked {
  std::string file;  // empty: options say it all
  std::string model, stack, deadline, budget, precision, math;
  std::vector<std::string> clusters;  // names or files of topologies
  std::optional<std::int64_t> nodes, batch, sequence;
  std::optional<double> tokens;
  std::vector<std::string> set;  // "training.math=fp8"
  // Options that stand for fields, as a user wrote them, where there are any.
  bool has_options() const;
};

// "SCENARIO --model --cluster ..."; with `several`, --cluster may name more than one.
void add_scenario_options(CLI::App& command, ScenarioAsked& asked, bool several);

// The scenario as JSON, on the first of its clusters, and where it stands: the file, or "command line".
// Throws InputError where an option is missing, or names no place of a scenario.
struct AskedScenario {
  Json json;
  Cursor at;
};
AskedScenario asked_scenario(const ScenarioAsked& asked);
// The same on one of several clusters.
AskedScenario on_cluster(AskedScenario scenario, const std::string& cluster);
// With all that it names loaded. A wrong value of an option is the command line's.
Problem load_asked(const ScenarioAsked& asked, const AskedScenario& scenario, const DataFolders& data);

// The scenario as a file has it, wherever that stands.
Json as_file(const AskedScenario& scenario);

}  // namespace orrery::cli
