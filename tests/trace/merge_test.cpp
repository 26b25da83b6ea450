// SPDX-License-Identifier: Apache-2.0
#include "trace/merge.h"

#include <gtest/gtest.h>
#include <zlib.h>

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
  ASSERT_EQ(m.clocks.size(), 4U);
  // Offsets, and the microsecond by which the ends of neighbours differ: rank 3 is reached over 1 or 2.
  EXPECT_NEAR(m.clocks[1].ahead_us, 5001, 1e-9);
  EXPECT_NEAR(m.clocks[2].ahead_us, -2998, 1e-9);
  EXPECT_NEAR(m.clocks[3].ahead_us, 253, 1e-9);
  EXPECT_TRUE(m.clocks[3].known);
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
  EXPECT_NE(refusal({a, b}).find("that they were matched with"), std::string::npos) << refusal({a, b});
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
  EXPECT_FALSE(untold.clocks[1].known);
  EXPECT_EQ(told.meetings.size(), 4U);
  EXPECT_EQ(told.alone, 1);
  EXPECT_NEAR(told.clocks[1].ahead_us, 100, 1e-9);
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
      k.collective("allreduce", "[0, 1]", 1 << 20, 1000.0 * i + 50 * r, 70 - 50 * r);
      k.collective("allreduce", "[0, 1]", 1 << 24, 1000.0 * i + 500 + 50 * r, 250 - 50 * r);
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
