// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C (Castagnoli), as RFC 3720 appendix B.4 has it.
#pragma once

#include <cstdint>
#include <string_view>

namespace orrery::exec {

// Of bytes that follow others whose checksum is `before`.
std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);

}  // namespace orrery::exec
