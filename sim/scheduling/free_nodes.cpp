// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/free_nodes.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace orrery::sim {

void NumberSet::insert(std::int64_t i) {
  words_[word(i)] |= std::uint64_t{1} << (i % 64);
  ++size_;
}

void NumberSet::erase(std::int64_t i) {
  words_[word(i)] &= ~(std::uint64_t{1} << (i % 64));
  --size_;
}

std::int64_t NumberSet::next(std::int64_t from) const {
  std::size_t w = word(from);
  if (size_ == 0 || w >= words_.size()) return -1;
  std::uint64_t bits = words_[w] & (~std::uint64_t{0} << (from % 64));
  while (bits == 0) {
    if (++w == words_.size()) return -1;
    bits = words_[w];
  }
  return static_cast<std::int64_t>(w * 64) + std::countr_zero(bits);
}

FreeNodes::FreeNodes(const ClusterNodes& nodes)
    : nodes_(nodes), per_node_(nodes.devices_per_node), whole_in_(nodes.pod.size(), 0) {
  free_.assign(nodes.leaf.size(), 0);
  with_free_.assign(static_cast<std::size_t>(per_node_) + 1, NumberSet(nodes.nodes()));
  for (std::int32_t n = 0; n < nodes.nodes(); ++n) {
    with_free_[0].insert(n);
    set_free(n, per_node_);
  }
}

void FreeNodes::set_free(std::int32_t node, std::int64_t devices) {
  std::int64_t& now = free_[static_cast<std::size_t>(node)];
  std::int64_t& whole = whole_in_[static_cast<std::size_t>(nodes_.leaf[static_cast<std::size_t>(node)])];
  with_free_[static_cast<std::size_t>(now)].erase(node);
  with_free_[static_cast<std::size_t>(devices)].insert(node);
  whole += (devices == per_node_) - (now == per_node_);
  free_devices_ += devices - now;
  now = devices;
}

void FreeNodes::take(std::span<const std::int32_t> nodes, std::int64_t each) {
  for (const std::int32_t n : nodes) set_free(n, free_on(n) - each);
}

void FreeNodes::give(std::span<const std::int32_t> nodes, std::int64_t each) {
  for (const std::int32_t n : nodes) set_free(n, free_on(n) + each);
}

std::int64_t FreeNodes::largest_part() const {
  std::int64_t f = per_node_;
  while (f > 0 && with_free_[static_cast<std::size_t>(f)].size() == 0) --f;
  return f;
}

bool FreeNodes::fits(std::int64_t devices) const {
  if (devices > free_devices_) return false;
  return shares(devices) ? devices <= largest_part() : nodes_of(devices) <= whole_nodes();
}

bool FreeNodes::choose(std::int64_t devices, NodeChoice how, std::vector<std::int32_t>& out) const {
  out.clear();
  if (!fits(devices)) return false;
  if (shares(devices))
    out.push_back(part_of_node(devices, how));
  else
    choose_whole(nodes_of(devices), how, out);
  return true;
}

std::int32_t FreeNodes::part_of_node(std::int64_t devices, NodeChoice how) const {
  std::int64_t lowest = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t f = devices; f <= per_node_; ++f) {
    const std::int64_t wanted = how == NodeChoice::kSpread ? per_node_ + devices - f : f;
    const std::int64_t node = with_free_[static_cast<std::size_t>(wanted)].next(0);
    if (node < 0) continue;
    lowest = std::min(lowest, node);
    if (how != NodeChoice::kFirst) break;
  }
  return static_cast<std::int32_t>(lowest);
}

void FreeNodes::add_from(std::int32_t leaf, std::int64_t count, std::vector<std::int32_t>& out) const {
  const auto l = static_cast<std::size_t>(leaf);
  for (std::int32_t i = nodes_.first[l]; count > 0 && i < nodes_.first[l + 1]; ++i) {
    const std::int32_t node = nodes_.members[static_cast<std::size_t>(i)];
    if (free_on(node) < per_node_) continue;
    out.push_back(node);
    --count;
  }
}

// Leaves of the smallest part of the cluster (a leaf, a pod, all of it) that has so many free nodes; of
// several, the one with the fewest. Most free nodes first.
std::vector<FreeNodes::Leaf> FreeNodes::leaves_with(std::int64_t count) const {
  std::vector<std::int64_t> in_pod(static_cast<std::size_t>(nodes_.pods()), 0);
  std::int32_t best_leaf = -1, best_pod = -1;
  const auto whole = [&](std::int32_t leaf) { return whole_in_[static_cast<std::size_t>(leaf)]; };
  for (std::int32_t l = 0; l < nodes_.leaves(); ++l) {
    in_pod[static_cast<std::size_t>(nodes_.pod[static_cast<std::size_t>(l)])] += whole(l);
    if (whole(l) >= count && (best_leaf < 0 || whole(l) < whole(best_leaf))) best_leaf = l;
  }
  if (best_leaf >= 0) return {{best_leaf, whole(best_leaf)}};
  for (std::int32_t p = 0; p < nodes_.pods(); ++p) {
    const std::int64_t here = in_pod[static_cast<std::size_t>(p)];
    if (here >= count && (best_pod < 0 || here < in_pod[static_cast<std::size_t>(best_pod)])) best_pod = p;
  }
  std::vector<Leaf> out;
  for (std::int32_t l = 0; l < nodes_.leaves(); ++l) {
    if (whole(l) > 0 && (best_pod < 0 || nodes_.pod[static_cast<std::size_t>(l)] == best_pod))
      out.push_back({l, whole(l)});
  }
  std::stable_sort(out.begin(), out.end(), [](const Leaf& a, const Leaf& b) { return a.whole > b.whole; });
  return out;
}

void FreeNodes::choose_whole(std::int64_t count, NodeChoice how, std::vector<std::int32_t>& out) const {
  if (how == NodeChoice::kFirst) {
    for (std::int64_t n = with_free_.back().next(0); std::ssize(out) < count;
         n = with_free_.back().next(n + 1))
      out.push_back(static_cast<std::int32_t>(n));
    std::stable_sort(out.begin(), out.end(), [&](std::int32_t a, std::int32_t b) {
      return nodes_.leaf[static_cast<std::size_t>(a)] < nodes_.leaf[static_cast<std::size_t>(b)];
    });
    return;
  }
  if (how == NodeChoice::kTopology) {
    const std::vector<Leaf> leaves = leaves_with(count);
    for (std::size_t i = 0; std::ssize(out) < count; ++i) {
      const std::int64_t left = count - std::ssize(out);
      std::size_t from = i;
      while (from + 1 < leaves.size() && leaves[from + 1].whole >= left)
        ++from;  // the fewest that are enough
      add_from(leaves[from].id, left, out);
    }
    return;
  }
  std::vector<Leaf> leaves;
  for (std::int32_t l = 0; l < nodes_.leaves(); ++l)
    leaves.push_back({l, whole_in_[static_cast<std::size_t>(l)]});
  std::stable_sort(leaves.begin(), leaves.end(),
                   [](const Leaf& a, const Leaf& b) { return a.whole > b.whole; });
  std::vector<std::int64_t> share(leaves.size(), 0);
  for (std::int64_t left = count; left > 0;) {
    for (std::size_t i = 0; i < leaves.size() && left > 0; ++i) {
      if (share[i] == leaves[i].whole) continue;
      ++share[i];
      --left;
    }
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) add_from(leaves[i].id, share[i], out);
}

}  // namespace orrery::sim
