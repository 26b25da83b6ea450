// SPDX-License-Identifier: Apache-2.0
//
// What nccl-tests prints, as a curve: the text of all_reduce_perf, all_gather_perf, reduce_scatter_perf,
// alltoall_perf, .. on one node, or its JSON (-J). The out-of-place time counts.
#pragma once

#include <optional>
#include <string>

#include "core/links.h"

namespace orrery::sim {

// The name of the test and the ranks are taken from the text where it says them, else from what is given.
// Throws InputError naming the line.
CollectiveCurve read_nccl_tests(const std::string& text, const std::string& file,
                                std::optional<CollectiveKind> kind, std::int64_t ranks);

}  // namespace orrery::sim
