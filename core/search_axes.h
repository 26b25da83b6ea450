// SPDX-License-Identifier: Apache-2.0
//
// The axes that a search varies, against the software that has to run them.
#pragma once

#include "core/scenario.h"

namespace orrery {

// Fails at the first listed value that the stack's software has not; `at` is the search's place.
void check_search(const Stack& stack, const Search& search, const Cursor& at);

// Drops such values from the lists.
void keep_runnable(const Stack& stack, Search& search);

}  // namespace orrery
