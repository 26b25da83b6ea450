// SPDX-License-Identifier: Apache-2.0
//
// A model that trains in milliseconds, and plans for it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "exec/run.h"
#include "program/check.h"
#include "program/program.h"

namespace orrery {

constexpr std::int64_t kBatch = 16;

inline Model tiny(const char* preset) {
  Model m = preset_model(preset);
  m.hidden = 32;
  m.layers = 4;
  m.vocab = 64;
  m.ffn_hidden = 48;
  m.max_positions = 16;
  m.heads = 8;
  if (m.kv_heads > 0) m.kv_heads = 4;
  return m;
}

// Small models of other blocks, eight each: "neox" and "falcon" have parallel ones, "post-norm" and
// "sandwich" norms behind layers; in "mixed" blocks differ in form, widths and heads, and one has no
// attention; "gemma" has windows in every second one, caps and factors; "encoder" sees all tokens;
// "decoder" is four blocks behind an encoder of four; "vit" begins with patches of images; "bags" has
// two towers of four blocks with an MLP each; "experts" has an MLP and a mixture of experts in turn; "latent"
// has latent attention; "sinks" is of GPT-OSS's kind; "chunks" of Llama 4's, with factors on what layers add
// and on logits; "olmo" has norms over all heads, which no tensor ranks share.
inline const std::vector<std::string>& block_kinds() {
  static const std::vector<std::string> all{"neox",    "falcon",  "post-norm", "sandwich", "mixed",
                                            "gemma",   "encoder", "decoder",   "vit",      "bags",
                                            "experts", "latent",  "sinks",     "chunks",   "olmo"};
  return all;
}
inline Model tiny_of(const std::string& kind) {
  if (kind.starts_with("tiny")) return tiny(kind.c_str());
  const bool gpt = kind == "neox" || kind == "falcon";
  Model m = tiny(gpt ? "tiny-gpt" : "tiny-llama");
  m.name = kind;
  if (gpt) {
    m.positions = Positions::kRotary;
    m.form = kind == "neox" ? BlockForm::kParallel : BlockForm::kParallelOneNorm;
    m.bias = kind == "neox";
  } else if (kind == "experts") {
    ModelBlock sparse = standard_block(m);
    sparse.layers.back() = {ExpertsLayer{.experts = 4,
                                         .top_k = 2,
                                         .ffn_hidden = 16,
                                         .shared_ffn_hidden = 24,
                                         .shared_gate = true,
                                         .balance_loss = 0.1,
                                         .z_loss = 0.01}};
    m.blocks = {{4, {standard_block(m), sparse}}};
  } else if (kind == "sinks") {
    ModelBlock all = standard_block(m);
    auto& attention = std::get<AttentionLayer>(all.layers.front().is);
    attention.bias = attention.sinks = true;
    all.layers.back() = {ExpertsLayer{.experts = 4,
                                      .top_k = 2,
                                      .ffn_hidden = 16,
                                      .biases = true,
                                      .activation = Activation::kClampedSwiglu,
                                      .balance_loss = 0.1}};
    ModelBlock near = all;
    std::get<AttentionLayer>(near.layers.front().is).sliding_window = 3;
    m.blocks = {{4, {near, all}}};
  } else if (kind == "chunks") {
    m.residual_scale = 0.7;
    m.logit_scale = 0.8;
    ModelBlock near = standard_block(m), all = near;
    auto& chunked = std::get<AttentionLayer>(near.layers.front().is);
    chunked.chunk = 4;
    chunked.qk_norm = QkNorm::kUnweighted;
    auto& still = std::get<AttentionLayer>(all.layers.front().is);
    still.positions = Positions::kNone;
    still.query_growth = {.rate = 0.5, .positions = 3};
    all.layers.back() = {ExpertsLayer{.experts = 4,
                                      .top_k = 2,
                                      .ffn_hidden = 16,
                                      .shared_ffn_hidden = 24,
                                      .score = RouterScore::kSigmoid,
                                      .normalised = false,
                                      .weighs_inputs = true}};
    m.blocks = {{4, {near, all}}};
  } else if (kind == "olmo") {
    m.form = BlockForm::kPostNorm;
    m.qk_norm = QkNorm::kAllHeads;
  } else if (kind == "latent") {
    ModelBlock block = standard_block(m), direct = block;
    LatentAttentionLayer latent{.heads = 8, .q_rank = 12, .kv_rank = 10, .turned = 4, .plain = 6, .value = 8};
    block.layers.front() = {latent};
    latent.q_rank = 0;
    direct.layers = {{latent},
                     {ExpertsLayer{.experts = 4,
                                   .top_k = 2,
                                   .ffn_hidden = 16,
                                   .score = RouterScore::kSigmoid,
                                   .weight_scale = 2,
                                   .groups = 2,
                                   .top_groups = 1,
                                   .bias_rate = 0.01}}};
    m.blocks = {{4, {block, direct}}};
  } else if (kind == "gemma") {
    m.form = BlockForm::kSandwichNorm;
    m.activation = Activation::kGeglu;
    m.head_dim = 8;
    m.soft_cap = 0.5;
    m.logit_soft_cap = 1.5;
    m.query_scale = 0.3;
    m.embedding_scale = 5;
    ModelBlock windowed = standard_block(m);
    std::get<AttentionLayer>(windowed.layers[0].is).sliding_window = 3;
    m.blocks = {{4, {windowed, standard_block(m)}}};
  } else if (kind == "decoder") {
    ModelBlock encoder = standard_block(m), decoder = encoder;
    encoder.tower = "encoder";
    std::get<AttentionLayer>(encoder.layers[0].is).causal = false;
    ModelBlock last = encoder;
    last.final_norm = true;
    decoder.tower = "decoder";
    decoder.layers.insert(
        decoder.layers.begin() + 1,
        Layer{CrossAttentionLayer{.reads = "encoder", .heads = 8, .kv_heads = 4, .bias = false}});
    m.inputs = {{TokenInput{"encoder"}}, {TokenInput{"decoder", true}}};
    m.blocks = {{3, {encoder}}, {1, {last}}, {4, {decoder}}};
  } else if (kind == "vit") {
    // 16 tokens.
    m.causal = false;
    m.positions = Positions::kLearned;
    m.rotary = {};
    m.inputs = {{PatchInput{.image = 8, .patch = 2, .channels = 2, .class_token = false}}};
    m.output = {ClassOutput{.classes = 13, .pool = Pool::kMean}};
    m.tied_embeddings = false;
  } else if (kind == "bags") {
    ModelBlock user, item;
    user.tower = "user";
    user.layers = {{MlpLayer{.ffn_hidden = 48, .activation = Activation::kSwiglu, .bias = false}}};
    item = user;
    item.tower = "item";
    m.inputs = {{BagInput{"user", 4, 12, 3}}, {BagInput{"item", 8, 4, 1}}};
    m.output = {PairOutput{}};
    m.blocks = {{4, {user}}, {4, {item}}};
    m.tied_embeddings = false;
  } else if (kind == "encoder") {
    m.causal = false;
    m.activation = Activation::kSquaredRelu;
  } else if (kind != "mixed") {
    m.form = kind == "post-norm" ? BlockForm::kPostNorm : BlockForm::kSandwichNorm;
  } else {
    const ModelBlock standard = standard_block(m);
    ModelBlock wide = standard, bare = standard, beside = standard, turned = standard;
    std::get<MlpLayer>(wide.layers[1].is).ffn_hidden = 80;
    beside.form = BlockForm::kParallel;
    std::get<AttentionLayer>(beside.layers[0].is).kv_heads = 8;
    std::get<AttentionLayer>(turned.layers[0].is).rotary.base = 100;
    turned.layers.push_back(wide.layers[1]);
    bare.layers = {wide.layers[1]};
    m.blocks = {{1, {bare}}, {3, {standard, beside}}, {1, {turned}}};
  }
  m.layers = 8;
  return m;
}

inline Stack stack(bool flash = true) {
  Stack s;
  s.flash_attention = flash;
  s.bucket = Bytes{20000};
  return s;
}

inline exec::RunOptions small_run(std::int64_t steps = 2) {
  return {.steps = steps, .seed = 7, .learning_rate = 0.01F, .capture = true};
}

inline exec::RunResult train(const Model& m, const Plan& p, const Training& t, const Stack& s,
                             const exec::RunOptions& options = small_run()) {
  program::check_plan(m, p, t, {"plan", ""});
  const auto program = program::compile(m, p, t, s);
  const auto problems = program::check(program);
  EXPECT_TRUE(problems.empty()) << short_name(p) << ": " << problems.front();
  return exec::run(program, options);
}

inline double norm_of(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

// The plan with cp ranks in place of each, which share sequences.
inline Plan context(Plan p, std::int64_t cp, std::int64_t ulysses, ContextKeys keys = ContextKeys::kRing) {
  p.cp = cp;
  p.ulysses = ulysses;
  if (p.ring() > 1) p.cp_keys = keys;
  return p;
}

inline Plan plan(std::int64_t tp, std::int64_t pp, std::int64_t dp, std::int64_t zero,
                 std::int64_t micro_batch = 1) {
  Plan p;
  p.tp = tp;
  p.pp = pp;
  p.dp = dp;
  p.zero = zero;
  p.micro_batch = micro_batch;
  p.micro_batches = kBatch / dp / micro_batch;
  return p;
}
inline Plan with(Plan p, Schedule s, std::int64_t vpp = 1) {
  p.schedule = s;
  p.vpp = vpp;
  return p;
}
inline Plan with(Plan p, Recompute r, std::int64_t every = 1) {
  p.recompute = r;
  p.recompute_layers = every;
  return p;
}
inline Plan sp(Plan p) {
  p.sequence_parallel = true;
  return p;
}
inline Plan uneven(Plan p, std::vector<std::int64_t> layers) {
  p.chunk_layers = std::move(layers);
  return p;
}
inline Plan parts_of_loss(Plan p, std::int64_t n) {
  p.loss_chunks = n;
  return p;
}
inline Plan shard_group(Plan p, std::int64_t n) {
  p.shard_group = n;
  return p;
}

}  // namespace orrery
