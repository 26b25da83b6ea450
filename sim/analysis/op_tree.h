// SPDX-License-Identifier: Apache-2.0
//
// Where the working time of a part of a timeline goes, as a tree: stream, segment, then the parts of an op's
// name between slashes. "layer3/attn/qkv/dgrad" of backward is compute > backward > layer 3 > attn > qkv >
// dgrad.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/analysis/statistics.h"

namespace orrery::sim {

struct OpNode {
  std::string name;
  Time time;               // working, in the part: without what waits for partners
  std::int64_t count = 0;  // slices that reach into the part
  // Their times add up to this one's, less that of ops with just this name. Layers in their order, others
  // with the longest first.
  std::vector<OpNode> parts;
};

// `apart`: each layer by itself; otherwise all layers together, as "layers". `go_on` is called now and then,
// and may throw.
OpNode op_tree(const Lanes& lanes, const Part& part, bool apart, const std::function<void()>& go_on = {});

}  // namespace orrery::sim
