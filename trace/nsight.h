// SPDX-License-Identifier: Apache-2.0
//
// Nsight Systems' exports to SQLite (nsys export --type sqlite): kernels, copies and sets of memory, times in
// nanoseconds since the capture began. Tables are there only where something was recorded, so each but the
// kernels' may be missing. Steps are NVTX ranges named "ProfilerStep#12", "iteration 12" or "step 12".
#pragma once

#include <filesystem>
#include <vector>

#include "trace/device_trace.h"

namespace orrery::trace {

// A trace for each device. Throws InputError where the file is no such export.
std::vector<DeviceTrace> from_nsight(const std::filesystem::path& file);

}  // namespace orrery::trace
