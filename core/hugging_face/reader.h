// SPDX-License-Identifier: Apache-2.0
//
// A config.json of Hugging Face that a family of models is read from, and what several families share. A
// field with another meaning than ours is refused, so that no plan is made for a different model.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/model.h"
#include "core/rotary.h"

namespace orrery {

struct HuggingFaceReader {
  const Json& config;
  Cursor at;
  std::string type;
  ImportedFields& places;  // where fields of ours stand in it

  // The field `ours` under any of its names (transformers 4 and 5 differ); null counts as absent.
  void integer(const char* ours, std::initializer_list<const char*> names, std::int64_t& out,
               bool required) const;
  void number(const char* name, double& out, double least, double most) const;
  void whole(const char* name, std::int64_t& out, double least, double most) const;
  // A text field that our models have one meaning of, under several names.
  void text(const char* ours, const char* name, const std::vector<std::string>& known) const;
  void boolean(const char* name, bool& out) const;
  void refuse_true(const char* name) const;
  // Of a model whose longest context is so long.
  Rotary rotary(std::int64_t longest) const { return import_rotary(config, at, longest, places); }
  // Whether the field is there and says something.
  bool says(const char* name) const;
  // Layers that a list of their numbers names.
  std::vector<bool> listed_layers(const char* name, std::int64_t layers) const;
  // The kinds of the layers that "layer_types" names; or, where there is no such list, kind(layer).
  std::vector<std::string> kinds_of_layers(std::int64_t layers, const std::vector<std::string>& known,
                                           const std::function<std::string(std::int64_t)>& kind) const;
  // Which layers have a window: as "layer_types" says, or as `otherwise` does.
  std::vector<bool> windowed_layers(std::int64_t layers,
                                    const std::function<bool(std::int64_t)>& otherwise) const;
  // Which layers turn no positions: as "no_rope_layers" says, or the last of each "no_rope_layer_interval".
  std::vector<bool> layers_without_positions(std::int64_t layers) const;
};

// The flat fields of a model of Llama's kind, with its defaults.
Model llama_like(const HuggingFaceReader& read);

// Runs of blocks, each a number among `kinds`: a pattern, so often, and what is left of it; or stretches of
// blocks that are alike, where there is no pattern.
std::vector<BlockRun> runs_of(const std::vector<ModelBlock>& kinds, const std::vector<std::size_t>& kind_of);
// The blocks `one` where `is_one` says so and `other` elsewhere.
std::vector<BlockRun> in_turn(const std::vector<bool>& is_one, const ModelBlock& one,
                              const ModelBlock& other);

// The model's block, whose tokens have no positions.
ModelBlock block_without_positions(const Model& m);

}  // namespace orrery
