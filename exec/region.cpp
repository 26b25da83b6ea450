// SPDX-License-Identifier: Apache-2.0
#include "exec/region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <thread>
#include <utility>

#include "core/error.h"
#include "exec/blame.h"

namespace orrery::exec {
namespace {

constexpr std::size_t kRegionBytes = std::size_t{8} << 20;
constexpr std::uint64_t kRegionMagic = 0x4f5252455259'0001;
// Per rank: an arena, a mailbox, and copies of tensors for each group's rounds, which double as they grow.
constexpr std::size_t kAllocations = 64;

std::uint64_t aligned(std::uint64_t n) {
  return (n + 63) / 64 * 64;
}

[[noreturn]] void fail(const std::string& what) {
  throw Error(fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

enum class RankState : std::uint32_t { kToCome, kHere, kLeft, kSurvivor };

struct Region::RankRecord {
  pthread_mutex_t alive;  // held as long as the rank is in the job
  std::int64_t rank = -1;
  std::atomic<RankState> state{RankState::kToCome};
  pid_t pid = 0;
  std::atomic<std::uint32_t> elsewhere{0};  // waits for ranks of other hosts
  std::atomic<std::uint32_t> allocations{0};
  std::array<int, kAllocations> file{};
  std::array<std::uint64_t, kAllocations> bytes{};
};

struct Region::Header {
  std::atomic<std::uint64_t> magic{0};  // last of what its maker writes
  AbortState abort;
  pthread_mutex_t lock;  // of whoever adds to what follows
  std::uint64_t used = 0;
  std::atomic<std::uint64_t> groups{0}, channels{0};  // offsets of the newest; read without the lock
  std::uint32_t ranks = 0;
  std::atomic<std::uint32_t> come{0};
  RankRecord* records() { return reinterpret_cast<RankRecord*>(this + 1); }
};

namespace {

void make_mutex(pthread_mutex_t& m) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&m, &a);
  pthread_mutexattr_destroy(&a);
}

// Whoever held it may have died; what it guards is only ever appended to. It may have been stopped, too.
class Locked {
 public:
  explicit Locked(pthread_mutex_t& m) : m_(m) {
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += kSeconds;
    const int result = pthread_mutex_timedlock(&m_, &until);
    if (result == EOWNERDEAD) pthread_mutex_consistent(&m_);
    if (result == ETIMEDOUT)
      throw Error(fmt::format("a rank of this host has stopped for {} s while it opened a group", kSeconds));
  }
  ~Locked() { pthread_mutex_unlock(&m_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  static constexpr time_t kSeconds = 30;
  pthread_mutex_t& m_;
};

std::string object_name(const std::string& job) {
  return fmt::format("/orrery-{}-{}", ::getuid(), job);
}

void* map_shared(int file, std::size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (p == MAP_FAILED) fail(fmt::format("cannot map {} bytes of shared memory", bytes));
  return p;
}

}  // namespace

// A descriptor of named memory. Region::Named holds one, so that it has a name outside this source.
class SharedFile {
 public:
  explicit SharedFile(int descriptor) : descriptor_(descriptor) {}
  ~SharedFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  SharedFile(SharedFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  SharedFile& operator=(SharedFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

void sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  constexpr timespec kShort{0, 20'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &kShort, nullptr, 0);
}

void wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

Region::Region()
    : header_(new (::operator new (kRegionBytes, std::align_val_t{64})) Header), abort_(header_->abort) {
  make_mutex(header_->lock);
  header_->used = aligned(sizeof(Header));
}

namespace {

// Opens the named memory, which must be this user's alone. The descriptor is -1 when it is not there.
SharedFile open_own(const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format(
        "the shared memory {} is refused: {}; remove it, or start the job under another name", name, why));
  };
  SharedFile file(::shm_open(name.c_str(), O_RDWR, 0600));
  if (file.get() < 0 && errno == EACCES) refuse("it belongs to another user");
  struct stat about {};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0) return SharedFile(-1);
  if (about.st_uid != ::geteuid()) refuse(fmt::format("it belongs to user {}", about.st_uid));
  if ((about.st_mode & 077) != 0)
    refuse(fmt::format("other users may open it (mode {:04o})", about.st_mode & 07777));
  return file;
}

// Every process of a job holds a shared lock on its memory as long as that has a name; the lock ends with the
// process.
bool is_left_behind(const SharedFile& file) {
  return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
}

bool has_name(const std::string& name, const SharedFile& file) {
  const SharedFile named(::shm_open(name.c_str(), O_RDWR, 0600));
  struct stat a {
  }, b{};
  return named.get() >= 0 && ::fstat(named.get(), &a) == 0 && ::fstat(file.get(), &b) == 0 &&
         a.st_ino == b.st_ino;
}

// Memory of this user's launches that were killed while they began.
void remove_left_behind() {
  const std::string prefix = object_name("");
  std::error_code e;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", e)) {
    const std::string name = fmt::format("/{}", entry.path().filename().string());
    if (!name.starts_with(prefix)) continue;
    try {
      const SharedFile file = open_own(name);
      if (file.get() >= 0 && is_left_behind(file)) ::shm_unlink(name.c_str());
    } catch (const Error&) {  // it is another user's
    }
  }
}

}  // namespace

// The memory, and its file as long as it has a name; no memory when it is not there yet.
struct Region::Named {
  Header* header = nullptr;
  SharedFile file{-1};
};

// Makes what the other ranks find.
Region::Named Region::make(const std::string& name, std::span<const std::int64_t> ranks) {
  remove_left_behind();
  if (open_own(name).get() >= 0) return {};  // of another launch of this name, which is alive
  Named out{nullptr, SharedFile(::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600))};
  const int file = out.file.get();
  if (file < 0) fail("cannot create the shared memory " + name);
  if (::flock(file, LOCK_SH) != 0) fail("cannot lock the shared memory " + name);
  // Before it was locked, another launch may have taken it for left behind.
  if (!has_name(name, out.file)) return {};
  if (::ftruncate(file, kRegionBytes) != 0) fail("cannot size the shared memory " + name);
  out.header = new (map_shared(file, kRegionBytes)) Header;
  make_mutex(out.header->lock);
  out.header->ranks = static_cast<std::uint32_t>(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    auto* record = new (out.header->records() + i) RankRecord;
    make_mutex(record->alive);
    record->rank = ranks[i];
  }
  out.header->used = aligned(sizeof(Header) + ranks.size() * sizeof(RankRecord));
  out.header->magic.store(kRegionMagic, std::memory_order_release);
  return out;
}

Region::Named Region::find(const std::string& name) {
  Named out{nullptr, open_own(name)};
  const int file = out.file.get();
  if (file < 0) return {};
  if (is_left_behind(out.file)) {
    ::shm_unlink(name.c_str());  // whoever else would do it, or make it anew, needs the lock that we hold
    return {};
  }
  if (::flock(file, LOCK_SH | LOCK_NB) != 0) return {};
  if (::lseek(file, 0, SEEK_END) != static_cast<off_t>(kRegionBytes)) return {};
  out.header = static_cast<Header*>(map_shared(file, kRegionBytes));
  if (out.header->magic.load(std::memory_order_acquire) == kRegionMagic &&
      out.header->come.load() < out.header->ranks)
    return out;
  ::munmap(out.header, kRegionBytes);
  return {};
}

// The first rank makes what the others find.
Region::Named Region::join(const std::string& name, std::span<const std::int64_t> ranks, std::int64_t self,
                           Clock::time_point until) {
  const bool first = self == ranks.front();
  for (; Clock::now() < until; std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
    Named there = first ? make(name, ranks) : find(name);
    if (there.header != nullptr) return there;
  }
  if (first)
    throw Error(fmt::format("the shared memory {} is in use: another launch of this job is beginning", name));
  throw Error(
      fmt::format("rank {} waited in vain for rank {} to begin the job on this host", self, ranks.front()));
}

Region::Region(Header* header, std::int64_t self)
    : processes_(true), self_(self), header_(header), abort_(header->abort) {
  RankRecord* own = record(self);
  if (own == nullptr) throw Error(fmt::format("rank {} is not one of this host", self));
  if (pthread_mutex_lock(&own->alive) == EOWNERDEAD) pthread_mutex_consistent(&own->alive);
  own->pid = ::getpid();
  own->state.store(RankState::kHere);
}

Region::Region(const std::string& job, std::span<const std::int64_t> ranks, std::int64_t self,
               std::chrono::milliseconds deadline)
    : Region(job, self, deadline, join(object_name(job), ranks, self, Clock::now() + deadline)) {}

Region::Region(const std::string& job, std::int64_t self, std::chrono::milliseconds deadline,
               const Named& named)
    : Region(named.header, self) {
  const std::string name = object_name(job);
  const std::uint32_t all = header_->ranks;
  if (header_->come.fetch_add(1) + 1 == all) ::shm_unlink(name.c_str());
  wake_all(header_->come);
  const auto leave = [&](const std::string& why) {
    ::shm_unlink(name.c_str());
    throw Error(why);
  };
  auto until = Clock::now() + deadline;
  std::int64_t dead = -1;
  while (header_->come.load() < all) {
    sleep_on(header_->come, header_->come.load());
    if (dead < 0 && (dead = dead_rank()) >= 0) {
      // Those that are to come shall find the job, and see this too.
      const std::chrono::milliseconds moment = std::min(deadline, std::chrono::milliseconds(5000)) / 2;
      until = std::min(until, Clock::now() + moment);
    }
    if (Clock::now() < until) continue;
    if (dead >= 0) leave(fmt::format("rank {} died before the job began: rank {} noticed", dead, self));
    std::vector<std::int64_t> absent;
    for (std::uint32_t i = 0; i < all; ++i) {
      if (header_->records()[i].state.load() == RankState::kToCome)
        absent.push_back(header_->records()[i].rank);
    }
    leave(fmt::format("rank {} waited {} ms for {} to begin", self, deadline.count(), ranks_text(absent)));
  }
}

Region::~Region() {
  if (processes_) {
    RankRecord& own = *record(self_);
    RankState here = RankState::kHere;
    own.state.compare_exchange_strong(here, RankState::kLeft);  // its end is not its death
    pthread_mutex_unlock(&own.alive);
    for (std::uint32_t i = 0; i < own.allocations.load(); ++i) ::close(own.file[i]);
  }
  for (const Mapping& m : mappings_) ::munmap(m.begin, m.bytes);
  if (processes_) {
    ::munmap(header_, kRegionBytes);
  } else {
    ::operator delete (static_cast<void*>(header_), std::align_val_t{64});
  }
}

std::uint64_t Region::take(std::size_t bytes) {
  const std::uint64_t begin = header_->used;
  if (begin + bytes > kRegionBytes) throw Error("too many groups of ranks on one host");
  header_->used = aligned(begin + bytes);
  return begin;
}

GroupRecord* Region::find_group(std::span<const std::int64_t> members, int number) {
  for (std::uint64_t o = header_->groups.load(); o != 0; o = at<GroupRecord>(o)->next) {
    GroupRecord* g = at<GroupRecord>(o);
    const auto same = [](const GroupSlot& s, std::int64_t rank) { return s.rank == rank; };
    if (g->members == members.size() && g->number == number &&
        std::equal(g->slots(), g->slots() + g->members, members.begin(), same))
      return g;
  }
  return nullptr;
}

GroupRecord& Region::group(std::span<const std::int64_t> members, int number) {
  if (GroupRecord* there = find_group(members, number)) return *there;
  const Locked lock(header_->lock);
  if (GroupRecord* there = find_group(members, number)) return *there;
  const std::uint64_t offset = take(sizeof(GroupRecord) + members.size() * sizeof(GroupSlot));
  auto* g = new (at<GroupRecord>(offset)) GroupRecord;
  g->members = static_cast<std::uint32_t>(members.size());
  g->number = number;
  for (std::size_t m = 0; m < members.size(); ++m) (new (g->slots() + m) GroupSlot)->rank = members[m];
  g->next = header_->groups.load();
  header_->groups.store(offset);
  return *g;
}

ChannelRecord* Region::find_channel(std::int64_t from, std::int64_t to, int number) {
  for (std::uint64_t o = header_->channels.load(); o != 0; o = at<ChannelRecord>(o)->next) {
    ChannelRecord* c = at<ChannelRecord>(o);
    if (c->from == from && c->to == to && c->number == number) return c;
  }
  return nullptr;
}

ChannelRecord& Region::channel(std::int64_t from, std::int64_t to, int number) {
  if (ChannelRecord* there = find_channel(from, to, number)) return *there;
  const Locked lock(header_->lock);
  if (ChannelRecord* there = find_channel(from, to, number)) return *there;
  const std::uint64_t offset = take(sizeof(ChannelRecord));
  auto* c = new (at<ChannelRecord>(offset)) ChannelRecord;
  c->from = from;
  c->to = to;
  c->number = number;
  c->next = header_->channels.load();
  header_->channels.store(offset);
  return *c;
}

// --- buffers ---------------------------------------------------------------------------------------

std::byte* Region::allocate(std::size_t bytes) {
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  const std::lock_guard lock(mutex_);
  if (!processes_) {
    own_.emplace_back(static_cast<std::byte*>(::operator new[](size, std::align_val_t{256})));
    return own_.back().get();
  }
  RankRecord& own = *record(self_);
  const std::uint32_t index = own.allocations.load();
  if (index == kAllocations)
    throw Error(fmt::format("a rank has at most {} shared allocations", kAllocations));
  // Others open it through this process: it has no name and ends with its last user.
  const int file = ::memfd_create("orrery", MFD_CLOEXEC);
  if (file < 0) fail("cannot create shared memory");
  if (::ftruncate(file, static_cast<off_t>(size)) != 0) fail("cannot size shared memory");
  auto* p = static_cast<std::byte*>(map_shared(file, size));
  mappings_.push_back({self_, static_cast<std::int32_t>(index), p, size});
  own.file[index] = file;
  own.bytes[index] = size;
  own.allocations.store(index + 1, std::memory_order_release);
  return p;
}

Place Region::place_of(const void* p) const {
  if (!processes_ || p == nullptr) return {-1, 0, reinterpret_cast<std::uintptr_t>(p)};
  const std::lock_guard lock(mutex_);
  for (const Mapping& m : mappings_) {
    if (m.rank != self_ || p < m.begin || p > m.begin + m.bytes) continue;
    return {static_cast<std::int32_t>(m.rank), m.allocation,
            static_cast<std::uint64_t>(static_cast<const std::byte*>(p) - m.begin)};
  }
  throw Error("a buffer of a collective is not in memory that other ranks reach");
}

void* Region::address_of(const Place& place) {
  if (place.rank < 0) return reinterpret_cast<void*>(place.offset);
  return map(place.rank, place.allocation) + place.offset;
}

std::byte* Region::map(std::int64_t rank, std::int32_t allocation) {
  const std::lock_guard lock(mutex_);
  for (const Mapping& m : mappings_) {
    if (m.rank == rank && m.allocation == allocation) return m.begin;
  }
  RankRecord& of = *record(rank);
  const auto index = static_cast<std::size_t>(allocation);
  const std::string path = fmt::format("/proc/{}/fd/{}", of.pid, of.file[index]);
  const SharedFile file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) {
    const int error = errno;
    abort_.check();
    if (is_dead(of))
      throw Error(fmt::format("rank {} died: rank {} noticed, reaching for its memory", rank, self_));
    errno = error;
    fail(fmt::format("cannot reach the memory of rank {} ({})", rank, path));
  }
  auto* p = static_cast<std::byte*>(map_shared(file.get(), of.bytes[index]));
  mappings_.push_back({rank, allocation, p, of.bytes[index]});
  return p;
}

// --- who is alive ----------------------------------------------------------------------------------

Region::RankRecord* Region::record(std::int64_t rank) {
  RankRecord* records = header_->records();
  const auto end = records + header_->ranks;
  const auto found = std::find_if(records, end, [&](const RankRecord& r) { return r.rank == rank; });
  return found == end ? nullptr : found;
}

bool Region::is_dead(RankRecord& r) {
  if (r.state.load() != RankState::kHere) return false;
  const int held = pthread_mutex_trylock(&r.alive);
  if (held == EBUSY) return false;
  if (held == EOWNERDEAD) pthread_mutex_consistent(&r.alive);
  pthread_mutex_unlock(&r.alive);
  return r.state.load() == RankState::kHere;  // it may just have left
}

std::int64_t Region::dead_rank() {
  for (std::uint32_t i = 0; processes_ && i < header_->ranks; ++i) {
    RankRecord& r = header_->records()[i];
    if (r.rank != self_ && is_dead(r)) return r.rank;
  }
  return -1;
}

std::vector<Incomplete> Region::incomplete() {
  const auto name = [](const auto& text) { return std::string(text, ::strnlen(text, sizeof text)); };
  std::vector<Incomplete> out;
  for (std::uint64_t o = header_->groups.load(); o != 0; o = at<GroupRecord>(o)->next) {
    GroupRecord& g = *at<GroupRecord>(o);
    std::vector<std::uint32_t> meetings;
    for (std::uint32_t m = 0; m < g.members; ++m) meetings.push_back(g.slots()[m].meetings.load());
    // The numbers differ by at most one, and may wrap.
    const auto behind = [&](std::uint32_t m) {
      return std::any_of(meetings.begin(), meetings.end(), [&](std::uint32_t other) {
        return static_cast<std::int32_t>(meetings[m] - other) < 0;
      });
    };
    Incomplete call;
    for (std::uint32_t m = 0; m < g.members; ++m) {
      const GroupSlot& slot = g.slots()[m];
      (behind(m) ? call.missing : call.present).push_back(slot.rank);
      if (behind(m)) continue;
      call.name = name(slot.call.name);
      call.number = slot.call.number;
    }
    if (!call.missing.empty()) out.push_back(std::move(call));
  }
  for (std::uint32_t i = 0; processes_ && i < header_->ranks; ++i) {
    const RankRecord& r = header_->records()[i];
    if (r.elsewhere.load() > 0) out.push_back({"", 0, {r.rank}, {}, {}});
  }
  for (std::uint64_t o = header_->channels.load(); o != 0; o = at<ChannelRecord>(o)->next) {
    const ChannelRecord& c = *at<ChannelRecord>(o);
    const std::uint32_t turn = c.turn.load();
    const bool sending = turn % 2 == 1, receiving = c.receiving.load();
    if (sending && !receiving) out.push_back({name(c.sent), turn / 2, {c.from}, {c.to}, {}});
    if (receiving && !sending) out.push_back({name(c.wanted), turn / 2, {c.to}, {c.from}, {}});
  }
  return out;
}

std::atomic<std::uint32_t>& Region::waits_elsewhere() {
  return record(self_)->elsewhere;
}

std::set<std::int64_t> Region::stopped() {
  std::set<std::int64_t> out;
  for (std::uint32_t i = 0; processes_ && i < header_->ranks; ++i) {
    const RankRecord& r = header_->records()[i];
    if (r.state.load() != RankState::kHere) continue;
    std::ifstream in(fmt::format("/proc/{}/stat", r.pid));
    const std::string text(std::istreambuf_iterator<char>(in), {});
    // NUMBER (NAME) STATE ..., where the name may hold anything.
    const std::size_t end = text.rfind(") ");
    if (end != text.npos && (text[end + 2] == 'T' || text[end + 2] == 't')) out.insert(r.rank);
  }
  return out;
}

bool Region::has_left(std::int64_t rank) {
  return processes_ && record(rank)->state.load() == RankState::kLeft;
}

std::vector<std::int64_t> Region::survivors(std::chrono::milliseconds deadline) {
  if (!processes_) return {};
  record(self_)->state.store(RankState::kSurvivor);
  const auto until = Clock::now() + deadline;
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
    std::vector<std::int64_t> out;
    std::int64_t undecided = -1;
    for (std::uint32_t i = 0; i < header_->ranks; ++i) {
      RankRecord& r = header_->records()[i];
      if (r.state.load() == RankState::kSurvivor)
        out.push_back(r.rank);
      else if (r.state.load() == RankState::kHere && !is_dead(r))
        undecided = r.rank;
    }
    if (undecided < 0) return out;
    if (stopped().count(undecided) > 0) throw Error(abort_.reason());
    if (Clock::now() > until)
      throw Error(
          fmt::format("rank {} waited {} ms for rank {} to go on", self_, deadline.count(), undecided));
  }
}

}  // namespace orrery::exec
