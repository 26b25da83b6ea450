// SPDX-License-Identifier: Apache-2.0
//
// The answer in other forms: tables, comma-separated values, a page.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

#include "core/json.h"
#include "tests/cli/command.h"

namespace orrery {
namespace {

const std::string kAsked =
    "plan --model llama-2-7b --cluster p5 --nodes 1 --batch 64 --sequence 4096 --tokens 1e11 --top 3 ";

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

// Every form has the numbers of the JSON.
TEST(Answer, FormsAgree) {
  const Output json = orrery(kAsked + "--format json 2>/dev/null"),
               csv = orrery(kAsked + "--format csv 2>/dev/null"),
               markdown = orrery(kAsked + "--format markdown 2>/dev/null");
  ASSERT_EQ(json.code, 0) << json.out;
  ASSERT_EQ(csv.code, 0) << csv.out;
  const Json j = parse_json(json.out, "out");
  std::istringstream lines(csv.out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  ASSERT_TRUE(line.ends_with('\r'));
  line.pop_back();
  const std::vector<std::string> names = cells_of(line);
  const auto column = [&](const char* name) {
    return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  for (const Json& plan : j["plans"]) {
    ASSERT_TRUE(std::getline(lines, line));
    const std::vector<std::string> cells = cells_of(line.substr(0, line.size() - 1));
    ASSERT_EQ(cells.size(), names.size()) << line;
    EXPECT_EQ(cells[column("plan")], plan["name"]);
    EXPECT_EQ(std::stoll(cells[column("dp")]), plan["dp"].get<std::int64_t>());
    EXPECT_NEAR(std::stod(cells[column("step_time_s")]), plan["predicted"]["step_time_s"].get<double>(),
                1e-8);
    EXPECT_NEAR(std::stod(cells[column("cost_usd")]), plan["predicted"]["cost_usd"].get<double>(), 0.01);
    EXPECT_NE(markdown.out.find("| " + plan["name"].get<std::string>() + " |"), std::string::npos);
  }
  EXPECT_NE(markdown.out.find("The first plan: " + j["in_words"].get<std::string>()), std::string::npos);
}

// All tags are closed, and nothing comes from elsewhere.
void expect_whole(const std::string& page) {
  EXPECT_EQ(page.find("http:"), page.find("http://www"));  // origins may name addresses; nothing is loaded
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("<link"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z0-9]+)[^>]*?(/?)>");
  for (std::sregex_iterator i(page.begin(), page.end(), tag), end; i != end; ++i) {
    const std::string name = (*i)[2];
    if ((*i)[3] == "/" || name == "meta") continue;
    if ((*i)[1] == "/") {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), name) << i->position();
      open.pop_back();
    } else {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
}

// One page that needs nothing else, with the numbers of the answer.
TEST(Answer, ReportIsOnePage) {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  const Output o = orrery(kAsked + "--format json --report " + file + " 2>/dev/null");
  ASSERT_EQ(o.code, 0) << o.out;
  const Json j = parse_json(o.out, "out");
  std::ifstream in(file);
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  for (const Json& plan : j["plans"])
    EXPECT_NE(page.find(plan["name"].get<std::string>()), std::string::npos);
  EXPECT_NE(page.find("plan --model llama-2-7b --cluster p5"), std::string::npos);
  expect_whole(page);
}

// A row and a chapter for each cluster, in the order of the answer; one that cannot be planned says why.
TEST(Answer, ReportComparesClusters) {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  const std::string asked = "plan --model llama-3.2-3b --nodes 2 --batch 64 --sequence 4096 --tokens 1e10 ";
  const Output o =
      orrery(asked + "--cluster p4d,p5,laptop-cpu --top 1 --format json --report " + file + " 2>/dev/null");
  ASSERT_EQ(o.code, 0) << o.out;
  const Json clusters = parse_json(o.out, "out")["clusters"];
  std::ifstream in(file);
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  expect_whole(page);
  std::size_t at = page.find("The best plan of each cluster");
  ASSERT_NE(at, std::string::npos);
  for (const Json& c : clusters) {
    const std::size_t row =
        page.find("<td class=\"left wrap\">" + c["cluster"].get<std::string>() + "</td>", at);
    ASSERT_NE(row, std::string::npos) << c["cluster"];
    const std::string text = page.substr(row, page.find("</tr>", row) - row);
    if (c["plan"].is_null()) {
      EXPECT_FALSE(c["lacks"].get<std::string>().empty());
      EXPECT_NE(text.find("<td>-</td>"), std::string::npos) << text;
    } else {
      EXPECT_NE(text.find(c["plan"]["name"].get<std::string>()), std::string::npos) << text;
      const std::string chapter = "<h1 class=\"section\">" + c["cluster"].get<std::string>() + "</h1>";
      EXPECT_NE(page.find(chapter, row), std::string::npos);
    }
    at = row;
  }
  EXPECT_EQ(clusters[0]["cluster"], "p5");
  EXPECT_NE(page.find("aria-label=\"dollars by cluster\""), std::string::npos);
  // Refused before anything is searched.
  EXPECT_EQ(orrery(asked + "--cluster p4d,p5 --report -").code, 3);
  EXPECT_EQ(orrery(asked + "--cluster p4d,p5 --report " + folder.file("none/report.html")).code, 3);
}

// What a file says is text in a page, not markup.
TEST(Answer, ReportShowsNamesAsTheyAre) {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html"), named = folder.file("s.json");
  Json s = load_json(scenario("tiny-cpu"));
  s["name"] = "<script>alert(1)</script> & \"more\"";
  save_json(named, s);
  ASSERT_EQ(orrery("plan " + named + " --report " + file).code, 0);
  std::ifstream in(file);
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;more&quot;"), std::string::npos);
}

TEST(Answer, RefusesWhatDoesNotGoTogether) {
  const auto problem = [](const std::string& arguments) {
    const Output o = orrery("plan " + scenario("tiny-cpu") + " " + arguments);
    EXPECT_EQ(o.code, 3) << arguments;
    return o.out;
  };
  EXPECT_NE(problem("--json --format csv").find("csv is not what --json asks for"), std::string::npos);
  EXPECT_NE(problem("--format cvs").find("did you mean \"csv\"?"), std::string::npos);
  EXPECT_NE(problem("--report /nowhere/at/all.html").find("cannot be written"), std::string::npos);
}

TEST(Answer, ClustersInOtherForms) {
  const std::string asked =
      "plan --model llama-2-7b --cluster p4de,p5 --nodes 1 --batch 64 --sequence 4096 --top 1 2>/dev/null "
      "--format ";
  const Output csv = orrery(asked + "csv"), markdown = orrery(asked + "markdown");
  EXPECT_TRUE(csv.out.starts_with("cluster,nodes,devices,plan,step s,")) << csv.out;
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 3);
  EXPECT_NE(markdown.out.find("|---|--:|--:|---|"), std::string::npos) << markdown.out;
  EXPECT_NE(markdown.out.find("| p5 |"), std::string::npos);
}

}  // namespace
}  // namespace orrery
