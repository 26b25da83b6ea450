// SPDX-License-Identifier: Apache-2.0
//
// orrery topology: what a cluster's network is made of, and what it can carry; whether it holds together;
// clusters from what other tools print.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/progress.h"
#include "core/text.h"
#include "sim/topology/import.h"
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
  const Cursor at{"command line", ""};
  Cluster c = load_cluster(options.name, {}, at.child("name"), app.data);
  if (options.nodes > 0) {
    c.nodes = options.nodes;
    c.sized = at.child("nodes");
  }
  std::optional<Progress> progress(std::in_place, "looking at the network");
  const sim::Topology t(c);
  const sim::Network& n = t.network();
  const sim::Survey s = options.dot ? sim::Survey{} : sim::survey(t);
  const std::int64_t inside = std::min(c.devices(), c.scale_up_domain());
  const sim::GroupLinks node = t.group(inside, 1), across = t.group(c.nodes, c.devices_per_node),
                        all = t.group(c.devices(), 1);
  progress.reset();
  if (options.dot) return fmt::print("{}", sim::to_dot(n));
  const double ports_cost = dollars(c.fabric.port_cost) * static_cast<double>(s.switch_ports);
  const double dollars_per_hour = c.dollars_per_hour(c.nodes);
  if (app.json) {
    Json j = write_fields(c);
    j["schema"] = "orrery.topology/1";
    j["graph"] = graph_json(n);
    j["switch_ports"] = s.switch_ports;
    if (ports_cost > 0) j["switch_ports_dollars"] = ports_cost;
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
  const auto link = [&](sim::LinkId l) { return printable(n.link_name(l)); };
  fmt::print("{}: {} nodes of {} x {}, {}, {} routes\n", printable(c.name), c.nodes, c.devices_per_node,
             printable(c.device), name_of(c.fabric.kind), name_of(c.fabric.routing));
  for (std::size_t i = 1; i < c.types(); ++i)
    fmt::print("  from node {} on {} x {}\n", c.other_nodes[i - 1].from_node, c.devices_per_node,
               printable(c.type(i).device));
  for (const auto& [kind, count] : s.vertices) fmt::print("  {:>8} {}\n", count, kind);
  for (const auto& [kinds, count] : s.links) {
    fmt::print("  {:>8} {} - {}: {} each way\n", count.count, kinds.first, kinds.second, range(count));
  }
  fmt::print("  {} links between the devices that are farthest apart\n", s.diameter);
  if (s.switch_ports > 0)
    fmt::print("  {} switch ports of a NIC's speed{}\n", s.switch_ports,
               ports_cost > 0 ? fmt::format(", ${:.0f}", ports_cost) : "");
  fmt::print("  bisection {} each way, held by {}\n", format(s.bisection), link(s.bisection_bottleneck));
  const auto ring = [&](const char* what, const sim::GroupLinks& g) {
    fmt::print("  {}: {} a device and direction, held by {}\n", what, format(g.ring), link(g.bottleneck));
  };
  if (inside > 1) ring("a ring in each scale-up domain", node);
  if (c.nodes > 1) {
    ring("a ring through one device of every node, all at once", across);
    ring("one ring through all devices, in channels", all);
  }
  if (dollars_per_hour > 0)
    fmt::print("  {} a node and hour{}, ${:.2f} in all ({})\n",
               format(from_dollars(dollars_per_hour / static_cast<double>(c.nodes))),
               c.types() > 1 ? " on average" : "", dollars_per_hour, printable(c.price_as_of));
  if (c.spot_hour.value > 0 && c.types() == 1)
    fmt::print("  {} on spot, at the low end\n", format(c.spot_hour));
}

// Whether every node reaches every other over the fabric's routes; of more than a million pairs, some spread
// evenly. 1 when there is something to say.
int check(const App& app, const std::string& name) {
  const Cluster c = load_cluster(name, {}, Cursor{"command line", "/name"}, app.data);
  const sim::Network n(c);
  constexpr std::int64_t kMostPairs = 1 << 20;
  const std::int64_t pairs = c.nodes * c.nodes, step = std::max<std::int64_t>(1, pairs / kMostPairs);
  std::int64_t tried = 0, broken = 0;
  std::vector<std::string> findings;
  sim::Path path;
  std::optional<Progress> progress(std::in_place, "trying pairs of nodes");
  for (std::int64_t i = 0; i < pairs; i += step) {
    (*progress)(static_cast<double>(i) / static_cast<double>(pairs));
    const std::int64_t from = i / c.nodes, to = i % c.nodes;
    if (from == to) continue;
    ++tried;
    const std::int64_t a = from * c.devices_per_node, b = to * c.devices_per_node;
    if (!n.find_route(a, b, path) && ++broken <= 5)
      findings.push_back(fmt::format("there is no way from device {} to device {}", a, b));
  }
  progress.reset();
  if (broken > 5) findings.push_back(fmt::format("{} more pairs of nodes without a way", broken - 5));
  for (std::size_t i = 0; i < c.types(); ++i) {
    const NodeType& type = c.type(i);
    const double per_nic = static_cast<double>(type.nic_bandwidth.value) * 8e-9 / static_cast<double>(c.nics);
    if (per_nic > 1600 || per_nic < 1)
      findings.push_back(fmt::format(
          "a NIC of {:.4g} Gb/s: nic_bandwidth is of all NICs of a node, in bits or bytes", per_nic));
    const double share =
        static_cast<double>(type.nic_bandwidth.value) / static_cast<double>(c.devices_per_node);
    if (c.devices_per_node > 1 && c.inside.empty() && static_cast<double>(type.intra_bandwidth.value) < share)
      findings.push_back(fmt::format("a device reaches the network faster ({:.4g} GB/s) than its node ({})",
                                     share / 1e9, format(type.intra_bandwidth)));
  }
  load_devices(c, app.data);
  if (app.json) {
    print_json({{"schema", "orrery.topology-check/1"}, {"pairs", tried}, {"findings", findings}});
  } else {
    fmt::print("{}: {} pairs of nodes tried, {} without a way\n", printable(c.name), tried, broken);
    for (const std::string& f : findings) fmt::print("  {}\n", printable(f));
  }
  return findings.empty() ? 0 : 1;
}

struct Imported {
  std::string file, device, name, output, intra, nic, links;
  std::optional<sim::TopologyFormat> format;
  std::int64_t devices_per_node = 8;  // of a graph's nodes
};

void import(const App& app, const Imported& o) {
  const Cursor at{"command line", ""};
  Cluster base;
  base.name = o.name.empty() ? std::filesystem::path(o.file).stem().string() : o.name;
  base.device = o.device;
  base.devices_per_node = o.devices_per_node;
  require_writable("/output", o.output);
  const Device device = load_device(o.device, at.child("device"), app.data);
  if (!o.links.empty()) {
    base.links = o.links;
    base.measured = load_links(o.links, at.child("links"), app.data);
    static_cast<ScaleUp&>(base) = base.measured;
  }
  const auto given = [&](const std::string& text, const char* option, const char* field, Bandwidth& out) {
    if (!text.empty()) read_value(Json(text), at.child(option), declared<Cluster>(field), out);
  };
  given(o.intra, "intra", "intra_bandwidth", base.intra_bandwidth);
  given(o.nic, "nic", "nic_bandwidth", base.nic_bandwidth);
  const std::string text = load_text(o.file, 16 << 20);
  const Bandwidth nvlink{device.architecture.starts_with("Blackwell") ? 50'000'000'000 : 25'000'000'000};
  const Cluster c = sim::import_topology(text, o.format ? *o.format : sim::format_of(text), nvlink,
                                         std::move(base), o.file);
  Json j = write_fields(c);
  j["schema"] = "orrery.cluster/1";
  const sim::Network network(c);  // it holds together, or says why not
  if (o.output.empty()) return print_json(j);
  save_json(o.output, j);
  const std::string file = printable(o.output);
  fmt::print("{}: {} nodes of {} x {}, {} links; see `orrery topology check {}`\n", file, c.nodes,
             c.devices_per_node, printable(c.device), network.links() / 2, file);
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
    for (const auto& n : names) fmt::print("{}\n", printable(n));
  });
  CLI::App* checks = subcommand(*command, app, "check", "whether a cluster's network holds together");
  auto checked = std::make_shared<std::string>();
  checks->add_option("name", *checked, "name or file")->required();
  checks->callback([&app, checked] {
    if (check(app, *checked) != 0) app.exit = ExitCode::kFailure;
  });
  CLI::App* imports =
      subcommand(*command, app, "import", "a cluster from an edge list, NCCL's XML or nvidia-smi");
  auto i = std::make_shared<Imported>();
  imports->add_option("file", i->file, "what the other tool printed")->required();
  imports->add_option("--device", i->device, "device profile of the accelerators")->required();
  add_choice<sim::TopologyFormat>(*imports, "--format", i->format, "by content when left out");
  imports->add_option("--name", i->name, "of the cluster");
  imports->add_option("--links", i->links, "link profile of its nodes");
  imports->add_option("--intra", i->intra, "a device into its node's fabric, one direction");
  imports->add_option("--nic", i->nic, "all NICs of a node, one direction");
  imports->add_option("--devices-per-node", i->devices_per_node, "for an edge list")
      ->check(CLI::Range(1, 1024));
  imports->add_option("-o,--output", i->output, "the cluster file");
  imports->callback([&app, i] { import(app, *i); });
}

}  // namespace orrery::cli
