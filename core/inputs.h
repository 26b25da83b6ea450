// SPDX-License-Identifier: Apache-2.0
//
// What a model begins with. Each input makes a tower: a matrix with a row of the model's width for each token
// of the micro-batch, which the tower's blocks change one after the other. Most models have one tower; an
// encoder and its decoder are two.
//
//   "inputs": [{"tokens": {"tower": "encoder"}}, {"tokens": {"tower": "decoder", "target": true}}]
#pragma once

#include <array>
#include <string>
#include <variant>

#include "core/one_of.h"

namespace orrery {

// Tokens of the vocabulary. All such inputs share the embedding's weight.
struct TokenInput {
  static constexpr const char* kName = "tokens";
  std::string tower = "tokens";
  bool target = false;  // tokens of the target, which the model predicts one by one
  friend bool operator==(const TokenInput&, const TokenInput&) = default;
};
template <class V>
void describe(V& v, TokenInput& i) {
  v(Field{.name = "tower", .help = "name of the tower that it makes"}, i.tower);
  v(Field{.name = "target", .help = "tokens of the target (training.target_sequence), not of the source"},
    i.target);
}

// Patches of square images: each of patch x patch x channels values, from left to right and from top to
// bottom, is multiplied with a matrix (Dosovitskiy et al. 2021).
struct PatchInput {
  static constexpr const char* kName = "patches";
  std::string tower = "image";
  std::int64_t image = 224, patch = 16, channels = 3;
  bool class_token = true;  // before the patches
  std::int64_t patches() const { return image / patch * (image / patch); }
  std::int64_t values() const { return patch * patch * channels; }  // of a patch
  std::int64_t tokens() const { return patches() + (class_token ? 1 : 0); }
  friend bool operator==(const PatchInput&, const PatchInput&) = default;
};
template <class V>
void describe(V& v, PatchInput& i) {
  v(Field{.name = "tower", .help = "name of the tower that it makes"}, i.tower);
  v(Field{.name = "image", .help = "pixels on a side of an image", .min = 1, .max = 1 << 13}, i.image);
  v(Field{.name = "patch", .help = "pixels on a side of a patch", .min = 1, .max = 1 << 10}, i.patch);
  v(Field{.name = "channels", .help = "values of a pixel", .min = 1, .max = 64}, i.channels);
  v(Field{.name = "class_token", .help = "whether a token of its own stands before the patches"},
    i.class_token);
}

// Ids of a sample in tables (features of a user, or of an item): the sum of their rows is the one token of
// the tower.
struct BagInput {
  static constexpr const char* kName = "bags";
  std::string tower = "bags";
  std::int64_t tables = 1, rows = 1000, ids = 1;
  friend bool operator==(const BagInput&, const BagInput&) = default;
};
template <class V>
void describe(V& v, BagInput& i) {
  v(Field{.name = "tower", .help = "name of the tower that it makes"}, i.tower);
  v(Field{.name = "tables", .help = "tables", .min = 1, .max = 1 << 16}, i.tables);
  v(Field{.name = "rows", .help = "rows of a table", .min = 1, .max = 1 << 30}, i.rows);
  v(Field{.name = "ids", .help = "ids of a sample in each table", .min = 1, .max = 1 << 16}, i.ids);
}

struct Input {
  static constexpr bool kAlsoNamed = true;
  std::variant<TokenInput, PatchInput, BagInput> is;
  const std::string& tower() const {
    return std::visit([](const auto& i) -> const std::string& { return i.tower; }, is);
  }
  friend bool operator==(const Input&, const Input&) = default;
};
template <class V>
void describe(V& v, Input& i) {
  describe_one_of(v, i, "the input's fields");
}
bool read_custom(const Json& json, const Cursor& at, Input& out);
constexpr std::array<const char*, 0> base_fields(const Input&) {
  return {};
}

}  // namespace orrery
