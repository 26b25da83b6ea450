// SPDX-License-Identifier: Apache-2.0
//
// Muon's arithmetic, against its own formulas in double precision.
#include "kernels/cpu/muon.h"

#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <cmath>
#include <random>

namespace orrery::kernels {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::vector<float> muon_normal(Index n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> of;
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) x = of(random);
  return out;
}

Matrix matrix(Index rows, Index columns, const std::vector<float>& x) {
  Matrix out(rows, columns);
  for (Index i = 0; i < rows * columns; ++i) out(i / columns, i % columns) = x[static_cast<std::size_t>(i)];
  return out;
}

// X = a X + (b A + c A A) X with A = X X', whichever side is longer: that of the other side is the same.
Matrix iterated(Matrix x, int iterations) {
  x /= x.norm();
  for (int i = 0; i < iterations; ++i) {
    const Matrix a = x * x.transpose();
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a * a) * x;
  }
  return x;
}

struct Shape {
  Index rows, columns;
};
constexpr Shape kShapes[] = {{12, 20}, {20, 12}, {16, 16}, {1, 9}, {9, 1}, {33, 7}};

TEST(Muon, IteratesAsItsFormulaSays) {
  for (const auto& [rows, columns] : kShapes) {
    for (const int iterations : {1, 2, 5}) {
      std::vector<float> x = muon_normal(rows * columns, 20261129), scratch;
      const Matrix expected = iterated(matrix(rows, columns, x), iterations);
      orthogonalise(rows, columns, iterations, DType::kFloat32, x.data(), scratch);
      EXPECT_LT((matrix(rows, columns, x) - expected).norm() / expected.norm(), 1e-4)
          << rows << " x " << columns << ", " << iterations;
    }
  }
}

// Five iterations bring singular values from 0.01 to 1 of the largest between 0.68 and 1.21 (Jordan et al.
// 2024 say 0.7 to 1.2), and leave singular vectors; the input's are spread over a factor of a hundred.
TEST(Muon, BringsSingularValuesToAboutOne) {
  for (const auto& [rows, columns] : kShapes) {
    const Index n = std::min(rows, columns);
    const Eigen::JacobiSVD<Matrix> random(matrix(rows, columns, muon_normal(rows * columns, 7)),
                                          Eigen::ComputeThinU | Eigen::ComputeThinV);
    Eigen::VectorXd values(n);
    for (Index i = 0; i < n; ++i)
      values(i) = std::pow(100.0, -static_cast<double>(i) / static_cast<double>(std::max<Index>(1, n - 1)));
    const Matrix from = random.matrixU() * values.asDiagonal() * random.matrixV().transpose();
    std::vector<float> x(static_cast<std::size_t>(rows * columns)), scratch;
    for (Index i = 0; i < rows * columns; ++i)
      x[static_cast<std::size_t>(i)] = static_cast<float>(from(i / columns, i % columns));
    orthogonalise(rows, columns, 5, DType::kFloat32, x.data(), scratch);
    const Matrix turned = random.matrixU().transpose() * matrix(rows, columns, x) * random.matrixV();
    for (Index i = 0; i < n; ++i) {
      EXPECT_GT(turned(i, i), 0.65) << rows << " x " << columns << ": " << i;
      EXPECT_LT(turned(i, i), 1.25) << rows << " x " << columns << ": " << i;
      for (Index j = 0; j < n; ++j) {
        if (i == j) continue;
        EXPECT_NEAR(turned(i, j), 0, 2e-4) << rows << " x " << columns;
      }
    }
    // One iteration is not enough for the least: 3.44 x 0.01 / |values|.
    std::vector<float> once(static_cast<std::size_t>(rows * columns));
    for (Index i = 0; i < rows * columns; ++i)
      once[static_cast<std::size_t>(i)] = static_cast<float>(from(i / columns, i % columns));
    orthogonalise(rows, columns, 1, DType::kFloat32, once.data(), scratch);
    if (n > 1) {
      const Matrix after = random.matrixU().transpose() * matrix(rows, columns, once) * random.matrixV();
      EXPECT_LT(after(n - 1, n - 1), 0.05);
    }
  }
}

TEST(Muon, InSixteenBitsStoresNumbersOfThatFormat) {
  std::vector<float> x = muon_normal(24 * 40, 3), exact = x, scratch;
  orthogonalise(24, 40, 5, DType::kBfloat16, x.data(), scratch);
  orthogonalise(24, 40, 5, DType::kFloat32, exact.data(), scratch);
  for (const float v : x) EXPECT_EQ(v, reference::from_bfloat16(reference::to_bfloat16(v)));
  const double off = (matrix(24, 40, x) - matrix(24, 40, exact)).norm() / matrix(24, 40, exact).norm();
  EXPECT_GT(off, 1e-4) << "nothing was rounded";
  EXPECT_LT(off, 0.1);
}

TEST(Muon, LeavesZerosAlone) {
  std::vector<float> x(6 * 4), scratch;
  orthogonalise(6, 4, 5, DType::kFloat32, x.data(), scratch);
  for (const float v : x) EXPECT_EQ(v, 0);
}

// M = 0.5 x 4 + 0.25 x 8 = 4; with Nesterov's form U = 2 + 0.5 x 4 = 4, without it U = M = 4: so the second
// gradient tells them apart. M = 0.5 x 4 + 1 = 3, U = 1 + 1.5, or 3.
TEST(Muon, MovesItsMomentByTheScaledGradient) {
  for (const bool nesterov : {true, false}) {
    Muon muon{.momentum = 0.5, .nesterov = nesterov};
    float moment = 4, update = 0;
    float gradient = 8;
    muon_momentum(muon, 0.25F, 1, &gradient, &moment, &update);
    EXPECT_EQ(moment, 4);
    EXPECT_EQ(update, 4);
    gradient = 1;
    muon_momentum(muon, 1, 1, &gradient, &moment, &update);
    EXPECT_EQ(moment, 3);
    EXPECT_EQ(update, nesterov ? 2.5F : 3.0F);
  }
}

// (1 - 0.5 x 0.25) 8 - 0.5 x 3 = 5.5.
TEST(Muon, DecaysAndUpdates) {
  const float update = 3;
  float weight = 8;
  muon_update(0.5F, 0.25F, 1, &update, &weight);
  EXPECT_EQ(weight, 5.5F);
}

}  // namespace
}  // namespace orrery::kernels
