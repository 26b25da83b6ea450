// SPDX-License-Identifier: Apache-2.0
//
// Any bytes are a data set that is predicted, or an InputError. The first byte: JSON rows, or a kernel table.
#include <cstdint>
#include <string>

#include "sim/calibration/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  if (size == 0) return 0;
  static const DataFolders folders{std::filesystem::path(ORRERY_ROOT)};
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (data[0] % 2 == 1) {
      (void)sim::validate_kernels(text, "fuzz.csv", folders);
      return 0;
    }
    const Json rows = parse_json(text, "fuzz.json");
    constexpr std::size_t kQuick = 4;
    if (!rows.is_array() || rows.size() > kQuick) return 0;
    (void)sim::validate_training(rows, "fuzz.json", folders);
    (void)sim::validate_collectives(rows, "fuzz.json", folders);
  } catch (const Error&) {
  }
  return 0;
}
