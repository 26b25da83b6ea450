// SPDX-License-Identifier: Apache-2.0
#include "sim/compute/compute.h"

#include <algorithm>
#include <cmath>

namespace orrery::sim {
namespace {

struct Tile {
  double m, n, relative_efficiency;
};
// Relative efficiencies fitted together with the curves of A100, H100 and GB200.
constexpr Tile kTiles[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.99},
                           {128, 64, 0.94}, {64, 128, 0.94}, {64, 64, 0.89}};
constexpr double kQueryBlock = 128;
constexpr double kAttentionMemoryEfficiency = 0.8;

double waves(double x, double smoothing) {
  return x < 1 ? 1.0 : (1 - smoothing) * std::ceil(x) + smoothing * x;
}

}  // namespace

FlopRate peak(const Device& d, Math math) {
  const FlopRate none{0};
  switch (math) {
    case Math::kFp8:
      if (d.fp8 > none) return d.fp8;
      [[fallthrough]];
    case Math::kBf16:
    case Math::kFp16:
      if (d.half > none) return d.half;
      return d.fp32;
    case Math::kTf32:
      return d.tf32 > none ? d.tf32 : d.fp32;
    case Math::kFp32:
      break;
  }
  return d.fp32;
}

double gemm_seconds(const Device& d, Math math, std::int64_t m, std::int64_t n, std::int64_t k,
                    std::int64_t element_bytes) {
  const double dm = static_cast<double>(m), dn = static_cast<double>(n), dk = static_cast<double>(k);
  const auto units = static_cast<double>(d.units);
  const double unit_rate = peak(d, math).value / units * d.gemm.efficiency;
  double best = 1e300;
  for (const Tile& t : kTiles) {
    const double x = std::ceil(dm / t.m) * std::ceil(dn / t.n) / units;
    best = std::min(best, waves(x, d.gemm.wave_smoothing) * t.m * t.n * 2.0 * (dk + d.gemm.k_overhead) /
                              (unit_rate * t.relative_efficiency));
  }
  const auto written = static_cast<double>(element_bytes), read = math == Math::kFp8 ? 1.0 : written;
  const double bytes = read * (dm * dk + dk * dn) + written * dm * dn;
  const double memory = bytes / (static_cast<double>(d.memory_bandwidth.value) * d.gemm.memory_efficiency);
  return seconds(d.gemm.latency) + std::max(best, memory);
}

double attention_seconds(const Device& d, Math math, const AttentionWork& w) {
  const double b = static_cast<double>(w.batch), s = static_cast<double>(w.seq),
               a = static_cast<double>(w.heads);
  const double head = static_cast<double>(w.head);
  const double x = b * a * std::ceil(s / kQueryBlock) / static_cast<double>(d.units);
  const double work = 2.0 * b * a * s * s * head * (w.backward ? 2.5 : 1.0);
  double efficiency = d.attention.efficiency * (w.head < 128 ? d.attention.small_head : 1.0);
  if (w.backward) efficiency *= d.attention.backward;
  const double compute = work / (peak(d, math).value * efficiency) * (1 + d.attention.sequence_overhead / s) *
                         waves(x, d.attention.wave_smoothing) / x;
  const double bytes =
      2.0 * b * s * head * (2 * a + 2 * static_cast<double>(w.kv_heads)) * (w.backward ? 2 : 1);
  const double memory = bytes / (static_cast<double>(d.memory_bandwidth.value) * kAttentionMemoryEfficiency);
  return seconds(d.attention.latency) + std::max(compute, memory);
}

namespace {

const MeasuredOp* measured(const Device& d, const program::Op& op) {
  for (const MeasuredOp& m : d.measured) {
    if (m.op != program::name_of(op.kind) || m.dims.size() > op.dims.size()) continue;
    const auto rest = op.dims.begin() + static_cast<std::ptrdiff_t>(m.dims.size());
    if (std::equal(m.dims.begin(), m.dims.end(), op.dims.begin()) &&
        std::all_of(rest, op.dims.end(), [](std::int64_t n) { return n == 0; }))
      return &m;
  }
  return nullptr;
}

// The number format that an op computes in.
Math math_of(Math training, const program::Op& op) {
  const bool eight = op.kind == program::OpKind::kGemm && op.dims[4] != program::kAsStored;
  return training == Math::kFp8 && !eight ? Math::kBf16 : training;
}

// What is in the traffic of a product beyond its own.
double rounding_seconds(const Device& d, std::int64_t element_bytes, const program::Op& op) {
  const std::int64_t operands = (op.dims[0] + op.dims[1]) * op.dims[2],
                     product = operands + op.dims[0] * op.dims[1] * element_bytes;
  const auto bytes = static_cast<double>(op.traffic.value - product);
  const double share = bytes / static_cast<double>(operands * (2 * element_bytes + 1));
  return share * 4 * seconds(d.gemm.latency) +
         bytes / (static_cast<double>(d.memory_bandwidth.value) * d.memory_efficiency);
}

double factor(const Device& d, program::OpKind kind) {
  for (const OpFactor& f : d.factors) {
    if (f.op == program::name_of(kind)) return f.factor;
  }
  return 1;
}

}  // namespace

Bound bound_of(const Device& d, Math training, const program::Op& op) {
  if (program::is_communication(op.kind)) return Bound::kCommunication;
  const bool attention = op.kind == program::OpKind::kAttention || op.kind == program::OpKind::kAttentionGrad;
  if (op.kind != program::OpKind::kGemm && !attention) return Bound::kMemory;
  const Math math = math_of(training, op);
  const double efficiency = attention && op.dims[5] == 0 ? d.attention.efficiency : d.gemm.efficiency;
  const double arithmetic = op.flops / (peak(d, math).value * efficiency);
  const double memory = static_cast<double>(op.traffic.value) /
                        (static_cast<double>(d.memory_bandwidth.value) * d.memory_efficiency);
  return arithmetic >= memory ? Bound::kCompute : Bound::kMemory;
}

Time compute_time(const Device& d, Math training, std::int64_t element_bytes, const program::Op& op) {
  using program::OpKind;
  const Math math = math_of(training, op);
  if (const MeasuredOp* m = measured(d, op)) return m->time + d.kernel_gap;
  double warm = 0, rounding = 0;
  const double memory = static_cast<double>(op.traffic.value) /
                        (static_cast<double>(d.memory_bandwidth.value) * d.memory_efficiency);
  switch (op.kind) {
    case OpKind::kGemm:
      warm = gemm_seconds(d, math, op.dims[0], op.dims[1], op.dims[2], element_bytes);
      if (op.dims[3] != program::kPlain) {
        warm += static_cast<double>(op.dims[0] * op.dims[1] * element_bytes) /
                (static_cast<double>(d.memory_bandwidth.value) * d.gemm.memory_efficiency);
      }
      if (math == Math::kFp8) rounding = rounding_seconds(d, element_bytes, op);
      break;
    case OpKind::kAttention:
    case OpKind::kAttentionGrad: {
      const bool backward = op.kind == OpKind::kAttentionGrad;
      const auto& s = op.dims;
      if (s[5] == 0) {
        warm = attention_seconds(d, math, {s[0], s[1], s[2], s[3], s[4], backward});
      } else {
        // Batched products of each head, and the passes over the scores.
        const double rate = peak(d, math).value * d.gemm.efficiency;
        warm = 3 * seconds(d.gemm.latency) +
               op.flops / rate * (1 + d.gemm.k_overhead / static_cast<double>(s[4])) + memory;
      }
      break;
    }
    default:
      return from_seconds(memory * factor(d, op.kind)) + d.kernel_gap;
  }
  return from_seconds(warm / d.sustained + rounding) + d.kernel_gap;
}

}  // namespace orrery::sim
