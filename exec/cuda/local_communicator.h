// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads of one process that share a device: what plans compute can be compared on a single GPU. In
// a collective members tell each other, over the hosts' communicator, where their data is and which event
// says that it is ready; each sums its slice on its own stream, in member order, as exec/shared_world.h does
// on the processor. A message is copied into memory of its channel, so that no thread waits for a receiver.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "exec/abort.h"
#include "exec/cuda/device_communicator.h"
#include "kernels/cuda/device.h"

namespace orrery::exec::cuda {

using kernels::cuda::DeviceMemory;
using kernels::cuda::Event;

// Messages under way between the threads.
class LocalChannels {
 public:
  struct Message {
    std::string name;
    DeviceMemory memory;
    Event written;
  };
  void post(const ChannelKey& key, std::unique_ptr<Message> message);
  // Waits for the next; throws Error when the deadline passes, or the job has ended.
  std::unique_ptr<Message> take(const ChannelKey& key, std::string_view name,
                                std::chrono::milliseconds deadline, const Abort& abort);
  // Memory that was read, for another message of the channel: it may be written once `written` was reached.
  void give_back(const ChannelKey& key, std::unique_ptr<Message> message);
  std::unique_ptr<Message> free_message(const ChannelKey& key, std::size_t bytes);
  // Of all messages that a rank has had memory for.
  std::size_t bytes_from(std::int64_t rank);

 private:
  struct Channel {
    std::deque<std::unique_ptr<Message>> posted, free;
    std::size_t bytes = 0;  // of all its messages
  };
  std::mutex mutex_;
  std::condition_variable posted_;
  std::map<ChannelKey, Channel> channels_;
};

class LocalCommunicator : public DeviceCommunicator {
 public:
  // `host` and `channels` are those of all ranks' threads.
  LocalCommunicator(Communicator& host, std::shared_ptr<LocalChannels> channels, std::int64_t rank,
                    std::chrono::milliseconds deadline, const Abort& abort);

  GroupId open(std::span<const std::int64_t> members, int number) override;
  void open_channels(std::span<const ChannelKey>) override {}
  void collective(GroupId group, const CollectiveCall& call, kernels::cuda::Stream stream) override;
  void send(std::int64_t to, int channel, std::string_view name, const void* data, std::size_t bytes,
            kernels::cuda::Stream stream) override;
  void receive(std::int64_t from, int channel, std::string_view name, void* data, std::size_t bytes,
               kernels::cuda::Stream stream) override;
  // Of the messages that this rank sends.
  std::size_t scratch_bytes() const override { return channels_->bytes_from(rank_); }

 private:
  // What members tell each other.
  struct Part {
    CollectiveKind kind;
    DType type;
    std::size_t elements;
    const void* input;
    void* output;
    cudaEvent_t event;
  };
  struct Group {
    GroupId host;
    std::size_t self, members;
    std::byte* mailbox;  // this rank's part, and room for all
    Event ready, done;
  };
  std::vector<Part> meet(const Group& group, std::string_view name, const Part& mine);

  Communicator& host_;
  std::shared_ptr<LocalChannels> channels_;
  std::int64_t rank_;
  std::chrono::milliseconds deadline_;
  const Abort& abort_;
  std::map<GroupKey, GroupId> opened_;
  std::vector<Group> groups_;
};

}  // namespace orrery::exec::cuda
