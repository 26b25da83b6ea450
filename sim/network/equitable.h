// SPDX-License-Identifier: Apache-2.0
//
// What cannot be told apart: the coarsest equitable partition of users and what they use, by colour
// refinement (Weisfeiler and Leman 1968). Users of one class use, by label, as many things of each class of
// things; things of one class are used, by label, by as many users of each class. Flows use links; groups of
// ranks have members and use links.
//
//   Uses uses;                        // user 0 uses things 3 and 4, user 1 thing 4
//   uses.things = {3, 4, 4}; uses.labels = {1, 1, 2}; uses.first = {0, 2, 3};
//   Partition p = equitable(uses, colours of users, colours of things);
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace orrery::sim {

struct Uses {
  std::vector<std::size_t> first{0};  // by user, into things and labels, and the end of the last
  std::vector<std::uint32_t> things;
  std::vector<std::uint64_t> labels;  // none: all alike
  std::size_t users() const { return first.size() - 1; }
  void end_user() { first.push_back(things.size()); }
};

// Classes are numbered in the order of their first member.
struct Partition {
  std::vector<std::uint32_t> users, things;  // class of each
  std::size_t user_classes = 0, thing_classes = 0;
};

// Colours say who differs from the start; the same colour may be split, different ones are never put
// together. Classes are told apart by 64-bit hashes.
Partition equitable(const Uses& uses, std::vector<std::uint64_t> users, std::vector<std::uint64_t> things);

}  // namespace orrery::sim
