// SPDX-License-Identifier: Apache-2.0
//
// orrery collective: what a collective takes on a cluster, by the planner's model and played on the network.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/progress.h"
#include "core/text.h"
#include "sim/collective/collective.h"
#include "sim/collective/on_network.h"

namespace orrery::cli {
namespace {

struct CollectiveAsked {
  std::string topology, bytes = "1 GiB";
  CollectiveKind collective = CollectiveKind::kAllReduce;
  std::optional<program::Algorithm> algorithm;
  std::int64_t nodes = 0, ranks = 0, stride = 1, seed = 0;
  std::int32_t chunks = 64;
  double imbalance = 1;
};

constexpr std::int64_t kMostFlows = 1 << 22;  // of a round

// The algorithm that the network plays when none is asked for: the one that the model chose.
program::Algorithm played(sim::CollectiveAlgorithm chosen) {
  switch (chosen) {
    case sim::CollectiveAlgorithm::kTree:
      return program::Algorithm::kTree;
    case sim::CollectiveAlgorithm::kHierarchical:
    case sim::CollectiveAlgorithm::kInNetworkTree:
      return program::Algorithm::kHierarchical;
    case sim::CollectiveAlgorithm::kExchange:
      return program::Algorithm::kDirect;
    default:
      return program::Algorithm::kRing;
  }
}

void execute(const App& app, const CollectiveAsked& o) {
  const Cursor at{"command line", ""};
  Cluster c = load_cluster(o.topology, {}, at.child("topology"), app.data);
  if (o.nodes > 0) {
    c.nodes = o.nodes;
    c.sized = at.child("nodes");
  }
  const CollectiveKind kind = o.collective;
  const auto bytes = parse_bytes(o.bytes);
  if (!bytes || bytes->value <= 0 || static_cast<double>(bytes->value) > limits::kLargestMessage)
    at.child("bytes").fail(shown(Json(o.bytes)) + " is not a size",
                           "allowed: text like \"64 MiB\", up to 1000 TB");
  if (c.devices() < 2)
    at.child(o.nodes > 0 ? "nodes" : "topology")
        .fail(shown(Json(o.topology)) + " has 1 device", "allowed: 2 devices or more");
  if (o.stride >= c.devices())
    at.child("stride").fail(fmt::format("{} devices have no two {} apart", c.devices(), o.stride),
                            fmt::format("allowed: 1 to {}", c.devices() - 1));
  const std::int64_t most = (c.devices() + o.stride - 1) / o.stride;
  const std::int64_t ranks = o.ranks > 0 ? o.ranks : most;
  if (ranks > most || ranks < 2)
    at.child("ranks").fail(fmt::format("{} ranks {} apart", ranks, o.stride),
                           fmt::format("allowed: 2 to {} on {} devices", most, c.devices()));

  std::optional<Progress> progress(std::in_place, "playing the collective");
  const sim::Topology topology(c);
  const sim::CollectiveCost cost =
      sim::CollectiveModel(c).cost(kind, *bytes, topology.group(ranks, o.stride));
  const program::Algorithm algorithm = o.algorithm.value_or(played(cost.algorithm));
  const bool all_pairs = program::used_algorithm(algorithm, kind, 2) == program::Algorithm::kDirect;
  if (all_pairs && ranks > kMostFlows / ranks)
    at.child("ranks").fail(fmt::format("{} ranks are {} flows at once", ranks, ranks * ranks),
                           fmt::format("allowed: {} flows", kMostFlows));
  if (o.imbalance != 1 && kind != CollectiveKind::kAllToAll)
    at.child("imbalance").fail(fmt::format("{} has none", name_of(kind)), "allowed: with all-to-all");
  if (!(o.imbalance >= 1 && o.imbalance <= static_cast<double>(ranks)))
    at.child("imbalance")
        .fail(fmt::format("{} times an even share", o.imbalance),
              fmt::format("allowed: 1 to {}, which is everything", ranks));
  std::vector<std::int64_t> devices;
  for (std::int64_t r = 0; r < ranks; ++r) devices.push_back(r * o.stride);
  if (o.seed > 0) devices = sim::shuffled(std::move(devices), static_cast<std::uint64_t>(o.seed));
  const sim::NetworkRun run =
      sim::run_on_network(topology, {kind, algorithm, *bytes, o.chunks, o.imbalance}, devices);
  progress.reset();
  const auto gigabytes = [&](Time t) { return sim::bus_bandwidth(kind, *bytes, ranks, t) / 1e9; };
  const std::string busiest = topology.network().link_name(run.busiest);
  const double busy = ratio(run.busiest_needs, run.time);
  if (app.json) {
    return print_json({{"schema", "orrery.collective/1"},
                       {"topology", c.name},
                       {"collective", name_of(kind)},
                       {"ranks", ranks},
                       {"bytes", bytes->value},
                       {"model",
                        {{"algorithm", sim::name_of(cost.algorithm)},
                         {"time_s", seconds(cost.time)},
                         {"bus_bandwidth_gb_s", gigabytes(cost.time)}}},
                       {"network",
                        {{"algorithm", name_of(run.used)},
                         {"time_s", seconds(run.time)},
                         {"bus_bandwidth_gb_s", gigabytes(run.time)},
                         {"rounds", run.rounds},
                         {"flows", run.flows},
                         {"classes", run.most_classes},
                         {"busiest_link", busiest},
                         {"busiest_share", busy}}}});
  }
  fmt::print("{} of {} over {} devices of {}\n", name_of(kind), o.bytes, ranks, printable(c.name));
  fmt::print("  model    {:<18} {:>10}   {:.1f} GB/s bus bandwidth{}\n", sim::name_of(cost.algorithm),
             format(cost.time), gigabytes(cost.time), o.imbalance == 1 ? "" : ", were it even");
  fmt::print(
      "  network  {:<18} {:>10}   {:.1f} GB/s bus bandwidth, {} rounds, {} flows in at most {} classes\n",
      name_of(run.used), format(run.time), gigabytes(run.time), run.rounds, run.flows, run.most_classes);
  fmt::print("  {} is busy {:.0f} % of that time\n", printable(busiest), 100 * busy);
}

}  // namespace

void add_collective(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "collective", "what a collective takes on a cluster");
  auto o = std::make_shared<CollectiveAsked>();
  command->add_option("topology", o->topology, "a cluster's name or file")->required();
  add_choice<CollectiveKind>(*command, "--collective", o->collective, "what the devices do")
      ->default_str("all-reduce");
  command->add_option("--bytes", o->bytes, "size of the whole tensor, like \"64 MiB\"");
  command->add_option("--nodes", o->nodes, "another number of nodes")->check(CLI::Range(1, 1 << 20));
  command->add_option("--ranks", o->ranks, "devices that take part; all when left out")
      ->check(CLI::Range(2, 1 << 24));
  command->add_option("--stride", o->stride, "devices from one rank to the next")
      ->check(CLI::Range(1, 1 << 24));
  add_choice<program::Algorithm>(*command, "--algorithm", o->algorithm,
                                 "how; what the model chose when left out");
  command->add_option("--chunks", o->chunks, "of a pipelined tree or chain")->check(CLI::Range(1, 4096));
  command->add_option("--imbalance", o->imbalance,
                      "of an all-to-all: how many times its even share the first rank receives");
  command->add_option("--shuffle", o->seed, "a random order of ranks, by this seed")
      ->check(CLI::Range(1, 1 << 30));
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
