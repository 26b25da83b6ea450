// SPDX-License-Identifier: Apache-2.0
//
// What the structs of layers share.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "core/adapter.h"
#include "core/fields.h"
#include "core/recompute.h"

namespace orrery {

// Where a field of the layer stands, in the file that it was read from.
using FieldPlace = std::function<Cursor(std::string_view field)>;

// Which ranks share something of a layer: all tensor ranks; with them those that exchange heads for tokens;
// or those of experts (core/plan.h).
enum class Degree : std::uint8_t { kTensor, kHeads, kExpertTensor, kExpert };

// A number that these ranks share evenly, and of what.
struct SharedCount {
  std::int64_t count = 0;
  const char* what = "";
  Degree degree = Degree::kTensor;
};

// Tokens of a sample: of the layer's tower, and of the one that the layer reads beside it. `within`: of the
// pairs of own tokens, those of one document.
struct LayerTokens {
  std::int64_t own = 0, read = 0;
  double within = 1;
};

// What the struct of a layer has, in a model of width h. Counts are of a resolved layer.
template <class T>
concept LayerKind = requires(T l, const T& c, std::int64_t h, const FieldPlace& place,
                             const LayerTokens& tokens) {
  std::string_view(T::kName);     // in a model's file
  std::string_view(T::kTensors);  // begins the names of its tensors
  bool(c.bias);                   // its last product has one
  c.check(h, place);              // fails where fields do not fit each other or the model
  l.resolve(h);                   // fills in what fields leave to others
  c.shared();                     // what tensor ranks share evenly
  c.columns();                    // and what a rank's share of must be a multiple of 16 in 8-bit products
  { c.matrix_elements(h) } -> std::same_as<std::int64_t>;
  { c.parameters(h) } -> std::same_as<std::int64_t>;
  { c.adapter_matrices(h) } -> std::same_as<std::vector<AdapterMatrix>>;
  { c.core_flops(tokens) } -> std::same_as<double>;  // forward, of a sample, beside its matrices
  { c.score_rows() } -> std::same_as<std::int64_t>;  // of attention scores for a token; 0: it has none
  bool(T::kBeginsInProducts);                        // all that reads x are products that tensor ranks share
  { c.parts() } -> std::same_as<RecomputeParts>;     // that selective recomputation may repeat
  // FLOPs of these in the forward pass of a sample, when every token sees all.
  { c.flops_of(RecomputeParts(), tokens, h) } -> std::same_as<double>;
};

// FLOPs of products of so many tokens with so many elements of matrices.
constexpr double product_flops(std::int64_t tokens, std::int64_t elements) {
  return 2.0 * static_cast<double>(tokens) * static_cast<double>(elements);
}

// Of attention, in a model of that width. Before resolve().
template <class Layer>
void check_heads(const Layer& l, std::int64_t hidden, const FieldPlace& place) {
  if (l.heads == 0) place("heads").fail("the field \"heads\" is missing");
  if (l.head_dim == 0 && hidden % l.heads != 0) {
    place("heads").fail(fmt::format("{} heads do not divide the width {}", l.heads, hidden),
                        "allowed: a divisor of the width, or an explicit head_dim");
  }
  const std::int64_t kv_heads = l.kv_heads == 0 ? l.heads : l.kv_heads;
  if (l.heads % kv_heads != 0) {
    place("kv_heads")
        .fail(fmt::format("{} key/value heads do not divide {} heads", kv_heads, l.heads),
              "allowed: a divisor of the number of heads");
  }
}

}  // namespace orrery
