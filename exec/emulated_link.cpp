// SPDX-License-Identifier: Apache-2.0
#include "exec/emulated_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"

namespace orrery::exec {
namespace {

using Seconds = std::chrono::duration<double>;

// What a rank sends and what it receives. Transfers that are under way share each direction evenly; one that
// uses both has the lesser of its shares.
class Port {
 public:
  enum Direction : unsigned { kOut = 1, kIn = 2 };
  explicit Port(double bytes_per_second) : rate_(bytes_per_second) {}

  // Returns when `bytes` that began to at `begin` have passed.
  void pass(unsigned directions, double bytes, Clock::time_point begin) {
    std::unique_lock lock(mutex_);
    advance();
    // It may have begun before it came here, alone on the link.
    bytes -= Seconds(at_ - begin).count() * rate_;
    const auto mine = under_way_.insert(under_way_.end(), {directions, bytes});
    changed_.notify_all();
    while (mine->left > 0) {
      const Seconds rest(mine->left / rate_of(*mine));
      changed_.wait_until(lock, at_ + std::chrono::duration_cast<Clock::duration>(rest));
      advance();
      if (mine->left < rate_ * 1e-6) break;  // less than the clock and the scheduler resolve
    }
    under_way_.erase(mine);
    changed_.notify_all();
  }

 private:
  struct Transfer {
    unsigned directions;
    double left;  // bytes
  };

  double rate_of(const Transfer& t) const {
    std::size_t most = 1;
    for (const unsigned direction : {kOut, kIn}) {
      if ((t.directions & direction) == 0) continue;
      most = std::max<std::size_t>(
          most, std::count_if(under_way_.begin(), under_way_.end(),
                              [&](const Transfer& o) { return (o.directions & direction) != 0; }));
    }
    return rate_ / static_cast<double>(most);
  }
  void advance() {
    const auto now = Clock::now();
    const double passed = Seconds(now - at_).count();
    for (Transfer& t : under_way_) t.left -= passed * rate_of(t);
    at_ = now;
  }

  double rate_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Clock::time_point at_ = Clock::now();
  std::list<Transfer> under_way_;
};

class Emulated final : public Communicator {
 public:
  Emulated(Communicator& inner, const LinkOptions& o, std::chrono::milliseconds deadline)
      : inner_(inner),
        rate_(static_cast<double>(o.bandwidth.value)),
        deadline_(deadline),
        latency_(std::chrono::duration_cast<Clock::duration>(Seconds(seconds(o.latency)))),
        port_(rate_) {}

  std::byte* allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  Clock::duration clock_offset() const override { return inner_.clock_offset(); }

  using Communicator::open;
  GroupId open(std::span<const std::int64_t> members, int number) override {
    const GroupId id = inner_.open(members, number);
    if (sizes_.size() <= id) sizes_.resize(id + 1);
    sizes_[id] = members.size();
    return id;
  }

  Clock::time_point collective(GroupId group, const CollectiveCall& call) override {
    const Clock::time_point active = inner_.collective(group, call);
    const std::size_t n = sizes_[group];
    if (n <= 1) return active;
    const bool shifts = call.kind == CollectiveKind::kShift;  // all of it to the next member
    const auto hops =
        shifts ? 1 : static_cast<std::int64_t>((call.kind == CollectiveKind::kAllReduce ? 2 : 1) * (n - 1));
    const double bytes = static_cast<double>(call.elements * bytes_of(call.type)) *
                         (shifts ? 1 : static_cast<double>(hops) / static_cast<double>(n));
    cross(Port::kOut | Port::kIn, call.name, bytes, hops, active);
    return active;
  }

  Clock::time_point send(std::int64_t to, int channel, std::string_view name, const void* data,
                         std::size_t bytes) override {
    const Clock::time_point met = inner_.send(to, channel, name, data, bytes);
    cross(Port::kOut, name, static_cast<double>(bytes), 1, met);
    return met;
  }

  Clock::time_point receive(std::int64_t from, int channel, std::string_view name, void* data,
                            std::size_t bytes) override {
    const Clock::time_point met = inner_.receive(from, channel, name, data, bytes);
    cross(Port::kIn, name, static_cast<double>(bytes), 1, met);
    return met;
  }

 private:
  void cross(unsigned directions, std::string_view name, double bytes, std::int64_t hops,
             Clock::time_point begin) {
    if (const Seconds alone = hops * latency_ + Seconds(bytes / rate_); alone > deadline_) {
      throw Error(fmt::format("\"{}\" takes {:.1f} s over the emulated link, and the deadline is {} ms", name,
                              alone.count(), deadline_.count()));
    }
    const Clock::time_point arrived = begin + hops * latency_;
    std::this_thread::sleep_until(arrived);
    port_.pass(directions, bytes, arrived);
  }

  Communicator& inner_;
  double rate_;
  std::chrono::milliseconds deadline_;
  Clock::duration latency_;
  Port port_;
  std::vector<std::size_t> sizes_;  // by group
};

}  // namespace

std::unique_ptr<Communicator> emulate_link(Communicator& inner, const LinkOptions& link,
                                           std::chrono::milliseconds deadline) {
  return std::make_unique<Emulated>(inner, link, deadline);
}

}  // namespace orrery::exec
