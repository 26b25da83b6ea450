// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>

#include "core/text.h"
#include "sim/calibration/score.h"

namespace orrery::sim {
namespace {

constexpr std::size_t kWorst = 20;         // rows that are named
constexpr std::int64_t kLarge = 64 << 20;  // of a message

std::string percent(double fraction) {
  return fmt::format("{:.1f} %", 100 * fraction);
}
std::string signed_percent(double fraction) {
  return (fraction < 0 ? "−" : "+") + percent(std::abs(fraction));
}

// A cell of a table shows a text of a data set as it is.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '|' || c == '<' || c == '*' || c == '`') out += '\\';
    out += c;
  }
  return out;
}

// SVG reads & and < as markup.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else
      out += c;
  }
  return out;
}

struct Quantity {
  const char *name, *title, *unit;
};
constexpr std::array kQuantities = {Quantity{"step_time", "Step time", "s"},
                                    Quantity{"memory", "Peak memory", "bytes"},
                                    Quantity{"time", "Collectives", "s"}};

std::string group_of(const ValidationRow& r, const char* asked) {
  const auto found = r.asked.find(asked);
  return found == r.asked.end() ? std::string() : found->second;
}

// "tensor, pipeline": the ways in which a plan splits a model or its data.
std::string plan_kind(const ValidationRow& r) {
  if (r.knobs.empty()) return {};
  constexpr std::array kWays = {std::pair{"tp", "tensor"}, std::pair{"pp", "pipeline"},
                                std::pair{"cp", "context"}, std::pair{"ep", "experts"}};
  std::vector<std::string> ways;
  for (const auto& [knob, way] : kWays) {
    if (r.knobs.at(knob) != "1") ways.emplace_back(way);
  }
  if (ways.empty()) ways.emplace_back("data alone");
  return fmt::format("{}", fmt::join(ways, ", "));
}

void error_line(std::string& out, const std::string& name, const ErrorSummary& s) {
  if (s.n > 0)
    out += fmt::format("| {} | {} | {} | {} | {} | {:.2f} to {:.2f} |\n", name, s.n, percent(s.mape),
                       signed_percent(s.bias), percent(s.median), s.low, s.high);
}

void error_head(std::string& out, const std::string& of) {
  out += fmt::format(
      "| {} | rows | mean abs. error | bias | median | 80 % of published over predicted |\n"
      "|---|--:|--:|--:|--:|---|\n",
      of);
}

void errors_by(std::string& out, const std::vector<ValidationRow>& rows, const std::string& quantity,
               const std::string& of, const std::function<std::string(const ValidationRow&)>& name) {
  std::map<std::string, std::vector<ValidationRow>> groups;
  for (const ValidationRow& r : rows) {
    if (r.quantity != quantity) continue;
    if (std::string group = name(r); !group.empty()) groups[group].push_back(r);
  }
  if (groups.empty()) return;
  error_head(out, of);
  for (const auto& [group, members] : groups) error_line(out, cell(group), summarise(members, {quantity}));
  out += "\n";
}

void errors(std::string& out, const Validation& all, const Quantity& q) {
  const ErrorSummary total = summarise(all.rows, {q.name});
  if (total.n == 0) return;
  out += fmt::format("## {}\n\n![{}: predicted against published]({}.svg)\n\n", q.title, q.title, q.name);
  error_head(out, "source");
  for (const std::string& source : all.sources())
    error_line(out, cell(source), summarise(all.rows, {q.name, source}));
  error_line(out, "**all**", total);
  error_line(out, "**rows that leave nothing open**", summarise(all.rows, {q.name, {}, true}));
  if (const auto large = summarise(all.rows, {q.name, {}, false, kLarge}); large.n > 0)
    error_line(out, "**messages of 64 MiB or more**", large);
  out += "\n";
  errors_by(out, all.rows, q.name, "GPU", [](const ValidationRow& r) { return group_of(r, "gpu"); });
  errors_by(out, all.rows, q.name, "software",
            [](const ValidationRow& r) { return group_of(r, "software"); });
  errors_by(out, all.rows, q.name, "plan splits", plan_kind);
}

void fits(std::string& out, const Validation& all) {
  const auto f = summarise_fits(all);
  if (!f) return;
  out += fmt::format(
      "## Which plans fit\n\nA plan fits with the probability that a normal distribution gives to the "
      "logarithm "
      "of the memory there is over the memory that is predicted. Of {} runs whose configuration leaves "
      "nothing "
      "open, the logarithm of measured over predicted memory has the mean {:.3f} and the deviation "
      "{:.3f}.\n\n"
      "{} of {} runs that ran out of memory have a probability of fitting below 0.5, {} of {} that ran have "
      "one "
      "above it; the Brier score is {:.3f}.\n\n",
      f->spread.runs, f->spread.mean, f->spread.deviation, f->told, f->out_of_memory, f->fitted_told,
      f->fitted, f->brier);
}

void changes(std::string& out, const Validation& all) {
  const auto by_knob = interventions(all.rows);
  if (by_knob.empty()) return;
  out +=
      "## One knob at a time\n\nPairs of runs of one source that differ in one thing; errors are of the "
      "change of a "
      "sequence's time.\n\n"
      "| knob | pairs | mean error | median | predicted the right way, of changes of 3 % or more |\n"
      "|---|--:|--:|--:|--:|\n";
  for (const auto& [knob, k] : by_knob)
    out += fmt::format("| {} | {} | {} | {} | {} of {} |\n", cell(knob), k.pairs, percent(k.mape),
                       percent(k.median), k.right_way, k.clear);
  out += "\n";
}

void rankings(std::string& out, const Validation& all) {
  const auto of_sources = by_source(rank_plans(all.rows));
  if (of_sources.empty()) return;
  out +=
      "## Which plan is fastest\n\nPlans that one source measured for one question (model, GPUs, network, "
      "software, "
      "batch, "
      "sequence, number format). Regret: how much slower the plan predicted fastest was than the fastest.\n\n"
      "| source | questions | plans | Spearman | mean regret | worst |\n|---|--:|--:|--:|--:|--:|\n";
  for (const auto& [source, s] : of_sources)
    out += fmt::format("| {} | {} | {} | {:.2f} | {} | {} |\n", cell(source), s.questions, s.plans,
                       s.spearman, percent(s.regret), percent(s.worst_regret));
  out += "\n";
}

void worst(std::string& out, const Validation& all) {
  std::vector<const ValidationRow*> rows;
  for (const ValidationRow& r : all.rows) {
    if (r.quantity == "step_time") rows.push_back(&r);
  }
  if (rows.empty()) return;
  const auto off = [](const ValidationRow* r) { return std::abs(std::log(r->predicted / r->published)); };
  std::stable_sort(rows.begin(), rows.end(), [&](const auto* a, const auto* b) { return off(a) > off(b); });
  rows.resize(std::min(rows.size(), kWorst));
  out += "## The worst rows\n\n| row | predicted | published | error | assumed |\n|---|--:|--:|--:|---|\n";
  for (const ValidationRow* r : rows)
    out += fmt::format("| {} | {:.3g} s | {:.3g} s | {} | {} |\n", cell(r->id), r->predicted, r->published,
                       signed_percent(r->error()), cell(fmt::format("{}", fmt::join(r->assumed, ", "))));
  out += "\n";
}

std::string unit_of(const FittedValue& c) {
  return c.unit == "1" ? "" : " " + c.unit;
}

void constants(std::string& out, const PublishedFitFile& fit) {
  if (fit.constants.empty()) return;
  out += fmt::format(
      "## What was fitted\n\n{} constants, to {}, by `orrery calibrate --published` "
      "(profiles/fits/published.json). A standard error of − is of a constant at its bound; what is expected "
      "was "
      "said before any run was seen.\n\n| constant | value | standard error | bounds | expected |\n"
      "|---|--:|--:|---|--:|\n",
      fit.constants.size(), fmt::join(fit.data, ", "));
  for (const FittedValue& c : fit.constants)
    out += fmt::format("| {} | {:.3g}{} | {} | {:.3g} to {:.3g}{} | {:.3g} |\n", cell(c.name), c.value,
                       unit_of(c), c.standard_error == 0 ? "−" : fmt::format("{:.2g}", c.standard_error),
                       c.low, c.high, unit_of(c), c.expected);
  out +=
      "\n## Left out\n\nEach study, predicted with constants that were fitted again to the other studies; a "
      "constant "
      "of a stack or GPU type that one study alone has is then what was expected.\n\n"
      "| study | runs | in-sample | left out | bias left out |\n|---|--:|--:|--:|--:|\n";
  double runs = 0, left_out = 0;
  for (const StudyErrors& s : fit.studies) {
    out += fmt::format("| {} | {} | {} | {} | {} |\n", cell(s.study), s.runs, percent(s.in_sample),
                       percent(s.left_out), signed_percent(s.bias_left_out));
    runs += static_cast<double>(s.runs);
    left_out += static_cast<double>(s.runs) * s.left_out;
  }
  out +=
      fmt::format("| **all** | **{:.0f}** | | **{}** | |\n\n", runs, percent(left_out / std::max(1.0, runs)));
  out +=
      "## How sure\n\n80 % of runs took between these multiples of the prediction, each predicted with "
      "constants fitted without its study, by what other studies had of its stack and GPU type. Runs of a "
      "study that err alike count as fewer; the "
      "last column is the share of runs that lie in the range of the other studies alone.\n\n"
      "| known | runs | range | in the range of the others |\n|---|--:|---|--:|\n";
  for (const MeasuredRange& r : fit.ranges)
    out += fmt::format("| {} | {} | {:.2f} to {:.2f} | {:.0f} % |\n", name_of(r.knowledge), r.runs, r.low,
                       r.high, 100 * r.covered);
  out += fmt::format(
      "\nAgainst each other, {} plans for {} questions spread by {} (standard deviation of the logarithm of "
      "published over predicted about its mean of the question).\n\n",
      fit.plans.plans, fit.plans.questions, percent(fit.plans.deviation));
}

void left_unscored(std::string& out, const Validation& all) {
  if (all.skipped.empty()) return;
  out += "## Not scored\n\n| reason | rows |\n|---|--:|\n";
  for (const auto& [reason, n] : all.skipped) out += fmt::format("| {} | {} |\n", cell(reason), n);
  out += "\n";
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) throw Error(fmt::format("{} cannot be written", file.string()));
}

}  // namespace

std::string scatter_plot(const std::vector<ValidationRow>& rows, const std::string& quantity) {
  constexpr double kSide = 640, kLeft = 70, kTop = 20, kOff = 1.2;
  constexpr std::array kColours = {"#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2",
                                   "#edc948", "#9c755f", "#ff9da7", "#79706e", "#1f3b5c", "#8c4a00",
                                   "#9ecae1", "#d4a6c8", "#b6d7a8", "#000000"};
  double least = std::numeric_limits<double>::infinity(), most = 0;
  std::map<std::string, std::size_t> groups;  // and their colours
  std::vector<const ValidationRow*> shown;
  const auto group = [](const ValidationRow& r) {
    const std::string gpu = group_of(r, "gpu");
    return gpu.empty() ? r.source.substr(0, r.source.find(',')) : gpu;
  };
  for (const ValidationRow& r : rows) {
    if (r.quantity != quantity) continue;
    shown.push_back(&r);
    groups.try_emplace(group(r), 0);
    least = std::min({least, r.predicted, r.published});
    most = std::max({most, r.predicted, r.published});
  }
  if (shown.empty()) return {};
  std::size_t next = 0;
  for (auto& [name, colour] : groups) colour = next++ % kColours.size();
  const double low = std::floor(std::log10(least)), high = std::max(low + 1, std::ceil(std::log10(most)));
  const auto along = [&](double v) { return kSide * (std::log10(v) - low) / (high - low); };
  const auto x = [&](double v) { return kLeft + along(v); };
  const auto y = [&](double v) { return kTop + kSide - along(v); };
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kLeft + kSide + 300, kTop + kSide + 50);
  const auto line = [&](double x1, double y1, double x2, double y2, const char* style) {
    out += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2,
                       style);
  };
  const auto words = [&](double at_x, double at_y, const char* anchor, const std::string& text) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", at_x, at_y, anchor,
                       text);
  };
  for (double e = low; e <= high; ++e) {
    const double v = std::pow(10, e);
    line(x(v), kTop, x(v), kTop + kSide, "stroke=\"#ddd\"");
    line(kLeft, y(v), kLeft + kSide, y(v), "stroke=\"#ddd\"");
    words(x(v), kTop + kSide + 18, "middle", fmt::format("{:g}", v));
    words(kLeft - 8, y(v) + 4, "end", fmt::format("{:g}", v));
  }
  const double first = std::pow(10, low), last = std::pow(10, high);
  line(x(first), y(first), x(last), y(last), "stroke=\"#333\"");
  for (const double off : {kOff, 1 / kOff}) {
    const double from = off > 1 ? first : first / off, to = off > 1 ? last / off : last;
    line(x(from), y(from * off), x(to), y(to * off), "stroke=\"#999\" stroke-dasharray=\"4 4\"");
  }
  for (const ValidationRow* r : shown)
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\" fill-opacity=\"0.6\"/>\n",
                       x(r->published), y(r->predicted), kColours[groups.at(group(*r))]);
  const char* unit = "";
  for (const Quantity& q : kQuantities) {
    if (quantity == q.name) unit = q.unit;
  }
  words(kLeft + kSide / 2, kTop + kSide + 40, "middle", fmt::format("published, {}", unit));
  out += fmt::format(
      "<text x=\"16\" y=\"{0:.1f}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {0:.1f})\">predicted, "
      "{1}"
      "</text>\n",
      kTop + kSide / 2, unit);
  double legend = kTop + 10;
  for (const auto& [name, colour] : groups) {
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"/>\n", kLeft + kSide + 16,
                       legend - 4, kColours[colour]);
    words(kLeft + kSide + 28, legend, "start", escaped(name));
    legend += 18;
  }
  return out + "</svg>\n";
}

void write_report(const Validation& all, const PublishedFitFile& fit, const std::filesystem::path& folder) {
  std::int64_t skipped = 0;
  for (const auto& [reason, n] : all.skipped) skipped += n;
  std::string out = fmt::format(
      "# Predicted against published\n\nWritten by `orrery validate --report`. {} rows read, {} predicted. "
      "An error is "
      "predicted / published − 1.\n\n",
      all.read, all.read - skipped);
  for (const Quantity& q : kQuantities) errors(out, all, q);
  fits(out, all);
  rankings(out, all);
  changes(out, all);
  worst(out, all);
  constants(out, fit);
  left_unscored(out, all);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) throw Error(fmt::format("{} cannot be made: {}", folder.string(), failed.message()));
  for (const Quantity& q : kQuantities) {
    if (const std::string plot = scatter_plot(all.rows, q.name); !plot.empty())
      write(folder / fmt::format("{}.svg", q.name), plot);
  }
  write(folder / "report.md", out);
}

}  // namespace orrery::sim
