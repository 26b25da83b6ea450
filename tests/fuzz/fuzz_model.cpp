// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/scenario.h"

// Any bytes are either a Hugging Face configuration or an InputError.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const Cursor at{"fuzz.json", ""};
  try {
    (void)import_hugging_face(parse_json({reinterpret_cast<const char*>(data), size}, at.file), at);
  } catch (const InputError&) {
  }
  return 0;
}
