// SPDX-License-Identifier: Apache-2.0
//
// Dumps of PyTorch's flight recorder (torch/distributed/flight_recorder): what each rank of a job that hangs
// has asked of its process groups, as pickles or JSON, versions 2.0 to 2.10. The question is which rank holds
// the others up:
//
//   a group is stuck at the first collective that a member has called and not all have completed
//   a member that has not called it is missing; those that have called it wait for the missing ones
//   a rank with a send or receive that is not completed waits for its peer
//   a rank that others wait for and that waits nowhere is where to look first
//
// The recorder keeps the last calls of all groups together. What a member has done beyond them is read from
// pg_status where the dump has it; else a member whose calls are lost is not accused. Times are those of a
// watchdog that polls, and say nothing of durations; that a device has begun a call is known only where the
// job ran with TORCH_NCCL_ENABLE_TIMING.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
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
  std::string name;           // "all_reduce", "recv 1<-0"
  std::string what;           // sizes and types: "[[1024]] Float"
  CallState state{};
  std::int64_t created_ns = 0;  // since 1970, by the rank's host
};

struct GroupConfig {
  std::string name, description;
  std::vector<std::int64_t> ranks;
};

// How far a rank is in a group.
struct GroupStatus {
  std::int64_t called = -1, completed = -1;  // the last numbers
};

struct RankDump {
  std::string file;
  std::int64_t rank = 0;
  std::vector<GroupConfig> groups;
  std::map<std::string, GroupStatus> status;  // by group; none where the dump does not say
  std::vector<Call> calls, transfers;         // collectives, and sends and receives, in order
  bool whole = true;                          // the recorder has lost no call
  bool timed = false;                         // it knows when devices begin
};

// The rank is the number at the end of the file's name, before an extension. Throws InputError.
RankDump load_dump(const std::filesystem::path& file);

struct StuckGroup {
  GroupConfig group;
  bool configured = true;  // else only who called it is known
  std::int64_t sequence = 0;
  std::string name, what;             // of most members that called it
  std::vector<std::int64_t> missing;  // members that have not called it
  std::vector<std::int64_t> waiting;  // that have called it
  std::vector<std::int64_t> begun;    // of them, those whose device is known to have begun it
  std::vector<std::int64_t> no_dump;  // members without a dump
  std::vector<std::int64_t> lost;     // whose recorder does not reach back so far
  std::vector<std::pair<std::int64_t, std::string>> others;  // members that called something else instead
  std::int64_t created_ns = 0;                               // of the first call
};

// A send or receive that is not completed.
struct StuckTransfer {
  std::int64_t rank = 0;
  std::optional<std::int64_t> peer;  // nothing where the call or its group does not say
  std::string group, name;
};

struct Hang {
  std::vector<StuckGroup> groups;  // the one that is stuck longest first
  std::vector<StuckTransfer> transfers;
  bool timed = false;                 // some dump says when devices begin
  std::vector<std::int64_t> look_at;  // others wait for them, and they wait nowhere
  std::vector<std::int64_t> circle;   // where there are none: others wait for them, and they wait for others
};

// Throws InputError where two dumps are of one rank.
Hang find_hang(const std::vector<RankDump>& dumps);

}  // namespace orrery::trace
