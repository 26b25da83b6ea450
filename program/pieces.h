// SPDX-License-Identifier: Apache-2.0
//
// Segments in pieces, for forwards and backwards that run side by side (Plan::overlap_exchanges). A piece
// ends where compute needs what an exchange between the ranks of experts brings. The piece that comes next in
// the schedule is of another micro-batch, and has compute while the exchange runs.
#pragma once

#include "program/program.h"

namespace orrery::program {

// The pieces that a segment was cut into: its first one, and how many.
struct Cut {
  std::int32_t first = 0, pieces = 1;
};

// Ops of a segment that pieces begin with, after the first one: compute that reads what an exchange of the
// piece before it brought.
std::vector<std::int32_t> cuts_of(const Segment& segment, StreamIndex exchanges);

// Cuts a rank's segments. By segment as they were.
std::vector<Cut> cut_segments(RankClass& rank, StreamIndex exchanges);

// The order in which the pieces of a forward and of a backward take turns, each counted from 0. The backward
// begins; as far as one is, so far is the other.
struct Turn {
  std::int32_t piece = 0;
  bool of_forward = false;
};
std::vector<Turn> side_by_side(std::size_t forward, std::size_t backward);

}  // namespace orrery::program
