// SPDX-License-Identifier: Apache-2.0
//
// `orrery run` as one process of several that a launcher started: they meet, run, and go on where one fails.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "cli/run.h"
#include "cli/run_loading.h"
#include "core/text.h"
#include "exec/checkpoint.h"
#include "exec/exchange.h"
#include "exec/memory_checkpoint.h"
#include "exec/process_world.h"
#include "exec/stop.h"
#include "planner/search.h"

namespace orrery::cli {
namespace {

// The best plan on so many of the cluster's devices.
Plan replan(const Problem& problem, std::int64_t devices) {
  Problem smaller = problem;
  smaller.cluster.nodes = 1;
  smaller.cluster.devices_per_node = devices;
  if (smaller.scenario.plan) smaller.scenario.search.islands = {smaller.scenario.plan->islands};
  smaller.scenario.plan.reset();
  smaller.scenario.search.dp.clear();
  const sim::Topology topology(smaller.cluster);
  const auto found = planner::search(smaller, topology, {.keep = 1});
  if (found.best.empty()) throw Error(fmt::format("no plan runs on {} ranks", devices));
  return found.best.front().plan;
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

// Under the same plan: by its new number, the old number of each process that is alive. Ranks that are alive
// keep their numbers, spares take those that are free, and the rest stands by.
std::vector<std::int64_t> seats(const std::vector<std::int64_t>& alive, std::int64_t ranks) {
  std::vector<std::int64_t> out(alive.size(), -1), others;
  for (const std::int64_t old : alive) {
    if (old < ranks)
      out[static_cast<std::size_t>(old)] = old;
    else
      others.push_back(old);
  }
  for (auto next = others.begin(); std::int64_t & seat : out) {
    if (seat < 0) seat = *next++;
  }
  return out;
}

class LaunchedRun {
 public:
  LaunchedRun(const exec::Launch& me, Chosen& chosen, exec::RunOptions options, App& app, const RunAsked& o,
              Observer& observer)
      : me_(me),
        chosen_(chosen),
        options_(std::move(options)),
        app_(app),
        o_(o),
        observer_(observer),
        memory_(o.memory_every > 0 ? 1 : 0, exec::MemoryCheckpoints(o.memory_replicas)),
        life_(o.faults) {
    if (!memory_.empty()) options_.memory = &memory_;
    options_.gpu = static_cast<int>(me.local_rank);
    if (!o.gemm_cache.empty()) options_.gemm_cache += fmt::format(".{}", me.rank);
    options_.on_step = [this](std::int64_t step, const exec::StepReport& report) {
      life_.step(step, report);
      if (me_.rank == 0) observer_(step, report);
    };
  }

  void run(const std::optional<exec::Secret>& secret) {
    while (!done_) start(secret);
  }

 private:
  bool may_go_on() const {
    return (o_.elastic || o_.spares > 0 || o_.restarts > 0) && exec::stop_signal.load() == 0;
  }
  bool stands_by() const { return me_.rank >= chosen_.plan.ranks(); }

  // Returns when the run is over, or is to start again.
  void start(const std::optional<exec::Secret>& secret) {
    const Scenario& s = chosen_.problem.scenario;
    options_.local_ranks = me_.local_ranks;
    options_.faults = life_.faults();
    const auto program = program::compile(s.model, chosen_.plan, s.training, chosen_.problem.stack);
    observer_.see(program);
    if (stands_by()) {  // it is not among those that know which parts count
      for (exec::MemoryCheckpoints& m : memory_) m.clear();
    }
    const auto world =
        exec::join(me_, o_.rendezvous, secret, options_.deadline, exec::largest_message(program));
    try {
      if (stands_by())
        world->stand_by();
      else
        take_part(*world, program);
      done_ = true;
    } catch (const InputError&) {
      world->spread_failure();
      if (may_go_on()) world->survivors();  // the others see that nobody died
      throw;
    } catch (const std::exception& e) {
      world->spread_failure();
      if (!go_on(*world, e.what())) throw;
    }
  }

  void take_part(exec::ProcessWorld& world, const program::Program& program) {
    exec::Exchange exchange(world.communicator(), me_.rank, program.mesh.ranks());
    const auto hosts = exchange.gather("hosts", exec::host_name());
    if (me_.rank == 0 && !app_.json) print_ranks(program.mesh, hosts);
    if (life_source_ > 0) {  // rank 0 is another process than before
      const auto logs = exchange.gather("life", me_.rank == life_source_ ? life_.log() : std::string());
      if (me_.rank == 0) life_.continue_from(logs[static_cast<std::size_t>(life_source_)]);
    }
    const exec::RunResult result =
        exec::run_rank(program, options_, me_.rank, world.communicator(), world.abort());
    app_.exit = exit_of(result);
    if (me_.rank == 0) {
      const RunLife life = life_.life(program, o_, options_);
      report(app_, o_,
             {chosen_.problem, chosen_.plan, true, result, life, life_.marks(), options_.data->sequences()});
    }
    wait_for_all(exchange, me_.rank);
  }

  // After a failure: who runs what now. False where the run is over.
  bool go_on(exec::ProcessWorld& world, const std::string& why) {
    life_.failed();
    if (!may_go_on()) return false;
    const auto alive = world.survivors();
    if (alive.empty()) return false;
    const auto count = std::ssize(alive);
    const bool died = count < me_.ranks;
    if (!died && life_.failures() > o_.restarts) return false;
    const std::int64_t ranks = chosen_.plan.ranks();
    const bool enough = count >= ranks;
    if (!enough) {
      if (!o_.elastic) return false;
      chosen_.plan = with_room(replan(chosen_.problem, count), chosen_.problem.scenario.model);
      options_.loader = loader_options(o_, chosen_);
    }
    const auto order = enough ? seats(alive, ranks) : alive;
    take_seat(order, ranks);
    if (me_.rank == 0)
      fmt::print(stderr, "{}\nranks left: {}; going on under {} {}\n", printable(why), count,
                 short_name(chosen_.plan), going_on(o_));
    if (stands_by() && o_.spares == 0) {
      fmt::print(stderr, "rank {} is not needed any more\n", order[static_cast<std::size_t>(me_.rank)]);
      done_ = true;
    }
    options_.resume = exec::has_checkpoints(o_.checkpoints);
    return true;
  }

  // This process's number among those that are left. The first that was one of the `were` ranks before knows
  // the life of the run.
  void take_seat(const std::vector<std::int64_t>& order, std::int64_t were) {
    const auto ranks = chosen_.plan.ranks();
    life_source_ = 0;
    while (life_source_ < ranks && order[static_cast<std::size_t>(life_source_)] >= were) ++life_source_;
    if (life_source_ == ranks) life_source_ = 0;  // nobody does
    me_.rank = std::find(order.begin(), order.end(), me_.rank) - order.begin();
    me_.ranks = me_.local_ranks = o_.spares > 0 ? std::ssize(order) : ranks;
    me_.job += "+";
  }

  exec::Launch me_;
  Chosen& chosen_;  // after ranks died: the plan that goes on
  exec::RunOptions options_;
  App& app_;
  const RunAsked& o_;
  Observer& observer_;
  std::vector<exec::MemoryCheckpoints> memory_;  // of this process, where there are any
  LifeKeeper life_;
  std::int64_t life_source_ = 0;  // rank that knows of the starts before
  bool done_ = false;
};

}  // namespace

std::optional<exec::Launch> launched(const RunAsked& o, const Plan& plan, const Cursor& at) {
  auto launch = exec::read_launch();
  const Cursor spares{"command line", "/spares"};
  if (!launch || launch->ranks == 1) {
    if (o.spares > 0)
      spares.fail("there are no processes that could stand by: no launcher started several",
                  "allowed: under a launcher (torchrun, mpirun, srun), or --restarts for threads");
    return std::nullopt;
  }
  const bool one_host = launch->one_host() && o.rendezvous.empty();
  if (o.spares > 0 && !one_host)
    spares.fail("only processes of one host, without a rendezvous, stand by", "allowed: 0");
  if (o.memory_every > 0 && !one_host)
    Cursor{"command line", "/memory-every"}.fail(
        "only processes of one host, without a rendezvous, go on from memory", "allowed: 0");
  if (launch->ranks != plan.ranks() + o.spares) {
    at.fail(fmt::format("the plan has {} ranks{}, and {} started {} processes", plan.ranks(),
                        o.spares > 0 ? fmt::format(" and {} stand by", o.spares) : "", launch->launcher,
                        launch->ranks));
  }
  return launch;
}

void run_launched(const exec::Launch& me, Chosen& chosen, exec::RunOptions options, App& app,
                  const RunAsked& o, Observer& observer) {
  std::optional<exec::Secret> secret;
  if (!o.rendezvous.empty())
    secret =
        exec::read_secret(o.secret_file, [](const char* name) -> const char* { return std::getenv(name); });
  LaunchedRun(me, chosen, std::move(options), app, o, observer).run(secret);
}

}  // namespace orrery::cli
