// SPDX-License-Identifier: Apache-2.0
#include "core/model.h"

#include <algorithm>
#include <filesystem>

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
Model llama31(const char* name, const LlamaShape& s) {
  Model m = llama3(name, s);
  m.rotary.scaling = RotaryScaling::kLlama3;
  m.rotary.factor = 8;
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

Model windowed(Model m, std::int64_t window) {
  m.sliding_window = window;
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
      qwen("qwen3-8b", {36, 4096, 32, 8, 12288, 151936, 40960, false, false, true, 128}),
      nemotron("nemotron-4-15b", 32, 6144, 48, 24576),
      nemotron("nemotron-4-340b", 96, 18432, 96, 73728),
      gpt("tiny-gpt", 4, 64, 4, 256, 64),
      llama("tiny-llama", {4, 64, 4, 2, 176, 256, 64}),
  };
  return all;
}

class HuggingFaceReader {
 public:
  HuggingFaceReader(const Json& config, const Cursor& at, ImportedFields& places)
      : config_(config), at_(at), places_(places) {}

  // The field `ours` under any of its names (transformers 4 and 5 differ); null counts as absent.
  void integer(const char* ours, std::initializer_list<const char*> names, std::int64_t& out,
               bool required) const {
    Field field = declared<Model>(ours);
    field.min = std::max(field.min, 1.0);  // only in our files does 0 mean a default
    places_[ours] = at_.child(*names.begin());
    for (const char* name : names) {
      const auto found = config_.find(name);
      if (found == config_.end() || found->is_null()) continue;
      places_[ours] = at_.child(name);
      return read_value(*found, at_.child(name), field, out);
    }
    if (required) at_.fail(fmt::format("the field \"{}\" is missing", *names.begin()));
  }
  void number(const char* name, double& out, double least, double most) const {
    const auto found = config_.find(name);
    if (found != config_.end() && !found->is_null())
      read_value(*found, at_.child(name), Field{name, "", least, most}, out);
  }
  // A text field that our models have one meaning of, under several names.
  void text(const char* ours, const char* name, const std::vector<std::string>& known) const {
    places_[ours] = at_.child(name);
    const auto found = config_.find(name);
    if (found == config_.end() || found->is_null()) return;
    std::string value;
    read_value(*found, at_.child(name), Field{name, ""}, value);
    if (std::find(known.begin(), known.end(), value) == known.end())
      at_.child(name).fail(shown(*found) + " cannot be imported", allowed_names(value, known));
  }
  void boolean(const char* name, bool& out) const {
    const auto found = config_.find(name);
    if (found != config_.end() && !found->is_null())
      read_value(*found, at_.child(name), Field{name, ""}, out);
  }

 private:
  const Json& config_;
  const Cursor& at_;
  ImportedFields& places_;
};

Model import_gpt2(const HuggingFaceReader& read) {
  Model m;
  m.max_positions = 1024;
  read.integer("layers", {"n_layer", "num_hidden_layers"}, m.layers, true);
  read.integer("hidden", {"n_embd", "hidden_size"}, m.hidden, true);
  read.integer("heads", {"n_head", "num_attention_heads"}, m.heads, true);
  read.integer("ffn_hidden", {"n_inner", "intermediate_size"}, m.ffn_hidden, false);
  read.integer("max_positions", {"n_positions", "max_position_embeddings"}, m.max_positions, false);
  read.number("layer_norm_epsilon", m.norm_epsilon, 1e-20, 1);
  read.text("activation", "activation_function", {"gelu_new", "gelu", "gelu_pytorch_tanh"});
  return m;
}

// Windows that only some layers have are refused: our layers are alike.
std::int64_t import_window(const HuggingFaceReader& read, const Json& config, const Cursor& at,
                           const std::string& type, std::int64_t layers) {
  // As transformers does where a field is absent: Mistral has a window, Qwen has none unless it says so.
  bool used = type == "mistral";
  std::int64_t window = used ? 4096 : 0, first = layers;
  if (const auto found = config.find("sliding_window"); found != config.end() && found->is_null()) return 0;
  read.boolean("use_sliding_window", used);
  if (!used) return 0;
  read.integer("sliding_window", {"sliding_window"}, window, false);
  if (type.starts_with("qwen")) {
    if (const auto found = config.find("max_window_layers"); found != config.end() && !found->is_null())
      read_value(*found, at.child("max_window_layers"), Field{"max_window_layers", "", 0, 1 << 30}, first);
    if (first > 0 && first < layers) {
      at.child("max_window_layers")
          .fail(fmt::format("{} of {} layers have no window", first, layers),
                "allowed: 0 or all, layers with and without a window are not mixed");
    }
    if (first >= layers) return 0;
  }
  return window;
}

Model import_llama(const HuggingFaceReader& read, const Json& config, const Cursor& at,
                   const std::string& type, ImportedFields& places) {
  Model m = llama(type.c_str(), {});
  m.max_positions = 2048;
  read.integer("layers", {"num_hidden_layers"}, m.layers, true);
  read.integer("hidden", {"hidden_size"}, m.hidden, true);
  read.integer("heads", {"num_attention_heads"}, m.heads, true);
  read.integer("kv_heads", {"num_key_value_heads"}, m.kv_heads, false);
  read.integer("head_dim", {"head_dim"}, m.head_dim, false);
  read.integer("ffn_hidden", {"intermediate_size"}, m.ffn_hidden, true);
  read.integer("max_positions", {"max_position_embeddings"}, m.max_positions, false);
  m.norm_epsilon = 1e-6;
  read.number("rms_norm_eps", m.norm_epsilon, 1e-20, 1);
  read.text("activation", "hidden_act", {"silu", "swish"});
  m.rotary = import_rotary(config, at, m.max_positions, places);
  m.sliding_window = type == "llama" ? 0 : import_window(read, config, at, type, m.layers);
  m.qkv_bias = type == "qwen2";
  m.qk_norm = type == "qwen3";
  read.boolean("attention_bias", m.qkv_bias);
  return m;
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
  if (json.contains("blocks") && json["blocks"] != Json::array()) read_depth(json, at, out);
  check_model(out, at);
  return true;
}

namespace {

constexpr double kMostParameters = 1e15;  // so that bytes of parameters, gradients and states fit in 64 bits

// Within a few per cent, and without integers that could wrap.
double approximate_parameters(const Model& m, const Depth& depth) {
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  double total =
      d(m.hidden) * (2 * d(m.vocab) + (m.positions == Positions::kLearned ? d(m.max_positions) : 0));
  depth.for_each_layer([&](const auto& l, std::int64_t times) {
    total += d(times) * (5 * d(m.hidden) + d(l.matrix_elements(m.hidden)));
  });
  return total;
}

std::int64_t norm_parameters(const Model& m) {
  return (m.norm == Norm::kLayerNorm && m.bias ? 2 : 1) * m.hidden;
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

}  // namespace

std::optional<PlainLayers> plain_layers(const Model& m) {
  const Depth depth = depth_of(m);
  if (!depth.uniform() || depth.kinds[0].form != BlockForm::kPreNorm) return {};
  const std::vector<Layer>& layers = depth.kinds[0].layers;
  if (layers.size() != 2) return {};
  const auto* attention = std::get_if<AttentionLayer>(&layers[0].is);
  const auto* mlp = std::get_if<MlpLayer>(&layers[1].is);
  if (attention == nullptr || mlp == nullptr) return {};
  return PlainLayers{*attention, *mlp};
}

ModelBlock standard_block(const Model& m) {
  const AttentionLayer attention{.heads = m.heads,
                                 .kv_heads = m.kv_heads,
                                 .head_dim = m.head_dim,
                                 .positions = m.positions,
                                 .rotary = m.rotary,
                                 .sliding_window = m.sliding_window,
                                 .bias = m.bias,
                                 .qkv_bias = m.qkv_bias,
                                 .qk_norm = m.qk_norm};
  const MlpLayer mlp{.ffn_hidden = m.ffn_hidden, .activation = m.activation, .bias = m.bias};
  return {m.form, {{attention}, {mlp}}};
}

Depth depth_of(const Model& m) {
  Depth out;
  out.add(m.blocks.empty() ? std::vector<BlockRun>{{m.layers, {standard_block(m)}}} : m.blocks);
  for (ModelBlock& b : out.kinds) {
    for (Layer& l : b.layers) std::visit([&](auto& layer) { layer.resolve(m.hidden); }, l.is);
  }
  return out;
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
  need("heads", m.heads);
  need("vocab", m.vocab);
  if (m.blocks.empty()) {
    check_layers(m, standard_block(m), [&](std::size_t, const char*) {
      return [&](std::string_view field) { return m.place(at, field); };
    });
  }
  for (std::size_t r = 0; r < m.blocks.size(); ++r) {
    const std::vector<ModelBlock>& blocks = m.blocks[r].blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const Cursor block = at.child("blocks").child(r).child("blocks").child(b);
      check_layers(m, blocks[b], [&](std::size_t i, const char* name) {
        return [own = block.child("layers").child(i).child(name)](std::string_view field) {
          return Cursor{own.file, fmt::format("{}/{}", own.pointer, field)};
        };
      });
    }
  }
  const double parameters = approximate_parameters(m, depth_of(m));
  if (parameters > kMostParameters)
    at.fail(fmt::format("the model has {:.2g} parameters", parameters),
            fmt::format("allowed: at most {:.0g}", kMostParameters));
}

Model import_hugging_face(const Json& config, const Cursor& at) {
  if (!config.is_object()) at.fail(shown(config) + " is not an object");
  if (config.contains("text_config")) {
    return import_hugging_face(config["text_config"], at.child("text_config"));
  }
  static const std::vector<std::string> kKnown = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};
  std::string type;
  const auto found = config.find("model_type");
  if (found == config.end()) at.fail("the field \"model_type\" is missing", allowed_names("", kKnown));
  read_value(*found, at.child("model_type"), Field{"model_type", ""}, type);
  if (type == "bloom" || type == "mpt") {
    at.child("model_type")
        .fail(
            fmt::format("\"{}\" has ALiBi positions, which are predicted for its presets but neither run nor "
                        "exported",
                        type),
            allowed_names("", kKnown));
  }
  if (std::find(kKnown.begin(), kKnown.end(), type) == kKnown.end()) {
    at.child("model_type").fail(shown(*found) + " cannot be imported", allowed_names(type, kKnown));
  }
  ImportedFields places;
  places["positions"] = at.child("model_type");
  const HuggingFaceReader read(config, at, places);
  Model m = type == "gpt2" ? import_gpt2(read) : import_llama(read, config, at, type, places);
  m.name = type;
  read.integer("vocab", {"vocab_size"}, m.vocab, true);
  read.boolean("tie_word_embeddings", m.tied_embeddings);
  m.imported = std::move(places);
  check_model(m, at);
  return m;
}

std::int64_t count_parameters(const Model& m, const ModelBlock& resolved) {
  std::int64_t total = resolved.norms() * norm_parameters(m);
  resolved.for_each_layer([&](const auto& l) { total += l.parameters(m.hidden); });
  return total;
}

std::int64_t count_parameters(const Model& m) {
  std::int64_t total = m.vocab * m.hidden + norm_parameters(m);
  if (m.positions == Positions::kLearned) total += m.max_positions * m.hidden;
  if (!m.tied_embeddings) total += m.vocab * m.hidden;
  const Depth depth = depth_of(m);
  const std::vector<std::int64_t> counts = depth.counts();
  for (std::size_t k = 0; k < counts.size(); ++k) total += counts[k] * count_parameters(m, depth.kinds[k]);
  return total;
}

Flop model_flops_per_sequence(const Model& m, std::int64_t seq, AttentionFlops convention) {
  const double s = static_cast<double>(seq), h = static_cast<double>(m.hidden);
  double matrices = h * static_cast<double>(m.vocab), core = 0;
  depth_of(m).for_each_layer([&](const auto& l, std::int64_t times) {
    matrices += static_cast<double>(times) * static_cast<double>(l.matrix_elements(m.hidden));
    core += static_cast<double>(times) * l.core_flops(seq);
  });
  return Flop{3.0 * (2.0 * s * matrices + (convention == AttentionFlops::kCausal ? 0.5 : 1.0) * core)};
}

}  // namespace orrery
