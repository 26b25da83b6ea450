// SPDX-License-Identifier: Apache-2.0
//
// Dumps of PyTorch's flight recorder (TORCH_NCCL_TRACE_BUFFER_SIZE, torch/distributed/flight_recorder): what
// each rank of a job that hangs has asked of its process groups, as pickles or JSON, versions 2.0 to 2.10.
// The question is which rank holds the others up:
//
//   a group is stuck at the first exchange that a member has called and not all have completed
//   a member that has not called it is missing; those that have called it wait for the missing ones
//   a rank that is missing somewhere and waits nowhere is where to look first
//
// Times of the dump are those of a watchdog that polls, and say nothing of durations.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"

namespace orrery::trace {

enum class CallState { kScheduled, kStarted, kCompleted };
constexpr auto enum_names(CallState) {
  return std::array{std::pair{CallState::kScheduled, "scheduled"}, std::pair{CallState::kStarted, "started"},
                    std::pair{CallState::kCompleted, "completed"}};
}

// What a rank asked of a group.
struct Call {
  std::string group;          // name
  std::int64_t sequence = 0;  // of the group's collectives
  std::string name;           // "all_reduce"
  std::string what;           // sizes and types: "[[1024]] Float"
  CallState state{};
  std::int64_t created_ns = 0;  // since 1970, by the rank's host
};

struct GroupConfig {
  std::string name, description;
  std::vector<std::int64_t> ranks;
};

struct RankDump {
  std::string file;
  std::int64_t rank = 0;
  std::vector<GroupConfig> groups;
  std::vector<Call> calls;  // collectives, in order
};

// The rank is the number at the end of the file's name, before an extension. Throws InputError.
RankDump load_dump(const std::filesystem::path& file);

struct StuckGroup {
  GroupConfig group;
  std::int64_t sequence = 0;
  std::string name, what;                                    // of most members that called it
  std::vector<std::int64_t> missing;                         // members that have not called it
  std::vector<std::int64_t> waiting;                         // that have called it
  std::vector<std::int64_t> begun;                           // of them, those whose device has begun it
  std::vector<std::int64_t> unknown;                         // members without a dump
  std::vector<std::pair<std::int64_t, std::string>> others;  // members that called something else instead
  std::int64_t created_ns = 0;                               // of the first call
};

struct Hang {
  std::vector<StuckGroup> groups;     // the one that is stuck longest first
  std::vector<std::int64_t> look_at;  // missing somewhere, waiting nowhere
};

// Throws InputError where two dumps are of one rank.
Hang find_hang(const std::vector<RankDump>& dumps);

}  // namespace orrery::trace
