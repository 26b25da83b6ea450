// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/dropout.h"

#include <algorithm>

namespace orrery::kernels {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

void keep(const Dropout& d, Index sample, Index row, Index columns, std::uint8_t* mask) {
  const auto at = static_cast<std::uint64_t>(d.first_sample + sample);
  const std::array key{static_cast<std::uint32_t>(d.seed), static_cast<std::uint32_t>(d.seed >> 32)};
  const double dropped = d.probability * 4294967296.0;
  for (Index j = 0; j < columns; j += 4) {
    const auto words =
        philox({static_cast<std::uint32_t>(j / 4), static_cast<std::uint32_t>(row),
                static_cast<std::uint32_t>(at), d.site ^ static_cast<std::uint32_t>(at >> 32) << 16},
               key);
    for (Index i = 0; i < std::min<Index>(4, columns - j); ++i)
      mask[j + i] = static_cast<double>(words[static_cast<std::size_t>(i)]) >= dropped;
  }
}

void dropout_residual(const Dropout& d, const DroppedRows& s, const float* x, const float* branch,
                      const float* bias, float* y, std::uint8_t* mask) {
  const float scale = d.scale();
  for (Index r = 0; r < s.rows; ++r, x += s.width, branch += s.width, y += s.width, mask += s.width) {
    const Index token = s.first_row + r;
    keep(d, token / s.seq, s.share.position(token % s.seq), s.width, mask);
    for (Index j = 0; j < s.width; ++j) {
      const float whole = bias != nullptr ? branch[j] + bias[j] : branch[j];
      y[j] = x[j] + whole * (mask[j] != 0 ? scale : 0.0F);
    }
  }
}

void dropout_grad(const Dropout& d, Index n, const float* dy, const std::uint8_t* mask, float* dx) {
  const float scale = d.scale();
  for (Index i = 0; i < n; ++i) dx[i] = dy[i] * (mask[i] != 0 ? scale : 0.0F);
}

}  // namespace orrery::kernels
