// SPDX-License-Identifier: Apache-2.0
#include "exec/mpi_world.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "core/error.h"
#include "exec/collective.h"
#include "exec/mpi_exchange.h"
#include "exec/mpi_inquiry.h"
#include "exec/region.h"
#include "exec/shared_world.h"

namespace orrery::exec {
namespace {

// Tags of messages; those below are the inquiry's.
constexpr int kClockTag = Inquiry::kTags, kChannelTag = 16, kGroupTag = 1024;

// What a member says before a collective; all are the same, or the job ends.
struct Header {
  std::uint64_t sequence = 0, elements = 0, root = 0;
  CollectiveKind kind{};
  DType type{};
  Algorithm algorithm{};
  char name[88] = {};
};

class MpiCommunicator;

class MpiWorld final : public ProcessWorld {
 public:
  MpiWorld(const Launch& launch, std::chrono::milliseconds deadline);
  ~MpiWorld() override;
  Communicator& communicator() override;
  Abort& abort() override { return local_->abort(); }
  void spread_failure() override;
  std::vector<std::int64_t> survivors() override { return {}; }

  // Until all requests are done; ends the job when they take too long. `of` says for which call, and for
  // whom, this rank waits.
  template <class Of>
  void wait(Requests& requests, Of of);

  std::int64_t rank = 0, ranks = 1;
  std::vector<std::int64_t> here;  // ranks of this host
  MPI_Comm messages = MPI_COMM_NULL;
  Clock::duration clock_offset{};
  std::unique_ptr<SharedWorld> local_;

 private:
  class Waiting;
  void compare_clocks();
  Waits waits();
  Blame blame_for(const Incomplete& late, Clock::time_point since);

  std::chrono::milliseconds deadline_;
  std::unique_ptr<MpiCommunicator> communicator_;
  std::mutex mutex_;                                 // guards what follows
  std::map<const Waiting*, Incomplete> long_waits_;  // for ranks of other hosts, by this process's threads
  std::unique_ptr<Inquiry> inquiry_;
};

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(MpiWorld& world) : world_(world), local_(world.local_->communicator(world.rank)) {}

  std::byte* allocate(std::size_t bytes) override { return local_->allocate(bytes); }
  Clock::duration clock_offset() const override { return world_.clock_offset; }

  using Communicator::open;
  GroupId open(std::span<const std::int64_t> members, int number) override {
    const std::vector<std::int64_t> all(members.begin(), members.end());
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].members == all && groups_[i].number == number) return i;
    }
    Membership& g = groups_.emplace_back();
    g.members = all;
    g.number = number;
    g.self = static_cast<std::size_t>(std::find(all.begin(), all.end(), world_.rank) - all.begin());
    const bool shared = std::all_of(all.begin(), all.end(), [&](std::int64_t r) { return is_here(r); });
    if (shared) {
      g.local = local_->open(members, number);
      return groups_.size() - 1;
    }
    if (all.size() > kMostMembers) throw Error("a group has at most 256 members");
    // All members open their groups in the same order, so this meets.
    std::vector<int> ranks(all.begin(), all.end());
    MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
    check_mpi(MPI_Comm_group(world_.messages, &world), "MPI_Comm_group");
    check_mpi(MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &group), "MPI_Group_incl");
    check_mpi(MPI_Comm_create_group(world_.messages, group, kGroupTag + number, &g.comm),
              "MPI_Comm_create_group");
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    g.headers.resize(all.size());
    g.calls.resize(all.size());
    g.node = members_of_a_node(g);
    return groups_.size() - 1;
  }

  Clock::time_point collective(GroupId id, const CollectiveCall& call) override {
    Membership& g = groups_[id];
    if (g.comm == MPI_COMM_NULL) return local_->collective(g.local, call);
    const std::uint64_t sequence = g.sequence++;
    Header& mine = g.headers[g.self];
    mine = {sequence, call.elements, call.root, call.kind, call.type, call.algorithm, {}};
    mine.name[call.name.copy(mine.name, sizeof mine.name - 1)] = '\0';
    Requests r;
    for (std::size_t m = 0; m < g.members.size(); ++m) {
      if (m == g.self) continue;
      r.receive(&g.headers[m], sizeof(Header), static_cast<int>(m), 0, g.comm);
      r.send(&mine, sizeof(Header), static_cast<int>(m), 0, g.comm);
    }
    // Who is missing: members to or from which something is still under way.
    const auto late = [&](Requests& requests) {
      std::set<std::int64_t> missing;
      for (std::size_t i = 0; i < requests.all.size(); ++i) {
        int done = 0;
        const bool known = MPI_Test(&requests.all[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS;
        if (!known || done == 0) missing.insert(g.members[static_cast<std::size_t>(requests.ends[i])]);
      }
      return Incomplete{
          std::string(call.name), sequence, {world_.rank}, {missing.begin(), missing.end()}, {}};
    };
    const auto wait = [&](Requests& requests) { world_.wait(requests, [&] { return late(requests); }); };
    wait(r);
    const Clock::time_point complete = Clock::now();
    for (std::size_t m = 0; m < g.members.size(); ++m) {
      const Header& h = g.headers[m];
      g.calls[m] = {h.kind, h.name, nullptr, nullptr, h.elements, h.type, false, h.root, h.algorithm};
    }
    if (const std::string problem = mismatch(g.calls, g.members); !problem.empty())
      throw Error(world_.abort().raise(fmt::format("{} (call {})", problem, sequence)));
    const program::Rounds& rounds = g.rounds.find(call, g.members.size(), g.node);
    Exchanged exchanged(call, g.self, g.members.size(), g.comm, g.scratch, wait);
    if (rounds.rounds.empty())
      exchanged.at_once();
    else
      exchanged.in_rounds(rounds);
    return complete;
  }

  Clock::time_point send(std::int64_t to, int number, std::string_view name, const void* data,
                         std::size_t bytes) override {
    if (is_here(to)) return local_->send(to, number, name, data, bytes);
    // An empty message is taken when the other end is there.
    const std::uint64_t message = count(to, number);
    const auto late = [&] { return Incomplete{std::string(name), message, {world_.rank}, {to}, {}}; };
    const int peer = static_cast<int>(to), tag = kChannelTag + 2 * number;
    Requests ready;
    check_mpi(MPI_Issend(nullptr, 0, MPI_BYTE, peer, tag, world_.messages, &ready.all.emplace_back()),
              "MPI_Issend");
    world_.wait(ready, late);
    const Clock::time_point met = Clock::now();
    Requests r;
    r.send(&bytes, sizeof bytes, peer, tag + 1, world_.messages);
    r.send(data, bytes, peer, tag + 1, world_.messages);
    world_.wait(r, late);
    return met;
  }

  Clock::time_point receive(std::int64_t from, int number, std::string_view name, void* data,
                            std::size_t bytes) override {
    if (is_here(from)) return local_->receive(from, number, name, data, bytes);
    const std::uint64_t message = count(from, number + 2);
    const auto late = [&] { return Incomplete{std::string(name), message, {world_.rank}, {from}, {}}; };
    const int peer = static_cast<int>(from), tag = kChannelTag + 2 * number;
    Requests ready;
    check_mpi(MPI_Irecv(nullptr, 0, MPI_BYTE, peer, tag, world_.messages, &ready.all.emplace_back()),
              "MPI_Irecv");
    world_.wait(ready, late);
    const Clock::time_point met = Clock::now();
    std::size_t sent = 0;
    Requests first;
    first.receive(&sent, sizeof sent, peer, tag + 1, world_.messages);
    world_.wait(first, late);
    if (sent != bytes) {
      throw Error(world_.abort().raise(
          fmt::format("rank {} expects {} bytes from rank {} in \"{}\" (call {}), which sends {}",
                      world_.rank, bytes, from, name, message, sent)));
    }
    Requests r;
    r.receive(data, bytes, peer, tag + 1, world_.messages);
    world_.wait(r, late);
    return met;
  }

 private:
  struct Membership {
    std::vector<std::int64_t> members;
    int number = 0;
    std::size_t self = 0;
    GroupId local = 0;              // where the members share a host
    MPI_Comm comm = MPI_COMM_NULL;  // where they do not
    std::uint64_t sequence = 0;
    std::vector<Header> headers;
    std::vector<CollectiveCall> calls;
    std::size_t node = 1;  // consecutive members that share a host
    RoundsCache rounds;
    std::vector<std::byte> scratch;  // kept from call to call
  };

  // How many consecutive members share a host, when it is the same everywhere; else one.
  std::size_t members_of_a_node(const Membership& g) const {
    const auto here = std::count_if(g.members.begin(), g.members.end(), [&](auto r) { return is_here(r); });
    const auto first = g.members.begin() + static_cast<std::ptrdiff_t>(g.self) / here * here;
    const bool together = g.members.end() - first >= here &&
                          std::all_of(first, first + here, [&](std::int64_t r) { return is_here(r); });
    std::array<int, 2> most{together ? static_cast<int>(here) : 0, together ? -static_cast<int>(here) : 0};
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, most.data(), 2, MPI_INT, MPI_MAX, g.comm), "MPI_Allreduce");
    return most[0] == -most[1] && most[0] > 0 ? static_cast<std::size_t>(most[0]) : 1;
  }
  bool is_here(std::int64_t rank) const {
    return std::find(world_.here.begin(), world_.here.end(), rank) != world_.here.end();
  }
  std::uint64_t count(std::int64_t peer, int number) {
    const std::lock_guard lock(mutex_);
    return counts_[{peer, number}]++;
  }

  MpiWorld& world_;
  std::unique_ptr<Communicator> local_;
  std::vector<Membership> groups_;
  std::mutex mutex_;
  std::map<std::pair<std::int64_t, int>, std::uint64_t> counts_;  // messages by peer and channel
};

MpiWorld::MpiWorld(const Launch& launch, std::chrono::milliseconds deadline) : deadline_(deadline) {
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_MULTIPLE) throw Error("this MPI does not let several threads call it");
  int mine = 0, all = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &mine);
  MPI_Comm_size(MPI_COMM_WORLD, &all);
  rank = mine;
  ranks = all;
  if (rank != launch.rank || ranks != launch.ranks) {
    throw Error(
        fmt::format("{} calls this process rank {} of {}, and MPI rank {} of {}: start it by MPI's launcher",
                    launch.launcher, launch.rank, launch.ranks, rank, ranks));
  }
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &messages), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(messages, MPI_ERRORS_RETURN);
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, mine, MPI_INFO_NULL, &host),
            "MPI_Comm_split_type");
  int count = 0;
  MPI_Comm_size(host, &count);
  here.resize(static_cast<std::size_t>(count));
  check_mpi(MPI_Allgather(&rank, 1, MPI_INT64_T, here.data(), 1, MPI_INT64_T, host), "MPI_Allgather");
  MPI_Comm_free(&host);
  compare_clocks();
  local_ = std::make_unique<SharedWorld>(launch.job, here, rank, deadline);
  communicator_ = std::make_unique<MpiCommunicator>(*this);
  inquiry_ = std::make_unique<Inquiry>(
      messages, [this] { return waits(); }, [this](const std::string& reason) { abort().raise(reason); });
}

MpiWorld::~MpiWorld() {
  inquiry_.reset();
  communicator_.reset();
  if (local_->abort().raised()) return;  // others may be gone: nothing can be agreed upon any more
  MPI_Finalize();
}

Communicator& MpiWorld::communicator() {
  return *communicator_;
}

// Half the shortest of a few round trips to rank 0 is what its answer is old.
void MpiWorld::compare_clocks() {
  constexpr int kTrips = 10;
  const auto now = [] { return static_cast<std::int64_t>(Clock::now().time_since_epoch().count()); };
  for (int peer = 1; peer < static_cast<int>(ranks); ++peer) {
    std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
    for (int trip = 0; trip < kTrips; ++trip) {
      std::int64_t theirs = 0;
      if (rank == 0) {
        check_mpi(MPI_Recv(&theirs, 1, MPI_INT64_T, peer, kClockTag, messages, MPI_STATUS_IGNORE),
                  "MPI_Recv");
        const std::int64_t mine = now();
        check_mpi(MPI_Send(&mine, 1, MPI_INT64_T, peer, kClockTag, messages), "MPI_Send");
      } else if (rank == peer) {
        const std::int64_t begin = now();
        check_mpi(MPI_Send(&begin, 1, MPI_INT64_T, 0, kClockTag, messages), "MPI_Send");
        check_mpi(MPI_Recv(&theirs, 1, MPI_INT64_T, 0, kClockTag, messages, MPI_STATUS_IGNORE), "MPI_Recv");
        const std::int64_t end = now();
        if (end - begin >= shortest) continue;
        shortest = end - begin;
        clock_offset = Clock::duration(theirs - (begin + end) / 2);
      }
    }
  }
}

Waits MpiWorld::waits() {
  Waits out = local_->waits();
  const std::lock_guard lock(mutex_);
  for (const auto& [thread, call] : long_waits_) out.calls.push_back(call);
  return out;
}

// Why `late` has not come, as far as the answers tell; asks those for whom this rank waits, and those for
// whom they wait.
Blame MpiWorld::blame_for(const Incomplete& late, Clock::time_point since) {
  Waits all = waits();
  all.calls.insert(all.calls.begin(), late);
  const Waits elsewhere = inquiry_->heard(since, deadline_ / 8);
  all.calls.insert(all.calls.end(), elsewhere.calls.begin(), elsewhere.calls.end());
  all.silent.insert(elsewhere.silent.begin(), elsewhere.silent.end());
  for (const std::size_t c : followed(all.calls, 0)) {
    for (const std::int64_t r : all.calls[c].missing) {
      if (r != rank) inquiry_->ask(r, since);
    }
  }
  Blame out = blame(all.calls, 0, all.silent, deadline_);
  out.sentence += fmt::format(": rank {} waited", rank);
  return out;
}

void MpiWorld::spread_failure() {
  const std::string reason = abort().reason();
  Requests r;
  for (std::int64_t other = 0; other < ranks; ++other) {
    if (std::find(here.begin(), here.end(), other) == here.end())
      r.send(reason.data(), reason.size(), static_cast<int>(other), Inquiry::kFailureTag, messages);
  }
  // Who is gone does not take it.
  const auto until = Clock::now() + std::chrono::milliseconds(200);
  int done = 0;
  while (done == 0 && Clock::now() < until) {
    if (MPI_Testall(static_cast<int>(r.all.size()), r.all.data(), &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
      return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// A thread of this process that waits for a rank of another host.
class MpiWorld::Waiting {
 public:
  explicit Waiting(MpiWorld& world) : world_(world) { world_.local_->waits_elsewhere().fetch_add(1); }
  ~Waiting() {
    world_.local_->waits_elsewhere().fetch_sub(1);
    const std::lock_guard lock(world_.mutex_);
    world_.long_waits_.erase(this);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  // Whoever asks is told of it.
  void show(const Incomplete& call) {
    const std::lock_guard lock(world_.mutex_);
    world_.long_waits_[this] = call;
  }

 private:
  MpiWorld& world_;
};

template <class Of>
void MpiWorld::wait(Requests& requests, Of of) {
  constexpr int kSpins = 200;
  const auto begin = Clock::now();
  Waiting waiting(*this);
  const auto end = [&](const std::string& why) {
    const Incomplete call = of();
    const std::string whom = call.missing.empty() ? "others" : ranks_text(call.missing);
    throw Error(
        abort().raise(fmt::format("{} in \"{}\" (call {}) for {}", why, call.name, call.number, whom)));
  };
  for (int looks = 0;; ++looks) {
    int done = 0;
    const int result =
        MPI_Testall(static_cast<int>(requests.all.size()), requests.all.data(), &done, MPI_STATUSES_IGNORE);
    if (result != MPI_SUCCESS) end(fmt::format("MPI lost what rank {} waited for", rank));
    if (done != 0) return;
    if (looks < kSpins) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(looks < 10 * kSpins ? 20 : 500));
    if (looks % 16 != 0) continue;
    abort().check();
    if (const std::int64_t dead = local_->dead_rank(); dead >= 0)
      end(fmt::format("rank {} died: rank {} noticed, waiting", dead, rank));
    const auto waited = Clock::now() - begin;
    if (waited < deadline_ / 4) continue;
    const Incomplete call = of();
    waiting.show(call);
    if (waited < deadline_) continue;
    // The answers take a moment, and ranks that share a host see each other without any: they have the first
    // word.
    const Blame why = blame_for(call, begin + deadline_);
    if (waited > 2 * deadline_ || (why.sure && waited > deadline_ + deadline_ / 4))
      throw Error(abort().raise(why.sentence));
  }
}

}  // namespace

bool spans_hosts() {
  return true;
}

std::unique_ptr<ProcessWorld> join_by_mpi(const Launch& launch, std::chrono::milliseconds deadline) {
  return std::make_unique<MpiWorld>(launch, deadline);
}

}  // namespace orrery::exec
