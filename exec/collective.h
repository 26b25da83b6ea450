// SPDX-License-Identifier: Apache-2.0
//
// What a collective computes, whoever brings its members together. Sums are in member order. Internal to
// exec/.
#pragma once

#include <span>
#include <string>

#include "exec/communicator.h"

namespace orrery::exec {

constexpr std::size_t kMostMembers = 256;

// Why the members' calls do not belong together; empty when they do.
std::string mismatch(std::span<const CollectiveCall> calls, std::span<const std::int64_t> members);

// Sums (or takes the maximum of) `count` elements of all inputs, in their order, into `output`, which may be
// one of them; begins with `start` unless it is null. 16-bit floats are summed in fp32 and rounded once.
void reduce(DType type, bool max, std::span<const void* const> inputs, std::size_t count, const void* start,
            void* output);

// One member's share of the work, done directly on all members' buffers: one slice of a sum, one copy of a
// gather. When all members have done theirs, the collective is complete.
void do_share(std::span<const CollectiveCall> calls, std::size_t self);

}  // namespace orrery::exec
