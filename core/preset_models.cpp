// SPDX-License-Identifier: Apache-2.0
//
// Models that are known by name.
#include "core/model.h"

namespace orrery {
namespace {

Model gpt(const char* name, std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t vocab,
          std::int64_t positions = 2048) {
  return Model{.name = name,
               .layers = layers,
               .hidden = hidden,
               .heads = heads,
               .vocab = vocab,
               .max_positions = positions};
}

// BLOOM and MPT: positions as biases of the scores; MPT has none on its layers.
Model alibi(const char* name, std::int64_t layers, std::int64_t hidden, std::int64_t heads,
            std::int64_t vocab, bool bias) {
  Model m = gpt(name, layers, hidden, heads, vocab);
  m.positions = Positions::kAlibi;
  m.bias = bias;
  return m;
}

Model nemotron(const char* name, std::int64_t layers, std::int64_t hidden, std::int64_t heads,
               std::int64_t ffn) {
  Model m = gpt(name, layers, hidden, heads, 256000, 4096);
  m.kv_heads = 8;
  m.ffn_hidden = ffn;
  m.positions = Positions::kRotary;
  m.rotary.fraction = 0.5;
  m.activation = Activation::kSquaredRelu;
  m.bias = false;
  m.tied_embeddings = false;
  return m;
}

struct LlamaShape {
  std::int64_t layers, hidden, heads, kv_heads, ffn, vocab, positions;
  bool tied = false, qkv_bias = false, qk_norm = false;
  std::int64_t head_dim = 0;
  double rotary_base = 10000, norm_epsilon = 1e-5;
};

Model llama(const char* name, const LlamaShape& s) {
  return Model{.name = name,
               .layers = s.layers,
               .hidden = s.hidden,
               .heads = s.heads,
               .kv_heads = s.kv_heads,
               .head_dim = s.head_dim,
               .ffn_hidden = s.ffn,
               .vocab = s.vocab,
               .max_positions = s.positions,
               .norm = Norm::kRmsNorm,
               .norm_epsilon = s.norm_epsilon,
               .positions = Positions::kRotary,
               .rotary = {.base = s.rotary_base},
               .activation = Activation::kSwiglu,
               .bias = false,
               .qkv_bias = s.qkv_bias,
               .qk_norm = s.qk_norm ? QkNorm::kPerHead : QkNorm::kNone,
               .tied_embeddings = s.tied};
}

Model llama3(const char* name, const LlamaShape& s) {
  Model m = llama(name, s);
  m.rotary.base = 500000;
  return m;
}

// Trained on 8,192 positions, then extended.
Model llama31(const char* name, const LlamaShape& s, double factor = 8) {
  Model m = llama3(name, s);
  m.rotary.scaling = RotaryScaling::kLlama3;
  m.rotary.factor = factor;
  return m;
}

Model internlm(const char* name, LlamaShape s) {
  s.norm_epsilon = 1e-6;
  return llama(name, s);
}

// 2, 2.5 and, with norms of heads in place of biases, 3.
Model qwen(const char* name, LlamaShape s) {
  s.qkv_bias = !s.qk_norm;
  s.rotary_base = 1e6;
  s.norm_epsilon = 1e-6;
  return llama(name, s);
}

Model mixtral(const char* name, LlamaShape s) {
  s.rotary_base = 1e6;
  return llama(name, s);
}

Model windowed(Model m, std::int64_t window) {
  m.sliding_window = window;
  return m;
}

// The model with experts in place of its MLPs, from block `dense` on.
Model sparse(Model m, const ExpertsLayer& experts, std::int64_t dense = 0) {
  ModelBlock block = standard_block(m);
  block.layers.back() = {experts};
  if (dense > 0) m.blocks.push_back({dense, {standard_block(m)}});
  m.blocks.push_back({m.layers - dense, {block}});
  return m;
}

// OLMo 2 (arXiv:2501.00656).
Model olmo(const char* name, LlamaShape s) {
  s.norm_epsilon = 1e-6;
  Model m = llama3(name, s);
  m.form = BlockForm::kPostNorm;
  m.qk_norm = QkNorm::kAllHeads;
  return m;
}

// config.json of MiniMaxAI/MiniMax-M2, without its modules of multi-token prediction.
Model minimax_m2() {
  Model m =
      llama("minimax-m2-230b", {62, 3072, 48, 8, 1536, 200064, 196608, false, false, false, 128, 5e6, 1e-6});
  m.rotary.fraction = 0.5;
  m.qk_norm = QkNorm::kAllHeads;
  return sparse(
      std::move(m),
      {.experts = 256, .top_k = 8, .ffn_hidden = 1536, .score = RouterScore::kSigmoid, .bias_rate = 0.001});
}

// config.json of meta-llama/Llama-4-Scout-17B-16E and of Llama-4-Maverick-17B-128E, whose every second layer
// has experts; of text alone.
Model llama4(const char* name, std::int64_t experts) {
  const bool scout = experts == 16;
  Model m =
      llama3(name, {48, 5120, 40, 8, 16384, 202048, scout ? 10485760 : 1048576, false, false, false, 128});
  if (scout) {
    m.rotary.scaling = RotaryScaling::kLlama3;
    m.rotary.factor = 16;
    m.rotary.high_frequency_factor = 1;
  }
  const ExpertsLayer layer{.experts = experts,
                           .top_k = 1,
                           .ffn_hidden = 8192,
                           .shared_ffn_hidden = 8192,
                           .score = RouterScore::kSigmoid,
                           .normalised = false,
                           .weighs_inputs = true};
  std::vector<ModelBlock> four(4, standard_block(m));
  for (std::size_t i = 0; i < four.size(); ++i) {
    auto& attention = std::get<AttentionLayer>(four[i].layers.front().is);
    if (i < 3) {
      attention.chunk = 8192;
      if (scout) attention.qk_norm = QkNorm::kUnweighted;
    } else {
      attention.positions = Positions::kNone;
      attention.rotary = {};
      attention.query_growth.rate = 0.1;
    }
    if (scout || i % 2 == 1) four[i].layers.back() = {layer};
  }
  m.blocks = {{12, std::move(four)}};
  return m;
}

// config.json of openai/gpt-oss-20b and openai/gpt-oss-120b.
Model gpt_oss(std::string name, std::int64_t layers, std::int64_t experts) {
  Model m{.name = std::move(name),
          .layers = layers,
          .hidden = 2880,
          .heads = 64,
          .kv_heads = 8,
          .head_dim = 64,
          .ffn_hidden = 2880,
          .vocab = 201088,
          .max_positions = 131072,
          .norm = Norm::kRmsNorm,
          .norm_epsilon = 1e-5,
          .positions = Positions::kRotary,
          .activation = Activation::kSwiglu,
          .bias = false,
          .tied_embeddings = false};
  m.rotary = {.base = 150000,
              .scaling = RotaryScaling::kYarn,
              .factor = 32,
              .original_positions = 4096,
              .rounded_ramp = false};
  ModelBlock all = standard_block(m);
  auto& attention = std::get<AttentionLayer>(all.layers.front().is);
  attention.bias = attention.sinks = true;
  all.layers.back() = {ExpertsLayer{.experts = experts,
                                    .top_k = 4,
                                    .ffn_hidden = 2880,
                                    .biases = true,
                                    .activation = Activation::kClampedSwiglu,
                                    .balance_loss = 0.9}};
  ModelBlock near = all;
  std::get<AttentionLayer>(near.layers.front().is).sliding_window = 128;
  m.blocks = {{layers / 2, {near, all}}};
  return m;
}

// DeepSeek-V3 without its head for the token after the next (arXiv:2412.19437, section 4.2).
Model deepseek_v3() {
  Model m =
      llama("deepseek-v3-671b", {61, 7168, 128, 0, 18432, 129280, 4096, false, false, false, 0, 10000, 1e-6});
  const LatentAttentionLayer attention{
      .heads = 128, .q_rank = 1536, .kv_rank = 512, .turned = 64, .plain = 128, .value = 128};
  const ExpertsLayer experts{.experts = 256,
                             .top_k = 8,
                             .ffn_hidden = 2048,
                             .shared_ffn_hidden = 2048,
                             .score = RouterScore::kSigmoid,
                             .weight_scale = 2.5,
                             .groups = 8,
                             .top_groups = 4,
                             .bias_rate = 0.001,
                             .balance_loss = 1e-4};
  ModelBlock dense = standard_block(m);
  dense.layers.front() = {attention};
  ModelBlock with = dense;
  with.layers.back() = {experts};
  m.blocks = {{3, {dense}}, {58, {with}}};
  return m;
}

// config.json of moonshotai/Moonlight-16B-A3B.
Model moonlight() {
  Model m =
      llama("moonlight-16b-a3b", {27, 2048, 16, 0, 11264, 163840, 8192, false, false, false, 0, 50000, 1e-5});
  ModelBlock dense = standard_block(m);
  dense.layers.front() = {
      LatentAttentionLayer{.heads = 16, .kv_rank = 512, .turned = 64, .plain = 128, .value = 128}};
  ModelBlock with = dense;
  with.layers.back() = {ExpertsLayer{.experts = 64,
                                     .top_k = 6,
                                     .ffn_hidden = 1408,
                                     .shared_ffn_hidden = 2816,
                                     .score = RouterScore::kSigmoid,
                                     .weight_scale = 2.446,
                                     .bias_rate = 0.001}};
  m.blocks = {{1, {dense}}, {26, {with}}};
  return m;
}

// Dimensions from the papers and model cards; GPT vocabularies are Megatron's padded 51200 unless the
// model is OpenAI's own.
const std::vector<Model>& presets() {
  static const std::vector<Model> all = {
      gpt("gpt2-124m", 12, 768, 12, 50257, 1024),
      gpt("gpt2-350m", 24, 1024, 16, 50257, 1024),
      gpt("gpt2-774m", 36, 1280, 20, 50257, 1024),
      gpt("gpt2-1558m", 48, 1600, 25, 50257, 1024),
      gpt("megatron-1.7b", 24, 2304, 24, 51200),
      gpt("megatron-3.6b", 30, 3072, 32, 51200),
      gpt("megatron-7.5b", 36, 4096, 32, 51200),
      gpt("megatron-18.4b", 40, 6144, 48, 51200),
      gpt("megatron-22b", 48, 6144, 64, 51200),
      gpt("megatron-39.1b", 48, 8192, 64, 51200),
      gpt("megatron-76.1b", 60, 10240, 80, 51200),
      gpt("megatron-145.6b", 80, 12288, 96, 51200),
      gpt("megatron-310.1b", 96, 16384, 128, 51200),
      gpt("gpt3-175b", 96, 12288, 96, 51200),
      gpt("turing-530b", 105, 20480, 128, 51200),
      gpt("megatron-1t", 128, 25600, 160, 51200),
      gpt("climate-1.2b", 24, 2048, 16, 8192),
      gpt("gpt-neo-2.7b", 32, 2560, 20, 50257),
      gpt("opt-350m", 24, 1024, 16, 50272),
      alibi("bloom-176b", 70, 14336, 112, 250880, true),
      alibi("mpt-125m", 12, 768, 12, 50368, false),
      alibi("mpt-350m", 24, 1024, 16, 50368, false),
      alibi("mpt-760m", 24, 1536, 12, 50368, false),
      alibi("mpt-1b", 24, 2048, 16, 50368, false),
      alibi("mpt-3b", 32, 2560, 20, 50368, false),
      alibi("mpt-7b", 32, 4096, 32, 50368, false),
      alibi("mpt-13b", 40, 5120, 40, 50368, false),
      alibi("mpt-30b", 48, 7168, 56, 50368, false),
      alibi("mpt-70b", 80, 8192, 64, 50368, false),
      llama("llama-2-7b", {32, 4096, 32, 32, 11008, 32000, 4096}),
      llama("llama-2-13b", {40, 5120, 40, 40, 13824, 32000, 4096}),
      llama("llama-2-70b", {80, 8192, 64, 8, 28672, 32000, 4096}),
      llama3("llama-3-8b", {32, 4096, 32, 8, 14336, 128256, 8192}),
      llama3("llama-3-70b", {80, 8192, 64, 8, 28672, 128256, 8192}),
      llama31("llama-3-405b", {126, 16384, 128, 8, 53248, 128256, 131072}),
      llama31("llama-3.1-8b", {32, 4096, 32, 8, 14336, 128256, 131072}),
      llama31("llama-3.1-70b", {80, 8192, 64, 8, 28672, 128256, 131072}),
      llama31("llama-3.1-405b", {126, 16384, 128, 8, 53248, 128256, 131072}),
      llama31("llama-3.2-1b", {16, 2048, 32, 8, 8192, 128256, 131072, true}, 32),
      llama31("llama-3.2-3b", {28, 3072, 24, 8, 8192, 128256, 131072, true}, 32),
      llama31("llama-3.3-70b", {80, 8192, 64, 8, 28672, 128256, 131072}),
      olmo("olmo-2-7b", {32, 4096, 32, 32, 11008, 100352, 4096}),
      olmo("olmo-2-13b", {40, 5120, 40, 40, 13824, 100352, 4096}),
      olmo("olmo-2-32b", {64, 5120, 40, 8, 27648, 100352, 4096}),
      internlm("internlm-7b", {32, 4096, 32, 32, 11008, 103168, 2048}),
      internlm("internlm-20b", {60, 5120, 40, 40, 13824, 103168, 4096}),
      windowed(llama("mistral-7b", {32, 4096, 32, 8, 14336, 32000, 32768}), 4096),
      qwen("qwen2-7b", {28, 3584, 28, 4, 18944, 152064, 32768}),
      qwen("qwen2.5-0.5b", {24, 896, 14, 2, 4864, 151936, 32768, true}),
      qwen("qwen2.5-1.5b", {28, 1536, 12, 2, 8960, 151936, 32768, true}),
      qwen("qwen2.5-3b", {36, 2048, 16, 2, 11008, 151936, 32768, true}),
      qwen("qwen2.5-7b", {28, 3584, 28, 4, 18944, 152064, 32768}),
      qwen("qwen2.5-14b", {48, 5120, 40, 8, 13824, 152064, 32768}),
      qwen("qwen2.5-32b", {64, 5120, 40, 8, 27648, 152064, 32768}),
      qwen("qwen2.5-72b", {80, 8192, 64, 8, 29568, 152064, 32768}),
      qwen("qwen3-0.6b", {28, 1024, 16, 8, 3072, 151936, 40960, true, false, true, 128}),
      qwen("qwen3-1.7b", {28, 2048, 16, 8, 6144, 151936, 40960, true, false, true, 128}),
      qwen("qwen3-4b", {36, 2560, 32, 8, 9728, 151936, 40960, true, false, true, 128}),
      qwen("qwen3-14b", {40, 5120, 40, 8, 17408, 151936, 40960, false, false, true, 128}),
      qwen("qwen3-32b", {64, 5120, 64, 8, 25600, 151936, 40960, false, false, true, 128}),
      qwen("qwen3-8b", {36, 4096, 32, 8, 12288, 151936, 40960, false, false, true, 128}),
      sparse(qwen("qwen3-30b-a3b", {48, 2048, 32, 4, 6144, 151936, 40960, false, false, true, 128}),
             {.experts = 128, .top_k = 8, .ffn_hidden = 768, .balance_loss = 0.001}),
      sparse(qwen("qwen3-235b-a22b", {94, 4096, 64, 4, 12288, 151936, 40960, false, false, true, 128}),
             {.experts = 128, .top_k = 8, .ffn_hidden = 1536, .balance_loss = 0.001}),
      sparse(qwen("qwen2-57b-a14b", {28, 3584, 28, 4, 18944, 151936, 131072}), {.experts = 64,
                                                                                .top_k = 8,
                                                                                .ffn_hidden = 2560,
                                                                                .shared_ffn_hidden = 20480,
                                                                                .shared_gate = true,
                                                                                .normalised = false,
                                                                                .balance_loss = 0.001}),
      deepseek_v3(),
      moonlight(),
      minimax_m2(),
      llama4("llama-4-scout-109b", 16),
      llama4("llama-4-maverick-400b", 128),
      gpt_oss("gpt-oss-20b", 24, 32),
      gpt_oss("gpt-oss-120b", 36, 128),
      sparse(mixtral("mixtral-8x7b", {32, 4096, 32, 8, 14336, 32000, 32768}),
             {.experts = 8, .top_k = 2, .ffn_hidden = 14336, .balance_loss = 0.02}),
      sparse(mixtral("mixtral-8x22b", {56, 6144, 48, 8, 16384, 32768, 65536}),
             {.experts = 8, .top_k = 2, .ffn_hidden = 16384, .balance_loss = 0.001}),
      nemotron("nemotron-4-15b", 32, 6144, 48, 24576),
      nemotron("nemotron-4-340b", 96, 18432, 96, 73728),
      gpt("tiny-gpt", 4, 64, 4, 256, 64),
      llama("tiny-llama", {4, 64, 4, 2, 176, 256, 64}),
  };
  return all;
}

}  // namespace

std::vector<std::string> preset_model_names() {
  std::vector<std::string> names;
  for (const Model& m : presets()) names.push_back(m.name);
  return names;
}

Model preset_model(std::string_view name, const Cursor& at) {
  for (const Model& m : presets()) {
    if (m.name == name) return m;
  }
  at.fail(fmt::format("there is no model preset {}", shown(Json(std::string(name)))),
          allowed_names(name, preset_model_names()));
}

}  // namespace orrery
