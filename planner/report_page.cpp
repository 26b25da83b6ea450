// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "core/text.h"
#include "planner/answer.h"
#include "planner/evaluate.h"
#include "planner/families.h"
#include "planner/html.h"
#include "planner/loading.h"
#include "planner/risk.h"
#include "planner/words.h"

namespace orrery::planner {
namespace {

double gib(std::int64_t bytes) {
  return static_cast<double>(bytes) / kGiB;
}

// "15 T", "300 G"
std::string tokens_of(double n) {
  return n >= 1e12 ? fmt::format("{:.4g} T", n / 1e12) : fmt::format("{:.4g} G", n / 1e9);
}

Bars steps_of(const Answer& a) {
  static_assert(4 + kWaitedAxes.size() + 4 <= kMostBarParts);
  Bars out;
  out.parts = {"forward", "backward", "recomputation", "optimizer"};
  for (const WaitedAxis& axis : kWaitedAxes) out.parts.emplace_back(axis.words);
  for (const char* part : {"host", "loading", "islands", "documents"}) out.parts.emplace_back(part);
  for (const Ranked& r : a.plans) {
    const Breakdown& b = r.predicted.breakdown;
    Bar bar{short_name(r.plan),
            fmt::format("{:.3g} s", r.predicted.step_time_s),
            {b.forward_s, b.backward_s, b.recompute_s, b.optimizer_s}};
    bar.parts.insert(bar.parts.end(), b.exposed_s.begin(), b.exposed_s.end());
    for (const double part : {b.host_s, b.loading_s, b.islands_s, b.documents_s}) bar.parts.push_back(part);
    out.bars.push_back(std::move(bar));
  }
  return out;
}

// Of stages that are alike the first.
Bars memory_of(const Ranked& r) {
  Bars out;
  out.parts = {"parameters",
               "gradients",
               "optimizer",
               "activations",
               "workspace",
               "communication",
               "context, communicators and allocator"};
  out.limit = gib(r.capacity.value);
  out.limit_label = fmt::format("{:.1f} GiB to use", out.limit);
  std::vector<double> before;
  for (const StageMemory& m : r.predicted.memory) {
    Bar bar{fmt::format("stage {}", m.stage),
            fmt::format("{:.1f} GiB", gib(m.total)),
            {gib(m.parameter), gib(m.gradient), gib(m.optimizer), gib(m.activation), gib(m.workspace),
             gib(m.communication), gib(m.overhead)}};
    if (bar.parts == before) continue;
    before = bar.parts;
    out.bars.push_back(std::move(bar));
  }
  return out;
}

std::vector<std::string> cells_of(const std::string& as, const Ranked& r) {
  const Predicted& p = r.predicted;
  return {as,
          short_name(r.plan),
          fmt::format("{:.3f}", p.step_time_s),
          grouped(p.tokens_per_s),
          fmt::format("{:.1f}", 100 * p.mfu),
          fmt::format("{:.1f}", gib(p.peak_memory_bytes)),
          fmt::format("{:.0f}", 100 * p.fits_probability),
          p.days > 0 ? fmt::format("{:.2f}", p.days) : "-",
          p.cost_usd > 0 ? grouped(p.cost_usd) : "-"};
}

void add_plans(Page& page, const Answer& a) {
  std::vector<std::vector<std::string>> rows;
  for (const Row& row : rows_of(a)) rows.push_back(cells_of(row.as, *row.plan));
  page.table({"", "plan", "step s", "tokens/s", "MFU %", "GiB", "fits %", "days", "USD"}, rows, {1});
  std::vector<std::string> others;
  for (std::size_t i = 0; i < a.plans.size(); ++i) {
    for (const Variant& v : a.plans[i].variants)
      others.push_back(fmt::format("plan {} with {}: {:+.1f} %", i + 1, differences(v.plan, a.plans[i].plan),
                                   100 * (v.step_time_s / a.plans[i].predicted.step_time_s - 1)));
  }
  if (others.empty()) return;
  page.html("<details><summary>Others of the same degrees</summary>\n");
  page.list(others);
  page.html("</details>\n");
}

void add_sizes(Page& page, const Answer& a) {
  if (a.sizes.empty()) return;
  page.head("Nodes, days and dollars");
  std::vector<std::vector<std::string>> rows;
  Bars bars;
  bars.parts = {a.sizes.front().days > 0 ? "days of the run" : "seconds of a step"};
  constexpr std::size_t kShown = 24;
  const std::size_t shown = std::min(kShown, a.sizes.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const Size& z = a.sizes[shown == 1 ? 0 : i * (a.sizes.size() - 1) / (shown - 1)];
    const double length = z.days > 0 ? z.days : z.step_time_s;
    bars.bars.push_back({fmt::format("{} nodes", z.nodes), fmt::format("{:.3g}", length), {length}});
    rows.push_back({std::to_string(z.nodes), short_name(z.plan), fmt::format("{:.3f}", z.step_time_s),
                    z.days > 0 ? fmt::format("{:.2f}", z.days) : "-",
                    z.cost_usd > 0 ? grouped(z.cost_usd) : "-"});
  }
  page.bars(bars, "time by number of nodes");
  page.table({"nodes", "fastest plan, by the estimate", "step s", "days", "USD"}, rows, {1});
}

void add_tiles(Page& page, const Problem& problem, const Ranked& best) {
  const Predicted& p = best.predicted;
  const MemoryRange memory = memory_range(p.peak_memory_bytes, problem.spread);
  page.html("<div class=\"tiles\">\n");
  page.tile(fmt::format("{:.3g} s", p.step_time_s),
            fmt::format("a step; 80 %: {:.3g} to {:.3g} s", p.step_time_low_s, p.step_time_high_s));
  page.tile(fmt::format("{:.1f} %", 100 * p.mfu), "model FLOPs utilisation (MFU)");
  page.tile(grouped(p.tokens_per_s), "tokens a second");
  page.tile(fmt::format("{:.1f} GiB", gib(p.peak_memory_bytes)),
            fmt::format("of {:.1f} GiB; 80 %: {:.3g} to {:.3g} GiB; fits with {:.0f} %",
                        gib(fit(problem, best.plan, p).available), memory.low / kGiB, memory.high / kGiB,
                        100 * p.fits_probability));
  if (p.days > 0) {
    const double days = p.days / p.step_time_s;
    page.tile(fmt::format("{:.3g} days", p.days),
              fmt::format("{:.3g} to {:.3g}", days * p.step_time_low_s, days * p.step_time_high_s));
  }
  if (p.cost_usd > 0) page.tile("$" + grouped(p.cost_usd), "of all nodes, for the run");
  page.html("</div>\n");
}

void add_origins(Page& page, const Problem& problem) {
  page.head("Where constants come from");
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& of, const std::map<std::string, std::string>& origin) {
    for (const auto& [field, source] : origin) rows.push_back({of, field, source});
  };
  std::vector<std::string> seen;
  for (const Device& d : problem.devices) {
    if (std::find(seen.begin(), seen.end(), d.name) != seen.end()) continue;
    seen.push_back(d.name);
    add("device " + d.name, d.origin);
  }
  add("cluster " + problem.cluster.name, problem.cluster.origin);
  add("stack " + problem.stack.name, problem.stack.origin);
  page.table({"of", "field", "source"}, rows, {1, 2});
}

// What the model is trained with: "llama-3.1-8b (8.03 G parameters)".
std::string model_words(const Scenario& s) {
  return fmt::format("{} ({:.3g} G parameters)", s.model.name,
                     static_cast<double>(count_parameters(s.model)) / 1e9);
}
std::string batch_words(const Problem& problem) {
  const Training& t = problem.scenario.training;
  return fmt::format("batch of {} sequences of {} tokens, stack {}{}", t.global_batch, t.sequence,
                     problem.stack.name,
                     t.tokens > 0 ? fmt::format(", {} tokens in all", tokens_of(t.tokens)) : "");
}
std::string cluster_words(const Problem& problem) {
  return fmt::format("{} x {} ({})", problem.cluster.nodes, problem.cluster.name, problem.counted_devices());
}
std::string title_of(const Scenario& s) {
  return s.name.empty() ? s.model.name : s.name;
}

void add_plan(Page& page, const Problem& problem, const Answer& a) {
  const Ranked& best = a.plans.front();
  if (!a.unmet.empty()) page.html(fmt::format("<p><b>{}</b></p>\n", escaped(a.unmet)));
  page.html(fmt::format("<p><code>{}</code></p>\n", escaped(short_name(best.plan))));
  page.paragraph(in_words(best.plan, problem.scenario.model));
  add_tiles(page, problem, best);
  page.head("Plans");
  add_plans(page, a);
  page.head("Where a step's time goes");
  page.faint("Seconds of the busiest stage.");
  page.bars(steps_of(a), "where a step's time goes");
  page.head("Memory of the first plan");
  page.faint("GiB of a device at the peak. Of stages that are alike, only the first is shown.");
  page.bars(memory_of(best), "memory by stage");
  page.head("Why");
  page.list(a.why);
  if (best.predicted.loading) page.list(loading_lines(problem, best.plan, *best.predicted.loading));
}

void add_sensitivity(Page& page, const Answer& a) {
  if (a.sensitivity.empty()) return;
  page.head("What would help");
  Bars bars;
  bars.parts = {"speed relative to the first plan"};
  for (const Sensitivity& x : a.sensitivity)
    bars.bars.push_back({x.change, fmt::format("{:.2f}x", x.speedup), {x.speedup}});
  page.bars(bars, "what would help");
}

void add_rejected(Page& page, const Answer& a) {
  if (a.rejected.empty()) return;
  page.head("Rejected");
  std::vector<std::vector<std::string>> rows;
  for (const Rejected& r : a.rejected) rows.push_back({short_name(r.plan), r.reason});
  page.table({"plan", "why"}, rows, {1});
}

void add_assumptions(Page& page, const Problem& problem, const Answer& a) {
  const Scenario& s = problem.scenario;
  page.head("What this assumes, and how wrong it may be");
  const auto& c = a.search.counts;
  std::vector<std::string> lines{
      words_of(problem.measured),
      fmt::format(
          "{} combinations were considered: {} are no plans, {} are proved slower or too large, {} were "
          "costed; {} were simulated, and the estimate was within {:.2f} % of the simulation",
          c.considered, c.invalid, c.bounded, c.costed, a.simulated.size(), 100 * a.largest_gap),
      fmt::format(
          "{:.0f} % of device memory is kept free, and plans are ranked by the time that they exceed with a "
          "probability of {:.0f} %",
          100 * s.search.memory_margin, 100 * s.search.risk)};
  if (const auto limits = stack_limits(problem.stack, s.model, s.training); !limits.empty())
    lines.push_back(fmt::format("not searched: {} has {}", problem.stack.name, fmt::join(limits, "; ")));
  if (const auto advice = learning_rate_advice(problem))
    lines.push_back(
        fmt::format("a learning rate of {:.1e} after {} warm-up steps is a place to begin (GPT-3's table, "
                    "square root of the batch)",
                    advice->learning_rate, advice->warm_up_steps));
  page.list(lines);
}

// All that is known of one cluster.
void add_answer(Page& page, const Problem& problem, const Answer& a) {
  if (a.plans.empty())
    page.html(fmt::format("<p><b>{}</b></p>\n", escaped(why_none(problem, a.search))));
  else
    add_plan(page, problem, a);
  if (!a.trade_off.empty()) page.list({"Not only the cheapest: " + a.trade_off});
  add_sizes(page, a);
  add_sensitivity(page, a);
  add_rejected(page, a);
  add_assumptions(page, problem, a);
  add_origins(page, problem);
}

// The best plan of each cluster, and how long and how dear it is beside the others.
void add_comparison(Page& page, const std::vector<ClusterAnswer>& clusters) {
  std::vector<std::vector<std::string>> rows;
  Bars times, dollars;
  for (const ClusterAnswer& c : clusters) {
    auto& row = rows.emplace_back(std::vector{c.asked});
    if (c.answer != nullptr) {
      row.push_back(std::to_string(c.answer->nodes));
      row.push_back(c.problem->counted_devices());
    }
    if (c.answer == nullptr || c.answer->plans.empty()) {
      row.resize(10, "-");
      row.push_back(c.lacks);
      continue;
    }
    const Ranked& best = c.answer->plans.front();
    const Predicted& p = best.predicted;
    const double length = p.days > 0 ? p.days : p.step_time_s, each = length / p.step_time_s;
    for (std::string& cell : std::vector{
             short_name(best.plan), fmt::format("{:.3f}", p.step_time_s), fmt::format("{:.1f}", 100 * p.mfu),
             fmt::format("{:.1f}", gib(p.peak_memory_bytes)), fmt::format("{:.0f}", 100 * p.fits_probability),
             p.days > 0 ? fmt::format("{:.1f} ({:.1f} to {:.1f})", p.days, each * p.step_time_low_s,
                                      each * p.step_time_high_s)
                        : "-",
             p.cost_usd > 0 ? grouped(p.cost_usd) : "-", c.lacks})
      row.push_back(std::move(cell));
    times.parts = {p.days > 0 ? "days of the run" : "seconds of a step"};
    times.bars.push_back({c.asked, fmt::format("{:.3g}", length), {length}});
    if (p.cost_usd > 0) dollars.bars.push_back({c.asked, "$" + grouped(p.cost_usd), {p.cost_usd}});
  }
  page.table(
      {"cluster", "nodes", "devices", "plan", "step s", "MFU %", "GiB", "fits %", "days (80 %)", "USD", ""},
      rows, {2, 3, 10});
  page.head("How long");
  page.bars(times, "time by cluster");
  if (dollars.bars.empty()) return;
  dollars.parts = {"dollars of all nodes, for the run"};
  page.head("What it costs");
  page.bars(dollars, "dollars by cluster");
}

}  // namespace

std::string report_page(const Problem& problem, const Answer& a, const std::string& command) {
  Page page(title_of(problem.scenario));
  page.faint(fmt::format("{} on {}, {}", model_words(problem.scenario), cluster_words(problem),
                         batch_words(problem)));
  add_answer(page, problem, a);
  return std::move(page).finished(command);
}

std::string clusters_page(const std::vector<ClusterAnswer>& clusters, const std::string& command) {
  const auto planned = std::find_if(clusters.begin(), clusters.end(),
                                    [](const ClusterAnswer& c) { return c.answer != nullptr; });
  if (planned == clusters.end()) throw std::logic_error("a page of clusters without an answer");
  const Scenario& s = planned->problem->scenario;
  Page page(title_of(s));
  page.faint(fmt::format("{}, {}", model_words(s), batch_words(*planned->problem)));
  page.head("The best plan of each cluster");
  add_comparison(page, clusters);
  for (const ClusterAnswer& c : clusters) {
    if (c.answer == nullptr) continue;
    page.section(c.asked);
    page.faint(cluster_words(*c.problem));
    add_answer(page, *c.problem, *c.answer);
  }
  return std::move(page).finished(command);
}

}  // namespace orrery::planner
