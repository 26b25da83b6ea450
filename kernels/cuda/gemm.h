// SPDX-License-Identifier: Apache-2.0
//
// Matrix products on the device: C[m,n] (+)= alpha op(A)[m,k] op(B)[k,n] (+ bias[n]), row-major, operands of
// 16 bits or fp32, multiplied as they are or in 8 bits, sums in fp32, the result of the operands' type or
// fp32; GELU (tanh form) of the result, or the result times GELU's derivative, or sums over op(A)'s rows
// beside it. cuBLASLt's algorithms for a shape are measured once in a process, on this device, and the
// fastest is kept: of an epilogue also those without it, kernels coming after them.
#pragma once

#include <compare>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "kernels/cuda/kernels.h"

namespace orrery::kernels::cuda {

enum class Epilogue : std::uint8_t {
  kNone,
  kGelu,      // C is GELU of the product, and that is kept beside it
  kGeluGrad,  // C is the product times GELU's derivative at what was kept
  kBiasGrad   // beside C, the sums [m] (+=) of what is stored of A [k,m], which is transposed
};

// Operands rounded to 8 bits first (kernels/cuda/fp8.h): both as values, or A as a gradient. Then m, n and k
// are multiples of 16, and there is no epilogue.
enum class Fp8Product : std::uint8_t { kNo, kValues, kGradient };

// The key of the plan cache: products that differ in nothing here run the same algorithm.
struct GemmShape {
  Index m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  Epilogue epilogue = Epilogue::kNone;
  Fp8Product fp8 = Fp8Product::kNo;
  bool tf32 = false;  // fp32 operands are rounded to ten bits of mantissa: tensor cores take them
  DType operands = DType::kFloat32, result = DType::kFloat32;
  std::uint32_t alignment = 16;  // bytes that the addresses of all matrices are multiples of
  // Elements from row to row of what is stored, of parts of wider matrices; 0: rows follow each other. And a
  // factor. Products with an epilogue, or in 8 bits, have neither.
  Index lda = 0, ldb = 0, ldc = 0;
  float alpha = 1;
  Index row_of_a() const { return lda > 0 ? lda : transpose_a ? m : k; }
  Index row_of_b() const { return ldb > 0 ? ldb : transpose_b ? k : n; }
  Index row_of_c() const { return ldc > 0 ? ldc : n; }
  auto operator<=>(const GemmShape&) const = default;
};

// `bias` and `before_gelu` [m,n] where the shape says so; the latter is written by kGelu, read by kGeluGrad.
struct GemmOperands {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void *c = nullptr, *before_gelu = nullptr;
  void* bias_gradient = nullptr;  // of kBiasGrad, as are bias_grad_workspace(k, m) bytes
  Workspace workspace{};
};

class Gemms {
 public:
  // Measures algorithms of those `shapes` that this process did not measure yet and `cache` does not have,
  // with operands of the largest: the `tried` that cuBLASLt holds for the best. `workspace` bytes are kept
  // for them. `cache`: a file of choices (gemm_choices.h), which gets the new ones; empty: none.
  Gemms(Stream stream, std::span<const GemmShape> shapes, std::size_t workspace,
        const std::filesystem::path& cache = {}, int tried = 16);
  ~Gemms();
  // A shape that was measured. Throws Error for another.
  void run(Stream stream, const GemmShape& shape, const GemmOperands& operands);
  std::size_t plans() const;
  // Of the shapes and what runs them: equal where all of them run by the same algorithms.
  std::uint64_t hash() const;
  std::size_t workspace_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace orrery::kernels::cuda
