// SPDX-License-Identifier: Apache-2.0
//
// The number formats of matrix products. Operands are taken as they are stored, or rounded to fewer bits: a
// block of elements is multiplied by a factor that takes its largest magnitude into the format's range, and
// the product is divided by the factors.
//
//   format         elements     factor of                                                    with factor
//   fp8            E4M3, E5M2   a tensor, by its largest magnitude now                        8 bits
//   fp8-delayed    E4M3, E5M2   a tensor, by its largest magnitudes of earlier steps          8
//   fp8-rowwise    E4M3         a row of the first operand, a column of the second            8
//   fp8-blockwise  E4M3         1 x 128 of values and gradients, 128 x 128 of weights         8.25
//   mxfp8          E4M3         1 x 32, a power of two in 8 bits                              8.25
//   nvfp4          E2M1         1 x 16 of values and gradients, 16 x 16 of weights: E4M3,     4.5
//                               beside one of the tensor
//
// Blocks lie along the dimension that a product sums over. The first two take gradients in E5M2 (Micikevicius
// et al. 2022, arXiv:2209.05433; Transformer Engine's recipes DelayedScaling and Float8CurrentScaling); rows:
// torchao's rowwise recipe; blocks: DeepSeek-V3 (2024, arXiv:2412.19437, section 3.3); mxfp8: OCP
// Microscaling Formats (2023) as in Mishra et al. 2025, arXiv:2506.08027; nvfp4: NVIDIA 2025,
// arXiv:2509.25149.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

namespace orrery {

enum class Math { kBf16, kFp16, kTf32, kFp32, kFp8, kFp8Delayed, kFp8Rowwise, kFp8Blockwise, kMxfp8, kNvfp4 };
constexpr auto enum_names(Math) {
  return std::array{std::pair{Math::kBf16, "bf16"},
                    std::pair{Math::kFp16, "fp16"},
                    std::pair{Math::kTf32, "tf32"},
                    std::pair{Math::kFp32, "fp32"},
                    std::pair{Math::kFp8, "fp8"},
                    std::pair{Math::kFp8Delayed, "fp8-delayed"},
                    std::pair{Math::kFp8Rowwise, "fp8-rowwise"},
                    std::pair{Math::kFp8Blockwise, "fp8-blockwise"},
                    std::pair{Math::kMxfp8, "mxfp8"},
                    std::pair{Math::kNvfp4, "nvfp4"}};
}

// How operands are rounded.
struct Rounding {
  double bytes = 0;           // of a rounded element, with its share of factors
  int reads = 1;              // of an operand: twice where its largest magnitude has to be known first
  std::int64_t multiple = 1;  // of the sizes of products, which tensor cores take
};
// None: they are taken as they are stored.
constexpr std::optional<Rounding> rounding_of(Math m) {
  switch (m) {
    case Math::kBf16:
    case Math::kFp16:
    case Math::kTf32:
    case Math::kFp32:
      return {};
    case Math::kFp8:
      return Rounding{1, 2, 16};
    case Math::kFp8Delayed:
    case Math::kFp8Rowwise:
      return Rounding{1, 1, 16};
    case Math::kFp8Blockwise:
      return Rounding{1 + 4.0 / 128, 1, 16};
    case Math::kMxfp8:
      return Rounding{1 + 1.0 / 32, 1, 32};
    case Math::kNvfp4:
      return Rounding{0.5 + 1.0 / 16, 2, 32};
  }
  return {};
}
// By which ops tell the formats apart: counted from fp8.
constexpr std::int64_t rounding_number(Math m) {
  return static_cast<std::int64_t>(m) - static_cast<std::int64_t>(Math::kFp8);
}
constexpr bool rounds(Math m) {
  return rounding_of(m).has_value();
}
// Whether tensor cores have to apply the factors of its blocks (Device::block_formats).
constexpr bool needs_block_factors(Math m) {
  return m == Math::kMxfp8 || m == Math::kNvfp4;
}

}  // namespace orrery
