// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <regex>
#include <set>

#include "sim/calibration/validate.h"
#include "sim/collective/collective.h"

namespace orrery::sim {
namespace {

// Which topology stands for a published system; the first pattern found in its name decides.
struct SystemRule {
  const char* pattern;
  const char* topology;
};
constexpr SystemRule kSystems[] = {{"p4de", "p4de"},       {"p4d", "p4d"},        {"p5en", "p5en"},
                                   {"p5e", "p5en"},        {"p5", "p5"},          {"p6-b200", "p6-b200"},
                                   {"p6-b300", "p6-b300"}, {"GB300", "nd-gb300"}, {"GB200", "gb200-nvl72"},
                                   {"H200", "dgx-h200"},   {"A100", "dgx-a100"},  {"H100", "dgx-h100"},
                                   {"B300", "p6-b300"},    {"B200", "dgx-b200"}};

constexpr double kConflict = 1.25;  // between two runs of one size
constexpr std::array<const char*, 7> kNetworkWords{"EFA", "IB", "RoCE", "NDR", "HDR", "rack", "AWS"};

// Zero and an empty text mean that the row does not say.
struct CollectiveRow {
  static constexpr bool kForeign = true;
  std::string id, system, collective, algorithm, basis;
  std::int64_t gpus = 0, nodes = 1;
  double message_bytes = 0, time_us = 0;
  Bytes bytes() const { return Bytes{static_cast<std::int64_t>(message_bytes)}; }
  double seconds() const { return time_us * 1e-6; }
};
template <class V>
void describe(V& v, CollectiveRow& r) {
  v(Field{.name = "id", .help = "of the row"}, r.id);
  v(Field{.name = "system", .help = "what it ran on"}, r.system);
  v(Field{.name = "collective", .help = "which"}, r.collective);
  v(Field{.name = "algo", .help = "algorithm that was asked for"}, r.algorithm);
  v(Field{.name = "basis", .help = "\"measured\", or what the number is"}, r.basis);
  v(Field{.name = "gpus", .help = "GPUs that took part", .min = 1, .max = 1 << 20}, r.gpus);
  v(Field{.name = "nodes", .help = "nodes", .min = 1, .max = limits::kMostNodes}, r.nodes);
  v(Field{.name = "message_bytes", .help = "of the whole tensor", .min = 0, .max = limits::kLargestMessage},
    r.message_bytes);
  v(Field{.name = "time_us", .help = "microseconds", .min = 0, .max = limits::kLongestOp * 1e-6}, r.time_us);
}

struct Kind {
  const char* published;
  CollectiveKind kind;
};
constexpr Kind kKinds[] = {{"all_reduce", CollectiveKind::kAllReduce},
                           {"all_gather", CollectiveKind::kAllGather},
                           {"reduce_scatter", CollectiveKind::kReduceScatter},
                           {"alltoall", CollectiveKind::kAllToAll}};

std::optional<CollectiveKind> kind_of(const std::string& published) {
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                   [&](const Kind& k) { return published == k.published; });
  return found == std::end(kKinds) ? std::nullopt : std::optional(found->kind);
}

// The cluster that a row ran on: its nodes, the GPUs it used of each and their share of the NICs, which are
// as its name says ("4x200G") or as the topology has them.
Cluster cluster_of(const CollectiveRow& r, Cluster c) {
  std::smatch nics;
  static const std::regex pattern(R"((\d{1,3})x(\d{2,4})G)");
  if (std::regex_search(r.system, nics, pattern)) {
    c.nics = std::stol(nics[1]);
    c.nic_bandwidth = Bandwidth{c.nics * std::stol(nics[2]) * 1'000'000'000 / 8};
  }
  c.nodes = std::max(r.nodes, (r.gpus + c.devices_per_node - 1) / c.devices_per_node);
  if (r.nodes > 1) {
    const std::int64_t used = r.gpus / r.nodes;
    c.nics = std::max<std::int64_t>(1, c.nics * used / c.devices_per_node);
    c.nic_bandwidth = Bandwidth{mul_div(c.nic_bandwidth.value, used, c.devices_per_node)};
    c.devices_per_node = used;
  }
  if (r.algorithm == "Ring") c.in_network_gain = 0;  // NVLS was turned off
  std::erase_if(c.measured.measured, [&](const CollectiveCurve& curve) {
    return curve.system == r.system && curve.collective == kind_of(r.collective) && curve.ranks == r.gpus;
  });
  return c;
}

class CollectiveRows {
 public:
  CollectiveRows(const std::string& file, const DataFolders& data) : file_(file), data_(data) {}

  Validation read(const Json& rows) {
    Wanted wanted;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ++out_.read;
      const CollectiveRow r = read_fields<CollectiveRow>(rows[i], Cursor{file_, ""}.child(i));
      if (const char* reason = why_not(r); reason != nullptr) {
        ++out_.skipped[reason];
        continue;
      }
      wanted.emplace_back(r, kind_of(r.collective));
    }
    mark_conflicts(wanted);
    for (const auto& [row, kind] : wanted) predict(row, kind);
    return std::move(out_);
  }

 private:
  using Wanted = std::vector<std::pair<CollectiveRow, std::optional<CollectiveKind>>>;

  const char* why_not(const CollectiveRow& r) const {
    if (r.collective != "send_recv" && !kind_of(r.collective)) return "collective that is not modelled";
    if (r.gpus < 2 || r.time_us == 0 || r.bytes().value == 0) return "no size or time";
    if (!r.basis.starts_with("measured") && !r.basis.empty())
      return "a threshold or a statement, not measured";
    const auto* rule = rule_of(r.system);
    if (rule == std::end(kSystems)) return "no topology for the system";
    if (r.gpus % r.nodes != 0) return "GPUs do not fill the nodes evenly";
    const bool network = std::any_of(kNetworkWords.begin(), kNetworkWords.end(), [&](const char* word) {
      return r.system.find(word) != std::string::npos;
    });
    static const std::regex nics(R"(\d+x\d+G)");
    if (r.nodes > 1 && !network && !std::regex_search(r.system, nics))
      return "network between the nodes not stated";
    return nullptr;
  }

  static const SystemRule* rule_of(const std::string& system) {
    return std::find_if(std::begin(kSystems), std::end(kSystems),
                        [&](const SystemRule& s) { return system.find(s.pattern) != std::string::npos; });
  }

  void mark_conflicts(const Wanted& rows) {
    std::map<std::pair<std::string, std::int64_t>, std::pair<double, double>> spread;
    for (const auto& [r, kind] : rows) {
      const auto [found, added] = spread.try_emplace({key(r), r.bytes().value}, r.seconds(), r.seconds());
      auto& [least, most] = found->second;
      least = std::min(least, r.seconds());
      most = std::max(most, r.seconds());
      if (most > kConflict * least) conflicting_.insert(key(r));
    }
  }
  static std::string key(const CollectiveRow& r) {
    return fmt::format("{}|{}|{}|{}|{}", r.system, r.collective, r.gpus, r.nodes, r.algorithm);
  }

  void predict(const CollectiveRow& r, std::optional<CollectiveKind> kind) {
    const std::string topology_name = rule_of(r.system)->topology;
    const auto [cluster, added] = clusters_.try_emplace(topology_name);
    if (added) cluster->second = load_cluster(topology_name, {}, Cursor{file_, ""}, data_);
    if (r.gpus / r.nodes > cluster->second.scale_up_domain() ||
        (r.nodes > 1 && r.gpus / r.nodes > cluster->second.devices_per_node)) {
      ++out_.skipped["GPUs do not fill the nodes evenly"];
      return;
    }
    const Cluster c = cluster_of(r, cluster->second);
    const Topology topology(c);
    ValidationRow row;
    row.id = r.id;
    row.source = fmt::format("{}, {}", r.system.substr(0, 40), r.collective);
    row.quantity = "time";
    row.bytes = r.bytes().value;
    row.published = r.seconds();
    row.predicted = seconds(
        kind ? CollectiveModel(c).cost(*kind, r.bytes(), topology.group(r.gpus, 1)).time
             : transfer_cost(r.bytes(), topology.pairs(r.gpus / r.nodes, 2, 2 * r.gpus / r.nodes), c));
    if (!conflicting_.contains(key(r))) {
      out_.rows.push_back(std::move(row));
      return;
    }
    ++out_.skipped["published runs of the group disagree"];
    out_.conflicting.push_back(std::move(row));
  }

  const std::string& file_;
  const DataFolders& data_;
  Validation out_;
  std::map<std::string, Cluster> clusters_;
  std::set<std::string> conflicting_;
};

}  // namespace

Validation validate_collectives(const Json& rows, const std::string& file, const DataFolders& data) {
  return CollectiveRows(file, data).read(rows);
}

}  // namespace orrery::sim
