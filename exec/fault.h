// SPDX-License-Identifier: Apache-2.0
//
// Injected faults: what they do to the rank that they strike. Internal to exec/.
#pragma once

#include <cstdint>
#include <span>

#include "core/run_life.h"
#include "exec/abort.h"

namespace orrery::exec {

// A process that dies is killed, and the others notice; a thread that dies throws.
enum class RankIs { kThread, kProcess };

// Where the rank begins the step, from 1. Returns unless a fault strikes it there. A frozen rank waits here
// until the others give it up, and throws their reason.
void strike(std::span<const Fault> faults, std::int64_t rank, std::int64_t step, RankIs is,
            const Abort& abort);

// Whether the rank dies where it begins the step.
bool dies(std::span<const Fault> faults, std::int64_t rank, std::int64_t step);

// Whether the rank cannot write its part of the checkpoint after the step.
bool disk_fails(std::span<const Fault> faults, std::int64_t rank, std::int64_t step);

}  // namespace orrery::exec
