// SPDX-License-Identifier: Apache-2.0
#include "trace/merge.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <fstream>

#include "core/error.h"
#include "sim/analysis/waits.h"
#include "tests/folder.h"
#include "tests/trace/traces.h"
#include "trace/curves.h"
#include "trace/kineto.h"
#include "trace/load.h"

namespace orrery::trace {
namespace {

Merged merged(const std::vector<KinetoRank>& ranks) {
  std::vector<DeviceTrace> all;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (DeviceTrace& t : from_kineto(ranks[i].trace(), "rank" + std::to_string(i)))
      all.push_back(std::move(t));
  }
  return merge(std::move(all));
}

// Two steps of four ranks: tensor parallel pairs {0, 1} and {2, 3} and replicas {0, 2} and {1, 3}. Rank 3
// comes 40 us late to all that it takes part in. All-reduces take 10 us from when the last one came, and end
// 1 us apart by rank. `ahead`: of the ranks' clocks.
std::vector<KinetoRank> four(const std::vector<double>& ahead) {
  std::vector<KinetoRank> out;
  for (int r = 0; r < 4; ++r) {
    KinetoRank& k = out.emplace_back(r, ahead[static_cast<std::size_t>(r)]);
    for (int s = 0; s < 2; ++s) {
      const double at = 1000.0 * s;
      k.step(s, at, at + 1000);
      k.kernel("gemm", 7, at + 100, 50);
      const double late = r == 3 ? 40 : 0;
      const auto meet = [&](const char* ranks, double when, bool with_late) {
        const double end = when + (with_late ? 40 : 0) + 10 + r;
        k.collective("allreduce", ranks, 1 << 20, when + late, end - when - late);
      };
      meet(r < 2 ? "[0, 1]" : "[2, 3]", at + 200, r >= 2);
      meet(r % 2 == 0 ? "[0, 2]" : "[1, 3]", at + 400, r % 2 == 1);
    }
  }
  return out;
}

TEST(Merge, ClocksAreAlignedByWhatEndsTogether) {
  const Merged m = merged(four({0, 5000, -3000, 250}));
  ASSERT_EQ(m.processes.size(), 4U);
  // Offsets, and the microsecond by which the ends of neighbours differ: rank 3 is reached over 1 or 2.
  EXPECT_NEAR(m.processes[1].ahead_us, 5001, 1e-9);
  EXPECT_NEAR(m.processes[2].ahead_us, -2998, 1e-9);
  EXPECT_NEAR(m.processes[3].ahead_us, 253, 1e-9);
  EXPECT_EQ(m.processes[3].reference, 0);
  EXPECT_EQ(m.processes[3].by, 2);
  EXPECT_EQ(m.meetings.size(), 8U);  // two pairs, twice a step, two steps
  EXPECT_EQ(m.alone, 0);
  EXPECT_NEAR(m.spread_us, 0, 1e-9);
  EXPECT_EQ(m.steps, 2);
  EXPECT_EQ(m.timeline.rank_labels[3], "rank 3, GPU 0");
}

TEST(Merge, WaitsEndWhenTheLastOneComes) {
  const Merged m = merged(four({0, 5000, -3000, 250}));
  const auto waits = sim::waited_for(sim::Lanes(m.timeline));
  ASSERT_FALSE(waits.empty());
  EXPECT_EQ(waits[0].process, 3);
  EXPECT_EQ(waits[0].exchanges, 4);
  // Ranks 1 and 2, each once a step, 40 us but for what the clocks cannot tell.
  EXPECT_NEAR(seconds(waits[0].waited), 4 * 40e-6, 8e-6);
  // A rank that nobody waited for is in no exchange the last by more than that.
  for (std::size_t i = 1; i < waits.size(); ++i) EXPECT_LT(seconds(waits[i].waited), 20e-6);
}

// The same without clocks that differ, and a trace alone: nobody knows who waited.
TEST(Merge, ATraceAloneHasNoWaits) {
  const auto ranks = four({0, 0, 0, 0});
  const Merged m = merged({ranks[0]});
  EXPECT_TRUE(m.meetings.empty());
  EXPECT_EQ(m.alone, 4);
  for (const Slice& s : m.timeline.slices) EXPECT_EQ(s.active, s.start);
}

std::string refusal(const std::vector<KinetoRank>& ranks) {
  try {
    (void)merged(ranks);
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

TEST(Merge, TracesOfTheSameRankAreRefused) {
  KinetoRank a(1, 0), b(1, 0);
  a.kernel("gemm", 7, 1, 1);
  b.kernel("gemm", 7, 1, 1);
  EXPECT_NE(refusal({a, b}).find("is of rank 1, as is rank0"), std::string::npos);
}

// Traces of other steps: as many exchanges, whose ends do not agree.
TEST(Merge, TracesThatDoNotBelongTogetherAreRefused) {
  KinetoRank a(0, 0), b(1, 0);
  for (int i = 0; i < 20; ++i) {
    a.collective("allreduce", "[0, 1]", 1 << 20, 10'000.0 * i, 100);
    b.collective("allreduce", "[0, 1]", 1 << 20, 10'000.0 * i + (i % 2 == 0 ? 4000 : -4000), 100);
  }
  EXPECT_NE(
      refusal({a, b}).find("10 of 20 exchanges that it has in common with rank0 end more than 1 ms apart"),
      std::string::npos)
      << refusal({a, b});
}

// Stage 1 of a pipeline has no group with rank 0, and a clock of its own: its ranks are aligned with each
// other.
TEST(Merge, RanksThatAreNotJoinedHaveAClockOfTheirOwn) {
  std::vector<KinetoRank> ranks;
  for (int r = 0; r < 4; ++r) {
    KinetoRank& k = ranks.emplace_back(r, r == 3 ? 5000 : 0);
    for (int i = 0; i < 4; ++i)
      k.collective("allreduce", r < 2 ? "[0, 1]" : "[2, 3]", 1 << 20, 1000.0 * i + 20 * r, 100 - 20 * r);
  }
  const Merged m = merged(ranks);
  EXPECT_EQ(m.meetings.size(), 8U);
  EXPECT_EQ(m.processes[1].reference, 0);
  EXPECT_EQ(m.processes[2].reference, 2);
  EXPECT_EQ(m.processes[3].reference, 2);
  EXPECT_NEAR(m.processes[3].ahead_us, 5000, 1e-9);
}

// What most exchanges say counts, not their mean: one of five ends 30 ms late on rank 1.
TEST(Merge, OneExchangeThatDisagreesDoesNotMoveTheClock) {
  KinetoRank a(0, 0), b(1, 400);
  for (int i = 0; i < 5; ++i) {
    a.collective("allreduce", "[0, 1]", 1 << 20, 100'000.0 * i, 50);
    b.collective("allreduce", "[0, 1]", 1 << 20, 100'000.0 * i, i == 2 ? 30'050 : 50);
  }
  const Merged m = merged({a, b});
  EXPECT_NEAR(m.processes[1].ahead_us, 400, 1e-9);
  EXPECT_EQ(m.processes[1].by, 4);
  EXPECT_EQ(m.meetings.size(), 4U);
  EXPECT_EQ(m.alone, 2);
}

// Sends and receives that order alone matches, and whose ends do not agree, say nothing of clocks.
TEST(Merge, WhatIsNotMatchedSaysNothingOfClocks) {
  KinetoRank a(0, 0), b(1, 0);
  for (int i = 0; i < 10; ++i) {
    a.kernel("ncclDevKernel_SendRecv", 20, 10'000.0 * i, 100);
    b.kernel("ncclDevKernel_SendRecv", 20, 10'000.0 * i + 1000.0 * (i + 1) * (i + 1), 100);
  }
  const Merged m = merged({a, b});
  EXPECT_EQ(m.processes[1].ahead_us, 0);
  EXPECT_EQ(m.processes[1].reference, 1);
  EXPECT_EQ(m.meetings.size(), 0U);
  EXPECT_EQ(m.alone, 20);
  EXPECT_FALSE(m.groups_said);
}

// Two groups of the same ranks count by themselves, and coalesced exchanges share a number.
TEST(Merge, GroupsOfTheSameRanksAreApart) {
  std::vector<KinetoRank> ranks;
  for (int r = 0; r < 2; ++r) {
    KinetoRank& k = ranks.emplace_back(r, 0);
    // Launched in another order on each rank, as their streams are independent.
    for (const int i : r == 0 ? std::array{0, 1} : std::array{1, 0}) {
      Json& e = k.collective("allreduce", "[0, 1]", 1 << 20, 5000.0 * i, 50);
      e["args"]["Process Group Name"] = i == 0 ? "default" : "dp";
      e["args"]["Seq"] = 0;
    }
    for (int i = 0; i < 2; ++i)
      k.collective("allreduce", "[0, 1]", 1 << 18, 20'000.0 + 100 * i, 50)["args"]["Seq"] = 7;
  }
  const Merged m = merged(ranks);
  EXPECT_EQ(m.meetings.size(), 4U);
  EXPECT_EQ(m.alone, 0);
  EXPECT_NEAR(m.spread_us, 0, 1e-9);
  // In one trace nothing meets.
  EXPECT_EQ(merged({ranks[0]}).meetings.size(), 0U);
}

// Of members that are not here nobody knows whether they came last.
TEST(Merge, GroupsInPartHaveNoWaits) {
  std::vector<KinetoRank> ranks;
  for (int r = 0; r < 2; ++r)
    ranks.emplace_back(r, 0).collective("allreduce", "[0, 1, 2, 3]", 1 << 20, 20.0 * r, 100 - 20 * r);
  const Merged m = merged(ranks);
  ASSERT_EQ(m.meetings.size(), 1U);
  EXPECT_FALSE(m.meetings[0].whole());
  for (const Slice& s : m.timeline.slices) EXPECT_EQ(s.active, s.start);
  EXPECT_TRUE(curves_of(m, "half").empty());
}

// By order of launches, not of beginnings: on rank 1 the second began first, on a stream of its own.
TEST(Merge, LaunchesGiveTheOrder) {
  std::vector<KinetoRank> ranks;
  for (int r = 0; r < 2; ++r) {
    KinetoRank& k = ranks.emplace_back(r, 0);
    k.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20, r == 0 ? 1000 : 1020, r == 0 ? 500 : 480,
             r == 0 ? 500 : 520);
    k.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 21, r == 0 ? 1010 : 1000, r == 0 ? 190 : 200, 100);
  }
  const Merged m = merged(ranks);
  ASSERT_EQ(m.meetings.size(), 2U);
  for (const Meeting& meeting : m.meetings) {
    const auto stream = [&](const Member& member) { return m.timeline.slices[member.slice].stream; };
    EXPECT_EQ(stream(meeting.here[0]), stream(meeting.here[1]));
  }
}

// Collectives over several nodes, whose devices have the same numbers, are no curves of a node.
TEST(Merge, CurvesAreOfOneNode) {
  KinetoRank a(0, 0), b(1, 0);
  a.collective("allreduce", "[0, 1]", 1 << 20, 10, 50);
  b.collective("allreduce", "[0, 1]", 1 << 20, 10, 50)["pid"] = 1;
  EXPECT_EQ(curves_of(merged({a, b}), "x").size(), 1U);
  KinetoRank other(1, 0);
  other.collective("allreduce", "[0, 1]", 1 << 20, 10, 50);
  EXPECT_TRUE(curves_of(merged({a, other}), "x").empty());
}

// Without numbers, exchanges of a rank that has one more cannot be told; NCCL's numbers tell them.
TEST(Merge, NumbersTellExchangesThatAreMissing) {
  const auto ranks = [](bool numbered) {
    std::vector<KinetoRank> out;
    for (int r = 0; r < 2; ++r) {
      KinetoRank& k = out.emplace_back(r, 100.0 * r);
      for (int i = r; i < 5; ++i) {  // rank 1's trace begins one later
        Json& e = k.collective("allreduce", "[0, 1]", 1 << 20, 1000.0 * i, 10);
        if (numbered) e["args"]["Seq"] = 70 + i;
      }
    }
    return out;
  };
  const Merged untold = merged(ranks(false)), told = merged(ranks(true));
  EXPECT_EQ(untold.meetings.size(), 0U);
  EXPECT_EQ(untold.alone, 9);
  EXPECT_EQ(untold.processes[1].reference, 1);
  EXPECT_EQ(told.meetings.size(), 4U);
  EXPECT_EQ(told.alone, 1);
  EXPECT_NEAR(told.processes[1].ahead_us, 100, 1e-9);
}

// Exchanges of different sizes are not the same one.
TEST(Merge, SizesMustAgree) {
  KinetoRank a(0, 0), b(1, 0);
  a.collective("allreduce", "[0, 1]", 1 << 20, 10, 5);
  b.collective("allreduce", "[0, 1]", 1 << 19, 10, 5);
  const Merged m = merged({a, b});
  EXPECT_TRUE(m.meetings.empty());
  EXPECT_EQ(m.alone, 2);
}

TEST(Merge, CurvesAreFromTheLastBeginningToTheLastEnd) {
  std::vector<KinetoRank> ranks;
  for (int r = 0; r < 2; ++r) {
    KinetoRank& k = ranks.emplace_back(r, 300.0 * r);
    for (int i = 0; i < 3; ++i) {
      // Rank 1 comes 50 us late; 2 MiB take 20 us, 32 MiB take 200 us.
      k.collective("allreduce", "[0, 1]", 1 << 20, 1000.0 * i + 50 * r, 70 - 50 * r)["pid"] = r;
      k.collective("allreduce", "[0, 1]", 1 << 24, 1000.0 * i + 500 + 50 * r, 250 - 50 * r)["pid"] = r;
    }
  }
  const auto curves = curves_of(merged(ranks), "two GPUs");
  ASSERT_EQ(curves.size(), 1U);
  EXPECT_EQ(curves[0].collective, CollectiveKind::kAllReduce);
  EXPECT_EQ(curves[0].ranks, 2);
  EXPECT_EQ(curves[0].bytes, (std::vector{Bytes{2 << 20}, Bytes{32 << 20}}));
  EXPECT_EQ(curves[0].times, (std::vector{Time{20'000'000}, Time{200'000'000}}));
  // Of one rank alone nothing is known.
  EXPECT_TRUE(curves_of(merged({ranks[0]}), "one").empty());
}

TEST(Load, PackedTracesAreUnpacked) {
  const Folder folder;
  KinetoRank rank(0, 0);
  rank.kernel("gemm", 7, 1, 1);
  const std::string text = rank.trace().dump();
  const std::string path = (folder.path / "rank0.json.gz").string();
  gzFile out = gzopen(path.c_str(), "wb");
  gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
  gzclose(out);
  EXPECT_TRUE(is_foreign(path));
  const Loaded loaded = load({path});
  EXPECT_TRUE(loaded.foreign);
  EXPECT_EQ(loaded.merged.timeline.slices.size(), 1U);
  // Cut in the middle it is damaged, not short.
  const std::string whole = load_text(path);
  std::ofstream((folder.path / "cut.json.gz").string(), std::ios::binary)
      << whole.substr(0, whole.size() / 2);
  EXPECT_THROW((void)load({(folder.path / "cut.json.gz").string()}), InputError);
}

TEST(Load, TracesThatSayNothingAreRefused) {
  const Folder folder;
  const auto refused = [&](const char* text, const char* because) {
    const std::string path = (folder.path / "trace.json").string();
    std::ofstream(path) << text;
    try {
      (void)load({path});
      ADD_FAILURE() << text;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(because), std::string::npos) << e.what();
    }
  };
  refused(
      R"({"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1,
           "ts": 1, "dur": 1}]})",
      "has no kernel, copy or set of memory");
  refused(
      R"({"baseTimeNanoseconds": "1", "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7,
           "ts": 1, "dur": 1}]})",
      "/baseTimeNanoseconds");
  refused(
      R"({"baseTimeNanoseconds": 3999999999999999999, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k",
           "pid": 0, "tid": 7, "ts": 4e15, "dur": 1}]})",
      "/traceEvents/0/ts");
  refused(
      R"({"distributedInfo": {"rank": -3}, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0,
           "tid": 7, "ts": 1, "dur": 1}]})",
      "/distributedInfo/rank");
}

// Slices of processes and streams that have no name get one; too many are refused.
TEST(Load, PlacesOfSlicesExist) {
  const auto of = [](const char* pid) {
    return of_events(
        parse_json(std::string(R"({"otherData": {"schema": "orrery.timeline/1", "source": "test",
      "program_hash": "0"}, "traceEvents": [{"ph": "X", "cat": "f", "name": "k", "tid": 3, "ts": 1, "dur": 1, "pid": )") +
                       pid + R"(, "args": {"chunk": 0, "micro_batch": 0, "ready": 1, "active": 1}}]})",
                   "t"),
        "t");
  };
  const Timeline t = of("2");
  EXPECT_EQ(t.rank_labels, (std::vector<std::string>{"rank 0", "rank 1", "rank 2"}));
  EXPECT_EQ(t.streams.size(), 4U);
  EXPECT_THROW((void)of("536870912"), InputError);
}

TEST(Load, AMergedTimelineIsStillForeign) {
  const Folder folder;
  KinetoRank rank(0, 0);
  rank.step(3, 0, 100).step(4, 100, 200);
  rank.kernel("gemm", 7, 50, 1);
  rank.kernel("gemm", 7, 150, 1);
  for (const char* name : {"out.timeline", "out.json"}) {
    save_timeline((folder.path / name).string(), merged({rank}).timeline);
    const Loaded back = load({(folder.path / name).string()});
    EXPECT_TRUE(back.foreign);
    EXPECT_EQ(back.merged.steps, 2);
  }
}

}  // namespace
}  // namespace orrery::trace
