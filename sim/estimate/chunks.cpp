// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/chunks.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <unordered_map>

#include "program/schedule.h"
#include "program/units.h"
#include "sim/estimate/samples.h"

namespace orrery::sim {
namespace {

// The host issues ahead of the device; it limits a chunk when issuing all its work takes longer than
// running it.
void slow_to_host(ChunkCost& cost) {
  Time host, device;
  for (const WorkCost& w : cost) {
    host += Time{w.host};
    device += Time{w.time};
  }
  if (host <= device || device == Time{0}) return;
  const double slower = ratio(host, device);
  for (WorkCost& w : cost) {
    w.time = saturating_cast(static_cast<double>(w.time) * slower);
    w.latency = saturating_cast(static_cast<double>(w.latency) * slower);
  }
}

}  // namespace

std::size_t ChunkKey::Hash::operator()(const ChunkKey& k) const {
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

ChunkCosts::ChunkCosts(const Problem& problem, const Topology& topology, std::shared_ptr<Samples> samples)
    : model_(problem.scenario.model),
      training_(problem.scenario.training),
      device_(problem.device),
      stack_(problem.stack),
      topology_(topology),
      collectives_(topology.cluster()),
      samples_(samples ? std::move(samples) : std::make_shared<Samples>(model_, training_, stack_)) {}

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
    slot->structure = &samples_->of(k);
  }
  recent_ = slot.get();
  return *recent_;
}

const std::array<ChunkCost, 3>& ChunkCosts::price_sample(Layout& l, bool alone, std::int64_t layers) {
  for (const Layout::Priced& p : l.samples) {
    if (p.alone == alone && p.layers == layers) return p.costs;
  }
  const CostModel cost(device_, stack_, topology_.cluster(), l.links, training_, collectives_);
  const EngineOptions options = cost.engine_options(false);
  const std::int64_t n = l.key.micro_batch / l.structure->least_micro_batch;
  const Sample& sample = [&]() -> const Sample& {
    const std::lock_guard lock(l.structure->mutex);
    const Sample& found = l.structure->sample(alone, layers);
    const std::vector<OpShape>& shapes = l.structure->shapes();
    for (std::size_t i = l.durations.size(); i < shapes.size(); ++i)
      l.durations.push_back(static_cast<double>(cost.op(at_size(shapes[i], n)).value));
    return found;
  }();
  Layout::Priced& priced = l.samples.emplace_back();
  priced.alone = alone;
  priced.layers = layers;
  for (std::size_t c = 0; c < sample.segments.size(); ++c) {
    std::array<TimedSegment, 3> timed;
    for (std::size_t work = 0; work < 3; ++work) {
      const SmallSegment& s = sample.segments[c][work];
      if (s.issued == 0) continue;
      for (std::size_t q = 0; q < kLanes; ++q) {
        timed[work][q].reserve(s.lanes[q].size());
        for (const SmallOp& op : s.lanes[q])
          timed[work][q].push_back({op.waits, l.durations[static_cast<std::size_t>(op.shape)]});
      }
      WorkCost& w = priced.costs[c][work];
      w.host = (options.host_segment + options.host_op * s.issued).value;
      w.peak = s.peak.at(n);
      w.late = s.late.at(n);
      w.net = s.net.at(n);
    }
    const auto *f = &timed[kChunkForward], *b = &timed[kChunkBackward], *weight = &timed[kChunkWeight];
    const auto round = [](double time) { return saturating_cast(time + 0.5); };
    const auto lone = [&](const TimedSegment& segment, WorkCost& of) {
      const Lanes run = run_segments({&segment}, options);
      of.time = of.latency = round(run.ends[0] - run.begin);
    };
    WorkCost &forward = priced.costs[c][kChunkForward], &backward = priced.costs[c][kChunkBackward];
    lone(*f, forward);
    lone(*b, backward);
    if (sample.segments[c][kChunkWeight].issued > 0) lone(*weight, priced.costs[c][kChunkWeight]);
    const bool over_dp =
        sample.segments[c][kChunkForward].over_dp || sample.segments[c][kChunkBackward].over_dp;
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
      const auto extend = [more](std::int64_t from, std::int64_t to) {
        return (Time{from} + (Time{to} - Time{from}) * more).value;
      };
      out[w].time = extend(a[w].time, b[w].time);
      out[w].latency = extend(a[w].latency, b[w].latency);
      out[w].host = extend(a[w].host, b[w].host);
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
