// SPDX-License-Identifier: Apache-2.0
//
// How ranks exchange data. One Communicator per rank; calls block the stream that makes them, and the streams
// of a rank call at the same time. Members of a group make the same calls on it in the same order; this is
// compared at every meeting: sequence number, name, kind, type and size. Every wait has a deadline. A rank
// that does not come, or comes with something else, ends the job with a message that names rank, op and
// sequence number.
//
//   GroupId g = communicator.open({0, 2, 4});
//   communicator.collective(g, {CollectiveKind::kAllReduce, "unit3/all-reduce", in, out, n});
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "program/collectives.h"

namespace orrery::exec {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

using program::Algorithm;
using program::CollectiveKind;

struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::string_view name;
  const void* input = nullptr;
  void* output =
      nullptr;  // may be the input (a part: its place in the whole), but not for kAllToAll and kShift
  std::size_t elements = 0;  // of the whole; kinds with parts need a multiple of the group's size
  DType type = DType::kFloat32;
  bool accumulate = false;  // kReduceScatter: the sum begins with the output
  std::size_t root = 0;     // member index
  Algorithm algorithm = Algorithm::kDirect;
};

using GroupId = std::size_t;
using GroupKey = std::pair<std::vector<std::int64_t>, int>;  // members and number

class Communicator {
 public:
  virtual ~Communicator() = default;
  // Memory that the other ranks can reach, aligned to 256 bytes, not initialised: buffers of calls stand in
  // it where ranks are processes. It lives as long as the communicator's world.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  // What to add to this rank's clock to get rank 0's: nothing on one host.
  virtual Clock::duration clock_offset() const { return {}; }
  // `members` in group order, this rank among them. The same members and number give the same group. Streams
  // that call at the same time have groups of different numbers.
  virtual GroupId open(std::span<const std::int64_t> members, int number) = 0;
  GroupId open(std::span<const std::int64_t> members) { return open(members, 0); }
  // Returns when the last member arrived. Sums are in the order of the algorithm, whatever the timing: in
  // member order (16-bit floats in fp32, rounded once), or, in rounds, in the order of their transfers
  // (16-bit floats rounded at every hop).
  virtual Clock::time_point collective(GroupId group, const CollectiveCall& call) = 0;
  // A message passes when both ends are there; on one channel between two ranks, in order. Return when both
  // were.
  virtual Clock::time_point send(std::int64_t to, int channel, std::string_view name, const void* data,
                                 std::size_t bytes) = 0;
  virtual Clock::time_point receive(std::int64_t from, int channel, std::string_view name, void* data,
                                    std::size_t bytes) = 0;
};

}  // namespace orrery::exec
