// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/chunks.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <unordered_map>

#include "program/schedule.h"
#include "program/units.h"
#include "sim/estimate/lanes.h"

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
  const double slower = static_cast<double>(host) / static_cast<double>(device);
  for (WorkCost& w : cost) {
    w.time = static_cast<std::int64_t>(static_cast<double>(w.time) * slower);
    w.latency = static_cast<std::int64_t>(static_cast<double>(w.latency) * slower);
  }
}

}  // namespace

using program::Op;
using program::OpKind;
using program::Segment;
using program::SegmentKind;

namespace {

struct SmallOp {
  std::uint8_t lane = 0;
  Waits waits{};
  std::int32_t shape = 0;  // index in Structure::shapes
};

// A quantity that grows by a constant per smallest micro-batch.
struct Line {
  std::int64_t at_one = 0, more = 0;
  std::int64_t at(std::int64_t n) const { return at_one + (n - 1) * more; }
};

struct SmallSegment {
  std::vector<SmallOp> ops;
  std::int64_t issued = 0;  // ops, transfers included
  bool over_dp = false;     // communicates with other replicas
  Line peak, late, net;
};

// Most bytes above the segment's start from its last `group` layers on. `first`: of its chunk's `layers`.
std::int64_t late_peak(const program::RankClass& rank, const Segment& s, std::int64_t first,
                       std::int64_t layers, std::int64_t group) {
  const bool forward = s.kind == SegmentKind::kForward;
  const std::int64_t low = forward ? first + layers - group : first, high = low + group;
  std::int32_t from = 0;
  for (; from < static_cast<std::int32_t>(s.ops.size()); ++from) {
    const std::int32_t layer = s.ops[static_cast<std::size_t>(from)].layer;
    if (layer >= low && layer < high) break;
  }
  std::int64_t live = 0, most = 0;
  bool late = false;
  for (const program::MemoryEvent& e : s.memory) {
    if (e.op >= from && !late) {
      late = true;
      most = live;
    }
    const std::int64_t bytes = rank.buffers[static_cast<std::size_t>(e.buffer)].bytes.value;
    live += e.allocate ? bytes : -bytes;
    if (late) most = std::max(most, live);
  }
  return most;
}

// What the ops of a segment wait for of earlier segments, at the last step that runs it.
std::vector<Waits> earlier_waits(const program::RankClass& rank, std::int32_t segment) {
  std::vector<Waits> out(rank.segments[static_cast<std::size_t>(segment)].ops.size());
  for (Waits& w : out) w.fill(kNoWait);
  Waits base{}, at{};
  const program::Step* last = nullptr;
  for (const program::Step& step : rank.steps) {
    if (step.segment == segment) {
      last = &step;
      at = base;
    }
    for (std::size_t q = 0; q < kLanes; ++q)
      base[q] += rank.segments[static_cast<std::size_t>(step.segment)].stream_ops[q];
  }
  if (last == nullptr) return out;
  for (std::int32_t w = last->first_wait; w < last->first_wait + last->waits; ++w) {
    const program::ExternalWait& wait = rank.waits[static_cast<std::size_t>(w)];
    if (wait.stream >= kLanes) continue;
    std::int32_t& need = out[static_cast<std::size_t>(wait.op)][wait.stream];
    need = std::max(need, static_cast<std::int32_t>(wait.count - at[wait.stream]));
  }
  return out;
}

// The shape of an op at the smallest micro-batch and at twice that.
using OpShape = std::array<Op, 2>;

Op between(const OpShape& shape, std::int64_t n) {
  Op op = shape[0];
  for (std::size_t d = 0; d < op.dims.size(); ++d)
    op.dims[d] += (n - 1) * (shape[1].dims[d] - shape[0].dims[d]);
  op.flops += static_cast<double>(n - 1) * (shape[1].flops - shape[0].flops);
  op.traffic = op.traffic + (shape[1].traffic - shape[0].traffic) * (n - 1);
  op.payload = op.payload + (shape[1].payload - shape[0].payload) * (n - 1);
  return op;
}

}  // namespace

std::size_t ChunkCosts::Hash::operator()(const ChunkKey& k) const {
  std::size_t h = 1469598103934665603ULL;
  for (const std::int64_t v :
       {static_cast<std::int64_t>(k.tp), static_cast<std::int64_t>(k.tp_stride),
        static_cast<std::int64_t>(k.micro_batch), static_cast<std::int64_t>(k.recompute_layers),
        static_cast<std::int64_t>(k.zero), static_cast<std::int64_t>(k.shards),
        static_cast<std::int64_t>(k.shard_stride), static_cast<std::int64_t>(k.recompute),
        static_cast<std::int64_t>(k.sequence_parallel) * 8 + k.split * 4 +
            static_cast<std::int64_t>(k.order)}) {
    h = (h ^ static_cast<std::size_t>(v)) * 1099511628211ULL;
  }
  return h;
}

// Small programs of a kind: three stages (first, middle, last) or one that is everything, by class and work.
// What all micro-batch sizes and placements share: they change only what the shapes cost.
struct ChunkCosts::Sample {
  bool alone;
  std::int64_t layers;
  std::array<std::array<SmallSegment, 3>, 3> segments;
};

struct ChunkCosts::Structure {
  std::int64_t least_micro_batch = 1;
  std::vector<OpShape> shapes;
  std::unordered_multimap<std::size_t, std::int32_t> known;  // hash of a shape -> index
  std::deque<Sample> samples;

  std::int32_t intern(const Op& one, const Op& two) {
    const auto same = [](const Op& x, const Op& y) {
      return x.kind == y.kind && x.group == y.group && x.dims == y.dims && x.flops == y.flops &&
             x.traffic == y.traffic && x.payload == y.payload;
    };
    std::size_t hash = static_cast<std::size_t>(one.kind);
    for (const std::int64_t d : one.dims) hash = (hash ^ static_cast<std::size_t>(d)) * 1099511628211ULL;
    hash = (hash ^ static_cast<std::size_t>(one.traffic.value + one.payload.value)) * 1099511628211ULL;
    const auto [begin, end] = known.equal_range(hash);
    for (auto i = begin; i != end; ++i) {
      const OpShape& s = shapes[static_cast<std::size_t>(i->second)];
      if (same(s[0], one) && same(s[1], two)) return i->second;
    }
    OpShape shape;
    for (std::size_t n = 0; n < 2; ++n) {
      const Op& from = n == 0 ? one : two;
      shape[n].kind = from.kind;
      shape[n].group = from.group;
      shape[n].dims = from.dims;
      shape[n].flops = from.flops;
      shape[n].traffic = from.traffic;
      shape[n].payload = from.payload;
    }
    shapes.push_back(std::move(shape));
    const auto index = static_cast<std::int32_t>(shapes.size() - 1);
    known.emplace(hash, index);
    return index;
  }

  // `earlier`: what the segment's ops wait for of earlier ones, at a step in the steady state.
  SmallSegment shrink(const Segment& one, const Segment& two, const std::vector<Waits>& earlier,
                      const Line& late) {
    SmallSegment out;
    out.late = late;
    out.issued = static_cast<std::int64_t>(one.ops.size());
    out.peak = {one.peak.value, two.peak.value - one.peak.value};
    out.net = {one.net.value, two.net.value - one.net.value};
    for (std::size_t i = 0; i < one.ops.size(); ++i) {
      const Op& op = one.ops[i];
      if (op.stream >= kLanes) continue;
      SmallOp& small = out.ops.emplace_back();
      small.lane = op.stream;
      small.waits = earlier[i];
      for (std::size_t q = 0; q < kLanes; ++q) {
        if (op.after[q] > 0) small.waits[q] = op.after[q];
      }
      small.shape = intern(op, two.ops[i]);
      out.over_dp = out.over_dp || op.stream == program::kDp;
    }
    return out;
  }
};

struct ChunkCosts::Layout {
  ChunkKey key;
  PlanLinks links;
  Structure* structure = nullptr;
  std::vector<double> durations;  // of the structure's shapes, as far as needed
  struct Priced {
    bool alone;
    std::int64_t layers;
    std::array<ChunkCost, 3> costs;
  };
  std::deque<Priced> samples;
  struct Known {
    Role role;
    std::int64_t layers;
    ChunkCost cost;
  };
  std::deque<Known> costs;
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
  k.split = program::splits_backward(p.schedule);
  if (p.zero >= 2) {
    k.zero = static_cast<std::int32_t>(p.zero);
    k.shards = static_cast<std::int32_t>(p.shards());
    k.shard_stride = static_cast<std::int32_t>(b.dp_stride);
    k.order = p.schedule == Schedule::kGPipe         ? ChunkKey::Order::kRows
              : p.schedule == Schedule::kInterleaved ? ChunkKey::Order::kTurnsAndRows
                                                     : ChunkKey::Order::kTurns;
  }
  return k;
}

ChunkCosts::Layout& ChunkCosts::layout(const ChunkKey& k) {
  if (recent_ != nullptr && recent_->key == k) return *recent_;
  auto& slot = layouts_[k];
  if (!slot) {
    slot = std::make_unique<Layout>();
    slot->key = k;
    slot->links.tp = topology_.group(k.tp, k.tp_stride);
    slot->links.shard = topology_.group(k.shards, k.shard_stride);
    ChunkKey structure = k;
    if (k.order != ChunkKey::Order::kRows) structure.order = ChunkKey::Order::kTurns;
    structure.micro_batch = structure.tp_stride = structure.shards = structure.shard_stride = 1;
    auto& shared = structures_[structure];
    if (!shared) {
      shared = std::make_unique<Structure>();
      if (k.sequence_parallel)
        shared->least_micro_batch = k.tp / std::gcd<std::int64_t>(k.tp, training_.sequence);
    }
    slot->structure = shared.get();
  }
  recent_ = slot.get();
  return *recent_;
}

const ChunkCosts::Sample& ChunkCosts::compile_sample(const Layout& l, bool alone, std::int64_t layers) {
  Structure& structure = *l.structure;
  for (const Sample& s : structure.samples) {
    if (s.alone == alone && s.layers == layers) return s;
  }
  const ChunkKey& k = l.key;
  Plan p;
  p.tp = k.tp;
  p.pp = alone ? 1 : 3;
  p.zero = k.zero;
  p.micro_batch = structure.least_micro_batch;
  p.micro_batches = k.zero >= 2 ? 3 * p.pp : 2;  // enough that a step in the steady state is among them
  p.sequence_parallel = k.sequence_parallel;
  p.recompute = k.recompute;
  p.recompute_layers = k.recompute_layers;
  p.schedule = k.split                             ? Schedule::kZeroBubbleH1
               : k.order == ChunkKey::Order::kRows ? Schedule::kGPipe
                                                   : Schedule::k1F1B;
  p.chunk_layers.assign(static_cast<std::size_t>(p.pp), layers);
  Model m = model_;
  m.layers = layers * p.pp;
  const program::Program one = program::compile(m, p, training_, stack_, program::Names::kNo);
  p.micro_batch *= 2;
  const program::Program two = program::compile(m, p, training_, stack_, program::Names::kNo);
  Sample& sample = structure.samples.emplace_back();
  sample.alone = alone;
  sample.layers = layers;
  for (std::size_t c = 0; c < one.classes.size(); ++c) {
    for (std::size_t i = 0; i < one.classes[c].segments.size(); ++i) {
      const Segment& s = one.classes[c].segments[i];
      if (s.kind == SegmentKind::kOptimizer || (s.last_micro_batch && s.kind != SegmentKind::kForward))
        continue;
      const ChunkWork work = s.kind == SegmentKind::kForward          ? kChunkForward
                             : s.kind == SegmentKind::kBackwardWeight ? kChunkWeight
                                                                      : kChunkBackward;
      const auto late = [&](const program::Program& program) {
        const program::RankClass& rank = program.classes[c];
        return late_peak(rank, rank.segments[i], static_cast<std::int64_t>(c) * layers, layers,
                         std::min<std::int64_t>(layers, k.recompute_layers));
      };
      sample.segments[c][work] = structure.shrink(s, two.classes[c].segments[i],
                                                  earlier_waits(one.classes[c], static_cast<std::int32_t>(i)),
                                                  {late(one), late(two) - late(one)});
    }
  }
  return sample;
}

const std::array<ChunkCost, 3>& ChunkCosts::price_sample(Layout& l, bool alone, std::int64_t layers) {
  for (const Layout::Priced& p : l.samples) {
    if (p.alone == alone && p.layers == layers) return p.costs;
  }
  const Sample& sample = compile_sample(l, alone, layers);
  const CostModel cost(device_, stack_, topology_.cluster(), l.links, training_);
  const EngineOptions options = cost.engine_options(false);
  const std::int64_t n = l.key.micro_batch / l.structure->least_micro_batch;
  for (std::size_t i = l.durations.size(); i < l.structure->shapes.size(); ++i)
    l.durations.push_back(static_cast<double>(cost.op(between(l.structure->shapes[i], n)).value));
  Layout::Priced& priced = l.samples.emplace_back();
  priced.alone = alone;
  priced.layers = layers;
  for (std::size_t c = 0; c < sample.segments.size(); ++c) {
    std::array<std::vector<TimedOp>, 3> timed;
    for (std::size_t work = 0; work < 3; ++work) {
      const SmallSegment& s = sample.segments[c][work];
      if (s.issued == 0) continue;
      for (const SmallOp& op : s.ops)
        timed[work].push_back({op.lane, op.waits, l.durations[static_cast<std::size_t>(op.shape)]});
      WorkCost& w = priced.costs[c][work];
      w.host = options.host_segment.value + options.host_op.value * s.issued;
      w.peak = s.peak.at(n);
      w.late = s.late.at(n);
      w.net = s.net.at(n);
    }
    const auto *f = &timed[kChunkForward], *b = &timed[kChunkBackward], *weight = &timed[kChunkWeight];
    const auto round = [](double time) { return static_cast<std::int64_t>(time + 0.5); };
    const auto lone = [&](const std::vector<TimedOp>& segment) {
      const Lanes run = run_segments({&segment}, options);
      return round(run.ends[0] - run.begin);
    };
    WorkCost &forward = priced.costs[c][kChunkForward], &backward = priced.costs[c][kChunkBackward];
    const bool over_dp =
        sample.segments[c][kChunkForward].over_dp || sample.segments[c][kChunkBackward].over_dp;
    forward.time = forward.latency = lone(*f);
    backward.time = backward.latency = lone(*b);
    if (!weight->empty())
      priced.costs[c][kChunkWeight].time = priced.costs[c][kChunkWeight].latency = lone(*weight);
    if (!over_dp) continue;
    // What communicates with other replicas costs what another round adds in a steady state: its last
    // reductions run beside what comes next, its first gathers were fetched ahead.
    const bool turns = l.key.order != ChunkKey::Order::kRows;
    const Ends ends =
        turns ? run_segments({f, b, f, b}, options).ends : run_segments({f, f, b, b}, options).ends;
    forward.time = round(turns ? ends[2] - ends[1] : ends[1] - ends[0]);
    backward.time = round(ends[3] - ends[2]);
  }
  return priced.costs;
}

const ChunkCost& ChunkCosts::cost(const ChunkKey& k, Role role, std::int64_t layers) {
  Layout& l = layout(k);
  for (const Layout::Known& known : l.costs) {
    if (known.role == role && known.layers == layers) return known.cost;
  }
  const bool alone = role == Role::kOnly;
  const std::size_t index = alone ? 0 : static_cast<std::size_t>(role);
  // Layers after which the pattern of work repeats. ZeRO-2 and 3 use two whole units in turn.
  const std::int64_t period =
      std::lcm<std::int64_t>(k.recompute_layers, k.zero >= 2 ? 2 * layers_per_unit(k) : 1);
  ChunkCost out;
  if (layers < 2 * period) {
    out = price_sample(l, alone, layers)[index];
  } else {
    const std::int64_t more = layers / period - 1;
    const std::int64_t small = layers - more * period;
    const ChunkCost& a = price_sample(l, alone, small)[index];
    const ChunkCost& b = price_sample(l, alone, small + period)[index];
    for (std::size_t w = 0; w < a.size(); ++w) {
      out[w].time = a[w].time + more * (b[w].time - a[w].time);
      out[w].latency = a[w].latency + more * (b[w].latency - a[w].latency);
      out[w].host = a[w].host + more * (b[w].host - a[w].host);
      const std::int64_t kept = more * (b[w].net - a[w].net);
      out[w].peak = std::max(a[w].peak, a[w].late + kept);
      out[w].net = a[w].net + kept;
    }
  }
  slow_to_host(out);
  for (WorkCost& w : out) w.row = w.time;
  if (k.order == ChunkKey::Order::kTurnsAndRows) {
    ChunkKey rows = k;
    rows.order = ChunkKey::Order::kRows;
    const ChunkCost& in_rows = cost(rows, role, layers);
    for (std::size_t w = 0; w < out.size(); ++w) out[w].row = in_rows[w].time;
  }
  l.costs.push_back({role, layers, out});
  return l.costs.back().cost;
}

void ChunkCosts::forget_sizes() {
  layouts_.clear();
  recent_ = nullptr;
}

std::int64_t ChunkCosts::layers_per_unit(const ChunkKey& k) const {
  if (k.zero == 3) return 1;
  const std::int64_t layer = program::BlockElements(model_, k.tp).layer;
  return (program::bucket_elements(training_, stack_) + layer - 1) / layer;
}

std::int64_t ChunkCosts::boundary_bytes(const ChunkKey& k) const {
  const std::int64_t tokens = k.micro_batch * training_.sequence;
  return (k.sequence_parallel ? tokens / k.tp : tokens) * model_.hidden *
         activation_bytes(training_.precision);
}

}  // namespace orrery::sim
