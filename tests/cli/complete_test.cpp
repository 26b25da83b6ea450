// SPDX-License-Identifier: Apache-2.0
//
// Completions and manual pages know every command and option that --help shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "tests/cli/command.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.insert(line);
  return out;
}

std::set<std::string> complete(const std::string& words) {
  const Output o = orrery("complete -- " + words);
  EXPECT_EQ(o.code, 0) << o.out;
  return lines_of(o.out);
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Complete, EveryCommandAndOptionOfTheHelp) {
  const TemporaryFolder folder;
  const std::string pages = folder.file("man");
  ASSERT_EQ(orrery("man --folder " + pages).code, 0);
  int commands = 0, options = 0;
  for (const auto& entry : fs::directory_iterator(pages)) {
    // orrery-model-show.1; names of commands have hyphens too.
    const std::string page = entry.path().stem().string();
    const std::string text = text_of(entry.path());
    const std::string start = ".B orrery";
    const std::size_t at = text.find("\n" + start) + 1 + start.size();
    std::string words = text.substr(at, text.find('\n', at) - at);
    words = std::regex_replace(words, std::regex("\\\\-"), "-");
    const Output help = orrery(words + " --help");
    ASSERT_EQ(help.code, 0) << page;
    std::string plain = std::regex_replace(text, std::regex("\\\\-"), "-");
    const std::set<std::string> completed = complete(words + " --.");
    // Options of the list, not those that texts name.
    std::set<std::string> listed;
    std::istringstream lines(help.out);
    for (std::string line; std::getline(lines, line);) {
      if (std::smatch m; std::regex_search(line, m, std::regex("^  (?:-[a-zA-Z],)?(--[a-z][a-z0-9-]*)")))
        listed.insert(m[1]);
    }
    EXPECT_FALSE(listed.empty()) << words;
    for (const std::string& option : listed) {
      EXPECT_TRUE(completed.contains(option)) << words << " " << option;
      EXPECT_NE(plain.find(option), std::string::npos) << page << " " << option;
      ++options;
    }
    EXPECT_EQ(completed, listed) << words;
    ++commands;
  }
  EXPECT_GE(commands, 20);
  EXPECT_GE(options, 150);
  EXPECT_EQ(orrery("man plan").out, text_of(fs::path(pages) / "orrery-plan.1"));
}

// Requests of man(7) alone; no line of a text begins with a dot.
TEST(Complete, ManualPagesAreRoff) {
  const std::set<std::string> known{".TH", ".SH", ".TP", ".B", ".I", ".BR"};
  for (const char* words : {"", "plan", "model show", "schema"}) {
    const Output o = orrery(std::string("man ") + words);
    ASSERT_EQ(o.code, 0) << o.out;
    std::istringstream in(o.out);
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with('.')) {
        EXPECT_TRUE(known.contains(line.substr(0, line.find(' ')))) << line;
      }
      EXPECT_EQ(line.find("--"), std::string::npos) << line;  // a hyphen may be typed: \-
    }
  }
  const Output wrong = orrery("man plam");
  EXPECT_EQ(wrong.code, 3);
  EXPECT_NE(wrong.out.find("orrery has no command \"plam\""), std::string::npos) << wrong.out;
  EXPECT_NE(wrong.out.find("did you mean \"plan\"?"), std::string::npos) << wrong.out;
}

TEST(Complete, CommandsValuesAndNames) {
  EXPECT_EQ(complete("pl."), std::set<std::string>{"plan"});
  EXPECT_EQ(complete("plan --goal ti."), (std::set<std::string>{"time", "time-in-budget"}));
  EXPECT_EQ(complete("plan --goal=ti."), (std::set<std::string>{"--goal=time", "--goal=time-in-budget"}));
  EXPECT_EQ(complete("plan --goal = ti."),
            (std::set<std::string>{"time", "time-in-budget"}));  // bash's words
  EXPECT_EQ(complete("plan --model llama-3.1-8."), std::set<std::string>{"llama-3.1-8b"});
  EXPECT_EQ(complete("plan --cluster p4de,p5e."), std::set<std::string>{"p4de,p5en"});
  EXPECT_EQ(complete("model sh."), std::set<std::string>{"show"});
  EXPECT_TRUE(complete("plan --json sc.").empty());  // a file's name
  EXPECT_TRUE(complete("plan --output .").empty());
  EXPECT_FALSE(complete(".").contains("complete"));
  EXPECT_TRUE(complete("plan --ris.").contains("--risk"));
}

TEST(Complete, BashAsks) {
  if (shell("bash --version").code != 0) GTEST_SKIP() << "no bash here";
  const auto in_bash = [](const std::string& words, int at) {
    return shell("bash -c 'source <(" ORRERY_BINARY " completion bash); orrery() { " ORRERY_BINARY
                 " \"$@\"; }; COMP_WORDS=(orrery " +
                 words + "); COMP_CWORD=" + std::to_string(at) +
                 "; _orrery; printf \"%s\\n\" \"${COMPREPLY[@]}\"'")
        .out;
  };
  EXPECT_EQ(in_bash("si", 1), "simulate\n");
  EXPECT_EQ(in_bash("plan --sta", 2), "--stack\n");
  EXPECT_EQ(in_bash("plan \"\"", 2), "\n");
  for (const char* name : {"zsh", "fish"}) {
    const Output o = orrery(std::string("completion ") + name);
    EXPECT_EQ(o.code, 0);
    EXPECT_NE(o.out.find(" complete -- "), std::string::npos) << o.out;
  }
  EXPECT_EQ(orrery("completion tcsh").code, 3);
}

// "orrery 0.1.0 (79b4a1d)"; of what is no checkout of git, without the commit.
TEST(Complete, VersionNamesTheCommit) {
  const Output o = orrery("--version");
  EXPECT_EQ(o.code, 0);
  EXPECT_TRUE(
      std::regex_match(o.out, std::regex("orrery [0-9]+\\.[0-9]+\\.[0-9]+( \\([0-9a-f]{7,}\\+?\\))?\n")))
      << o.out;
}

}  // namespace
}  // namespace orrery
