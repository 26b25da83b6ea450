// SPDX-License-Identifier: Apache-2.0
//
// Clusters from what other tools print.
//
//   edge list       lines "A B 400Gb/s [2us]", # comments: cables of a graph (core/fabric.h)
//   NCCL topology   NCCL_TOPO_DUMP_FILE's XML of one node: GPUs, NVLink, PCIe and network adapters
//   nvidia-smi      `nvidia-smi topo -m` of one node: GPUs and NVLink; how fast NICs are it does not say
#pragma once

#include <string>

#include "core/cluster.h"

namespace orrery::sim {

enum class TopologyFormat { kEdges, kNccl, kNvidiaSmi };
constexpr auto enum_names(TopologyFormat) {
  return std::array{std::pair{TopologyFormat::kEdges, "edges"}, std::pair{TopologyFormat::kNccl, "nccl"},
                    std::pair{TopologyFormat::kNvidiaSmi, "nvidia-smi"}};
}

// By content.
TopologyFormat format_of(const std::string& text);

// Throws InputError naming the line or element. `base` has what the text does not say: the device, for a
// graph what is inside its nodes, for nvidia-smi the NICs. `nvlink`: one link of the device, one direction.
Cluster import_topology(const std::string& text, TopologyFormat format, Bandwidth nvlink, Cluster base,
                        const std::string& file);

}  // namespace orrery::sim
