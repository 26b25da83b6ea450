// SPDX-License-Identifier: Apache-2.0
//
// The static checker: proves of a program, before a dollar is spent, that
//   * every send has its receive, in the same order and size, on both ends of each channel;
//   * members of a collective's group do the same work, so its order is equal on all;
//   * no rank waits for ever (the program is walked without times);
//   * nothing is read before it is written or after it is freed;
//   * ops of two streams that touch the same bytes are ordered by waits.
// Each problem names the offending ops.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "program/program.h"

namespace orrery::program {

// Empty when the program is sound; at most `most` problems otherwise. `progress` is told the share of classes
// that are done.
std::vector<std::string> check(const Program& program, std::size_t most = 20,
                               const std::function<void(double)>& progress = {});

}  // namespace orrery::program
