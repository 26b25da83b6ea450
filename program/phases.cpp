// SPDX-License-Identifier: Apache-2.0
#include "program/phases.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace orrery::program {
namespace {

using enum CollectiveKind;

bool before(const Sends& a, const Sends& b) {
  return std::tie(a.from, a.to) < std::tie(b.from, b.to);
}

void append(Phases& out, std::vector<Sends> sends, std::int64_t repeat = 1) {
  if (sends.empty() || repeat == 0) return;
  std::sort(sends.begin(), sends.end(), before);
  std::size_t last = 0;
  for (std::size_t i = 1; i < sends.size(); ++i) {
    if (sends[i].from == sends[last].from && sends[i].to == sends[last].to)
      sends[last].parts += sends[i].parts;
    else
      sends[++last] = sends[i];
  }
  sends.resize(last + 1);
  if (!out.phases.empty() && out.phases.back().sends == sends) {
    out.phases.back().repeat += repeat;
  } else {
    out.phases.push_back({std::move(sends), repeat});
  }
}

// A send that goes on for `chunks` rounds from round `begin`.
struct Pipelined {
  std::int64_t begin;
  Sends send;
};
void play(Phases& out, const std::vector<Pipelined>& sends, std::int64_t chunks) {
  // Between two of these rounds nothing begins or ends.
  std::vector<std::int64_t> changes;
  for (const Pipelined& p : sends) {
    changes.push_back(p.begin);
    changes.push_back(p.begin + chunks);
  }
  std::sort(changes.begin(), changes.end());
  changes.erase(std::unique(changes.begin(), changes.end()), changes.end());
  for (std::size_t i = 0; i + 1 < changes.size(); ++i) {
    std::vector<Sends> now;
    for (const Pipelined& p : sends) {
      if (p.begin <= changes[i] && changes[i] < p.begin + chunks) now.push_back(p.send);
    }
    append(out, std::move(now), changes[i + 1] - changes[i]);
  }
}

template <class Name>
void tree(std::vector<Pipelined>& out, std::int32_t n, bool up, bool down, Name name) {
  const std::int32_t deepest = heap_depth(n - 1);
  for (std::int32_t node = 1; node < n; ++node) {
    const std::int32_t parent = (node - 1) / 2, depth = heap_depth(node);
    if (up) out.push_back({deepest - depth, {name(node), name(parent), 1}});
    if (down) out.push_back({(up ? deepest : 0) + depth - 1, {name(parent), name(node), 1}});
  }
}

// NCCL's trees over nodes of g members: a channel for each member, which has a part of the tensor; in each
// node a chain leads to the channel's member, and two complementary trees join those of all nodes.
void trees_over_nodes(std::vector<Pipelined>& out, std::int32_t nodes, std::int32_t g) {
  const std::int32_t deepest = heap_depth(nodes - 1),
                     top = g - 1 + deepest;  // when the roots have their first sum
  for (std::int32_t channel = 0; channel < g; ++channel) {
    for (const bool mirrored : {false, true}) {
      const auto member = [&](std::int32_t i, std::int32_t j) {
        return (mirrored ? nodes - 1 - i : i) * g + (channel + j) % g;
      };
      for (std::int32_t i = 0; i < nodes; ++i) {
        const std::int32_t depth = heap_depth(i);
        for (std::int32_t j = 1; j < g;
             ++j) {  // from the farthest, member(i, 1), to the channel's, member(i, g)
          out.push_back({j - 1, {member(i, j), member(i, j + 1), 1}});
          out.push_back({top + depth + g - 1 - j, {member(i, j + 1), member(i, j), 1}});
        }
        if (i == 0) continue;
        const std::int32_t parent = (i - 1) / 2;
        out.push_back({g - 1 + deepest - depth, {member(i, 0), member(parent, 0), 1}});
        out.push_back({top + depth - 1, {member(parent, 0), member(i, 0), 1}});
      }
    }
  }
}

std::vector<Sends> ring(std::int32_t n, std::int32_t first, std::int32_t stride, std::int64_t parts) {
  std::vector<Sends> out;
  for (std::int32_t i = 0; i < n; ++i)
    out.push_back({first + i * stride, first + (i + 1) % n * stride, parts});
  return out;
}

std::vector<Sends> exchange(std::int32_t n, std::int32_t root) {  // root -1: all to all
  std::vector<Sends> out;
  for (std::int32_t i = 0; i < n; ++i) {
    for (std::int32_t j = 0; j < n; ++j) {
      if (i != j && (root < 0 || i == root)) out.push_back({i, j, 1});
    }
  }
  return out;
}

bool in_halves(CollectiveKind kind) {
  return kind == kAllReduce;
}

}  // namespace

Pattern pattern_of(CollectiveKind kind) {
  switch (kind) {
    case kAllToAll:
      return Pattern::kEachToEach;
    case kGather:
      return Pattern::kToRoot;
    case kScatter:
      return Pattern::kFromRoot;
    case kAllReduce:
    case kAllGather:
    case kReduceScatter:
    case kBroadcast:
    case kReduce:
      break;
    case kShift:
      return Pattern::kNext;
  }
  return Pattern::kRing;
}

std::vector<Sends> direct_sends(Pattern pattern, std::int32_t n) {
  if (pattern == Pattern::kNext) return ring(n, 0, 1, 1);
  std::vector<Sends> out = exchange(n, pattern == Pattern::kEachToEach ? -1 : 0);
  if (pattern == Pattern::kToRoot) {
    for (Sends& s : out) std::swap(s.from, s.to);
  }
  return out;
}

Phases phases_of(Algorithm algorithm, CollectiveKind kind, std::int32_t n, std::int32_t chunks,
                 std::int32_t root, std::int32_t node) {
  Phases out;
  out.used = used_algorithm(algorithm, kind, n, node);
  if (n <= 1) return out;
  if (kind == kAllToAll) {
    const bool in_nodes = algorithm == Algorithm::kHierarchical && node > 1 && node < n && n % node == 0;
    return exchange_of(std::vector<std::int64_t>(static_cast<std::size_t>(n), 1), in_nodes ? node : 1);
  }
  if (kind == kShift) {
    append(out, ring(n, 0, 1, 1), 1);
    return out;
  }
  const bool rooted = kind == kBroadcast || kind == kReduce;
  const std::int64_t passes = in_halves(kind) ? 2 : 1;
  std::vector<Pipelined> pipelined;
  switch (out.used) {
    case Algorithm::kDirect:
      out.parts = rooted ? 1 : n;
      if (kind == kGather || kind == kReduce) {
        auto sends = exchange(n, root);
        for (Sends& s : sends) std::swap(s.from, s.to);
        append(out, std::move(sends));
      } else {
        append(out, exchange(n, rooted || kind == kScatter ? root : -1), passes);
      }
      break;
    case Algorithm::kRing:
      if (!rooted) {
        out.parts = n;
        append(out, ring(n, 0, 1, 1), passes * (n - 1));
        break;
      }
      out.parts = chunks;
      for (std::int32_t hop = 0; hop + 1 < n; ++hop) {
        const std::int32_t from = (root + hop + (kind == kReduce ? 1 : 0)) % n;
        pipelined.push_back({hop, {from, (from + 1) % n, 1}});
      }
      play(out, pipelined, chunks);
      break;
    case Algorithm::kTree:
      if (rooted) {
        out.parts = chunks;
        tree(pipelined, n, kind == kReduce, kind == kBroadcast,
             [&](std::int32_t i) { return (root + i) % n; });
      } else if (node > 1 && n % node == 0) {
        out.parts = 2 * chunks * node;
        trees_over_nodes(pipelined, n / node, node);
      } else {
        out.parts = 2 * chunks;
        tree(pipelined, n, true, true, [](std::int32_t i) { return i; });
        tree(pipelined, n, true, true, [n](std::int32_t i) { return n - 1 - i; });
      }
      play(out, pipelined, chunks);
      break;
    case Algorithm::kHierarchical: {
      const std::int32_t nodes = n / node;
      out.parts = n;
      std::vector<Sends> inside, between;
      for (std::int32_t j = 0; j < nodes && node > 1; ++j) {
        for (const Sends& s : ring(node, j * node, 1, nodes)) inside.push_back(s);
      }
      for (std::int32_t l = 0; l < node && nodes > 1; ++l) {
        for (const Sends& s : ring(nodes, l, node, 1)) between.push_back(s);
      }
      if (kind != kAllGather) append(out, inside, node - 1);
      append(out, between, passes * (nodes - 1));
      if (kind != kReduceScatter) append(out, inside, node - 1);
      break;
    }
    case Algorithm::kNaive:
    case Algorithm::kHalvingDoubling:
      return phases_of(rounds_of(algorithm, kind, n, root, node));
  }
  return out;
}

Phases exchange_of(std::span<const std::int64_t> weights, std::int32_t node) {
  const auto n = static_cast<std::int32_t>(weights.size());
  const std::int32_t nodes = n / node;
  Phases out;
  out.used = node > 1 ? Algorithm::kHierarchical : Algorithm::kDirect;
  out.parts = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  // Node by node; without nodes each member is one.
  std::vector<Sends> inside, between;
  std::vector<std::int64_t> by_place(static_cast<std::size_t>(node));  // parts for all members of a place
  for (std::int32_t d = 0; d < n; ++d)
    by_place[static_cast<std::size_t>(d % node)] += weights[static_cast<std::size_t>(d)];
  for (std::int32_t j = 0; j < nodes; ++j) {
    for (std::int32_t l = 0; l < node; ++l) {
      for (std::int32_t place = 0; place < node; ++place) {
        const std::int64_t parts = by_place[static_cast<std::size_t>(place)];
        if (place != l && parts > 0) inside.push_back({j * node + l, j * node + place, parts});
      }
      for (std::int32_t to = 0; to < nodes; ++to) {
        const std::int64_t parts = node * weights[static_cast<std::size_t>(to * node + l)];
        if (to != j && parts > 0) between.push_back({j * node + l, to * node + l, parts});
      }
    }
  }
  append(out, std::move(inside));
  append(out, std::move(between));
  return out;
}

Phases phases_of(const Rounds& rounds) {
  Phases out;
  out.used = rounds.used;
  out.parts = rounds.blocks;
  for (const auto& round : rounds.rounds) {
    std::vector<Sends> sends;
    for (const Transfer& t : round) sends.push_back({t.from, t.to, t.blocks});
    append(out, std::move(sends));
  }
  return out;
}

}  // namespace orrery::program
