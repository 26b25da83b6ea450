// SPDX-License-Identifier: Apache-2.0
//
// Rotary positions (Su et al. 2021): in the first r elements of a head, elements j and j + r/2 turn together
// by the angle position * frequency(j), with frequency(j) = base^(-2j/r).
//
// Models that were trained on short contexts and then extended scale the frequencies:
//
//   linear   frequency / factor                                               (Chen et al. 2023)
//   llama3   long waves / factor, short waves as they are, a ramp between     (Llama 3.1's reference code)
//   yarn     the ramp runs over j, and queries and keys grow by an amplitude  (Peng et al. 2023)
//   longrope frequency / a number of its own for each pair, in sequences of up to the original context
//            (short_factors) and in longer ones (long_factors), and an amplitude  (Ding et al. 2024,
//            LongRoPE)
//
//   const RotaryTables t = rotary_tables(model.rotary, model.head(), training.sequence);
//   t.cosine[position * r / 2 + j];
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace orrery {

enum class RotaryScaling { kNone, kLinear, kLlama3, kYarn, kLongRope };
constexpr auto enum_names(RotaryScaling) {
  return std::array{std::pair{RotaryScaling::kNone, "none"}, std::pair{RotaryScaling::kLinear, "linear"},
                    std::pair{RotaryScaling::kLlama3, "llama3"}, std::pair{RotaryScaling::kYarn, "yarn"},
                    std::pair{RotaryScaling::kLongRope, "longrope"}};
}

struct Rotary {
  double base = 10000;
  double fraction = 1;  // of each head's elements
  RotaryScaling scaling = RotaryScaling::kNone;
  double factor = 1;                                           // longest context over the original one
  std::int64_t original_positions = 8192;                      // before the extension; not of linear
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3: where the ramp ends and begins
  double beta_fast = 32,
         beta_slow = 1;      // yarn: turns over the original context where the ramp begins and ends
  bool rounded_ramp = true;  // yarn: the ramp begins and ends at whole pairs of elements
  // Of cosines and sines. 0: yarn's is 0.1 ln(factor) + 1, longrope's (1 + ln(factor) /
  // ln(original_positions))^1/2.
  double amplitude = 0;
  std::vector<double> short_factors, long_factors;  // longrope: of each pair
  // Elements of a head that turn.
  std::int64_t turned(std::int64_t head) const {
    return static_cast<std::int64_t>(fraction * static_cast<double>(head));
  }
  friend bool operator==(const Rotary&, const Rotary&) = default;
};

template <class V>
void describe(V& v, Rotary& r) {
  v(Field{.name = "base", .help = "base of the frequencies", .min = 1.0001, .max = 1e15}, r.base);
  v(Field{.name = "fraction", .help = "share of each head's elements that turn", .min = 0.001, .max = 1},
    r.fraction);
  v(Field{.name = "scaling", .help = "how frequencies were scaled for longer contexts"}, r.scaling);
  v(Field{.name = "factor", .help = "longest context over the original one", .min = 1, .max = 1e6}, r.factor);
  v(Field{.name = "original_positions",
          .help = "llama3, yarn, longrope: longest context before the extension",
          .min = 1,
          .max = 1 << 30},
    r.original_positions);
  v(Field{.name = "low_frequency_factor",
          .help = "llama3: waves longer than original_positions over this are scaled whole",
          .min = 1e-3,
          .max = 1e6},
    r.low_frequency_factor);
  v(Field{.name = "high_frequency_factor",
          .help = "llama3: waves shorter than original_positions over this stay as they are",
          .min = 1e-3,
          .max = 1e6},
    r.high_frequency_factor);
  v(Field{.name = "beta_fast",
          .help = "yarn: frequencies of more turns over the original context stay as they are",
          .min = 1e-3,
          .max = 1e6},
    r.beta_fast);
  v(Field{.name = "beta_slow",
          .help = "yarn: frequencies of fewer turns over the original context are scaled whole",
          .min = 1e-3,
          .max = 1e6},
    r.beta_slow);
  v(Field{.name = "rounded_ramp",
          .help = "yarn: whether the ramp begins and ends at whole pairs of elements"},
    r.rounded_ramp);
  v(Field{.name = "amplitude",
          .help = "yarn, longrope: factor on cosines and sines; 0 means 0.1 ln(factor) + 1, and "
                  "sqrt(1 + ln(factor)/ln(original_positions))",
          .min = 0,
          .max = 1e3},
    r.amplitude);
  v(Field{.name = "short_factors",
          .help =
              "longrope: what each pair's frequency is divided by in sequences of up to original_positions",
          .min = 1e-3,
          .max = 1e6},
    r.short_factors);
  v(Field{.name = "long_factors",
          .help = "longrope: what each pair's frequency is divided by in longer sequences",
          .min = 1e-3,
          .max = 1e6},
    r.long_factors);
}

// Queries of the position p are multiplied by 1 + rate ln(1 + floor((p + 1) / positions)), so that scores of
// far positions stay as sharp as those of near ones (Llama 4).
struct QueryGrowth {
  double rate = 0;  // 0: they do not grow
  std::int64_t positions = 8192;
  double at(std::int64_t position) const;
  friend bool operator==(const QueryGrowth&, const QueryGrowth&) = default;
};
template <class V>
void describe(V& v, QueryGrowth& g) {
  v(Field{.name = "rate",
          .help = "growth by the logarithm of the position; 0 means none",
          .min = 0,
          .max = 1e3},
    g.rate);
  v(Field{.name = "positions", .help = "unit of the position", .min = 1, .max = 1 << 30}, g.positions);
}

// Fails where the values do not fit each other or the head, at the place of a field ("rotary/fraction").
void check_rotary(const Rotary& r, std::int64_t head, const std::function<Cursor(std::string_view)>& place);

// The rotary fields of a config.json in Hugging Face's format, of transformers 4 (rope_theta, rope_scaling)
// and 5 (rope_parameters). `longest`: its max_position_embeddings. Kinds of scaling that Rotary has not are
// refused. `places` gets where the fields stand, as "rotary/fraction".
Rotary import_rotary(const Json& config, const Cursor& at, std::int64_t longest, ImportedFields& places);

// By pair of elements: turned(head) / 2 of them, radians per position, in sequences of so many tokens.
std::vector<double> rotary_frequencies(const Rotary& r, std::int64_t head, std::int64_t sequence);

// By [position, pair], for positions 0 .. sequence - 1; angles are computed in double precision.
struct RotaryTables {
  std::vector<float> cosine, sine;
  std::int64_t bytes() const {
    return static_cast<std::int64_t>((cosine.size() + sine.size()) * sizeof(float));
  }
};
RotaryTables rotary_tables(const Rotary& r, std::int64_t head, std::int64_t sequence);
// Of queries that grow and do not turn: the same for all pairs of a position.
RotaryTables growth_tables(const QueryGrowth& g, std::int64_t head, std::int64_t sequence);

}  // namespace orrery
