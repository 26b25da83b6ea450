// SPDX-License-Identifier: Apache-2.0
#include "exec/shared_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "exec/collective.h"

namespace orrery::exec {

class SharedCommunicator final : public Communicator {
 public:
  SharedCommunicator(SharedWorld& world, std::int64_t rank)
      : world_(world), region_(world.region_), rank_(rank) {}

  std::byte* allocate(std::size_t bytes) override { return region_.allocate(bytes); }

  using Communicator::open;
  GroupId open(std::span<const std::int64_t> members, int number) override {
    if (members.size() > kMostMembers) throw Error("a group has at most 256 members");
    GroupRecord& record = region_.group(members, number);
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].record == &record) return i;
    }
    const auto self = std::find(members.begin(), members.end(), rank_) - members.begin();
    groups_.push_back({&record,
                       {members.begin(), members.end()},
                       static_cast<std::size_t>(self),
                       0,
                       std::vector<CollectiveCall>(members.size()),
                       0,
                       {},
                       nullptr,
                       0});
    return groups_.size() - 1;
  }

  Clock::time_point collective(GroupId id, const CollectiveCall& call) override {
    Membership& group = groups_[id];
    const std::uint64_t sequence = group.sequence++;
    const program::Rounds& rounds = group.rounds.find(call, group.members.size(), node_of(group));
    const bool at_once = rounds.rounds.empty();
    std::byte* const work = at_once ? nullptr : copy_of(group, call);
    if (!at_once) begin_rounds(call, group.self, group.members.size(), work);
    CallRecord& mine = group.record->slots()[group.self].call;
    mine = {call.kind,
            call.type,
            call.algorithm,
            call.accumulate,
            static_cast<std::uint32_t>(call.root),
            call.elements,
            sequence,
            region_.place_of(call.input),
            region_.place_of(call.output),
            region_.place_of(work),
            {}};
    mine.name[call.name.copy(mine.name, sizeof mine.name - 1)] = '\0';
    const Clock::time_point complete = meet(group, call.name, sequence, true);
    for (std::size_t m = 0; m < group.members.size(); ++m) {
      const CallRecord& r = group.record->slots()[m].call;
      group.calls[m] = {r.kind,
                        r.name,
                        region_.address_of(r.input),
                        region_.address_of(r.output),
                        r.elements,
                        r.type,
                        r.accumulate,
                        r.root,
                        r.algorithm};
    }
    if (const std::string problem = mismatch(group.calls, group.members); !problem.empty())
      throw Error(world_.abort().raise(fmt::format("{} (call {})", problem, sequence)));
    if (at_once) {
      do_share(group.calls, group.self);
      meet(group, call.name, sequence, false);
      return complete;
    }
    const auto self = static_cast<std::int32_t>(group.self);
    for (const auto& round : rounds.rounds) {
      for (const program::Transfer& t : round) {
        if (t.to != self) continue;
        const auto [begin, count] = elements_of(rounds, t, call.elements);
        const CallRecord& from = group.record->slots()[static_cast<std::size_t>(t.from)].call;
        const std::size_t offset = begin * bytes_of(call.type);
        receive_block(call, t.add, static_cast<const std::byte*>(region_.address_of(from.work)) + offset,
                      count, work + offset);
      }
      meet(group, call.name, sequence, false);
    }
    end_rounds(call, group.self, group.members.size(), work);
    return complete;
  }

  Clock::time_point send(std::int64_t to, int number, std::string_view name, const void* data,
                         std::size_t bytes) override {
    ChannelRecord& channel = region_.channel(rank_, to, number);
    const std::uint32_t empty = channel.turn.load();  // this end alone makes it full
    channel.data = region_.place_of(data);
    channel.bytes = bytes;
    channel.sent[name.copy(channel.sent, sizeof channel.sent - 1)] = '\0';
    channel.turn.store(empty + 1);
    if (channel.sleepers.load() > 0) wake_all(channel.turn);
    wait(
        channel.turn, channel.sleepers, [&] { return channel.turn.load() == empty + 2; },
        [&] {
          return Incomplete{std::string(name), empty / 2, {rank_}, {to}, {}};
        });
    return channel.met;
  }

  Clock::time_point receive(std::int64_t from, int number, std::string_view name, void* data,
                            std::size_t bytes) override {
    ChannelRecord& channel = region_.channel(from, rank_, number);
    const std::uint32_t message = channel.turn.load() / 2;
    channel.wanted[name.copy(channel.wanted, sizeof channel.wanted - 1)] = '\0';
    channel.receiving.store(true);
    wait(
        channel.turn, channel.sleepers, [&] { return channel.turn.load() % 2 == 1; },
        [&] {
          return Incomplete{std::string(name), message, {rank_}, {from}, {}};
        });
    channel.receiving.store(false);
    channel.met = Clock::now();
    if (channel.bytes != bytes) {
      throw Error(world_.abort().raise(
          fmt::format("rank {} expects {} bytes from rank {} in \"{}\" (call {}), which sends {}", rank_,
                      bytes, from, name, message, channel.bytes)));
    }
    std::memcpy(data, region_.address_of(channel.data), bytes);
    const Clock::time_point met = channel.met;
    channel.turn.store(2 * message + 2);
    if (channel.sleepers.load() > 0) wake_all(channel.turn);
    return met;
  }

 private:
  struct Membership {
    GroupRecord* record;
    std::vector<std::int64_t> members;
    std::size_t self;
    std::uint64_t sequence;
    std::vector<CollectiveCall> calls;  // of all members, in the present meeting
    std::uint64_t meetings = 0;
    RoundsCache rounds;
    std::byte* scratch = nullptr;  // a copy of the whole, where a call's output is not one
    std::size_t scratch_bytes = 0;
  };

  // On one host the halves of a group are taken for its nodes.
  static std::size_t node_of(const Membership& group) {
    return std::max<std::size_t>(1, group.members.size() / 2);
  }

  // This member's copy of the tensor, on which an algorithm's rounds work.
  std::byte* copy_of(Membership& group, const CollectiveCall& call) {
    if (works_in_output(call, group.self)) return static_cast<std::byte*>(call.output);
    const std::size_t bytes = std::max<std::size_t>(1, call.elements * bytes_of(call.type));
    if (group.scratch_bytes < bytes) {
      group.scratch_bytes = std::bit_ceil(bytes);
      group.scratch = region_.allocate(group.scratch_bytes);
    }
    return group.scratch;
  }

  // The group's next meeting; returns when the last member came to the call, which its first meeting tells.
  Clock::time_point meet(Membership& group, std::string_view name, std::uint64_t sequence, bool first) {
    GroupRecord& record = *group.record;
    GroupSlot& slot = record.slots()[group.self];
    const std::uint64_t number = ++group.meetings;
    const auto all = static_cast<std::uint32_t>(number * record.members);
    if (first) slot.arrived = Clock::now();
    slot.meetings.store(static_cast<std::uint32_t>(number), std::memory_order_release);
    const auto complete = [&] { return static_cast<std::int32_t>(record.arrivals.load() - all) >= 0; };
    if (record.arrivals.fetch_add(1) + 1 == all) {
      if (record.sleepers.load() > 0) wake_all(record.arrivals);
    } else {
      wait(record.arrivals, record.sleepers, complete, [&] {
        Incomplete call{std::string(name), sequence, {}, {}, {}};
        for (std::size_t m = 0; m < group.members.size(); ++m) {
          const auto met = record.slots()[m].meetings.load(std::memory_order_acquire);
          const bool behind = static_cast<std::int32_t>(met - static_cast<std::uint32_t>(number)) < 0;
          (behind ? call.missing : call.present).push_back(group.members[m]);
        }
        return call;
      });
    }
    Clock::time_point last = record.slots()[0].arrived;
    for (std::size_t m = 1; m < group.members.size(); ++m) last = std::max(last, record.slots()[m].arrived);
    return last;
  }

  // Until `ready`, which changes with `word`. Ends the job when it takes too long or a rank dies; `of` says
  // for which call and whom this rank waits.
  template <class Ready, class Of>
  void wait(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& sleepers, Ready ready, Of of) {
    for (int spins = world_.spins_; spins > 0; --spins) {
      if (ready()) return;
    }
    const auto until = Clock::now() + world_.deadline_;
    struct Sleeper {
      explicit Sleeper(std::atomic<std::uint32_t>& of_word) : count(of_word) { count.fetch_add(1); }
      ~Sleeper() { count.fetch_sub(1); }
      std::atomic<std::uint32_t>& count;
    } sleeper(sleepers);
    for (;;) {
      const std::uint32_t seen = word.load();
      if (ready()) return;
      sleep_on(word, seen);
      if (ready()) return;
      world_.abort().check();
      const auto end = [&](const std::string& why) {
        const Incomplete call = of();
        throw Error(world_.abort().raise(fmt::format("{} in \"{}\" (call {}) for {}", why, call.name,
                                                     call.number, ranks_text(call.missing))));
      };
      if (const std::int64_t dead = region_.dead_rank(); dead >= 0)
        end(fmt::format("rank {} died: rank {} noticed, waiting", dead, rank_));
      if (Clock::now() < until) continue;
      // Where all wait for each other, the cause may be on another host, whose ranks then say so.
      const Blame why = world_.blame_for(of(), rank_);
      if (why.sure || Clock::now() > until + world_.deadline_ / 2)
        throw Error(world_.abort().raise(why.sentence));
    }
  }

  SharedWorld& world_;
  Region& region_;
  std::int64_t rank_;
  std::vector<Membership> groups_;
};

namespace {

int spins_for(std::size_t ranks) {
  return ranks <= std::thread::hardware_concurrency() ? 2000 : 0;
}

}  // namespace

SharedWorld::SharedWorld(std::int64_t ranks, std::chrono::milliseconds deadline)
    : ranks_(static_cast<std::size_t>(ranks)), deadline_(deadline), spins_(spins_for(ranks_.size())) {
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

SharedWorld::SharedWorld(const std::string& job, std::span<const std::int64_t> ranks, std::int64_t self,
                         std::chrono::milliseconds deadline)
    : region_(job, ranks, self, deadline),
      ranks_(ranks.begin(), ranks.end()),
      deadline_(deadline),
      spins_(spins_for(ranks.size())) {}

Blame SharedWorld::blame_for(Incomplete late, std::int64_t waiting) {
  std::vector<Incomplete> calls = region_.incomplete();
  calls.insert(calls.begin(), std::move(late));
  Blame out = blame(calls, 0, region_.stopped(), deadline_);
  out.sentence += fmt::format(": rank {} waited", waiting);
  return out;
}

void SharedWorld::stand_by() {
  for (; !region_.has_left(0); std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
    abort().check();
    if (const std::int64_t dead = region_.dead_rank(); dead >= 0)
      throw Error(abort().raise(fmt::format("rank {} died: a spare process noticed", dead)));
  }
}

std::unique_ptr<Communicator> SharedWorld::communicator(std::int64_t rank) {
  if (std::find(ranks_.begin(), ranks_.end(), rank) == ranks_.end())
    throw Error(fmt::format("there is no rank {} among {}", rank, ranks_.size()));
  return std::make_unique<SharedCommunicator>(*this, rank);
}

}  // namespace orrery::exec
