// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "cli/commands.h"
#include "core/text.h"
#include "exec/checkpoint.h"
#include "exec/data.h"
#include "exec/exchange.h"
#include "exec/launch.h"
#include "exec/memory.h"
#include "exec/monitor.h"
#include "exec/process_world.h"
#include "exec/run.h"
#include "exec/stop.h"
#include "planner/proxy.h"
#include "planner/search.h"

namespace orrery::cli {
namespace {

struct Options {
  std::string plan, proxy, trace, expert_load, data, metrics, tensorboard, checkpoints, gemm_cache,
      rendezvous, secret_file, link, link_latency = "0 us";
  std::vector<std::string> slow;
  exec::Backend backend = exec::Backend::kCpu;
  exec::Algorithm collectives = exec::Algorithm::kDirect;
  std::string checkpoint_every = "100";
  std::int64_t keep_checkpoints = 3;
  bool resume = false, force = false, elastic = false, async_checkpoints = false;
  std::int64_t steps = 5, seed = 1, deadline_s = 120, warm_up = 0, validate_every = 0, validation_batches = 8;
  std::int64_t loss_scale_window = 2000;
  double learning_rate = 3e-3, decay_to = 1, weight_decay = 0, held_out = 0.05, loss_scale = 65536;
};

void print_ranks(const Mesh& mesh, const std::vector<std::string>& hosts) {
  std::size_t width = 4;
  for (const std::string& h : hosts) width = std::max(width, printable(h).size());
  const std::vector<MeshAxis> axes = whole_axes(mesh);
  fmt::print("{:>4} {:<{}}", "rank", "host", width);
  for (const MeshAxis& axis : axes) fmt::print(" {:>4}", axis.name);
  for (std::int64_t r = 0; r < mesh.ranks(); ++r) {
    fmt::print("\n{:>4} {:<{}}", r, printable(hosts[static_cast<std::size_t>(r)]), width);
    for (const MeshAxis& axis : axes) fmt::print(" {:>4}", mesh.coordinate(r, axis.name));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

// The end of the data is held out of training.
struct Data {
  std::unique_ptr<exec::Dataset> whole, training, validation;
};

Data prepare_data(const Options& o, const Scenario& s) {
  Data d;
  d.whole = o.data.empty() ? exec::built_in_data(static_cast<std::uint64_t>(o.seed), s.model)
                           : exec::open_data(o.data, s.model, s.training);
  if (d.whole->vocabulary() > s.model.head_rows()) {
    throw InputError(o.data, "",
                     fmt::format("holds tokens of a vocabulary of {}, and the model's has {}",
                                 d.whole->vocabulary(), s.model.head_rows()));
  }
  const std::int64_t n = d.whole->sequences();
  const std::int64_t held =
      o.validate_every == 0 ? 0 : static_cast<std::int64_t>(o.held_out * static_cast<double>(n));
  if (o.validate_every > 0 && (held < 1 || held >= n)) {
    throw InputError("command line", "/held-out",
                     fmt::format("{} of {} sequences leaves none to {}", o.held_out, n,
                                 held < 1 ? "validate on" : "train on"));
  }
  d.training = exec::part_of(*d.whole, 0, n - held);
  if (held > 0) d.validation = exec::part_of(*d.whole, n - held, held);
  return d;
}

// Throws nothing where stderr is on the disk that is full.
void alert(std::string_view text) {
  std::fputs(fmt::format("alert: {}\n", printable(text)).c_str(), stderr);
}

// Tells the terminal and whoever watches of each step. Files that cannot be written do not end the run.
class Observer {
 public:
  Observer(const App& app, const Options& o, const Scenario& s, const exec::RunOptions& run)
      : app_(app), o_(o), run_(run), tokens_(s.training.tokens_per_step()) {
    flops_ = model_flops_per_sequence(s.model, s.training, AttentionFlops::kFull).value *
             static_cast<double>(s.training.global_batch);
  }

  // The program of the steps that come.
  void see(const program::Program& program) {
    peak_ = Bytes{0};
    for (const program::RankClass& c : program.classes) peak_ = std::max(peak_, c.arena_peak);
  }

  void operator()(std::int64_t step, const exec::StepReport& r) {
    if (!app_.json) print(step, r);
    if (!r.unsaved.empty()) alert(fmt::format("no checkpoint of step {}: {}", r.unsaved_step, r.unsaved));
    if (o_.metrics.empty() && o_.tensorboard.empty()) return;
    std::vector<exec::Scalar> scalars{
        {"step", "optimizer steps done", static_cast<double>(step + 1)},
        {"loss", "mean cross-entropy of the last batch, nats per token", r.loss},
        {"gradient_norm", "global norm before clipping", r.gradient_norm},
        {"learning_rate", "of the last step", exec::learning_rate(run_, step)},
        {"step_seconds", "duration of the last step", r.seconds},
        {"tokens_per_second", "in the last step, all ranks", tokens_ / r.seconds},
        {"model_flops_per_second", "in the last step, all ranks, without recomputation", flops_ / r.seconds},
        {"waiting_ratio", "share of the step in which compute waited for other ranks", r.waiting},
        {"peak_bytes", "memory of the rank with the most", static_cast<double>(peak_.value)}};
    if (r.loss_scale > 0) {
      scalars.push_back({"loss_scale", "factor of the loss in the last step", r.loss_scale});
      scalars.push_back({"skipped", "1 when gradients overflowed in the last step", r.skipped ? 1.0 : 0.0});
    }
    if (r.validation_loss >= 0)
      scalars.push_back({"validation_loss", "mean cross-entropy of held-out data", r.validation_loss});
    if (!o_.metrics.empty())
      attempt(metrics_failed_, "", [&] { exec::write_prometheus(o_.metrics, scalars); });
    if (!o_.tensorboard.empty() && !board_failed_) {
      attempt(board_failed_, "; TensorBoard gets no more scalars", [&] {
        if (!board_) board_.emplace(o_.tensorboard);
        board_->write(step + 1, scalars);
      });
    }
  }

 private:
  // Says once why it failed.
  template <class Write>
  static void attempt(bool& failed, const char* consequence, Write write) {
    try {
      write();
    } catch (const Error& e) {
      if (!std::exchange(failed, true)) alert(fmt::format("{}{}", e.what(), consequence));
    }
  }

  void print(std::int64_t step, const exec::StepReport& r) const {
    fmt::print(
        "step {:>4}  loss {:.6f}  gradient norm {:.4f}  {:>9}  {:>7.0f} tokens/s  {:>7.2f} GFLOP/s  waiting "
        "{:>4.1f} %  peak {}",
        step + 1, r.loss, r.gradient_norm, format(from_seconds(r.seconds)), tokens_ / r.seconds,
        flops_ / r.seconds / 1e9, 100 * r.waiting, format(peak_));
    if (r.loss_scale > 0) fmt::print("  loss scale {}", r.loss_scale);
    if (r.skipped) fmt::print("  skipped: gradients overflowed");
    if (r.validation_loss >= 0) fmt::print("  validation loss {:.6f}", r.validation_loss);
    fmt::print("\n");
    std::fflush(stdout);
  }

  const App& app_;
  const Options& o_;
  const exec::RunOptions& run_;
  double tokens_, flops_ = 0;
  Bytes peak_{0};  // of the rank with the most
  bool metrics_failed_ = false, board_failed_ = false;
  std::optional<exec::TensorBoard> board_;  // from the first step on
};

Json to_json(const exec::RunResult& r, double tokens_per_s) {
  Json out = {{"schema", "orrery.run/1"}, {"first_step", r.first_step},   {"alerts", r.alerts},
              {"steps", Json::array()},   {"tokens_per_s", tokens_per_s}, {"memory", Json::object()}};
  for (const auto& step : r.steps) {
    Json& row = out["steps"].emplace_back(
        Json{{"loss", step.loss}, {"grad_norm", step.gradient_norm}, {"seconds", step.seconds}});
    if (step.loss_scale > 0) {
      row["loss_scale"] = step.loss_scale;
      row["skipped"] = step.skipped;
    }
    if (step.validation_loss >= 0) row["validation_loss"] = step.validation_loss;
    if (!step.unsaved.empty()) {
      row["unsaved"] = step.unsaved;
      row["unsaved_step"] = step.unsaved_step;
    }
  }
  for (std::size_t i = 0; i < r.arena_bytes.size(); ++i) {
    Json& memory =
        out["memory"][std::to_string(i)] = {{"arena", r.arena_bytes[i]}, {"scratch", r.scratch_bytes[i]}};
    for (std::size_t c = 0; c < r.class_bytes[i].size(); ++c)
      memory[program::kBufferClassNames[c]] = r.class_bytes[i][c];
  }
  return out;
}

// What is emulated: a slower link, slower ranks ("3:1.3").
void emulate(const Options& o, std::int64_t ranks, exec::RunOptions& options) {
  const auto fail = [](const char* option, std::string_view value, const char* allowed) {
    throw InputError("command line", fmt::format("/{}", option), fmt::format("\"{}\" {}", value, allowed));
  };
  if (o.backend != exec::Backend::kCpu) {
    for (const auto& [option, given] : {std::pair{"link", !o.link.empty()},
                                        {"slow", !o.slow.empty()},
                                        {"collectives", o.collectives != exec::Algorithm::kDirect}}) {
      if (given)
        fail(option, name_of(o.backend), "takes no --link, --slow or --collectives (allowed: --backend cpu)");
    }
  }
  if (!o.link.empty()) {
    const auto bandwidth = parse_bandwidth(o.link);
    const auto latency = parse_time(o.link_latency);
    if (!bandwidth || bandwidth->value <= 0)
      fail("link", o.link, "is not a bandwidth (allowed: \"200 MB/s\")");
    if (!latency || latency->value < 0)
      fail("link-latency", o.link_latency, "is not a time (allowed: \"20 us\")");
    options.link = {*bandwidth, *latency};
  }
  options.slow = slow_ranks(o.slow, ranks);
}

// Nothing where the text is not a whole number of 64 bits.
std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (wrong != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::int64_t read_seed(const std::string& text) {
  if (const auto seed = whole_number(text)) return *seed;
  using Limits = std::numeric_limits<std::int64_t>;
  throw InputError("command line", "/seed", fmt::format("\"{}\"", text),
                   fmt::format("allowed: whole numbers from {} to {}", Limits::min(), Limits::max()));
}

// "50" steps, or a duration.
void set_checkpoints(const Options& o, exec::RunOptions& options) {
  const std::string& every = o.checkpoint_every;
  const auto steps = whole_number(every);
  const auto time = parse_run_time(every);
  constexpr std::int64_t kMostSteps = 1000000;
  if (steps && *steps >= 1 && *steps <= kMostSteps)
    options.checkpoint_every = *steps;
  else if (time && time->value >= 1)
    options.checkpoint_seconds = time->value;
  else
    throw InputError(
        "command line", "/checkpoint-every", fmt::format("\"{}\"", every),
        fmt::format("allowed: 1 to {} steps, or a duration of a second or more (\"10 min\")", kMostSteps));
  options.keep_checkpoints = o.keep_checkpoints;
  options.async_checkpoints = o.async_checkpoints;
}

// Who this process is, when a launcher started several.
std::optional<exec::Launch> launched(const Plan& plan, const Cursor& at) {
  auto launch = exec::read_launch();
  if (!launch || launch->ranks == 1) return std::nullopt;
  if (launch->ranks != plan.ranks()) {
    at.fail(fmt::format("the plan has {} ranks, and {} started {} processes", plan.ranks(), launch->launcher,
                        launch->ranks));
  }
  return launch;
}

// The best plan on so many of the cluster's devices.
Plan replan(const Problem& problem, std::int64_t devices) {
  Problem smaller = problem;
  smaller.cluster.nodes = 1;
  smaller.cluster.devices_per_node = devices;
  smaller.scenario.plan.reset();
  smaller.scenario.search.dp.clear();
  const sim::Topology topology(smaller.cluster);
  const auto found = planner::search(smaller, topology, {.keep = 1});
  if (found.best.empty()) throw Error(fmt::format("no plan runs on {} ranks", devices));
  return found.best.front().plan;
}

// As shells have it: 128 and the signal.
ExitCode exit_of(const exec::RunResult& r) {
  return r.stopped_by == 0        ? ExitCode::kOk
         : r.stopped_by == SIGINT ? ExitCode::kInterrupted
                                  : ExitCode::kTerminated;
}

// What a run says and writes at its end.
void report(App& app, const Options& o, const Scenario& s, const Plan& plan, bool processes,
            const exec::RunResult& r) {
  app.exit = exit_of(r);
  const std::int64_t done = r.first_step + static_cast<std::int64_t>(r.steps.size());
  const bool unsaved =
      !r.steps.empty() && !r.steps.back().unsaved.empty() && r.steps.back().unsaved_step == done;
  if (r.stopped_by != 0) {
    fmt::print(stderr, "{} stopped the run after step {} of {}{}\n", exec::name_of_signal(r.stopped_by), done,
               o.steps,
               o.checkpoints.empty() ? "; no checkpoint was written, as --checkpoints is not given"
               : unsaved             ? "; its checkpoint could not be written"
                         : fmt::format("; {} has the checkpoint of step {}", printable(o.checkpoints), done));
  }
  if (unsaved) app.exit = ExitCode::kFailure;  // what was trained is lost
  for (const std::string& text : r.alerts) alert(text);
  for (const std::string& why : r.passed_over) fmt::print(stderr, "passed over: {}\n", printable(why));
  if (r.steps.empty()) {
    fmt::print(stderr, "the checkpoint has done {} steps: nothing is left to do\n", r.first_step);
    if (app.json) print_json(to_json(r, 0));
    return;
  }
  if (!o.trace.empty()) save_timeline(o.trace, r.timeline);
  if (!o.expert_load.empty())
    save_json(o.expert_load, write_fields(ExpertLoad{RecordedLoad{r.expert_tokens}}));

  // The first step pays for warming up.
  double total = 0, warm = 0;
  for (std::size_t i = 0; i < r.steps.size(); ++i) {
    total += r.steps[i].seconds;
    if (i > 0 || r.steps.size() == 1) warm += r.steps[i].seconds;
  }
  const double counted = static_cast<double>(std::max<std::size_t>(1, r.steps.size() - 1));
  const double tokens_per_s = s.training.tokens_per_step() * counted / warm;
  if (app.json) return print_json(to_json(r, tokens_per_s));
  const auto fullest = std::max_element(r.arena_bytes.begin(), r.arena_bytes.end()) - r.arena_bytes.begin();
  fmt::print("{} on {} {} ranks: {:.0f} tokens/s, arena of the fullest rank {}, {} beside it\n",
             short_name(plan), plan.ranks(), processes ? "process" : "thread", tokens_per_s,
             format(Bytes{r.arena_bytes[static_cast<std::size_t>(fullest)]}),
             format(Bytes{r.scratch_bytes[static_cast<std::size_t>(fullest)]}));
  if (r.waited_for_data_s > 0.05 * total)
    fmt::print("the run starved: {:.0f} % of its time it waited for data\n",
               100 * r.waited_for_data_s / total);
  if (!o.trace.empty()) fmt::print("measured timeline: {}\n", printable(o.trace));
}

// A launcher may end all ranks when one of them ends with a signal's code: none does before rank 0 has said
// what it has to say. The run is over: whoever is gone by now is missed by nobody.
void wait_for_all(exec::Exchange& exchange, std::int64_t rank) {
  try {
    std::vector<std::int64_t> ended;
    exchange.all_gather("end", rank, ended);
  } catch (const Error&) {
  }
}

// Where a run that resumes begins.
std::string beginning(const Options& o) {
  return exec::has_checkpoints(o.checkpoints)
             ? "from the last checkpoint"
             : fmt::format("from step 0, as {} holds no checkpoint", printable(o.checkpoints));
}

// This process's part of the job. After ranks died, `chosen` has the plan that went on.
void run_launched(exec::Launch me, Chosen& chosen, exec::RunOptions options, App& app, const Options& o,
                  Observer& observer, const std::optional<exec::Secret>& secret) {
  const Scenario& s = chosen.problem.scenario;
  options.gpu = static_cast<int>(me.local_rank);
  if (!o.gemm_cache.empty()) options.gemm_cache += fmt::format(".{}", me.rank);
  for (;;) {
    options.local_ranks = me.local_ranks;
    const auto program = program::compile(s.model, chosen.plan, s.training, chosen.problem.stack);
    observer.see(program);
    const auto world = exec::join(me, o.rendezvous, secret, options.deadline, exec::largest_message(program));
    exec::RunResult result;
    try {
      exec::Exchange exchange(world->communicator(), me.rank, me.ranks);
      const auto hosts = exchange.gather("hosts", exec::host_name());
      if (me.rank == 0 && !app.json) print_ranks(program.mesh, hosts);
      result = exec::run_rank(program, options, me.rank, world->communicator(), world->abort());
      app.exit = exit_of(result);
      if (me.rank == 0) report(app, o, s, chosen.plan, true, result);
      wait_for_all(exchange, me.rank);
      return;
    } catch (const std::exception& e) {
      world->spread_failure();
      if (!o.elastic || exec::stop_signal.load() != 0) throw;
      const auto alive = world->survivors();
      if (alive.empty() || alive.size() == static_cast<std::size_t>(me.ranks)) throw;  // nobody died
      const auto count = static_cast<std::int64_t>(alive.size());
      chosen.plan = with_room(replan(chosen.problem, count), chosen.problem.scenario.model);
      const std::int64_t was = me.rank;
      me.rank = std::find(alive.begin(), alive.end(), was) - alive.begin();
      me.ranks = me.local_ranks = chosen.plan.ranks();
      me.job += "+";
      if (me.rank == 0)
        fmt::print(stderr, "{}\nranks left: {}; going on under {} {}\n", printable(e.what()), count,
                   short_name(chosen.plan), beginning(o));
      if (me.rank >= me.ranks) {
        fmt::print(stderr, "rank {} is not needed any more\n", was);
        return;
      }
      options.resume = true;
    }
  }
}

// The stand-in for a plan that this machine is too small for, written to a file that simulate and calibrate
// read.
Chosen stand_in(const Options& o, const Chosen& of, const App& app) {
  const Scenario scenario = planner::proxy(of.problem.scenario, of.plan);
  const Cursor root{o.proxy, ""};
  const Chosen out{resolve(scenario, root, app.data), with_room(*scenario.plan, scenario.model), root};
  const Cursor at{o.plan, "/plan"};
  program::check_plan(scenario.model, out.plan, scenario.training, at);
  const auto program = program::compile(scenario.model, out.plan, scenario.training, out.problem.stack);
  std::int64_t needed = 0;
  for (const program::RankClass& c : program.classes)
    needed += c.arena_peak.value * out.plan.tp * out.plan.copies();
  if (const Bytes there = exec::available_memory().bytes; needed > there.value / 10 * 9) {
    at.fail(fmt::format("its proxy, {}, needs {} of memory, and {} are free", short_name(out.plan),
                        format(Bytes{needed}), format(there)),
            "allowed: a shorter sequence, a smaller micro-batch, fewer tensor ranks");
  }
  Json json = {{"schema", "orrery.scenario/1"}};
  json.update(write_fields(scenario));
  save_json(o.proxy, json);
  if (!app.json) {
    fmt::print("proxy: {} with {} of {} layers, for {} with {} ranks; written to {}\n", short_name(out.plan),
               scenario.model.layers, of.problem.scenario.model.layers, short_name(of.plan), of.plan.ranks(),
               printable(o.proxy));
  }
  return out;
}

// Ranks of this host that the kernel would end in the middle of a run do not start.
void require_memory(const Options& o, const program::Program& program,
                    const std::optional<exec::Launch>& launch, const Cursor& at) {
  if (o.force || o.backend != exec::Backend::kCpu) return;
  const std::int64_t all = program.mesh.ranks(), count = launch ? std::min(all, launch->local_ranks) : all;
  const std::int64_t first =
      launch ? std::clamp<std::int64_t>(launch->rank - launch->local_rank, 0, all - count) : 0;
  const Bytes needed = exec::needed_memory(
      program, first, count, {.validates = o.validate_every > 0, .copies_state = o.async_checkpoints});
  const exec::AvailableMemory there = exec::available_memory();
  if (needed <= there.bytes) return;
  at.fail(fmt::format("the plan's {} ranks on this machine need {} of memory, and {} leaves {}", count,
                      format(needed), there.limited_by, format(there.bytes)),
          "allowed: a smaller model or batch, fewer ranks, --proxy FILE for a stand-in of the plan, or "
          "--force");
}

// What the run will write is tried before it begins: a run of hours does not fail at its end.
void require_outputs(const Options& o) {
  for (const auto& [option, path] : {std::pair{"/trace", o.trace},
                                     {"/expert-load", o.expert_load},
                                     {"/metrics-file", o.metrics},
                                     {"/gemm-cache", o.gemm_cache}})
    require_writable(option, path);
  for (const auto& [option, path] :
       {std::pair{"/checkpoints", o.checkpoints}, {"/tensorboard", o.tensorboard}})
    require_folder(option, path);
}

// A run that is to go on does not begin anew by mistake.
void require_checkpoint(const Options& o) {
  if (!o.resume || o.force || exec::has_checkpoints(o.checkpoints)) return;
  const bool there = std::filesystem::is_directory(o.checkpoints);
  throw InputError("command line", "/resume",
                   fmt::format("\"{}\" {}", o.checkpoints, there ? "holds no checkpoint" : "is no folder"),
                   "allowed: a folder with a checkpoint, or --force to start from the beginning");
}

void count_experts(const Options& o, const Model& model, exec::RunOptions& options) {
  options.expert_load = !o.expert_load.empty();
  if (!options.expert_load) return;
  const Cursor at{"command line", "/expert-load"};
  if (experts_of(model).empty()) at.fail("the model has no experts", "allowed: no such option");
  if (o.backend != exec::Backend::kCpu)
    at.fail(fmt::format("{} counts no tokens of experts", name_of(o.backend)), "allowed: --backend cpu");
}

void execute(App& app, const Options& o) {
  require_checkpoint(o);
  Chosen chosen = load_plan_or_scenario(o.plan, app);
  chosen.plan = with_room(chosen.plan, chosen.problem.scenario.model);
  if (!o.proxy.empty()) chosen = stand_in(o, chosen, app);
  const Scenario& s = chosen.problem.scenario;
  const Cursor at{o.plan, "/plan"};
  const auto program = runnable_program(chosen, o.backend);
  const Data data = prepare_data(o, s);
  exec::RunOptions options;
  options.backend = o.backend;
  options.launch = chosen.problem.stack.launch;
  options.steps = o.steps;
  options.seed = static_cast<std::uint64_t>(o.seed);
  options.learning_rate = static_cast<float>(o.learning_rate);
  options.weight_decay = static_cast<float>(o.weight_decay);
  options.warm_up = o.warm_up;
  options.collectives = o.collectives;
  options.loss_scale = o.loss_scale;
  options.loss_scale_window = o.loss_scale_window;
  options.decay_to = static_cast<float>(o.decay_to);
  options.deadline = std::chrono::seconds(o.deadline_s);
  options.data = data.training.get();
  options.validation = data.validation.get();
  options.validate_every = o.validate_every;
  options.validation_batches = o.validation_batches;
  options.checkpoints = o.checkpoints;
  if (!o.checkpoints.empty()) set_checkpoints(o, options);
  options.resume = o.resume;
  options.force = o.force;
  if (!o.gemm_cache.empty() && o.backend != exec::Backend::kCuda) {
    throw InputError("command line", "/gemm-cache",
                     fmt::format("{} measures no algorithms of products", name_of(o.backend)),
                     "allowed: --backend cuda");
  }
  options.gemm_cache = o.gemm_cache;
  emulate(o, program.mesh.ranks(), options);
  count_experts(o, s.model, options);
  require_device(o.backend);
  const std::optional<exec::Launch> launch = launched(chosen.plan, at);
  require_memory(o, program, launch, at);
  require_outputs(o);
  if (o.resume && !exec::has_checkpoints(o.checkpoints) && (!launch || launch->rank == 0))
    alert(fmt::format("the run starts {}", beginning(o)));
  Observer observer(app, o, s, options);
  options.on_step = [&](std::int64_t step, const exec::StepReport& report) { observer(step, report); };
  options.stop = [] { return exec::stop_signal.load(); };
  exec::catch_stop_signals();
  if (!launch && !o.rendezvous.empty()) {
    throw InputError(
        "command line", "/rendezvous",
        fmt::format("\"{}\" is for processes that a launcher started, and this one is alone", o.rendezvous));
  }
  if (launch) {
    std::optional<exec::Secret> secret;
    if (!o.rendezvous.empty())
      secret =
          exec::read_secret(o.secret_file, [](const char* name) -> const char* { return std::getenv(name); });
    run_launched(*launch, chosen, options, app, o, observer, secret);
  } else {
    const auto ranks = static_cast<std::size_t>(program.mesh.ranks());
    if (!app.json) print_ranks(program.mesh, std::vector(ranks, exec::host_name()));
    observer.see(program);
    report(app, o, s, chosen.plan, false, exec::run(program, options));
  }
}

}  // namespace

void add_run(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(
      parent, app, "run",
      "train a plan for real, on the CPU or on GPUs: ranks as threads, or as processes under a launcher");
  auto o = std::make_shared<Options>();
  command->add_option("plan", o->plan, "plan or scenario file")->required();
  add_choice<exec::Backend>(*command, "--backend", o->backend, "what executes the ops")->default_str("cpu");
  command->add_option("--steps", o->steps, "optimizer steps")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command
      ->add_option_function<std::string>(
          "--seed", [o](const std::string& text) { o->seed = read_seed(text); }, "of weights and data")
      ->default_str(std::to_string(o->seed));
  command->add_option("--learning-rate", o->learning_rate, "of AdamW")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command->add_option("--warm-up", o->warm_up, "steps over which the learning rate grows")
      ->check(CLI::Range(0, 1000000));
  command
      ->add_option("--decay-to", o->decay_to,
                   "share of the learning rate left at the last step (half a cosine)")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--weight-decay", o->weight_decay, "of AdamW")->check(CLI::Range(0.0, 10.0));
  command->add_option("--loss-scale", o->loss_scale, "first factor of the loss; only fp16 needs one")
      ->check(CLI::Range(1e-4, 1e15))
      ->capture_default_str();
  command
      ->add_option("--loss-scale-window", o->loss_scale_window,
                   "steps without overflow after which the factor doubles")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option(
      "--data", o->data,
      "text (a token per byte) or GPT-2 tokens (*.bin); images or events where the model takes "
      "them (docs/file-formats.md); else built-in data");
  command->add_option("--validate-every", o->validate_every, "steps between validations on held-out data")
      ->check(CLI::Range(1, 1000000));
  command->add_option("--validation-batches", o->validation_batches, "global batches of a validation")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--held-out", o->held_out, "share of the data held out, from its end")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option(
      "--expert-load", o->expert_load,
      "write how many tokens each expert got: an expert_load for `orrery simulate`; on the CPU");
  command->add_option("--metrics-file", o->metrics, "replace this file after each step (Prometheus text)");
  command->add_option("--tensorboard", o->tensorboard, "write scalars into this folder");
  CLI::Option* folder = command->add_option("--checkpoints", o->checkpoints, "folder of checkpoints");
  command
      ->add_option("--checkpoint-every", o->checkpoint_every,
                   "steps between them, or a duration (\"10 min\"); one after the last step too")
      ->needs(folder)
      ->capture_default_str();
  command->add_option("--keep-checkpoints", o->keep_checkpoints, "the newest ones that stay; 0: all")
      ->check(CLI::Range(0, 1000000))
      ->needs(folder)
      ->capture_default_str();
  command
      ->add_flag("--async-checkpoints", o->async_checkpoints,
                 "write them beside the steps that follow, from a copy of the state in memory")
      ->needs(folder);
  command->add_flag("--resume", o->resume, "go on from the newest whole checkpoint, written under any plan")
      ->needs(folder);
  command->add_flag("--force", o->force,
                    "start from the beginning where the folder has no checkpoint, train on from one that was "
                    "trained otherwise, and start where memory does not suffice");
  command
      ->add_flag("--elastic", o->elastic,
                 "when processes of this host die, the others plan anew and go on from the last checkpoint")
      ->needs(folder);
  command->add_option(
      "--gemm-cache", o->gemm_cache,
      "file that keeps which algorithms run matrix products on a GPU, so that runs compute the same "
      "bits; a process of several adds its rank to the name");
  CLI::Option* rendezvous =
      command
          ->add_option(
              "--rendezvous", o->rendezvous,
              "where processes meet over TCP, without shared memory or MPI: tcp://HOST:PORT of rank 0, or "
              "file:PATH that all can read")
          ->envname("ORRERY_RENDEZVOUS");
  command
      ->add_option(
          "--secret-file", o->secret_file,
          "file whose first line is the secret by which ranks know each other over TCP; only its owner "
          "may read it (or give the secret in ORRERY_JOB_SECRET)")
      ->needs(rendezvous);
  command->add_option("--deadline", o->deadline_s, "seconds any rank may wait for another")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  add_choice<exec::Algorithm>(*command, "--collectives", o->collectives,
                              "algorithm of sums and gathers over ranks: direct sums in rank order")
      ->default_str("direct");
  CLI::Option* link =
      command->add_option("--link", o->link, "emulate a link of this bandwidth (\"200 MB/s\")");
  command->add_option("--link-latency", o->link_latency, "of a hop over it")
      ->needs(link)
      ->capture_default_str();
  command->add_option("--slow", o->slow, "emulate slow ranks: RANK:FACTOR on the time of their compute");
  command->add_option(
      "--proxy", o->proxy,
      "run a stand-in with the same shapes on each rank, but fewer layers, stages and replicas; "
      "this file gets it, for calibrate");
  command->add_option(
      "--trace", o->trace,
      "write the measured timeline of the last step: Chrome JSON, or compact where FILE ends in .timeline");
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
