// SPDX-License-Identifier: Apache-2.0
//
// What `orrery plan` was asked, and the parts of its answer. Internal to cli/plan*.cpp.
#pragma once

#include <optional>
#include <string>

#include "cli/scenario_options.h"
#include "planner/plan.h"

namespace orrery::cli {

enum class Format { kTable, kJson, kCsv, kMarkdown };
constexpr auto enum_names(Format) {
  return std::array{std::pair{Format::kTable, "table"}, std::pair{Format::kJson, "json"},
                    std::pair{Format::kCsv, "csv"}, std::pair{Format::kMarkdown, "markdown"}};
}

struct PlanAsked {
  ScenarioAsked scenario;
  std::optional<std::int64_t> most_nodes;
  std::string output, save_scenario, report;
  std::optional<Goal> goal;
  std::optional<double> risk;
  std::optional<Format> format;
  std::size_t top = 5;
  int threads = 0;
  bool failures = false, spot = false;
};

// The scenario on a cluster, under the options that are about answers.
Problem problem_of(const PlanAsked& asked, const AskedScenario& scenario, const DataFolders& data);
// With progress, which says what is done, on standard error.
planner::Answer answer_to(const Problem& problem, const PlanAsked& asked, const char* doing);

// As tables for a terminal.
void print_answer(const Problem& problem, const planner::Answer& answer);

// The best plan of each of several clusters.
void compare_clusters(App& app, const PlanAsked& asked, const AskedScenario& scenario);

}  // namespace orrery::cli
