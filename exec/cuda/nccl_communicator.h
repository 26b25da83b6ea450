// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes with a GPU each, over NCCL: a communicator for each group, and one of two ranks for each
// direction and channel between pipeline stages, so that no message waits behind another. Communicators do
// not block: a partner that fails or does not come is seen by its error or at the deadline, and ends the job
// with a message. Sums are in NCCL's order. Groups find each other over the hosts' communicator.
#pragma once

#include <nccl.h>

#include <map>
#include <vector>

#include "exec/abort.h"
#include "exec/cuda/device_communicator.h"
#include "kernels/cuda/device.h"

namespace orrery::exec::cuda {

class NcclCommunicator : public DeviceCommunicator {
 public:
  // On the calling thread's device.
  NcclCommunicator(Communicator& host, std::int64_t rank, std::chrono::milliseconds deadline,
                   const Abort& abort);
  ~NcclCommunicator() override;

  GroupId open(std::span<const std::int64_t> members, int number) override;
  void open_channels(std::span<const ChannelKey> channels) override;
  void collective(GroupId group, const CollectiveCall& call, kernels::cuda::Stream stream) override;
  void send(std::int64_t to, int channel, std::string_view name, const void* data, std::size_t bytes,
            kernels::cuda::Stream stream) override;
  void receive(std::int64_t from, int channel, std::string_view name, void* data, std::size_t bytes,
               kernels::cuda::Stream stream) override;
  void reserve_sum(GroupId group, std::size_t bytes) override;
  void offer(std::span<std::byte> memory) override;
  std::size_t scratch_bytes() const override;
  void require_healthy() const override;
  void abort() override;

 private:
  struct Group {
    ncclComm_t comm = nullptr;
    std::size_t members = 1, self = 0;
    kernels::cuda::DeviceMemory scratch;  // of sums that begin with something
  };
  // `most_blocks`: of the device, that its kernels take; 0: as many as NCCL wants.
  ncclComm_t make(std::span<const std::int64_t> members, int most_blocks);
  // The result of a call on a communicator, once NCCL has one.
  void settle(ncclComm_t comm, ncclResult_t result, std::string_view name) const;
  ncclComm_t channel(const ChannelKey& key, std::string_view name) const;

  Communicator& host_;
  std::int64_t rank_;
  std::chrono::milliseconds deadline_;
  const Abort& abort_;
  std::byte* mailbox_;  // of ids
  std::map<GroupKey, GroupId> opened_;
  std::vector<Group> groups_;
  std::map<ChannelKey, ncclComm_t> channels_;
};

}  // namespace orrery::exec::cuda
