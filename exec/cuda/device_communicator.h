// SPDX-License-Identifier: Apache-2.0
//
// How ranks on devices exchange data: calls enqueue work on a stream and return; what comes after them on it
// sees their result. Members of a group make the same calls on it in the same order.
//
//   LocalCommunicator  ranks are threads of one process, on one device or several (local_communicator.h)
//   NcclCommunicator   ranks are processes with a device each (nccl_communicator.h)
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>

#include "exec/communicator.h"
#include "kernels/cuda/kernels.h"

namespace orrery::exec::cuda {

// Messages from a rank to another, in order; those of gradients have a channel of their own.
struct ChannelKey {
  std::int64_t from, to;
  int channel;
  auto operator<=>(const ChannelKey&) const = default;
};

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  // As of Communicator.
  virtual GroupId open(std::span<const std::int64_t> members, int number) = 0;
  // Those that this rank sends and receives on, in ascending order: what opens them may wait for the other
  // end.
  virtual void open_channels(std::span<const ChannelKey> channels) = 0;
  virtual void collective(GroupId group, const CollectiveCall& call, kernels::cuda::Stream stream) = 0;
  // On one channel between two ranks, in order.
  virtual void send(std::int64_t to, int channel, std::string_view name, const void* data, std::size_t bytes,
                    kernels::cuda::Stream stream) = 0;
  virtual void receive(std::int64_t from, int channel, std::string_view name, void* data, std::size_t bytes,
                       kernels::cuda::Stream stream) = 0;
  // Before the first step: sums of this many bytes a group that begin with something, and memory that data
  // will be exchanged from and to.
  virtual void reserve_sum(GroupId, std::size_t) {}
  virtual void offer(std::span<std::byte>) {}
  // Of device memory that it holds.
  virtual std::size_t scratch_bytes() const = 0;
  // Throws Error when communication that was enqueued has failed.
  virtual void require_healthy() const {}
  // Ends what was enqueued, where partners may never come. Nothing is enqueued after it.
  virtual void abort() {}
};

}  // namespace orrery::exec::cuda
