// SPDX-License-Identifier: Apache-2.0
//
// orrery topology: what a cluster's network is made of, and what it can carry.
#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "sim/topology/survey.h"

namespace orrery::cli {
namespace {

struct Shown {
  std::string name;
  std::int64_t nodes = 0;
  bool dot = false;
};

Json graph_json(const sim::Network& n) {
  Json vertices = Json::array(), links = Json::array();
  for (sim::VertexId v = 0; v < n.vertices(); ++v)
    vertices.push_back({{"name", n.name(v)}, {"kind", sim::name_of(n.vertex(v).kind)}});
  for (sim::LinkId l = 0; l < n.links(); l += 2) {
    const auto [a, b] = n.ends(l);
    links.push_back({{"from", n.name(a)}, {"to", n.name(b)}, {"bytes_per_s", n.capacity(l)}});
  }
  return {{"nodes", std::move(vertices)}, {"links", std::move(links)}};
}

std::string range(const sim::LinkCount& c) {
  const std::string most = format(Bandwidth{c.most});
  return c.least == c.most ? most : format(Bandwidth{c.least}) + " to " + most;
}

void show(const App& app, const Shown& options) {
  Cluster c = load_cluster(options.name, {}, Cursor{"topology", ""}, app.data);
  if (options.nodes > 0) c.nodes = options.nodes;
  const sim::Topology t(c);
  const sim::Network& n = t.network();
  if (options.dot) return fmt::print("{}", sim::to_dot(n));
  const sim::Survey s = sim::survey(t);
  const std::int64_t inside = std::min(c.devices(), c.scale_up_domain());
  const sim::GroupLinks node = t.group(inside, 1), across = t.group(c.nodes, c.devices_per_node),
                        all = t.group(c.devices(), 1);
  const double dollars_per_hour = dollars(c.node_hour) * static_cast<double>(c.nodes);
  if (app.json) {
    Json j = write_fields(c);
    j["schema"] = "orrery.topology/1";
    j["graph"] = graph_json(n);
    j["diameter"] = s.diameter;
    j["bisection_bytes_per_s"] = s.bisection.value;
    j["bisection_bottleneck"] = n.link_name(s.bisection_bottleneck);
    const auto ring = [&](const sim::GroupLinks& g) {
      return Json{{"bytes_per_s", g.ring.value}, {"bottleneck", n.link_name(g.bottleneck)}};
    };
    j["rings"] = Json::object();
    if (inside > 1) j["rings"]["scale_up_domain"] = ring(node);
    if (c.nodes > 1) {
      j["rings"]["one_device_of_each_node"] = ring(across);
      j["rings"]["all_devices"] = ring(all);
    }
    if (dollars_per_hour > 0) j["dollars_per_hour"] = dollars_per_hour;
    return print_json(j);
  }
  fmt::print("{}: {} nodes of {} x {}, {}, {} routes\n", c.name, c.nodes, c.devices_per_node, c.device,
             name_of(c.fabric.kind), name_of(c.fabric.routing));
  for (const auto& [kind, count] : s.vertices) fmt::print("  {:>8} {}\n", count, kind);
  for (const auto& [kinds, count] : s.links) {
    fmt::print("  {:>8} {} - {}: {} each way\n", count.count, kinds.first, kinds.second, range(count));
  }
  fmt::print("  {} links between the devices that are farthest apart\n", s.diameter);
  fmt::print("  bisection {} each way, held by {}\n", format(s.bisection),
             n.link_name(s.bisection_bottleneck));
  const auto ring = [&](const char* what, const sim::GroupLinks& g) {
    fmt::print("  {}: {} a device and direction, held by {}\n", what, format(g.ring),
               n.link_name(g.bottleneck));
  };
  if (inside > 1) ring("a ring in each scale-up domain", node);
  if (c.nodes > 1) {
    ring("a ring through one device of every node, all at once", across);
    ring("one ring through all devices, in channels", all);
  }
  if (dollars_per_hour > 0)
    fmt::print("  {} a node and hour, ${:.2f} in all ({})\n", format(c.node_hour), dollars_per_hour,
               c.price_as_of);
  if (c.spot_hour.value > 0) fmt::print("  {} on spot, at the low end\n", format(c.spot_hour));
}

}  // namespace

void add_topology(CLI::App& parent, App& app) {
  CLI::App* command = parent.add_subcommand("topology", "clusters and their networks");
  command->require_subcommand(1);
  CLI::App* shows = subcommand(*command, app, "show", "a cluster's network, or the list of clusters");
  auto options = std::make_shared<Shown>();
  shows->add_option("name", options->name, "name or file");
  shows->add_option("--nodes", options->nodes, "another number of nodes")->check(CLI::Range(1, 1 << 20));
  shows->add_flag("--dot", options->dot, "the network as a Graphviz graph");
  shows->callback([&app, options] {
    if (!options->name.empty()) return show(app, *options);
    const auto names = app.data.names("topologies");
    if (app.json) return print_json({{"schema", "orrery.topologies/1"}, {"names", names}});
    for (const auto& n : names) fmt::print("{}\n", n);
  });
}

}  // namespace orrery::cli
