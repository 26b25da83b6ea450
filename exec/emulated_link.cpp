// SPDX-License-Identifier: Apache-2.0
#include "exec/emulated_link.h"

#include <fmt/format.h>

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"

namespace orrery::exec {
namespace {

using Seconds = std::chrono::duration<double>;

// Transfers that are under way share the bandwidth evenly.
class Link {
 public:
  explicit Link(double bytes_per_second) : rate_(bytes_per_second) {}

  // Returns when `bytes` have passed that began to at `begin`.
  void pass(double bytes, Clock::time_point begin) {
    std::unique_lock lock(mutex_);
    advance();
    // It may have begun before it came here, alone on the link.
    bytes -= Seconds(at_ - begin).count() * rate_;
    const auto mine = left_.insert(left_.end(), bytes);
    changed_.notify_all();
    while (*mine > 0) {
      const Seconds rest(*mine * static_cast<double>(left_.size()) / rate_);
      changed_.wait_until(lock, at_ + std::chrono::duration_cast<Clock::duration>(rest));
      advance();
      if (*mine < rate_ * 1e-6) break;  // less than the clock and the scheduler resolve
    }
    left_.erase(mine);
    changed_.notify_all();
  }

 private:
  void advance() {
    const auto now = Clock::now();
    const double each =
        Seconds(now - at_).count() * rate_ / static_cast<double>(std::max<std::size_t>(1, left_.size()));
    for (double& bytes : left_) bytes -= each;
    at_ = now;
  }

  double rate_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Clock::time_point at_ = Clock::now();
  std::list<double> left_;  // bytes of each transfer
};

class Emulated final : public Communicator {
 public:
  Emulated(Communicator& inner, const LinkOptions& o, std::chrono::milliseconds deadline)
      : inner_(inner),
        rate_(static_cast<double>(o.bandwidth.value)),
        deadline_(deadline),
        latency_(std::chrono::duration_cast<Clock::duration>(Seconds(seconds(o.latency)))),
        out_(rate_),
        in_(rate_) {}

  std::byte* allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  Clock::duration clock_offset() const override { return inner_.clock_offset(); }

  GroupId open(std::span<const std::int64_t> members) override {
    const GroupId id = inner_.open(members);
    if (sizes_.size() <= id) sizes_.resize(id + 1);
    sizes_[id] = members.size();
    return id;
  }

  Clock::time_point collective(GroupId group, const CollectiveCall& call) override {
    const Clock::time_point active = inner_.collective(group, call);
    const std::size_t n = sizes_[group];
    if (n <= 1) return active;
    const bool both = call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kAllReduceMax;
    const auto hops = static_cast<std::int64_t>((both ? 2 : 1) * (n - 1));
    const double bytes = static_cast<double>(call.elements * bytes_of(call.type)) *
                         static_cast<double>(hops) / static_cast<double>(n);
    cross(out_, call.name, bytes, hops, active);
    return active;
  }

  Clock::time_point send(std::int64_t to, int channel, std::string_view name, const void* data,
                         std::size_t bytes) override {
    const Clock::time_point met = inner_.send(to, channel, name, data, bytes);
    cross(out_, name, static_cast<double>(bytes), 1, met);
    return met;
  }

  Clock::time_point receive(std::int64_t from, int channel, std::string_view name, void* data,
                            std::size_t bytes) override {
    const Clock::time_point met = inner_.receive(from, channel, name, data, bytes);
    cross(in_, name, static_cast<double>(bytes), 1, met);
    return met;
  }

 private:
  void cross(Link& link, std::string_view name, double bytes, std::int64_t hops, Clock::time_point begin) {
    if (const Seconds alone = hops * latency_ + Seconds(bytes / rate_); alone > deadline_) {
      throw Error(fmt::format("\"{}\" takes {:.1f} s over the emulated link, and the deadline is {} ms", name,
                              alone.count(), deadline_.count()));
    }
    const Clock::time_point arrived = begin + hops * latency_;
    std::this_thread::sleep_until(arrived);
    link.pass(bytes, arrived);
  }

  Communicator& inner_;
  double rate_;
  std::chrono::milliseconds deadline_;
  Clock::duration latency_;
  Link out_, in_;
  std::vector<std::size_t> sizes_;  // by group
};

}  // namespace

std::unique_ptr<Communicator> emulate_link(Communicator& inner, const LinkOptions& link,
                                           std::chrono::milliseconds deadline) {
  return std::make_unique<Emulated>(inner, link, deadline);
}

}  // namespace orrery::exec
