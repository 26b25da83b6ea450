// SPDX-License-Identifier: Apache-2.0
//
// Operands of matrix products rounded to 8 bits (kernels/cpu/fp8.h), as tensor cores take them: rows of the
// dimension that is summed over, so that some are transposed on the way. Internal to kernels/cuda.
#pragma once

#include <span>

#include "kernels/cpu/fp8.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm.h"

namespace orrery::kernels::cuda {

// largest = the greater of itself and the bits of the largest magnitude: NaN's are above all others.
void fp8_largest(Stream stream, DType type, Index n, const void* x, std::uint32_t* largest);
// x [rows, width] in 8 bits: as it stands, or as [width, rows]; and what the codes are to be multiplied with.
// Both sizes are multiples of 16.
void fp8_round(Stream stream, DType type, Fp8 format, Index rows, Index width, bool transpose, const void* x,
               const std::uint32_t* largest, std::uint8_t* codes, float* scale);

// Memory for the operands of one product at a time.
class Fp8Operands {
 public:
  explicit Fp8Operands(std::span<const GemmShape> shapes);
  // A as [m,k] and B as [n,k].
  void round(Stream stream, const GemmShape& s, const void* a, const void* b);

  const std::uint8_t* a() const { return static_cast<const std::uint8_t*>(a_.get()); }
  const std::uint8_t* b() const { return static_cast<const std::uint8_t*>(b_.get()); }
  const float* scale_of_a() const { return &static_cast<const Numbers*>(numbers_.get())->of[0].scale; }
  const float* scale_of_b() const { return &static_cast<const Numbers*>(numbers_.get())->of[1].scale; }
  std::size_t bytes() const { return a_.bytes() + b_.bytes() + numbers_.bytes(); }

 private:
  // cuBLASLt takes scales at multiples of 16 bytes.
  struct alignas(16) OfOperand {
    float scale;
    std::uint32_t largest;
  };
  struct Numbers {
    OfOperand of[2];
  };
  DeviceMemory a_, b_, numbers_;
};

// Of A; B is never a gradient.
constexpr Fp8 format_of_a(const GemmShape& s) {
  return s.fp8 == Fp8Product::kGradient ? Fp8::kE5M2 : Fp8::kE4M3;
}

}  // namespace orrery::kernels::cuda
