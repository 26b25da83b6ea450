// SPDX-License-Identifier: Apache-2.0
//
// Random tensors on a device, and how close its results are to the reference's. fp32 agrees to 1e-5 of a
// tensor's norm. 16-bit floats: the error against fp32 on the same inputs is at most twice that of the naive
// computation that rounds every tensor it makes (the rule of flash-attention's tests).
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/kernels/device_memory.h"

namespace orrery::kernels {

inline constexpr unsigned kSeed = 20261122;

inline Vector random_vector(Index n, unsigned seed, float size = 1) {
  std::mt19937 random(kSeed + seed);
  Vector v(static_cast<std::size_t>(n));
  for (float& x : v) x = size * (static_cast<float>(random() % 2000001) / 1000000.0F - 1.0F);
  return v;
}

inline Vector rounded(DType type, Vector v) {
  if (type == DType::kFloat32) return v;
  std::vector<std::uint16_t> bits(v.size());
  narrow(type, static_cast<Index>(v.size()), v.data(), bits.data());
  widen(type, static_cast<Index>(v.size()), bits.data(), v.data());
  return v;
}

// |a - b| over |b|, of whole tensors.
inline double distance(const Vector& a, const Vector& b) {
  EXPECT_EQ(a.size(), b.size());
  double off = 0, all = 1e-30;
  for (std::size_t i = 0; i < b.size(); ++i) {
    off += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    all += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(off / all);
}

// `naive`: what computing in the type itself gives.
inline void expect_close(const Vector& actual, const Vector& expected, const Vector& naive,
                         const char* what) {
  const double error = distance(actual, expected);
  EXPECT_LE(error, std::max(1e-5, 2 * distance(naive, expected))) << what << ", seed " << kSeed;
}
inline void expect_close(DType type, const Vector& actual, const Vector& expected, const char* what) {
  expect_close(actual, expected, rounded(type, expected), what);
}

// Inputs on the device and, as they were rounded, here.
struct Tensor {
  Tensor(TestDevice& device, DType type_in, Index n, unsigned seed, float size = 1)
      : type(type_in),
        values(rounded(type_in, random_vector(n, seed, size))),
        at(device.put(type_in, values)) {}
  DType type;
  Vector values;
  void* at;
  const float* data() const { return values.data(); }
};

}  // namespace orrery::kernels
