// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gemm.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/gemm_choices.h"
#include "kernels/cuda/gemm_epilogue.h"
#include "kernels/cuda/library.h"

namespace orrery::kernels::cuda {
namespace {

// Of libcublasLt, by the names of its header.
struct CublasLt {
  Library library{"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR)};
  decltype(cublasLtCreate)* create = library.find<decltype(cublasLtCreate)>("cublasLtCreate");
  decltype(cublasLtDestroy)* destroy = library.find<decltype(cublasLtDestroy)>("cublasLtDestroy");
  decltype(cublasLtGetVersion)* get_version =
      library.find<decltype(cublasLtGetVersion)>("cublasLtGetVersion");
  decltype(cublasLtGetStatusString)* get_status_string =
      library.find<decltype(cublasLtGetStatusString)>("cublasLtGetStatusString");
  decltype(cublasLtMatmul)* matmul = library.find<decltype(cublasLtMatmul)>("cublasLtMatmul");
  decltype(cublasLtMatmulAlgoGetHeuristic)* matmul_algo_get_heuristic =
      library.find<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
  decltype(cublasLtMatmulDescCreate)* matmul_desc_create =
      library.find<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate");
  decltype(cublasLtMatmulDescDestroy)* matmul_desc_destroy =
      library.find<decltype(cublasLtMatmulDescDestroy)>("cublasLtMatmulDescDestroy");
  decltype(cublasLtMatmulDescSetAttribute)* matmul_desc_set_attribute =
      library.find<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
  decltype(cublasLtMatrixLayoutCreate)* matrix_layout_create =
      library.find<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
  decltype(cublasLtMatrixLayoutDestroy)* matrix_layout_destroy =
      library.find<decltype(cublasLtMatrixLayoutDestroy)>("cublasLtMatrixLayoutDestroy");
  decltype(cublasLtMatmulPreferenceCreate)* matmul_preference_create =
      library.find<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate");
  decltype(cublasLtMatmulPreferenceDestroy)* matmul_preference_destroy =
      library.find<decltype(cublasLtMatmulPreferenceDestroy)>("cublasLtMatmulPreferenceDestroy");
  decltype(cublasLtMatmulPreferenceSetAttribute)* matmul_preference_set_attribute =
      library.find<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute");
};
const CublasLt& lt() {
  static const CublasLt library;
  return library;
}

using kernels::cuda::check;
void check(cublasStatus_t s, const char* what) {
  if (s != CUBLAS_STATUS_SUCCESS) throw Error(std::string(what) + ": " + lt().get_status_string(s));
}

cudaDataType_t cuda_type(DType t) {
  switch (t) {
    case DType::kBfloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

cudaDataType_t cuda_type(Fp8 f) {
  return f == Fp8::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

template <class T, auto kDestroy>
struct Destroy {
  using pointer = T;
  void operator()(T handle) const { (lt().*kDestroy)(handle); }
};
template <class T, auto kDestroy>
using LtOwned = std::unique_ptr<T, Destroy<T, kDestroy>>;
using Handle = LtOwned<cublasLtHandle_t, &CublasLt::destroy>;
using Operation = LtOwned<cublasLtMatmulDesc_t, &CublasLt::matmul_desc_destroy>;
using Layout = LtOwned<cublasLtMatrixLayout_t, &CublasLt::matrix_layout_destroy>;
using Preference = LtOwned<cublasLtMatmulPreference_t, &CublasLt::matmul_preference_destroy>;

cublasLtEpilogue_t epilogue_of(const GemmShape& s, bool fused) {
  if (fused && s.epilogue == Epilogue::kGelu)
    return s.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  if (fused && s.epilogue == Epilogue::kGeluGrad) return CUBLASLT_EPILOGUE_DGELU;
  // Its B is our A, its "k" the rows that are summed.
  if (fused && s.epilogue == Epilogue::kBiasGrad) return CUBLASLT_EPILOGUE_BGRADB;
  return s.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// cuBLASLt is column-major: it computes C' = op(B)' op(A)', of which a row-major matrix is the transpose.
struct Plan {
  Plan(const GemmShape& s, bool fuses, const Fp8Operands& rounded)
      : fused(fuses && s.epilogue != Epilogue::kNone) {
    cublasLtMatmulDesc_t made = nullptr;
    check(lt().matmul_desc_create(&made, s.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                  CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    operation.reset(made);
    // As they are rounded to 8 bits, A is [m,k] and B is [n,k].
    const bool fp8 = s.fp8 != Fp8Product::kNo, transpose_a = !fp8 && s.transpose_a,
               transpose_b = fp8 || s.transpose_b;
    set(CUBLASLT_MATMUL_DESC_TRANSA, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(s, fused));
    const bool sums = fused && s.epilogue == Epilogue::kBiasGrad;
    if (s.bias || sums) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(s.result));
    if (fused && !sums) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<std::int64_t>(s.n));
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, cuda_type(s.result));
    }
    if (fp8) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, rounded.scale_of_b());
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, rounded.scale_of_a());
      // Sums of fewer bits are good enough for values (NVIDIA's Transformer Engine does the same).
      set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(s.fp8 == Fp8Product::kValues));
    }
    // The rows and columns that are stored, of B, A and C.
    const cudaDataType_t type = cuda_type(s.operands);
    b = layout(fp8 ? cuda_type(Fp8::kE4M3) : type, transpose_b ? s.n : s.k, transpose_b ? s.k : s.n,
               fp8 ? s.k : s.row_of_b());
    a = layout(fp8 ? cuda_type(format_of_a(s)) : type, transpose_a ? s.k : s.m, transpose_a ? s.m : s.k,
               fp8 ? s.k : s.row_of_a());
    c = layout(cuda_type(s.result), s.m, s.n, s.row_of_c());
    alpha = s.alpha;
    beta = s.accumulate ? 1.0F : 0.0F;
  }
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t what, const Value& value) {
    check(lt().matmul_desc_set_attribute(operation.get(), what, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  }
  static Layout layout(cudaDataType_t type, Index rows, Index columns, Index row) {
    cublasLtMatrixLayout_t made = nullptr;
    check(lt().matrix_layout_create(&made, type, static_cast<std::uint64_t>(columns),
                                    static_cast<std::uint64_t>(rows), row),
          "cublasLtMatrixLayoutCreate");
    return Layout(made);
  }

  Operation operation;
  Layout a, b, c;
  float alpha = 1, beta = 0;
  cublasLtMatmulAlgo_t algorithm{};
  bool fused;  // its epilogue is cuBLASLt's; else kernels come after it
};

// "cuBLASLt 13.1.0.3 for NVIDIA H100 80GB HBM3": of the device that this thread has chosen.
std::string library() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
  return fmt::format("cuBLASLt {} for {}", lt().get_version(), p.name);
}
// Of a process, which computes on devices of one kind.
GemmChoices& choices() {
  static GemmChoices all(library());
  return all;
}

}  // namespace

struct Gemms::State {
  State(std::span<const GemmShape> shapes, std::size_t bytes)
      : workspace(allocate(bytes, "memory for matrix products")), rounded(shapes) {
    cublasLtHandle_t made = nullptr;
    check(lt().create(&made), "cublasLtCreate");
    handle.reset(made);
  }

  Preference preference(std::uint32_t alignment) const {
    cublasLtMatmulPreference_t made = nullptr;
    check(lt().matmul_preference_create(&made), "cublasLtMatmulPreferenceCreate");
    Preference out(made);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      check(lt().matmul_preference_set_attribute(made, what, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace.bytes());
    for (const auto of :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(of, alignment);
    return out;
  }

  cublasStatus_t multiply(Stream stream, const GemmShape& s, Plan& plan, const GemmOperands& o) {
    if (s.bias) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
    if (plan.fused && s.epilogue == Epilogue::kBiasGrad)
      plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, sums_of_product(s, o));
    else if (plan.fused)
      plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, o.before_gelu);
    void* const c = result_of_product(s, plan.fused, o);
    const void *a = o.a, *b = o.b;
    if (s.fp8 != Fp8Product::kNo) {
      rounded.round(stream, s, o.a, o.b);
      a = rounded.a();
      b = rounded.b();
    }
    const cublasStatus_t status = lt().matmul(
        handle.get(), plan.operation.get(), &plan.alpha, b, plan.b.get(), a, plan.a.get(), &plan.beta, c,
        plan.c.get(), c, plan.c.get(), &plan.algorithm, workspace.get(), workspace.bytes(), stream);
    if (status == CUBLAS_STATUS_SUCCESS) finish_product(stream, s, plan.fused, o);
    return status;
  }

  // Leaves the fastest algorithm in the plan; its milliseconds, or infinity when there is none: cuBLASLt says
  // in several ways that it does not have an epilogue, and any of them means that it does not.
  float measure(Stream stream, const GemmShape& s, Plan& plan, const GemmOperands& o, int tried) {
    const Preference preferred = preference(s.alignment);
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(tried));
    int count = 0;
    const cublasStatus_t asked = lt().matmul_algo_get_heuristic(
        handle.get(), plan.operation.get(), plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(),
        preferred.get(), tried, found.data(), &count);
    refusal = asked;
    if (asked != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<float>::infinity();
    const Event begin = make_event(Timed::kYes), end = make_event(Timed::kYes);
    float best = std::numeric_limits<float>::infinity();
    cublasLtMatmulAlgo_t fastest{};
    for (int i = 0; i < count; ++i) {
      constexpr int kRepetitions = 5;
      plan.algorithm = found[static_cast<std::size_t>(i)].algo;
      // Some of what is proposed is refused when it is tried.
      const cublasStatus_t status = multiply(stream, s, plan, o);
      if (status != CUBLAS_STATUS_SUCCESS) refusal = status;
      if (status != CUBLAS_STATUS_SUCCESS) continue;
      check(cudaEventRecord(begin.get(), stream), "cudaEventRecord");
      for (int r = 0; r < kRepetitions; ++r) check(multiply(stream, s, plan, o), "cublasLtMatmul");
      check(cudaEventRecord(end.get(), stream), "cudaEventRecord");
      check(cudaEventSynchronize(end.get()), "a matrix product");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
      if (ms >= best) continue;
      best = ms;
      fastest = plan.algorithm;
    }
    plan.algorithm = fastest;
    return best;
  }

  // Measures algorithms of the shapes with operands of the largest.
  void choose(Stream stream, std::span<const GemmShape> shapes, int tried) {
    struct Need {
      DType type;
      Index elements;
    };
    constexpr std::size_t kMatrices = 6;
    std::array<std::size_t, kMatrices>
        most{};  // bytes of A, B, C, bias, what was before GELU, bias gradients
    std::size_t scratch = 0;
    const auto needs = [](const GemmShape& s) {
      const bool gelu = s.epilogue == Epilogue::kGelu || s.epilogue == Epilogue::kGeluGrad;
      return std::array<Need, kMatrices>{{{s.operands, (s.transpose_a ? s.k : s.m) * s.row_of_a()},
                                          {s.operands, (s.transpose_b ? s.n : s.k) * s.row_of_b()},
                                          {s.result, s.m * s.row_of_c()},
                                          {s.result, s.bias ? s.n : 0},
                                          {s.result, gelu ? s.m * s.n : 0},
                                          {s.result, s.epilogue == Epilogue::kBiasGrad ? s.m : 0}}};
    };
    for (const GemmShape& s : shapes) {
      const auto of_shape = needs(s);
      for (std::size_t i = 0; i < most.size(); ++i) {
        most[i] =
            std::max(most[i], static_cast<std::size_t>(of_shape[i].elements) * bytes_of(of_shape[i].type));
      }
      if (s.epilogue == Epilogue::kBiasGrad) scratch = std::max(scratch, bias_grad_workspace(s.k, s.m));
    }
    std::array<DeviceMemory, kMatrices> memory;
    for (std::size_t i = 0; i < memory.size(); ++i)
      memory[i] = allocate(most[i], "memory for matrix products");
    const DeviceMemory sums = allocate(scratch, "memory for matrix products");
    const GemmOperands operands{.a = memory[0].get(),
                                .b = memory[1].get(),
                                .bias = memory[3].get(),
                                .c = memory[2].get(),
                                .before_gelu = memory[4].get(),
                                .bias_gradient = memory[5].get(),
                                .workspace = {sums.get(), sums.bytes()}};
    for (const GemmShape& s : shapes) {
      const std::string product = text_of(s, tried, workspace.bytes());
      if (choices().find(product) != nullptr) continue;
      // Random operands: equal ones draw less power, and products of them run faster than real ones.
      const auto of_shape = needs(s);
      for (std::size_t i = 0; i < memory.size(); ++i)
        uniform(stream, of_shape[i].type, of_shape[i].elements, i, memory[i].get());
      Plan apart(s, false, rounded), fused(s, true, rounded);
      const float ms = measure(stream, s, apart, operands, tried);
      const float ms_fused = fused.fused ? measure(stream, s, fused, operands, tried) : ms;
      if (std::isinf(ms) && std::isinf(ms_fused)) {
        throw Error(
            "cuBLASLt has no algorithm for the product [" + std::to_string(s.m) + ", " + std::to_string(s.k) +
            "] x [" + std::to_string(s.k) + ", " + std::to_string(s.n) + "]" +
            (s.fp8 == Fp8Product::kNo ? "" : " in 8 bits, which GPUs of compute capability 8.9 and up have"));
      }
      const Plan& best = ms_fused < ms ? fused : apart;
      GemmChoice choice{.fused = best.fused};
      static_assert(sizeof choice.algorithm == sizeof best.algorithm);
      std::memcpy(choice.algorithm.data(), &best.algorithm, sizeof best.algorithm);
      choices().add(product, choice);
    }
    check(cudaStreamSynchronize(stream), "matrix products");
  }

  Handle handle;
  cublasStatus_t refusal = CUBLAS_STATUS_SUCCESS;  // the last, while algorithms are measured
  DeviceMemory workspace;
  Fp8Operands rounded;
  std::map<GemmShape, Plan> plans;
  std::uint64_t hash = 0;
};

Gemms::Gemms(Stream stream, std::span<const GemmShape> shapes, std::size_t workspace,
             const std::filesystem::path& cache, int tried)
    : state_(std::make_unique<State>(shapes, workspace)) {
  const auto product = [&](const GemmShape& s) { return text_of(s, tried, workspace); };
  const std::scoped_lock alone(choices().lock);
  if (!cache.empty()) choices().read(cache);
  std::vector<GemmShape> unknown;
  for (const GemmShape& s : shapes) {
    if (choices().find(product(s)) == nullptr) unknown.push_back(s);
  }
  if (!unknown.empty()) {
    state_->choose(stream, unknown, tried);
    if (!cache.empty()) choices().write(cache);
  }
  for (const GemmShape& s : shapes) {
    if (state_->plans.contains(s)) continue;
    const GemmChoice& chosen = *choices().find(product(s));
    Plan plan(s, chosen.fused, state_->rounded);
    std::memcpy(&plan.algorithm, chosen.algorithm.data(), sizeof plan.algorithm);
    state_->plans.emplace(s, std::move(plan));
    state_->hash += hash_of(product(s), chosen);
  }
}

std::uint64_t Gemms::hash() const {
  return state_->hash;
}

Gemms::~Gemms() = default;

void Gemms::run(Stream stream, const GemmShape& shape, const GemmOperands& operands) {
  const auto found = state_->plans.find(shape);
  if (found == state_->plans.end()) throw Error("a matrix product of a shape that was not measured");
  check(state_->multiply(stream, shape, found->second, operands), "cublasLtMatmul");
}

std::size_t Gemms::workspace_bytes() const {
  return state_->workspace.bytes() + state_->rounded.bytes();
}

std::size_t Gemms::plans() const {
  return state_->plans.size();
}

}  // namespace orrery::kernels::cuda
