// SPDX-License-Identifier: Apache-2.0
//
// Ops of a rank that race: they touch the same bytes of the arena, at least one of them writes, and no chain
// of stream order and waits puts one before the other. Internal to program/.
//
// This file finds the mistakes of link.cpp, so it shares no code with it. The linker derives waits from
// buffers and their lives; here are only bytes of the arena, and the waits as an executor obeys them.
#pragma once

#include <vector>

#include "program/program.h"

namespace orrery::program {

struct Race {
  std::int32_t step = 0, op = 0;  // the later op in issue order
  StreamIndex stream = kCompute;  // of the other op
};

// In issue order; at most `most`.
std::vector<Race> find_races(const RankClass& rank, std::size_t most);

}  // namespace orrery::program
