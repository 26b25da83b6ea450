// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/chunks.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <numeric>
#include <unordered_map>

#include "program/pieces.h"
#include "program/schedule.h"
#include "program/state/units.h"
#include "sim/estimate/samples.h"

namespace orrery::sim {
namespace {

// Layers after which another one adds the same, unless what the ends communicate hides behind more.
constexpr std::int64_t kSettledLayers = 4;
// Micro-batches after which another one adds the same time.
constexpr std::int64_t kSettledRounds = 3;

// In how many layers the communication of a chunk's ends is hidden, in any micro-batch and beside the last
// backward, from chunks of `n` and `n` + `period` layers: each layer leaves the time that its own does not
// take.
std::int64_t layers_beside_ends(const ChunkCost& a, const ChunkCost& b, std::int64_t n, std::int64_t period) {
  const auto hidden_in = [&](const auto& communication, const auto& time) {
    const double each = (communication(b) - communication(a)) / static_cast<double>(period);
    const double ends = communication(a) - each * static_cast<double>(n);
    const double left = (time(b) - time(a)) / static_cast<double>(period) - each;
    return left > 0 ? static_cast<std::int64_t>(std::clamp(ends / left, 0.0, 1e6)) + 1 : 0;
  };
  const auto sum = [](WorkCost::Field field) {
    return [field](const ChunkCost& c) {
      double total = 0;
      for (const WorkCost& w : c) total += static_cast<double>(w.*field);
      return total;
    };
  };
  const auto of_backward = [](WorkCost::Field field) {
    return [field](const ChunkCost& c) { return static_cast<double>(c[kChunkBackward].*field); };
  };
  return std::max(hidden_in(sum(&WorkCost::dp), sum(&WorkCost::time)),
                  hidden_in(of_backward(&WorkCost::dp_last), of_backward(&WorkCost::time)));
}

}  // namespace

std::size_t ChunkKey::Hash::operator()(const ChunkKey& k) const {
  std::size_t h = 1469598103934665603ULL;
  const auto mix = [&](std::int64_t v) { h = (h ^ static_cast<std::size_t>(v)) * 1099511628211ULL; };
  for (const std::int64_t v :
       {static_cast<std::int64_t>(k.tp), static_cast<std::int64_t>(k.micro_batch),
        static_cast<std::int64_t>(k.recompute_layers) * 65536 + k.loss_chunks,
        static_cast<std::int64_t>(k.zero), static_cast<std::int64_t>(k.rounds),
        static_cast<std::int64_t>(k.shards),
        static_cast<std::int64_t>(k.recompute_first) * 65536 + static_cast<std::int64_t>(k.recompute) * 256 +
            k.repeated.bits(),
        static_cast<std::int64_t>(k.backwards) * 64 + static_cast<std::int64_t>(k.reshards) * 32 +
            static_cast<std::int64_t>(k.sequence_parallel) * 16 + k.replicas * 8 +
            static_cast<std::int64_t>(k.order),
        static_cast<std::int64_t>(k.cp),
        static_cast<std::int64_t>(k.offloaded_layers) * 65536 + k.ranks_on_node * 4 +
            static_cast<std::int64_t>(k.parameters_in),
        k.ulysses * 8 + k.overlaps * 4 + k.by_node * 2 + static_cast<std::int64_t>(k.rings), k.experts.ep,
        k.experts.etp * 4 + k.experts.apart * 2 + k.expert_replicas,
        static_cast<std::int64_t>(k.expert_shards), std::bit_cast<std::int64_t>(k.expert_room)}) {
    mix(v);
  }
  mix(k.hardware.nodes);
  for (std::size_t g = 0; g < program::kMostGroups; ++g)
    mix(k.hardware.of.of[g] * 4 + k.hardware.meets_tp.of[g] * 2 + k.hardware.meets_ep.of[g]);
  for (const bool meets : k.hardware.meets_cp.of) mix(meets);
  return h;
}

struct ChunkCosts::Layout {
  ChunkKey key;
  PlanLinks links;
  Structure* structure = nullptr;
  std::vector<OpTime> durations;  // of the structure's shapes, as far as needed
  std::deque<Priced> samples;
  struct Known {
    Role role;
    BlockRange blocks;
    ChunkCost cost;
  };
  std::deque<Known> costs;
  struct KnownPair {
    Role role;
    BlockRange blocks;
    PairCost pair;
  };
  std::deque<KnownPair> pairs;
};

namespace {

SharedExperts experts_shared(const ChunkKey& k, const Training& training) {
  Plan p{.tp = k.tp, .cp = k.cp, .micro_batch = k.micro_batch};
  if (k.experts.apart) {
    p.ep = k.experts.ep;
    p.etp = k.experts.etp;
  }
  return shared_experts(p, training);
}

}  // namespace

ChunkCosts::ChunkCosts(const Problem& problem, const program::Communication& over, const GroupTable& groups,
                       std::shared_ptr<Samples> samples)
    : model_(problem.scenario.model),
      training_(problem.scenario.training),
      sample_(model_, training_),
      devices_(problem.devices),
      stack_(problem.stack),
      cluster_(problem.cluster),
      groups_(groups),
      tp_(over.group("tp")),
      ep_(over.group("ep")),
      ulysses_(over.group("ulysses")),
      ring_(over.group("ring")),
      replica_(over.group("replica")),
      expert_replica_(over.group("ereplica")),
      shard_(over.group("shard")),
      expert_shard_(over.group("eshard")),
      loaded_(over, training_, stack_),
      collectives_(problem.cluster, problem.stack.collective_sync),
      loads_(model_, training_),
      samples_(samples ? std::move(samples) : std::make_shared<Samples>(model_, training_, stack_)) {}

ChunkCosts::~ChunkCosts() = default;

namespace {

ChunkKey::Order order_in(Schedule schedule) {
  switch (schedule) {
    case Schedule::kGPipe:
      return ChunkKey::Order::kRows;
    case Schedule::kInterleaved:
    case Schedule::kListed:
      return ChunkKey::Order::kTurnsAndRows;
    case Schedule::kNaive:
    case Schedule::k1F1B:
    case Schedule::kZeroBubbleH1:
    case Schedule::kZeroBubbleV:
    case Schedule::kDualPipeV:
      break;
  }
  return ChunkKey::Order::kTurns;
}

}  // namespace

ChunkKey ChunkCosts::key(const Plan& p, std::int64_t devices_per_node) {
  ChunkKey k;
  k.experts = program::WeightRanks(p);
  k.expert_room = p.expert_room.value_or(1);
  k.by_node = p.exchanges_by_node();
  k.overlaps = p.overlap_exchanges;
  k.tp = static_cast<std::int32_t>(p.tp);
  k.micro_batch = static_cast<std::int32_t>(p.micro_batch);
  k.cp = static_cast<std::int32_t>(p.cp);
  k.ulysses = static_cast<std::int32_t>(p.ulysses);
  k.rings = p.rings();
  k.recompute = p.recompute;
  k.repeated = p.repeated();
  k.recompute_layers = p.recompute == Recompute::kFull ? static_cast<std::int32_t>(p.recompute_layers) : 1;
  k.loss_chunks = static_cast<std::int32_t>(p.loss_chunks);
  k.sequence_parallel = p.sequence_parallel && p.tp > 1;
  k.backwards = program::backwards_of(p);
  k.offloaded_layers = static_cast<std::int32_t>(p.offloaded_layers());
  k.parameters_in = program::space_of_parameters(p);
  if (k.offloaded_layers > 0 || k.parameters_in != program::Space::kDevice)
    k.ranks_on_node = static_cast<std::int32_t>(std::min(p.ranks(), devices_per_node));
  if (p.zero >= 2) {
    k.zero = static_cast<std::int32_t>(p.zero);
    k.reshards = p.reshards();
    if (p.pp * p.vpp == 1) k.rounds = static_cast<std::int32_t>(std::min(p.micro_batches, kSettledRounds));
    k.shards = static_cast<std::int32_t>(p.shards());
    k.replicas = p.shards() < p.copies();
    k.expert_shards = static_cast<std::int32_t>(p.expert_shards());
    k.expert_replicas = p.splits_experts() && p.expert_shards() < p.expert_dp();
  }
  if (k.runs_on()) {
    k.order = order_in(p.schedule);
  }
  return k;
}

ChunkCosts::Layout& ChunkCosts::layout(const ChunkKey& k) {
  if (recent_ != nullptr && recent_->key == k) return *recent_;
  auto& slot = layouts_[k];
  if (!slot) {
    slot = std::make_unique<Layout>();
    slot->key = k;
    for (const std::int32_t index : k.hardware.of.of) slot->links.push_back(groups_[index]);
    slot->structure = &samples_->of(k);
  }
  recent_ = slot.get();
  return *recent_;
}

const Depth& ChunkCosts::depth() const {
  return samples_->depth;
}

namespace {

TimedSegment timed(const SmallSegment& s, const std::vector<OpTime>& durations) {
  TimedSegment out;
  for (std::size_t q = 0; q < kLanes; ++q) {
    out[q].reserve(s.lanes[q].size());
    for (const SmallOp& op : s.lanes[q])
      out[q].push_back({op.waits, durations[static_cast<std::size_t>(op.shape)]});
  }
  return out;
}

std::int64_t rounded(double time) {
  return saturating_cast(time + 0.5);
}

// A forward and a backward whose pieces take turns. What their ops wait for counts the ops of both.
TimedSegment in_turns(const SmallSegment& forward, const SmallSegment& backward,
                      const std::vector<OpTime>& durations) {
  struct Side {
    const SmallSegment& small;
    TimedSegment timed;
    std::array<std::vector<std::int32_t>, kLanes> after;  // by op: ops of both on the lane, up to it
  };
  std::array<Side, 2> sides{Side{forward, timed(forward, durations), {}},
                            Side{backward, timed(backward, durations), {}}};
  TimedSegment out;
  std::array<std::vector<std::uint8_t>, kLanes> side_of;
  for (const program::Turn& turn : program::side_by_side(forward.pieces.size(), backward.pieces.size())) {
    const std::uint8_t which = turn.of_forward ? 0 : 1;
    Side& side = sides[which];
    const auto piece = static_cast<std::size_t>(turn.piece);
    const std::int64_t end = piece < side.small.cuts.size() ? side.small.cuts[piece] : side.small.issued;
    for (std::size_t q = 0; q < kLanes; ++q) {
      for (std::size_t i = side.after[q].size();
           i < side.timed[q].size() && side.small.lanes[q][i].issued <= end; ++i) {
        out[q].push_back(side.timed[q][i]);
        side_of[q].push_back(which);
        side.after[q].push_back(static_cast<std::int32_t>(out[q].size()));
      }
    }
  }
  for (std::size_t q = 0; q < kLanes; ++q) {
    for (std::size_t i = 0; i < out[q].size(); ++i) {
      const Side& side = sides[side_of[q][i]];
      for (std::size_t r = 0; r < kLanes; ++r) {
        std::int32_t& n = out[q][i].waits[r];
        if (n > 0) n = side.after[r][static_cast<std::size_t>(n) - 1];
      }
    }
  }
  return out;
}

// The pieces of a sample, and those of one that is a period longer.
struct Longer {
  const std::vector<PieceBytes>* pieces;
  std::int64_t more;  // periods in all
};

// A sample's pieces, with periods of some of its ranges put in. A range without exchanges makes a piece
// longer.
std::vector<PieceBytes> lengthened(const std::vector<PieceBytes>& small, const std::vector<Longer>& by) {
  std::vector<PieceBytes> out = small;
  struct Insertion {
    std::size_t at;
    const Longer* by;
  };
  std::vector<Insertion> insertions;
  for (const Longer& l : by) {
    const std::vector<PieceBytes>& longer = *l.pieces;
    if (longer.size() == small.size()) {
      for (std::size_t i = 0; i < small.size(); ++i) {
        out[i].peak += l.more * (longer[i].peak - small[i].peak);
        out[i].net += l.more * (longer[i].net - small[i].net);
      }
      continue;
    }
    const auto differs = std::mismatch(small.begin(), small.end(), longer.begin()).first;
    insertions.push_back({static_cast<std::size_t>(differs - small.begin()), &l});
  }
  std::sort(insertions.begin(), insertions.end(),
            [](const Insertion& a, const Insertion& b) { return a.at > b.at; });
  for (const Insertion& insertion : insertions) {
    const auto& [at, l] = insertion;
    const std::vector<PieceBytes>& longer = *l->pieces;
    const std::size_t count = longer.size() - small.size();
    const std::int64_t before = at > 0 ? out[at - 1].net - small[at - 1].net : 0;
    const std::int64_t each = longer.back().net - small.back().net;
    std::vector<PieceBytes> inserted;
    for (std::int64_t period = 0; period < l->more; ++period) {
      for (std::size_t i = at; i < at + count; ++i) {
        const std::int64_t above = before + period * each;
        inserted.push_back({longer[i].peak + above, longer[i].net + above});
      }
    }
    for (std::size_t i = at; i < out.size(); ++i) {
      out[i].peak += l->more * each;
      out[i].net += l->more * each;
    }
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(at), inserted.begin(), inserted.end());
  }
  return out;
}

// Times of pieces of work that leave copies to run beside the next ones: what another round adds.
void settle(const ChunkKey& key, const std::array<TimedSegment, kChunkWorks>& segments, const Pace& pace,
            ChunkCost& cost) {
  const TimedSegment *f = &segments[kChunkForward], *b = &segments[kChunkBackward];
  const auto since = [](const LaneEnds& run, std::size_t i) {
    return rounded(run.ends[i] - run.ends[i - 1]);
  };
  const bool turns = key.order != ChunkKey::Order::kRows;
  const LaneEnds steady =
      turns ? run_segments({f, b, f, b, f, b}, pace) : run_segments({f, f, f, b, b, b}, pace);
  cost[kChunkForward].time = since(steady, turns ? 4 : 2);
  cost[kChunkBackward].time = since(steady, 5);
}

}  // namespace

ChunkCosts::Priced& ChunkCosts::price_sample(Layout& l, Role role, const ChunkContent& content) {
  for (Priced& p : l.samples) {
    if (p.role == role && p.content == content) return p;
  }
  const CostModel cost(devices_, stack_, cluster_, l.links, training_, l.key.ranks_on_node, collectives_);
  const NodeTypes nodes = l.key.hardware.nodes;
  const Pace pace = cost.pace(nodes);
  // Which ops use links that data-parallel ops and others both use.
  const StageHardware& on = l.key.hardware;
  const program::ByGroup<bool> none;
  const Sharing sharing{on.meets_tp != none, on.meets_ep != none, on.meets_cp != none};
  const auto shares = [&](program::GroupIndex group) {
    if (group == tp_) return sharing.tp;
    if (group == ep_) return sharing.ep;
    if (group == ulysses_ || group == ring_) return sharing.cp;
    return on.meets_tp[group] || on.meets_ep[group] || on.meets_cp[group];
  };
  const std::int64_t n = l.key.micro_batch / l.structure->least_micro_batch;
  const double load = loads_.mean(experts_shared(l.key, training_));
  const Sample& sample = [&]() -> const Sample& {
    const std::lock_guard lock(l.structure->mutex);
    const Sample& found = l.structure->sample(role, content);
    const std::vector<OpShape>& shapes = l.structure->shapes();
    for (std::size_t i = l.durations.size(); i < shapes.size(); ++i) {
      program::Op op = at_size(shapes[i], n);
      loaded_.load(op, load);
      // Samples have other numbers of shards.
      const auto in_shards = [&](std::int64_t of_sample, std::int64_t shards) {
        op.payload = Bytes{mul_div(op.payload.value, of_sample, shards)};
      };
      if (op.group == replica_) in_shards(l.structure->shards(), l.key.shards);
      if (op.is<program::ops::Copy>() && op.group == shard_) in_shards(l.structure->shards(), l.key.shards);
      if (op.is<program::ops::Copy>() && op.group == expert_shard_)
        in_shards(l.structure->expert_shards(), l.key.expert_shards);
      if (op.group == expert_replica_) in_shards(l.structure->expert_shards(), l.key.expert_shards);
      OpTime time{.duration = static_cast<double>(cost.op(op, nodes).value),
                  .of_documents = program::is_of_documents(op.kind)};
      if (program::is_communication(op.kind) && shares(op.group)) {
        const GroupLinks& links = cost.links(op.group);
        const Wire wire = cost.wire(op, links);
        time.latency = std::min(time.duration, static_cast<double>(wire.latency.value));
        if (wire.rate > Bandwidth{0}) time.share = std::min(1.0, ratio(wire.rate, links.ring));
      }
      l.durations.push_back(time);
    }
    return found;
  }();
  Priced& priced = l.samples.emplace_back();
  priced.role = role;
  priced.content = content;
  // Of a segment, and when its ops come from the host.
  const auto issue = [&](const SmallSegment& s, TimedSegment segment) {
    for (std::size_t q = 0; q < kLanes; ++q) {
      for (std::size_t i = 0; i < segment[q].size(); ++i)
        segment[q][i].issued =
            static_cast<double>(pace.host_segment.value + pace.host_op.value * s.lanes[q][i].issued);
    }
    return segment;
  };
  const auto busy = [&](const TimedSegment& segment, LaneIndex lane) {
    double sum = 0;
    for (const TimedOp& op : segment[lane]) sum += op.time.duration;
    return rounded(sum);
  };
  std::array<TimedSegment, kChunkWorks> segments;
  for (std::size_t work = 0; work < kChunkWorks; ++work) {
    const SmallSegment& s = sample.segments[work];
    if (s.issued == 0) continue;
    segments[work] = timed(s, l.durations);
    WorkCost& w = priced.cost[work];
    w.host = (pace.host_segment + pace.host_op * s.issued).value;
    w.peak = s.peak.at(n);
    for (const Line& peak : s.peaks) priced.peaks[work].push_back(peak.at(n));
    w.net = s.net.at(n);
    w.offloaded = s.offloaded.at(n);
    const LaneEnds alone_on_rank = run_segments({&segments[work]}, pace);
    w.time = w.latency = rounded(alone_on_rank.ends[0] - alone_on_rank.begin);
    if (l.key.runs_on()) {
      const LaneEnds late = run_segments({&segments[work]}, pace, {}, InputComes::kLate);
      w.latency = rounded(late.ends[0] - late.begin);
    }
    if (w.host > 0) {
      const TimedSegment issued = issue(s, segments[work]);
      w.hosted = rounded(run_segments({&issued}, pace).ends[0]);
    }
    w.tp = busy(segments[work], kTpLane);
    w.dp = busy(segments[work], kDpLane);
    double of_documents = 0;
    for (const TimedOp& op : segments[work][kComputeLane])
      of_documents += op.time.of_documents ? op.time.duration : 0;
    w.of_documents = rounded(of_documents);
    w.waiting = std::max<std::int64_t>(0, w.time - busy(segments[work], kComputeLane));
  }
  if (l.key.offloaded_layers > 0 && l.key.zero < 2) settle(l.key, segments, pace, priced.cost);
  const SmallSegment& closing = sample.closing;
  if (closing.issued == 0) return priced;
  if (l.key.zero < 2) {
    const ChunkWork work = sample.segments[kChunkWeight].issued > 0 ? kChunkWeight : kChunkBackward;
    if (closing.issued == sample.segments[work].issued) return priced;
    const TimedSegment last = timed(closing, l.durations);
    const LaneEnds by_itself = run_segments({&last}, pace);
    const LaneEnds others = run_segments({&segments[work]}, pace);
    priced.cost[work].longer =
        rounded(by_itself.ends[0] - by_itself.begin) - rounded(others.ends[0] - others.begin);
    priced.cost[work].trailing = rounded(by_itself.drained - by_itself.ends[0]);
    return priced;
  }
  WorkCost &forward = priced.cost[kChunkForward], &backward = priced.cost[kChunkBackward];
  const TimedSegment last = timed(closing, l.durations), *f = &segments[kChunkForward],
                     *b = &segments[kChunkBackward];
  backward.dp_last = busy(last, kDpLane);
  if (l.key.rounds > 0) {
    // All rounds from the first on, whose gathers nothing hides: `longer` is what they take more than
    // rounds like the one before the last.
    const std::int64_t more = l.key.rounds - 1;
    const LaneEnds all = more == 0   ? run_segments({f, &last}, pace, sharing)
                         : more == 1 ? run_segments({f, b, f, &last}, pace, sharing)
                                     : run_segments({f, b, f, b, f, &last}, pace, sharing);
    const auto at = static_cast<std::size_t>(2 * more);  // the last forward
    forward.time = rounded(all.ends[at] - (more > 0 ? all.ends[at - 1] : all.begin));
    backward.time = rounded(more > 0 ? all.ends[at - 1] - all.ends[at - 2] : all.ends[1] - all.ends[0]);
    const Time rounds =
        Time{forward.latency} + Time{backward.time} + (Time{forward.time} + Time{backward.time}) * more;
    backward.longer = (Time{rounded(all.ends[at + 1])} - rounds).value;
    backward.trailing = rounded(all.drained - all.ends[at + 1]);
    return priced;
  }
  // What communicates with other replicas costs what another round adds in a steady state: its last
  // reductions run beside what comes next, its first gathers were fetched ahead.
  const bool turns = l.key.order != ChunkKey::Order::kRows;
  const auto run = [&](const TimedSegment* z) {
    return turns ? run_segments({f, b, f, b, f, z}, pace, sharing)
                 : run_segments({f, f, f, b, b, z}, pace, sharing);
  };
  const LaneEnds steady = run(b), end = run(&last);
  forward.time = rounded(turns ? steady.ends[4] - steady.ends[3] : steady.ends[2] - steady.ends[1]);
  backward.time = rounded(steady.ends[5] - steady.ends[4]);
  backward.longer = rounded(end.ends[5] - steady.ends[5]);
  backward.trailing = rounded(end.drained - end.ends[5]);
  return priced;
}

const PairCost& ChunkCosts::price_pair(Layout& l, Role role, const ChunkContent& content) {
  Priced& priced = price_sample(l, role, content);
  std::optional<PairCost>& pair = priced.pair;
  if (pair) return *pair;
  const Sample& sample = [&]() -> const Sample& {
    const std::lock_guard lock(l.structure->mutex);
    return l.structure->sample(role, content);
  }();
  const SmallSegment &forward = sample.segments[kChunkForward], &backward = sample.segments[kChunkBackward];
  const TimedSegment both = in_turns(forward, backward, l.durations);
  const Pace pace = pace_of(devices_, l.key.hardware.nodes, stack_);
  const LaneEnds steady = run_segments({&both, &both}, pace);
  const ChunkCost& cost = priced.cost;
  pair.emplace();
  pair->saved =
      cost[kChunkForward].time + cost[kChunkBackward].time - rounded(steady.ends[1] - steady.ends[0]);
  const auto pieces = static_cast<std::int64_t>(forward.pieces.size() + backward.pieces.size());
  pair->host = pace.host_segment.value * (pieces - 2);
  const std::int64_t n = l.key.micro_batch / l.structure->least_micro_batch;
  for (const SmallPiece& p : forward.pieces) pair->forward.push_back({p.peak.at(n), p.net.at(n)});
  for (const SmallPiece& p : backward.pieces) pair->backward.push_back({p.peak.at(n), p.net.at(n)});
  return *pair;
}

std::int64_t ChunkCosts::period(const ChunkKey& k, const Stretch& stretch) {
  const std::int64_t pattern = std::lcm<std::int64_t>(k.recompute_layers, stretch.period);
  if (k.zero < 2) return pattern;
  // ZeRO-2 and 3 use two whole units of each kind in turn.
  std::int64_t out = std::lcm(pattern, 2);
  if (k.zero < 3) {
    std::array<std::int64_t, program::kUnitKinds> elements{};
    for (std::int64_t b = stretch.first; b < stretch.first + stretch.period; ++b) {
      for (const program::PieceSize& piece :
           pieces(k.experts).blocks[static_cast<std::size_t>(depth().kind_of[static_cast<std::size_t>(b)])])
        if (piece.kept == program::Kept::kTrained) elements[program::kind_of_unit(piece)] += piece.elements;
    }
    for (const std::int64_t n : elements) {
      if (n == 0) continue;
      const std::int64_t per_unit =
          (program::bucket_elements(training_, stack_) * stretch.period + n - 1) / n;
      out = std::lcm(out, 2 * per_unit);
    }
  }
  return out;
}

// The chunk's ranges, each as short as its work repeats.
ChunkCosts::Shortened ChunkCosts::shortened(Layout& l, Role role, const ChunkContent& content) {
  const ChunkKey& k = l.key;
  std::vector<Extension> extensions;
  ChunkContent small = content;
  std::int64_t offset = 0;  // of the range in its chunk
  for (std::size_t i = 0; i < content.size(); offset += content[i].blocks, ++i) {
    const Stretch& stretch = depth().stretch(content[i].first);
    const std::int64_t per = period(k, stretch);
    // What begins and ends a chunk no longer counts after so many: gathers and reductions run beside several.
    std::int64_t settled = std::max<std::int64_t>(per, k.runs_on() ? kSettledLayers : 1);
    // The block that first reads another tower holds its gradient from there on.
    if (sample_.tokens.size() > 1) settled += per;
    // What a chunk begins with came from another stage and stays on the device, others are fetched.
    if (content[i].offloaded) settled += per;
    const std::int64_t repeats = std::lcm<std::int64_t>(k.recompute_layers, stretch.period);
    if (content.size() == 1) small[i].repeats = repeats;  // the samples of all lengths are the same ones
    if (k.zero >= 2 && content[i].blocks >= settled + per) {
      const auto of = [&](std::int64_t blocks) -> const ChunkCost& {
        return price_sample(
                   l, role,
                   {{content[i].first, blocks, repeats, content[i].offloaded, content[i].recomputed}})
            .cost;
      };
      const ChunkCost& a = of(settled);
      settled = std::max(settled, layers_beside_ends(a, of(settled + per), settled, per));
    }
    // What repeats begins with a group that is recomputed together.
    settled += whole_groups(offset, k.recompute_layers) * k.recompute_layers - offset;
    if (content[i].blocks < settled + per) continue;
    extensions.push_back({i, per, (content[i].blocks - settled) / per});
    small[i].blocks -= extensions.back().more * per;
    small[i].repeats = repeats;
  }
  return {std::move(small), std::move(extensions)};
}

// The chunk's ranges, as they are in samples, extended to their lengths.
ChunkCost ChunkCosts::extended(Layout& l, Role role, const ChunkContent& content) {
  const auto [small, extensions] = shortened(l, role, content);
  const Priced& a = price_sample(l, role, small);
  ChunkCost out = a.cost;
  std::array<std::vector<std::int64_t>, kChunkWorks> kept;  // bytes that each extension leaves
  for (const Extension& e : extensions) {
    ChunkContent longer = small;
    longer[e.range].blocks += e.period;
    const ChunkCost& b = price_sample(l, role, longer).cost;
    for (std::size_t w = 0; w < out.size(); ++w) {
      const WorkCost& from = a.cost[w];
      for (const WorkCost::Field time : WorkCost::times())
        out[w].*time = (Time{out[w].*time} + (Time{b[w].*time} - Time{from.*time}) * e.more).value;
      out[w].offloaded += e.more * (b[w].offloaded - from.offloaded);
      kept[w].push_back(e.more * (b[w].net - from.net));
      out[w].net += kept[w].back();
    }
  }
  for (std::size_t w = 0; w < out.size(); ++w) {
    if (w != kChunkForward) std::reverse(kept[w].begin(), kept[w].end());
    const std::vector<std::int64_t>& peaks = a.peaks[w];
    if (peaks.empty() || extensions.empty()) continue;
    out[w].peak = peaks[0];
    // The first of the repeated blocks come on top of what was there, the last on top of what all others
    // left.
    std::int64_t before = 0;
    for (std::size_t i = 0; i < extensions.size(); ++i) {
      const std::int64_t after = before + kept[w][i];
      out[w].peak =
          std::max({out[w].peak, peaks[2 * i + 1] + std::max(before, after), peaks[2 * i + 2] + after});
      before = after;
    }
  }
  return out;
}

// Of a tower's first blocks, before which adapters leave nothing to train, so many that the others repeat.
std::int64_t ChunkCosts::apart_at(const ChunkKey& k, std::int64_t block) const {
  if (!training_.adapter) return 0;
  const TowerIndex own = depth().towers_of(block).own;
  for (std::int64_t b = 0; b < block; ++b) {
    if (depth().towers_of(b).own == own) return 0;
  }
  return std::lcm<std::int64_t>(k.recompute_layers, depth().stretch(block).period);
}

ChunkContent ChunkCosts::content_of(const ChunkKey& k, const BlockRange& blocks) const {
  ChunkContent out;
  for (std::int64_t at = blocks.first, end = blocks.first + blocks.blocks; at < end;) {
    std::int64_t n = std::min(end, depth().stretch(at).end()) - at;
    if (const std::int64_t apart = apart_at(k, at); apart > 0) n = std::min(n, apart);
    const std::int64_t offloaded = blocks.first + k.offloaded_layers - at;  // from here on
    if (offloaded > 0) n = std::min(n, offloaded);
    const std::int64_t recomputed = blocks.first + k.recompute_first - at;
    if (recomputed > 0) n = std::min(n, recomputed);
    out.push_back({depth().canonical(at, n), n, 0, offloaded > 0, recomputed > 0});
    at += n;
  }
  return out;
}

const ChunkCost& ChunkCosts::cost(const ChunkKey& k, Role role, const BlockRange& blocks) {
  Layout& l = layout(k);
  for (const Layout::Known& known : l.costs) {
    if (known.role == role && known.blocks == blocks) return known.cost;
  }
  ChunkCost out = extended(l, role, content_of(k, blocks));
  if (k.backwards == program::Backwards::kBoth) {
    ChunkKey apart = k;
    apart.backwards = program::Backwards::kSplit;
    const ChunkCost& parts = cost(apart, role, blocks);
    for (const ChunkWork w : {kChunkBackwardInput, kChunkWeight}) out[w] = parts[w];
  }
  for (WorkCost& w : out) w.row = w.time;
  if (k.order == ChunkKey::Order::kTurnsAndRows) {
    ChunkKey rows = k;
    rows.order = ChunkKey::Order::kRows;
    const ChunkCost& in_rows = cost(rows, role, blocks);
    for (std::size_t w = 0; w < out.size(); ++w) out[w].row = in_rows[w].time;
  }
  l.costs.push_back({role, blocks, out});
  return l.costs.back().cost;
}

const PairCost& ChunkCosts::pair(const ChunkKey& k, Role role, const BlockRange& blocks) {
  Layout& l = layout(k);
  for (const Layout::KnownPair& known : l.pairs) {
    if (known.role == role && known.blocks == blocks) return known.pair;
  }
  const auto [small, extensions] = shortened(l, role, content_of(k, blocks));
  const PairCost& a = price_pair(l, role, small);
  PairCost out = a;
  std::vector<Longer> forward, backward;
  for (const Extension& e : extensions) {
    ChunkContent longer = small;
    longer[e.range].blocks += e.period;
    const PairCost& b = price_pair(l, role, longer);
    out.saved = (Time{out.saved} + (Time{b.saved} - Time{a.saved}) * e.more).value;
    out.host = (Time{out.host} + (Time{b.host} - Time{a.host}) * e.more).value;
    forward.push_back({&b.forward, e.more});
    backward.push_back({&b.backward, e.more});
  }
  out.forward = lengthened(a.forward, forward);
  out.backward = lengthened(a.backward, backward);
  l.pairs.push_back({role, blocks, std::move(out)});
  return l.pairs.back().pair;
}

std::int64_t ChunkCosts::least_left(const Plan& plan, const BlockRange& blocks, std::int64_t recomputed) {
  if (plan.offloaded_layers() > 0) return 0;
  Plan p = plan;
  p.zero = 0;
  p.offload.reset();
  p.overlap_exchanges = false;
  p.schedule = Schedule::k1F1B;
  const auto left = [&](std::int64_t begin, std::int64_t end, Recompute recompute) {
    p.recompute = recompute;
    p.recompute_layers = 1;
    p.recompute_first = 0;
    Structure& structure = samples_->of(key(p, cluster_.devices_per_node));
    const std::lock_guard lock(structure.mutex);
    const std::vector<Line>& by_kind = structure.left();
    std::int64_t sum = 0;
    for (std::int64_t b = begin; b < end && !by_kind.empty(); ++b)
      sum += by_kind[depth().kind_index(b)].at(plan.micro_batch / structure.least_micro_batch);
    return sum;
  };
  const std::int64_t end = blocks.first + blocks.blocks;
  if (plan.recompute != Recompute::kFull) return left(blocks.first, end, plan.recompute);
  const std::int64_t kept = blocks.first + recomputed;
  // Of blocks that are recomputed together, what the first one begins with.
  const std::int64_t groups = recomputed / plan.recompute_layers;
  return left(blocks.first, blocks.first + groups, Recompute::kFull) + left(kept, end, Recompute::kNone);
}

void ChunkCosts::forget_sizes() {
  layouts_.clear();
  recent_ = nullptr;
}

const program::ModelPieces& ChunkCosts::pieces(const program::WeightRanks& ranks) {
  const auto known = pieces_.find(ranks);
  return (known != pieces_.end()
              ? known
              : pieces_.emplace(ranks, program::ModelPieces(model_, depth(), ranks, training_)).first)
      ->second;
}

std::int64_t ChunkCosts::activation_bytes_of(const ChunkKey& k) const {
  return k.micro_batch * *std::max_element(sample_.tokens.begin(), sample_.tokens.end()) / k.cp *
         model_.hidden * activation_bytes(training_.precision);
}

std::int64_t ChunkCosts::boundary_bytes(const ChunkKey& k) const {
  std::int64_t tokens = 0;
  for (const std::int64_t n : sample_.tokens)
    tokens += k.micro_batch * n / k.cp / (k.sequence_parallel ? k.tp : 1);
  return tokens * model_.hidden * activation_bytes(training_.precision);
}

}  // namespace orrery::sim
