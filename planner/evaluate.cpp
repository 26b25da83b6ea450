// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate.h"

#include <algorithm>

#include "program/check.h"
#include "program/loads.h"
#include "sim/document_loads.h"
#include "sim/estimate/estimate.h"
#include "sim/expert_counts.h"
#include "sim/expert_loads.h"
#include "sim/loading/loading.h"

namespace orrery::planner {
namespace {

StageMemory stage_memory(const Problem& problem, const Plan& plan, const program::RankClass& c) {
  using program::BufferClass;
  const auto bytes = [&](BufferClass cls) { return c.at_peak[static_cast<std::size_t>(cls)].value; };
  const Stack& s = problem.stack;
  StageMemory m;
  m.stage = c.stage;
  m.parameter = bytes(BufferClass::kParameter);
  m.gradient = bytes(BufferClass::kGradient);
  m.optimizer = bytes(BufferClass::kOptimizer);
  m.activation = bytes(BufferClass::kActivation);
  m.workspace = bytes(BufferClass::kWorkspace);
  m.communication = bytes(BufferClass::kCommunication);
  const std::int64_t live = c.logical_peak.value;
  m.total = static_cast<std::int64_t>(static_cast<double>(live) * s.allocator_overhead) + s.context.value +
            s.communicator.value * communicators(plan);
  m.overhead = m.total - live;
  m.host = c.host_bytes.value;
  m.drives = c.drive_bytes.value;
  return m;
}

Time exposed_to(const sim::PlaceReport& r, const WaitedAxis& axis, const program::Communication& over) {
  switch (axis.of) {
    case WaitedAxis::Of::kAxis:
      return r.exposed[over.stream(axis.axis)];
    case WaitedAxis::Of::kStages:
      return r.exposed_to(over, program::is_transfer);
    case WaitedAxis::Of::kHost:
      return r.exposed_to(over, program::is_offload);
  }
  return {};
}

// The ranks that compute longest decide; its parts add up to the step.
Breakdown breakdown(const sim::SimulationResult& r, const program::Communication& over) {
  const auto busiest = std::max_element(r.places.begin(), r.places.end(), [](const auto& a, const auto& b) {
    return a.compute() < b.compute();
  });
  Breakdown b;
  b.forward_s = seconds(busiest->forward);
  b.backward_s = seconds(busiest->backward);
  b.recompute_s = seconds(busiest->recompute);
  b.optimizer_s = seconds(busiest->optimizer);
  for (std::size_t i = 0; i < kWaitedAxes.size(); ++i)
    b.exposed_s[i] = seconds(exposed_to(*busiest, kWaitedAxes[i], over));
  b.host_s = seconds(busiest->host);
  return b;
}

void require_recordable(const program::Program& program, const sim::Layout& layout) {
  constexpr std::int64_t kMost = 30'000'000;  // slices; 2 GB
  const std::int64_t slices = program.ops_per_step() / static_cast<std::int64_t>(program.classes.size()) *
                              static_cast<std::int64_t>(layout.places.size());
  if (slices > kMost)
    throw Error(fmt::format("the timeline of {} places would have {} slices; at most {} are kept: fold ranks",
                            layout.places.size(), slices, kMost));
}

}  // namespace

double model_flops_utilisation(const Problem& problem, std::int64_t ranks, double step_s) {
  const Scenario& s = problem.scenario;
  const double flops = model_flops_per_sequence(s.model, s.training, AttentionFlops::kFull).value *
                       static_cast<double>(s.training.global_batch);
  double could = 0;  // FLOPs of all devices in that time
  for (std::size_t i = 0; i < problem.cluster.types(); ++i) {
    const std::int64_t node = problem.cluster.devices_per_node;
    const std::int64_t begin = problem.cluster.first_node_of(i) * node;
    const std::int64_t here =
        i + 1 < problem.cluster.types() ? problem.cluster.nodes_of(i) * node : std::max(begin, ranks) - begin;
    could += step_s * sim::peak(problem.devices[i], s.training.math).value *
             static_cast<double>(std::clamp<std::int64_t>(ranks - begin, 0, here));
  }
  return flops / could;
}

double recompute_factor(const Problem& problem, const Plan& plan) {
  const Model& m = problem.scenario.model;
  const Training& t = problem.scenario.training;
  const Depth depth = depth_of(m);
  const std::vector<std::int64_t> tokens = tower_tokens(m, t);
  const double total = model_flops_per_sequence(m, t, AttentionFlops::kFull).value;
  double repeated = 0;  // selectively
  for_each_layer_tokens(
      m, depth, tokens,
      [&](const auto& layer, std::int64_t times, const LayerTokens& of) {
        repeated += static_cast<double>(times) * layer.flops_of(plan.repeated(), of, m.hidden);
      },
      t.within_documents(0));
  // Of heads, and of what modules of multi-token prediction begin with: neither is repeated.
  const double ends =
      2.0 * static_cast<double>(loss_rows(m, t)) *
      static_cast<double>(m.hidden * (m.head_rows() * (1 + m.mtp_layers) + 2 * m.hidden * m.mtp_layers));
  if (plan.recompute == Recompute::kSelective) return 1 + repeated / total;
  if (plan.recompute == Recompute::kFull) {
    // Every layer counts as a mean one.
    std::int64_t some = 0, chunk = 0;
    for (const std::int64_t n : layers_by_chunk(plan, m.layers)) some += recomputed_layers(plan, chunk++, n);
    const double share = static_cast<double>(some) / static_cast<double>(m.layers);
    return 1 + share * (total / 3 - ends) / total;
  }
  return 1;
}

namespace {

// Between which 80 % lie.
std::pair<double, double> middle_of(std::vector<double> steps) {
  std::sort(steps.begin(), steps.end());
  return {steps[steps.size() / 10], steps[steps.size() - 1 - steps.size() / 10]};
}

Imbalance imbalance(const Problem& problem, const Plan& plan, sim::ExpertLoads& loads,
                    const program::Program& evenly, std::int64_t draws,
                    const std::function<double(const program::Program&)>& step_of) {
  const sim::SharedExperts experts = sim::shared_experts(plan, problem.scenario.training);
  Imbalance out;
  out.even_s = step_of(evenly);
  out.load = loads.mean(experts);
  out.room = plan.expert_room.value_or(1);
  std::vector<double> steps;
  for (std::int64_t draw = 0; draw < draws; ++draw) {
    const std::vector<double> shares = loads.drawn(experts, static_cast<std::uint64_t>(draw));
    out.fullest = std::max(out.fullest, *std::max_element(shares.begin(), shares.end()));
    program::Program drawn = evenly;
    program::load_experts(drawn, problem.stack, shares);
    steps.push_back(step_of(drawn));
    out.mean_s += steps.back() / static_cast<double>(draws);
  }
  std::tie(out.low_s, out.high_s) = middle_of(std::move(steps));
  return out;
}

DocumentWait document_wait(const Training& training, const Plan& plan, Time wait, std::int64_t draws,
                           double even_s, const std::function<double(std::vector<double>)>& step_of) {
  DocumentWait out{.within = training.within_documents(0), .wait_s = seconds(wait), .even_s = even_s};
  if (draws == 0) return out;
  sim::DocumentLoads loads(training);
  std::vector<double> steps;
  for (std::int64_t draw = 0; draw < draws; ++draw) {
    steps.push_back(step_of(loads.drawn(plan, static_cast<std::uint64_t>(draw))));
    out.mean_s += steps.back() / static_cast<double>(draws);
  }
  std::tie(out.low_s, out.high_s) = middle_of(std::move(steps));
  return out;
}

IslandExchange island_exchange(const program::Program& program, Time step, Time exchange) {
  IslandExchange out;
  out.every = program.training.outer.value().every;
  out.step_s = seconds(step);
  out.exchange_s = seconds(exchange);
  for (const program::RankClass& c : program.classes) {
    if (c.outer.empty()) continue;  // the stage trains nothing
    const program::Segment& segment = c.segments[static_cast<std::size_t>(c.outer.front().segment)];
    for (const program::Op& op : segment.ops) {
      if (op.group == program.communication.group("island"))
        out.bytes = std::max(out.bytes, op.payload.value);
    }
  }
  return out;
}

}  // namespace

Evaluation evaluate(const Problem& problem, const sim::Topology& topology, const Plan& plan,
                    const EvaluateOptions& options) {
  const Scenario& s = problem.scenario;
  const auto during = [&](const char* phase) -> std::function<void(double)> {
    if (!options.progress) return {};
    options.progress(phase, 0);
    return [phase, &options](double share) { options.progress(phase, share); };
  };
  Evaluation out;
  during("compiling");
  out.program = program::compile(s.model, plan, s.training, problem.stack);
  if (const auto problems = program::check(out.program, 20, during("checking")); !problems.empty()) {
    throw Error(fmt::format("the compiled program is not sound: {}", fmt::join(problems, "; ")));
  }
  const sim::SharedExperts experts = sim::shared_experts(plan, s.training);
  sim::ExpertLoads loads(s.model, s.training);
  const bool even = loads.even(experts);
  std::optional<program::Program> evenly;  // for draws
  if (!even) {
    if (options.draws > 0) evenly = out.program;
    program::load_experts(out.program, problem.stack, loads.means(experts));
  }
  const sim::PlanLinks links = sim::plan_links(topology, plan);
  const sim::CostModel cost(problem.devices, problem.stack, problem.cluster, links, s.training, plan.ranks());
  const sim::Layout layout = sim::place(topology, out.program, cost, options.place);
  out.fold = layout.fold;
  if (options.record) require_recordable(out.program, layout);
  sim::EngineOptions engine;
  engine.record = options.record;
  engine.progress = during("simulating");
  engine.scenario = problem.at;
  out.simulation = sim::simulate(out.program, layout, engine);
  if (options.record) {
    sim::label(out.program, cost, out.simulation.timeline);
    out.simulation.timeline.node_ranks = problem.cluster.devices_per_node;
    out.simulation.timeline.experts = sim::drawn_counts(out.program, out.simulation.timeline);
  }

  Predicted& p = out.predicted;
  if (evenly) {
    during("drawing loads of experts");
    const auto step_of = [&](const program::Program& program) {
      sim::EngineOptions quiet;
      quiet.record = false;
      quiet.scenario = problem.at;
      return seconds(sim::simulate(program, sim::place(topology, program, cost, options.place), quiet).step);
    };
    p.imbalance = imbalance(problem, plan, loads, *evenly, options.draws, step_of);
  }
  p.step_time_s = seconds(out.simulation.step);
  if (s.training.documents) {
    during("drawing documents");
    const auto step_of = [&](std::vector<double> loads_of_step) {
      sim::EngineOptions quiet;
      quiet.record = false;
      quiet.scenario = problem.at;
      quiet.document_loads = std::move(loads_of_step);
      return seconds(sim::simulate(out.program, layout, quiet).step);
    };
    const Time wait = sim::Estimator(problem, topology).estimate(plan).documents;
    p.documents = document_wait(s.training, plan, wait, options.draws, p.step_time_s, step_of);
    p.step_time_s += p.documents->wait_s;
  }
  if (plan.islands > 1) {
    during("exchanging between islands");
    const program::Program round = program::outer_round(out.program);
    if (const auto problems = program::check(round, 20); !problems.empty())
      throw Error(fmt::format("the exchange between islands is not sound: {}", fmt::join(problems, "; ")));
    sim::EngineOptions quiet;
    quiet.record = false;
    quiet.scenario = problem.at;
    const Time exchange = sim::simulate(round, sim::place(topology, round, cost, options.place), quiet).step;
    p.islands = island_exchange(out.program, from_seconds(p.step_time_s), exchange);
    p.step_time_s += p.islands->exchange_s / static_cast<double>(p.islands->every);
  }
  // Published runs spread in what they compute.
  const auto with_loading = [&](double compute_s) {
    const auto loaded = sim::loaded_step(problem, plan, compute_s, true);
    return loaded ? loaded->step_s : compute_s;
  };
  p.step_time_low_s = with_loading(p.step_time_s * problem.measured.low);
  p.step_time_high_s = with_loading(p.step_time_s * problem.measured.high);
  p.loading = sim::loaded_step(problem, plan, p.step_time_s, true);
  if (p.loading) p.step_time_s = p.loading->step_s;
  p.tokens_per_s = s.training.tokens_per_step() / p.step_time_s;
  p.mfu = model_flops_utilisation(problem, plan.ranks(), p.step_time_s);
  p.hfu = p.mfu * recompute_factor(problem, plan);
  for (const program::RankClass& c : out.program.classes) p.memory.push_back(stage_memory(problem, plan, c));
  const Fit fullest = fit(problem, plan, p);
  p.peak_memory_bytes = fullest.needed;
  p.fits_probability =
      problem.spread.memory.fits(static_cast<double>(fullest.needed), static_cast<double>(fullest.available));
  p.breakdown = breakdown(out.simulation, out.program.communication);
  if (p.documents) p.breakdown.documents_s = p.documents->wait_s;
  if (p.islands) p.breakdown.islands_s = p.islands->exchange_s / static_cast<double>(p.islands->every);
  if (p.loading) p.breakdown.loading_s = p.loading->step_s - p.loading->compute_s;
  const std::int64_t paid = options.paid_nodes > 0 ? options.paid_nodes : problem.cluster.nodes;
  const double per_second = problem.cluster.dollars_per_hour(paid) / 3600.0;
  p.cost_per_step_usd = per_second * p.step_time_s;
  if (s.training.tokens > 0) {
    const double run_s = s.training.tokens / p.tokens_per_s;
    p.days = run_s / 86400;
    p.cost_usd = per_second * run_s;
  }
  return out;
}

std::string text_of(const Imbalance& i) {
  std::string out = fmt::format(
      "uneven experts: the fullest rank of a layer gets {:.2f} times the mean (up to {:.2f} in {} draws), "
      "and the "
      "step takes {:.1f} % longer than with even ones ({}); 80 % of draws take {} to {}",
      i.load, i.fullest, kLoadDraws, 100 * (i.mean_s / i.even_s - 1), format(from_seconds(i.even_s)),
      format(from_seconds(i.low_s)), format(from_seconds(i.high_s)));
  if (i.fullest > i.room)
    out += fmt::format("; the plan has room for {:.2f} (expert_room), and its memory is that", i.room);
  return out;
}

std::string text_of(const DocumentWait& d) {
  std::string out = fmt::format(
      "documents: attention has {:.1f} % of the pairs of tokens that it had without them, and the replica "
      "with the longest paces the step, which takes {} longer than with mean sequences ({:.1f} %)",
      100 * d.within, format(from_seconds(d.wait_s)), 100 * d.wait_s / d.even_s);
  if (d.mean_s > 0)
    out += fmt::format("; of {} draws 80 % take {} to {}", kLoadDraws, format(from_seconds(d.low_s)),
                       format(from_seconds(d.high_s)));
  return out;
}

std::string text_of(const IslandExchange& i) {
  const double mean_s = i.exchange_s / static_cast<double>(i.every);
  return fmt::format(
      "islands exchange every {} steps: {} of each rank in {}, which is {} of a step in the mean ({:.2f} %)",
      i.every, format(Bytes{i.bytes}), format(from_seconds(i.exchange_s)), format(from_seconds(mean_s)),
      100 * mean_s / (i.step_s + mean_s));
}

std::string Fit::text(const Problem& problem) const {
  if (needed <= available) {
    if (host_needed <= host_available) {
      return fmt::format("the plan keeps {} on the drives of a node, which have {}", format(Bytes{on_drives}),
                         format(Bytes{drives}));
    }
    return fmt::format("the plan keeps {} in the memory of a node's host, which has {}",
                       format(Bytes{host_needed}), format(Bytes{host_available}));
  }
  const auto device = std::find_if(problem.devices.begin(), problem.devices.end(),
                                   [&](const Device& d) { return d.memory.value == available; });
  return fmt::format("the plan needs {} on stage {}, and {} has {}: it will run out of memory",
                     format(Bytes{needed}), stage, device->name, format(Bytes{available}));
}

// All ranks of a node hold as much of the host's memory, and of its drives, as the one that holds most.
static void see_hosts(const Problem& problem, const Plan& plan, const Predicted& predicted, Fit& out) {
  std::int64_t most = 0, most_on_drives = 0;
  for (const StageMemory& m : predicted.memory) {
    most = std::max(most, m.host);
    most_on_drives = std::max(most_on_drives, m.drives);
  }
  if (most == 0) return;
  const std::int64_t ranks = std::min(plan.ranks(), problem.cluster.devices_per_node);
  out.host_needed = most * ranks;
  out.host_available = problem.cluster.least_host_memory().value;
  if (most_on_drives == 0) return;
  out.on_drives = most_on_drives * ranks;
  out.drives = problem.cluster.least_drives().value;
}

Fit fit(const Problem& problem, const Plan& plan, const Predicted& predicted) {
  const std::vector<sim::NodeTypes> types = sim::node_types_by_stage(problem.cluster, mesh_of(plan));
  Fit out;
  for (const StageMemory& m : predicted.memory) {
    const std::int64_t memory = sim::memory_of(problem.devices, sim::types_of(types, m.stage)).value;
    const auto share = [](std::int64_t of, std::int64_t all) {
      return static_cast<double>(of) / static_cast<double>(all);
    };
    if (out.available > 0 && share(m.total, memory) < share(out.needed, out.available)) continue;
    out = {.needed = m.total, .available = memory, .stage = m.stage};
  }
  see_hosts(problem, plan, predicted, out);
  return out;
}

Fit fit(const Problem& problem, const Plan& plan) {
  const sim::Topology topology(problem.cluster);
  sim::Estimator estimator(problem, topology);
  const sim::Estimate estimate = estimator.estimate(plan);
  const sim::Estimator::HostMemory host = estimator.host_memory(plan);
  return {.needed = estimator.device_bytes(plan, estimate.peak).value,
          .available = estimate.memory.value,
          .stage = estimate.fullest_stage,
          .host_needed = host.needed.value,
          .host_available = host.available.value,
          .on_drives = host.on_drives.value,
          .drives = host.drives.value};
}

Json fit_json(const Fit& fit) {
  Json json = {{"fits", fit.fits()}, {"needed_bytes", fit.needed}, {"available_bytes", fit.available}};
  if (fit.host_needed > 0) {
    json["host_needed_bytes"] = fit.host_needed;
    json["host_available_bytes"] = fit.host_available;
  }
  if (fit.on_drives > 0) {
    json["on_drives_bytes"] = fit.on_drives;
    json["drives_bytes"] = fit.drives;
  }
  return json;
}

PlanFile make_plan_file(const Problem& problem, const Plan& plan, const Predicted& predicted,
                        const char* by) {
  PlanFile f;
  f.scenario = problem.scenario;
  f.plan = plan;
  f.predicted = predicted;
  f.device_profile = problem.device_names();
  f.predicted_by = by;
  std::uint64_t h = 1469598103934665603ULL;
  for (const char c : write_fields(problem.scenario).dump())
    h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  f.scenario_hash = fmt::format("{:016x}", h);
  return f;
}

}  // namespace orrery::planner
