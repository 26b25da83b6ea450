// SPDX-License-Identifier: Apache-2.0
//
// A program as a device's streams take it: its ops in issue order, each on its stream, with an event for
// every count that another stream waits for. Needs no device. Internal to exec/cuda.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace orrery::exec::cuda {

struct Issue {
  std::int32_t step, op;                   // of RankClass::steps, and of the step's segment
  std::int32_t first_wait = 0, waits = 0;  // range in IssueOrder::waits
  std::int32_t event = -1;                 // recorded behind it; -1: nobody waits for it
};

struct IssueOrder {
  std::vector<Issue> ops;
  std::vector<std::int32_t> waits;  // events
  std::int32_t events = 0;
};

// A stream does not wait again for what it, or a stream it waited for, has waited for already. Throws Error
// when an op waits for one that is issued later: streams would wait for an event of nothing.
IssueOrder issue_order(const program::RankClass& rank, const std::vector<program::Stream>& streams);

}  // namespace orrery::exec::cuda
