// SPDX-License-Identifier: Apache-2.0
//
// Families of models in Hugging Face's format: each reads what is its own of a config.json. The ends of the
// model, which all have, are read behind them (import.cpp).
#pragma once

#include "core/hugging_face/reader.h"

namespace orrery {

// dense.cpp
Model import_gpt2(const HuggingFaceReader& read);
Model import_llama(const HuggingFaceReader& read);
Model import_smollm(const HuggingFaceReader& read);
Model import_exaone(const HuggingFaceReader& read);
Model import_olmo(const HuggingFaceReader& read);
Model import_granite(const HuggingFaceReader& read);
Model import_cohere(const HuggingFaceReader& read);
Model import_glm_dense(const HuggingFaceReader& read);
Model import_layer_norm(const HuggingFaceReader& read);
Model import_gemma(const HuggingFaceReader& read);
Model import_neox(const HuggingFaceReader& read);
Model import_falcon(const HuggingFaceReader& read);
Model import_image(const HuggingFaceReader& read);
// experts.cpp
Model import_sparse(const HuggingFaceReader& read);
Model import_deepseek(const HuggingFaceReader& read);
Model import_glm(const HuggingFaceReader& read);
Model import_gpt_oss(const HuggingFaceReader& read);
Model import_olmoe(const HuggingFaceReader& read);
Model import_granite_experts(const HuggingFaceReader& read);
Model import_minimax(const HuggingFaceReader& read);
Model import_llama4(const HuggingFaceReader& read);

}  // namespace orrery
