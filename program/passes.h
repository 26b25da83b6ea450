// SPDX-License-Identifier: Apache-2.0
//
// The passes of compile() over one rank class. Internal to program/.
#pragma once

#include "program/program.h"

namespace orrery::program {

// Sends what the first `layers` of each chunk keep for their backward pass to the host's memory, and fetches
// it again while the backward pass is a layer before. What other stages sent stays where it is, and so does
// what modules of multi-token prediction keep, which stand behind the `of_model` layers of the model.
void offload_activations(RankClass& rank, std::int64_t layers, std::int64_t of_model);

// Decides each buffer's life from what the ops touch, when it is allocated and freed, how many
// instances it has, where it stands in the arena, and the peak of it all.
// `side_by_side`: as Plan::overlap_exchanges.
void place_buffers(RankClass& rank, bool side_by_side);
// Copies of a buffer that are on the device whatever is in flight: static ones, and the extra copies of what
// is sent and received.
std::int64_t copies_always_live(const RankClass& rank, const Buffer& buffer);

// Derives the waits between streams from what the ops read and write.
void link_waits(RankClass& rank);

using Counts = std::array<std::int64_t, kMostStreams>;

}  // namespace orrery::program
