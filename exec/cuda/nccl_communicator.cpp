// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/error.h"
#include "kernels/cuda/library.h"

namespace orrery::exec::cuda {
namespace {

// Of libnccl, by the names of its header.
struct Nccl {
  kernels::cuda::Library library{"libnccl.so.2"};
  decltype(ncclGetUniqueId)* get_unique_id = library.find<decltype(ncclGetUniqueId)>("ncclGetUniqueId");
  decltype(ncclCommInitRankConfig)* init =
      library.find<decltype(ncclCommInitRankConfig)>("ncclCommInitRankConfig");
  decltype(ncclCommGetAsyncError)* get_async_error =
      library.find<decltype(ncclCommGetAsyncError)>("ncclCommGetAsyncError");
  decltype(ncclCommDestroy)* destroy = library.find<decltype(ncclCommDestroy)>("ncclCommDestroy");
  decltype(ncclCommAbort)* abort = library.find<decltype(ncclCommAbort)>("ncclCommAbort");
  decltype(ncclGetErrorString)* error_string =
      library.find<decltype(ncclGetErrorString)>("ncclGetErrorString");
  decltype(ncclGetLastError)* last_error = library.find<decltype(ncclGetLastError)>("ncclGetLastError");
  decltype(ncclAllReduce)* all_reduce = library.find<decltype(ncclAllReduce)>("ncclAllReduce");
  decltype(ncclAllGather)* all_gather = library.find<decltype(ncclAllGather)>("ncclAllGather");
  decltype(ncclReduceScatter)* reduce_scatter =
      library.find<decltype(ncclReduceScatter)>("ncclReduceScatter");
  decltype(ncclSend)* send = library.find<decltype(ncclSend)>("ncclSend");
  decltype(ncclRecv)* recv = library.find<decltype(ncclRecv)>("ncclRecv");
  decltype(ncclGroupStart)* group_start = library.find<decltype(ncclGroupStart)>("ncclGroupStart");
  decltype(ncclGroupEnd)* group_end = library.find<decltype(ncclGroupEnd)>("ncclGroupEnd");
  decltype(ncclCommRegister)* register_memory = library.find<decltype(ncclCommRegister)>("ncclCommRegister");
};
const Nccl& nccl() {
  static const Nccl library;
  return library;
}

ncclDataType_t nccl_type(DType t) {
  switch (t) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kBfloat16:
      return ncclBfloat16;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kInt32:
      return ncclInt32;
    case DType::kByte:
      return ncclUint8;
  }
  return ncclUint8;
}

constexpr std::size_t kMostGroup = 256;  // members of a group that find each other
// Of a channel between stages: a receive that waits for its partner holds them.
constexpr int kBlocksOfAChannel = 4;

}  // namespace

NcclCommunicator::NcclCommunicator(Communicator& host, std::int64_t rank, std::chrono::milliseconds deadline,
                                   const Abort& abort)
    : host_(host),
      rank_(rank),
      deadline_(deadline),
      abort_(abort),
      mailbox_(host.allocate((kMostGroup + 1) * sizeof(ncclUniqueId))) {}

NcclCommunicator::~NcclCommunicator() {
  for (const Group& g : groups_) {
    if (g.comm != nullptr) nccl().destroy(g.comm);
  }
  for (const auto& [key, comm] : channels_) {
    if (comm != nullptr) nccl().destroy(comm);
  }
}

void NcclCommunicator::settle(ncclComm_t comm, ncclResult_t result, std::string_view name) const {
  const auto until = Clock::now() + deadline_;
  while (result == ncclInProgress) {
    abort_.check();
    if (Clock::now() > until)
      throw Error(fmt::format("\"{}\": NCCL was not ready after {} ms", name, deadline_.count()));
    std::this_thread::yield();
    const ncclResult_t asked = nccl().get_async_error(comm, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result != ncclSuccess) {
    throw Error(
        fmt::format("\"{}\": NCCL: {} ({})", name, nccl().error_string(result), nccl().last_error(comm)));
  }
}

// The first member makes the id, and all members tell each other theirs: the first's counts.
ncclComm_t NcclCommunicator::make(std::span<const std::int64_t> members, int most_blocks) {
  if (members.size() > kMostGroup) {
    throw Error(fmt::format("a group of {} ranks is more than find each other for NCCL (at most {})",
                            members.size(), kMostGroup));
  }
  ncclUniqueId id{};
  if (members.front() == rank_) settle(nullptr, nccl().get_unique_id(&id), "NCCL's id");
  std::memcpy(mailbox_, &id, sizeof id);
  host_.collective(host_.open(members), {.kind = CollectiveKind::kAllGather,
                                         .name = "NCCL's id",
                                         .input = mailbox_,
                                         .output = mailbox_ + sizeof id,
                                         .elements = members.size() * sizeof id,
                                         .type = DType::kByte});
  std::memcpy(&id, mailbox_ + sizeof id, sizeof id);
  const auto self = std::find(members.begin(), members.end(), rank_) - members.begin();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (most_blocks > 0) config.maxCTAs = most_blocks;
  ncclComm_t comm = nullptr;
  try {
    const ncclResult_t begun =
        nccl().init(&comm, static_cast<int>(members.size()), id, static_cast<int>(self), &config);
    settle(comm, begun, "a communicator");
  } catch (const Error&) {
    if (comm != nullptr) nccl().abort(comm);
    throw;
  }
  return comm;
}

GroupId NcclCommunicator::open(std::span<const std::int64_t> members, int number) {
  const auto [at, added] = opened_.try_emplace({{members.begin(), members.end()}, number}, groups_.size());
  if (added) {
    const auto self = std::find(members.begin(), members.end(), rank_) - members.begin();
    groups_.push_back({make(members, 0), members.size(), static_cast<std::size_t>(self), {}});
  }
  return at->second;
}

void NcclCommunicator::open_channels(std::span<const ChannelKey> channels) {
  for (const ChannelKey& c : channels) {
    if (!channels_.contains(c)) channels_[c] = make(std::array{c.from, c.to}, kBlocksOfAChannel);
  }
}

ncclComm_t NcclCommunicator::channel(const ChannelKey& key, std::string_view name) const {
  const auto found = channels_.find(key);
  if (found == channels_.end())
    throw Error(fmt::format("\"{}\": no channel from rank {} to rank {} was opened", name, key.from, key.to));
  return found->second;
}

void NcclCommunicator::collective(GroupId id, const CollectiveCall& call, kernels::cuda::Stream stream) {
  using enum CollectiveKind;
  Group& group = groups_[id];
  const ncclDataType_t type = nccl_type(call.type);
  const std::size_t part = call.elements / group.members;
  const auto settled = [&](ncclResult_t r) { settle(group.comm, r, call.name); };
  switch (call.kind) {
    case kAllReduce:
      return settled(
          nccl().all_reduce(call.input, call.output, call.elements, type, ncclSum, group.comm, stream));
    case kAllGather:
      return settled(nccl().all_gather(call.input, call.output, part, type, group.comm, stream));
    case kReduceScatter: {
      if (!call.accumulate)
        return settled(
            nccl().reduce_scatter(call.input, call.output, part, type, ncclSum, group.comm, stream));
      if (group.scratch.bytes() < part * bytes_of(call.type))
        throw Error(fmt::format("\"{}\": no memory was reserved for its sum", call.name));
      settled(
          nccl().reduce_scatter(call.input, group.scratch.get(), part, type, ncclSum, group.comm, stream));
      return kernels::cuda::add(stream, call.type, static_cast<std::int64_t>(part), group.scratch.get(),
                                call.output);
    }
    case kAllToAll: {
      const std::size_t bytes = part * bytes_of(call.type);
      // Within a group nothing is under way before its end.
      const auto queued = [&](ncclResult_t r) { settled(r == ncclInProgress ? ncclSuccess : r); };
      queued(nccl().group_start());
      for (std::size_t m = 0; m < group.members; ++m) {
        const auto peer = static_cast<int>(m);
        queued(nccl().send(static_cast<const std::byte*>(call.input) + m * bytes, bytes, ncclUint8, peer,
                           group.comm, stream));
        queued(nccl().recv(static_cast<std::byte*>(call.output) + m * bytes, bytes, ncclUint8, peer,
                           group.comm, stream));
      }
      return settled(nccl().group_end());
    }
    case kShift: {
      const std::size_t bytes = call.elements * bytes_of(call.type);
      const auto queued = [&](ncclResult_t r) { settled(r == ncclInProgress ? ncclSuccess : r); };
      queued(nccl().group_start());
      queued(nccl().send(call.input, bytes, ncclUint8, static_cast<int>((group.self + 1) % group.members),
                         group.comm, stream));
      queued(nccl().recv(call.output, bytes, ncclUint8,
                         static_cast<int>((group.self + group.members - 1) % group.members), group.comm,
                         stream));
      return settled(nccl().group_end());
    }
    case kBroadcast:
    case kReduce:
    case kGather:
    case kScatter:
      throw Error(fmt::format("\"{}\" is no collective of programs", call.name));
  }
}

void NcclCommunicator::send(std::int64_t to, int number, std::string_view name, const void* data,
                            std::size_t bytes, kernels::cuda::Stream stream) {
  const ncclComm_t comm = channel({rank_, to, number}, name);
  settle(comm, nccl().send(data, bytes, ncclUint8, 1, comm, stream), name);
}

void NcclCommunicator::receive(std::int64_t from, int number, std::string_view name, void* data,
                               std::size_t bytes, kernels::cuda::Stream stream) {
  const ncclComm_t comm = channel({from, rank_, number}, name);
  settle(comm, nccl().recv(data, bytes, ncclUint8, 0, comm, stream), name);
}

// A member's part of the sum.
void NcclCommunicator::reserve_sum(GroupId id, std::size_t bytes) {
  Group& group = groups_[id];
  const std::size_t part = bytes / group.members;
  if (group.scratch.bytes() < part) group.scratch = kernels::cuda::allocate(part, "scratch memory of a sum");
}

// NCCL reads and writes registered memory without copies where links and algorithms allow it; where it cannot
// register, it copies.
void NcclCommunicator::offer(std::span<std::byte> memory) {
  for (const Group& g : groups_) {
    void* handle = nullptr;
    ncclResult_t result = nccl().register_memory(g.comm, memory.data(), memory.size(), &handle);
    while (result == ncclInProgress && nccl().get_async_error(g.comm, &result) == ncclSuccess) abort_.check();
  }
}

std::size_t NcclCommunicator::scratch_bytes() const {
  std::size_t all = 0;
  for (const Group& g : groups_) all += g.scratch.bytes();
  return all;
}

void NcclCommunicator::require_healthy() const {
  const auto look = [&](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    if (comm != nullptr && nccl().get_async_error(comm, &result) == ncclSuccess && result != ncclInProgress)
      settle(comm, result, "communication");
  };
  for (const Group& g : groups_) look(g.comm);
  for (const auto& [key, comm] : channels_) look(comm);
}

// All in one group call: one that is aborted alone waits for others of this rank.
void NcclCommunicator::abort() {
  const auto end = [](ncclComm_t& comm) {
    if (comm != nullptr) nccl().abort(std::exchange(comm, nullptr));
  };
  nccl().group_start();
  for (Group& g : groups_) end(g.comm);
  for (auto& [key, comm] : channels_) end(comm);
  nccl().group_end();
}

}  // namespace orrery::exec::cuda
