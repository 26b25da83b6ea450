// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace orrery::cli {

// "0.1.0 (79b4a1d)", with the commit that was built where it is known; "+" behind it: with changes.
std::string version();

}  // namespace orrery::cli
