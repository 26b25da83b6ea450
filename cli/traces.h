// SPDX-License-Identifier: Apache-2.0
//
// What the commands say of traces that were merged: clocks, exchanges, and who waited for whom.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "trace/merge.h"

namespace orrery::cli {

// "1 rank", "2 ranks"
std::string counted(std::size_t n, const char* one, const char* many);
// By process; -1 where the trace does not say.
std::vector<std::int64_t> ranks_of(const trace::Merged& merged);
// Whether nearly all collectives have all their members in the traces, so that waits are known.
bool tells_waits(const trace::Merged& merged);
void print_merged(const trace::Merged& merged, std::size_t top);
Json json_of(const trace::Merged& merged);

}  // namespace orrery::cli
