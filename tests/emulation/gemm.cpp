// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of the emulated device, by the reference.
#include "kernels/cuda/gemm.h"

#include <map>
#include <vector>

#include "core/error.h"
#include "cuda_runtime.h"
#include "kernels/cpu/fast.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/gemm_choices.h"
#include "kernels/cuda/gemm_epilogue.h"

namespace orrery::kernels::cuda {

struct Gemms::State {
  explicit State(std::span<const GemmShape> all) : rounded(all) {}
  std::map<GemmShape, bool> fused;  // by the shapes that are run: the library has their epilogues
  Fp8Operands rounded;
  std::uint64_t hash = 0;
};

namespace {
Index bytes_in(DType type) {
  return static_cast<Index>(bytes_of(type));
}

// Chosen as on a device, from one algorithm, which has every epilogue. What is read from a file may say that
// it has none.
GemmChoices& choices() {
  static GemmChoices all("the reference for an emulated GPU");
  return all;
}
}  // namespace

Gemms::Gemms(Stream, std::span<const GemmShape> shapes, std::size_t workspace,
             const std::filesystem::path& cache, int tried)
    : state_(std::make_unique<State>(shapes)) {
  const std::scoped_lock alone(choices().lock);
  if (!cache.empty()) choices().read(cache);
  for (const GemmShape& s : shapes) {
    const std::string product = text_of(s, tried, workspace);
    if (choices().find(product) == nullptr) choices().add(product, {.fused = s.epilogue != Epilogue::kNone});
    const GemmChoice& chosen = *choices().find(product);
    if (state_->fused.emplace(s, chosen.fused).second) state_->hash += hash_of(product, chosen);
  }
  if (!cache.empty()) choices().write(cache);
}

std::uint64_t Gemms::hash() const {
  return state_->hash;
}

Gemms::~Gemms() = default;

void Gemms::run(Stream stream, const GemmShape& s, const GemmOperands& o) {
  const auto found = state_->fused.find(s);
  if (found == state_->fused.end()) throw Error("a matrix product of a shape that was not measured");
  const bool fused = found->second;
  const bool fp8 = s.fp8 != Fp8Product::kNo;
  if (fp8) state_->rounded.round(stream, s, o.a, o.b);
  emulation::enqueue(stream, [=, rounded = &state_->rounded] {
    const auto wide = [](DType type, const void* from, Index n) {
      std::vector<float> out(static_cast<std::size_t>(n));
      if (is_half(type))
        widen(type, n, from, out.data());
      else
        std::copy_n(static_cast<const float*>(from), n, out.data());
      return out;
    };
    // A part of a matrix with longer rows.
    const auto part = [&](DType type, const void* from, Index rows, Index columns, Index row) {
      std::vector<float> out;
      for (Index i = 0; i < rows; ++i) {
        const auto at = wide(type, static_cast<const char*>(from) + i * row * bytes_in(type), columns);
        out.insert(out.end(), at.begin(), at.end());
      }
      return out;
    };
    const auto store = [&](const std::vector<float>& from, void* to) {
      if (is_half(s.result))
        narrow(s.result, static_cast<Index>(from.size()), from.data(), to);
      else
        std::copy(from.begin(), from.end(), static_cast<float*>(to));
    };
    const auto decoded = [](Fp8 f, const std::uint8_t* codes, float scale, Index n) {
      std::vector<float> out;
      for (Index i = 0; i < n; ++i) out.push_back(from_fp8(f, codes[i]) * scale);
      return out;
    };
    const auto a = fp8 ? decoded(format_of_a(s), rounded->a(), *rounded->scale_of_a(), s.m * s.k)
                       : part(s.operands, o.a, s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k,
                              s.row_of_a()),
               b = fp8 ? decoded(Fp8::kE4M3, rounded->b(), *rounded->scale_of_b(), s.k * s.n)
                       : part(s.operands, o.b, s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n,
                              s.row_of_b());
    const auto bias = wide(s.result, o.bias, s.bias ? s.n : 0);
    if (s.alpha != 1 || s.ldc > 0) {  // of a part, times a factor
      auto sum = part(s.result, o.c, s.m, s.n, s.row_of_c());
      multiply({s.m, s.n, s.k, s.transpose_a, s.transpose_b, s.alpha, s.accumulate ? 1.0F : 0.0F,
                s.transpose_a ? s.m : s.k, s.transpose_b ? s.k : s.n, s.n},
               a.data(), b.data(), sum.data());
      for (Index i = 0; i < s.m; ++i) {
        const auto row = sum.begin() + i * s.n;
        store({row, row + s.n}, static_cast<char*>(o.c) + i * s.row_of_c() * bytes_in(s.result));
      }
      return;
    }
    auto product = wide(s.result, o.c, s.m * s.n);
    reference::gemm({s.m, s.n, s.k, !fp8 && s.transpose_a, fp8 || s.transpose_b, s.accumulate}, a.data(),
                    b.data(), s.bias ? bias.data() : nullptr, product.data());
    std::vector<float> result(product.size());
    switch (fused ? s.epilogue : Epilogue::kNone) {
      case Epilogue::kNone:
        return store(product, result_of_product(s, fused, o));
      case Epilogue::kGelu:
        store(product, o.before_gelu);
        reference::activation(s.m, s.n, reference::Act::kGelu, product.data(), result.data());
        return store(result, o.c);
      case Epilogue::kGeluGrad: {
        const auto before = wide(s.result, o.before_gelu, s.m * s.n);
        reference::activation_grad(s.m, s.n, reference::Act::kGelu, before.data(), product.data(),
                                   result.data());
        return store(result, o.c);
      }
      case Epilogue::kBiasGrad: {
        store(product, o.c);
        std::vector<float> sums(static_cast<std::size_t>(s.m));
        reference::bias_grad(s.k, s.m, a.data(), sums.data(), false);
        return store(sums, sums_of_product(s, o));
      }
    }
  });
  finish_product(stream, s, fused, o);
}

std::size_t Gemms::workspace_bytes() const {
  return state_->rounded.bytes();
}

std::size_t Gemms::plans() const {
  return state_->fused.size();
}

}  // namespace orrery::kernels::cuda
