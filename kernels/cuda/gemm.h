// SPDX-License-Identifier: Apache-2.0
//
// Matrix products on the device: C[m,n] (+)= op(A)[m,k] op(B)[k,n] (+ bias[n]), row-major, operands of 16
// bits or fp32, sums in fp32, the result of the operands' type or fp32. cuBLASLt's algorithms for a shape are
// measured once, on this device, and the fastest is kept.
#pragma once

#include <compare>
#include <cstddef>
#include <memory>
#include <span>

#include "kernels/cuda/kernels.h"

namespace orrery::kernels::cuda {

// The key of the plan cache: products that differ in nothing here run the same algorithm.
struct GemmShape {
  Index m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  bool tf32 = false;  // fp32 operands are rounded to ten bits of mantissa: tensor cores take them
  DType operands = DType::kFloat32, result = DType::kFloat32;
  std::uint32_t alignment = 16;  // bytes that the addresses of all matrices are multiples of
  auto operator<=>(const GemmShape&) const = default;
};

class Gemms {
 public:
  // Measures the algorithms of all `shapes`, some more than once among them, with scratch memory of the
  // largest. `workspace` bytes are kept for the algorithms.
  Gemms(Stream stream, std::span<const GemmShape> shapes, std::size_t workspace);
  ~Gemms();
  // A shape that was measured. Throws Error for another.
  void run(Stream stream, const GemmShape& shape, const void* a, const void* b, const void* bias, void* c);
  std::size_t plans() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace orrery::kernels::cuda
