// SPDX-License-Identifier: Apache-2.0
#include "planner/parameter_server.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "sim/cost.h"
#include "sim/engine/engine.h"

namespace orrery::planner {
namespace {

const Cursor kCommand{"command line", ""};

// Of a gradient, without the update, which is the server's.
Time gradient_time(const Problem& problem, const program::Program& worker) {
  program::Program gradients = worker;
  for (program::RankClass& c : gradients.classes) {
    std::erase_if(c.steps, [&](const program::Step& s) {
      return follows_chunks(c.segments[static_cast<std::size_t>(s.segment)].kind);
    });
  }
  const sim::PlanLinks links(worker.communication.groups.size());
  const sim::CostModel cost(problem.devices, problem.stack, problem.cluster, links, worker.training, 1);
  const sim::NodeTypes nodes = sim::only(0);
  sim::EngineOptions options;
  options.record = false;
  options.scenario = problem.at;
  return sim::simulate(gradients, sim::by_stage(gradients, sim::price(gradients, cost), cost.pace(nodes)),
                       options)
      .step;
}

std::int64_t trained_elements(const program::Program& worker) {
  std::int64_t sum = 0;
  for (const program::Unit& u : worker.classes.front().units)
    sum += u.kept == program::Kept::kTrained ? u.elements : 0;
  return sum;
}

void place_on_nodes(const Problem& problem, const ServersAsked& asked, sim::ServerWork& out) {
  const Cluster& c = problem.cluster;
  const std::int64_t per_node = std::min(asked.servers_per_node, c.devices_per_node);
  const std::int64_t nodes = (asked.servers + per_node - 1) / per_node;
  const std::int64_t left = (c.nodes - nodes) * c.devices_per_node;
  if (asked.rules.workers > left) {
    kCommand.child("workers").fail(
        fmt::format("{} workers are more than the {} devices beside {} node{} of servers",
                    asked.rules.workers, std::max<std::int64_t>(0, left), nodes, nodes == 1 ? "" : "s"),
        left > 0 ? fmt::format("allowed: {}, or more nodes", left) : "allowed: more nodes");
  }
  for (std::int64_t s = 0; s < asked.servers; ++s) {
    out.servers.push_back(s / per_node * c.devices_per_node + s % per_node * (c.devices_per_node / per_node));
  }
  // Spread over the nodes, so that few workers share a node's ports.
  const std::int64_t hosts = c.nodes - nodes;
  for (std::int64_t w = 0; w < asked.rules.workers; ++w)
    out.workers.push_back((nodes + w % hosts) * c.devices_per_node + w / hosts);
}

std::string bottleneck_of(const sim::ServedTraining& run, const sim::ServerWork& work) {
  const sim::WorkerTime& t = run.mean;
  const double all = seconds(t.computing + t.pulling + t.pushing + t.waiting);
  const double moving = seconds(t.pulling + t.pushing) / all, waiting = seconds(t.waiting) / all;
  const double updating = run.updates_per_s() * seconds(work.update);
  if (!run.links.empty() && run.links.front().busy > 0.8) {
    return fmt::format("the link {} is {:.0f} % full: workers spend {:.0f} % of their time on it",
                       run.links.front().name, 100 * run.links.front().busy, 100 * moving);
  }
  if (updating > 0.8) {
    return fmt::format("servers update for {:.0f} % of the time: servers on more nodes would share it",
                       100 * updating);
  }
  if (moving > seconds(t.computing) / all) {
    return fmt::format(
        "parameters and gradients are on their way for {:.0f} % of workers' time, most over {}", 100 * moving,
        run.links.front().name);
  }
  if (waiting > 0.2)
    return fmt::format("workers wait for each other for {:.0f} % of their time", 100 * waiting);
  return fmt::format("workers compute for {:.0f} % of their time", 100 * seconds(t.computing) / all);
}

}  // namespace

program::Program worker_program(const Problem& problem, const ServersAsked& asked) {
  Training training = problem.scenario.training;
  const std::int64_t workers = asked.rules.workers;
  Plan plan;
  plan.micro_batch = problem.scenario.plan ? problem.scenario.plan->micro_batch : 1;
  if (training.global_batch % (workers * plan.micro_batch) != 0) {
    problem.at.child("training")
        .child("global_batch")
        .fail(fmt::format("{} is not divided by {} workers with micro-batches of {}", training.global_batch,
                          workers, plan.micro_batch),
              fmt::format("allowed: multiples of {}", workers * plan.micro_batch));
  }
  if (training.muon)
    problem.at.child("training")
        .child("muon")
        .fail("servers update shards of matrices, and Muon whole ones", "allowed: no such field");
  if (training.scales_loss())
    problem.at.child("training")
        .child("math")
        .fail("a server takes gradients of unscaled losses", "allowed: what is not fp16");
  training.global_batch /= workers;
  training.outer.reset();
  plan.micro_batches = training.global_batch / plan.micro_batch;
  if (problem.scenario.plan) {
    plan.recompute = problem.scenario.plan->recompute;
    plan.recompute_parts = problem.scenario.plan->recompute_parts;
    plan.recompute_layers = problem.scenario.plan->recompute_layers;
    plan.recompute_first = problem.scenario.plan->recompute_first;
    plan.loss_chunks = problem.scenario.plan->loss_chunks;
  }
  program::check_plan(problem.scenario.model, plan, training, problem.at.child("plan"));
  return program::compile(problem.scenario.model, plan, training, problem.stack);
}

ServersAnswer train_through_servers(const Problem& problem, const sim::Topology& topology,
                                    const program::Program& worker, const ServersAsked& asked) {
  if (const std::string why = server_problem(asked.rules); !why.empty())
    kCommand.child(asked.rules.wait_for > asked.rules.workers ? "wait-for" : "bound").fail(why);
  // Each start and end of a flow sets the rates of all.
  constexpr double kMostWork = 4e9;
  const double flows = static_cast<double>(asked.rules.workers * asked.servers);
  const double gradients = static_cast<double>(asked.updates * asked.rules.wait_for);
  if (flows * gradients * static_cast<double>(asked.servers) > kMostWork) {
    kCommand.child("updates").fail(
        fmt::format("{} updates of {} gradients over {:.0f} flows would take hours", asked.updates,
                    asked.rules.wait_for, flows),
        fmt::format(
            "allowed: {:.0f}, or fewer workers or servers",
            std::floor(kMostWork / (flows * static_cast<double>(asked.servers * asked.rules.wait_for)))));
  }
  if (!problem.cluster.host)
    problem.at.child("cluster").fail("its nodes have no \"host\", whose processors update parameters");
  ServersAnswer out;
  sim::ServerWork& work = out.work;
  place_on_nodes(problem, asked, work);
  const BytesPerParameter bytes = bytes_per_parameter(worker.training.precision);
  const std::int64_t elements = trained_elements(worker);
  work.compute = gradient_time(problem, worker);
  work.variation = asked.variation;
  work.slow = asked.slow;
  work.pulled = Bytes{elements * bytes.parameter};
  work.pushed = Bytes{elements * bytes.gradient};
  // Servers of a node share its memory.
  const sim::HostCost host(problem.cluster, problem.stack, std::min(asked.servers, asked.servers_per_node));
  work.update = host.update(Bytes{(elements + asked.servers - 1) / asked.servers * bytes.update_traffic()},
                            sim::only(0));
  work.latency = problem.cluster.nic_latency;
  work.updates = asked.updates;
  work.seed = asked.seed;
  out.run = sim::simulate_servers(topology.network(), asked.rules, work);
  const program::RankClass& rank = worker.classes.front();
  out.worker_bytes = rank.logical_peak.value -
                     rank.at_peak[static_cast<std::size_t>(program::BufferClass::kOptimizer)].value;
  const double used = static_cast<double>(out.run.updates * asked.rules.wait_for);
  out.samples_per_s = used * static_cast<double>(worker.training.global_batch) / seconds(out.run.total);
  out.efficiency =
      used * seconds(work.compute) / (seconds(out.run.total) * static_cast<double>(asked.rules.workers));
  out.bottleneck = bottleneck_of(out.run, work);
  return out;
}

}  // namespace orrery::planner
