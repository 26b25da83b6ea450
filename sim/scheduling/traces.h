// SPDX-License-Identifier: Apache-2.0
//
// Public traces of clusters as queues of jobs.
//
//   TraceRead t = read_trace(text, "kit_fh2.swf", {.tenant = TraceTenant::kUser});
//
// Standard Workload Format (Chapin et al. 1999; the Parallel Workloads Archive): lines of 18 numbers, -1 for
// what is unknown; lines that begin with ';' are comments. Used are 1 job, 2 submission in seconds, 4 run
// time, 8 processors asked for (5, those it had, where it is unknown), 9 time asked for, 12 user, 13 group,
// 15 queue. A processor is a device. Which job precedes which (17, 18) is not used.
//
// Comma-separated with a line of names, as Helios (SenseTime, 2020) and Acme (Shanghai AI Lab, 2023) publish
// them: gpu_num, duration in seconds, submit_time ("2020-04-01 00:00:34", or seconds), user or vc, and
// job_id where it is there. Other columns are passed over.
//
// Jobs without devices, without run time, or larger than the cluster cannot run; they are left out and
// counted. The first submission is time 0.
#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "sim/scheduling/schedule.h"

namespace orrery::sim {

enum class TraceFormat { kSwf, kCsv };
constexpr auto enum_names(TraceFormat) {
  return std::array{std::pair{TraceFormat::kSwf, "swf"}, std::pair{TraceFormat::kCsv, "csv"}};
}

// What counts as a tenant: field 12, 13 or 15; columns user or vc.
enum class TraceTenant { kUser, kGroup, kQueue };
constexpr auto enum_names(TraceTenant) {
  return std::array{std::pair{TraceTenant::kUser, "user"}, std::pair{TraceTenant::kGroup, "group"},
                    std::pair{TraceTenant::kQueue, "queue"}};
}

struct TraceOptions {
  TraceFormat format = TraceFormat::kSwf;
  TraceTenant tenant = TraceTenant::kUser;
  std::int64_t devices = 0;  // of the cluster
};

struct TraceRead {
  JobQueue queue;
  std::int64_t without_devices = 0, without_time = 0, too_large = 0;
  std::int64_t left_out() const { return without_devices + without_time + too_large; }
};

// Throws InputError at a line.
TraceRead read_trace(std::string_view text, const std::string& file, const TraceOptions& options);

}  // namespace orrery::sim
