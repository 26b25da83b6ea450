// SPDX-License-Identifier: Apache-2.0
//
// Models from config.json in Hugging Face's format.
#include <functional>
#include <map>

#include "core/hugging_face/families.h"

namespace orrery {
namespace {

using Import = Model (*)(const HuggingFaceReader&);
const std::map<std::string, Import, std::less<>>& families() {
  static const std::map<std::string, Import, std::less<>> kFamilies{
      {"cohere", import_cohere},
      {"cohere2", import_cohere},
      {"deepseek_v2", import_deepseek},
      {"deepseek_v3", import_deepseek},
      {"dots1", import_glm},
      {"exaone4", import_exaone},
      {"falcon", import_falcon},
      {"gemma", import_gemma},
      {"gemma2", import_gemma},
      {"gemma3_text", import_gemma},
      {"glm4", import_glm_dense},
      {"glm4_moe", import_glm},
      {"gpt2", import_gpt2},
      {"gpt_neox", import_neox},
      {"gpt_oss", import_gpt_oss},
      {"granite", import_granite},
      {"granitemoe", import_granite_experts},
      {"granitemoeshared", import_granite_experts},
      {"ijepa", import_image},
      {"kimi_k2", import_deepseek},
      {"llama", import_llama},
      {"llama4_text", import_llama4},
      {"minimax_m2", import_minimax},
      {"mistral", import_llama},
      {"mixtral", import_sparse},
      {"nemotron", import_layer_norm},
      {"olmo2", import_olmo},
      {"olmo3", import_olmo},
      {"olmoe", import_olmoe},
      {"phi3", import_llama},
      {"qwen2", import_llama},
      {"qwen2_moe", import_sparse},
      {"qwen3", import_llama},
      {"qwen3_moe", import_sparse},
      {"seed_oss", import_llama},
      {"smollm3", import_smollm},
      {"stablelm", import_layer_norm},
      {"starcoder2", import_layer_norm},
      {"vit", import_image}};
  return kFamilies;
}
std::vector<std::string> known_types() {
  std::vector<std::string> out;
  for (const auto& [type, family] : families()) out.push_back(type);
  return out;
}

}  // namespace

Model import_hugging_face(const Json& config, const Cursor& at) {
  if (!config.is_object()) at.fail(shown(config) + " is not an object");
  if (config.contains("text_config")) {
    return import_hugging_face(config["text_config"], at.child("text_config"));
  }
  const Cursor of_type = at.child("model_type");
  const auto given = config.find("model_type");
  if (given == config.end()) at.fail("the field \"model_type\" is missing", allowed_names("", known_types()));
  std::string type;
  read_value(*given, of_type, Field{"model_type", ""}, type);
  if (type == "bloom" || type == "mpt") {
    of_type.fail(
        fmt::format(
            "\"{}\" has ALiBi positions, which are predicted for its presets but neither run nor exported",
            type),
        allowed_names("", known_types()));
  }
  const auto family = families().find(type);
  if (family == families().end()) {
    of_type.fail(
        shown(*given) +
            " cannot be imported; the model can be described by fields of ours (layers, hidden, heads ..)",
        allowed_names(type, known_types()));
  }
  ImportedFields places;
  places["positions"] = of_type;
  const HuggingFaceReader read{config, at, type, places};
  Model m = family->second(read);
  m.name = type;
  if (m.has_tokens()) {
    read.integer("vocab", {"vocab_size"}, m.vocab, true);
    read.boolean("tie_word_embeddings", m.tied_embeddings);
  }
  if (!m.blocks.empty()) places["blocks"] = at;  // their fields are those of the config
  m.imported = std::move(places);
  check_model(m, at);
  return m;
}

}  // namespace orrery
