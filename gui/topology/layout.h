// SPDX-License-Identifier: Apache-2.0
//
// A network laid out in layers, from the highest switches down to devices and what joins them inside a node.
// A layer of many vertices is folded into blocks of neighbours, and cables between two blocks into one line;
// blocks open on demand.
#pragma once

#include <QString>
#include <vector>

#include "sim/topology/topology.h"

namespace orrery::gui {

inline constexpr std::size_t kMostBlocks = 32;  // of a layer, before any is opened

struct Block {
  std::size_t layer = 0;
  std::size_t first = 0, count = 0;  // of the layer's vertices
  double x = 0;                      // of its middle, from 0 to 1
};

// All cables between two blocks.
struct Edge {
  std::size_t a = 0, b = 0;  // blocks
  std::int64_t cables = 0;
  std::int64_t failed = 0;
  double mean = 0, most = 0;  // use of their links, both directions: shares of capacity
  sim::LinkId fullest = 0;
};

class NetworkLayout {
 public:
  explicit NetworkLayout(const sim::Network& network);

  std::size_t layers() const { return layers_.size(); }
  QString layer_name(std::size_t layer) const;
  const std::vector<Block>& blocks() const { return blocks_; }
  QString block_name(const Block& block) const;
  // Opens a block into its vertices or, of many, into smaller blocks.
  void open(std::size_t block);
  // The lines, with how full they are; no use where nobody knows.
  std::vector<Edge> edges(const std::vector<double>& use) const;

 private:
  void place();

  const sim::Network& network_;
  std::vector<std::vector<sim::VertexId>> layers_;
  std::vector<Block> blocks_;  // layer by layer
};

}  // namespace orrery::gui
