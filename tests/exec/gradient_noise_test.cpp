// SPDX-License-Identifier: Apache-2.0
//
// The gradient noise scale against gradients of single samples, and where it is known.
#include "exec/gradient_noise.h"

#include <gtest/gtest.h>

#include <numeric>

#include "exec/data.h"
#include "tests/exec/small_model.h"

namespace orrery {
namespace {

// So many samples of the built-in corpus, from one on, over and over.
class FewSamples : public exec::Dataset {
 public:
  FewSamples(const exec::Dataset& all, std::int64_t first, std::int64_t count)
      : all_(all), first_(first), count_(count) {}
  std::int64_t sequences() const override { return count_; }
  std::int64_t vocabulary() const override { return all_.vocabulary(); }
  std::string identity() const override { return "few"; }
  void read(std::int64_t i, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const override {
    all_.read(first_ + i, tokens, targets);
  }

 private:
  const exec::Dataset& all_;
  std::int64_t first_, count_;
};

program::Program noise_program(std::int64_t samples, Precision precision = Precision::kFp32) {
  const Model m = tiny("tiny-gpt");
  const Training t{.global_batch = samples,
                   .sequence = 8,
                   .precision = precision,
                   .math = precision == Precision::kFp32 ? Math::kFp32 : Math::kBf16};
  const Plan p{.micro_batches = samples};
  return program::compile(m, p, t, stack());
}

// All twelve samples of a dataset, each a batch: S is then their gradients' unbiased variance, and |G|^2 that
// of the mean less a twelfth of it, both from gradients that runs of one step capture.
TEST(GradientNoise, IsTheVarianceOfTheGradientsOfSamples) {
  constexpr std::int64_t kSamples = 12;
  const program::Program program = noise_program(1);
  const auto corpus = exec::built_in_data(3, program.model);
  exec::RunOptions options = small_run(1);
  std::vector<std::vector<double>> gradients;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const FewSamples one(*corpus, i, 1);
    options.data = &one;
    std::vector<double>& g = gradients.emplace_back();
    for (const auto& [name, tensor] : exec::run(program, options).gradients)
      g.insert(g.end(), tensor.begin(), tensor.end());
  }
  double variance = 0, of_mean = 0;
  for (std::size_t k = 0; k < gradients.front().size(); ++k) {
    double mean = 0;
    for (const auto& g : gradients) mean += g[k] / kSamples;
    of_mean += mean * mean;
    for (const auto& g : gradients) variance += (g[k] - mean) * (g[k] - mean) / (kSamples - 1);
  }
  const FewSamples all(*corpus, 0, kSamples);
  options.data = nullptr;
  const exec::GradientNoise n = exec::measure_noise(program, options, all, nullptr, kSamples, 1);
  EXPECT_NEAR(n.noise, variance, 1e-4 * variance);
  const double gradient = of_mean - variance / kSamples;
  EXPECT_NEAR(n.gradient, gradient, 1e-3 * of_mean);
  EXPECT_NEAR(n.scale, variance / gradient, 2e-3 * n.scale);
  EXPECT_EQ(n.error, 0);
  EXPECT_GT(n.scale, 0.1);
}

// Samples that are alike have no noise.
TEST(GradientNoise, OfEqualSamplesIsNone) {
  const program::Program program = noise_program(2);
  const auto corpus = exec::built_in_data(3, program.model);
  const FewSamples one(*corpus, 5, 1);
  const exec::GradientNoise n = exec::measure_noise(program, small_run(1), one, nullptr, 4, 2);
  EXPECT_GT(n.gradient, 0.01);
  EXPECT_LT(std::abs(n.noise), 1e-6 * n.gradient);
}

// It is a property of samples: batches of one and of four give the same, in fp32 and mixed precision.
TEST(GradientNoise, DoesNotDependOnTheBatch) {
  const auto measure = [](std::int64_t batch, Precision precision) {
    const program::Program program = noise_program(batch, precision);
    const auto corpus = exec::built_in_data(3, program.model);
    return exec::measure_noise(program, small_run(1), *corpus, nullptr, 64 / batch, 8);
  };
  const exec::GradientNoise one = measure(1, Precision::kFp32), four = measure(4, Precision::kFp32),
                            half = measure(1, Precision::kMixed);
  EXPECT_NEAR(four.noise, one.noise, 0.15 * one.noise);
  EXPECT_NEAR(four.scale, one.scale, 0.3 * one.scale);
  EXPECT_NEAR(half.scale, one.scale, 0.1 * one.scale);
  EXPECT_GT(one.error, 0);
  EXPECT_LT(one.error, 0.3 * one.scale);
}

}  // namespace
}  // namespace orrery
