// SPDX-License-Identifier: Apache-2.0
//
// What one GPU gives: matrix products in the forward and both backward layouts, warm and sustained for
// 30 s (clocks fall under load), copies, launch cost, one-rank collectives. Writes a JSON of measurements
// with their provenance; `scripts/gpu-check.sh` runs it.
//
//   orrery_gpu_bench OUT.json [SUSTAINED_SECONDS]
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "kernels/cuda/kernels.h"
#ifdef ORRERY_HAVE_NCCL
#include <nccl.h>
#endif

namespace {

using orrery::Error;
using orrery::Json;

void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) throw Error(fmt::format("{}: {}", what, cudaGetErrorString(e)));
}
void check(cublasStatus_t s, const char* what) {
  if (s != CUBLAS_STATUS_SUCCESS) throw Error(fmt::format("{}: cuBLAS status {}", what, static_cast<int>(s)));
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes) { check(cudaMalloc(&data_, bytes), "cudaMalloc"); }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Seconds of one call: median of `batches` batches of `calls`, by events on the stream.
double time_calls(cudaStream_t stream, int batches, int calls, const std::function<void()>& call) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  for (int i = 0; i < 3; ++i) call();
  std::vector<double> times;
  for (int b = 0; b < batches; ++b) {
    check(cudaEventRecord(begin, stream), "record");
    for (int i = 0; i < calls; ++i) call();
    check(cudaEventRecord(end, stream), "record");
    check(cudaEventSynchronize(end), "synchronise");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    times.push_back(ms * 1e-3 / calls);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

// Row-major C[m,n] = op(A) op(B) in bf16 with fp32 sums; cuBLAS sees the transposed column-major product.
class Gemm {
 public:
  Gemm(cublasLtHandle_t handle, std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a,
       bool transpose_b, void* workspace, std::size_t workspace_bytes)
      : handle_(handle), workspace_(workspace), workspace_bytes_(workspace_bytes) {
    check(cublasLtMatmulDescCreate(&op_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor");
    const cublasOperation_t first = transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second = transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(op_, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first),
          "transpose");
    check(cublasLtMatmulDescSetAttribute(op_, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second),
          "transpose");
    const auto layout = [](cublasLtMatrixLayout_t* l, std::int64_t rows, std::int64_t cols) {
      check(cublasLtMatrixLayoutCreate(l, CUDA_R_16BF, static_cast<std::uint64_t>(cols),
                                       static_cast<std::uint64_t>(rows), cols),
            "layout");
    };
    layout(&b_, transpose_b ? n : k, transpose_b ? k : n);
    layout(&a_, transpose_a ? k : m, transpose_a ? m : k);
    layout(&c_, m, n);
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "preference");
    check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace_bytes, sizeof workspace_bytes),
          "workspace");
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle_, op_, b_, a_, c_, c_, preference, 1, &heuristic_, &found),
          "heuristic");
    cublasLtMatmulPreferenceDestroy(preference);
    if (found == 0) throw Error("cuBLASLt has no algorithm for a shape");
  }
  ~Gemm() {
    cublasLtMatrixLayoutDestroy(a_);
    cublasLtMatrixLayoutDestroy(b_);
    cublasLtMatrixLayoutDestroy(c_);
    cublasLtMatmulDescDestroy(op_);
  }
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  void run(const void* a, const void* b, void* c, cudaStream_t stream) const {
    const float one = 1, zero = 0;
    check(cublasLtMatmul(handle_, op_, &one, b, b_, a, a_, &zero, c, c_, c, c_, &heuristic_.algo, workspace_,
                         workspace_bytes_, stream),
          "matmul");
  }

 private:
  cublasLtHandle_t handle_;
  void* workspace_;
  std::size_t workspace_bytes_;
  cublasLtMatmulDesc_t op_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulHeuristicResult_t heuristic_{};
};

struct Shape {
  std::int64_t tokens, out, in;
};

Json measure_gemms(cudaStream_t stream, double sustained_s) {
  constexpr Shape kShapes[] = {{2048, 4096, 4096}, {4096, 12288, 4096}, {4096, 4096, 14336},
                               {8192, 8192, 8192}, {8192, 28672, 8192}, {2048, 1024, 8192},
                               {16384, 50304, 768}};
  constexpr std::size_t kWorkspace = 64 << 20;
  std::size_t most = 0;
  for (const Shape& s : kShapes)
    most = std::max(
        most, static_cast<std::size_t>(2 * std::max({s.tokens * s.out, s.tokens * s.in, s.out * s.in})));
  const DeviceBuffer a(most), b(most), c(most), workspace(kWorkspace);
  // Random numbers: equal ones draw less power.
  for (const DeviceBuffer* of : {&a, &b})
    orrery::kernels::cuda::uniform(stream, orrery::DType::kBfloat16, static_cast<std::int64_t>(most / 2), 1,
                                   of->data());
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cublasLtCreate");
  Json out = Json::array();
  for (const Shape& s : kShapes) {
    struct Layout {
      const char* name;
      std::int64_t m, n, k;
      bool ta, tb;
    };
    const Layout layouts[] = {{"forward", s.tokens, s.out, s.in, false, true},
                              {"dgrad", s.tokens, s.in, s.out, false, false},
                              {"wgrad", s.out, s.in, s.tokens, true, false}};
    for (const Layout& l : layouts) {
      const Gemm g(handle, l.m, l.n, l.k, l.ta, l.tb, workspace.data(), kWorkspace);
      const double t = time_calls(stream, 7, 20, [&] { g.run(a.data(), b.data(), c.data(), stream); });
      out.push_back({{"layout", l.name},
                     {"m", l.m},
                     {"n", l.n},
                     {"k", l.k},
                     {"seconds", t},
                     {"tflops", 2.0 * static_cast<double>(l.m) * static_cast<double>(l.n) *
                                    static_cast<double>(l.k) / t * 1e-12}});
    }
  }
  // Sustained: one large product back to back; the speed of the last second.
  const Gemm g(handle, 8192, 8192, 8192, false, true, workspace.data(), kWorkspace);
  const auto begin = std::chrono::steady_clock::now();
  double last = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < sustained_s) {
    last = time_calls(stream, 1, 500, [&] { g.run(a.data(), b.data(), c.data(), stream); });
  }
  if (last > 0) {
    out.push_back({{"layout", "forward-sustained"},
                   {"m", 8192},
                   {"n", 8192},
                   {"k", 8192},
                   {"seconds", last},
                   {"sustained_s", sustained_s},
                   {"tflops", 2.0 * 8192 * 8192 * 8192 / last * 1e-12}});
  }
  cublasLtDestroy(handle);
  return out;
}

Json measure_copies(cudaStream_t stream) {
  constexpr std::size_t kBytes = 1UL << 30;
  const DeviceBuffer a(kBytes), b(kBytes);
  void* host = nullptr;
  check(cudaMallocHost(&host, kBytes), "cudaMallocHost");
  const auto rate = [&](void* to, const void* from, cudaMemcpyKind kind, double bytes) {
    return bytes /
           time_calls(stream, 5, 5, [&] { check(cudaMemcpyAsync(to, from, kBytes, kind, stream), "copy"); }) *
           1e-9;
  };
  const Json out = {
      {"device_read_plus_write_gb_s", rate(b.data(), a.data(), cudaMemcpyDeviceToDevice, 2.0 * kBytes)},
      {"host_to_device_gb_s", rate(a.data(), host, cudaMemcpyHostToDevice, kBytes)},
      {"device_to_host_gb_s", rate(host, a.data(), cudaMemcpyDeviceToHost, kBytes)}};
  cudaFreeHost(host);
  return out;
}

// A 4-byte memset is the smallest piece of work: back to back it costs the larger of launch and gap.
Json measure_launch(cudaStream_t stream) {
  const DeviceBuffer a(256);
  const auto begin = std::chrono::steady_clock::now();
  constexpr int kCalls = 10000;
  for (int i = 0; i < kCalls; ++i) check(cudaMemsetAsync(a.data(), 0, 4, stream), "memset");
  const double host =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kCalls;
  check(cudaStreamSynchronize(stream), "synchronise");
  const double device =
      time_calls(stream, 7, 1000, [&] { check(cudaMemsetAsync(a.data(), 0, 4, stream), "memset"); });
  return {{"host_us_per_launch", host * 1e6}, {"device_us_per_launch", device * 1e6}};
}

Json measure_nccl([[maybe_unused]] cudaStream_t stream) {
#ifdef ORRERY_HAVE_NCCL
  ncclComm_t comm = nullptr;
  int device = 0;
  if (ncclCommInitAll(&comm, 1, &device) != ncclSuccess) return {{"error", "ncclCommInitAll failed"}};
  const std::size_t count = 64UL << 20;
  const DeviceBuffer a(4 * count), b(4 * count);
  const double t = time_calls(stream, 5, 5, [&] {
    if (ncclAllReduce(a.data(), b.data(), count, ncclFloat, ncclSum, comm, stream) != ncclSuccess)
      throw Error("ncclAllReduce failed");
  });
  ncclCommDestroy(comm);
  int version = 0;
  ncclGetVersion(&version);
  return {{"version", version}, {"one_rank_all_reduce_gb_s", 4.0 * static_cast<double>(count) / t * 1e-9}};
#else
  return {{"error", "built without NCCL"}};
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: orrery_gpu_bench OUT.json [SUSTAINED_SECONDS]\n");
    return 2;
  }
  try {
    const double sustained = argc > 2 ? std::stod(argv[2]) : 30;
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "no CUDA device");
    cudaDeviceProp p{};
    check(cudaGetDeviceProperties(&p, 0), "properties");
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreate(&stream), "stream");
    Json out = {{"schema", "orrery.gpu-measurement/1"}, {"device", p.name}, {"units", p.multiProcessorCount},
                {"memory_bytes", p.totalGlobalMem},     {"driver", driver}, {"runtime", runtime}};
    out["copies"] = measure_copies(stream);
    out["launch"] = measure_launch(stream);
    out["gemm"] = measure_gemms(stream, sustained);
    out["nccl"] = measure_nccl(stream);
    cudaStreamDestroy(stream);
    orrery::save_text(argv[1], out.dump(2) + "\n");
    fmt::print("{}\n", out.dump(2));
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "orrery_gpu_bench: {}\n", e.what());
    return 1;
  }
}
