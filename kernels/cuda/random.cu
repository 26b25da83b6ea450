// SPDX-License-Identifier: Apache-2.0
//
// Random elements: operands that a measurement multiplies, which draw the power that real ones do. Floor: n
// elements written.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/philox.h"

namespace orrery::kernels::cuda {
namespace {

// A thread takes the four elements of one draw. A word's upper 24 bits are a multiple of 2^-24 in [0, 1).
template <class T>
__global__ void uniform_kernel(std::int64_t n, std::uint64_t seed, T* to) {
  const std::int64_t draws = (n + 3) / 4;
  for (std::int64_t i = thread_of_grid(); i < draws; i += threads_of_grid()) {
    const auto draw = static_cast<std::uint64_t>(i);
    const Words words =
        philox({{static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32), 0, 0}},
               static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
    for (int k = 0; k < 4 && 4 * i + k < n; ++k)
      narrow(2.0F * static_cast<float>(words.at[k] >> 8) / 16777216.0F - 1.0F, to[4 * i + k]);
  }
}

}  // namespace

void uniform(Stream stream, DType type, Index n, std::uint64_t seed, void* to) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "uniform", {.blocks = strided_blocks(cover(n, 4), 256)}, uniform_kernel<T>, n, seed,
           static_cast<T*>(to));
  });
}

}  // namespace orrery::kernels::cuda
