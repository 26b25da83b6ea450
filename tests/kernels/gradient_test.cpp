// SPDX-License-Identifier: Apache-2.0
//
// Each backward kernel against 4-point finite differences of its forward kernel, in fp32: the loss is a
// fixed random projection of the output, so one scalar tests all of it.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "core/rotary.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/reference.h"

namespace orrery::kernels::reference {
namespace {

using Vector = std::vector<float>;

Vector random_vector(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  Vector v(n);
  for (float& x : v) x = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
  return v;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// |analytic - numeric| relative to the largest gradient.
void expect_gradient(Vector x, const Vector& analytic, const std::function<double(const Vector&)>& loss) {
  double largest = 1e-3;
  for (const float g : analytic) largest = std::max(largest, static_cast<double>(std::abs(g)));
  const float h = 1e-2F;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float at = x[i];
    const auto f = [&](float offset) {
      x[i] = at + offset;
      return loss(x);
    };
    const double numeric = (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h);
    x[i] = at;
    EXPECT_NEAR(analytic[i], numeric, 2e-3 * largest) << "element " << i;
  }
}

TEST(Gradient, Norms) {
  for (const bool rms : {false, true}) {
    const NormShape s{3, 8, rms, 1e-2F};
    const Vector x = random_vector(24, 1), w = random_vector(8, 2), b = random_vector(8, 3),
                 r = random_vector(24, 4);
    Vector dx(24), dw(8), db(8);
    norm_grad(s, x.data(), w.data(), r.data(), nullptr, dx.data(), dw.data(), db.data(), false);
    const auto loss = [&](const Vector& xx, const Vector& ww, const Vector& bb) {
      Vector y(24);
      norm(s, xx.data(), ww.data(), bb.data(), y.data());
      return dot(y, r);
    };
    expect_gradient(x, dx, [&](const Vector& v) { return loss(v, w, b); });
    expect_gradient(w, dw, [&](const Vector& v) { return loss(x, v, b); });
    expect_gradient(b, db, [&](const Vector& v) { return loss(x, w, v); });
  }
}

// Two query heads and one key head, each by itself; all query heads as one of eight; and without weights.
TEST(Gradient, HeadNorm) {
  for (const HeadNormShape& s :
       {HeadNormShape{2, 16, 2, 1, 4, 4, true, 1e-2F}, HeadNormShape{2, 16, 1, 1, 8, 4, true, 1e-2F},
        HeadNormShape{2, 16, 2, 1, 4, 4, false, 1e-2F}}) {
    const Vector x = random_vector(32, 1), r = random_vector(32, 3);
    const Vector w = random_vector(static_cast<std::size_t>(s.weights()), 2);
    Vector dx(32), dw(w.size());
    head_norm_grad(s, x.data(), w.data(), r.data(), dx.data(), dw.data(), false);
    const auto loss = [&](const Vector& xx, const Vector& ww) {
      Vector y(32);
      head_norm(s, xx.data(), ww.data(), y.data());
      return dot(y, r);
    };
    expect_gradient(x, dx, [&](const Vector& v) { return loss(v, w); });
    expect_gradient(w, dw, [&](const Vector& v) { return loss(x, v); });
  }
}

// Without weights a head's elements have the mean square 1; all heads together have it where each has not.
TEST(HeadNorm, MakesMeanSquaresOne) {
  const Vector x = random_vector(16, 4);
  const Vector ones(12, 1.0F);
  const auto mean_square = [](const Vector& y, std::size_t from, std::size_t n) {
    double sum = 0;
    for (std::size_t i = from; i < from + n; ++i) sum += static_cast<double>(y[i]) * y[i];
    return sum / static_cast<double>(n);
  };
  Vector y(16);
  head_norm({1, 16, 2, 1, 4, 4, false, 1e-9F}, x.data(), nullptr, y.data());
  for (const std::size_t from : {0U, 4U, 8U}) EXPECT_NEAR(mean_square(y, from, 4), 1, 1e-4);
  EXPECT_TRUE(std::equal(y.begin() + 12, y.end(), x.begin() + 12));
  head_norm({1, 16, 1, 1, 8, 4, true, 1e-9F}, x.data(), ones.data(), y.data());
  EXPECT_NEAR(mean_square(y, 0, 8), 1, 1e-4);
  EXPECT_NEAR(mean_square(y, 8, 4), 1, 1e-4);
  EXPECT_GT(std::abs(mean_square(y, 0, 4) - 1), 1e-2);
}

TEST(Gradient, AttentionWithGroupedQueriesFlashAndMaterialised) {
  for (const auto& [materialised, dropped] :
       {std::pair{false, 0.0}, {true, 0.0}, {false, 0.3}, {true, 0.3}}) {
    AttentionShape s{2, 5, 4, 2, 4, materialised};
    s.dropout = {dropped, 7, 4, 2};
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(s.batch * s.heads * s.seq * s.seq));
    const auto n = static_cast<std::size_t>(s.batch * s.seq * s.width()),
               m = static_cast<std::size_t>(s.batch * s.seq * s.heads * s.head);
    const Vector qkv = random_vector(n, 1), r = random_vector(m, 2);
    Vector out(m), softmax(2 * mask.size()), d(n);
    attention(s, qkv.data(), out.data(), softmax.data(), mask.data());
    attention_grad(s, qkv.data(), out.data(), softmax.data(), mask.data(), r.data(), d.data());
    expect_gradient(qkv, d, [&](const Vector& v) {
      Vector y(m), scratch(softmax.size());
      attention(s, v.data(), y.data(), scratch.data(), mask.data());
      return dot(y, r);
    });
  }
}

// Of attention without dropout.
void expect_attention_gradient(const AttentionShape& s) {
  const auto n = static_cast<std::size_t>(s.batch * s.seq * s.width()),
             m = static_cast<std::size_t>(s.batch * s.seq * s.heads * s.value_head());
  const Vector qkv = random_vector(n, 1), r = random_vector(m, 2);
  Vector out(m), softmax(static_cast<std::size_t>(s.batch * s.heads * s.seq * s.seq)), d(n);
  attention(s, qkv.data(), out.data(), softmax.data(), nullptr);
  attention_grad(s, qkv.data(), out.data(), softmax.data(), nullptr, r.data(), d.data());
  expect_gradient(qkv, d, [&](const Vector& v) {
    Vector y(m), scratch(softmax.size());
    attention(s, v.data(), y.data(), scratch.data(), nullptr);
    return dot(y, r);
  });
}

// A window, attention to all tokens, a cap and a factor of scores.
TEST(Gradient, AttentionOfOtherScores) {
  for (int i = 0; i < 8; ++i) {
    AttentionShape s{2, 6, 4, 2, 4, i % 2 == 1};
    if (i < 4) s.window = 3;
    s.sees_all = i >= 6;
    if (i / 2 % 2 == 0) s.cap = 0.8F;
    if (i >= 2) s.explicit_scale = 0.9F;
    expect_attention_gradient(s);
  }
}

// Documents of 3, 1 and 2 tokens in each of two sequences: what each comes to is what it comes to alone, and
// so are its gradients.
TEST(Gradient, AttentionOfDocumentsIsThatOfEachAlone) {
  const std::vector<std::int32_t> starts{0, 0, 0, 3, 4, 4, 0, 0, 0, 3, 4, 4};
  for (const bool materialised : {false, true}) {
    for (const Index window : {0, 2}) {
      AttentionShape s{2, 6, 4, 2, 4, materialised};
      s.window = window;
      s.packed = true;
      s.document = starts.data();
      expect_attention_gradient(s);
      const auto width = static_cast<std::size_t>(s.width()), columns = static_cast<std::size_t>(4 * 4);
      const Vector qkv = random_vector(12 * width, 1), d_out = random_vector(12 * columns, 2);
      Vector out(12 * columns), softmax(2 * 4 * 6 * 6), d(qkv.size());
      attention(s, qkv.data(), out.data(), softmax.data(), nullptr);
      attention_grad(s, qkv.data(), out.data(), softmax.data(), nullptr, d_out.data(), d.data());
      for (const std::size_t sample : {0U, 6U}) {
        for (const auto& [first, tokens] : {std::pair<std::size_t, std::size_t>{0, 3}, {3, 1}, {4, 2}}) {
          AttentionShape alone{1, static_cast<Index>(tokens), 4, 2, 4, materialised};
          alone.window = window;
          const std::size_t at = sample + first;
          Vector own(tokens * columns), own_softmax(4 * tokens * tokens), own_d(tokens * width);
          attention(alone, qkv.data() + at * width, own.data(), own_softmax.data(), nullptr);
          attention_grad(alone, qkv.data() + at * width, own.data(), own_softmax.data(), nullptr,
                         d_out.data() + at * columns, own_d.data());
          for (std::size_t i = 0; i < own.size(); ++i) EXPECT_EQ(own[i], out[at * columns + i]);
          for (std::size_t i = 0; i < own_d.size(); ++i) EXPECT_EQ(own_d[i], d[at * width + i]);
        }
      }
    }
  }
}

// Keys and values of another sequence, of more tokens than there are queries and of fewer.
TEST(Gradient, CrossAttention) {
  for (const auto& [materialised, keys, dropped] :
       {std::tuple{false, 7, 0.0}, {true, 3, 0.0}, {false, 3, 0.3}, {true, 7, 0.3}}) {
    AttentionShape s{2, 5, 4, 2, 4, materialised};
    s.other_seq = keys;
    s.sees_all = true;
    s.explicit_scale = 0.7F;
    s.dropout = {dropped, 7, 4, 2};
    const auto scores = static_cast<std::size_t>(s.batch * s.heads * s.seq * keys);
    std::vector<std::uint8_t> mask(scores);
    const Vector q = random_vector(2 * 5 * 16, 1),
                 kv = random_vector(static_cast<std::size_t>(2 * keys * 16), 3),
                 r = random_vector(2 * 5 * 16, 2);
    Vector out(r.size()), softmax(2 * scores), d_q(q.size()), d_kv(kv.size());
    attention(s, {q.data(), kv.data()}, out.data(), softmax.data(), mask.data());
    attention_grad(s, {q.data(), kv.data()}, out.data(), softmax.data(), mask.data(), r.data(),
                   {d_q.data(), d_kv.data()});
    const auto loss = [&](const Vector& queries, const Vector& others) {
      Vector y(out.size()), scratch(softmax.size());
      attention(s, {queries.data(), others.data()}, y.data(), scratch.data(), mask.data());
      return dot(y, r);
    };
    expect_gradient(q, d_q, [&](const Vector& v) { return loss(v, kv); });
    expect_gradient(kv, d_kv, [&](const Vector& v) { return loss(q, v); });
  }
}

// The same tokens in rows of their own: attention that sees all.
TEST(Gradient, CrossAttentionToTheSameTokensIsSelfAttention) {
  AttentionShape self{2, 6, 4, 2, 4};
  self.sees_all = true;
  AttentionShape cross = self;
  cross.other_seq = self.seq;
  const Vector qkv = random_vector(static_cast<std::size_t>(2 * 6 * self.width()), 4);
  Vector q, kv;
  for (std::size_t row = 0; row < 12; ++row) {
    const auto at = qkv.begin() + static_cast<std::ptrdiff_t>(row * 32);
    q.insert(q.end(), at, at + 16);
    kv.insert(kv.end(), at + 16, at + 32);
  }
  Vector a(2 * 6 * 16), b(a.size()), lse_a(2 * 4 * 6), lse_b(lse_a.size());
  attention(self, qkv.data(), a.data(), lse_a.data(), nullptr);
  attention(cross, {q.data(), kv.data()}, b.data(), lse_b.data(), nullptr);
  EXPECT_EQ(a, b);
  EXPECT_EQ(lse_a, lse_b);
}

// The first token sees itself alone; with a window of one, so do all.
TEST(Gradient, AWindowOfOneIsTheValueItself) {
  AttentionShape s{1, 4, 1, 1, 2};
  s.window = 1;
  const Vector qkv = random_vector(static_cast<std::size_t>(s.seq * s.width()), 3);
  Vector out(8), lse(4);
  attention(s, qkv.data(), out.data(), lse.data(), nullptr);
  for (std::size_t token = 0; token < 4; ++token) {
    for (std::size_t e = 0; e < 2; ++e) EXPECT_EQ(out[token * 2 + e], qkv[token * 6 + 4 + e]);
  }
}

TEST(Gradient, PatchesBehindAClassTokenOrNone) {
  const PatchesShape s{2, 3, 4};
  for (const bool has_class : {false, true}) {
    const Vector x = random_vector(24, 1), bias = random_vector(4, 2), cls = random_vector(4, 3),
                 r = random_vector(has_class ? 32 : 24, 4);
    Vector dx(24), d_bias(4), d_cls(4);
    patches_grad(s, r.data(), dx.data(), d_bias.data(), has_class ? d_cls.data() : nullptr, false);
    const auto loss = [&](const Vector& xx, const Vector& bb, const Vector& cc) {
      Vector y(r.size());
      patches(s, true, xx.data(), bb.data(), has_class ? cc.data() : nullptr, y.data());
      return dot(y, r);
    };
    expect_gradient(x, dx, [&](const Vector& v) { return loss(v, bias, cls); });
    expect_gradient(bias, d_bias, [&](const Vector& v) { return loss(x, v, cls); });
    if (has_class) expect_gradient(cls, d_cls, [&](const Vector& v) { return loss(x, bias, v); });
    // Parts of a sum: what the first rank adds, others do not.
    Vector first(r.size()), other(r.size()), zeros(24), none(r.size());
    const float* const c = has_class ? cls.data() : nullptr;
    patches(s, true, zeros.data(), bias.data(), c, first.data());
    patches(s, false, x.data(), bias.data(), c, other.data());
    patches(s, true, x.data(), bias.data(), c, none.data());
    for (std::size_t i = 0; i < none.size(); ++i) EXPECT_EQ(first[i] + other[i], none[i]);
  }
}

// Three samples of four rows; a share of the rows, which begins and ends inside samples, makes a part.
TEST(Gradient, PooledSamples) {
  for (const bool mean : {false, true}) {
    const Vector x = random_vector(12 * 2, 1), r = random_vector(3 * 2, 2);
    Vector whole(6), sum(6);
    pool({3, 4, 12, 2, 0, mean}, x.data(), whole.data());
    for (const Index first : {0, 6}) {
      const PoolShape s{3, 4, 6, 2, first, mean};
      Vector part(6), d(12);
      const Vector share(x.begin() + first * 2, x.begin() + first * 2 + 12);
      pool(s, share.data(), part.data());
      for (std::size_t i = 0; i < 6; ++i) sum[i] += part[i];
      pool_grad(s, r.data(), d.data());
      expect_gradient(share, d, [&](const Vector& v) {
        Vector y(6);
        pool(s, v.data(), y.data());
        return dot(y, r);
      });
    }
    for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(sum[i], whole[i], 1e-6);
    EXPECT_NEAR(whole[2], mean ? (x[8] + x[10] + x[12] + x[14]) / 4 : x[8], 1e-6);  // sample 1, column 0
  }
}

// Three tables of four rows, two ids of each; and the parts of two ranks, split each way, add up to the
// whole.
TEST(Gradient, EmbeddingBags) {
  const BagsShape whole{
      .batch = 5, .width = 6, .all_tables = 4, .ids = 2, .tables = 4, .rows = 4, .columns = 6};
  std::vector<std::int32_t> ids(5 * 8);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 4);
  const Vector w = random_vector(4 * 4 * 6, 1), r = random_vector(5 * 6, 2);
  Vector y(r.size()), d(w.size());
  bags(whole, ids.data(), w.data(), y.data());
  bags_grad(whole, ids.data(), r.data(), d.data(), false);
  expect_gradient(w, d, [&](const Vector& v) {
    Vector z(r.size());
    bags(whole, ids.data(), v.data(), z.data());
    return dot(z, r);
  });
  for (const int split : {0, 1, 2}) {
    Vector sum(y.size());
    for (Index rank = 0; rank < 2; ++rank) {
      BagsShape s = whole;
      Index& n = split == 0 ? s.rows : split == 1 ? s.columns : s.tables;
      Index& first = split == 0 ? s.first_row : split == 1 ? s.first_column : s.first_table;
      n /= 2;
      first = rank * n;
      Vector own, expected, part(y.size());
      for (Index t = 0; t < s.tables; ++t) {
        for (Index row = 0; row < s.rows; ++row) {
          for (Index c = 0; c < s.columns; ++c) {
            const auto at = static_cast<std::size_t>(((s.first_table + t) * 4 + s.first_row + row) * 6 +
                                                     s.first_column + c);
            own.push_back(w[at]);
            expected.push_back(d[at]);
          }
        }
      }
      Vector d_own(own.size());
      bags(s, ids.data(), own.data(), part.data());
      bags_grad(s, ids.data(), r.data(), d_own.data(), false);
      EXPECT_EQ(d_own, expected) << "split " << split;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], y[i], 1e-5);
  }
}

TEST(Gradient, LossOfAPair) {
  const Vector u = random_vector(12, 1), v = random_vector(12, 2);
  const std::vector<std::int32_t> labels{1, 0, 1};
  Vector p(3), du(12), dv(12);
  pair_loss(3, 4, u.data(), v.data(), labels.data(), p.data());
  pair_loss_grad(3, 4, u.data(), v.data(), labels.data(), p.data(), 0.5F, du.data(), dv.data());
  const auto loss = [&](const Vector& a, const Vector& b) {
    Vector scratch(3);
    return 0.5 * pair_loss(3, 4, a.data(), b.data(), labels.data(), scratch.data());
  };
  expect_gradient(u, du, [&](const Vector& x) { return loss(x, v); });
  expect_gradient(v, dv, [&](const Vector& x) { return loss(u, x); });
  // Scores of 0 and 40: log 2 each way, and 0 or 40.
  const float one[] = {40.0F, 0.0F}, other[] = {1.0F, 1.0F};
  const std::int32_t first[] = {1, 1}, second[] = {0, 0};
  EXPECT_NEAR(pair_loss(2, 1, one, other, first, p.data()), std::log(2.0), 1e-6);
  EXPECT_NEAR(pair_loss(2, 1, one, other, second, p.data()), 40 + std::log(2.0), 1e-5);
}

TEST(Gradient, SoftCaps) {
  const Vector x = random_vector(12, 1), r = random_vector(12, 2);
  Vector y(12), d(12);
  soft_cap(12, 0.6F, x.data(), y.data());
  for (const float v : y) EXPECT_LT(std::abs(v), 0.6F);
  soft_cap_grad(12, 0.6F, y.data(), r.data(), d.data());
  expect_gradient(x, d, [&](const Vector& v) {
    Vector z(12);
    soft_cap(12, 0.6F, v.data(), z.data());
    return dot(z, r);
  });
}

TEST(Gradient, FlashEqualsMaterialisedAttention) {
  AttentionShape flash{2, 7, 4, 4, 8, false}, naive{2, 7, 4, 4, 8, true};
  flash.dropout = naive.dropout = {0.2, 3, 8, 5};
  std::vector<std::uint8_t> mask(2 * 4 * 7 * 7);
  const Vector qkv = random_vector(static_cast<std::size_t>(2 * 7 * flash.width()), 5);
  Vector a(2 * 7 * 32), b(a.size()), lse(2 * 4 * 7), p(2 * 2 * 4 * 7 * 7);
  attention(flash, qkv.data(), a.data(), lse.data(), nullptr);
  attention(naive, qkv.data(), b.data(), p.data(), mask.data());
  EXPECT_EQ(a, b);
}

TEST(Gradient, Activations) {
  for (const Act act : {Act::kGelu, Act::kSwiglu, Act::kSquaredRelu, Act::kGeglu, Act::kClampedSwiglu}) {
    const std::size_t n = is_gated(act) ? 24 : 12;
    Vector u = random_vector(n, 1);
    const Vector r = random_vector(12, 2);
    if (act == Act::kClampedSwiglu) {
      for (float& x : u) x *= 10;  // beyond the clamps
    }
    Vector du(n);
    activation_grad(3, 4, act, u.data(), r.data(), du.data());
    expect_gradient(u, du, [&](const Vector& v) {
      Vector y(12);
      activation(3, 4, act, v.data(), y.data());
      return dot(y, r);
    });
  }
}

TEST(Gradient, CrossEntropySplitOverTwoRanksEqualsOne) {
  const Index rows = 4, vocab = 11, half = 6;  // the second half has one padding column
  const Vector logits = random_vector(static_cast<std::size_t>(rows * vocab), 1);
  const std::int32_t targets[] = {0, 5, 6, 10};
  Vector grad(logits.size());
  const auto whole_loss = [&](const Vector& l, Vector* d) {
    const LossShape s{rows, vocab, 0, vocab};
    Vector statistics(4 * kLossStatistics), normalizers(8);
    loss_statistics(s, l.data(), targets, statistics.data());
    const double out = loss(rows, 1, statistics.data(), normalizers.data());
    if (d != nullptr) loss_grad(s, l.data(), normalizers.data(), targets, 1.0F, d->data());
    return out;
  };
  const double expected = whole_loss(logits, &grad);
  expect_gradient(logits, grad, [&](const Vector& v) { return whole_loss(v, nullptr); });

  const auto shape = [&](Index rank) { return LossShape{rows, half, rank * half, vocab}; };
  std::vector<Vector> parts(2, Vector(static_cast<std::size_t>(rows * half)));
  Vector statistics(2 * 4 * kLossStatistics), normalizers(8);
  for (Index rank = 0; rank < 2; ++rank) {
    Vector& part = parts[static_cast<std::size_t>(rank)];
    for (Index r = 0; r < rows; ++r) {
      for (Index j = 0; j < half && rank * half + j < vocab; ++j)
        part[static_cast<std::size_t>(r * half + j)] =
            logits[static_cast<std::size_t>(r * vocab + rank * half + j)];
    }
    loss_statistics(shape(rank), part.data(), targets, statistics.data() + rank * rows * kLossStatistics);
  }
  EXPECT_NEAR(loss(rows, 2, statistics.data(), normalizers.data()), expected, 1e-5);
  for (Index rank = 0; rank < 2; ++rank) {
    Vector& part = parts[static_cast<std::size_t>(rank)];
    loss_grad(shape(rank), part.data(), normalizers.data(), targets, 1.0F, part.data());
    for (Index r = 0; r < rows; ++r) {
      for (Index j = 0; j < half; ++j) {
        const Index column = rank * half + j;
        EXPECT_NEAR(part[static_cast<std::size_t>(r * half + j)],
                    column < vocab ? grad[static_cast<std::size_t>(r * vocab + column)] : 0.0F, 1e-6);
      }
    }
  }
}

TEST(Gradient, RouterScoresAndTheirLoss) {
  for (const bool sigmoids : {false, true}) {
    const RouterShape s{3, 6, sigmoids, 0.2F};
    const Vector x = random_vector(18, 1), r = random_vector(18, 2);
    Vector scores(18), d(18);
    router_scores(s, x.data(), scores.data());
    router_scores_grad(s, x.data(), scores.data(), r.data(), d.data());
    expect_gradient(x, d, [&](const Vector& v) {
      Vector y(18);
      router_scores(s, v.data(), y.data());
      double z = 0;
      for (Index t = 0; t < 3; ++t) {
        double sum = 0;
        for (Index e = 0; e < 6; ++e)
          sum += std::exp(static_cast<double>(v[static_cast<std::size_t>(t * 6 + e)]));
        z += 0.2 * std::log(sum) * std::log(sum);
      }
      return dot(y, r) + z;
    });
  }
}

// Scores that are far enough apart for differences to choose the same experts.
Vector separate_scores(Index n) {
  Vector v(static_cast<std::size_t>(n));
  for (Index i = 0; i < n; ++i) v[static_cast<std::size_t>(i)] = 0.1F + static_cast<float>(i * 37 % n) / 5.0F;
  return v;
}

TEST(Gradient, WeightsOfChosenExperts) {
  for (const bool normalised : {false, true}) {
    const RouteShape s{.tokens = 4,
                       .seq = 2,
                       .samples = 2,
                       .experts = 6,
                       .top_k = 2,
                       .groups = 3,
                       .top_groups = 2,
                       .capacity = 4,
                       .normalised = normalised,
                       .scale = 1.7F};
    const Vector scores = separate_scores(24), r = random_vector(8, 2);
    const auto weights_of = [&](const Vector& v, std::vector<std::int32_t>& choice) {
      Vector weights(8), load(12);
      std::vector<std::int32_t> counts(6);
      route(s, v.data(), nullptr, weights.data(), choice.data(), counts.data(), load.data());
      return weights;
    };
    std::vector<std::int32_t> choice(16);
    weights_of(scores, choice);
    Vector d(24);
    route_grad(s, scores.data(), choice.data(), r.data(), d.data());
    expect_gradient(scores, d, [&](const Vector& v) {
      std::vector<std::int32_t> same(16);
      return dot(weights_of(v, same), r);
    });
  }
}

// Six tokens choose two of four experts, an expert takes three: the arithmetic is in the arrays.
TEST(Route, RowsStandByExpertAndWhatIsTooMuchIsDroppedAndSaid) {
  const RouteShape s{
      .tokens = 6, .seq = 3, .samples = 2, .experts = 4, .top_k = 2, .capacity = 3, .normalised = false};
  const Vector scores{.9F, .8F, .1F, .0F, .9F, .1F, .8F, .0F, .8F, .9F, .0F, .1F,
                      .9F, .0F, .1F, .8F, .1F, .0F, .9F, .8F, .9F, .8F, .7F, .7F};
  Vector weights(12), load(8);
  std::vector<std::int32_t> choice(24), counts(4);
  route(s, scores.data(), nullptr, weights.data(), choice.data(), counts.data(), load.data());
  // Expert 0 is chosen by tokens 0, 1, 2, 3 and 5: the last two are dropped. Rows 0-2 are its, 3-5 expert 1's
  // (tokens 0, 2, 5), 6-7 expert 2's (1, 4), 8-9 expert 3's (3, 4).
  EXPECT_EQ(counts, (std::vector<std::int32_t>{3, 3, 2, 2}));
  EXPECT_EQ(load, (Vector{3, 2, 1, 0, 2, 1, 1, 2}));
  EXPECT_EQ(choice, (std::vector<std::int32_t>{0, 1, 0,  3, 0, 2, 1, 6, 1, 0, 4,  2,
                                               0, 3, -1, 8, 2, 3, 7, 9, 0, 1, -1, 5}));
  EXPECT_EQ(weights, (Vector{.9F, .8F, .9F, .8F, .9F, .8F, .9F, .8F, .9F, .8F, .9F, .8F}));

  // A token's rows come back to it, and a dropped one is nothing.
  const PermuteShape p{6, 2, 2};
  const Vector x = random_vector(12, 1);
  Vector y(24), row_weights(12), back(12);
  permute(p, x.data(), weights.data(), choice.data(), y.data(), row_weights.data());
  unpermute(p, y.data(), choice.data(), back.data());
  for (std::size_t i = 0; i < 12; ++i)
    EXPECT_EQ(back[i], (i / 2 == 3 || i / 2 == 5 ? 1.0F : 2.0F) * x[i]) << i;
}

// A run that diverged does not write where it should not.
TEST(Route, ScoresThatAreNoNumbersHaveExpertsToo) {
  const RouteShape s{.tokens = 2,
                     .seq = 2,
                     .samples = 1,
                     .experts = 4,
                     .top_k = 2,
                     .groups = 2,
                     .top_groups = 1,
                     .capacity = 2};
  const Vector scores{NAN, NAN, NAN, NAN, .1F, NAN, .2F, NAN};
  Vector weights(4), load(4);
  std::vector<std::int32_t> choice(8), counts(4);
  route(s, scores.data(), nullptr, weights.data(), choice.data(), counts.data(), load.data());
  EXPECT_EQ(choice, (std::vector<std::int32_t>{0, 1, 0, 1, 2, 3, 2, 3}));
  EXPECT_EQ(counts, (std::vector<std::int32_t>{1, 1, 1, 1}));
}

TEST(Route, OnlyTheBestGroupsAreChosenFrom) {
  // The best expert stands in group 0, the next two in group 1, the fourth in group 2.
  const Vector scores{.9F, .0F, .7F, .8F, .6F, .1F};
  const auto chosen = [&](Index groups, Index top_groups) {
    const RouteShape s{.tokens = 1,
                       .seq = 1,
                       .samples = 1,
                       .experts = 6,
                       .top_k = 2,
                       .groups = groups,
                       .top_groups = top_groups,
                       .capacity = 1};
    Vector weights(2), load(6);
    std::vector<std::int32_t> choice(4), counts(6);
    route(s, scores.data(), nullptr, weights.data(), choice.data(), counts.data(), load.data());
    EXPECT_NEAR(weights[0] + weights[1], 1, 1e-6);
    return std::pair(choice[0], choice[1]);
  };
  EXPECT_EQ(chosen(1, 1), std::pair(0, 3));
  EXPECT_EQ(chosen(3, 1), std::pair(0, 1));
  EXPECT_EQ(chosen(3, 2), std::pair(0, 3));
}

TEST(Gradient, BalanceLoss) {
  for (const bool normalises : {false, true}) {
    const BalanceShape s{4, 2, 3, 2, normalises, 0.5F};
    const Vector scores = separate_scores(12), load{2, 1, 1, 0, 2, 2};
    Vector d(12);
    balance_grad(s, scores.data(), load.data(), d.data());
    expect_gradient(scores, d, [&](const Vector& v) {
      double total = 0;
      for (std::size_t t = 0; t < 4; ++t) {
        double sum = 1;
        if (normalises) sum = static_cast<double>(v[t * 3]) + v[t * 3 + 1] + v[t * 3 + 2];
        for (std::size_t e = 0; e < 3; ++e)
          total += 0.5 * 3 * load[t / 2 * 3 + e] / (2 * 2) * v[t * 3 + e] / sum;
      }
      return total;
    });
  }
}

TEST(Gradient, ExpertsOfUnequalRows) {
  const std::vector<std::int32_t> counts{3, 0, 2};
  const GroupedGemm g{4, 6, 3};
  const Vector x = random_vector(30, 1), w = random_vector(72, 2), r = random_vector(20, 3);
  const auto loss = [&](const Vector& xx, const Vector& ww) {
    Vector u(20);
    grouped_gemm(g, xx.data(), ww.data(), counts.data(), u.data());
    return dot(u, r);
  };
  Vector dx(30), dw(72, 7.0F);
  grouped_gemm_dx(g, r.data(), w.data(), counts.data(), dx.data());
  grouped_gemm_dw(g, r.data(), x.data(), counts.data(), dw.data());
  expect_gradient(x, dx, [&](const Vector& v) { return loss(v, w); });
  expect_gradient(w, dw, [&](const Vector& v) { return loss(x, v); });  // zero for the expert without rows
}

TEST(Gradient, WeightedActivationsOfExperts) {
  for (const auto& [act, weighs_inputs] :
       {std::pair{Act::kGelu, false}, {Act::kSwiglu, false}, {Act::kGelu, true}, {Act::kSwiglu, true}}) {
    const std::size_t columns = is_gated(act) ? 8 : 4;
    const Vector u = random_vector(3 * columns, 1), weights = random_vector(3, 2), r = random_vector(12, 3);
    Vector du(u.size()), dw(3);
    expert_activation_grad(3, 4, act, weighs_inputs, u.data(), weights.data(), r.data(), du.data(),
                           dw.data());
    const auto loss = [&, of = act, inputs = weighs_inputs](const Vector& uu, const Vector& ww) {
      Vector v(12);
      expert_activation(3, 4, of, inputs, uu.data(), ww.data(), v.data());
      return dot(v, r);
    };
    // The kernels that run say the same.
    Vector fast_du(du.size()), fast_dw(3), given(12), fast_given(12);
    kernels::expert_activation_grad(3, 4, act, weighs_inputs, u.data(), weights.data(), r.data(),
                                    fast_du.data(), fast_dw.data());
    kernels::expert_activation(3, 4, act, weighs_inputs, u.data(), weights.data(), fast_given.data());
    expert_activation(3, 4, act, weighs_inputs, u.data(), weights.data(), given.data());
    for (std::size_t i = 0; i < du.size(); ++i) EXPECT_NEAR(fast_du[i], du[i], 1e-5);
    for (std::size_t i = 0; i < dw.size(); ++i) EXPECT_NEAR(fast_dw[i], dw[i], 1e-5);
    for (std::size_t i = 0; i < given.size(); ++i) EXPECT_NEAR(fast_given[i], given[i], 1e-5);
    expect_gradient(u, du, [&](const Vector& v) { return loss(v, weights); });
    expect_gradient(weights, dw, [&](const Vector& v) { return loss(u, v); });
  }
}

// Rows of three experts in two parts, one of which has room to spare: with a weight for each row the bias is
// a share of a row's columns.
TEST(Gradient, BiasesOfExperts) {
  const std::vector<std::int32_t> counts{2, 0, 1, 1, 2, 0};
  for (const bool weighted : {false, true}) {
    const ExpertBiasShape s{.columns = weighted ? 6 : 4,
                            .first = weighted ? 2 : 0,
                            .width = 4,
                            .experts = 3,
                            .parts = 2,
                            .room = 4};
    const Vector y = random_vector(static_cast<std::size_t>(8 * s.columns), 1), bias = random_vector(12, 2),
                 weights = random_vector(8, 3), r = random_vector(y.size(), 4);
    const auto loss = [&](const Vector& of_bias, const Vector& of_rows) {
      Vector out = y;
      expert_bias(s, of_bias.data(), counts.data(), weighted ? of_rows.data() : nullptr, out.data());
      return dot(out, r);
    };
    Vector d_bias(12, 5.0F), d_weights(8);
    expert_bias_grad(s, r.data(), bias.data(), counts.data(), weighted ? weights.data() : nullptr,
                     d_bias.data(), d_weights.data(), false);
    expect_gradient(bias, d_bias, [&](const Vector& v) { return loss(v, weights); });
    if (weighted) expect_gradient(weights, d_weights, [&](const Vector& v) { return loss(bias, v); });
  }
}

// Attention, and then the share that each head's learned score takes: the gradient of attention follows from
// what it has become.
TEST(Gradient, AttentionWithSinks) {
  for (const Index window : {0, 3}) {
    const AttentionShape s{.batch = 2, .seq = 5, .heads = 4, .kv = 2, .head = 4, .window = window};
    const SinkShape sink{2, 5, 4, 4};
    const Vector qkv = random_vector(static_cast<std::size_t>(2 * 5 * s.width()), 1),
                 sinks = random_vector(4, 2), r = random_vector(2 * 5 * 16, 3);
    Vector out(r.size()), lse(2 * 4 * 5);
    const auto run = [&](const Vector& x, const Vector& of_sinks) {
      attention(s, x.data(), out.data(), lse.data(), nullptr);
      attention_sink(sink, of_sinks.data(), out.data(), lse.data());
      return dot(out, r);
    };
    run(qkv, sinks);
    Vector d_qkv(qkv.size()), d_sinks(4, 3.0F);
    attention_grad(s, qkv.data(), out.data(), lse.data(), nullptr, r.data(), d_qkv.data());
    attention_sink_grad(sink, sinks.data(), out.data(), lse.data(), r.data(), d_sinks.data(), false);
    expect_gradient(qkv, d_qkv, [&](const Vector& v) { return run(v, sinks); });
    expect_gradient(sinks, d_sinks, [&](const Vector& v) { return run(qkv, v); });
  }
  // A token that sees itself alone, whose score is 0, beside a score of ln 3: a quarter of its value is left.
  const SinkShape one{1, 1, 1, 2};
  const float sink = std::log(3.0F);
  Vector out{8, 4}, lse{0};
  attention_sink(one, &sink, out.data(), lse.data());
  EXPECT_NEAR(out[0], 2, 1e-6);
  EXPECT_NEAR(out[1], 1, 1e-6);
  EXPECT_NEAR(lse[0], std::log(4.0F), 1e-6);
}

TEST(Gradient, GateOfRows) {
  const Vector y = random_vector(12, 1), logits = random_vector(3, 2), r = random_vector(12, 3);
  Vector dy(12), dl(3);
  gate_grad(3, 4, y.data(), logits.data(), r.data(), dy.data(), dl.data());
  const auto loss = [&](const Vector& yy, const Vector& ll) {
    Vector o(12);
    gate(3, 4, yy.data(), ll.data(), o.data());
    return dot(o, r);
  };
  expect_gradient(y, dy, [&](const Vector& v) { return loss(v, logits); });
  expect_gradient(logits, dl, [&](const Vector& v) { return loss(y, v); });
}

// Values narrower and wider than keys.
TEST(Gradient, AttentionOfOtherValues) {
  for (int i = 0; i < 4; ++i) {
    AttentionShape s{2, 5, 4, 2, 4, i % 2 == 1};
    s.value = i < 2 ? 3 : 6;
    expect_attention_gradient(s);
  }
}

TEST(Gradient, PackOfLatentAttention) {
  const LatentShape s{3, 2, 2, 3, 4};
  const Vector q = random_vector(30, 1), kv = random_vector(42, 2), turned = random_vector(6, 3),
               r = random_vector(84, 4);
  const auto loss = [&](const Vector& qq, const Vector& kk, const Vector& tt) {
    Vector y(84);
    latent_pack(s, qq.data(), kk.data(), tt.data(), y.data());
    return dot(y, r);
  };
  Vector dq(30), dkv(42), dr(6);
  latent_pack_grad(s, r.data(), dq.data(), dkv.data(), dr.data());
  expect_gradient(q, dq, [&](const Vector& v) { return loss(v, kv, turned); });
  expect_gradient(kv, dkv, [&](const Vector& v) { return loss(q, v, turned); });
  expect_gradient(turned, dr, [&](const Vector& v) { return loss(q, kv, v); });
}

TEST(Gradient, RopeIsARotation) {
  const Vector x = random_vector(6 * 16, 3);
  Vector y = x;
  const RotaryTables tables = rotary_tables({}, 4, 3);
  rope({6, 16, 3, 4, 3, 4, false}, tables.cosine.data(), tables.sine.data(), y.data());
  EXPECT_NEAR(dot(x, x), dot(y, y), 1e-4);
  EXPECT_NE(x, y);
  rope({6, 16, 3, 4, 3, 4, true}, tables.cosine.data(), tables.sine.data(), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-6);
}

TEST(Gemm, AllLayoutsAgree) {
  const Index m = 3, n = 4, k = 5;
  const Vector a = random_vector(15, 1), b = random_vector(20, 2);
  Vector at(15), bt(20), expected(12), c(12);
  for (Index i = 0; i < m; ++i)
    for (Index l = 0; l < k; ++l)
      at[static_cast<std::size_t>(l * m + i)] = a[static_cast<std::size_t>(i * k + l)];
  for (Index l = 0; l < k; ++l)
    for (Index j = 0; j < n; ++j)
      bt[static_cast<std::size_t>(j * k + l)] = b[static_cast<std::size_t>(l * n + j)];
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) {
      double sum = 0;
      for (Index l = 0; l < k; ++l)
        sum += static_cast<double>(a[static_cast<std::size_t>(i * k + l)]) *
               b[static_cast<std::size_t>(l * n + j)];
      expected[static_cast<std::size_t>(i * n + j)] = static_cast<float>(sum);
    }
  }
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      gemm({m, n, k, ta, tb, false}, ta ? at.data() : a.data(), tb ? bt.data() : b.data(), nullptr, c.data());
      for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(c[i], expected[i], 1e-5);
    }
  }
}

}  // namespace
}  // namespace orrery::kernels::reference
