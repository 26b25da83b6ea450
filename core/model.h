// SPDX-License-Identifier: Apache-2.0
//
// A model: its inputs (core/inputs.h), its head and the blocks between them (core/blocks.h), from which
// program/ derives its op list. Where all blocks are alike, flat fields say what they are.
//
// Symbols used throughout: h hidden, a heads, k KV heads, d_h head size, f feed-forward width, L blocks,
// V vocabulary, s sequence, b micro-batch, t tensor-parallel degree.
//
//   Model gpt3 = preset_model("gpt3-175b");
//   count_parameters(gpt3);                     // 174.6e9
//   model_flops_per_sequence(gpt3, 2048, AttentionFlops::kFull);
//
// In a file a model is a preset's name, {"preset": NAME, ...overrides}, {"config": "config.json"} in
// Hugging Face's format, or its explicit fields.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/blocks.h"
#include "core/inputs.h"
#include "core/output.h"
#include "core/training.h"

namespace orrery {

enum class Norm { kLayerNorm, kRmsNorm };
constexpr auto enum_names(Norm) {
  return std::array{std::pair{Norm::kLayerNorm, "layernorm"}, std::pair{Norm::kRmsNorm, "rmsnorm"}};
}
struct Model {
  std::string name = "custom";
  std::int64_t layers = 0;  // blocks
  std::int64_t hidden = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;  // as in AttentionLayer
  std::int64_t ffn_hidden = 0;                         // as in MlpLayer
  std::int64_t vocab = 0;
  std::int64_t max_positions = 2048;
  Norm norm = Norm::kLayerNorm;
  double norm_epsilon = 1e-5;
  Positions positions = Positions::kLearned;
  Rotary rotary;
  std::int64_t sliding_window = 0;
  double soft_cap = 0, query_scale = 0;
  bool causal = true;
  Activation activation = Activation::kGelu;
  bool bias = true;               // on every linear layer and norm
  std::optional<bool> norm_bias;  // on LayerNorm; none: as `bias`
  bool qkv_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool tied_embeddings = true;
  double embedding_scale = 1;  // of the tokens' rows (Gemma: sqrt(h))
  double residual_scale = 1;   // of what layers add to their inputs (Granite)
  double logit_scale = 1;      // of logits (Granite, Cohere)
  double logit_soft_cap = 0;   // logits are c tanh(logit / c); 0: as they are
  // Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2): behind the last block, modules that
  // predict one token further each. Module k joins what the one before came to, normed, with the embedding of
  // the token that this predicted, through a block like the last one; head and embedding are the model's. The
  // mean of the modules' losses counts `mtp_loss_scale` beside the model's own.
  std::int64_t mtp_layers = 0;
  double mtp_loss_scale = 0.1;
  BlockForm form = BlockForm::kPreNorm;
  std::vector<Input> inputs;  // empty: tokens
  ModelOutput output;
  std::vector<BlockRun> blocks;  // empty: all are as the flat fields say
  ImportedFields imported;

  bool has_norm_bias() const { return norm == Norm::kLayerNorm && norm_bias.value_or(bias); }
  std::vector<Input> all_inputs() const { return inputs.empty() ? std::vector<Input>{{}} : inputs; }
  bool has_tokens() const;  // among its inputs
  // Whether what stands behind the last block reads the embedding's weight.
  bool embeds_at_end() const { return tied_embeddings || mtp_layers > 0; }
  const ClassOutput* classes() const { return std::get_if<ClassOutput>(&output.is); }
  bool has_pair() const { return std::holds_alternative<PairOutput>(output.is); }
  // The embedding bags that it begins with, or null.
  const BagInput* bags() const;
  // Rows of the head's matrix: of the vocabulary, or classes. What ends in a dot product has none.
  std::int64_t head_rows() const {
    return has_pair() ? 0 : classes() != nullptr ? classes()->classes : vocab;
  }
  // Empty: the first. Precondition: there is one of that name.
  TowerIndex tower(std::string_view called) const;
  // Where a field stands of a model that was read at `at`.
  Cursor place(const Cursor& at, std::string_view field) const;
  friend bool operator==(const Model&, const Model&) = default;
};

template <class V>
void describe(V& v, Model& m) {
  v(Field{.name = "name", .help = "label used in reports"}, m.name);
  v(Field{.name = "layers", .help = "transformer blocks", .min = 1, .max = limits::kMostLayers}, m.layers);
  v(Field{.name = "hidden", .help = "model width h", .min = 1, .max = 1 << 20}, m.hidden);
  v(declared<AttentionLayer>("heads"), m.heads);
  v(declared<AttentionLayer>("kv_heads"), m.kv_heads);
  v(declared<AttentionLayer>("head_dim"), m.head_dim);
  v(declared<MlpLayer>("ffn_hidden"), m.ffn_hidden);
  v(Field{.name = "vocab", .help = "vocabulary size", .min = 1, .max = 1 << 24}, m.vocab);
  v(Field{.name = "max_positions",
          .help = "learned positions, or the longest context",
          .min = 1,
          .max = 1 << 30},
    m.max_positions);
  v(Field{.name = "norm", .help = "normalisation layer"}, m.norm);
  v(Field{.name = "norm_epsilon", .help = "added to the variance", .min = 1e-20, .max = 1}, m.norm_epsilon);
  v(declared<AttentionLayer>("positions"), m.positions);
  v(declared<AttentionLayer>("rotary"), m.rotary);
  v(declared<AttentionLayer>("sliding_window"), m.sliding_window);
  v(declared<AttentionLayer>("soft_cap"), m.soft_cap);
  v(declared<AttentionLayer>("query_scale"), m.query_scale);
  v(declared<AttentionLayer>("causal"), m.causal);
  v(declared<MlpLayer>("activation"), m.activation);
  v(declared<AttentionLayer>("bias"), m.bias);
  v(Field{.name = "norm_bias", .help = "biases on layernorm, where not as on linear layers"}, m.norm_bias);
  v(declared<AttentionLayer>("qkv_bias"), m.qkv_bias);
  v(declared<AttentionLayer>("qk_norm"), m.qk_norm);
  v(Field{.name = "tied_embeddings", .help = "the head shares the embedding's weight"}, m.tied_embeddings);
  v(Field{.name = "embedding_scale", .help = "factor of embedded tokens", .min = 1e-6, .max = 1e6},
    m.embedding_scale);
  v(Field{.name = "residual_scale",
          .help = "factor of what layers add to their inputs",
          .min = 1e-6,
          .max = 1e6},
    m.residual_scale);
  v(Field{.name = "logit_scale", .help = "factor of logits", .min = 1e-6, .max = 1e6}, m.logit_scale);
  v(Field{.name = "logit_soft_cap",
          .help = "bound c of logits, c tanh(logit / c); 0 means none",
          .min = 0,
          .max = 1e6},
    m.logit_soft_cap);
  v(Field{.name = "mtp_layers",
          .help = "modules of multi-token prediction, each of a block like the last one",
          .min = 0,
          .max = limits::kMostMtpLayers},
    m.mtp_layers);
  v(Field{.name = "mtp_loss_scale",
          .help = "factor of the mean of their losses, beside the model's own",
          .min = 0,
          .max = 10},
    m.mtp_loss_scale);
  v(declared<ModelBlock>("form"), m.form);
  v(Field{.name = "inputs", .help = "what the towers begin with; absent means tokens", .most = 8}, m.inputs);
  v(Field{.name = "output", .help = "what the model ends in; absent means its vocabulary"}, m.output);
  if constexpr (!std::is_same_v<V, FieldReader>)  // read_custom() reads them, as they start from the others
    v(Field{.name = "blocks", .help = "runs of blocks, where they differ along the depth"}, m.blocks);
}
bool read_custom(const Json& json, const Cursor& at, Model& out);
// What an object may start from instead of naming every field.
constexpr auto base_fields(const Model&) {
  return std::array{"preset", "config"};
}

// Throws InputError at `at` when the dimensions do not fit each other.
void check_model(const Model& m, const Cursor& at);

// Known by name; throws InputError with the nearest name.
std::vector<std::string> preset_model_names();
Model preset_model(std::string_view name, const Cursor& at = {});

// Hugging Face config.json of transformers 4 and 5; core/hugging_face/import.cpp lists the types of models.
Model import_hugging_face(const Json& config, const Cursor& at);

// The block of the flat fields.
ModelBlock standard_block(const Model& m);
// All blocks, their layers resolved.
Depth depth_of(const Model& m);
// The layers of a model that its flat fields say whole: attention and an MLP, pre-norm. None where it has
// blocks, which may say other things than the flat fields.
struct PlainLayers {
  AttentionLayer attention;
  MlpLayer mlp;
};
std::optional<PlainLayers> plain_layers(const Model& m);
// What the ends count as when layers are dealt out so that chunks take as long as each other: embedding and
// head a layer each. A module of multi-token prediction is a block and a head; of a model with these, the
// embedding is too little beside them to count.
struct EndsAsLayers {
  std::int64_t first = 1, last = 1;
  std::int64_t sum() const { return first + last; }
};
EndsAsLayers ends_as_layers(const Model& m);
// Layers of each chunk then. Precondition: layers and ends fill the chunks. An end that counts as more than a
// chunk is a chunk by itself, without layers.
std::vector<std::int64_t> lighter_ends(const Model& m, std::int64_t chunks);
// Whether all chunks, with what their ends count as, are equal.
bool lighter_ends_are_equal(const Model& m, std::int64_t chunks);
// All layers with experts in order, resolved, with the number of their block.
struct ExpertsAt {
  std::int64_t block = 0;
  ExpertsLayer layer;
};
std::vector<ExpertsAt> experts_of(const Model& m);

// All parameters, embeddings counted once when tied.
std::int64_t count_parameters(const Model& m);
std::int64_t count_parameters(const Model& m, const ModelBlock& resolved);

// Whether the attention core counts s^2 positions (the usual convention in papers) or half of them.
enum class AttentionFlops { kFull, kCausal };
constexpr auto enum_names(AttentionFlops) {
  return std::array{std::pair{AttentionFlops::kFull, "full"}, std::pair{AttentionFlops::kCausal, "causal"}};
}

// Parameters that a token is computed with: all but those of experts that it does not choose.
std::int64_t count_active_parameters(const Model& m);

// Parameters of the adapters that a model gets, which are all that is trained then.
std::int64_t count_adapter_parameters(const Model& m, const Adapter& adapter);
std::int64_t count_trained_parameters(const Model& m, const Training& t);
// Bytes of the model's state on one device that has all of it: parameters, gradients and optimizer state; of
// frozen ones parameters alone.
double state_bytes(const Model& m, const Training& t);
// And of what a run needs to go on: parameters, master copies and moments of what is trained.
double restart_bytes(const Model& m, const Training& t);

// Even shares of rows for which `parts` of the experts have room in any case (ExpertsLayer::most_shares): the
// most of all layers.
double most_expert_shares(const Model& m, std::int64_t parts);

// The most tensor ranks that share all layers and inputs evenly, but for columns of experts; others share
// them whose number divides it.
std::int64_t shared_count(const Model& m);
// Tokens of a sample in each tower.
std::vector<std::int64_t> tower_tokens(const Model& m, const Training& t);
// Rows of a sample that the loss is the mean of: tokens, or one for its class.
std::int64_t loss_rows(const Model& m, const Training& t);
// The tower that the output reads: the last block's.
TowerIndex output_tower(const Depth& depth);
// Calls use(layer, times, tokens of a sample) for each layer of each kind of block. `within` as of
// LayerTokens.
template <class Use>
void for_each_layer_tokens(const Model& m, const Depth& depth, const std::vector<std::int64_t>& tokens,
                           Use use, double within = 1) {
  const std::vector<std::int64_t> times = depth.counts();
  for (std::size_t k = 0; k < times.size(); ++k) {
    depth.kinds[k].for_each_layer([&]<class T>(const T& layer) {
      LayerTokens of{.own = tokens[static_cast<std::size_t>(depth.towers[k].own)], .within = within};
      if constexpr (ReadsTower<T>) of.read = tokens[static_cast<std::size_t>(m.tower(layer.reads))];
      use(layer, times[k], of);
    });
  }
}

// Model FLOPs of one sample, forward and backward, no recomputation:
// 3 * 2 * s * (matrix parameters of blocks + h V) + 3 * L * 4 s^2 a d_h (halved when causal).
// Where sequences are packed from documents, s^2 counts the pairs of tokens of one document alone.
// A module of multi-token prediction is another block, another head and 2 h^2 for what it begins with.
// Where adapters are trained, frozen products have no weight gradients: 2 * 2 in place of 3 * 2 FLOPs, and
// those of adapters beside them 3 * 2.
// For a GPT with f = 4h this is 72 s L h^2 (1 + s/(6h) + V/(12 h L)) (Narayanan et al. 2021, eq. 3 less
// recomputation; Korthikanti et al. 2022, eq. 7).
Flop model_flops_per_sequence(const Model& m, const Training& t, AttentionFlops convention);
// Of a model with one tower.
Flop model_flops_per_sequence(const Model& m, std::int64_t sequence, AttentionFlops convention);

ORRERY_FIELDS(extern, Model);

}  // namespace orrery
