// SPDX-License-Identifier: Apache-2.0
//
// How long collectives of a profiled run took, as curves of a link profile: from the last member's beginning
// to the last end, the median over exchanges of one size, kind and number of members. Only exchanges count
// whose size is known and whose members are all in the traces (who is not may have come last), on one node.
#pragma once

#include <string>
#include <vector>

#include "core/links.h"
#include "trace/merge.h"

namespace orrery::trace {

std::vector<CollectiveCurve> curves_of(const Merged& merged, const std::string& system);

}  // namespace orrery::trace
