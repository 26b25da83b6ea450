// SPDX-License-Identifier: Apache-2.0
//
// orrery merge: one timeline of other software's traces.
#include "cli/traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/commands.h"
#include "core/text.h"
#include "sim/analysis/waits.h"
#include "trace/load.h"

namespace orrery::cli {
namespace {

struct MergeAsked {
  std::vector<std::string> traces;
  std::string output;
  std::size_t top = 20;
};

void execute(const App& app, const MergeAsked& o) {
  require_writable("/output", o.output);
  for (const std::string& file : o.traces) {
    std::error_code none;
    if (!o.output.empty() && std::filesystem::equivalent(file, o.output, none))
      throw InputError("command line", "/output", fmt::format("\"{}\" is one of the traces", o.output),
                       "allowed: a file of its own");
  }
  const trace::Loaded loaded = trace::load({o.traces.begin(), o.traces.end()});
  if (loaded.merged.processes.empty())
    throw InputError(o.traces.front(), "/",
                     loaded.merged.timeline.slices.empty() ? "has no slices" : "is a timeline already",
                     "allowed: traces of the PyTorch profiler, Nsight Systems or Chakra");
  const trace::Merged& m = loaded.merged;
  if (!o.output.empty()) save_timeline(o.output, m.timeline);
  if (app.json) {
    Json json = {{"schema", "orrery.merge/1"},
                 {"source", m.timeline.source},
                 {"ranks", m.processes.size()},
                 {"steps", m.steps},
                 {"slices", m.timeline.slices.size()}};
    json.update(json_of(m));
    return print_json(json);
  }
  fmt::print("{}: {}, {}, {}, {}\n", m.timeline.source, counted(m.processes.size(), "rank", "ranks"),
             m.steps > 0 ? counted(static_cast<std::size_t>(m.steps), "step", "steps") : "steps not said",
             counted(m.timeline.slices.size(), "kernel or copy", "kernels and copies"),
             format(m.timeline.length()));
  print_merged(m, o.top);
  if (!o.output.empty())
    fmt::print("{}: open it with orrery-gui, or compare a prediction with it\n", printable(o.output));
}

}  // namespace

std::string counted(std::size_t n, const char* one, const char* many) {
  return fmt::format("{} {}", n, n == 1 ? one : many);
}

std::vector<std::int64_t> ranks_of(const trace::Merged& m) {
  std::vector<std::int64_t> out;
  for (const trace::Process& p : m.processes) out.push_back(p.rank);
  return out;
}

bool tells_waits(const trace::Merged& m) {
  constexpr double kNearlyAll = 0.95;
  std::size_t collectives = 0, whole = 0;
  for (const Slice& s : m.timeline.slices) {
    const OpClass is = m.timeline.classes[static_cast<std::size_t>(s.name)];
    collectives += communicates(is) && is != OpClass::kSendReceive ? 1 : 0;
  }
  for (const trace::Meeting& meeting : m.meetings) {
    if (meeting.whole() && meeting.is != OpClass::kSendReceive) whole += meeting.here.size();
  }
  return collectives > 0 && static_cast<double>(whole) >= kNearlyAll * static_cast<double>(collectives);
}

namespace {

std::vector<sim::WaitedFor> waits_of(const trace::Merged& m) {
  // What was merged before is a timeline, in which times alone say who exchanged with whom.
  if (m.processes.empty()) return sim::waited_for(sim::Lanes(m.timeline));
  std::vector<std::vector<std::size_t>> exchanges;
  for (const trace::Meeting& meeting : m.meetings) {
    if (!meeting.whole()) continue;
    std::vector<std::size_t>& members = exchanges.emplace_back();
    for (const trace::Member& member : meeting.here) members.push_back(member.slice);
  }
  return sim::waited_for(m.timeline, exchanges);
}

std::size_t in_part(const trace::Merged& m) {
  return static_cast<std::size_t>(std::count_if(
      m.meetings.begin(), m.meetings.end(), [](const trace::Meeting& meeting) { return !meeting.whole(); }));
}

}  // namespace

void print_merged(const trace::Merged& m, std::size_t top) {
  const Timeline& t = m.timeline;
  const auto label = [&](std::size_t process) { return printable(t.rank_labels[process]); };
  if (!m.meetings.empty()) {
    fmt::print("{} with members in several traces, whose ends differ by {:.1f} us (median)\n",
               counted(m.meetings.size(), "exchange", "exchanges"), m.spread_us);
    if (const std::size_t part = in_part(m); part > 0)
      fmt::print("{} of them lack traces of members, so nobody knows who waited\n", part);
    if (!m.groups_said)
      fmt::print(
          "the traces do not say process groups: ranks that launch the same are taken for one group\n");
  }
  if (m.alone > 0)
    fmt::print("{} kernels that communicate have no partner here, or one that cannot be told\n", m.alone);
  std::size_t shown = 0;
  for (std::size_t i = 1; i < m.processes.size() && shown < top; ++i) {
    const trace::Process& p = m.processes[i];
    const auto reference = static_cast<std::size_t>(p.reference);
    if (reference == i) {
      fmt::print("  {}: no exchange joins it to those above, so its clock is taken as it is\n", label(i));
      ++shown;
    } else if (p.ahead_us != 0) {
      fmt::print("  {}: clock {:+.1f} us against {}, by {}\n", label(i), p.ahead_us, label(reference),
                 counted(static_cast<std::size_t>(p.by), "exchange", "exchanges"));
      ++shown;
    }
  }
  const auto waits = waits_of(m);
  if (waits.empty()) return;
  fmt::print("{:<24} {:>10} {:>14}   {}\n", "came last", "exchanges", "others waited", "longest");
  for (std::size_t i = 0; i < std::min(waits.size(), top); ++i) {
    const sim::WaitedFor& w = waits[i];
    fmt::print("{:<24} {:>10} {:>14}   {}, {}\n", label(static_cast<std::size_t>(w.process)), w.exchanges,
               format(w.waited), label(static_cast<std::size_t>(w.longest)), format(w.by_longest));
  }
}

Json json_of(const trace::Merged& m) {
  const auto label = [&](std::int32_t process) {
    return m.timeline.rank_labels[static_cast<std::size_t>(process)];
  };
  Json out = {{"exchanges", m.meetings.size()}, {"exchanges_in_part", in_part(m)},
              {"exchanges_alone", m.alone},     {"groups_said", m.groups_said},
              {"spread_us", m.spread_us},       {"clocks", Json::array()},
              {"waited_for", Json::array()}};
  for (std::size_t i = 0; i < m.processes.size(); ++i)
    out["clocks"].push_back({{"rank", label(static_cast<std::int32_t>(i))},
                             {"file", m.processes[i].file},
                             {"ahead_us", m.processes[i].ahead_us},
                             {"of", label(m.processes[i].reference)},
                             {"by_exchanges", m.processes[i].by}});
  for (const sim::WaitedFor& w : waits_of(m))
    out["waited_for"].push_back({{"rank", label(w.process)},
                                 {"exchanges", w.exchanges},
                                 {"others_waited_s", seconds(w.waited)},
                                 {"longest", label(w.longest)},
                                 {"longest_waited_s", seconds(w.by_longest)}});
  return out;
}

void add_merge(CLI::App& parent, App& app) {
  CLI::App* command =
      subcommand(parent, app, "merge", "one timeline of other software's traces of many ranks, by one clock");
  auto o = std::make_shared<MergeAsked>();
  command
      ->add_option("traces", o->traces,
                   "of the PyTorch profiler (.json, .json.gz), Nsight Systems (.sqlite) or Chakra (.et), "
                   "each of some ranks")
      ->required();
  command->add_option("-o,--output", o->output, "the timeline's file (.json or .timeline)");
  command->add_option("--top", o->top, "rows shown")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
