// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/estimate.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "sim/estimate/lanes.h"

namespace orrery::sim {

using program::OpKind;

namespace {

// Of a step: what closed forms may leave out.
constexpr double kNegligible = 5e-3;

std::int64_t global_chunk(const Plan& p, std::int64_t stage, std::int64_t chunk) {
  return p.schedule == Schedule::kZeroBubbleV && chunk % 2 == 1 ? (chunk + 1) * p.pp - 1 - stage
                                                                : chunk * p.pp + stage;
}

bool same_stages(const Plan& a, const Plan& b) {
  const auto kind = [](Schedule s) { return s == Schedule::kZeroBubbleV ? 2 : program::splits_backward(s); };
  return a.pp == b.pp && a.vpp == b.vpp && kind(a.schedule) == kind(b.schedule) &&
         a.chunk_layers == b.chunk_layers;
}

bool same_ranks(const Plan& a, const Plan& b) {
  return a.tp == b.tp && a.dp == b.dp && a.micro_batch == b.micro_batch &&
         a.micro_batches == b.micro_batches && a.sequence_parallel == b.sequence_parallel &&
         a.rank_order == b.rank_order;
}

bool same_chunks(const Plan& a, const Plan& b) {
  return a.schedule == b.schedule && a.recompute == b.recompute && a.recompute_layers == b.recompute_layers &&
         ((a.zero < 2 && b.zero < 2) || (a.zero == b.zero && a.shard_group == b.shard_group));
}

}  // namespace

Estimator::Estimator(const Problem& problem, const Topology& topology, std::shared_ptr<Samples> samples)
    : problem_(problem),
      topology_(topology),
      bytes_(bytes_per_parameter(problem.scenario.training.precision)),
      options_(engine_options(problem.device, problem.stack, false)),
      collectives_(problem.cluster),
      groups_(topology),
      chunk_costs_(problem, groups_, std::move(samples)) {}

const Estimator::LinksByStage& Estimator::links_by_stage(const Plan& plan) {
  for (const auto& [shards, known] : known_links_) {
    if (shards == plan.shards()) return known;
  }
  const program::Binding b = program::bind(plan);
  // What has one member communicates with nobody, however far apart.
  const auto groups = [&](std::int64_t size, std::int64_t stride) -> const std::vector<std::int32_t>& {
    return groups_.by_stage(size, size > 1 ? stride : 1, b);
  };
  const std::array axes{&groups(b.tp, b.tp_stride), &groups(b.dp, b.dp_stride), &groups(b.shard, b.dp_stride),
                        &groups(b.dp / b.shard, b.dp_stride * b.shard)};
  LinksByStage& out = known_links_.emplace_back(plan.shards(), LinksByStage{}).second;
  for (const auto* axis : axes) out.resize(std::max(out.size(), axis->size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto at = [&](std::size_t axis) { return (*axes[axis])[axes[axis]->size() == 1 ? 0 : i]; };
    const auto meets = [&](std::size_t axis, std::int64_t size, std::int64_t stride) {
      return same_links(groups_[at(0)], groups_[at(axis)]) && groups_.meet(b.tp, b.tp_stride, size, stride);
    };
    out[i] = {at(0),
              at(1),
              at(2),
              at(3),
              meets(1, b.dp, b.dp_stride),
              meets(2, b.shard, b.dp_stride),
              meets(3, b.dp / b.shard, b.dp_stride * b.shard)};
  }
  return out;
}

const Estimator::StageLinks& Estimator::links_of_run(std::size_t run) const {
  return links_[links_.size() == 1 ? 0 : static_cast<std::size_t>(costs_.runs[run].first)];
}

const std::vector<GroupLinks>& Estimator::transfers(const Plan& plan, std::int64_t by) {
  const program::Binding b = program::bind(plan);
  const auto [found, added] = transfers_.try_emplace({b.pp_stride, b.pp, b.ranks(), by});
  if (added) found->second = topology_.transfers(b.pp, b.pp_stride, by, b.ranks());
  return found->second;
}

// Of ops at the end of a step, which are a few for each layer: a time of which so many do not wrap.
std::int64_t Estimator::limited(Time t) const {
  return std::min(t.value, kLongestStep.value / (16 * (problem_.scenario.model.layers + 8)));
}

std::int64_t Estimator::collective(OpKind kind, std::int64_t bytes, std::int32_t links) const {
  return limited(collectives_.cost(program::collective_of(kind), Bytes{bytes}, groups_[links]).time);
}

std::int64_t Estimator::price(const program::ElementwiseShape& shape) const {
  program::Op op;
  op.kind = shape.kind;
  op.dims = shape.dims;
  op.traffic =
      Bytes{static_cast<std::int64_t>(static_cast<double>(shape.bytes) * problem_.stack.elementwise_passes)};
  return limited(compute_time(problem_.device, problem_.scenario.training.math, 2, op));
}

// --- what the plan is made of ----------------------------------------------------------------------

// Neighbouring stages that hold alike chunks and have alike links are a run.
void Estimator::split_stages(const Plan& plan) {
  const auto layers = layers_by_chunk(plan, problem_.scenario.model.layers);
  const std::int64_t chunks = plan.pp * plan.vpp;
  const auto v = static_cast<std::size_t>(plan.vpp);
  costs_.runs.clear();
  places_.clear();
  kinds_.clear();
  for (std::int64_t stage = 0; stage < plan.pp; ++stage) {
    for (std::int64_t c = 0; c < plan.vpp; ++c) {
      const std::int64_t g = global_chunk(plan, stage, c);
      const Role role = chunks == 1       ? Role::kOnly
                        : g == 0          ? Role::kFirst
                        : g == chunks - 1 ? Role::kLast
                                          : Role::kMiddle;
      const std::int64_t n = layers[static_cast<std::size_t>(g)];
      const std::size_t links = links_.size() == 1 ? 0 : static_cast<std::size_t>(stage);
      const auto same = [&](const ChunkKind& k) {
        return k.role == role && k.layers == n && links_[k.links] == links_[links];
      };
      const auto kind = std::find_if(kinds_.begin(), kinds_.end(), same);
      places_.push_back(static_cast<std::size_t>(kind - kinds_.begin()));
      if (kind == kinds_.end()) kinds_.push_back({role, n, links});
    }
    const auto mine = places_.end() - static_cast<std::ptrdiff_t>(v);
    if (stage > 0 && std::equal(mine, places_.end(), mine - static_cast<std::ptrdiff_t>(v))) {
      places_.erase(mine, places_.end());
      ++costs_.runs.back().count;
    } else {
      costs_.runs.push_back({stage, 1});
    }
  }
  uneven_ = chunks > 2 && std::adjacent_find(layers.begin() + 1, layers.end() - 1, std::not_equal_to<>()) !=
                              layers.end() - 1;
  // Stages like the first, less an end, finish before it in all they do.
  dominated_.clear();
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) {
    bool less = r > 0 && !program::splits_backward(plan.schedule);
    for (std::size_t c = 0; c < v && less; ++c) {
      const ChunkKind& kind = kinds_[places_[r * v + c]];
      const ChunkKind& first = kinds_[places_[c]];
      less = kind.role == Role::kMiddle && kind.layers <= first.layers &&
             links_[kind.links] == links_[first.links];
    }
    dominated_.push_back(less);
  }
  const bool v_shape = plan.schedule == Schedule::kZeroBubbleV;
  last_run_ = v_shape ? 0 : static_cast<std::int64_t>(costs_.runs.size()) - 1;
}

void Estimator::select(const Plan& plan) {
  const bool stages = selected_ && same_stages(*selected_, plan);
  const bool ranks = stages && same_ranks(*selected_, plan);
  const auto goes_round = [](const Plan& p) { return p.schedule == Schedule::kInterleaved; };
  const bool hops = ranks && goes_round(*selected_) == goes_round(plan);
  if (!ranks) known_links_.clear();
  const LinksByStage& links = links_by_stage(plan);
  // Where all stages have the same, other links leave the runs what they are.
  const bool runs = stages && (links == links_ || (links.size() == 1 && links_.size() == 1));
  links_ = links;
  if (ranks && runs && same_chunks(*selected_, plan)) return;
  if (!runs) split_stages(plan);
  if (!ranks || !runs) pieces_in_use_ = 0;
  const bool outer = selected_ && selected_->tp == plan.tp && selected_->micro_batch == plan.micro_batch &&
                     selected_->sequence_parallel == plan.sequence_parallel &&
                     selected_->rank_order == plan.rank_order;
  if (!outer) chunk_costs_.forget_sizes();
  selected_ = plan;
  times_ = nullptr;
  least_end_.reset();
  key_ = ChunkCosts::key(plan);
  const ChunkWork last_work = key_.split ? kChunkWeight : kChunkBackward;
  for (ChunkKind& kind : kinds_) {
    key_.tp_links = links_[kind.links].tp;
    key_.shard_links = plan.zero >= 2 ? links_[kind.links].shard : 0;
    key_.replica_links = key_.replicas ? links_[kind.links].replica : 0;
    key_.meets_shard = plan.zero >= 2 && links_[kind.links].meets_shard;
    key_.meets_replica = key_.replicas && links_[kind.links].meets_replica;
    kind.cost = &chunk_costs_.cost(key_, kind.role, kind.layers);
    kind.active = 0;
    const bool head = kind.role == Role::kLast || kind.role == Role::kOnly;
    kind.layers_only =
        (head ? chunk_costs_.cost(key_, Role::kMiddle, kind.layers) : *kind.cost)[last_work].time;
  }
  if (!hops || too_long_) find_hops(plan);
  limit_work(plan);
  share_links(plan);
  costs_.chunks.clear();
  for (const std::size_t kind : places_) costs_.chunks.push_back(kinds_[kind].cost);
  choose_path(plan);
}

// All work of a replica, one after the other, takes at least as long as any path through it. A plan whose
// step could not be counted keeps costs that are cut, so that no sum wraps.
void Estimator::limit_work(const Plan& plan) {
  std::int64_t longest = 0;
  const auto see = [&](std::int64_t time) { longest = std::max(longest, time); };
  for (const ChunkKind& kind : kinds_) {
    see(kind.layers_only);
    for (const WorkCost& w : *kind.cost) {
      for (const WorkCost::Field time : WorkCost::times()) see(w.*time);
    }
  }
  for (const Hop& h : hops_) see(h.time());
  const std::int64_t works = 8 * plan.pp * plan.vpp * plan.micro_batches;
  const std::int64_t cap = kLongestStep.value / works;
  too_long_ = longest > cap;
  if (!too_long_) return;
  cut_.clear();
  cut_.reserve(kinds_.size());
  for (ChunkKind& kind : kinds_) {
    ChunkCost& cost = cut_.emplace_back(*kind.cost);
    for (WorkCost& w : cost) {
      for (const WorkCost::Field time : WorkCost::times()) w.*time = std::min(w.*time, cap);
    }
    kind.cost = &cost;
    kind.layers_only = std::min(kind.layers_only, cap);
  }
  for (Hop& h : hops_)
    h = {.latency = std::min(h.latency, cap), .flow = std::min(h.flow, cap), .local = h.local};
}

// What crosses from stage to stage, the last to the first included.
void Estimator::find_hops(const Plan& plan) {
  hops_.clear();
  if (plan.pp == 1) return;
  const Bytes bytes{chunk_costs_.boundary_bytes(key_)};
  const GroupLinks& dp = groups_[links_[0].dp];
  const auto hop = [&](const GroupLinks& pair) {
    const Wire wire = transfer_wire(pair, problem_.cluster);
    return Hop{.latency = wire.latency.value,
               .flow = transfer_time(bytes, wire.rate).value,
               .local = pair.local(),
               .beside_reductions = problem_.stack.overlap_grad_reduce && same_links(pair, dp)};
  };
  for (const GroupLinks& pair : transfers(plan, 1)) hops_.push_back(hop(pair));
  hops_.back() =
      plan.schedule == Schedule::kInterleaved ? hop(transfers(plan, 1 - plan.pp).back()) : hops_.front();
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
    const GroupLinks& tp = groups_[links_[kind.links].tp];
    std::int64_t longest = 0;
    for (const Hop& h : hops_)
      longest = std::max(longest, tp.ranks > 1 && tp.local() == h.local ? h.flow : 0);
    if (longest == 0) continue;
    const WorkCost &f = (*kind.cost)[kChunkForward], &b = (*kind.cost)[kChunkBackward];
    const auto time = static_cast<double>(f.time + b.time + (*kind.cost)[kChunkWeight].time);
    kind.active = working * std::min(1.0, static_cast<double>(f.tp + b.tp) / time);
    const double flow = static_cast<double>(longest) / (1 - kind.active / kSharing);
    const double met = working * std::min(1.0, 2 * flow / time) / kSharing;
    ChunkCost& cost = contended_.emplace_back(*kind.cost);
    for (const ChunkWork work : {kChunkForward, kChunkBackward}) {
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
    const bool local = groups_[links_[kind.links].tp].local();
    for (std::int64_t i = costs_.runs[r].first; i <= costs_.runs[r].last(); ++i) {
      Hop& h = costs_.hops[static_cast<std::size_t>(i)];
      if (h.local == local)
        h.flow = static_cast<std::int64_t>(static_cast<double>(h.flow) / (1 - kind.active / kSharing));
    }
  }
}

// Closed forms take one time for all crossings, and have no host. The schedule is walked where crossings
// differ or meet reductions, where issuing some work takes longer than the work, and for schedules without a
// closed form: zero-bubble V, and interleaved chunks of unequal size.
void Estimator::choose_path(const Plan& plan) {
  costs_.transfer = least_transfer_ = 0;
  const bool host_bound = std::any_of(kinds_.begin(), kinds_.end(), [](const ChunkKind& kind) {
    return std::any_of(kind.cost->begin(), kind.cost->end(),
                       [](const WorkCost& w) { return w.host > w.time; });
  });
  const bool uneven = uneven_ && plan.schedule == Schedule::kInterleaved;
  costs_.walk = host_bound || uneven || plan.schedule == Schedule::kZeroBubbleV;
  if (costs_.hops.empty()) return;
  const auto shorter = [](const Hop& a, const Hop& b) { return a.time() < b.time(); };
  const auto [least, most] = std::minmax_element(costs_.hops.begin(), costs_.hops.end(), shorter);
  costs_.transfer = most->time();
  least_transfer_ = least->time();
  std::int64_t work = std::numeric_limits<std::int64_t>::max();
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) work = std::min(work, time_of_chunks(r));
  // What differences cost with every micro-batch, and shared links with every crossing of the last one.
  const std::int64_t apart = 2 * (most->time() - least->time()) * plan.micro_batches;
  const std::int64_t shared = most->beside_reductions ? most->flow * (plan.vpp * plan.pp - 1) : 0;
  costs_.walk |= static_cast<double>(std::max(apart, shared)) >
                 kNegligible * static_cast<double>(work * plan.micro_batches);
}

// Of all chunks of a run's stage, for a micro-batch.
std::int64_t Estimator::time_of_chunks(std::size_t run) const {
  const std::size_t v = costs_.chunks.size() / costs_.runs.size();
  std::int64_t time = 0;
  for (std::size_t c = run * v; c < (run + 1) * v; ++c) {
    for (const WorkCost& w : *costs_.chunks[c]) time += w.time;
  }
  return time;
}

const Estimator::UnitCost& Estimator::unit_cost(const Plan& plan, std::int64_t elements, std::size_t number,
                                                const StageLinks& links) {
  // Ops of some shape and unit may have been measured; otherwise units are mostly alike.
  const std::int64_t unit = problem_.device.measured.empty() ? 0 : static_cast<std::int64_t>(number);
  for (const KnownUnit& known : unit_costs_) {
    if (known.elements == elements && known.unit == unit && known.links == links) return known.cost;
  }
  const std::int64_t shards = plan.shards();
  const std::int64_t shard = (elements + shards - 1) / shards, padded = shard * shards;
  UnitCost u;
  const bool overlap = problem_.stack.overlap_grad_reduce;
  std::int64_t& once = overlap ? u.reduce : u.late;
  const bool in_chunks = plan.zero >= 2;  // and so are their reductions beside the last backward
  if (plan.dp > 1 && plan.zero == 0)
    once += collective(OpKind::kAllReduce, padded * bytes_.gradient, links.dp);
  if (plan.zero == 1 && shards > 1)
    once += collective(OpKind::kReduceScatter, padded * bytes_.gradient, links.shard);
  if (plan.zero >= 1 && shards < plan.dp && !(in_chunks && overlap)) {
    once += collective(OpKind::kAllReduce, shard * bytes_.gradient, links.replica);
  }
  const bool lamb = problem_.scenario.training.lamb;
  u.norm = price(program::norm_square(bytes_, shard, unit));
  if (lamb) u.trust = price(program::trust_squares(bytes_, shard, unit));
  u.optimizer = price(program::optimizer(bytes_, shard, unit, lamb));
  u.clear = price(program::clear_gradient(bytes_, plan.zero >= 2 ? shard : padded));
  if ((plan.zero == 1 || plan.zero == 2) && shards > 1) {
    u.gather = collective(OpKind::kAllGather, padded * bytes_.parameter, links.shard);
  }
  return unit_costs_.emplace_back(KnownUnit{elements, unit, links, u}).cost;
}

void Estimator::fill_pieces(const Plan& plan, std::size_t run, StagePieces& out) {
  const Model& m = problem_.scenario.model;
  const Training& training = problem_.scenario.training;
  const program::BlockElements elements(m, plan.tp);
  const std::int64_t bucket = program::bucket_elements(training, problem_.stack);
  const StageLinks& links = links_of_run(run);
  const std::size_t base = run * static_cast<std::size_t>(plan.vpp);
  const auto kind_of = [&](std::int64_t c) -> const ChunkKind& {
    return kinds_[places_[base + static_cast<std::size_t>(c)]];
  };
  program::StageEnds ends;
  ends.last_stage = costs_.runs[run].last() + 1 == plan.pp;
  for (std::int64_t c = 0; c < plan.vpp; ++c) {
    const Role role = kind_of(c).role;
    ends.first = ends.first || role == Role::kFirst || role == Role::kOnly;
    ends.last = ends.last || role == Role::kLast || role == Role::kOnly;
    ends.received += role == Role::kOnly ? 0 : role == Role::kMiddle ? 2 : 1;
  }
  out.units.clear();
  out.chunk_end.clear();
  out.reductions.assign(static_cast<std::size_t>(plan.vpp), 0);
  out.most = out.update = 0;
  out.trust_sum = 0;
  double slowest = 0;
  unit_sizes_.clear();
  for (std::int64_t c = plan.vpp - 1; c >= 0; --c) {
    const Role role = kind_of(c).role;
    const std::int64_t layers = kind_of(c).layers;
    const program::ChunkEnds chunk{.embedding = role == Role::kFirst || role == Role::kOnly,
                                   .head = role == Role::kLast || role == Role::kOnly,
                                   .tied_here = m.tied_embeddings && ends.first && ends.last};
    const std::size_t begin = unit_sizes_.size();
    program::append_units(elements, m, plan.zero, bucket, layers, chunk, unit_sizes_);
    std::int64_t layers_done = 0;
    for (std::size_t i = begin; i < unit_sizes_.size() && (costs_.walk || !dominated_[run]); ++i) {
      UnitCost u = unit_cost(plan, unit_sizes_[i].elements, i, links);
      out.reductions[static_cast<std::size_t>(c)] += u.reduce;
      if (dominated_[run]) continue;
      layers_done += unit_sizes_[i].layers;
      u.share = i + 1 == unit_sizes_.size() ? 2.0
                                            : static_cast<double>(layers_done) /
                                                  static_cast<double>(std::max<std::int64_t>(1, layers));
      // A tied weight that two stages hold counts once in the norm.
      if (i == begin && chunk.head && m.tied_embeddings && !ends.first) u.norm = 0;
      out.units.push_back(u);
      slowest += static_cast<double>(u.reduce);
      out.most += static_cast<double>(u.late + u.norm);
      out.update += static_cast<double>(u.trust + u.optimizer + u.gather + u.clear);
    }
    out.chunk_end.push_back(out.units.size());
  }
  if (training.lamb && !dominated_[run]) {
    std::int64_t tensors = 0;
    for (const program::UnitSize& u : unit_sizes_) tensors += u.tensors;
    const std::int64_t clear = price(program::trust_clear(tensors));
    out.units.front().trust += clear;
    out.trust_sum =
        sum_over_parts(plan, tensors * program::kTrustBins * 8, links) + price(program::trust_ratio(tensors));
    out.update += static_cast<double>(clear + out.trust_sum);
  }
  // Nothing waits while nothing runs: at the very most one thing follows the other, as slow as it may be.
  const double slowdown = std::max(problem_.device.overlap_compute, problem_.device.overlap_communication);
  out.most = out.most * slowdown + slowest * 2 * kSharing * problem_.device.overlap_communication;
  out.update *= slowdown;
  const bool norm = training.measures_norm();
  const std::int64_t each = 2 + norm + training.lamb +
                            (out.units.empty() || out.units.front().gather == 0 ? 0 : 1) +
                            (problem_.stack.overlap_grad_reduce || plan.dp == 1 ? 0 : 1);
  out.host = options_.host_segment.value +
             options_.host_op.value * each * static_cast<std::int64_t>(unit_sizes_.size());
  std::int64_t largest = 0;
  for (const program::UnitSize& u : unit_sizes_) largest = std::max(largest, u.elements);
  share_reductions(plan, largest, links, out);
  out.norm_sum = sum_over_parts(plan, program::kNormBinBytes, links);
  out.static_bytes = program::static_bytes(m, plan, training, unit_sizes_, ends);
}

const Estimator::Pieces& Estimator::pieces(const Plan& plan) {
  for (std::size_t i = 0; i < pieces_in_use_; ++i) {
    if (pieces_[i].zero == plan.zero && pieces_[i].shards == plan.shards()) return pieces_[i];
  }
  if (pieces_in_use_ == pieces_.size()) pieces_.emplace_back();
  Pieces& p = pieces_[pieces_in_use_++];
  p.zero = plan.zero;
  p.shards = plan.shards();
  p.runs.resize(costs_.runs.size());
  unit_costs_.clear();
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) fill_pieces(plan, r, p.runs[r]);
  if (plan.pp > 1) {
    const program::BlockElements elements(problem_.scenario.model, plan.tp);
    const std::int64_t shard = (elements.embedding + plan.shards() - 1) / plan.shards();
    const GroupLinks& ends = transfers(plan, plan.pp - 1).front();
    p.tie_transfer = limited(transfer_cost(Bytes{shard * bytes_.gradient}, ends, problem_.cluster));
    p.tie_add = price(program::accumulate(shard, bytes_.gradient));
    const std::int64_t add = price(program::accumulate(program::kNormBins, 8));
    p.norm_up.clear();
    p.norm_down.clear();
    std::int64_t up = 0, down = 0;
    for (const GroupLinks& pair : transfers(plan, 1)) {
      p.norm_up.push_back(up);
      p.norm_down.push_back(down);
      const std::int64_t hop = limited(transfer_cost(Bytes{program::kNormBinBytes}, pair, problem_.cluster));
      up += hop + add;
      down += hop;
    }
  } else {
    p.tie_add = 0;
    p.norm_up.assign(1, 0);
    p.norm_down.assign(1, 0);
  }
  p.norm_finish = price(program::norm_finish());
  return p;
}

// What reductions and tensor-parallel ops take from each other, of the time in which both run: they share
// links while both have data on them, not while one only waits for its latency.
void Estimator::share_reductions(const Plan& plan, std::int64_t elements, const StageLinks& links,
                                 StagePieces& out) const {
  out.reduction_loss = out.tp_loss = 0;
  if (!links.meets_dp) return;
  struct Load {
    double flowing, share;  // of its time, and of the links in that time
  };
  const auto load = [&](OpKind kind, std::int64_t bytes, std::int32_t of) {
    const CollectiveCost c = collectives_.cost(program::collective_of(kind), Bytes{bytes}, groups_[of]);
    const double time = static_cast<double>(std::max<std::int64_t>(1, c.time.value));
    return Load{std::max(0.0, 1 - static_cast<double>(c.wire.latency.value) / time),
                std::min(1.0, ratio(c.wire.rate, groups_[of].ring))};
  };
  const Load tp = load(plan.sequence_parallel ? OpKind::kAllGather : OpKind::kAllReduce,
                       chunk_costs_.activation_bytes_of(key_), links.tp);
  const Load dp = load(plan.zero == 0 ? OpKind::kAllReduce : OpKind::kReduceScatter,
                       elements * bytes_.gradient, plan.zero == 0 ? links.dp : links.shard);
  const auto [tp_slower, dp_slower] = sharing_of(tp.share, dp.share);
  const double both = tp.flowing * dp.flowing;
  out.tp_loss = both * (1 - 1 / tp_slower);
  out.reduction_loss = both * (1 - 1 / dp_slower);
}

// Over all ranks that hold parts of a rank's tensors: tensor ranks and shards.
std::int64_t Estimator::sum_over_parts(const Plan& plan, std::int64_t bytes, const StageLinks& links) const {
  std::int64_t time = 0;
  if (plan.tp > 1) time += collective(OpKind::kAllReduce, bytes, links.tp);
  if (plan.shards() > 1) time += collective(OpKind::kAllReduce, bytes, links.shard);
  return time;
}

std::int64_t Estimator::host_of_chunks(std::size_t run) const {
  const std::size_t v = costs_.chunks.size() / costs_.runs.size();
  std::int64_t time = 0;
  for (std::size_t c = run * v; c < (run + 1) * v; ++c) {
    for (const WorkCost& w : *costs_.chunks[c]) time += w.host;
  }
  return time;
}

// --- time and memory -------------------------------------------------------------------------------

// What the host takes, or a stage's own work for all micro-batches, after the first micro-batch has come down
// to it and before the last one has gone up (weight gradients may come after that). ZeRO-2 and 3 only add
// communication to a chunk, and pricing it is what costs: the bound leaves it out.
Time Estimator::lower_bound(const Plan& plan) {
  if (plan.zero >= 2) {
    Plan without = plan;
    without.zero = 0;
    without.shard_group = 0;
    select(without);
  } else {
    select(plan);
  }
  const auto v = static_cast<std::size_t>(plan.vpp);
  std::int64_t most = 0, down = 0, up = 0, host = 0;
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) {
    const ChunkCost& first = *costs_.chunks[r * v];
    const auto least = [&](ChunkWork work) { return std::min(first[work].time, first[work].latency); };
    const auto advance = [&](std::int64_t stages) {
      down += stages * least(kChunkForward);
      if (!key_.split) up += stages * least(kChunkBackward);
    };
    advance(costs_.runs[r].count - 1);
    most = std::max(most, down + time_of_chunks(r) * plan.micro_batches + up);
    host = std::max(host, host_of_chunks(r) * plan.micro_batches);
    advance(1);
  }
  if (costs_.walk && plan.schedule != Schedule::kZeroBubbleV) {
    if (!least_end_) {
      const std::int64_t transfer = std::exchange(costs_.transfer, least_transfer_);
      least_end_ = pipeline_.least_end({plan.schedule, plan.pp, plan.vpp, plan.micro_batches}, costs_);
      costs_.transfer = transfer;
    }
    most = std::max(most, *least_end_);
  }
  return Time{std::max(most, host)};
}

Time Estimator::least_work(const Plan& whole) {
  select(whole);
  std::int64_t work = 0;
  for (const WorkCost& w : *costs_.chunks.front()) work += w.time - w.waiting;
  return Time{work};
}

Bytes Estimator::device_bytes(const Plan& plan, Bytes logical) const {
  const Stack& s = problem_.stack;
  const std::int64_t groups = (plan.tp > 1) + (plan.dp > 1) + (plan.pp > 1);
  return Bytes{static_cast<std::int64_t>(static_cast<double>(logical.value) * s.allocator_overhead)} +
         s.context + s.communicator * groups;
}

// What the last micro-batch's backward takes longer on the stages that it comes up from: below a stage where
// only the last one communicates, and its own too where all do.
std::int64_t Estimator::longer_up_to(const PipelinePlace& place) const {
  const std::size_t v = costs_.chunks.size() / costs_.runs.size();
  const bool in_all = key_.zero >= 2;
  if (!in_all && v > 1) return 0;
  std::int64_t sum = 0;
  for (auto r = static_cast<std::size_t>(place.run); r < costs_.runs.size(); ++r) {
    const std::int64_t stages =
        costs_.runs[r].last() + 1 - std::max(costs_.runs[r].first, place.stage + (in_all ? 0 : 1));
    sum += stages * (*costs_.chunks[r * v])[kChunkBackward].longer;
  }
  return sum;
}

// When a stage has reduced its gradients, and when it has updated its parameters and gathered them.
// `tie` is when the tied embedding's other half arrives, or 0.
Estimator::StageEnd Estimator::stage_end(const StagePieces& s, std::size_t place, std::int64_t tie,
                                         std::int64_t tie_add) {
  const double oc = problem_.device.overlap_compute, om = problem_.device.overlap_communication;
  const std::size_t v = s.chunk_end.size();
  const auto run = static_cast<std::size_t>(times_->places[place].run);
  const ChunkWork last_work = key_.split ? kChunkWeight : kChunkBackward;
  double communication = 0, delay = static_cast<double>(longer_up_to(times_->places[place]));
  double longer = 0;  // the last micro-batch's gradient work, of the chunks so far
  const auto more_of = [&](std::size_t chunk) {
    return key_.zero < 2 ? static_cast<double>((*costs_.chunks[run * v + chunk])[last_work].longer) : 0.0;
  };
  double compute = static_cast<double>(times_->places[place].end);
  for (std::size_t chunk = 0; chunk < v; ++chunk) compute += more_of(chunk);
  reduced_at_.resize(s.units.size());
  std::size_t i = 0;
  for (std::size_t k = 0; k < v; ++k) {
    const std::size_t chunk = v - 1 - k;
    const WorkCost& gradients = (*costs_.chunks[run * v + chunk])[kChunkBackward];
    const WorkCost& work = (*costs_.chunks[run * v + chunk])[last_work];
    const double more = more_of(chunk);
    const double start = longer + static_cast<double>(times_->last_start[place * v + chunk]);
    longer += more;
    const double end = longer + static_cast<double>(times_->last_end[place * v + chunk]);
    // Blocks finish evenly over the chunk's last gradient work, the head before the layers.
    const double layers = static_cast<double>(kinds_[places_[run * v + chunk]].layers_only) + more;
    const double head = std::max(0.0, end - start - layers);
    // Of a reduction's time beside the gradients' work: done, and added. Compute and a reduction slow each
    // other down while compute runs, which a tensor-parallel op beside it has slowed down before. While
    // compute waits for tensor-parallel ops, a reduction runs at its own speed, or shares their links.
    const double time = static_cast<double>(std::max<std::int64_t>(1, work.time));
    const double waiting = static_cast<double>(work.waiting) / time;
    const double tp = std::clamp(static_cast<double>(work.tp) / time, waiting, 1.0);
    const double hidden = (1 - waiting) / om + waiting - s.reduction_loss * ((tp - waiting) / om + waiting);
    const double lost = (1 - tp) * (1 - 1 / oc) + s.tp_loss * waiting;
    const double summed = key_.zero < 2 ? static_cast<double>(work.trailing) : 0.0;
    for (; i < s.chunk_end[k]; ++i) {
      const UnitCost& u = s.units[i];
      const double ready =
          delay + (u.share > 1 ? end + summed : start + head + (end - start - head) * u.share);
      if (key_.zero >= 2) {  // what reduces it is part of the chunk
        reduced_at_[i] = std::max(communication, ready);
        continue;
      }
      const double begin = std::max(communication, ready), reduce = static_cast<double>(u.reduce);
      // Beside compute both run slower, after it the rest at full speed.
      const double beside = std::max(0.0, std::min(compute + delay - begin, reduce / hidden));
      communication = begin + beside + (reduce - beside * hidden);
      delay += beside * lost;
      reduced_at_[i] = communication;
    }
    if (key_.zero < 2) continue;
    const auto trailing = static_cast<double>(gradients.trailing);
    if (v > 1) {  // the last micro-batches of each chunk in turn; their reductions may take longer
      const std::int64_t group = std::min(selected_->pp, selected_->micro_batches);
      communication = std::max(communication, end + delay - static_cast<double>(group * gradients.time)) +
                      static_cast<double>((group - 1) * gradients.dp + gradients.dp_last);
      if (k + 1 == v) compute = std::max(compute, communication - delay - trailing);
    }
    communication = std::max(communication, end + delay + trailing);
    if (i > 0) reduced_at_[i - 1] = communication;
  }
  compute += delay;
  StageEnd out;
  double reduced = std::max(compute, communication);
  for (const UnitCost& u : s.units) reduced += static_cast<double>(u.late);
  out.reduced = static_cast<std::int64_t>(reduced);
  // What is not reduced by then follows one after the other: what the stack reduces beside the backward pass,
  // or all of it.
  tail_communication_.clear();
  std::int64_t first = 0;  // unit that waits for its reduction
  for (std::size_t u = 0; u < s.units.size(); ++u) {
    double left = static_cast<double>(s.units[u].late);
    const double before = u > 0 ? std::max(compute, reduced_at_[u - 1]) : compute;
    left += std::max(0.0, reduced_at_[u] - before);
    if (left > 0 || !tail_communication_.empty())
      tail_communication_.push_back({.duration = left});
    else
      first = static_cast<std::int64_t>(u) + 1;
  }
  const auto reduction_of = [&](std::size_t u) { return static_cast<std::int64_t>(u) - first; };
  tail_compute_.clear();
  if (tie > 0)
    tail_compute_.push_back(
        {.duration = static_cast<double>(tie_add), .not_before = static_cast<double>(tie)});
  const auto beside = [&] { return run_tail(compute, tail_compute_, tail_communication_, oc, om); };
  if (problem_.scenario.training.measures_norm()) {
    for (std::size_t u = 0; u < s.units.size(); ++u)
      tail_compute_.push_back({.duration = static_cast<double>(s.units[u].norm), .after = reduction_of(u)});
    const TailEnds ends = beside();
    out.ready = static_cast<std::int64_t>(std::max(ends.compute, ends.communication));
    return out;
  }
  if (problem_.scenario.training.lamb) {  // no tensor is updated before all of its stage are reduced
    for (std::size_t u = 0; u < s.units.size(); ++u)
      tail_compute_.push_back({.duration = static_cast<double>(s.units[u].trust), .after = reduction_of(u)});
    const TailEnds ends = beside();
    out.done =
        updated(s, static_cast<std::int64_t>(std::max(ends.compute, ends.communication)) + s.trust_sum);
    return out;
  }
  for (std::size_t u = 0; u < s.units.size(); ++u) add_update(s.units[u], reduction_of(u));
  const TailEnds ends = beside();
  out.done = static_cast<std::int64_t>(std::max(ends.compute, ends.communication));
  return out;
}

// A unit's update after a job of communication, and the gather of what other ranks updated.
void Estimator::add_update(const UnitCost& u, std::int64_t after) {
  tail_compute_.push_back({.duration = static_cast<double>(u.optimizer), .after = after});
  if (u.gather > 0) {
    tail_communication_.push_back(
        {.duration = static_cast<double>(u.gather), .after = std::ssize(tail_compute_) - 1});
  }
  tail_compute_.push_back({.duration = static_cast<double>(u.clear)});
}

// The update of all units from a start on.
std::int64_t Estimator::updated(const StagePieces& s, std::int64_t start) {
  tail_compute_.clear();
  tail_communication_.clear();
  for (const UnitCost& u : s.units) add_update(u, -1);
  const TailEnds ends = run_tail(static_cast<double>(start), tail_compute_, tail_communication_,
                                 problem_.device.overlap_compute, problem_.device.overlap_communication);
  return static_cast<std::int64_t>(std::max(ends.compute, ends.communication));
}

// The reductions become costs of the pipeline where it is walked.
const Estimator::Pieces& Estimator::pieces_with_reductions(const Plan& plan) {
  const Pieces& p = pieces(plan);
  if (!costs_.walk) return p;
  reductions_.clear();
  for (const StagePieces& run : p.runs)
    reductions_.insert(reductions_.end(), run.reductions.begin(), run.reductions.end());
  if (reductions_ != costs_.reductions) {
    std::swap(reductions_, costs_.reductions);
    times_ = nullptr;
  }
  return p;
}

Bytes Estimator::peak(const Plan& plan) {
  select(plan);
  const Pieces& p = pieces_with_reductions(plan);
  Bytes most{0};
  for (const PipelinePlace& place :
       pipeline_.peaks({plan.schedule, plan.pp, plan.vpp, plan.micro_batches}, costs_).places)
    most = std::max(most, Bytes{p.runs[static_cast<std::size_t>(place.run)].static_bytes + place.peak});
  return most;
}

Estimate Estimator::estimate(const Plan& plan) {
  select(plan);
  const Pieces& p = pieces_with_reductions(plan);
  if (times_ == nullptr) {
    times_ = &pipeline_.run({plan.schedule, plan.pp, plan.vpp, plan.micro_batches}, costs_);
  }
  Estimate out;
  std::int64_t tie = 0;
  if (problem_.scenario.model.tied_embeddings && last_run_ != 0)
    tie = stage_end(p.runs.front(), 0, 0, 0).reduced + p.tie_transfer;
  // With a norm to wait for, no stage updates before the slowest has reduced its gradients.
  const bool norm = problem_.scenario.training.measures_norm();
  std::int64_t ready = 0;  // on the first stage
  const auto v = static_cast<std::size_t>(plan.vpp);
  for (std::size_t i = 0; i < times_->places.size(); ++i) {
    const PipelinePlace& place = times_->places[i];
    const StagePieces& s = p.runs[static_cast<std::size_t>(place.run)];
    if (const Bytes peak{s.static_bytes + place.peak}; peak > out.peak) {
      out.peak = peak;
      out.fullest_stage = static_cast<std::int32_t>(place.stage);
    }
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
    if (latest < static_cast<double>(norm ? ready : out.step.value)) continue;
    const StageEnd end = stage_end(s, i, holds_tied ? tie : 0, p.tie_add);
    ready = std::max(ready, end.ready + onward);
    out.step = std::max(out.step, Time{end.done});
  }
  for (std::size_t r = 0; r < costs_.runs.size() && norm; ++r) {
    if (dominated_[r]) continue;
    std::int64_t start = ready + p.norm_down[static_cast<std::size_t>(costs_.runs[r].last())] + p.norm_finish;
    if (static_cast<double>(start) + p.runs[r].update < static_cast<double>(out.step.value)) continue;
    for (const UnitCost& u : p.runs[r].units) start += u.trust;
    out.step = std::max(out.step, Time{updated(p.runs[r], start + p.runs[r].trust_sum)});
  }
  for (std::size_t r = 0; r < costs_.runs.size(); ++r)
    out.step = std::max(out.step, Time{host_of_chunks(r) * plan.micro_batches + p.runs[r].host});
  if (too_long_) out.step = kLongestStep;
  return out;
}

}  // namespace orrery::sim
