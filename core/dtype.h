// SPDX-License-Identifier: Apache-2.0
//
// Element types of buffers and of what is communicated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orrery {

enum class DType : std::uint8_t { kFloat32, kFloat64, kBfloat16, kFloat16, kInt32, kByte };

constexpr std::size_t bytes_of(DType t) {
  switch (t) {
    case DType::kFloat64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBfloat16:
    case DType::kFloat16:
      return 2;
    case DType::kByte:
      return 1;
  }
  return 1;
}
constexpr bool is_half(DType t) {
  return t == DType::kBfloat16 || t == DType::kFloat16;
}

}  // namespace orrery
