// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/chunks.h"

#include <algorithm>
#include <map>

namespace orrery::sim {
namespace {

// The host issues ahead of the device; it limits a chunk when issuing all its work takes longer than
// running it.
void slow_to_host(ChunkCost& cost) {
  std::int64_t host = 0, device = 0;
  for (const WorkCost& w : cost) {
    host += w.host;
    device += w.time;
  }
  if (host <= device || device == 0) return;
  for (WorkCost& w : cost) {
    w.time = static_cast<std::int64_t>(static_cast<double>(w.time) * static_cast<double>(host) /
                                       static_cast<double>(device));
  }
}

}  // namespace

using program::Op;
using program::OpKind;
using program::Segment;
using program::SegmentKind;

namespace {

// The three streams that work inside a segment; transfers between stages are the pipeline's business.
constexpr std::size_t kLanes = 3;
static_assert(program::kCompute == 0 && program::kTp == 1 && program::kDp == 2);

struct SmallOp {
  std::uint8_t lane = 0;
  std::array<std::int16_t, kLanes> after{};  // as Op::after
  double duration = 0;
};

struct Collective {
  std::int32_t op = 0;  // index in SmallSegment::ops
  OpKind kind = OpKind::kAllReduce;
  program::Group group = program::Group::kTp;
  Bytes payload;
};

struct SmallSegment {
  std::vector<SmallOp> ops;
  std::vector<Collective> collectives;
  std::int64_t issued = 0;  // ops, transfers included
  std::int64_t peak = 0, net = 0;
};

SmallSegment shrink(const Segment& s, const CostModel& cost) {
  SmallSegment out;
  out.issued = static_cast<std::int64_t>(s.ops.size());
  out.peak = s.peak.value;
  out.net = s.net.value;
  for (const Op& op : s.ops) {
    if (op.stream >= kLanes) continue;
    SmallOp small;
    small.lane = op.stream;
    for (std::size_t q = 0; q < kLanes; ++q) small.after[q] = static_cast<std::int16_t>(op.after[q]);
    if (program::is_communication(op.kind)) {
      out.collectives.push_back({static_cast<std::int32_t>(out.ops.size()), op.kind, op.group, op.payload});
    } else {
      small.duration = static_cast<double>(cost.op(op).value);
    }
    out.ops.push_back(small);
  }
  return out;
}

// `copies` of the segment back to back on their rank, overlap slow-down included, as the engine would run
// them. The marginal time of another copy is what a segment costs in a steady state: its last reductions
// run beside the next segment, whose first gathers were fetched ahead.
std::int64_t segment_time(const std::vector<SmallOp>& once, const EngineOptions& options, int copies) {
  std::vector<SmallOp> repeated;
  if (copies > 1) {
    std::array<std::int16_t, kLanes> per_copy{};
    for (const SmallOp& op : once) ++per_copy[op.lane];
    for (int c = 0; c < copies; ++c) {
      for (SmallOp op : once) {
        for (std::size_t q = 0; q < kLanes; ++q) {
          if (op.after[q] > 0) op.after[q] = static_cast<std::int16_t>(op.after[q] + c * per_copy[q]);
        }
        repeated.push_back(op);
      }
    }
  }
  const std::vector<SmallOp>& ops = copies > 1 ? repeated : once;
  std::array<std::size_t, kLanes> cursor{}, done{};  // cursor: index into ops of the lane's head
  std::array<bool, kLanes> running{};
  std::array<double, kLanes> remaining{}, slow{};
  const auto seek = [&](std::size_t lane, std::size_t from) {
    while (from < ops.size() && ops[from].lane != lane) ++from;
    cursor[lane] = from;
  };
  for (std::size_t l = 0; l < kLanes; ++l) seek(l, 0);
  double now = 0;
  for (;;) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t l = 0; l < kLanes; ++l) {
        while (!running[l] && cursor[l] < ops.size()) {
          const SmallOp& op = ops[cursor[l]];
          bool ready = true;
          for (std::size_t q = 0; q < kLanes; ++q)
            ready = ready && done[q] >= static_cast<std::size_t>(op.after[q]);
          if (!ready) break;
          moved = true;
          if (op.duration > 0) {
            running[l] = true;
            remaining[l] = op.duration;
          } else {
            ++done[l];
            seek(l, cursor[l] + 1);
          }
        }
      }
    }
    slow[0] = running[1] || running[2] ? options.compute_slowdown : 1.0;
    slow[1] = slow[2] = running[0] ? options.communication_slowdown : 1.0;
    double step = -1;
    for (std::size_t l = 0; l < kLanes; ++l) {
      if (running[l] && (step < 0 || remaining[l] * slow[l] < step)) step = remaining[l] * slow[l];
    }
    if (step < 0) return static_cast<std::int64_t>(now + 0.5);
    now += step;
    for (std::size_t l = 0; l < kLanes; ++l) {
      if (!running[l]) continue;
      remaining[l] -= step / slow[l];
      if (remaining[l] > 0.5) continue;
      running[l] = false;
      ++done[l];
      seek(l, cursor[l] + 1);
    }
  }
}

}  // namespace

std::size_t ChunkCosts::Hash::operator()(const ChunkKey& k) const {
  std::size_t h = 1469598103934665603ULL;
  for (const std::int64_t v :
       {static_cast<std::int64_t>(k.tp), static_cast<std::int64_t>(k.tp_stride),
        static_cast<std::int64_t>(k.micro_batch), static_cast<std::int64_t>(k.recompute_layers),
        static_cast<std::int64_t>(k.zero), static_cast<std::int64_t>(k.shards),
        static_cast<std::int64_t>(k.shard_stride), static_cast<std::int64_t>(k.recompute),
        static_cast<std::int64_t>(k.sequence_parallel) * 2 + k.split}) {
    h = (h ^ static_cast<std::size_t>(v)) * 1099511628211ULL;
  }
  return h;
}

// A small program: three stages (first, middle, last) or one that is everything, by class and work. What
// it communicates within a micro-batch is priced later: that depends on placement.
struct ChunkCosts::Sample {
  std::array<std::array<SmallSegment, 3>, 3> segments;
};

struct ChunkCosts::Structure {
  std::map<std::pair<bool, std::int64_t>, Sample> samples;
};

struct ChunkCosts::Layout {
  ChunkKey key;
  PlanLinks links;
  Structure* structure = nullptr;
  std::map<std::pair<bool, std::int64_t>, std::array<ChunkCost, 3>> samples;
  std::map<std::pair<Role, std::int64_t>, ChunkCost> costs;
};

ChunkCosts::ChunkCosts(const Model& model, const Training& training, const Device& device, const Stack& stack,
                       const Topology& topology)
    : model_(model), training_(training), device_(device), stack_(stack), topology_(topology) {}

ChunkCosts::~ChunkCosts() = default;

ChunkKey ChunkCosts::key(const Plan& p) {
  const program::Binding b = program::bind(p);
  ChunkKey k;
  k.tp = static_cast<std::int32_t>(p.tp);
  k.tp_stride = p.tp > 1 ? static_cast<std::int32_t>(b.tp_stride) : 1;
  k.micro_batch = static_cast<std::int32_t>(p.micro_batch);
  k.recompute = p.recompute;
  k.recompute_layers = p.recompute == Recompute::kFull ? static_cast<std::int32_t>(p.recompute_layers) : 1;
  k.sequence_parallel = p.sequence_parallel && p.tp > 1;
  k.split = p.schedule == Schedule::kZeroBubbleH1 || p.schedule == Schedule::kZeroBubbleV;
  if (p.zero >= 2) {
    k.zero = static_cast<std::int32_t>(p.zero);
    k.shards = static_cast<std::int32_t>(p.shards());
    k.shard_stride = static_cast<std::int32_t>(b.dp_stride);
  }
  return k;
}

ChunkCosts::Layout& ChunkCosts::layout(const ChunkKey& k) {
  auto& slot = layouts_[k];
  if (!slot) {
    slot = std::make_unique<Layout>();
    slot->key = k;
    slot->links.tp = topology_.group(k.tp, k.tp_stride);
    slot->links.shard = topology_.group(k.shards, k.shard_stride);
    ChunkKey structure = k;
    structure.tp_stride = structure.shards = structure.shard_stride = 1;
    auto& shared = structures_[structure];
    if (!shared) shared = std::make_unique<Structure>();
    slot->structure = shared.get();
  }
  return *slot;
}

const ChunkCosts::Sample& ChunkCosts::compile_sample(const Layout& l, bool alone, std::int64_t layers) {
  const auto [found, added] = l.structure->samples.try_emplace({alone, layers});
  if (!added) return found->second;
  const ChunkKey& k = l.key;
  Plan p;
  p.tp = k.tp;
  p.pp = alone ? 1 : 3;
  p.zero = k.zero;
  p.micro_batch = k.micro_batch;
  p.micro_batches = 2;
  p.sequence_parallel = k.sequence_parallel;
  p.recompute = k.recompute;
  p.recompute_layers = k.recompute_layers;
  p.schedule = k.split ? Schedule::kZeroBubbleH1 : Schedule::k1F1B;
  p.chunk_layers.assign(static_cast<std::size_t>(p.pp), layers);
  Model m = model_;
  m.layers = layers * p.pp;
  const program::Program program = program::compile(m, p, training_, stack_, program::Names::kNo);
  const CostModel cost(device_, stack_, topology_.cluster(), l.links, training_);
  for (std::size_t c = 0; c < program.classes.size(); ++c) {
    for (const Segment& s : program.classes[c].segments) {
      if (s.kind == SegmentKind::kOptimizer || (s.last_micro_batch && s.kind != SegmentKind::kForward))
        continue;
      const ChunkWork work = s.kind == SegmentKind::kForward          ? kChunkForward
                             : s.kind == SegmentKind::kBackwardWeight ? kChunkWeight
                                                                      : kChunkBackward;
      found->second.segments[c][work] = shrink(s, cost);
    }
  }
  return found->second;
}

const std::array<ChunkCost, 3>& ChunkCosts::price_sample(Layout& l, bool alone, std::int64_t layers) {
  const auto [found, added] = l.samples.try_emplace({alone, layers});
  if (!added) return found->second;
  const Sample& sample = compile_sample(l, alone, layers);
  const CostModel cost(device_, stack_, topology_.cluster(), l.links, training_);
  const EngineOptions options = cost.engine_options(false);
  std::vector<SmallOp> ops;
  for (std::size_t c = 0; c < sample.segments.size(); ++c) {
    for (std::size_t work = 0; work < 3; ++work) {
      const SmallSegment& s = sample.segments[c][work];
      ops = s.ops;
      for (const Collective& x : s.collectives) {
        ops[static_cast<std::size_t>(x.op)].duration = static_cast<double>(
            collective_cost(x.kind, x.payload, cost.links(x.group), topology_.cluster()).time.value);
      }
      WorkCost& w = found->second[c][work];
      const bool over_dp =
          std::any_of(ops.begin(), ops.end(), [](const SmallOp& op) { return op.lane == program::kDp; });
      const std::int64_t single = segment_time(ops, options, 1);
      w.time = over_dp ? segment_time(ops, options, 3) - segment_time(ops, options, 2) : single;
      w.tail = std::max<std::int64_t>(0, single - w.time);
      w.host = options.host_segment.value * (s.issued > 0) + options.host_op.value * s.issued;
      w.peak = s.peak;
      w.net = s.net;
    }
  }
  return found->second;
}

const ChunkCost& ChunkCosts::cost(const ChunkKey& k, Role role, std::int64_t layers) {
  Layout& l = layout(k);
  const auto [found, added] = l.costs.try_emplace({role, layers});
  if (!added) return found->second;
  const bool alone = role == Role::kOnly;
  const std::size_t index = alone ? 0 : static_cast<std::size_t>(role);
  const std::int64_t group = k.recompute_layers;
  if (layers < 3 * group) {
    found->second = price_sample(l, alone, layers)[index];
    slow_to_host(found->second);
    return found->second;
  }
  const std::int64_t groups_more = (layers - 2 * group) / group;
  const std::int64_t small = layers - groups_more * group;
  const ChunkCost& a = price_sample(l, alone, small)[index];
  const ChunkCost& b = price_sample(l, alone, small + group)[index];
  for (std::size_t w = 0; w < a.size(); ++w) {
    found->second[w].tail = a[w].tail;
    found->second[w].time = a[w].time + groups_more * (b[w].time - a[w].time);
    found->second[w].host = a[w].host + groups_more * (b[w].host - a[w].host);
    found->second[w].peak = a[w].peak + groups_more * (b[w].peak - a[w].peak);
    found->second[w].net = a[w].net + groups_more * (b[w].net - a[w].net);
  }
  slow_to_host(found->second);
  return found->second;
}

std::int64_t ChunkCosts::boundary_bytes(const ChunkKey& k) const {
  const std::int64_t tokens = k.micro_batch * training_.sequence;
  return (k.sequence_parallel ? tokens / k.tp : tokens) * model_.hidden *
         activation_bytes(training_.precision);
}

}  // namespace orrery::sim
