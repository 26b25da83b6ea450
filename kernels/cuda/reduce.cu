// SPDX-License-Identifier: Apache-2.0
//
// What a collective sums: the same elements of several ranks' tensors, in the order of ranks. Floor: one
// element read for each input and one written, times n.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

struct Inputs {
  const void* at[kMostInputs];
  int count;
};

// In the arithmetic of the type: fp32, or double.
__device__ double wide(double x) {
  return x;
}
template <class T>
__device__ float wide(T x) {
  return widen(x);
}
__device__ void rounded(double x, double& to) {
  to = x;
}
template <class T>
__device__ void rounded(float x, T& to) {
  narrow(x, to);
}

template <class T>
__global__ void reduce_kernel(Inputs inputs, std::int64_t n, const T* start, T* output) {
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) {
    auto x = wide(static_cast<const T*>(inputs.at[0])[i]);
    if (start != nullptr) x = wide(start[i]) + x;
    for (int k = 1; k < inputs.count; ++k) x += wide(static_cast<const T*>(inputs.at[k])[i]);
    rounded(x, output[i]);
  }
}

}  // namespace

void reduce(Stream stream, DType type, std::span<const void* const> inputs, Index n, const void* start,
            void* output) {
  if (inputs.size() > kMostInputs) throw Error("more tensors than a reduction on the device takes");
  Inputs all{.at = {}, .count = static_cast<int>(inputs.size())};
  std::copy(inputs.begin(), inputs.end(), all.at);
  const auto start_kernel = [&]<class T>(T) {
    launch(stream, "reduce", {.blocks = strided_blocks(n, 256)}, reduce_kernel<T>, all, n,
           static_cast<const T*>(start), static_cast<T*>(output));
  };
  if (type == DType::kFloat64) return start_kernel(double{});
  with_type(type, start_kernel);
}

}  // namespace orrery::kernels::cuda
