// SPDX-License-Identifier: Apache-2.0
//
// Values that Python's pickle wrote, of protocol 2 to 4, as JSON: dictionaries with texts as keys, lists,
// tuples, numbers, texts, None. Nothing is ever run: what would make an object of a class is refused.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"

namespace orrery::trace {

bool is_pickle(std::string_view bytes);
// Throws InputError naming the byte.
Json from_pickle(std::string_view bytes, const std::string& file);

}  // namespace orrery::trace
