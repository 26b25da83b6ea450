// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/estimate.h"

#include <algorithm>

namespace orrery::sim {

using program::OpKind;

namespace {

constexpr std::size_t kRecentPieces = 16;

std::int64_t global_chunk(const Plan& p, std::int64_t stage, std::int64_t chunk) {
  return p.schedule == Schedule::kZeroBubbleV && chunk % 2 == 1 ? (chunk + 1) * p.pp - 1 - stage
                                                                : chunk * p.pp + stage;
}

// Plans that differ only in what does not change their chunks.
bool same_chunks(const Plan& a, const Plan& b) {
  return a.tp == b.tp && a.pp == b.pp && a.vpp == b.vpp && a.micro_batch == b.micro_batch &&
         a.sequence_parallel == b.sequence_parallel && a.schedule == b.schedule &&
         a.recompute == b.recompute && a.recompute_layers == b.recompute_layers && a.zero < 2 && b.zero < 2 &&
         a.rank_order == b.rank_order && a.dp == b.dp && a.chunk_layers == b.chunk_layers;
}

}  // namespace

Estimator::Estimator(const Problem& problem, const Topology& topology)
    : problem_(problem),
      topology_(topology),
      bytes_(bytes_per_parameter(problem.scenario.training.precision)),
      costs_(problem.scenario.model, problem.scenario.training, problem.device, problem.stack, topology) {}

const GroupLinks& Estimator::group(std::int64_t size, std::int64_t stride) {
  const auto [found, added] = groups_.try_emplace({size, stride});
  if (added) found->second = topology_.group(size, stride);
  return found->second;
}

std::int64_t Estimator::collective(OpKind kind, std::int64_t bytes, const GroupLinks& links) {
  return collective_cost(kind, Bytes{bytes}, links, problem_.cluster).time.value;
}

std::int64_t Estimator::elementwise(std::int64_t bytes) const {
  program::Op op;
  op.kind = OpKind::kOptimizer;
  op.traffic =
      Bytes{static_cast<std::int64_t>(static_cast<double>(bytes) * problem_.stack.elementwise_passes)};
  return compute_time(problem_.device, problem_.scenario.training.math, 2, op).value;
}

void Estimator::select(const Plan& plan) {
  if (selected_ && same_chunks(*selected_, plan)) return;
  selected_ = plan;
  key_ = ChunkCosts::key(plan);
  layers_ = layers_by_chunk(plan, problem_.scenario.model.layers);
  const std::int64_t chunks = plan.pp * plan.vpp;
  chunks_.resize(static_cast<std::size_t>(chunks));
  middle_.resize(chunks_.size());
  const ChunkCost* last = nullptr;  // neighbours are mostly alike
  Role last_role = Role::kOnly;
  std::int64_t last_layers = -1, last_middle = 0;
  for (std::int64_t c = 0; c < plan.vpp; ++c) {
    for (std::int64_t stage = 0; stage < plan.pp; ++stage) {
      const std::int64_t g = global_chunk(plan, stage, c);
      const Role role = chunks == 1       ? Role::kOnly
                        : g == 0          ? Role::kFirst
                        : g == chunks - 1 ? Role::kLast
                                          : Role::kMiddle;
      const std::int64_t n = layers_[static_cast<std::size_t>(g)];
      if (last == nullptr || role != last_role || n != last_layers) {
        last = &costs_.cost(key_, role, n);
        last_middle =
            role == Role::kLast || role == Role::kOnly
                ? costs_.cost(key_, Role::kMiddle, n)[key_.split ? kChunkWeight : kChunkBackward].time
                : 0;
        last_role = role;
        last_layers = n;
      }
      chunks_[static_cast<std::size_t>(stage * plan.vpp + c)] = last;
      middle_[static_cast<std::size_t>(stage * plan.vpp + c)] = last_middle;
    }
  }
}

Estimator::UnitCost Estimator::unit_cost(const Plan& plan, std::int64_t elements) {
  const std::int64_t shards = plan.shards(), stride = program::bind(plan).dp_stride;
  const std::int64_t shard = (elements + shards - 1) / shards, padded = shard * shards;
  UnitCost u;
  u.shard = shard;
  if (plan.dp > 1 && plan.zero == 0)
    u.reduce = collective(OpKind::kAllReduce, padded * bytes_.gradient, group(plan.dp, stride));
  if (plan.zero == 1 && shards > 1)
    u.reduce = collective(OpKind::kReduceScatter, padded * bytes_.gradient, group(shards, stride));
  if (plan.zero >= 1 && shards < plan.dp) {
    u.reduce +=
        collective(OpKind::kAllReduce, shard * bytes_.gradient, group(plan.dp / shards, stride * shards));
  }
  u.optimizer = elementwise(shard * (bytes_.gradient + 2 * bytes_.optimizer() + bytes_.parameter));
  u.clear = elementwise((plan.zero >= 2 ? shard : padded) * bytes_.gradient);
  if ((plan.zero == 1 || plan.zero == 2) && shards > 1) {
    u.gather = collective(OpKind::kAllGather, padded * bytes_.parameter, group(shards, stride));
  }
  return u;
}

Estimator::StagePieces Estimator::stage_pieces(const Plan& plan, std::int64_t stage) {
  const Model& m = problem_.scenario.model;
  const program::BlockElements elements(m, plan.tp);
  const std::int64_t last = plan.pp * plan.vpp - 1;
  const bool tied_here = m.tied_embeddings && stage == 0 && stage_of_chunk(plan, last) == 0;
  const std::int64_t bucket = (problem_.stack.bucket.value + bytes_.gradient - 1) / bytes_.gradient;
  StagePieces out;
  out.stage = stage;
  out.static_bytes =
      program::static_bytes(m, plan, problem_.scenario.training, problem_.stack, stage, layers_);
  std::vector<program::BlockSize> blocks;
  std::map<std::int64_t, UnitCost> known;  // units are mostly alike
  for (std::int64_t c = plan.vpp - 1; c >= 0; --c) {
    const std::int64_t g = global_chunk(plan, stage, c);
    const std::int64_t n = layers_[static_cast<std::size_t>(g)];
    const bool each = plan.zero == 3;
    blocks.clear();
    if (g == 0) {
      blocks.push_back({elements.embedding, true});
      if (elements.positions > 0) blocks.push_back({elements.positions, each});
    }
    for (std::int64_t l = 0; l < n; ++l) blocks.push_back({elements.layer, each});
    if (g == last) {
      blocks.push_back({elements.head_norm, each});
      if (!tied_here) blocks.push_back({elements.embedding, each || m.tied_embeddings});
    }
    const auto units = program::group_blocks(blocks, bucket);
    std::int64_t layers_done = 0;
    for (std::size_t i = blocks.size(); i > 0;) {
      std::int64_t sum = 0;
      const std::int32_t index = units[i - 1];
      while (i > 0 && units[i - 1] == index) {
        sum += blocks[--i].elements;
        if (blocks[i].elements == elements.layer) ++layers_done;
      }
      const auto [found, added] = known.try_emplace(sum);
      if (added) found->second = unit_cost(plan, sum);
      UnitCost u = found->second;
      u.share =
          i == 0 ? 2.0 : static_cast<double>(layers_done) / static_cast<double>(std::max<std::int64_t>(1, n));
      out.units.push_back(u);
    }
    out.chunks.push_back({n, g == last, out.units.size()});
  }
  return out;
}

const Estimator::Pieces& Estimator::pieces(const Plan& plan) {
  const PiecesKey key{plan.tp,
                      plan.pp,
                      plan.vpp,
                      plan.dp,
                      plan.zero,
                      plan.shards(),
                      plan.micro_batch,
                      plan.rank_order,
                      plan.sequence_parallel,
                      plan.schedule == Schedule::kZeroBubbleV,
                      !plan.chunk_layers.empty()};
  for (const Pieces& p : pieces_) {
    if (p.key == key && (!key.light || layers_ == layers_by_chunk(plan, problem_.scenario.model.layers)))
      return p;
  }
  Pieces p;
  p.key = key;
  // With an even split the stages between the second and the last are copies of the second.
  const bool even = plan.chunk_layers.empty() && problem_.scenario.model.layers % (plan.pp * plan.vpp) == 0;
  for (std::int64_t i = 0; i < plan.pp; ++i) {
    if (even && i >= 2 && i + 1 < plan.pp) {
      p.stages.push_back(p.stages[1]);
      p.stages.back().stage = i;
    } else {
      p.stages.push_back(stage_pieces(plan, i));
    }
  }
  if (plan.pp > 1) {
    const program::Binding b = program::bind(plan);
    const auto [found, added] = pairs_.try_emplace({b.pp_stride, b.ranks()});
    if (added) found->second = topology_.pairs(b.pp_stride, b.ranks());
    p.transfer = transfer_cost(Bytes{costs_.boundary_bytes(key_)}, found->second, problem_.cluster).value;
    const program::BlockElements elements(problem_.scenario.model, plan.tp);
    const std::int64_t shard = (elements.embedding + plan.shards() - 1) / plan.shards();
    p.tie_transfer = transfer_cost(Bytes{shard * bytes_.gradient}, found->second, problem_.cluster).value;
  }
  if (pieces_.size() < kRecentPieces) {
    pieces_.push_back(std::move(p));
    return pieces_.back();
  }
  oldest_ = (oldest_ + 1) % kRecentPieces;
  pieces_[oldest_] = std::move(p);
  return pieces_[oldest_];
}

const PipelineTimes& Estimator::pipeline(const Plan& plan, std::int64_t transfer) {
  const PipelineShape shape{plan.schedule, plan.pp, plan.vpp, plan.micro_batches};
  if (cached_key_.shape == shape && cached_key_.transfer == transfer && cached_key_.chunks == chunks_)
    return cached_times_;
  cached_times_ = pipelines_.run(shape, chunks_, transfer);
  cached_key_ = {chunks_, shape, transfer};
  return cached_times_;
}

// A stage's own work for all micro-batches, and the forward and backward that others must do before its
// first and after its last (without weight gradients, which may wait).
Time Estimator::lower_bound(const Plan& plan) {
  select(plan);
  std::int64_t most = 0, fill = 0;
  for (std::int64_t i = 0; i < plan.pp; ++i) {
    std::int64_t busy = 0;
    for (std::int64_t c = 0; c < plan.vpp; ++c) {
      for (const WorkCost& w : *chunks_[static_cast<std::size_t>(i * plan.vpp + c)]) busy += w.time;
    }
    most = std::max(most, busy);
    // Stage 0 starts first and ends last; what the others do in between cannot overlap its first and
    // last micro-batch.
    const ChunkCost& first = *chunks_[static_cast<std::size_t>(i * plan.vpp)];
    if (i > 0 && !key_.split) fill += std::min(first[kChunkForward].time, first[kChunkBackward].time);
  }
  if (plan.vpp > 1 || plan.schedule == Schedule::kNaive) fill = 0;
  return Time{most * plan.micro_batches + fill};
}

// Activations are proportional to the micro-batch, so the memory of any of them follows from one
// sequence's; a plan that is far too large never has its own chunks compiled.
Bytes Estimator::least_memory(const Plan& plan) {
  const auto layers = layers_by_chunk(plan, problem_.scenario.model.layers);
  const std::int64_t first = program::static_bytes(problem_.scenario.model, plan, problem_.scenario.training,
                                                   problem_.stack, 0, layers);
  Plan one = plan;
  one.micro_batch = 1;
  if (plan.sequence_parallel && problem_.scenario.training.sequence % plan.tp != 0) return Bytes{first};
  const ChunkKey key = ChunkCosts::key(one);
  const std::int64_t chunks = plan.pp * plan.vpp;
  // The first stage is the fullest of nearly all plans; a bound may leave out the others.
  std::int64_t dynamic = 0;
  for (std::int64_t c = 0; c < plan.vpp; ++c) {
    const std::int64_t g = global_chunk(plan, 0, c);
    const Role role = chunks == 1       ? Role::kOnly
                      : g == 0          ? Role::kFirst
                      : g == chunks - 1 ? Role::kLast
                                        : Role::kMiddle;
    const ChunkCost& cost = costs_.cost(key, role, layers[static_cast<std::size_t>(g)]);
    dynamic =
        std::max({dynamic, cost[kChunkForward].peak, cost[kChunkForward].net + cost[kChunkBackward].peak});
  }
  // 1F1B and GPipe hold min(m, p) and m of them.
  std::int64_t held = 1;
  if (plan.schedule == Schedule::k1F1B) held = std::min(plan.micro_batches, plan.pp);
  if (plan.schedule == Schedule::kGPipe) held = plan.micro_batches;
  if (plan.vpp == 1 && !key.split) {
    const ChunkCost& cost = costs_.cost(key, chunks == 1 ? Role::kOnly : Role::kFirst, layers.front());
    dynamic += (held - 1) * cost[kChunkForward].net;
  }
  return Bytes{first + dynamic * plan.micro_batch};
}

Bytes Estimator::device_bytes(const Plan& plan, Bytes logical) const {
  const Stack& s = problem_.stack;
  const std::int64_t groups = (plan.tp > 1) + (plan.dp > 1) + (plan.pp > 1);
  return Bytes{static_cast<std::int64_t>(static_cast<double>(logical.value) * s.allocator_overhead)} +
         s.context + s.communicator * groups;
}

// When a stage has reduced its gradients, and when it has updated its parameters and gathered them.
// `tie` is when the tied embedding's other half arrives, or 0.
Estimator::StageEnd Estimator::stage_end(const StagePieces& s, const PipelineTimes& times, std::int64_t vpp,
                                         std::int64_t tie) {
  const double oc = problem_.device.overlap_compute, om = problem_.device.overlap_communication;
  const bool overlap = problem_.stack.overlap_grad_reduce;
  double compute = static_cast<double>(times.stage_end[static_cast<std::size_t>(s.stage)]);
  double communication = 0, delay = 0;
  reduced_at_.clear();
  std::size_t i = 0;
  for (std::size_t k = 0; k < s.chunks.size() && overlap; ++k) {
    const auto at = static_cast<std::size_t>(s.stage * vpp) + s.chunks.size() - 1 - k;
    const double start = static_cast<double>(times.last_start[at]),
                 end = static_cast<double>(times.last_end[at]);
    // Blocks finish evenly over the chunk's last gradient work, the head before the layers.
    const double head =
        s.chunks[k].head ? std::max(0.0, end - start - static_cast<double>(middle_[at])) : 0.0;
    for (; i < s.chunks[k].end; ++i) {
      const UnitCost& u = s.units[i];
      const double ready = delay + (u.share > 1 ? end : start + head + (end - start - head) * u.share);
      const double begin = std::max(communication, ready), reduce = static_cast<double>(u.reduce);
      // Beside compute both run slower, after it the rest at full speed.
      const double beside = std::max(0.0, std::min(compute + delay - begin, reduce * om));
      communication = begin + beside + (reduce - beside / om);
      delay += beside * (1 - 1 / oc);
      reduced_at_.push_back(communication);
    }
  }
  compute +=
      delay +
      static_cast<double>(
          (*chunks_[static_cast<std::size_t>(s.stage * vpp)])[key_.split ? kChunkWeight : kChunkBackward]
              .tail);
  if (!overlap) {
    communication = compute;
    for (const UnitCost& u : s.units) reduced_at_.push_back(communication += static_cast<double>(u.reduce));
  }
  StageEnd out{static_cast<std::int64_t>(std::max(compute, communication)), 0};
  if (tie > 0) compute = std::max(compute, static_cast<double>(tie));
  for (std::size_t u = 0; u < s.units.size(); ++u) {
    compute = std::max(compute, reduced_at_[u]) + static_cast<double>(s.units[u].optimizer);
    if (s.units[u].gather > 0)
      communication = std::max(communication, compute) + static_cast<double>(s.units[u].gather);
    compute += static_cast<double>(s.units[u].clear);
  }
  out.done = static_cast<std::int64_t>(std::max(compute, communication));
  return out;
}

Estimate Estimator::estimate(const Plan& plan) {
  select(plan);
  const Pieces& p = pieces(plan);
  const PipelineTimes& times = pipeline(plan, p.transfer);
  Estimate out;
  for (const StagePieces& s : p.stages) {
    const Bytes peak{s.static_bytes + times.dynamic_peak[static_cast<std::size_t>(s.stage)]};
    if (peak > out.peak) {
      out.peak = peak;
      out.fullest_stage = static_cast<std::int32_t>(s.stage);
    }
  }
  std::int64_t tie = 0;
  const std::int64_t last_stage = stage_of_chunk(plan, plan.pp * plan.vpp - 1);
  if (problem_.scenario.model.tied_embeddings && last_stage != 0) {
    tie = stage_end(p.stages.front(), times, plan.vpp, 0).reduced + p.tie_transfer;
  }
  for (const StagePieces& s : p.stages) {
    const bool holds_tied = s.stage == 0 || s.stage == last_stage;
    out.step = std::max(out.step, Time{stage_end(s, times, plan.vpp, holds_tied ? tie : 0).done});
  }
  return out;
}

}  // namespace orrery::sim
