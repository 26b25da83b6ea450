// SPDX-License-Identifier: Apache-2.0
//
// A scenario: the question. Model, cluster, training, what the search may vary, the goal, prices and
// the software stack. Everything but model, cluster and training has a default.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/cluster.h"
#include "core/device.h"
#include "core/fields.h"
#include "core/model.h"
#include "core/plan.h"
#include "core/stack.h"
#include "core/training.h"

namespace orrery {

enum class Goal { kTime, kCost, kCostByDeadline, kTimeInBudget, kSmallest };
constexpr auto enum_names(Goal) {
  return std::array{std::pair{Goal::kTime, "time"}, std::pair{Goal::kCost, "cost"},
                    std::pair{Goal::kCostByDeadline, "cost-by-deadline"},
                    std::pair{Goal::kTimeInBudget, "time-in-budget"}, std::pair{Goal::kSmallest, "smallest"}};
}

// What the search may vary. An empty list means every value that makes sense.
struct Search {
  std::vector<std::int64_t> tp, pp, vpp, dp, micro_batch, zero, shard_group, recompute_layers;
  std::vector<bool> sequence_parallel;
  std::vector<Schedule> schedule;
  std::vector<Recompute> recompute;
  std::vector<RankOrder> rank_order;
  std::vector<std::int64_t> nodes;  // cluster sizes; empty: the cluster's own
  double memory_margin = 0.06;      // share of device memory kept free
};

struct ClusterChoice {
  std::string topology;
  std::int64_t nodes = 0;  // 0: the topology's own count
};

struct Scenario {
  std::string name;
  Model model;
  ClusterChoice cluster;
  Training training;
  Search search;
  Goal goal = Goal::kTime;
  Time deadline{0};
  Dollars budget{0};
  std::optional<Dollars> node_hour;
  Dollars storage_per_gb_month{0};
  std::string stack = "megatron-core";
  std::optional<Plan> plan;  // a plan to evaluate and show beside the search's answer
};

template <class V>
void describe(V& v, Search& s) {
  constexpr double kMost = 1 << 24;
  v(Field{.name = "tp", .help = "tensor-parallel degrees to try", .min = 1, .max = kMost}, s.tp);
  v(Field{.name = "pp", .help = "pipeline depths to try", .min = 1, .max = kMost}, s.pp);
  v(Field{.name = "vpp", .help = "chunks per stage to try", .min = 1, .max = kMost}, s.vpp);
  v(Field{.name = "dp", .help = "data-parallel degrees to try", .min = 1, .max = kMost}, s.dp);
  v(Field{.name = "micro_batch", .help = "micro-batch sizes to try", .min = 1, .max = kMost}, s.micro_batch);
  v(Field{.name = "zero", .help = "ZeRO stages to try", .min = 0, .max = 3}, s.zero);
  v(Field{.name = "shard_group", .help = "shard group sizes to try; 0 means dp", .min = 0, .max = kMost},
    s.shard_group);
  v(Field{.name = "recompute_layers", .help = "strides of full recomputation to try", .min = 1, .max = 10000},
    s.recompute_layers);
  v(Field{.name = "sequence_parallel", .help = "whether to try with and without sequence parallelism"},
    s.sequence_parallel);
  v(Field{.name = "schedule", .help = "pipeline schedules to try"}, s.schedule);
  v(Field{.name = "recompute", .help = "recomputation modes to try"}, s.recompute);
  v(Field{.name = "rank_order", .help = "placements to try"}, s.rank_order);
  v(Field{.name = "nodes", .help = "cluster sizes to try", .min = 1, .max = kMost}, s.nodes);
  v(Field{.name = "memory_margin", .help = "share of device memory kept free", .min = 0, .max = 0.9},
    s.memory_margin);
}

template <class V>
void describe(V& v, ClusterChoice& c) {
  v(Field{.name = "topology", .help = "a topology's name or file", .required = true}, c.topology);
  v(Field{.name = "nodes",
          .help = "nodes to use; 0 means the topology's own count",
          .min = 0,
          .max = 1 << 20},
    c.nodes);
}

template <class V>
void describe(V& v, Scenario& s) {
  v(Field{.name = "name", .help = "label used in reports"}, s.name);
  v(Field{.name = "model", .help = "preset, Hugging Face config, or explicit fields", .required = true},
    s.model);
  v(Field{.name = "cluster", .help = "where it runs", .required = true}, s.cluster);
  v(Field{.name = "training", .help = "what a step computes", .required = true}, s.training);
  v(Field{.name = "search", .help = "what may vary"}, s.search);
  v(Field{.name = "goal", .help = "what the best plan minimises"}, s.goal);
  v(Field{.name = "deadline", .help = "for cost-by-deadline", .min = 0}, s.deadline);
  v(Field{.name = "budget", .help = "for time-in-budget", .min = 0}, s.budget);
  v(Field{.name = "node_hour", .help = "price of a node for an hour, over the topology's", .min = 0},
    s.node_hour);
  v(Field{.name = "storage_per_gb_month", .help = "price of checkpoint storage", .min = 0},
    s.storage_per_gb_month);
  v(Field{.name = "stack", .help = "software that will run the plan"}, s.stack);
  v(Field{.name = "plan", .help = "a plan to evaluate beside the search's answer"}, s.plan);
}

// A scenario with everything it names loaded.
struct Problem {
  Scenario scenario;
  Cluster cluster;
  Device device;
  Stack stack;
};

// Folders that hold profiles/, topologies/ and scenarios/: $ORRERY_DATA, the source tree, the install.
class DataFolders {
 public:
  DataFolders();
  explicit DataFolders(std::filesystem::path root) : roots_{std::move(root)} {}
  // Names (file stems) found in `folder`, sorted.
  std::vector<std::string> names(const std::string& folder) const;
  // The file for a name, or `name` itself when it is a path relative to `base` that exists; fails at
  // `at` with the nearest name.
  std::filesystem::path find(const std::string& folder, const std::string& name,
                             const std::filesystem::path& base, const Cursor& at) const;

 private:
  std::vector<std::filesystem::path> roots_;
};

Scenario read_scenario(const Json& json, const Cursor& at);
Problem load_problem(const std::filesystem::path& file, const DataFolders& data);
Problem resolve(Scenario scenario, const std::string& file, const DataFolders& data);
Cluster load_cluster(const std::string& name, const std::filesystem::path& base, const Cursor& at,
                     const DataFolders& data);
// `base`: the folder of the file that names it, where a path is one from there.
Device load_device(const std::string& name, const Cursor& at, const DataFolders& data,
                   const std::filesystem::path& base = {});
// Fails where a measured curve has not one time for each of its ascending sizes.
LinkProfile read_links(const Json& json, const Cursor& at);
LinkProfile load_links(const std::string& name, const Cursor& at, const DataFolders& data,
                       const std::filesystem::path& base = {});
Stack load_stack(const std::string& name, const Cursor& at, const DataFolders& data);

}  // namespace orrery
