// SPDX-License-Identifier: Apache-2.0
//
// A communicator with a slower link than the machine's: every call lasts at least as long as a ring over
// links of this bandwidth and latency would take, and what a rank sends at the same time shares its link
// evenly, as does what it receives; a collective does both. With it a laptop runs what a cluster's network
// would do to a plan.
#pragma once

#include <memory>

#include "core/units.h"
#include "exec/communicator.h"

namespace orrery::exec {

struct LinkOptions {
  Bandwidth bandwidth;  // of each rank, one direction; zero: the link is not emulated
  Time latency;         // of a hop
};

// `inner` must outlive it. A call that the link alone would keep longer than the deadline throws Error.
std::unique_ptr<Communicator> emulate_link(Communicator& inner, const LinkOptions& link,
                                           std::chrono::milliseconds deadline);

}  // namespace orrery::exec
