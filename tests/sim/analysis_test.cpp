// SPDX-License-Identifier: Apache-2.0
//
// Questions about timelines, against what a walk over all slices gives.
#include <gtest/gtest.h>

#include <random>

#include "planner/evaluate.h"
#include "sim/analysis/causes.h"
#include "sim/analysis/critical_path.h"
#include "sim/analysis/lanes.h"
#include "sim/analysis/op_tree.h"
#include "sim/analysis/statistics.h"
#include "sim/analysis/twins.h"
#include "sim/analysis/waits.h"
#include "sim/calibration/compare.h"
#include "trace/load.h"

namespace orrery::sim {
namespace {

constexpr std::int64_t kMicro = 1'000'000;  // picoseconds

Slice slice(std::int32_t rank, std::int32_t stream, std::int64_t start, std::int64_t active, std::int64_t end,
            std::int32_t name = 0, std::int32_t micro_batch = 0) {
  return {name,
          0,
          0,
          micro_batch,
          rank,
          stream,
          Time{start * kMicro},
          Time{start * kMicro},
          Time{active * kMicro},
          Time{end * kMicro}};
}

Timeline timeline(std::vector<Slice> slices) {
  Timeline t;
  t.names = {"layer0/a", "layer1/a", "b"};
  t.segments = {"forward"};
  t.streams = {"compute", "tp"};
  t.slices = std::move(slices);
  return t;
}

Timeline random_timeline(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  std::vector<Slice> slices;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    for (std::int32_t stream = 0; stream < 2; ++stream) {
      std::int64_t at = below(20);
      for (std::int64_t i = below(200); i > 0; --i) {
        const std::int64_t start = at + below(3) * below(10), end = start + below(3) * below(40);
        slices.push_back(slice(
            rank, stream, start, start + (end > start ? below(static_cast<std::uint64_t>(end - start)) : 0),
            end, static_cast<std::int32_t>(below(3)), static_cast<std::int32_t>(below(4))));
        at = end;
      }
    }
  }
  return timeline(std::move(slices));
}

TEST(Lanes, AnswerWhatAWalkOverAllSlicesGives) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const Lanes lanes(random_timeline(seed));
    std::mt19937_64 random(seed);
    for (const Lane& lane : lanes.all()) {
      const auto slices = lanes.slices(lane);
      for (int i = 0; i < 30; ++i) {
        const Time from{static_cast<std::int64_t>(random() % 3000) * kMicro},
            to = from + Time{static_cast<std::int64_t>(random() % 900) * kMicro};
        Time busy{0};
        std::size_t first = slices.size();
        for (std::size_t s = slices.size(); s-- > 0;) {
          busy += std::max(Time{0}, std::min(slices[s].end, to) - std::max(slices[s].start, from));
          if (slices[s].end > from) first = s;
        }
        EXPECT_EQ(lanes.busy(lane, from, to), busy);
        EXPECT_EQ(lanes.first_after(lane, from), first);
        const std::size_t a = random() % slices.size(), b = a + 1 + random() % (slices.size() - a);
        Time longest{-1};
        for (std::size_t s = a; s < b; ++s) longest = std::max(longest, slices[s].end - slices[s].start);
        const auto [found, length] = slices.longest(a, b);
        EXPECT_EQ(length, longest);
        ASSERT_TRUE(found >= a && found < b);
        EXPECT_EQ(slices[found].end - slices[found].start, longest);
        for (std::size_t s = a; s < found; ++s) EXPECT_LT(slices[s].end - slices[s].start, longest);
        std::size_t starts = a;
        while (starts < slices.size() && slices[starts].start < to) ++starts;
        EXPECT_EQ(slices.first_from(a, to), starts);
        if (starts <= a) continue;
        Time whole{0}, waiting{0};
        for (std::size_t s = a; s < starts; ++s) {
          const auto inside = [&](Time begin, Time end) {
            return std::max(Time{0}, std::min(end, to) - begin);
          };
          whole += inside(slices[s].start, slices[s].end);
          waiting += inside(slices[s].start, slices[s].active);
        }
        EXPECT_EQ(slices.busy_of(a, starts, slices[a].start, to), whole);
        EXPECT_EQ(slices.waiting_of(a, starts, slices[a].start, to), waiting);
      }
    }
  }
}

TEST(Lanes, SlicesThatOverlapAreToldApartByDepth) {
  const Lanes lanes(timeline({slice(0, 1, 0, 0, 10), slice(0, 1, 5, 5, 7), slice(0, 1, 8, 8, 12),
                              slice(0, 1, 11, 11, 13), slice(0, 0, 0, 0, 3)}));
  ASSERT_EQ(lanes.all().size(), 3U);  // compute; 0-10 and 11-13; 5-7 and 8-12
  EXPECT_EQ(lanes.all()[1].depth, 0);
  EXPECT_EQ(lanes.all()[1].count, 2U);
  EXPECT_EQ(lanes.all()[2].depth, 1);
  for (const Lane& lane : lanes.all()) {
    const auto slices = lanes.slices(lane);
    for (std::size_t i = 1; i < slices.size(); ++i) EXPECT_GE(slices[i].start, slices[i - 1].end);
  }
}

// Compute runs 0-10 and 14-20; the collective was waited for from 8 to 9 and worked from 9 to 14.
TEST(Statistics, OfOneRankByHand) {
  Timeline t = timeline({slice(0, 0, 0, 0, 10), slice(0, 0, 14, 14, 20, 1), slice(0, 1, 8, 9, 14, 2)});
  t.payloads = {0, 0, 5'000'000};
  const Lanes lanes(t);
  const Statistics s = statistics(lanes, {{0}, Time{0}, Time{22 * kMicro}});
  EXPECT_EQ(s.window, Time{22 * kMicro});
  EXPECT_EQ(s.compute, Time{16 * kMicro});
  EXPECT_EQ(s.hidden, Time{1 * kMicro});   // 9 to 10
  EXPECT_EQ(s.exposed, Time{4 * kMicro});  // 10 to 14
  ASSERT_EQ(s.idle.size(), 2U);
  EXPECT_EQ(s.idle[0].cause, "tp");
  EXPECT_EQ(s.idle[0].time, Time{4 * kMicro});
  EXPECT_EQ(s.idle[1].cause, "end of step");
  EXPECT_EQ(s.idle[1].time, Time{2 * kMicro});
  ASSERT_EQ(s.kinds.size(), 2U);  // the two "a" are one kind
  EXPECT_EQ(s.kinds[0].name, "a");
  EXPECT_EQ(s.kinds[0].count, 2);
  EXPECT_EQ(s.kinds[1].waiting, Time{1 * kMicro});
  EXPECT_DOUBLE_EQ(s.kinds[1].bytes_per_s(), 1e12);  // 5 MB in 5 us
  // Half of the transfer is in this part, and so is half of what it moved.
  const Statistics half = statistics(lanes, {{0}, Time{9 * kMicro}, Time{11'500'000}});
  for (const KindStatistics& k : half.kinds) {
    if (k.name == "b") {
      EXPECT_EQ(k.payload, 2'500'000);
    }
  }
}

// An op's time is that of its work: 4 of the 9 us for which the collective stood there.
TEST(Compare, OpsTakeWhatTheyWork) {
  const Timeline predicted =
      timeline({slice(0, 0, 0, 0, 6), slice(0, 0, 6, 6, 12, 1), slice(0, 1, 12, 12, 15, 2)});
  const Timeline measured = timeline({slice(0, 0, 0, 0, 7), slice(0, 0, 7, 7, 15, 1),
                                      slice(0, 1, 8, 13, 17, 2), slice(0, 1, 17, 17, 18, 2, 1)});
  const Comparison c = compare(predicted, measured);
  EXPECT_EQ(c.matched, 3);
  EXPECT_EQ(c.only_measured, 1);  // another micro-batch
  EXPECT_EQ(c.only_predicted, 0);
  EXPECT_NEAR(c.predicted_step_s, 15e-6, 1e-15);
  EXPECT_NEAR(c.measured_step_s, 18e-6, 1e-15);
  ASSERT_EQ(c.ops.size(), 2U);  // the two layers' "a" are one
  EXPECT_EQ(c.ops[0].name, "a");
  EXPECT_EQ(c.ops[0].count, 2);
  EXPECT_NEAR(c.ops[0].predicted_s, 12e-6, 1e-15);
  EXPECT_NEAR(c.ops[0].measured_s, 15e-6, 1e-15);
  EXPECT_NEAR(c.ops[1].predicted_s, 3e-6, 1e-15);
  EXPECT_NEAR(c.ops[1].measured_s, 4e-6, 1e-15);
}

// Two ranks of a stage that take 6 and 9 us for the same: each is compared with itself.
TEST(Compare, OfATimelineWithItselfIsOne) {
  Timeline t = timeline({slice(0, 0, 0, 0, 6), slice(1, 0, 0, 0, 9)});
  t.rank_labels = {"stage 0 of tp 0", "stage 0 of tp 1"};
  const Comparison c = compare(t, t);
  ASSERT_EQ(c.ops.size(), 1U);
  EXPECT_NEAR(c.ops[0].measured_s, 15e-6, 1e-15);
  EXPECT_EQ(c.ops[0].predicted_s, c.ops[0].measured_s);
}

// Two steps of a trace by other software, in each of which a product takes twice, and an all-reduce half, of
// what was predicted. The prediction has one process for two ranks.
TEST(Compare, WorkIsThatOfARankAndAStep) {
  Timeline p = timeline({slice(0, 0, 0, 0, 10), slice(0, 0, 10, 10, 14), slice(0, 1, 14, 16, 24, 2)});
  p.names = {"layer0/qkv", "layer0/out", "grads"};
  p.slices[1].name = 1;
  p.classes = {OpClass::kProduct, OpClass::kProduct, OpClass::kAllReduce};
  p.rank_labels = {"stage 0"};
  p.axes = {{"dp", 2}};
  p.process_of = {0, 0};
  Timeline m;
  m.source = "measured: PyTorch profiler";
  m.names = {"gemm", "ncclKernel_AllReduce"};
  m.segments = {"ProfilerStep#0", "ProfilerStep#1"};
  m.streams = {"compute", "stream 20, NCCL"};
  m.rank_labels = {"rank 0, GPU 0", "rank 1, GPU 1"};
  m.classes = {OpClass::kProduct, OpClass::kAllReduce};
  for (std::int32_t r = 0; r < 2; ++r) {
    for (std::int32_t s = 0; s < 2; ++s) {
      const auto at = [&](std::int64_t us) { return Time{(100 * s + us) * kMicro}; };
      m.slices.push_back({0, s, 0, 0, r, 0, at(0), at(0), at(0), at(20)});
      m.slices.push_back({0, s, 0, 0, r, 0, at(20), at(20), at(20), at(28)});
      m.slices.push_back({1, s, 0, 0, r, 1, at(28), at(28), at(28 + r), at(32 + r)});
    }
  }
  const ClassComparisons c = compare_classes(p, m, 2, {});
  ASSERT_EQ(c.classes.size(), 2U);
  EXPECT_EQ(c.classes[0].is, OpClass::kProduct);
  EXPECT_DOUBLE_EQ(c.classes[0].predicted.count, 2);
  EXPECT_DOUBLE_EQ(c.classes[0].measured.count, 2);
  EXPECT_NEAR(c.classes[0].predicted.active_s, 14e-6, 1e-12);
  EXPECT_NEAR(c.classes[0].measured.active_s, 28e-6, 1e-12);
  EXPECT_TRUE(c.classes[0].in_order);
  EXPECT_DOUBLE_EQ(c.classes[0].ratio[1], 0.5);
  EXPECT_EQ(c.classes[1].is, OpClass::kAllReduce);
  EXPECT_NEAR(c.classes[1].predicted.active_s, 8e-6, 1e-12);
  EXPECT_NEAR(c.classes[1].measured.active_s, 4e-6, 1e-12);
  EXPECT_NEAR(c.classes[1].predicted.waiting_s, 2e-6, 1e-12);
  EXPECT_NEAR(c.classes[1].measured.waiting_s, 0.5e-6, 1e-12);  // of two ranks one waits 1 us
  EXPECT_DOUBLE_EQ(c.classes[1].ratio[1], 2);
  // As one step of twice as many ops nothing can be matched in order.
  EXPECT_FALSE(compare_classes(p, m, 1, {}).classes[0].in_order);
}

// Other software exchanges on streams of kernels too: what an op does tells, not where it runs.
TEST(Waits, AreFoundOnStreamsOfKernels) {
  Timeline t;
  t.source = "measured: Nsight Systems";
  t.names = {"ncclDevKernel_SendRecv", "gemm"};
  t.classes = {OpClass::kSendReceive, OpClass::kProduct};
  t.segments = {"all"};
  t.streams = {"compute"};
  t.rank_labels = {"GPU 0", "GPU 1"};
  const auto at = [](std::int64_t us) { return Time{us * kMicro}; };
  t.slices = {{0, 0, 0, 0, 0, 0, at(0), at(0), at(60), at(100)},
              {1, 0, 0, 0, 1, 0, at(0), at(0), at(0), at(50)},
              {0, 0, 0, 0, 1, 0, at(60), at(60), at(60), at(101)}};
  const auto waits = waited_for(Lanes(t));
  ASSERT_EQ(waits.size(), 1U);
  EXPECT_EQ(waits[0].process, 1);
  EXPECT_EQ(waits[0].exchanges, 1);
  EXPECT_EQ(waits[0].waited, at(60));
  EXPECT_EQ(waits[0].longest, 0);
  t.classes = {OpClass::kProduct, OpClass::kProduct};
  EXPECT_TRUE(waited_for(Lanes(t)).empty());
}

// Matrix products from 10 to 30 and from 40 to 50, an all-reduce from 25 to 105.
TEST(Statistics, OfAProfilersTraceTellHiddenFromExposedCommunication) {
  const char* const text = R"({"traceEvents": [
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 20},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 40, "dur": 10},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 3, "ts": 25, "dur": 80}]})";
  const Lanes lanes(trace::of_events(parse_json(text, "trace"), "trace"));
  const Statistics s = statistics(lanes, {{0}, lanes.begin(), lanes.end()});
  EXPECT_EQ(s.window, Time{95 * kMicro});
  EXPECT_EQ(s.compute, Time{30 * kMicro});
  EXPECT_EQ(s.hidden, Time{15 * kMicro});   // 25 to 30, 40 to 50
  EXPECT_EQ(s.exposed, Time{65 * kMicro});  // 30 to 40, 50 to 105
}

TEST(Statistics, ComputeAndIdleAddUpToTheWindow) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const Lanes lanes(random_timeline(seed));
    std::mt19937_64 random(seed);
    const Time from{static_cast<std::int64_t>(random() % 900) * kMicro},
        to = from + Time{static_cast<std::int64_t>(1 + random() % 900) * kMicro};
    const Statistics s = statistics(lanes, {{0, 1, 2}, from, to});
    Time waiting{0}, idle{0};
    for (const Idle& i : s.idle) idle += i.time;
    for (const KindStatistics& k : s.kinds) {
      if (k.stream == 0) waiting += k.waiting;
    }
    EXPECT_EQ(s.compute + idle, s.window) << "waiting " << waiting.value;
  }
}

// Rank 1 computes long and comes late to the collective; both go on after it.
TEST(CriticalPath, LeadsThroughWhoCameLast) {
  const Lanes lanes(timeline({slice(0, 0, 0, 0, 2), slice(0, 1, 2, 9, 12, 2), slice(0, 0, 12, 12, 15, 1),
                              slice(1, 0, 0, 0, 9), slice(1, 1, 9, 9, 12, 2), slice(1, 0, 12, 12, 13, 1)}));
  const auto path = critical_path(lanes, Meetings(lanes));
  std::vector<std::pair<std::int32_t, std::int64_t>> stops;  // rank, start of the part
  Time sum{0};
  for (const Link& l : path) {
    stops.emplace_back(lanes.slice(l.slice).rank, l.from.value / kMicro);
    sum += l.to - l.from + l.gap;
  }
  EXPECT_EQ(stops, (std::vector<std::pair<std::int32_t, std::int64_t>>{{1, 0}, {0, 9}, {0, 12}}));
  for (const Link& l : path) EXPECT_EQ(l.gap, Time{0});
  EXPECT_EQ(sum, Time{15 * kMicro});
}

// Two groups of two whose collectives end at the same moment: axes tell them apart, times alone do not.
TEST(Meetings, AreOfOneGroupWhereAxesAreKnown) {
  Timeline t =
      timeline({slice(0, 1, 2, 4, 9), slice(1, 1, 4, 4, 9), slice(2, 1, 1, 3, 9), slice(3, 1, 3, 3, 9)});
  EXPECT_EQ(Meetings(Lanes(t)).partners(0, 9).size(), 3U);
  t.axes = {{"tp", 2}, {"dp", 2}};
  const Lanes lanes(t);
  const Meetings meetings(lanes);
  for (std::size_t s = 0; s < 4; ++s)
    EXPECT_EQ(meetings.partners(s, 9), std::vector<std::size_t>{s ^ 1U}) << s;
  EXPECT_EQ(meetings.last_to_come(0), 1U);
  t.axes = {{"dp", 2}, {"tp", 2}};  // neighbours are replicas now
  const Lanes other(t);
  EXPECT_EQ(Meetings(other).partners(0, 9), std::vector<std::size_t>{2});
  t.axes = {{"tp", 1}, {"cp", 2}, {"dp", 2}};  // ranks that share sequences reduce the same weights
  t.streams[1] = "dp";
  EXPECT_EQ(Meetings(Lanes(t)).partners(0, 9).size(), 3U);
  t.streams[1] = "cp";
  EXPECT_EQ(Meetings(Lanes(t)).partners(0, 9), std::vector<std::size_t>{1});
  t.streams[1] = "tp";
  t.axes = {{"dp", 2}, {"tp", 2}};
  t.process_of = {0, 1, 2, 3};  // folded: what a process stands for has many coordinates
  const Lanes folded(t);
  EXPECT_EQ(Meetings(folded).partners(0, 9).size(), 3U);
}

TEST(CriticalPath, IsAsLongAsTheTimeline) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const Lanes lanes(random_timeline(seed));
    Time sum{0}, at = lanes.begin();
    for (const Link& l : critical_path(lanes, Meetings(lanes))) {
      EXPECT_EQ(l.from, at + l.gap);
      at = l.to;
      sum += l.to - l.from + l.gap;
    }
    EXPECT_EQ(sum, lanes.end() - lanes.begin());
  }
}

// A step of the engine: what its report says of idle time, the statistics find from times alone.
TEST(Statistics, FindWhatTheEngineReports) {
  const Problem problem =
      load_problem(std::string(ORRERY_ROOT) + "/scenarios/llama3-70b-p4d.json", DataFolders());
  const Topology topology(problem.cluster);
  planner::EvaluateOptions options;
  options.record = true;
  planner::Evaluation e = planner::evaluate(problem, topology, *problem.scenario.plan, options);
  const auto places = e.simulation.places;
  const Lanes lanes(std::move(e.simulation.timeline));
  const auto& streams = lanes.timeline().streams;
  for (std::size_t p = 0; p < places.size(); ++p) {
    const Statistics s = statistics(lanes, {{static_cast<std::int32_t>(p)}, Time{0}, e.simulation.step});
    EXPECT_EQ(s.compute, places[p].busy[program::kCompute]);  // handovers of the software among it
    for (std::size_t q = 1; q < program::kMostStreams; ++q) {
      Time found{0};
      for (const Idle& i : s.idle) {
        if (i.cause == streams[q]) found = i.time;
      }
      // The engine counts the tail of the step to the stream that ends it.
      EXPECT_NEAR(seconds(found), seconds(places[p].exposed[q]), 0.02 * seconds(e.simulation.step))
          << streams[q];
    }
  }
  // The path of a step is as long as the step, and most of it is work.
  Time sum{0}, gaps{0};
  for (const Link& l : critical_path(lanes, Meetings(lanes))) {
    sum += l.to - l.from + l.gap;
    gaps += l.gap;
  }
  EXPECT_EQ(sum, lanes.end() - lanes.begin());  // the first op is issued a moment after zero
  EXPECT_EQ(lanes.end(), e.simulation.step);
  EXPECT_LT(seconds(gaps), 0.01 * seconds(sum));
}

TEST(Twins, AreOfTheSameStageAndMicroBatch) {
  Timeline a = timeline({slice(0, 0, 0, 0, 1, 0, 3), slice(1, 0, 0, 0, 1, 0, 3)});
  a.rank_labels = {"stage 0", "stage 1"};
  Timeline b = timeline({slice(0, 0, 5, 5, 6, 0, 3), slice(1, 0, 5, 5, 6, 0, 3), slice(2, 0, 7, 7, 9, 0, 2),
                         slice(2, 0, 9, 9, 10, 0, 3), slice(3, 0, 9, 9, 11, 0, 3)});
  b.axes = {{"tp", 2}, {"pp", 2}};  // ranks 2 and 3 are of stage 1
  const Lanes here(a), there(b);
  const auto found = twin(here, 1, there);
  ASSERT_TRUE(found);
  EXPECT_EQ(there.slice(*found).rank, 2);
  EXPECT_EQ(there.slice(*found).micro_batch, 3);
  Timeline c = timeline({slice(0, 0, 0, 0, 1, 2, 3)});
  EXPECT_FALSE(twin(here, 0, Lanes(c)));
}

// What goes between a device, its host and the drives is no communication between ranks, by its stream's
// name.
TEST(Lanes, OffloadingIsNoCommunication) {
  for (const program::Stream& s : program::communication_of(mesh_of(Plan{})).streams)
    EXPECT_EQ(is_of_host(s.name), program::is_offload(s.role)) << s.name;
}

const OpNode& part_named(const OpNode& of, const std::string& name) {
  static const OpNode none{.name = "none", .time = Time{-1}, .count = 0, .parts = {}};
  const auto found =
      std::find_if(of.parts.begin(), of.parts.end(), [&](const OpNode& n) { return n.name == name; });
  EXPECT_NE(found, of.parts.end()) << name;
  return found == of.parts.end() ? none : *found;
}

TEST(OpTree, IsMadeOfNamesByHand) {
  // On compute "layer0/a" works 10 - 2 = 8, "layer1/a" 5, "b" 20; on tp "b" works 4 of 9.
  const Lanes lanes(timeline({slice(0, 0, 0, 2, 10, 0), slice(0, 0, 10, 10, 15, 1),
                              slice(0, 0, 15, 15, 35, 2), slice(0, 1, 0, 5, 9, 2)}));
  const Part whole{{0}, Time{0}, Time{40 * kMicro}};
  const OpNode together = op_tree(lanes, whole, false);
  EXPECT_EQ(together.time, Time{(8 + 5 + 20 + 4) * kMicro});
  EXPECT_EQ(together.count, 4);
  const OpNode& compute = part_named(together, "compute");
  EXPECT_EQ(part_named(compute, "layers").time, Time{13 * kMicro});
  EXPECT_EQ(part_named(part_named(compute, "layers"), "a").count, 2);
  EXPECT_EQ(compute.parts.front().name, "b") << "the longest is first";
  EXPECT_EQ(part_named(part_named(together, "tp"), "b").time, Time{4 * kMicro});
  const OpNode apart = op_tree(lanes, whole, true);
  const OpNode& by_layer = part_named(apart, "compute");
  ASSERT_EQ(by_layer.parts.size(), 3U);
  EXPECT_EQ(by_layer.parts[0].name, "layer0") << "layers stand first, in their order";
  EXPECT_EQ(by_layer.parts[0].time, Time{8 * kMicro});
  EXPECT_EQ(by_layer.parts[1].time, Time{5 * kMicro});
  // From 8 to 12: 2 of layer 0, 2 of layer 1, 1 of the tp lane.
  EXPECT_EQ(op_tree(lanes, {{0}, Time{8 * kMicro}, Time{12 * kMicro}}, true).time, Time{5 * kMicro});
}

// Times of parts add up to their parent's, and parts of time to the whole.
void expect_sums(const OpNode& node) {
  if (node.parts.empty()) return;
  Time sum{0};
  std::int64_t count = 0;
  for (const OpNode& part : node.parts) {
    sum += part.time;
    count += part.count;
    expect_sums(part);
  }
  EXPECT_EQ(sum, node.time) << node.name;
  EXPECT_EQ(count, node.count) << node.name;
}

TEST(OpTree, AddsUp) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const Lanes lanes(random_timeline(seed));
    Part whole{{0, 1, 2}, lanes.begin(), lanes.end()}, first = whole, second = whole;
    first.to = second.from = lanes.begin() + (lanes.end() - lanes.begin()) / 3;
    Time active{0};
    for (const Slice& s : lanes.unpacked().slices) active += s.end - s.active;
    for (const bool apart : {false, true}) {
      const OpNode all = op_tree(lanes, whole, apart);
      expect_sums(all);
      EXPECT_EQ(all.time, active);
      EXPECT_EQ(op_tree(lanes, first, apart).time + op_tree(lanes, second, apart).time, active);
    }
  }
}

TEST(Causes, AddUpToTheLengthOfEachRun) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Timeline slow = random_timeline(seed);
    const Lanes first(slow);
    for (Slice& s : slow.slices) {
      for (Time Slice::*part : {&Slice::ready, &Slice::start, &Slice::active, &Slice::end})
        s.*part = s.*part * 3;
    }
    const Lanes second(std::move(slow));
    double a = 0, b = 0, before = 1e9;
    for (const Cause& c : causes(first, second)) {
      EXPECT_NEAR(c.second_s, 3 * c.first_s, 1e-12) << c.name;
      EXPECT_LE(std::abs(c.difference()), before);
      before = std::abs(c.difference());
      a += c.first_s;
      b += c.second_s;
    }
    EXPECT_NEAR(a, seconds(first.end() - first.begin()), 1e-9);
    EXPECT_NEAR(b, seconds(second.end() - second.begin()), 1e-9);
  }
}

TEST(Causes, NameTheStreamThatComputeWaitedFor) {
  // Compute works 10 and 10; in the second run it waits 6 longer for tp, and for nothing else.
  const Lanes first(timeline({slice(0, 0, 0, 0, 10), slice(0, 1, 10, 10, 12), slice(0, 0, 12, 12, 22)}));
  const Lanes second(timeline({slice(0, 0, 0, 0, 10), slice(0, 1, 10, 10, 18), slice(0, 0, 18, 18, 28)}));
  const auto all = causes(first, second);
  ASSERT_GE(all.size(), 2U);
  EXPECT_EQ(all[0].name, "tp");
  EXPECT_NEAR(all[0].first_s, 2e-6, 1e-15);
  EXPECT_NEAR(all[0].second_s, 8e-6, 1e-15);
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_NEAR(all[i].difference(), 0, 1e-15) << all[i].name;
}

}  // namespace
}  // namespace orrery::sim
