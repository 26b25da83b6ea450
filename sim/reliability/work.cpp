// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/work.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace orrery::sim {
namespace {

Ticks scaled(Ticks t, double factor) {
  return factor == 1 ? t : ticks(seconds(t) * factor);
}
// `pace` is at least 1, and so is the result over t: rounding takes nothing away.
Ticks stretched(Ticks t, double pace) {
  return std::max(t, scaled(t, pace));
}

// Where an outcome counts the time of doing something.
Ticks& time_of(RunOutcome& out, Doing doing) {
  switch (doing) {
    case Doing::kWork:
      return out.work;
    case Doing::kSlowWork:
      return out.slow;
    case Doing::kLost:
      return out.lost;
    case Doing::kCheckpoint:
      return out.checkpoint;
    case Doing::kDetection:
      return out.detection;
    case Doing::kRestart:
      return out.restart;
    case Doing::kWait:
      return out.wait;
    case Doing::kMaintenance:
      return out.maintenance;
  }
  return out.work;
}

}  // namespace

Work::Work(const RunModel& model, RunOutcome& out, Diary* diary)
    : model_(model),
      out_(out),
      diary_(diary),
      cycle_(model.in_memory() ? model.memory_interval : model.interval),
      cycles_(model.interval.value / cycle_.value) {
  begin_cycle({});
}

void Work::spend(Doing doing, Ticks time) {
  time_of(out_, doing) += time;
  pass(time);
  if (diary_) diary_->add({doing, now_ - time, now_, position(), position()});
}

void Work::done(Ticks work, Ticks time) {
  out_.work += work;
  out_.slow += time - work;
  pass(time);
  left_ -= work;
  if (diary_) diary_->add({working(), now_ - time, now_, position() - work, position()});
}

void Work::pass(Ticks time) {
  now_ += time;
  if (now_ > kLongestSimulatedRun)
    throw Error(fmt::format("a run does not end within {:.0f} years", days(kLongestSimulatedRun) / 365));
}

void Work::begin_cycle(Saved start) {
  start_ = start;
  length_ = left_ = std::min(cycle_, model_.work - start.position);
  phase_ = Phase::kWork;
}

void Work::store(Saved saved) {
  if (pending_) stored_ = *pending_;  // a whole interval ago
  pending_ = saved;
  readable_at_ = now_ + model_.settle;
  ++out_.checkpoints;
}

void Work::settle() {
  if (!pending_ || readable_at_ > now_) return;
  stored_ = *pending_;
  pending_.reset();
}

void Work::save() {
  stored_ = memory_ = {position(), 0};
  pending_.reset();
  ++out_.checkpoints;
  begin_cycle(stored_);
}

void Work::go_back_to(const Saved& saved) {
  out_.lost += position() - saved.position;
  if (diary_) diary_->lose(position(), saved.position);
  if (saved.position < memory_.position) memory_ = saved;
  begin_cycle(saved);
}

void Work::forget_after(const Saved& saved) {
  stored_ = memory_ = {saved.position, 0};
}

bool Work::is_unsaved(Ticks position) const {
  return std::binary_search(model_.unsaved.begin(), model_.unsaved.end(), position);
}

// Work up to the place to stop at; kNoTick where it does not lie ahead.
Ticks Work::to_stop() const {
  return stop_ == kNoTick || stop_ < position() ? kNoTick : stop_ - position();
}

// Whole cycles that end before `until` and are not the run's last.
void Work::skip_cycles(Ticks until) {
  if (phase_ != Phase::kWork || left_ != length_ || last_cycle()) return;
  if (stop_ != kNoTick || !model_.unsaved.empty()) return;  // such runs are short
  const Ticks work = stretched(cycle_, pace_);
  const Ticks memory = model_.in_memory() ? model_.memory_stall : Ticks{0};
  const std::int64_t before_last = (model_.work - start_.position - Ticks{1}).value / cycle_.value;
  const auto take = [&](std::int64_t cycles, std::int64_t storage) {
    const Ticks begin = now_, from = start_.position;
    out_.work += cycle_ * cycles;
    out_.slow += (work - cycle_) * cycles;
    out_.checkpoint += memory * cycles + model_.stall * storage;
    now_ += (work + memory) * cycles + model_.stall * storage;
    start_.position += cycle_ * cycles;
    if (diary_) diary_->add({working(), begin, now_, from, start_.position});
  };
  // A diary has each checkpoint that it does not leave out.
  const bool skips_memory = !diary_ || diary_->leaves_out(memory);
  const bool skips_storage = skips_memory && (!diary_ || diary_->leaves_out(model_.stall));
  if (start_.memory_cycles == 0 && skips_storage) {
    const Ticks whole = (work + memory) * cycles_ + model_.stall;
    const std::int64_t n = std::min((until - now_).value / whole.value, before_last / cycles_);
    if (n > 0) {
      take(n * cycles_, n);
      out_.checkpoints += n - 1;
      if (n > 1) pending_ = {start_.position - model_.interval, 0};  // readable by now
      store({start_.position, 0});
      memory_ = start_;
    }
  }
  const std::int64_t left = (model_.work - start_.position - Ticks{1}).value / cycle_.value;
  const std::int64_t n =
      std::min({(until - now_).value / (work + memory).value, cycles_ - 1 - start_.memory_cycles, left});
  if (n > 0 && skips_memory) {
    take(n, 0);
    start_.memory_cycles += n;
    memory_ = start_;
  }
  begin_cycle(start_);
}

void Work::advance(Ticks until) {
  while (!finished_ && now_ < until && !at_stop()) {
    skip_cycles(until);
    const Ticks room = until - now_;
    if (phase_ == Phase::kWork) {
      const Ticks part = std::min(left_, to_stop());
      const Ticks whole = stretched(part, pace_);
      if (whole > room) {
        const Ticks work = std::min({part, room, scaled(room, 1 / pace_)});
        done(work, room);
        return;
      }
      done(part, whole);
      if (left_.value > 0) return;
      left_ = model_.in_memory() ? model_.memory_stall : Ticks{0};
      phase_ = Phase::kMemory;
      continue;
    }
    const Ticks spent = std::min(left_, room);
    spend(Doing::kCheckpoint, spent);
    left_ -= spent;
    if (left_.value > 0) return;
    end_phase();
  }
}

void Work::end_phase() {
  const Ticks reached = start_.position + length_;
  if (phase_ == Phase::kMemory) {
    memory_ = {reached, start_.memory_cycles + 1};
    if (saves_to_storage()) {
      phase_ = Phase::kStorage;
      left_ = model_.stall + (last_cycle() ? model_.settle : Ticks{0});
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
  if (!is_unsaved(reached)) store(memory_);
  begin_cycle(memory_);
}

}  // namespace orrery::sim
