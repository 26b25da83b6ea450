// SPDX-License-Identifier: Apache-2.0
#include "sim/compute/compute.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>
#include <variant>

namespace orrery::sim {
namespace ops = program::ops;

namespace {

struct Tile {
  double m, n, relative_efficiency;
};
// Relative efficiencies fitted together with the curves of A100, H100 and GB200.
constexpr Tile kTiles[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.99},
                           {128, 64, 0.94}, {64, 128, 0.94}, {64, 64, 0.89}};
constexpr double kQueryBlock = 128, kHeadBlock = 32;
constexpr double kAttentionMemoryEfficiency = 0.8;
// Rows of queries that a kernel for few of them computes at a time: of all query heads of a KV head, filled
// up to a tensor core's 64 rows (Hopper's wgmma).
constexpr double kDecodeBlock = 64;
constexpr std::int64_t kManyQueries = 64;

double rate_of(const AttentionCurve& a, AttentionKernels kernels) {
  switch (kernels) {
    case AttentionKernels::kNewest:
      return 1;
    case AttentionKernels::kFlash2:
      return a.flash_2;
    case AttentionKernels::kFlash1:
      return a.flash_1;
  }
  throw std::logic_error("unknown attention kernels");
}

double waves(double x, double smoothing) {
  return x < 1 ? 1.0 : (1 - smoothing) * std::ceil(x) + smoothing * x;
}

}  // namespace

FlopRate peak(const Device& d, Math math) {
  const FlopRate none{0};
  switch (math) {
    case Math::kNvfp4:
      if (d.fp4 > none) return d.fp4;
      [[fallthrough]];
    case Math::kFp8:
    case Math::kFp8Delayed:
    case Math::kFp8Rowwise:
    case Math::kFp8Blockwise:
    case Math::kMxfp8:
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
                    std::int64_t element_bytes, double groups) {
  const double dm = static_cast<double>(m), dn = static_cast<double>(n), dk = static_cast<double>(k);
  const auto units = static_cast<double>(d.units);
  const double unit_rate = peak(d, math).value / units * d.gemm.efficiency;
  double best = 1e300;
  for (const Tile& t : kTiles) {
    const double x = groups * std::ceil(dm / t.m) * std::ceil(dn / t.n) / units;
    best = std::min(best, waves(x, d.gemm.wave_smoothing) * t.m * t.n * 2.0 * (dk + d.gemm.k_overhead) /
                              (unit_rate * t.relative_efficiency));
  }
  const auto rounding = rounding_of(math);
  const auto written = static_cast<double>(element_bytes), read = rounding ? rounding->bytes : written;
  const double bytes = groups * (read * (dm * dk + dk * dn) + written * dm * dn);
  const double memory = bytes / (static_cast<double>(d.memory_bandwidth.value) * d.gemm.memory_efficiency);
  return seconds(d.gemm.latency) + std::max(best, memory) + d.gemm.exposed_memory * std::min(best, memory);
}

double attention_seconds(const Device& d, Math math, const AttentionWork& w, AttentionKernels kernels) {
  const double b = static_cast<double>(w.batch), s = static_cast<double>(w.seq),
               a = static_cast<double>(w.heads);
  const double keys = w.keys > 0 ? static_cast<double>(w.keys) : s;
  const double head = static_cast<double>(w.head), padded = std::ceil(head / kHeadBlock) * kHeadBlock;
  const double x = b * a * std::ceil(s / kQueryBlock) / static_cast<double>(d.units);
  const double work = 4.0 * w.seen * b * a * s * keys * padded * (w.backward ? 2.5 : 1.0);
  double efficiency =
      d.attention.efficiency * (w.head < 128 ? d.attention.small_head : 1.0) * rate_of(d.attention, kernels);
  if (w.backward) efficiency *= d.attention.backward;
  const double compute = work / (peak(d, math).value * efficiency) * (1 + d.attention.sequence_overhead / s) *
                         waves(x, d.attention.wave_smoothing) / x;
  const double bytes =
      2.0 * b * head * (2 * a * s + 2 * static_cast<double>(w.kv_heads) * keys) * (w.backward ? 2 : 1);
  const double memory = bytes / (static_cast<double>(d.memory_bandwidth.value) * kAttentionMemoryEfficiency);
  return seconds(d.attention.latency) + std::max(compute, memory);
}

double decode_seconds(const Device& d, Math math, const AttentionWork& w, double bytes) {
  const double group = static_cast<double>(w.heads) / static_cast<double>(w.kv_heads);
  const double rows = std::ceil(group * static_cast<double>(w.seq) / kDecodeBlock) * kDecodeBlock;
  const double work = 4.0 * static_cast<double>(w.batch * w.kv_heads) * rows * w.seen *
                      static_cast<double>(w.keys) * static_cast<double>(w.head);
  const double compute = work / (peak(d, math).value * d.attention.efficiency);
  const double memory = bytes / (static_cast<double>(d.memory_bandwidth.value) * kAttentionMemoryEfficiency);
  return 2 * seconds(d.gemm.latency) + std::max(compute, memory);
}

namespace {

const MeasuredOp* measured(const Device& d, const program::OpKind& kind) {
  const program::OpKey key = program::key_of(kind);
  for (const MeasuredOp& m : d.measured) {
    if (m.op != program::name_of(kind) || m.dims.size() > key.fields.size()) continue;
    const auto rest = key.fields.begin() + static_cast<std::ptrdiff_t>(m.dims.size());
    if (std::equal(m.dims.begin(), m.dims.end(), key.fields.begin()) &&
        std::all_of(rest, key.fields.end(), [](std::int64_t n) { return n == 0; }))
      return &m;
  }
  return nullptr;
}
// A product that sums bias gradients from what it reads anyway, and was not measured with them, takes what
// the product alone was measured at.
const MeasuredOp* measured(const Device& d, const program::Op& op) {
  if (d.measured.empty()) return nullptr;
  const MeasuredOp* const found = measured(d, op.kind);
  const auto* product = op.as<ops::Gemm>();
  if (found != nullptr || product == nullptr || product->epilogue != ops::Gemm::Epilogue::kBiasGrad)
    return found;
  ops::Gemm alone = *product;
  alone.epilogue = ops::Gemm::Epilogue::kPlain;
  return measured(d, program::OpKind(alone));
}

// The number format that an op computes in.
Math math_of(Math training, const program::Op& op) {
  const bool rounded = program::format_of(op.kind) != ops::Gemm::Format::kAsStored;
  return rounds(training) && !rounded ? Math::kBf16 : training;
}

// What is in the traffic of a product beyond its own: a kernel each time that an operand is read.
template <class Product>
double rounding_seconds(const Device& d, Math math, std::int64_t element_bytes, const Product& product,
                        Bytes traffic) {
  const auto rounding = rounding_of(math);
  if (!rounding) return 0;
  const auto operands = static_cast<double>(product.operand_elements());
  const double bytes = static_cast<double>(traffic.value - product.result_elements() * element_bytes) -
                       operands * rounding->bytes;
  const double share =
      bytes / (operands * (rounding->reads * static_cast<double>(element_bytes) + rounding->bytes));
  return share * 2 * rounding->reads * seconds(d.gemm.latency) +
         bytes / (static_cast<double>(d.memory_bandwidth.value) * d.memory_efficiency);
}

double factor(const Device& d, std::string_view op) {
  for (const OpFactor& f : d.factors) {
    if (f.op == op) return f.factor;
  }
  return 1;
}

double memory_seconds(const Device& d, Bytes traffic) {
  return static_cast<double>(traffic.value) /
         (static_cast<double>(d.memory_bandwidth.value) * d.memory_efficiency);
}

// Kernel times of the ops that have a formula of their own; all others move bytes.
struct KernelTime {
  const Device& device;
  Math math;
  std::int64_t element_bytes;
  const program::Op& op;
  AttentionKernels attention_kernels;

  Time operator()(const ops::Gemm& p) const {
    double warm = gemm_seconds(device, math, p.m, p.n, p.k, element_bytes);
    warm += static_cast<double>(p.others() * p.m * p.n * element_bytes) /
            (static_cast<double>(device.memory_bandwidth.value) * device.gemm.memory_efficiency);
    return from_seconds(warm / device.sustained +
                        rounding_seconds(device, math, element_bytes, p, op.traffic));
  }
  // A product for each block that has an adapter.
  Time operator()(const ops::AdapterProduct& p) const {
    using enum ops::AdapterProduct::Of;
    const std::array widths = p.widths();
    double warm = 0;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (!p.has(i)) continue;
      warm += p.of == kResult  ? gemm_seconds(device, math, p.rows, widths[i], p.rank, element_bytes)
              : p.of == kInput ? gemm_seconds(device, math, p.rows, p.rank, widths[i], element_bytes)
                               : gemm_seconds(device, math, widths[i], p.rank, p.rows, element_bytes);
      if (p.of == kResult)  // u is read too
        warm += static_cast<double>(p.rows * widths[i] * element_bytes) /
                (static_cast<double>(device.memory_bandwidth.value) * device.gemm.memory_efficiency);
    }
    return from_seconds(warm / device.sustained);
  }
  // The products of one matrix after the other, and what moves it between them.
  Time operator()(const ops::Orthogonalise& o) const {
    const std::int64_t n = o.shorter(), k = o.longer();
    const double products = gemm_seconds(device, math, n, n, k, element_bytes) +
                            gemm_seconds(device, math, n, n, n, element_bytes) +
                            gemm_seconds(device, math, n, k, n, element_bytes);
    const double warm = static_cast<double>(o.matrices * o.iterations) * products / device.sustained +
                        memory_seconds(device, Bytes{o.elements_moved() * element_bytes});
    return from_seconds(warm * factor(device, o.kName));
  }
  // Experts that have rows have equal shares of them. With few rows some have none, and their weights are not
  // read: of E experts, E (1 - (1 - 1/E)^rows) have some in the mean.
  Time operator()(const ops::GroupedGemm& p) const {
    using enum ops::GroupedGemm::Of;
    const auto all = static_cast<double>(p.experts);
    const double groups =
        std::max(1.0, std::ceil(all * (1 - std::pow(1 - 1 / all, static_cast<double>(p.even)))));
    const auto rows = static_cast<std::int64_t>(std::ceil(static_cast<double>(p.even) / groups));
    const double warm = p.of == kResult  ? gemm_seconds(device, math, rows, p.n, p.k, element_bytes, groups)
                        : p.of == kInput ? gemm_seconds(device, math, rows, p.k, p.n, element_bytes, groups)
                                         : gemm_seconds(device, math, p.n, p.k, rows, element_bytes, groups);
    return from_seconds(warm / device.sustained +
                        rounding_seconds(device, math, element_bytes, p, op.traffic));
  }
  Time operator()(const ops::Attention& a) const { return attention(a, work_of(a, false)); }
  Time operator()(const ops::AttentionGrad& a) const { return attention(a, work_of(a, true)); }
  Time operator()(const ops::CrossAttention& a) const { return attention(a, work_of(a, false)); }
  Time operator()(const ops::CrossAttentionGrad& a) const { return attention(a, work_of(a, true)); }
  Time operator()(const ops::ContextAttention& a) const { return attention(a, work_of(a, false)); }
  Time operator()(const ops::ContextAttentionGrad& a) const { return attention(a, work_of(a, true)); }
  Time operator()(const ops::CachedAttention& a) const {
    const double seen = a.pairs() / static_cast<double>(a.queries * (a.cached + a.queries));
    return cached(
        {a.batch, a.queries, a.heads, a.kv_heads, (a.head + a.value) / 2, false, seen, a.cached + a.queries});
  }
  // Absorbed, all heads share a key; the products with the up weight are products of their own.
  Time operator()(const ops::CachedLatentAttention& a) const {
    const std::int64_t tokens = a.absorbs() ? a.tokens() : a.batch * (a.cached + a.queries);
    const double seen = a.pairs() / static_cast<double>(a.queries * (a.cached + a.queries));
    const AttentionWork work{a.batch,
                             a.queries,
                             a.heads,
                             a.absorbs() ? 1 : a.heads,
                             a.absorbs() ? a.rank + a.turned / 2 : (a.turned + a.plain + a.value) / 2,
                             false,
                             seen,
                             a.cached + a.queries};
    const double up =
        gemm_seconds(device, math, tokens, a.heads * (a.plain + a.value), a.rank, element_bytes);
    return cached(work) + from_seconds(up / device.sustained);
  }
  template <program::PointwiseOp T>
  Time operator()(const T& p) const {
    return from_seconds(memory_seconds(device, op.traffic) * factor(device, p.kName));
  }
  Time operator()(const ops::Copy&) const { throw std::logic_error("copies take a link's time"); }
  Time operator()(const ops::Handover& h) const { return Time{h.picoseconds}; }
  template <program::CommunicationOp T>
  Time operator()(const T&) const {
    throw std::logic_error("communication has no kernel time");
  }

 private:
  // With many queries as of training; with few, kernels share the keys of a sequence out over all units and
  // then join what these found (Flash-Decoding: Dao et al. 2023).
  Time cached(const AttentionWork& work) const {
    const double warm = work.seq >= kManyQueries
                            ? attention_seconds(device, math, work, attention_kernels)
                            : decode_seconds(device, math, work, static_cast<double>(op.traffic.value));
    return from_seconds(warm / device.sustained);
  }
  static AttentionWork work_of(const ops::AttentionShape& a, bool backward) {
    return {a.batch, a.sequence, a.heads, a.kv_heads, (a.head + a.value_head()) / 2, backward, a.seen()};
  }
  static AttentionWork work_of(const ops::CrossAttentionShape& a, bool backward) {
    return {a.batch, a.sequence, a.heads, a.kv_heads, a.head, backward, 1, a.keys};
  }
  static AttentionWork work_of(const ops::ContextShape& a, bool backward) {
    return {a.batch, a.own(), a.heads, a.kv_heads, (a.head + a.value) / 2, backward, a.seen(), a.seen_by()};
  }
  template <class Shape>
  Time attention(const Shape& a, const AttentionWork& work) const {
    double warm = 0;
    if (a.fused()) {
      warm = attention_seconds(device, math, work, attention_kernels);
    } else {
      // Batched products of each head, and the passes over the scores.
      const double rate = peak(device, math).value * device.gemm.efficiency *
                          (a.head % 8 == 0 ? 1.0 : device.attention.odd_head);
      warm = 3 * seconds(device.gemm.latency) +
             op.flops / rate * (1 + device.gemm.k_overhead / static_cast<double>(a.head)) +
             memory_seconds(device, op.traffic);
    }
    return from_seconds(warm / device.sustained);
  }
};

}  // namespace

Bound bound_of(const Device& d, Math training, const program::Op& op) {
  double efficiency = d.gemm.efficiency;
  switch (program::nature_of(op.kind)) {
    case ops::Nature::kCollective:
    case ops::Nature::kTransfer:
    case ops::Nature::kCopy:
      return Bound::kCommunication;
    case ops::Nature::kSoftware:
      return Bound::kUnknown;
    case ops::Nature::kPointwise:
    case ops::Nature::kRouting:
    case ops::Nature::kQuantised:
    case ops::Nature::kState:
      return Bound::kMemory;
    case ops::Nature::kAttention: {
      if (op.is<ops::CachedAttention>() || op.is<ops::CachedLatentAttention>()) {
        efficiency = d.attention.efficiency;
        break;
      }
      const auto fused = [](const auto* attention) { return attention != nullptr && attention->fused(); };
      if (fused(op.as<ops::Attention>()) || fused(op.as<ops::AttentionGrad>()) ||
          fused(op.as<ops::CrossAttention>()) || fused(op.as<ops::CrossAttentionGrad>()) ||
          fused(op.as<ops::ContextAttention>()) || fused(op.as<ops::ContextAttentionGrad>()))
        efficiency = d.attention.efficiency;
      break;
    }
    case ops::Nature::kProduct:
      break;
  }
  const double arithmetic = op.flops / (peak(d, math_of(training, op)).value * efficiency);
  return arithmetic >= memory_seconds(d, op.traffic) ? Bound::kCompute : Bound::kMemory;
}

Time compute_time(const Device& d, Math training, std::int64_t element_bytes, const program::Op& op,
                  AttentionKernels kernels) {
  const bool kernel = program::nature_of(op.kind) != ops::Nature::kSoftware;
  const Time gap = kernel ? d.kernel_gap : Time{0};
  if (const MeasuredOp* m = measured(d, op)) return m->time + gap;
  return std::visit(KernelTime{d, math_of(training, op), element_bytes, op, kernels}, op.kind) + gap;
}

}  // namespace orrery::sim
