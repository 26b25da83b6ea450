// SPDX-License-Identifier: Apache-2.0
//
// The inside of a node as a graph: PCIe switches, CPUs, NVLink cables between devices, NICs. Ways between two
// devices, or a device and a NIC, have the fewest cables and, of those, the widest; devices and NICs pass
// nothing on for others. Internal to sim/topology/.
#pragma once

#include <map>
#include <mutex>
#include <span>

#include "sim/topology/wiring.h"

namespace orrery::sim {

class Inside {
 public:
  // Builds the same graph into every node. Throws InputError where the cluster's cables make none.
  Inside(const Cluster& cluster, std::int64_t ports, const std::vector<VertexId>& port_ids,
         NetworkBuilder& builder);

  // Of a node: from one end to another. Devices are numbered from 0, ports after them.
  void route(std::int64_t node, std::int64_t from, std::int64_t to, Path& path) const;
  std::int64_t port(std::int64_t rail) const { return devices_ + rail; }

  // The orders in which rings over devices of one node go at once, each with an equal part of the data, so
  // that the cables of a mesh are used evenly: added one by one, each the one whose cables carry least. All
  // orders are tried for up to eight devices, else the given one and its reverse.
  std::vector<std::vector<std::int64_t>> rings(std::span<const std::int64_t> devices) const;

  // Of each device while all of them send evenly to all others.
  Bandwidth exchange() const { return exchange_; }

 private:
  struct Cost {
    std::int64_t cables;
    double width;
    bool operator<(const Cost& o) const { return cables != o.cables ? cables < o.cables : width > o.width; }
  };
  // A directed cable: the cable's index times two, plus one against its direction.
  using Way = std::vector<std::uint32_t>;
  const Way& way(std::int64_t from, std::int64_t to) const {
    return ways_[static_cast<std::size_t>(from * ends_ + to)];
  }
  void find_ways(std::int64_t from,
                 const std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>>& next);
  double least_share(const std::vector<double>& loads) const;
  std::vector<std::vector<std::int64_t>> best_rings(const std::vector<std::int64_t>& local) const;

  std::int64_t devices_, ends_;     // of a node; ends: devices and ports
  std::vector<double> capacity_;    // by cable
  std::vector<LinkId> first_link_;  // by node
  std::vector<Way> ways_;           // by both ends
  Bandwidth exchange_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<std::int64_t>, std::vector<std::vector<std::int64_t>>> rings_;  // found before
};

}  // namespace orrery::sim
