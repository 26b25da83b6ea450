// SPDX-License-Identifier: Apache-2.0
//
// Training in islands: groups of ranks that each train a copy of the model on data of their own, and exchange
// what they have learned every so many steps, over links that are too slow for gradients. After `every` steps
// each island has moved from the parameters that all had (the anchor) by a difference; the mean of the
// differences is the gradient of an outer optimizer, SGD with Nesterov's momentum, which moves the anchor;
// and every island goes on from there:
//
//   g = mean over islands of (anchor - parameters)
//   v = momentum v + g;   anchor -= learning_rate (g + momentum v);   parameters = anchor
//
// DiLoCo (Douillard et al. 2023, arXiv:2311.08105), whose constants are the defaults; with a learning rate of
// 1 and no momentum it is local SGD (Stich 2018, arXiv:1805.09767), the mean of the parameters. Each island
// keeps the state of its own optimizer.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "core/dtype.h"
#include "core/fields.h"

namespace orrery {

// The format in which differences pass between islands.
enum class OuterFormat { kFp32, kBf16 };
constexpr auto enum_names(OuterFormat) {
  return std::array{std::pair{OuterFormat::kFp32, "fp32"}, std::pair{OuterFormat::kBf16, "bf16"}};
}

struct OuterOptimizer {
  std::int64_t every = 500;  // steps of an island between exchanges
  double learning_rate = 0.7, momentum = 0.9;
  OuterFormat exchange = OuterFormat::kFp32;
  DType exchanged() const { return exchange == OuterFormat::kBf16 ? DType::kBfloat16 : DType::kFloat32; }
  friend bool operator==(const OuterOptimizer&, const OuterOptimizer&) = default;
};

template <class V>
void describe(V& v, OuterOptimizer& o) {
  v(Field{.name = "every", .help = "steps of an island between two exchanges", .min = 1, .max = 1 << 20},
    o.every);
  v(Field{.name = "learning_rate",
          .help = "of the outer optimizer; 1: parameters move all of the way",
          .min = 0,
          .max = 10},
    o.learning_rate);
  v(Field{.name = "momentum",
          .help = "Nesterov's, of the outer optimizer; 0: none, and no memory for it",
          .min = 0,
          .max = 0.999},
    o.momentum);
  v(Field{.name = "exchange", .help = "format of what islands exchange"}, o.exchange);
}

}  // namespace orrery
