// SPDX-License-Identifier: Apache-2.0
//
// A plan on disk: the scenario it answers, the plan, and what was predicted for it. Self-contained, so
// simulate, run and export need nothing else. Schema "orrery.plan/1".
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/scenario.h"

namespace orrery {

// Peak memory of one pipeline stage, split by class at the moment of the peak. Bytes.
struct StageMemory {
  std::int64_t stage = 0;
  std::int64_t total = 0;  // with context, communicators and allocator overhead
  std::int64_t parameter = 0, gradient = 0, optimizer = 0, activation = 0, workspace = 0, communication = 0;
  std::int64_t overhead = 0;
  std::int64_t host = 0;    // in the host's memory, of one device
  std::int64_t drives = 0;  // on the host's drives
};

// What compute may wait for, as reports name it: communication along an axis of ranks, other stages (bubble
// included), or the host and the copies to and from it.
struct WaitedAxis {
  enum class Of : std::uint8_t { kAxis, kStages, kHost };
  const char* axis;
  const char *field, *help;  // of the JSON
  const char *label, *shorter, *words;
  Of of;
};
inline constexpr std::array kWaitedAxes{
    WaitedAxis{"tp", "exposed_tp_s", "seconds compute waited for tensor-parallel collectives", "exposed TP",
               "tp", "exposed tensor-parallel communication", WaitedAxis::Of::kAxis},
    WaitedAxis{"dp", "exposed_dp_s", "seconds compute waited for data-parallel collectives", "exposed DP",
               "dp", "exposed data-parallel communication", WaitedAxis::Of::kAxis},
    WaitedAxis{"cp", "exposed_cp_s", "seconds compute waited for other ranks that share its sequences",
               "exposed CP", "cp", "exposed context-parallel communication", WaitedAxis::Of::kAxis},
    WaitedAxis{"ep", "exposed_ep_s", "seconds compute waited for exchanges between the ranks of experts",
               "exposed EP", "ep", "exposed expert-parallel communication", WaitedAxis::Of::kAxis},
    WaitedAxis{"pp", "exposed_pp_s", "seconds compute waited for other stages: bubble and transfers",
               "bubble + PP", "pipeline", "pipeline bubble and transfers", WaitedAxis::Of::kStages},
    WaitedAxis{"host", "exposed_host_s",
               "seconds compute waited for the host's updates and copies to and from it", "offload",
               "offload", "the host's updates and copies to and from it", WaitedAxis::Of::kHost}};

// Where the slowest stage spends the step; the parts add up to the step.
struct Breakdown {
  double forward_s = 0, backward_s = 0, recompute_s = 0, optimizer_s = 0;
  std::array<double, kWaitedAxes.size()> exposed_s{};  // by axis
  double host_s = 0;
  double loading_s = 0;
  double islands_s = 0;
  double documents_s = 0;
};

// What islands' exchange does to the step (core/outer.h).
struct IslandExchange {
  std::int64_t every = 1;  // steps
  std::int64_t bytes = 0;  // that a rank exchanges: of its shard, of the stage that has most
  double exchange_s = 0;   // of one exchange
  double step_s = 0;       // of a step without its share
};

// What tokens that fall unevenly on experts do to a step (Training::expert_load).
struct Imbalance {
  double even_s = 0;                         // the step, were they even
  double mean_s = 0, low_s = 0, high_s = 0;  // of steps whose loads were drawn; 80 % lie between
  double load = 1;     // rows of a layer's fullest rank over the mean of all, in the mean
  double fullest = 1;  // in the draws, of any layer
  double room = 1;     // that the plan has
};

// What documents of unequal length do to a step (Training::documents; sim/document_loads.h).
struct DocumentWait {
  double within = 1;                         // of the pairs of tokens of a sequence, those of one document
  double wait_s = 0;                         // that the step takes longer in the mean
  double even_s = 0;                         // the step, were all sequences mean ones
  double mean_s = 0, low_s = 0, high_s = 0;  // of steps whose documents were drawn; 80 % lie between
};

struct Predicted {
  double step_time_s = 0;
  double step_time_low_s = 0, step_time_high_s = 0;  // 80 % of measured runs would lie between
  double tokens_per_s = 0;
  double mfu = 0, hfu = 0;  // full attention counted; of the dense peak of the math format
  std::int64_t peak_memory_bytes = 0;
  double fits_probability = 1;  // that the plan fits, as published memory spreads about its prediction
  std::vector<StageMemory> memory;
  Breakdown breakdown;
  double days = 0;      // zero when the scenario has no token budget
  double cost_usd = 0;  // of the run; zero when days or the price is unknown
  double cost_per_step_usd = 0;
  std::optional<Imbalance> imbalance;     // where experts lie over ranks and tokens fall on them unevenly
  std::optional<DocumentWait> documents;  // where sequences are packed from documents
  std::optional<IslandExchange> islands;  // where the plan has several
  std::optional<LoadedStep> loading;      // where the scenario says how samples come
};

struct PlanFile {
  Scenario scenario;
  Plan plan;
  Predicted predicted;
  std::string device_profile, predicted_by;
  std::string scenario_hash;
};

template <class V>
void describe(V& v, StageMemory& m) {
  constexpr double kMostBytes = 1LL << 60;
  v(Field{.name = "stage", .help = "pipeline stage", .min = 0, .max = limits::kMostLayers}, m.stage);
  v(Field{.name = "total", .help = "bytes with all overheads", .min = 0, .max = kMostBytes}, m.total);
  v(Field{.name = "parameter", .help = "bytes", .min = 0, .max = kMostBytes}, m.parameter);
  v(Field{.name = "gradient", .help = "bytes", .min = 0, .max = kMostBytes}, m.gradient);
  v(Field{.name = "optimizer", .help = "bytes", .min = 0, .max = kMostBytes}, m.optimizer);
  v(Field{.name = "activation", .help = "bytes kept for the backward pass", .min = 0, .max = kMostBytes},
    m.activation);
  v(Field{.name = "workspace", .help = "bytes of transient tensors", .min = 0, .max = kMostBytes},
    m.workspace);
  v(Field{.name = "communication", .help = "bytes of communication buffers", .min = 0, .max = kMostBytes},
    m.communication);
  v(Field{.name = "overhead", .help = "context, communicators, allocator", .min = 0, .max = kMostBytes},
    m.overhead);
  v(Field{.name = "host", .help = "bytes in the host's memory, of one device", .min = 0, .max = kMostBytes},
    m.host);
  v(Field{.name = "drives", .help = "bytes on the host's drives, of one device", .min = 0, .max = kMostBytes},
    m.drives);
}
template <class V>
void describe(V& v, Breakdown& b) {
  v(Field{.name = "forward_s", .help = "seconds"}, b.forward_s);
  v(Field{.name = "backward_s", .help = "seconds"}, b.backward_s);
  v(Field{.name = "recompute_s", .help = "seconds"}, b.recompute_s);
  v(Field{.name = "optimizer_s", .help = "seconds"}, b.optimizer_s);
  for (std::size_t i = 0; i < kWaitedAxes.size(); ++i)
    v(Field{.name = kWaitedAxes[i].field, .help = kWaitedAxes[i].help}, b.exposed_s[i]);
  v(Field{.name = "host_s", .help = "seconds compute waited to be launched"}, b.host_s);
  v(Field{.name = "loading_s", .help = "seconds the step waited for its samples"}, b.loading_s);
  v(Field{.name = "islands_s", .help = "seconds of exchanges between islands, of a step in the mean"},
    b.islands_s);
  v(Field{.name = "documents_s", .help = "seconds that documents of unequal length add"}, b.documents_s);
}
template <class V>
void describe(V& v, IslandExchange& i) {
  v(Field{.name = "every", .help = "steps between exchanges", .min = 1, .max = 1 << 20}, i.every);
  v(Field{.name = "bytes", .help = "that a rank of the fullest stage exchanges", .min = 0, .max = 1LL << 60},
    i.bytes);
  v(Field{.name = "exchange_s", .help = "seconds of one exchange"}, i.exchange_s);
  v(Field{.name = "step_s", .help = "seconds of a step without its share"}, i.step_s);
}
template <class V>
void describe(V& v, Imbalance& i) {
  v(Field{.name = "even_s", .help = "seconds of the step, had all experts as many rows"}, i.even_s);
  v(Field{.name = "mean_s", .help = "seconds, of steps whose loads were drawn"}, i.mean_s);
  v(Field{.name = "low_s", .help = "seconds: 80 % of these steps take longer than this and"}, i.low_s);
  v(Field{.name = "high_s", .help = "no longer than this"}, i.high_s);
  v(Field{.name = "load", .help = "rows of a layer's fullest rank over the mean of all ranks, in the mean"},
    i.load);
  v(Field{.name = "fullest", .help = "the same of the fullest layer of all draws"}, i.fullest);
  v(Field{.name = "room", .help = "that the plan has (expert_room)"}, i.room);
}
template <class V>
void describe(V& v, DocumentWait& d) {
  v(Field{.name = "within",
          .help = "of the pairs of tokens that a sequence has, those of one document, in the mean",
          .min = 0,
          .max = 1},
    d.within);
  v(Field{.name = "wait_s", .help = "seconds that the step takes longer in the mean"}, d.wait_s);
  v(Field{.name = "even_s", .help = "seconds of the step, were all sequences mean ones"}, d.even_s);
  v(Field{.name = "mean_s", .help = "seconds, of steps whose documents were drawn; 0: none were"}, d.mean_s);
  v(Field{.name = "low_s", .help = "seconds: 80 % of these steps take longer than this and"}, d.low_s);
  v(Field{.name = "high_s", .help = "no longer than this"}, d.high_s);
}
template <class V>
void describe(V& v, Predicted& p) {
  v(Field{.name = "step_time_s", .help = "seconds"}, p.step_time_s);
  v(Field{.name = "step_time_low_s", .help = "80 % of measured runs would take longer than this and"},
    p.step_time_low_s);
  v(Field{.name = "step_time_high_s", .help = "no longer than this, by the stack's record"},
    p.step_time_high_s);
  v(Field{.name = "tokens_per_s", .help = "of the whole cluster"}, p.tokens_per_s);
  v(Field{.name = "mfu", .help = "model FLOPs over peak, full attention"}, p.mfu);
  v(Field{.name = "hfu", .help = "executed FLOPs over peak"}, p.hfu);
  v(Field{.name = "peak_memory_bytes", .help = "of the fullest rank", .min = 0, .max = 1LL << 60},
    p.peak_memory_bytes);
  v(Field{.name = "fits_probability", .help = "that the plan fits into memory", .min = 0, .max = 1},
    p.fits_probability);
  v(Field{.name = "memory", .help = "by stage", .most = static_cast<std::size_t>(limits::kMostLayers)},
    p.memory);
  v(Field{.name = "breakdown", .help = "of the slowest stage's step"}, p.breakdown);
  v(Field{.name = "days", .help = "of the whole run"}, p.days);
  v(Field{.name = "cost_usd", .help = "of the whole run"}, p.cost_usd);
  v(Field{.name = "cost_per_step_usd", .help = "of one step"}, p.cost_per_step_usd);
  v(Field{.name = "imbalance", .help = "what tokens do that fall unevenly on experts"}, p.imbalance);
  v(Field{.name = "documents", .help = "what documents of unequal length do to the step"}, p.documents);
  v(Field{.name = "islands", .help = "what exchanges between islands do to the step"}, p.islands);
  v(Field{.name = "loading", .help = "what loading its samples does to the step"}, p.loading);
}
template <class V>
void describe(V& v, PlanFile& f) {
  v(Field{.name = "scenario", .help = "the question", .required = true}, f.scenario);
  v(Field{.name = "plan", .help = "the answer", .required = true}, f.plan);
  v(Field{.name = "predicted", .help = "what was predicted for it"}, f.predicted);
  v(Field{.name = "device_profile", .help = "profile that predicted it"}, f.device_profile);
  v(Field{.name = "predicted_by", .help = "estimate or engine"}, f.predicted_by);
  v(Field{.name = "scenario_hash", .help = "hash of the scenario"}, f.scenario_hash);
}

ORRERY_FIELDS(extern, Predicted);
ORRERY_FIELDS(extern, PlanFile);

}  // namespace orrery
