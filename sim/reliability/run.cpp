// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <set>

#include "core/error.h"
#include "core/parallel.h"
#include "core/random.h"
#include "sim/reliability/work.h"

namespace orrery::sim {
namespace {

// Streams of random numbers beside those of the processes.
enum class Draw { kRepair = kProcesses, kRefill, kSilentDetection, kSlowFactor, kSlowLasts, kPlace };
constexpr std::size_t kStreams = kProcesses + 6;

struct SlowNode {
  Ticks until;
  double factor;
  friend bool operator>(const SlowNode& a, const SlowNode& b) { return a.until > b.until; }
};

class Run {
 public:
  Run(const RunModel& model, std::uint64_t seed, std::uint64_t run, std::int64_t most_events, Diary* diary)
      : m_(model), most_events_(most_events), diary_(diary), spares_(model.spares.value_or(0)) {
    for (std::size_t i = 0; i < kStreams; ++i) streams_.emplace_back(seed, run, i);
    for (std::size_t i = 0; i < kProcesses; ++i) next_[i] = drawn(static_cast<Process>(i));
    maintenance_at_ = m_.maintenance_every.value_or(kNoTick);
    await_injected();
  }

  RunOutcome outcome() {
    for (;;) {
      work_.advance(next_event());
      if (work_.finished()) break;
      count_event();
      if (work_.at_stop())
        fail_as_injected();
      else
        handle();
    }
    for (; !absent_.empty(); absent_.pop()) {  // they come after the end
      if (absent_.top().preempted && absent_.top().back > now()) out_.away -= absent_.top().back - now();
    }
    out_.total = work_.now();
    return out_;
  }

 private:
  struct Absent {
    Ticks back;
    bool preempted;
    friend bool operator>(const Absent& a, const Absent& b) { return a.back > b.back; }
  };

  void count_event() {
    if (++events_ > most_events_)
      throw Error(fmt::format("a run has more than {} failures, stops and slow nodes", most_events_));
  }

  Ticks now() const { return work_.now(); }

  // --- random times ---------------------------------------------------------------------------------
  RandomStream& stream(Draw d) { return streams_[static_cast<std::size_t>(d)]; }
  Ticks exponential(RandomStream& from, Ticks mean) { return ticks(seconds(mean) * from.exponential()); }
  std::int64_t active_nodes() const { return m_.nodes - lost_replicas_ * m_.replica_nodes; }
  Ticks& next(Process p) { return next_[static_cast<std::size_t>(p)]; }
  Ticks drawn(Process p) {
    const double rate = m_.rate(p).of(active_nodes());
    if (rate <= 0) return kNoTick;
    return now() + std::max(Ticks{1}, ticks(streams_[static_cast<std::size_t>(p)].exponential() / rate));
  }
  bool due(Process p) { return next(p) <= now(); }
  // Nothing happens to a job that is not there.
  void pause(Ticks time) {
    for (Ticks& t : next_) t = t == kNoTick ? t : t + time;
  }
  // Fewer nodes fail less often: what is left until each event is stretched.
  void resize(std::int64_t lost) {
    const std::int64_t before = active_nodes();
    lost_replicas_ = lost;
    for (std::size_t i = 0; i < kProcesses; ++i) {
      const EventRate& rate = m_.rates[i];
      if (next_[i] == kNoTick || rate.of(active_nodes()) <= 0) continue;
      const double left = seconds(std::max(Ticks{0}, next_[i] - now()));
      next_[i] = now() + ticks(left * rate.of(before) / rate.of(active_nodes()));
    }
    set_pace();
  }
  void set_pace() {
    const double slowest = slow_factors_.empty() ? 1 : *slow_factors_.rbegin();
    work_.set_pace(slowest * m_.shrunk[static_cast<std::size_t>(lost_replicas_)]);
  }

  // --- events ---------------------------------------------------------------------------------------
  Ticks next_slow_end() const { return slow_.empty() ? kNoTick : slow_.top().until; }
  Ticks next_event() {
    Ticks out = std::min(maintenance_at_, next_slow_end());
    for (const Ticks t : next_) out = std::min(out, t);
    if (corrupted_) out = std::min(out, noticed_at_);
    if (lost_replicas_ > 0 && !absent_.empty()) out = std::min(out, absent_.top().back);
    return std::max(out, now());
  }

  void handle() {
    for (const auto& [process, stop] :
         {std::pair{Process::kHardware, Stop::kHardware}, {Process::kSoftware, Stop::kSoftware}}) {
      if (!due(process)) continue;
      count(process);
      return outage(stop);
    }
    if (corrupted_ && noticed_at_ <= now()) return outage(Stop::kSilent);
    if (due(Process::kSilent)) return corrupt();
    if (due(Process::kSlow)) return become_slow();
    if (due(Process::kPreempt)) {
      count(Process::kPreempt);
      if (m_.notice >= m_.drain()) drain();
      return outage(Stop::kPreempt);
    }
    if (maintenance_at_ <= now()) {
      if (!drain()) return;
      ++out_.planned;
      const Ticks begin = now();
      pause(m_.maintenance_lasts);
      work_.spend(Doing::kMaintenance, m_.maintenance_lasts);
      maintenance_at_ = now() + *m_.maintenance_every;
      return outage(Stop::kPlanned, begin);
    }
    if (next_slow_end() <= now()) return end_slow();
    collect();
    if (lost_replicas_ > 0 && spares_ >= m_.replica_nodes && drain()) outage(Stop::kResize);
  }

  // The next injected failure, where its place still lies ahead.
  void await_injected() {
    const bool ahead = injected_ < m_.injected.size() && m_.injected[injected_].position >= work_.position();
    work_.stop_at(ahead ? m_.injected[injected_].position : kNoTick);
  }
  void fail_as_injected() {
    ++out_.events[static_cast<std::size_t>(Process::kSoftware)];
    const InjectedStop& injected = m_.injected[injected_++];
    detection_ = injected.detection;
    loses_memory_ = injected.loses_memory;
    work_.stop_at(kNoTick);
    outage(Stop::kSoftware);
    loses_memory_ = false;
    detection_ = m_.detection;
    await_injected();
  }

  void count(Process p) {
    ++out_.events[static_cast<std::size_t>(p)];
    next(p) = drawn(p);
  }

  void corrupt() {
    next(Process::kSilent) = drawn(Process::kSilent);
    if (corrupted_) return;
    ++out_.events[static_cast<std::size_t>(Process::kSilent)];
    corrupted_ = true;
    work_.settle();
    clean_ = work_.pending() ? *work_.pending() : work_.stored();
    noticed_at_ = now() + exponential(stream(Draw::kSilentDetection), m_.silent_detection);
  }

  void become_slow() {
    count(Process::kSlow);
    const double share = stream(Draw::kSlowFactor).uniform();
    const Ticks lasts = m_.slow_lasts ? exponential(stream(Draw::kSlowLasts), *m_.slow_lasts) : kNoTick;
    const double factor = m_.slow_low + (m_.slow_high - m_.slow_low) * share;
    slow_.push({now() + lasts, factor});
    slow_factors_.insert(factor);
    set_pace();
  }

  void end_slow() {
    if (m_.evicts_slow && !drain()) return;
    slow_factors_.erase(slow_factors_.find(slow_.top().factor));
    slow_.pop();
    set_pace();
    if (!m_.evicts_slow) return;
    ++out_.evictions;
    outage(Stop::kEvict);
  }

  // Saves because the job is about to stop. A failure that comes first stops the job instead.
  bool drain() {
    if (const auto failure = interrupted(Doing::kCheckpoint, m_.drain())) {
      outage(*failure);
      return false;
    }
    work_.save();
    return true;
  }

  // --- outages --------------------------------------------------------------------------------------
  void go_back_to(const Saved& saved) {
    if (corrupted_ && saved.position <= clean_.position) corrupted_ = false;
    work_.go_back_to(saved);
  }

  // A node is gone; with it goes the job's memory where no other node holds its part.
  void leave(Stop stop) {
    const bool preempted = stop == Stop::kPreempt;
    if (m_.spares || preempted) {
      const Ticks away = preempted ? exponential(stream(Draw::kRefill), m_.refill)
                                   : exponential(stream(Draw::kRepair), m_.repair);
      absent_.push({now() + away, preempted});
      if (preempted) out_.away += away;
    }
    if (!m_.in_memory() || memory_lost_) return;
    const auto node =
        static_cast<std::int64_t>(stream(Draw::kPlace).uniform() * static_cast<double>(active_nodes()));
    if (std::find(gone_.begin(), gone_.end(), node) == gone_.end()) gone_.push_back(node);
    const std::int64_t group = node / m_.replicas;
    const auto of_group =
        std::count_if(gone_.begin(), gone_.end(), [&](std::int64_t n) { return n / m_.replicas == group; });
    if (of_group >= m_.replicas) memory_lost_ = true;
  }

  void collect() {
    for (; !absent_.empty() && absent_.top().back <= now(); absent_.pop()) ++spares_;
  }

  // A node in place of one that has left. Whether it was there at once.
  bool take_node(Stop stop) {
    if (!m_.spares && stop != Stop::kPreempt) return true;
    collect();
    if (spares_ > 0) {
      --spares_;
      return true;
    }
    if (lost_replicas_ + 1 < static_cast<std::int64_t>(m_.shrunk.size())) {
      spares_ += m_.replica_nodes - 1;  // the others of its replica
      resize(lost_replicas_ + 1);
      return true;
    }
    const Ticks wait = std::max(Ticks{0}, absent_.top().back - now());
    pause(wait);
    work_.spend(Doing::kWait, wait);
    collect();
    --spares_;
    return false;
  }

  bool takes_a_node(Stop stop) const {
    switch (stop) {
      case Stop::kHardware:
        return !m_.hardware_keeps_node;
      case Stop::kPreempt:
      case Stop::kEvict:
        return true;
      case Stop::kSoftware:
      case Stop::kSilent:
      case Stop::kPlanned:
      case Stop::kResize:
        return false;
    }
    return false;
  }

  // The newest checkpoint that storage still has of those up to a position.
  Ticks kept_before(Ticks clean) {
    const Ticks behind = work_.stored().position - clean;
    if (behind.value / m_.interval.value < m_.kept) return clean;
    ++out_.old_rollbacks;
    const std::int64_t day = ticks(kSecondsPerDay).value;
    const std::int64_t period = behind.value < day ? day / 24 : day;
    return {clean.value / period * period};
  }

  void roll_back(Stop stop) {
    work_.settle();
    if (const auto& write = work_.pending(); write && corrupted_ && clean_.position == write->position)
      clean_ = work_.stored();
    work_.abort_write();
    switch (stop) {
      case Stop::kPlanned:
      case Stop::kEvict:
      case Stop::kResize:
        return;  // behind a checkpoint
      case Stop::kSilent: {
        corrupted_ = false;
        const Saved kept{kept_before(clean_.position), 0};
        work_.forget_after(kept);
        return go_back_to(kept);
      }
      case Stop::kHardware:
      case Stop::kSoftware:
      case Stop::kPreempt:
        return go_back_to(m_.in_memory() && !memory_lost_ ? work_.memory() : work_.stored());
    }
  }

  Ticks restart_time(Stop stop, bool at_once) const {
    switch (stop) {
      case Stop::kHardware:
        if (m_.hardware_keeps_node) return m_.restart_software;
        return at_once ? m_.restart_spare : m_.restart_waited;
      case Stop::kPreempt:
      case Stop::kEvict:
        return at_once ? m_.restart_spare : m_.restart_waited;
      case Stop::kSoftware:
      case Stop::kSilent:
        return m_.restart_software;
      case Stop::kPlanned:
      case Stop::kResize:
        return m_.restart_planned;
    }
    return m_.restart_planned;
  }

  // Spends `time`, or up to the next failure: then for what the job stops.
  std::optional<Stop> interrupted(Doing doing, Ticks time) {
    constexpr std::array kFailures{std::pair{Process::kHardware, Stop::kHardware},
                                   std::pair{Process::kSoftware, Stop::kSoftware},
                                   std::pair{Process::kPreempt, Stop::kPreempt}};
    const auto* first = &kFailures[0];
    for (const auto& f : kFailures) {
      if (next(f.first) < next(first->first)) first = &f;
    }
    if (next(first->first) >= now() + time) {
      work_.spend(doing, time);
      return std::nullopt;
    }
    work_.spend(doing, std::max(Ticks{0}, next(first->first) - now()));
    count(first->first);
    return first->second;
  }

  // From a stop until the job works again.
  void outage(Stop stop) { outage(stop, now()); }
  void outage(Stop stop, Ticks begin) {
    gone_.clear();
    memory_lost_ = loses_memory_;
    for (;; count_event(), begin = now()) {
      if (diary_) diary_->stop(stop, begin);
      if (takes_a_node(stop)) leave(stop);
      roll_back(stop);
      if (stop == Stop::kHardware || stop == Stop::kSoftware) {
        if (const auto failure = interrupted(Doing::kDetection, detection_)) {
          stop = *failure;
          continue;
        }
      }
      const bool at_once = takes_a_node(stop) ? take_node(stop) : true;
      if (stop == Stop::kResize) grow();
      const bool in_memory = stop != Stop::kSilent && stop != Stop::kPlanned;  // right, and still there
      const bool from_memory = m_.in_memory() && !memory_lost_ && in_memory;
      const Ticks load = from_memory ? m_.load_memory : m_.load_storage;
      const auto failure = interrupted(Doing::kRestart, restart_time(stop, at_once) + load);
      if (!failure) break;
      stop = *failure;
    }
    if (diary_) diary_->go_on(now());
  }

  void grow() {
    const std::int64_t back = std::min(lost_replicas_, spares_ / m_.replica_nodes);
    spares_ -= back * m_.replica_nodes;
    resize(lost_replicas_ - back);
  }

  const RunModel& m_;
  const std::int64_t most_events_;
  std::int64_t events_ = 0;
  std::vector<RandomStream> streams_;
  RunOutcome out_;
  Diary* diary_;
  Work work_{m_, out_, diary_};
  Ticks detection_ = m_.detection;  // of the failure that stopped the job
  std::size_t injected_ = 0;        // failures that have struck
  bool corrupted_ = false;
  Saved clean_;
  Ticks noticed_at_{0};

  std::array<Ticks, kProcesses> next_{};
  Ticks maintenance_at_ = kNoTick;
  std::priority_queue<SlowNode, std::vector<SlowNode>, std::greater<>> slow_;
  std::multiset<double> slow_factors_;
  std::int64_t spares_ = 0, lost_replicas_ = 0;
  std::priority_queue<Absent, std::vector<Absent>, std::greater<>> absent_;
  std::vector<std::int64_t> gone_;  // nodes of this outage
  bool memory_lost_ = false, loses_memory_ = false;
};

}  // namespace

double ettr(const RunOutcome& run, const RunModel& model) {
  return ratio(model.work, run.total);
}

bool is_conserved(const RunOutcome& run, const RunModel& model) {
  const Ticks parts =
      run.work + run.slow + run.checkpoint + run.detection + run.restart + run.wait + run.maintenance;
  return parts == run.total && run.work == model.work + run.lost;
}

RunOutcome simulate_run(const RunModel& model, std::uint64_t seed, std::uint64_t run,
                        std::int64_t most_events, Diary* diary) {
  return Run(model, seed, run, most_events, diary).outcome();
}

std::vector<RunOutcome> simulate_runs(const RunModel& model, const RunOptions& options) {
  std::vector<RunOutcome> out(static_cast<std::size_t>(options.runs));
  const std::int64_t most_events = std::max<std::int64_t>(100, kMostRunEvents / options.runs);
  constexpr std::size_t kBatch = 64;  // runs that a thread takes at once
  on_threads(static_cast<std::size_t>(options.threads), 0, (out.size() + kBatch - 1) / kBatch,
             [&](std::size_t, std::size_t batch) {
               for (std::size_t i = batch * kBatch; i < std::min(out.size(), (batch + 1) * kBatch); ++i)
                 out[i] = simulate_run(model, options.seed, i, most_events);
             });
  return out;
}

}  // namespace orrery::sim
