// SPDX-License-Identifier: Apache-2.0
//
// How a step's tokens fall on the experts of its layers. An expert's chance is the share of all choices that
// it gets in the mean; the tokens of a micro-batch then choose by these chances, and differ by what so many
// choices differ. Where experts lie over ranks, the rank with most rows paces the layer (sim/expert_loads.h).
//
//   "expert_load": {"dirichlet": {"spread": 0.5}}    chances of each layer are drawn
//   "expert_load": {"hot": {"shares": 4}}            one expert has 4 even shares, the others have the rest
//   "expert_load": {"recorded": {"tokens": [[812, 455], [633, 634]]}}    by layer and expert, as a run counts
//
// Without one, all experts have as many rows.
#pragma once

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "core/one_of.h"

namespace orrery {

// A symmetric Dirichlet distribution over experts.
struct DirichletLoad {
  static constexpr const char* kName = "dirichlet";
  double spread = 0.5;  // standard deviation of an expert's chance over its mean
  friend bool operator==(const DirichletLoad&, const DirichletLoad&) = default;
};
template <class V>
void describe(V& v, DirichletLoad& l) {
  v(Field{.name = "spread",
          .help = "standard deviation of an expert's chance over the mean chance; 0 leaves the choices' own",
          .min = 0,
          .max = 100},
    l.spread);
}

struct HotLoad {
  static constexpr const char* kName = "hot";
  double shares = 2;
  friend bool operator==(const HotLoad&, const HotLoad&) = default;
};
template <class V>
void describe(V& v, HotLoad& l) {
  v(Field{.name = "shares",
          .help = "even shares of the first expert of each layer",
          .min = 1,
          .max = 1 << 16},
    l.shares);
}

struct RecordedLoad {
  static constexpr const char* kName = "recorded";
  std::vector<std::vector<std::int64_t>> tokens;  // by layer with experts, in order, and expert
  friend bool operator==(const RecordedLoad&, const RecordedLoad&) = default;
};
template <class V>
void describe(V& v, RecordedLoad& l) {
  v(Field{.name = "tokens",
          .help =
              "tokens that chose each expert, of each layer with experts in order; one list is of all layers",
          .min = 0,
          .max = 1e15,
          .required = true,
          .most = 1 << 16},
    l.tokens);
}

struct ExpertLoad {
  static constexpr bool kAlsoNamed = true;
  std::variant<DirichletLoad, HotLoad, RecordedLoad> is;
  friend bool operator==(const ExpertLoad&, const ExpertLoad&) = default;
};
template <class V>
void describe(V& v, ExpertLoad& l) {
  describe_one_of(v, l, "as its fields say");
}
bool read_custom(const Json& json, const Cursor& at, ExpertLoad& out);
constexpr std::array<const char*, 0> base_fields(const ExpertLoad&) {
  return {};
}

}  // namespace orrery
