// SPDX-License-Identifier: Apache-2.0
//
// The kernels that a run uses against the reference, on sizes that fill no vector; and what the executor's
// bit-exactness rests on: an element's bits do not depend on its place.
#include "kernels/cpu/fast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "core/rotary.h"
#include "tests/kernels/context_cases.h"

namespace orrery::kernels {
namespace {

using Vector = std::vector<float>;

constexpr unsigned kSeed = 20261121;

Vector random_vector(Index n, unsigned seed, float size = 1) {
  std::mt19937 random(kSeed + seed);
  Vector v(static_cast<std::size_t>(n));
  for (float& x : v) x = size * (static_cast<float>(random() % 2000001) / 1000000.0F - 1.0F);
  return v;
}

// |a - b| over the largest |b|.
void expect_near(const Vector& a, const Vector& b, double tolerance, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  double largest = 1e-30, off = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    largest = std::max(largest, static_cast<double>(std::abs(b[i])));
    off = std::max(off, static_cast<double>(std::abs(a[i] - b[i])));
  }
  EXPECT_LT(off / largest, tolerance) << what << " seed " << kSeed;
}

TEST(Fast, MatrixProductsUseTheLibrary) {
  // The tests' packages install OpenBLAS; a silent fall back to the plain loops would be a hundred times
  // slower.
  EXPECT_TRUE(std::string(blas_name()).starts_with("OpenBLAS")) << blas_name();
}

// All 65,536 patterns of both formats, and numbers around every step between two of them.
TEST(Fast, SixteenBitFloats) {
  const auto same = [](float a, float b) {
    return std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  };
  std::vector<std::uint16_t> patterns(65536);
  std::iota(patterns.begin(), patterns.end(), std::uint16_t{0});
  for (const DType type : {DType::kBfloat16, DType::kFloat16}) {
    const bool brain = type == DType::kBfloat16;
    const auto from = brain ? reference::from_bfloat16 : reference::from_float16;
    const auto to = brain ? reference::to_bfloat16 : reference::to_float16;
    Vector wide(65536);
    widen(type, 65536, patterns.data(), wide.data());
    Vector near;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      EXPECT_TRUE(same(wide[i], from(patterns[i]))) << i;
      if (std::isnan(wide[i])) continue;
      EXPECT_EQ(to(wide[i]), patterns[i]);
      const float next = i + 1 < wide.size() && !std::isnan(wide[i + 1]) ? wide[i + 1] : wide[i];
      const float middle =
          static_cast<float>(0.5 * (static_cast<double>(wide[i]) + static_cast<double>(next)));
      for (const float x : {wide[i], middle}) {
        near.insert(near.end(), {x, std::nextafter(x, -INFINITY), std::nextafter(x, INFINITY)});
      }
    }
    near.insert(near.end(), {65519.996F, 65520.0F, 3.3961777e38F, 3.4028235e38F, NAN, INFINITY, -INFINITY});
    std::vector<std::uint16_t> narrowed(near.size());
    narrow(type, static_cast<Index>(near.size()), near.data(), narrowed.data());
    for (std::size_t i = 0; i < near.size(); ++i) {
      if (std::isnan(near[i]))
        EXPECT_TRUE(std::isnan(from(narrowed[i])));
      else
        EXPECT_EQ(narrowed[i], to(near[i])) << near[i];
    }
  }
  // Ties go to the even neighbour: 1 + 2^-8 lies between 1 and 1 + 2^-7; 1 + 2^-11 between 1 and 1 + 2^-10.
  EXPECT_EQ(reference::to_bfloat16(1 + 0x1p-8F), 0x3f80);
  EXPECT_EQ(reference::to_bfloat16(1 + 3 * 0x1p-8F), 0x3f82);
  EXPECT_EQ(reference::to_float16(1 + 0x1p-11F), 0x3c00);
  EXPECT_EQ(reference::to_float16(0x1p-24F), 1);       // the least above zero
  EXPECT_EQ(reference::to_float16(0x1p-25F), 0);       // a tie with zero
  EXPECT_EQ(reference::to_float16(65504.0F), 0x7bff);  // the largest
  EXPECT_EQ(reference::to_float16(65520.0F), 0x7c00);
}

// The known answers of Random123's kat_vectors.
TEST(Dropout, PhiloxGivesItsPublishedNumbers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// As many as asked, in every row, sample, op and seed anew; shards of rows are those of the whole.
TEST(Dropout, KeepsItsShareOfWhateverItIsAskedFor) {
  const Index width = 4001;
  const auto mask = [&](const Dropout& d, Index sample, Index row) {
    std::vector<std::uint8_t> m(width);
    keep(d, sample, row, width, m.data());
    return m;
  };
  for (const double p : {0.1, 0.5, 0.9}) {
    const Dropout d{p, 5, 3, 100};
    const auto first = mask(d, 0, 0);
    const double kept =
        static_cast<double>(std::count(first.begin(), first.end(), 1)) / static_cast<double>(width);
    EXPECT_NEAR(kept, 1 - p, 5 * std::sqrt(p * (1 - p) / static_cast<double>(width)));
    EXPECT_EQ(first, mask({p, 5, 3, 60}, 40, 0)) << "the same sample in another micro-batch";
    for (const Dropout& other : {Dropout{p, 6, 3, 100}, Dropout{p, 5, 4, 100}, Dropout{p, 5, 3, 101},
                                 Dropout{p, 5, 3, 100 + (Index{1} << 32)}})
      EXPECT_NE(first, mask(other, 0, 0));
    EXPECT_NE(first, mask(d, 0, 1));
  }
  const Dropout d{0.3, 1, 2, 7};
  const Index rows = 12, columns = 10;
  const Vector x = random_vector(rows * columns, 1), branch = random_vector(rows * columns, 2),
               bias = random_vector(columns, 3);
  Vector whole(x.size()), shards(x.size()), dx(x.size());
  std::vector<std::uint8_t> kept(x.size()), part(x.size());
  dropout_residual(d, {rows, columns, 4, 0}, x.data(), branch.data(), bias.data(), whole.data(), kept.data());
  for (Index first = 0; first < rows; first += 3) {
    const auto at = static_cast<std::size_t>(first * columns);
    dropout_residual(d, {3, columns, 4, first}, &x[at], &branch[at], bias.data(), &shards[at], &part[at]);
  }
  EXPECT_EQ(whole, shards);
  EXPECT_EQ(kept, part);
  dropout_grad(d, rows * columns, branch.data(), kept.data(), dx.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(dx[i], kept[i] != 0 ? branch[i] * (1 / 0.7F) : 0.0F);
    EXPECT_EQ(whole[i] == x[i], kept[i] == 0);
  }
}

TEST(Fast, MatrixProducts) {
  for (const Index m : {1, 7, 33}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const Index n = 19, k = 21;
          const reference::Gemm g{m, n, k, ta, tb, accumulate};
          const Vector a = random_vector(m * k, 1), b = random_vector(n * k, 2), bias = random_vector(n, 3);
          Vector expected = random_vector(m * n, 4), actual = expected;
          const float* add = accumulate ? nullptr : bias.data();
          reference::gemm(g, a.data(), b.data(), add, expected.data());
          kernels::gemm(g, a.data(), b.data(), add, actual.data());
          expect_near(actual, expected, 1e-6, "gemm");
        }
      }
    }
  }
}

TEST(Fast, Norms) {
  for (const Index width : {5, 48, 770}) {
    for (const bool rms : {false, true}) {
      const reference::NormShape s{9, width, rms, 1e-3F};
      const Vector x = random_vector(9 * width, 1), w = random_vector(width, 2), b = random_vector(width, 3),
                   dy = random_vector(9 * width, 4), residual = random_vector(9 * width, 5);
      Vector y(x.size()), y2(x.size());
      reference::norm(s, x.data(), w.data(), b.data(), y.data());
      pointwise().norm(s, x.data(), w.data(), b.data(), y2.data());
      expect_near(y2, y, 2e-6, "norm");
      for (const bool accumulate : {false, true}) {
        Vector dx(x.size()), dw = random_vector(width, 6), db = random_vector(width, 7);
        Vector dx2(x.size()), dw2 = dw, db2 = db;
        reference::norm_grad(s, x.data(), w.data(), dy.data(), residual.data(), dx.data(), dw.data(),
                             db.data(), accumulate);
        kernels::norm_grad(s, x.data(), w.data(), dy.data(), residual.data(), dx2.data(), dw2.data(),
                           db2.data(), accumulate);
        expect_near(dx2, dx, 4e-6, "dx");
        expect_near(dw2, dw, 4e-6, "dw");
        expect_near(db2, db, 4e-6, "db");
      }
    }
  }
}

TEST(Fast, Attention) {
  for (const Index seq : {3, 64, 150, 151, 152, 153}) {
    for (const Index kv : {2, 4}) {
      reference::AttentionShape s{2, seq, 4, kv, 10};
      s.window = seq == 151 ? 70 : seq == 152 ? 5 : 0;
      s.sees_all = seq == 153;
      if (seq > 150) s.cap = 0.7F;
      if (seq > 151) s.explicit_scale = 0.4F;
      if (seq != 64) s.dropout = {0.25, kSeed, 12, 9};
      const std::vector<std::int32_t> starts = document_starts(2, seq);
      s.packed = kv == 4 && seq != 153;
      s.document = starts.data();
      const Vector qkv = random_vector(2 * seq * s.width(), 1, 3), d_out = random_vector(2 * seq * 4 * 10, 2);
      Vector out(d_out.size()), lse(static_cast<std::size_t>(2 * 4 * seq)), d(qkv.size());
      Vector out2(out.size()), lse2(lse.size()), d2(qkv.size());
      reference::attention(s, qkv.data(), out.data(), lse.data(), nullptr);
      kernels::attention(s, qkv.data(), out2.data(), lse2.data(), nullptr);
      expect_near(out2, out, 2e-6, "out");
      expect_near(lse2, lse, 2e-6, "log-sum-exp");
      reference::attention_grad(s, qkv.data(), out.data(), lse.data(), nullptr, d_out.data(), d.data());
      kernels::attention_grad(s, qkv.data(), out2.data(), lse2.data(), nullptr, d_out.data(), d2.data());
      expect_near(d2, d, 5e-6, "d_qkv");
    }
  }
}

TEST(Fast, CrossAttention) {
  for (const Index keys : {3, 64, 150}) {
    reference::AttentionShape s{2, 70, 4, 2, 10};
    s.other_seq = keys;
    s.sees_all = true;
    if (keys != 64) s.dropout = {0.25, kSeed, 12, 9};
    const Vector q = random_vector(2 * 70 * 40, 1, 3), kv = random_vector(2 * keys * 40, 3, 3),
                 d_out = random_vector(2 * 70 * 40, 2);
    Vector out(d_out.size()), lse(2 * 4 * 70), d_q(q.size()), d_kv(kv.size());
    Vector out2(out.size()), lse2(lse.size()), d_q2(q.size()), d_kv2(kv.size());
    reference::attention(s, {q.data(), kv.data()}, out.data(), lse.data(), nullptr);
    kernels::attention(s, {q.data(), kv.data()}, out2.data(), lse2.data(), nullptr);
    expect_near(out2, out, 2e-6, "out");
    expect_near(lse2, lse, 2e-6, "log-sum-exp");
    reference::attention_grad(s, {q.data(), kv.data()}, out.data(), lse.data(), nullptr, d_out.data(),
                              {d_q.data(), d_kv.data()});
    kernels::attention_grad(s, {q.data(), kv.data()}, out2.data(), lse2.data(), nullptr, d_out.data(),
                            {d_q2.data(), d_kv2.data()});
    expect_near(d_q2, d_q, 5e-6, "d_q");
    expect_near(d_kv2, d_kv, 5e-6, "d_kv");
  }
}

TEST(Fast, ActivationsAndRotation) {
  using reference::Act;
  for (const Act act : {Act::kGelu, Act::kSwiglu, Act::kSquaredRelu, Act::kGeglu, Act::kClampedSwiglu}) {
    const Index rows = 3, width = 37, in = is_gated(act) ? 2 * width : width;
    const Vector u = random_vector(rows * in, 1, 12), dv = random_vector(rows * width, 2);
    Vector v(dv.size()), v2(dv.size()), du(u.size()), du2(u.size());
    reference::activation(rows, width, act, u.data(), v.data());
    pointwise().activation(rows, width, act, u.data(), v2.data());
    expect_near(v2, v, 1e-6, "activation");
    reference::activation_grad(rows, width, act, u.data(), dv.data(), du.data());
    pointwise().activation_grad(rows, width, act, u.data(), dv.data(), du2.data());
    expect_near(du2, du, 2e-6, "activation gradient");
  }
  const RotaryTables tables = rotary_tables({.fraction = 0.8}, 10, 9);
  for (const bool inverse : {false, true}) {
    const reference::RopeShape s{18, 40, 3, 10, 9, 8, inverse};
    Vector x = random_vector(2 * 9 * 40, 3), x2 = x;
    reference::rope(s, tables.cosine.data(), tables.sine.data(), x.data());
    pointwise().rope(s, tables.cosine.data(), tables.sine.data(), x2.data());
    EXPECT_EQ(x2, x);  // the same operations
  }
}

TEST(Fast, Loss) {
  // The second half of a padded vocabulary of 61 over two ranks of 32 columns.
  const reference::LossShape s{5, 32, 32, 61};
  const Vector logits = random_vector(5 * 32, 1, 8);
  const std::vector<std::int32_t> targets{40, 3, 60, 32, 59};
  Vector statistics(5 * reference::kLossStatistics), statistics2(statistics.size()), normalizers(10);
  reference::loss_statistics(s, logits.data(), targets.data(), statistics.data());
  pointwise().loss_statistics(s, logits.data(), targets.data(), statistics2.data());
  expect_near(statistics2, statistics, 1e-6, "statistics");
  reference::loss(5, 1, statistics.data(), normalizers.data());
  Vector d(logits.size()), d2 = logits;
  reference::loss_grad(s, logits.data(), normalizers.data(), targets.data(), 0.25F, d.data());
  pointwise().loss_grad(s, d2.data(), normalizers.data(), targets.data(), 0.25F, d2.data());  // in place
  expect_near(d2, d, 1e-6, "gradient");
}

TEST(Fast, OptimizersAndSums) {
  const Index n = 1003;
  const Vector g = random_vector(n, 1), parameter = random_vector(n, 2);
  const reference::Adam a{1e-2F, 0.9F, 0.95F, 1e-8F, 0.1F, 3};
  Vector m = random_vector(n, 3), v(m.size()), p = parameter;
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = m[i] * m[i];
  Vector m2 = m, v2 = v, p2 = p;
  Vector by(m.size()), by2(m.size());
  reference::adam_update(a, n, g.data(), p.data(), m.data(), v.data(), by.data());
  pointwise().adam_update(a, n, g.data(), p.data(), m.data(), v.data(), by2.data());
  expect_near(by2, by, 1e-6, "adam's update");
  reference::adam(a, n, g.data(), p.data(), m.data(), v.data());
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_EQ(p[i], parameter[i] - a.lr * by[i]);
  pointwise().adam(a, n, g.data(), p2.data(), m2.data(), v2.data());
  expect_near(p2, p, 1e-6, "adam");
  EXPECT_EQ(m2, m);
  p = p2 = parameter;
  reference::sgd({0.1F, 0.9F, 0.5F}, n, g.data(), p.data(), m.data());
  pointwise().sgd({0.1F, 0.9F, 0.5F}, n, g.data(), p2.data(), m2.data());
  EXPECT_EQ(p2, p);
  reference::bias_grad(17, 59, g.data(), p.data(), true);
  kernels::bias_grad(17, 59, g.data(), p2.data(), true);
  expect_near(p2, p, 1e-6, "bias gradient");
  p2 = p;
  reference::residual(17, 59, g.data(), parameter.data(), m.data(), p.data());
  pointwise().residual(17, 59, g.data(), parameter.data(), m.data(), p2.data());
  EXPECT_EQ(p2, p);
}

// Gradients of tables; each call adds one number to an element, so two calls add up in their order to the
// bit.
TEST(Fast, TableGradientsAddOneNumberACall) {
  const Index width = 9, rows = 6, tokens = 40;
  const std::vector<std::int32_t> ids = [] {
    std::mt19937 random(kSeed);
    std::vector<std::int32_t> v(tokens);
    for (auto& id : v) id = static_cast<std::int32_t>(random() % 10);
    return v;
  }();
  const Vector a = random_vector(tokens * width, 1), b = random_vector(tokens * width, 2);
  const auto check = [&](auto&& fast, auto&& plain) {
    Vector of_a(static_cast<std::size_t>(rows * width)), of_b = of_a, both = of_a, expected = of_a;
    fast(a.data(), of_a.data(), false);
    fast(b.data(), of_b.data(), false);
    fast(a.data(), both.data(), true);
    fast(b.data(), both.data(), true);
    for (std::size_t i = 0; i < both.size(); ++i) EXPECT_EQ(both[i], of_a[i] + of_b[i]);
    plain(a.data(), expected.data());
    expect_near(of_a, expected, 1e-6, "table gradient");
  };
  check([&](const float* dy, float* d,
            bool add) { kernels::embedding_grad(tokens, width, 2, rows, ids.data(), dy, d, add); },
        [&](const float* dy, float* d) {
          reference::embedding_grad(tokens, width, 2, rows, ids.data(), dy, d, false);
        });
  check(
      [&](const float* dy, float* d, bool add) {
        kernels::positions_grad({tokens - 1, width, rows, 3}, rows, dy, d, add);
      },
      [&](const float* dy, float* d) {
        reference::positions_grad({tokens - 1, width, rows, 3}, rows, dy, d, false);
      });
}

// The sum of squares does not depend on order, on blocks or on shards; a plain sum does.
TEST(Fast, SumsOfSquaresAreExact) {
  const Index n = 20011;
  Vector x = random_vector(n, 1);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<float>(i % 61) - 40.0F);
  x[17] = 1e-38F;
  x[4711] = 3.5F;
  std::vector<double> bins(reference::kSquareBins), exact(bins.size());
  pointwise().add_squares(n, x.data(), bins.data());
  reference::add_squares(n, x.data(), exact.data());
  const double sum = reference::sum_of_bins(bins.data());
  EXPECT_EQ(sum, reference::sum_of_bins(exact.data()));
  long double plain = 0;
  for (const float v : x) plain += static_cast<long double>(v) * v;
  EXPECT_NEAR(sum, static_cast<double>(plain), 1e-11 * sum);

  std::mt19937 random(kSeed);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::shuffle(x.begin(), x.end(), random);
    std::vector<double> total(bins.size());
    for (Index first = 0; first < n;) {
      const Index count = std::min<Index>(n - first, 1 + static_cast<Index>(random() % 9000));
      std::vector<double> shard(bins.size());
      pointwise().add_squares(count, x.data() + first, shard.data());
      for (std::size_t b = 0; b < total.size(); ++b) total[b] += shard[b];
      first += count;
    }
    EXPECT_EQ(reference::sum_of_bins(total.data()), sum) << "seed " << kSeed;
  }
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<double> with = bins;
    const Vector small{1e-30F, bad};  // in bins below those that count
    pointwise().add_squares(2, small.data(), with.data());
    EXPECT_FALSE(std::isfinite(reference::sum_of_bins(with.data()))) << bad;
  }
  const Vector zeros(100);
  std::vector<double> none(bins.size());
  pointwise().add_squares(100, zeros.data(), none.data());
  EXPECT_EQ(reference::sum_of_bins(none.data()), 0);
}

// A shard of an array is updated to the bits of the whole array's.
TEST(Fast, AnElementsBitsDoNotDependOnItsPlace) {
  const Index n = 333;
  const Vector g = random_vector(n, 1);
  const reference::Adam a{1e-2F, 0.9F, 0.95F, 1e-8F, 0.1F, 3};
  Vector p = random_vector(n, 2), m = random_vector(n, 3), v(m.size(), 0.5F), u = g, y(g.size());
  Vector p2 = p, m2 = m, v2 = v, y2(g.size());
  pointwise().adam(a, n, g.data(), p.data(), m.data(), v.data());
  pointwise().activation(1, n, reference::Act::kGelu, u.data(), y.data());
  for (Index first = 0, part = 1; first < n; first += part, part = part % 13 + 1) {
    const Index count = std::min(part, n - first);
    pointwise().adam(a, count, g.data() + first, p2.data() + first, m2.data() + first, v2.data() + first);
    pointwise().activation(1, count, reference::Act::kGelu, u.data() + first, y2.data() + first);
  }
  EXPECT_EQ(p2, p);
  EXPECT_EQ(y2, y);
}

}  // namespace
}  // namespace orrery::kernels
