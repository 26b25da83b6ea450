// SPDX-License-Identifier: Apache-2.0
//
// A page of HTML that needs nothing else: headings, tiles, lists, tables and bars as SVG. Texts are escaped.
// Internal to the reports (answer.h).
//
//   Page page("llama-3.1-8b on p5");
//   page.table({"", "plan"}, {{"1", "TP2 DP8"}}, {1});
//   save_text("report.html", std::move(page).finished("orrery plan scenario.json"));
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace orrery::planner {

std::string escaped(std::string_view text);
// "3,220,735"
std::string grouped(double x);

// Bars of parts, one below the other, on one scale.
struct Bar {
  std::string label, value;
  std::vector<double> parts;  // by Bars::parts
};
struct Bars {
  std::vector<std::string> parts;  // at most kMostBarParts
  std::vector<Bar> bars;
  double limit = 0;  // a line across all bars; 0: none
  std::string limit_label;
};
inline constexpr std::size_t kMostBarParts = 14;  // that have colours of their own

class Page {
 public:
  explicit Page(const std::string& title);
  void html(const std::string& text) { out_ += text; }
  void section(const std::string& title);  // of several heads
  void head(const std::string& title);
  void faint(const std::string& text);
  void paragraph(const std::string& text);
  void tile(const std::string& value, const std::string& name);
  void list(const std::vector<std::string>& lines);
  // The first column, and those of `left`, are texts.
  void table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows,
             const std::vector<std::size_t>& left = {});
  // Nothing where all parts are zero.
  void bars(const Bars& bars, const std::string& title);
  // `command`: that made the page.
  std::string finished(const std::string& command) &&;

 private:
  std::string out_;
};

}  // namespace orrery::planner
