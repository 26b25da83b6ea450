// SPDX-License-Identifier: Apache-2.0
//
// Names of plans in tables.
#pragma once

#include <algorithm>

#include "core/plan.h"

namespace orrery::cli {

// Columns that the names of some plans take, and at least so many that most tables look alike.
template <class Rows>
std::size_t width_of_names(const Rows& rows, std::size_t least = 52) {
  for (const auto& row : rows) least = std::max(least, short_name(row.plan).size());
  return least;
}

}  // namespace orrery::cli
