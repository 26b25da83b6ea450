// SPDX-License-Identifier: Apache-2.0
//
// A scenario from options and answers.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <iostream>

#include "cli/scenario_options.h"
#include "core/text.h"

namespace orrery::cli {
namespace {

struct NewAsked {
  ScenarioAsked scenario;
  std::string output = "-";
  bool ask = false;
};

template <class T>
std::function<bool(const std::string&)> number(std::optional<T>& to) {
  return [&to](const std::string& text) {
    double value = 0;
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (wrong != std::errc() || end != text.data() + text.size()) return false;
    if (!(value >= 1 && value < 1e18) || value != std::floor(value)) return false;
    to = static_cast<T>(value);
    return true;
  };
}

struct Question {
  const char* pointer;  // of the field that the answer is
  const char* text;
  std::function<bool()> answered;                // by an option
  std::function<bool(const std::string&)> take;  // whether it is an answer
  std::function<void()> leave{};                 // there need be none
};

std::vector<Question> questions(ScenarioAsked& o) {
  const auto text = [](std::string& to) {
    return [&to](const std::string& line) {
      to = line;
      return true;
    };
  };
  return {{"/model", "model (a preset of `orrery model show`, or a config.json)",
           [&o] { return !o.model.empty(); }, text(o.model)},
          {"/cluster/topology", "cluster (a topology of `orrery topology show`, or a file)",
           [&o] { return !o.clusters.empty(); },
           [&o](const std::string& line) {
             o.clusters = {line};
             return true;
           }},
          {"/cluster/nodes", "nodes (empty: as many as the topology has)",
           [&o] { return o.nodes.has_value(); }, number(o.nodes), [&o] { o.nodes.reset(); }},
          {"/training/global_batch", "sequences of a step", [&o] { return o.batch.has_value(); },
           number(o.batch)},
          {"/training/sequence", "tokens of a sequence", [&o] { return o.sequence.has_value(); },
           number(o.sequence)},
          {"/training/tokens", "tokens of the whole run, like 15e12 (empty: no days and dollars)",
           [&o] { return o.tokens.has_value(); }, number(o.tokens), [&o] { o.tokens.reset(); }}};
}

constexpr int kMostTries = 20;

// Asks until there is an answer, or none is needed.
void ask(const Question& q) {
  std::string line;
  for (int tries = 0; tries < kMostTries; ++tries) {
    fmt::print(stderr, "{}: ", q.text);
    std::fflush(stderr);
    const bool ended = !std::getline(std::cin, line);
    if (ended && q.leave) return q.leave();
    if (ended)
      throw InputError("standard input", q.pointer, "ended before an answer", "allowed: answers, or options");
    const std::size_t first = line.find_first_not_of(" \t\r");
    line = first == std::string::npos ? "" : line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
    if (line.empty() && q.leave) return q.leave();
    if (!line.empty() && q.take(line)) return;
    fmt::print(stderr, "  \"{}\" is no answer\n", printable(line));
  }
  throw InputError("standard input", q.pointer, fmt::format("{} lines are no answers", kMostTries));
}

// Whether an error is about what a question asks for: at its field, or in the file that was the answer.
bool is_about(const InputError& e, const Question& q, const ScenarioAsked& o) {
  if (e.where() == q.pointer || e.where().starts_with(std::string(q.pointer) + "/")) return true;
  return std::string_view(q.pointer) == "/model" && e.file() == o.model;
}

// What is missing is asked for, and what turns out wrong is asked for again.
AskedScenario answered_scenario(NewAsked& o, const DataFolders& data) {
  const bool asks =
      o.ask || (o.scenario.file.empty() && ::isatty(STDIN_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0);
  const std::vector<Question> all = questions(o.scenario);
  if (asks) {
    const Json file = o.scenario.file.empty() ? Json::object() : load_json(o.scenario.file);
    for (const Question& q : all) {
      if (!q.answered() && !file.contains(Json::json_pointer(q.pointer))) ask(q);
    }
  }
  for (int tries = 0;; ++tries) {
    try {
      AskedScenario scenario = asked_scenario(o.scenario);
      load_asked(o.scenario, scenario, data);
      return scenario;
    } catch (const InputError& e) {
      const auto wrong =
          std::find_if(all.begin(), all.end(), [&](const Question& q) { return is_about(e, q, o.scenario); });
      if (!asks || wrong == all.end() || tries == kMostTries) throw;
      fmt::print(stderr, "  {}\n", printable(e.what()));
      ask(*wrong);
    }
  }
}

}  // namespace

void add_new(CLI::App& parent, App& app) {
  CLI::App* command =
      parent.add_subcommand("new", "writes a scenario, of options and of answers to what they leave open");
  auto o = std::make_shared<NewAsked>();
  add_scenario_options(*command, o->scenario, false);
  command->add_flag("--ask", o->ask, "ask for what is missing, though standard input is no terminal");
  command->add_option("-o,--output", o->output, "file of the scenario; -: standard output")
      ->capture_default_str();
  command->callback([&app, o] {
    const bool shown = o->output == "-";
    if (!shown) require_writable("/output", o->output);
    const Json scenario = as_file(answered_scenario(*o, app.data));
    if (shown)
      print_json(scenario);
    else
      save_json(o->output, scenario);
  });
}

}  // namespace orrery::cli
