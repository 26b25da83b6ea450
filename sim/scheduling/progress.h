// SPDX-License-Identifier: Apache-2.0
//
// How far a job is on the nodes that it has: what it has to do there, what of it is work, and what is left
// when it is preempted.
//
// A job works W, and behind every interval t of it, except where the work ends, stops for a checkpoint of c.
// One that was preempted first restarts for r. All of this takes `pace` times as long as on an ideal
// placement. So
//
//   total(W) = r + W + c * (ceil(W / t) - 1)                              at pace 1
//
//   Progress p({.work = hours(10), .every = hours(3), .cost = minutes(6)});
//   p.total();                          // 10 h 18 min: checkpoints at 3, 6 and 9 h of work
//   Spent s = p.after(hours(7));        // two checkpoints are done, 48 min of work are not in one
#pragma once

#include "sim/reliability/clock.h"

namespace orrery::sim {

// Times at pace 1. They add up to what Progress::after was asked for.
struct Spent {
  Ticks restart{0}, work{0}, checkpoint{0};
  Ticks kept{0};  // of the work, what the newest checkpoint has
};

struct Progress {
  Ticks work{0};     // to be done, without checkpoints
  Ticks every{0};    // work between checkpoints; 0: there are none
  Ticks cost{0};     // of a checkpoint
  Ticks restart{0};  // before any work

  Ticks total() const {
    return restart + work + (every.value > 0 ? cost * ((work.value - 1) / every.value) : Ticks{0});
  }
  // After so much of total().
  Spent after(Ticks done) const {
    Spent s;
    s.restart = std::min(done, restart);
    const std::int64_t rest = (done - s.restart).value;
    if (every.value == 0) {
      s.work = {rest};
      return s;
    }
    const std::int64_t cycle = (every + cost).value, cycles = rest / cycle, into = rest % cycle;
    s.kept = every * cycles;
    s.work = s.kept + Ticks{std::min(into, every.value)};
    s.checkpoint = Ticks{rest} - s.work;
    return s;
  }
};

// Time that `part` of a job's total takes at a pace, and what is done after a time. A pace of 1 is exact.
inline Ticks stretched(Ticks part, double pace) {
  if (pace == 1) return part;
  return {saturating_cast(std::ceil(static_cast<double>(part.value) * pace))};
}
inline Ticks done_after(Ticks time, double pace) {
  if (pace == 1) return time;
  return {saturating_cast(static_cast<double>(time.value) / pace)};
}

}  // namespace orrery::sim
