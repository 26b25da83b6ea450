// SPDX-License-Identifier: Apache-2.0
#include "program/collectives.h"

#include <bit>

namespace orrery::program {
namespace {

constexpr std::int32_t kChunks = 4;  // of a pipelined tree or chain

using Round = std::vector<Transfer>;

// Rounds that many parts of an algorithm fill side by side.
class RoundsBuilder {
 public:
  explicit RoundsBuilder(std::int32_t blocks) { out.blocks = blocks; }
  void add(std::size_t round, const Transfer& t) {
    if (out.rounds.size() <= round) out.rounds.resize(round + 1);
    out.rounds[round].push_back(t);
  }
  std::size_t count() const { return out.rounds.size(); }
  Rounds out;
};

std::int32_t wrap(std::int32_t i, std::int32_t n) {
  return (i % n + n) % n;
}

// A ring over `members`, whose parts of the tensor are sets of blocks.
struct Ring {
  std::vector<std::int32_t> members;
  std::vector<std::vector<std::int32_t>> parts;  // by place in the ring: blocks

  std::int32_t size() const { return static_cast<std::int32_t>(members.size()); }
  void pass(RoundsBuilder& b, std::size_t round, std::int32_t from, std::int32_t part, bool add) const {
    for (const std::int32_t block : parts[static_cast<std::size_t>(part)]) {
      b.add(round, {members[static_cast<std::size_t>(from)],
                    members[static_cast<std::size_t>(wrap(from + 1, size()))], block, 1, add});
    }
  }
  // A part's sum begins with the member after its owner and ends there n - 1 hops later.
  void reduce_scatter(RoundsBuilder& b, std::size_t begin) const {
    for (std::int32_t r = 0; r + 1 < size(); ++r) {
      for (std::int32_t i = 0; i < size(); ++i)
        pass(b, begin + static_cast<std::size_t>(r), i, wrap(i - r - 1, size()), true);
    }
  }
  void all_gather(RoundsBuilder& b, std::size_t begin) const {
    for (std::int32_t r = 0; r + 1 < size(); ++r) {
      for (std::int32_t i = 0; i < size(); ++i)
        pass(b, begin + static_cast<std::size_t>(r), i, wrap(i - r, size()), false);
    }
  }
};

bool reduces(CollectiveKind k) {
  return k == CollectiveKind::kAllReduce || k == CollectiveKind::kReduceScatter;
}
bool gathers(CollectiveKind k) {
  return k == CollectiveKind::kAllReduce || k == CollectiveKind::kAllGather;
}

Rounds ring(CollectiveKind kind, std::int32_t n) {
  RoundsBuilder b(n);
  Ring r;
  for (std::int32_t i = 0; i < n; ++i) {
    r.members.push_back(i);
    r.parts.push_back({i});
  }
  if (reduces(kind)) r.reduce_scatter(b, 0);
  if (gathers(kind)) r.all_gather(b, b.count());
  return std::move(b.out);
}

// Part j g + l of the tensor belongs to member l of node j. Inside a node, member l sums (or spreads) the
// parts l, g + l, 2 g + l, ..., among which the ring of the l-th members of all nodes then has one each.
Rounds hierarchical(CollectiveKind kind, std::int32_t n, std::int32_t g) {
  RoundsBuilder b(n);
  const std::int32_t nodes = n / g;
  std::vector<Ring> inside, between;
  for (std::int32_t j = 0; j < nodes; ++j) {
    Ring& r = inside.emplace_back();
    for (std::int32_t l = 0; l < g; ++l) {
      r.members.push_back(j * g + l);
      auto& part = r.parts.emplace_back();
      for (std::int32_t other = 0; other < nodes; ++other) part.push_back(other * g + l);
    }
  }
  for (std::int32_t l = 0; l < g; ++l) {
    Ring& r = between.emplace_back();
    for (std::int32_t j = 0; j < nodes; ++j) {
      r.members.push_back(j * g + l);
      r.parts.push_back({j * g + l});
    }
  }
  const auto all = [&](const std::vector<Ring>& rings, auto step) {
    const std::size_t begin = b.count();
    for (const Ring& r : rings) (r.*step)(b, begin);
  };
  if (reduces(kind)) {
    all(inside, &Ring::reduce_scatter);
    all(between, &Ring::reduce_scatter);
  }
  if (gathers(kind)) {
    all(between, &Ring::all_gather);
    all(inside, &Ring::all_gather);
  }
  return std::move(b.out);
}

// Member i ends with block i of p = 2^k: the range it works on is halved with partners p/2, p/4, .. 1 away.
void halve(RoundsBuilder& b, std::int32_t p) {
  for (std::int32_t d = p / 2; d >= 1; d /= 2) {
    const std::size_t round = b.count();
    for (std::int32_t i = 0; i < p; ++i) {
      const std::int32_t partner = i ^ d;
      b.add(round, {i, partner, partner / d * d, d, true});
    }
  }
}
void double_up(RoundsBuilder& b, std::int32_t p) {
  for (std::int32_t d = 1; d < p; d *= 2) {
    const std::size_t round = b.count();
    for (std::int32_t i = 0; i < p; ++i) b.add(round, {i, i ^ d, i / d * d, d, false});
  }
}

Rounds halving_doubling(CollectiveKind kind, std::int32_t n) {
  const auto p = static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(n)));
  RoundsBuilder b(p);
  for (std::int32_t i = p; i < n; ++i) b.add(0, {i, i - p, 0, p, true});
  if (reduces(kind)) halve(b, p);
  if (gathers(kind)) double_up(b, p);
  const std::size_t last = b.count();
  for (std::int32_t i = p; i < n; ++i) b.add(last, {i - p, i, 0, p, false});
  return std::move(b.out);
}

// A heap-ordered binary tree over members name(0), name(1), ..., pipelined over kChunks blocks from `first`.
// A chunk goes up one level a round; coming down it follows the last level's arrival.
template <class Name>
void tree(RoundsBuilder& b, std::int32_t n, std::int32_t first, bool up, bool down, Name name) {
  const std::int32_t deepest = heap_depth(n - 1);
  for (std::int32_t node = 1; node < n; ++node) {
    const std::int32_t parent = (node - 1) / 2, depth = heap_depth(node);
    for (std::int32_t c = 0; c < kChunks; ++c) {
      if (up)
        b.add(static_cast<std::size_t>(deepest - depth + c), {name(node), name(parent), first + c, 1, true});
      if (down) {
        b.add(static_cast<std::size_t>((up ? deepest : 0) + depth - 1 + c),
              {name(parent), name(node), first + c, 1, false});
      }
    }
  }
}

// Where one tree has its inner members, the other has its leaves.
Rounds double_tree(std::int32_t n) {
  RoundsBuilder b(2 * kChunks);
  tree(b, n, 0, true, true, [](std::int32_t i) { return i; });
  tree(b, n, kChunks, true, true, [n](std::int32_t i) { return n - 1 - i; });
  return std::move(b.out);
}

Rounds rooted_tree(CollectiveKind kind, std::int32_t n, std::int32_t root) {
  RoundsBuilder b(kChunks);
  const bool up = kind == CollectiveKind::kReduce;
  tree(b, n, 0, up, !up, [&](std::int32_t i) { return wrap(root + i, n); });
  return std::move(b.out);
}

// From the root along the ring, or along it to the root, chunk after chunk.
Rounds chain(CollectiveKind kind, std::int32_t n, std::int32_t root) {
  RoundsBuilder b(kChunks);
  const bool up = kind == CollectiveKind::kReduce;
  for (std::int32_t hop = 0; hop + 1 < n; ++hop) {
    const std::int32_t from = wrap(root + hop + (up ? 1 : 0), n), to = wrap(from + 1, n);
    for (std::int32_t c = 0; c < kChunks; ++c) b.add(static_cast<std::size_t>(hop + c), {from, to, c, 1, up});
  }
  return std::move(b.out);
}

Rounds naive(CollectiveKind kind, std::int32_t n, std::int32_t root) {
  const bool rooted = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
  const std::int32_t center = rooted ? root : 0;
  RoundsBuilder b(n);
  const auto each = [&](bool in, bool whole, bool add) {
    const std::size_t round = b.count();
    for (std::int32_t m = 0; m < n; ++m) {
      if (m == center) continue;
      const Transfer t{in ? m : center, in ? center : m, whole ? 0 : m, whole ? n : 1, add};
      b.add(round, t);
    }
  };
  if (reduces(kind) || kind == CollectiveKind::kReduce) each(true, true, true);
  if (kind == CollectiveKind::kAllGather) each(true, false, false);
  if (kind == CollectiveKind::kReduceScatter) each(false, false, false);
  if (gathers(kind) || kind == CollectiveKind::kBroadcast) each(false, true, false);
  return std::move(b.out);
}

}  // namespace

std::int32_t heap_depth(std::int32_t node) {
  return std::bit_width(static_cast<std::uint32_t>(node) + 1) - 1;
}

Algorithm used_algorithm(Algorithm a, CollectiveKind kind, std::int32_t n, std::int32_t node) {
  using enum CollectiveKind;
  if (kind == kGather || kind == kScatter || kind == kAllToAll || kind == kShift) return Algorithm::kDirect;
  const bool rooted = kind == kBroadcast || kind == kReduce;
  if (rooted) return a == Algorithm::kHalvingDoubling || a == Algorithm::kHierarchical ? Algorithm::kTree : a;
  const bool parts = kind == kReduceScatter || kind == kAllGather;
  if (a == Algorithm::kTree && parts) return Algorithm::kRing;
  if (a == Algorithm::kHalvingDoubling && parts && !std::has_single_bit(static_cast<std::uint32_t>(n)))
    return Algorithm::kRing;
  if (a == Algorithm::kHierarchical && n % node != 0) return Algorithm::kRing;
  return a;
}

Rounds rounds_of(Algorithm algorithm, CollectiveKind kind, std::int32_t members, std::int32_t root,
                 std::int32_t node) {
  const Algorithm used = used_algorithm(algorithm, kind, members, node);
  const bool rooted = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
  Rounds out;
  if (members > 1) {
    switch (used) {
      case Algorithm::kDirect:
        break;
      case Algorithm::kNaive:
        out = naive(kind, members, root);
        break;
      case Algorithm::kRing:
        out = rooted ? chain(kind, members, root) : ring(kind, members);
        break;
      case Algorithm::kTree:
        out = rooted ? rooted_tree(kind, members, root) : double_tree(members);
        break;
      case Algorithm::kHalvingDoubling:
        out = halving_doubling(kind, members);
        break;
      case Algorithm::kHierarchical:
        out = hierarchical(kind, members, node);
        break;
    }
  }
  out.used = used;
  return out;
}

}  // namespace orrery::program
