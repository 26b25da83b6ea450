// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/estimate.h"

#include <algorithm>
#include <boost/container/static_vector.hpp>
#include <functional>
#include <limits>

#include "program/order.h"
#include "sim/loading/loading.h"

namespace orrery::sim {

namespace {

// Of a step: what closed forms may leave out.
constexpr double kNegligible = 5e-3;

bool same_stages(const Plan& a, const Plan& b) {
  return a.pp == b.pp && a.vpp == b.vpp && chunk_placement(a) == chunk_placement(b) &&
         program::backwards_of(a) == program::backwards_of(b) && a.chunk_layers == b.chunk_layers &&
         a.recompute_by_chunk == b.recompute_by_chunk;
}

// Whether the last stage sends to the first.
bool goes_round(const Plan& p) {
  return p.vpp > 1 && chunk_placement(p) == ChunkPlacement::kInTurns;
}

bool same_ranks(const Plan& a, const Plan& b) {
  return a.tp == b.tp && a.cp == b.cp && a.ulysses == b.ulysses && a.rings() == b.rings() && a.dp == b.dp &&
         a.islands == b.islands && a.ep == b.ep && a.expert_tp() == b.expert_tp() &&
         a.expert_room == b.expert_room && a.expert_exchange == b.expert_exchange &&
         a.micro_batch == b.micro_batch && a.micro_batches == b.micro_batches &&
         a.sequence_parallel == b.sequence_parallel && a.rank_order == b.rank_order;
}

bool same_chunks(const Plan& a, const Plan& b) {
  return a.schedule == b.schedule && a.schedule_order == b.schedule_order &&
         a.overlap_exchanges == b.overlap_exchanges && a.recompute == b.recompute &&
         a.repeated() == b.repeated() && a.recompute_layers == b.recompute_layers &&
         a.recompute_first == b.recompute_first && a.loss_chunks == b.loss_chunks &&
         a.offloaded_layers() == b.offloaded_layers() &&
         program::space_of_parameters(a) == program::space_of_parameters(b) &&
         ((a.zero < 2 && b.zero < 2) ||
          (a.zero == b.zero && a.reshards() == b.reshards() && a.shard_group == b.shard_group));
}

}  // namespace

Estimator::Estimator(const Problem& problem, const Topology& topology, std::shared_ptr<Samples> samples)
    : problem_(problem),
      topology_(topology),
      over_(program::communication_of(mesh_of(Plan{}))),
      state_(over_),
      dense_(state_.of(false)),
      tp_(over_.group("tp")),
      ep_(over_.group("ep")),
      etp_(over_.group("etp")),
      ulysses_(over_.group("ulysses")),
      ring_(over_.group("ring")),
      stages_(over_.group("pp")),
      islands_(over_.group("island")),
      bytes_(bytes_per_parameter(problem.scenario.training.precision)),
      measured_ops_(std::any_of(problem.devices.begin(), problem.devices.end(),
                                [](const Device& d) { return !d.measured.empty(); })),
      collectives_(problem.cluster, problem.stack.collective_sync),
      groups_(topology),
      chunk_costs_(problem, over_, groups_, std::move(samples)),
      documents_(problem.scenario.training) {}

const Mesh& Estimator::mesh(const Plan& p) {
  const std::array key{p.tp,      p.pp,          p.cp,
                       p.ulysses, p.dp,          p.shards(),
                       p.ep,      p.expert_tp(), static_cast<std::int64_t>(p.rank_order),
                       p.islands};
  if (mesh_key_ != key) {
    mesh_key_ = key;
    mesh_ = mesh_of(p);
  }
  return mesh_;
}

const Estimator::HardwareByStage& Estimator::hardware_by_stage(const Plan& plan) {
  for (const auto& [shards, known] : known_hardware_) {
    if (shards == plan.shards()) return known;
  }
  const Mesh& ranks = mesh(plan);
  HardwareByStage& out = known_hardware_.emplace_back(plan.shards(), HardwareByStage{}).second;
  struct Axis {
    program::GroupIndex group;
    Mesh::Range range;
    const std::vector<std::int32_t>* by_stage;
  };
  boost::container::static_vector<Axis, program::kMostGroups> axes;
  for (std::size_t g = 0; g < over_.groups.size(); ++g) {
    const auto group = static_cast<program::GroupIndex>(g);
    if (!over_.groups[g].meets() || (over_.groups[g].of_experts && !plan.splits_experts())) continue;
    const Mesh::Range range = ranks.range(over_.groups[g].axes);
    // A group of one member communicates with nobody, however far apart.
    const std::int64_t stride = range.size > 1 ? range.stride : 1;
    axes.push_back({group, range, &groups_.by_stage(range.size, stride, ranks)});
    out.resize(std::max(out.size(), axes.back().by_stage->size()));
  }
  const std::vector<NodeTypes> nodes = node_types_by_stage(problem_.cluster, ranks);
  out.resize(std::max(out.size(), nodes.size()));
  const auto range_of = [&](program::GroupIndex group) {
    return ranks.range(over_.groups[static_cast<std::size_t>(group)].axes);
  };
  const auto meets = [&](const StageHardware& on, program::GroupIndex a, const Axis& b) {
    const Mesh::Range of_a = range_of(a);
    return same_links(groups_[on[a]], groups_[on[b.group]]) &&
           groups_.meet(of_a.size, of_a.stride, b.range.size, b.range.stride);
  };
  // Beside activations, state is what ranks communicate.
  const auto is_state = [&](program::GroupIndex group) {
    return group != tp_ && group != ep_ && group != etp_ && group != ulysses_ && group != ring_;
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].nodes = types_of(nodes, static_cast<std::int64_t>(i));
    for (const Axis& axis : axes)
      out[i].of[axis.group] = (*axis.by_stage)[axis.by_stage->size() == 1 ? 0 : i];
    for (const Axis& axis : axes) {
      if (!is_state(axis.group)) continue;
      out[i].meets_tp[axis.group] = meets(out[i], tp_, axis);
      out[i].meets_ep[axis.group] = plan.ep > 1 && meets(out[i], ep_, axis);
      out[i].meets_cp[axis.group] =
          plan.cp > 1 && (meets(out[i], ulysses_, axis) || meets(out[i], ring_, axis));
    }
  }
  return out;
}

const StageHardware& Estimator::hardware_of_run(std::size_t run) const {
  return hardware_[hardware_.size() == 1 ? 0 : static_cast<std::size_t>(costs_.runs[run].first)];
}

const std::vector<GroupLinks>& Estimator::transfers(const Plan& plan, std::int64_t by) {
  const Mesh& ranks = mesh(plan);
  const auto [stages, stride] = ranks.range(over_.groups[static_cast<std::size_t>(stages_)].axes);
  const auto [found, added] = transfers_.try_emplace({stride, stages, ranks.ranks(), by});
  if (added) found->second = topology_.transfers(stages, stride, by, ranks.ranks());
  return found->second;
}

// --- what the plan is made of ----------------------------------------------------------------------

void Estimator::ranges_of_chunks(const Plan& plan, std::vector<BlockRange>& out) const {
  const Depth& depth = chunk_costs_.depth();
  out.clear();
  for (std::int64_t first = 0; const std::int64_t n : layers_by_chunk(plan, depth.blocks())) {
    out.push_back({depth.canonical(first, n), n});
    first += n;
  }
}

// Neighbouring stages that hold alike chunks on alike hardware are a run.
void Estimator::split_stages(const Plan& plan) {
  ranges_of_chunks(plan, held_);
  const std::vector<BlockRange>& blocks = held_;
  const std::int64_t chunks = plan.pp * plan.vpp;
  const auto v = static_cast<std::size_t>(plan.vpp);
  // 0 of plans whose chunks recompute alike, as far as they are.
  const auto recomputed_of = [&](std::int64_t g) {
    return plan.recompute_by_chunk.empty() ? 0 : plan.recompute_by_chunk[static_cast<std::size_t>(g)];
  };
  costs_.runs.clear();
  places_.clear();
  kinds_.clear();
  for (std::int64_t stage = 0; stage < plan.pp; ++stage) {
    for (std::int64_t c = 0; c < plan.vpp; ++c) {
      const std::int64_t g = program::global_chunk(chunk_placement(plan), plan.pp, stage, c);
      const Role role = chunks == 1       ? Role::kOnly
                        : g == 0          ? Role::kFirst
                        : g == chunks - 1 ? Role::kLast
                                          : Role::kMiddle;
      const BlockRange& held = blocks[static_cast<std::size_t>(g)];
      const std::int64_t recomputed = recomputed_of(g);
      const std::size_t on = hardware_.size() == 1 ? 0 : static_cast<std::size_t>(stage);
      const auto same = [&](const ChunkKind& k) {
        return k.role == role && k.blocks == held && recomputed_of(k.chunk) == recomputed &&
               hardware_[k.hardware] == hardware_[on];
      };
      const auto kind = std::find_if(kinds_.begin(), kinds_.end(), same);
      places_.push_back(static_cast<std::size_t>(kind - kinds_.begin()));
      if (kind == kinds_.end()) kinds_.push_back({role, held, g, on});
    }
    const auto mine = places_.end() - static_cast<std::ptrdiff_t>(v);
    if (stage > 0 && std::equal(mine, places_.end(), mine - static_cast<std::ptrdiff_t>(v))) {
      places_.erase(mine, places_.end());
      ++costs_.runs.back().count;
    } else {
      costs_.runs.push_back({stage, 1});
    }
  }
  uneven_ = !plan.recompute_by_chunk.empty() ||
            (chunks > 2 && std::adjacent_find(blocks.begin() + 1, blocks.end() - 1, std::not_equal_to<>()) !=
                               blocks.end() - 1);
  // Stages like the first, less an end, finish before it in all they do.
  dominated_.clear();
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) {
    bool less = r > 0 && !program::splits_backward(plan);
    for (std::size_t c = 0; c < v && less; ++c) {
      const ChunkKind& kind = kinds_[places_[r * v + c]];
      const ChunkKind& first = kinds_[places_[c]];
      less = kind.role == Role::kMiddle && kind.blocks.first == first.blocks.first &&
             kind.blocks.blocks <= first.blocks.blocks &&
             recomputed_of(kind.chunk) <= recomputed_of(first.chunk) &&
             hardware_[kind.hardware] == hardware_[first.hardware];
    }
    dominated_.push_back(less);
  }
  last_run_ = stage_of_chunk(plan, chunks - 1) == 0 ? 0 : static_cast<std::int64_t>(costs_.runs.size()) - 1;
}

// Of the key: what chunks differ in.
void Estimator::set_chunk(const Plan& plan, const ChunkKind& kind) {
  set_hardware(plan, hardware_[kind.hardware]);
  if (plan.recompute != Recompute::kFull) return;
  const std::int64_t recomputed = recomputed_layers(plan, kind.chunk, kind.blocks.blocks);
  const bool of_mtp = kind.blocks.blocks == 0 && recomputes_all(plan);
  key_.recompute = recomputed > 0 || of_mtp ? Recompute::kFull : Recompute::kNone;
  key_.recompute_first = recomputed < kind.blocks.blocks ? static_cast<std::int32_t>(recomputed) : 0;
}

// Of the key: what a chunk's costs depend on there.
void Estimator::set_hardware(const Plan& plan, const StageHardware& hardware) {
  const auto communicates = [&](program::GroupIndex group, bool in_chunks) {
    key_.hardware.of[group] = in_chunks ? hardware[group] : 0;
    key_.hardware.meets_tp[group] = in_chunks && hardware.meets_tp[group];
    key_.hardware.meets_ep[group] = in_chunks && hardware.meets_ep[group];
    key_.hardware.meets_cp[group] = in_chunks && hardware.meets_cp[group];
  };
  key_.hardware.nodes = hardware.nodes;
  communicates(tp_, true);
  communicates(ulysses_, plan.ulysses > 1);
  communicates(ring_, plan.ring() > 1);
  communicates(dense_.shard, plan.zero >= 2);
  communicates(dense_.replica, key_.replicas);
  const program::StateGroups& experts = state_.of(true);
  communicates(ep_, plan.ep > 1);
  communicates(etp_, plan.splits_experts());
  communicates(experts.shard, plan.splits_experts() && plan.zero >= 2);
  communicates(experts.replica, key_.expert_replicas);
}

void Estimator::select(const Plan& plan) {
  const bool stages = selected_ && same_stages(*selected_, plan);
  const bool ranks = stages && same_ranks(*selected_, plan);
  const bool hops = ranks && goes_round(*selected_) == goes_round(plan);
  if (!ranks) known_hardware_.clear();
  const HardwareByStage& hardware = hardware_by_stage(plan);
  // Where all stages have the same, other hardware leave the runs what they are.
  const bool runs = stages && (hardware == hardware_ || (hardware.size() == 1 && hardware_.size() == 1));
  hardware_ = hardware;
  if (ranks && runs && same_chunks(*selected_, plan)) return;
  if (!runs) split_stages(plan);
  if (!ranks || !runs) pieces_in_use_ = 0;
  const bool outer = selected_ && selected_->tp == plan.tp && selected_->cp == plan.cp &&
                     selected_->micro_batch == plan.micro_batch &&
                     selected_->sequence_parallel == plan.sequence_parallel &&
                     selected_->rank_order == plan.rank_order;
  if (!outer) chunk_costs_.forget_sizes();
  selected_ = plan;
  times_ = nullptr;
  least_end_.reset();
  key_ = ChunkCosts::key(plan, problem_.cluster.devices_per_node);
  for (ChunkKind& kind : kinds_) {
    set_chunk(plan, kind);
    kind.cost = &chunk_costs_.cost(key_, kind.role, kind.blocks);
    kind.pair = plan.overlap_exchanges ? &chunk_costs_.pair(key_, kind.role, kind.blocks) : nullptr;
    kind.active = 0;
    kind.layers_only.fill(std::nullopt);
  }
  if (!hops || too_long_) find_hops(plan);
  limit_work(plan);
  share_links(plan);
  costs_.chunks.clear();
  costs_.pairs.clear();
  for (const std::size_t kind : places_) {
    costs_.chunks.push_back(kinds_[kind].cost);
    if (plan.overlap_exchanges) costs_.pairs.push_back(kinds_[kind].pair);
  }
  choose_path(plan);
}

// The time of a chunk's work without the head.
std::int64_t Estimator::layers_only(ChunkKind& kind, ChunkWork work) {
  std::optional<std::int64_t>& time = kind.layers_only[work];
  if (!time) {
    const bool head = kind.role == Role::kLast || kind.role == Role::kOnly;
    set_chunk(*selected_, kind);
    const ChunkCost& cost = chunk_costs_.cost(key_, head ? Role::kMiddle : kind.role, kind.blocks);
    time = cost[work].time;
  }
  return *time;
}

// All work of a replica, one after the other, takes at least as long as any path through it. A plan whose
// step could not be counted keeps costs that are cut, so that no sum wraps.
void Estimator::limit_work(const Plan& plan) {
  std::int64_t longest = 0;
  const auto see = [&](std::int64_t time) { longest = std::max(longest, time); };
  for (const ChunkKind& kind : kinds_) {
    for (const WorkCost& w : *kind.cost) {
      for (const WorkCost::Field time : WorkCost::times()) see(w.*time);
    }
  }
  for (const Hop& h : hops_) see(saturating_add(h.latency, h.flow));
  const std::int64_t works = 8 * plan.pp * plan.vpp * plan.micro_batches;
  const std::int64_t cap = kLongestStep.value / works;
  too_long_ = longest > cap;
  if (!too_long_) return;
  cut_.clear();
  cut_.reserve(kinds_.size());
  cut_pairs_.clear();
  cut_pairs_.reserve(kinds_.size());
  for (ChunkKind& kind : kinds_) {
    if (kind.pair != nullptr) {
      kind.pair = &cut_pairs_.emplace_back(*kind.pair);
      cut_pairs_.back().saved = cut_pairs_.back().host = 0;
    }
    ChunkCost& cost = cut_.emplace_back(*kind.cost);
    for (WorkCost& w : cost) {
      for (const WorkCost::Field time : WorkCost::times()) w.*time = std::min(w.*time, cap);
    }
    kind.cost = &cost;
  }
  for (Hop& h : hops_)
    h = {.latency = std::min(h.latency, cap), .flow = std::min(h.flow, cap), .local = h.local};
}

// What crosses from stage to stage, the last to the first included.
void Estimator::find_hops(const Plan& plan) {
  hops_.clear();
  if (plan.pp == 1) return;
  const Bytes bytes{chunk_costs_.boundary_bytes(key_)};
  const GroupLinks& dp = groups_[hardware_[0][dense_.dp]];
  const auto hop = [&](const GroupLinks& pair) {
    const Wire wire = transfer_wire(pair, problem_.cluster);
    // One transfer after the other, of each tower.
    return Hop{.latency = wire.latency.value * std::ssize(chunk_costs_.sample_sizes().tokens),
               .flow = transfer_time(bytes, wire.rate).value,
               .local = pair.local(),
               .beside_reductions = problem_.stack.overlap_grad_reduce && same_links(pair, dp)};
  };
  for (const GroupLinks& pair : transfers(plan, 1)) hops_.push_back(hop(pair));
  hops_.back() = goes_round(plan) ? hop(transfers(plan, 1 - plan.pp).back()) : hops_.front();
}

// What transfers between stages and tensor-parallel ops take from each other: of the time that both run each
// loses half. While all stages work, what one sends and what it receives run at the same time, after each
// forward and after each backward.
void Estimator::share_links(const Plan& plan) {
  costs_.hops = hops_;
  contended_.clear();
  contended_.reserve(kinds_.size());
  const auto m = static_cast<double>(plan.micro_batches * plan.vpp);
  const double working = m / (m + static_cast<double>(plan.pp - 1));
  for (ChunkKind& kind : kinds_) {
    const GroupLinks& tp = groups_[hardware_[kind.hardware][tp_]];
    std::int64_t longest = 0;
    for (const Hop& h : hops_)
      longest = std::max(longest, tp.ranks > 1 && tp.local() == h.local ? h.flow : 0);
    if (longest == 0) continue;
    const WorkCost &f = (*kind.cost)[kChunkForward], &b = (*kind.cost)[kChunkBackward],
                   &bi = (*kind.cost)[kChunkBackwardInput];
    const auto time = static_cast<double>(of_micro_batch(*kind.cost, &WorkCost::time));
    kind.active = working * std::min(1.0, static_cast<double>(f.tp + std::max(b.tp, bi.tp)) / time);
    const double flow = static_cast<double>(longest) / (1 - kind.active / kSharing);
    const double met = working * std::min(1.0, 2 * flow / time) / kSharing;
    ChunkCost& cost = contended_.emplace_back(*kind.cost);
    for (const ChunkWork work : {kChunkForward, kChunkBackward, kChunkBackwardInput}) {
      const auto lost = static_cast<std::int64_t>(static_cast<double>(cost[work].waiting) * met / (1 - met));
      cost[work].time += lost;
      cost[work].latency += lost;
      cost[work].row += lost;
    }
    kind.cost = &cost;
  }
  if (contended_.empty()) return;
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) {
    const ChunkKind& kind = kinds_[places_[r * static_cast<std::size_t>(plan.vpp)]];
    const bool local = groups_[hardware_[kind.hardware][tp_]].local();
    for (std::int64_t i = costs_.runs[r].first; i <= costs_.runs[r].last(); ++i) {
      Hop& h = costs_.hops[static_cast<std::size_t>(i)];
      if (h.local == local)
        h.flow = static_cast<std::int64_t>(static_cast<double>(h.flow) / (1 - kind.active / kSharing));
    }
  }
}

// Closed forms take one time for all crossings, and have no host; with several chunks a stage, none of their
// crossings meets reductions. The schedule is walked where that matters, where issuing some work takes longer
// than the work, and for schedules without a closed form: those in a V, listed ones, and interleaved chunks
// that take unequal times.
void Estimator::choose_path(const Plan& plan) {
  costs_.transfer = least_transfer_ = 0;
  const bool host_bound = std::any_of(kinds_.begin(), kinds_.end(), [](const ChunkKind& kind) {
    return std::any_of(kind.cost->begin(), kind.cost->end(),
                       [](const WorkCost& w) { return w.host > w.time; });
  });
  const bool speeds_differ = std::any_of(hardware_.begin(), hardware_.end(), [&](const StageHardware& h) {
    return h.nodes != hardware_.front().nodes;
  });
  unequal_turns_ = (uneven_ || speeds_differ) && plan.schedule == Schedule::kInterleaved;
  costs_.walk = host_bound || unequal_turns_ || plan.overlap_exchanges || always_walked(plan.schedule);
  if (costs_.hops.empty()) return;
  const auto [least, most] = std::minmax_element(costs_.hops.begin(), costs_.hops.end(), shorter);
  costs_.transfer = most->time();
  least_transfer_ = least->time();
  std::int64_t work = std::numeric_limits<std::int64_t>::max();
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) work = std::min(work, time_of_chunks(r));
  // What differences cost with every micro-batch, and shared links with every crossing of the last one.
  const std::int64_t apart = 2 * (most->time() - least->time()) * plan.micro_batches;
  const std::int64_t shared =
      plan.vpp > 1 && most->beside_reductions ? most->flow * (plan.vpp * plan.pp - 1) : 0;
  costs_.walk |= static_cast<double>(std::max(apart, shared)) >
                 kNegligible * static_cast<double>(work * plan.micro_batches);
}

PipelineShape Estimator::shape_of(const Plan& p) {
  PipelineShape out{
      .schedule = p.schedule, .p = p.pp, .v = p.vpp, .m = p.micro_batches, .in_pairs = p.overlap_exchanges};
  if (p.schedule == Schedule::kListed) {
    out.listed_chunks = chunk_placement(p);
    out.listed = &listed(*p.schedule_order);
  }
  return out;
}

const std::vector<std::vector<program::Slot>>& Estimator::listed(const ScheduleOrder& order) {
  const auto [known, added] = listed_.try_emplace(order.stages);
  if (added) known->second = program::slots_of(order);
  return known->second;
}

// Of all chunks of a run's stage, for a micro-batch; in pairs, what they take at least.
std::int64_t Estimator::time_of_chunks(std::size_t run) const {
  const std::size_t v = costs_.chunks.size() / costs_.runs.size();
  std::int64_t time = 0;
  for (std::size_t c = run * v; c < (run + 1) * v; ++c) {
    time += of_micro_batch(*costs_.chunks[c], &WorkCost::time);
    if (!costs_.pairs.empty()) time -= std::max<std::int64_t>(0, costs_.pairs[c]->saved);
  }
  return time;
}

std::int64_t Estimator::host_of_chunks(std::size_t run) const {
  const std::size_t v = costs_.chunks.size() / costs_.runs.size();
  std::int64_t time = 0;
  for (std::size_t c = run * v; c < (run + 1) * v; ++c) {
    time += of_micro_batch(*costs_.chunks[c], &WorkCost::host);
    if (!costs_.pairs.empty()) time += costs_.pairs[c]->host;
  }
  return time;
}

// --- time and memory -------------------------------------------------------------------------------

bool Estimator::stages_differ(const Plan& plan) {
  return node_types_by_stage(problem_.cluster, mesh(plan)).size() > 1;
}

std::vector<StageTime> Estimator::stage_times(const Plan& plan) {
  select(plan);
  const auto v = static_cast<std::size_t>(plan.vpp);
  std::vector<StageTime> out;
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) {
    double layers = 0, of_layers = 0;
    for (std::size_t c = r * v; c < (r + 1) * v; ++c) {
      const ChunkKind& kind = kinds_[places_[c]];
      layers += static_cast<double>(kind.blocks.blocks);
      set_chunk(plan, kind);
      const ChunkCost& cost = chunk_costs_.cost(key_, Role::kMiddle, kind.blocks);
      of_layers += static_cast<double>(of_micro_batch(cost, &WorkCost::time));
    }
    const StageTime t{.base = static_cast<double>(time_of_chunks(r)) - of_layers,
                      .per_layer = of_layers / std::max(1.0, layers)};
    for (std::int64_t i = 0; i < costs_.runs[r].count; ++i) out.push_back(t);
  }
  return out;
}

Bytes Estimator::device_bytes(const Plan& plan, Bytes logical) const {
  const Stack& s = problem_.stack;
  return Bytes{static_cast<std::int64_t>(static_cast<double>(logical.value) * s.allocator_overhead)} +
         s.context + s.communicator * communicators(plan);
}

// The reductions become costs of the pipeline where transfers meet them.
const Estimator::Pieces& Estimator::pieces_with_reductions(const Plan& plan) {
  const Pieces& p = pieces(plan);
  reductions_.clear();
  if (std::any_of(costs_.hops.begin(), costs_.hops.end(), [](const Hop& h) { return h.beside_reductions; })) {
    for (const StagePieces& run : p.runs)
      reductions_.insert(reductions_.end(), run.reductions.begin(), run.reductions.end());
  }
  if (reductions_ != costs_.reductions) {
    std::swap(reductions_, costs_.reductions);
    times_ = nullptr;
  }
  return p;
}

const Pace& Estimator::pace(NodeTypes types) {
  for (const auto& [of, known] : paces_) {
    if (of == types) return known;
  }
  return paces_.emplace_back(types, pace_of(problem_.devices, types, problem_.stack)).second;
}

Bytes Estimator::logical_peak(const StagePieces& stage, const PipelinePlace& place) const {
  const bool last = place.stage + 1 == selected_->pp;
  return Bytes{(last ? stage.last_static_bytes : stage.static_bytes) + std::max(place.peak, stage.end_bytes)};
}

// Keeps the stage that fills its devices most.
void Estimator::see_peak(const Plan& plan, const PipelinePlace& place, Bytes peak, Estimate& out) const {
  const Bytes memory =
      memory_of(problem_.devices, hardware_of_run(static_cast<std::size_t>(place.run)).nodes);
  const auto share = [&](Bytes logical, Bytes of) {
    return static_cast<double>(device_bytes(plan, logical).value) / static_cast<double>(of.value);
  };
  const bool fuller =
      out.memory == Bytes{0} ||
      (memory == out.memory ? peak > out.peak : share(peak, memory) > share(out.peak, out.memory));
  if (!fuller) return;
  out.peak = peak;
  out.memory = memory;
  out.fullest_stage = static_cast<std::int32_t>(place.stage);
}

std::vector<Estimator::StageBytes> Estimator::stage_bytes(const Plan& plan) {
  select(plan);
  const Pieces& p = pieces(plan);
  const auto v = static_cast<std::size_t>(plan.vpp);
  std::vector<StageBytes> out;
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) {
    const StagePieces& stage = p.runs[r];
    for (std::int64_t i = costs_.runs[r].first; i <= costs_.runs[r].last(); ++i) {
      StageBytes& of = out.emplace_back();
      of.fixed = i + 1 == plan.pp ? stage.last_static_bytes : stage.static_bytes;
      of.least = stage.end_bytes;
      of.memory = memory_of(problem_.devices, hardware_of_run(r).nodes);
      for (std::size_t c = r * v; c < (r + 1) * v; ++c) of.chunks.push_back(*costs_.chunks[c]);
    }
  }
  return out;
}

Estimate Estimator::peak(const Plan& plan) {
  select(plan);
  const Pieces& p = pieces_with_reductions(plan);
  Estimate out;
  for (const PipelinePlace& place : pipeline_.peaks(shape_of(plan), costs_).places)
    see_peak(plan, place, logical_peak(p.runs[static_cast<std::size_t>(place.run)], place), out);
  return out;
}

Time Estimator::waits_for_documents(const Plan& plan) {
  if (documents_.even()) return Time{0};
  const auto v = static_cast<std::size_t>(plan.vpp);
  document_stages_.clear();
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) {
    StageLoad of_stage;
    for (std::size_t c = r * v; c < (r + 1) * v; ++c) {
      of_stage.forward += static_cast<double>((*costs_.chunks[c])[kChunkForward].of_documents);
      of_stage.attention += static_cast<double>(of_micro_batch(*costs_.chunks[c], &WorkCost::of_documents));
      of_stage.all += static_cast<double>(of_micro_batch(*costs_.chunks[c], &WorkCost::time));
    }
    document_stages_.insert(document_stages_.end(), static_cast<std::size_t>(costs_.runs[r].count), of_stage);
  }
  const double longer = documents_.longer(plan, document_stages_);
  return Time{static_cast<std::int64_t>(std::min(longer, static_cast<double>(kLongestStep.value)))};
}

Estimate Estimator::estimate(const Plan& plan) {
  select(plan);
  const Pieces& p = pieces_with_reductions(plan);
  if (times_ == nullptr) {
    times_ = &pipeline_.run(shape_of(plan), costs_);
  }
  Estimate out;
  host_inputs_.assign(p.runs.size(), {});
  std::int64_t tie = 0;
  if (problem_.scenario.model.embeds_at_end() && !problem_.scenario.training.adapter && last_run_ != 0)
    tie = stage_end(p.runs.front(), 0, 0, 0).reduced + p.tie_transfer;
  // With a norm to wait for, no stage updates before the slowest has reduced its gradients.
  const bool norm = problem_.scenario.training.measures_norm();
  std::int64_t ready = 0;  // on the first stage
  const auto v = static_cast<std::size_t>(plan.vpp);
  for (std::size_t i = 0; i < times_->places.size(); ++i) {
    const PipelinePlace& place = times_->places[i];
    const StagePieces& s = p.runs[static_cast<std::size_t>(place.run)];
    see_peak(plan, place, logical_peak(s, place), out);
    const bool holds_tied = place.run == 0 || place.run == last_run_;
    if (dominated_[static_cast<std::size_t>(place.run)]) continue;
    std::int64_t begin = std::max(place.end, holds_tied ? tie : 0) + longer_up_to(place);
    for (std::size_t c = static_cast<std::size_t>(place.run) * v;
         c < (static_cast<std::size_t>(place.run) + 1) * v; ++c) {
      for (const WorkCost& w : *costs_.chunks[c]) begin += std::max<std::int64_t>(0, w.longer) + w.trailing;
    }
    // Of the stage's part of the norm.
    const std::int64_t onward = s.norm_sum + p.norm_up[static_cast<std::size_t>(place.stage)];
    const double latest =
        static_cast<double>(begin) + s.most + (norm ? static_cast<double>(onward) : s.update);
    if (latest < static_cast<double>(norm ? ready : out.step.value) && !s.uses_host) continue;
    const StageEnd end = stage_end(s, i, holds_tied ? tie : 0, p.tie_add);
    ready = std::max(ready, end.ready + onward);
    out.step = std::max(out.step, Time{end.done});
  }
  for (std::size_t r = 0; r < costs_.runs.size() && norm; ++r) {
    if (dominated_[r]) continue;
    std::int64_t start = ready + p.norm_down[static_cast<std::size_t>(costs_.runs[r].last())] + p.norm_finish;
    if (static_cast<double>(start) + p.runs[r].update < static_cast<double>(out.step.value)) continue;
    for (const UnitCost& u : p.runs[r].units) start += u.trust;
    out.step = std::max(out.step, Time{updated(p.runs[r], start + p.runs[r].trust_sum, host_inputs_[r])});
  }
  for (std::size_t r = 0; r < costs_.runs.size(); ++r)
    out.step = std::max(out.step, Time{host_of_chunks(r) * plan.micro_batches + p.runs[r].host});
  out.documents = waits_for_documents(plan);
  out.step = std::min(kLongestStep, out.step + out.documents);
  if (too_long_) out.step = kLongestStep;
  if (plan.islands > 1) {
    out.exchange = exchange(plan);
    const std::int64_t every = problem_.scenario.training.outer.value().every;
    out.step = std::min(kLongestStep, out.step + Time{out.exchange.value / every});
  }
  out.compute = out.step;
  if (const auto loaded = loaded_step(problem_, plan, seconds(out.step), false))
    out.step = std::min(kLongestStep, from_seconds(loaded->step_s));
  return out;
}

}  // namespace orrery::sim
