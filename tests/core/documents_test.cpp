// SPDX-License-Identifier: Apache-2.0
//
// Documents that sequences are packed from: closed forms of what a token sees, and draws that come to them.
#include "core/documents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/scenario.h"

namespace orrery {
namespace {

DocumentLengths fixed(std::int64_t tokens) {
  return DocumentLengths({FixedLength{tokens}});
}
DocumentLengths lognormal(double mean, double spread) {
  return DocumentLengths({LognormalLength{mean, spread}});
}

// With x = L / S <= 1: seen = S L / 2 - L^2 / 6 of S^2 / 2, which is x - x^2 / 3. A sequence as long as its
// documents begins inside of one, and sees two thirds of what it saw; for longer ones, L >= S,
// integral of (S - a) (L - a) / L da = S^2 / 2 - S^3 / (6 L): 1 - 1 / (3 x).
TEST(Documents, OfOneLengthShowWhatTheClosedFormSays) {
  for (const double x : {1.0 / 64, 0.25, 0.5, 1.0})
    EXPECT_NEAR(fixed(static_cast<std::int64_t>(x * 65536)).share_seen(65536, 0), x - x * x / 3, 1e-4) << x;
  for (const double x : {2.0, 16.0})
    EXPECT_NEAR(fixed(static_cast<std::int64_t>(x * 65536)).share_seen(65536, 0), 1 - 1 / (3 * x), 1e-4) << x;
}

// A window of w <= L: integral from 0 to w of (S - a) (1 - a / L) over that of (S - a). With S = 1000,
// L = 100, w = 50: S w - (1 + S / L) w^2 / 2 + w^3 / (3 L) = 50000 - 13750 + 416.67 = 36666.67, and
// S w - w^2 / 2 = 48750.
TEST(Documents, AWindowHidesWhatOtherDocumentsHave) {
  EXPECT_NEAR(fixed(100).share_seen(1000, 50), 36666.67 / 48750, 1e-4);
  EXPECT_NEAR(fixed(100).share_seen(1000, 1000), fixed(100).share_seen(1000, 0), 1e-12);
}

// E[(L - a)+] of lengths 2, 4 and 12: at a = 3 it is (1 + 9) / 3, at 0 the mean 6. Log-normal ones have less
// beyond their mean than a spread of nothing at 0, and more at the mean.
TEST(Documents, WhatIsBeyondAnAge) {
  const DocumentLengths recorded({RecordedLengths{{12, 2, 4}}});
  EXPECT_DOUBLE_EQ(recorded.mean(), 6);
  EXPECT_DOUBLE_EQ(recorded.beyond(0), 6);
  EXPECT_DOUBLE_EQ(recorded.beyond(3), 10.0 / 3);
  EXPECT_DOUBLE_EQ(recorded.beyond(12), 0);
  EXPECT_DOUBLE_EQ(lognormal(100, 0).beyond(60), 40);
  // Log-variance ln 2, sqrt v = 0.8326, d = sqrt v / 2: 100 (2 N(0.4163) - 1) = 100 erf(0.4163 / sqrt 2).
  EXPECT_NEAR(lognormal(100, 1).beyond(100), 100 * std::erf(std::sqrt(std::log(2.0)) / 2 / std::sqrt(2.0)),
              1e-9);
}

// The share of pairs that drawn sequences have is that of the closed form; documents follow each other.
TEST(Documents, DrawsShowWhatTheClosedFormSays) {
  constexpr std::int64_t kSequence = 4096;
  constexpr int kDraws = 2000;
  for (const DocumentLengths& lengths : {fixed(300), lognormal(400, 1), lognormal(400, 3),
                                         DocumentLengths({RecordedLengths{{64, 640, 6400}}})}) {
    std::vector<std::int32_t> first(kSequence);
    double pairs = 0;
    for (int i = 0; i < kDraws; ++i) {
      lengths.draw(11, static_cast<std::uint64_t>(i), first);
      ASSERT_EQ(first.front(), 0);
      for (std::int64_t t = 0; t < kSequence; ++t) {
        const auto at = static_cast<std::size_t>(t);
        ASSERT_LE(first[at], t);
        ASSERT_TRUE(first[at] == t || first[at] == first[at - 1]);
        pairs += static_cast<double>(t - first[at]) + 0.5;
      }
    }
    const double share = pairs / kDraws / (0.5 * kSequence * kSequence);
    EXPECT_NEAR(share / lengths.share_seen(kSequence, 0), 1, 0.03) << lengths.mean();
  }
}

TEST(Documents, ADrawIsAFunctionOfItsNumber) {
  std::vector<std::int32_t> a(512), b(512), c(512);
  lognormal(40, 1).draw(3, 7, a);
  lognormal(40, 1).draw(3, 7, b);
  lognormal(40, 1).draw(3, 8, c);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST(Documents, ModelFlopsCountPairsOfOneDocument) {
  const Model m = preset_model("llama-3.1-8b");
  Training t{.global_batch = 1, .sequence = 131072};
  const double all = model_flops_per_sequence(m, t, AttentionFlops::kFull).value;
  t.documents = {FixedLength{8192}};
  // 32 layers of 12 s^2 4096 FLOPs, of which 1 - (1/16 - 1/768) are of pairs in two documents.
  const double core = 32 * 12.0 * 131072 * 131072 * 4096;
  EXPECT_NEAR((all - model_flops_per_sequence(m, t, AttentionFlops::kFull).value) / core,
              1 - (1.0 / 16 - 1.0 / 768), 1e-4);
}

TEST(Documents, AreOfModelsWhoseTokensSeeThoseBeforeThem) {
  const Cursor at{"scenario.json", "/training/documents"};
  const Documents documents{FixedLength{64}};
  EXPECT_NO_THROW(check_documents(preset_model("llama-3.1-8b"), documents, 8192, at));
  EXPECT_NO_THROW(check_documents(preset_model("deepseek-v3-671b"), documents, 8192, at));
  Model sees_all = preset_model("tiny-llama"), patches = sees_all;
  sees_all.causal = false;
  EXPECT_NO_THROW(check_documents(preset_model("llama-4-scout-109b"), documents, 8192, at));
  EXPECT_THROW(check_documents(preset_model("llama-4-scout-109b"), documents, 16384, at), InputError);
  EXPECT_THROW(check_documents(sees_all, documents, 8192, at), InputError);
  patches.inputs = {{PatchInput{.image = 8, .patch = 2, .channels = 2}}};
  EXPECT_THROW(check_documents(preset_model("llama-3.1-8b"), {RecordedLengths{}}, 8192, at), InputError);
  EXPECT_THROW(check_documents(patches, documents, 8192, at), InputError);
}

}  // namespace
}  // namespace orrery
