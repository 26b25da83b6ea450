// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/analysis/lanes.h"
#include "sim/scheduling/gantt.h"
#include "sim/scheduling/traces.h"

namespace orrery::sim {
namespace {

constexpr const char* kSwf =
    "; Version: 2.2\n"
    ";  MaxProcs: 64\n"
    "\n"
    "  1   100  -1  3600  16  -1 -1  32  7200 -1 1  7 2 -1 3 -1 -1 -1\r\n"
    "2 160 5 60 8 -1 -1 -1 -1 -1 1 9 2 -1 3 -1 -1 -1\n"
    "3\t170 5 -1 8 -1 -1 -1 -1 -1 0 9 2 -1 3 -1 -1 -1\n"  // no run time
    "4 180 5 60 -1 -1 -1 -1 -1 -1 5 9 2 -1 3 -1 -1 -1\n"  // no processors
    "5 190 5 60 65 -1 -1 -1 -1 -1 1 9 2 -1 3 -1 -1 -1";   // more than there are

TEST(Traces, ReadsTheStandardWorkloadFormat) {
  const TraceRead t = read_trace(kSwf, "t.swf", {.devices = 64});
  ASSERT_EQ(t.queue.jobs.size(), 2U);
  const ClusterJob &a = t.queue.jobs[0], &b = t.queue.jobs[1];
  EXPECT_EQ(a.name, "job 1");
  EXPECT_EQ(a.submit, ticks(0.0));  // the first
  EXPECT_EQ(a.devices, 32);         // asked for
  EXPECT_EQ(a.work, ticks(3600.0));
  EXPECT_EQ(a.requested, ticks(7200.0));
  EXPECT_EQ(b.submit, ticks(60.0));
  EXPECT_EQ(b.devices, 8);  // what it had, as it asked for nothing
  EXPECT_FALSE(b.requested);
  EXPECT_EQ(t.queue.tenants[1].name, "user 9");
  EXPECT_EQ(t.without_time, 1);
  EXPECT_EQ(t.without_devices, 1);
  EXPECT_EQ(t.too_large, 1);
  const TraceRead by_group = read_trace(kSwf, "t.swf", {.tenant = TraceTenant::kGroup, .devices = 64});
  ASSERT_EQ(by_group.queue.tenants.size(), 1U);
  EXPECT_EQ(by_group.queue.tenants[0].name, "group 2");
}

TEST(Traces, ReadsColumns) {
  const char* text =
      "job_id,user,vc,gpu_num,cpu_num,state,submit_time,duration,queue\n"
      "77,ann,vc1,8,64,COMPLETED,2020-02-29 23:59:30,120,0\n"
      "78,\"bob, jr\",vc2,0,64,COMPLETED,2020-02-29 23:59:40,120,0\n"
      "79,\"bob, jr\",vc2,1,6,CANCELLED,2020-03-01T00:00:30+08:00,0.5,0\n";
  const TraceRead t = read_trace(text, "t.csv", {.format = TraceFormat::kCsv, .devices = 64});
  ASSERT_EQ(t.queue.jobs.size(), 2U);
  EXPECT_EQ(t.without_devices, 1);
  EXPECT_EQ(t.queue.jobs[1].submit, ticks(60.0));  // a leap day
  EXPECT_EQ(t.queue.jobs[1].work, ticks(0.5));
  EXPECT_EQ(t.queue.tenants[1].name, "user bob, jr");
}

void refused(const std::string& text, TraceFormat format, const std::string& where,
             const std::string& words) {
  try {
    read_trace(text, "t", {.format = format, .devices = 64});
    ADD_FAILURE() << "is read: " << text;
  } catch (const InputError& e) {
    EXPECT_EQ(e.where(), where);
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
  }
}

TEST(Traces, NameTheLineThatIsWrong) {
  refused("; x\n1 2 3\n", TraceFormat::kSwf, "line 2", "has 3 fields");
  refused("1 x 0 60 8 0 0 8 60 0 1 1 1 1 1 1 0 0\n", TraceFormat::kSwf, "line 1", "\"x\" is not a number");
  refused("1 1e300 0 60 8 0 0 8 60 0 1 1 1 1 1 1 0 0\n", TraceFormat::kSwf, "line 1", "out of range");
  refused("1 nan 0 60 8 0 0 8 60 0 1 1 1 1 1 1 0 0\n", TraceFormat::kSwf, "line 1", "not a number");
  refused("1 0 0 1e11 8 0 0 8 60 0 1 1 1 1 1 1 0 0\n", TraceFormat::kSwf, "line 1", "9999 days");
  refused("job_id,user,submit_time,duration\n", TraceFormat::kCsv, "line 1", "no column \"gpu_num\"");
  const std::string head = "user,gpu_num,submit_time,duration\n";
  refused(head + "a,1,2020-13-01 00:00:00,5\n", TraceFormat::kCsv, "line 2", "is not a date");
  refused(head + "a,1,soon,5\n", TraceFormat::kCsv, "line 2", "\"soon\" is not a number");
  refused(head + "a,1,0\n", TraceFormat::kCsv, "line 2", "has 3 cells");
}

TEST(Traces, QueuesOfColumnsAreTimes) {
  const TraceOptions options{.format = TraceFormat::kCsv, .tenant = TraceTenant::kQueue, .devices = 8};
  EXPECT_THROW(read_trace("user,gpu_num,submit_time,duration,queue\n", "t", options), InputError);
}

TEST(Gantt, HasAProcessForEachNode) {
  JobQueue queue{{}, {{"a", 1, {}}, {"b", 1, {}}}};
  for (const std::int64_t devices : {16, 3, 4, 1}) {
    ClusterJob j;
    j.name = fmt::format("of {}", devices);
    j.devices = devices;
    j.work = ticks(100.0);
    queue.jobs.push_back(j);
  }
  queue.jobs[3].tenant = 1;
  queue.jobs[3].submit = ticks(50.0);
  const ClusterNodes nodes = plain_nodes(3, 8, 2);
  const Timeline t = gantt(queue, nodes, run_schedule(queue, {}, nodes));
  EXPECT_EQ(t.rank_labels,
            (std::vector<std::string>{"node 0 (switch 0)", "node 1 (switch 0)", "node 2 (switch 1)"}));
  ASSERT_EQ(t.slices.size(), 5U);
  std::vector<std::string> seen;
  for (const Slice& s : t.slices) {
    seen.push_back(fmt::format("{} {} {} {}", t.names[static_cast<std::size_t>(s.name)], s.rank,
                               t.streams[static_cast<std::size_t>(s.stream)],
                               t.segments[static_cast<std::size_t>(s.segment)]));
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"of 16 0 node a", "of 16 1 node a", "of 3 2 node a",
                                            "of 4 2 beside 1 a", "of 1 2 beside 2 b"}));
  EXPECT_EQ(t.slices[4].start, from_seconds(50));
  EXPECT_EQ(t.slices[4].end, from_seconds(150));
  // The window's index: a lane for each job of node 2, which three share, and one of each other node.
  const Lanes lanes(t);
  EXPECT_EQ(lanes.all().size(), 5U);
  EXPECT_EQ(lanes.of(2).size(), 3U);
  EXPECT_EQ(lanes.busy(lanes.of(2)[0], Time{0}, from_seconds(1000)), from_seconds(100));
  // Readers of a timeline get it back.
  const Timeline back = from_binary(to_binary(t), "t");
  EXPECT_EQ(back.slices.size(), 5U);
  const std::string chrome = to_chrome_trace(t);
  EXPECT_EQ(from_chrome_trace(parse_json(chrome, "t"), "t").rank_labels, t.rank_labels);
}

TEST(Gantt, ScalesLongSchedules) {
  JobQueue queue{{}, {{"a", 1, {}}}};
  queue.jobs.emplace_back();
  queue.jobs[0].work = ticks(100 * kSecondsPerDay);
  const ClusterNodes nodes = plain_nodes(1, 1, 1);
  const Timeline t = gantt(queue, nodes, run_schedule(queue, {}, nodes));
  EXPECT_EQ(t.slices[0].end, from_seconds(8640));
  EXPECT_NE(t.source.find("1000 s of it are one here"), std::string::npos);
  EXPECT_EQ(from_chrome_trace(parse_json(to_chrome_trace(t), "t"), "t").slices[0].end, t.slices[0].end);
}

}  // namespace
}  // namespace orrery::sim
