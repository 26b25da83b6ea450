// SPDX-License-Identifier: Apache-2.0
//
// Ops on a GPU: one thread enqueues a pass in issue order on the streams of the program, with an event for
// every count that another stream waits for, or launches a graph of it; the processor waits only at the end.
// Memory is one arena of the size that compile() says, and declared beside it: scratch memory of the op that
// needs most, that of matrix products, and tables of rotary positions. Internal to exec/.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "exec/cuda/cuda_ops.h"
#include "exec/cuda/device_communicator.h"
#include "exec/cuda/issue.h"
#include "exec/drives.h"
#include "exec/executor.h"
#include "exec/staging.h"
#include "kernels/cuda/device.h"

namespace orrery::exec::cuda {

using kernels::cuda::DeviceMemory;
using kernels::cuda::Event;
using kernels::cuda::HostMemory;
using kernels::cuda::OwnedStream;

class CudaExecutor : public Executor {
 public:
  // On the calling thread's device.
  CudaExecutor(const Placement& place, const RunOptions& options,
               std::unique_ptr<DeviceCommunicator> communicator, Abort& abort);

  void write(std::int64_t offset, std::span<const std::byte> from) override;
  void read(std::int64_t offset, std::span<std::byte> to) override;
  void clear() override;
  const std::byte* view(std::int64_t offset, std::size_t bytes, std::vector<std::byte>& space) override;
  std::int64_t scratch_bytes() const override;
  std::uint64_t algorithms() const override;
  // Of the run's passes, measures the last step: an event before and after every op is not free.
  PassTimes run(const Pass& pass) override;

 private:
  // The arena goes on in the host's memory, and on its drives.
  std::byte* at(std::int64_t offset) const {
    if (offset >= class_.drives_begin()) return drives_.data() + (offset - class_.drives_begin());
    const std::int64_t beyond = offset - class_.arena_peak.value;
    return beyond < 0 ? static_cast<std::byte*>(arena_.get()) + offset
                      : static_cast<std::byte*>(host_arena_.get()) + beyond;
  }
  std::byte* pointer(const program::Ref& r, std::int64_t micro_batch) const {
    return at(place_.offset(r, micro_batch));
  }
  kernels::cuda::Stream stream(program::StreamIndex s) const { return streams_[s].get(); }
  std::vector<ChannelKey> channels() const;
  void number_ops();
  void open_groups();
  void plan_gemms();
  void fill_rope_tables();
  void set_scalars(const Pass& pass);
  PassTimes walk(const Pass& pass);
  bool is_replayed(const Pass& pass) const;
  kernels::cuda::Graph capture(const Pass& pass, bool measures);
  void issue(const Pass& pass, bool measures, bool captured);
  void exchange_with_islands(const Pass& pass);
  void compute(const program::Op& op, std::int64_t micro_batch, const Pass& pass);
  // The processor's work, when the op's stream comes to it.
  void enqueue_on_host(const program::Op& op);
  void run_on_host(const program::Op& op);
  void communicate(const program::Op& op, std::int64_t micro_batch);
  void finish(kernels::cuda::Stream s, const char* what) const;
  template <class Query>
  void wait(Query query, const char* what) const;
  std::string under_way() const;
  double collect(Clock::time_point begin);

  // Pinned memory that copies to and from the device pass through, in two halves: one is filled while the
  // other is on its way.
  struct PinnedHalf {
    static constexpr std::size_t kBytes = 4 << 20;
    kernels::cuda::HostMemory memory = kernels::cuda::allocate_host(kBytes);
    kernels::cuda::Event copied = kernels::cuda::make_event(kernels::cuda::Timed::kNo);
  };

  const Placement& place_;
  const program::RankClass& class_;
  const RunOptions& options_;
  Abort& abort_;
  std::unique_ptr<DeviceCommunicator> communicator_;
  IssueOrder order_;
  std::vector<OwnedStream> streams_;  // by the program's streams
  DeviceMemory arena_, workspace_, rope_, scalars_;
  std::vector<RotaryMemory> rotary_;  // in rope_
  HostMemory next_scalars_, host_arena_;
  DriveFile drives_;
  // Of updates by the processor, and copies to and from drives.
  struct HostWork {
    CudaExecutor* executor;
    const program::Op* op;
  };
  std::map<const program::Op*, HostWork> host_work_;
  Staging staging_;
  StepConstants constants_;  // of the pass
  std::array<PinnedHalf, 2> pinned_;
  std::unique_ptr<kernels::cuda::Gemms> gemms_;
  std::vector<GroupId> groups_;  // by the program's groups; none for groups that never meet
  std::vector<Event> events_;
  Event fork_;
  std::vector<Event> joins_;  // by stream
  Event begin_;
  std::vector<Event> before_, after_;  // by issue, of a measured pass
  bool warm_ = false;                  // a training step was issued, op by op
  // Until then each stream tells the host the number of the op that it comes to, so that an error names ops.
  DeviceMemory numbers_;
  HostMemory reached_;  // by stream; -1: none
  kernels::cuda::Graph graph_, measured_graph_;
};

}  // namespace orrery::exec::cuda
