// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/nf4.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/dynamic_numbers.h"

namespace orrery::kernels {
namespace {

template <class T>
T read(const std::byte* from, Index i) {
  T out;
  std::memcpy(&out, from + i * static_cast<Index>(sizeof(T)), sizeof(T));
  return out;
}
template <class T>
void write(std::byte* to, Index i, T value) {
  std::memcpy(to + i * static_cast<Index>(sizeof(T)), &value, sizeof(T));
}

float largest_magnitude(const float* x, Index n) {
  float most = 0;
  for (Index i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}

// What a scale is after it was stored.
float scale_of(const Nf4Layout& l, const std::byte* stored, Index i) {
  const std::byte* const scales = stored + l.scales_at();
  if (!l.doubled()) return read<float>(scales, i);
  const float factor = read<float>(stored + l.factors_at(), i / Nf4Layout::kScaleBlock);
  return dynamic_numbers()[std::to_integer<std::size_t>(scales[i])] * factor +
         read<float>(stored + l.mean_at(), 0);
}

}  // namespace

void quantise(const Nf4Layout& l, const float* x, std::byte* stored) {
  std::fill_n(stored, l.bytes(), std::byte{0});
  std::vector<float> scales(static_cast<std::size_t>(l.scales()));
  for (Index b = 0; b < l.scales(); ++b) {
    const Index first = b * Nf4Layout::kBlock, n = std::min(Nf4Layout::kBlock, l.elements() - first);
    const float scale = largest_magnitude(x + first, n);
    scales[static_cast<std::size_t>(b)] = scale;
    for (Index i = first; i < first + n; ++i) {
      const auto code = static_cast<unsigned>(nearest(kNf4, scale > 0 ? x[i] / scale : 0.0F));
      stored[i / 2] |= std::byte(i % 2 == 0 ? code << 4U : code);
    }
  }
  if (!l.doubled()) {
    std::memcpy(stored + l.scales_at(), scales.data(), scales.size() * sizeof(float));
    return;
  }
  double sum = 0;
  for (const float s : scales) sum += static_cast<double>(s);
  const auto mean = static_cast<float>(sum / static_cast<double>(std::max<std::size_t>(1, scales.size())));
  write(stored + l.mean_at(), 0, mean);
  for (float& s : scales) s -= mean;
  for (Index f = 0; f < l.factors(); ++f) {
    const Index first = f * Nf4Layout::kScaleBlock, n = std::min(Nf4Layout::kScaleBlock, l.scales() - first);
    const float factor = largest_magnitude(scales.data() + first, n);
    write(stored + l.factors_at(), f, factor);
    for (Index i = first; i < first + n; ++i) {
      const float s = scales[static_cast<std::size_t>(i)];
      stored[l.scales_at() + i] =
          std::byte(static_cast<unsigned>(nearest(dynamic_numbers(), factor > 0 ? s / factor : 0.0F)));
    }
  }
}

void dequantise(const Nf4Layout& l, const std::byte* stored, float* x) {
  for (Index b = 0; b < l.scales(); ++b) {
    const float scale = scale_of(l, stored, b);
    const Index first = b * Nf4Layout::kBlock, end = std::min(first + Nf4Layout::kBlock, l.elements());
    for (Index i = first; i < end; ++i) {
      const auto both = std::to_integer<unsigned>(stored[i / 2]);
      x[i] = kNf4[i % 2 == 0 ? both >> 4U : both & 15U] * scale;
    }
  }
}

}  // namespace orrery::kernels
