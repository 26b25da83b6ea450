// SPDX-License-Identifier: Apache-2.0
//
// What executes the ops of one rank's program: memory that its buffers stand in, and streams. An op starts
// when the other streams have completed the counts it waits for, which is all the synchronisation the program
// asks for, and all that the simulator assumes.
//
//   CpuExecutor   a thread for each stream, kernels of kernels/cpu (exec/cpu_executor.h)
//   CudaExecutor  the streams of a GPU, kernels of kernels/cuda (exec/cuda/cuda_executor.h)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "exec/abort.h"
#include "exec/communicator.h"
#include "exec/placement.h"
#include "exec/run.h"

namespace orrery::exec {

// When an op ran: it started when its waits were met, and was active when its last partner was there.
struct Measured {
  std::int32_t step, op;
  Clock::time_point start, active, end;
};

// What a pass runs of the program: a step, or some of its segments; or the exchange between islands.
enum class PassOf : std::uint8_t {
  kStep,
  kForward,    // without dropout
  kGradients,  // all before the update
  kUpdate,     // of the gradients that are there
  kExchange
};
inline bool runs(PassOf what, program::SegmentKind kind, const program::Op& op) {
  switch (what) {
    case PassOf::kStep:
    case PassOf::kExchange:
      return true;
    case PassOf::kForward:
      return kind == program::SegmentKind::kForward || op.evaluates;
    case PassOf::kGradients:
      return !follows_chunks(kind);
    case PassOf::kUpdate:
      return follows_chunks(kind);
  }
  return true;
}

// One walk through the program.
struct Pass {
  std::int64_t number = 0;  // of the step, or of the batch that is validated
  PassOf what = PassOf::kStep;
  bool measured = false;  // when ops run
  float learning_rate = 0;
  std::int64_t updates = 1;  // of parameters so far, with this one
  double loss_scale = 1;
  std::int64_t cached = 0;  // tokens of each sequence that are in the caches, of a pass of serving
  // Unless empty, called where an optimizer op may start, and where it is done: memory is as it finds it, and
  // as it leaves it.
  std::function<void(const program::Op&)> before_update, after_update;
  // Unless empty, called by the CPU's executor with the tokens that each expert got of this rank's.
  std::function<void(const program::Op& route, std::int32_t micro_batch,
                     std::span<const std::int32_t> tokens)>
      routed;
};

// Seconds of a pass.
struct PassTimes {
  double waited_s = 0;     // of compute for other streams: exposed communication and pipeline bubbles
  double computing_s = 0;  // on CPUs of the compute thread, and what is emulated; elsewhere without waiting
};

class Executor {
 public:
  virtual ~Executor() = default;

  // The arena, from a byte on. Between passes, and in their hooks.
  virtual void write(std::int64_t offset, std::span<const std::byte> from) = 0;
  virtual void read(std::int64_t offset, std::span<std::byte> to) = 0;
  virtual void clear() = 0;  // all bytes are zero
  // Where these bytes can be read: in the arena, or copied into `space`.
  virtual const std::byte* view(std::int64_t offset, std::size_t bytes, std::vector<std::byte>& space) = 0;

  // Bytes of memory beside the arena that its ops and communication work in, so far.
  virtual std::int64_t scratch_bytes() const = 0;

  // Of how it computes, where the same program may be computed otherwise on the same device: equal numbers,
  // equal bits.
  virtual std::uint64_t algorithms() const { return 0; }

  // Returns when all ops are done. Throws Error when an op fails, or another rank.
  virtual PassTimes run(const Pass& pass) = 0;

  std::array<std::vector<Measured>, program::kMostStreams> measured;  // of the last measured pass, by stream
};

// Who makes a rank's executor, for the ranks of one run. `communicator` is that of the hosts.
using ExecutorFactory = std::function<std::unique_ptr<Executor>(
    const Placement& place, const RunOptions& options, Communicator& communicator, Abort& abort)>;

}  // namespace orrery::exec
