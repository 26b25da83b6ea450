// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>

#include "core/error.h"
#include "sim/scheduling/fair_share.h"
#include "sim/scheduling/running.h"

namespace orrery::sim {
namespace {

// What goes first: smaller is earlier.
struct QueueKey {
  std::int64_t priority;  // negated; 0 for fifo
  Ticks submit;
  std::int32_t job;
  std::int32_t whole;  // nodes that it needs; 0: a part of one
  std::int32_t part;   // devices of that
  friend auto operator<=>(const QueueKey&, const QueueKey&) = default;
};
using Waiting = std::set<QueueKey>;

// What would fit somewhere: whole nodes, and devices of one node.
struct Room {
  std::int64_t whole = 0, part = 0;
  bool fits(const QueueKey& k) const { return k.whole > 0 ? k.whole <= whole : k.part <= part; }
};

constexpr std::int64_t kTry = 8;  // trying a job takes as long as looking at so many nodes

class Scheduler {
 public:
  Scheduler(const JobQueue& queue, const SchedulingPolicy& policy, const ClusterNodes& nodes,
            const PlanCost& cost)
      : queue_(queue),
        policy_(policy),
        cluster_(nodes),
        free_(nodes),
        running_(nodes.nodes()),
        contention_(nodes),
        costs_(nodes, cost),
        share_(shares(queue), ticks(policy.half_life)),
        held_(queue.tenants.size(), 0),
        kept_(queue.jobs.size(), Ticks{0}) {
    make_queues();
    out_.jobs.resize(queue.jobs.size());
    out_.devices = nodes.devices();
    out_.devices_per_node = nodes.devices_per_node;
  }

  ScheduleOutcome outcome(const std::function<void(double)>& progress) {
    std::vector<std::int32_t> order(queue_.jobs.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return job(a).submit < job(b).submit; });
    std::size_t next = 0, ended = 0, told = 0;
    out_.begin = out_.end = order.empty() ? Ticks{0} : job(order.front()).submit;
    while (next < order.size() || !ends_.empty()) {
      now_ = next < order.size() ? job(order[next]).submit : kNoTick;
      if (!ends_.empty()) now_ = std::min(now_, ends_.top().at);
      while (!ends_.empty() && ends_.top().at == now_) {
        const std::int32_t slot = ends_.top().slot;
        ends_.pop();
        release(slot, false);
        ++ended;
        drop_stale_ends();
      }
      for (; next < order.size() && job(order[next]).submit == now_; ++next) wait(order[next]);
      decide();
      drop_stale_ends();
      note_load();
      if (progress && ended >= told + 1024) {
        told = ended;
        progress(static_cast<double>(ended) / static_cast<double>(order.size()));
      }
    }
    out_.shapes = static_cast<std::int64_t>(costs_.costed());
    return std::move(out_);
  }

 private:
  struct End {
    Ticks at;
    std::int32_t slot;
    std::uint32_t version;
    friend bool operator>(const End& a, const End& b) {
      return std::tie(a.at, a.slot, a.version) > std::tie(b.at, b.slot, b.version);
    }
  };
  // Ends of attempts that were preempted, or whose pace has changed since.
  void drop_stale_ends() {
    while (!ends_.empty() && running_[ends_.top().slot].version != ends_.top().version) ends_.pop();
  }
  // A job on nodes that it may get.
  struct Placed {
    std::vector<std::int32_t> nodes;
    std::vector<LeafPart> parts;
    ShapeCost cost;
  };

  static std::vector<double> shares(const JobQueue& queue) {
    std::vector<double> out;
    for (const ClusterTenant& t : queue.tenants) out.push_back(t.share);
    return out;
  }
  const ClusterJob& job(std::int32_t id) const { return queue_.jobs[static_cast<std::size_t>(id)]; }
  std::int64_t devices_of(std::int32_t id) const {
    return free_.held(job(id).devices) * free_.nodes_of(job(id).devices);
  }

  // --- the queue -------------------------------------------------------------------------------------
  // Tenants wait apart where they may be passed over as a whole: by their use, or at their quota. Others wait
  // in the first queue.
  void make_queues() {
    waiting_in_.emplace_back();
    for (const ClusterTenant& t : queue_.tenants) {
      const bool apart = policy_.order == QueueOrder::kFairShare || t.quota;
      queue_of_.push_back(apart ? waiting_in_.size() : 0);
      if (apart) waiting_in_.emplace_back();
    }
  }
  Waiting& queue_of(std::int32_t id) {
    return waiting_in_[queue_of_[static_cast<std::size_t>(job(id).tenant)]];
  }
  QueueKey key_of(std::int32_t id) const {
    const std::int64_t devices = job(id).devices;
    const bool shares = free_.shares(devices);
    return {.priority = policy_.order == QueueOrder::kFifo ? 0 : -job(id).priority,
            .submit = job(id).submit,
            .job = id,
            .whole = shares ? 0 : static_cast<std::int32_t>(free_.nodes_of(devices)),
            .part = shares ? static_cast<std::int32_t>(devices) : 0};
  }
  void wait(std::int32_t id) {
    queue_of(id).insert(key_of(id));
    ++waiting_;
  }
  void leave(std::int32_t id) {
    queue_of(id).erase(key_of(id));
    --waiting_;
  }
  bool over_quota(std::int32_t id) const {
    const auto tenant = static_cast<std::size_t>(job(id).tenant);
    const auto& quota = queue_.tenants[tenant].quota;
    return quota && held_[tenant] + devices_of(id) > *quota;
  }

  // --- jobs on nodes -----------------------------------------------------------------------------------
  Progress progress_of(std::int32_t id) const {
    const ClusterJob& j = job(id);
    const bool again = out_.jobs[static_cast<std::size_t>(id)].preemptions > 0;
    return {j.work - kept_[static_cast<std::size_t>(id)], j.checkpoint_every, j.checkpoint_cost,
            again ? j.restart : Ticks{0}};
  }
  bool depends_on_nodes(std::int32_t id) const { return job(id).plan >= 0 || job(id).network > 0; }
  // From getting nodes to the end, by what is known before it starts.
  Ticks expected_time(std::int32_t id, double slow) const {
    return job(id).requested ? *job(id).requested : stretched(progress_of(id).total(), slow);
  }
  bool place(std::int32_t id, Placed& p) {
    if (!free_.choose(job(id).devices, policy_.placement, p.nodes)) return false;
    spend(std::ssize(p.nodes));
    p.parts = leaf_parts(cluster_, p.nodes);
    p.cost = {};
    if (job(id).plan >= 0)
      p.cost = costs_(job(id).plan, p.nodes, p.parts);
    else if (job(id).network > 0)
      p.cost = duration_cost(cluster_, p.parts, job(id).network);
    return true;
  }

  void start(std::int32_t id, Placed&& p, bool passed) {
    leave(id);
    JobOutcome& o = out_.jobs[static_cast<std::size_t>(id)];
    if (o.preemptions == 0) {
      o.start = now_;
      o.backfilled = passed;
    }
    Running r;
    r.job = id;
    r.held = free_.held(job(id).devices);
    r.progress = progress_of(id);
    r.start = r.as_of = now_;
    r.expected = now_ + expected_time(id, p.cost.slow);
    r.contends = p.cost.sensitivity > 0 && p.parts.size() > 1;
    r.nodes = std::move(p.nodes);
    r.parts = std::move(p.parts);
    r.cost = p.cost;
    r.pace = p.cost.slow;
    free_.take(r.nodes, r.held);
    hold(job(id).tenant, devices_of(id));
    const std::int32_t slot = running_.add(std::move(r));
    Running& here = running_[slot];
    if (here.contends) {
      const std::vector<std::int32_t> beside = contention_.add(slot, here.parts, here.cost);
      spend(std::ssize(beside));
      here.pace = contention_.pace(slot, here.parts, here.cost);
      for (const std::int32_t other : beside) change_pace(other);
    }
    expect_end(slot);
  }

  void hold(std::int32_t tenant, std::int64_t devices) {
    held_[static_cast<std::size_t>(tenant)] += devices;
    held_in_all_ += devices;
    if (policy_.order == QueueOrder::kFairShare) share_.hold(tenant, devices, now_);
  }

  // A job gives its nodes back: it has ended, or is preempted.
  void release(std::int32_t slot, bool preempted) {
    Running& r = running_[slot];
    settle(r);
    const Ticks total = r.progress.total();
    const Spent spent = r.progress.after(preempted ? std::min(r.done, total - Ticks{1}) : total);
    JobOutcome& o = out_.jobs[static_cast<std::size_t>(r.job)];
    const Ticks kept = preempted ? spent.kept : spent.work;
    o.useful += kept;
    o.lost += spent.work - kept;
    o.checkpoint += spent.checkpoint;
    o.restart += spent.restart;
    o.slow += now_ - r.start - spent.work - spent.checkpoint - spent.restart;
    o.end = now_;
    o.preemptions += preempted;
    kept_[static_cast<std::size_t>(r.job)] += kept;
    if (std::ssize(out_.nodes) > kMostPlacedNodes)
      throw Error(fmt::format("jobs were started on more than {} nodes in all", kMostPlacedNodes));
    out_.attempts.push_back(
        {r.job, r.start, now_, out_.nodes.size(), r.nodes.size(), preempted, r.cost.slow});
    out_.nodes.insert(out_.nodes.end(), r.nodes.begin(), r.nodes.end());
    out_.end = std::max(out_.end, now_);
    free_.give(r.nodes, r.held);
    hold(job(r.job).tenant, -devices_of(r.job));
    running_.remove(slot);
    if (r.contends) {
      for (const std::int32_t other : contention_.remove(slot, r.parts)) change_pace(other);
    }
    if (preempted) wait(r.job);
  }

  void settle(Running& r) const {
    r.done += done_after(now_ - r.as_of, r.pace);
    r.as_of = now_;
  }
  void change_pace(std::int32_t slot) {
    Running& r = running_[slot];
    const double pace = contention_.pace(slot, r.parts, r.cost);
    if (pace == r.pace) return;
    settle(r);
    r.pace = pace;
    ++r.version;
    expect_end(slot);
  }
  void expect_end(std::int32_t slot) {
    Running& r = running_[slot];
    const Ticks left = std::max(Ticks{0}, r.progress.total() - r.done);
    r.end = now_ + stretched(left, r.pace);
    if (r.end >= kLongestSimulatedRun)
      throw Error(fmt::format("the job \"{}\" would end after more than {:.0f} days", job(r.job).name,
                              days(kLongestSimulatedRun)));
    if (!job(r.job).requested) r.expected = r.end;
    ends_.push({r.end, slot, r.version});
  }

  // --- decisions ---------------------------------------------------------------------------------------
  // Queues with jobs, in order.
  struct Turn {
    double used = 0, holds = 0;  // of the tenant over its share; 0 where the order is not by use
    Waiting::const_iterator next;
    const Waiting* queue = nullptr;
    friend bool operator>(const Turn& a, const Turn& b) {
      return std::tie(a.used, a.holds, *a.next) > std::tie(b.used, b.holds, *b.next);
    }
  };
  Turn turn_of(const Waiting& queue) {
    const Waiting::const_iterator first = queue.begin();
    if (policy_.order != QueueOrder::kFairShare) return {0, 0, first, &queue};
    const std::int32_t tenant = job(first->job).tenant;
    return {share_.used(tenant, now_), share_.holds(tenant), first, &queue};
  }

  void decide() {
    head_.reset();
    if (free_.free_devices() == 0 && policy_.preemption == PreemptionRule::kNone) return;
    while (look_through()) {
    }
  }

  // A job started: what follows in the queue is as before, or is to be looked at anew.
  enum class Started { kGoOn, kAnew };

  // Looks at jobs in order. Returns true where they are to be looked at anew.
  bool look_through() {
    spend(std::ssize(waiting_in_));
    std::vector<Turn> first;
    for (const Waiting& queue : waiting_in_) {
      if (!queue.empty()) first.push_back(turn_of(queue));
    }
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns({}, std::move(first));
    std::int64_t tried = 0;
    Turn turn;
    bool same = false;  // the turn's next job goes before those of all others
    while (same || !turns.empty()) {
      if (!same) {
        turn = turns.top();
        turns.pop();
      }
      same = false;
      const QueueKey key = *turn.next;
      const std::int32_t id = key.job;
      if (over_quota(id)) continue;  // and so waits its tenant
      ++turn.next;                   // the job leaves the queue where it starts
      if (!head_) {
        const std::optional<Started> started = start_in_order(id);
        if (started == Started::kAnew) return true;
        if (!started) {
          head_ = id;
          if (policy_.backfill == Backfill::kNone || free_.free_devices() == 0 || waiting_ == 1) return false;
          reservation_.reset();
          room_ = room();
        }
      } else {
        if (++tried > policy_.backfill_depth) break;
        spend(kTry);
        if (room_.fits(key)) backfill(key);
        if (free_.free_devices() == 0) break;
      }
      if (turn.next == turn.queue->end()) continue;
      same = turns.empty() || turns.top() > turn;
      if (!same) turns.push(turn);
    }
    return false;
  }

  std::optional<Started> start_in_order(std::int32_t id) {
    Placed p;
    if (place(id, p)) {
      start(id, std::move(p), false);
      return policy_.order == QueueOrder::kFairShare ? Started::kAnew : Started::kGoOn;
    }
    if (policy_.preemption == PreemptionRule::kNone) return std::nullopt;
    spend(std::ssize(running_.active()));
    const std::vector<std::int32_t> out =
        victims(job(id).devices, job(id).priority, free_, running_, queue_.jobs);
    if (out.empty()) return std::nullopt;
    for (const std::int32_t slot : out) release(slot, true);
    place(id, p);
    start(id, std::move(p), false);
    return Started::kAnew;
  }

  void backfill(const QueueKey& key) {
    const std::int32_t id = key.job;
    if (!reservation_) reserve_for_head();
    const bool known = job(id).requested || !depends_on_nodes(id);
    if (known && now_ + expected_time(id, 1) > reservation_->at && !room_beside_.fits(key)) return;
    Placed p;
    if (!known || now_ + expected_time(id, 1) <= reservation_->at) {
      place(id, p);
      if (now_ + expected_time(id, p.cost.slow) <= reservation_->at) return pass_head(id, std::move(p));
    }
    if (!room_beside_.fits(key)) return;
    beside_reservation([&] { place(id, p); });
    pass_head(id, std::move(p));
  }

  void pass_head(std::int32_t id, Placed&& p) {
    start(id, std::move(p), true);
    measure_room();
  }

  // Does something as if the nodes that the head has reserved were not free.
  template <class F>
  void beside_reservation(const F& f) {
    std::vector<std::pair<std::int32_t, std::int64_t>> hidden;
    for (const std::int32_t n : reservation_->nodes) {
      if (free_.free_on(n) > 0) hidden.emplace_back(n, free_.free_on(n));
    }
    for (const auto& [n, devices] : hidden) free_.take(std::span(&n, 1), devices);
    f();
    for (const auto& [n, devices] : hidden) free_.give(std::span(&n, 1), devices);
  }

  // Once there is a job that might pass it.
  void reserve_for_head() {
    spend(cluster_.nodes());
    reservation_ = reserve(job(*head_).devices, free_, running_, cluster_, now_);
    measure_room();
  }
  Room room() const { return {free_.whole_nodes(), free_.largest_part()}; }
  void measure_room() {
    room_ = room();
    beside_reservation([&] { room_beside_ = room(); });
  }

  // Bounds the time of a hostile input.
  void spend(std::int64_t looks) {
    looks_ += looks;
    if (looks_ > kMostLooks)
      throw Error(fmt::format("the decisions looked at more than {} nodes, jobs and tenants", kMostLooks));
  }

  // --- load ---------------------------------------------------------------------------------------------
  void note_load() {
    const bool fragmented = head_ && devices_of(*head_) <= free_.free_devices();
    LoadPoint p{now_, held_in_all_, waiting_, fragmented};
    if (!out_.load.empty()) {
      const LoadPoint& last = out_.load.back();
      if (std::tie(last.held, last.waiting, last.fragmented) == std::tie(p.held, p.waiting, p.fragmented))
        return;
    }
    out_.load.push_back(p);
  }

  const JobQueue& queue_;
  const SchedulingPolicy& policy_;
  const ClusterNodes& cluster_;
  FreeNodes free_;
  RunningJobs running_;
  Contention contention_;
  ShapeCosts costs_;
  FairShare share_;
  std::vector<Waiting> waiting_in_;         // queues
  std::vector<std::size_t> queue_of_;       // by tenant, in waiting_in_
  std::vector<std::int64_t> held_;          // by tenant: devices
  std::vector<Ticks> kept_;                 // by job: work that its checkpoints have
  std::optional<Reservation> reservation_;  // of the head
  Room room_, room_beside_;                 // all of it, and without what is reserved
  std::optional<std::int32_t> head_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::int64_t waiting_ = 0, held_in_all_ = 0, looks_ = 0;
  Ticks now_{0};
  ScheduleOutcome out_;
};

}  // namespace

ScheduleOutcome run_schedule(const JobQueue& queue, const SchedulingPolicy& policy, const ClusterNodes& nodes,
                             const PlanCost& cost, const std::function<void(double)>& progress) {
  return Scheduler(queue, policy, nodes, cost).outcome(progress);
}

bool is_conserved(const JobQueue& queue, const ScheduleOutcome& outcome) {
  const std::int64_t per_node = outcome.devices_per_node;
  std::vector<Ticks> on_nodes(queue.jobs.size(), Ticks{0});
  struct Change {
    std::int32_t node;
    Ticks at;
    std::int64_t devices;  // given back first
    auto operator<=>(const Change&) const = default;
  };
  std::vector<Change> changes;
  for (const Attempt& a : outcome.attempts) {
    on_nodes[static_cast<std::size_t>(a.job)] += a.end - a.start;
    const std::int64_t asked = queue.jobs[static_cast<std::size_t>(a.job)].devices;
    if (static_cast<std::int64_t>(a.count) != (asked + per_node - 1) / per_node) return false;
    if (a.start == a.end) continue;  // preempted at once
    for (const std::int32_t n : outcome.nodes_of(a)) {
      changes.push_back({n, a.start, std::min(asked, per_node)});
      changes.push_back({n, a.end, -std::min(asked, per_node)});
    }
  }
  for (std::size_t i = 0; i < queue.jobs.size(); ++i) {
    const JobOutcome& o = outcome.jobs[i];
    if (o.useful != queue.jobs[i].work) return false;
    if (o.useful + o.lost + o.slow + o.checkpoint + o.restart != on_nodes[i]) return false;
  }
  std::sort(changes.begin(), changes.end());
  std::int64_t held = 0;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (i > 0 && changes[i].node != changes[i - 1].node) held = 0;
    held += changes[i].devices;
    if (held < 0 || held > per_node) return false;
  }
  return true;
}

}  // namespace orrery::sim
