// SPDX-License-Identifier: Apache-2.0
//
// Weights in and out: those that a run starts from, and those of a checkpoint as a file for others.
#pragma once

#include <string>

#include "cli/run.h"
#include "exec/hugging_face_weights.h"

namespace orrery::cli {

// Of a Hugging Face file, index or folder. Where `tells`, says which of its tensors the model has no use for.
// Throws InputError.
exec::Weights load_weights(const std::string& path, const Model& model, const program::Program& program,
                           bool tells = true);
// Of a folder of PEFT's. Throws InputError where the program trains no adapters, or others.
void load_adapters(const std::string& folder, const Model& model, const program::Program& program,
                   exec::Weights& to);

// The newest whole checkpoint of a folder; tells of those that are passed over. Throws InputError where there
// is none.
exec::RestoredState load_checkpoint(const std::string& folder, const program::Program& program);

// A checkpoint of adapters means something beside these adapters alone. Throws InputError.
void require_same_adapter(const exec::RestoredState& checkpoint, const Training& training);

struct WeightsAsked {
  std::string plan, checkpoints, output;
  DType type = DType::kFloat32;
};
// Of the newest checkpoint, under the names of Hugging Face's model.
void export_weights(const App& app, const WeightsAsked& o);

}  // namespace orrery::cli
