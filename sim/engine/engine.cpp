// SPDX-License-Identifier: Apache-2.0
#include "sim/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/container/static_vector.hpp>
#include <limits>
#include <span>

#include "core/error.h"
#include "core/units.h"
#include "sim/engine/events.h"
#include "sim/engine/rates.h"
#include "sim/engine/recorder.h"
#include "sim/engine/walk.h"

namespace orrery::sim {
namespace {

using program::kCompute;
using program::kMostStreams;
using program::Op;
using program::RankClass;
using program::Segment;
using program::SegmentKind;
using program::StreamRole;

constexpr std::int64_t kOne = 1 << 16;  // a rate of 1 in fixed point
constexpr int kHost = kMostStreams;     // pseudo-stream for "waited for the host"

__extension__ using Wide = __int128;

std::int64_t fixed(double factor) {
  return static_cast<std::int64_t>(factor * static_cast<double>(kOne) + 0.5);
}

// What a lane runs. Where places meet, the first of them leads: its lane has the work.
struct LaneWork {
  std::int64_t remaining = 0, updated = 0, slow = kOne;
  std::int64_t device_slow = kOne;  // what compute on its devices does to a flow
  std::int64_t held_since = 0;      // by the bottleneck
  std::int32_t bottleneck = -1;
  std::int32_t computing = 0;  // how many of its devices compute meanwhile
  std::uint32_t generation = 0;
  // An op whose flows share links: first its latency passes, then it flows.
  enum class Phase : std::uint8_t { kWhole, kLatent, kFlowing } phase = Phase::kWhole;
  bool unsettled = false;  // its rate is set before time goes on
};

struct EngineLane {
  std::int32_t step = 0, position = 0;  // next op: position within the segment's ops of this stream
  const Op* op = nullptr;               // the op at the head, null when the lane has finished
  std::int32_t op_index = 0;
  std::int32_t meeting = -1;  // of the op at the head
  std::int64_t done = 0;
  bool running = false, posted = false;  // posted: it waits for other places
  int blocked_on = -1;                   // stream (or kHost) the head waits for
  std::int64_t blocked_count = 0;
  std::int64_t ready = 0, start = 0, active = 0, last_end = 0;
  std::int64_t last_active = 0;  // of the op before the head, and what that one waited for
  int last_blocked_on = -1;
  LaneWork work;
};

struct Event {
  std::int32_t place, stream;
  std::uint32_t generation;  // of the lane's work: an outdated event is passed over
};

struct Site {
  const Walk* walk = nullptr;
  std::span<EngineLane> lanes;                        // by stream
  std::array<std::uint32_t, kMostStreams> waiting{};  // by stream: lanes that may wait for it, a bit each
  static_assert(kMostStreams <= 32);
  PlaceReport report;
};

class Engine {
 public:
  Engine(const program::Program& p, const Layout& layout, const EngineOptions& o)
      : program_(p),
        layout_(layout),
        options_(o),
        lanes_(layout.places.size() * p.communication.streams.size()),
        streams_(static_cast<int>(p.communication.streams.size())),
        exchanges_(p.communication.stream("ep")),
        arrived_(layout.meetings.size()),
        rates_(layout.shares),
        lost_(layout.links.size()),
        stage_ranks_(p.classes.size()) {
    for (int s = 0; s < streams_; ++s) {
      if (role_of(s) == StreamRole::kCollectives) collectives_.push_back(s);
      if (role_of(s) == StreamRole::kReceives && receives_ == kCompute) receives_ = s;
    }
    std::vector<std::int64_t> ops;  // of a place, by stage
    for (const RankClass& c : p.classes) {
      for (const Pace& pace : layout.paces) {
        Walk& walk = walks_.emplace_back(walk_of(c, pace));
        walk.compute_slow = fixed(pace.compute_slowdown);
        walk.exchange_slow = fixed(pace.beside_exchanges());
        walk.communication_slow = fixed(pace.communication_slowdown);
        contends_ |= walk.exchange_slow != kOne || walk.communication_slow != kOne;
      }
      ops.push_back(0);
      for (const program::Step& step : c.steps)
        ops.back() += std::ssize(c.segments[static_cast<std::size_t>(step.segment)].ops);
    }
    sites_.resize(layout.places.size());
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      const Place& at = layout.places[i];
      const auto n = static_cast<std::size_t>(streams_);
      sites_[i].lanes = std::span(lanes_).subspan(i * n, n);
      sites_[i].walk = &walks_[static_cast<std::size_t>(at.stage) * layout.paces.size() +
                               static_cast<std::size_t>(at.pace)];
      sites_[i].report.stage = at.stage;
      sites_[i].report.ranks = at.ranks;
      sites_[i].report.first_rank = at.first_rank;
      stage_ranks_[static_cast<std::size_t>(at.stage)] += at.ranks;
      all_ops_ += ops[static_cast<std::size_t>(at.stage)];
    }
    leads_.resize(layout.shares.activities(), -1);
    for (std::size_t m = 0; m < layout.meetings.size(); ++m) {
      if (const std::int32_t a = layout.meetings[m].activity; a >= 0)
        leads_[static_cast<std::size_t>(a)] = static_cast<std::int32_t>(m);
    }
  }

  SimulationResult run() {
    const auto places = static_cast<std::int32_t>(sites_.size());
    for (std::int32_t c = 0; c < places; ++c) {
      for (int s = 0; s < streams_; ++s) find_head(c, s);
    }
    for (std::int32_t c = 0; c < places; ++c) {
      for (int s = 0; s < streams_; ++s) try_start(c, s);
    }
    for (;;) {
      // Rates count from the next moment on: everything that happens now comes first.
      if (events_.empty() || events_.next() > now_) settle();
      if (events_.empty()) break;
      const std::int64_t time = events_.next();
      const Event e = events_.pop();
      EngineLane& lane = lane_of(e.place, e.stream);
      if (e.generation != lane.work.generation) continue;
      now_ = time;
      if (!lane.running)
        try_start(e.place, e.stream);
      else if (lane.work.phase == LaneWork::Phase::kLatent)
        begin_flow(lane);
      else
        finish(e.place, e.stream);
    }
    return collect();
  }

 private:
  StreamRole role_of(int stream) const {
    return program_.communication.streams[static_cast<std::size_t>(stream)].role;
  }
  Site& site(std::int32_t c) { return sites_[static_cast<std::size_t>(c)]; }
  EngineLane& lane_of(std::int32_t c, int stream) { return site(c).lanes[static_cast<std::size_t>(stream)]; }
  const Meeting& meeting_of(const EngineLane& lane) const {
    return layout_.meetings[static_cast<std::size_t>(lane.meeting)];
  }
  EngineLane& leader_of(const Meeting& m) { return lane_of(m.ends.front().place, m.ends.front().stream); }

  std::size_t segment_of(const Site& p, const EngineLane& lane) const {
    return static_cast<std::size_t>(p.walk->rank->steps[static_cast<std::size_t>(lane.step)].segment);
  }

  // Moves to the next op of the lane, if there is one.
  void find_head(std::int32_t c, int stream) {
    Site& p = site(c);
    EngineLane& lane = p.lanes[static_cast<std::size_t>(stream)];
    lane.op = nullptr;
    const RankClass& rank = *p.walk->rank;
    for (; lane.step < static_cast<std::int32_t>(rank.steps.size()); ++lane.step, lane.position = 0) {
      const std::size_t index = segment_of(p, lane);
      const auto& list = p.walk->ops[index][static_cast<std::size_t>(stream)];
      if (lane.position >= static_cast<std::int32_t>(list.size())) continue;
      lane.op_index = list[static_cast<std::size_t>(lane.position)];
      const auto op = static_cast<std::size_t>(lane.op_index);
      lane.op = &rank.segments[index].ops[op];
      if (stream == kCompute) return;
      const std::int32_t slot = layout_.partners[static_cast<std::size_t>(p.report.stage)].slot[index][op];
      lane.meeting =
          slot < 0 ? -1 : layout_.meeting[static_cast<std::size_t>(c)][static_cast<std::size_t>(slot)];
      return;
    }
  }

  bool blocked(Site& p, EngineLane& lane, int stream) const {
    const auto step_index = static_cast<std::size_t>(lane.step);
    const auto& base = p.walk->base[step_index];
    const auto wait_for = [&](int other, std::int64_t count) {
      if (p.lanes[static_cast<std::size_t>(other)].done >= count) return false;
      lane.blocked_on = other;
      lane.blocked_count = count;
      p.waiting[static_cast<std::size_t>(other)] |= 1U << stream;
      return true;
    };
    for (int s = 0; s < streams_; ++s) {
      const std::int32_t after = lane.op->after[static_cast<std::size_t>(s)];
      if (after > 0 && wait_for(s, base[static_cast<std::size_t>(s)] + after)) return true;
    }
    const program::Step& step = p.walk->rank->steps[step_index];
    for (std::int32_t w = step.first_wait; w < step.first_wait + step.waits; ++w) {
      const program::ExternalWait& wait = p.walk->rank->waits[static_cast<std::size_t>(w)];
      if (wait.op == lane.op_index && wait_for(wait.stream, wait.count)) return true;
    }
    return false;
  }

  void try_start(std::int32_t c, int stream) {
    Site& p = site(c);
    EngineLane& lane = p.lanes[static_cast<std::size_t>(stream)];
    if (lane.op == nullptr || lane.running || lane.posted || blocked(p, lane, stream)) return;
    const Time issue = p.walk->issued[static_cast<std::size_t>(lane.step)] + p.walk->pace.host_segment +
                       p.walk->pace.host_op * (lane.op_index + 1);
    if (issue.value > now_) {
      lane.blocked_on = kHost;
      push(later(issue.value - now_), c, stream);
      return;
    }
    lane.ready = lane.start = now_;
    if (stream == kCompute)
      compute(c);
    else if (lane.meeting < 0)
      run_alone(c, stream);
    else
      meet(lane);
  }

  // Copies, and work of the host: nothing on the device slows them.
  void run_alone(std::int32_t c, int stream) {
    EngineLane& lane = lane_of(c, stream);
    begin(lane, cost_of(c, lane).time.value);
    push(later(lane.work.remaining), c, stream);
  }

  void push(std::int64_t time, std::int32_t c, int stream) {
    events_.push(time, {c, stream, ++lane_of(c, stream).work.generation});
  }

  std::int64_t later(std::int64_t duration) const {
    if (duration > kLongestStep.value - now_)
      options_.scenario.fail("the step takes longer than 53 days",
                             "allowed: a smaller model or batch, or faster devices and links");
    return now_ + duration;
  }

  OpCost cost_of(std::int32_t c, const EngineLane& lane) {
    const auto table = static_cast<std::size_t>(layout_.places[static_cast<std::size_t>(c)].costs);
    return layout_.costs[table][segment_of(site(c), lane)][static_cast<std::size_t>(lane.op_index)];
  }

  Time compute_time(const Site& p, const EngineLane& lane, Time alone) const {
    if (options_.document_loads.empty() || !program::is_of_documents(lane.op->kind)) return alone;
    const program::Step& step = p.walk->rank->steps[static_cast<std::size_t>(lane.step)];
    return from_seconds(seconds(alone) * options_.document_loads[static_cast<std::size_t>(step.micro_batch)]);
  }

  void compute(std::int32_t c) {
    Site& p = site(c);
    EngineLane& lane = p.lanes[kCompute];
    account_gap(p, lane);
    begin(lane, compute_time(p, lane, cost_of(c, lane).time).value);
    if (!contends_) return push(later(lane.work.remaining), c, kCompute);
    unsettle(c, kCompute);
    change_computing(p, 1);
  }

  // Communication starts when all that take part are at the heads of their lanes.
  void meet(EngineLane& lane) {
    const Meeting& m = meeting_of(lane);
    std::int32_t& arrived = arrived_[static_cast<std::size_t>(lane.meeting)];
    lane.posted = true;
    if (++arrived < static_cast<std::int32_t>(m.ends.size())) return;
    arrived = 0;
    const auto [first, stream] = m.ends.front();
    EngineLane& leader = leader_of(m);
    const OpCost cost = cost_of(first, leader);
    for (const Meeting::End& e : m.ends) {
      EngineLane& member = lane_of(e.place, e.stream);
      member.posted = false;
      member.running = true;
      member.active = now_;
    }
    begin(leader, cost.time.value);
    leader.work.computing = 0;
    const bool slowed = contends_ && role_of(stream) == StreamRole::kCollectives;
    if (slowed) {
      for (const Meeting::End& e : m.ends) {
        leader.work.computing += lane_of(e.place, kCompute).running ? 1 : 0;
        unsettle(e.place, kCompute);
      }
    }
    if (m.activity >= 0 && cost.rate > 0) {
      const std::int64_t latency = std::min(cost.time.value, cost.latency.value);
      leader.work.remaining -= latency;
      leader.work.phase = LaneWork::Phase::kLatent;
      push(later(latency), first, stream);
    } else if (slowed) {
      unsettle(first, stream);
    } else {
      push(later(cost.time.value), first, stream);
    }
  }

  void begin(EngineLane& lane, std::int64_t work) const {
    lane.running = true;
    lane.active = lane.work.updated = now_;
    lane.work.remaining = work;
    lane.work.slow = 0;  // until settle() sets it; nobody reads it where ops never slow each other
    lane.work.device_slow = kOne;
    lane.work.phase = LaneWork::Phase::kWhole;
  }

  void begin_flow(EngineLane& lane) {
    LaneWork& w = lane.work;
    const Meeting& m = meeting_of(lane);
    w.phase = LaneWork::Phase::kFlowing;
    w.updated = w.held_since = now_;
    w.bottleneck = -1;
    w.device_slow = 0;
    unsettle(m.ends.front().place, m.ends.front().stream);
  }

  // Compute and collectives of a device share it.
  void change_computing(Site& p, std::int32_t by) {
    for (const int stream : collectives_) {
      const EngineLane& lane = p.lanes[static_cast<std::size_t>(stream)];
      if (!lane.running) continue;
      const Meeting& m = meeting_of(lane);
      leader_of(m).work.computing += by;
      unsettle(m.ends.front().place, m.ends.front().stream);
    }
  }

  void unsettle(std::int32_t c, int stream) {
    if (std::exchange(lane_of(c, stream).work.unsettled, true)) return;
    unsettled_.push_back({c, static_cast<program::StreamIndex>(stream)});
  }

  // Sets the rates of what runs from now on.
  void settle() {
    for (const Meeting::End& e : unsettled_) {
      EngineLane& lane = lane_of(e.place, e.stream);
      lane.work.unsettled = false;
      if (lane.running) set_device_slow(e, lane);
    }
    unsettled_.clear();
    if (!rates_.stale()) return;
    for (const Rates::Rate& r : rates_.update()) {
      const Meeting& m =
          layout_.meetings[static_cast<std::size_t>(leads_[static_cast<std::size_t>(r.activity)])];
      const auto [place, stream] = m.ends.front();
      EngineLane& lane = leader_of(m);
      const std::int64_t slow =
          std::max(kOne, mul_div(cost_of(place, lane).rate, kOne, std::max<std::int64_t>(1, r.rate)));
      if (slow == lane.work.slow && r.bottleneck == lane.work.bottleneck) continue;
      account_loss(m, lane.work);
      lane.work.bottleneck = r.bottleneck;
      if (slow != lane.work.slow) set_slow(place, stream, slow);
    }
  }

  void set_device_slow(const Meeting::End& e, EngineLane& lane) {
    LaneWork& w = lane.work;
    std::int64_t slow = kOne;
    if (e.stream == kCompute) {
      const Site& p = site(e.place);
      const auto runs = [&](int s) { return p.lanes[static_cast<std::size_t>(s)].running; };
      if (runs(exchanges_))
        slow = p.walk->exchange_slow;
      else if (std::any_of(collectives_.begin(), collectives_.end(), runs))
        slow = p.walk->compute_slow;
    } else if (w.computing > 0) {
      for (const Meeting::End& end : meeting_of(lane).ends)
        slow = std::max(slow, site(end.place).walk->communication_slow);
    }
    if (w.phase == LaneWork::Phase::kWhole) {
      if (slow != w.slow) set_slow(e.place, e.stream, slow);
    } else if (w.phase == LaneWork::Phase::kFlowing && slow != w.device_slow) {
      w.device_slow = slow;
      rates_.start(meeting_of(lane).activity,
                   std::max<std::int64_t>(1, mul_div(cost_of(e.place, lane).rate, kOne, slow)));
    }
  }

  void set_slow(std::int32_t c, int stream, std::int64_t slow) {
    LaneWork& w = lane_of(c, stream).work;
    if (w.slow > 0) w.remaining -= std::min(w.remaining, mul_div(now_ - w.updated, kOne, w.slow));
    w.updated = now_;
    w.slow = slow;
    push(later(mul_div_up(w.remaining, slow, kOne)), c, stream);
  }

  void account_loss(const Meeting& m, LaneWork& w) {
    const std::int64_t passed = now_ - std::exchange(w.held_since, now_);
    if (w.bottleneck < 0 || w.slow == 0) return;
    const auto stream = m.ends.front().stream;
    std::int64_t ranks = 0;
    for (const Meeting::End& e : m.ends) {
      if (e.stream == stream) ranks += site(e.place).report.ranks;
    }
    const auto stage = static_cast<std::size_t>(site(m.ends.front().place).report.stage);
    const auto link = static_cast<std::size_t>(layout_.shared_link[static_cast<std::size_t>(w.bottleneck)]);
    lost_[link] += static_cast<double>(passed - mul_div(passed, kOne, w.slow)) * static_cast<double>(ranks) /
                   static_cast<double>(stage_ranks_[stage]);
  }

  static Time& of(Site& p, StageWork w) { return p.report.work[static_cast<std::size_t>(w)]; }
  // Of the report, what the op at a lane's head is part of.
  Time& work_of(Site& p, const EngineLane& lane) const {
    const program::RankClass& rank = *p.walk->rank;
    if (rank.steps[static_cast<std::size_t>(lane.step)].side_by_side) return of(p, StageWork::kSideBySide);
    switch (rank.segments[segment_of(p, lane)].kind) {
      case SegmentKind::kForward:
        return of(p, StageWork::kForward);
      case SegmentKind::kBackward:
        return of(p, StageWork::kBackward);
      case SegmentKind::kBackwardInput:
        return of(p, StageWork::kBackwardInput);
      case SegmentKind::kBackwardWeight:
        return of(p, StageWork::kBackwardWeight);
      case SegmentKind::kOptimizer:
      case SegmentKind::kOuter:
        break;
    }
    return of(p, StageWork::kOptimizer);
  }

  // A gap of compute is due to the lane it waited for, from when that lane's last op was active; what came
  // before is due to what that op waited for in its turn.
  void account_gap(Site& p, const EngineLane& lane) const {
    std::int64_t until = now_;
    Time& work = work_of(p, lane);
    for (int cause = lane.blocked_on; until > lane.last_end;) {
      if (cause == kHost || cause < 0) {
        p.report.host += Time{until - lane.last_end};
        work += Time{until - lane.last_end};
        return;
      }
      const EngineLane& other = p.lanes[static_cast<std::size_t>(cause)];
      const bool goes_on = other.last_blocked_on > kCompute && other.last_blocked_on != kHost &&
                           other.last_active < until && other.last_active > lane.last_end;
      const std::int64_t from = goes_on ? other.last_active : lane.last_end;
      p.report.exposed[static_cast<std::size_t>(cause)] += Time{until - from};
      (is_transfer(role_of(cause)) ? p.report.idle : work) += Time{until - from};
      until = from;
      cause = other.last_blocked_on;
    }
  }

  void finish(std::int32_t c, int stream) {
    if (stream == kCompute) {
      complete(c, kCompute);
      if (contends_) change_computing(site(c), -1);
      return wake(c, kCompute);
    }
    if (lane_of(c, stream).meeting < 0) {
      complete(c, stream);
      return wake(c, stream);
    }
    EngineLane& leader = lane_of(c, stream);
    const Meeting& m = meeting_of(leader);
    if (leader.work.phase == LaneWork::Phase::kFlowing) {
      account_loss(m, leader.work);
      rates_.stop(m.activity);
    }
    for (const Meeting::End& e : m.ends) {
      complete(e.place, e.stream);
      if (contends_) unsettle(e.place, kCompute);
    }
    for (const Meeting::End& e : m.ends) wake(e.place, e.stream);
  }

  void complete(std::int32_t c, int stream) {
    Site& p = site(c);
    EngineLane& lane = p.lanes[static_cast<std::size_t>(stream)];
    lane.running = false;
    const Time spent{now_ - lane.active};
    p.report.busy[static_cast<std::size_t>(stream)] += spent;
    if (stream == kCompute) {
      work_of(p, lane) += spent;
      const SegmentKind kind = p.walk->rank->segments[segment_of(p, lane)].kind;
      if (lane.op->is<program::ops::Handover>())
        p.report.host += spent;
      else if (lane.op->recomputed)
        p.report.recompute += spent;
      else if (is_backward(kind))
        p.report.backward += spent;
      else if (follows_chunks(kind))
        p.report.optimizer += spent;
      else
        p.report.forward += spent;
    }
    if (options_.record)
      recorder_.add({c, stream, lane.step, lane.op_index, lane.ready, lane.start, lane.active, now_});
    lane.last_end = now_;
    lane.last_active = lane.active;
    lane.last_blocked_on = lane.blocked_on;
    lane.blocked_on = -1;
    ++lane.done;
    ++lane.position;
    constexpr std::int64_t kTold = 1 << 16;
    if (++ops_ % kTold == 0 && options_.progress)
      options_.progress(static_cast<double>(ops_) / static_cast<double>(all_ops_));
    end_ = std::max(end_, now_);
    find_head(c, stream);
  }

  // The lane, and lanes that waited for it.
  void wake(std::int32_t c, int stream) {
    Site& p = site(c);
    unsigned lanes = std::exchange(p.waiting[static_cast<std::size_t>(stream)], 0U) | 1U << stream;
    const std::int64_t done = p.lanes[static_cast<std::size_t>(stream)].done;
    for (int s = 0; lanes != 0; ++s, lanes >>= 1) {
      if ((lanes & 1) == 0) continue;
      const EngineLane& lane = p.lanes[static_cast<std::size_t>(s)];
      if (s == stream || (lane.blocked_on == stream && done >= lane.blocked_count))
        try_start(c, s);
      else if (lane.blocked_on == stream)
        p.waiting[static_cast<std::size_t>(stream)] |= 1U << s;
    }
  }

  SimulationResult collect() {
    SimulationResult r;
    r.step = Time{end_};
    r.ops = ops_;
    std::string stuck;
    std::int64_t waiting = 0;
    for (Site& p : sites_) {
      for (const EngineLane& lane : p.lanes) {
        constexpr std::int64_t kMostNamed = 40;
        if (lane.op != nullptr && ++waiting <= kMostNamed) {
          stuck += "\n  " + describe_op(*p.walk->rank,
                                        p.walk->rank->steps[static_cast<std::size_t>(lane.step)], *lane.op);
        }
      }
      // What happens after the last compute op is exposed too: it waits for other stages where no stream of
      // its own ends later.
      int last = kCompute;
      for (int s = 0; s < streams_; ++s) {
        if (p.lanes[static_cast<std::size_t>(s)].last_end > p.lanes[static_cast<std::size_t>(last)].last_end)
          last = s;
      }
      const Time tail{end_ - p.lanes[kCompute].last_end};
      if (tail.value > 0)
        p.report.exposed[static_cast<std::size_t>(last == kCompute ? receives_ : last)] += tail;
      // Collectives and copies that end later than compute are the optimizer's.
      (last == kCompute || is_transfer(role_of(last)) ? p.report.idle : of(p, StageWork::kOptimizer)) += tail;
      r.places.push_back(p.report);
    }
    if (waiting > 0) throw Error(fmt::format("the program cannot finish; {} ops wait:{}", waiting, stuck));
    for (std::size_t l = 0; l < lost_.size(); ++l) {
      if (lost_[l] >= 1) r.links.push_back({layout_.links[l], Time{static_cast<std::int64_t>(lost_[l])}});
    }
    std::stable_sort(r.links.begin(), r.links.end(),
                     [](const LinkReport& a, const LinkReport& b) { return a.lost > b.lost; });
    if (options_.record) r.timeline = recorder_.timeline(program_, layout_);
    return r;
  }

  const program::Program& program_;
  const Layout& layout_;
  EngineOptions options_;
  bool contends_ = false;    // compute and collectives slow each other somewhere
  std::vector<Walk> walks_;  // by stage and pace
  std::vector<Site> sites_;
  std::vector<EngineLane> lanes_;  // by site and stream
  const int streams_, exchanges_;  // of all, that of exchanges between ranks of experts
  boost::container::static_vector<int, kMostStreams> collectives_;  // streams
  int receives_ = kCompute;                                         // the first stream that does
  std::vector<std::int32_t> arrived_;                               // by meeting
  Events<Event> events_;
  Recorder recorder_;
  std::int64_t now_ = 0, end_ = 0, ops_ = 0, all_ops_ = 0;

  std::vector<Meeting::End> unsettled_;  // lanes
  Rates rates_;
  std::vector<std::int32_t> leads_;        // by activity: its meeting
  std::vector<double> lost_;               // by link of the layout
  std::vector<std::int64_t> stage_ranks_;  // by stage
};

}  // namespace

SimulationResult simulate(const program::Program& program, const Layout& layout,
                          const EngineOptions& options) {
  return Engine(program, layout, options).run();
}

}  // namespace orrery::sim
