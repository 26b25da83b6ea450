// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/running.h"

#include <algorithm>
#include <unordered_map>

namespace orrery::sim {

std::int32_t RunningJobs::add(Running r) {
  std::int32_t slot = 0;
  if (unused_.empty()) {
    slot = static_cast<std::int32_t>(slots_.size());
    slots_.emplace_back();
    place_.push_back(0);
  } else {
    slot = unused_.back();
    unused_.pop_back();
  }
  const auto s = static_cast<std::size_t>(slot);
  r.version = slots_[s].version + 1;
  r.active = true;
  slots_[s] = std::move(r);
  place_[s] = active_.size();
  active_.push_back(slot);
  for (const std::int32_t n : slots_[s].nodes) on_node_[static_cast<std::size_t>(n)].push_back(slot);
  return slot;
}

void RunningJobs::remove(std::int32_t slot) {
  const auto s = static_cast<std::size_t>(slot);
  for (const std::int32_t n : slots_[s].nodes) {
    auto& on = on_node_[static_cast<std::size_t>(n)];
    on.erase(std::find(on.begin(), on.end(), slot));
  }
  slots_[s].active = false;
  ++slots_[s].version;
  place_[static_cast<std::size_t>(active_.back())] = place_[s];
  active_[place_[s]] = active_.back();
  active_.pop_back();
  unused_.push_back(slot);
}

namespace {

// A job that is over its time may end at any moment.
Ticks release(const Running& r, Ticks now) {
  return std::max(r.expected, now + Ticks{1});
}

// When a node has so many free devices.
Ticks part_free_at(std::int32_t node, std::int64_t devices, const FreeNodes& free, const RunningJobs& running,
                   Ticks now) {
  boost::container::small_vector<std::pair<Ticks, std::int64_t>, 8> ends;
  for (const std::int32_t slot : running.on(node))
    ends.emplace_back(release(running[slot], now), running[slot].held);
  std::sort(ends.begin(), ends.end());
  std::int64_t there = free.free_on(node);
  Ticks at = now;
  for (const auto& [end, held] : ends) {
    if (there >= devices) break;
    there += held;
    at = end;
  }
  return at;
}

}  // namespace

Reservation reserve(std::int64_t devices, const FreeNodes& free, const RunningJobs& running,
                    const ClusterNodes& cluster, Ticks now) {
  struct Node {
    Ticks at;
    std::int32_t id;
  };
  std::vector<Node> nodes;
  for (std::int32_t n = 0; n < cluster.nodes(); ++n) nodes.push_back({now, n});
  if (free.shares(devices)) {
    for (Node& n : nodes) n.at = part_free_at(n.id, devices, free, running, now);
  } else {
    for (const std::int32_t slot : running.active()) {
      const Ticks at = release(running[slot], now);
      for (const std::int32_t n : running[slot].nodes) {
        Ticks& known = nodes[static_cast<std::size_t>(n)].at;
        known = std::max(known, at);
      }
    }
  }
  const std::int64_t count = free.nodes_of(devices);
  std::vector<Ticks> times;
  for (const Node& n : nodes) times.push_back(n.at);
  std::nth_element(times.begin(), times.begin() + (count - 1), times.end());
  Reservation out{times[static_cast<std::size_t>(count - 1)], {}};
  // Nodes that are free only then leave those that are free now to others.
  std::erase_if(nodes, [&](const Node& n) { return n.at > out.at; });
  const auto later = [](const Node& a, const Node& b) { return a.at != b.at ? a.at > b.at : a.id < b.id; };
  std::nth_element(nodes.begin(), nodes.begin() + (count - 1), nodes.end(), later);
  for (std::int64_t i = 0; i < count; ++i) out.nodes.push_back(nodes[static_cast<std::size_t>(i)].id);
  return out;
}

namespace {

// What is free, and what would be without some jobs.
class Freed {
 public:
  Freed(const FreeNodes& free, std::int64_t devices)
      : free_(free), per_node_(free.per_node()), devices_(devices), whole_(free.whole_nodes()) {}
  void add(const Running& r, std::int64_t sign) {
    for (const std::int32_t n : r.nodes) {
      std::int64_t& more = more_[n];
      const std::int64_t before = free_.free_on(n) + more;
      more += sign * r.held;
      const std::int64_t after = before + sign * r.held;
      whole_ += (after == per_node_) - (before == per_node_);
      enough_ += (after >= devices_) - (before >= devices_);
    }
  }
  // None has enough before anything is added.
  bool fits() const { return free_.shares(devices_) ? enough_ > 0 : whole_ >= free_.nodes_of(devices_); }

 private:
  const FreeNodes& free_;
  std::int64_t per_node_, devices_, whole_, enough_ = 0;
  std::unordered_map<std::int32_t, std::int64_t> more_;
};

}  // namespace

std::vector<std::int32_t> victims(std::int64_t devices, std::int64_t priority, const FreeNodes& free,
                                  const RunningJobs& running, const std::vector<ClusterJob>& jobs) {
  const auto job = [&](std::int32_t slot) -> const ClusterJob& {
    return jobs[static_cast<std::size_t>(running[slot].job)];
  };
  std::vector<std::int32_t> lower;
  std::int64_t most = free.free_devices();
  for (const std::int32_t slot : running.active()) {
    if (job(slot).priority >= priority) continue;
    lower.push_back(slot);
    most += running[slot].held * std::ssize(running[slot].nodes);
  }
  if (most < devices) return {};
  std::sort(lower.begin(), lower.end(), [&](std::int32_t a, std::int32_t b) {
    if (job(a).priority != job(b).priority) return job(a).priority < job(b).priority;
    if (running[a].start != running[b].start) return running[a].start > running[b].start;
    return running[a].job > running[b].job;
  });
  Freed freed(free, devices);
  std::vector<std::int32_t> out;
  for (const std::int32_t slot : lower) {
    if (freed.fits()) break;
    freed.add(running[slot], 1);
    out.push_back(slot);
  }
  if (!freed.fits()) return {};
  for (std::size_t i = out.size(); i-- > 0;) {  // the one that would go last may stay first
    freed.add(running[out[i]], -1);
    if (freed.fits())
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(i));
    else
      freed.add(running[out[i]], 1);
  }
  return out;
}

}  // namespace orrery::sim
