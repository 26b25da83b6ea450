// SPDX-License-Identifier: Apache-2.0
//
// Kernels on the device against the reference, for every type, on sizes that do and do not fill vectors,
// warps and tiles. The same tests run on a GPU and on the emulated device (tests/emulation).
#include "kernels/cuda/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <span>

#include "core/error.h"
#include "core/rotary.h"
#include "tests/kernels/cuda_cases.h"

namespace orrery::kernels {
namespace {

// Rows in the registers of a warp, with one to four vectors of a lane, and of a block, with two or more:
// whole vectors and single elements.
TEST_P(Kernels, NormAndItsGradient) {
  const auto compare = [&](const reference::NormShape& s) {
    const bool rms = s.rms;
    const Index n = s.rows * s.width;
    const Tensor x(device, c.type, n, 1), w(device, c.type, s.width, 2), b(device, c.type, s.width, 3);
    Vector y(x.values.size());
    void* const out = fresh(n);
    cuda::norm(device.stream, c.type, s, x.at, w.at, rms ? nullptr : b.at, out);
    reference::norm(s, x.data(), w.data(), rms ? nullptr : b.data(), y.data());
    expect_close(c.type, result(c.type, out, y.size()), y, "norm");

    const Tensor dy(device, c.type, n, 4), residual(device, c.type, n, 5);
    for (const bool more : {false, true}) {
      const Tensor dw(device, c.gradient, s.width, 6, 10), db(device, c.gradient, s.width, 7, 10);
      Vector dx(y.size()), dw_here(dw.values), db_here(db.values);
      void* const dx_there = fresh(n);
      cuda::norm_grad(device.stream, c.type, c.gradient, s, x.at, w.at, dy.at, more ? residual.at : nullptr,
                      dx_there, dw.at, rms ? nullptr : db.at, more, workspace(cuda::norm_grad_workspace(s)));
      reference::norm_grad(s, x.data(), w.data(), dy.data(), more ? residual.data() : nullptr, dx.data(),
                           dw_here.data(), rms ? nullptr : db_here.data(), more);
      expect_close(c.type, result(c.type, dx_there, dx.size()), dx, "norm dx");
      expect_close(c.gradient, result(c.gradient, dw.at, dw_here.size()), dw_here, "norm dw");
      if (!rms) expect_close(c.gradient, result(c.gradient, db.at, db_here.size()), db_here, "norm db");
    }
  };
  for (const bool rms : {false, true}) compare({300, c.width, rms, 1e-2F});
  const bool whole = c.width % 8 == 0;
  for (const Index width : whole ? std::vector<Index>{512, 768, 1024, 1600, 4104, 8200, 16392}
                                 : std::vector<Index>{65, 97, 129, 1025, 2049})
    compare({11, width, false, 1e-2F});
  const Index wide = 32769;
  void* const row = fresh(2 * wide);
  EXPECT_THROW(cuda::norm(device.stream, c.type, {1, wide, true, 1e-2F}, row, row, nullptr, row), Error);
}

// To the bit what a residual and a norm behind it give, which are compared with the reference.
TEST_P(Kernels, ResidualsWithTheNormBehindThem) {
  const bool whole = c.width % 8 == 0;
  for (const Index width :
       whole ? std::vector<Index>{c.width, 768, 1024, 4104, 16392} : std::vector<Index>{c.width, 129, 1025}) {
    const reference::NormShape s{width == c.width ? 300 : 11, width, false, 1e-2F};
    const Index n = s.rows * width;
    const Tensor x(device, c.type, n, 1), branch(device, c.type, n, 2), bias(device, c.type, width, 3),
        other(device, c.type, width, 4), w(device, c.type, width, 5), b(device, c.type, width, 6);
    using Biases = std::array<const void*, 2>;
    for (const Biases& biases : {Biases{}, Biases{bias.at, nullptr}, Biases{bias.at, other.at}}) {
      void *const sum = fresh(n), *const y = fresh(n), *const sum_apart = fresh(n), *const apart = fresh(n);
      cuda::residual_norm(device.stream, c.type, s, x.at, branch.at, biases, w.at, b.at, sum, y);
      cuda::residual(device.stream, c.type, s.rows, width, x.at, branch.at, biases, sum_apart);
      cuda::norm(device.stream, c.type, s, sum_apart, w.at, b.at, apart);
      EXPECT_EQ(result(c.type, sum, x.values.size()), result(c.type, sum_apart, x.values.size())) << width;
      EXPECT_EQ(result(c.type, y, x.values.size()), result(c.type, apart, x.values.size())) << width;
    }
  }
}

// As many of each half, and all of them written.
TEST_P(Kernels, RandomElementsAreUniform) {
  constexpr std::size_t kElements = 4093;
  const auto drawn = [&](std::uint64_t seed) {
    void* const to = fresh(kElements);
    cuda::uniform(device.stream, c.type, kElements, seed, to);
    return result(c.type, to, kElements);
  };
  const Vector x = drawn(1);
  double sum = 0, squares = 0;
  for (const float v : x) {
    ASSERT_TRUE(v >= -1 && v <= 1) << v;  // a 16-bit float may be rounded up to 1
    sum += static_cast<double>(v);
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  // Variance 1/3: the mean of 4,093 deviates by 0.009, that of squares (variance 4/45) by 0.005.
  EXPECT_NEAR(sum / kElements, 0, 0.04);
  EXPECT_NEAR(squares / kElements, 1.0 / 3, 0.02);
  EXPECT_EQ(drawn(1), x);
  EXPECT_NE(drawn(2), x);
}

TEST_P(Kernels, HeadNormAndItsGradient) {
  const Index head = c.width < 40 ? 12 : c.width;
  for (const reference::HeadNormShape& s :
       {reference::HeadNormShape{21, 8 * head, 4, 2, head, head, true, 1e-2F},
        reference::HeadNormShape{21, 8 * head, 4, 2, head, head, false, 1e-2F},
        reference::HeadNormShape{21, 8 * head, 1, 1, 4 * head, 2 * head, true, 1e-2F},
        reference::HeadNormShape{21, 8 * head, 1, 1, 4 * head, 2 * head, false, 1e-2F}}) {
    const Index n = s.rows * s.width;
    const Tensor x(device, c.type, n, 1), w(device, c.type, head + s.weights(), 2), dy(device, c.type, n, 3);
    const void* const weights = s.weighted ? w.at : nullptr;
    Vector y(x.values.size());
    void* const out = fresh(n);
    cuda::head_norm(device.stream, c.type, s, x.at, weights, out);
    reference::head_norm(s, x.data(), w.data(), y.data());
    expect_close(c.type, result(c.type, out, y.size()), y, "head norm");
    for (const bool accumulate : {false, true}) {
      const Tensor dw(device, c.gradient, head + s.weights(), 4, 10);
      Vector dx(y.size()), dw_here(dw.values);
      void* const dx_there = fresh(n);
      cuda::head_norm_grad(device.stream, c.type, c.gradient, s, x.at, weights, dy.at, dx_there,
                           s.weighted ? dw.at : nullptr, accumulate,
                           workspace(cuda::head_norm_grad_workspace(s)));
      reference::head_norm_grad(s, x.data(), w.data(), dy.data(), dx.data(), dw_here.data(), accumulate);
      expect_close(c.type, result(c.type, dx_there, dx.size()), dx, "head norm dx");
      expect_close(c.gradient, result(c.gradient, dw.at, dw_here.size()), dw_here, "head norm dw");
    }
  }
}

TEST_P(Kernels, RotaryPositionsAndTheirInverse) {
  const Index head = c.width % 8 == 0 ? 32 : 6;
  for (const Index turned : {head, head / 2 / 2 * 2}) {
    reference::RopeShape s{22, 8 * head, 5, head, 11, turned};
    const RotaryTables tables = rotary_tables(
        {.base = 500, .fraction = static_cast<double>(turned) / static_cast<double>(head)}, head, s.seq);
    const float* const cosine = device.put(tables.cosine);
    const float* const sine = device.put(tables.sine);
    for (const bool inverse : {false, true}) {
      const Tensor x(device, c.type, s.rows * s.width, 1);
      Vector here(x.values);
      s.inverse = inverse;
      cuda::rope(device.stream, c.type, s, cosine, sine, x.at);
      reference::rope(s, tables.cosine.data(), tables.sine.data(), here.data());
      expect_close(c.type, result(c.type, x.at, here.size()), here, "rope");
    }
  }
}

TEST_P(Kernels, ActivationsAndTheirGradients) {
  constexpr Index kRows = 23;
  using reference::Act;
  for (const Act act : {Act::kGelu, Act::kSwiglu, Act::kSquaredRelu, Act::kGeglu, Act::kClampedSwiglu}) {
    const Index of_u = (is_gated(act) ? 2 : 1) * kRows * c.width, of_v = kRows * c.width;
    const Tensor u(device, c.type, of_u, 1, 4), dv(device, c.type, of_v, 2);
    Vector v(static_cast<std::size_t>(of_v)), du(static_cast<std::size_t>(of_u));
    void *const v_there = fresh(of_v), *const du_there = fresh(of_u);
    cuda::activation(device.stream, c.type, kRows, c.width, act, u.at, v_there);
    cuda::activation_grad(device.stream, c.type, kRows, c.width, act, u.at, dv.at, du_there);
    reference::activation(kRows, c.width, act, u.data(), v.data());
    reference::activation_grad(kRows, c.width, act, u.data(), dv.data(), du.data());
    expect_close(c.type, result(c.type, v_there, v.size()), v, "activation");
    expect_close(c.type, result(c.type, du_there, du.size()), du, "activation gradient");
  }
}

TEST_P(Kernels, ResidualsWithAndWithoutDropout) {
  constexpr Index kRows = 24;
  const Index n = kRows * c.width;
  const Tensor x(device, c.type, n, 1), branch(device, c.type, n, 2), bias(device, c.type, c.width, 3);
  Vector y(x.values.size());
  void* const out = fresh(n);
  for (const bool has_bias : {false, true}) {
    cuda::residual(device.stream, c.type, kRows, c.width, x.at, branch.at,
                   {has_bias ? bias.at : nullptr, nullptr}, out);
    reference::residual(kRows, c.width, x.data(), branch.data(), has_bias ? bias.data() : nullptr, y.data());
    expect_close(c.type, result(c.type, out, y.size()), y, "residual");
  }

  // The first sample comes in two parts: from the op, and from the step.
  Dropout d{.probability = 0.3, .seed = 0x1234567890abcdef, .site = 9, .first_sample = 1000};
  const DroppedRows s{kRows, c.width, 6, 12};
  std::vector<std::uint8_t> mask(y.size());
  auto* const mask_there = static_cast<std::uint8_t*>(device.allocate(y.size()));
  const Index* const step = device.put(std::vector<Index>{5'000'000'000});
  cuda::dropout_residual(device.stream, c.type, d, step, s, x.at, branch.at, bias.at, out, mask_there);
  d.first_sample += 5'000'000'000;
  dropout_residual(d, s, x.data(), branch.data(), bias.data(), y.data(), mask.data());
  expect_close(c.type, result(c.type, out, y.size()), y, "dropout");
  EXPECT_EQ(device.get<std::uint8_t>(mask_there, mask.size()), mask);
  cuda::dropout_grad(device.stream, c.type, d, n, x.at, mask_there, out);
  dropout_grad(d, n, x.data(), mask.data(), y.data());
  expect_close(c.type, result(c.type, out, y.size()), y, "dropout gradient");
}

TEST_P(Kernels, BiasGradients) {
  constexpr Index kRows = 2100;
  const Tensor dy(device, c.type, kRows * c.width, 1);
  for (const bool accumulate : {false, true}) {
    const Tensor db(device, c.gradient, c.width, 2, 10);
    Vector here(db.values);
    cuda::bias_grad(device.stream, c.type, c.gradient, kRows, c.width, dy.at, db.at, accumulate,
                    workspace(cuda::bias_grad_workspace(kRows, c.width)));
    reference::bias_grad(kRows, c.width, dy.data(), here.data(), accumulate);
    expect_close(c.gradient, result(c.gradient, db.at, here.size()), here, "bias gradient");
  }
}

TEST_P(Kernels, EmbeddingsOfThisRanksRows) {
  constexpr Index kTokens = 700, kRows = 45, kFirst = 45;
  std::mt19937 random(kSeed);
  std::vector<std::int32_t> ids(kTokens);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % 3 == 0 ? 50 : random() % 135);
  const std::int32_t* const ids_there = device.put(ids);
  const Tensor table(device, c.type, kRows * c.width, 1), dy(device, c.type, kTokens * c.width, 2);
  Vector y(dy.values.size());
  void* const out = fresh(kTokens * c.width);
  cuda::embedding(device.stream, c.type, kTokens, c.width, kFirst, kRows, ids_there, table.at, out);
  reference::embedding(kTokens, c.width, kFirst, kRows, ids.data(), table.data(), y.data());
  EXPECT_EQ(result(c.type, out, y.size()), y);
  for (const bool accumulate : {false, true}) {
    const Tensor d_table(device, c.gradient, kRows * c.width, 3);
    Vector here(d_table.values);
    cuda::embedding_grad(device.stream, c.type, c.gradient, kTokens, c.width, kFirst, kRows, ids_there, dy.at,
                         d_table.at, accumulate);
    reference::embedding_grad(kTokens, c.width, kFirst, kRows, ids.data(), dy.data(), here.data(),
                              accumulate);
    expect_close(c.gradient, result(c.gradient, d_table.at, here.size()), here, "embedding gradient");
  }
}

TEST_P(Kernels, LearnedPositions) {
  constexpr Index kSeq = 10, kTable = 16;
  for (const Index rows : {Index{5}, Index{30}}) {  // half a sample, three samples
    const Index first = rows == 5 ? 5 : 0, n = rows * c.width;
    const Tensor table(device, c.type, kTable * c.width, 1), x(device, c.type, n, 2),
        dy(device, c.type, n, 3);
    Vector here(x.values);
    const reference::PositionsShape s{rows, c.width, kSeq, first, {.half = 4, .first = 1, .second = 7}};
    cuda::positions(device.stream, c.type, s, table.at, x.at);
    reference::positions(s, table.data(), here.data());
    expect_close(c.type, result(c.type, x.at, here.size()), here, "positions");
    for (const bool accumulate : {false, true}) {
      const Tensor d_table(device, c.gradient, kTable * c.width, 4);
      Vector grad(d_table.values);
      cuda::positions_grad(device.stream, c.type, c.gradient, s, kTable, dy.at, d_table.at, accumulate);
      reference::positions_grad(s, kTable, dy.data(), grad.data(), accumulate);
      expect_close(c.gradient, result(c.gradient, d_table.at, grad.size()), grad, "positions gradient");
    }
  }
}

TEST_P(Kernels, EmbeddingBagsAndTheLossOfAPair) {
  // The second of two ranks, by rows and by columns; the second of three tables.
  for (const int split : {0, 1, 2}) {
    reference::BagsShape s{
        .batch = 9, .width = c.width, .all_tables = 3, .ids = 2, .tables = 3, .rows = 20, .columns = c.width};
    if (split == 0) s.rows = s.first_row = 10;
    if (split == 1) s.columns = c.width - (s.first_column = c.width / 2);
    if (split == 2) s.tables = s.first_table = 1;
    std::mt19937 random(kSeed);
    std::vector<std::int32_t> ids(9 * 6);
    for (auto& id : ids) id = static_cast<std::int32_t>(random() % 20);
    const std::int32_t* const ids_there = device.put(ids);
    const Index weights = s.tables * s.rows * s.columns;
    const Tensor weight(device, c.type, weights, 1), dy(device, c.type, 9 * c.width, 2);
    void* const y = fresh(9 * c.width);
    Vector here(static_cast<std::size_t>(9 * c.width));
    cuda::bags(device.stream, c.type, s, ids_there, weight.at, y);
    reference::bags(s, ids.data(), weight.data(), here.data());
    expect_close(c.type, result(c.type, y, here.size()), here, "bags");
    for (const bool accumulate : {false, true}) {
      const Tensor d(device, c.gradient, weights, 3);
      Vector sum = d.values;
      cuda::bags_grad(device.stream, c.type, c.gradient, s, ids_there, dy.at, d.at, accumulate);
      reference::bags_grad(s, ids.data(), dy.data(), sum.data(), accumulate);
      expect_close(c.gradient, result(c.gradient, d.at, sum.size()), sum, "bags gradient");
    }
  }
  const std::vector<std::int32_t> labels{1, 0, 1};
  const std::int32_t* const labels_there = device.put(labels);
  const Tensor u(device, c.type, 3 * c.width, 4), v(device, c.type, 3 * c.width, 5);
  auto* const p_there = static_cast<float*>(fresh(3));
  auto* const total = device.put(std::vector<double>{0.5});
  const double* const scale = device.put(std::vector<double>{8.0});
  void *const du = fresh(3 * c.width), *const dv = fresh(3 * c.width);
  Vector p(3), du_here(static_cast<std::size_t>(3 * c.width)), dv_here(du_here.size());
  cuda::pair_loss(device.stream, c.type, 3, c.width, u.at, v.at, labels_there, p_there, total,
                  workspace(cuda::pair_loss_workspace(3)));
  cuda::pair_loss_grad(device.stream, c.type, 3, c.width, u.at, v.at, labels_there, p_there, 0.25F, scale, du,
                       dv);
  const double expected = 0.5 + reference::pair_loss(3, c.width, u.data(), v.data(), labels.data(), p.data());
  reference::pair_loss_grad(3, c.width, u.data(), v.data(), labels.data(), p.data(), 2, du_here.data(),
                            dv_here.data());
  EXPECT_NEAR(device.get<double>(total, 1)[0], expected, 1e-5 * expected);
  expect_close(c.type, result(c.type, du, du_here.size()), du_here, "du");
  expect_close(c.type, result(c.type, dv, dv_here.size()), dv_here, "dv");
}

TEST_P(Kernels, PatchesAndPooledSamples) {
  const reference::PatchesShape s{3, 5, c.width};
  const Tensor x(device, c.type, 15 * c.width, 1), bias(device, c.type, c.width, 2),
      cls(device, c.type, c.width, 3), dy(device, c.type, 18 * c.width, 4);
  for (const bool adds : {true, false}) {
    void* const y = fresh(18 * c.width);
    Vector here(static_cast<std::size_t>(18 * c.width));
    cuda::patches(device.stream, c.type, s, adds, x.at, bias.at, cls.at, y);
    reference::patches(s, adds, x.data(), bias.data(), cls.data(), here.data());
    expect_close(c.type, result(c.type, y, here.size()), here, "patches");
  }
  for (const bool accumulate : {false, true}) {
    const Tensor d_bias(device, c.gradient, c.width, 5), d_cls(device, c.gradient, c.width, 6);
    void* const dx = fresh(15 * c.width);
    Vector here(static_cast<std::size_t>(15 * c.width)), sum = d_bias.values, of_class = d_cls.values;
    cuda::patches_grad(device.stream, c.type, c.gradient, s, dy.at, dx, d_bias.at, d_cls.at, accumulate);
    reference::patches_grad(s, dy.data(), here.data(), sum.data(), of_class.data(), accumulate);
    expect_close(c.type, result(c.type, dx, here.size()), here, "patches gradient");
    expect_close(c.gradient, result(c.gradient, d_bias.at, sum.size()), sum, "bias gradient");
    expect_close(c.gradient, result(c.gradient, d_cls.at, sum.size()), of_class, "class token's gradient");
  }
  for (const bool mean : {false, true}) {
    const reference::PoolShape p{3, 5, 9, c.width, 4, mean};  // a share of the rows
    void *const y = fresh(3 * c.width), *const dx = fresh(9 * c.width);
    Vector here(static_cast<std::size_t>(3 * c.width)), back(static_cast<std::size_t>(9 * c.width));
    cuda::pool(device.stream, c.type, p, x.at, y);
    reference::pool(p, x.data(), here.data());
    expect_close(c.type, result(c.type, y, here.size()), here, "pool");
    cuda::pool_grad(device.stream, c.type, p, dy.at, dx);
    reference::pool_grad(p, dy.data(), back.data());
    expect_close(c.type, result(c.type, dx, back.size()), back, "pool gradient");
  }
}

// The second of three ranks, and the last, whose end is padding.
TEST_P(Kernels, LossOverAPartOfTheVocabulary) {
  for (const Index first : {c.width, 2 * c.width}) {
    const reference::LossShape s{19, c.width, first, 3 * c.width - 5};
    const Index n = s.rows * s.columns;
    std::mt19937 random(kSeed);
    std::vector<std::int32_t> targets(static_cast<std::size_t>(s.rows));
    for (auto& t : targets) t = static_cast<std::int32_t>(random() % static_cast<unsigned>(s.vocab));
    const std::int32_t* const targets_there = device.put(targets);
    const Tensor logits(device, c.type, n, 1, 5);
    constexpr Index kRanks = 3;  // whose statistics are gathered: this one's last
    const auto of_rank = static_cast<std::size_t>(s.rows * reference::kLossStatistics);
    Vector all(kRanks * of_rank), normalizers(2 * targets.size()), d(logits.values.size());
    for (std::size_t i = 0; i < all.size(); i += reference::kLossStatistics) {
      all[i] = static_cast<float>(random() % 100) / 10;
      all[i + 1] = 1 + static_cast<float>(random() % 100);
    }
    auto* const total = device.put(std::vector<double>{0.5});
    const double* const scale = device.put(std::vector<double>{1024.0});
    auto* const normalizers_there = static_cast<float*>(fresh(2 * s.rows));
    auto* const all_there = device.put(all);
    cuda::loss_statistics(device.stream, c.type, s, logits.at, targets_there, all_there + 2 * of_rank);
    reference::loss_statistics(s, logits.data(), targets.data(), all.data() + 2 * of_rank);
    expect_close(DType::kFloat32, device.get<float>(all_there, all.size()), all, "statistics");
    cuda::loss(device.stream, s.rows, kRanks, all_there, normalizers_there, total,
               workspace(cuda::loss_workspace(s.rows)));
    const double expected = 0.5 + reference::loss(s.rows, kRanks, all.data(), normalizers.data());
    EXPECT_NEAR(device.get<double>(total, 1)[0], expected, 1e-5 * std::abs(expected));
    expect_close(DType::kFloat32, device.get<float>(normalizers_there, normalizers.size()), normalizers,
                 "normalizers");
    void* const d_there = const_cast<void*>(logits.at);  // in place
    cuda::loss_grad(device.stream, c.type, s, logits.at, normalizers_there, targets_there, 0.25F, scale,
                    d_there);
    reference::loss_grad(s, logits.data(), normalizers.data(), targets.data(), 256.0F, d.data());
    expect_close(c.type, result(c.type, d_there, d.size()), d, "loss gradient");
  }
}

TEST_P(Kernels, RoutersAndTheirGradients) {
  const Index tokens = 42, experts = 12, k = 3;
  for (const bool sigmoids : {false, true}) {
    const reference::RouterShape s{tokens, experts, sigmoids, 0.1F};
    const Tensor logits(device, c.type, tokens * experts, 1);
    const auto* const scale = device.put(std::vector<double>{1.0});
    Vector scores(logits.values);
    auto* const scores_there = static_cast<float*>(fresh(tokens * experts));
    cuda::router_scores(device.stream, c.type, s, logits.at, scores_there);
    reference::router_scores(s, logits.data(), scores.data());
    expect_close(DType::kFloat32, device.get<float>(scores_there, scores.size()), scores, "scores");

    const reference::RouteShape r{.tokens = tokens,
                                  .seq = 14,
                                  .samples = 3,
                                  .experts = experts,
                                  .top_k = k,
                                  .groups = 4,
                                  .top_groups = 2,
                                  .capacity = 13,
                                  .normalised = !sigmoids,
                                  .scale = 2};
    const auto n = static_cast<std::size_t>(tokens * k);
    Vector weights(n), load(36), d_scores(scores.size()), d_logits(scores.size());
    std::vector<std::int32_t> choice(2 * n), counts(12);
    const auto* const same = device.put(scores);
    auto* const weights_there = static_cast<float*>(fresh(tokens * k));
    auto* const choice_there = static_cast<std::int32_t*>(fresh(2 * tokens * k));
    auto* const counts_there = static_cast<std::int32_t*>(fresh(experts));
    auto* const load_there = static_cast<float*>(fresh(36));
    const Vector biases = rounded(c.type, random_vector(experts, 11, 0.3F));
    cuda::route(device.stream, c.type, r, same, sigmoids ? device.put(c.type, biases) : nullptr,
                weights_there, choice_there, counts_there, load_there);
    reference::route(r, scores.data(), sigmoids ? biases.data() : nullptr, weights.data(), choice.data(),
                     counts.data(), load.data());
    EXPECT_EQ(device.get<std::int32_t>(choice_there, choice.size()), choice);
    EXPECT_EQ(device.get<std::int32_t>(counts_there, counts.size()), counts);
    EXPECT_EQ(device.get<float>(load_there, load.size()), load);
    expect_close(DType::kFloat32, device.get<float>(weights_there, n), weights, "weights");
    EXPECT_GT(std::count(choice.begin(), choice.end(), -1), 0);  // some are dropped
    for (const bool accumulate : {false, true}) {
      const Tensor d_biases(device, c.gradient, experts, 12, 10);
      Vector here(d_biases.values);
      cuda::choice_bias_grad(device.stream, c.gradient, 3, experts, load_there,
                             const_cast<void*>(d_biases.at), accumulate);
      reference::choice_bias_grad(3, experts, load.data(), here.data(), accumulate);
      expect_close(c.gradient, result(c.gradient, d_biases.at, here.size()), here, "choice biases");
    }

    // What is no number: a token of nothing else, and one expert of another.
    Vector holes(scores);
    std::fill_n(holes.begin(), experts, NAN);
    holes[static_cast<std::size_t>(experts + 2)] = NAN;
    std::vector<std::int32_t> of_holes(choice.size());
    cuda::route(device.stream, c.type, r, device.put(holes), nullptr, weights_there, choice_there,
                counts_there, load_there);
    reference::route(r, holes.data(), nullptr, weights.data(), of_holes.data(), counts.data(), load.data());
    EXPECT_EQ(device.get<std::int32_t>(choice_there, choice.size()), of_holes);
    cuda::route(device.stream, c.type, r, same, sigmoids ? device.put(c.type, biases) : nullptr,
                weights_there, choice_there, counts_there, load_there);
    reference::route(r, scores.data(), sigmoids ? biases.data() : nullptr, weights.data(), choice.data(),
                     counts.data(), load.data());

    const Vector dw = random_vector(static_cast<Index>(n), 3), ds = random_vector(tokens * experts, 4);
    auto* const d_scores_there = static_cast<float*>(fresh(tokens * experts));
    cuda::route_grad(device.stream, r, same, choice_there, device.put(dw), d_scores_there);
    reference::route_grad(r, scores.data(), choice.data(), dw.data(), d_scores.data());
    expect_close(DType::kFloat32, device.get<float>(d_scores_there, d_scores.size()), d_scores, "d scores");
    void* const d_logits_there = fresh(tokens * experts);
    cuda::router_scores_grad(device.stream, c.type, s, scale, logits.at, same, device.put(ds),
                             d_logits_there);
    reference::router_scores_grad(s, logits.data(), scores.data(), ds.data(), d_logits.data());
    expect_close(c.type, result(c.type, d_logits_there, d_logits.size()), d_logits, "d logits");
    const reference::BalanceShape b{tokens, 14, experts, k, sigmoids, 0.3F};
    cuda::balance_grad(device.stream, b, scale, same, load_there, d_scores_there);
    reference::balance_grad(b, scores.data(), load.data(), d_scores.data());
    expect_close(DType::kFloat32, device.get<float>(d_scores_there, d_scores.size()), d_scores, "balance");
  }
}

TEST_P(Kernels, ExpertsAndTheirGradients) {
  const Index tokens = 21, k = 2, rows = tokens * k, width = c.width, out = 37, experts = 5;
  const reference::RouteShape r{
      .tokens = tokens, .seq = 21, .samples = 1, .experts = experts, .top_k = k, .capacity = 12};
  const Vector scores = random_vector(tokens * experts, 9);
  Vector weights(static_cast<std::size_t>(rows)), load(5);
  std::vector<std::int32_t> choice(static_cast<std::size_t>(2 * rows)), counts(5);
  reference::route(r, scores.data(), nullptr, weights.data(), choice.data(), counts.data(), load.data());
  Index used = 0;
  for (const std::int32_t n : counts) used += n;
  const auto* const choice_there = device.put(choice);
  const auto* const counts_there = device.put(counts);
  const auto head = [](Vector v, Index n) { return Vector(v.begin(), v.begin() + n); };

  const reference::PermuteShape p{tokens, width, k};
  const Tensor x(device, c.type, tokens * width, 1);
  Vector y(static_cast<std::size_t>(rows * width)), row_weights(weights.size());
  void* const y_there = fresh(rows * width);
  auto* const row_weights_there = static_cast<float*>(fresh(rows));
  cuda::permute(device.stream, c.type, p, x.at, device.put(weights), choice_there, y_there,
                row_weights_there);
  reference::permute(p, x.data(), weights.data(), choice.data(), y.data(), row_weights.data());
  EXPECT_EQ(head(result(c.type, y_there, y.size()), used * width), head(y, used * width));
  EXPECT_EQ(head(device.get<float>(row_weights_there, weights.size()), used), head(row_weights, used));
  const Tensor dy(device, c.type, rows * width, 2);
  const Vector d_rows = random_vector(rows, 3);
  Vector dx(x.values), dw(weights.size());
  void* const dx_there = fresh(tokens * width);
  auto* const dw_there = static_cast<float*>(fresh(rows));
  cuda::permute_grad(device.stream, c.type, p, dy.at, device.put(d_rows), choice_there, dx_there, dw_there);
  reference::permute_grad(p, dy.data(), d_rows.data(), choice.data(), dx.data(), dw.data());
  expect_close(c.type, result(c.type, dx_there, dx.size()), dx, "permute dx");
  EXPECT_EQ(device.get<float>(dw_there, dw.size()), dw);
  cuda::unpermute_grad(device.stream, c.type, p, x.at, choice_there, y_there);
  EXPECT_EQ(head(result(c.type, y_there, y.size()), used * width), head(y, used * width));

  const Tensor w(device, c.type, experts * out * width, 4), du(device, c.type, rows * out, 5);
  Vector u(static_cast<std::size_t>(rows * out));
  void* const u_there = fresh(rows * out);
  reference::GroupedGemm g{.n = out, .k = width, .experts = experts, .room = rows};
  cuda::grouped_gemm(device.stream, c.type, g, dy.at, w.at, counts_there, u_there);
  reference::grouped_gemm(g, dy.data(), w.data(), counts.data(), u.data());
  expect_close(c.type, head(result(c.type, u_there, u.size()), used * out), head(u, used * out), "experts");
  cuda::grouped_gemm_dx(device.stream, c.type, g, du.at, w.at, counts_there, y_there);
  reference::grouped_gemm_dx(g, du.data(), w.data(), counts.data(), y.data());
  expect_close(c.type, head(result(c.type, y_there, y.size()), used * width), head(y, used * width),
               "experts dx");
  for (const bool accumulate : {false, true}) {
    g.accumulate = accumulate;
    const Tensor gradient(device, c.gradient, experts * out * width, 6, 10);
    Vector here(gradient.values);
    cuda::grouped_gemm_dw(device.stream, c.type, c.gradient, g, du.at, dy.at, counts_there,
                          const_cast<void*>(gradient.at));
    reference::grouped_gemm_dw(g, du.data(), dy.data(), counts.data(), here.data());
    expect_close(c.gradient, result(c.gradient, gradient.at, here.size()), here, "experts dw");
  }

  using reference::Act;
  for (const auto& [act, inputs] :
       {std::pair{Act::kSwiglu, false}, {Act::kGelu, false}, {Act::kSwiglu, true}, {Act::kGelu, true}}) {
    const Index columns = reference::is_gated(act) ? 2 * width : width;
    const Tensor before(device, c.type, rows * columns, 7);
    void* const v_there = fresh(rows * width);
    void* const before_there = fresh(rows * columns);
    Vector d_before(before.values), d_weights(weights.size());
    cuda::expert_activation(device.stream, c.type, {experts, 1, rows, counts_there}, width, act, inputs,
                            before.at, row_weights_there, v_there);
    reference::expert_activation(used, width, act, inputs, before.data(), row_weights.data(), y.data());
    expect_close(c.type, head(result(c.type, v_there, y.size()), used * width), head(y, used * width), "act");
    cuda::expert_activation_grad(device.stream, c.type, {experts, 1, rows, counts_there}, width, act, inputs,
                                 before.at, row_weights_there, dy.at, before_there, dw_there);
    reference::expert_activation_grad(used, width, act, inputs, before.data(), row_weights.data(), dy.data(),
                                      d_before.data(), d_weights.data());
    expect_close(c.type, head(result(c.type, before_there, d_before.size()), used * columns),
                 head(d_before, used * columns), "act dx");
    expect_close(DType::kFloat32, head(device.get<float>(dw_there, d_weights.size()), used),
                 head(d_weights, used), "row weights");
  }

  const Tensor logits(device, c.type, rows, 8);
  Vector gated(y.size()), d_gated(y.size()), d_logits(logits.values);
  void* const gated_there = fresh(rows * width);
  void* const d_logits_there = fresh(rows);
  cuda::gate(device.stream, c.type, rows, width, dy.at, logits.at, gated_there);
  reference::gate(rows, width, dy.data(), logits.data(), gated.data());
  expect_close(c.type, result(c.type, gated_there, gated.size()), gated, "gate");
  const Tensor d_out(device, c.type, rows * width, 10);
  cuda::gate_grad(device.stream, c.type, rows, width, dy.at, logits.at, d_out.at, gated_there,
                  d_logits_there);
  reference::gate_grad(rows, width, dy.data(), logits.data(), d_out.data(), d_gated.data(), d_logits.data());
  expect_close(c.type, result(c.type, gated_there, d_gated.size()), d_gated, "gate dy");
  expect_close(c.type, result(c.type, d_logits_there, d_logits.size()), d_logits, "gate dlogits");
}

TEST_P(Kernels, BiasesOfExperts) {
  const std::vector<std::int32_t> counts{3, 0, 2, 1, 4, 0};
  for (const bool weighted : {false, true}) {
    const Index columns = weighted ? 75 : 37, width = 37;
    const reference::ExpertBiasShape s{columns, weighted ? width + 1 : 0, width, 3, 2, 6};
    const Tensor y(device, c.type, 12 * columns, 1), bias(device, c.type, 3 * width, 2),
        dy(device, c.type, 12 * columns, 3);
    const Vector weights = random_vector(12, 4);
    const auto* const counts_there = device.put(counts);
    const auto* const weights_there = weighted ? device.put(weights) : nullptr;
    const float* const weights_here = weighted ? weights.data() : nullptr;
    Vector here(y.values);
    cuda::expert_bias(device.stream, c.type, s, bias.at, counts_there, weights_there,
                      const_cast<void*>(y.at));
    reference::expert_bias(s, bias.data(), counts.data(), weights_here, here.data());
    expect_close(c.type, result(c.type, y.at, here.size()), here, "y");
    for (const bool accumulate : {false, true}) {
      const Tensor d_bias(device, c.gradient, 3 * width, 5);
      Vector d_bias_here(d_bias.values), rows_here(12);
      auto* const rows_there = static_cast<float*>(fresh(12 * 2));
      cuda::expert_bias_grad(device.stream, c.type, c.gradient, s, dy.at, bias.at, counts_there,
                             weights_there, const_cast<void*>(d_bias.at), rows_there, accumulate);
      reference::expert_bias_grad(s, dy.data(), bias.data(), counts.data(), weights_here, d_bias_here.data(),
                                  rows_here.data(), accumulate);
      expect_close(c.gradient, result(c.gradient, d_bias.at, d_bias_here.size()), d_bias_here, "dbias");
      if (!weighted) continue;
      const Vector rows = device.get<float>(rows_there, 12);
      for (const Index row : {0, 1, 2, 3, 4, 6, 7, 8, 9, 10}) {
        const auto r = static_cast<std::size_t>(row);
        EXPECT_NEAR(rows[r], rows_here[r], 1e-4 * (1 + std::abs(rows_here[r]))) << row;
      }
    }
  }
}

TEST_P(Kernels, SinksOfAttention) {
  for (const bool rows_first : {false, true}) {
    const reference::SinkShape s{2, 21, 3, 40, rows_first};
    const Tensor sinks(device, c.type, 3, 1), out(device, c.type, 2 * 21 * 3 * 40, 2),
        d_out(device, c.type, 2 * 21 * 3 * 40, 3);
    Vector lse = random_vector(2 * 21 * 3, 4), out_here(out.values);
    auto* const lse_there = const_cast<float*>(device.put(lse));
    cuda::attention_sink(device.stream, c.type, s, sinks.at, const_cast<void*>(out.at), lse_there);
    reference::attention_sink(s, sinks.data(), out_here.data(), lse.data());
    expect_close(c.type, result(c.type, out.at, out_here.size()), out_here, "out");
    expect_close(DType::kFloat32, device.get<float>(lse_there, lse.size()), lse, "log-sums");
    const Vector after = result(c.type, out.at, out_here.size());
    for (const bool accumulate : {false, true}) {
      const Tensor d_sinks(device, c.gradient, 3, 5);
      Vector here(d_sinks.values);
      cuda::attention_sink_grad(device.stream, c.type, c.gradient, s, sinks.at, out.at, lse_there, d_out.at,
                                const_cast<void*>(d_sinks.at), accumulate);
      reference::attention_sink_grad(s, sinks.data(), after.data(), lse.data(), d_out.data(), here.data(),
                                     accumulate);
      expect_close(c.gradient, result(c.gradient, d_sinks.at, here.size()), here, "dsinks");
    }
  }
}

TEST_P(Kernels, PackOfLatentAttention) {
  const reference::LatentShape s{11, 3, 4, 6, 5};
  const Index q = s.rows * 3 * 10, kv = s.rows * 3 * 11, turned = s.rows * 4, packed = s.rows * 3 * 25;
  const Tensor x(device, c.type, q, 1), y(device, c.type, kv, 2), z(device, c.type, turned, 3),
      d(device, c.type, packed, 4);
  Vector here(d.values), dq(x.values), dkv(y.values), dr(z.values);
  void* const there = fresh(packed);
  cuda::latent_pack(device.stream, c.type, s, x.at, y.at, z.at, there);
  reference::latent_pack(s, x.data(), y.data(), z.data(), here.data());
  EXPECT_EQ(result(c.type, there, here.size()), here);
  void *const dq_there = fresh(q), *const dkv_there = fresh(kv), *const dr_there = fresh(turned);
  cuda::latent_pack_grad(device.stream, c.type, s, d.at, dq_there, dkv_there, dr_there);
  reference::latent_pack_grad(s, d.data(), dq.data(), dkv.data(), dr.data());
  EXPECT_EQ(result(c.type, dq_there, dq.size()), dq);
  EXPECT_EQ(result(c.type, dkv_there, dkv.size()), dkv);
  expect_close(c.type, result(c.type, dr_there, dr.size()), dr, "turned");
}

// To the last bit, whatever the blocks; and nothing finite hides what is not.
TEST_P(Kernels, SquaresAddUpExactly) {
  const auto sum_of = [&](const Vector& v) {
    auto* const bins = device.put(std::vector<double>(reference::kSquareBins, 0.0));
    cuda::add_squares(device.stream, c.gradient, static_cast<Index>(v.size()), device.put(c.gradient, v),
                      bins);
    return bins;
  };
  Vector v = random_vector(9000, 1);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] *= std::ldexp(1.0F, -static_cast<int>(i % 13));
  v = rounded(c.gradient, v);
  std::vector<double> here(reference::kSquareBins, 0.0);
  reference::add_squares(static_cast<Index>(v.size()), v.data(), here.data());
  EXPECT_EQ(reference::sum_of_bins(device.get<double>(sum_of(v), here.size()).data()),
            reference::sum_of_bins(here.data()));

  const auto* const scalars = device.put(std::vector<cuda::StepScalars>{{.loss_scale = 4}});
  auto* const finished = static_cast<cuda::NormResult*>(device.allocate(sizeof(cuda::NormResult)));
  const double norm = std::sqrt(reference::sum_of_bins(here.data())) / 4;
  cuda::norm_finish(device.stream, sum_of(v), 2.0F, scalars, finished);
  const auto result = device.get<cuda::NormResult>(finished, 1)[0];
  EXPECT_EQ(result.norm, norm);
  EXPECT_EQ(result.factor, static_cast<float>(2.0 / (norm + 1e-6) / 4));
  EXPECT_EQ(result.overflowed, 0);
  for (const float bad : {INFINITY, NAN}) {
    v[4321] = bad;
    cuda::norm_finish(device.stream, sum_of(v), 2.0F, scalars, finished);
    EXPECT_EQ(device.get<cuda::NormResult>(finished, 1)[0].overflowed, 1);
  }
}

TEST_P(Kernels, ReductionsInTheOrderOfRanks) {
  const Index n = c.width;
  const Tensor a(device, c.type, n, 1, 1000), b(device, c.type, n, 2), d(device, c.type, n, 3, 100);
  const std::array<const void*, 3> inputs{a.at, b.at, d.at};
  void* const out = fresh(n);
  Vector sum(a.values), started(a.values);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = (a.values[i] + b.values[i]) + d.values[i];
    started[i] = ((b.values[i] + a.values[i]) + b.values[i]) + d.values[i];
  }
  cuda::reduce(device.stream, c.type, inputs, n, nullptr, out);
  EXPECT_EQ(result(c.type, out, sum.size()), rounded(c.type, sum));
  cuda::reduce(device.stream, c.type, inputs, n, b.at, const_cast<void*>(a.at));  // in place
  EXPECT_EQ(result(c.type, a.at, started.size()), rounded(c.type, started));
}

INSTANTIATE_TEST_SUITE_P(Types, Kernels, testing::ValuesIn(kCases), name_of_case);

}  // namespace
}  // namespace orrery::kernels
