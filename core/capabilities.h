// SPDX-License-Identifier: Apache-2.0
//
// Capabilities: the plans, number formats and models that the software of a stack runs. The search lists
// nothing else, and every command that takes a plan refuses another one. Each value of a shipped file has an
// origin: the version of the software, and the document or source line that says so.
//
//   if (const auto problem = stack_problem(stack, model, plan, training)) at.fail(problem->text,
//   problem->allowed);
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"
#include "core/model.h"
#include "core/plan.h"
#include "core/training.h"

namespace orrery {

// How many layers the chunks of a pipeline may have: all as many, at most one more than others, or any.
enum class ChunkSizes { kEqual, kNearlyEqual, kAny };
constexpr auto enum_names(ChunkSizes) {
  return std::array{std::pair{ChunkSizes::kEqual, "equal"},
                    std::pair{ChunkSizes::kNearlyEqual, "nearly-equal"}, std::pair{ChunkSizes::kAny, "any"}};
}

// A recipe of numbers and the formats that matrix products may have with it.
struct NumberFormats {
  Precision precision = Precision::kMixed;
  std::vector<Math> math;
};

// A combination that the software refuses: all conditions that are given hold of the plan.
struct Refusal {
  std::vector<std::int64_t> zero;
  std::vector<RankOrder> rank_order;
  std::vector<Schedule> schedule;  // of a pipeline
  std::vector<Precision> precision;
  std::vector<ContextWay> context_parallel;
  std::optional<bool> tensor_parallel, pipeline_parallel, shard_group, expert_parallel,
      expert_tensor_parallel;
  std::vector<Math> math;
  std::optional<bool> lamb, muon, sliding_window, expert_biases;
  std::optional<bool> offload;  // something lies in the hosts' memory
  std::optional<bool> nvme;     // something lies on their drives
  std::string why, origin;
};

struct Capabilities {
  std::string software;  // its name and version
  bool tensor_parallel = true;
  std::vector<bool> sequence_parallel;  // with tensor parallelism
  std::vector<Schedule> schedule;       // of pipelines; empty: no pipeline parallelism
  ChunkSizes chunk_layers = ChunkSizes::kAny;
  std::vector<std::int64_t> zero;  // stages
  bool keep_gathered = true;       // ZeRO-3 without reshard_after_forward
  bool shard_group = true;         // shards may be shared by fewer ranks than all replicas
  std::vector<Recompute> recompute;
  std::vector<RecomputePart> recompute_parts;  // of selective recomputation
  bool recompute_layers = true;                // full recomputation may keep every k-th layer's input
  bool recompute_first = true;                 // and may be of the first layers of a chunk alone
  bool recompute_by_chunk = true;              // of as many as a plan says for each chunk
  bool loss_chunks = true;                     // rows may go through the loss in parts
  bool update_in_backward = true;              // parameters may be updated before the backward pass ends
  std::vector<RankOrder> rank_order;
  std::vector<NumberFormats> formats;
  bool lamb = true, lars = true, muon = true;
  bool stochastic_rounding = true;
  bool offload_optimizer = true, offload_parameters = true,
       offload_activations = true;  // to the hosts' memory
  bool offload_nvme = true;         // the first two to their drives
  bool adapters = true;             // trained in place of all parameters
  bool islands = true;              // that train on their own between exchanges
  std::vector<Positions> positions;
  std::vector<RotaryScaling> rotary_scaling;
  std::vector<Activation> activation;
  bool sliding_window = true;
  std::vector<BlockForm> block_forms;
  bool mixed_blocks = true;      // blocks may differ along the depth
  bool mixed_windows = true;     // or at least in their windows
  bool sinks = true;             // heads may have learned scores beside those of the tokens
  bool soft_cap = true;          // of attention scores and logits
  bool scales = true;            // of scores and embeddings
  bool sees_all = true;          // attention need not be causal
  bool bags = true;              // a model may begin with embedding bags and end in a dot product
  bool images = true;            // a model may begin with patches of images and end in classes
  bool latent_attention = true;  // multi-head latent attention
  bool mtp = true;               // multi-token prediction
  bool experts = true;           // layers may be mixtures of experts
  bool fp8_experts = true;       // in 8 bits too
  bool expert_biases = true;     // with biases on routers and experts
  bool expert_parallel = true;   // they may lie over ranks of their own (core/plan.h)
  std::vector<ExpertExchange> expert_exchange;  // of ranks that share them
  bool overlap_exchanges = true;  // a forward and a backward may run side by side, beside exchanges
  std::vector<ContextWay> context_parallel;  // ways of ranks to share sequences; empty: none
  bool towers = true;                        // a model may have several, as an encoder and a decoder
  std::int64_t most_ranks = 0;               // 0: no limit
  std::vector<Refusal> refused;
  std::map<std::string, std::string> origin;  // by field, or by several, separated by ", "
};

template <class V>
void describe(V& v, NumberFormats& f) {
  v(Field{.name = "precision", .help = "recipe", .required = true}, f.precision);
  v(Field{.name = "math", .help = "formats of matrix products with it", .required = true}, f.math);
}

template <class V>
void describe(V& v, Refusal& r) {
  v(Field{.name = "zero", .help = "ZeRO stage is one of these", .min = 0, .max = 3}, r.zero);
  v(Field{.name = "rank_order", .help = "placement is one of these"}, r.rank_order);
  v(Field{.name = "schedule", .help = "a pipeline's schedule is one of these"}, r.schedule);
  v(Field{.name = "precision", .help = "recipe is one of these"}, r.precision);
  v(Field{.name = "context_parallel", .help = "ranks share sequences in one of these ways"},
    r.context_parallel);
  v(Field{.name = "tensor_parallel", .help = "whether tp is more than 1"}, r.tensor_parallel);
  v(Field{.name = "pipeline_parallel", .help = "whether pp is more than 1"}, r.pipeline_parallel);
  v(Field{.name = "shard_group", .help = "whether shards are shared by fewer ranks than dp"}, r.shard_group);
  v(Field{.name = "expert_parallel", .help = "whether ep is more than 1"}, r.expert_parallel);
  v(Field{.name = "expert_tensor_parallel", .help = "whether ranks share the columns of experts"},
    r.expert_tensor_parallel);
  v(Field{.name = "math", .help = "formats of matrix products; empty means all"}, r.math);
  v(Field{.name = "lamb", .help = "whether LAMB updates parameters"}, r.lamb);
  v(Field{.name = "muon", .help = "whether Muon updates matrices of layers"}, r.muon);
  v(Field{.name = "sliding_window", .help = "whether attention has a window"}, r.sliding_window);
  v(Field{.name = "offload", .help = "whether something lies in the hosts' memory"}, r.offload);
  v(Field{.name = "nvme", .help = "whether something lies on the hosts' drives"}, r.nvme);
  v(Field{.name = "expert_biases", .help = "whether routers and experts have biases"}, r.expert_biases);
  v(Field{.name = "why", .help = "the reason, as a message states it", .required = true}, r.why);
  v(Field{.name = "origin", .help = "where the software says so", .required = true}, r.origin);
}

template <class V>
void describe(V& v, Capabilities& c) {
  const auto field = [](const char* name, const char* help) {
    return Field{.name = name, .help = help, .min = 0, .max = 1 << 24, .required = true};
  };
  v(field("software", "name and version of the software"), c.software);
  v(field("tensor_parallel", "whether tp may be more than 1"), c.tensor_parallel);
  v(field("sequence_parallel", "values of sequence_parallel where tp is more than 1"), c.sequence_parallel);
  v(field("schedule", "pipeline schedules; none means no pipeline parallelism"), c.schedule);
  v(field("chunk_layers", "how many layers the chunks of a pipeline may have"), c.chunk_layers);
  v(field("zero", "ZeRO stages"), c.zero);
  v(field("keep_gathered", "whether ZeRO-3 runs without reshard_after_forward"), c.keep_gathered);
  v(field("shard_group", "whether ZeRO's shards may be shared by fewer ranks than dp"), c.shard_group);
  v(field("recompute", "recomputation modes"), c.recompute);
  v(field("recompute_parts", "parts of layers that selective recomputation can repeat"), c.recompute_parts);
  v(field("recompute_layers", "whether recompute_layers may be more than 1"), c.recompute_layers);
  v(field("recompute_first", "whether recompute_first may be more than 0"), c.recompute_first);
  v(field("recompute_by_chunk", "whether chunks may recompute different numbers of their first layers"),
    c.recompute_by_chunk);
  v(field("loss_chunks", "whether loss_chunks may be more than 1"), c.loss_chunks);
  v(field("update_in_backward", "whether parameters may be updated before the backward pass ends"),
    c.update_in_backward);
  v(field("rank_order", "placements of ranks"), c.rank_order);
  v(field("formats", "recipes of numbers with their formats of matrix products"), c.formats);
  v(field("lamb", "whether LAMB can be the optimizer"), c.lamb);
  v(field("lars", "whether LARS can"), c.lars);
  v(field("muon", "whether Muon can update matrices of layers"), c.muon);
  v(field("stochastic_rounding", "whether updated bf16 parameters can be rounded at random"),
    c.stochastic_rounding);
  v(field("offload_optimizer", "whether the optimizer's state can lie in the hosts' memory"),
    c.offload_optimizer);
  v(field("offload_parameters", "whether ZeRO-3's shards can lie in the hosts' memory"),
    c.offload_parameters);
  v(field("offload_activations", "whether activations can wait in the hosts' memory"), c.offload_activations);
  v(field("offload_nvme", "whether the optimizer's state and ZeRO-3's shards can lie on the hosts' drives"),
    c.offload_nvme);
  v(field("adapters", "whether low-rank adapters can be trained, with all else frozen"), c.adapters);
  v(field("islands", "whether groups of replicas can train on their own between exchanges"), c.islands);
  v(field("positions", "position encodings"), c.positions);
  v(field("rotary_scaling", "scalings of rotary positions"), c.rotary_scaling);
  v(field("activation", "MLP activations"), c.activation);
  v(field("sliding_window", "whether attention can be limited to a window"), c.sliding_window);
  v(field("block_forms", "how layers of a block join the residual stream"), c.block_forms);
  v(field("mixed_blocks", "whether blocks may differ along the depth"), c.mixed_blocks);
  v(field("mixed_windows", "whether windows may differ along the depth where other things may not"),
    c.mixed_windows);
  v(field("sinks", "whether heads may have learned scores beside those of the tokens"), c.sinks);
  v(field("soft_cap", "whether attention scores and logits may be capped"), c.soft_cap);
  v(field("scales", "whether scores and embeddings may have factors of their own"), c.scales);
  v(field("sees_all", "whether attention may see tokens behind"), c.sees_all);
  v(field("bags", "whether a model may begin with embedding bags and end in a dot product"), c.bags);
  v(field("images", "whether a model may begin with patches of images and end in classes"), c.images);
  v(field("latent_attention", "whether attention may be multi-head latent attention"), c.latent_attention);
  v(field("mtp", "whether modules of multi-token prediction can be trained"), c.mtp);
  v(field("experts", "whether layers may be mixtures of experts"), c.experts);
  v(field("fp8_experts", "whether products of experts take math \"fp8\""), c.fp8_experts);
  v(field("expert_biases", "whether routers and experts may have biases"), c.expert_biases);
  v(field("expert_parallel", "whether experts may lie over ranks otherwise than other weights"),
    c.expert_parallel);
  v(field("expert_exchange", "how rows of tokens go to experts on other ranks"), c.expert_exchange);
  v(field("overlap_exchanges", "whether a forward and a backward may run side by side to hide exchanges"),
    c.overlap_exchanges);
  v(field("context_parallel", "what passes between ranks that share sequences; none means cp is 1"),
    c.context_parallel);
  v(field("towers", "whether a model may have several towers, as an encoder and its decoder"), c.towers);
  v(field("most_ranks", "ranks that it starts at most; 0 means no limit"), c.most_ranks);
  v(Field{.name = "refused", .help = "combinations that it does not run"}, c.refused);
  v(Field{.name = "origin", .help = "where the software says so, by field"}, c.origin);
}

struct Stack;

// A field that a stack cannot run: its place in a scenario ("/plan/pp", "/training/lamb"), and the message.
struct StackProblem {
  std::string pointer, text, allowed;
};

// Why the stack's software cannot run this; nothing when it can, or when the stack does not say.
std::optional<StackProblem> stack_problem(const Stack& stack, const Model& model, const Plan& plan,
                                          const Training& training);
// Of the model and training alone, whatever the plan; and of the plan's axes alone, each on its own.
std::optional<StackProblem> stack_problem(const Stack& stack, const Model& model, const Training& training);
std::optional<StackProblem> stack_problem(const Stack& stack, const Plan& plan);
// Whether the stack's software runs such a plan, in time for a search: stack_problem of the plan alone.
bool runs_plan(const Stack& stack, const Model& model, const Plan& plan, const Training& training);

// Whether its ranks share sequences as the plan says.
bool runs_context(const Stack& stack, const Plan& plan);

// What plans of the model never have on the stack, a phrase each: "no pipeline parallelism".
std::vector<std::string> stack_limits(const Stack& stack, const Model& model, const Training& training);

}  // namespace orrery
