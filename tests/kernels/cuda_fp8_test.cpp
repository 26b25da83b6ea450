// SPDX-License-Identifier: Apache-2.0
//
// Operands in 8 bits on the device: the codes that the reference gives, turned over or not, and the product
// of what they stand for. On a GPU and on the emulated device, as cuda_test.cpp.
#include "kernels/cuda/fp8.h"

#include <array>

#include "tests/kernels/closeness.h"

namespace orrery::kernels {
namespace {

constexpr int kFirstWithFp8 = 89;  // compute capability from which on tensor cores take 8 bits

bool multiplies_fp8() {
#ifdef ORRERY_EMULATED_GPU
  return true;
#else
  int major = 0, minor = 0;
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  require(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  return 10 * major + minor >= kFirstWithFp8;
#endif
}

TEST(Fp8OnTheDevice, HasTheReferencesCodes) {
  TestDevice device;
  for (const DType type : {DType::kBfloat16, DType::kFloat32}) {
    for (const Fp8 format : {Fp8::kE4M3, Fp8::kE5M2}) {
      for (const auto& [rows, width] : {std::pair<Index, Index>{16, 16}, {48, 144}, {80, 64}, {208, 96}}) {
        const Tensor x(device, type, rows * width, 1, 3e-4F);
        const auto n = x.values.size();
        auto* const numbers = static_cast<std::uint32_t*>(device.allocate(8));
        require(cudaMemsetAsync(numbers, 0, 4, device.stream));
        cuda::fp8_largest(device.stream, type, rows * width, x.at, numbers);
        float most = 0;
        for (const float v : x.values) most = std::max(most, std::abs(v));
        ASSERT_EQ(device.get<float>(numbers, 1)[0], most);
        for (const bool transpose : {false, true}) {
          auto* const codes = static_cast<std::uint8_t*>(device.allocate(n));
          auto* const scale = reinterpret_cast<float*>(numbers + 1);
          cuda::fp8_round(device.stream, type, format, rows, width, transpose, x.at, numbers, codes, scale);
          const float factor = fp8_factor(format, most);
          EXPECT_EQ(device.get<float>(scale, 1)[0], 1 / factor);
          const auto there = device.get<std::uint8_t>(codes, n);
          for (Index r = 0; r < rows; ++r) {
            for (Index c = 0; c < width; ++c) {
              const auto from = static_cast<std::size_t>(r * width + c),
                         to = transpose ? static_cast<std::size_t>(c * rows + r) : from;
              ASSERT_EQ(there[to], to_fp8(format, x.values[from] * factor)) << r << ", " << c;
            }
          }
        }
      }
    }
  }
}

// Nothing of a NaN is lost, whatever else is there.
TEST(Fp8OnTheDevice, KeepsWhatIsNotFinite) {
  TestDevice device;
  Vector x(256, 0.5F);
  x[100] = NAN;
  x[7] = -INFINITY;
  const float* const at = device.put(x);
  auto* const numbers = static_cast<std::uint32_t*>(device.allocate(8));
  auto* const codes = static_cast<std::uint8_t*>(device.allocate(256));
  require(cudaMemsetAsync(numbers, 0, 4, device.stream));
  cuda::fp8_largest(device.stream, DType::kFloat32, 256, at, numbers);
  cuda::fp8_round(device.stream, DType::kFloat32, Fp8::kE5M2, 16, 16, false, at, numbers, codes,
                  reinterpret_cast<float*>(numbers + 1));
  const auto there = device.get<std::uint8_t>(codes, 256);
  EXPECT_EQ(there[100] & 0x7f, 0x7f);
  EXPECT_EQ(there[7] & 0x7f, 0x7f);
  EXPECT_EQ(from_fp8(Fp8::kE5M2, there[0]), 0.5F);
}

TEST(Fp8OnTheDevice, ProductsAreThoseOfTheRoundedOperands) {
  if (!multiplies_fp8()) GTEST_SKIP() << "tensor cores of this GPU take no 8-bit floats";
  using cuda::Fp8Product;
  using cuda::GemmShape;
  const GemmShape forward{.m = 64,
                          .n = 48,
                          .k = 80,
                          .transpose_b = true,
                          .bias = true,
                          .fp8 = Fp8Product::kValues,
                          .operands = DType::kBfloat16,
                          .result = DType::kBfloat16};
  GemmShape data = forward, weights = forward;
  data.transpose_b = data.bias = false;
  data.fp8 = Fp8Product::kGradient;
  weights.transpose_a = weights.accumulate = true;
  weights.transpose_b = weights.bias = false;
  weights.fp8 = Fp8Product::kGradient;
  weights.result = DType::kFloat32;
  TestDevice device;
  const std::array shapes{forward, data, weights};
  cuda::Gemms gemms(device.stream, shapes, 32 << 20);
  EXPECT_EQ(gemms.plans(), 3U);
  for (const GemmShape& s : shapes) {
    const Tensor a(device, s.operands, s.m * s.k, 1), b(device, s.operands, s.k * s.n, 2),
        bias(device, s.result, s.n, 3), c(device, s.result, s.m * s.n, 4);
    Vector a_here(a.values), b_here(b.values), c_here(c.values), exact(c.values);
    round_to_fp8(cuda::format_of_a(s), std::ssize(a_here), a_here.data());
    round_to_fp8(Fp8::kE4M3, std::ssize(b_here), b_here.data());
    const reference::Gemm g{s.m, s.n, s.k, s.transpose_a, s.transpose_b, s.accumulate};
    const float* const added = s.bias ? bias.data() : nullptr;
    reference::gemm(g, a_here.data(), b_here.data(), added, c_here.data());
    reference::gemm(g, a.data(), b.data(), added, exact.data());
    gemms.run(device.stream, s, {.a = a.at, .b = b.at, .bias = s.bias ? bias.at : nullptr, .c = c.at});
    const Vector there = device.get(s.result, c.at, c_here.size());
    // Sums of values have 14 bits on Hopper; the rounding to 8 bits is a hundred times as large.
    EXPECT_LT(distance(there, c_here), 4e-3);
    EXPECT_GT(distance(there, exact), 1e-2) << "nothing was rounded to 8 bits";
    EXPECT_LT(distance(there, exact), 8e-2);
  }
}

}  // namespace
}  // namespace orrery::kernels
