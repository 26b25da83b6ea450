// SPDX-License-Identifier: Apache-2.0
//
// Pickles of PyTorch's flight recorder.
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "trace/pickle.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    (void)orrery::trace::from_pickle({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const orrery::Error&) {
  }
  return 0;
}
