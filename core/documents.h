// SPDX-License-Identifier: Apache-2.0
//
// Documents that sequences are packed from. They stand one behind the other, and sequences are cut from them
// wherever a sequence ends: a token sees those before it of its own document alone. Without documents it sees
// all of its sequence.
//
//   "documents": {"fixed": {"tokens": 2048}}                     all are as long
//   "documents": {"lognormal": {"mean": 1500, "spread": 2}}      many short ones and a few long ones
//   "documents": {"recorded": {"tokens": [812, 455, 20480]}}     lengths of a corpus, each as often as others
//
// With the age a of a token in its document, of a length L, P(age > a) = E[(L - a)+] / E[L], as longer
// documents have more tokens. Position t of a sequence sees min(age, t, window) tokens, so that of the pairs
// in a sequence of S tokens
//
//   seen = integral from 0 to min(S, window) of (S - a) P(age > a) da
//
// which for documents of L <= S tokens is S L / 2 - L^2 / 6.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "core/one_of.h"
#include "core/random.h"

namespace orrery {

inline constexpr double kLongestDocument = 1 << 24;  // tokens

struct FixedLength {
  static constexpr const char* kName = "fixed";
  std::int64_t tokens = 0;
  friend bool operator==(const FixedLength&, const FixedLength&) = default;
};
template <class V>
void describe(V& v, FixedLength& l) {
  v(Field{.name = "tokens",
          .help = "tokens of every document",
          .min = 1,
          .max = kLongestDocument,
          .required = true},
    l.tokens);
}

struct LognormalLength {
  static constexpr const char* kName = "lognormal";
  double mean = 0, spread = 1;
  friend bool operator==(const LognormalLength&, const LognormalLength&) = default;
};
template <class V>
void describe(V& v, LognormalLength& l) {
  v(Field{.name = "mean",
          .help = "tokens of a document in the mean; each has at least one",
          .min = 1,
          .max = kLongestDocument,
          .required = true},
    l.mean);
  v(Field{.name = "spread",
          .help = "standard deviation of a document's tokens over their mean",
          .min = 0,
          .max = 10},
    l.spread);
}

struct RecordedLengths {
  static constexpr const char* kName = "recorded";
  std::vector<std::int64_t> tokens;
  friend bool operator==(const RecordedLengths&, const RecordedLengths&) = default;
};
template <class V>
void describe(V& v, RecordedLengths& l) {
  v(Field{.name = "tokens",
          .help = "tokens of documents, each of which is as frequent as the others",
          .min = 1,
          .max = kLongestDocument,
          .required = true,
          .most = 1 << 16},
    l.tokens);
}

struct Documents {
  static constexpr bool kAlsoNamed = true;
  std::variant<FixedLength, LognormalLength, RecordedLengths> is;
  friend bool operator==(const Documents&, const Documents&) = default;
};
template <class V>
void describe(V& v, Documents& d) {
  describe_one_of(v, d, "as its fields say");
}
bool read_custom(const Json& json, const Cursor& at, Documents& out);
constexpr std::array<const char*, 0> base_fields(const Documents&) {
  return {};
}

// Their lengths, ready to be drawn.
class DocumentLengths {
 public:
  explicit DocumentLengths(const Documents& documents);

  double mean() const { return mean_; }
  // E[(L - a)+], in tokens.
  double beyond(double a) const;
  // Of the pairs of tokens that causal attention with that window (0: none) sees in a sequence, the share
  // that lies within documents, in the mean.
  double share_seen(std::int64_t sequence, std::int64_t window) const;
  // Of sequence `number`, where its documents end, in order; the last of them where the sequence does. A
  // function of the seed and the number.
  std::vector<std::int32_t> ends(std::uint64_t seed, std::uint64_t number, std::int64_t sequence) const;
  // The same for each token: the first token of its document that the sequence has.
  void draw(std::uint64_t seed, std::uint64_t number, std::span<std::int32_t> first) const;

 private:
  double drawn(RandomStream& random) const;
  double drawn_by_tokens(RandomStream& random) const;  // the document of a token

  double mean_ = 0, log_variance_ = 0;       // of log-normal lengths
  std::vector<double> sorted_, from_, sum_;  // recorded: lengths, and sums of those from i on, and up to i
};

}  // namespace orrery
