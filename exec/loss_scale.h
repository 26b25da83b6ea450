// SPDX-License-Identifier: Apache-2.0
//
// Dynamic loss scaling (Micikevicius et al., "Mixed precision training", 2018, section 3.2): gradients in
// fp16 are made of a loss times a factor, which halves when they overflow, that step being left out, and
// doubles after so many steps that did not. Factors are powers of two, so they change no bits where nothing
// overflows or underflows.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/error.h"

namespace orrery::exec {

class LossScale {
 public:
  struct State {
    double scale = 1;
    std::int64_t good = 0;     // steps since it changed
    std::int64_t skipped = 0;  // of all steps
  };
  // `first` is taken down to a power of two.
  LossScale(double first, std::int64_t window)
      : state_{std::exp2(std::floor(std::log2(first)))}, window_(window) {}

  double scale() const { return state_.scale; }
  std::int64_t skipped() const { return state_.skipped; }
  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

  // After a step. Throws Error when gradients overflow at every scale.
  void update(bool overflowed) {
    constexpr double kLeast = 1.0 / 65536, kMost = 16777216.0 * 65536;
    if (overflowed) {
      if (state_.scale / 2 < kLeast) throw Error("gradients overflow in fp16 whatever the loss scale");
      state_ = {state_.scale / 2, 0, state_.skipped + 1};
    } else if (++state_.good == window_) {
      state_ = {state_.scale < kMost ? state_.scale * 2 : state_.scale, 0, state_.skipped};
    }
  }

 private:
  State state_;
  std::int64_t window_;
};

}  // namespace orrery::exec
