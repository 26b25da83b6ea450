// SPDX-License-Identifier: Apache-2.0
//
// What happened in a part of a timeline: some processes, between two times. Parts of slices that reach out
// of it do not count.
//
//   time of a process = compute + idle by cause            (exactly)
//   a gap of the compute stream is put down to the stream of that process whose op ended last before the
//   gap did, as the op that follows waited for it; to nothing ("launch") where the gap began later than that
//   end, and to "end of step" where nothing follows.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/analysis/lanes.h"

namespace orrery::sim {

struct Part {
  std::vector<std::int32_t> ranks;  // processes
  Time from, to;
};

// Whether streams do not tell what their ops are: other software exchanges on streams of kernels, and
// computes and copies on several.
bool told_by_class(const TimelineHead& timeline);

// All processes.
Part whole(const Lanes& lanes, Time from, Time to);

// Ops of one kind: of one name without its layer, on one stream.
struct KindStatistics {
  std::string name;
  std::int32_t stream = 0;
  std::int64_t count = 0;    // slices that reach into the part
  Time active;               // working: from the last member's arrival to the end
  Time waiting;              // for partners
  std::int64_t payload = 0;  // bytes, of the slices' parts in the part; 0: unknown, or it computes
  double bytes_per_s() const { return active.value > 0 ? static_cast<double>(payload) / seconds(active) : 0; }
};

// Causes of idle time that are no streams.
inline constexpr const char *kLaunch = "launch", *kEndOfStep = "end of step";

// Why compute stood still.
struct Idle {
  std::string cause;  // the stream it waited for, kLaunch or kEndOfStep
  Time time;
};

// A time in which compute stood still although more was to come.
struct Gap {
  std::int32_t rank = -1;  // process
  Time from, to;
  std::string cause;  // that most of it is put down to
  Time length() const { return to - from; }
};

struct Statistics {
  Time window;  // of all processes together
  // By stream; of other software's timelines by the class of each op.
  Time compute;                       // ops that compute ran
  Time exposed;                       // a stream communicated while compute did not run
  Time hidden;                        // a stream communicated while compute ran
  std::vector<Idle> idle;             // longest first
  std::optional<Gap> longest_gap;     // the first of several
  std::vector<KindStatistics> kinds;  // longest first
};

Statistics statistics(const Lanes& lanes, const Part& part);

// "layer17/attn/qkv" and "unit3/optimizer" lose their number's prefix; other names stay.
std::string_view without_layer(std::string_view name);

}  // namespace orrery::sim
