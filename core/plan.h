// SPDX-License-Identifier: Apache-2.0
//
// A plan: how one training step is laid out over ranks and time. The ranks are tp * cp * dp * pp * islands;
// each pipeline stage holds vpp model chunks; each replica runs `micro_batches` micro-batches of
// `micro_batch` sequences, so the global batch is micro_batch * micro_batches * dp * islands.
//
// Islands train copies of the model, each with dp replicas of its own, and exchange what they have learned
// every so many steps (core/outer.h). What is said of replicas, shards and experts is said of one island.
//
// cp ranks have parts of the same sequences (context parallelism), and copies of the same weights, as the dp
// replicas have. In attention, where tokens meet, `ulysses` of them exchange heads for tokens by all-to-alls
// (Jacobs et al. 2023, arXiv:2309.14509), and keys and values pass between the cp / ulysses others as
// `cp_keys` says: around a ring (Liu et al. 2023, arXiv:2310.01889), or gathered before (Llama 3, Grattafiori
// et al. 2024, arXiv:2407.21783). Both at once: Fang and Zhao 2024, arXiv:2405.07719.
//
// Experts lie over the tp * cp * dp ranks of a stage on their own: etp ranks have columns of each expert, ep
// ranks have some of the experts each, and etp * ep ranks together are one of the copies of all experts
// ("parallel folding", Liu et al. 2025, arXiv:2504.14960).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"
#include "core/offload.h"
#include "core/recompute.h"
#include "core/schedule_order.h"

namespace orrery {

enum class Schedule { kNaive, kGPipe, k1F1B, kInterleaved, kZeroBubbleH1, kZeroBubbleV, kDualPipeV, kListed };
// How keys and values pass between ranks that share sequences.
enum class ContextKeys { kRing, kAllGather };
// How rows of tokens go to their experts: each by itself, or once to each node that has some of a token's
// experts, and inside it to them (DeepEP, HybridEP).
enum class ExpertExchange { kFlat, kByNode };
// Fastest-varying axis first, as in Megatron's "tp-dp-pp"; "dp" stands for cp and then dp.
enum class RankOrder { kTpDpPp, kTpPpDp, kDpTpPp, kPpTpDp };

constexpr auto enum_names(Schedule) {
  return std::array{std::pair{Schedule::kNaive, "naive"},
                    std::pair{Schedule::kGPipe, "gpipe"},
                    std::pair{Schedule::k1F1B, "1f1b"},
                    std::pair{Schedule::kInterleaved, "interleaved"},
                    std::pair{Schedule::kZeroBubbleH1, "zb-h1"},
                    std::pair{Schedule::kZeroBubbleV, "zb-v"},
                    std::pair{Schedule::kDualPipeV, "dualpipe-v"},
                    std::pair{Schedule::kListed, "listed"}};
}
constexpr auto enum_names(ContextKeys) {
  return std::array{std::pair{ContextKeys::kRing, "ring"}, std::pair{ContextKeys::kAllGather, "all-gather"}};
}
constexpr auto enum_names(ExpertExchange) {
  return std::array{std::pair{ExpertExchange::kFlat, "flat"}, std::pair{ExpertExchange::kByNode, "by-node"}};
}
// What passes between the ranks that share a sequence, where tokens meet: keys and values, heads, or both.
enum class ContextWay { kRing, kAllGather, kUlysses, kRingUlysses, kAllGatherUlysses };
constexpr auto enum_names(ContextWay) {
  using enum ContextWay;
  return std::array{std::pair{kRing, "ring"}, std::pair{kAllGather, "all-gather"},
                    std::pair{kUlysses, "ulysses"}, std::pair{kRingUlysses, "ring-ulysses"},
                    std::pair{kAllGatherUlysses, "all-gather-ulysses"}};
}
constexpr auto enum_names(RankOrder) {
  return std::array{std::pair{RankOrder::kTpDpPp, "tp-dp-pp"}, std::pair{RankOrder::kTpPpDp, "tp-pp-dp"},
                    std::pair{RankOrder::kDpTpPp, "dp-tp-pp"}, std::pair{RankOrder::kPpTpDp, "pp-tp-dp"}};
}

// How tensor ranks split the tables of embedding bags: each has rows of every table, columns of every table,
// or some of the tables.
enum class TableSplit { kRows, kColumns, kTables };
constexpr auto enum_names(TableSplit) {
  return std::array{std::pair{TableSplit::kRows, "rows"}, std::pair{TableSplit::kColumns, "columns"},
                    std::pair{TableSplit::kTables, "tables"}};
}

struct Plan {
  std::int64_t tp = 1, pp = 1, vpp = 1, dp = 1;
  std::int64_t islands = 1;            // that train on their own between exchanges
  std::int64_t cp = 1;                 // ranks that share a sequence
  std::int64_t ulysses = 1;            // of them, ranks that exchange heads for tokens
  std::optional<ContextKeys> cp_keys;  // none: a ring
  std::int64_t ep = 1;                 // ranks that share the experts
  std::optional<std::int64_t> etp;     // ranks that share an expert's columns; none: tp
  // Rows of tokens that a rank has room for from each of the ep ranks, in even shares of what they send.
  // None: one, where experts have no capacity of their own; a run takes the most that can come.
  std::optional<double> expert_room;
  std::optional<ExpertExchange> expert_exchange;  // none: flat
  // Exchanges between the ranks of experts run beside compute of another micro-batch: a forward and the
  // backward behind it in the schedule run side by side.
  bool overlap_exchanges = false;
  bool sequence_parallel = false;
  std::int64_t zero = 0;         // ZeRO stage
  std::int64_t shard_group = 0;  // replicas that share ZeRO's shards, with all their cp ranks; 0: all of dp
  // Of ZeRO-3: whether parameters are gathered anew for the backward pass (FSDP's term). Kept, they take the
  // memory of all, and are gathered once a micro-batch. None: they are gathered anew.
  std::optional<bool> reshard_after_forward;
  std::optional<TableSplit> table_split;  // none: by rows
  std::int64_t micro_batch = 1;           // sequences
  std::int64_t micro_batches = 1;         // per replica and step
  Schedule schedule = Schedule::k1F1B;
  std::optional<ScheduleOrder> schedule_order;  // of a listed schedule
  Recompute recompute = Recompute::kNone;
  std::vector<RecomputePart> recompute_parts;  // of selective recomputation; empty: core-attn
  std::int64_t recompute_layers = 1;           // full recomputation keeps every k-th layer's input
  std::int64_t recompute_first = 0;            // and repeats the first so many of each chunk; 0: all
  // Or so many of each of the pp * vpp chunks in model order; empty: recompute_first says how many.
  std::vector<std::int64_t> recompute_by_chunk;
  // Parts of a micro-batch's rows that go through the product with the head's weight and the loss one after
  // the other, each with its gradient, so that one part's logits alone are in memory. 1: all at once.
  std::int64_t loss_chunks = 1;
  // Each unit of parameters is updated as soon as the backward pass has its gradient, whose memory the next
  // one takes.
  bool update_in_backward = false;
  std::optional<Offload> offload;  // none: all is in the devices' memory
  RankOrder rank_order = RankOrder::kTpDpPp;
  // Layers of each of the pp * vpp chunks in model order; empty: as even as possible.
  std::vector<std::int64_t> chunk_layers;

  std::int64_t ranks() const { return tp * pp * copies() * islands; }
  std::int64_t copies() const { return cp * dp; }  // ranks that have the same weights, or shards of them
  std::int64_t replicas() const { return dp * islands; }  // of all islands
  std::int64_t global_batch() const { return micro_batch * micro_batches * replicas(); }
  // Parts of layers that selective recomputation repeats.
  RecomputeParts repeated() const {
    if (recompute != Recompute::kSelective) return {};
    return recompute_parts.empty() ? RecomputePart::kCoreAttention : RecomputeParts(recompute_parts);
  }
  bool reshards() const { return reshard_after_forward.value_or(true); }
  // Ranks that share ZeRO's shards.
  std::int64_t shards() const { return zero == 0 ? 1 : (shard_group > 0 ? shard_group : dp) * cp; }
  std::int64_t ring() const { return cp / ulysses; }
  // Whether keys and values go around a ring of ranks.
  bool rings() const { return ring() > 1 && cp_keys.value_or(ContextKeys::kRing) == ContextKeys::kRing; }
  ContextWay context_way() const {  // where cp is more than 1
    if (ring() == 1) return ContextWay::kUlysses;
    if (ulysses == 1) return rings() ? ContextWay::kRing : ContextWay::kAllGather;
    return rings() ? ContextWay::kRingUlysses : ContextWay::kAllGatherUlysses;
  }
  std::int64_t expert_tp() const { return etp.value_or(tp); }
  // Ranks of a copy of all experts.
  std::int64_t expert_ranks() const { return ep * expert_tp(); }
  // Whether experts lie over the ranks otherwise than other weights do.
  bool splits_experts() const { return ep > 1 || expert_tp() != tp; }
  bool exchanges_by_node() const { return expert_exchange == ExpertExchange::kByNode; }
  // What lies in the hosts' memory.
  double offloaded_optimizer() const { return offload ? offload->optimizer : 0; }
  bool offloads() const { return offload && *offload != Offload{}; }
  bool offloads_parameters() const { return offload && offload->parameters; }
  std::int64_t offloaded_layers() const { return offload ? offload->activation_layers : 0; }
  bool optimizer_on_drives() const { return offload && offload->nvme != OnDrives::kNothing; }
  bool parameters_on_drives() const { return offload && offload->nvme == OnDrives::kAll; }
  // Copies of experts, each on the ranks of a stage that share them.
  std::int64_t expert_dp() const { return tp * copies() / expert_ranks(); }
  // Ranks that share ZeRO's shards of experts: those that share shards of other weights and have the same
  // experts.
  std::int64_t expert_shards() const {
    return zero == 0 ? 1 : std::max(tp * shards(), expert_ranks()) / expert_ranks();
  }
  friend bool operator==(const Plan&, const Plan&) = default;
};

template <class V>
void describe(V& v, Plan& p) {
  v(Field{.name = "tp", .help = "tensor-parallel degree", .min = 1, .max = limits::kMostTensorRanks}, p.tp);
  v(Field{.name = "pp", .help = "pipeline stages", .min = 1, .max = limits::kMostLayers}, p.pp);
  v(Field{.name = "vpp", .help = "model chunks per stage", .min = 1, .max = limits::kMostChunks}, p.vpp);
  v(Field{.name = "dp", .help = "data-parallel replicas", .min = 1, .max = limits::kMostReplicas}, p.dp);
  v(Field{.name = "islands",
          .help = "groups of dp replicas that train on their own between exchanges of training.outer",
          .min = 1,
          .max = limits::kMostIslands},
    p.islands);
  v(Field{.name = "cp",
          .help = "context-parallel degree: ranks that share a sequence",
          .min = 1,
          .max = limits::kMostContextRanks},
    p.cp);
  v(Field{.name = "ulysses",
          .help = "of the context-parallel ranks, those that exchange heads for tokens by all-to-alls",
          .min = 1,
          .max = limits::kMostContextRanks},
    p.ulysses);
  v(Field{.name = "cp_keys",
          .help = "how keys and values pass between the other context-parallel ranks; absent means ring"},
    p.cp_keys);
  v(Field{.name = "ep", .help = "ranks that share the experts", .min = 1, .max = limits::kMostReplicas},
    p.ep);
  v(Field{.name = "etp",
          .help = "ranks that share an expert's columns; absent means tp",
          .min = 1,
          .max = limits::kMostTensorRanks},
    p.etp);
  v(Field{.name = "expert_room",
          .help = "rows of tokens that a rank has room for from each of the ep ranks, in even shares",
          .min = 1,
          .max = 1 << 16},
    p.expert_room);
  v(Field{.name = "expert_exchange", .help = "how rows of tokens go to their experts; absent means flat"},
    p.expert_exchange);
  v(Field{.name = "overlap_exchanges",
          .help = "run a forward and a backward side by side, so that exchanges of experts hide"},
    p.overlap_exchanges);
  v(Field{.name = "sequence_parallel", .help = "shard norms and residuals over tp"}, p.sequence_parallel);
  v(Field{.name = "zero", .help = "ZeRO stage", .min = 0, .max = 3}, p.zero);
  v(Field{.name = "shard_group",
          .help = "replicas that share ZeRO's shards; 0 means dp",
          .min = 0,
          .max = limits::kMostReplicas},
    p.shard_group);
  v(Field{.name = "reshard_after_forward",
          .help = "ZeRO-3: whether parameters are gathered anew for the backward pass"},
    p.reshard_after_forward);
  v(Field{.name = "table_split", .help = "how tensor ranks split the tables of embedding bags"},
    p.table_split);
  v(Field{.name = "micro_batch",
          .help = "sequences per micro-batch",
          .min = 1,
          .max = limits::kMostMicroBatch},
    p.micro_batch);
  v(Field{.name = "micro_batches",
          .help = "micro-batches per replica and step",
          .min = 1,
          .max = limits::kMostReplicas},
    p.micro_batches);
  v(Field{.name = "schedule", .help = "pipeline schedule"}, p.schedule);
  v(Field{.name = "schedule_order", .help = "the work of each stage where the schedule is listed"},
    p.schedule_order);
  v(Field{.name = "recompute", .help = "activation recomputation"}, p.recompute);
  v(Field{.name = "recompute_parts",
          .help = "parts of layers that selective recomputation repeats; empty means core-attn",
          .distinct = true},
    p.recompute_parts);
  v(Field{.name = "recompute_layers",
          .help = "full recomputation keeps every k-th layer's input",
          .min = 1,
          .max = limits::kMostLayers},
    p.recompute_layers);
  v(Field{.name = "recompute_first",
          .help = "full recomputation repeats only the first so many layers of each chunk; 0 means all",
          .min = 0,
          .max = limits::kMostLayers},
    p.recompute_first);
  v(Field{.name = "recompute_by_chunk",
          .help = "full recomputation repeats the first so many layers of each chunk in model order; empty "
                  "means recompute_first",
          .min = 0,
          .max = limits::kMostLayers,
          .most = static_cast<std::size_t>(limits::kMostLayers)},
    p.recompute_by_chunk);
  v(Field{.name = "loss_chunks",
          .help =
              "parts of a micro-batch's rows that take the head's product and the loss in turn, so that one "
              "part's logits are in memory",
          .min = 1,
          .max = limits::kMostLossChunks},
    p.loss_chunks);
  v(Field{.name = "update_in_backward",
          .help =
              "update parameters as soon as the backward pass has their gradients, which then need no memory "
              "of their own; of one replica with one micro-batch"},
    p.update_in_backward);
  v(Field{.name = "offload", .help = "what lies in the hosts' memory; absent means nothing"}, p.offload);
  v(Field{.name = "rank_order", .help = "placement of ranks, fastest axis first"}, p.rank_order);
  v(Field{.name = "chunk_layers",
          .help = "layers of each chunk in model order; empty means even",
          .min = 0,
          .max = limits::kMostLayers,
          .most = static_cast<std::size_t>(limits::kMostLayers)},
    p.chunk_layers);
}

// Groups of ranks that have a communicator: of more than one rank.
std::int64_t communicators(const Plan& p);

// "TP8 PP2 DP4 mbs1x128 1f1b zero1 full": one line for tables. "DP4x2": two islands. "keep": without
// reshard_after_forward.
std::string short_name(const Plan& p);

// The axes of more than one rank, fastest first: what an order does to this plan. "dp-tp-pp" places ranks as
// "tp-dp-pp" does where tp is 1.
std::string placement(const Plan& p, RankOrder order);

// Layers of chunk c in model order, from chunk_layers or as even as possible (the first ones get the
// remainder). Chunk c lives on stage stage_of_chunk(p, c).
std::vector<std::int64_t> layers_by_chunk(const Plan& p, std::int64_t layers);

// Layers of chunk c in model order, which has `layers` of them, that full recomputation repeats: its first
// ones. 0 of plans without full recomputation.
std::int64_t recomputed_layers(const Plan& p, std::int64_t c, std::int64_t layers);
// Whether it repeats all layers of all chunks.
inline bool recomputes_all(const Plan& p) {
  return p.recompute == Recompute::kFull && p.recompute_first == 0 && p.recompute_by_chunk.empty();
}

// The plan that repeats the first by_chunk[c] layers of each chunk c, of a model of `layers`, in the one form
// that check_plan takes: recompute none, all, recompute_first, or, where none of them says it,
// recompute_by_chunk.
Plan with_recomputed(Plan p, std::vector<std::int64_t> by_chunk, std::int64_t layers);

// The V schedule's chunks lie there and back, a listed one's as it says.
ChunkPlacement chunk_placement(const Plan& p);
std::int64_t stage_of_chunk(ChunkPlacement placement, std::int64_t stages, std::int64_t chunk);
std::int64_t stage_of_chunk(const Plan& p, std::int64_t chunk);

ORRERY_FIELDS(extern, Plan);

}  // namespace orrery
