// SPDX-License-Identifier: Apache-2.0
//
// Weights of Hugging Face models as the tensors of ours. GPT-2's names are those of models like it (learned
// positions, LayerNorm, GELU, biases); Llama's, which Mistral and Qwen share, of models with rotary
// positions, RMSNorm and SwiGLU. Experts have Mixtral's names, or Qwen's where heads have norms or experts
// are shared. A tensor of ours is one of theirs, or several on top of each other: queries, keys and values;
// an MLP's gate and its other half; the experts. GPT-2 keeps matrices as inputs by outputs, so they are
// transposed.
//
//   const Weights w = read_weights("Qwen3-0.6B/", model, tensors_of(program));
//   write_weights("model.safetensors", model, tensors_of(program), state.states[0], DType::kBfloat16);
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/adapter.h"
#include "core/dtype.h"
#include "core/model.h"
#include "exec/checkpoint.h"
#include "exec/run.h"

namespace orrery::exec {

struct Weights {
  LogicalTensors tensors;
  std::string identity;             // parameters, and a checksum of what was read
  std::vector<std::string> unused;  // that the files have beside
};
// Throws InputError, with the file and the tensor, where one is missing, has another shape or a value that is
// not finite, or where the model has a tensor that these families have no name for. Tensors that the model
// has no use for are passed over, and named.
Weights read_weights(const std::filesystem::path& path, const Model& model,
                     const std::map<std::string, CheckpointTensor>& logical);

// The adapters of a model of Llama's names, as PEFT keeps them: a folder with adapter_model.safetensors
// (base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight ..) and adapter_config.json. `logical` has
// all tensors of the program. Adds what is read to `to`, and to its identity.
void read_adapters(const std::filesystem::path& folder, const Model& model, const Adapter& adapter,
                   const std::map<std::string, CheckpointTensor>& logical, Weights& to);
void write_adapters(const std::filesystem::path& folder, const Model& model, const Adapter& adapter,
                    const std::map<std::string, CheckpointTensor>& logical, const LogicalTensors& tensors,
                    DType type);

// Under the same names, as one file. Throws Error.
void write_weights(const std::filesystem::path& path, const Model& model,
                   const std::map<std::string, CheckpointTensor>& logical, const LogicalTensors& tensors,
                   DType type);

}  // namespace orrery::exec
