// SPDX-License-Identifier: Apache-2.0
//
// What a model is made of along its depth: blocks, each a list of layers. Layers are the structs in
// core/layers/, with their own fields. Layers of one kind that differ in a field (every second one has a
// window) are of different blocks.
//
//   "blocks": [{"times": 13, "blocks": [{"layers": [{"attention": {"sliding_window": 4096}}, "mlp"]}, {}]}]
//
// are 26 blocks: in turn one with a window, and one as the model's flat fields say. A layer that is named
// has the flat fields; an object names those that differ.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/layers/attention.h"
#include "core/layers/mlp.h"

namespace orrery {

// How a block joins its layers f1, f2, .. to its input.
enum class BlockForm {
  kPreNorm,         // x + f(norm(x)), layer after layer
  kSandwichNorm,    // x + norm(f(norm(x))), layer after layer (Gemma 2)
  kPostNorm,        // x + norm(f(x)), layer after layer (OLMo 2)
  kParallel,        // x + f1(norm1(x)) + f2(norm2(x)) (GPT-NeoX)
  kParallelOneNorm  // x + f1(norm(x)) + f2(norm(x)) (GPT-J, Falcon)
};
constexpr auto enum_names(BlockForm) {
  return std::array{std::pair{BlockForm::kPreNorm, "pre-norm"},
                    std::pair{BlockForm::kSandwichNorm, "sandwich-norm"},
                    std::pair{BlockForm::kPostNorm, "post-norm"}, std::pair{BlockForm::kParallel, "parallel"},
                    std::pair{BlockForm::kParallelOneNorm, "parallel-one-norm"}};
}

using AnyLayer = std::variant<AttentionLayer, MlpLayer>;
struct Layer {
  static constexpr bool kAlsoNamed = true;
  AnyLayer is;
  friend bool operator==(const Layer&, const Layer&) = default;
};

struct ModelBlock {
  BlockForm form = BlockForm::kPreNorm;
  std::vector<Layer> layers;
  std::int64_t norms() const;  // of the model's width
  // Calls use(layer) for each.
  template <class Use>
  void for_each_layer(Use use) const {
    for (const Layer& l : layers) std::visit(use, l.is);
  }
  friend bool operator==(const ModelBlock&, const ModelBlock&) = default;
};

// The blocks one after the other, so many times.
struct BlockRun {
  std::int64_t times = 1;
  std::vector<ModelBlock> blocks;
  friend bool operator==(const BlockRun&, const BlockRun&) = default;
};

// Calls use() with a null pointer to each layer's type.
template <class Use>
void for_each_layer_type(Use use) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (use(static_cast<std::variant_alternative_t<I, AnyLayer>*>(nullptr)), ...);
  }
  (std::make_index_sequence<std::variant_size_v<AnyLayer>>());
}

namespace detail {
template <class V, class T>
void describe_layer(V& v, Layer& l, T*) {
  std::optional<T> own;
  if (const T* is = std::get_if<T>(&l.is)) own = *is;
  v(Field{.name = T::kName, .help = "fields that differ from the model's"}, own);
}
}  // namespace detail

// For writers and schemas; read_blocks() reads, as absent fields come from the model.
template <class V>
void describe(V& v, Layer& l) {
  for_each_layer_type([&](auto* type) { detail::describe_layer(v, l, type); });
}
template <class V>
void describe_own(V& v, ModelBlock& b) {
  v(Field{.name = "form", .help = "how layers join the residual stream"}, b.form);
}
template <class V>
void describe(V& v, ModelBlock& b) {
  describe_own(v, b);
  v(Field{.name = "layers", .help = "layers in order; absent means as the model's flat fields say"},
    b.layers);
}
template <class V>
void describe_own(V& v, BlockRun& r) {
  v(Field{.name = "times", .help = "how often", .min = 1, .max = limits::kMostLayers}, r.times);
}
template <class V>
void describe(V& v, BlockRun& r) {
  describe_own(v, r);
  v(Field{.name = "blocks", .help = "blocks, one after the other"}, r.blocks);
}

// From a model's "blocks". `standard`: the block of the model's flat fields.
std::vector<BlockRun> read_blocks(const Json& json, const Cursor& at, const ModelBlock& standard);

// Blocks that follow each other in a pattern of `period` kinds.
struct Stretch {
  std::int64_t first = 0, blocks = 0, period = 1;
  std::int64_t end() const { return first + blocks; }
};

// All blocks of a model in order.
struct Depth {
  std::vector<ModelBlock> kinds;      // that differ
  std::vector<std::int32_t> kind_of;  // by block
  std::vector<Stretch> stretches;     // in order
  std::int64_t blocks() const { return static_cast<std::int64_t>(kind_of.size()); }
  const ModelBlock& kind(std::int64_t block) const {
    return kinds[static_cast<std::size_t>(kind_of[static_cast<std::size_t>(block)])];
  }
  const Stretch& stretch(std::int64_t block) const;  // that has it
  // Blocks of each kind.
  std::vector<std::int64_t> counts() const;
  bool uniform() const { return kinds.size() == 1; }
  // The most tensor ranks that share all layers evenly; others share them whose number divides it.
  std::int64_t shared() const;
  // Calls use(layer, times) for each layer of each kind, of which there are so many blocks.
  template <class Use>
  void for_each_layer(Use use) const {
    const std::vector<std::int64_t> times = counts();
    for (std::size_t k = 0; k < kinds.size(); ++k)
      kinds[k].for_each_layer([&](const auto& layer) { use(layer, times[k]); });
  }
  // The first place in its stretch where as many blocks are the same as these; blocks of several stretches
  // keep theirs.
  std::int64_t canonical(std::int64_t first, std::int64_t blocks) const;
  // Appends runs of blocks.
  void add(const std::vector<BlockRun>& runs);
};

}  // namespace orrery
