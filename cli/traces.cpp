// SPDX-License-Identifier: Apache-2.0
//
// orrery merge: one timeline of other software's traces.
#include "cli/traces.h"

#include <fmt/format.h>

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
  const trace::Loaded loaded = trace::load({o.traces.begin(), o.traces.end()});
  if (loaded.merged.clocks.empty())
    throw InputError(o.traces.front(), "/", "is a timeline already",
                     "allowed: traces of the PyTorch profiler or Nsight Systems");
  const trace::Merged& m = loaded.merged;
  if (!o.output.empty()) save_timeline(o.output, m.timeline);
  if (app.json) {
    Json json = {{"schema", "orrery.merge/1"},
                 {"source", m.timeline.source},
                 {"ranks", m.clocks.size()},
                 {"steps", m.steps},
                 {"slices", m.timeline.slices.size()}};
    json.update(json_of(m));
    return print_json(json);
  }
  fmt::print("{}: {}, {}, {}, {}\n", m.timeline.source, counted(m.clocks.size(), "rank", "ranks"),
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

void print_merged(const trace::Merged& m, std::size_t top) {
  const Timeline& t = m.timeline;
  const auto label = [&](std::int32_t process) {
    return printable(t.rank_labels[static_cast<std::size_t>(process)]);
  };
  if (!m.meetings.empty())
    fmt::print("exchanges: {} with members in several traces, whose ends differ by {:.1f} us (median)\n",
               m.meetings.size(), m.spread_us);
  if (m.alone > 0) fmt::print("exchanges whose partners are not here or cannot be told: {}\n", m.alone);
  for (std::size_t i = 1; i < std::min(m.clocks.size(), top + 1); ++i) {
    if (!m.clocks[i].known)
      fmt::print("  {}: has no exchange in common with the others, so its clock is taken as it is\n",
                 label(static_cast<std::int32_t>(i)));
    else
      fmt::print("  {}: clock {:+.1f} us against {}, by {}\n", label(static_cast<std::int32_t>(i)),
                 m.clocks[i].ahead_us, label(0),
                 counted(static_cast<std::size_t>(m.clocks[i].by), "exchange", "exchanges"));
  }
  const auto waits = sim::waited_for(sim::Lanes(t));
  if (waits.empty()) return;
  fmt::print("{:<24} {:>10} {:>14}   {}\n", "came last", "exchanges", "others waited", "longest");
  for (std::size_t i = 0; i < std::min(waits.size(), top); ++i) {
    const sim::WaitedFor& w = waits[i];
    fmt::print("{:<24} {:>10} {:>14}   {}, {}\n", label(w.process), w.exchanges, format(w.waited),
               label(w.longest), format(w.by_longest));
  }
}

Json json_of(const trace::Merged& m) {
  const auto label = [&](std::int32_t process) {
    return m.timeline.rank_labels[static_cast<std::size_t>(process)];
  };
  Json out = {{"exchanges", m.meetings.size()},
              {"exchanges_alone", m.alone},
              {"spread_us", m.spread_us},
              {"clocks", Json::array()},
              {"waited_for", Json::array()}};
  for (std::size_t i = 0; i < m.clocks.size(); ++i)
    out["clocks"].push_back({{"rank", label(static_cast<std::int32_t>(i))},
                             {"file", m.clocks[i].file},
                             {"ahead_us", m.clocks[i].ahead_us},
                             {"known", m.clocks[i].known},
                             {"by_exchanges", m.clocks[i].by}});
  for (const sim::WaitedFor& w : sim::waited_for(sim::Lanes(m.timeline)))
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
      ->add_option(
          "traces", o->traces,
          "of the PyTorch profiler (.json, .json.gz) or Nsight Systems (.sqlite), each of some ranks")
      ->required();
  command->add_option("-o,--output", o->output, "the timeline's file (.json or .timeline)");
  command->add_option("--top", o->top, "rows shown")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
