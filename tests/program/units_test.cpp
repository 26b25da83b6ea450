// SPDX-License-Identifier: Apache-2.0
//
// Gradient buckets: how many bytes start a reduction, and what a program reduces.
#include "program/state/units.h"

#include <gtest/gtest.h>

#include "program/program.h"

namespace orrery::program {
namespace {

// A stack gives bytes; a bucket is full at so many elements of the gradient's size, rounded up.
TEST(Bucket, IsBytesOfGradients) {
  Stack s;
  s.bucket = Bytes{1001};
  EXPECT_EQ(bucket_elements({.precision = Precision::kMixed}, s), 501);     // 2 bytes each
  EXPECT_EQ(bucket_elements({.precision = Precision::kMegatron}, s), 251);  // 4 bytes each
  EXPECT_EQ(bucket_elements({.precision = Precision::kFp32}, s), 251);
  s.bucket = Bytes{1000};
  EXPECT_EQ(bucket_elements({.precision = Precision::kMixed}, s), 500);
  EXPECT_EQ(bucket_elements({.precision = Precision::kMegatron}, s), 250);
}

TEST(Bucket, AUnitTakesBlocksUntilItIsFull) {
  UnitPacker packer(100);
  EXPECT_EQ(packer.add(60, false, false), 0);
  EXPECT_EQ(packer.add(39, false, false), 0);
  EXPECT_EQ(packer.add(1, false, false), 0);  // 100: full
  EXPECT_EQ(packer.add(250, false, false), 1);
  EXPECT_EQ(packer.add(10, false, false), 2);
  EXPECT_EQ(packer.add(10, true, false), 3);  // alone
  EXPECT_EQ(packer.add(10, false, false), 4);
}

// Experts fill units of their own, between those that others fill.
TEST(Bucket, ExpertsHaveUnitsOfTheirOwn) {
  UnitPacker packer(100);
  EXPECT_EQ(packer.add(60, false, false), 0);
  EXPECT_EQ(packer.add(70, false, true), 1);
  EXPECT_EQ(packer.add(40, false, false), 0);  // 100: full
  EXPECT_EQ(packer.add(30, false, true), 1);   // 100: full
  EXPECT_EQ(packer.add(10, false, true), 2);
  EXPECT_EQ(packer.add(10, false, false), 3);
  EXPECT_EQ(packer.add(10, true, false), 4);  // alone, beside experts that have room
  EXPECT_EQ(packer.add(10, false, true), 2);
}

// A tiny GPT of 32 columns: 4 h^2 + 8 h^2 weights, 9 h biases of products (3 + 1 + 4 + 1) and 4 h of norms
// make 12,704 elements a layer. Buckets of 100 kB of 4-byte gradients are 25,000 elements: two layers,
// 25,408. The reductions run from the last layer to the first; the tied embedding, which is complete last,
// is alone.
TEST(Bucket, AreWhatAProgramReduces) {
  Model m = preset_model("tiny-gpt");
  m.hidden = 32;
  m.heads = 4;
  m.ffn_hidden = 128;
  m.layers = 6;
  m.vocab = 64;
  m.max_positions = 16;
  ASSERT_EQ(count_parameters(m, depth_of(m).kinds[0]), 12704);
  const Plan plan{.dp = 2};
  Stack s;
  const auto reduced = [&](std::int64_t bucket_bytes, Precision precision, Math math) {
    s.bucket = Bytes{bucket_bytes};
    const Training t{.global_batch = 2, .sequence = 16, .precision = precision, .math = math};
    std::vector<std::int64_t> elements;
    const Program program = compile(m, plan, t, s);
    for (const Segment& segment : program.classes[0].segments) {
      for (const Op& op : segment.ops) {
        if (op.is<ops::Collective>() && op.name.starts_with("unit")) elements.push_back(elements_of(op.kind));
      }
    }
    return elements;
  };
  // Final norm 64 and the layers, then positions 512, then the embedding 2,048.
  EXPECT_EQ(reduced(100'000, Precision::kFp32, Math::kFp32),
            (std::vector<std::int64_t>{64 + 2 * 12704, 2 * 12704, 2 * 12704, 512, 2048}));
  EXPECT_EQ(reduced(100'000, Precision::kMixed, Math::kBf16),
            (std::vector<std::int64_t>{64 + 4 * 12704, 2 * 12704 + 512, 2048}));
}

}  // namespace
}  // namespace orrery::program
