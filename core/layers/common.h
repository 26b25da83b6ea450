// SPDX-License-Identifier: Apache-2.0
//
// What the structs of layers share.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "core/fields.h"

namespace orrery {

// Where a field of the layer stands, in the file that it was read from.
using FieldPlace = std::function<Cursor(std::string_view field)>;

// A number that tensor ranks share evenly, and of what.
struct SharedCount {
  std::int64_t count = 0;
  const char* what = "";
};

}  // namespace orrery
