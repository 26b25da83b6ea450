// SPDX-License-Identifier: Apache-2.0
#include "exec/hugging_face_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/blocks.h"
#include "core/error.h"
#include "core/fields.h"
#include "core/json.h"
#include "exec/crc32c.h"
#include "exec/safetensors.h"

namespace orrery::exec {
namespace {

// A tensor of theirs, of which so many rows of ours are made.
struct Source {
  std::string name;
  std::int64_t rows = 0;
  bool transposed = false;
  bool of_adapter = false;  // a matrix, however few columns it has
};
using Sources = std::vector<Source>;

// The names of one family for tensors of one model.
class Names {
 public:
  explicit Names(const Model& m)
      : model_(m), depth_(depth_of(m)), gpt2_(m.positions == Positions::kLearned), known_(is_known()) {}

  // None where the family has no such tensor.
  std::optional<Sources> of(const CheckpointTensor& t) const {
    constexpr std::string_view kLayer = "layer";
    const std::string_view name = t.name;
    if (!known_) return std::nullopt;
    if (!name.starts_with(kLayer)) return of_end(t);
    std::int64_t layer = -1;
    const std::string_view digits = name.substr(kLayer.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
    const std::string_view rest = digits.substr(static_cast<std::size_t>(end - digits.data()));
    if (error != std::errc() || !rest.starts_with('/') || layer < 0 || layer >= depth_.blocks())
      return std::nullopt;
    return gpt2_ ? of_gpt2(t, layer, rest.substr(1)) : of_llama(t, layer, rest.substr(1));
  }

 private:
  // Whether the family computes what the model does. Gemma's norms, of Llama's names, multiply by 1 + w, and
  // are of models without SwiGLU.
  bool is_known() const {
    bool out = (gpt2_ || model_.positions == Positions::kRotary) &&
               model_.norm == (gpt2_ ? Norm::kLayerNorm : Norm::kRmsNorm);
    depth_.for_each_layer([&](const auto& layer, std::int64_t) {
      using L = std::decay_t<decltype(layer)>;
      const Activation usual = gpt2_ ? Activation::kGelu : Activation::kSwiglu;
      if constexpr (std::is_same_v<L, AttentionLayer>)
        out = out && (!gpt2_ || layer.kv_heads == layer.heads) && layer.chunk == 0 &&
              layer.query_growth.rate == 0 && layer.qk_norm != QkNorm::kUnweighted;
      else if constexpr (std::is_same_v<L, MlpLayer>)
        out = out && layer.activation == usual;
      else if constexpr (std::is_same_v<L, ExpertsLayer>)
        out = out && !gpt2_ && layer.activation == usual && !layer.weighs_inputs;
      else
        out = false;
    });
    return out;
  }

  static Sources alone(std::string name, const CheckpointTensor& t, bool transposed = false) {
    return {{std::move(name), t.rows, transposed}};
  }

  std::optional<Sources> of_end(const CheckpointTensor& t) const {
    using Pair = std::pair<std::string_view, const char*>;
    constexpr std::array kGpt2{Pair{"embedding/weight", "transformer.wte.weight"},
                               Pair{"embedding/positions", "transformer.wpe.weight"},
                               Pair{"head/norm/weight", "transformer.ln_f.weight"},
                               Pair{"head/norm/bias", "transformer.ln_f.bias"},
                               Pair{"head/weight", "lm_head.weight"}};
    constexpr std::array kLlama{Pair{"embedding/weight", "model.embed_tokens.weight"},
                                Pair{"head/norm/weight", "model.norm.weight"},
                                Pair{"head/weight", "lm_head.weight"}};
    const auto find = [&](const auto& names) -> std::optional<Sources> {
      for (const auto& [ours, theirs] : names) {
        if (ours == t.name) return alone(theirs, t);
      }
      return std::nullopt;
    };
    return gpt2_ ? find(kGpt2) : find(kLlama);
  }

  std::optional<Sources> of_gpt2(const CheckpointTensor& t, std::int64_t layer, std::string_view name) const {
    const std::size_t cut = name.rfind('/');
    const std::string_view base = name.substr(0, cut), kind = name.substr(cut + 1);
    using Pair = std::pair<std::string_view, const char*>;
    constexpr std::array kNames{Pair{"attn/norm", "ln_1"},       Pair{"attn/qkv", "attn.c_attn"},
                                Pair{"attn/out", "attn.c_proj"}, Pair{"mlp/norm", "ln_2"},
                                Pair{"mlp/fc1", "mlp.c_fc"},     Pair{"mlp/fc2", "mlp.c_proj"}};
    for (const auto& [ours, theirs] : kNames) {
      if (ours == base)
        return alone(fmt::format("transformer.h.{}.{}.{}", layer, theirs, kind), t, t.cols > 1);
    }
    return std::nullopt;
  }

  template <class L>
  const L* layer_of(std::int64_t block) const {
    for (const Layer& layer : depth_.kind(block).layers) {
      if (const L* const found = std::get_if<L>(&layer.is)) return found;
    }
    return nullptr;
  }

  std::optional<Sources> of_llama(const CheckpointTensor& t, std::int64_t layer,
                                  std::string_view name) const {
    const std::string base = fmt::format("model.layers.{}.", layer);
    const auto part = [&](std::string_view of, std::int64_t rows) {
      return Source{fmt::format("{}{}", base, of), rows};
    };
    if (name == "attn/norm/weight") return alone(base + "input_layernorm.weight", t);
    // Where norms stand behind layers alone (OLMo 2).
    if (depth_.kind(layer).form == BlockForm::kPostNorm) {
      if (name == "attn/post_norm/weight") return alone(base + "post_attention_layernorm.weight", t);
      if (name == "mlp/post_norm/weight") return alone(base + "post_feedforward_layernorm.weight", t);
    }
    if (name == "mlp/norm/weight" || name == "experts/norm/weight")
      return alone(base + "post_attention_layernorm.weight", t);
    if (name == "attn/out/weight") return alone(base + "self_attn.o_proj.weight", t);
    if (name == "mlp/fc2/weight") return alone(base + "mlp.down_proj.weight", t);
    if (name == "mlp/fc1/weight")
      return Sources{part("mlp.gate_proj.weight", t.rows / 2), part("mlp.up_proj.weight", t.rows / 2)};
    if (const auto* a = layer_of<AttentionLayer>(layer)) {
      const std::int64_t q = a->query_width(), k = a->key_width();
      if (name == "attn/qk_norm/weight")
        return Sources{part("self_attn.q_norm.weight", a->query_norm_width()),
                       part("self_attn.k_norm.weight", a->key_norm_width())};
      for (const char* const kind : {"weight", "bias"}) {
        if (name == fmt::format("attn/qkv/{}", kind))
          return Sources{part(fmt::format("self_attn.q_proj.{}", kind), q),
                         part(fmt::format("self_attn.k_proj.{}", kind), k),
                         part(fmt::format("self_attn.v_proj.{}", kind), k)};
      }
    }
    const auto* e = layer_of<ExpertsLayer>(layer);
    return e == nullptr ? std::nullopt : of_experts(t, *e, base, name);
  }

  std::optional<Sources> of_experts(const CheckpointTensor& t, const ExpertsLayer& e, const std::string& base,
                                    std::string_view name) const {
    const bool qwen = model_.qk_norm != QkNorm::kNone || e.shared_ffn_hidden > 0;
    const std::string mlp = base + (qwen ? "mlp." : "block_sparse_moe.");
    if (name == "experts/router/weight") return alone(mlp + "gate.weight", t);
    if (name == "experts/shared/gate/weight") return alone(mlp + "shared_expert_gate.weight", t);
    if (name == "experts/shared/fc2/weight") return alone(mlp + "shared_expert.down_proj.weight", t);
    if (name == "experts/shared/fc1/weight")
      return Sources{{mlp + "shared_expert.gate_proj.weight", t.rows / 2},
                     {mlp + "shared_expert.up_proj.weight", t.rows / 2}};
    Sources out;
    for (std::int64_t i = 0; i < e.experts; ++i) {
      const std::string expert = fmt::format("{}experts.{}.", mlp, i);
      if (name == "experts/fc1/weight") {
        const std::int64_t rows = t.rows / e.experts / 2;
        out.push_back({expert + (qwen ? "gate_proj" : "w1") + ".weight", rows});
        out.push_back({expert + (qwen ? "up_proj" : "w3") + ".weight", rows});
      } else if (name == "experts/fc2/weight") {
        out.push_back({expert + (qwen ? "down_proj" : "w2") + ".weight", t.rows / e.experts});
      }
    }
    if (out.empty()) return std::nullopt;
    return out;
  }

  const Model& model_;
  Depth depth_;
  bool gpt2_, known_;
};

Sources sources_of(const Names& names, const CheckpointTensor& t, const Cursor& at) {
  const auto sources = names.of(t);
  if (!sources && t.name.starts_with("mtp"))
    at.fail(
        "modules of multi-token prediction are not read from Hugging Face's checkpoints, nor written to them",
        "allowed: mtp_layers 0");
  if (!sources)
    at.fail(fmt::format("the model's tensor \"{}\" has no name in Hugging Face's checkpoints", t.name),
            "allowed: models like GPT-2, Llama, Mistral, Qwen2, Qwen3, OLMo 2, Granite and Mixtral");
  return *sources;
}

std::vector<std::int64_t> shape_of(const Source& s, const CheckpointTensor& t) {
  if (t.cols == 1 && !s.of_adapter) return {s.rows};
  return s.transposed ? std::vector{t.cols, s.rows} : std::vector{s.rows, t.cols};
}

// The other way round: rows become columns.
std::vector<float> transpose(const std::vector<float>& of, std::int64_t rows) {
  const std::size_t m = static_cast<std::size_t>(rows), n = of.size() / m;
  std::vector<float> out(of.size());
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) out[j * m + i] = of[i * n + j];
  }
  return out;
}

// Some files have the names without what stands before the first dot.
const TensorFiles::Tensor* find(const TensorFiles& files, const std::string& name,
                                std::set<std::string>& used) {
  const bool short_too = name.starts_with("transformer.") || name.starts_with("model.");
  for (const std::string& candidate : {name, short_too ? name.substr(name.find('.') + 1) : name}) {
    const auto found = files.tensors().find(candidate);
    if (found == files.tensors().end()) continue;
    used.insert(candidate);
    return &found->second;
  }
  return nullptr;
}

}  // namespace

namespace {

using SourcesOf = std::function<Sources(const CheckpointTensor&)>;

// Reads these tensors, each of its sources, and adds their identity.
void read_tensors(const TensorFiles& files, const std::map<std::string, CheckpointTensor>& wanted,
                  const SourcesOf& sources_of_tensor, const Cursor& at, const char* counted, Weights& out) {
  std::set<std::string> used;
  // All are there before any is read.
  struct Found {
    Source source;
    const TensorFiles::Tensor* tensor;
  };
  std::map<std::string, std::vector<Found>> found_of;
  for (const auto& [name, tensor] : wanted) {
    for (const Source& source : sources_of_tensor(tensor)) {
      const TensorFiles::Tensor* const found = find(files, source.name, used);
      if (found == nullptr)
        at.child(source.name).fail(fmt::format("is missing; the model's \"{}\" is made of it", name));
      found_of[name].push_back({source, found});
      if (const auto shape = shape_of(source, tensor); found->shape != shape)
        Cursor{files.path_of(*found), ""}
            .child(source.name)
            .fail(fmt::format("is [{}], and the model's is [{}]", fmt::join(found->shape, ", "),
                              fmt::join(shape, ", ")));
    }
  }
  std::uint32_t crc = 0;
  std::int64_t elements = 0;
  for (const auto& [name, sources] : found_of) {
    std::vector<float>& values = out.tensors[name];
    for (const auto& [source, found] : sources) {
      std::vector<float> part = files.read(*found);
      if (!std::all_of(part.begin(), part.end(), [](float x) { return std::isfinite(x); }))
        Cursor{files.path_of(*found), ""}.child(source.name).fail("has a value that is not a finite number");
      if (source.transposed) part = transpose(part, wanted.at(name).cols);
      crc = crc32c({reinterpret_cast<const char*>(part.data()), part.size() * sizeof(float)}, crc);
      values.insert(values.end(), part.begin(), part.end());
    }
    elements += std::ssize(values);
  }
  for (const auto& [name, tensor] : files.tensors()) {
    if (!used.contains(name)) out.unused.push_back(name);
  }
  if (!out.identity.empty()) out.identity += ", ";
  out.identity += fmt::format("{} {}, CRC-32C {:08x}", elements, counted, crc);
}

std::vector<NamedTensor> named_tensors(const std::map<std::string, CheckpointTensor>& kept,
                                       const LogicalTensors& tensors, const SourcesOf& sources_of_tensor) {
  std::vector<NamedTensor> out;
  for (const auto& [name, tensor] : kept) {
    const Sources sources = sources_of_tensor(tensor);
    auto from = tensors.at(name).begin();
    for (const Source& source : sources) {
      const auto end = from + source.rows * tensor.cols;
      std::vector<float> part(from, end);
      if (source.transposed) part = transpose(part, source.rows);
      out.push_back({source.name, shape_of(source, tensor), std::move(part)});
      from = end;
    }
  }
  return out;
}

// The names of adapters follow from those of the matrices that they stand beside.
class AdapterNames {
 public:
  AdapterNames(const Model& m, const Adapter& a, const std::map<std::string, CheckpointTensor>& logical,
               Cursor at)
      : names_(m), adapter_(a), logical_(logical), at_(std::move(at)) {
    for (const auto& [name, tensor] : logical) {
      if (name.find(kSides[0].ours) != std::string::npos || name.find(kSides[1].ours) != std::string::npos)
        tensors[name] = tensor;
    }
  }

  std::map<std::string, CheckpointTensor> tensors;  // that are adapters

  Sources of(const CheckpointTensor& t) const {
    for (const Side& side : kSides) {
      const auto at = t.name.find(side.ours);
      if (at == std::string::npos) continue;
      const CheckpointTensor& matrix = logical_.at(t.name.substr(0, at) + "/weight");
      Sources out;
      for (const Source& s : sources_of(names_, matrix, at_)) {
        if (s.transposed)
          at_.fail(
              fmt::format(
                  "\"{}\" is turned over, or has one adapter for all that it holds, in Hugging Face's GPT-2",
                  s.name),
              "allowed: models like Llama, Mistral, Qwen2 and Qwen3");
        constexpr std::string_view kWeight = ".weight";
        const std::string module = s.name.substr(0, s.name.size() - kWeight.size());
        if (!chosen(module)) continue;
        out.push_back({fmt::format("base_model.model.{}.{}.weight", module, side.theirs),
                       side.of_rank ? adapter_.rank : s.rows, false, true});
      }
      return out;
    }
    throw std::logic_error(t.name + " is no adapter");
  }

  // PEFT's names of the chosen matrices.
  std::vector<std::string> modules() const {
    std::set<std::string> out;
    for (const auto& [name, tensor] : tensors) {
      for (const Source& s : of(tensor)) {
        std::string_view module = std::string_view(s.name).substr(0, s.name.rfind(".lora_"));
        out.emplace(module.substr(module.rfind('.') + 1));
      }
    }
    return {out.begin(), out.end()};
  }

 private:
  struct Side {
    const char *ours, *theirs;
    bool of_rank;
  };
  static constexpr std::array kSides{Side{"/lora_a/weight", "lora_A", true},
                                     Side{"/lora_b/weight", "lora_B", false}};

  // "self_attn.q_proj" is of the target q.
  bool chosen(std::string_view module) const {
    constexpr std::string_view kEnd = "_proj";
    const std::string_view name = module.substr(module.rfind('.') + 1);
    if (!name.ends_with(kEnd)) return false;
    const auto target = enum_from<AdapterTarget>(name.substr(0, name.size() - kEnd.size()));
    return target && adapter_.chosen().has(*target);
  }

  const Names names_;
  const Adapter& adapter_;
  const std::map<std::string, CheckpointTensor>& logical_;
  const Cursor at_;
};

constexpr const char* kAdapterFile = "adapter_model.safetensors";
constexpr const char* kAdapterConfig = "adapter_config.json";

}  // namespace

Weights read_weights(const std::filesystem::path& path, const Model& model,
                     const std::map<std::string, CheckpointTensor>& logical) {
  const Names names(model);
  const Cursor at{path.string(), ""};
  Weights out;
  read_tensors(
      TensorFiles(path), logical, [&](const CheckpointTensor& t) { return sources_of(names, t, at); }, at,
      "parameters", out);
  return out;
}

void read_adapters(const std::filesystem::path& folder, const Model& model, const Adapter& adapter,
                   const std::map<std::string, CheckpointTensor>& logical, Weights& to) {
  const Cursor at{folder.string(), ""};
  const AdapterNames names(model, adapter, logical, at);
  // What the numbers of adapters do not say.
  const std::filesystem::path config = folder / kAdapterConfig;
  const Json said = load_json(config.string());
  const Cursor in_config{config.string(), ""};
  const auto expect = [&](const char* field, const Json& wanted) {
    const Json is = said.is_object() ? said.value(field, Json()) : Json();
    if (is != wanted)
      in_config.child(field).fail(fmt::format("is {}, and the scenario's is {}", shown(is), shown(wanted)));
  };
  expect("peft_type", "LORA");
  expect("r", adapter.rank);
  expect("lora_alpha", adapter.alpha);
  for (const char* variant : {"use_dora", "use_rslora", "fan_in_fan_out"}) {
    if (said.value(variant, Json(false)) == Json(true))
      in_config.child(variant).fail("is true", "allowed: false");
  }
  for (const char* pattern : {"rank_pattern", "alpha_pattern", "modules_to_save"}) {
    if (const Json is = said.value(pattern, Json()); !is.is_null() && !is.empty())
      in_config.child(pattern).fail(fmt::format("is {}", shown(is)), "allowed: empty");
  }
  const std::size_t others = to.unused.size();  // of the weights that are frozen
  read_tensors(
      TensorFiles(folder / kAdapterFile), names.tensors,
      [&](const CheckpointTensor& t) { return names.of(t); }, at, "of adapters", to);
  if (to.unused.size() > others)
    Cursor{(folder / kAdapterFile).string(), ""}
        .child(to.unused.back())
        .fail("is no adapter of the scenario's targets");
}

void write_adapters(const std::filesystem::path& folder, const Model& model, const Adapter& adapter,
                    const std::map<std::string, CheckpointTensor>& logical, const LogicalTensors& tensors,
                    DType type) {
  const AdapterNames names(model, adapter, logical, Cursor{folder.string(), ""});
  const auto named =
      named_tensors(names.tensors, tensors, [&](const CheckpointTensor& t) { return names.of(t); });
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) throw Error(fmt::format("{} cannot be made: {}", folder.string(), failed.message()));
  write_tensor_file(folder / kAdapterFile, named, type);
  save_json((folder / kAdapterConfig).string(), {{"peft_type", "LORA"},
                                                 {"task_type", "CAUSAL_LM"},
                                                 {"base_model_name_or_path", nullptr},
                                                 {"r", adapter.rank},
                                                 {"lora_alpha", adapter.alpha},
                                                 {"lora_dropout", 0.0},
                                                 {"bias", "none"},
                                                 {"fan_in_fan_out", false},
                                                 {"use_dora", false},
                                                 {"use_rslora", false},
                                                 {"inference_mode", true},
                                                 {"target_modules", names.modules()}});
}

void write_weights(const std::filesystem::path& path, const Model& model,
                   const std::map<std::string, CheckpointTensor>& logical, const LogicalTensors& tensors,
                   DType type) {
  const Names names(model);
  const Cursor at{path.string(), ""};
  write_tensor_file(
      path,
      named_tensors(logical, tensors, [&](const CheckpointTensor& t) { return sources_of(names, t, at); }),
      type);
}

}  // namespace orrery::exec
