// SPDX-License-Identifier: Apache-2.0
#include "sim/topology/inside.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <queue>

namespace orrery::sim {
namespace {

// "gpu3" with the prefix "gpu"; nothing for other names.
std::optional<std::int64_t> numbered(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t number = 0;
  const char *begin = name.data() + prefix.size(), *end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(begin, end, number);
  if (error != std::errc{} || rest != end || number < 0) return std::nullopt;
  return number;
}

}  // namespace

Inside::Inside(const Cluster& c, std::int64_t ports, const std::vector<VertexId>& port_ids,
               NetworkBuilder& builder)
    : devices_(c.devices_per_node), ends_(c.devices_per_node + ports) {
  std::map<std::string, std::uint32_t, std::less<>> switches;
  struct Edge {
    std::uint32_t a, b;
  };
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < c.inside.size(); ++i) {
    const Cable& cable = c.inside[i];
    const auto find = [&](const std::string& name, const char* end) {
      const auto among = [&](std::int64_t number, std::int64_t count, const char* kind) {
        if (number >= count)
          builder.refuse(fmt::format("/inside/{}{}", i, end), fmt::format("\"{}\" is not in a node", name),
                         fmt::format("{}0 to {}{}", kind, kind, count - 1));
      };
      if (const auto gpu = numbered(name, "gpu")) {
        among(*gpu, devices_, "gpu");
        return static_cast<std::uint32_t>(*gpu);
      }
      if (const auto nic = numbered(name, "nic")) {
        among(*nic, ports, "nic");
        return static_cast<std::uint32_t>(port(*nic));
      }
      return switches
          .try_emplace(name, static_cast<std::uint32_t>(ends_ + static_cast<std::int64_t>(switches.size())))
          .first->second;
    };
    edges.push_back({find(cable.from, "/from"), find(cable.to, "/to")});
    if (edges.back().a == edges.back().b)
      builder.refuse(fmt::format("/inside/{}", i), "joins a vertex to itself", "two vertices");
    capacity_.push_back(static_cast<double>(cable.bandwidth.value));
  }
  builder.require(static_cast<std::int64_t>(edges.size() + switches.size()) * c.nodes);
  constexpr std::size_t kMostSwitches = 256;
  if (switches.size() > kMostSwitches)
    builder.refuse("/inside", fmt::format("{} switches are too many", switches.size()),
                   fmt::format("{} in a node", kMostSwitches));
  // Of the ways between any two ends, each over every switch at most.
  builder.require(ends_ * ends_ * static_cast<std::int64_t>(switches.size() + 1));
  for (std::int64_t n = 0; n < c.nodes; ++n) {
    std::vector<VertexId> ids;
    for (std::int64_t d = 0; d < devices_; ++d) ids.push_back(static_cast<VertexId>(n * devices_ + d));
    for (std::int64_t p = 0; p < ports; ++p) ids.push_back(port_ids[static_cast<std::size_t>(n * ports + p)]);
    ids.resize(static_cast<std::size_t>(ends_) + switches.size());
    for (const auto& [name, at] : switches) ids[at] = builder.add_named(fmt::format("node{}/{}", n, name));
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const LinkId l = builder.connect(ids[edges[i].a], ids[edges[i].b], capacity_[i], c.inside[i].latency);
      if (i == 0) first_link_.push_back(l);
    }
  }
  // By vertex: the next one, and the directed cable that leads there.
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> next(static_cast<std::size_t>(ends_) +
                                                                         switches.size());
  for (std::uint32_t i = 0; i < edges.size(); ++i) {
    next[edges[i].a].emplace_back(edges[i].b, 2 * i);
    next[edges[i].b].emplace_back(edges[i].a, 2 * i + 1);
  }
  ways_.resize(static_cast<std::size_t>(ends_ * ends_));
  for (std::int64_t e = 0; e < ends_; ++e) {
    find_ways(e, next);
    for (std::int64_t d = 0; d < devices_; ++d) {
      const bool needed = e < devices_ || e - devices_ == d * ports / devices_;
      if (e != d && needed && way(e, d).empty()) {
        const std::string from = e < devices_ ? fmt::format("gpu{}", e) : fmt::format("nic{}", e - devices_);
        builder.refuse("/inside", fmt::format("there is no way from {} to gpu{}", from, d),
                       "cables that join all devices and NICs of a node");
      }
    }
  }
  std::vector<double> loads(2 * edges.size());
  for (std::int64_t a = 0; a < devices_; ++a) {
    for (std::int64_t b = 0; b < devices_; ++b) {
      for (const std::uint32_t l : way(a, b)) loads[l] += 1 / static_cast<double>(devices_ - 1);
    }
  }
  exchange_ = Bandwidth{static_cast<std::int64_t>(least_share(loads))};
}

// Dijkstra by (cables, width) from one end; other ends pass nothing on.
void Inside::find_ways(std::int64_t from,
                       const std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>>& next) {
  constexpr std::uint32_t kNone = UINT32_MAX;
  std::vector<Cost> cost(next.size(), {std::numeric_limits<std::int64_t>::max(), 0});
  std::vector<std::uint32_t> by(next.size(), kNone), before(next.size(), kNone);
  using Item = std::pair<Cost, std::uint32_t>;
  const auto later = [](const Item& a, const Item& b) {
    return b.first < a.first || (!(a.first < b.first) && a.second > b.second);
  };
  std::priority_queue<Item, std::vector<Item>, decltype(later)> queue(later);
  const auto start = static_cast<std::uint32_t>(from);
  cost[start] = {0, std::numeric_limits<double>::infinity()};
  queue.push({cost[start], start});
  while (!queue.empty()) {
    const auto [c, v] = queue.top();
    queue.pop();
    if (cost[v] < c || (v != start && static_cast<std::int64_t>(v) < ends_)) continue;
    for (const auto& [to, cable] : next[v]) {
      const Cost there{c.cables + 1, std::min(c.width, capacity_[cable / 2])};
      if (!(there < cost[to])) continue;
      cost[to] = there;
      by[to] = cable;
      before[to] = v;
      queue.push({there, to});
    }
  }
  for (std::int64_t to = 0; to < ends_; ++to) {
    Way& way = ways_[static_cast<std::size_t>(from * ends_ + to)];
    for (auto v = static_cast<std::uint32_t>(to); v != start && by[v] != kNone; v = before[v])
      way.push_back(by[v]);
    std::reverse(way.begin(), way.end());
  }
}

void Inside::route(std::int64_t node, std::int64_t from, std::int64_t to, Path& path) const {
  for (const std::uint32_t cable : way(from, to))
    path.push_back(first_link_[static_cast<std::size_t>(node)] + cable);
}

// The bandwidth at which so much on each directed cable passes.
double Inside::least_share(const std::vector<double>& loads) const {
  double least = 9e18;
  for (std::size_t l = 0; l < loads.size(); ++l) {
    if (loads[l] > 0) least = std::min(least, capacity_[l / 2] / loads[l]);
  }
  return least;
}

std::vector<std::vector<std::int64_t>> Inside::best_rings(const std::vector<std::int64_t>& local) const {
  constexpr std::size_t kMostDevices = 8, kMostRings = 28;
  std::vector<std::vector<std::int64_t>> orders;
  std::vector<std::int64_t> order = local;
  if (local.size() <= kMostDevices) {
    std::sort(order.begin() + 1, order.end());
    do {
      orders.push_back(order);
    } while (std::next_permutation(order.begin() + 1, order.end()));
  } else {
    orders = {order, {order.rbegin(), order.rend()}};
  }
  std::vector<double> loads(2 * capacity_.size());
  // Adding an order costs as much as its cables are loaded, by what they carry already.
  const auto cost = [&](const std::vector<std::int64_t>& ring) {
    double sum = 0;
    for (std::size_t i = 0; i < ring.size(); ++i) {
      for (const std::uint32_t l : way(ring[i], ring[(i + 1) % ring.size()]))
        sum += (2 * loads[l] + 1) / (capacity_[l / 2] * capacity_[l / 2]);
    }
    return sum;
  };
  std::vector<std::vector<std::int64_t>> rings;
  double best_total = 0;
  std::size_t best_count = 0;
  while (rings.size() < kMostRings) {
    std::size_t chosen = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t o = 0; o < orders.size(); ++o) {
      if (const double c = cost(orders[o]); c < least) {
        least = c;
        chosen = o;
      }
    }
    rings.push_back(orders[chosen]);
    for (std::size_t i = 0; i < orders[chosen].size(); ++i) {
      for (const std::uint32_t l : way(orders[chosen][i], orders[chosen][(i + 1) % orders[chosen].size()]))
        loads[l] += 1;
    }
    const double total = least_share(loads) * static_cast<double>(rings.size());
    if (total > best_total * (1 + 1e-9)) {
      best_total = total;
      best_count = rings.size();
    }
  }
  rings.resize(best_count);
  return rings;
}

std::vector<std::vector<std::int64_t>> Inside::rings(std::span<const std::int64_t> devices) const {
  std::vector<std::int64_t> local(devices.begin(), devices.end());
  const std::int64_t base = local.front() - local.front() % devices_;
  for (std::int64_t& d : local) d -= base;
  std::vector<std::vector<std::int64_t>> out;
  {
    const std::lock_guard lock(mutex_);
    auto found = rings_.find(local);
    if (found == rings_.end()) found = rings_.emplace(local, best_rings(local)).first;
    out = found->second;
  }
  for (auto& order : out) {
    for (std::int64_t& d : order) d += base;
  }
  return out;
}

}  // namespace orrery::sim
