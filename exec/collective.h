// SPDX-License-Identifier: Apache-2.0
//
// What a collective computes, whoever brings its members together. Sums are in member order. Internal to
// exec/.
#pragma once

#include <map>
#include <span>
#include <string>
#include <tuple>

#include "exec/communicator.h"

namespace orrery::exec {

constexpr std::size_t kMostMembers = 256;

// Why the members' calls do not belong together; empty when they do.
std::string mismatch(std::span<const CollectiveCall> calls, std::span<const std::int64_t> members);

// Sums `count` elements of all inputs, in their order, into `output`, which may be one of them; begins with
// `start` unless it is null. 16-bit floats are summed in fp32 and rounded once.
void reduce(DType type, std::span<const void* const> inputs, std::size_t count, const void* start,
            void* output);

// One member's share of the work, done directly on all members' buffers: one slice of a sum, one copy of a
// gather. When all members have done theirs, the collective is complete.
void do_share(std::span<const CollectiveCall> calls, std::size_t self);

// An algorithm in rounds (program/collectives.h) moves blocks between copies of the whole tensor: a member's
// output where it is the whole, else memory beside it.
bool works_in_output(const CollectiveCall& call, std::size_t self);
// Brings a member's input to its copy; and the result from there, where it is not there already.
void begin_rounds(const CollectiveCall& call, std::size_t self, std::size_t members, std::byte* work);
void end_rounds(const CollectiveCall& call, std::size_t self, std::size_t members, const std::byte* work);
// What a transfer moves, in elements of the tensor.
struct ElementRange {
  std::size_t begin, count;
};
ElementRange elements_of(const program::Rounds& rounds, const program::Transfer& t, std::size_t elements);
void receive_block(const CollectiveCall& call, bool add, const std::byte* from, std::size_t count,
                   std::byte* to);

// The rounds of the calls of one group.
class RoundsCache {
 public:
  const program::Rounds& find(const CollectiveCall& call, std::size_t members, std::size_t node);

 private:
  using Key = std::tuple<Algorithm, CollectiveKind, std::size_t, std::size_t>;
  std::map<Key, program::Rounds> rounds_;
};

}  // namespace orrery::exec
