// SPDX-License-Identifier: Apache-2.0
#include "core/cluster.h"

#include <fmt/format.h>

#include <algorithm>

namespace orrery {

std::size_t Cluster::types() const {
  return 1 +
         static_cast<std::size_t>(std::count_if(other_nodes.begin(), other_nodes.end(),
                                                [&](const OtherNodes& o) { return o.from_node < nodes; }));
}

std::size_t Cluster::type_of_node(std::int64_t node) const {
  const auto next = std::upper_bound(other_nodes.begin(), other_nodes.end(), node,
                                     [](std::int64_t n, const OtherNodes& o) { return n < o.from_node; });
  return static_cast<std::size_t>(next - other_nodes.begin());
}

std::int64_t Cluster::first_node_of(std::size_t type) const {
  return type == 0 ? 0 : other_nodes[type - 1].from_node;
}

std::int64_t Cluster::nodes_of(std::size_t type, std::int64_t of_nodes) const {
  const std::int64_t end =
      type < other_nodes.size() ? std::min(of_nodes, other_nodes[type].from_node) : of_nodes;
  return std::max<std::int64_t>(0, end - first_node_of(type));
}

std::string host_problem(const Cluster& c, bool offloads, bool to_drives) {
  for (std::size_t i = 0; offloads && i < c.types(); ++i) {
    if (!c.type(i).host)
      return fmt::format("{} does not say what the hosts of its {} have", c.where(), c.type(i).device);
    if (to_drives && !c.type(i).host->nvme)
      return fmt::format("{} does not say what \"nvme\" drives the hosts of its {} have", c.where(),
                         c.type(i).device);
  }
  return {};
}

Bytes Cluster::least_host_memory() const {
  Bytes least = host.value().memory;
  for (std::size_t i = 1; i < types(); ++i) least = std::min(least, type(i).host.value().memory);
  return least;
}

Bytes Cluster::least_drives() const {
  Bytes least = host.value().nvme.value().capacity;
  for (std::size_t i = 1; i < types(); ++i)
    least = std::min(least, type(i).host.value().nvme.value().capacity);
  return least;
}

double Cluster::dollars_per_hour(std::int64_t of_nodes) const {
  double sum = 0;
  for (std::size_t i = 0; i <= other_nodes.size(); ++i) {
    const std::int64_t here = nodes_of(i, of_nodes);
    if (here > 0 && type(i).node_hour.value == 0) return 0;
    sum += dollars(type(i).node_hour) * static_cast<double>(here);
  }
  return sum;
}

}  // namespace orrery
