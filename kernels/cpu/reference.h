// SPDX-License-Identifier: Apache-2.0
//
// Reference kernels: the plainest correct fp32 form of every op of a program, one function per op kind.
// Row-major; shapes as in program/emitter.h. Faster kernels are checked against these, and these
// against finite differences (tests/kernels). `accumulate` adds to the output instead of replacing it.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cpu/dropout.h"

namespace orrery::kernels::reference {

// C[m,n] (+)= op(A)[m,k] op(B)[k,n] (+ bias[n]).
struct Gemm {
  Index m, n, k;
  bool transpose_a = false, transpose_b = false, accumulate = false;
};
void gemm(const Gemm& g, const float* a, const float* b, const float* bias, float* c);

// y = normalise(x) * w (+ b) over each row.
struct NormShape {
  Index rows, width;
  bool rms = false;
  float epsilon = 1e-5F;  // added to the variance
};
void norm(const NormShape& s, const float* x, const float* w, const float* b, float* y);
// dx = d(norm)/dx dy (+ residual); dw, db summed over rows. `residual` and `db` may be null.
void norm_grad(const NormShape& s, const float* x, const float* w, const float* dy, const float* residual,
               float* dx, float* dw, float* db, bool accumulate);

// RMSNorm of each head of the fused QKV rows: `heads` query heads of `head` elements with w[0..head), then
// `kv` key heads of `kv_head` elements with w[head..head + kv_head); what is behind them is copied. Without
// weights, w and dw may be null.
struct HeadNormShape {
  Index rows, width, heads, kv, head, kv_head;
  bool weighted = true;
  float epsilon = 1e-5F;
  Index weights() const { return weighted ? head + kv_head : 0; }
};
void head_norm(const HeadNormShape& s, const float* x, const float* w, float* y);
void head_norm_grad(const HeadNormShape& s, const float* x, const float* w, const float* dy, float* dx,
                    float* dw, bool accumulate);

// Rotary positions on the first `turned` elements of the first `heads` heads of each row: elements j and
// j + turned/2 turn together (Llama's order) by the angle of (token, j), whose cosine and sine stand at
// [token, j] (core/rotary.h); row r is of token r mod seq of the share of a sample. `inverse` is the
// transpose, for gradients.
struct RopeShape {
  Index rows, width, heads, head, seq, turned;
  bool inverse = false;
  TokenShare share{};
};
void rope(const RopeShape& s, const float* cosine, const float* sine, float* x);

// softmax(scores) v on fused rows [q heads | k heads | v heads], of the scores z = scale q k', or with a cap
// cap tanh(z / cap). A query sees the keys up to its own, the last `window` of them where that is not 0; or
// all n keys of the sample. Keys and values may be of another sequence, in rows [k heads | v heads] of their
// own; queries see all of them. `softmax` receives the log-sum-exp [b, heads, s], or with `materialised` the
// probabilities [b, heads, s, n]. Dropout acts on probabilities, element (head s + query, key) of a sample;
// the mask of materialised ones stands in `mask` [b, heads, s, n], and the masked probabilities stand after
// the probabilities.
struct AttentionShape {
  Index batch, seq, heads, kv, head;
  bool materialised = false;
  Index first_head = 0;  // of all tensor ranks' heads
  Dropout dropout{};
  Index window = 0;
  bool sees_all = false;
  float cap = 0;             // none
  float explicit_scale = 0;  // 0: 1 / sqrt(d)
  Index other_seq = 0;       // of keys in rows of their own; 0: they stand in the fused rows
  Index value = 0;           // of a value's head, and of one of `out`; 0: as of a key's
  // Whether queries see keys of their document alone; and for each of [b, s], the first key of its document.
  bool packed = false;
  const std::int32_t* document = nullptr;
  float scale() const {
    return explicit_scale > 0 ? explicit_scale : 1.0F / std::sqrt(static_cast<float>(head));
  }
  // The keys that query i of a sample sees.
  Index first_key(Index sample, Index i) const {
    const Index seen = window > 0 && i >= window ? i + 1 - window : 0;
    return packed ? std::max<Index>(seen, document[sample * seq + i]) : seen;
  }
  Index end_key(Index i) const { return sees_all ? keys() : i + 1; }
  Index keys() const { return other_seq > 0 ? other_seq : seq; }
  bool drops() const { return dropout.probability > 0; }
  Index value_head() const { return value > 0 ? value : head; }
  // Rows, and where keys and values stand in theirs.
  Index keys_and_values() const { return kv * (head + value_head()); }
  Index width() const { return heads * head + keys_and_values(); }  // fused
  Index query_width() const { return other_seq > 0 ? heads * head : width(); }
  Index key_width() const { return other_seq > 0 ? keys_and_values() : width(); }
  Index first_of_keys() const { return other_seq > 0 ? 0 : heads * head; }
  Index first_of_values() const { return first_of_keys() + kv * head; }
};
// The rows of queries, and those of keys and values: the same where they are fused.
template <class Pointer>
struct AttentionRows {
  AttentionRows(Pointer fused) : q(fused), kv(fused) {}
  AttentionRows(Pointer queries, Pointer keys) : q(queries), kv(keys) {}
  Pointer q, kv;
};
void attention(const AttentionShape& s, AttentionRows<const float*> rows, float* out, float* softmax,
               std::uint8_t* mask);
void attention_grad(const AttentionShape& s, AttentionRows<const float*> rows, const float* out,
                    const float* softmax, const std::uint8_t* mask, const float* d_out,
                    AttentionRows<float*> d_rows);

// A learned score of each head beside those of its keys (GPT-OSS): given attention without it, `out` [batch,
// seq, heads, value] shrinks to the keys' share, and the log-sum-exp of scores takes it in. `lse` is [batch,
// heads, seq], or with `rows_first` [batch, seq, heads]. d_sinks (+)= - sum of exp(sink - lse) d_out . out.
struct SinkShape {
  Index batch, seq, heads, value;
  bool rows_first = false;
  constexpr Index rows() const { return batch * seq; }
  // Of a row of out and a head.
  constexpr Index lse(Index row, Index head) const {
    return rows_first ? row * heads + head : (row / seq * heads + head) * seq + row % seq;
  }
};
void attention_sink(const SinkShape& s, const float* sinks, float* out, float* lse);
void attention_sink_grad(const SinkShape& s, const float* sinks, const float* out, const float* lse,
                         const float* d_out, float* d_sinks, bool accumulate);

// Latent attention: rows of q [heads, turned | plain], of kv [heads, plain | value] and of r [turned] become
// rows [q heads | k heads | v heads], keys having r before their own elements.
struct LatentShape {
  Index rows, heads, turned, plain, value;
};
void latent_pack(const LatentShape& s, const float* q, const float* kv, const float* r, float* qkv);
void latent_pack_grad(const LatentShape& s, const float* d_qkv, float* dq, float* dkv, float* dr);

// act(u), or gated act(gate) * up with rows [gate | up]. GELU is the tanh form, as of GPT-2.
// Clamped: act(g) = g sigmoid(1.702 g) of g = min(gate, 7), times 1 + up held within [-7, 7].
enum class Act : std::uint8_t { kGelu, kSwiglu, kSquaredRelu, kGeglu, kClampedSwiglu };
constexpr bool is_gated(Act a) {
  return a == Act::kSwiglu || a == Act::kGeglu || a == Act::kClampedSwiglu;
}
inline constexpr float kActClamp = 7.0F, kActSteepness = 1.702F;
void activation(Index rows, Index width, Act act, const float* u, float* v);
void activation_grad(Index rows, Index width, Act act, const float* u, const float* dv, float* du);

// y = factor x, and y = cap tanh(x / cap); dx = dy (1 - (y / cap)^2).
void scale(Index n, float factor, const float* x, float* y);
void soft_cap(Index n, float cap, const float* x, float* y);
void soft_cap_grad(Index n, float cap, const float* y, const float* dy, float* dx);

void residual(Index rows, Index width, const float* x, const float* branch, const float* bias, float* y);
void bias_grad(Index rows, Index width, const float* dy, float* db, bool accumulate);

// This rank holds rows [first, first + rows) of the table; other tokens give zeros.
void embedding(Index tokens, Index width, Index first, Index rows, const std::int32_t* ids,
               const float* table, float* y);
void embedding_grad(Index tokens, Index width, Index first, Index rows, const std::int32_t* ids,
                    const float* dy, float* d_table, bool accumulate);
// Row r of x is token first_token + r of a [batch, seq] grid of shares of samples.
struct PositionsShape {
  Index rows, width, seq, first_token;
  TokenShare share{};
  Index position(Index row) const { return share.position((first_token + row) % seq); }
};
void positions(const PositionsShape& s, const float* table, float* x);
void positions_grad(const PositionsShape& s, Index table_rows, const float* dy, float* d_table,
                    bool accumulate);

// Of each sample the sum of the rows that its ids name, `ids` of them in each of `all_tables` tables. This
// rank holds [first, first + n) of the tables, of each table's rows and of the columns: weight [tables, rows,
// columns]. What it does not hold counts as zeros.
struct BagsShape {
  Index batch, width, all_tables, ids;
  Index tables, rows, columns;
  Index first_table = 0, first_row = 0, first_column = 0;
};
void bags(const BagsShape& s, const std::int32_t* ids, const float* weight, float* y);
void bags_grad(const BagsShape& s, const std::int32_t* ids, const float* dy, float* d_weight,
               bool accumulate);

// Returns the sum of the cross-entropies of labels (0 or 1), whose probability is 1 / (1 + exp(-u v)).
double pair_loss(Index batch, Index width, const float* u, const float* v, const std::int32_t* labels,
                 float* probabilities);
// Times `weight`.
void pair_loss_grad(Index batch, Index width, const float* u, const float* v, const std::int32_t* labels,
                    const float* probabilities, float weight, float* du, float* dv);

// y = x + bias over the patches of each sample, behind a class token where `cls` is one. Without `adds` bias
// and class token count as zeros.
struct PatchesShape {
  Index batch, patches, width;
};
void patches(const PatchesShape& s, bool adds, const float* x, const float* bias, const float* cls, float* y);
// d_cls may be null: there is no class token.
void patches_grad(const PatchesShape& s, const float* dy, float* dx, float* d_bias, float* d_cls,
                  bool accumulate);

// The first row of each sample of `seq` rows, or the mean of its rows. Row r of x is token first_row + r of
// the samples; tokens that are not there count as zeros.
struct PoolShape {
  Index batch, seq, rows, width, first_row = 0;
  bool mean = false;
};
void pool(const PoolShape& s, const float* x, float* y);
void pool_grad(const PoolShape& s, const float* dy, float* dx);

// A mixture of experts; what operands hold is said in program/ops/experts.h. Scores of each row of logits: a
// softmax, or each logit's sigmoid.
struct RouterShape {
  Index tokens, experts;
  bool sigmoid = false;
  float z_loss = 0;  // of a token
};
void router_scores(const RouterShape& s, const float* logits, float* scores);
void router_scores_grad(const RouterShape& s, const float* logits, const float* scores, const float* d_scores,
                        float* d_logits);

// The experts of each token by largest score, the earlier one of equals; with biases by largest score + bias.
// Of the groups those whose best experts have the largest scores, or, with biases, whose best two have the
// largest sum. Rows of an expert beyond `capacity` are dropped, the last tokens first.
// Experts stand in parts, and rows of a part begin at the next multiple of `room`. The tokens are those from
// `first` on of all samples.
struct RouteShape {
  Index tokens, seq, samples, experts, top_k, groups = 1, top_groups = 1, capacity = 0;
  Index parts = 1, room = 0;
  bool normalised = true;
  float scale = 1;
  Index first = 0;
};
// Returns how many rows are more than their parts have room for; these are not placed.
Index route(const RouteShape& s, const float* scores, const float* biases, float* weights,
            std::int32_t* choice, std::int32_t* counts, float* load);
// (+)= by how much experts have more tokens than all have in the mean.
void choice_bias_grad(Index samples, Index experts, const float* load, float* d_biases, bool accumulate);
void route_grad(const RouteShape& s, const float* scores, const std::int32_t* choice, const float* d_weights,
                float* d_scores);

// Of the loss factor * sum over tokens t and experts e of f_e p_te, f_e being experts * load_e / (top_k seq)
// of the token's sample and p the scores, made to sum to 1 where `normalises`.
struct BalanceShape {
  Index tokens, seq, experts, top_k;
  bool normalises = false;
  float factor = 0;
  Index first = 0;  // as of RouteShape
};
void balance_grad(const BalanceShape& s, const float* scores, const float* load, float* d_scores);

struct PermuteShape {
  Index tokens, width, top_k;
};
void permute(const PermuteShape& s, const float* x, const float* weights, const std::int32_t* choice,
             float* y, float* row_weights);
void permute_grad(const PermuteShape& s, const float* dy, const float* d_row_weights,
                  const std::int32_t* choice, float* dx, float* d_weights);
void unpermute(const PermuteShape& s, const float* y, const std::int32_t* choice, float* o);
void unpermute_grad(const PermuteShape& s, const float* d_o, const std::int32_t* choice, float* dy);

// Rows stand in parts of `room` rows, and in each by expert: counts [parts, experts].
struct GroupedGemm {
  Index n, k, experts;
  bool accumulate = false;
  Index parts = 1, room = 0;
};
// Calls use(expert, its first row in a part, how many, the part).
template <class Use>
void for_each_expert(const GroupedGemm& g, const std::int32_t* counts, Use use) {
  for (Index part = 0; part < g.parts; ++part) {
    Index first = part * g.room;
    for (Index e = 0; e < g.experts; ++e, ++counts) {
      use(e, first, Index{*counts}, part);
      first += *counts;
    }
  }
}
void grouped_gemm(const GroupedGemm& g, const float* x, const float* w, const std::int32_t* counts, float* u);
void grouped_gemm_dx(const GroupedGemm& g, const float* du, const float* w, const std::int32_t* counts,
                     float* dx);
void grouped_gemm_dw(const GroupedGemm& g, const float* du, const float* x, const std::int32_t* counts,
                     float* dw);

void expert_activation(Index rows, Index width, Act act, bool weighs_inputs, const float* u,
                       const float* row_weights, float* v);
void expert_activation_grad(Index rows, Index width, Act act, bool weighs_inputs, const float* u,
                            const float* row_weights, const float* dv, float* du, float* d_row_weights);

// y += row weight * bias of the row's expert, in columns [first, first + width) of `columns`; without row
// weights they are 1. Rows stand as of GroupedGemm. The gradients: d_bias (+)= sums of row weight * dy, and
// d_row_weights = dy . bias.
struct ExpertBiasShape {
  Index columns, first, width, experts, parts, room;
};
void expert_bias(const ExpertBiasShape& s, const float* bias, const std::int32_t* counts,
                 const float* row_weights, float* y);
void expert_bias_grad(const ExpertBiasShape& s, const float* dy, const float* bias,
                      const std::int32_t* counts, const float* row_weights, float* d_bias,
                      float* d_row_weights, bool accumulate);

void gate(Index rows, Index width, const float* y, const float* logits, float* o);
void gate_grad(Index rows, Index width, const float* y, const float* logits, const float* d_o, float* dy,
               float* d_logits);

// Cross-entropy over columns [first, first + columns) of a vocabulary. A rank finds kLossStatistics numbers a
// row: its largest logit m, the sum of exp(logit - m), and the target's logit (0: another rank has it). Those
// of all ranks give the two that normalise the row: the largest of all, and the sum below it.
struct LossShape {
  Index rows, columns, first, vocab;
  Index valid() const {
    const Index left = vocab - first;
    return left < 0 ? 0 : (left < columns ? left : columns);
  }
};
inline constexpr Index kLossStatistics = 3;
void loss_statistics(const LossShape& s, const float* logits, const std::int32_t* targets, float* statistics);
// Of [ranks, rows, kLossStatistics] to [rows, 2]. Returns the sum over rows of -log p(target).
double loss(Index rows, Index ranks, const float* statistics, float* normalizers);
// d_logits = scale * (p - onehot(target)), p = exp(logit - largest) / sum; 0 where columns are padding. May
// write over what it reads.
void loss_grad(const LossShape& s, const float* logits, const float* normalizers, const std::int32_t* targets,
               float scale, float* d_logits);

// AdamW without weight decay on biases is the caller's business: `decay` is used as given.
struct Adam {
  float lr, beta1, beta2, epsilon, decay;
  Index step;          // from 1
  float scale = 1.0F;  // of the gradient
};
void adam(const Adam& a, Index n, const float* gradient, float* parameter, float* m, float* v);
// What adam() would subtract from parameters, for a learning rate of 1. LAMB (You et al., "Large batch
// optimization for deep learning", 2020, algorithm 2, with phi(z) = z) is adam() with the learning rate of
// each tensor times trust_ratio(), from the bins of the squares of its weights and of this.
void adam_update(const Adam& a, Index n, const float* gradient, const float* parameter, const float* m,
                 const float* v, float* update);
// Against the gradient's sign.
void step_by_sign(float rate, Index n, const float* gradient, float* parameter);
struct Sgd {
  float lr, momentum;
  float scale = 1.0F;
};
void sgd(const Sgd& s, Index n, const float* gradient, float* parameter, float* velocity);
// LARS (You et al. 2017, algorithm 1) of a tensor: v = momentum v + lr l (g + decay w), w -= v, with the
// local rate l = trust |w| / (|g| + decay |w|) = trust ratio / (1 + decay ratio) of the norms' ratio.
struct Lars {
  float lr, momentum, decay, trust, ratio;
  float scale = 1.0F;  // of the gradient
  float rate() const { return lr * trust * ratio / (1 + decay * ratio); }
};
void lars(const Lars& l, Index n, const float* gradient, float* parameter, float* velocity);

// SGD with Nesterov's momentum, as torch.optim.SGD has it, of the mean of what islands have moved
// (core/outer.h). Without momentum `velocity` is null.
struct Outer {
  float learning_rate, momentum;
  float share;  // 1 / islands, which `sum` is over
};
void outer_update(const Outer& o, Index n, const float* sum, float* anchor, float* velocity);

// A sum of squares whose bits do not depend on the order of its terms, nor on how they are spread over ranks
// (after Demmel and Nguyen, "Parallel reproducible summation", 2015). Bin j holds multiples of
// 2^(237 - 20 j): each square, exact in double precision, is rounded to the largest bin that sees it, its
// remainder to the next, and so on for four bins below the largest square of a block. So each bin's sum is
// exact for up to 2^33 terms, and bins may be added in any order. Three bins from the first that is not zero
// are the same for every split into blocks: they are the sum, to 2^-40 of the largest square. It is not
// finite when any term is not.
inline constexpr Index kSquareBins = 32;
void add_squares(Index n, const float* x, double* bins);
double sum_of_bins(const double* bins);
// The norm of weights over that of their update; 1 where either is zero.
float trust_ratio(const double* weights, const double* update);

// 16-bit floats as bits. Narrowing rounds to the nearest, ties to even; what is too large becomes infinite,
// and numbers below fp16's normal range keep its coarser steps.
float from_bfloat16(std::uint16_t bits);
float from_float16(std::uint16_t bits);
std::uint16_t to_bfloat16(float x);
std::uint16_t to_float16(float x);

}  // namespace orrery::kernels::reference
