// SPDX-License-Identifier: Apache-2.0
#include "sim/topology/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>

#include "core/error.h"
#include "core/hash.h"

namespace orrery::sim {
namespace {

constexpr std::array<const char*, 9> kKindNames{"device", "switch", "port", "leaf",        "aggregation",
                                                "spine",  "router", "site", "named switch"};

std::unique_ptr<Wiring> make_wiring(const Cluster& c, const Ports& ports, NetworkBuilder& builder) {
  switch (c.fabric.kind) {
    case FabricKind::kTorus:
      return make_torus(c, ports, builder);
    case FabricKind::kDragonfly:
      return make_dragonfly(c, ports, builder);
    case FabricKind::kGraph:
      return make_graph(c, ports, builder);
    case FabricKind::kFatTree:
    case FabricKind::kRailOptimized:
    case FabricKind::kRailOnly:
      break;
  }
  return make_tree(c, ports, builder);
}

}  // namespace

const char* name_of(VertexKind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}

std::optional<Port> port_named(std::string_view name) {
  if (!name.starts_with("port")) return std::nullopt;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Port p{kMost, kMost};  // which numbers stay that do not fit
  const char *begin = name.data() + 4, *end = name.data() + name.size();
  const auto node = std::from_chars(begin, end, p.node);
  if (node.ec == std::errc::invalid_argument || node.ptr == end || *node.ptr != '.') return std::nullopt;
  const auto rail = std::from_chars(node.ptr + 1, end, p.rail);
  if (rail.ec == std::errc::invalid_argument || rail.ptr != end || *begin == '-' || node.ptr[1] == '-')
    return std::nullopt;
  return p;
}

std::uint64_t route_hash(const Fabric& fabric, Port from, Port to) {
  std::uint64_t h = static_cast<std::uint64_t>(fabric.seed);
  for (const std::int64_t v : {from.node, from.rail, to.node, to.rail})
    h = mix(h + static_cast<std::uint64_t>(v));
  return h;
}

VertexId NetworkBuilder::add(VertexKind kind, std::int64_t a, std::int64_t b) {
  require(static_cast<std::int64_t>(network_.vertices_.size()));
  network_.vertices_.push_back({kind, static_cast<std::int32_t>(a), static_cast<std::int32_t>(b)});
  return static_cast<VertexId>(network_.vertices_.size() - 1);
}

VertexId NetworkBuilder::add_named(const std::string& name) {
  network_.names_.push_back(name);
  return add(VertexKind::kNamed, static_cast<std::int64_t>(network_.names_.size()) - 1);
}

void NetworkBuilder::refuse(const std::string& field, const std::string& problem,
                            const std::string& allowed) const {
  throw InputError(cluster_.where(), field, problem, "allowed: " + allowed);
}

void NetworkBuilder::require(std::int64_t count) const {
  if (count <= kMost) return;
  const bool sized = !cluster_.sized.file.empty();
  throw InputError(sized ? cluster_.sized.file : cluster_.where(), sized ? cluster_.sized.pointer : "/fabric",
                   fmt::format("the network of {} nodes has more links than are built", cluster_.nodes),
                   fmt::format("allowed: {} links, vertices, or entries of a table of routes", kMost));
}

void NetworkBuilder::require_routing(std::initializer_list<Routing> allowed) const {
  std::string names;
  for (const Routing r : allowed) {
    if (r == cluster_.fabric.routing) return;
    names += (names.empty() ? "" : ", ") + std::string(orrery::name_of(r));
  }
  refuse("/fabric/routing",
         fmt::format("a fabric of kind \"{}\" has no routing \"{}\"{}", orrery::name_of(cluster_.fabric.kind),
                     orrery::name_of(cluster_.fabric.routing),
                     cluster_.fabric.routing == Fabric{}.routing ? ", the default" : ""),
         names);
}

LinkId NetworkBuilder::connect(VertexId a, VertexId b, double bytes_per_second, Time latency) {
  require(static_cast<std::int64_t>(network_.capacity_.size()));
  const auto id = static_cast<LinkId>(network_.capacity_.size());
  for (const auto& ends : {std::pair{a, b}, std::pair{b, a}}) {
    network_.capacity_.push_back(std::max<std::int64_t>(1, saturating_cast(bytes_per_second)));
    network_.latency_.push_back(latency);
    network_.ends_.push_back(ends);
  }
  return id;
}

Network::Network(const Cluster& c)
    : file_(c.where()),
      devices_(c.devices()),
      devices_per_node_(c.devices_per_node),
      domain_(c.scale_up_domain()),
      ports_per_node_(std::min(c.nics, c.devices_per_node)),
      pxn_(c.fabric.pxn || c.fabric.kind == FabricKind::kRailOnly),
      adaptive_(c.fabric.routing == Routing::kAdaptive),
      faulty_(!c.fabric.faults.empty()) {
  NetworkBuilder builder(*this, c);
  builder.require(c.devices());
  for (std::int64_t n = 0; n < c.nodes; ++n) type_.push_back(static_cast<std::uint8_t>(c.type_of_node(n)));
  Ports ports{ports_per_node_, {}, 0, {}};
  for (std::int64_t n = 0; n < c.nodes; ++n) {
    const NodeType& type = c.type(type_[static_cast<std::size_t>(n)]);
    ports.bandwidths.push_back(static_cast<double>(type.nic_bandwidth.value) * type.nic_efficiency /
                               static_cast<double>(ports_per_node_));
    ports.fastest = std::max(ports.fastest, ports.bandwidths.back());
  }
  for (std::int64_t d = 0; d < devices_; ++d) builder.add(VertexKind::kDevice, d);
  if (c.inside.empty()) {
    for (std::size_t i = 0; i < c.types(); ++i)
      intra_.push_back(Bandwidth{static_cast<std::int64_t>(
          static_cast<double>(c.type(i).intra_bandwidth.value) * c.type(i).intra_efficiency)});
    VertexId scale_up = 0;
    for (std::int64_t d = 0; d < devices_; ++d) {
      if (d % domain_ == 0) scale_up = builder.add(VertexKind::kScaleUp, d / domain_);
      to_switch_.push_back(
          builder.connect(static_cast<VertexId>(d), scale_up, static_cast<double>(intra(type_of(d)).value)));
    }
  } else if (c.scale_up_nodes > 1) {
    builder.refuse("/inside", "a domain of several nodes has switches", "none, or one scale_up_nodes");
  }
  for (std::int64_t n = 0; n < c.nodes; ++n) {
    for (std::int64_t r = 0; r < ports_per_node_; ++r)
      ports.ids.push_back(builder.add(VertexKind::kPort, n, r));
  }
  if (c.inside.empty()) {
    // PCIe keeps up with the port.
    for (std::int64_t d = 0; d < devices_; ++d)
      to_port_.push_back(
          builder.connect(static_cast<VertexId>(d), ports.at({node(d), rail(d)}), ports.bandwidth(node(d))));
  } else {
    inside_ = std::make_unique<Inside>(c, ports_per_node_, ports.ids, builder);
    intra_.assign(c.types(), inside_->exchange());
  }
  wiring_ = make_wiring(c, ports, builder);
  block_ = std::max(domain_, wiring_->block_nodes() * devices_per_node_);
  if (wiring_->block_nodes() == 0 || faulty_ || mixed()) block_ = devices_;
  if (faulty_) apply(c);
}

void Network::apply(const Cluster& c) {
  const auto& faults = c.fabric.faults;
  std::map<std::string, std::optional<VertexId>, std::less<>> ids;
  for (const LinkFault& f : faults) ids[f.from] = ids[f.to] = std::nullopt;
  for (VertexId v = 0; v < vertices_.size(); ++v) {
    if (const auto found = ids.find(name(v)); found != ids.end() && !found->second) found->second = v;
  }
  const auto find = [&](const std::string& text, const Cursor& at) {
    if (const auto& id = ids.at(text)) return *id;
    constexpr std::size_t kMostNames = 2000;
    std::vector<std::string> names;
    for (VertexId v = 0; v < std::min(kMostNames, vertices_.size()); ++v) names.push_back(name(v));
    at.fail("\"" + text + "\" is not in this network", allowed_names(text, names));
  };
  std::map<std::pair<VertexId, VertexId>, std::vector<LinkId>> links;
  std::vector<std::pair<VertexId, VertexId>> ends;
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const Cursor at = Cursor{c.where(), "/fabric/faults"}.child(i);
    constexpr double kLeast = 0.001;  // less is as good as failed, and times stay countable
    if (faults[i].remaining > 0 && faults[i].remaining < kLeast)
      at.child("remaining")
          .fail(fmt::format("{} is next to nothing", faults[i].remaining),
                fmt::format("allowed: 0 for a failed link, or {} to 1", kLeast));
    ends.emplace_back(find(faults[i].from, at.child("from")), find(faults[i].to, at.child("to")));
    links[ends.back()];
    links[{ends.back().second, ends.back().first}];
  }
  for (LinkId l = 0; l < ends_.size(); ++l) {
    if (const auto found = links.find(ends_[l]); found != links.end()) found->second.push_back(l);
  }
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (links[ends[i]].empty())
      Cursor{c.where(), "/fabric/faults"}.child(i).fail("no link joins " + faults[i].from + " and " +
                                                        faults[i].to);
    const auto [from, to] = ends[i];
    for (const auto& direction : {std::pair{from, to}, std::pair{to, from}}) {
      for (const LinkId l : links[direction]) {
        const auto left = static_cast<std::int64_t>(static_cast<double>(capacity_[l]) * faults[i].remaining);
        capacity_[l] = faults[i].remaining > 0 ? std::max<std::int64_t>(1, left) : 0;
      }
    }
  }
}

std::string Network::name(VertexId v) const {
  const Vertex& x = vertices_[v];
  if (x.kind == VertexKind::kNamed) return names_[static_cast<std::size_t>(x.a)];
  const char* kind = name_of(x.kind);
  return x.b < 0 ? fmt::format("{}{}", kind, x.a) : fmt::format("{}{}.{}", kind, x.a, x.b);
}

std::string Network::link_name(LinkId l) const {
  return name(ends_[l].first) + " > " + name(ends_[l].second);
}

void Network::between(std::int64_t from, std::int64_t to, Path& path) const {
  if (inside_ != nullptr)
    return inside_->route(node(from), from % devices_per_node_, to % devices_per_node_, path);
  path.push_back(to_switch_[static_cast<std::size_t>(from)]);
  path.push_back(to_switch_[static_cast<std::size_t>(to)] + 1);
}

void Network::leave(std::int64_t device, Path& path) const {
  if (inside_ != nullptr)
    return inside_->route(node(device), device % devices_per_node_, inside_->port(rail(device)), path);
  path.push_back(to_port_[static_cast<std::size_t>(device)]);
}

void Network::enter(std::int64_t device, Path& path) const {
  if (inside_ != nullptr)
    return inside_->route(node(device), inside_->port(rail(device)), device % devices_per_node_, path);
  path.push_back(to_port_[static_cast<std::size_t>(device)] + 1);
}

void Network::route(std::int64_t from, std::int64_t to, Path& path, const Loads* loads) const {
  if (find_route(from, to, path, loads)) return;
  throw InputError(file_, "/fabric", fmt::format("there is no way from device {} to device {}", from, to),
                   "allowed: cables and faults that leave a way between any two devices");
}

std::int64_t Network::on_rail(std::int64_t device, std::int64_t wanted, std::int64_t other) const {
  if (rail(device) == wanted) return device;
  const std::int64_t first = device - device % devices_per_node_;
  if (rail(other) == wanted) return first + other % devices_per_node_;
  return first + (wanted * devices_per_node_ + ports_per_node_ - 1) / ports_per_node_;
}

bool Network::is_alive(const Path& path) const {
  return !faulty_ || std::all_of(path.begin(), path.end(), [&](LinkId l) { return alive(l); });
}

bool Network::try_rails(std::int64_t from, std::int64_t to, std::int64_t out, std::int64_t in,
                        const Loads* loads, Path& path) const {
  path.clear();
  const std::int64_t leaves = on_rail(from, out, to), enters = on_rail(to, in, from);
  if (leaves != from) between(from, leaves, path);
  leave(leaves, path);
  const bool open = wiring_->route(*this, {node(from), out}, {node(to), in}, loads, path);
  enter(enters, path);
  if (enters != to) between(enters, to, path);
  return open && is_alive(path);
}

bool Network::find_route(std::int64_t from, std::int64_t to, Path& path, const Loads* loads) const {
  path.clear();
  if (from == to) return true;
  if (from / domain_ == to / domain_) {
    between(from, to, path);
    return is_alive(path);
  }
  // With PXN the data cross to the device that is on the destination's rail first.
  const std::int64_t in = rail(to), out = pxn_ ? in : rail(from);
  if (try_rails(from, to, out, in, loads, path)) return true;
  if (!faulty_) return false;
  // Both ends by the same other rail, the nearest first; then by any two.
  const std::int64_t rails = ports_per_node_;
  for (std::int64_t k = out == in ? 1 : 0; k < rails; ++k) {
    const std::int64_t other = (in + k) % rails;
    if (try_rails(from, to, other, other, loads, path)) return true;
  }
  for (std::int64_t k = 1; k < rails * rails; ++k) {
    if (try_rails(from, to, (out + k / rails) % rails, (in + k % rails) % rails, loads, path)) return true;
  }
  return false;
}

Time Network::extra_latency(const Path& path) const {
  Time sum{0};
  for (const LinkId l : path) sum += latency_[l];
  return sum;
}

}  // namespace orrery::sim
