// SPDX-License-Identifier: Apache-2.0
//
// What tests of kernels on the device share: types, gradients' types and widths, and the memory of a test.
#pragma once

#include <string>

#include "kernels/cuda/kernels.h"
#include "tests/kernels/closeness.h"

namespace orrery::kernels {

struct Case {
  DType type, gradient;
  Index width;
};
inline constexpr Case kCases[] = {
    {DType::kFloat32, DType::kFloat32, 96},   {DType::kFloat32, DType::kFloat32, 37},
    {DType::kBfloat16, DType::kBfloat16, 96}, {DType::kBfloat16, DType::kFloat32, 104},
    {DType::kBfloat16, DType::kFloat32, 37},  {DType::kFloat16, DType::kFloat16, 40},
    {DType::kFloat16, DType::kFloat32, 37}};

class Kernels : public testing::TestWithParam<Case> {
 protected:
  TestDevice device;
  const Case c = GetParam();

  cuda::Workspace workspace(std::size_t bytes) { return {device.allocate(bytes), bytes}; }
  void* fresh(Index n) { return device.allocate(static_cast<std::size_t>(n) * sizeof(float)); }
  Vector result(DType type, const void* from, std::size_t n) { return device.get(type, from, n); }
};

inline std::string name_of_case(const testing::TestParamInfo<Case>& of) {
  const auto name = [](DType type) {
    return type == DType::kFloat32 ? "fp32" : type == DType::kFloat16 ? "fp16" : "bf16";
  };
  return std::string(name(of.param.type)) + "_gradients_" + name(of.param.gradient) + "_width_" +
         std::to_string(of.param.width);
}
}  // namespace orrery::kernels
