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
#include "core/loading.h"
#include "core/model.h"
#include "core/plan.h"
#include "core/published_fit.h"
#include "core/reliability.h"
#include "core/serving.h"
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
  std::vector<std::int64_t> tp, pp, vpp, dp, islands, cp, ulysses, ep, etp, micro_batch, zero, shard_group,
      recompute_layers, recompute_first, loss_chunks;
  std::vector<bool> sequence_parallel, reshard_after_forward, overlap_exchanges;
  std::vector<Schedule> schedule;
  std::vector<Recompute> recompute;
  std::vector<RecomputePart> recompute_parts;
  std::vector<RankOrder> rank_order;
  std::vector<ContextKeys> cp_keys;
  std::vector<ExpertExchange> expert_exchange;
  std::vector<Offload> offload;
  std::vector<std::int64_t> nodes;  // cluster sizes; empty: the cluster's own
  double memory_margin = 0.06;      // share of device memory kept free
  // Plans are ranked by the step time that they exceed with this probability, where one that does not fit
  // takes forever. 1: by the predicted time.
  double risk = 0.2;
};

// Whether some of what it tries lies in the hosts' memory.
bool offloads(const Search& search);
// Whether any lies on drives.
bool uses_drives(const Search& search);

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
  RunTime deadline{0};
  Dollars budget{0};
  std::optional<Dollars> node_hour;
  Dollars storage_per_gb_month{0};
  std::string stack = "megatron-core";
  std::optional<Plan> plan;  // a plan to evaluate and show beside the search's answer
  std::optional<Reliability> reliability;
  std::optional<Serving> serving;
  std::optional<Loading> loading;  // absent: samples are always there
};

template <class V>
void describe(V& v, Search& s) {
  const auto choices = [](const char* name, const char* help, double min = 0, double max = 1) {
    return Field{
        .name = name, .help = help, .min = min, .max = max, .most = limits::kMostChoices, .distinct = true};
  };
  v(choices("tp", "tensor-parallel degrees to try", 1, limits::kMostTensorRanks), s.tp);
  v(choices("pp", "pipeline depths to try", 1, limits::kMostLayers), s.pp);
  v(choices("vpp", "chunks per stage to try", 1, limits::kMostChunks), s.vpp);
  v(choices("dp", "data-parallel degrees to try", 1, limits::kMostReplicas), s.dp);
  v(choices("islands", "numbers of islands to try; none means 1", 1, limits::kMostIslands), s.islands);
  v(choices("cp", "context-parallel degrees to try; none means degrees that leave a rank 8192 tokens", 1,
            limits::kMostContextRanks),
    s.cp);
  v(choices("ulysses", "of these, numbers of ranks that exchange heads to try; none means 1 and cp", 1,
            limits::kMostContextRanks),
    s.ulysses);
  v(choices("cp_keys", "how keys and values pass between the others to try"), s.cp_keys);
  v(choices("ep", "numbers of ranks that share the experts to try", 1, limits::kMostReplicas), s.ep);
  v(choices("etp", "numbers of ranks that share an expert's columns to try; none means tp and 1", 1,
            limits::kMostTensorRanks),
    s.etp);
  v(choices("expert_exchange",
            "how rows of tokens go to their experts to try; none means by node where the stack does that"),
    s.expert_exchange);
  v(choices("overlap_exchanges",
            "whether to try with and without exchanges beside the compute of another micro-batch"),
    s.overlap_exchanges);
  v(choices("micro_batch", "micro-batch sizes to try", 1, limits::kMostMicroBatch), s.micro_batch);
  v(choices("zero", "ZeRO stages to try", 0, 3), s.zero);
  v(choices("shard_group", "shard group sizes to try; 0 means dp", 0, limits::kMostReplicas), s.shard_group);
  v(choices("reshard_after_forward",
            "whether ZeRO-3 gathers parameters anew for the backward pass; none means it does"),
    s.reshard_after_forward);
  v(choices("recompute_layers", "strides of full recomputation to try", 1, limits::kMostLayers),
    s.recompute_layers);
  v(choices(
        "recompute_first",
        "numbers of first layers of a chunk that full recomputation repeats, the same of all chunks; empty "
        "means whatever is best, 0 means all",
        0, limits::kMostLayers),
    s.recompute_first);
  v(choices("loss_chunks", "numbers of parts that rows go through the loss in to try; none means 1", 1,
            limits::kMostLossChunks),
    s.loss_chunks);
  v(choices("sequence_parallel", "whether to try with and without sequence parallelism"),
    s.sequence_parallel);
  v(choices("schedule", "pipeline schedules to try"), s.schedule);
  v(choices("recompute", "recomputation modes to try"), s.recompute);
  v(choices("recompute_parts", "parts of layers that selective recomputation may repeat"), s.recompute_parts);
  v(choices("offload", "what to try in the hosts' memory; none means nothing"), s.offload);
  v(choices("rank_order", "placements to try"), s.rank_order);
  v(choices("nodes", "cluster sizes to try", 1, limits::kMostNodes), s.nodes);
  v(Field{.name = "memory_margin", .help = "share of device memory kept free", .min = 0, .max = 0.9},
    s.memory_margin);
  v(Field{.name = "risk",
          .help = "probability that the chosen plan takes longer than the time it is ranked by, or does not "
                  "fit; 1: ranked by the predicted time",
          .min = 0.01,
          .max = 1},
    s.risk);
}

template <class V>
void describe(V& v, ClusterChoice& c) {
  v(Field{.name = "topology", .help = "a topology's name or file", .required = true}, c.topology);
  v(Field{.name = "nodes",
          .help = "nodes to use; 0 means the topology's own count",
          .min = 0,
          .max = limits::kMostNodes},
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
  v(Field{.name = "deadline", .help = "for cost-by-deadline", .min = 0, .max = limits::kLongestRun},
    s.deadline);
  v(Field{.name = "budget", .help = "for time-in-budget", .min = 0, .max = limits::kLargestBudget}, s.budget);
  v(Field{.name = "node_hour",
          .help = "price of a node for an hour, over the topology's",
          .min = 0,
          .max = limits::kHighestPrice},
    s.node_hour);
  v(Field{.name = "storage_per_gb_month",
          .help = "price of checkpoint storage",
          .min = 0,
          .max = limits::kHighestPrice},
    s.storage_per_gb_month);
  v(Field{.name = "stack", .help = "software that will run the plan"}, s.stack);
  v(Field{.name = "plan", .help = "a plan to evaluate beside the search's answer"}, s.plan);
  v(Field{.name = "reliability", .help = "failures, checkpoints, restarts and prices of the run"},
    s.reliability);
  v(Field{.name = "serving", .help = "requests, bounds and formats of serving the model"}, s.serving);
  v(Field{.name = "loading",
          .help = "how samples are read, decoded and kept ready; absent: they are always there"},
    s.loading);
}

// A scenario with everything it names loaded.
struct Problem {
  Scenario scenario;
  Cluster cluster;
  std::vector<Device> devices;  // by type of node (Cluster::type)
  Stack stack;
  MeasuredRange measured;   // how far published runs like these were from their prediction
  PredictionSpread spread;  // and what a choice among plans risks
  Cursor at;                // where the scenario stands

  // "h100-sxm", or "h100-sxm + a100-80gb": of the nodes that there are.
  std::string device_names() const;
  // "32 h100-sxm", or "16 h100-sxm + 16 a100-80gb".
  std::string counted_devices() const;
};

// Folders that hold profiles/, topologies/ and scenarios/: $ORRERY_DATA, the one that is installed with this
// program, the source tree, the one that was installed with the library.
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
// Loads what the scenario at `at` names. Throws InputError where the parts do not fit each other.
Problem resolve(Scenario scenario, const Cursor& at, const DataFolders& data);
// Fails where tokens do not see those before them alone, attention in chunks would cut documents, or no
// length was recorded. `sequence`: tokens.
void check_documents(const Model& model, const Documents& documents, std::int64_t sequence, const Cursor& at);
// Fails where the load is none of the model's layers.
void check_expert_load(const Model& model, const ExpertLoad& load, const Cursor& at);
// Fails where the tensors of a step have more bytes than are counted.
void check_step(const Problem& problem, const Cursor& at);
// Fails where the goal needs a field that is missing or zero.
void check_goal(const Problem& problem, const Cursor& at);
// What the goal makes no use of: a sentence for each.
std::vector<std::string> ignored_limits(const Scenario& scenario);
// Fails where a plan has more ranks than the cluster has devices.
void check_ranks(const Plan& plan, const Cluster& cluster, const Cursor& at);
Cluster load_cluster(const std::string& name, const std::filesystem::path& base, const Cursor& at,
                     const DataFolders& data);
// The device of each type of node.
std::vector<Device> load_devices(const Cluster& cluster, const DataFolders& data);
// `base`: the folder of the file that names it, where a path is one from there.
Device load_device(const std::string& name, const Cursor& at, const DataFolders& data,
                   const std::filesystem::path& base = {});
// Fails where a measured curve has not one time for each of its ascending sizes.
LinkProfile read_links(const Json& json, const Cursor& at);
LinkProfile load_links(const std::string& name, const Cursor& at, const DataFolders& data,
                       const std::filesystem::path& base = {});
// profiles/fits/published.json. Throws InputError.
PublishedFitFile load_published_fit(const DataFolders& data);
// Of runs with the stack and the devices: what the stack says, or published runs. Throws Error.
MeasuredRange measured_range(const Stack& stack, const std::vector<Device>& devices,
                             const PublishedFitFile& fit);
// Of plans of the stack. Our engine's memory is known to the byte.
PredictionSpread prediction_spread(const Stack& stack, const PublishedFitFile& fit);

// Fails where the problem's stack cannot run its model and training, or a plan with them: at a field of the
// scenario, or of the plan.
void check_stack(const Problem& problem, const std::optional<Plan>& plan, const Cursor& scenario,
                 const Cursor& plan_at);
Stack load_stack(const std::string& name, const Cursor& at, const DataFolders& data);

ORRERY_FIELDS(extern, Search);
ORRERY_FIELDS(extern, Scenario);

}  // namespace orrery
