// SPDX-License-Identifier: Apache-2.0
//
// Memory that this process may still take, by what the system says.
#pragma once

#include <filesystem>

#include "core/units.h"

namespace orrery::exec {

// The least of what /proc/meminfo says is available and what the process's control groups (versions 1 and 2)
// leave of their limits. `root` is "/" but in tests. The largest number where the system does not say.
Bytes available_memory(const std::filesystem::path& root = "/");

}  // namespace orrery::exec
