// SPDX-License-Identifier: Apache-2.0
//
// What a model ends in: the loss of the tower of its last block, or of two towers.
//
//   "output": {"classes": {"classes": 1000, "pool": "class-token"}}
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <variant>

#include "core/one_of.h"

namespace orrery {

// Cross-entropy of each token's successor, over the vocabulary.
struct VocabularyOutput {
  static constexpr const char* kName = "vocabulary";
  friend bool operator==(const VocabularyOutput&, const VocabularyOutput&) = default;
};
template <class V>
void describe(V&, VocabularyOutput&) {}

// The row that stands for a sample.
enum class Pool { kClassToken, kMean };
constexpr auto enum_names(Pool) {
  return std::array{std::pair{Pool::kClassToken, "class-token"}, std::pair{Pool::kMean, "mean"}};
}

// Cross-entropy of each sample's class.
struct ClassOutput {
  static constexpr const char* kName = "classes";
  std::int64_t classes = 0;
  Pool pool = Pool::kClassToken;  // the first token's row, or the mean of all rows
  friend bool operator==(const ClassOutput&, const ClassOutput&) = default;
};
template <class V>
void describe(V& v, ClassOutput& c) {
  v(Field{.name = "classes", .help = "how many", .min = 2, .max = 1 << 24, .required = true}, c.classes);
  v(Field{.name = "pool", .help = "what stands for a sample: its class token, or the mean of its tokens"},
    c.pool);
}

// Cross-entropy of each sample's label, whose probability is the logistic function of the dot product of the
// model's two towers.
struct PairOutput {
  static constexpr const char* kName = "pair";
  friend bool operator==(const PairOutput&, const PairOutput&) = default;
};
template <class V>
void describe(V&, PairOutput&) {}

struct ModelOutput {
  static constexpr bool kAlsoNamed = true;
  std::variant<VocabularyOutput, ClassOutput, PairOutput> is;
  friend bool operator==(const ModelOutput&, const ModelOutput&) = default;
};
template <class V>
void describe(V& v, ModelOutput& o) {
  describe_one_of(v, o, "the output's fields");
}
bool read_custom(const Json& json, const Cursor& at, ModelOutput& out);
constexpr std::array<const char*, 0> base_fields(const ModelOutput&) {
  return {};
}

}  // namespace orrery
