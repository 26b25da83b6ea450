// SPDX-License-Identifier: Apache-2.0
//
// Kernels of kernels/cuda on one GPU, as ratios to what that GPU gives in the same run: those that memory
// limits to a copy (of_copy), matrix products to the fastest of many cuBLASLt algorithms (of_best), those of
// 8 bits to bf16 (of_bf16). Attention in TFLOP/s, counted as in FlashAttention's papers: 4 b a s^2 d, half of
// it for causal masks, two and a half times as much backward. Tensors are bf16 and many times larger than the
// second-level cache.
//
//   orrery_gpu_kernels_bench --benchmark_out=kernels.json --benchmark_out_format=json
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"

// Times are the device's, by events.
#define ORRERY_KERNEL(name) BENCHMARK(name)->UseManualTime()->Unit(benchmark::kMicrosecond)

namespace orrery::kernels::cuda {
namespace {

constexpr DType kType = DType::kBfloat16;
constexpr Index kTokens = 16384, kWidth = 4096, kRows = 8192, kVocabulary = 50304, kParameters = 1 << 27;
constexpr std::size_t kWorkspace = 32 << 20;

class Device {
 public:
  Device() : stream(make_stream()) {}

  // Random elements: equal ones draw less power, and what multiplies them runs faster.
  void* matrix(Index rows, Index width) {
    void* const to = hold(static_cast<std::size_t>(rows * width) * 2);
    uniform(stream.get(), kType, rows * width, memory_.size(), to);
    return to;
  }
  template <class T>
  T* zeros(Index n) {
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
    void* const to = hold(bytes);
    check(cudaMemsetAsync(to, 0, bytes, stream.get()), "cudaMemsetAsync");
    return static_cast<T*>(to);
  }
  // Token ids below `below`.
  std::int32_t* ids(Index n, Index below) {
    std::vector<std::int32_t> made(static_cast<std::size_t>(n));
    std::minstd_rand random(1);
    for (std::int32_t& id : made)
      id = std::uniform_int_distribution<std::int32_t>(0, static_cast<std::int32_t>(below) - 1)(random);
    void* const to = hold(made.size() * sizeof(std::int32_t));
    check(cudaMemcpy(to, made.data(), made.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    return static_cast<std::int32_t*>(to);
  }
  Workspace workspace(std::size_t bytes) { return {hold(bytes), bytes}; }
  void* hold(std::size_t bytes) {
    memory_.push_back(allocate(bytes, "memory of a benchmark"));
    return memory_.back().get();
  }

  const OwnedStream stream;

 private:
  std::vector<DeviceMemory> memory_;
};

// Seconds of one call of several.
double seconds_of(cudaStream_t stream, const std::function<void()>& call) {
  constexpr int kCalls = 5;
  static const Event begin = make_event(Timed::kYes), end = make_event(Timed::kYes);
  check(cudaEventRecord(begin.get(), stream), "cudaEventRecord");
  for (int i = 0; i < kCalls; ++i) call();
  check(cudaEventRecord(end.get(), stream), "cudaEventRecord");
  check(cudaStreamSynchronize(stream), "a benchmark");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(ms) / kCalls;
}

// The fastest of all iterations.
double measure(benchmark::State& state, const Device& device, const std::function<void()>& call) {
  seconds_of(device.stream.get(), call);
  double best = std::numeric_limits<double>::max();
  for ([[maybe_unused]] auto _ : state) {
    const double s = seconds_of(device.stream.get(), call);
    state.SetIterationTime(s);
    best = std::min(best, s);
  }
  return best;
}

// Bytes read and written a second by a copy within the device.
double copy_rate() {
  static const double rate = [] {
    constexpr std::size_t kBytes = std::size_t{1} << 30;
    Device d;
    void *const a = d.matrix(1, kBytes / 2), *const b = d.matrix(1, kBytes / 2);
    const auto copy = [&] {
      check(cudaMemcpyAsync(b, a, kBytes, cudaMemcpyDeviceToDevice, d.stream.get()), "cudaMemcpyAsync");
    };
    double best = std::numeric_limits<double>::max();
    for (int i = 0; i < 5; ++i) best = std::min(best, seconds_of(d.stream.get(), copy));
    return 2.0 * static_cast<double>(kBytes) / best;
  }();
  return rate;
}

void moves(benchmark::State& state, const Device& device, double bytes, const std::function<void()>& call) {
  const double rate = bytes / measure(state, device, call);
  state.counters["GB/s"] = rate / 1e9;
  state.counters["of_copy"] = rate / copy_rate();
}

constexpr double kMatrix = 2.0 * kTokens * kWidth;  // bytes

void Norm(benchmark::State& state) {
  Device d;
  const reference::NormShape s{kTokens, kWidth, state.range(0) != 0};
  const void *x = d.matrix(kTokens, kWidth), *w = d.matrix(1, kWidth), *b = d.matrix(1, kWidth);
  void* const y = d.matrix(kTokens, kWidth);
  moves(state, d, 2 * kMatrix, [&] { norm(d.stream.get(), kType, s, x, w, b, y); });
}
// As many elements in rows of a width: GPT-2's are 768 to 1,600.
void NormGrad(benchmark::State& state) {
  Device d;
  const Index width = state.range(1), rows = kTokens * kWidth / width;
  const reference::NormShape s{rows, width, state.range(0) != 0};
  const void *x = d.matrix(rows, width), *w = d.matrix(1, width), *dy = d.matrix(rows, width),
             *residual = d.matrix(rows, width);
  void *const dx = d.matrix(rows, width), *const dw = d.zeros<float>(width),
              *const db = d.zeros<float>(width);
  const Workspace workspace = d.workspace(norm_grad_workspace(s));
  moves(state, d, 8.0 * static_cast<double>(rows * width), [&] {
    norm_grad(d.stream.get(), kType, DType::kFloat32, s, x, w, dy, residual, dx, dw, db, false, workspace);
  });
}
ORRERY_KERNEL(Norm)->ArgName("rms")->Arg(0)->Arg(1);
ORRERY_KERNEL(NormGrad)->ArgNames({"rms", "width"})->ArgsProduct({{0, 1}, {768, 1600, 4096, 8192}});

void HeadNorm(benchmark::State& state) {
  Device d;
  const reference::HeadNormShape s{kTokens, kWidth, 16, 8, 128, 128};
  const void *x = d.matrix(kTokens, kWidth), *w = d.matrix(2, 128);
  void* const y = d.matrix(kTokens, kWidth);
  moves(state, d, 2 * kMatrix, [&] { head_norm(d.stream.get(), kType, s, x, w, y); });
}
ORRERY_KERNEL(HeadNorm);

void Rope(benchmark::State& state) {
  Device d;
  const reference::RopeShape s{kTokens, kWidth, kWidth / 128, 128, 2048, 128};
  const auto *cosine = d.zeros<float>(2048 * 64), *sine = d.zeros<float>(2048 * 64);
  void* const x = d.matrix(kTokens, kWidth);
  moves(state, d, 2 * kMatrix, [&] { rope(d.stream.get(), kType, s, cosine, sine, x); });
}
ORRERY_KERNEL(Rope);

reference::Act act_of(bool gated) {
  return gated ? reference::Act::kSwiglu : reference::Act::kGelu;
}

void Activation(benchmark::State& state) {
  Device d;
  const bool gated = state.range(0) != 0;
  const void* const u = d.matrix(kTokens, gated ? 2 * kWidth : kWidth);
  void* const v = d.matrix(kTokens, kWidth);
  moves(state, d, (gated ? 3 : 2) * kMatrix,
        [&] { activation(d.stream.get(), kType, kTokens, kWidth, act_of(gated), u, v); });
}
void ActivationGrad(benchmark::State& state) {
  Device d;
  const bool gated = state.range(0) != 0;
  const Index wide = gated ? 2 * kWidth : kWidth;
  const void *u = d.matrix(kTokens, wide), *dv = d.matrix(kTokens, kWidth);
  void* const du = d.matrix(kTokens, wide);
  moves(state, d, (gated ? 5 : 3) * kMatrix,
        [&] { activation_grad(d.stream.get(), kType, kTokens, kWidth, act_of(gated), u, dv, du); });
}
ORRERY_KERNEL(Activation)->ArgName("gated")->Arg(0)->Arg(1);
ORRERY_KERNEL(ActivationGrad)->ArgName("gated")->Arg(0)->Arg(1);

void Residual(benchmark::State& state) {
  Device d;
  const void *x = d.matrix(kTokens, kWidth), *branch = d.matrix(kTokens, kWidth), *bias = d.matrix(1, kWidth);
  void* const y = d.matrix(kTokens, kWidth);
  moves(state, d, 3 * kMatrix, [&] {
    residual(d.stream.get(), kType, kTokens, kWidth, x, branch, {bias, nullptr}, y);
  });
}
void DropoutResidual(benchmark::State& state) {
  Device d;
  const void *x = d.matrix(kTokens, kWidth), *branch = d.matrix(kTokens, kWidth), *bias = d.matrix(1, kWidth);
  void* const y = d.matrix(kTokens, kWidth);
  auto* const mask = d.zeros<std::uint8_t>(kTokens * kWidth);
  const auto* const first_sample = d.zeros<Index>(1);
  const Dropout drops{.probability = 0.1, .seed = 1};
  moves(state, d, 3.5 * kMatrix, [&] {
    dropout_residual(d.stream.get(), kType, drops, first_sample, {kTokens, kWidth, 2048, 0}, x, branch, bias,
                     y, mask);
  });
}
void BiasGrad(benchmark::State& state) {
  Device d;
  const Index width = state.range(0), rows = kTokens * kWidth / width;
  const void* const dy = d.matrix(rows, width);
  void* const db = d.zeros<float>(width);
  const Workspace workspace = d.workspace(bias_grad_workspace(rows, width));
  moves(state, d, 2.0 * static_cast<double>(rows * width),
        [&] { bias_grad(d.stream.get(), kType, DType::kFloat32, rows, width, dy, db, false, workspace); });
}
ORRERY_KERNEL(Residual);
ORRERY_KERNEL(DropoutResidual);
ORRERY_KERNEL(BiasGrad)->ArgName("width")->Arg(768)->Arg(3072)->Arg(4096);

// GPT-2's: tokens of width 768.
void Embedding(benchmark::State& state) {
  Device d;
  constexpr Index kTable = 768, kIds = 65536;
  const auto* const ids = d.ids(kIds, kVocabulary);
  const void* const table = d.matrix(kVocabulary, kTable);
  void* const y = d.matrix(kIds, kTable);
  moves(state, d, 4.0 * kIds * kTable,
        [&] { embedding(d.stream.get(), kType, kIds, kTable, 0, kVocabulary, ids, table, y); });
}
// Reads the tokens' gradient, writes the table's in fp32.
void EmbeddingGrad(benchmark::State& state) {
  Device d;
  constexpr Index kTable = 768, kIds = 65536;
  const auto* const ids = d.ids(kIds, kVocabulary);
  const void* const dy = d.matrix(kIds, kTable);
  auto* const d_table = d.zeros<float>(kVocabulary * kTable);
  moves(state, d, 2.0 * kIds * kTable + 4.0 * kVocabulary * kTable, [&] {
    embedding_grad(d.stream.get(), kType, DType::kFloat32, kIds, kTable, 0, kVocabulary, ids, dy, d_table,
                   false);
  });
}
void Positions(benchmark::State& state) {
  Device d;
  const reference::PositionsShape s{.rows = kTokens, .width = kWidth, .seq = 1024};
  const void* const table = d.matrix(1024, kWidth);
  void* const x = d.matrix(kTokens, kWidth);
  moves(state, d, 2 * kMatrix, [&] { positions(d.stream.get(), kType, s, table, x); });
}
ORRERY_KERNEL(Embedding);
ORRERY_KERNEL(EmbeddingGrad);
ORRERY_KERNEL(Positions);

constexpr double kLogits = 2.0 * kRows * kVocabulary;  // bytes

void LossStatistics(benchmark::State& state) {
  Device d;
  const void* const logits = d.matrix(kRows, kVocabulary);
  const auto* const targets = d.ids(kRows, kVocabulary);
  auto* const statistics = d.zeros<float>(3 * kRows);
  moves(state, d, kLogits, [&] {
    loss_statistics(d.stream.get(), kType, {kRows, kVocabulary, 0, kVocabulary}, logits, targets, statistics);
  });
}
// In place: a gradient is a logit of the next repetition.
void LossGrad(benchmark::State& state) {
  Device d;
  void* const logits = d.matrix(kRows, kVocabulary);
  const auto* const targets = d.ids(kRows, kVocabulary);
  auto* const statistics = d.zeros<float>(3 * kRows);
  auto* const normalizers = d.zeros<float>(2 * kRows);
  auto* const scale = d.zeros<double>(1);
  loss_statistics(d.stream.get(), kType, {kRows, kVocabulary, 0, kVocabulary}, logits, targets, statistics);
  loss(d.stream.get(), kRows, 1, statistics, normalizers, scale, d.workspace(loss_workspace(kRows)));
  moves(state, d, 2 * kLogits, [&] {
    loss_grad(d.stream.get(), kType, {kRows, kVocabulary, 0, kVocabulary}, logits, normalizers, targets, 1.0F,
              scale, logits);
  });
}
ORRERY_KERNEL(LossStatistics);
ORRERY_KERNEL(LossGrad);

// Reads a gradient of 2 bytes; reads and writes a master copy and two moments of 4; writes 2.
void AdamWithMaster(benchmark::State& state) {
  Device d;
  const auto* const scalars = d.zeros<StepScalars>(1);
  const void* const gradient = d.matrix(1, kParameters);
  void* const parameter = d.matrix(1, kParameters);
  auto *const master = d.zeros<float>(kParameters), *const m = d.zeros<float>(kParameters),
              *const v = d.zeros<float>(kParameters);
  moves(state, d, 28.0 * kParameters, [&] {
    adam(d.stream.get(), kType, kType, {0.9F, 0.95F, 1e-8F}, {}, scalars, nullptr, nullptr,
         std::array{UpdateRange{0, kParameters, 0.1F}}, gradient, parameter,
         {.master = master, .m = m, .v = v});
  });
}
// Reads a gradient of 2 bytes; reads and writes the parameter, the rest of a master copy and two moments
// of 2.
void AdamWithPartedMaster(benchmark::State& state) {
  Device d;
  const auto* const scalars = d.zeros<StepScalars>(1);
  const void* const gradient = d.matrix(1, kParameters);
  void* const parameter = d.matrix(1, kParameters);
  auto *const beside = d.zeros<std::int16_t>(kParameters), *const m = d.zeros<std::int16_t>(kParameters),
              *const v = d.zeros<std::int16_t>(kParameters);
  moves(state, d, 18.0 * kParameters, [&] {
    adam(d.stream.get(), kType, kType, {0.9F, 0.95F, 1e-8F}, {}, scalars, nullptr, nullptr,
         std::array{UpdateRange{0, kParameters, 0.1F}}, gradient, parameter,
         {.beside = beside, .moment = kType, .m = m, .v = v});
  });
}
// Reads a gradient of 2 bytes, a master copy and two moments of 4.
void TrustSquares(benchmark::State& state) {
  Device d;
  const auto* const scalars = d.zeros<StepScalars>(1);
  const void* const gradient = d.matrix(1, kParameters);
  const auto *const master = d.zeros<float>(kParameters), *const m = d.zeros<float>(kParameters),
                    *const v = d.zeros<float>(kParameters);
  auto* const bins = d.zeros<double>(2 * reference::kSquareBins);
  moves(state, d, 14.0 * kParameters, [&] {
    trust_squares(d.stream.get(), kType, kType, {0.9F, 0.95F, 1e-8F}, scalars, nullptr,
                  std::array{UpdateRange{0, kParameters, 0.1F}}, gradient, nullptr, master, m, v, bins);
  });
}
void Squares(benchmark::State& state) {
  Device d;
  const void* const gradient = d.matrix(1, kParameters);
  auto* const bins = d.zeros<double>(reference::kSquareBins);
  moves(state, d, 2.0 * kParameters,
        [&] { add_squares(d.stream.get(), kType, kParameters, gradient, bins); });
}
ORRERY_KERNEL(AdamWithMaster);
ORRERY_KERNEL(AdamWithPartedMaster);
ORRERY_KERNEL(TrustSquares);
ORRERY_KERNEL(Squares);

// --- attention -------------------------------------------------------------------------------------

// 16,384 tokens of hidden size 2,048.
reference::AttentionShape attention_of(const benchmark::State& state) {
  const Index head = state.range(0), seq = state.range(1), heads = 2048 / head;
  return {kTokens / seq, seq, heads, heads, head};
}
double flops_of(const reference::AttentionShape& s) {
  return 2.0 * static_cast<double>(s.batch * s.heads * s.seq * s.seq * s.head);
}
void Attention(benchmark::State& state) {
  Device d;
  const auto s = attention_of(state);
  const void* const qkv = d.matrix(kTokens, s.width());
  void *const out = d.matrix(kTokens, s.heads * s.head), *const lse = d.zeros<float>(kTokens * s.heads);
  const Workspace workspace = d.workspace(attention_workspace(kType, s));
  const double t = measure(
      state, d, [&] { attention(d.stream.get(), kType, s, nullptr, qkv, out, lse, nullptr, workspace); });
  state.counters["TFLOP/s"] = flops_of(s) / t * 1e-12;
}
void AttentionGrad(benchmark::State& state) {
  Device d;
  const auto s = attention_of(state);
  const void *qkv = d.matrix(kTokens, s.width()), *out = d.matrix(kTokens, s.heads * s.head),
             *d_out = d.matrix(kTokens, s.heads * s.head);
  const void* const lse = d.zeros<float>(kTokens * s.heads);
  void* const d_qkv = d.matrix(kTokens, s.width());
  const Workspace workspace = d.workspace(attention_grad_workspace(kType, s));
  const double t = measure(state, d, [&] {
    attention_grad(d.stream.get(), kType, s, nullptr, qkv, out, lse, nullptr, d_out, d_qkv, workspace);
  });
  state.counters["TFLOP/s"] = 2.5 * flops_of(s) / t * 1e-12;
}
ORRERY_KERNEL(Attention)->ArgNames({"head", "seq"})->ArgsProduct({{64, 128}, {1024, 4096}});
ORRERY_KERNEL(AttentionGrad)->ArgNames({"head", "seq"})->ArgsProduct({{64, 128}, {1024, 4096}});

// --- matrix products -------------------------------------------------------------------------------

// Forward products; the last two of GPT-2's MLP, whose GELU may be in the epilogue.
const std::array kProducts{
    GemmShape{.m = 8192, .n = 8192, .k = 8192}, GemmShape{.m = 16384, .n = 4096, .k = 4096},
    GemmShape{.m = 16384, .n = 50304, .k = 768}, GemmShape{.m = 16384, .n = 3072, .k = 768, .bias = true},
    GemmShape{.m = 16384, .n = 3072, .k = 768, .bias = true, .epilogue = Epilogue::kGelu}};

void Product(benchmark::State& state) {
  Device d;
  GemmShape s = kProducts[static_cast<std::size_t>(state.range(0))];
  s.transpose_b = true;
  s.operands = s.result = kType;
  const GemmOperands o{.a = d.matrix(s.m, s.k),
                       .b = d.matrix(s.k, s.n),
                       .bias = d.matrix(1, s.n),
                       .c = d.matrix(s.m, s.n),
                       .before_gelu = d.matrix(s.m, s.n)};
  Gemms ours(d.stream.get(), std::array{s}, kWorkspace);
  const double t = measure(state, d, [&] { ours.run(d.stream.get(), s, o); });
  constexpr int kMany = 200;
  Gemms best(d.stream.get(), std::array{s}, kWorkspace, {}, kMany);
  double least = t;
  for (int i = 0; i < 5; ++i)
    least = std::min(least, seconds_of(d.stream.get(), [&] { best.run(d.stream.get(), s, o); }));
  state.counters["TFLOP/s"] = 2.0 * static_cast<double>(s.m * s.n * s.k) / t * 1e-12;
  state.counters["of_best"] = least / t;
}
ORRERY_KERNEL(Product)->ArgName("shape")->DenseRange(0, static_cast<std::int64_t>(kProducts.size()) - 1);

void Fp8Rounding(benchmark::State& state) {
  Device d;
  const void* const x = d.matrix(kTokens, kWidth);
  auto* const numbers = d.zeros<std::uint32_t>(2);
  auto* const codes = static_cast<std::uint8_t*>(d.hold(kTokens * kWidth));
  moves(state, d, 2.5 * kMatrix, [&] {
    fp8_largest(d.stream.get(), kType, kTokens * kWidth, x, numbers);
    fp8_round(d.stream.get(), kType, Fp8::kE4M3, kTokens, kWidth, state.range(0) != 0, x, numbers, codes,
              reinterpret_cast<float*>(numbers + 1));
  });
}
ORRERY_KERNEL(Fp8Rounding)->ArgName("transposed")->Arg(0)->Arg(1);

// With the rounding of its operands; times as fast as in bf16.
void Fp8Products(benchmark::State& state) {
  Device d;
  GemmShape s = kProducts[static_cast<std::size_t>(state.range(0))];
  s.transpose_b = true;
  s.operands = s.result = kType;
  GemmShape eight = s;
  eight.fp8 = Fp8Product::kValues;
  const GemmOperands o{.a = d.matrix(s.m, s.k), .b = d.matrix(s.k, s.n), .c = d.matrix(s.m, s.n)};
  try {
    Gemms gemms(d.stream.get(), std::array{s, eight}, kWorkspace);
    const double t = measure(state, d, [&] { gemms.run(d.stream.get(), eight, o); });
    double half = std::numeric_limits<double>::max();
    for (int i = 0; i < 5; ++i)
      half = std::min(half, seconds_of(d.stream.get(), [&] { gemms.run(d.stream.get(), s, o); }));
    state.counters["TFLOP/s"] = 2.0 * static_cast<double>(s.m * s.n * s.k) / t * 1e-12;
    state.counters["of_bf16"] = half / t;
  } catch (const Error& e) {
    state.SkipWithError(e.what());
  }
}
ORRERY_KERNEL(Fp8Products)->ArgName("shape")->DenseRange(0, 1);

}  // namespace
}  // namespace orrery::kernels::cuda

int main(int argc, char** argv) {
  int devices = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&devices); e != cudaSuccess) {
    std::fprintf(stderr, "no GPU here: %s\n", cudaGetErrorString(e));
    return 1;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
