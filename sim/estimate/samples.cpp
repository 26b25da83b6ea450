// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/samples.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "program/pieces.h"

namespace orrery::sim {

using program::Op;
using program::Segment;
using program::SegmentKind;

namespace {

// Ops of a segment: from the first of the blocks from `low` to `high` to their last one's end.
struct OpRange {
  std::int32_t begin = 0, end = 0;
};
OpRange ops_of(const Segment& s, std::int64_t low, std::int64_t high) {
  const auto of_blocks = [&](const Op& op) { return op.layer >= low && op.layer < high; };
  const auto first = std::find_if(s.ops.begin(), s.ops.end(), of_blocks);
  const auto last = std::find_if(s.ops.rbegin(), s.ops.rend(), of_blocks);
  return {static_cast<std::int32_t>(first - s.ops.begin()), static_cast<std::int32_t>(s.ops.rend() - last)};
}

// Most bytes above the segment's start while it runs (SmallSegment::peaks). `begin`: of its chunk's blocks,
// of which so many are recomputed together.
std::vector<std::int64_t> peaks_of(const program::RankClass& rank, const Segment& s, std::int64_t begin,
                                   const ChunkContent& content, std::int64_t together) {
  std::int64_t first = begin;
  std::vector<OpRange> repeated;
  for (const BlockRange& part : content) {
    const std::int64_t end = first + part.blocks;
    if (part.repeats > 0) {
      const std::int64_t low = begin + whole_groups(first - begin, together) * together;
      repeated.push_back(s.kind == SegmentKind::kForward ? ops_of(s, end - part.repeats, end)
                                                         : ops_of(s, low, low + part.repeats));
    }
    first = end;
  }
  if (s.kind != SegmentKind::kForward) std::reverse(repeated.begin(), repeated.end());
  std::vector<std::int32_t> cuts;
  for (const OpRange& r : repeated) cuts.insert(cuts.end(), {r.begin, r.end});
  std::vector<std::int64_t> out(1);
  std::int64_t live = 0;
  for (const program::MemoryEvent& e : s.memory) {
    while (out.size() <= cuts.size() && e.op >= cuts[out.size() - 1]) out.push_back(live);
    const std::int64_t bytes = rank.buffers[static_cast<std::size_t>(e.buffer)].bytes.value;
    live += e.allocate ? bytes : -bytes;
    out.back() = std::max(out.back(), live);
  }
  out.resize(cuts.size() + 1, live);
  return out;
}

std::vector<PieceBytes> bytes_of_pieces(const program::RankClass& rank, const Segment& s,
                                        const std::vector<std::int32_t>& cuts) {
  std::vector<PieceBytes> out(1);
  const auto begin_piece = [&] {
    const std::int64_t live = out.back().net;
    out.push_back({live, live});
  };
  for (const program::MemoryEvent& e : s.memory) {
    while (out.size() <= cuts.size() && e.op >= cuts[out.size() - 1]) begin_piece();
    PieceBytes& piece = out.back();
    const std::int64_t bytes = rank.buffers[static_cast<std::size_t>(e.buffer)].bytes.value;
    piece.net += e.allocate ? bytes : -bytes;
    piece.peak = std::max(piece.peak, piece.net);
  }
  while (out.size() <= cuts.size()) begin_piece();
  return out;
}

LaneOfStream lanes_of(const program::Communication& over) {
  LaneOfStream out;
  out.fill(kLanes);
  out[program::kCompute] = kComputeLane;
  out[over.stream("tp")] = kTpLane;
  out[over.stream("dp")] = kDpLane;
  out[over.stream("ep")] = kEpLane;
  out[over.stream("cp")] = kCpLane;
  out[program::kToHost] = kToHostLane;
  out[program::kFromHost] = kFromHostLane;
  out[program::kFromDrives] = kFromDrivesLane;
  for (std::size_t s = 0; s < over.streams.size(); ++s) {
    // The host works at the end of a step alone, and only what it updates goes to drives.
    const bool outside =
        is_transfer(over.streams[s].role) || s == program::kHostStream || s == program::kToDrives;
    if ((out[s] == kLanes) != outside)
      throw std::logic_error("the estimate has no lane for stream " + over.streams[s].name);
  }
  return out;
}

// What the ops of a segment wait for of earlier segments, at the last step that runs it.
std::vector<Waits> earlier_waits(const program::RankClass& rank, std::int32_t segment,
                                 const LaneOfStream& lane_of) {
  std::vector<Waits> out(rank.segments[static_cast<std::size_t>(segment)].ops.size());
  for (Waits& w : out) w.fill(kNoWait);
  Waits base{}, at{};
  const program::Step* last = nullptr;
  for (const program::Step& step : rank.steps) {
    if (step.segment == segment) {
      last = &step;
      at = base;
    }
    for (std::size_t s = 0; s < lane_of.size(); ++s) {
      if (lane_of[s] != kLanes)
        base[lane_of[s]] += rank.segments[static_cast<std::size_t>(step.segment)].stream_ops[s];
    }
  }
  if (last == nullptr) return out;
  for (std::int32_t w = last->first_wait; w < last->first_wait + last->waits; ++w) {
    const program::ExternalWait& wait = rank.waits[static_cast<std::size_t>(w)];
    const LaneIndex lane = lane_of[wait.stream];
    if (lane == kLanes) continue;
    std::int32_t& need = out[static_cast<std::size_t>(wait.op)][lane];
    need = std::max(need, static_cast<std::int32_t>(wait.count - at[lane]));
  }
  return out;
}

// Of a segment of a chunk.
ChunkWork work_of(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kForward:
      return kChunkForward;
    case SegmentKind::kBackward:
      return kChunkBackward;
    case SegmentKind::kBackwardInput:
      return kChunkBackwardInput;
    case SegmentKind::kBackwardWeight:
      return kChunkWeight;
    case SegmentKind::kOptimizer:
    case SegmentKind::kOuter:
      break;
  }
  throw std::logic_error("a segment that is no chunk's");
}

// Among a sample's stages.
std::int64_t stage_of(Role role) {
  switch (role) {
    case Role::kFirst:
    case Role::kOnly:
      return 0;
    case Role::kMiddle:
      return 1;
    case Role::kLast:
      return 2;
  }
  throw std::logic_error("a role that no sample has");
}

// The least micro-batch whose tokens tensor ranks share, where they do.
std::int64_t least_shared(const ChunkKey& key, const Model& model, const Training& training) {
  std::int64_t least = 1;
  if (!key.sequence_parallel) return least;
  for (const std::int64_t tokens : tower_tokens(model, training))
    least = std::lcm(least, key.tp / std::gcd<std::int64_t>(key.tp, tokens / key.cp));
  return least;
}

}  // namespace

Op at_size(const OpShape& shape, std::int64_t n) {
  Op op = shape[0];
  op.kind = program::extend(shape[0].kind, shape[1].kind, n);
  op.flops += static_cast<double>(n - 1) * (shape[1].flops - shape[0].flops);
  op.traffic = op.traffic + (shape[1].traffic - shape[0].traffic) * (n - 1);
  op.payload = op.payload + (shape[1].payload - shape[0].payload) * (n - 1);
  return op;
}

Structure::Structure(const ChunkKey& key, const Model& model, const Depth& depth, const Training& training,
                     const Stack& stack)
    : least_micro_batch(least_shared(key, model, training)),
      key_(key),
      plan_(plan_of(key)),
      model_(model),
      depth_(depth),
      training_(training),
      stack_(stack) {}

Plan Structure::plan_of(const ChunkKey& key) {
  Plan p;
  p.tp = key.tp;
  p.cp = key.cp;
  p.ulysses = key.ulysses;
  if (p.ring() > 1) p.cp_keys = key.rings ? ContextKeys::kRing : ContextKeys::kAllGather;
  p.zero = key.zero;
  p.reshard_after_forward = key.reshards;
  p.dp = key.replicas ? 2 : 1;
  p.shard_group = key.replicas ? 1 : 0;
  if (key.experts.apart) {
    p.ep = key.experts.ep;
    p.etp = key.experts.etp;
    p.expert_room = key.expert_room;
    if (key.by_node) p.expert_exchange = ExpertExchange::kByNode;
    p.overlap_exchanges = key.overlaps;
    // Replicas that have all experts at least once.
    const std::int64_t least = std::max<std::int64_t>(1, p.expert_ranks() / (p.tp * p.cp));
    if (key.zero >= 2) {
      p.dp = least * (key.expert_replicas ? 2 : 1);
      p.shard_group = key.replicas ? p.dp / 2 : p.dp;
    }
  }
  if (key.parameters_in != program::Space::kDevice) {
    p.offload = Offload{.optimizer = 1, .parameters = true};
    if (key.parameters_in == program::Space::kDrives) p.offload->nvme = OnDrives::kAll;
  }
  p.micro_batches = key.runs_on() ? 3 : 2;
  p.sequence_parallel = key.sequence_parallel;
  p.recompute = key.recompute;
  p.recompute_parts = key.repeated.list();
  p.recompute_layers = key.recompute_layers;
  p.loss_chunks = key.loss_chunks;
  p.schedule = key.backwards == program::Backwards::kSplit ? Schedule::kZeroBubbleH1
               // Whole segments, with memory as in pieces.
               : key.order == ChunkKey::Order::kRows || key.overlaps ? Schedule::kGPipe
                                                                     : Schedule::k1F1B;
  return p;
}

std::int32_t Structure::intern(const Op& one, const Op& two) {
  const auto same = [](const Op& x, const Op& y) {
    return x.kind == y.kind && x.group == y.group && x.flops == y.flops && x.traffic == y.traffic &&
           x.payload == y.payload;
  };
  const program::OpKey key = program::key_of(one.kind);
  std::size_t hash = key.type;
  for (const std::int64_t f : key.fields) hash = (hash ^ static_cast<std::size_t>(f)) * 1099511628211ULL;
  hash = (hash ^ static_cast<std::size_t>(one.traffic.value + one.payload.value)) * 1099511628211ULL;
  const auto [begin, end] = known_.equal_range(hash);
  for (auto i = begin; i != end; ++i) {
    const OpShape& s = shapes_[static_cast<std::size_t>(i->second)];
    if (same(s[0], one) && same(s[1], two)) return i->second;
  }
  OpShape shape;
  for (std::size_t n = 0; n < 2; ++n) {
    const Op& from = n == 0 ? one : two;
    shape[n].kind = from.kind;
    shape[n].group = from.group;
    shape[n].flops = from.flops;
    shape[n].traffic = from.traffic;
    shape[n].payload = from.payload;
  }
  shapes_.push_back(std::move(shape));
  const auto index = static_cast<std::int32_t>(shapes_.size() - 1);
  known_.emplace(hash, index);
  return index;
}

// `earlier`: what the segment's ops wait for of earlier ones, at a step in the steady state.
SmallSegment Structure::shrink(const Segment& one, const Segment& two, const LaneOfStream& lane_of,
                               const std::vector<Waits>& earlier, std::vector<Line> peaks) {
  SmallSegment out;
  out.peaks = std::move(peaks);
  out.issued = static_cast<std::int64_t>(one.ops.size());
  out.peak = {one.peak.value, two.peak.value - one.peak.value};
  out.net = {one.net.value, two.net.value - one.net.value};
  const auto to_host = [](const Segment& s) {
    std::int64_t sum = 0;
    for (const Op& op : s.ops) sum += op.stream == program::kToHost ? op.payload.value : 0;
    return sum;
  };
  out.offloaded = {to_host(one), to_host(two) - to_host(one)};
  for (std::size_t i = 0; i < one.ops.size(); ++i) {
    const Op& op = one.ops[i];
    const LaneIndex lane = lane_of[op.stream];
    if (lane == kLanes) continue;
    SmallOp& small = out.lanes[lane].emplace_back();
    small.waits = earlier[i];
    small.issued = static_cast<std::int32_t>(i) + 1;
    for (std::size_t s = 0; s < lane_of.size(); ++s) {
      if (lane_of[s] != kLanes && op.after[s] > 0) small.waits[lane_of[s]] = op.after[s];
    }
    small.shape = intern(op, two.ops[i]);
  }
  return out;
}

Structure::Small Structure::small(Role role, const ChunkContent& content) const {
  Small out{.model = model_, .plan = plan_, .stage = stage_of(role)};
  Plan& p = out.plan;
  p.pp = role == Role::kOnly ? 1 : 3;
  p.micro_batch = least_micro_batch;
  if (key_.runs_on()) p.micro_batches *= p.pp;  // enough that a step in the steady state is among them
  BlockRun chunk;
  std::size_t last_kind = 0;
  for (const BlockRange& part : content) {
    for (std::int64_t b = part.first; b < part.first + part.blocks; ++b) {
      chunk.blocks.push_back(depth_.kind(b));
      last_kind = depth_.kind_index(b);
    }
  }
  out.blocks = static_cast<std::int64_t>(chunk.blocks.size());
  std::int64_t offloaded = 0;
  for (const BlockRange& part : content) offloaded += part.offloaded ? part.blocks : 0;
  if (offloaded > 0) {
    if (!p.offload) p.offload.emplace();
    p.offload->activation_layers = offloaded;
  }
  if (key_.recompute_first > 0) {
    for (const BlockRange& part : content) p.recompute_first += part.recomputed ? part.blocks : 0;
    if (p.recompute_first == 0) p.recompute = Recompute::kNone;
  }
  p.chunk_layers.assign(static_cast<std::size_t>(p.pp), out.blocks);
  Model& m = out.model;
  m.blocks.assign(static_cast<std::size_t>(p.pp), chunk);
  // Towers end in the model's last block.
  if (!m.inputs.empty() && depth_.kind_index(depth_.blocks() - 1) != last_kind) {
    m.blocks.push_back({1, {depth_.kinds[depth_.kind_index(depth_.blocks() - 1)]}});
    ++p.chunk_layers.back();
  }
  // Chunks of no blocks: the model has one that is in no chunk.
  if (out.blocks == 0 && p.chunk_layers.back() == 0) m.blocks = {{1, {depth_.kind(depth_.blocks() - 1)}}};
  m.layers = std::accumulate(p.chunk_layers.begin(), p.chunk_layers.end(), std::int64_t{0});
  return out;
}

const Sample& Structure::sample(Role role, const ChunkContent& content) {
  for (const Sample& s : samples_) {
    if (s.role == role && s.content == content) return s;
  }
  // What is reduced once a step is the end's.
  Stack stack = stack_;
  stack.overlap_grad_reduce &= key_.zero >= 2;
  auto [m, p, stage, blocks] = small(role, content);
  const program::Program one =
      program::compile_stage(m, p, training_, stack, stage, program::Detail::kUnnamed);
  p.micro_batch *= 2;
  const program::Program two = program::compile_stage(m, p, training_, stack, stage, program::Detail::kSizes);
  const LaneOfStream lane_of = lanes_of(one.communication);
  const program::StreamIndex exchanges = one.communication.stream("ep");
  const program::RankClass& rank = one.classes[static_cast<std::size_t>(stage)];
  const program::RankClass& at_twice = two.classes[static_cast<std::size_t>(stage)];
  Sample& sample = samples_.emplace_back();
  sample.role = role;
  sample.content = content;
  for (std::size_t i = 0; i < rank.segments.size(); ++i) {
    const Segment& s = rank.segments[i];
    const bool closes = s.last_micro_batch && s.kind != SegmentKind::kForward;
    if (s.kind == SegmentKind::kOptimizer || (closes && key_.zero < 2 && key_.tp == 1)) continue;
    const auto peaks_in = [&](const program::RankClass& of) {
      return peaks_of(of, of.segments[i], stage * blocks, content, key_.recompute_layers);
    };
    std::vector<Line> peaks;
    const auto at_one = peaks_in(rank), at_two = peaks_in(at_twice);
    for (std::size_t k = 0; k < at_one.size(); ++k) peaks.push_back({at_one[k], at_two[k] - at_one[k]});
    SmallSegment& small = closes ? sample.closing : sample.segments[work_of(s.kind)];
    small = shrink(s, at_twice.segments[i], lane_of,
                   earlier_waits(rank, static_cast<std::int32_t>(i), lane_of), std::move(peaks));
    if (!key_.overlaps) continue;
    small.cuts = program::cuts_of(s, exchanges);
    const auto bytes_in = [&](const program::RankClass& of) {
      return bytes_of_pieces(of, of.segments[i], small.cuts);
    };
    const auto of_one = bytes_in(rank), of_two = bytes_in(at_twice);
    for (std::size_t k = 0; k < of_one.size(); ++k) {
      const PieceBytes &at = of_one[k], &twice = of_two[k];
      small.pieces.push_back({{at.peak, twice.peak - at.peak}, {at.net, twice.net - at.net}});
    }
  }
  return sample;
}

// Of a chunk with a block of each kind. The last one's output goes to the next stage: one block more is behind
// those that count.
const std::vector<Line>& Structure::left() {
  if (left_) return *left_;
  left_.emplace();
  if (training_.adapter || !model_.inputs.empty()) return *left_;
  ChunkContent content;
  for (std::size_t k = 0; k <= depth_.kinds.size(); ++k) {
    const auto of_kind = static_cast<std::int32_t>(k % depth_.kinds.size());
    const auto first = std::find(depth_.kind_of.begin(), depth_.kind_of.end(), of_kind);
    content.push_back({first - depth_.kind_of.begin(), 1});
  }
  auto [m, p, stage, blocks] = small(Role::kMiddle, content);
  left_->resize(depth_.kinds.size());
  for (const auto at : {&Line::at_one, &Line::more}) {
    const program::Program sized =
        program::compile_stage(m, p, training_, stack_, stage, program::Detail::kSizes);
    const program::RankClass& rank = sized.classes[static_cast<std::size_t>(stage)];
    for (const Segment& s : rank.segments) {
      if (s.kind != SegmentKind::kForward) continue;
      for (const program::MemoryEvent& e : s.memory) {
        const program::Buffer& b = rank.buffers[static_cast<std::size_t>(e.buffer)];
        const Op& op = s.ops[static_cast<std::size_t>(e.op)];
        const auto kind = static_cast<std::size_t>(op.layer - stage * blocks);
        if (e.allocate && b.life == program::Life::kSaved && op.layer >= 0 && kind < left_->size())
          (*left_)[kind].*at += b.bytes.value;
      }
    }
    p.micro_batch *= 2;
  }
  for (Line& line : *left_) line.more -= line.at_one;
  return *left_;
}

Structure& Samples::of(const ChunkKey& key) {
  ChunkKey kind = key;
  if (key.order != ChunkKey::Order::kRows) kind.order = ChunkKey::Order::kTurns;
  kind.micro_batch = kind.shards = kind.expert_shards = 1;
  kind.offloaded_layers = std::min(1, key.offloaded_layers);
  kind.recompute_first = std::min(1, key.recompute_first);
  kind.rounds = kind.ranks_on_node = 0;
  kind.hardware = {};
  // Split backwards have samples of their own.
  if (kind.backwards == program::Backwards::kBoth) kind.backwards = program::Backwards::kWhole;
  const std::lock_guard lock(mutex_);
  auto& known = structures_[kind];
  if (!known) known = std::make_unique<Structure>(kind, model_, depth, training_, stack_);
  return *known;
}

}  // namespace orrery::sim
