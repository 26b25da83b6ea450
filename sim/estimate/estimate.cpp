// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/estimate.h"

#include <algorithm>
#include <functional>

namespace orrery::sim {

using program::OpKind;

namespace {

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
      collectives_(problem.cluster),
      chunk_costs_(problem, topology, std::move(samples)) {}

const GroupLinks& Estimator::group(std::int64_t size, std::int64_t stride) {
  const auto [found, added] = groups_.try_emplace({size, stride});
  if (added) found->second = topology_.group(size, stride);
  return found->second;
}

const GroupLinks& Estimator::pairs(const Plan& plan) {
  const program::Binding b = program::bind(plan);
  const auto [found, added] = pairs_.try_emplace({b.pp_stride, b.pp, b.ranks()});
  if (added) found->second = topology_.pairs(b.pp_stride, b.pp, b.ranks());
  return found->second;
}

// Of ops at the end of a step, which are a few for each layer: a time of which so many do not wrap.
std::int64_t Estimator::limited(Time t) const {
  return std::min(t.value, kLongestStep.value / (16 * (problem_.scenario.model.layers + 8)));
}

std::int64_t Estimator::collective(OpKind kind, std::int64_t bytes, const GroupLinks& links) const {
  return limited(collectives_.cost(program::collective_of(kind), Bytes{bytes}, links).time);
}

std::int64_t Estimator::elementwise(std::int64_t bytes) const {
  program::Op op;
  op.kind = OpKind::kOptimizer;
  op.traffic =
      Bytes{static_cast<std::int64_t>(static_cast<double>(bytes) * problem_.stack.elementwise_passes)};
  return limited(compute_time(problem_.device, problem_.scenario.training.math, 2, op));
}

// --- what the plan is made of ----------------------------------------------------------------------

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
      std::size_t kind = 0;
      while (kind < kinds_.size() && (kinds_[kind].role != role || kinds_[kind].layers != n)) ++kind;
      if (kind == kinds_.size()) kinds_.push_back({role, n, nullptr, 0});
      places_.push_back(kind);
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
      less = kind.role == Role::kMiddle && kind.layers <= kinds_[places_[c]].layers;
    }
    dominated_.push_back(less);
  }
  const bool v_shape = plan.schedule == Schedule::kZeroBubbleV;
  last_run_ = v_shape ? 0 : static_cast<std::int64_t>(costs_.runs.size()) - 1;
}

void Estimator::select(const Plan& plan) {
  const bool stages = selected_ && same_stages(*selected_, plan);
  const bool ranks = stages && same_ranks(*selected_, plan);
  if (ranks && same_chunks(*selected_, plan)) return;
  if (!stages) split_stages(plan);
  if (!ranks) {
    pieces_in_use_ = 0;
    costs_.transfer = 0;
    const bool outer = selected_ && selected_->tp == plan.tp && selected_->micro_batch == plan.micro_batch &&
                       selected_->sequence_parallel == plan.sequence_parallel &&
                       selected_->rank_order == plan.rank_order;
    if (!outer) chunk_costs_.forget_sizes();
  }
  selected_ = plan;
  times_ = nullptr;
  if (std::exchange(too_long_, false)) costs_.transfer = 0;
  key_ = ChunkCosts::key(plan);
  if (plan.pp > 1 && costs_.transfer == 0) {
    costs_.transfer =
        transfer_cost(Bytes{chunk_costs_.boundary_bytes(key_)}, pairs(plan), problem_.cluster).value;
  }
  const ChunkWork last_work = key_.split ? kChunkWeight : kChunkBackward;
  for (ChunkKind& kind : kinds_) {
    kind.cost = &chunk_costs_.cost(key_, kind.role, kind.layers);
    const bool head = kind.role == Role::kLast || kind.role == Role::kOnly;
    kind.layers_only =
        (head ? chunk_costs_.cost(key_, Role::kMiddle, kind.layers) : *kind.cost)[last_work].time;
  }
  costs_.chunks.clear();
  for (const std::size_t kind : places_) costs_.chunks.push_back(kinds_[kind].cost);
  limit_work(plan);
}

// All work of a replica, one after the other, takes at least as long as any path through it.
void Estimator::limit_work(const Plan& plan) {
  const auto v = static_cast<std::size_t>(plan.vpp);
  const auto longest = [](const WorkCost& w) { return std::max({w.time, w.row, w.latency}); };
  const auto pieces = static_cast<double>(plan.pp * plan.vpp);
  double work = 4 * pieces * static_cast<double>(costs_.transfer);
  for (std::size_t i = 0; i < costs_.chunks.size(); ++i) {
    for (const WorkCost& w : *costs_.chunks[i])
      work += static_cast<double>(longest(w)) * static_cast<double>(costs_.runs[i / v].count);
  }
  const auto m = static_cast<double>(plan.micro_batches), most = static_cast<double>(kLongestStep.value);
  too_long_ = work * m > most / 2;
  if (!too_long_) return;
  const auto cap = static_cast<std::int64_t>(most / (32 * pieces * m));
  limited_.clear();
  for (const ChunkCost* c : costs_.chunks) limited_.push_back(*c);
  for (std::size_t i = 0; i < limited_.size(); ++i) {
    for (WorkCost& w : limited_[i]) {
      for (std::int64_t* t : {&w.time, &w.row, &w.latency}) *t = std::min(*t, cap);
    }
    costs_.chunks[i] = &limited_[i];
  }
  for (ChunkKind& kind : kinds_) kind.layers_only = std::min(kind.layers_only, cap);
  costs_.transfer = std::min(costs_.transfer, cap);
}

const Estimator::UnitCost& Estimator::unit_cost(const Plan& plan, std::int64_t elements) {
  for (const auto& [size, known] : unit_costs_) {  // units are mostly alike
    if (size == elements) return known;
  }
  const std::int64_t shards = plan.shards(), stride = program::bind(plan).dp_stride;
  const std::int64_t shard = (elements + shards - 1) / shards, padded = shard * shards;
  UnitCost u;
  const bool overlap = problem_.stack.overlap_grad_reduce;
  std::int64_t& once = overlap ? u.reduce : u.late;
  if (plan.dp > 1 && plan.zero == 0)
    once += collective(OpKind::kAllReduce, padded * bytes_.gradient, group(plan.dp, stride));
  if (plan.zero >= 1 && shards > 1) {
    (plan.zero == 1 ? once : u.reduce) +=
        collective(OpKind::kReduceScatter, padded * bytes_.gradient, group(shards, stride));
  }
  if (plan.zero >= 1 && shards < plan.dp) {
    once += collective(OpKind::kAllReduce, shard * bytes_.gradient, group(plan.dp / shards, stride * shards));
  }
  u.norm = elementwise(shard * bytes_.gradient);
  if (problem_.scenario.training.lamb) u.trust = elementwise(shard * bytes_.trust_traffic());
  u.optimizer = elementwise(shard * bytes_.update_traffic());
  u.clear = elementwise((plan.zero >= 2 ? shard : padded) * bytes_.gradient);
  if ((plan.zero == 1 || plan.zero == 2) && shards > 1) {
    u.gather = collective(OpKind::kAllGather, padded * bytes_.parameter, group(shards, stride));
  }
  return unit_costs_.emplace_back(elements, u).second;
}

void Estimator::fill_pieces(const Plan& plan, std::size_t run, StagePieces& out) {
  const Model& m = problem_.scenario.model;
  const Training& training = problem_.scenario.training;
  const program::BlockElements elements(m, plan.tp);
  const std::int64_t bucket = program::bucket_elements(training, problem_.stack);
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
    for (std::size_t i = begin; i < unit_sizes_.size() && !dominated_[run]; ++i) {
      UnitCost u = unit_cost(plan, unit_sizes_[i].elements);
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
    const std::int64_t bins = tensors * program::kTrustBins * 8;
    out.units.front().trust += elementwise(bins);  // cleared before
    out.trust_sum = sum_over_parts(plan, bins) + elementwise(tensors * program::kTrustBytes);
    out.update += static_cast<double>(elementwise(bins) + out.trust_sum);
  }
  out.most += slowest * 2 * problem_.device.overlap_communication;
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
    p.tie_transfer = limited(transfer_cost(Bytes{shard * bytes_.gradient}, pairs(plan), problem_.cluster));
    p.norm_hop = limited(transfer_cost(Bytes{program::kNormBinBytes}, pairs(plan), problem_.cluster));
  }
  p.norm_finish = elementwise(program::kNormBinBytes);
  p.norm_sum = sum_over_parts(plan, program::kNormBinBytes);
  return p;
}

// Over all ranks that hold parts of a rank's tensors: tensor ranks and shards.
std::int64_t Estimator::sum_over_parts(const Plan& plan, std::int64_t bytes) {
  const program::Binding b = program::bind(plan);
  std::int64_t time = 0;
  if (plan.tp > 1) time += collective(OpKind::kAllReduce, bytes, group(plan.tp, b.tp_stride));
  if (plan.shards() > 1) time += collective(OpKind::kAllReduce, bytes, group(plan.shards(), b.dp_stride));
  return time;
}

// --- time and memory -------------------------------------------------------------------------------

// A stage's own work for all micro-batches, and the forward and backward that others must do before its
// first and after its last (without weight gradients, which may wait).
// ZeRO-2 and 3 only add communication to a chunk, and pricing it is what costs: the bound leaves it out.
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
  std::int64_t most = 0, fill = 0;
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) {
    std::int64_t busy = 0;
    for (std::size_t c = 0; c < v; ++c) {
      for (const WorkCost& w : *costs_.chunks[r * v + c]) busy += w.time;
    }
    most = std::max(most, busy);
    // Stage 0 starts first and ends last; what the others do in between cannot overlap its first and
    // last micro-batch.
    const ChunkCost& first = *costs_.chunks[r * v];
    if (r > 0 && !key_.split)
      fill += costs_.runs[r].count * std::min(first[kChunkForward].time, first[kChunkBackward].time);
  }
  if (plan.vpp > 1 || plan.schedule == Schedule::kNaive) fill = 0;
  return Time{most * plan.micro_batches + fill};
}

Bytes Estimator::device_bytes(const Plan& plan, Bytes logical) const {
  const Stack& s = problem_.stack;
  const std::int64_t groups = (plan.tp > 1) + (plan.dp > 1) + (plan.pp > 1);
  return Bytes{static_cast<std::int64_t>(static_cast<double>(logical.value) * s.allocator_overhead)} +
         s.context + s.communicator * groups;
}

// When a stage has reduced its gradients, and when it has updated its parameters and gathered them.
// `tie` is when the tied embedding's other half arrives, or 0.
Estimator::StageEnd Estimator::stage_end(const StagePieces& s, std::size_t place, std::int64_t tie) {
  const double oc = problem_.device.overlap_compute, om = problem_.device.overlap_communication;
  const double hidden = 1 / om, lost = 1 - 1 / oc;  // of a collective's time beside compute, done and added
  const std::size_t v = s.chunk_end.size();
  const auto run = static_cast<std::size_t>(times_->places[place].run);
  double compute = static_cast<double>(times_->places[place].end);
  double communication = 0, delay = 0;
  reduced_at_.resize(s.units.size());
  std::size_t i = 0;
  for (std::size_t k = 0; k < v; ++k) {
    const std::size_t chunk = v - 1 - k;
    const double start = static_cast<double>(times_->last_start[place * v + chunk]),
                 end = static_cast<double>(times_->last_end[place * v + chunk]);
    // Blocks finish evenly over the chunk's last gradient work, the head before the layers.
    const double head =
        std::max(0.0, end - start - static_cast<double>(kinds_[places_[run * v + chunk]].layers_only));
    for (; i < s.chunk_end[k]; ++i) {
      const UnitCost& u = s.units[i];
      const double ready = delay + (u.share > 1 ? end : start + head + (end - start - head) * u.share);
      const double begin = std::max(communication, ready), reduce = static_cast<double>(u.reduce);
      // Beside compute both run slower, after it the rest at full speed.
      const double beside = std::max(0.0, std::min(compute + delay - begin, reduce * om));
      communication = begin + beside + (reduce - beside * hidden);
      delay += beside * lost;
      reduced_at_[i] = communication;
    }
  }
  compute += delay;
  if (!problem_.stack.overlap_grad_reduce) {  // what was not reduced beside the backward pass is now
    communication = std::max(communication, compute);
    for (std::size_t u = 0; u < s.units.size(); ++u) {
      if (s.units[u].late > 0) reduced_at_[u] = communication += static_cast<double>(s.units[u].late);
    }
  }
  StageEnd out;
  out.reduced = static_cast<std::int64_t>(std::max(compute, communication));
  if (tie > 0) compute = std::max(compute, static_cast<double>(tie));
  if (problem_.scenario.training.measures_norm()) {
    for (std::size_t u = 0; u < s.units.size(); ++u)
      compute = std::max(compute, reduced_at_[u]) + static_cast<double>(s.units[u].norm);
    out.ready = static_cast<std::int64_t>(std::max(compute, communication));
    return out;
  }
  if (problem_.scenario.training.lamb) {  // no tensor is updated before all of its stage are reduced
    for (std::size_t u = 0; u < s.units.size(); ++u)
      compute = std::max(compute, reduced_at_[u]) + static_cast<double>(s.units[u].trust);
    out.done = updated(s, static_cast<std::int64_t>(std::max(compute, communication)) + s.trust_sum);
    return out;
  }
  for (std::size_t u = 0; u < s.units.size(); ++u) {
    compute = std::max(compute, reduced_at_[u]) + static_cast<double>(s.units[u].optimizer);
    if (s.units[u].gather > 0)
      communication = std::max(communication, compute) + static_cast<double>(s.units[u].gather);
    compute += static_cast<double>(s.units[u].clear);
  }
  out.done = static_cast<std::int64_t>(std::max(compute, communication));
  return out;
}

// A long step is a short one and more of its steady state, p micro-batches at a time.
Time Estimator::engine_step(const Plan& plan) const {
  const PlanLinks links = plan_links(topology_, plan);
  const Training& training = problem_.scenario.training;
  const CostModel cost(problem_.device, problem_.stack, problem_.cluster, links, training, collectives_);
  const auto step = [&](std::int64_t micro_batches) {
    Plan shorter = plan;
    shorter.micro_batches = micro_batches;
    const program::Program program = program::compile(problem_.scenario.model, shorter, training,
                                                      problem_.stack, program::Detail::kUnnamed);
    return simulate(program, price(program, cost), cost.engine_options(false)).step.value;
  };
  constexpr std::int64_t kSettled = 15;
  const std::int64_t enough = (kSettled + 1) * plan.pp;
  const std::int64_t time = step(std::min(plan.micro_batches, enough));
  if (plan.micro_batches <= enough) return Time{time};
  return Time{time + (time - step(enough - plan.pp)) * (plan.micro_batches - enough) / plan.pp};
}

// The update of all units from a start on, and the gathers of what other ranks updated.
std::int64_t Estimator::updated(const StagePieces& s, std::int64_t start) const {
  std::int64_t compute = start, communication = start;
  for (const UnitCost& u : s.units) {
    compute += u.optimizer;
    if (u.gather > 0) communication = std::max(communication, compute) + u.gather;
    compute += u.clear;
  }
  return std::max(compute, communication);
}

Estimate Estimator::estimate(const Plan& plan) {
  select(plan);
  const Pieces& p = pieces(plan);
  if (times_ == nullptr) {
    times_ = &pipeline_.run({plan.schedule, plan.pp, plan.vpp, plan.micro_batches}, costs_);
  }
  Estimate out;
  std::int64_t tie = 0;
  if (problem_.scenario.model.tied_embeddings && last_run_ != 0)
    tie = stage_end(p.runs.front(), 0, 0).reduced + p.tie_transfer;
  // With a norm to wait for, no stage updates before the slowest has reduced its gradients.
  const bool norm = problem_.scenario.training.measures_norm();
  std::int64_t ready = 0;  // on the first stage
  for (std::size_t i = 0; i < times_->places.size(); ++i) {
    const PipelinePlace& place = times_->places[i];
    const StagePieces& s = p.runs[static_cast<std::size_t>(place.run)];
    if (const Bytes peak{s.static_bytes + place.peak}; peak > out.peak) {
      out.peak = peak;
      out.fullest_stage = static_cast<std::int32_t>(place.stage);
    }
    const bool holds_tied = place.run == 0 || place.run == last_run_;
    if (dominated_[static_cast<std::size_t>(place.run)]) continue;
    const std::int64_t begin = std::max(place.end, holds_tied ? tie : 0);
    const std::int64_t onward = p.norm_sum + p.norm_hop * place.stage;  // of the stage's part of the norm
    const double latest =
        static_cast<double>(begin) + s.most + (norm ? static_cast<double>(onward) : s.update);
    if (latest < static_cast<double>(norm ? ready : out.step.value)) continue;
    const StageEnd end = stage_end(s, i, holds_tied ? tie : 0);
    ready = std::max(ready, end.ready + onward);
    out.step = std::max(out.step, Time{end.done});
  }
  for (std::size_t r = 0; r < costs_.runs.size() && norm; ++r) {
    if (dominated_[r]) continue;
    std::int64_t start = ready + p.norm_hop * costs_.runs[r].last() + p.norm_finish;
    if (static_cast<double>(start) + p.runs[r].update < static_cast<double>(out.step.value)) continue;
    for (const UnitCost& u : p.runs[r].units) start += u.trust;
    out.step = std::max(out.step, Time{updated(p.runs[r], start + p.runs[r].trust_sum)});
  }
  if (too_long_)
    out.step = kLongestStep;
  else if (uneven_ && plan.schedule == Schedule::kInterleaved)
    out.step = engine_step(plan);
  return out;
}

}  // namespace orrery::sim
