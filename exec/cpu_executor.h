// SPDX-License-Identifier: Apache-2.0
//
// Ops on the processor: a thread for each stream, that of compute being the caller's. Internal to exec/.
#pragma once

#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "exec/cpu_ops.h"
#include "exec/drives.h"
#include "exec/executor.h"
#include "exec/staging.h"

namespace orrery::exec {

class CpuExecutor : public Executor {
 public:
  CpuExecutor(const Placement& place, const RunOptions& options, Communicator& communicator, Abort& abort);
  ~CpuExecutor() override;

  void write(std::int64_t offset, std::span<const std::byte> from) override;
  void read(std::int64_t offset, std::span<std::byte> to) override;
  void clear() override;
  const std::byte* view(std::int64_t offset, std::size_t bytes, std::vector<std::byte>& space) override;
  std::int64_t scratch_bytes() const override;
  // Measures what compute waited in every pass.
  PassTimes run(const Pass& pass) override;

 private:
  using Counts = std::array<std::int64_t, program::kMostStreams>;

  std::byte* at(std::int64_t offset) const {
    const std::int64_t beyond = offset - class_.drives_begin();
    return beyond < 0 ? arena_ + offset : drives_.data() + beyond;
  }
  float* pointer(const program::Ref& r, std::int32_t micro_batch) const;
  void start_threads();
  void serve(program::StreamIndex stream);
  void walk(program::StreamIndex stream);
  void wait_for(const program::Step& step, std::int32_t op_index, const program::Op& op, const Counts& base);
  void wait_until(program::StreamIndex stream, std::int64_t count, const program::Op& waiting);
  void complete(program::StreamIndex stream);
  Clock::time_point execute(const program::Op& op, std::int32_t micro_batch);
  void compute(const program::Op& op, std::int32_t micro_batch);
  void require_finite(double value, const program::Op& op, std::int32_t micro_batch) const;
  Clock::time_point communicate(const program::Op& op, std::int32_t micro_batch);

  const Placement& place_;
  const program::RankClass& class_;
  const RunOptions& options_;
  Communicator& communicator_;
  Abort& abort_;
  std::byte* arena_;
  DriveFile drives_;
  std::vector<GroupId> groups_;  // by the program's groups; none for groups that never meet
  // By segment and stream, the indices of the stream's ops.
  std::vector<std::array<std::vector<std::int32_t>, program::kMostStreams>> ops_of_;
  double slow_ = 1;                 // emulated: times the time of compute
  Staging staging_, host_staging_;  // of the streams that compute
  const std::vector<RotaryTables> rotary_;
  const Pass* pass_ = nullptr;  // that the threads run
  Clock::duration waited_{};    // of the compute stream, in this pass
  Clock::duration emulated_{};  // slept, to be slower

  // Progress of the streams in this pass. `changed_` wakes streams that wait for others, and the threads that
  // wait for the next pass.
  std::array<std::atomic<std::int64_t>, program::kMostStreams> done_{};
  // The least count of each stream that another waits for; only that wakes anybody.
  static constexpr std::int64_t kNobody = std::numeric_limits<std::int64_t>::max();
  std::array<std::atomic<std::int64_t>, program::kMostStreams> wanted_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t runs_ = 0;  // begun: what the threads wait for
  int busy_ = 0;           // threads that have not finished it
  bool stop_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace orrery::exec
