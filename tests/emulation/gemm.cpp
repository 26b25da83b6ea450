// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of the emulated device, by the reference.
#include "kernels/cuda/gemm.h"

#include <set>
#include <vector>

#include "core/error.h"
#include "cuda_runtime.h"
#include "kernels/cpu/fast.h"

namespace orrery::kernels::cuda {

struct Gemms::State {
  std::set<GemmShape> shapes;
};

Gemms::Gemms(Stream, std::span<const GemmShape> shapes, std::size_t) : state_(std::make_unique<State>()) {
  state_->shapes.insert(shapes.begin(), shapes.end());
}
Gemms::~Gemms() = default;

void Gemms::run(Stream stream, const GemmShape& s, const void* a, const void* b, const void* bias, void* c) {
  if (!state_->shapes.contains(s)) throw Error("a matrix product of a shape that was not measured");
  emulation::enqueue(stream, [=] {
    const auto wide = [](DType type, const void* from, Index n) {
      std::vector<float> out(static_cast<std::size_t>(n));
      if (is_half(type))
        widen(type, n, from, out.data());
      else
        std::copy_n(static_cast<const float*>(from), n, out.data());
      return out;
    };
    const auto wide_a = wide(s.operands, a, s.m * s.k), wide_b = wide(s.operands, b, s.k * s.n);
    const auto wide_bias = wide(s.result, bias, s.bias ? s.n : 0);
    auto out = wide(s.result, c, s.m * s.n);
    reference::gemm({s.m, s.n, s.k, s.transpose_a, s.transpose_b, s.accumulate}, wide_a.data(), wide_b.data(),
                    s.bias ? wide_bias.data() : nullptr, out.data());
    if (is_half(s.result))
      narrow(s.result, s.m * s.n, out.data(), c);
    else
      std::copy(out.begin(), out.end(), static_cast<float*>(c));
  });
}

std::size_t Gemms::plans() const {
  return state_->shapes.size();
}

}  // namespace orrery::kernels::cuda
