// SPDX-License-Identifier: Apache-2.0
//
// The ops that end a step: kind, shape and traffic of each, for a unit of parameters or for a rank. compile()
// gives them names and operands; the estimate prices them as they are.
//
// Traffic is that of a fully fused stack, in bytes. `shard`: elements of the unit that the rank updates.
#pragma once

#include <array>
#include <cstdint>

#include "core/training.h"
#include "program/program.h"

namespace orrery::program {

struct ElementwiseShape {
  OpKind kind;
  std::array<std::int64_t, 6> dims;
  std::int64_t bytes;
};

constexpr ElementwiseShape norm_square(const BytesPerParameter& b, std::int64_t shard, std::int64_t unit) {
  return {OpKind::kNormSquare, {shard, unit}, shard * b.gradient};
}
constexpr ElementwiseShape norm_finish() {
  return {OpKind::kNormFinish, {}, kNormBinBytes};
}
constexpr ElementwiseShape trust_clear(std::int64_t tensors) {
  return {OpKind::kZeroGrad, {tensors * kTrustBins}, tensors * kTrustBins * 8};
}
constexpr ElementwiseShape trust_squares(const BytesPerParameter& b, std::int64_t shard, std::int64_t unit) {
  return {OpKind::kTrustSquares, {shard, unit}, shard * b.trust_traffic()};
}
constexpr ElementwiseShape trust_ratio(std::int64_t tensors) {
  return {OpKind::kTrustRatio, {tensors}, tensors * kTrustBytes};
}
constexpr ElementwiseShape optimizer(const BytesPerParameter& b, std::int64_t shard, std::int64_t unit,
                                     bool lamb) {
  return {OpKind::kOptimizer, {shard, unit, lamb}, shard * b.update_traffic()};
}
// `elements`: of the unit's gradient buffer.
constexpr ElementwiseShape clear_gradient(const BytesPerParameter& b, std::int64_t elements) {
  return {OpKind::kZeroGrad, {elements}, elements * b.gradient};
}
// Adds what another stage sent.
constexpr ElementwiseShape accumulate(std::int64_t elements, std::int64_t element_bytes) {
  return {OpKind::kAccumulate, {elements}, 3 * elements * element_bytes};
}

}  // namespace orrery::program
