// SPDX-License-Identifier: Apache-2.0
//
// A plan's ranks as a grid of named axes:
//
//   rank = sum over axes of coordinate * stride        stride = product of the sizes of the faster axes
//
// An axis may be a part of a whole: context parallelism ("cp") is made of the ranks that exchange heads
// ("ulysses") and those that keys pass between ("ring"). The same ranks are parted in several ways, and an
// axis has a name in each: by the tokens that they have ("tp", "cp", "dp"), by their copies of weights (of
// which ZeRO's "shard" and "replica" are the parts), and by experts, so that "tp" may be made of ranks that
// share experts ("ep") and ranks that have the same ones ("edp"). A name stands for the set of all axes that
// have it. An "island" has all axes but its own. A group of ranks is named by the set of axes along which its
// members differ.
//
//   Mesh m;
//   m.add({.name = "tp", .size = 4});
//   m.add({.name = "dp", .weights = "shard", .size = 2});
//   m.add({.name = "dp", .weights = "replica", .size = 3});
//   m.size(m["dp"]) == 6;  m.members(m["shard"], 1) == {1, 5};
//   m.number("dp-tp");     m.members(m["shard"], 1) == {0, 1};
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/plan.h"

namespace orrery {

struct MeshAxis {
  std::string_view name, whole;             // of static storage; without a whole, the axis is its own
  std::string_view weights, weights_whole;  // by what it has of weights, where that is named otherwise
  std::string_view experts, experts_whole;  // and of experts
  std::int64_t size = 1, stride = 1;
  constexpr bool is(std::string_view n) const {
    return name == n || whole == n || weights == n || weights_whole == n || experts == n ||
           experts_whole == n;
  }
};

// Some of a mesh's axes, a bit for each. It names the same axes in all meshes to which axes of the same names
// were added in the same order.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr explicit AxisSet(std::size_t axis) : bits_(static_cast<std::uint32_t>(1U << axis)) {}
  constexpr bool has(std::size_t axis) const { return (bits_ >> axis & 1U) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr AxisSet& operator|=(AxisSet other) {
    bits_ |= other.bits_;
    return *this;
  }
  friend constexpr bool operator==(AxisSet, AxisSet) = default;

 private:
  std::uint32_t bits_ = 0;
};

class Mesh {
 public:
  static constexpr std::size_t kMostAxes = 24;

  // Adds an axis that varies more slowly than the axes before it. Throws std::logic_error beyond kMostAxes.
  void add(MeshAxis axis);
  // Numbers the ranks anew. `order` has names that name each axis once, the fastest first: "tp-pp-dp". Axes
  // of one name follow each other in the order in which they were added. Throws std::logic_error for an
  // unknown name, or one that is missing.
  void number(std::string_view order);

  std::span<const MeshAxis> axes() const { return {axes_.data(), count_}; }  // as they were added
  std::int64_t ranks() const { return ranks_; }
  // The axes of this name. Throws std::logic_error when the mesh has none.
  AxisSet operator[](std::string_view name) const;

  AxisSet others(AxisSet axes) const;

  std::int64_t size(AxisSet axes) const;
  std::int64_t size(std::string_view name) const { return size((*this)[name]); }
  // Along several axes, coordinates count with the fastest axis first.
  std::int64_t coordinate(std::int64_t rank, AxisSet axes) const;
  std::int64_t coordinate(std::int64_t rank, std::string_view name) const {
    return coordinate(rank, (*this)[name]);
  }
  // The rank that differs from `rank` only in its coordinate along `axes`.
  std::int64_t moved(std::int64_t rank, AxisSet axes, std::int64_t to) const;
  // The rank at these coordinates; zero along axes that are not named.
  std::int64_t rank(std::initializer_list<std::pair<std::string_view, std::int64_t>> at) const;
  // The members of `rank`'s group, in the order of their coordinates.
  std::vector<std::int64_t> members(AxisSet axes, std::int64_t rank) const;

  // The members of a group are `size` ranks, `stride` apart.
  struct Range {
    std::int64_t size, stride;
  };
  std::optional<Range> find_range(AxisSet axes) const;  // none: the axes do not follow each other
  Range range(AxisSet axes) const;                      // throws std::logic_error where there is none
  Range range(std::string_view name) const { return range((*this)[name]); }

  friend bool operator==(const Mesh& a, const Mesh& b);

 private:
  std::array<MeshAxis, kMostAxes> axes_;
  std::array<std::size_t, kMostAxes> fastest_first_{};  // indices of axes_
  std::size_t count_ = 0;
  std::int64_t ranks_ = 1;
};

// Axes of a plan, in its rank order: "tp", "cp" made of "ulysses" and "ring", "dp" and "pp", and slower than
// all of them "island". The ranks of
// "cp" and "dp" by their copies of weights: "copies", made of "shard", with all of "cp", and "replica". And
// all but "pp" by their part in experts: "etp", "ep", and "edp" made of "eshard" and "ereplica". Each is
// slower than the ones before it.
Mesh mesh_of(const Plan& plan);

// Wholes and axes that are no part of one, fastest first; "cp" only where ranks share sequences, and "island"
// where there are several. Of axes of
// equal stride, those of one rank come first.
std::vector<MeshAxis> whole_axes(const Mesh& mesh);
// "tp 1, dp 0, pp 2".
std::string coordinates_text(const Mesh& mesh, std::int64_t rank);

}  // namespace orrery
