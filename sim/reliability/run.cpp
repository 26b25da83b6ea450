// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <set>

#include "core/error.h"
#include "core/parallel.h"
#include "sim/reliability/random.h"

namespace orrery::sim {
namespace {

// Streams of random numbers beside those of the processes.
enum class Draw { kRepair = kProcesses, kRefill, kSilentDetection, kSlowFactor, kSlowLasts, kPlace };
constexpr std::size_t kStreams = kProcesses + 6;

// What a job stops for.
enum class Stop { kHardware, kSoftware, kSilent, kPreempt, kPlanned, kEvict, kResize };

struct Saved {
  Ticks position{0};
  std::int64_t memory_cycles = 0;  // since the last checkpoint in storage
};

struct SlowNode {
  Ticks until;
  double factor;
  friend bool operator>(const SlowNode& a, const SlowNode& b) { return a.until > b.until; }
};

Ticks scaled(Ticks t, double factor) {
  return factor == 1 ? t : ticks(seconds(t) * factor);
}

class Run {
 public:
  Run(const RunModel& model, std::uint64_t seed, std::uint64_t run, std::int64_t most_events)
      : m_(model), most_events_(most_events), spares_(model.spares.value_or(0)) {
    for (std::size_t i = 0; i < kStreams; ++i) streams_.emplace_back(seed, run, i);
    cycle_ = m_.in_memory() ? m_.memory_interval : m_.interval;
    cycles_ = m_.interval.value / cycle_.value;
    for (std::size_t i = 0; i < kProcesses; ++i) next_[i] = drawn(static_cast<Process>(i));
    maintenance_at_ = m_.maintenance_every.value_or(kNoTick);
    begin_cycle({});
  }

  RunOutcome outcome() {
    for (;;) {
      advance(next_event());
      if (finished_) break;
      count_event();
      handle();
    }
    for (; !absent_.empty(); absent_.pop()) {  // they come after the end
      if (absent_.top().preempted && absent_.top().back > now_) out_.away -= absent_.top().back - now_;
    }
    out_.total = now_;
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

  // --- random times ---------------------------------------------------------------------------------
  RandomStream& stream(Draw d) { return streams_[static_cast<std::size_t>(d)]; }
  Ticks exponential(RandomStream& from, Ticks mean) { return ticks(seconds(mean) * from.exponential()); }
  std::int64_t active_nodes() const { return m_.nodes - lost_replicas_ * m_.replica_nodes; }
  Ticks& next(Process p) { return next_[static_cast<std::size_t>(p)]; }
  Ticks drawn(Process p) {
    const double rate = m_.rate(p).of(active_nodes());
    if (rate <= 0) return kNoTick;
    return now_ + std::max(Ticks{1}, ticks(streams_[static_cast<std::size_t>(p)].exponential() / rate));
  }
  bool due(Process p) { return next(p) <= now_; }
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
      const double left = seconds(std::max(Ticks{0}, next_[i] - now_));
      next_[i] = now_ + ticks(left * rate.of(before) / rate.of(active_nodes()));
    }
    set_pace();
  }
  void set_pace() {
    pace_ = m_.shrunk[static_cast<std::size_t>(lost_replicas_)];
    if (!slow_factors_.empty()) pace_ *= *slow_factors_.rbegin();
  }

  // --- work -----------------------------------------------------------------------------------------
  enum class Phase { kWork, kMemory, kStorage };

  void spend(Ticks& on, Ticks time) {
    on += time;
    now_ += time;
    if (now_ > kLongestSimulatedRun)
      throw Error(fmt::format("a run does not end within {:.0f} years", days(kLongestSimulatedRun) / 365));
  }
  Ticks position() const { return start_.position + (phase_ == Phase::kWork ? length_ - left_ : length_); }
  bool last_cycle() const { return start_.position + length_ == m_.work; }
  bool saves_to_storage() const { return start_.memory_cycles + 1 == cycles_ || last_cycle(); }

  void begin_cycle(Saved start) {
    start_ = start;
    length_ = left_ = std::min(cycle_, m_.work - start.position);
    phase_ = Phase::kWork;
  }

  void store(Saved saved, Ticks when) {
    if (pending_) stored_ = *pending_;  // a whole interval ago
    pending_ = saved;
    readable_at_ = when + m_.settle;
    ++out_.checkpoints;
  }
  // A checkpoint that is readable by now counts.
  void settle(Ticks when) {
    if (pending_ && readable_at_ <= when) {
      stored_ = *pending_;
      pending_.reset();
    }
  }

  // Whole cycles that end before `until` and are not the run's last.
  void jump(Ticks until) {
    if (phase_ != Phase::kWork || left_ != length_ || last_cycle()) return;
    const Ticks work = scaled(cycle_, pace_);
    const Ticks memory = m_.in_memory() ? m_.memory_stall : Ticks{0};
    const std::int64_t before_last = (m_.work - start_.position - Ticks{1}).value / cycle_.value;
    const auto take = [&](std::int64_t cycles, std::int64_t storage) {
      out_.work += cycle_ * cycles;
      out_.slow += (work - cycle_) * cycles;
      out_.checkpoint += memory * cycles + m_.stall * storage;
      now_ += (work + memory) * cycles + m_.stall * storage;
      start_.position += cycle_ * cycles;
    };
    if (start_.memory_cycles == 0) {
      const Ticks whole = (work + memory) * cycles_ + m_.stall;
      const std::int64_t n = std::min((until - now_).value / whole.value, before_last / cycles_);
      if (n > 0) {
        take(n * cycles_, n);
        out_.checkpoints += n - 1;
        if (n > 1) pending_ = {start_.position - m_.interval, 0};  // readable by now
        store({start_.position, 0}, now_);
        memory_ = start_;
      }
    }
    const std::int64_t left = (m_.work - start_.position - Ticks{1}).value / cycle_.value;
    const std::int64_t n =
        std::min({(until - now_).value / (work + memory).value, cycles_ - 1 - start_.memory_cycles, left});
    if (n > 0) {
      take(n, 0);
      start_.memory_cycles += n;
      memory_ = start_;
    }
    begin_cycle(start_);
  }

  // Runs until `until`, or to the end of the run.
  void advance(Ticks until) {
    while (!finished_ && now_ < until) {
      jump(until);
      const Ticks room = until - now_;
      if (phase_ == Phase::kWork) {
        const Ticks whole = scaled(left_, pace_);
        if (whole > room) {
          const Ticks done = std::min({left_, room, scaled(room, 1 / pace_)});
          left_ -= done;
          out_.work += done;
          spend(out_.slow, room - done);
          now_ += done;
          return;
        }
        out_.work += left_;
        spend(out_.slow, whole - left_);
        now_ += left_;
        left_ = m_.in_memory() ? m_.memory_stall : Ticks{0};
        phase_ = Phase::kMemory;
        continue;
      }
      const Ticks spent = std::min(left_, room);
      spend(out_.checkpoint, spent);
      left_ -= spent;
      if (left_.value > 0) return;
      end_phase();
    }
  }

  void end_phase() {
    const Ticks reached = start_.position + length_;
    if (phase_ == Phase::kMemory) {
      memory_ = {reached, start_.memory_cycles + 1};
      if (saves_to_storage()) {
        phase_ = Phase::kStorage;
        left_ = m_.stall + (last_cycle() ? m_.settle : Ticks{0});
        if (left_.value > 0) return;
      } else {
        return begin_cycle(memory_);
      }
    }
    memory_ = {reached, 0};
    if (last_cycle()) {
      finished_ = true;
      ++out_.checkpoints;
      return;
    }
    store(memory_, now_);
    begin_cycle(memory_);
  }

  // --- events ---------------------------------------------------------------------------------------
  Ticks next_slow_end() const { return slow_.empty() ? kNoTick : slow_.top().until; }
  Ticks next_event() {
    Ticks out = std::min(maintenance_at_, next_slow_end());
    for (const Ticks t : next_) out = std::min(out, t);
    if (corrupted_) out = std::min(out, noticed_at_);
    if (lost_replicas_ > 0 && !absent_.empty()) out = std::min(out, absent_.top().back);
    return std::max(out, now_);
  }

  void handle() {
    for (const auto& [process, stop] :
         {std::pair{Process::kHardware, Stop::kHardware}, {Process::kSoftware, Stop::kSoftware}}) {
      if (!due(process)) continue;
      count(process);
      return outage(stop);
    }
    if (corrupted_ && noticed_at_ <= now_) return outage(Stop::kSilent);
    if (due(Process::kSilent)) return corrupt();
    if (due(Process::kSlow)) return become_slow();
    if (due(Process::kPreempt)) {
      count(Process::kPreempt);
      if (m_.notice >= m_.drain()) drain();
      return outage(Stop::kPreempt);
    }
    if (maintenance_at_ <= now_) {
      if (!drain()) return;
      ++out_.planned;
      pause(m_.maintenance_lasts);
      spend(out_.maintenance, m_.maintenance_lasts);
      maintenance_at_ = now_ + *m_.maintenance_every;
      return outage(Stop::kPlanned);
    }
    if (next_slow_end() <= now_) return end_slow();
    collect();
    if (lost_replicas_ > 0 && spares_ >= m_.replica_nodes && drain()) outage(Stop::kResize);
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
    settle(now_);
    clean_ = pending_ ? *pending_ : stored_;
    noticed_at_ = now_ + exponential(stream(Draw::kSilentDetection), m_.silent_detection);
  }

  void become_slow() {
    count(Process::kSlow);
    const double share = stream(Draw::kSlowFactor).uniform();
    const Ticks lasts = m_.slow_lasts ? exponential(stream(Draw::kSlowLasts), *m_.slow_lasts) : kNoTick;
    const double factor = m_.slow_low + (m_.slow_high - m_.slow_low) * share;
    slow_.push({now_ + lasts, factor});
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
    if (const auto failure = interrupted(out_.checkpoint, m_.drain())) {
      outage(*failure);
      return false;
    }
    stored_ = memory_ = {position(), 0};
    pending_.reset();
    ++out_.checkpoints;
    begin_cycle(stored_);
    return true;
  }

  // --- outages --------------------------------------------------------------------------------------
  void go_back_to(const Saved& saved) {
    out_.lost += position() - saved.position;
    if (saved.position < memory_.position) memory_ = saved;
    if (corrupted_ && saved.position <= clean_.position) corrupted_ = false;
    begin_cycle(saved);
  }

  // A node is gone; with it goes the job's memory where no other node holds its part.
  void leave(Stop stop) {
    const bool preempted = stop == Stop::kPreempt;
    if (m_.spares || preempted) {
      const Ticks away = preempted ? exponential(stream(Draw::kRefill), m_.refill)
                                   : exponential(stream(Draw::kRepair), m_.repair);
      absent_.push({now_ + away, preempted});
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
    for (; !absent_.empty() && absent_.top().back <= now_; absent_.pop()) ++spares_;
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
    const Ticks wait = std::max(Ticks{0}, absent_.top().back - now_);
    pause(wait);
    spend(out_.wait, wait);
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
    const Ticks behind = stored_.position - clean;
    if (behind.value / m_.interval.value < m_.kept) return clean;
    ++out_.old_rollbacks;
    const std::int64_t day = ticks(kSecondsPerDay).value;
    const std::int64_t period = behind.value < day ? day / 24 : day;
    return {clean.value / period * period};
  }

  void roll_back(Stop stop) {
    settle(now_);
    if (pending_ && corrupted_ && clean_.position == pending_->position) clean_ = stored_;
    pending_.reset();
    switch (stop) {
      case Stop::kPlanned:
      case Stop::kEvict:
      case Stop::kResize:
        return;  // behind a checkpoint
      case Stop::kSilent: {
        corrupted_ = false;
        stored_ = memory_ = {kept_before(clean_.position), 0};
        return go_back_to(stored_);
      }
      case Stop::kHardware:
      case Stop::kSoftware:
      case Stop::kPreempt:
        return go_back_to(m_.in_memory() && !memory_lost_ ? memory_ : stored_);
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
  std::optional<Stop> interrupted(Ticks& on, Ticks time) {
    constexpr std::array kFailures{std::pair{Process::kHardware, Stop::kHardware},
                                   std::pair{Process::kSoftware, Stop::kSoftware},
                                   std::pair{Process::kPreempt, Stop::kPreempt}};
    const auto* first = &kFailures[0];
    for (const auto& f : kFailures) {
      if (next(f.first) < next(first->first)) first = &f;
    }
    if (next(first->first) >= now_ + time) {
      spend(on, time);
      return std::nullopt;
    }
    spend(on, std::max(Ticks{0}, next(first->first) - now_));
    count(first->first);
    return first->second;
  }

  // From a stop until the job works again.
  void outage(Stop stop) {
    gone_.clear();
    memory_lost_ = false;
    for (;; count_event()) {
      if (takes_a_node(stop)) leave(stop);
      roll_back(stop);
      if (stop == Stop::kHardware || stop == Stop::kSoftware) {
        if (const auto failure = interrupted(out_.detection, m_.detection)) {
          stop = *failure;
          continue;
        }
      }
      const bool at_once = takes_a_node(stop) ? take_node(stop) : true;
      if (stop == Stop::kResize) grow();
      const bool from_memory = m_.in_memory() && !memory_lost_ && stop != Stop::kSilent;
      const Ticks load = from_memory ? m_.load_memory : m_.load_storage;
      const auto failure = interrupted(out_.restart, restart_time(stop, at_once) + load);
      if (!failure) return;
      stop = *failure;
    }
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
  Ticks now_{0};
  bool finished_ = false;

  Ticks cycle_{0};           // work between checkpoints in memory, or in storage
  std::int64_t cycles_ = 1;  // of these, between two in storage
  Saved start_;              // of the cycle
  Ticks length_{0};          // of its work
  Ticks left_{0};            // of the phase: work, or time
  Phase phase_ = Phase::kWork;
  double pace_ = 1;  // time over work

  Saved stored_, memory_;  // the last checkpoints
  std::optional<Saved> pending_;
  Ticks readable_at_{0};
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
  bool memory_lost_ = false;
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
                        std::int64_t most_events) {
  return Run(model, seed, run, most_events).outcome();
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
