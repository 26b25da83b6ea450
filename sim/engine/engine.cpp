// SPDX-License-Identifier: Apache-2.0
#include "sim/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <queue>
#include <unordered_map>

#include "core/error.h"
#include "core/units.h"

namespace orrery::sim {
namespace {

using program::kCompute;
using program::kStreamCount;
using program::Op;
using program::OpKind;
using program::RankClass;
using program::Segment;
using program::SegmentKind;
using program::Stream;

constexpr std::int64_t kOne = 1 << 16;  // a rate of 1 in fixed point
constexpr int kHost = kStreamCount;     // pseudo-stream for "waited for the host"

struct Lane {
  std::int32_t step = 0, position = 0;  // next op: position within the segment's ops of this stream
  const Op* op = nullptr;               // the op at the head, null when the lane has finished
  std::int32_t op_index = 0;
  std::int64_t done = 0;
  bool running = false, posted = false;  // posted: a transfer waiting for its other end
  int blocked_on = -1;                   // stream (or kHost) the head waits for
  std::int64_t blocked_count = 0;
  std::int64_t ready = 0, start = 0, active = 0, last_end = 0;
  std::int64_t last_active = 0;  // of the op before the head, and what that one waited for
  int last_blocked_on = -1;
  std::int64_t remaining = 0, updated = 0, slow = kOne;
  // An op whose flows share links: first its latency passes, then it flows.
  enum class Flow : std::uint8_t { kNone, kLatent, kFlowing } flow = Flow::kNone;
  std::int64_t device_slow = kOne;  // what compute on the device does to it
  std::int32_t bottleneck = -1;
  std::uint32_t generation = 0;
};

struct Event {
  std::int64_t time;
  std::uint64_t sequence;
  std::int32_t rank, stream;
  std::uint32_t generation;
  bool operator>(const Event& o) const { return std::pair(time, sequence) > std::pair(o.time, o.sequence); }
};

struct Place {
  const RankClass* rank = nullptr;
  std::array<Lane, kStreamCount> lanes;
  // Per segment, the ops of each stream; per step, counts and issue times before it.
  std::vector<std::array<std::vector<std::int32_t>, kStreamCount>> ops;
  std::vector<std::array<std::int32_t, kStreamCount>> base;
  std::vector<std::int64_t> issued;
  ClassReport report;
};

class Engine {
 public:
  Engine(const program::Program& p, const Durations& d, const EngineOptions& o, const Sharing* sharing)
      : program_(p),
        durations_(d),
        options_(o),
        sharing_(sharing != nullptr && !sharing->links.empty() ? sharing : nullptr),
        compute_slow_(static_cast<std::int64_t>(o.compute_slowdown * static_cast<double>(kOne) + 0.5)),
        communication_slow_(
            static_cast<std::int64_t>(o.communication_slowdown * static_cast<double>(kOne) + 0.5)),
        contends_(compute_slow_ != kOne || communication_slow_ != kOne) {
    places_.resize(p.classes.size());
    partner_.resize(places_.size() * kStreamCount);
    for (std::size_t c = 0; c < places_.size(); ++c) prepare(places_[c], p.classes[c]);
    if (sharing_ != nullptr) {
      shares_ = sharing_->shares;
      lost_.resize(sharing_->links.size());
    }
  }

  SimulationResult run() {
    for (std::int32_t c = 0; c < static_cast<std::int32_t>(places_.size()); ++c) {
      for (int s = 0; s < kStreamCount; ++s) find_head(place(c), s);
    }
    for (std::int32_t c = 0; c < static_cast<std::int32_t>(places_.size()); ++c) {
      for (int s = 0; s < kStreamCount; ++s) try_start(c, s);
    }
    for (;;) {
      // Rates count from the next moment on: everything that happens now comes first.
      if (stale_rates_ && (events_.empty() || events_.top().time > now_)) share();
      if (events_.empty()) break;
      const Event e = events_.top();
      events_.pop();
      Lane& lane = place(e.rank).lanes[static_cast<std::size_t>(e.stream)];
      if (e.generation != lane.generation) continue;
      now_ = e.time;
      if (lane.flow == Lane::Flow::kLatent)
        begin_flow(e.rank, e.stream);
      else if (lane.running)
        finish(e.rank, e.stream);
      else
        try_start(e.rank, e.stream);
    }
    return collect();
  }

 private:
  Place& place(std::int32_t c) { return places_[static_cast<std::size_t>(c)]; }

  void prepare(Place& p, const RankClass& rank) {
    p.rank = &rank;
    for (const Segment& s : rank.segments) {
      auto& lists = p.ops.emplace_back();
      for (std::size_t i = 0; i < s.ops.size(); ++i)
        lists[s.ops[i].stream].push_back(static_cast<std::int32_t>(i));
    }
    std::array<std::int32_t, kStreamCount> count{};
    std::int64_t issued = 0;
    for (const program::Step& step : rank.steps) {
      const Segment& s = rank.segments[static_cast<std::size_t>(step.segment)];
      p.base.push_back(count);
      p.issued.push_back(issued);
      for (int q = 0; q < kStreamCount; ++q)
        count[static_cast<std::size_t>(q)] += s.stream_ops[static_cast<std::size_t>(q)];
      issued +=
          options_.host_segment.value + options_.host_op.value * static_cast<std::int64_t>(s.ops.size());
    }
  }

  const Segment& segment(const Place& p, const Lane& lane) const {
    return p.rank
        ->segments[static_cast<std::size_t>(p.rank->steps[static_cast<std::size_t>(lane.step)].segment)];
  }

  // Moves to the next op of the lane, if there is one.
  void find_head(Place& p, int stream) {
    Lane& lane = p.lanes[static_cast<std::size_t>(stream)];
    lane.op = nullptr;
    for (; lane.step < static_cast<std::int32_t>(p.rank->steps.size()); ++lane.step, lane.position = 0) {
      const auto index = static_cast<std::size_t>(p.rank->steps[static_cast<std::size_t>(lane.step)].segment);
      const auto& list = p.ops[index][static_cast<std::size_t>(stream)];
      if (lane.position < static_cast<std::int32_t>(list.size())) {
        lane.op_index = list[static_cast<std::size_t>(lane.position)];
        lane.op = &p.rank->segments[index].ops[static_cast<std::size_t>(lane.op_index)];
        return;
      }
    }
  }

  bool blocked(const Place& p, Lane& lane) const {
    const auto step_index = static_cast<std::size_t>(lane.step);
    const auto& base = p.base[step_index];
    const auto wait_for = [&](int stream, std::int64_t count) {
      if (p.lanes[static_cast<std::size_t>(stream)].done >= count) return false;
      lane.blocked_on = stream;
      lane.blocked_count = count;
      return true;
    };
    for (int s = 0; s < kStreamCount; ++s) {
      const std::int32_t after = lane.op->after[static_cast<std::size_t>(s)];
      if (after > 0 && wait_for(s, base[static_cast<std::size_t>(s)] + after)) return true;
    }
    const program::Step& step = p.rank->steps[step_index];
    for (std::int32_t w = step.first_wait; w < step.first_wait + step.waits; ++w) {
      const program::ExternalWait& wait = p.rank->waits[static_cast<std::size_t>(w)];
      if (wait.op == lane.op_index && wait_for(wait.stream, wait.count)) return true;
    }
    return false;
  }

  void try_start(std::int32_t c, int stream) {
    Place& p = place(c);
    Lane& lane = p.lanes[static_cast<std::size_t>(stream)];
    if (lane.op == nullptr || lane.running || lane.posted || blocked(p, lane)) return;
    const std::int64_t issue = p.issued[static_cast<std::size_t>(lane.step)] + options_.host_segment.value +
                               options_.host_op.value * (lane.op_index + 1);
    if (issue > now_) {
      lane.blocked_on = kHost;
      push(issue, c, stream);
      return;
    }
    lane.ready = now_;
    if (lane.op->kind == OpKind::kSend || lane.op->kind == OpKind::kRecv)
      post(c, stream);
    else
      begin(c, stream, now_);
  }

  void push(std::int64_t time, std::int32_t c, int stream) {
    events_.push(
        {time, sequence_++, c, stream, ++place(c).lanes[static_cast<std::size_t>(stream)].generation});
  }

  // A transfer starts when both ends are at the head of their lanes.
  void post(std::int32_t c, int stream) {
    Lane& lane = place(c).lanes[static_cast<std::size_t>(stream)];
    lane.posted = true;
    lane.start = now_;
    static constexpr int kOther[kStreamCount] = {
        -1, -1, -1, program::kRecv, program::kSend, program::kGradRecv, program::kGradSend};
    const auto peer = static_cast<std::int32_t>(stage_of_chunk(program_.plan, lane.op->peer_chunk));
    const int there = kOther[stream];
    Lane& other = place(peer).lanes[static_cast<std::size_t>(there)];
    if (!other.posted || stage_of_chunk(program_.plan, other.op->peer_chunk) != c) return;
    lane.posted = other.posted = false;
    other.ready = std::min(other.ready, now_);
    const bool sending = lane.op->kind == OpKind::kSend;
    const std::int32_t from = sending ? c : peer;
    const int from_stream = sending ? stream : there;
    Lane& sender = place(from).lanes[static_cast<std::size_t>(from_stream)];
    Lane& receiver = sending ? other : lane;
    receiver.running = sender.running = true;
    receiver.active = sender.active = now_;
    partner_[static_cast<std::size_t>(from) * kStreamCount + static_cast<std::size_t>(from_stream)] =
        sending ? peer : c;
    if (!begin_latency(from, from_stream)) push(now_ + duration(from, sender).value, from, from_stream);
  }

  Time duration(std::int32_t c, const Lane& lane) {
    const auto index =
        static_cast<std::size_t>(place(c).rank->steps[static_cast<std::size_t>(lane.step)].segment);
    return durations_[static_cast<std::size_t>(c)][index][static_cast<std::size_t>(lane.op_index)];
  }

  void begin(std::int32_t c, int stream, std::int64_t at) {
    Lane& lane = place(c).lanes[static_cast<std::size_t>(stream)];
    if (stream == kCompute) account_gap(place(c), lane, at);
    lane.running = true;
    lane.start = lane.active = lane.updated = at;
    lane.remaining = duration(c, lane).value;
    lane.slow = lane.device_slow = kOne;
    const bool flows = stream != kCompute && begin_latency(c, stream);
    if (contends_) {
      change_rates(c);
      if (lane.slow != kOne) return;  // change_rates scheduled it
    }
    if (!flows) push(at + lane.remaining, c, stream);
  }

  const Sharing::Flow& flow_of(std::int32_t c, const Lane& lane) {
    const auto index =
        static_cast<std::size_t>(place(c).rank->steps[static_cast<std::size_t>(lane.step)].segment);
    return sharing_->ops[static_cast<std::size_t>(c)][index][static_cast<std::size_t>(lane.op_index)];
  }

  // False when the op shares no links.
  bool begin_latency(std::int32_t c, int stream) {
    if (sharing_ == nullptr) return false;
    Lane& lane = place(c).lanes[static_cast<std::size_t>(stream)];
    const Sharing::Flow& flow = flow_of(c, lane);
    if (flow.pattern < 0) return false;
    const std::int64_t all = duration(c, lane).value, latency = std::min(all, flow.latency.value);
    lane.remaining = all - latency;
    lane.flow = Lane::Flow::kLatent;
    push(now_ + latency, c, stream);
    return true;
  }

  void begin_flow(std::int32_t c, int stream) {
    Lane& lane = place(c).lanes[static_cast<std::size_t>(stream)];
    lane.flow = Lane::Flow::kFlowing;
    lane.updated = now_;
    lane.slow = 0;  // share() sets and schedules it
    const std::pair at{c, stream};
    flowing_.insert(std::upper_bound(flowing_.begin(), flowing_.end(), at), at);
    stale_rates_ = true;
  }

  void end_flow(std::int32_t c, int stream) {
    Lane& lane = place(c).lanes[static_cast<std::size_t>(stream)];
    if (lane.flow == Lane::Flow::kNone) return;
    account_loss(lane);
    lane.flow = Lane::Flow::kNone;
    flowing_.erase(std::find(flowing_.begin(), flowing_.end(), std::pair{c, stream}));
    stale_rates_ = true;
  }

  void account_loss(const Lane& lane) {
    if (lane.bottleneck < 0 || lane.slow == 0) return;
    const std::int64_t passed = now_ - lane.updated;
    lost_[static_cast<std::size_t>(lane.bottleneck)] += passed - mul_div(passed, kOne, lane.slow);
  }

  // The fair rates of everything that flows. The same flows come together again and again: what was solved
  // is kept.
  void share() {
    stale_rates_ = false;
    key_.clear();
    for (const auto& [c, stream] : flowing_) {
      const Lane& lane = place(c).lanes[static_cast<std::size_t>(stream)];
      const Sharing::Flow& flow = flow_of(c, lane);
      key_.push_back(flow.pattern);
      key_.push_back(mul_div(flow.rate, kOne, lane.device_slow));
    }
    constexpr std::size_t kMostKnown = 1 << 16;
    if (known_.size() > kMostKnown) known_.clear();
    auto found = known_.find(key_);
    if (found == known_.end()) found = known_.emplace(key_, solve()).first;
    for (std::size_t i = 0; i < flowing_.size(); ++i) {
      const auto [c, stream] = flowing_[i];
      Lane& lane = place(c).lanes[static_cast<std::size_t>(stream)];
      const auto [rate, bottleneck] = found->second[i];
      const std::int64_t slow =
          std::max(kOne, mul_div(flow_of(c, lane).rate, kOne, std::max<std::int64_t>(1, rate)));
      account_loss(lane);
      lane.bottleneck = bottleneck;
      if (slow == lane.slow) {
        advance(lane);
        continue;
      }
      set_slow(c, stream, slow);
    }
  }

  using Solved = std::vector<std::pair<std::int64_t, std::int32_t>>;  // rate and bottleneck
  Solved solve() {
    std::vector<std::int32_t> active;
    std::vector<std::int64_t> limits;
    for (std::size_t i = 0; i < key_.size(); i += 2) {
      active.push_back(static_cast<std::int32_t>(key_[i]));
      limits.push_back(key_[i + 1]);
    }
    const auto rates = shares_.solve(active, limits);
    Solved out;
    for (std::size_t i = 0; i < rates.size(); ++i) out.emplace_back(rates[i], shares_.bottlenecks()[i]);
    return out;
  }

  // A gap of compute is due to the lane it waited for, from when that lane's last op was active; what came
  // before is due to what that op waited for in its turn.
  void account_gap(Place& p, const Lane& lane, std::int64_t at) const {
    std::int64_t until = at;
    for (int cause = lane.blocked_on; until > lane.last_end;) {
      if (cause == kHost || cause < 0) {
        p.report.host += Time{until - lane.last_end};
        return;
      }
      const Lane& other = p.lanes[static_cast<std::size_t>(cause)];
      const bool goes_on = other.last_blocked_on > kCompute && other.last_blocked_on != kHost &&
                           other.last_active < until && other.last_active > lane.last_end;
      const std::int64_t from = goes_on ? other.last_active : lane.last_end;
      p.report.exposed[static_cast<std::size_t>(cause)] += Time{until - from};
      until = from;
      cause = other.last_blocked_on;
    }
  }

  // Compute, tensor and data lanes of a device share it; called when one of them starts or stops.
  void change_rates(std::int32_t c) {
    Place& p = place(c);
    const bool computing = p.lanes[kCompute].running;
    const bool communicating = p.lanes[program::kTp].running || p.lanes[program::kDp].running;
    const auto set = [&](int stream, std::int64_t slow) {
      Lane& lane = p.lanes[static_cast<std::size_t>(stream)];
      if (lane.flow != Lane::Flow::kNone) {
        stale_rates_ = stale_rates_ || lane.device_slow != slow;
        lane.device_slow = slow;
      } else if (lane.running && lane.slow != slow) {
        set_slow(c, stream, slow);
      }
    };
    set(kCompute, communicating ? compute_slow_ : kOne);
    set(program::kTp, computing ? communication_slow_ : kOne);
    set(program::kDp, computing ? communication_slow_ : kOne);
  }

  // What is left of a running op, as of now.
  void advance(Lane& lane) const {
    if (lane.slow > 0)
      lane.remaining -= std::min(lane.remaining, mul_div(now_ - lane.updated, kOne, lane.slow));
    lane.updated = now_;
  }

  void set_slow(std::int32_t c, int stream, std::int64_t slow) {
    Lane& lane = place(c).lanes[static_cast<std::size_t>(stream)];
    advance(lane);
    lane.slow = slow;
    push(now_ + mul_div_up(lane.remaining, slow, kOne), c, stream);
  }

  void finish(std::int32_t c, int stream) {
    if (sharing_ != nullptr) end_flow(c, stream);
    complete(c, stream);
    const bool transfer = stream >= program::kSend;
    if (transfer) {
      const std::int32_t peer =
          partner_[static_cast<std::size_t>(c) * kStreamCount + static_cast<std::size_t>(stream)];
      const int there = stream == program::kSend ? program::kRecv : program::kGradRecv;
      complete(peer, there);
      wake(peer, there);
    } else if (contends_) {
      change_rates(c);
    }
    wake(c, stream);
  }

  void complete(std::int32_t c, int stream) {
    Place& p = place(c);
    Lane& lane = p.lanes[static_cast<std::size_t>(stream)];
    lane.running = false;
    const Time spent{now_ - lane.active};
    p.report.busy[static_cast<std::size_t>(stream)] += spent;
    if (stream == kCompute) {
      const SegmentKind kind = segment(p, lane).kind;
      if ((lane.op->flags & program::kRecomputed) != 0)
        p.report.recompute += spent;
      else if (kind == SegmentKind::kForward)
        p.report.forward += spent;
      else if (kind == SegmentKind::kOptimizer)
        p.report.optimizer += spent;
      else
        p.report.backward += spent;
    }
    if (options_.record)
      slices_.push_back({c, stream, lane.step, lane.op_index, lane.ready, lane.start, lane.active, now_});
    lane.last_end = now_;
    lane.last_active = lane.active;
    lane.last_blocked_on = lane.blocked_on;
    lane.blocked_on = -1;
    ++lane.done;
    ++lane.position;
    ++ops_;
    end_ = std::max(end_, now_);
    find_head(p, stream);
  }

  // Lanes that waited for this one, then the lane itself.
  void wake(std::int32_t c, int stream) {
    Place& p = place(c);
    for (int s = 0; s < kStreamCount; ++s) {
      Lane& lane = p.lanes[static_cast<std::size_t>(s)];
      if (s == stream ||
          (lane.blocked_on == stream && p.lanes[static_cast<std::size_t>(stream)].done >= lane.blocked_count))
        try_start(c, s);
    }
  }

  SimulationResult collect() {
    SimulationResult r;
    r.step = Time{end_};
    r.ops = ops_;
    std::string stuck;
    for (Place& p : places_) {
      for (const Lane& lane : p.lanes) {
        if (lane.op != nullptr)
          stuck +=
              "\n  " + describe_op(*p.rank, p.rank->steps[static_cast<std::size_t>(lane.step)], *lane.op);
      }
      // What happens after the last compute op is exposed too.
      int last = kCompute;
      for (int s = 0; s < kStreamCount; ++s) {
        if (p.lanes[static_cast<std::size_t>(s)].last_end > p.lanes[static_cast<std::size_t>(last)].last_end)
          last = s;
      }
      const Time tail{end_ - p.lanes[kCompute].last_end};
      if (tail.value > 0)
        p.report.exposed[static_cast<std::size_t>(last == kCompute ? program::kRecv : last)] += tail;
      r.classes.push_back(p.report);
    }
    if (!stuck.empty()) throw Error("the program cannot finish; waiting:" + stuck);
    for (std::size_t l = 0; l < lost_.size(); ++l) {
      if (lost_[l] > 0) r.links.push_back({sharing_->links[l], Time{lost_[l]}});
    }
    std::stable_sort(r.links.begin(), r.links.end(),
                     [](const LinkReport& a, const LinkReport& b) { return a.lost > b.lost; });
    if (options_.record) fill_timeline(r.timeline);
    return r;
  }

  struct Done {
    std::int32_t rank;
    int stream;
    std::int32_t step, op;
    std::int64_t ready, start, active, end;
  };

  void fill_timeline(Timeline& t) const {
    t.source = "predicted: event engine";
    t.program_hash = program_.hash();
    for (const char* s : program::kStreamNames) t.streams.emplace_back(s);
    for (const char* s : program::kSegmentNames) t.segments.emplace_back(s);
    std::map<std::string_view, std::int32_t> names;
    for (const Done& d : slices_) {
      const Place& p = places_[static_cast<std::size_t>(d.rank)];
      const program::Step& step = p.rank->steps[static_cast<std::size_t>(d.step)];
      const Segment& s = p.rank->segments[static_cast<std::size_t>(step.segment)];
      const Op& op = s.ops[static_cast<std::size_t>(d.op)];
      const auto [name, added] = names.try_emplace(op.name, static_cast<std::int32_t>(t.names.size()));
      if (added) t.names.push_back(op.name);
      t.slices.push_back({name->second, static_cast<std::int32_t>(s.kind),
                          p.rank->chunks[static_cast<std::size_t>(s.chunk)], step.micro_batch, p.rank->stage,
                          d.stream, Time{d.ready}, Time{d.start}, Time{d.active}, Time{d.end}});
    }
    for (const Place& p : places_) t.rank_labels.push_back(fmt::format("stage {}", p.rank->stage));
  }

  const program::Program& program_;
  const Durations& durations_;
  EngineOptions options_;
  const Sharing* sharing_;
  std::int64_t compute_slow_, communication_slow_;
  bool contends_;
  std::vector<Place> places_;
  std::vector<std::int32_t> partner_;  // of the transfer a sending lane runs
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Done> slices_;
  std::int64_t now_ = 0, end_ = 0, ops_ = 0;
  std::uint64_t sequence_ = 0;

  // Flows on shared links.
  struct KeyHash {
    std::size_t operator()(const std::vector<std::int64_t>& key) const {
      std::uint64_t h = 0;
      for (const std::int64_t k : key) h = (h ^ static_cast<std::uint64_t>(k)) * 0x9e3779b97f4a7c15ULL;
      return h ^ (h >> 32);
    }
  };
  FairShares shares_{{}};
  std::vector<std::pair<std::int32_t, int>> flowing_;  // lanes, in order
  std::unordered_map<std::vector<std::int64_t>, Solved, KeyHash> known_;
  std::vector<std::int64_t> key_;   // pattern and limit of each that flows
  std::vector<std::int64_t> lost_;  // by link
  bool stale_rates_ = false;
};

}  // namespace

SimulationResult simulate(const program::Program& program, const Durations& durations,
                          const EngineOptions& options, const Sharing* sharing) {
  return Engine(program, durations, options, sharing).run();
}

}  // namespace orrery::sim
