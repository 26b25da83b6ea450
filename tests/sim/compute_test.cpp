// SPDX-License-Identifier: Apache-2.0
#include "sim/compute/compute.h"

#include <gtest/gtest.h>

#include "core/scenario.h"

namespace orrery::sim {
namespace {

Device ideal() {
  Device d;
  d.units = 100;
  d.half = FlopRate{100e12};
  d.fp32 = FlopRate{10e12};
  d.memory_bandwidth = Bandwidth{1'000'000'000'000};
  d.gemm = {
      .efficiency = 1, .k_overhead = 0, .wave_smoothing = 0, .memory_efficiency = 1, .latency = Time{0}};
  return d;
}

// 100 tiles of 256 x 128 on 100 units are one wave; one more row of tiles is a second one.
TEST(Gemm, WavesAreQuantised) {
  const Device d = ideal();
  const double one = gemm_seconds(d, Math::kBf16, 25600, 128, 4096, 2);
  EXPECT_NEAR(one, 2.0 * 25600 * 128 * 4096 / 100e12, 1e-12);
  EXPECT_GT(gemm_seconds(d, Math::kBf16, 25856, 128, 4096, 2), 1.1 * one);  // 1 % more rows
}

TEST(Gemm, ThinProductsAreBoundByMemory) {
  const Device d = ideal();
  const double t = gemm_seconds(d, Math::kBf16, 8, 8192, 8192, 2);
  EXPECT_GE(t, 2.0 * 8192 * 8192 / 1e12);
}

// 25600 x 128 x 4096 are 26.8 GFLOP, 0.268 ms of 100 TFLOP/s, and (25600 x 4096 + 4096 x 128 + 25600 x 128) x
// 2 = 217 MB, 0.217 ms of 1 TB/s: beside each other 0.268 ms, half exposed 0.377 ms, one after the other
// 0.486 ms.
TEST(Gemm, MemoryThatArithmeticDoesNotHideAddsUp) {
  Device d = ideal();
  const double arithmetic = 2.0 * 25600 * 128 * 4096 / 100e12;
  const double memory = (25600.0 * 4096 + 4096 * 128 + 25600 * 128) * 2 / 1e12;
  for (const double exposed : {0.0, 0.5, 1.0}) {
    d.gemm.exposed_memory = exposed;
    EXPECT_NEAR(gemm_seconds(d, Math::kBf16, 25600, 128, 4096, 2), arithmetic + exposed * memory, 1e-12);
  }
}

TEST(Gemm, TwiceThePeakAndBandwidthHalveTheTime) {
  Device d = ideal();
  const double once = gemm_seconds(d, Math::kBf16, 3000, 5000, 700, 2);
  d.half.value *= 2;
  d.memory_bandwidth = d.memory_bandwidth * 2;
  EXPECT_NEAR(gemm_seconds(d, Math::kBf16, 3000, 5000, 700, 2), once / 2, 1e-15);
}

// 4096^3 in bf16 has 137 GFLOP and 100 MB: 0.44 ms of an A100's 312 TFLOP/s, 0.05 ms of its memory. 16 rows
// of it have 0.54 GFLOP and 34 MB: 1.7 us against 16 us.
TEST(Gemm, WhatLimitsAProduct) {
  const Device d = load_device("a100-80gb", {}, DataFolders{});
  const auto bound = [&](std::int64_t m) {
    program::Op op;
    op.kind = program::ops::Gemm{m, 4096, 4096};
    op.flops = 2.0 * static_cast<double>(m) * 4096 * 4096;
    op.traffic = Bytes{2 * (2 * m * 4096 + 4096 * 4096)};
    return bound_of(d, Math::kBf16, op);
  };
  EXPECT_EQ(bound(4096), Bound::kCompute);
  EXPECT_EQ(bound(16), Bound::kMemory);
  program::Op sum;
  sum.kind = program::ops::Collective{};
  EXPECT_EQ(bound_of(d, Math::kBf16, sum), Bound::kCommunication);
}

// The matrix beside the result costs its bytes: [4096, 16384] of two bytes, 0.134 GB.
TEST(Gemm, AnEpilogueCostsWhatItReadsOrWrites) {
  Device d = ideal();
  program::Op op;
  program::ops::Gemm product{4096, 16384, 4096};
  op.kind = product;
  const double plain = seconds(compute_time(d, Math::kBf16, 2, op));
  product.epilogue = program::ops::Gemm::Epilogue::kGelu;
  op.kind = product;
  const double more =
      4096.0 * 16384 * 2 / (static_cast<double>(d.memory_bandwidth.value) * d.gemm.memory_efficiency);
  EXPECT_NEAR(seconds(compute_time(d, Math::kBf16, 2, op)) - plain, more / d.sustained, 1e-3 * more);
}

// Bound by memory: a batch of one head and one query block of 128, whose 2 bytes an element cross at 0.8 of
// 1 TB/s. Forward reads queries, keys and values and writes the result; backward moves each twice. A head of
// 4 has so few FLOPs that they do not count.
TEST(Attention, ThatIsShortIsBoundByMemoryForwardAndTwiceThatBackward) {
  Device d = ideal();
  d.attention = {
      .efficiency = 1, .backward = 1, .sequence_overhead = 0, .wave_smoothing = 0, .small_head = 1};
  d.half = FlopRate{1e18};
  const AttentionWork forward{8, 128, 4, 2, 4, false};
  const double bytes = 2.0 * 8 * 128 * 4 * (2 * 4 + 2 * 2);
  const double latency = seconds(d.attention.latency);
  EXPECT_NEAR(attention_seconds(d, Math::kBf16, forward) - latency, bytes / 0.8e12, 1e-15);
  AttentionWork backward = forward;
  backward.backward = true;
  EXPECT_NEAR(attention_seconds(d, Math::kBf16, backward) - latency, 2 * bytes / 0.8e12, 1e-15);
}

// A stack that moves layers' operands twice and those of routing three times moves an optimizer's once, and
// the operands of a product once.
TEST(Passes, AreOfLayersAndOfRoutingApart) {
  namespace ops = program::ops;
  const ops::ElementBytes bytes = ops::element_bytes(Training{}, Stack{});
  const auto times = [&](const program::OpKind& kind) {
    return static_cast<double>(program::bytes_of(kind, bytes, {.pointwise = 2, .routing = 3})) /
           static_cast<double>(program::bytes_of(kind, bytes, {}));
  };
  ops::Residual residual{};
  residual.rows = 1024, residual.width = 1024;
  ops::Permute permute{};
  permute.tokens = 4096, permute.width = 1024, permute.top_k = 2, permute.rows = permute.even = 8192;
  ops::ZeroGrad clear{};
  clear.elements = 1 << 20, clear.element_bytes = 4;
  EXPECT_EQ(times(residual), 2);
  EXPECT_EQ(times(permute), 3);
  EXPECT_EQ(times(clear), 1);
  EXPECT_EQ(times(ops::Gemm{128, 128, 128}), 1);
}

// A product that sums bias gradients takes no longer than the product alone, measured or not; what was
// measured of itself counts.
TEST(Products, SumBiasGradientsFromWhatTheyReadAnyway) {
  namespace ops = program::ops;
  Device d = ideal();
  d.kernel_gap = Time{0};
  const auto time = [&](ops::Gemm::Epilogue epilogue) {
    program::Op op;
    op.kind = ops::Gemm{.m = 256, .n = 128, .k = 512, .epilogue = epilogue, .transpose_a = true};
    return compute_time(d, Math::kBf16, 2, op);
  };
  using enum ops::Gemm::Epilogue;
  EXPECT_EQ(time(kBiasGrad), time(kPlain));
  EXPECT_GT(time(kGelu), time(kPlain));
  d.measured.push_back({"gemm", {256, 128, 512, 0, 0, 1}, Time{12345}});
  EXPECT_EQ(time(kBiasGrad), Time{12345});
  d.measured.push_back({"gemm", {256, 128, 512, 3, 0, 1}, Time{12346}});
  EXPECT_EQ(time(kBiasGrad), Time{12346});
  EXPECT_EQ(time(kPlain), Time{12345});
}

// 64 sequences of 2,048 tokens, 16 heads of 128: the arithmetic of causal attention is 4 b a s^2 d / 2, at an
// efficiency of 1 of 100 TFLOP/s. FlashAttention-2 at half the rate takes twice as long, the first
// FlashAttention at a quarter four times.
TEST(Attention, OfOlderKernelsHasTheirRate) {
  Device d = ideal();
  d.attention = {.efficiency = 1,
                 .backward = 1,
                 .sequence_overhead = 0,
                 .wave_smoothing = 1,
                 .small_head = 1,
                 .flash_2 = 0.5,
                 .flash_1 = 0.25,
                 .latency = Time{0}};
  const AttentionWork work{64, 2048, 16, 16, 128, false};
  const double newest = 4.0 * 64 * 16 * 2048 * 2048 * 128 / 2 / 100e12;
  EXPECT_NEAR(attention_seconds(d, Math::kBf16, work), newest, 1e-9 * newest);
  EXPECT_NEAR(attention_seconds(d, Math::kBf16, work, AttentionKernels::kFlash2), 2 * newest, 1e-9 * newest);
  EXPECT_NEAR(attention_seconds(d, Math::kBf16, work, AttentionKernels::kFlash1), 4 * newest, 1e-9 * newest);
}

// Kernels compute whole 32s of a head: heads of 72 cost what heads of 96 do.
TEST(Attention, ComputesWhole32sOfAHead) {
  const Device d = load_device("h100-sxm", {}, DataFolders());
  const auto time = [&](std::int64_t head) {
    return attention_seconds(d, Math::kBf16, {8, 4096, 16, 16, head, false});
  };
  EXPECT_EQ(time(72), time(96));
  EXPECT_LT(time(64), time(72));
}

// Where scores are in memory, products of heads that are no multiple of 8 have a tenth of the rate: two
// products of [2048, 225] and [225, 2048], and back, are 4 * 2048^2 * 225 FLOPs.
TEST(Attention, OfOddHeadsThatIsNotFusedMissesTheTensorCores) {
  Device d = ideal();
  d.attention.odd_head = 0.1;
  d.memory_bandwidth = Bandwidth{1'000'000'000'000'000};
  program::Op op;
  const auto time = [&](std::int64_t head) {
    op.kind = program::ops::Attention{{1, 2048, 1, 1, head, program::ops::Scores::kSoftmax}};
    op.flops = program::flops_of(op.kind);
    return seconds(compute_time(d, Math::kBf16, 2, op) - d.kernel_gap);
  };
  EXPECT_NEAR(time(224), 4.0 * 2048 * 2048 * 224 / 100e12, 1e-9);
  EXPECT_NEAR(time(225), 4.0 * 2048 * 2048 * 225 / 10e12, 1e-9);
}

// H100: 8192^3 at 0.8593 of 1,979 TFLOP/s, and before it four kernels of 2.84 us that move 2 * 8192^2 * 5
// bytes at 0.85 of 3.35 TB/s, 236 us. Other ops of the step compute in bf16.
TEST(Gemm, InEightBitsIsTwiceAsFastAfterItsRounding) {
  const Device d = load_device("h100-sxm", {}, DataFolders());
  program::Op op;
  program::ops::Gemm product{8192, 8192, 8192};
  op.kind = product;
  constexpr double kN = 8192;
  op.flops = 2 * kN * kN * kN;
  op.traffic = Bytes{3 * 8192 * 8192 * 2};
  const double half = seconds(compute_time(d, Math::kBf16, 2, op));
  EXPECT_EQ(seconds(compute_time(d, Math::kFp8, 2, op)), half) << "a product of the head";
  product.format = program::ops::Gemm::Format::kRoundedValues;
  op.kind = product;
  const auto with_rounding = [&](double share) {
    const double bytes = 2 * kN * kN + 2 * kN * kN + share * 2 * kN * kN * 5;
    op.traffic = Bytes{static_cast<std::int64_t>(bytes)};
    return seconds(compute_time(d, Math::kFp8, 2, op));
  };
  const double rounding = 4 * 2.84e-6 + 2 * kN * kN * 5 / (0.85 * 3.35e12);
  EXPECT_NEAR(with_rounding(1) - with_rounding(0), rounding, 1e-9);
  EXPECT_NEAR(with_rounding(0.5) - with_rounding(0), rounding / 2, 1e-9);
  EXPECT_NEAR(with_rounding(0) / half, 0.5, 0.01);
  EXPECT_EQ(bound_of(d, Math::kFp8, op), Bound::kCompute);
}

// B200: 8192^3 in 4 bits at twice the rate of 8, and half a byte and a sixteenth of an element to read.
TEST(Gemm, InFourBitsIsTwiceAsFastAgain) {
  const Device d = load_device("b200", {}, DataFolders());
  const auto time = [&](Math m, std::int64_t n) { return gemm_seconds(d, m, n, n, n, 2); };
  EXPECT_EQ(peak(d, Math::kNvfp4).value, 2 * peak(d, Math::kMxfp8).value);
  EXPECT_EQ(time(Math::kMxfp8, 8192), time(Math::kFp8Blockwise, 8192));
  EXPECT_NEAR(time(Math::kNvfp4, 16384) / time(Math::kMxfp8, 16384), 0.5, 0.02);
  // With one row what is read decides: weights of 16384^2 elements.
  const double narrow = gemm_seconds(d, Math::kNvfp4, 1, 16384, 16384, 2),
               wide = gemm_seconds(d, Math::kMxfp8, 1, 16384, 16384, 2);
  EXPECT_NEAR((narrow - seconds(d.gemm.latency)) / (wide - seconds(d.gemm.latency)), 0.5625 / 1.03125, 0.02);
}

TEST(Peak, FormatsFallBackWhereTheDeviceHasNone) {
  Device d = ideal();
  EXPECT_EQ(peak(d, Math::kFp8).value, 100e12);
  EXPECT_EQ(peak(d, Math::kNvfp4).value, 100e12);
  EXPECT_EQ(peak(d, Math::kTf32).value, 10e12);
}

// A100: tensor peak 312 TFLOP/s bf16, 156 TF32, 19.5 on CUDA cores; ridge 312e12 / 2.039e12 = 153.
TEST(Profiles, A100IsTheDataSheet) {
  const Device d = load_device("a100-80gb", {}, DataFolders());
  EXPECT_EQ(peak(d, Math::kBf16).value, 312e12);
  EXPECT_EQ(peak(d, Math::kTf32).value, 156e12);
  EXPECT_EQ(peak(d, Math::kFp32).value, 19.5e12);
  EXPECT_NEAR(d.half.value / static_cast<double>(d.memory_bandwidth.value), 153, 1);
}

TEST(Profiles, EveryShippedFileLoadsAndNamesItsOrigins) {
  const DataFolders data;
  for (const std::string& name : data.names("profiles")) {
    const Device d = load_device(name, {}, data);
    EXPECT_EQ(d.name, name);
    EXPECT_FALSE(d.origin.empty()) << name;
  }
  for (const std::string& name : data.names("topologies")) {
    const Cluster c = load_cluster(name, {}, {}, data);
    EXPECT_EQ(c.name, name);
    EXPECT_FALSE(c.origin.empty()) << name;
    EXPECT_NO_THROW(load_device(c.device, {}, data)) << name;
  }
  for (const std::string& name : data.names("profiles/stacks"))
    EXPECT_EQ(load_stack(name, {}, data).name, name);
}

// Large bf16 products reach what was measured: A100 0.81, H100 0.80 of the dense peak (medians).
TEST(Profiles, LargeProductsReachTheMeasuredShareOfPeak) {
  const DataFolders data;
  for (const auto& [name, share] :
       {std::pair{"a100-80gb", 0.81}, std::pair{"h100-sxm", 0.80}, std::pair{"b200", 0.70}}) {
    const Device d = load_device(name, {}, data);
    const double t = gemm_seconds(d, Math::kBf16, 8192, 8192, 8192, 2);
    EXPECT_NEAR(2.0 * 8192 * 8192 * 8192 / t / d.half.value, share, 0.06) << name;
  }
}

}  // namespace
}  // namespace orrery::sim
