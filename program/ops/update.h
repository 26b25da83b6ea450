// SPDX-License-Identifier: Apache-2.0
//
// The ops that work on a unit of parameters: its gradients, their norm, the optimizer. `elements`: of the
// shard that the rank updates. `unit`: the unit's number, by which an executor knows the tensors in it.
//   Dequantise     reads {a stored weight}  writes {it}    before each use
//   ZeroGrad       writes {gradient}
//   Accumulate     reads {a, b}  writes {b}           b += a
//   NormSquare     reads {gradient}  writes {bins}    adds the squares to the bins of their sum
//   NormFinish     reads {bins}  writes {norm}        the norm, and the factor that clips it
//   TrustSquares   reads {gradient, parameter, state, norm?}  writes {bins}
//                  adds the squares of each tensor's weights, and of Adam's update (LAMB) or the gradient
//                  (LARS), to the tensor's bins
//   TrustRatio     reads {bins}  writes {ratios}      of the norms of both, by tensor
//   Optimizer      reads {gradient, parameter, state, ratios where there are some, norm?}
//                  writes {parameter, state}
#pragma once

#include "core/nf4.h"
#include "program/ops/common.h"

namespace orrery::program {

// A sum of squares is kept in this many exact parts (kernels/cpu/pointwise.h), to be added in any order.
inline constexpr std::int64_t kNormBins = 32, kNormBinBytes = 8 * kNormBins;
inline constexpr std::int64_t kNormBytes = 16;  // of the norm and the factor that clips it
// Of a tensor: bins for its weights and bins for what they are compared with, and the ratio of the norms.
inline constexpr std::int64_t kTrustBins = 2 * kNormBins, kTrustBytes = 8 * kTrustBins + 4;

namespace ops {

struct SumShape {
  static constexpr Nature kNature = Nature::kState;
  std::int64_t elements = 0, element_bytes = 0;
  static constexpr auto fields() { return std::tuple(&SumShape::elements, &SumShape::element_bytes); }
};

struct ZeroGrad : SumShape {
  static constexpr std::string_view kName = "zero-grad";
  constexpr Operands operands() const { return {}; }
  constexpr std::int64_t bytes(const ElementBytes&) const { return elements * element_bytes; }
};

struct Accumulate : SumShape {
  static constexpr std::string_view kName = "accumulate";
  constexpr Operands operands() const { return {{elements, elements}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes&) const { return 3 * elements * element_bytes; }
};

// Of a frozen weight that is stored in 4 bits, doubly quantised or not (core/nf4.h).
struct Dequantise {
  static constexpr std::string_view kName = "dequantise";
  static constexpr Nature kNature = Nature::kQuantised;
  std::int64_t elements = 0;
  bool doubled = false;
  static constexpr auto fields() { return std::tuple(&Dequantise::elements, &Dequantise::doubled); }
  constexpr Nf4Layout layout() const { return {elements, doubled}; }
  constexpr Operands operands() const { return {{}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return layout().bytes() + elements * e.activation;
  }
};

struct ShardShape {
  static constexpr Nature kNature = Nature::kState;
  std::int64_t elements = 0, unit = 0;
  static constexpr auto fields() { return std::tuple(&ShardShape::elements, &ShardShape::unit); }
};

struct NormSquare : ShardShape {
  static constexpr std::string_view kName = "norm-square";
  constexpr Operands operands() const { return {{elements}, {}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return elements * e.parameter.gradient; }
};

struct TrustSquares : ShardShape {
  static constexpr std::string_view kName = "trust-squares";
  bool of_gradient = false;  // not of an update
  static constexpr auto fields() {
    return std::tuple_cat(ShardShape::fields(), std::tuple(&TrustSquares::of_gradient));
  }
  constexpr Operands operands() const { return {{elements, elements}, {}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return elements * (e.parameter.trust_traffic() - (of_gradient ? e.parameter.moments : 0));
  }
};

struct Optimizer : ShardShape {
  static constexpr std::string_view kName = "optimizer";
  bool by_tensor = false;  // with a ratio for each
  static constexpr auto fields() {
    return std::tuple_cat(ShardShape::fields(), std::tuple(&Optimizer::by_tensor));
  }
  constexpr Operands operands() const { return {{elements, elements}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return elements * e.parameter.update_traffic();
  }
};

struct NormFinish {
  static constexpr std::string_view kName = "norm-finish";
  static constexpr Nature kNature = Nature::kState;
  static constexpr auto fields() { return std::tuple(); }
  constexpr Operands operands() const { return {}; }
  constexpr std::int64_t bytes(const ElementBytes&) const { return kNormBinBytes; }
};

struct TrustRatio {
  static constexpr std::string_view kName = "trust-ratio";
  static constexpr Nature kNature = Nature::kState;
  std::int64_t tensors = 0;
  static constexpr auto fields() { return std::tuple(&TrustRatio::tensors); }
  constexpr Operands operands() const { return {}; }
  constexpr std::int64_t bytes(const ElementBytes&) const { return tensors * kTrustBytes; }
};

}  // namespace ops
}  // namespace orrery::program
