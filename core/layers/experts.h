// SPDX-License-Identifier: Apache-2.0
//
// A mixture of experts, as a layer of a block: a router chooses for each token `top_k` of `experts` small
// MLPs and how much each counts (Shazeer et al. 2017); all tokens pass the shared experts, where there are
// some (DeepSeekMoE, Dai et al. 2024). Its shapes, h being the model's width, f an expert's and T tokens:
//
//   s = score(x Wr')                   [T, experts]              Wr [that, h]
//   p, c = the top_k largest of s      [T, top_k]                weights and experts of each token
//   u_e = x_e W1_e'                    [tokens of e, f], gated [.., 2 f]
//   o = sum over c of p act(u_c) W2_c' + shared(x)     [T, h]
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/fields.h"
#include "core/layers/mlp.h"

namespace orrery {

// What makes scores of logits: over all experts of a token, or of each by itself.
enum class RouterScore { kSoftmax, kSigmoid };
constexpr auto enum_names(RouterScore) {
  return std::array{std::pair{RouterScore::kSoftmax, "softmax"}, std::pair{RouterScore::kSigmoid, "sigmoid"}};
}

struct ExpertsLayer {
  static constexpr const char *kName = "experts", *kTensors = "experts";
  static constexpr bool kBeginsInProducts = false;
  static constexpr bool bias = false;
  std::int64_t experts = 0, top_k = 0;
  std::int64_t ffn_hidden = 0;         // of an expert; 0: 4 * hidden
  std::int64_t shared_ffn_hidden = 0;  // of all shared experts together; 0: there are none
  bool shared_gate = false;            // what shared experts give counts sigmoid(x wg') (Qwen2-MoE)
  bool biases = false;                 // on the router and on both products of each expert (GPT-OSS)
  Activation activation = Activation::kSwiglu;
  RouterScore score = RouterScore::kSoftmax;
  bool normalised = true;      // the weights of a token's experts sum to 1
  double weight_scale = 1;     // and then count so much (DeepSeek)
  bool weighs_inputs = false;  // they count in what experts read, not in what they give (Llama 4)
  // Experts stand in groups, of which a token's best may be chosen from (DeepSeek-V2): by the largest score.
  std::int64_t groups = 1, top_groups = 1;
  // Biases of experts that steer the choice alone, without a loss (DeepSeek-V3, section 2.1.2): after a step
  // each grows or shrinks by so much, by whether the expert had less or more than its share. Groups then
  // count by their best two. 0: there are none.
  double bias_rate = 0;
  double balance_loss = 0;     // factor of the auxiliary loss of each sequence (DeepSeek-V2, section 2.2.3)
  double z_loss = 0;           // factor of the squared log-sum-exp of logits (ST-MoE, equation 5)
  double capacity_factor = 0;  // an expert takes so many times its even share, and drops others; 0: all

  bool gated() const { return is_gated(activation); }
  // As of AttentionLayer.
  void resolve(std::int64_t hidden);
  void check(std::int64_t hidden, const FieldPlace& place) const;

  // --- of a resolved layer -------------------------------------------------------------------------
  std::int64_t fc1_width() const { return (gated() ? 2 : 1) * ffn_hidden; }
  MlpLayer shared_experts() const { return {shared_ffn_hidden, activation, false}; }
  // Tokens that an expert takes of so many; all of them without a capacity.
  std::int64_t capacity(std::int64_t tokens) const;
  // Rows of tokens that experts get of so many tokens, at most.
  std::int64_t routed_rows(std::int64_t tokens) const;
  // The rows among them for which one of `parts` of the experts has room: `shares` even shares, or one,
  // rounded up for each of `samples`. No more than can come: of each token those of its experts that are in
  // the part, and of each expert its capacity, for which there is room in any case.
  std::int64_t room(std::int64_t tokens, std::int64_t samples, std::int64_t parts,
                    std::optional<double> shares) const;
  // Even shares of a part that never are too few.
  double most_shares(std::int64_t parts) const;
  std::array<SharedCount, 3> shared() const {
    return {{{ffn_hidden, "feed-forward columns of an expert", Degree::kExpertTensor},
             {experts, "experts", Degree::kExpert},
             {shared_ffn_hidden, "feed-forward columns of shared experts"}}};
  }
  std::array<SharedCount, 2> columns() const {
    return {{{ffn_hidden, "feed-forward columns of a rank's experts", Degree::kExpertTensor},
             {shared_ffn_hidden, "feed-forward columns of a rank's shared experts"}}};
  }
  std::int64_t expert_elements(std::int64_t hidden) const { return hidden * (fc1_width() + ffn_hidden); }
  // Of matrices that a token is multiplied with.
  std::int64_t matrix_elements(std::int64_t hidden) const {
    return resident_elements(hidden) + top_k * expert_elements(hidden);
  }
  std::int64_t parameters(std::int64_t hidden) const {
    return resident_elements(hidden) + experts * expert_elements(hidden) + (bias_rate > 0 ? experts : 0) +
           (biases ? experts * (1 + fc1_width() + hidden) : 0);
  }
  // Routed experts have none.
  std::vector<AdapterMatrix> adapter_matrices(std::int64_t hidden) const {
    if (shared_ffn_hidden == 0) return {};
    return shared_experts().adapter_matrices(hidden);
  }
  double core_flops(const LayerTokens&) const { return 0; }
  std::int64_t score_rows() const { return 0; }
  RecomputeParts parts() const {
    const RecomputeParts own = RecomputeParts(RecomputePart::kExpertActivation) | RecomputePart::kExperts;
    return shared_ffn_hidden > 0 ? own | RecomputePart::kSharedExperts : own;
  }
  double flops_of(RecomputeParts parts, const LayerTokens& t, std::int64_t hidden) const {
    if (parts.has(RecomputePart::kExperts)) return product_flops(t.own, matrix_elements(hidden));
    if (shared_ffn_hidden == 0 || !parts.has(RecomputePart::kSharedExperts)) return 0;
    return product_flops(t.own, shared_experts().matrix_elements(hidden));
  }
  friend bool operator==(const ExpertsLayer&, const ExpertsLayer&) = default;

 private:
  // Of matrices that all tokens are multiplied with.
  std::int64_t resident_elements(std::int64_t hidden) const;
};

template <class V>
void describe(V& v, ExpertsLayer& l) {
  v(Field{.name = "experts",
          .help = "experts that the router chooses from",
          .min = 1,
          .max = 1 << 16,
          .required = true},
    l.experts);
  v(Field{.name = "top_k", .help = "experts of a token", .min = 1, .max = 64, .required = true}, l.top_k);
  v(Field{.name = "ffn_hidden",
          .help = "feed-forward width of an expert; 0 means 4*hidden",
          .min = 0,
          .max = 1 << 24},
    l.ffn_hidden);
  v(Field{.name = "shared_ffn_hidden",
          .help = "feed-forward width of the experts that all tokens pass, together; 0 means none",
          .min = 0,
          .max = 1 << 24},
    l.shared_ffn_hidden);
  v(Field{.name = "shared_gate", .help = "whether a gate weighs what shared experts give"}, l.shared_gate);
  v(Field{.name = "biases", .help = "whether the router and both products of each expert have biases"},
    l.biases);
  v(Field{.name = "activation", .help = "activation of experts; those named glu have a gate matrix"},
    l.activation);
  v(Field{.name = "score", .help = "what makes scores of the router's logits"}, l.score);
  v(Field{.name = "normalised", .help = "whether the weights of a token's experts sum to 1"}, l.normalised);
  v(Field{.name = "weight_scale",
          .help = "factor of the weights of a token's experts",
          .min = 1e-6,
          .max = 1e6},
    l.weight_scale);
  v(Field{.name = "weighs_inputs",
          .help = "whether a token's weights count in what its experts read, not in what they give"},
    l.weighs_inputs);
  v(Field{.name = "groups", .help = "groups that the experts stand in", .min = 1, .max = 64}, l.groups);
  v(Field{.name = "top_groups", .help = "groups that a token's experts are chosen from", .min = 1, .max = 64},
    l.top_groups);
  v(Field{.name = "bias_rate",
          .help = "step of the biases that steer the choice of experts; 0 means there are none",
          .min = 0,
          .max = 1},
    l.bias_rate);
  v(Field{.name = "balance_loss",
          .help = "factor of the loss that spreads the tokens of a sequence over experts",
          .min = 0,
          .max = 1e3},
    l.balance_loss);
  v(Field{.name = "z_loss",
          .help = "factor of the loss that keeps the router's logits small",
          .min = 0,
          .max = 1e3},
    l.z_loss);
  v(Field{.name = "capacity_factor",
          .help =
              "even shares of tokens that an expert takes at most, others are dropped; 0 means all are taken",
          .min = 0,
          .max = 1 << 16},
    l.capacity_factor);
}

}  // namespace orrery
