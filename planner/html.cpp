// SPDX-License-Identifier: Apache-2.0
#include "planner/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/text.h"

namespace orrery::planner {
namespace {

// Colours that colour-blind readers tell apart (Okabe and Ito 2008), then greys.
constexpr std::array<const char*, kMostBarParts> kColours{
    "#0072b2", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#f0e442",
    "#7f7f7f", "#b0b0b0", "#505050", "#8c6bb1", "#a6761d", "#1b9e77", "#e7298a"};

constexpr const char* kStyle = R"(
:root { --back: #ffffff; --text: #1b1f24; --faint: #59636e; --line: #d1d9e0; --panel: #f6f8fa; --mark: #0072b2 }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --text: #e6edf3; --faint: #9198a1; --line: #3d444d; --panel: #151b23; --mark: #56b4e9 } }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1080px; padding: 24px }
h1 { font-size: 24px; margin: 0 0 4px } h1.section { border-top: 2px solid var(--line); margin-top: 48px; padding-top: 16px }
h2 { font-size: 18px; margin: 32px 0 8px }
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

}  // namespace

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

std::string grouped(double x) {
  std::string out = fmt::format("{:.0f}", x);
  for (std::size_t at = out.size(); at > 3 + (out[0] == '-' ? 1 : 0); at -= 3) out.insert(at - 3, ",");
  return out;
}

Page::Page(const std::string& title) {
  out_ = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>{0}</title><style>{1}</style></head><body>\n<h1>{0}</h1>\n",
      escaped(title), kStyle);
}

void Page::section(const std::string& title) {
  out_ += fmt::format("<h1 class=\"section\">{}</h1>\n", escaped(title));
}

void Page::faint(const std::string& text) {
  out_ += fmt::format("<p class=\"faint\">{}</p>\n", escaped(text));
}

void Page::paragraph(const std::string& text) {
  out_ += fmt::format("<p>{}</p>\n", escaped(text));
}

void Page::head(const std::string& title) {
  out_ += fmt::format("<h2>{}</h2>\n", escaped(title));
}

void Page::tile(const std::string& value, const std::string& name) {
  out_ += fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escaped(value), escaped(name));
}

void Page::list(const std::vector<std::string>& lines) {
  out_ += "<ul>\n";
  for (const std::string& line : lines) out_ += fmt::format("<li>{}</li>\n", escaped(line));
  out_ += "</ul>\n";
}

void Page::table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows,
                 const std::vector<std::size_t>& left) {
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
void Page::bars(const Bars& b, const std::string& title) {
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
  if (most <= 0) return;
  const double scale = (kWidth - kLabels - kValues) / most;
  const double height = kTop + kRow * static_cast<double>(b.bars.size()) + 6;
  std::string& out = out_ += "<p class=\"legend\">";
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
  out += "</svg>\n";
}

std::string Page::finished(const std::string& command) && {
  return std::move(out_) +
         fmt::format("<p class=\"faint\">Made by <code>{}</code></p>\n</body></html>\n", escaped(command));
}

}  // namespace orrery::planner
