// SPDX-License-Identifier: Apache-2.0
//
// How ranks on devices exchange data: calls enqueue work on a stream and return; what comes after them on it
// sees their result. Members of a group make the same calls on it in the same order.
//
//   LocalCommunicator  ranks are threads of one process, on one device or several (local_communicator.h)
//   NCCL               ranks are processes with a device each
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "exec/communicator.h"
#include "kernels/cuda/kernels.h"

namespace orrery::exec::cuda {

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  // `members` in group order, this rank among them. The same members give the same group.
  virtual GroupId open(std::span<const std::int64_t> members) = 0;
  virtual void collective(GroupId group, const CollectiveCall& call, kernels::cuda::Stream stream) = 0;
  // On one channel between two ranks, in order.
  virtual void send(std::int64_t to, int channel, std::string_view name, const void* data, std::size_t bytes,
                    kernels::cuda::Stream stream) = 0;
  virtual void receive(std::int64_t from, int channel, std::string_view name, void* data, std::size_t bytes,
                       kernels::cuda::Stream stream) = 0;
};

}  // namespace orrery::exec::cuda
