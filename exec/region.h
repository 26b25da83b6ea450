// SPDX-License-Identifier: Apache-2.0
//
// Memory in which the ranks of a host meet: groups with a slot for each member, channels between pairs, the
// job's abort state, and, when ranks are processes, who is alive and where each rank's buffers are. Ranks
// that are threads use ordinary memory of their process; processes map a POSIX shared-memory object, which
// loses its name as soon as all have come, so that nothing is left behind whatever happens later. Memory of a
// launch that was killed before is removed by the next launch of the user; memory of other users is refused.
// Internal to exec/.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "exec/abort.h"
#include "exec/blame.h"
#include "exec/communicator.h"

namespace orrery::exec {

// An address that other ranks can follow: an offset into an allocation of a rank, or, where ranks share an
// address space, the address itself.
struct Place {
  std::int32_t rank = -1, allocation = 0;
  std::uint64_t offset = 0;
};

// What a rank says of its call.
struct CallRecord {
  CollectiveKind kind{};
  DType type{};
  Algorithm algorithm{};
  bool accumulate = false;
  std::uint32_t root = 0;
  std::uint64_t elements = 0, number = 0;
  Place input, output, work;
  char name[88] = {};  // cut short where it is longer
};

// A meeting place. Each member arrives once per meeting, so the number of arrivals alone tells which meeting
// is complete; counters may wrap.
struct GroupSlot {
  alignas(64) CallRecord call;
  Clock::time_point arrived;
  std::atomic<std::uint32_t> meetings{0};
  std::int64_t rank = 0;
};
struct GroupRecord {
  alignas(64) std::atomic<std::uint32_t> arrivals{0};
  std::atomic<std::uint32_t> sleepers{0};
  std::uint64_t next = 0;  // offset of the next group in the region
  std::uint32_t members = 0;
  std::int32_t number = 0;
  GroupSlot* slots() { return reinterpret_cast<GroupSlot*>(this + 1); }
};

// One message at a time; `turn` is even when it is empty and odd when it is full.
struct ChannelRecord {
  alignas(64) std::atomic<std::uint32_t> turn{0};
  std::atomic<std::uint32_t> sleepers{0};
  std::uint64_t next = 0;
  std::int64_t from = 0, to = 0, number = 0;
  Place data;
  std::uint64_t bytes = 0;
  Clock::time_point met;  // both ends were there
  std::atomic<bool> receiving{false};
  char sent[88] = {}, wanted[88] = {};  // names of what the ends that are there do
};

class Region {
 public:
  // For ranks that are threads of this process.
  Region();
  // For processes: `ranks` run on this host, and this one is `self`. Returns when all have come; throws Error
  // when one does not within the deadline. `job` is known to them and nobody else. The rank dies with the
  // calling thread.
  Region(const std::string& job, std::span<const std::int64_t> ranks, std::int64_t self,
         std::chrono::milliseconds deadline);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  Abort& abort() { return abort_; }
  GroupRecord& group(std::span<const std::int64_t> members, int number);
  ChannelRecord& channel(std::int64_t from, std::int64_t to, int number);

  // Memory for buffers that other ranks reach. It lives as long as the region.
  std::byte* allocate(std::size_t bytes);
  // Throws Error for memory that others cannot reach.
  Place place_of(const void* p) const;
  void* address_of(const Place& place);

  // The rank that died, or -1. Threads do not die.
  std::int64_t dead_rank();
  // Whether the rank has ended its part in the job, alive.
  bool has_left(std::int64_t rank);
  // For blame: the calls to which some ranks have come, and ranks whose processes are stopped (SIGSTOP, a
  // debugger). What happens meanwhile may or may not be seen.
  std::vector<Incomplete> incomplete();
  // How often this process waits, at the moment, for ranks of other hosts.
  std::atomic<std::uint32_t>& waits_elsewhere();
  std::set<std::int64_t> stopped();
  // After a failure: the ranks that are alive and call this too, in order. Throws Error when one that is
  // alive does not within the deadline, and at once when it is stopped.
  std::vector<std::int64_t> survivors(std::chrono::milliseconds deadline);

 private:
  struct Header;
  struct RankRecord;
  struct Mapping {
    std::int64_t rank;
    std::int32_t allocation;
    std::byte* begin;
    std::size_t bytes;
  };
  template <class T>
  T* at(std::uint64_t offset) {
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(header_) + offset);
  }
  struct Named;
  static Named make(const std::string& name, std::span<const std::int64_t> ranks);
  static Named find(const std::string& name);
  static Named join(const std::string& name, std::span<const std::int64_t> ranks, std::int64_t self,
                    Clock::time_point until);
  Region(Header* header, std::int64_t self);
  Region(const std::string& job, std::int64_t self, std::chrono::milliseconds deadline, const Named& named);
  std::uint64_t take(std::size_t bytes);
  GroupRecord* find_group(std::span<const std::int64_t> members, int number);
  ChannelRecord* find_channel(std::int64_t from, std::int64_t to, int number);
  RankRecord* record(std::int64_t rank);
  static bool is_dead(RankRecord& r);
  std::byte* map(std::int64_t rank, std::int32_t allocation);

  bool processes_ = false;
  std::int64_t self_ = -1;
  Header* header_ = nullptr;
  Abort abort_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Mapping> mappings_;
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{256}); }
  };
  std::vector<std::unique_ptr<std::byte[], Free>> own_;
};

// Sleeps while `word` is `seen`, and at most for a short time.
void sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t seen);
void wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace orrery::exec
