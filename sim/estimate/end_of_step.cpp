// SPDX-License-Identifier: Apache-2.0
//
// The estimate's end of a step, stage by stage: reductions that trail the last backward, the gradient norm,
// the optimizer and the parameter gathers.
#include <algorithm>

#include "program/schedule.h"
#include "sim/estimate/estimate.h"
#include "sim/estimate/lanes.h"

namespace orrery::sim {

namespace ops = program::ops;

// Of ops at the end of a step, which are a few for each layer: a time of which so many do not wrap.
std::int64_t Estimator::limited(Time t) const {
  return std::min(t.value, kLongestStep.value / (16 * (problem_.scenario.model.layers + 8)));
}

std::int64_t Estimator::collective(CollectiveKind kind, std::int64_t bytes, std::int32_t links) const {
  return limited(collectives_.cost(kind, Bytes{bytes}, groups_[links]).time);
}

std::int64_t Estimator::price(const program::OpKind& kind, NodeTypes nodes) const {
  const Training& training = problem_.scenario.training;
  program::Op op;
  op.kind = kind;
  op.traffic = Bytes{
      program::bytes_of(kind, ops::element_bytes(training, problem_.stack), ops::passes_of(problem_.stack))};
  return limited(compute_time(problem_.devices, nodes, problem_.stack, training.math,
                              activation_bytes(training.precision), op));
}

const Estimator::UnitCost& Estimator::unit_cost(const Plan& plan, const program::UnitSize& size,
                                                std::size_t number, const StageHardware& on) {
  // Ops of some shape and unit may have been measured; otherwise units are mostly alike.
  const std::int64_t unit = measured_ops_ ? static_cast<std::int64_t>(number) : 0;
  for (const KnownUnit& known : unit_costs_) {
    if (known.elements == size.elements && known.of_experts == size.of_experts &&
        known.on_host == size.on_host && known.matrices == size.matrices && known.unit == unit &&
        known.hardware == on)
      return known.cost;
  }
  const Training& training = problem_.scenario.training;
  const program::UnitWork work(plan, training, state_, size, unit);
  const auto collectives = [&](const auto& exchanges) {
    std::int64_t time = 0;
    for (const program::UnitExchange& x : exchanges)
      time += collective(x.op.collective, x.bytes(), on[x.group]);
    return time;
  };
  UnitCost u;
  const bool overlap = problem_.stack.overlap_grad_reduce;
  // ZeRO-2 and 3 reduce in chunks, and so are their reductions beside the last backward.
  if (!overlap || plan.zero < 2) (overlap ? u.reduce : u.late) = collectives(work.reductions);
  u.norm = price(work.norm, on.nodes);
  if (training.scales_tensors()) u.trust = price(work.trust, on.nodes);
  u.kind = program::kind_of_weights(size.of_experts);
  if (size.muon) {
    u.momentum = price(work.momentum, on.nodes);
    u.of_update = collectives(work.of_update);
    u.optimizer = price(work.muon_update, on.nodes);
    for (const ops::Orthogonalise& op : work.orthogonalise) u.optimizer += price(op, on.nodes);
    u.ops_of_muon = 1 + std::ssize(work.of_update) + std::ssize(work.orthogonalise);
  } else if (size.on_host) {
    price_on_host(plan, work, on.nodes, u);
  } else {
    u.optimizer = price(work.optimizer, on.nodes);
  }
  u.clear = price(work.clear, on.nodes);
  u.gather = collectives(work.gathers);
  return unit_costs_
      .emplace_back(KnownUnit{size.elements, unit, size.of_experts, size.on_host, size.matrices, on, u})
      .cost;
}

void Estimator::price_on_host(const Plan& plan, const program::UnitWork& work, NodeTypes nodes,
                              UnitCost& u) const {
  const HostCost host(problem_.cluster, problem_.stack, plan.ranks());
  const std::int64_t elements = work.optimizer.elements;
  const bool keeps_master = program::keeps_offloaded_master(plan, problem_.scenario.training, problem_.stack);
  u.on_host = true;
  u.optimizer = limited(host.update(Bytes{elements * bytes_.update_traffic()}, nodes));
  const auto copy = [&](std::int64_t bytes, ops::CopyWay way) {
    return bytes == 0 ? 0 : limited(host.copy(Bytes{elements * bytes}, way, nodes));
  };
  using enum ops::CopyWay;
  u.to_host = copy(bytes_.gradient, kToHost);
  if (plan.optimizer_on_drives()) {
    u.state_from_drives = copy(bytes_.optimizer(), kFromDrives);
    u.state_to_drives = copy(bytes_.optimizer(), kToDrives);
  }
  if (plan.parameters_on_drives()) {
    u.shard_from_drives = copy(bytes_.master > 0 ? 0 : bytes_.parameter, kFromDrives);
    u.shard_to_drives = copy(bytes_.parameter, kToDrives);
  }
  if (plan.offloads_parameters()) return;
  u.from_host = copy(keeps_master ? bytes_.master : bytes_.parameter, kFromHost);
  if (keeps_master) u.narrow = price(ops::Narrow{elements}, nodes);
}

// The chunks of a stage, where the plan's hold these blocks.
void Estimator::look_at_stage(const Plan& plan, std::int64_t stage, std::span<const BlockRange> held) {
  const std::int64_t last = plan.pp * plan.vpp - 1;
  on_stage_.chunks.clear();
  on_stage_.ends = {.last_stage = stage + 1 == plan.pp};
  for (std::int64_t c = 0; c < plan.vpp; ++c) {
    const std::int64_t g = program::global_chunk(chunk_placement(plan), plan.pp, stage, c);
    const BlockRange& range = held[static_cast<std::size_t>(g)];
    on_stage_.chunks.push_back({.embedding = g == 0,
                                .layers = std::span(chunk_costs_.depth().kind_of)
                                              .subspan(static_cast<std::size_t>(range.first),
                                                       static_cast<std::size_t>(range.blocks)),
                                .head = g == last});
    on_stage_.ends.first |= g == 0;
    on_stage_.ends.last |= g == last;
  }
  for (program::ChunkBlocks& c : on_stage_.chunks)
    c.tied_here = on_stage_.ends.tied_here(problem_.scenario.model);
}

// The units of the stage looked at, last chunk first as backwards end.
void Estimator::hold_units(const Plan& plan) {
  const program::ModelPieces& pieces = chunk_costs_.pieces(program::WeightRanks(plan));
  const std::int64_t bucket = program::bucket_elements(problem_.scenario.training, problem_.stack);
  on_stage_.units.clear();
  on_stage_.chunk_end.clear();
  for (std::size_t c = on_stage_.chunks.size(); c-- > 0;) {
    program::append_units(pieces, on_stage_.chunks[c], plan.zero, bucket, on_stage_.units);
    on_stage_.chunk_end.push_back(on_stage_.units.size());
  }
  program::offload_units(plan.offloaded_optimizer(), on_stage_.units);
}

// What a device of the stage looked at holds all through a step.
program::StaticBytes Estimator::static_bytes(const Plan& plan) const {
  const program::SampleSizes& sample = chunk_costs_.sample_sizes();
  std::int64_t transferred = 0;
  for (const program::ChunkBlocks& c : on_stage_.chunks)
    transferred +=
        program::transferred_tokens(chunk_costs_.depth(), c.layers, sample.tokens, c.embedding, c.head);
  return program::static_bytes(problem_.scenario.model, sample, plan, problem_.scenario.training,
                               problem_.stack, on_stage_.units, on_stage_.ends, transferred);
}

void Estimator::fill_pieces(const Plan& plan, std::size_t run, StagePieces& out) {
  const Model& m = problem_.scenario.model;
  const Training& training = problem_.scenario.training;
  const StageHardware& on = hardware_of_run(run);
  look_at_stage(plan, costs_.runs[run].last(), held_);
  hold_units(plan);
  out.pace = pace(on.nodes);
  out.units.clear();
  out.closing.clear();
  out.chunk_end.clear();
  out.reductions.assign(static_cast<std::size_t>(plan.vpp), 0);
  out.most = out.update = 0;
  out.trust_sum = 0;
  double slowest = 0;
  std::int64_t trained = 0, on_host = 0, of_muon = 0;
  for (std::size_t k = 0, i = 0; k < on_stage_.chunk_end.size(); ++k) {
    const std::size_t c = on_stage_.chunks.size() - 1 - k;
    const program::ChunkBlocks& chunk = on_stage_.chunks[c];
    // The unit that its backward completes last.
    std::size_t last = on_stage_.chunk_end[k];
    for (std::size_t u = i; u < on_stage_.chunk_end[k]; ++u) {
      const program::UnitSize& size = on_stage_.units[u];
      if (size.trained() &&
          (last == on_stage_.chunk_end[k] || size.last_piece > on_stage_.units[last].last_piece))
        last = u;
    }
    std::vector<std::pair<std::int64_t, std::size_t>> completed;  // by last piece
    for (; i < on_stage_.chunk_end[k]; ++i) {
      if (!on_stage_.units[i].trained()) continue;
      UnitCost u = unit_cost(plan, on_stage_.units[i], i, on);
      ++trained;
      on_host += u.on_host;
      of_muon += u.ops_of_muon;
      out.reductions[c] += u.reduce;
      if (dominated_[run]) continue;
      u.share = i == last ? 2.0
                          : static_cast<double>(on_stage_.units[i].layers_done) /
                                static_cast<double>(std::max<std::size_t>(1, chunk.layers.size()));
      // A tied weight that two stages hold counts once in the norm.
      u.embedding_again = on_stage_.units[i].embedding_again;
      if (u.embedding_again) u.norm = 0;
      completed.emplace_back(on_stage_.units[i].last_piece, out.units.size());
      out.units.push_back(u);
      slowest += static_cast<double>(u.reduce);
      out.most += static_cast<double>(u.late + u.norm);
      out.update += static_cast<double>(u.trust + u.momentum + u.of_update + u.optimizer + u.gather +
                                        u.clear + u.to_host + u.from_host + u.narrow + u.state_from_drives +
                                        u.state_to_drives + u.shard_from_drives + u.shard_to_drives);
    }
    std::sort(completed.begin(), completed.end());
    for (const auto& [piece, unit] : completed) out.closing.push_back(unit);
    out.chunk_end.push_back(out.units.size());
  }
  if (training.scales_tensors() && !dominated_[run] && !out.units.empty()) {
    std::int64_t tensors = 0;
    for (const program::UnitSize& u : on_stage_.units) tensors += u.tensors;
    const std::int64_t clear = price(ops::ZeroGrad{tensors * program::kTrustBins, 8}, on.nodes);
    out.units.front().trust += clear;
    out.trust_sum = sum_over_parts(plan, tensors * program::kTrustBins * 8, false, on) +
                    price(ops::TrustRatio{tensors}, on.nodes);
    out.update += static_cast<double>(clear + out.trust_sum);
  }
  // Nothing waits while nothing runs: at the very most one thing follows the other, as slow as it may be.
  const double slowdown = std::max(out.pace.compute_slowdown, out.pace.communication_slowdown);
  out.most = out.most * slowdown + slowest * 2 * kSharing * out.pace.communication_slowdown;
  out.update *= slowdown;
  const program::UnitWork work(plan, training, state_, {.elements = on_stage_.units.front().elements}, 0);
  const std::int64_t each = 2 + training.measures_norm() + training.scales_tensors() +
                            std::ssize(work.gathers) +
                            (problem_.stack.overlap_grad_reduce ? 0 : std::ssize(work.reductions));
  // Copies, a narrow.
  std::int64_t each_on_host = plan.offloads_parameters() ? 1 : 2;
  if (program::keeps_offloaded_master(plan, training, problem_.stack)) ++each_on_host;
  if (plan.optimizer_on_drives()) each_on_host += 2;
  if (plan.parameters_on_drives()) each_on_host += bytes_.master > 0 ? 1 : 2;
  out.uses_host = on_host > 0;
  out.host_overlaps = !plan.offload || plan.offload->overlap;
  out.host =
      out.pace.host_segment.value +
      out.pace.host_op.value * (each * trained + of_muon + each_on_host * on_host + (on_host > 0 ? 1 : 0));
  std::int64_t largest = 0;
  for (const program::UnitSize& u : on_stage_.units) {
    if (u.trained()) largest = std::max(largest, u.elements);
  }
  share_reductions(plan, largest, on, out);
  out.norm_sum = sum_over_parts(plan, program::kNormBinBytes, false, on);
  if (std::any_of(on_stage_.units.begin(), on_stage_.units.end(),
                  [](const program::UnitSize& u) { return u.of_experts && u.trained(); })) {
    out.norm_sum += sum_over_parts(plan, program::kNormBinBytes, true, on) +
                    price(ops::Accumulate{program::kNormBins, 8}, on.nodes);
  }
  out.static_bytes = out.last_static_bytes = static_bytes(plan).device;
  if (on_stage_.ends.last_stage && costs_.runs[run].count > 1) {
    on_stage_.ends.last_stage = false;
    out.static_bytes = static_bytes(plan).device;
  }
  out.end_bytes = 0;
  if (on_stage_.ends.tied_across(m) && !training.adapter) {
    const program::ModelPieces& model_pieces = chunk_costs_.pieces(program::WeightRanks(plan));
    const program::UnitShare tied(plan, model_pieces.embedding.front().elements, false);
    out.end_bytes = tied.shard * bytes_.gradient;
  }
  if (training.muon)
    out.end_bytes = std::max(out.end_bytes, program::muon_bytes(plan, training, on_stage_.units));
}

const Estimator::Pieces& Estimator::pieces(const Plan& plan) {
  for (std::size_t i = 0; i < pieces_in_use_; ++i) {
    const Pieces& known = pieces_[i];
    if (known.zero == plan.zero && known.shards == plan.shards() && known.reshards == plan.reshards() &&
        known.offload == plan.offload)
      return pieces_[i];
  }
  if (pieces_in_use_ == pieces_.size()) pieces_.emplace_back();
  Pieces& p = pieces_[pieces_in_use_++];
  p.zero = plan.zero;
  p.reshards = plan.reshards();
  p.offload = plan.offload;
  p.shards = plan.shards();
  p.runs.resize(costs_.runs.size());
  unit_costs_.clear();
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) fill_pieces(plan, r, p.runs[r]);
  if (plan.pp > 1) {
    const std::int64_t weight = chunk_costs_.pieces(program::WeightRanks(plan)).embedding.front().elements;
    const std::int64_t shard = program::UnitShare(plan, weight, false).shard;
    const GroupLinks& ends = transfers(plan, plan.pp - 1).front();
    p.tie_transfer = limited(transfer_cost(Bytes{shard * bytes_.gradient}, ends, problem_.cluster));
    p.tie_add = price(ops::Accumulate{shard, bytes_.gradient}, hardware_.front().nodes);
    p.norm_up.clear();
    p.norm_down.clear();
    std::int64_t up = 0, down = 0;
    for (std::size_t stage = 0; const GroupLinks& pair : transfers(plan, 1)) {
      const NodeTypes nodes = hardware_[hardware_.size() == 1 ? 0 : stage++].nodes;
      const std::int64_t add = price(ops::Accumulate{program::kNormBins, 8}, nodes);
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
  NodeTypes all = 0;
  for (const StageHardware& h : hardware_) all |= h.nodes;
  p.norm_finish = price(ops::NormFinish{}, all);
  return p;
}

// What reductions and tensor-parallel ops take from each other, of the time in which both run: they share
// links while both have data on them, not while one only waits for its latency.
void Estimator::share_reductions(const Plan& plan, std::int64_t elements, const StageHardware& on,
                                 StagePieces& out) const {
  out.reduction_loss = out.tp_loss = 0;
  if (!on.meets_tp[dense_.dp]) return;
  struct Load {
    double flowing, share;  // of its time, and of the links in that time
  };
  const auto load = [&](CollectiveKind kind, std::int64_t bytes, std::int32_t of) {
    const CollectiveCost c = collectives_.cost(kind, Bytes{bytes}, groups_[of]);
    const double time = static_cast<double>(std::max<std::int64_t>(1, c.time.value));
    return Load{std::max(0.0, 1 - static_cast<double>(c.wire.latency.value) / time),
                std::min(1.0, ratio(c.wire.rate, groups_[of].ring))};
  };
  const Load tp = load(plan.sequence_parallel ? CollectiveKind::kAllGather : CollectiveKind::kAllReduce,
                       chunk_costs_.activation_bytes_of(key_), on[tp_]);
  const Load dp = load(plan.zero == 0 ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter,
                       elements * bytes_.gradient, plan.zero == 0 ? on[dense_.dp] : on[dense_.shard]);
  const auto [tp_slower, dp_slower] = sharing_of(tp.share, dp.share);
  const double both = tp.flowing * dp.flowing;
  out.tp_loss = both * (1 - 1 / tp_slower);
  out.reduction_loss = both * (1 - 1 / dp_slower);
}

// Over all ranks that hold parts of a rank's tensors: tensor ranks and shards.
std::int64_t Estimator::sum_over_parts(const Plan& plan, std::int64_t bytes, bool of_experts,
                                       const StageHardware& on) const {
  std::int64_t time = 0;
  for (const program::GroupIndex group : program::parts_of_tensors(plan, state_, of_experts))
    time += collective(CollectiveKind::kAllReduce, bytes, on[group]);
  return time;
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

// When a stage's last backward ends and when its last reduction does, with what they take from each other.
// reduced_at_ says when each unit is reduced.
TailEnds Estimator::reduce(const StagePieces& s, std::size_t place) {
  const double oc = s.pace.compute_slowdown, om = s.pace.communication_slowdown;
  const std::size_t v = s.chunk_end.size();
  const auto run = static_cast<std::size_t>(times_->places[place].run);
  const auto last_work = [&](std::size_t chunk) {
    switch (key_.backwards) {
      case program::Backwards::kWhole:
        return kChunkBackward;
      case program::Backwards::kSplit:
        return kChunkWeight;
      case program::Backwards::kBoth:
        break;
    }
    return times_->last_work[place * v + chunk];
  };
  double communication = 0, delay = static_cast<double>(longer_up_to(times_->places[place]));
  // What only the last micro-batch adds to a chunk's gradient work: sums over tensor ranks. Where it
  // communicates in all micro-batches, `delay` has it.
  const bool only_last = key_.zero < 2;
  const auto more_of = [&](std::size_t chunk) {
    return only_last ? static_cast<double>((*costs_.chunks[run * v + chunk])[last_work(chunk)].longer) : 0.0;
  };
  double longer = 0;  // of the chunks so far
  double compute = static_cast<double>(times_->places[place].end);
  for (std::size_t chunk = 0; chunk < v; ++chunk) compute += more_of(chunk);
  reduced_at_.resize(s.units.size());
  std::size_t i = 0;
  for (std::size_t k = 0; k < v; ++k) {
    const std::size_t chunk = v - 1 - k;
    const WorkCost& gradients = (*costs_.chunks[run * v + chunk])[kChunkBackward];
    const WorkCost& work = (*costs_.chunks[run * v + chunk])[last_work(chunk)];
    const double more = more_of(chunk);
    const double start = longer + static_cast<double>(times_->last_start[place * v + chunk]);
    longer += more;
    const double end = longer + static_cast<double>(times_->last_end[place * v + chunk]);
    // Blocks finish evenly over the chunk's last gradient work, the head before the layers.
    const double layers =
        static_cast<double>(layers_only(kinds_[places_[run * v + chunk]], last_work(chunk))) + more;
    const double head = std::max(0.0, end - start - layers);
    // Of a reduction's time beside the gradients' work: done, and added. Compute and a reduction slow each
    // other down while compute runs, which a tensor-parallel op beside it has slowed down before. While
    // compute waits for tensor-parallel ops, a reduction runs at its own speed, or shares their links.
    const double time = static_cast<double>(std::max<std::int64_t>(1, work.time));
    const double waiting = static_cast<double>(work.waiting) / time;
    const double tp = std::clamp(static_cast<double>(work.tp) / time, waiting, 1.0);
    const double hidden = (1 - waiting) / om + waiting - s.reduction_loss * ((tp - waiting) / om + waiting);
    const double lost = (1 - tp) * (1 - 1 / oc) + s.tp_loss * waiting;
    const double summed = only_last ? static_cast<double>(work.trailing) : 0.0;
    for (; i < s.chunk_end[k]; ++i) {
      const std::size_t unit = s.closing[i];
      const UnitCost& u = s.units[unit];
      const double ready =
          delay + (u.share > 1 ? end + summed : start + head + (end - start - head) * u.share);
      if (!only_last) {  // what reduces it is part of the chunk
        reduced_at_[unit] = std::max(communication, ready);
        continue;
      }
      const double begin = std::max(communication, ready), reduce = static_cast<double>(u.reduce);
      // Beside compute both run slower, after it the rest at full speed.
      const double beside = std::max(0.0, std::min(compute + delay - begin, reduce / hidden));
      communication = begin + beside + (reduce - beside * hidden);
      delay += beside * lost;
      reduced_at_[unit] = communication;
    }
    if (only_last) continue;
    const auto trailing = static_cast<double>(gradients.trailing);
    if (v > 1) {  // the last micro-batches of each chunk in turn; their reductions may take longer
      const std::int64_t group = std::min(selected_->pp, selected_->micro_batches);
      communication = std::max(communication, end + delay - static_cast<double>(group * gradients.time)) +
                      static_cast<double>((group - 1) * gradients.dp + gradients.dp_last);
      if (k + 1 == v) compute = std::max(compute, communication - delay - trailing);
    }
    communication = std::max(communication, end + delay + trailing);
    if (i > 0) reduced_at_[s.closing[i - 1]] = communication;
  }
  return {.compute = compute + delay, .communication = communication};
}

// When a stage has reduced its gradients, and when it has updated its parameters and gathered them.
// `tie` is when the tied embedding's other half arrives, or 0.
Estimator::StageEnd Estimator::stage_end(const StagePieces& s, std::size_t place, std::int64_t tie,
                                         std::int64_t tie_add) {
  const double oc = s.pace.compute_slowdown, om = s.pace.communication_slowdown;
  const auto [compute, communication] = reduce(s, place);
  StageEnd out;
  double reduced = std::max(compute, communication);
  for (const UnitCost& u : s.units) reduced += static_cast<double>(u.late);
  out.reduced = static_cast<std::int64_t>(reduced);
  // What is not reduced by then follows one after the other: what the stack reduces beside the backward pass,
  // or all of it.
  tail_communication_.clear();
  jobs_.assign(s.units.size(), -1);  // of communication that units wait for
  double before = compute;
  for (const std::size_t u : s.closing) {
    const double left = static_cast<double>(s.units[u].late) + std::max(0.0, reduced_at_[u] - before);
    before = std::max(compute, reduced_at_[u]);
    if (left == 0 && tail_communication_.empty()) continue;
    jobs_[u] = std::ssize(tail_communication_);
    tail_communication_.push_back({.duration = left});
  }
  HostInputs inputs;
  if (s.uses_host) {
    const bool has_head = times_->places[place].run == last_run_;
    inputs.gradients = copied_gradients(s, has_head, tie > 0 ? static_cast<double>(tie + tie_add) : 0);
    if (selected_->parameters_on_drives()) inputs.drives_free = compute;
    HostInputs& of_run = host_inputs_[static_cast<std::size_t>(times_->places[place].run)];
    of_run.drives_free = std::max(of_run.drives_free, inputs.drives_free);
    of_run.gradients.resize(inputs.gradients.size());
    for (std::size_t u = 0; u < inputs.gradients.size(); ++u)
      of_run.gradients[u] = std::max(of_run.gradients[u], inputs.gradients[u]);
  }
  const auto reduction_of = [&](std::size_t u) { return jobs_[u]; };
  tail_compute_.clear();
  if (tie > 0)
    tail_compute_.push_back(
        {.duration = static_cast<double>(tie_add), .not_before = static_cast<double>(tie)});
  const auto beside = [&, start = compute] {
    return run_tail(start, tail_compute_, tail_communication_, oc, om);
  };
  if (problem_.scenario.training.measures_norm()) {
    for (std::size_t u = 0; u < s.units.size(); ++u)
      tail_compute_.push_back({.duration = static_cast<double>(s.units[u].norm), .after = reduction_of(u)});
    const TailEnds ends = beside();
    out.ready = static_cast<std::int64_t>(std::max(ends.compute, ends.communication));
    return out;
  }
  if (problem_.scenario.training
          .scales_tensors()) {  // no tensor is updated before all of its stage are reduced
    for (std::size_t u = 0; u < s.units.size(); ++u)
      tail_compute_.push_back({.duration = static_cast<double>(s.units[u].trust), .after = reduction_of(u)});
    const TailEnds ends = beside();
    out.done = updated(s, static_cast<std::int64_t>(std::max(ends.compute, ends.communication)) + s.trust_sum,
                       inputs);
    return out;
  }
  add_updates(s, reduction_of);
  const double back = add_host_updates(s, 0, inputs);
  const TailEnds ends = beside();
  out.done = static_cast<std::int64_t>(std::max({ends.compute, ends.communication, back}));
  return out;
}

// The updates of all units that the device updates, each after the job of communication that `after` says.
// Gathers of what Muon updates a unit by run beside the updates of the unit before.
template <class After>
void Estimator::add_updates(const StagePieces& s, After after) {
  const UnitCost* gathering = nullptr;
  std::int64_t gathered = -1;
  const auto end = [&](const UnitCost* u, std::int64_t job) {
    if (u != nullptr) add_update(*u, job);
  };
  for (std::size_t i = 0; i < s.units.size(); ++i) {
    const UnitCost& u = s.units[i];
    if (u.on_host) continue;
    if (u.momentum == 0) {
      add_update(u, after(i));
      continue;
    }
    tail_compute_.push_back({.duration = static_cast<double>(u.momentum), .after = after(i)});
    if (u.of_update == 0) {
      add_update(u, -1);
      continue;
    }
    tail_communication_.push_back(
        {.duration = static_cast<double>(u.of_update), .after = std::ssize(tail_compute_) - 1});
    const std::int64_t job = std::ssize(tail_communication_) - 1;
    end(std::exchange(gathering, &u), std::exchange(gathered, job));
  }
  end(gathering, gathered);
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

// Of the units that the host updates, when their gradients are there: one copy after the other, and without
// overlap not before all gradients are summed. `tied`: when the tied weight's is, or 0; where the head
// is not, it is the last unit.
std::vector<double> Estimator::copied_gradients(const StagePieces& s, bool has_head, double tied) const {
  std::vector<double> out(s.units.size());
  double late = 0, all = 0;
  for (std::size_t u = 0; u < s.units.size(); ++u) {
    late += static_cast<double>(s.units[u].late);
    out[u] = reduced_at_[u] + late;
    if (has_head ? s.units[u].embedding_again : u + 1 == s.units.size()) out[u] = std::max(out[u], tied);
    if (s.units[u].on_host) all = std::max(all, out[u]);
  }
  double end = s.host_overlaps ? 0 : all;
  for (std::size_t u = 0; u < s.units.size(); ++u) {
    if (s.units[u].on_host) out[u] = end = std::max(end, out[u]) + static_cast<double>(s.units[u].to_host);
  }
  return out;
}

double Estimator::add_host_updates(const StagePieces& s, double start, const HostInputs& inputs) {
  if (!s.uses_host) return start;
  const bool overlap = s.host_overlaps;
  const std::vector<double>& copied = inputs.gradients;
  double updated = start;
  for (std::size_t u = 0; u < s.units.size() && !overlap; ++u) {
    if (s.units[u].on_host) updated = std::max(updated, copied[u]);
  }
  std::vector<double> at(s.units.size());
  // Drives read and write at the same time, one copy after the other each. Units take two places in the
  // host's memory in turn, for their state and, by kind of weights, for their shards.
  double read = inputs.drives_free, written = 0;
  std::array<double, 2> state_free{};
  std::array<std::array<double, 2>, program::kWeightKinds> shard_free{};
  std::size_t place = 0;
  for (std::size_t u = 0; u < s.units.size(); ++u) {
    const UnitCost& unit = s.units[u];
    if (!unit.on_host) continue;
    if (unit.state_to_drives == 0) {
      at[u] = updated = std::max(updated, copied[u]) + static_cast<double>(unit.optimizer);
      continue;
    }
    double& of_shard = shard_free[unit.kind][place];
    read = std::max(read, state_free[place]) + static_cast<double>(unit.state_from_drives);
    if (unit.shard_from_drives > 0)
      read = std::max(read, of_shard) + static_cast<double>(unit.shard_from_drives);
    at[u] = updated = std::max({updated, copied[u], read, of_shard}) + static_cast<double>(unit.optimizer);
    state_free[place] = written = std::max(written, updated) + static_cast<double>(unit.state_to_drives);
    if (unit.shard_to_drives > 0) of_shard = written += static_cast<double>(unit.shard_to_drives);
    if (overlap)
      place = 1 - place;
    else
      read = std::max(read, written);
  }
  double back = overlap ? 0 : updated;
  for (std::size_t u = 0; u < s.units.size(); ++u) {
    const UnitCost& unit = s.units[u];
    if (!unit.on_host) continue;
    back = std::max(back, at[u]) + static_cast<double>(unit.from_host);
    tail_compute_.push_back({.duration = static_cast<double>(unit.narrow), .not_before = back});
    if (unit.gather > 0) {
      tail_communication_.push_back(
          {.duration = static_cast<double>(unit.gather), .after = std::ssize(tail_compute_) - 1});
    }
    tail_compute_.push_back({.duration = static_cast<double>(unit.clear)});
  }
  return std::max(back, written);
}

// The update of all units from a start on.
std::int64_t Estimator::updated(const StagePieces& s, std::int64_t start, const HostInputs& inputs) {
  tail_compute_.clear();
  tail_communication_.clear();
  add_updates(s, [](std::size_t) { return std::int64_t{-1}; });
  const double back = add_host_updates(s, static_cast<double>(start), inputs);
  const TailEnds ends = run_tail(static_cast<double>(start), tail_compute_, tail_communication_,
                                 s.pace.compute_slowdown, s.pace.communication_slowdown);
  return static_cast<std::int64_t>(std::max({ends.compute, ends.communication, back}));
}

// Between islands: of a stage all differences, their sum, and then all updates, each before its gather. The
// stages do so at the same time.
Time Estimator::exchange(const Plan& plan) {
  const auto bytes =
      static_cast<std::int64_t>(bytes_of(problem_.scenario.training.outer.value().exchanged()));
  const bool momentum = problem_.scenario.training.outer.value().momentum > 0;
  Time longest{0};
  for (std::size_t run = 0; run < costs_.runs.size(); ++run) {
    const StageHardware& on = hardware_of_run(run);
    const Pace& at = pace(on.nodes);
    look_at_stage(plan, costs_.runs[run].last(), held_);
    hold_units(plan);
    tail_compute_.clear();
    tail_communication_.clear();
    std::int64_t start = 0, elements = 0, ops = 1;
    for (const program::UnitSize& size : on_stage_.units) {
      if (!size.trained()) continue;
      const program::UnitWork work(plan, problem_.scenario.training, state_, size, 0);
      const std::int64_t shard = work.optimizer.elements;
      elements += shard;
      start += price(ops::OuterDifference{shard, bytes}, on.nodes);
      tail_compute_.push_back(
          {.duration = static_cast<double>(price(ops::OuterUpdate{shard, bytes, momentum}, on.nodes))});
      for (const program::UnitExchange& x : work.gathers) {
        tail_communication_.push_back(
            {.duration = static_cast<double>(collective(x.op.collective, x.bytes(), on[x.group])),
             .after = std::ssize(tail_compute_) - 1});
      }
      ops += 2 + std::ssize(work.gathers);
    }
    if (elements == 0) continue;  // the stage trains nothing
    start += collective(CollectiveKind::kAllReduce, elements * bytes, on[islands_]);
    const TailEnds ends = run_tail(static_cast<double>(start), tail_compute_, tail_communication_,
                                   at.compute_slowdown, at.communication_slowdown);
    const std::int64_t host = at.host_segment.value + at.host_op.value * ops;
    longest = std::max(
        {longest, Time{static_cast<std::int64_t>(std::max(ends.compute, ends.communication))}, Time{host}});
  }
  return longest;
}

}  // namespace orrery::sim
