// SPDX-License-Identifier: Apache-2.0
//
// What goes between a device and the memory of its host, and between that and the host's drives.
//   Copy    reads {tensor}  writes {the same in the other memory}    on the stream of its way
//   Narrow  reads {master copy}  writes {parameter}                  the master rounded, on the device
#pragma once

#include "program/ops/common.h"

namespace orrery::program::ops {

enum class CopyWay : std::uint8_t { kToHost, kFromHost, kToDrives, kFromDrives };
constexpr bool is_of_drives(CopyWay way) {
  return way == CopyWay::kToDrives || way == CopyWay::kFromDrives;
}

struct Copy {
  static constexpr std::string_view kName = "copy";
  static constexpr Nature kNature = Nature::kCopy;
  std::int64_t elements = 0, element_bytes = 0;
  CopyWay way = CopyWay::kToHost;
  static constexpr auto fields() { return std::tuple(&Copy::elements, &Copy::element_bytes, &Copy::way); }
  constexpr Operands operands() const { return {}; }
  constexpr std::int64_t bytes(const ElementBytes&) const { return elements * element_bytes; }
};

struct Narrow {
  static constexpr std::string_view kName = "narrow";
  static constexpr Nature kNature = Nature::kState;
  std::int64_t elements = 0;
  static constexpr auto fields() { return std::tuple(&Narrow::elements); }
  constexpr Operands operands() const { return {{elements}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return elements * (4 + e.parameter.parameter); }
};

}  // namespace orrery::program::ops
