// SPDX-License-Identifier: Apache-2.0
//
// One rank of a running program: its arena, and a thread for each of its streams. A stream runs its ops in
// order; an op starts when the other streams have completed the counts it waits for, which is all the
// synchronisation the program asks for, and all that the simulator assumes.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "exec/abort.h"
#include "exec/checkpoint.h"
#include "exec/communicator.h"
#include "exec/cpu_ops.h"
#include "exec/data.h"
#include "exec/logical.h"
#include "exec/loss_scale.h"
#include "exec/run.h"
#include "exec/staging.h"
#include "program/program.h"

namespace orrery::exec {

// When an op ran: it started when its waits were met, and was active when its last partner was there.
struct Measured {
  std::int32_t step, op;
  Clock::time_point start, active, end;
};

class Rank {
 public:
  // `validation` may be null.
  Rank(const program::Program& program, const RunOptions& options, const Dataset& training,
       const Dataset* validation, std::int64_t rank, Communicator& communicator, Abort& abort);
  ~Rank();

  // Fills the arena: parameters, and zeros.
  void initialise();
  struct StepResult {
    double loss = 0;           // sum over this rank's tokens on the last stage, zero elsewhere
    double gradient_norm = 0;  // of all gradients, before clipping; zero when it is not measured
    double loss_scale = 0;     // zero when the loss is not scaled
    bool skipped = false;      // gradients overflowed: no parameter was changed
    double waited_for_data_s = 0;
    std::uint32_t batch = 0;  // checksum of the tokens that it loaded; zero on stages that see none
    double waited_s = 0;      // of compute for other streams: exposed communication and pipeline bubbles
  };
  // Parameters and optimizer state from a checkpoint, in place of the initial ones.
  void restore(const RestoredState& state);
  std::vector<UnitMemory> memory() const;
  const LossScale& loss_scale() const { return loss_scale_; }
  // Runs a training step on the calling thread and the threads of the streams.
  StepResult step(std::int64_t number);
  // Runs only the forward work of a step, on a batch of the validation data.
  StepResult evaluate(std::int64_t batch);
  // Seconds that steps waited for their data.
  double waited_for_data_s() const { return loader_ ? loader_->waited_s() : 0; }

  const program::RankClass& rank_class() const { return class_; }
  std::array<std::vector<Measured>, program::kStreamCount> measured;  // of the last step, by stream
  UnitShard gradients, parameters;                                    // captured

 private:
  using Counts = std::array<std::int64_t, program::kStreamCount>;

  const program::Buffer& buffer(const program::Ref& r) const;
  float* pointer(const program::Ref& r, std::int32_t micro_batch) const;
  template <class T>
  T* find(const char* name) const;
  template <class Value>
  std::vector<float> unit_values(std::size_t index, Value value) const;
  void set_parameters(std::size_t index, const std::vector<float>& values);
  std::span<const float> own_shard(std::size_t index, const std::vector<float>& values) const;
  void load(Loader* loader, std::int64_t number);
  StepResult run(std::int64_t number);
  void find_counted();
  void start_threads();
  void serve(program::Stream stream);
  void walk(program::Stream stream, std::int64_t number);
  void wait_for(const program::Step& step, std::int32_t op_index, const program::Op& op, const Counts& base);
  void wait_until(program::Stream stream, std::int64_t count, const program::Op& waiting);
  void complete(program::Stream stream);
  Clock::time_point execute(const program::Op& op, std::int32_t micro_batch, std::int64_t number);
  void compute(const program::Op& op, std::int32_t micro_batch, std::int64_t number);
  kernels::Dropout dropout(const program::Op& op, std::int32_t micro_batch, std::int64_t number) const;
  void require_finite(double value, const program::Op& op, std::int32_t micro_batch,
                      std::int64_t number) const;
  Clock::time_point communicate(const program::Op& op, std::int32_t micro_batch);
  void capture(const program::Op& op, const program::Ref& from, double scale, UnitShard& into);

  const program::Program& program_;
  const RunOptions& options_;
  program::Binding::Coordinates at_;
  const program::RankClass& class_;
  Communicator& communicator_;
  Abort& abort_;
  std::byte* arena_;
  std::array<GroupId, 6> groups_{};
  // By segment and stream, the indices of the stream's ops.
  std::vector<std::array<std::vector<std::int32_t>, program::kStreamCount>> ops_of_;
  double slow_ = 1;  // emulated: times the time of compute
  Staging staging_;
  double* loss_ = nullptr;
  const GradientNorm* norm_ = nullptr;
  // By unit: the ranges of this rank's shard that count in the gradient norm.
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> counted_;

  std::unique_ptr<Loader> loader_, validation_;  // null on stages that see no tokens
  LossScale loss_scale_;
  bool forward_only_ = false, stepped_ = false;
  std::uint32_t batch_ = 0;
  Clock::duration waited_{};  // of the compute stream, in this step

  // Progress of the streams in this step. `changed_` wakes streams that wait for others, and the threads that
  // wait for the next step.
  std::array<std::atomic<std::int64_t>, program::kStreamCount> done_{};
  // The least count of each stream that another waits for; only that wakes anybody.
  static constexpr std::int64_t kNobody = std::numeric_limits<std::int64_t>::max();
  std::array<std::atomic<std::int64_t>, program::kStreamCount> wanted_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t current_ = 0;  // the step the threads run
  std::int64_t runs_ = 0;     // begun: what the threads wait for
  int busy_ = 0;              // threads that have not finished it
  bool stop_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace orrery::exec
