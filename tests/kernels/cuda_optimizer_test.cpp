// SPDX-License-Identifier: Apache-2.0
//
// Optimizers on the device against the reference, and a unit's ranges in one launch against each alone.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <span>

#include "core/error.h"
#include "kernels/cpu/moments.h"
#include "tests/kernels/cuda_cases.h"

namespace orrery::kernels {
namespace {

using cuda::UpdateRange;

class Optimizers : public Kernels {};

TEST_P(Optimizers, AdamWithAndWithoutAMasterCopy) {
  const Index n = 7 * c.width;
  const auto size = static_cast<std::size_t>(n);
  const reference::Adam adam{
      .lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .decay = 0.1F, .step = 3, .scale = 0.5F};
  const cuda::AdamConstants constants{adam.beta1, adam.beta2, adam.epsilon};
  const auto* const scalars =
      device.put(std::vector<cuda::StepScalars>{{.learning_rate = adam.lr,
                                                 .correct1 = 1 - std::pow(adam.beta1, 3.0F),
                                                 .correct2 = 1 - std::pow(adam.beta2, 3.0F)}});
  for (const bool has_master : {false, true}) {
    for (const bool overflowed : {false, true}) {
      const Tensor g(device, c.gradient, n, 1), p(device, c.type, n, 2);
      Vector master(p.values), m = random_vector(n, 3), v = random_vector(n, 4);
      for (float& x : v) x = std::abs(x);
      float *const master_there = device.put(master), *const m_there = device.put(m),
                   *const v_there = device.put(v);
      const auto* const norm = device.put(std::vector<cuda::NormResult>{{1, adam.scale, overflowed ? 1 : 0}});
      cuda::adam(device.stream, c.type, c.gradient, constants, {}, scalars, norm, nullptr,
                 std::array{UpdateRange{0, n, adam.decay}}, g.at, p.at,
                 {.master = has_master ? master_there : nullptr, .m = m_there, .v = v_there});
      if (!overflowed) reference::adam(adam, n, g.data(), master.data(), m.data(), v.data());
      expect_close(c.type, result(c.type, p.at, size), master, "parameter");
      expect_close(DType::kFloat32, device.get<float>(m_there, size), m, "first moment");
      expect_close(DType::kFloat32, device.get<float>(v_there, size), v, "second moment");
      if (has_master)
        expect_close(DType::kFloat32, device.get<float>(master_there, size), master, "master copy");
    }
  }
}

// Moments in bf16 are rounded after an update that is of what they were; of a parted master copy no bit is
// lost. Ranges that begin anywhere take elements one by one.
TEST_P(Optimizers, AdamWithNarrowState) {
  const Index n = 9 * c.width + 5, first = 3;
  const auto size = static_cast<std::size_t>(n);
  const reference::Adam adam{.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .step = 3};
  const auto* const scalars =
      device.put(std::vector<cuda::StepScalars>{{.learning_rate = adam.lr,
                                                 .correct1 = 1 - std::pow(adam.beta1, 3.0F),
                                                 .correct2 = 1 - std::pow(adam.beta2, 3.0F)}});
  for (const bool parted : {false, true}) {
    if (parted && c.type != DType::kBfloat16) continue;
    const Tensor g(device, c.gradient, n, 1);
    Vector master = random_vector(n, 2), m = rounded(DType::kBfloat16, random_vector(n, 3)),
           v = rounded(DType::kBfloat16, random_vector(n, 4));
    for (float& x : v) x = std::abs(x);
    Vector upper(size);
    std::vector<std::int16_t> beside(size);
    part_master(n, master.data(), upper.data(), beside.data());
    if (!parted) master = rounded(c.type, master);
    void* const p = device.put(c.type, parted ? upper : master);
    auto* const beside_there = device.put(beside);
    void *const m_there = device.put(DType::kBfloat16, m), *const v_there = device.put(DType::kBfloat16, v);
    cuda::adam(
        device.stream, c.type, c.gradient, {adam.beta1, adam.beta2, adam.epsilon}, {}, scalars, nullptr,
        nullptr, std::array{UpdateRange{first, n - first}}, g.at, p,
        {.beside = parted ? beside_there : nullptr, .moment = DType::kBfloat16, .m = m_there, .v = v_there});
    reference::adam(adam, n - first, g.data() + first, master.data() + first, m.data() + first,
                    v.data() + first);
    expect_close(DType::kBfloat16, device.get(DType::kBfloat16, m_there, size), m, "first moment");
    expect_close(DType::kBfloat16, device.get(DType::kBfloat16, v_there, size), v, "second moment");
    const Vector parameter = device.get(c.type, p, size);
    if (!parted) {
      expect_close(c.type, parameter, master, "parameter");
      continue;
    }
    const auto beside_after = device.get<std::int16_t>(beside_there, size);
    Vector joined(size), again(size);
    join_master(n, parameter.data(), beside_after.data(), joined.data());
    expect_close(DType::kFloat32, joined, master, "master copy");
    std::vector<std::int16_t> parts(size);
    part_master(n, joined.data(), again.data(), parts.data());
    EXPECT_EQ(again, parameter);
    EXPECT_EQ(parts, beside_after);
    EXPECT_NE(beside_after, beside);
  }
}

// The squares of two tensors, each in two parts, and the ratios of their norms. Where gradients overflowed
// nothing is added, and a ratio of nothing is 1.
TEST_P(Optimizers, TrustRatiosOfTensors) {
  const Index n = 7 * c.width + 4099;  // several blocks
  const reference::Adam adam{
      .lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .decay = 0.1F, .step = 3, .scale = 0.5F};
  const cuda::AdamConstants constants{adam.beta1, adam.beta2, adam.epsilon};
  const auto* const scalars = device.put(std::vector<cuda::StepScalars>{
      {.correct1 = 1 - std::pow(adam.beta1, 3.0F), .correct2 = 1 - std::pow(adam.beta2, 3.0F)}});
  constexpr Index kBins = 2 * reference::kSquareBins;
  for (const bool has_master : {false, true}) {
    for (const bool overflowed : {false, true}) {
      const auto* const norm = device.put(std::vector<cuda::NormResult>{{1, adam.scale, overflowed ? 1 : 0}});
      auto* const bins = device.put(std::vector<double>(3 * kBins, 0.0));
      auto* const ratios = device.put(Vector(3, 0));
      Vector expected;
      for (Index t = 0; t < 2; ++t) {
        const auto seed = static_cast<unsigned>(10 * t);
        const Tensor g(device, c.gradient, n, seed + 1), p(device, c.type, n, seed + 2);
        Vector master = random_vector(n, seed + 5), m = random_vector(n, seed + 3),
               v = random_vector(n, seed + 4);
        for (float& x : v) x = std::abs(x);
        const float *const master_there = device.put(master), *const m_there = device.put(m),
                           *const v_there = device.put(v);
        const std::array parts{UpdateRange{0, 37, adam.decay, 0, t},
                               UpdateRange{37, n - 37, adam.decay, 0, t}};
        cuda::trust_squares(device.stream, c.type, c.gradient, constants, scalars, norm, parts, g.at, p.at,
                            has_master ? master_there : nullptr, m_there, v_there, bins);
        const Vector& weights = has_master ? master : p.values;
        Vector by(weights.size());
        reference::adam_update(adam, n, g.data(), weights.data(), m.data(), v.data(), by.data());
        std::vector<double> here(static_cast<std::size_t>(kBins));
        reference::add_squares(n, weights.data(), here.data());
        reference::add_squares(n, by.data(), here.data() + reference::kSquareBins);
        expected.push_back(
            overflowed ? 1 : reference::trust_ratio(here.data(), here.data() + reference::kSquareBins));
      }
      expected.push_back(1);  // of a tensor without squares
      cuda::trust_ratios(device.stream, 3, bins, ratios);
      expect_close(DType::kFloat32, device.get<float>(ratios, 3), expected, "ratios");
      EXPECT_TRUE(overflowed || std::abs(expected[0] - 1) > 0.1);
    }
  }
}

// Two tensors of a shard, with weight decay and without; and the ratios' squares, of gradients.
TEST(Lars, OnTheDeviceAsOnTheProcessor) {
  TestDevice device;
  constexpr Index kElements = 611, kFirst = 200;
  const Tensor g(device, DType::kFloat32, kElements, 1), p(device, DType::kFloat32, kElements, 2);
  const Tensor v(device, DType::kFloat32, kElements, 3);
  const std::vector<float> ratios{0.25F, 40.0F};
  const std::array ranges{UpdateRange{0, kFirst, 0.1F, 0, 0},
                          UpdateRange{kFirst, kElements - kFirst, 0, 0, 1}};
  const auto* const scalars = device.put(std::vector<cuda::StepScalars>{{.learning_rate = 0.5F}});
  Vector here = p.values, velocity = v.values;
  for (const UpdateRange& r : ranges) {
    const reference::Lars l{.lr = 0.5F,
                            .momentum = 0.9F,
                            .decay = r.decay,
                            .trust = 0.02F,
                            .ratio = ratios[static_cast<std::size_t>(r.tensor)]};
    reference::lars(l, r.count, g.data() + r.first, here.data() + r.first, velocity.data() + r.first);
  }
  auto* const bins = device.put(std::vector<double>(4 * reference::kSquareBins, 0.0));
  cuda::trust_squares(device.stream, DType::kFloat32, DType::kFloat32, {0.9F, 0.95F, 1e-8F}, scalars, nullptr,
                      ranges, g.at, p.at, nullptr, nullptr, nullptr, bins);
  const auto squares = device.get<double>(bins, 4 * reference::kSquareBins);
  for (const std::size_t t : {0, 1}) {
    const UpdateRange& r = ranges[t];
    std::vector<double> weights(reference::kSquareBins), gradients(reference::kSquareBins);
    reference::add_squares(r.count, p.data() + r.first, weights.data());
    reference::add_squares(r.count, g.data() + r.first, gradients.data());
    const double* const of = squares.data() + 2 * t * reference::kSquareBins;
    EXPECT_EQ(reference::sum_of_bins(of), reference::sum_of_bins(weights.data()));
    EXPECT_EQ(reference::sum_of_bins(of + reference::kSquareBins), reference::sum_of_bins(gradients.data()));
  }
  cuda::sgd(device.stream, 0.9F, 0.02F, scalars, nullptr, device.put(ratios), ranges,
            static_cast<const float*>(g.at), static_cast<float*>(p.at), static_cast<float*>(v.at));
  expect_close(DType::kFloat32, device.get(p.type, p.at, kElements), here, "parameter");
  expect_close(DType::kFloat32, device.get(v.type, v.at, kElements), velocity, "velocity");
}

// Parameters with a master copy and without, differences in the format of the exchange, with and without
// momentum.
TEST(OuterOptimizer, OnTheDeviceAsOnTheProcessor) {
  TestDevice device;
  constexpr Index kElements = 1237;
  for (const DType type : {DType::kFloat32, DType::kBfloat16}) {
    for (const DType exchanged : {DType::kFloat32, DType::kBfloat16}) {
      for (const bool has_master : {false, true}) {
        for (const float momentum : {0.0F, 0.9F}) {
          const reference::Outer o{.learning_rate = 0.7F, .momentum = momentum, .share = 0.25F};
          const Tensor p(device, type, kElements, 1), sum(device, exchanged, kElements, 2);
          const Tensor at(device, DType::kFloat32, kElements, 3), v(device, DType::kFloat32, kElements, 4);
          const Tensor master(device, DType::kFloat32, kElements, 5);
          const Tensor difference(device, exchanged, kElements, 6);
          const Vector& weights = has_master ? master.values : p.values;
          cuda::outer_difference(device.stream, has_master ? DType::kFloat32 : type, exchanged, kElements,
                                 has_master ? master.at : p.at, static_cast<const float*>(at.at),
                                 difference.at);
          Vector expected(weights.size());
          for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = at.values[i] - weights[i];
          expect_close(exchanged, device.get(difference.type, difference.at, kElements),
                       rounded(exchanged, expected), "difference");
          Vector anchor = at.values, velocity = v.values;
          reference::outer_update(o, kElements, sum.values.data(), anchor.data(),
                                  momentum > 0 ? velocity.data() : nullptr);
          cuda::outer_update(device.stream, type, exchanged, o, kElements, sum.at, static_cast<float*>(at.at),
                             momentum > 0 ? static_cast<float*>(v.at) : nullptr,
                             has_master ? static_cast<float*>(master.at) : nullptr, p.at);
          expect_close(DType::kFloat32, device.get(at.type, at.at, kElements), anchor, "anchor");
          expect_close(DType::kFloat32, device.get(v.type, v.at, kElements), velocity, "velocity");
          expect_close(type, device.get(p.type, p.at, kElements), rounded(type, anchor), "parameter");
          expect_close(DType::kFloat32, device.get(master.type, master.at, kElements),
                       has_master ? anchor : master.values, "master");
        }
      }
    }
  }
}

// Shards that begin anywhere. The two compute updates in another order of operations, so that a few elements
// are not the same number before they are rounded.
TEST(StochasticRounding, OnTheDeviceAsOnTheProcessor) {
  TestDevice device;
  const cuda::AdamConstants constants{0.9F, 0.95F, 1e-8F};
  for (const Index n : {96, 37}) {
    for (const Index first : {0, 5}) {
      const Tensor g(device, DType::kBfloat16, n, 1), p(device, DType::kBfloat16, n, 2);
      const StochasticRounding r{.on = true, .seed = 9, .site = 2, .first = first};
      const reference::Adam adam{.lr = 0.001F, .beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .step = 4};
      const auto* const scalars =
          device.put(std::vector<cuda::StepScalars>{{.learning_rate = adam.lr,
                                                     .correct1 = 1 - std::pow(0.9F, 4.0F),
                                                     .correct2 = 1 - std::pow(0.95F, 4.0F),
                                                     .updates = adam.step}});
      Vector here(p.values), m(here.size()), v(here.size());
      float *const m_there = device.put(m), *const v_there = device.put(v);
      cuda::adam(device.stream, DType::kBfloat16, DType::kBfloat16, constants, r, scalars, nullptr, nullptr,
                 std::array{UpdateRange{0, n}}, g.at, p.at, {.m = m_there, .v = v_there});
      reference::adam(adam, n, g.data(), here.data(), m.data(), v.data());
      const Vector nearest = rounded(DType::kBfloat16, here);
      round_to_bfloat16(r, adam.step, n, here.data());
      const Vector there = device.get(DType::kBfloat16, p.at, here.size());
      std::size_t others = 0, not_nearest = 0;
      for (std::size_t i = 0; i < here.size(); ++i) {
        others += here[i] != there[i];
        not_nearest += nearest[i] != there[i];
      }
      EXPECT_LE(others, here.size() / 50) << n << " from " << first;
      EXPECT_GT(not_nearest, here.size() / 20) << n << " from " << first;
    }
  }
}

TEST_P(Optimizers, SumsAndSgd) {
  const Index n = 5 * c.width;
  const Tensor x(device, c.type, n, 1), sum(device, c.type, n, 2);
  Vector here(sum.values);
  cuda::add(device.stream, c.type, n, x.at, sum.at);
  pointwise().add(n, x.data(), here.data());
  expect_close(c.type, result(c.type, sum.at, here.size()), here, "sum");

  const std::vector<double> a{1, 2, 3}, b{1e16, -2, 0.5};
  auto* const total = device.put(b);
  cuda::add(device.stream, DType::kFloat64, 3, device.put(a), total);
  EXPECT_EQ(device.get<double>(total, 3), (std::vector<double>{1e16 + 1, 0, 3.5}));

  Vector g = random_vector(n, 3), p = random_vector(n, 4), velocity = random_vector(n, 5);
  float *const p_there = device.put(p), *const velocity_there = device.put(velocity);
  const auto* const scalars = device.put(std::vector<cuda::StepScalars>{{.learning_rate = 0.1F}});
  cuda::sgd(device.stream, 0.9F, 0, scalars, nullptr, nullptr, std::array{UpdateRange{0, n}}, device.put(g),
            p_there, velocity_there);
  reference::sgd({0.1F, 0.9F}, n, g.data(), p.data(), velocity.data());
  expect_close(DType::kFloat32, device.get<float>(p_there, p.size()), p, "sgd");
  expect_close(DType::kFloat32, device.get<float>(velocity_there, p.size()), velocity, "velocity");
}

// By both optimizers, which leave their moments as they are: null here.
TEST_P(Optimizers, StepsAgainstASign) {
  const Index n = 333;
  Vector g = rounded(c.gradient, random_vector(n, 1)), master = random_vector(n, 2);
  g[7] = 0;
  Vector p = rounded(c.type, master), moved = p;
  reference::step_by_sign(0.25F, n, g.data(), moved.data());
  void* const there = const_cast<void*>(device.put(c.type, p));
  float* const master_there = device.put(master);
  const auto* const scalars = device.put(std::vector<cuda::StepScalars>(1));
  const std::array ranges{UpdateRange{.first = 0, .count = n, .sign_rate = 0.25F}};
  const auto step = [&](float* copy) {
    cuda::adam(device.stream, c.type, c.gradient, {}, {}, scalars, nullptr, nullptr, ranges,
               device.put(c.gradient, g), there, {.master = copy});
  };
  step(nullptr);
  EXPECT_EQ(result(c.type, there, moved.size()), rounded(c.type, moved));
  step(master_there);
  Vector of_master = master;
  reference::step_by_sign(0.25F, n, g.data(), of_master.data());
  EXPECT_EQ(device.get<float>(master_there, master.size()), of_master);
  EXPECT_EQ(result(c.type, there, master.size()), rounded(c.type, of_master));
  float* const by_sgd = device.put(master);
  cuda::sgd(device.stream, 0.9F, 0, scalars, nullptr, nullptr, ranges, device.put(g), by_sgd, nullptr);
  EXPECT_EQ(device.get<float>(by_sgd, master.size()), of_master);
}

// A launch of many ranges computes, to the bit, what a launch for each of them does. They begin and end
// anywhere, with elements between some of them that nothing may touch.
class RangesOfAShard : public Kernels {
 protected:
  RangesOfAShard() {
    std::mt19937 random(kSeed);
    Index at = 3;
    for (std::size_t i = 0; i < 2 * cuda::kMostRanges + 5; ++i) {
      const auto count = static_cast<Index>(1 + random() % (i % 7 == 0 ? 9000 : 60));
      ranges.push_back({.first = at,
                        .count = count,
                        .decay = i % 2 == 0 ? 0.1F : 0,
                        .sign_rate = i % 11 == 5 ? 0.25F : 0,
                        .tensor = static_cast<Index>(i / 2)});
      at += count + (i % 5 == 0 ? static_cast<Index>(random() % 20) : 0);
    }
    n = at + 8;
    for (auto [values, seed] : {std::pair{&gradient, 1U}, {&weights, 2U}, {&first, 3U}, {&second, 4U}})
      *values = random_vector(n, seed);
    for (float& x : second) x = std::abs(x);
  }
  // What `update` leaves, called with all ranges, and with one after the other.
  template <class Update>
  void expect_equal(Update update) {
    const Vector together = update([&](auto launches) { launches(std::span<const UpdateRange>(ranges)); });
    const Vector alone = update([&](auto launches) {
      for (const UpdateRange& r : ranges) launches(std::span<const UpdateRange>(&r, 1));
    });
    EXPECT_EQ(together, alone);
    EXPECT_NE(together, update([](auto) {}));
  }
#ifdef ORRERY_EMULATED_GPU
  static std::int64_t launched() {
    return emulation::work_enqueued();
  }
#endif

  std::vector<UpdateRange> ranges;
  Index n = 0;
  Vector gradient, weights, first, second;
};

TEST_P(RangesOfAShard, AreUpdatedByAdamAsEachAlone) {
  const auto* const scalars = device.put(
      std::vector<cuda::StepScalars>{{.learning_rate = 0.01F, .correct1 = 0.3F, .correct2 = 0.2F}});
  const auto* const ratios = device.put(random_vector(static_cast<Index>(ranges.size()), 5));
  const auto* const g = device.put(c.gradient, gradient);
  for (const bool has_master : {false, true}) {
    for (const bool lamb : {false, true}) {
      for (const bool at_random : {false, true}) {
        const StochasticRounding r{.on = at_random && c.type == DType::kBfloat16, .seed = 9, .first = 5};
        expect_equal([&](auto call) {
          void* const p = device.put(c.type, weights);
          float *const master = device.put(weights), *const m = device.put(first),
                       *const v = device.put(second);
          call([&](std::span<const UpdateRange> of) {
            cuda::adam(device.stream, c.type, c.gradient, {0.9F, 0.95F, 1e-8F}, r, scalars, nullptr,
                       lamb ? ratios : nullptr, of, g, p,
                       {.master = has_master ? master : nullptr, .m = m, .v = v});
          });
          Vector all = device.get(c.type, p, weights.size());
          for (const float* const more : {master, m, v}) {
            const Vector values = device.get<float>(more, weights.size());
            all.insert(all.end(), values.begin(), values.end());
          }
          return all;
        });
      }
    }
  }
#ifdef ORRERY_EMULATED_GPU
  void* const p = device.put(c.type, weights);
  float *const m = device.put(first), *const v = device.put(second);
  const std::int64_t before = launched();
  cuda::adam(device.stream, c.type, c.gradient, {0.9F, 0.95F, 1e-8F}, {}, scalars, nullptr, nullptr, ranges,
             g, p, {.m = m, .v = v});
  EXPECT_EQ(launched() - before, 3);
#endif
}

TEST_P(RangesOfAShard, AreUpdatedBySgdAsEachAlone) {
  const auto* const scalars = device.put(std::vector<cuda::StepScalars>{{.learning_rate = 0.1F}});
  const auto* const g = device.put(gradient);
  expect_equal([&](auto call) {
    float *const p = device.put(weights), *const velocity = device.put(first);
    call([&](std::span<const UpdateRange> of) {
      cuda::sgd(device.stream, 0.9F, 0, scalars, nullptr, nullptr, of, g, p, velocity);
    });
    Vector all = device.get<float>(p, weights.size());
    const Vector more = device.get<float>(velocity, weights.size());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  });
}

// The sums are exact, so that the order of launches does not matter either.
TEST_P(RangesOfAShard, HaveTheSquaresThatEachAloneHas) {
  const auto* const scalars =
      device.put(std::vector<cuda::StepScalars>{{.correct1 = 0.3F, .correct2 = 0.2F}});
  const auto *const g = device.put(c.gradient, gradient), *const p = device.put(c.type, weights);
  const float *const m = device.put(first), *const v = device.put(second);
  expect_equal([&](auto call) {
    const std::size_t bins = ranges.size() * 2 * reference::kSquareBins;
    auto* const sums = device.put(std::vector<double>(bins, 0.0));
    call([&](std::span<const UpdateRange> of) {
      cuda::trust_squares(device.stream, c.type, c.gradient, {0.9F, 0.95F, 1e-8F}, scalars, nullptr, of, g, p,
                          nullptr, m, v, sums);
    });
    Vector all;
    const auto values = device.get<double>(sums, bins);
    for (std::size_t i = 0; i < bins; i += reference::kSquareBins)
      all.push_back(static_cast<float>(reference::sum_of_bins(values.data() + i)));
    return all;
  });
}

INSTANTIATE_TEST_SUITE_P(Types, Optimizers, testing::ValuesIn(kCases), name_of_case);
// Their shards have no width.
INSTANTIATE_TEST_SUITE_P(Types, RangesOfAShard,
                         testing::Values(kCases[0], kCases[2], kCases[3], kCases[5], kCases[6]),
                         name_of_case);

}  // namespace
}  // namespace orrery::kernels
