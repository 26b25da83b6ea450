// SPDX-License-Identifier: Apache-2.0
//
// orrery flight-recorder: which rank holds the others up, from dumps of PyTorch's flight recorder.
#include "trace/flight_recorder.h"

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/traces.h"
#include "core/text.h"

namespace orrery::cli {
namespace {

// "0 to 2, 5"
std::string ranks_in_words(const std::vector<std::int64_t>& ranks) {
  std::string out;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!out.empty()) out += ", ";
    out += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{} to {}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return out;
}

void print_group(const trace::StuckGroup& g, bool timed) {
  const std::string described =
      g.group.description.empty() ? "" : fmt::format(" \"{}\"", printable(g.group.description));
  fmt::print("group {}{} of {}: stuck at {} number {}, {}\n", printable(g.group.name), described,
             g.configured ? counted(g.group.ranks.size(), "rank", "ranks") : "members that no dump names",
             printable(g.name), g.sequence, printable(g.what));
  if (!g.missing.empty()) fmt::print("  have not called it: {}\n", ranks_in_words(g.missing));
  for (const auto& [rank, what] : g.others) fmt::print("  rank {} called {}\n", rank, printable(what));
  if (!g.waiting.empty()) fmt::print("  wait in it: {}\n", ranks_in_words(g.waiting));
  if (timed && !g.waiting.empty())
    fmt::print("  devices that have begun it: {}\n",
               g.begun.empty() ? "none" : "those of " + ranks_in_words(g.begun));
  if (!g.no_dump.empty()) fmt::print("  wrote no dump: {}\n", ranks_in_words(g.no_dump));
  if (!g.lost.empty())
    fmt::print("  the recorder does not reach back so far on: {}\n", ranks_in_words(g.lost));
  if (g.configured && g.missing.empty() && g.others.empty() && g.no_dump.empty() && g.lost.empty())
    fmt::print("  all members have called it: a device or the network does not finish it\n");
}

void print_conclusion(const trace::Hang& hang) {
  if (!hang.look_at.empty())
    fmt::print("look first at: {} (others wait for {}, and {} in no call)\n", ranks_in_words(hang.look_at),
               hang.look_at.size() == 1 ? "it" : "them", hang.look_at.size() == 1 ? "it waits" : "they wait");
  else if (!hang.circle.empty())
    fmt::print("ranks {} wait for each other: compare the order of their calls\n",
               ranks_in_words(hang.circle));
}

Json to_json(const trace::Hang& hang) {
  Json out = {{"schema", "orrery.flight-recorder/1"},
              {"look_at", hang.look_at},
              {"circle", hang.circle},
              {"groups", Json::array()},
              {"transfers", Json::array()}};
  for (const trace::StuckTransfer& t : hang.transfers) {
    Json& row = out["transfers"].emplace_back();
    row = {{"rank", t.rank}, {"group", t.group}, {"call", t.name}};
    if (t.peer) row["peer"] = *t.peer;
  }
  for (const trace::StuckGroup& g : hang.groups) {
    Json others = Json::array();
    for (const auto& [rank, what] : g.others) others.push_back({{"rank", rank}, {"called", what}});
    out["groups"].push_back({{"group", g.group.name},
                             {"description", g.group.description},
                             {"ranks", g.group.ranks},
                             {"call", g.name},
                             {"number", g.sequence},
                             {"of", g.what},
                             {"missing", g.missing},
                             {"waiting", g.waiting},
                             {"begun", g.begun},
                             {"others", others},
                             {"no_dump", g.no_dump},
                             {"lost", g.lost}});
  }
  return out;
}

void execute(const App& app, const std::vector<std::string>& files) {
  std::vector<trace::RankDump> dumps;
  for (const std::string& file : files) dumps.push_back(trace::load_dump(file));
  const trace::Hang hang = trace::find_hang(dumps);
  if (app.json) return print_json(to_json(hang));
  if (hang.groups.empty() && hang.transfers.empty()) {
    fmt::print("{}: every call has completed\n", counted(dumps.size(), "dump", "dumps"));
    return;
  }
  for (const trace::StuckGroup& g : hang.groups) print_group(g, hang.timed);
  for (const trace::StuckTransfer& t : hang.transfers)
    fmt::print("rank {} waits in {} of group {}{}\n", t.rank, printable(t.name), printable(t.group),
               t.peer ? fmt::format(", for rank {}", *t.peer) : "");
  print_conclusion(hang);
}

}  // namespace

void add_flight_recorder(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "flight-recorder",
                                 "which rank holds the others up, from PyTorch's flight recorder");
  auto files = std::make_shared<std::vector<std::string>>();
  command
      ->add_option("dumps", *files,
                   "of each rank, as pickles or JSON; names end with the rank, as in nccl_trace_rank_3")
      ->required();
  command->callback([&app, files] { execute(app, *files); });
}

}  // namespace orrery::cli
