// SPDX-License-Identifier: Apache-2.0
//
// A device profile: what one accelerator can do and how much of it software gets. Shipped in profiles/,
// fitted by `orrery calibrate`. Formulas are in sim/compute/; this is the value.
//
// Peaks are dense. Bandwidths are per direction. `origin` says of every field where it comes from.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"
#include "core/rounding.h"

namespace orrery {

// Achieved-efficiency curve of matrix products; formula in sim/compute/compute.h.
struct GemmCurve {
  double efficiency = 0.85;     // of peak, for full waves of large tiles with long k
  double k_overhead = 100;      // prologue and epilogue of a tile, as extra columns of k
  double wave_smoothing = 0.8;  // 0: whole waves only, 1: no quantisation beyond the first wave
  double memory_efficiency = 0.75;
  double exposed_memory = 0;  // of the shorter of arithmetic and memory time: 0 beside the longer, 1 after it
  Time latency{4'000'000};
};

// Generations of fused attention kernels: the fastest that the device's curve was measured with,
// FlashAttention-2 (Dao 2023, arXiv:2307.08691) and FlashAttention (Dao et al. 2022, arXiv:2205.14135).
enum class AttentionKernels { kNewest, kFlash2, kFlash1 };
constexpr auto enum_names(AttentionKernels) {
  using enum AttentionKernels;
  return std::array{std::pair{kNewest, "newest"}, std::pair{kFlash2, "flash-2"},
                    std::pair{kFlash1, "flash-1"}};
}

// Fused causal attention; formula in sim/compute/compute.h.
struct AttentionCurve {
  double efficiency = 0.6;         // forward, of peak, for long sequences and heads of 128 or more
  double backward = 0.75;          // backward efficiency over forward
  double sequence_overhead = 500;  // sequence length at which half of it is reached
  double wave_smoothing = 0.5;
  double small_head = 0.8;  // factor for heads below 128
  // Rates of older kernels over this curve.
  double flash_2 = 1, flash_1 = 1;
  // Rate of attention that is not fused, with heads that are no multiple of 8 elements, over the rate with
  // heads that are: products of 16-bit operands that are not aligned to 16 bytes miss the tensor cores.
  double odd_head = 0.1;
  Time latency{17'000'000};
};

// How much longer ops of a kind take than the memory model says; and what an op of one shape took.
struct OpFactor {
  std::string op;  // kind: "norm", "optimizer"
  double factor = 1;
};
inline constexpr std::size_t kMostOpDims = 16;
inline constexpr double kAnyBits = 9.22e18;  // of a finite double

struct MeasuredOp {
  std::string op;
  std::vector<std::int64_t> dims;  // fields of the op in order (program/ops/), without zeros at the end
  Time time;
};

struct Device {
  std::string name;
  std::string architecture;
  std::int64_t units = 1;  // SMs, or cores
  Bytes memory;
  Bandwidth memory_bandwidth;
  FlopRate fp32, tf32, half, fp8, fp4;  // dense peaks; zero: not available
  // Formats with factors of blocks that its tensor cores apply.
  std::vector<Math> block_formats;
  bool applies_factors(Math m) const {
    return std::find(block_formats.begin(), block_formats.end(), m) != block_formats.end();
  }
  GemmCurve gemm;
  AttentionCurve attention;
  double memory_efficiency = 0.8;  // of memory_bandwidth, for element-wise ops
  Time kernel_gap{1'500'000};      // device time lost between two kernels of a stream
  Time host_op{6'000'000};         // host time to issue one op eagerly
  double sustained = 1.0;          // training clock and cold-cache factor on top of warm micro-benchmarks
  double overlap_compute = 1.0;    // slow-down of compute while a collective runs beside it
  double overlap_communication = 1.0;
  std::vector<OpFactor> factors;     // others: 1
  std::vector<MeasuredOp> measured;  // goes before every formula
  std::map<std::string, std::string> origin;
};

template <class V>
void describe(V& v, GemmCurve& g) {
  v(Field{.name = "efficiency",
          .help = "fraction of the dense peak for large shapes",
          .min = 0.01,
          .max = 1.2},
    g.efficiency);
  v(Field{.name = "k_overhead",
          .help = "prologue and epilogue of a tile in columns of k",
          .min = 0,
          .max = 1e5},
    g.k_overhead);
  v(Field{.name = "wave_smoothing", .help = "0: whole waves of tiles only; 1: none", .min = 0, .max = 1},
    g.wave_smoothing);
  v(Field{.name = "memory_efficiency",
          .help = "fraction of memory bandwidth for operand traffic",
          .min = 0.01,
          .max = 1.2},
    g.memory_efficiency);
  v(Field{.name = "exposed_memory",
          .help = "share of the shorter of arithmetic and memory time that adds to the longer",
          .min = 0,
          .max = 1},
    g.exposed_memory);
  v(Field{.name = "latency", .help = "fixed time of a kernel", .min = 0, .max = limits::kLongestLatency},
    g.latency);
}

template <class V>
void describe(V& v, AttentionCurve& a) {
  v(Field{.name = "efficiency",
          .help = "fraction of the dense peak, forward, long sequences",
          .min = 0.01,
          .max = 1.2},
    a.efficiency);
  v(Field{.name = "backward", .help = "backward efficiency over forward", .min = 0.01, .max = 2}, a.backward);
  v(Field{.name = "sequence_overhead",
          .help = "sequence length at which half of it is reached",
          .min = 0,
          .max = 1e6},
    a.sequence_overhead);
  v(Field{.name = "wave_smoothing",
          .help = "0: whole waves of query blocks only; 1: none",
          .min = 0,
          .max = 1},
    a.wave_smoothing);
  v(Field{.name = "small_head", .help = "factor for heads below 128", .min = 0.01, .max = 2}, a.small_head);
  v(Field{.name = "flash_2", .help = "rate of FlashAttention-2 over this curve", .min = 0.05, .max = 1},
    a.flash_2);
  v(Field{.name = "flash_1", .help = "rate of FlashAttention over this curve", .min = 0.05, .max = 1},
    a.flash_1);
  v(Field{.name = "odd_head",
          .help = "rate of attention that is not fused with heads that are no multiple of 8, over others",
          .min = 0.01,
          .max = 1},
    a.odd_head);
  v(Field{.name = "latency", .help = "fixed time of a kernel", .min = 0, .max = limits::kLongestLatency},
    a.latency);
}

template <class V>
void describe(V& v, OpFactor& f) {
  v(Field{.name = "op", .help = "kind of op", .required = true}, f.op);
  v(Field{.name = "factor",
          .help = "time over that of the memory model",
          .min = 0.001,
          .max = 1000,
          .required = true},
    f.factor);
}

template <class V>
void describe(V& v, MeasuredOp& m) {
  v(Field{.name = "op", .help = "kind of op", .required = true}, m.op);
  v(Field{.name = "dims",
          .help = "its shape, without zeros at the end; of a fraction, the bits",
          .min = -kAnyBits,
          .max = kAnyBits,
          .most = kMostOpDims},
    m.dims);
  v(Field{.name = "time", .help = "median", .min = 0, .max = limits::kLongestOp, .required = true}, m.time);
}

template <class V>
void describe(V& v, Device& d) {
  v(Field{.name = "name", .help = "name of the profile", .required = true}, d.name);
  v(Field{.name = "architecture", .help = "generation; curves are shared within one"}, d.architecture);
  v(Field{.name = "units", .help = "streaming multiprocessors or cores", .min = 1, .max = 100000}, d.units);
  v(Field{.name = "memory",
          .help = "device memory",
          .min = limits::kSmallestMemory,
          .max = limits::kLargestMemory,
          .required = true},
    d.memory);
  v(Field{.name = "memory_bandwidth",
          .help = "memory bandwidth",
          .min = limits::kSlowest,
          .max = limits::kFastest,
          .required = true},
    d.memory_bandwidth);
  v(Field{.name = "fp32",
          .help = "dense fp32 rate",
          .min = limits::kSlowestRate,
          .max = limits::kFastestRate,
          .required = true},
    d.fp32);
  const auto tensor_rate = [](const char* name, const char* help) {
    return Field{.name = name, .help = help, .min = 0, .max = limits::kFastestRate};
  };
  v(tensor_rate("tf32", "dense TF32 tensor rate; 0 FLOP/s when absent"), d.tf32);
  v(tensor_rate("half", "dense bf16/fp16 tensor rate; 0 FLOP/s when absent"), d.half);
  v(tensor_rate("fp8", "dense fp8 tensor rate; 0 FLOP/s when absent"), d.fp8);
  v(tensor_rate("fp4", "dense tensor rate of 4-bit floats; 0 FLOP/s when absent"), d.fp4);
  v(Field{.name = "block_formats",
          .help = "formats whose factors of blocks its tensor cores apply: mxfp8, nvfp4",
          .distinct = true},
    d.block_formats);
  v(Field{.name = "gemm", .help = "matrix products"}, d.gemm);
  v(Field{.name = "attention", .help = "fused attention"}, d.attention);
  v(Field{.name = "memory_efficiency",
          .help = "fraction of memory bandwidth for element-wise ops",
          .min = 0.01,
          .max = 1},
    d.memory_efficiency);
  v(Field{.name = "kernel_gap",
          .help = "device time between two kernels",
          .min = 0,
          .max = limits::kLongestLatency},
    d.kernel_gap);
  v(Field{.name = "host_op",
          .help = "host time to issue one op eagerly",
          .min = 0,
          .max = limits::kLongestLatency},
    d.host_op);
  v(Field{.name = "sustained",
          .help = "speed in training over warm micro-benchmarks",
          .min = 0.05,
          .max = 1.5},
    d.sustained);
  v(Field{.name = "overlap_compute", .help = "slow-down of compute beside a collective", .min = 1, .max = 10},
    d.overlap_compute);
  v(Field{.name = "overlap_communication",
          .help = "slow-down of a collective beside compute",
          .min = 1,
          .max = 10},
    d.overlap_communication);
  v(Field{.name = "factors",
          .help = "kinds of op that the memory model prices too low or too high",
          .most = limits::kMostFactors},
    d.factors);
  v(Field{.name = "measured",
          .help = "measured times of ops, used before the formulas",
          .most = limits::kMostMeasured},
    d.measured);
  v(Field{.name = "origin", .help = "where each value comes from"}, d.origin);
}

ORRERY_FIELDS(extern, Device);

}  // namespace orrery
