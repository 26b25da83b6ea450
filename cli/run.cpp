// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "cli/run.h"
#include "cli/run_loading.h"
#include "cli/weights.h"
#include "core/text.h"
#include "exec/checkpoint.h"
#include "exec/data.h"
#include "exec/drives.h"
#include "exec/launch.h"
#include "exec/memory.h"
#include "exec/memory_checkpoint.h"
#include "exec/run.h"
#include "exec/stop.h"
#include "planner/proxy.h"

namespace orrery::cli {
namespace {

// The end of the data is held out of training.
struct Data {
  std::unique_ptr<exec::Dataset> whole, training, validation;
};

Data prepare_data(const RunAsked& o, const Scenario& s) {
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

// What is emulated: a slower link, slower ranks ("3:1.3").
void emulate(const RunAsked& o, std::int64_t ranks, exec::RunOptions& options) {
  const auto fail = [](const char* option, std::string_view value, const char* allowed) {
    throw InputError("command line", fmt::format("/{}", option), fmt::format("\"{}\" {}", value, allowed));
  };
  if (o.backend != exec::Backend::kCpu) {
    for (const auto& [option, given] : {std::pair{"link", !o.link.empty()},
                                        {"host-link", !o.host_link.empty()},
                                        {"nvme-bandwidth", !o.nvme_bandwidth.empty()},
                                        {"slow", !o.slow.empty()},
                                        {"collectives", o.collectives != exec::Algorithm::kDirect}}) {
      if (given)
        fail(option, name_of(o.backend),
             "takes no --link, --host-link, --nvme-bandwidth, --slow or --collectives (allowed: --backend "
             "cpu)");
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
  for (const auto& [option, text, into] :
       {std::tuple{"host-link", &o.host_link, &options.host_link},
        std::tuple{"nvme-bandwidth", &o.nvme_bandwidth, &options.nvme_bandwidth}}) {
    if (text->empty()) continue;
    const auto bandwidth = parse_bandwidth(*text);
    if (!bandwidth || bandwidth->value <= 0) fail(option, *text, "is not a bandwidth (allowed: \"4 GB/s\")");
    *into = *bandwidth;
  }
  options.slow = slow_ranks(o.slow, ranks);
}

std::int64_t read_seed(const std::string& text) {
  if (const auto seed = whole_number(text)) return *seed;
  using Limits = std::numeric_limits<std::int64_t>;
  throw InputError("command line", "/seed", fmt::format("\"{}\"", text),
                   fmt::format("allowed: whole numbers from {} to {}", Limits::min(), Limits::max()));
}

// "50" steps, or a duration.
void set_checkpoints(const RunAsked& o, exec::RunOptions& options) {
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
  if (o.memory_every > 0 && options.checkpoint_every % o.memory_every != 0)
    throw InputError("command line", "/memory-every", std::to_string(o.memory_every),
                     fmt::format("allowed: a number of steps that divides those of --checkpoint-every, {}",
                                 options.checkpoint_every));
}

// All ranks as threads. Where one fails, the run starts again as often as --restarts says.
exec::RunResult run_threads(const program::Program& program, exec::RunOptions options, const RunAsked& o,
                            LifeKeeper& life) {
  const auto ranks = static_cast<std::size_t>(program.mesh.ranks());
  std::vector<exec::MemoryCheckpoints> memory(o.memory_every > 0 ? ranks : 0,
                                              exec::MemoryCheckpoints(o.memory_replicas));
  if (!memory.empty()) options.memory = &memory;
  for (;;) {
    options.faults = life.faults();
    try {
      return exec::run(program, options);
    } catch (const InputError&) {
      throw;
    } catch (const Error& e) {
      life.failed();
      if (life.failures() > o.restarts || exec::stop_signal.load() != 0) throw;
      options.resume = exec::has_checkpoints(o.checkpoints);
      fmt::print(stderr, "{}\nrestart {} of {}: going on {}\n", printable(e.what()), life.failures(),
                 o.restarts, going_on(o));
    }
  }
}

// The stand-in for a plan that this machine is too small for, written to a file that simulate and calibrate
// read.
Chosen stand_in(const RunAsked& o, const Chosen& of, const App& app) {
  const Scenario scenario = planner::proxy(of.problem.scenario, of.plan);
  const Cursor root{o.proxy, ""};
  const Chosen out{resolve(scenario, root, app.data), with_room(*scenario.plan, scenario.model), root};
  const Cursor at{o.plan, "/plan"};
  program::check_plan(scenario.model, out.plan, scenario.training, at);
  const auto program = program::compile(scenario.model, out.plan, scenario.training, out.problem.stack);
  std::int64_t needed = 0;
  for (const program::RankClass& c : program.classes)
    needed += c.arena_bytes() * (out.plan.ranks() / out.plan.pp);
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
void require_memory(const RunAsked& o, const program::Program& program,
                    const std::optional<exec::Launch>& launch, const Cursor& at) {
  if (o.force || o.backend != exec::Backend::kCpu) return;
  const std::int64_t all = program.mesh.ranks(), count = launch ? std::min(all, launch->local_ranks) : all;
  const std::int64_t first =
      launch ? std::clamp<std::int64_t>(launch->rank - launch->local_rank, 0, all - count) : 0;
  const Bytes needed =
      exec::needed_memory(program, first, count,
                          {.validates = o.validate_every > 0,
                           .copies_state = o.async_checkpoints,
                           .replicas = o.memory_every > 0 ? std::min(o.memory_replicas, all) : 0,
                           .drives_take_memory = exec::is_in_memory(exec::drive_folder(o.nvme)),
                           .copies_of_weights = o.weights.empty() && o.adapter.empty() ? 0
                                                : launch                               ? count
                                                                                       : 1});
  const exec::AvailableMemory there = exec::available_memory();
  if (needed <= there.bytes) return;
  at.fail(fmt::format("the plan's {} ranks on this machine need {} of memory, and {} leaves {}", count,
                      format(needed), there.limited_by, format(there.bytes)),
          "allowed: a smaller model or batch, fewer ranks, --proxy FILE for a stand-in of the plan, or "
          "--force");
}

// What the run will write is tried before it begins: a run of hours does not fail at its end.
void require_outputs(const RunAsked& o) {
  for (const auto& [option, path] : {std::pair{"/trace", o.trace},
                                     {"/expert-load", o.expert_load},
                                     {"/metrics-file", o.metrics},
                                     {"/life", o.life},
                                     {"/life-trace", o.life_trace},
                                     {"/gemm-cache", o.gemm_cache}})
    require_writable(option, path);
  for (const auto& [option, path] :
       {std::pair{"/checkpoints", o.checkpoints}, {"/tensorboard", o.tensorboard}})
    require_folder(option, path);
}

// A run that is to go on does not begin anew by mistake.
void require_checkpoint(const RunAsked& o) {
  if (!o.resume || o.force || exec::has_checkpoints(o.checkpoints)) return;
  const bool there = std::filesystem::is_directory(o.checkpoints);
  throw InputError("command line", "/resume",
                   fmt::format("\"{}\" {}", o.checkpoints, there ? "holds no checkpoint" : "is no folder"),
                   "allowed: a folder with a checkpoint, or --force to start from the beginning");
}

// Refuses checkpoints in memory from which the run could never go on.
void require_going_on(const RunAsked& o) {
  if (o.memory_every == 0 || o.restarts > 0 || o.spares > 0 || o.elastic) return;
  throw InputError("command line", "/memory-every", std::to_string(o.memory_every),
                   "allowed: with --restarts, --spares or --elastic, as memory ends with the run");
}

// That a disk fails without.
void require_checkpoints(const RunAsked& o) {
  const auto disk =
      std::find_if(o.faults.begin(), o.faults.end(), [](const Fault& f) { return !stops_run(f.kind); });
  if (disk != o.faults.end() && o.checkpoints.empty())
    Cursor{"command line", "/fail"}.fail(
        fmt::format("rank {} writes no checkpoint after step {}", disk->rank, disk->step),
        "allowed: with --checkpoints FOLDER");
}

void count_experts(const RunAsked& o, const Model& model, exec::RunOptions& options) {
  options.expert_load = !o.expert_load.empty();
  if (!options.expert_load) return;
  const Cursor at{"command line", "/expert-load"};
  if (experts_of(model).empty()) at.fail("the model has no experts", "allowed: no such option");
  if (o.backend != exec::Backend::kCpu)
    at.fail(fmt::format("{} counts no tokens of experts", name_of(o.backend)), "allowed: --backend cpu");
}

// The token of the data that ends a document, where the user gives one.
std::optional<std::int32_t> end_token(const RunAsked& o, const Training& training,
                                      const exec::Dataset& data) {
  if (!o.end_token) return std::nullopt;
  const Cursor at{"command line", "/end-token"};
  if (!training.packs())
    at.fail("sequences of the scenario are not packed from documents",
            "allowed: no such option, or a scenario with training.documents");
  if (*o.end_token >= data.vocabulary())
    at.fail(fmt::format("{} is no token of the data", *o.end_token),
            fmt::format("allowed: 0 to {}", data.vocabulary() - 1));
  return static_cast<std::int32_t>(*o.end_token);
}

void execute(App& app, RunAsked o) {
  require_checkpoint(o);
  Chosen chosen = load_plan_or_scenario(o.plan, app);
  chosen.plan = with_room(chosen.plan, chosen.problem.scenario.model);
  if (!o.proxy.empty()) chosen = stand_in(o, chosen, app);
  const Scenario& s = chosen.problem.scenario;
  const Cursor at{o.plan, "/plan"};
  const auto program = runnable_program(chosen, o.backend);
  for (const auto& [option, given] :
       {std::pair{"/nvme", !o.nvme.empty()}, {"/nvme-bandwidth", !o.nvme_bandwidth.empty()}}) {
    if (given && !chosen.plan.optimizer_on_drives())
      Cursor{"command line", option}.fail("the plan keeps nothing on drives",
                                          "allowed: no such option, or a plan with offload.nvme");
  }
  const Data data = prepare_data(o, s);
  exec::RunOptions options;
  options.backend = o.backend;
  options.launch = chosen.problem.stack.launch;
  options.steps = o.steps;
  options.seed = static_cast<std::uint64_t>(o.seed);
  options.nvme = o.nvme;
  options.learning_rate = static_cast<float>(o.learning_rate);
  options.weight_decay = static_cast<float>(o.weight_decay);
  options.warm_up = o.warm_up;
  options.collectives = o.collectives;
  options.loss_scale = o.loss_scale;
  options.loss_scale_window = o.loss_scale_window;
  options.decay_to = static_cast<float>(o.decay_to);
  options.deadline = std::chrono::seconds(o.deadline_s);
  options.data = data.training.get();
  options.end_token = end_token(o, s.training, *data.whole);
  options.loader = loader_options(o, chosen);
  options.validation = data.validation.get();
  options.validate_every = o.validate_every;
  options.validation_batches = o.validation_batches;
  options.checkpoints = o.checkpoints;
  if (!o.checkpoints.empty()) set_checkpoints(o, options);
  options.memory_every = o.memory_every;
  options.resume = o.resume;
  options.force = o.force;
  if (!o.gemm_cache.empty() && o.backend != exec::Backend::kCuda) {
    throw InputError("command line", "/gemm-cache",
                     fmt::format("{} measures no algorithms of products", name_of(o.backend)),
                     "allowed: --backend cuda");
  }
  options.gemm_cache = o.gemm_cache;
  emulate(o, program.mesh.ranks(), options);
  o.faults = read_faults(o.fail, program.mesh.ranks(), o.steps);
  require_checkpoints(o);
  require_going_on(o);
  count_experts(o, s.model, options);
  require_device(o.backend);
  const std::optional<exec::Launch> launch = launched(o, chosen.plan, at);
  require_memory(o, program, launch, at);
  require_outputs(o);
  std::optional<exec::Weights> weights;
  if (!o.weights.empty()) weights = load_weights(o.weights, s.model, program, !launch || launch->rank == 0);
  if (!o.adapter.empty()) load_adapters(o.adapter, s.model, program, weights ? *weights : weights.emplace());
  if (weights) options.weights = &*weights;
  if (o.resume && !exec::has_checkpoints(o.checkpoints) && (!launch || launch->rank == 0))
    alert(fmt::format("the run starts {}", beginning(o)));
  Observer observer(app, o, s, options);
  options.stop = [] { return exec::stop_signal.load(); };
  exec::catch_stop_signals();
  if (!launch && !o.rendezvous.empty()) {
    throw InputError(
        "command line", "/rendezvous",
        fmt::format("\"{}\" is for processes that a launcher started, and this one is alone", o.rendezvous));
  }
  if (launch) return run_launched(*launch, chosen, options, app, o, observer);
  const auto ranks = static_cast<std::size_t>(program.mesh.ranks());
  if (!app.json) print_ranks(program.mesh, std::vector(ranks, exec::host_name()));
  observer.see(program);
  LifeKeeper life(o.faults);
  options.on_step = [&](std::int64_t step, const exec::StepReport& report) {
    life.step(step, report);
    observer(step, report);
  };
  const exec::RunResult result = run_threads(program, options, o, life);
  report(app, o,
         {chosen.problem, chosen.plan, false, result, life.life(program, o, options), life.marks(),
          data.training->sequences()});
}

}  // namespace

void add_run(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(
      parent, app, "run",
      "train a plan for real, on the CPU or on GPUs: ranks as threads, or as processes under a launcher");
  auto o = std::make_shared<RunAsked>();
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
  command->add_option("--weights", o->weights,
                      "start from weights of Hugging Face: a *.safetensors file, an index, or a folder");
  command->add_option("--adapter", o->adapter, "start from adapters of PEFT: a folder");
  command->add_option(
      "--data", o->data,
      "text (a token per byte) or GPT-2 tokens (*.bin); images or events where the model takes "
      "them (docs/file-formats.md); else built-in data");
  command
      ->add_option("--end-token", o->end_token,
                   "token of the data that ends a document, where sequences are packed from documents; "
                   "without it, where they end is drawn")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30));
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
  CLI::Option* memory =
      command
          ->add_option(
              "--memory-every", o->memory_every,
              "steps between checkpoints that ranks keep in memory, from which a run goes on after a "
              "failure; 0: none")
          ->check(CLI::Range(0, 1000000))
          ->capture_default_str();
  command
      ->add_option("--memory-replicas", o->memory_replicas,
                   "ranks that hold each part of these, its own among them: one fewer may die at once")
      ->check(CLI::Range(1, 256))
      ->needs(memory)
      ->capture_default_str();
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
  command->add_option("--host-link", o->host_link,
                      "emulate copies between a device and its host's memory at this bandwidth (\"4 GB/s\")");
  command
      ->add_option(
          "--nvme", o->nvme,
          "folder on the drives where a plan keeps what lies there; by default that of temporary files")
      ->check(CLI::ExistingDirectory);
  command->add_option("--nvme-bandwidth", o->nvme_bandwidth,
                      "emulate a rank's copies to and from the drives at this bandwidth (\"1 GB/s\")");
  command->add_option("--link-latency", o->link_latency, "of a hop over it")
      ->needs(link)
      ->capture_default_str();
  command->add_option("--fail", o->fail,
                      "inject a fault: RANK@STEP, or RANK@STEP:KIND with dead (the default), frozen, or disk "
                      "(no room for the checkpoint after the step); several strike one after the other");
  command
      ->add_option(
          "--restarts", o->restarts,
          "how often a run that failed starts again on the ranks that it has, from its last checkpoint")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command
      ->add_option("--spares", o->spares,
                   "processes beyond the plan's ranks that stand by, and take the place of those that die")
      ->check(CLI::Range(0, 255))
      ->capture_default_str();
  command->add_option("--life", o->life,
                      "write where the time of the run went, for `orrery reliability` to compare with");
  command->add_option("--life-trace", o->life_trace,
                      "write what the run did, and what it stopped for, as a timeline");
  command->add_flag("--loading", o->loading,
                    "emulate the storage, workers and processor time of the scenario's object `loading`, and "
                    "tell what was predicted of them beside what was measured");
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
