// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "cli/plan_asked.h"
#include "core/text.h"
#include "planner/answer.h"

namespace orrery::cli {
namespace {

struct OnCluster {
  std::string asked;
  std::string refused;  // why nothing was planned there; empty: it was
  Problem problem;
  planner::Answer answer;
  bool has_plan() const { return !answer.plans.empty(); }
  bool answered() const { return has_plan() && answer.unmet.empty(); }
  const planner::Ranked& best() const { return answer.plans.front(); }
  // Why there is no plan, or which limit the plan does not keep to.
  std::string lacks() const {
    if (!refused.empty()) return refused;
    return has_plan() ? answer.unmet : planner::why_none(problem, answer.search);
  }
  double dollars_per_hour() const { return problem.cluster.dollars_per_hour(answer.nodes); }
};

// What the goal wants least of.
double wanted_less(const OnCluster& c) {
  const double time = c.best().pessimistic_s;
  switch (c.problem.scenario.goal) {
    case Goal::kCost:
    case Goal::kCostByDeadline:
      return c.dollars_per_hour() > 0 ? c.dollars_per_hour() * time : std::numeric_limits<double>::max();
    case Goal::kSmallest:
      return static_cast<double>(c.problem.cluster.devices());
    case Goal::kTime:
    case Goal::kTimeInBudget:
      break;
  }
  return time;
}

Json to_json(const std::vector<OnCluster>& all) {
  Json out = {{"schema", "orrery.clusters/1"}, {"clusters", Json::array()}};
  for (const OnCluster& c : all) {
    Json j = {{"cluster", c.asked}, {"lacks", c.lacks()}};
    if (c.refused.empty()) {
      j["nodes"] = c.answer.nodes;
      j["devices"] = c.problem.cluster.devices();
      j["device"] = c.problem.device_names();
      j["dollars_per_hour"] = c.dollars_per_hour();
    }
    j["plan"] = c.has_plan() ? planner::ranked_json(c.problem, c.best()) : Json();
    out["clusters"].push_back(std::move(j));
  }
  return out;
}

// The best plan of each.
void print_clusters(const std::vector<OnCluster>& all, Format format) {
  const auto planned =
      std::find_if(all.begin(), all.end(), [](const OnCluster& c) { return c.refused.empty(); });
  const Scenario& s = planned->problem.scenario;
  if (format != Format::kCsv)
    fmt::print("{}, batch {} x {} tokens, stack {}\n\n", printable(s.name.empty() ? s.model.name : s.name),
               s.training.global_batch, s.training.sequence, printable(planned->problem.stack.name));
  const std::array titles{"cluster", "nodes", "devices", "plan", "step s",
                          "MFU%",    "GiB",   "fits%",   "days", "USD"};
  constexpr std::array kTexts{true, false, false, true, false, false, false, false, false, false};
  std::vector<std::array<std::string, titles.size()>> rows{{}};
  std::copy(titles.begin(), titles.end(), rows[0].begin());
  for (const OnCluster& c : all) {
    auto& row = rows.emplace_back();
    row[0] = printable(c.asked);
    if (!c.refused.empty()) continue;
    row[1] = std::to_string(c.answer.nodes);
    row[2] = std::to_string(c.problem.cluster.devices());
    if (!c.has_plan()) continue;
    const Predicted& p = c.best().predicted;
    const double days = p.days / p.step_time_s;  // of a second of a step
    row[3] = short_name(c.best().plan);
    row[4] = fmt::format("{:.3f}", p.step_time_s);
    row[5] = fmt::format("{:.1f}", 100 * p.mfu);
    row[6] = fmt::format("{:.1f}", static_cast<double>(p.peak_memory_bytes) / kGiB);
    row[7] = fmt::format("{:.0f}", 100 * p.fits_probability);
    row[8] = p.days > 0 ? fmt::format("{:.1f} ({:.1f} to {:.1f})", p.days, days * p.step_time_low_s,
                                      days * p.step_time_high_s)
                        : "-";
    row[9] = p.cost_usd > 0 ? fmt::format("{:.0f}", p.cost_usd) : "-";
  }
  if (format == Format::kCsv || format == Format::kMarkdown) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::string line;
      for (const std::string& cell : rows[r])
        line += format == Format::kMarkdown ? "| " + planner::in_markdown(cell) + " "
                                            : (line.empty() ? "" : ",") + planner::in_csv(cell);
      fmt::print("{}{}", line, format == Format::kMarkdown ? "|\n" : "\r\n");
      if (r > 0 || format == Format::kCsv) continue;
      for (const bool text : kTexts) fmt::print("{}", text ? "|---" : "|--:");
      fmt::print("|\n");
    }
    return;
  }
  std::array<std::size_t, titles.size()> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows[r].size(); ++i)
      line += kTexts[i] ? fmt::format("{:<{}}  ", rows[r][i], widths[i])
                        : fmt::format("{:>{}}  ", rows[r][i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
    if (r > 0 && !all[r - 1].lacks().empty()) fmt::print("  {}\n", printable(all[r - 1].lacks()));
  }
  for (const OnCluster& c : all) {
    if (c.has_plan() && c.dollars_per_hour() == 0 && s.training.tokens > 0)
      fmt::print("{} has no price\n", printable(c.asked));
  }
}

}  // namespace

// A cluster that cannot do what is asked has a row that says so; one that is not there is a mistake.
void compare_clusters(App& app, const PlanAsked& o, const AskedScenario& scenario) {
  std::vector<OnCluster> all;
  std::optional<InputError> first;
  for (const std::string& name : o.scenario.clusters) {
    OnCluster& c = all.emplace_back(OnCluster{.asked = name});
    try {
      c.problem = problem_of(o, on_cluster(scenario, name), app.data);
    } catch (const InputError& e) {
      if (e.where().starts_with("/cluster/topology")) throw;
      c.refused = e.what();
      if (!first) first = e;
    }
  }
  if (std::all_of(all.begin(), all.end(), [](const OnCluster& c) { return !c.refused.empty(); }))
    throw *first;
  for (std::size_t i = 0; i < all.size(); ++i) {
    OnCluster& c = all[i];
    if (!c.refused.empty()) continue;
    const std::string doing = fmt::format("searching {}, {} of {}", printable(c.asked), i + 1, all.size());
    c.answer = answer_to(c.problem, o, doing.c_str());
    c.problem.cluster.nodes = c.problem.scenario.cluster.nodes = c.answer.nodes;
  }
  for (const OnCluster& c : all) {
    if (!c.refused.empty()) continue;
    for (const std::string& note : ignored_limits(c.problem.scenario)) fmt::print(stderr, "note: {}\n", note);
    break;
  }
  const auto order = [](const OnCluster& c) {
    return std::tuple(!c.answered(), c.has_plan() && c.best().risky(), c.answered() ? wanted_less(c) : 0);
  };
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  if (!o.report.empty()) {
    std::vector<planner::ClusterAnswer> answers;
    for (const OnCluster& c : all)
      answers.push_back({c.asked, c.lacks(), c.refused.empty() ? &c.problem : nullptr,
                         c.refused.empty() ? &c.answer : nullptr});
    save_text(o.report, planner::clusters_page(answers, app.command));
  }
  if (o.format == Format::kJson)
    print_json(to_json(all));
  else
    print_clusters(all, o.format.value_or(Format::kTable));
  if (!all.front().answered()) app.exit = ExitCode::kNoPlanFits;
}

}  // namespace orrery::cli
