// SPDX-License-Identifier: Apache-2.0
//
// What a model is made of along its depth: blocks, each a list of layers. Layers are the structs in
// core/layers/, with their own fields. Layers of one kind that differ in a field (every second one has a
// window) are of different blocks.
//
//   "blocks": [{"times": 13, "blocks": [{"layers": [{"attention": {"sliding_window": 4096}}, "mlp"]}, {}]}]
//
// are 26 blocks: in turn one with a window, and one as the model's flat fields say. A layer that is named
// has the flat fields; an object names those that differ. In a model with several towers (core/inputs.h) a
// block says which of them it is of.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/layers/attention.h"
#include "core/layers/cross_attention.h"
#include "core/layers/experts.h"
#include "core/layers/latent_attention.h"
#include "core/layers/mlp.h"
#include "core/one_of.h"

namespace orrery {

// A layer that reads another tower beside its own: its field `reads` names it.
template <class T>
concept ReadsTower = requires(const T& layer) {
  layer.reads;
};

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

struct Layer {
  static constexpr bool kAlsoNamed = true;
  std::variant<AttentionLayer, CrossAttentionLayer, LatentAttentionLayer, ExpertsLayer, MlpLayer> is;
  friend bool operator==(const Layer&, const Layer&) = default;
};
// A tensor's name says its layer: the name of no kind begins with another's.
template <LayerKind... T>
constexpr bool tensors_apart(const std::variant<T...>*) {
  const std::array<std::string_view, sizeof...(T)> names{T::kTensors...};
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = 0; j < names.size(); ++j) {
      if (i != j && names[i].starts_with(names[j])) return false;
    }
  }
  return true;
}
static_assert(tensors_apart(static_cast<decltype(Layer::is)*>(nullptr)));

struct ModelBlock {
  std::string tower;  // empty: the model's first
  BlockForm form = BlockForm::kPreNorm;
  bool final_norm = false;  // a norm behind it, as behind an encoder
  std::vector<Layer> layers;
  std::int64_t norms() const;                                        // of the model's width
  bool norms_first() const { return form != BlockForm::kPostNorm; }  // before its layers
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

// For writers and schemas; read_blocks() reads, as absent fields come from the model.
template <class V>
void describe(V& v, Layer& l) {
  describe_one_of(v, l, "fields that differ from the model's");
}
template <class V>
void describe_own(V& v, ModelBlock& b) {
  v(Field{.name = "tower", .help = "the tower that the block is of; empty means the model's first"}, b.tower);
  v(Field{.name = "form", .help = "how layers join the residual stream"}, b.form);
  v(Field{.name = "final_norm", .help = "whether a norm follows the block, as it follows an encoder"},
    b.final_norm);
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

// Towers of a model by number, in the order of its inputs.
using TowerIndex = std::int32_t;
struct BlockTowers {
  TowerIndex own = 0;
  std::vector<TowerIndex> read;  // by its layers beside its own, each once, in their order
  bool touches(TowerIndex t) const;
};

// All blocks of a model in order.
struct Depth {
  std::vector<ModelBlock> kinds;      // that differ
  std::vector<BlockTowers> towers;    // by kind
  std::vector<std::int32_t> kind_of;  // by block
  std::vector<Stretch> stretches;     // in order
  std::int64_t mtp = 0;               // blocks behind the last, of its kind: of multi-token prediction
  std::int64_t blocks() const { return static_cast<std::int64_t>(kind_of.size()); }
  // Of those too: their numbers go on behind the last block's.
  std::size_t kind_index(std::int64_t block) const {
    return static_cast<std::size_t>(kind_of[static_cast<std::size_t>(std::min(block, blocks() - 1))]);
  }
  const ModelBlock& kind(std::int64_t block) const { return kinds[kind_index(block)]; }
  const BlockTowers& towers_of(std::int64_t block) const { return towers[kind_index(block)]; }
  const Stretch& stretch(std::int64_t block) const;  // that has it
  // Blocks of each kind, with those of multi-token prediction.
  std::vector<std::int64_t> counts() const;
  bool uniform() const { return kinds.size() == 1; }
  // The most ranks of this kind that share all layers evenly; others share them whose number divides it. 0:
  // there is nothing to share.
  std::int64_t shared(Degree degree) const;
  // Calls use(layer, times) for each layer of each kind, of which there are so many blocks.
  template <class Use>
  void for_each_layer(Use use) const {
    const std::vector<std::int64_t> times = counts();
    for (std::size_t k = 0; k < kinds.size(); ++k)
      kinds[k].for_each_layer([&](const auto& layer) { use(layer, times[k]); });
  }
  // That selective recomputation may repeat of some block. `norms_in_products`: of the stack.
  RecomputeParts parts(bool norms_in_products = false) const;
  bool sinks() const;          // heads have learned scores beside those of the tokens, in some block
  bool expert_biases() const;  // routers and experts have biases, in some block
  // The first place in its stretch where as many blocks are the same as these; blocks of several stretches
  // keep theirs.
  std::int64_t canonical(std::int64_t first, std::int64_t blocks) const;
  // Appends runs of blocks.
  void add(const std::vector<BlockRun>& runs);
};

// Fails where no layer has one of the parts of a plan, or of a search on a stack that does norms in products.
void check_parts(const Depth& depth, const std::vector<RecomputePart>& parts, const Cursor& at,
                 bool norms_in_products = false);

}  // namespace orrery
