// SPDX-License-Identifier: Apache-2.0
//
// An answer as data (schema "orrery.answer/1"), as rows of a table, and as a page of its own.
//
//   const Answer a = plan(problem, {.top = 5, .threads = 2});
//   save_text("report.html", report_page(problem, a, "orrery plan scenario.json"));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/plan.h"

namespace orrery::planner {

Json ranked_json(const Problem& problem, const Ranked& plan);
Json answer_json(const Problem& problem, const Answer& answer);

// A plan of the answer, and what it is there for: "1", "safest, smallest", "the scenario's plan".
struct Row {
  std::string as;
  const Ranked* plan;  // of the answer
};
std::vector<Row> rows_of(const Answer& answer);

// Every plan of the answer: the best ones, those that there are other reasons to choose, and those beside
// them. Comma-separated with a line of names (RFC 4180), or as a table of Markdown.
std::string answer_csv(const Answer& answer);
std::string answer_markdown(const Problem& problem, const Answer& answer);

// A cell of such tables.
std::string in_csv(const std::string& text);
std::string in_markdown(std::string_view text);

// One page of HTML that needs nothing else: the answer with charts, what it assumes, where its constants come
// from and how wrong it may be. `command`: that made it.
std::string report_page(const Problem& problem, const Answer& answer, const std::string& command);

// The same of several clusters that were asked for: a table and charts that compare their best plans, then
// all that is known of each.
struct ClusterAnswer {
  std::string asked, lacks;          // lacks: why there is no plan, or which limit it does not keep to
  const Problem* problem = nullptr;  // null where nothing could be planned
  const Answer* answer = nullptr;
};
std::string clusters_page(const std::vector<ClusterAnswer>& clusters, const std::string& command);

}  // namespace orrery::planner
