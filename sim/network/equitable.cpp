// SPDX-License-Identifier: Apache-2.0
#include "sim/network/equitable.h"

#include <algorithm>
#include <bit>

#include "core/hash.h"

namespace orrery::sim {
namespace {

// Numbers 0, 1, .. in place of colours, in order of first appearance.
class Numbering {
 public:
  // Returns how many there are.
  std::size_t operator()(const std::vector<std::uint64_t>& colours, std::vector<std::uint32_t>& out) {
    const std::size_t slots = std::bit_ceil(2 * colours.size() + 1);
    table_.assign(slots, {0, kEmpty});
    out.resize(colours.size());
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < colours.size(); ++i) {
      std::size_t at = colours[i] & (slots - 1);
      while (table_[at].number != kEmpty && table_[at].colour != colours[i]) at = (at + 1) & (slots - 1);
      if (table_[at].number == kEmpty) table_[at] = {colours[i], next++};
      out[i] = table_[at].number;
    }
    return next;
  }

 private:
  static constexpr std::uint32_t kEmpty = UINT32_MAX;
  struct Slot {
    std::uint64_t colour;
    std::uint32_t number;
  };
  std::vector<Slot> table_;
};

}  // namespace

Partition equitable(const Uses& uses, std::vector<std::uint64_t> users, std::vector<std::uint64_t> things) {
  for (std::uint64_t& u : users) u = mix(u);
  for (std::uint64_t& t : things) t = mix(t);
  std::vector<std::uint64_t> sums(things.size());
  Numbering number;
  Partition out;
  const bool labelled = !uses.labels.empty();
  const auto label = [&](std::size_t i) { return labelled ? uses.labels[i] : 0; };
  for (std::size_t before = 0;;) {
    // Sums do not depend on the order of what a user uses, nor of who uses a thing.
    std::fill(sums.begin(), sums.end(), 0);
    for (std::size_t u = 0; u < uses.users(); ++u) {
      const std::size_t begin = uses.first[u], end = uses.first[u + 1];
      std::uint64_t sum = 0;
      for (std::size_t i = begin; i < end; ++i) sum += mix(things[uses.things[i]] ^ label(i));
      users[u] = mix(users[u] ^ sum);
      const std::uint64_t mine = mix(users[u]);
      for (std::size_t i = begin; i < end; ++i)
        sums[uses.things[i]] += labelled ? mix(mine ^ label(i)) : mine;
    }
    for (std::size_t t = 0; t < things.size(); ++t) things[t] = mix(things[t] ^ sums[t]);
    out.user_classes = number(users, out.users);
    out.thing_classes = number(things, out.things);
    if (out.user_classes + out.thing_classes == before) return out;
    before = out.user_classes + out.thing_classes;
  }
}

}  // namespace orrery::sim
