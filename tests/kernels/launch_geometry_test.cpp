// SPDX-License-Identifier: Apache-2.0
//
// How work is cut into blocks and threads, and the plan cache of matrix products: what needs no device.
#include <gtest/gtest.h>

#include <array>

#include "exec/cuda/cuda_ops.h"
#include "kernels/cuda/columns.h"
#include "kernels/cuda/launch.h"
#include "tests/exec/small_model.h"
#include "tests/kernels/device_memory.h"

namespace orrery::kernels::cuda {
namespace {

TEST(LaunchGeometry, BlocksCoverEverythingAndNoMore) {
  for (std::int64_t n = 0; n < 3000; ++n) {
    for (const std::int64_t each : {1, 32, 256, 1000}) {
      EXPECT_GE(cover(n, each) * each, n);
      EXPECT_LT((cover(n, each) - 1) * each, n);
    }
  }
}

TEST(LaunchGeometry, RowsGetWholeWarpsAndStridedKernelsAFewThousandBlocks) {
  EXPECT_EQ(threads_for(1), 32);
  EXPECT_EQ(threads_for(33), 64);
  EXPECT_EQ(threads_for(768 / 8), 96);
  EXPECT_EQ(threads_for(50304, 1024), 1024);
  EXPECT_EQ(strided_blocks(0, 256), 1);
  EXPECT_EQ(strided_blocks(257, 256), 2);
  EXPECT_EQ(strided_blocks(std::int64_t{1} << 40, 256), 8192);  // the rest by striding
}

// Partial sums stay small beside what they are sums of, and there are enough of them to fill a device.
TEST(LaunchGeometry, PartsOfColumnSums) {
  for (const std::int64_t width : {64, 768, 1600, 4096, 12288, 16384}) {
    EXPECT_EQ(parts_of(5, width), 5);
    const std::int64_t parts = parts_of(1 << 20, width);
    EXPECT_GE(parts, 128);
    EXPECT_LE(parts * width, std::max<std::int64_t>(1 << 20, 128 * width));
  }
}

TEST(LaunchGeometry, VectorsNeedWholeRowsAndAlignedPointers) {
  alignas(16) std::array<std::byte, 64> bytes{};
  EXPECT_TRUE(takes_vectors<float>(4, {bytes.data(), bytes.data() + 16, nullptr}));
  EXPECT_FALSE(takes_vectors<float>(6, {bytes.data()}));
  EXPECT_FALSE(takes_vectors<float>(4, {bytes.data() + 4}));
  EXPECT_TRUE(takes_vectors<BFloat16>(8, {bytes.data()}));
  EXPECT_FALSE(takes_vectors<BFloat16>(4, {bytes.data()}));
}

// A key says all that a product's algorithm depends on: products that differ in it have plans of their own,
// and all others share one.
TEST(PlanCache, OnePlanForEachShapeOfAProgram) {
  const Training training{.global_batch = kBatch, .sequence = 8, .math = Math::kBf16};
  const auto program = program::compile(tiny("tiny-gpt"), plan(1, 1, 1, 0), training, stack());
  const program::RankClass& rank = program.classes[0];
  std::vector<GemmShape> shapes;
  for (const program::Segment& segment : rank.segments) {
    for (const program::Op& op : segment.ops) {
      for (const GemmShape& shape : exec::cuda::gemm_shapes(op, rank, training)) shapes.push_back(shape);
    }
  }
  TestDevice device;
  const Gemms gemms(device.stream, shapes, 1 << 20);
  // Four products in each of four layers, and the head; forward, and twice backward (a segment of its own for
  // the last micro-batch) with an input and a weight gradient each. A plan for each of (4 + 1) x 3.
  EXPECT_EQ(shapes.size(), 17U + 2 * 2 * 17U);
  EXPECT_EQ(gemms.plans(), 15U);

  const GemmShape shape{.m = 16, .n = 8, .k = 4};
  for (GemmShape other :
       {GemmShape{.m = 17, .n = 8, .k = 4}, GemmShape{.m = 16, .n = 8, .k = 4, .transpose_a = true},
        GemmShape{.m = 16, .n = 8, .k = 4, .bias = true}, GemmShape{.m = 16, .n = 8, .k = 4, .tf32 = true},
        GemmShape{.m = 16, .n = 8, .k = 4, .epilogue = Epilogue::kGelu},
        GemmShape{.m = 16, .n = 8, .k = 4, .result = DType::kBfloat16},
        GemmShape{.m = 16, .n = 8, .k = 4, .lda = 5}, GemmShape{.m = 16, .n = 8, .k = 4, .ldb = 9},
        GemmShape{.m = 16, .n = 8, .k = 4, .ldc = 9}, GemmShape{.m = 16, .n = 8, .k = 4, .alpha = 2}})
    EXPECT_NE(shape, other);
  Gemms one(device.stream, std::array{shape}, 1 << 20);
  EXPECT_THROW(one.run(device.stream, {.m = 17, .n = 8, .k = 4}, {}), Error);
}

}  // namespace
}  // namespace orrery::kernels::cuda
