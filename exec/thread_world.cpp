// SPDX-License-Identifier: Apache-2.0
#include "exec/thread_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/error.h"

namespace orrery::exec {

std::string_view name_of(CollectiveKind kind) {
  constexpr std::array<std::string_view, 9> kNames{"all-reduce",     "all-reduce-max", "all-gather",
                                                   "reduce-scatter", "broadcast",      "reduce",
                                                   "gather",         "scatter",        "all-to-all"};
  return kNames[static_cast<std::size_t>(kind)];
}

// A meeting place. Each member arrives once per meeting, so the number of arrivals alone tells which meeting
// is complete.
struct ThreadWorld::Group {
  struct Slot {
    CollectiveCall call;
    Clock::time_point arrived;
    std::atomic<std::uint64_t> meetings{0};
  };
  explicit Group(std::span<const std::int64_t> of) : members(of.begin(), of.end()), slots(of.size()) {}
  std::vector<std::int64_t> members;
  std::vector<Slot> slots;
  std::atomic<std::uint64_t> arrivals{0};
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int> sleepers{0};
};

struct ThreadWorld::Channel {
  std::mutex mutex;
  std::condition_variable changed;
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool full = false;
  Clock::time_point met;  // both ends were there
  std::uint64_t messages = 0;
};

namespace {

constexpr std::size_t kBlock = 2048;  // elements summed at a time, so that the sum stays in the cache

// Sum (or maximum) over members, in their order, of elements [begin, end) of their inputs, given to `store`
// by blocks.
template <class T, class Store>
void reduce(std::span<const T* const> inputs, bool max, std::size_t begin, std::size_t end, const T* start,
            Store store) {
  T sum[kBlock];
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t n = std::min(kBlock, end - at);
    std::copy_n(start != nullptr ? start + (at - begin) : inputs[0] + at, n, sum);
    for (std::size_t m = start != nullptr ? 0 : 1; m < inputs.size(); ++m) {
      const T* x = inputs[m] + at;
      if (max) {
        for (std::size_t i = 0; i < n; ++i) sum[i] = std::max(sum[i], x[i]);
      } else {
        for (std::size_t i = 0; i < n; ++i) sum[i] += x[i];
      }
    }
    store(at, n, sum);
  }
}

constexpr std::size_t kMostMembers = 256;

// What member `self` does between the two meetings.
template <class T>
void do_share(std::span<const CollectiveCall* const> calls, std::size_t self) {
  using enum CollectiveKind;
  const CollectiveCall& mine = *calls[self];
  const std::size_t n = calls.size(), whole = mine.elements, part = whole / n;
  const auto input = [&](std::size_t m) { return static_cast<const T*>(calls[m]->input); };
  const auto output = [&](std::size_t m) { return static_cast<T*>(calls[m]->output); };
  const auto copy = [](const T* from, std::size_t count, T* to) {
    if (count > 0 && from != to) std::memcpy(to, from, count * sizeof(T));
  };
  std::array<const T*, kMostMembers> all{};
  for (std::size_t m = 0; m < n; ++m) all[m] = input(m);
  const std::span<const T* const> inputs(all.data(), n);
  const std::size_t begin = whole * self / n, end = whole * (self + 1) / n;
  switch (mine.kind) {
    case kAllReduce:
    case kAllReduceMax:
      return reduce<T>(inputs, mine.kind == kAllReduceMax, begin, end, nullptr,
                       [&](std::size_t at, std::size_t count, const T* sum) {
                         for (std::size_t m = 0; m < n; ++m) std::copy_n(sum, count, output(m) + at);
                       });
    case kReduce:
      return reduce<T>(inputs, false, begin, end, nullptr,
                       [&](std::size_t at, std::size_t count, const T* sum) {
                         std::copy_n(sum, count, output(mine.root) + at);
                       });
    case kReduceScatter:
      return reduce<T>(inputs, false, self * part, (self + 1) * part,
                       mine.accumulate ? output(self) : nullptr,
                       [&](std::size_t at, std::size_t count, const T* sum) {
                         std::copy_n(sum, count, output(self) + (at - self * part));
                       });
    case kAllGather:
      for (std::size_t m = 0; m < n; ++m) copy(input(m), part, output(self) + m * part);
      return;
    case kGather:
      return copy(input(self), part, output(mine.root) + self * part);
    case kBroadcast:
      return copy(input(mine.root), whole, output(self));
    case kScatter:
      return copy(input(mine.root) + self * part, part, output(self));
    case kAllToAll:
      for (std::size_t m = 0; m < n; ++m) copy(input(m) + self * part, part, output(self) + m * part);
      return;
  }
}

// Why the calls do not belong together, or nothing.
std::string mismatch(std::span<const CollectiveCall* const> calls, std::span<const std::int64_t> members) {
  const CollectiveCall& first = *calls[0];
  const auto text = [](const CollectiveCall& c) {
    return fmt::format("{} \"{}\" of {} x {} bytes", name_of(c.kind), c.name, c.elements, bytes_of(c.type));
  };
  for (std::size_t m = 1; m < calls.size(); ++m) {
    const CollectiveCall& c = *calls[m];
    if (c.kind != first.kind || c.name != first.name || c.elements != first.elements ||
        c.type != first.type || c.root != first.root) {
      return fmt::format("rank {} is in {}, rank {} in {}", members[0], text(first), members[m], text(c));
    }
  }
  using enum CollectiveKind;
  const bool parts = first.kind == kAllGather || first.kind == kReduceScatter || first.kind == kGather ||
                     first.kind == kScatter || first.kind == kAllToAll;
  if (parts && first.elements % calls.size() != 0)
    return fmt::format("{} does not divide into {} parts", text(first), calls.size());
  return {};
}

}  // namespace

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(ThreadWorld& world, std::int64_t rank) : world_(world), rank_(rank) {}

  GroupId open(std::span<const std::int64_t> members) override {
    if (members.size() > kMostMembers) throw Error("a group of threads has at most 256 members");
    ThreadWorld::Group& group = world_.group(members);
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].group == &group) return i;
    }
    const auto self = std::find(members.begin(), members.end(), rank_) - members.begin();
    groups_.push_back({&group, static_cast<std::size_t>(self)});
    return groups_.size() - 1;
  }

  Clock::time_point collective(GroupId id, const CollectiveCall& call) override {
    Membership& membership = groups_[id];
    ThreadWorld::Group& group = *membership.group;
    const std::uint64_t sequence = membership.sequence++;
    group.slots[membership.self].call = call;
    const Clock::time_point complete = meet(membership, 2 * sequence + 1, call.name, sequence);
    std::array<const CollectiveCall*, kMostMembers> all{};
    for (std::size_t m = 0; m < group.slots.size(); ++m) all[m] = &group.slots[m].call;
    const std::span<const CollectiveCall* const> calls(all.data(), group.slots.size());
    if (const std::string problem = mismatch(calls, group.members); !problem.empty())
      throw Error(world_.abort_.raise(fmt::format("{} (sequence number {})", problem, sequence)));
    if (call.type == DType::kFloat64)
      do_share<double>(calls, membership.self);
    else
      do_share<float>(calls, membership.self);
    meet(membership, 2 * sequence + 2, call.name, sequence);
    return complete;
  }

  Clock::time_point send(std::int64_t to, int number, std::string_view name, const void* data,
                         std::size_t bytes) override {
    ThreadWorld::Channel& channel = world_.channel(rank_, to, number);
    std::unique_lock lock(channel.mutex);
    const std::uint64_t message = channel.messages++;
    channel.data = data;
    channel.bytes = bytes;
    channel.full = true;
    channel.changed.notify_all();
    if (!world_.abort_.wait(channel.changed, lock, world_.deadline_, [&] { return !channel.full; }))
      late(name, message, fmt::format("rank {} to receive", to));
    return channel.met;
  }

  Clock::time_point receive(std::int64_t from, int number, std::string_view name, void* data,
                            std::size_t bytes) override {
    ThreadWorld::Channel& channel = world_.channel(from, rank_, number);
    std::unique_lock lock(channel.mutex);
    if (!world_.abort_.wait(channel.changed, lock, world_.deadline_, [&] { return channel.full; }))
      late(name, channel.messages, fmt::format("rank {} to send", from));
    channel.met = Clock::now();
    if (channel.bytes != bytes) {
      throw Error(world_.abort_.raise(
          fmt::format("rank {} expects {} bytes from rank {} in \"{}\" (sequence number {}), which sends {}",
                      rank_, bytes, from, name, channel.messages - 1, channel.bytes)));
    }
    std::memcpy(data, channel.data, bytes);
    channel.full = false;
    channel.changed.notify_all();
    return channel.met;
  }

 private:
  struct Membership {
    ThreadWorld::Group* group;
    std::size_t self;
    std::uint64_t sequence = 0;
  };

  [[noreturn]] void late(std::string_view name, std::uint64_t sequence, const std::string& whom) {
    throw Error(world_.abort_.raise(fmt::format("rank {} waited {} ms in \"{}\" (sequence number {}) for {}",
                                                rank_, world_.deadline_.count(), name, sequence, whom)));
  }

  // The group's meeting of this number, from 1; returns when the last member came.
  Clock::time_point meet(Membership& membership, std::uint64_t number, std::string_view name,
                         std::uint64_t sequence) {
    ThreadWorld::Group& group = *membership.group;
    ThreadWorld::Group::Slot& slot = group.slots[membership.self];
    const std::uint64_t all = number * group.slots.size();
    if (number % 2 == 1) slot.arrived = Clock::now();  // the second meeting's is nobody's business
    slot.meetings.store(number, std::memory_order_release);
    const auto complete = [&] { return group.arrivals.load() >= all; };
    if (group.arrivals.fetch_add(1) + 1 == all) {
      if (group.sleepers.load() > 0) {
        const std::lock_guard lock(group.mutex);
        group.changed.notify_all();
      }
    } else {
      int spins = world_.spins_;
      while (!complete() && spins-- > 0) {
      }
      if (!complete()) {
        std::unique_lock lock(group.mutex);
        ++group.sleepers;
        const bool met = world_.abort_.wait(group.changed, lock, world_.deadline_, complete);
        --group.sleepers;
        if (!met) late(name, sequence, "ranks" + missing(group, number));
      }
    }
    Clock::time_point last = group.slots[0].arrived;
    for (const auto& s : group.slots) last = std::max(last, s.arrived);
    return last;
  }

  static std::string missing(const ThreadWorld::Group& group, std::uint64_t number) {
    std::string out;
    for (std::size_t m = 0; m < group.slots.size(); ++m) {
      if (group.slots[m].meetings.load(std::memory_order_acquire) < number)
        out += fmt::format(" {}", group.members[m]);
    }
    return out;
  }

  ThreadWorld& world_;
  std::int64_t rank_;
  std::vector<Membership> groups_;
};

ThreadWorld::ThreadWorld(std::int64_t ranks, std::chrono::milliseconds deadline)
    : ranks_(ranks),
      deadline_(deadline),
      spins_(ranks <= static_cast<std::int64_t>(std::thread::hardware_concurrency()) ? 2000 : 0) {}

ThreadWorld::~ThreadWorld() = default;

std::unique_ptr<Communicator> ThreadWorld::communicator(std::int64_t rank) {
  if (rank < 0 || rank >= ranks_) throw Error(fmt::format("there is no rank {} among {}", rank, ranks_));
  return std::make_unique<ThreadCommunicator>(*this, rank);
}

ThreadWorld::Group& ThreadWorld::group(std::span<const std::int64_t> members) {
  const std::lock_guard lock(mutex_);
  auto& g = groups_[std::vector<std::int64_t>(members.begin(), members.end())];
  if (!g) g = std::make_unique<Group>(members);
  return *g;
}

ThreadWorld::Channel& ThreadWorld::channel(std::int64_t from, std::int64_t to, int number) {
  const std::lock_guard lock(mutex_);
  auto& c = channels_[{from, to, number}];
  if (!c) c = std::make_unique<Channel>();
  return *c;
}

}  // namespace orrery::exec
