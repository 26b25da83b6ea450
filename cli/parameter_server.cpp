// SPDX-License-Identifier: Apache-2.0
//
// orrery parameter-server: a scenario trained through parameter servers, predicted, and run for real.
#include "planner/parameter_server.h"

#include <fmt/format.h>

#include <numeric>

#include "cli/commands.h"
#include "core/text.h"
#include "exec/data.h"
#include "exec/memory.h"
#include "exec/parameter_server.h"

namespace orrery::cli {
namespace {

struct ServersCommand {
  std::string file, link, data;
  planner::ServersAsked servers;
  std::vector<std::string> slow;
  bool run = false;
  double learning_rate = 1e-3;
};

Json histogram(const std::vector<std::int64_t>& counts) {
  const double all = std::max(1.0, std::accumulate(counts.begin(), counts.end(), 0.0));
  Json out = Json::array();
  for (const std::int64_t n : counts) out.push_back(static_cast<double>(n) / all);
  return out;
}

// "0: 12 %, 1: 40 %, ..", the last ones together.
std::string histogram_words(const std::vector<std::int64_t>& counts) {
  constexpr std::size_t kShown = 8;
  const double all = std::max(1.0, std::accumulate(counts.begin(), counts.end(), 0.0));
  std::string out;
  for (std::size_t s = 0; s < std::min(counts.size(), kShown); ++s)
    out += fmt::format("{}{}: {:.0f} %", s > 0 ? ", " : "", s, 100 * static_cast<double>(counts[s]) / all);
  if (counts.size() > kShown) {
    const double rest = std::accumulate(counts.begin() + kShown, counts.end(), 0.0);
    out += fmt::format(", more: {:.0f} %", 100 * rest / all);
  }
  return out;
}

double mean_loss(const std::vector<double>& losses, std::size_t first, std::size_t count) {
  return std::accumulate(losses.begin() + static_cast<std::ptrdiff_t>(first),
                         losses.begin() + static_cast<std::ptrdiff_t>(first + count), 0.0) /
         static_cast<double>(count);
}

exec::ServedRun run_here(const Problem& problem, const program::Program& worker, const ServersCommand& o) {
  if (!problem.stack.executable)
    problem.at.child("stack").fail(fmt::format("the stack \"{}\" can be predicted only", problem.stack.name),
                                   "allowed: orrery");
  if (const auto why = exec::run_problem(worker, exec::Backend::kCpu, problem.stack.launch); !why.empty())
    problem.at.child("training").fail(why);
  const double needed = static_cast<double>(exec::needed_memory(worker, 0, 1, {}).value) *
                        static_cast<double>(o.servers.rules.workers + 1);
  if (const Bytes there = exec::available_memory().bytes; needed > 0.9 * static_cast<double>(there.value)) {
    Cursor{"command line", "/workers"}.fail(
        fmt::format("{} workers and a server need {:.3g} bytes of memory, and {} are free",
                    o.servers.rules.workers, needed, format(there)),
        "allowed with --run: fewer workers, or a smaller model");
  }
  const std::unique_ptr<exec::Dataset> data =
      o.data.empty() ? exec::built_in_data(o.servers.seed, problem.scenario.model)
                     : exec::open_data(o.data, problem.scenario.model, problem.scenario.training);
  exec::RunOptions options{.steps = o.servers.updates,
                           .seed = o.servers.seed,
                           .learning_rate = static_cast<float>(o.learning_rate)};
  options.slow = o.servers.slow;
  options.timeline = false;
  if (!o.link.empty()) {
    const auto link = parse_bandwidth(o.link);
    if (!link || link->value <= 0)
      Cursor{"command line", "/link"}.fail(fmt::format("{} is no bandwidth", shown(Json(o.link))),
                                           "allowed: such as \"1 Gb/s\"");
    options.link.bandwidth = *link;
  }
  return exec::run_server(worker, options, *data, o.servers.rules);
}

void print(const planner::ServersAnswer& a, const program::Program& worker, const ServersCommand& o) {
  const ServerRules& r = o.servers.rules;
  const sim::ServedTraining& run = a.run;
  const sim::WorkerTime& t = run.mean;
  const double all = seconds(t.computing + t.pulling + t.pushing + t.waiting);
  const auto share = [&](Time part) { return 100 * seconds(part) / all; };
  fmt::print("{}: {} workers and {} server{}, {}, an update with {} gradient{} of {} samples\n",
             printable(worker.model.name), r.workers, o.servers.servers, o.servers.servers == 1 ? "" : "s",
             name_of(r.mode), r.wait_for, r.wait_for == 1 ? "" : "s", worker.training.global_batch);
  fmt::print("{:.2f} updates/s, {:.1f} samples/s: {:.0f} % of what the workers would do alone\n",
             run.updates_per_s(), a.samples_per_s, 100 * a.efficiency);
  fmt::print("a worker computes {} for a gradient, pulls {} and pushes {}, and needs {} of its device\n",
             format(a.work.compute), format(a.work.pulled), format(a.work.pushed),
             format(Bytes{a.worker_bytes}));
  fmt::print("its time: computing {:.0f} %, pulling {:.0f} %, pushing {:.0f} %, waiting {:.0f} %\n",
             share(t.computing), share(t.pulling), share(t.pushing), share(t.waiting));
  fmt::print("staleness: {:.2f} updates in the mean, 95 % of gradients have {} or less ({})\n",
             run.mean_staleness(), run.staleness_at(0.95), histogram_words(run.staleness));
  if (run.dropped > 0) {
    fmt::print("dropped: {} of {} gradients, which came too late\n", run.dropped, run.gradients);
  }
  fmt::print("{}\n", a.bottleneck);
  for (std::size_t i = 0; i < std::min<std::size_t>(3, run.links.size()); ++i)
    fmt::print("  {:<40} {:>5.1f} % full\n", printable(run.links[i].name), 100 * run.links[i].busy);
}

void execute(const App& app, ServersCommand& o) {
  const Problem problem = load_problem(o.file, app.data);
  ServerRules& rules = o.servers.rules;
  if (rules.wait_for == 0) rules.wait_for = rules.mode == ServerMode::kSynchronous ? rules.workers : 1;
  o.servers.slow = slow_ranks(o.slow, o.servers.rules.workers);
  const program::Program worker = planner::worker_program(problem, o.servers);
  const sim::Topology topology(problem.cluster);
  const planner::ServersAnswer a = planner::train_through_servers(problem, topology, worker, o.servers);
  std::optional<exec::ServedRun> real;
  if (o.run) real = run_here(problem, worker, o);
  constexpr std::size_t kEnds = 10;  // updates of a mean
  if (app.json) {
    Json out = {{"schema", "orrery.parameter_server/1"},
                {"updates_per_s", a.run.updates_per_s()},
                {"samples_per_s", a.samples_per_s},
                {"efficiency", a.efficiency},
                {"gradients", a.run.gradients},
                {"dropped", a.run.dropped},
                {"mean_staleness", a.run.mean_staleness()},
                {"staleness", histogram(a.run.staleness)},
                {"worker",
                 {{"compute_s", seconds(a.work.compute)},
                  {"pulled_bytes", a.work.pulled.value},
                  {"pushed_bytes", a.work.pushed.value},
                  {"device_bytes", a.worker_bytes}}},
                {"bottleneck", a.bottleneck},
                {"links", Json::array()}};
    for (const sim::ServerLink& l : a.run.links) out["links"].push_back({{"link", l.name}, {"busy", l.busy}});
    if (real) {
      out["measured"] = {{"updates_per_s", static_cast<double>(real->losses.size()) / real->seconds},
                         {"gradients", real->gradients},
                         {"dropped", real->dropped},
                         {"staleness", histogram(real->staleness)},
                         {"losses", real->losses}};
    }
    return print_json(out);
  }
  print(a, worker, o);
  if (!real) return;
  sim::ServedTraining counted;
  counted.staleness = real->staleness;
  const std::size_t n = std::min(kEnds, real->losses.size());
  fmt::print("\nrun here: {} updates in {}, {:.1f} updates/s; {} of {} gradients dropped\n",
             real->losses.size(), format(from_seconds(real->seconds)),
             static_cast<double>(real->losses.size()) / real->seconds, real->dropped, real->gradients);
  fmt::print("staleness: {:.2f} updates in the mean, 95 % have {} or less ({})\n", counted.mean_staleness(),
             counted.staleness_at(0.95), histogram_words(real->staleness));
  fmt::print("loss {:.4f} in the first {} updates, {:.4f} in the last {}\n", mean_loss(real->losses, 0, n), n,
             mean_loss(real->losses, real->losses.size() - n, n), n);
}

}  // namespace

void add_parameter_server(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "parameter-server",
                                 "a scenario trained through parameter servers: how fast, how stale, and "
                                 "what it waits for");
  auto o = std::make_shared<ServersCommand>();
  ServerRules& rules = o->servers.rules;
  const auto whole = [&](const char* name, std::int64_t& value, std::int64_t least, std::int64_t most,
                         const char* help) {
    command->add_option(name, value, help)->check(CLI::Range(least, most))->capture_default_str();
  };
  command->add_option("scenario", o->file, "the batch, its model and its cluster")->required();
  rules.workers = 4;
  whole("--workers", rules.workers, 1, 4096, "devices that compute gradients");
  whole("--servers", o->servers.servers, 1, 64, "servers, each with an equal part of the parameters");
  whole("--servers-per-node", o->servers.servers_per_node, 1, 64, "servers of a node");
  add_choice<ServerMode>(*command, "--mode", rules.mode, "what becomes of gradients of older parameters");
  rules.wait_for = 0;
  whole("--wait-for", rules.wait_for, 0, 4096,
        "gradients of an update; with fewer than workers, synchronous training has backup workers; 0: all of "
        "the workers in synchronous training, one otherwise");
  whole("--bound", rules.bound, 0, 1 << 20,
        "asynchronous: gradients that a worker may be ahead of the slowest; 0: any");
  command
      ->add_option("--variation", o->servers.variation, "of a gradient's time: standard deviation over mean")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command->add_option("--slow", o->slow, "WORKER:FACTOR, a worker that computes so many times slower");
  whole("--updates", o->servers.updates, 1, 1 << 20, "to simulate, and to run");
  command->add_option("--seed", o->servers.seed, "of what varies, and of the run")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  CLI::Option* run =
      command->add_flag("--run", o->run, "also for real: threads of this processor, one server");
  command->add_option("--learning-rate", o->learning_rate, "of the run")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str()
      ->needs(run);
  command->add_option("--data", o->data, "of the run, as `orrery run` takes it")->needs(run);
  command->add_option("--link", o->link, "of the run's server, emulated: \"1 Gb/s\"")->needs(run);
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
