// SPDX-License-Identifier: Apache-2.0
//
// A plan's ranks as a grid of named axes:
//
//   rank = sum over axes of coordinate * stride        stride = product of the sizes of the faster axes
//
// An axis may be a part of a whole: data parallelism ("dp") is made of the ranks that share ZeRO's shards
// ("shard") and the replicas of those shards ("replica"). The whole's name stands for the set of its parts.
// A group of ranks is named by the set of axes along which its members differ.
//
//   Mesh m;
//   m.add("tp", 4);
//   m.add("shard", 2, "dp");
//   m.add("replica", 3, "dp");
//   m.size(m["dp"]) == 6;  m.members(m["shard"], 1) == {1, 5};
//   m.number("dp-tp");     m.members(m["shard"], 1) == {0, 1};
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/plan.h"

namespace orrery {

struct MeshAxis {
  std::string_view name, whole;  // of static storage; the whole is the axis itself where it is no part
  std::int64_t size = 1, stride = 1;
};

// Some of a mesh's axes, a bit for each. It names the same axes in all meshes to which axes of the same names
// were added in the same order.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr explicit AxisSet(std::size_t axis) : bits_(static_cast<std::uint8_t>(1U << axis)) {}
  constexpr bool has(std::size_t axis) const { return (bits_ >> axis & 1U) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr AxisSet& operator|=(AxisSet other) {
    bits_ |= other.bits_;
    return *this;
  }
  friend constexpr bool operator==(AxisSet, AxisSet) = default;

 private:
  std::uint8_t bits_ = 0;
};

class Mesh {
 public:
  static constexpr std::size_t kMostAxes = 8;

  // Adds an axis that varies more slowly than the axes before it. Throws std::logic_error beyond kMostAxes.
  void add(std::string_view name, std::int64_t size, std::string_view whole = {});
  // Numbers the ranks anew. `order` names all axes or wholes, the fastest first: "tp-pp-dp". Parts of a whole
  // follow each other in the order in which they were added. Throws std::logic_error for an unknown name, or
  // one that is missing.
  void number(std::string_view order);

  std::span<const MeshAxis> axes() const { return {axes_.data(), count_}; }  // as they were added
  std::int64_t ranks() const { return ranks_; }
  // The axis of this name, or the parts of this whole. Throws std::logic_error when the mesh has neither.
  AxisSet operator[](std::string_view name) const;

  std::size_t index(std::string_view name) const;  // of one axis
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
  // Throws std::logic_error for axes that do not follow each other.
  Range range(AxisSet axes) const;
  Range range(std::string_view name) const { return range((*this)[name]); }

  friend bool operator==(const Mesh& a, const Mesh& b);

 private:
  std::array<MeshAxis, kMostAxes> axes_;
  std::array<std::size_t, kMostAxes> fastest_first_{};  // indices of axes_
  std::size_t count_ = 0;
  std::int64_t ranks_ = 1;
};

// Axes of a plan, in its rank order: "tp", "pp", and "dp" made of "shard" and "replica".
Mesh mesh_of(const Plan& plan);

// Wholes and axes that are no part of one, fastest first. Of axes of equal stride, those of one rank come
// first.
std::vector<MeshAxis> whole_axes(const Mesh& mesh);
// "tp 1, dp 0, pp 2".
std::string coordinates_text(const Mesh& mesh, std::int64_t rank);

}  // namespace orrery
