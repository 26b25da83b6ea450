// SPDX-License-Identifier: Apache-2.0
#include "core/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace orrery {

void Mesh::add(MeshAxis axis) {
  if (count_ == kMostAxes) throw std::logic_error("a mesh has too many axes");
  if (axis.whole.empty()) axis.whole = axis.name;
  axis.stride = ranks_;
  ranks_ *= axis.size;
  axes_[count_] = axis;
  fastest_first_[count_] = count_;
  ++count_;
}

void Mesh::number(std::string_view order) {
  std::size_t numbered = 0;
  std::int64_t stride = 1;
  while (!order.empty()) {
    const std::string_view name = order.substr(0, order.find('-'));
    order.remove_prefix(std::min(order.size(), name.size() + 1));
    const AxisSet axes = (*this)[name];
    for (std::size_t i = 0; i < count_; ++i) {
      if (!axes.has(i)) continue;
      if (numbered == count_) throw std::logic_error("an order of ranks names an axis twice");
      axes_[i].stride = stride;
      stride *= axes_[i].size;
      fastest_first_[numbered++] = i;
    }
  }
  if (numbered < count_) throw std::logic_error("an order of ranks leaves out an axis");
}

AxisSet Mesh::operator[](std::string_view name) const {
  AxisSet out;
  for (std::size_t i = 0; i < count_; ++i) {
    if (axes_[i].is(name)) out |= AxisSet(i);
  }
  if (out.empty()) throw std::logic_error(fmt::format("the mesh has no axis \"{}\"", name));
  return out;
}

AxisSet Mesh::others(AxisSet axes) const {
  AxisSet out;
  for (std::size_t i = 0; i < count_; ++i) {
    if (!axes.has(i)) out |= AxisSet(i);
  }
  return out;
}

std::int64_t Mesh::size(AxisSet axes) const {
  std::int64_t out = 1;
  for (std::size_t i = 0; i < count_; ++i) out *= axes.has(i) ? axes_[i].size : 1;
  return out;
}

std::int64_t Mesh::coordinate(std::int64_t rank, AxisSet axes) const {
  std::int64_t out = 0, weight = 1;
  for (const std::size_t i : std::span(fastest_first_).first(count_)) {
    if (!axes.has(i)) continue;
    out += rank / axes_[i].stride % axes_[i].size * weight;
    weight *= axes_[i].size;
  }
  return out;
}

std::int64_t Mesh::moved(std::int64_t rank, AxisSet axes, std::int64_t to) const {
  for (const std::size_t i : std::span(fastest_first_).first(count_)) {
    if (!axes.has(i)) continue;
    const MeshAxis& axis = axes_[i];
    rank += (to % axis.size - rank / axis.stride % axis.size) * axis.stride;
    to /= axis.size;
  }
  return rank;
}

std::int64_t Mesh::rank(std::initializer_list<std::pair<std::string_view, std::int64_t>> at) const {
  std::int64_t out = 0;
  for (const auto& [name, coordinate] : at) out = moved(out, (*this)[name], coordinate);
  return out;
}

std::vector<std::int64_t> Mesh::members(AxisSet axes, std::int64_t rank) const {
  std::vector<std::int64_t> out;
  const std::int64_t n = size(axes);
  out.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) out.push_back(moved(rank, axes, i));
  return out;
}

std::optional<Mesh::Range> Mesh::find_range(AxisSet axes) const {
  Range out{1, 1};
  for (const std::size_t i : std::span(fastest_first_).first(count_)) {
    if (!axes.has(i)) continue;
    const MeshAxis& axis = axes_[i];
    if (out.size == 1)
      out.stride = axis.stride;
    else if (axis.size > 1 && axis.stride != out.stride * out.size)
      return std::nullopt;
    out.size *= axis.size;
  }
  return out;
}

Mesh::Range Mesh::range(AxisSet axes) const {
  const std::optional<Range> out = find_range(axes);
  if (!out) throw std::logic_error("the axes of a group do not follow each other");
  return *out;
}

bool operator==(const Mesh& a, const Mesh& b) {
  return std::equal(a.axes().begin(), a.axes().end(), b.axes().begin(), b.axes().end(),
                    [](const MeshAxis& x, const MeshAxis& y) {
                      return x.name == y.name && x.weights == y.weights && x.experts == y.experts &&
                             x.size == y.size && x.stride == y.stride;
                    });
}

namespace {

// The axes that stand where a rank order has "dp".
const char* numbering(RankOrder order) {
  switch (order) {
    case RankOrder::kTpDpPp:
      return "tp-copies-pp";
    case RankOrder::kTpPpDp:
      return "tp-pp-copies";
    case RankOrder::kDpTpPp:
      return "copies-tp-pp";
    case RankOrder::kPpTpDp:
      return "pp-tp-copies";
  }
  return "";
}

}  // namespace

// All ways to part a stage's ranks cut their row at places of which each divides the next. An axis is made
// of the ranks between two cuts that follow each other.
Mesh mesh_of(const Plan& p) {
  struct Part {
    std::string_view name, whole;
    std::int64_t begin, end;  // ranks of all parts before it, and with it
    std::string_view weights = name, weights_whole = whole;
  };
  const std::int64_t all = p.tp * p.copies(), heads = p.tp * p.ulysses, sequence = p.tp * p.cp,
                     shards = std::max(sequence, p.tp * p.shards()), experts = p.expert_ranks(),
                     expert_shards = experts * p.expert_shards();
  const std::array<Part, 5> of_all{{{"tp", "tp", 1, p.tp},
                                    {"ulysses", "cp", p.tp, heads, "shard", "copies"},
                                    {"ring", "cp", heads, sequence, "shard", "copies"},
                                    {"dp", "dp", sequence, shards, "shard", "copies"},
                                    {"dp", "dp", shards, all, "replica", "copies"}}};
  const std::array<Part, 4> of_experts{{{"etp", "etp", 1, p.expert_tp()},
                                        {"ep", "ep", p.expert_tp(), experts},
                                        {"eshard", "edp", experts, expert_shards},
                                        {"ereplica", "edp", expert_shards, all}}};
  Mesh mesh;
  for (const Part& a : of_all) {
    for (const Part& e : of_experts) {
      const std::int64_t size = std::min(a.end, e.end) / std::max(a.begin, e.begin);
      mesh.add(
          {a.name, a.whole, a.weights, a.weights_whole, e.name, e.whole, std::max<std::int64_t>(1, size)});
    }
  }
  mesh.add({.name = "pp", .size = p.pp});
  mesh.add({.name = "island", .size = p.islands});
  mesh.number(std::string(numbering(p.rank_order)) + "-island");
  return mesh;
}

std::vector<MeshAxis> whole_axes(const Mesh& mesh) {
  std::vector<MeshAxis> out;
  for (const MeshAxis& axis : mesh.axes()) {
    const auto known = std::find_if(out.begin(), out.end(),
                                    [&](const MeshAxis& other) { return other.whole == axis.whole; });
    if (known == out.end()) {
      const Mesh::Range range = mesh.range(axis.whole);
      if ((axis.whole == "cp" || axis.whole == "island") && range.size == 1) continue;
      out.push_back({.name = axis.whole, .whole = axis.whole, .size = range.size, .stride = range.stride});
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const MeshAxis& x, const MeshAxis& y) {
    return std::tie(x.stride, x.size) < std::tie(y.stride, y.size);
  });
  return out;
}

std::string coordinates_text(const Mesh& mesh, std::int64_t rank) {
  std::string out;
  for (const MeshAxis& axis : whole_axes(mesh))
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", axis.name, mesh.coordinate(rank, axis.name));
  return out;
}

}  // namespace orrery
