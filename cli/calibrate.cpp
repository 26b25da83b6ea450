// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <optional>

#include "cli/commands.h"
#include "cli/traces.h"
#include "core/text.h"
#include "planner/evaluate.h"
#include "planner/fit_trace.h"
#include "trace/load.h"

namespace orrery::cli {
namespace {

struct CalibrateAsked {
  std::vector<std::string> runs;
  std::optional<exec::Backend> backend;
  std::int64_t steps = 5;
  std::string name, device, cluster, links;
  std::vector<std::string> published;
  std::string profiles;
  std::vector<std::string> traces;
  std::int64_t trace_steps = 0;
};

struct Run {
  Chosen chosen;
  program::Program program;
  std::string file;                 // of the timelines, or of the plan where it runs here
  std::vector<Timeline> timelines;  // of one step each, the shortest first
  const Timeline& median() const { return timelines[(timelines.size() - 1) / 2]; }
};

// Steps of one plan that differ by more are worth a warning.
constexpr double kNoisy = 1.2;

template <class T>
void save(const std::string& file, const char* schema, const T& value) {
  Json json = {{"schema", schema}};
  json.update(write_fields(value));
  save_json(file, json);
}

// A plan as `orrery run` runs it.
Chosen load_run(const std::string& file, const App& app) {
  Chosen out = load_plan_or_scenario(file, app);
  out.plan = with_room(std::move(out.plan), out.problem.scenario.model);
  return out;
}

std::deque<Run> read_runs(const App& app, const CalibrateAsked& o) {
  if (o.runs.size() % 2 != 0)
    throw InputError("command line", "/runs",
                     "plans and traces come in pairs (allowed: PLAN TRACE [PLAN TRACE]..., or plans that "
                     "--backend runs)");
  std::deque<Run> runs;
  for (std::size_t i = 0; i < o.runs.size(); i += 2) {
    Run& r = runs.emplace_back();
    r.chosen = load_run(o.runs[i], app);
    const Problem& p = r.chosen.problem;
    r.program = program::compile(p.scenario.model, r.chosen.plan, p.scenario.training, p.stack);
    r.file = o.runs[i + 1];
    const Cursor at{r.file, ""};
    const Timeline& t = r.timelines.emplace_back(load_timeline(r.file));
    if (kind_of(t) != "measured")
      at.fail(fmt::format("is not a measurement: its source is \"{}\"", t.source),
              "allowed: a timeline of orrery run --trace");
    if (t.program_hash != r.program.hash())
      at.fail(fmt::format("was not measured with the plan of {}", o.runs[i]));
  }
  return runs;
}

// All plans are read before the first runs.
std::deque<Run> make_runs(const App& app, const CalibrateAsked& o) {
  std::deque<Run> runs;
  for (const std::string& file : o.runs) {
    Run& r = runs.emplace_back();
    r.chosen = load_run(file, app);
    r.program = runnable_program(r.chosen, *o.backend);
    r.file = file;
  }
  require_device(*o.backend);
  for (Run& r : runs) {
    exec::RunOptions options;
    options.backend = *o.backend;
    options.launch = r.chosen.problem.stack.launch;
    options.steps = o.steps;
    options.timelines = true;
    exec::RunResult result = exec::run(r.program, options);
    r.timelines = std::move(result.timelines);
    if (r.timelines.empty()) r.timelines.push_back(std::move(result.timeline));
    std::sort(r.timelines.begin(), r.timelines.end(),
              [](const Timeline& a, const Timeline& b) { return a.length() < b.length(); });
    const Time least = r.timelines.front().length(), most = r.timelines.back().length();
    fmt::print(stderr, "{}: {} steps, the median after the first took {}\n", short_name(r.chosen.plan),
               o.steps, format(r.median().length()));
    if (ratio(most, least) > kNoisy) {
      fmt::print(
          stderr,
          "warning: steps of {} took {} to {}: the machine does something else too, and the profile is no "
          "better than that\n",
          short_name(r.chosen.plan), format(least), format(most));
    }
  }
  return runs;
}

// "Gemm 4 %, Attention 7 %, ...": how far the formulas are from what was measured, by time.
std::string residuals(const sim::Calibration& c) {
  std::string out;
  for (const auto& r : c.rows)
    out += fmt::format("{}{} {:.1f} %", out.empty() ? "" : ", ", r.op, 100 * r.after);
  return out;
}

void require_given(const char* option, const std::string& value) {
  if (value.empty()) throw InputError("command line", option, "is missing (allowed: a text)");
}

void require_apart(const char* option, const std::string& file, const char* other, const std::string& same) {
  namespace fs = std::filesystem;
  if (!file.empty() && !same.empty() && fs::weakly_canonical(file) == fs::weakly_canonical(same))
    throw InputError("command line", other, fmt::format("\"{}\" is the file of {} too", same, option),
                     "allowed: a file of its own");
}

// The fitted cluster stands beside its device's file.
std::string from_folder_of(const std::string& cluster, const std::string& file) {
  namespace fs = std::filesystem;
  return fs::proximate(fs::absolute(file), fs::absolute(cluster).parent_path()).string();
}

void print_fit(const planner::TraceFit& fit) {
  fmt::print("{:<15} {:<21} {:>11} {:>11} {:>12} {:>11}\n", "class", "constant", "before", "after",
             "p/m before", "p/m after");
  for (const planner::FittedClass& w : fit.classes)
    fmt::print("{:<15} {:<21} {:>11.4g} {:>11.4g} {:>12.2f} {:>11.2f}{}\n", name_of(w.is), w.constant,
               w.before, w.after, w.ratio_before, w.ratio_after, w.kept.empty() ? "" : "  kept: " + w.kept);
  if (!fit.left.empty()) {
    std::vector<std::string_view> names;
    for (const OpClass w : fit.left) names.push_back(name_of(w));
    fmt::print("not fitted: {}\n", fmt::join(names, ", "));
  }
  fmt::print("step: predicted {} before and {} after, measured {} ({:+.1f} %)\n",
             format(from_seconds(fit.step_before_s)), format(from_seconds(fit.step_s)),
             format(from_seconds(fit.measured_s)), 100 * (fit.step_s / fit.measured_s - 1));
}

Json to_json(const planner::TraceFit& fit) {
  Json out = {{"schema", "orrery.calibration/1"},     {"device", write_fields(fit.device)},
              {"cluster", write_fields(fit.cluster)}, {"classes", Json::array()},
              {"step_before_s", fit.step_before_s},   {"step_s", fit.step_s},
              {"measured_s", fit.measured_s}};
  for (const planner::FittedClass& w : fit.classes)
    out["classes"].push_back({{"class", name_of(w.is)},
                              {"constant", w.constant},
                              {"before", w.before},
                              {"after", w.after},
                              {"ratio_before", w.ratio_before},
                              {"ratio_after", w.ratio_after},
                              {"kept", w.kept}});
  return out;
}

// One plan, and the traces that other software wrote of it.
void calibrate_to_traces(const App& app, const CalibrateAsked& o) {
  if (o.runs.size() != 1)
    throw InputError("command line", "/runs", fmt::format("are {}", o.runs.size()),
                     "allowed with --traces: the plan or scenario of the run that was traced");
  if (!o.links.empty())
    throw InputError("command line", "/links", "is not fitted from --traces",
                     "allowed: orrery links import --traces");
  const Chosen chosen = load_plan_or_scenario(o.runs.front(), app);
  const trace::Loaded loaded = trace::load({o.traces.begin(), o.traces.end()});
  if (!loaded.foreign)
    throw InputError(o.traces.front(), "/", "is a timeline of Orrery",
                     "allowed: traces of the PyTorch profiler, Nsight Systems or Chakra");
  const std::int64_t steps = o.trace_steps > 0 ? o.trace_steps : loaded.merged.steps;
  if (steps == 0)
    throw InputError(o.traces.front(), "/", "does not say how many steps it covers",
                     "allowed: --trace-steps N");
  const std::string name = chosen.problem.devices.front().name;
  planner::TraceFit fit = planner::fit_trace(
      chosen.problem, chosen.plan,
      {&loaded.merged.timeline, steps, ranks_of(loaded.merged), tells_waits(loaded.merged)});
  fit.device.name = o.name;
  fit.device.origin = {
      {"all", fmt::format("orrery calibrate, {} step{} of {} by other software; fields not fitted "
                          "are those of {}",
                          steps, steps == 1 ? "" : "s", short_name(chosen.plan), name)}};
  save(o.device, "orrery.device/1", fit.device);
  if (!o.cluster.empty()) {
    fit.cluster.origin = {
        {"all", fmt::format("orrery calibrate; fields not fitted are those of {}", fit.cluster.name)}};
    fit.cluster.name = o.name;
    fit.cluster.device = from_folder_of(o.cluster, o.device);
    save(o.cluster, "orrery.cluster/1", fit.cluster);
  }
  if (app.json) return print_json(to_json(fit));
  print_fit(fit);
  fmt::print("device profile: {}\n", printable(o.device));
  if (!o.cluster.empty()) fmt::print("cluster: {}\n", printable(o.cluster));
}

void execute(App& app, const CalibrateAsked& o) {
  if (!o.published.empty()) {
    if (!o.runs.empty())
      throw InputError("command line", "/runs",
                       "are not fitted together with --published (allowed: one of the two)");
    return calibrate_published(app, o.published, o.profiles);
  }
  if (o.runs.empty())
    throw InputError("command line", "/runs",
                     "are missing (allowed: plans and their traces, plans with --backend, or --published)");
  require_given("/name", o.name);
  require_given("/device", o.device);
  require_writable("/device", o.device);
  require_writable("/cluster", o.cluster);
  require_writable("/links", o.links);
  require_apart("/device", o.device, "/cluster", o.cluster);
  require_apart("/device", o.device, "/links", o.links);
  require_apart("/cluster", o.cluster, "/links", o.links);
  if (!o.traces.empty()) return calibrate_to_traces(app, o);
  const std::deque<Run> runs = o.backend ? make_runs(app, o) : read_runs(app, o);
  std::vector<sim::MeasuredRun> measured;
  for (const Run& r : runs) {
    for (const Timeline& t : r.timelines) measured.push_back({&r.program, &t, r.file});
  }
  const Problem& first = runs.front().chosen.problem;
  if (first.cluster.types() > 1)
    throw Error(fmt::format("\"{}\" has nodes of {} types, and a calibration is of one", first.cluster.name,
                            first.cluster.types()));
  const Device& device = first.devices.front();
  sim::Calibration c = sim::calibrate(device, first.cluster, measured);
  c.device.name = o.name;
  c.device.origin = {
      {"all", fmt::format("orrery calibrate, {} run{} of {}; fields not fitted are those of {}", runs.size(),
                          runs.size() == 1 ? "" : "s", short_name(runs.front().chosen.plan), device.name)},
      {"residuals", fmt::format("of the formulas, median over shapes, by time: {}", residuals(c))}};
  save(o.device, "orrery.device/1", c.device);
  if (!o.cluster.empty()) {
    if (!o.links.empty()) {
      c.links.name = o.name;
      c.links.origin = {{"all", "orrery calibrate"}};
      save(o.links, "orrery.links/1", c.links);
      c.cluster.links = from_folder_of(o.cluster, o.links);
      c.cluster.measured = c.links;
    }
    c.cluster.name = o.name;
    c.cluster.device = from_folder_of(o.cluster, o.device);
    c.cluster.origin = {
        {"all", fmt::format("orrery calibrate; fields not fitted are those of {}", first.cluster.name)}};
    save(o.cluster, "orrery.cluster/1", c.cluster);
  }

  // How well the fit tells the very runs it comes from.
  struct Step {
    double predicted, measured;
  };
  std::vector<Step> steps;
  for (const Run& r : runs) {
    Problem fitted = r.chosen.problem;
    fitted.devices = {c.device};
    fitted.cluster = c.cluster;
    const sim::Topology topology(fitted.cluster);
    const auto e = planner::evaluate(fitted, topology, r.chosen.plan);
    steps.push_back({seconds(e.simulation.step), seconds(r.median().length())});
  }
  if (app.json) {
    Json out = {{"schema", "orrery.calibration/1"},
                {"device", write_fields(c.device)},
                {"cluster", write_fields(c.cluster)},
                {"ops", Json::array()},
                {"steps", Json::array()}};
    for (const auto& r : c.rows) {
      out["ops"].push_back({{"op", r.op},
                            {"shapes", r.shapes},
                            {"instances", r.instances},
                            {"measured_s", r.seconds},
                            {"error_before", r.before},
                            {"error_after", r.after}});
    }
    for (const Step& s : steps)
      out["steps"].push_back({{"predicted_s", s.predicted}, {"measured_s", s.measured}});
    return print_json(out);
  }
  fmt::print("{:<16} {:>7} {:>10} {:>12} {:>14} {:>14}\n", "op", "shapes", "instances", "measured",
             "formula before", "formula after");
  for (const auto& r : c.rows) {
    fmt::print("{:<16} {:>7} {:>10} {:>12} {:>12.0f} % {:>12.0f} %\n", r.op, r.shapes, r.instances,
               format(from_seconds(r.seconds)), 100 * r.before, 100 * r.after);
  }
  fmt::print(
      "links: {} per direction, {} a hop, {} a collective; compute beside collectives {:.2f} times slower\n",
      format(c.cluster.intra_bandwidth), format(c.cluster.intra_latency),
      format(c.cluster.collective_latency), c.device.overlap_compute);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    fmt::print("{} step: predicted {}, measured {} ({:+.1f} %)\n", short_name(runs[i].chosen.plan),
               format(from_seconds(steps[i].predicted)), format(from_seconds(steps[i].measured)),
               100 * (steps[i].predicted / steps[i].measured - 1));
  }
  fmt::print("device profile: {}\n", printable(o.device));
  if (!o.cluster.empty()) fmt::print("cluster: {}\n", printable(o.cluster));
  if (!o.links.empty()) fmt::print("link profile: {}\n", printable(o.links));
}

}  // namespace

void add_calibrate(CLI::App& parent, App& app) {
  CLI::App* command =
      subcommand(parent, app, "calibrate", "fit a device profile and a cluster to measured runs");
  auto o = std::make_shared<CalibrateAsked>();
  command->add_option(
      "runs", o->runs,
      "pairs: the plan or scenario, and the trace of orrery run --trace; with --backend, plans alone");
  CLI::Option* const backend =
      add_choice<exec::Backend>(*command, "--backend", o->backend, "run the plans here, ranks as threads");
  command->add_option("--steps", o->steps, "of each run; the last is measured")
      ->check(CLI::Range(2, 1000000))
      ->capture_default_str()
      ->needs(backend);
  command->add_option("--name", o->name, "of the profile and the cluster");
  command->add_option("--device", o->device, "write the device profile here");
  CLI::Option* const cluster = command->add_option("--cluster", o->cluster, "write the cluster here");
  command->add_option("--links", o->links, "write here what collectives took by size, for the cluster to use")
      ->needs(cluster);
  CLI::Option* const traces = command->add_option(
      "--traces", o->traces,
      "fit to these traces of the one plan, by the PyTorch profiler, Nsight Systems or Chakra");
  traces->excludes(backend);
  command
      ->add_option("--trace-steps", o->trace_steps, "how many steps the traces cover, where they do not say")
      ->check(CLI::Range(1, 1'000'000))
      ->needs(traces);
  CLI::Option* const published = command->add_option(
      "--published", o->published, "fit constants of the shipped profiles to these published training runs");
  command->add_option("--profiles", o->profiles, "write them into the profiles of this data folder")
      ->needs(published);
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
