// SPDX-License-Identifier: Apache-2.0
#include "core/model.h"
#include "core/nf4.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

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
               .qk_norm = s.qk_norm,
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

namespace {

// `layers` counts the blocks.
void read_depth(const Json& json, const Cursor& at, Model& out) {
  const std::int64_t said = json.contains("layers") ? out.layers : 0;
  out.blocks = read_blocks(json["blocks"], at.child("blocks"), standard_block(out));
  out.layers = 0;
  for (const BlockRun& run : out.blocks) out.layers += run.times * std::ssize(run.blocks);
  if (said != 0 && said != out.layers) {
    at.child("layers").fail(fmt::format("{} layers are not the {} blocks", said, out.layers),
                            "allowed: no such field where blocks are given, or their number");
  }
}

}  // namespace

bool read_custom(const Json& json, const Cursor& at, Model& out) {
  if (json.is_string()) {
    out = preset_model(json.get_ref<const std::string&>(), at);
    return true;
  }
  if (!json.is_object()) {
    at.fail(shown(json) + " is not a model", "allowed: a preset's name, or an object");
  }
  if (json.contains("preset") && json.contains("config"))
    at.fail("preset and config are both there", "allowed: one of them");
  if (json.contains("preset") || json.contains("config")) {
    std::string base;
    if (json.contains("preset")) {
      read_value(json["preset"], at.child("preset"), Field{"preset", ""}, base);
      out = preset_model(base, at.child("preset"));
    } else {
      read_value(json["config"], at.child("config"), Field{"config", ""}, base);
      const auto path = std::filesystem::path(at.file).parent_path() / base;
      out = import_hugging_face(load_json(path), Cursor{path.string(), ""});
    }
  }
  FieldReader reader(json, at);
  for (const char* name : base_fields(out)) reader.allow(name);
  describe(reader, out);
  reader.allow("blocks");
  std::erase_if(out.imported, [&](const auto& field) {
    return json.contains(field.first.substr(0, field.first.find('/')));
  });
  reader.finish();
  // Where nothing can be tied, the default is not meant.
  if (!json.contains("tied_embeddings") && (out.classes() != nullptr || out.has_pair() || !out.has_tokens()))
    out.tied_embeddings = false;
  if (json.contains("blocks") && json["blocks"] != Json::array()) read_depth(json, at, out);
  check_model(out, at);
  return true;
}

namespace {

// Within a few per cent, and without integers that could wrap.
double approximate_parameters(const Model& m, const Depth& depth) {
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  double total = d(m.hidden) * (2 * d(m.vocab) + d(m.head_rows()) +
                                (m.positions == Positions::kLearned ? d(m.max_positions) : 0));
  for (const Input& input : m.inputs) {
    if (const auto* bags = std::get_if<BagInput>(&input.is))
      total += d(bags->tables) * d(bags->rows) * d(m.hidden);
  }
  depth.for_each_layer([&](const auto& l, std::int64_t times) {
    total += d(times) * (5 * d(m.hidden) + d(l.parameters(m.hidden)));
  });
  return total;
}

std::int64_t norm_parameters(const Model& m) {
  return (m.has_norm_bias() ? 2 : 1) * m.hidden;
}

// Of the layers of a block that stands in a file; of the flat fields' block, where the model has them.
void check_layers(const Model& m, const ModelBlock& b,
                  const std::function<FieldPlace(std::size_t, const char*)>& places) {
  const bool norm_behind = b.form == BlockForm::kSandwichNorm || b.form == BlockForm::kPostNorm;
  for (std::size_t i = 0; i < b.layers.size(); ++i) {
    std::visit(
        [&](const auto& l) {
          const FieldPlace place = places(i, l.kName);
          l.check(m.hidden, place);
          if (l.bias && norm_behind)
            place("bias").fail(fmt::format("in {} blocks a norm follows each layer", name_of(b.form)),
                               "allowed: false");
        },
        b.layers[i].is);
  }
}

// Names of towers; and what the last block leaves unread would be computed for nothing.
void check_towers(const Model& m, const Cursor& at) {
  std::vector<std::string> names;
  const std::vector<Input> inputs = m.all_inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Cursor input = at.child("inputs").child(i);
    if (inputs[i].tower().empty()) input.fail("the tower has no name");
    if (std::find(names.begin(), names.end(), inputs[i].tower()) != names.end())
      input.fail(fmt::format("the tower \"{}\" is there twice", inputs[i].tower()));
    names.push_back(inputs[i].tower());
  }
  const auto known = [&](const std::string& name, const Cursor& where) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      where.fail(fmt::format("there is no tower {}", shown(Json(name))), allowed_names(name, names));
  };
  for (std::size_t r = 0; r < m.blocks.size(); ++r) {
    for (std::size_t b = 0; b < m.blocks[r].blocks.size(); ++b) {
      const ModelBlock& block = m.blocks[r].blocks[b];
      const Cursor here = at.child("blocks").child(r).child("blocks").child(b);
      if (!block.tower.empty()) known(block.tower, here.child("tower"));
      for (std::size_t l = 0; l < block.layers.size(); ++l) {
        std::visit(
            [&]<class T>(const T& layer) {
              if constexpr (ReadsTower<T>) {
                const Cursor reads = here.child("layers").child(l).child(T::kName).child("reads");
                known(layer.reads, reads);
                if (m.tower(layer.reads) == m.tower(block.tower))
                  reads.fail("the block is of this tower itself", "allowed: another tower");
              }
            },
            block.layers[l].is);
      }
    }
  }
  if (m.tied_embeddings && (m.classes() != nullptr || m.has_pair() || !m.has_tokens()))
    at.child("tied_embeddings")
        .fail("the model has no embedding and head of one vocabulary", "allowed: false");
  if (m.embedding_scale != 1 && !m.has_tokens())
    at.child("embedding_scale").fail("the model embeds no tokens", "allowed: 1");
  if (m.logit_soft_cap != 0 && m.has_pair())
    at.child("logit_soft_cap").fail("the model has no logits", "allowed: 0");
  if (m.has_pair() && inputs.size() != 2)
    at.child("output").fail(fmt::format("a model of {} towers has no pair of them", inputs.size()),
                            "allowed: two inputs");
  const Depth depth = depth_of(m);
  const bool predicts = m.classes() == nullptr && !m.has_pair();
  if (m.mtp_layers > 0) {
    const auto refuse = [&](const char* why) { at.child("mtp_layers").fail(why, "allowed: 0"); };
    if (!predicts || !m.inputs.empty()) refuse("modules predict tokens of a model that has no other inputs");
    if (m.positions == Positions::kLearned) refuse("modules do not add learned positions to embeddings");
    if (depth.blocks() > 0 && depth.kind(depth.blocks() - 1).final_norm)
      refuse("modules have a block like the last one, which ends in a norm");
  }
  if (predicts && output_tower(depth) + 1 != std::ssize(inputs))
    at.child("blocks").fail(
        fmt::format("the last block is of the tower \"{}\", and the model predicts the tokens of \"{}\"",
                    names[static_cast<std::size_t>(output_tower(depth))], names.back()),
        "allowed: a last block of the last input's tower");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Cursor fields = at.child("inputs").child(i).child(PatchInput::kName);
    if (const auto* image = std::get_if<PatchInput>(&inputs[i].is)) {
      if (image->image % image->patch != 0)
        fields.child("patch").fail(
            fmt::format("{} does not divide images of {} pixels", image->patch, image->image));
    }
    if (m.has_pair()) continue;
    const auto* classes = m.classes();
    if (classes != nullptr && classes->pool == Pool::kClassToken &&
        output_tower(depth) == static_cast<TowerIndex>(i)) {
      const auto* image = std::get_if<PatchInput>(&inputs[i].is);
      if (image == nullptr || !image->class_token)
        at.child("output")
            .child(ClassOutput::kName)
            .child("pool")
            .fail(fmt::format("the tower \"{}\" has no class token", names[i]), "allowed: mean");
    }
    if (depth.towers_of(depth.blocks() - 1).touches(static_cast<TowerIndex>(i))) continue;
    at.child("inputs").child(i).fail(
        fmt::format("the tower \"{}\" is not read by the model's last block, nor changed by it", names[i]));
  }
}

}  // namespace

std::optional<PlainLayers> plain_layers(const Model& m) {
  if (!m.blocks.empty() || !m.inputs.empty() || m.classes() != nullptr) return {};
  const Depth depth = depth_of(m);
  if (depth.kinds[0].form != BlockForm::kPreNorm) return {};
  const std::vector<Layer>& layers = depth.kinds[0].layers;
  return PlainLayers{std::get<AttentionLayer>(layers[0].is), std::get<MlpLayer>(layers[1].is)};
}

ModelBlock standard_block(const Model& m) {
  const AttentionLayer attention{.heads = m.heads,
                                 .kv_heads = m.kv_heads,
                                 .head_dim = m.head_dim,
                                 .positions = m.positions,
                                 .rotary = m.rotary,
                                 .sliding_window = m.sliding_window,
                                 .soft_cap = m.soft_cap,
                                 .query_scale = m.query_scale,
                                 .causal = m.causal,
                                 .bias = m.bias,
                                 .qkv_bias = m.qkv_bias,
                                 .qk_norm = m.qk_norm};
  const MlpLayer mlp{.ffn_hidden = m.ffn_hidden, .activation = m.activation, .bias = m.bias};
  return {.form = m.form, .layers = {{attention}, {mlp}}};
}

Depth depth_of(const Model& m) {
  Depth out;
  out.add(m.blocks.empty() ? std::vector<BlockRun>{{m.layers, {standard_block(m)}}} : m.blocks);
  out.mtp = m.mtp_layers;
  for (ModelBlock& b : out.kinds) {
    BlockTowers& towers = out.towers.emplace_back(BlockTowers{.own = m.tower(b.tower)});
    for (Layer& l : b.layers) {
      std::visit(
          [&]<class T>(T& layer) {
            layer.resolve(m.hidden);
            if constexpr (ReadsTower<T>) {
              const TowerIndex read = m.tower(layer.reads);
              if (!towers.touches(read)) towers.read.push_back(read);
            }
          },
          l.is);
    }
  }
  return out;
}

TowerIndex Model::tower(std::string_view called) const {
  if (called.empty()) return 0;
  const std::vector<Input> all = all_inputs();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Input& i) { return i.tower() == called; });
  return static_cast<TowerIndex>(found - all.begin());
}

EndsAsLayers ends_as_layers(const Model& m) {
  return m.mtp_layers == 0 ? EndsAsLayers{} : EndsAsLayers{0, 1 + 2 * m.mtp_layers};
}

bool lighter_ends_are_equal(const Model& m, std::int64_t chunks) {
  const EndsAsLayers ends = ends_as_layers(m);
  const std::int64_t all = m.layers + ends.sum();
  return all % chunks == 0 && all / chunks >= ends.last;
}

std::vector<std::int64_t> lighter_ends(const Model& m, std::int64_t chunks) {
  const EndsAsLayers ends = ends_as_layers(m);
  const std::int64_t all = m.layers + ends.sum();
  const bool alone = ends.last > all / chunks;
  const std::int64_t among = alone ? chunks - 1 : chunks, dealt = alone ? all - ends.last : all;
  std::vector<std::int64_t> out(static_cast<std::size_t>(among), dealt / among);
  // The remainder goes to the middle, or to the first ones where the embedding does not count.
  for (std::int64_t extra = dealt % among, c = ends.first; extra > 0; --extra, ++c)
    ++out[static_cast<std::size_t>(c % among)];
  out.front() -= ends.first;
  if (alone)
    out.push_back(0);
  else
    out.back() -= ends.last;
  return out;
}

std::int64_t shared_count(const Model& m) {
  std::int64_t out = depth_of(m).shared(Degree::kTensor);
  for (const Input& input : m.inputs) {
    if (const auto* image = std::get_if<PatchInput>(&input.is)) out = std::gcd(out, image->values());
    if (const auto* bags = std::get_if<BagInput>(&input.is)) out = std::gcd(out, bags->rows);
  }
  return out;
}

std::vector<std::int64_t> tower_tokens(const Model& m, const Training& t) {
  std::vector<std::int64_t> out;
  for (const Input& input : m.all_inputs()) {
    struct Tokens {
      const Training& of;
      std::int64_t operator()(const TokenInput& i) const {
        return i.target ? of.target_tokens() : of.sequence;
      }
      std::int64_t operator()(const PatchInput& i) const { return i.tokens(); }
      std::int64_t operator()(const BagInput&) const { return 1; }
    };
    out.push_back(std::visit(Tokens{t}, input.is));
  }
  return out;
}

std::int64_t loss_rows(const Model& m, const Training& t) {
  return m.classes() != nullptr || m.has_pair()
             ? 1
             : tower_tokens(m, t)[static_cast<std::size_t>(output_tower(depth_of(m)))];
}

const BagInput* Model::bags() const {
  for (const Input& i : inputs) {
    if (const auto* is = std::get_if<BagInput>(&i.is)) return is;
  }
  return nullptr;
}

bool Model::has_tokens() const {
  return inputs.empty() || std::any_of(inputs.begin(), inputs.end(), [](const Input& i) {
           return std::holds_alternative<TokenInput>(i.is);
         });
}

TowerIndex output_tower(const Depth& depth) {
  return depth.towers_of(depth.blocks() - 1).own;
}

Cursor Model::place(const Cursor& at, std::string_view field) const {
  const auto found = imported.find(field);
  return found == imported.end() ? Cursor{at.file, fmt::format("{}/{}", at.pointer, field)} : found->second;
}

void check_model(const Model& m, const Cursor& at) {
  const auto need = [&](const char* field, std::int64_t value) {
    if (value <= 0) at.fail(fmt::format("the field \"{}\" is missing", field));
  };
  need("layers", m.layers);
  need("hidden", m.hidden);
  if (m.blocks.empty()) need("heads", m.heads);
  if (m.has_tokens() || (m.classes() == nullptr && !m.has_pair())) need("vocab", m.vocab);
  // What was imported names its own fields.
  if (m.blocks.empty() || !m.imported.empty()) {
    check_layers(m, standard_block(m), [&](std::size_t, const char*) {
      return [&](std::string_view field) { return m.place(at, field); };
    });
  }
  for (std::size_t r = 0; r < m.blocks.size(); ++r) {
    const std::vector<ModelBlock>& blocks = m.blocks[r].blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const Cursor block = at.child("blocks").child(r).child("blocks").child(b);
      check_layers(m, blocks[b], [&](std::size_t i, const char* name) {
        return [&m, own = block.child("layers").child(i).child(name)](std::string_view field) {
          const auto imported = m.imported.find(field);
          if (m.imported.contains("blocks") && imported != m.imported.end()) return imported->second;
          return Cursor{own.file, fmt::format("{}/{}", own.pointer, field)};
        };
      });
    }
  }
  check_towers(m, at);
  const double parameters = approximate_parameters(m, depth_of(m));
  if (parameters > limits::kMostParameters)
    at.fail(fmt::format("the model has {:.2g} parameters", parameters),
            fmt::format("allowed: at most {:.0g}", limits::kMostParameters));
}

std::int64_t count_parameters(const Model& m, const ModelBlock& resolved) {
  std::int64_t total = resolved.norms() * norm_parameters(m);
  resolved.for_each_layer([&](const auto& l) { total += l.parameters(m.hidden); });
  return total;
}

std::int64_t count_parameters(const Model& m) {
  std::int64_t total = m.has_pair() ? 0 : norm_parameters(m);
  if (m.has_tokens()) total += m.vocab * m.hidden;
  for (const Input& input : m.all_inputs()) {
    const auto* bags = std::get_if<BagInput>(&input.is);
    if (bags != nullptr) total += bags->tables * bags->rows * m.hidden;
    if (m.positions == Positions::kLearned && bags == nullptr) total += m.max_positions * m.hidden;
    if (const auto* image = std::get_if<PatchInput>(&input.is))
      total +=
          m.hidden * (image->values() + 1 + (image->class_token ? 1 : 0));  // and the bias, the class token
  }
  if (!m.tied_embeddings) total += m.head_rows() * m.hidden;
  if (m.classes() != nullptr) total += m.head_rows();  // the bias
  // What each module begins with, and the norm before its head.
  total += m.mtp_layers * (2 * m.hidden * m.hidden + 3 * norm_parameters(m));
  const Depth depth = depth_of(m);
  const std::vector<std::int64_t> counts = depth.counts();
  for (std::size_t k = 0; k < counts.size(); ++k) total += counts[k] * count_parameters(m, depth.kinds[k]);
  return total;
}

std::vector<ExpertsAt> experts_of(const Model& m) {
  std::vector<ExpertsAt> out;
  const Depth depth = depth_of(m);
  for (std::int64_t block = 0; block < depth.blocks() + depth.mtp; ++block) {
    depth.kind(block).for_each_layer([&]<class T>(const T& layer) {
      if constexpr (std::is_same_v<T, ExpertsLayer>) out.push_back({block, layer});
    });
  }
  return out;
}

double most_expert_shares(const Model& m, std::int64_t parts) {
  double most = 1;
  depth_of(m).for_each_layer([&](const auto& l, std::int64_t) {
    if constexpr (requires { l.most_shares(parts); }) most = std::max(most, l.most_shares(parts));
  });
  return most;
}

std::int64_t count_active_parameters(const Model& m) {
  std::int64_t idle = 0;
  depth_of(m).for_each_layer([&](const auto& l, std::int64_t times) {
    if constexpr (requires { l.expert_elements(m.hidden); }) {
      const std::int64_t biases = l.biases ? l.fc1_width() + m.hidden : 0;
      idle += times * (l.experts - l.top_k) * (l.expert_elements(m.hidden) + biases);
    }
  });
  return count_parameters(m) - idle;
}

namespace {

// Calls use(matrix, times, tokens of a sample) for each that has an adapter.
template <class Use>
void for_each_adapted(const Model& m, const Adapter& adapter, const std::vector<std::int64_t>& tokens,
                      Use use) {
  const AdapterTargets chosen = adapter.chosen();
  for_each_layer_tokens(m, depth_of(m), tokens, [&](const auto& l, std::int64_t n, const LayerTokens& of) {
    for (const AdapterMatrix& a : l.adapter_matrices(m.hidden)) {
      if (chosen.has(a.target)) use(a, n, a.of_read ? of.read : of.own);
    }
  });
}

}  // namespace

std::int64_t count_adapter_parameters(const Model& m, const Adapter& adapter) {
  std::int64_t sum = 0;
  for_each_adapted(
      m, adapter, tower_tokens(m, Training{}),
      [&](const AdapterMatrix& a, std::int64_t n, std::int64_t) { sum += n * a.parameters(adapter.rank); });
  return sum;
}

std::int64_t count_trained_parameters(const Model& m, const Training& t) {
  return t.adapter ? count_adapter_parameters(m, *t.adapter) : count_parameters(m);
}

namespace {

// Of moments that Muon does without. Layers count as matrices: their norms and biases are few.
double spared_by_muon(const Model& m, const Training& t) {
  if (!t.muon) return 0;
  const Depth depth = depth_of(m);
  const std::vector<std::int64_t> times = depth.counts();
  std::int64_t of_layers = 0;
  for (std::size_t k = 0; k < times.size(); ++k) of_layers += times[k] * count_parameters(m, depth.kinds[k]);
  return static_cast<double>(of_layers * (t.bytes_of(false).moments - t.bytes_of(true).moments));
}

}  // namespace

double restart_bytes(const Model& m, const Training& t) {
  const BytesPerParameter bytes = bytes_per_parameter(t.precision);
  return static_cast<double>(count_trained_parameters(m, t) * (bytes.parameter + bytes.optimizer())) -
         spared_by_muon(m, t);
}

double state_bytes(const Model& m, const Training& t) {
  const BytesPerParameter bytes = bytes_per_parameter(t.precision);
  const double trained =
      static_cast<double>(count_trained_parameters(m, t) * bytes.total()) - spared_by_muon(m, t);
  if (!t.adapter) return trained;
  const std::int64_t all = count_parameters(m);
  double frozen = 0;
  switch (t.adapter->base) {
    case BaseStorage::kAsComputed:
      frozen = static_cast<double>(all * bytes.parameter);
      break;
    case BaseStorage::kNf4:
    case BaseStorage::kNf4Double: {  // the model's ends are as they are computed
      const std::int64_t ends = std::min(all, (m.tied_embeddings ? 1 : 2) * m.vocab * m.hidden);
      const bool doubled = t.adapter->base == BaseStorage::kNf4Double;
      frozen = static_cast<double>(Nf4Layout(all - ends, doubled).bytes() + ends * bytes.parameter);
      break;
    }
  }
  return trained + frozen;
}

Flop model_flops_per_sequence(const Model& m, const Training& t, AttentionFlops convention) {
  const Depth depth = depth_of(m);
  const std::vector<std::int64_t> tokens = tower_tokens(m, t);
  // Elements of matrices that each token of a tower is multiplied with.
  std::vector<double> matrices(tokens.size());
  double core = 0;
  const auto h = static_cast<double>(m.hidden);
  if (m.classes() == nullptr && !m.has_pair())
    matrices[static_cast<std::size_t>(output_tower(depth))] =
        h * (static_cast<double>(m.vocab) +
             static_cast<double>(m.mtp_layers) * (static_cast<double>(m.vocab) + 2 * h));
  const std::vector<std::int64_t> times = depth.counts();
  for (std::size_t k = 0; k < times.size(); ++k) {
    const auto n = static_cast<double>(times[k]);
    depth.kinds[k].for_each_layer([&]<class T>(const T& l) {
      matrices[static_cast<std::size_t>(depth.towers[k].own)] +=
          n * static_cast<double>(l.matrix_elements(m.hidden));
      if constexpr (ReadsTower<T>)
        matrices[static_cast<std::size_t>(m.tower(l.reads))] +=
            n * static_cast<double>(l.read_elements(m.hidden));
    });
  }
  for_each_layer_tokens(m, depth, tokens, [&](const auto& l, std::int64_t n, const LayerTokens& of) {
    core += static_cast<double>(n) * l.core_flops(of);
  });
  double products = m.classes() == nullptr ? 0 : 2.0 * h * static_cast<double>(m.classes()->classes);
  for (const Input& input : m.inputs) {
    if (const auto* image = std::get_if<PatchInput>(&input.is))
      products += 2.0 * static_cast<double>(image->patches()) * static_cast<double>(image->values()) * h;
  }
  for (std::size_t i = 0; i < tokens.size(); ++i)
    products += 2.0 * static_cast<double>(tokens[i]) * matrices[i];
  if (convention == AttentionFlops::kCausal) core /= 2;
  if (!t.adapter) return Flop{3.0 * (products + core)};
  double adapters = 0;
  for_each_adapted(m, *t.adapter, tokens, [&](const AdapterMatrix& a, std::int64_t n, std::int64_t of) {
    adapters += static_cast<double>(n) * product_flops(of, a.parameters(t.adapter->rank));
  });
  return Flop{2.0 * products + 3.0 * (core + adapters)};
}

Flop model_flops_per_sequence(const Model& m, std::int64_t sequence, AttentionFlops convention) {
  return model_flops_per_sequence(m, Training{.sequence = sequence}, convention);
}

}  // namespace orrery
