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
#include "planner/loading.h"
#include "planner/risk.h"
#include "planner/words.h"

namespace orrery::planner {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

double gib(std::int64_t bytes) {
  return static_cast<double>(bytes) / kGiB;
}

// Colours that colour-blind readers tell apart (Okabe and Ito 2008), then greys.
constexpr std::array kColours{"#0072b2", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#f0e442",
                              "#7f7f7f", "#b0b0b0", "#505050", "#8c6bb1", "#a6761d", "#1b9e77"};

constexpr const char* kStyle = R"(
:root { --back: #ffffff; --text: #1b1f24; --faint: #59636e; --line: #d1d9e0; --panel: #f6f8fa; --mark: #0072b2 }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --text: #e6edf3; --faint: #9198a1; --line: #3d444d; --panel: #151b23; --mark: #56b4e9 } }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1080px; padding: 24px }
h1 { font-size: 24px; margin: 0 0 4px } h2 { font-size: 18px; margin: 32px 0 8px }
.faint { color: var(--faint) } .tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0 }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 10px 14px; min-width: 120px }
.tile b { display: block; font-size: 20px } .tile span { color: var(--faint); font-size: 13px }
table { border-collapse: collapse; width: 100%; font-size: 13px } .wide { overflow-x: auto }
th, td { border-bottom: 1px solid var(--line); padding: 4px 8px; text-align: right; white-space: nowrap }
th { color: var(--faint); font-weight: 600 } .left { text-align: left } .wrap { white-space: normal }
code { background: var(--panel); border: 1px solid var(--line); border-radius: 4px; padding: 1px 4px; font-size: 13px }
svg { width: 100%; height: auto } svg text { fill: var(--text); font: 12px system-ui, sans-serif }
svg .axis { stroke: var(--line) } svg .limit { stroke: var(--text); stroke-dasharray: 4 3 }
.legend span { display: inline-block; margin-right: 14px; font-size: 13px }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px })";

// "3,220,735"
std::string grouped(double x) {
  std::string out = fmt::format("{:.0f}", x);
  for (std::size_t at = out.size(); at > 3 + (out[0] == '-' ? 1 : 0); at -= 3) out.insert(at - 3, ",");
  return out;
}
// "15 T", "300 G"
std::string tokens_of(double n) {
  return n >= 1e12 ? fmt::format("{:.4g} T", n / 1e12) : fmt::format("{:.4g} G", n / 1e9);
}

// Bars of parts, one below the other, on one scale.
struct Bar {
  std::string label, value;
  std::vector<double> parts;  // by Bars::parts
};
struct Bars {
  std::vector<std::string> parts;
  std::vector<Bar> bars;
  double limit = 0;  // a line across all bars; 0: none
  std::string limit_label;
};

std::string drawn(const Bars& b, const std::string& title) {
  constexpr double kLabels = 330, kWidth = 1000, kValues = 90, kRow = 26, kTop = 22;
  double most = b.limit;
  std::vector<bool> used(b.parts.size());
  for (const Bar& bar : b.bars) {
    double sum = 0;
    for (std::size_t i = 0; i < bar.parts.size(); ++i) {
      sum += bar.parts[i];
      used[i] = used[i] || bar.parts[i] > 0;
    }
    most = std::max(most, sum);
  }
  if (most <= 0) return {};
  const double scale = (kWidth - kLabels - kValues) / most;
  const double height = kTop + kRow * static_cast<double>(b.bars.size()) + 6;
  std::string out = "<p class=\"legend\">";
  for (std::size_t i = 0; i < b.parts.size(); ++i) {
    if (used[i])
      out += fmt::format("<span><i style=\"background:{}\"></i>{}</span>", kColours[i % kColours.size()],
                         escaped(b.parts[i]));
  }
  out += fmt::format("</p><svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth, height,
                     escaped(title));
  double y = kTop;
  for (const Bar& bar : b.bars) {
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", kLabels - 8, y + 15,
                       escaped(shortened(bar.label, 44)));
    double x = kLabels;
    for (std::size_t i = 0; i < bar.parts.size(); ++i) {
      const double width = bar.parts[i] * scale;
      if (width <= 0) continue;
      out += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"18\" fill=\"{}\"><title>{}: "
          "{:.4g}</title></rect>",
          x, y, width, kColours[i % kColours.size()], escaped(b.parts[i]), bar.parts[i]);
      x += width;
    }
    out += fmt::format("<text x=\"{:.2f}\" y=\"{}\">{}</text>", x + 6, y + 14, escaped(bar.value));
    y += kRow;
  }
  if (b.limit > 0) {
    const double x = kLabels + b.limit * scale;
    out += fmt::format(
        "<line class=\"limit\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"14\" y2=\"{1}\"/><text x=\"{0:.2f}\" "
        "y=\"11\" "
        "text-anchor=\"middle\">{2}</text>",
        x, height, escaped(b.limit_label));
  }
  return out + "</svg>";
}

Bars steps_of(const Answer& a) {
  static_assert(4 + kWaitedAxes.size() + 3 <= kColours.size());
  Bars out;
  out.parts = {"forward", "backward", "recomputation", "optimizer"};
  for (const WaitedAxis& axis : kWaitedAxes) out.parts.emplace_back(axis.words);
  for (const char* part : {"host", "loading", "islands"}) out.parts.emplace_back(part);
  for (const Ranked& r : a.plans) {
    const Breakdown& b = r.predicted.breakdown;
    Bar bar{short_name(r.plan),
            fmt::format("{:.3g} s", r.predicted.step_time_s),
            {b.forward_s, b.backward_s, b.recompute_s, b.optimizer_s}};
    bar.parts.insert(bar.parts.end(), b.exposed_s.begin(), b.exposed_s.end());
    for (const double part : {b.host_s, b.loading_s, b.islands_s}) bar.parts.push_back(part);
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

class Page {
 public:
  void text(const std::string& html) { out_ += html; }
  void head(const std::string& title) { out_ += fmt::format("<h2>{}</h2>\n", escaped(title)); }
  void tile(const std::string& value, const std::string& name) {
    out_ +=
        fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escaped(value), escaped(name));
  }
  void list(const std::vector<std::string>& lines) {
    out_ += "<ul>\n";
    for (const std::string& line : lines) out_ += fmt::format("<li>{}</li>\n", escaped(line));
    out_ += "</ul>\n";
  }
  // The first column, and those of `left`, are texts.
  void table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows,
             const std::vector<std::size_t>& left = {}) {
    const auto align = [&](std::size_t column) {
      return column == 0 || std::find(left.begin(), left.end(), column) != left.end() ? " class=\"left wrap\""
                                                                                      : "";
    };
    out_ += "<div class=\"wide\"><table><thead><tr>";
    for (std::size_t i = 0; i < titles.size(); ++i)
      out_ += fmt::format("<th{}>{}</th>", align(i), escaped(titles[i]));
    out_ += "</tr></thead><tbody>\n";
    for (const auto& row : rows) {
      out_ += "<tr>";
      for (std::size_t i = 0; i < row.size(); ++i)
        out_ += fmt::format("<td{}>{}</td>", align(i), escaped(row[i]));
      out_ += "</tr>\n";
    }
    out_ += "</tbody></table></div>\n";
  }
  std::string take() && { return std::move(out_); }

 private:
  std::string out_;
};

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
  page.text("<details><summary>Others of the same degrees</summary>\n");
  page.list(others);
  page.text("</details>\n");
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
  page.text(drawn(bars, "time by number of nodes"));
  page.table({"nodes", "fastest plan, by the estimate", "step s", "days", "USD"}, rows, {1});
}

void add_tiles(Page& page, const Problem& problem, const Ranked& best) {
  const Predicted& p = best.predicted;
  const MemoryRange memory = memory_range(p.peak_memory_bytes, problem.spread);
  page.text("<div class=\"tiles\">\n");
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
  page.text("</div>\n");
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

}  // namespace

std::string report_page(const Problem& problem, const Answer& a, const std::string& command) {
  const Scenario& s = problem.scenario;
  const std::string title = s.name.empty() ? s.model.name : s.name;
  Page page;
  page.text(fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>{}</title><style>{}</style></head><body>\n<h1>{}</h1>\n",
      escaped(title), kStyle, escaped(title)));
  page.text(fmt::format(
      "<p class=\"faint\">{} ({:.3g} G parameters) on {} x {} ({}), batch of {} sequences of {} "
      "tokens, stack {}{}</p>\n",
      escaped(s.model.name), static_cast<double>(count_parameters(s.model)) / 1e9, problem.cluster.nodes,
      escaped(problem.cluster.name), escaped(problem.counted_devices()), s.training.global_batch,
      s.training.sequence, escaped(problem.stack.name),
      s.training.tokens > 0 ? fmt::format(", {} tokens in all", tokens_of(s.training.tokens)) : ""));
  if (a.plans.empty()) {
    page.text(fmt::format("<p><b>{}</b></p>\n", escaped(why_none(problem, a.search))));
  } else {
    const Ranked& best = a.plans.front();
    if (!a.unmet.empty()) page.text(fmt::format("<p><b>{}</b></p>\n", escaped(a.unmet)));
    page.text(fmt::format("<p><code>{}</code></p><p>{}</p>\n", escaped(short_name(best.plan)),
                          escaped(in_words(best.plan, s.model))));
    add_tiles(page, problem, best);
    page.head("Plans");
    add_plans(page, a);
    page.head("Where a step's time goes");
    page.text("<p class=\"faint\">Seconds of the busiest stage.</p>\n");
    page.text(drawn(steps_of(a), "where a step's time goes"));
    page.head("Memory of the first plan");
    page.text(
        "<p class=\"faint\">GiB of a device at the peak. Of stages that are alike, only the first is "
        "shown.</p>\n");
    page.text(drawn(memory_of(best), "memory by stage"));
    page.head("Why");
    page.list(a.why);
    if (best.predicted.loading) page.list(loading_lines(problem, best.plan, *best.predicted.loading));
  }
  if (!a.trade_off.empty()) page.list({"Not only the cheapest: " + a.trade_off});
  add_sizes(page, a);
  if (!a.sensitivity.empty()) {
    page.head("What would help");
    Bars bars;
    bars.parts = {"speed relative to the first plan"};
    for (const Sensitivity& x : a.sensitivity)
      bars.bars.push_back({x.change, fmt::format("{:.2f}x", x.speedup), {x.speedup}});
    page.text(drawn(bars, "what would help"));
  }
  if (!a.rejected.empty()) {
    page.head("Rejected");
    std::vector<std::vector<std::string>> rows;
    for (const Rejected& r : a.rejected) rows.push_back({short_name(r.plan), r.reason});
    page.table({"plan", "why"}, rows, {1});
  }
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
  add_origins(page, problem);
  page.text(
      fmt::format("<p class=\"faint\">Made by <code>{}</code></p>\n</body></html>\n", escaped(command)));
  return std::move(page).take();
}

}  // namespace orrery::planner
