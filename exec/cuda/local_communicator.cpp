// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/local_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace orrery::exec::cuda {

using kernels::cuda::allocate;
using kernels::cuda::check;
using kernels::cuda::make_event;
using kernels::cuda::Timed;

// --- messages --------------------------------------------------------------------------------------

void LocalChannels::post(const ChannelKey& key, std::unique_ptr<Message> message) {
  {
    const std::lock_guard lock(mutex_);
    channels_[key].posted.push_back(std::move(message));
  }
  posted_.notify_all();
}

std::unique_ptr<LocalChannels::Message> LocalChannels::take(const ChannelKey& key, std::string_view name,
                                                            std::chrono::milliseconds deadline,
                                                            const Abort& abort) {
  std::unique_lock lock(mutex_);
  Channel& channel = channels_[key];
  if (!abort.wait(posted_, lock, deadline, [&] { return !channel.posted.empty(); })) {
    throw Error(fmt::format("\"{}\": rank {} sent nothing for {} ms", name, key.from, deadline.count()));
  }
  auto message = std::move(channel.posted.front());
  channel.posted.pop_front();
  return message;
}

void LocalChannels::give_back(const ChannelKey& key, std::unique_ptr<Message> message) {
  const std::lock_guard lock(mutex_);
  channels_[key].free.push_back(std::move(message));
}

std::unique_ptr<LocalChannels::Message> LocalChannels::free_message(const ChannelKey& key,
                                                                    std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    auto& free = channels_[key].free;
    const auto fits =
        std::find_if(free.begin(), free.end(), [&](const auto& m) { return m->memory.bytes() == bytes; });
    if (fits != free.end()) {
      auto message = std::move(*fits);
      free.erase(fits);
      return message;
    }
    channels_[key].bytes += bytes;
  }
  auto message = std::make_unique<Message>();
  message->memory = allocate(bytes, "memory of a message");
  message->written = make_event(Timed::kNo);
  return message;
}

std::size_t LocalChannels::bytes_from(std::int64_t rank) {
  const std::lock_guard lock(mutex_);
  std::size_t all = 0;
  for (const auto& [key, channel] : channels_) {
    if (key.from == rank) all += channel.bytes;
  }
  return all;
}

// --- the communicator ------------------------------------------------------------------------------

LocalCommunicator::LocalCommunicator(Communicator& host, std::shared_ptr<LocalChannels> channels,
                                     std::int64_t rank, std::chrono::milliseconds deadline,
                                     const Abort& abort)
    : host_(host), channels_(std::move(channels)), rank_(rank), deadline_(deadline), abort_(abort) {}

GroupId LocalCommunicator::open(std::span<const std::int64_t> members, int number) {
  const auto [at, added] = opened_.try_emplace({{members.begin(), members.end()}, number}, groups_.size());
  if (!added) return at->second;
  const auto self = std::find(members.begin(), members.end(), rank_) - members.begin();
  groups_.push_back({host_.open(members, number), static_cast<std::size_t>(self), members.size(),
                     host_.allocate((members.size() + 1) * sizeof(Part)), make_event(Timed::kNo),
                     make_event(Timed::kNo)});
  return at->second;
}

std::vector<LocalCommunicator::Part> LocalCommunicator::meet(const Group& group, std::string_view name,
                                                             const Part& mine) {
  std::memcpy(group.mailbox, &mine, sizeof mine);
  host_.collective(group.host, {.kind = CollectiveKind::kAllGather,
                                .name = name,
                                .input = group.mailbox,
                                .output = group.mailbox + sizeof mine,
                                .elements = group.members * sizeof mine,
                                .type = DType::kByte});
  std::vector<Part> all(group.members);
  std::memcpy(all.data(), group.mailbox + sizeof mine, group.members * sizeof mine);
  return all;
}

void LocalCommunicator::collective(GroupId id, const CollectiveCall& call, kernels::cuda::Stream stream) {
  using enum CollectiveKind;
  const Group& group = groups_[id];
  check(cudaEventRecord(group.ready.get(), stream), "cudaEventRecord");
  Part mine{call.kind, call.type, call.elements, call.input, call.output, group.ready.get()};
  const std::vector<Part> all = meet(group, call.name, mine);
  for (const Part& p : all) {
    if (p.kind != call.kind || p.type != call.type || p.elements != call.elements)
      throw Error(fmt::format("\"{}\": members of its group call different collectives", call.name));
    check(cudaStreamWaitEvent(stream, p.event, 0), "cudaStreamWaitEvent");
  }
  const std::size_t n = group.members, self = group.self, size = bytes_of(call.type),
                    part = call.elements / n;
  const auto input = [&](std::size_t m, std::size_t element) {
    return static_cast<const std::byte*>(all[m].input) + element * size;
  };
  const auto output = [&](std::size_t m, std::size_t element) {
    return static_cast<std::byte*>(all[m].output) + element * size;
  };
  const auto copy = [&](const std::byte* from, std::size_t count, std::byte* to) {
    if (from != to && count > 0)
      check(cudaMemcpyAsync(to, from, count * size, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  };
  std::vector<const void*> inputs(n);
  const auto sum = [&](std::size_t begin, std::size_t count, const void* start, std::byte* to) {
    for (std::size_t m = 0; m < n; ++m) inputs[m] = input(m, begin);
    if (count > 0) {
      kernels::cuda::reduce(stream, call.type, inputs, static_cast<std::int64_t>(count), start, to);
    }
  };
  const std::size_t begin = call.elements * self / n, count = call.elements * (self + 1) / n - begin;
  switch (call.kind) {
    case kAllReduce:
      sum(begin, count, nullptr, output(self, begin));
      for (std::size_t m = 0; m < n; ++m) copy(output(self, begin), m == self ? 0 : count, output(m, begin));
      break;
    case kReduceScatter:
      sum(self * part, part, call.accumulate ? output(self, 0) : nullptr, output(self, 0));
      break;
    case kAllGather:
      for (std::size_t m = 0; m < n; ++m) copy(input(m, 0), part, output(self, m * part));
      break;
    case kAllToAll:
      for (std::size_t m = 0; m < n; ++m) copy(input(m, self * part), part, output(self, m * part));
      break;
    case kShift:
      copy(input((self + n - 1) % n, 0), call.elements, output(self, 0));
      break;
    case kBroadcast:
    case kReduce:
    case kGather:
    case kScatter:
      throw Error(fmt::format("\"{}\" is no collective of programs", call.name));
  }
  // Nobody writes over what others still read, nor reads what others still write.
  check(cudaEventRecord(group.done.get(), stream), "cudaEventRecord");
  mine.event = group.done.get();
  for (const Part& p : meet(group, call.name, mine))
    check(cudaStreamWaitEvent(stream, p.event, 0), "cudaStreamWaitEvent");
}

void LocalCommunicator::send(std::int64_t to, int channel, std::string_view name, const void* data,
                             std::size_t bytes, kernels::cuda::Stream stream) {
  const ChannelKey key{rank_, to, channel};
  auto message = channels_->free_message(key, bytes);
  message->name = name;
  check(cudaStreamWaitEvent(stream, message->written.get(), 0), "cudaStreamWaitEvent");
  check(cudaMemcpyAsync(message->memory.get(), data, bytes, cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync");
  check(cudaEventRecord(message->written.get(), stream), "cudaEventRecord");
  channels_->post(key, std::move(message));
}

void LocalCommunicator::receive(std::int64_t from, int channel, std::string_view name, void* data,
                                std::size_t bytes, kernels::cuda::Stream stream) {
  const ChannelKey key{from, rank_, channel};
  auto message = channels_->take(key, name, deadline_, abort_);
  if (message->memory.bytes() != bytes) {
    throw Error(fmt::format("\"{}\" expects {} bytes, and rank {} sent \"{}\" with {}", name, bytes, from,
                            message->name, message->memory.bytes()));
  }
  check(cudaStreamWaitEvent(stream, message->written.get(), 0), "cudaStreamWaitEvent");
  check(cudaMemcpyAsync(data, message->memory.get(), bytes, cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync");
  check(cudaEventRecord(message->written.get(), stream), "cudaEventRecord");  // from here on it is free
  channels_->give_back(key, std::move(message));
}

}  // namespace orrery::exec::cuda
