// SPDX-License-Identifier: Apache-2.0
#include "exec/crc32c.h"

#include <array>

namespace orrery::exec {

std::uint32_t crc32c(std::string_view bytes, std::uint32_t before) {
  static const std::array<std::uint32_t, 256> kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? c >> 1 ^ 0x82f63b78U : c >> 1;
      table[i] = c;
    }
    return table;
  }();
  std::uint32_t crc = ~before;
  for (const char b : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(b)) & 0xff] ^ crc >> 8;
  return ~crc;
}

}  // namespace orrery::exec
