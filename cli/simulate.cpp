// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iostream>
#include <limits>

#include "cli/commands.h"
#include "cli/progress.h"
#include "core/text.h"
#include "planner/evaluate.h"
#include "planner/loading.h"
#include "program/order.h"

namespace orrery::cli {
namespace {

struct SimulateAsked {
  std::string plan, trace, window, expert_load, list_schedule;
  std::vector<std::string> slow;
  std::optional<sim::Fold> fold;
};

struct Window {
  Time from{0}, to{std::numeric_limits<std::int64_t>::max()};
};

// "0s:2s"; either time may be left out.
Window read_window(const std::string& text, const Cursor& at) {
  const std::size_t colon = text.find(':');
  Window out;
  const auto read = [&](const std::string& side, Time& time) {
    const auto value = side.empty() ? time : parse_time(side);
    if (colon == std::string::npos || !value || value->value < 0)
      at.fail(shown(Json(text)) + " is not a window",
              "allowed: two times such as 0s:500ms; either may be left out");
    time = *value;
  };
  read(text.substr(0, colon), out.from);
  read(colon == std::string::npos ? "" : text.substr(colon + 1), out.to);
  if (out.from > out.to) at.fail(shown(Json(text)) + " ends before it begins");
  return out;
}

// The part of a timeline in the window; slices that reach into it stay whole.
Timeline within(Timeline timeline, const Window& window, const Cursor& at) {
  if (window.from > timeline.length())
    at.fail(format(window.from) + " is past the end of the step",
            "allowed: 0 s to " + format(timeline.length()));
  const auto outside = [&](const auto& s) { return s.end < window.from || s.start > window.to; };
  std::erase_if(timeline.slices, outside);
  std::erase_if(timeline.experts.of, outside);
  timeline.experts.tidy();
  return timeline;
}

const char* how(sim::Fold fold) {
  switch (fold) {
    case sim::Fold::kStages:
      return "the slowest group of each kind stands for all";
    case sim::Fold::kClasses:
      return "alike ranks as one";
    case sim::Fold::kRanks:
      break;
  }
  return "every rank on its own";
}

Json report(const sim::PlaceReport& r, const program::Communication& over) {
  Json exposed, busy, work;
  for (const auto& [w, name] : enum_names(sim::StageWork{}))
    work[name] = seconds(r.work[static_cast<std::size_t>(w)]);
  for (std::size_t s = 0; s < over.streams.size(); ++s) {
    exposed[over.streams[s].name] = seconds(r.exposed[s]);
    busy[over.streams[s].name] = seconds(r.busy[s]);
  }
  return {{"stage", r.stage},
          {"ranks", r.ranks},
          {"first_rank", r.first_rank},
          {"forward_s", seconds(r.forward)},
          {"backward_s", seconds(r.backward)},
          {"recompute_s", seconds(r.recompute)},
          {"optimizer_s", seconds(r.optimizer)},
          {"host_s", seconds(r.host)},
          {"exposed_s", std::move(exposed)},
          {"busy_s", std::move(busy)},
          {"work_s", std::move(work)},
          {"idle_s", seconds(r.idle)}};
}

// All places or, of very many, the one of each stage that computes longest.
std::vector<sim::PlaceReport> shown(const std::vector<sim::PlaceReport>& places) {
  constexpr std::size_t kMostShown = 128;
  if (places.size() <= kMostShown) return places;
  std::vector<sim::PlaceReport> out;
  for (const sim::PlaceReport& p : places) {
    if (out.empty() || out.back().stage != p.stage)
      out.push_back(p);
    else if (p.compute() > out.back().compute())
      out.back() = p;
  }
  return out;
}

// The step of each stage by the pieces of work of its schedule, of the kinds that it has.
void print_work(const std::vector<sim::PlaceReport>& places) {
  constexpr std::array kTitles{"forward",     "backward",     "input grad",
                               "weight grad", "side by side", "optimizer"};
  static_assert(kTitles.size() == sim::kStageWorks);
  std::vector<std::size_t> kinds;
  for (std::size_t w = 0; w < kTitles.size(); ++w) {
    if (std::any_of(places.begin(), places.end(),
                    [&](const sim::PlaceReport& r) { return r.work[w] > Time{0}; }))
      kinds.push_back(w);
  }
  fmt::print("{:>6} {:>7}", "stage", "first");
  for (const std::size_t w : kinds) fmt::print(" {:>12}", kTitles[w]);
  fmt::print(" {:>12}\n", "idle");
  for (const sim::PlaceReport& r : places) {
    fmt::print("{:>6} {:>7}", r.stage, r.first_rank);
    for (const std::size_t w : kinds) fmt::print(" {:>12}", format(r.work[w]));
    fmt::print(" {:>12}\n", format(r.idle));
  }
}

void print_places(const planner::Evaluation& e) {
  const auto& places = e.simulation.places;
  const auto rows = shown(places);
  if (rows.size() < places.size())
    fmt::print("of the places of each stage, the one that computes longest:\n");
  const program::Communication& over = e.program.communication;
  std::vector<std::size_t> collectives;  // streams
  for (std::size_t i = 0; i < over.streams.size(); ++i) {
    if (over.streams[i].role == program::StreamRole::kCollectives) collectives.push_back(i);
  }
  fmt::print("{:>6} {:>7} {:>7} {:>10} {:>10}", "stage", "ranks", "first", "compute", "recompute");
  for (const std::size_t i : collectives) fmt::print(" {:>10}", "wait " + over.streams[i].name);
  const bool offloads = std::any_of(rows.begin(), rows.end(), [&](const sim::PlaceReport& r) {
    return r.exposed_to(over, program::is_offload) > Time{0};
  });
  fmt::print(" {:>10}", "wait pp");
  if (offloads) fmt::print(" {:>12}", "wait offload");
  fmt::print(" {:>10} {:>10}\n", "host", "memory");
  for (const sim::PlaceReport& r : rows) {
    fmt::print("{:>6} {:>7} {:>7} {:>10} {:>10}", r.stage, r.ranks, r.first_rank,
               format(r.forward + r.backward + r.optimizer), format(r.recompute));
    for (const std::size_t i : collectives) fmt::print(" {:>10}", format(r.exposed[i]));
    fmt::print(" {:>10}", format(r.exposed_to(over, program::is_transfer)));
    if (offloads) fmt::print(" {:>12}", format(r.exposed_to(over, program::is_offload)));
    fmt::print(" {:>10} {:>10}\n", format(r.host),
               format(Bytes{e.predicted.memory[static_cast<std::size_t>(r.stage)].total}));
  }
  if (e.program.plan.pp > 1) print_work(rows);
}

// In place of the scenario's own.
void bind_expert_load(const std::string& file, Problem& problem) {
  const Cursor at{file};
  Scenario bound = problem.scenario;
  bound.training.expert_load = read_fields<ExpertLoad>(load_json(file), at);
  check_expert_load(bound.model, *bound.training.expert_load, at);
  problem.scenario = std::move(bound);
}

// The plan with its schedule as a list.
void save_listed(const Chosen& chosen, const Predicted& predicted, const std::string& file) {
  Plan listed = chosen.plan;
  listed.schedule_order = program::order_of(chosen.plan);
  listed.schedule = Schedule::kListed;
  Json json = write_fields(planner::make_plan_file(chosen.problem, listed, predicted, "engine"));
  json["schema"] = "orrery.plan/1";
  save_json(file, json);
}

void execute(App& app, const SimulateAsked& o) {
  const Cursor at{"command line", "/window"};
  const Window window = o.window.empty() ? Window{} : read_window(o.window, at);
  Chosen chosen = load_plan_or_scenario(o.plan, app);
  if (!o.expert_load.empty()) bind_expert_load(o.expert_load, chosen.problem);
  require_writable("/trace", o.trace);
  require_writable("/list-schedule", o.list_schedule);
  if (!o.list_schedule.empty() && chosen.plan.overlap_exchanges)
    Cursor{"command line", "/list-schedule"}.fail("lists hold no forwards and backwards side by side",
                                                  "allowed: plans without overlap_exchanges");
  const sim::Topology topology(chosen.problem.cluster);
  planner::EvaluateOptions options;
  options.record = !o.trace.empty();
  options.draws = planner::kLoadDraws;
  options.place.slow = slow_ranks(o.slow, chosen.plan.ranks());
  if (o.fold) options.place = {.fold = *o.fold, .slow = std::move(options.place.slow)};
  const planner::Evaluation e = [&] {
    Progress progress("compiling");
    options.progress = [&](const char* phase, double share) { progress(phase, share); };
    return planner::evaluate(chosen.problem, topology, chosen.plan, options);
  }();
  if (!o.trace.empty()) {
    const Timeline& all = e.simulation.timeline;
    save_timeline(o.trace, o.window.empty() ? all : within(all, window, at));
  }
  const Predicted& p = e.predicted;
  if (!o.list_schedule.empty()) save_listed(chosen, p, o.list_schedule);
  const planner::Fit fit = planner::fit(chosen.problem, chosen.plan, p);
  if (!fit.fits()) fmt::print(stderr, "warning: {}\n", fit.text(chosen.problem));
  if (app.json) {
    Json out = {{"schema", "orrery.simulation/1"},
                {"plan", write_fields(chosen.plan)},
                {"ops", e.simulation.ops},
                {"program_bytes", e.program.footprint_bytes()}};
    out.update(planner::fit_json(fit));
    out["predicted"] = write_fields(p);
    if (p.loading) out["loading"] = planner::loading_json(chosen.problem, chosen.plan, *p.loading);
    out["places"] = Json::array();
    for (const sim::PlaceReport& r : e.simulation.places)
      out["places"].push_back(report(r, e.program.communication));
    out["shared_links"] = Json::array();
    for (const sim::LinkReport& l : e.simulation.links)
      out["shared_links"].push_back({{"link", l.link.name},
                                     {"alike", l.link.alike},
                                     {"bytes_per_s", l.link.capacity.value},
                                     {"lost_s", seconds(l.lost)}});
    return print_json(out);
  }
  fmt::print(
      "{}: step {}, {:.0f} tokens/s, MFU {:.1f} %, peak memory {}, which fits with a probability of {:.0f} "
      "%\n",
      short_name(chosen.plan), format(from_seconds(p.step_time_s)), p.tokens_per_s, 100 * p.mfu,
      format(Bytes{p.peak_memory_bytes}), 100 * p.fits_probability);
  fmt::print("how sure: {}: {} to {}\n", words_of(chosen.problem.measured),
             format(from_seconds(p.step_time_low_s)), format(from_seconds(p.step_time_high_s)));
  if (p.imbalance) fmt::print("{}\n", planner::text_of(*p.imbalance));
  if (p.documents) fmt::print("{}\n", planner::text_of(*p.documents));
  if (p.islands) fmt::print("{}\n", planner::text_of(*p.islands));
  if (p.loading) {
    for (const std::string& line : planner::loading_lines(chosen.problem, chosen.plan, *p.loading))
      fmt::print("{}\n", line);
  }
  fmt::print("{} ranks in {} places ({}), {} op instances, program of {}\n", e.program.mesh.ranks(),
             e.simulation.places.size(), how(e.fold), e.simulation.ops,
             format(Bytes{e.program.footprint_bytes()}));
  print_places(e);
  constexpr std::size_t kMostShown = 5;
  for (std::size_t i = 0; i < std::min(kMostShown, e.simulation.links.size()); ++i) {
    const sim::LinkReport& l = e.simulation.links[i];
    fmt::print("shared: {} ({} alike, {}): transfers of all stages lost {} to each other\n",
               printable(l.link.name), l.link.alike, format(l.link.capacity), format(l.lost));
  }
  if (!o.trace.empty())
    fmt::print("timeline: {} (open it with orrery-gui; Chrome JSON also with ui.perfetto.dev){}\n",
               printable(o.trace), p.loading ? "; it does not show the wait for samples" : "");
}

}  // namespace

void add_simulate(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "simulate", "one plan through the event engine");
  auto o = std::make_shared<SimulateAsked>();
  command->add_option("plan", o->plan, "plan or scenario file")->required();
  auto* trace = command->add_option(
      "--trace", o->trace, "write the timeline: Chrome JSON, or compact where FILE ends in .timeline");
  command->add_option("--window", o->window, "only what happens between two times of the step, as 0s:500ms")
      ->needs(trace);
  command->add_option(
      "--expert-load", o->expert_load,
      "file with an expert_load, as `orrery run --expert-load` writes it, for the scenario's own");
  command->add_option("--list-schedule", o->list_schedule,
                      "write the plan with each stage's work listed, to be edited");
  command->add_option("--slow", o->slow, "slow ranks: RANK:FACTOR on the time of their compute");
  add_choice<sim::Fold>(
      *command, "--fold", o->fold,
      "ranks that act as one: those of a stage, as the slowest of them; those that cannot be told apart, "
      "exactly; none. Without it classes, or stages where those would be many");
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
