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

struct Input {
  static constexpr bool kAlsoNamed = true;
  std::variant<TokenInput> is;
  const std::string& tower() const {
    return std::visit([](const auto& i) -> const std::string& { return i.tower; }, is);
  }
  friend bool operator==(const Input&, const Input&) = default;
};
template <class V>
void describe(V& v, Input& i) {
  describe_one_of(v, i, "the input's fields");
}
inline bool read_custom(const Json& json, const Cursor& at, Input& out) {
  out = read_one_of<Input>(json, at, "an input", []<class T>(T*) { return T{}; });
  return true;
}
constexpr std::array<const char*, 0> base_fields(const Input&) {
  return {};
}

}  // namespace orrery
