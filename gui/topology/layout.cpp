// SPDX-License-Identifier: Apache-2.0
#include "gui/topology/layout.h"

#include <algorithm>
#include <map>

namespace orrery::gui {
namespace {

// From top to bottom.
int height(sim::VertexKind kind) {
  switch (kind) {
    case sim::VertexKind::kSite:
      return 0;
    case sim::VertexKind::kSpine:
      return 1;
    case sim::VertexKind::kAggregation:
      return 2;
    case sim::VertexKind::kLeaf:
    case sim::VertexKind::kRouter:
    case sim::VertexKind::kNamed:
      return 3;
    case sim::VertexKind::kPort:
      return 4;
    case sim::VertexKind::kDevice:
      return 5;
    case sim::VertexKind::kScaleUp:
      return 6;
  }
  return 3;
}

// Of `count` neighbours, at most `most` parts, as even as powers of two make them.
std::size_t part_size(std::size_t count, std::size_t most) {
  std::size_t size = 1;
  while ((count + size - 1) / size > most) size *= 2;
  return size;
}

}  // namespace

NetworkLayout::NetworkLayout(const sim::Network& network) : network_(network) {
  std::map<int, std::vector<sim::VertexId>> layers;
  for (sim::VertexId v = 0; v < network.vertices(); ++v) layers[height(network.vertex(v).kind)].push_back(v);
  for (auto& [h, vertices] : layers) layers_.push_back(std::move(vertices));
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const std::size_t size = part_size(layers_[l].size(), kMostBlocks);
    for (std::size_t first = 0; first < layers_[l].size(); first += size)
      blocks_.push_back({l, first, std::min(size, layers_[l].size() - first)});
  }
  place();
}

void NetworkLayout::place() {
  std::vector<std::size_t> count(layers_.size()), seen(layers_.size());
  for (const Block& b : blocks_) ++count[b.layer];
  for (Block& b : blocks_)
    b.x = (static_cast<double>(seen[b.layer]++) + 0.5) / static_cast<double>(count[b.layer]);
}

QString NetworkLayout::layer_name(std::size_t layer) const {
  return QString::fromUtf8(sim::name_of(network_.vertex(layers_[layer].front()).kind));
}

QString NetworkLayout::block_name(const Block& b) const {
  const auto name = [&](std::size_t i) {
    return QString::fromStdString(network_.name(layers_[b.layer][b.first + i]));
  };
  return b.count == 1 ? name(0) : name(0) + " … " + name(b.count - 1);
}

void NetworkLayout::open(std::size_t block) {
  const Block b = blocks_[block];
  if (b.count == 1) return;
  const std::size_t size = part_size(b.count, kMostBlocks / 2);
  std::vector<Block> parts;
  for (std::size_t first = 0; first < b.count; first += size)
    parts.push_back({b.layer, b.first + first, std::min(size, b.count - first)});
  const auto at = blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(block));
  blocks_.insert(at, parts.begin(), parts.end());
  place();
}

std::vector<Edge> NetworkLayout::edges(const std::vector<double>& use) const {
  std::vector<std::uint32_t> block_of(network_.vertices());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    for (std::size_t k = 0; k < blocks_[i].count; ++k)
      block_of[layers_[blocks_[i].layer][blocks_[i].first + k]] = static_cast<std::uint32_t>(i);
  }
  std::map<std::pair<std::uint32_t, std::uint32_t>, Edge> edges;
  for (sim::LinkId l = 0; l + 1 < network_.links(); l += 2) {
    const auto [from, to] = network_.ends(l);
    const auto [a, b] = std::minmax(block_of[from], block_of[to]);
    Edge& e = edges[{a, b}];
    e.a = a;
    e.b = b;
    if (e.cables++ == 0) e.fullest = l;
    e.failed += network_.alive(l) ? 0 : 1;
    for (const sim::LinkId way : {l, l + 1}) {
      if (way >= use.size()) continue;
      e.mean += use[way];
      if (use[way] <= e.most) continue;
      e.most = use[way];
      e.fullest = way;
    }
  }
  std::vector<Edge> out;
  for (auto& [ends, e] : edges) {
    e.mean /= static_cast<double>(2 * e.cables);
    out.push_back(e);
  }
  return out;
}

}  // namespace orrery::gui
