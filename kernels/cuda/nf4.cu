// SPDX-License-Identifier: Apache-2.0
//
// 4-bit weights to numbers of 16 bits or fp32. Floor: 4.13 or 4.5 bits read and an element written.
#include "kernels/cpu/dynamic_numbers.h"
#include "kernels/cpu/nf4.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

struct Nf4Tables {
  float number[16], scale[256];
};

// A thread takes the eight elements of four bytes, which have one scale. Threads of a warp read several of
// the tables' numbers at once: from shared memory, where sixteen stand in banks of their own.
constexpr int kElements = 8;
constexpr std::int64_t kBlock = Nf4Layout::kBlock, kScaleBlock = Nf4Layout::kScaleBlock;

// `factors` and `mean` of doubly quantised scales, which are bytes then.
template <class T>
__global__ void dequantise_kernel(std::int64_t n, Nf4Tables tables, const std::uint8_t* codes,
                                  const std::uint8_t* scales, const float* factors, const float* mean, T* x) {
  ORRERY_SHARED(shared, Nf4Tables[1]);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < 16; i += threads) shared[0].number[i] = tables.number[i];
  for (int i = thread; i < 256; i += threads) shared[0].scale[i] = tables.scale[i];
  __syncthreads();
  for (std::int64_t i = thread_of_grid(); i * kElements < n; i += threads_of_grid()) {
    const std::int64_t first = i * kElements, block = first / kBlock;
    const float scale = factors != nullptr
                            ? shared[0].scale[scales[block]] * factors[block / kScaleBlock] + *mean
                            : reinterpret_cast<const float*>(scales)[block];
    for (std::int64_t k = 0; k < kElements && first + k < n; ++k) {
      const unsigned both = codes[(first + k) / 2];
      narrow(shared[0].number[k % 2 == 0 ? both >> 4 : both & 15] * scale, x[first + k]);
    }
  }
}

}  // namespace

void dequantise(Stream stream, DType type, const Nf4Layout& layout, const void* stored, void* x) {
  Nf4Tables tables{};
  std::copy(kNf4.begin(), kNf4.end(), tables.number);
  std::copy(dynamic_numbers().begin(), dynamic_numbers().end(), tables.scale);
  const auto* const codes = static_cast<const std::uint8_t*>(stored);
  const auto at = [&](std::int64_t offset) {
    return layout.doubled() ? reinterpret_cast<const float*>(codes + offset) : nullptr;
  };
  with_type(type, [&]<class T>(T) {
    launch(stream, "dequantise", {.blocks = strided_blocks(cover(layout.elements(), kElements), 256)},
           dequantise_kernel<T>, layout.elements(), tables, codes, codes + layout.scales_at(),
           at(layout.factors_at()), at(layout.mean_at()), static_cast<T*>(x));
  });
}

}  // namespace orrery::kernels::cuda
