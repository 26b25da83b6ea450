// SPDX-License-Identifier: Apache-2.0
#include "sim/engine/engine.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "core/error.h"
#include "program/schedule.h"
#include "sim/cost.h"
#include "sim/engine/events.h"
#include "tests/program/communication.h"

namespace orrery::sim {
namespace {

using program::Op;
using program::Program;
using program::StreamIndex;

Op op(const char* name, StreamIndex stream, std::array<std::int32_t, program::kMostStreams> after = {}) {
  Op o;
  o.name = name;
  if (stream != program::kCompute) o.kind = program::ops::Collective{};
  o.stream = stream;
  o.after = after;
  return o;
}

// One class, one segment, run once.
Program single(std::vector<Op> ops) {
  Program p;
  p.mesh = mesh_of(p.plan);
  p.communication = program::kCommunication;
  program::RankClass c;
  c.chunks = {0};
  program::Segment s;
  for (const Op& o : ops) ++s.stream_ops[o.stream];
  s.ops = std::move(ops);
  c.segments.push_back(std::move(s));
  c.steps.push_back({});
  p.classes.push_back(std::move(c));
  return p;
}

// A place for each stage, and no links.
SimulationResult run(const Program& p, const Durations& durations, const Pace& pace = {},
                     const EngineOptions& options = {}) {
  return simulate(p, by_stage(p, durations, pace), options);
}

Durations times(std::vector<std::int64_t> ps) {
  std::vector<Time> t;
  for (const std::int64_t x : ps) t.push_back(Time{x});
  return {{t}};
}

TEST(Engine, OpsOfAStreamRunInOrderAndStreamsOverlap) {
  const Program p =
      single({op("a", program::kCompute), op("b", program::kCompute), op("c", program::kTpStream)});
  EXPECT_EQ(run(p, times({100, 200, 250}), {}).step.value, 300);
}

TEST(Engine, AWaitHoldsAnOpBack) {
  // c (tp) after a; d (compute) after c: 100 + 250 + 50.
  const Program p = single(
      {op("a", program::kCompute), op("c", program::kTpStream, {1}), op("d", program::kCompute, {0, 1})});
  const SimulationResult r = run(p, times({100, 250, 50}), {});
  EXPECT_EQ(r.step.value, 400);
  EXPECT_EQ(r.places[0].exposed[program::kTpStream].value, 250);
  EXPECT_EQ(r.places[0].compute().value, 150);
}

// d waits for c from 100 on, but c waited for b: 200 of it is due to b's stream.
TEST(Engine, AGapIsDueToWhatWasWaitedForInTheEnd) {
  const Program p = single({op("a", program::kCompute), op("b", program::kDpStream),
                            op("c", program::kTpStream, {0, 0, 1}), op("d", program::kCompute, {0, 1})});
  const SimulationResult r = run(p, times({100, 300, 100, 50}), {});
  EXPECT_EQ(r.step.value, 450);
  EXPECT_EQ(r.places[0].exposed[program::kDpStream].value, 200);
  EXPECT_EQ(r.places[0].exposed[program::kTpStream].value, 100);
  EXPECT_EQ(r.places[0].host.value, 0);
}

// Streams' flows on one link of 10 GB/s: by op, how long it takes alone, its latency and its rate.
constexpr Bandwidth kLink{10'000'000'000};
constexpr std::int64_t kAll = kLink.value;
Layout one_link(const Program& p, std::vector<OpCost> costs) {
  Layout out = by_stage(p, times({}));
  out.links.push_back({"a > b", 1, kLink});
  out.shared_link = {0};
  out.shares = FairShares({kLink.value});
  for (Meeting& m : out.meetings) m.activity = out.shares.add({{0, 1}});
  out.costs = {{std::move(costs)}};
  return out;
}

// a flows alone for 20, then both at half their rate: a ends at 20 + 2 x 80 = 180, when b has 20 left.
TEST(Engine, FlowsThatShareALinkHaveFairRatesOnceTheirLatencyHasPassed) {
  const Program p = single({op("a", program::kTpStream), op("b", program::kDpStream)});
  const Layout l = one_link(p, {{Time{100}, Time{0}, kAll}, {Time{120}, Time{20}, kAll}});
  const SimulationResult r = simulate(p, l);
  ASSERT_EQ(r.timeline.slices.size(), 2U);
  EXPECT_EQ(r.timeline.slices[0].end.value, 180);
  EXPECT_EQ(r.timeline.slices[1].end.value, 200);
  // a lost 80 in 160, b lost 80 in 160.
  ASSERT_EQ(r.links.size(), 1U);
  EXPECT_EQ(r.links[0].link.name, "a > b");
  EXPECT_EQ(r.links[0].lost.value, 160);
  EXPECT_EQ(run(p, times({100, 120})).step.value, 120);
}

// A flow that cannot use its half leaves the rest: 4 and 6 of 10 GB/s. b alone would need 60 at 10.
TEST(Engine, AFlowTakesNoMoreThanItsOwnRate) {
  const Program p = single({op("a", program::kTpStream), op("b", program::kDpStream)});
  const Layout l = one_link(p, {{Time{100}, Time{0}, 4 * kAll / 10}, {Time{60}, Time{0}, kAll}});
  const SimulationResult r = simulate(p, l);
  EXPECT_NEAR(static_cast<double>(r.timeline.slices[0].end.value), 100, 1);
  EXPECT_NEAR(static_cast<double>(r.timeline.slices[1].end.value), 100, 1);
  // The link cost b 100 - 60 = 40, and a nothing.
  ASSERT_EQ(r.links.size(), 1U);
  EXPECT_NEAR(static_cast<double>(r.links[0].lost.value), 40, 1);
}

// Compute that slows a collective by 2 leaves the other half of the link to another.
TEST(Engine, WhatComputeTakesFromACollectiveOthersMayUse) {
  const Program p =
      single({op("c", program::kCompute), op("a", program::kTpStream), op("b", program::kDpStream)});
  Layout l = one_link(p, {{Time{400}}, {Time{100}, Time{0}, kAll}, {Time{100}, Time{0}, kAll}});
  l.paces[0].communication_slowdown = 4;
  // Each may use 2.5 of 10 beside compute: four times as slow, and the link is not what bounds them.
  const SimulationResult r = simulate(p, l);
  EXPECT_EQ(r.step.value, 400);
  EXPECT_TRUE(r.links.empty());
}

// Compute 100 and a collective 100 beside each other, slowed 1.25 and 2: compute ends at 125 with
// 100 - 125/2 = 37.5 of the collective left, which then runs at full speed: 162.5.
TEST(Engine, OverlapSlowsBothSides) {
  const Program p = single({op("a", program::kCompute), op("c", program::kTpStream)});
  Pace o;
  o.compute_slowdown = 1.25;
  o.communication_slowdown = 2;
  EXPECT_NEAR(static_cast<double>(run(p, times({1'000'000, 1'000'000}), o).step.value), 1'625'000, 2);
}

// Compute 100 beside an exchange of tokens of 100, which keeps a third of the multiprocessors: compute takes
// 150, when 100 - 150/2 = 25 of the exchange are left: 175. Other collectives keep a fifth: 162.5, as above.
TEST(Engine, AnExchangeOfTokensKeepsMultiprocessorsFromCompute) {
  const StreamIndex exchanges = program::kCommunication.stream("ep");
  Pace o;
  o.compute_slowdown = 1.25;
  o.exchange_slowdown = 1.5;
  o.communication_slowdown = 2;
  for (const auto& [stream, step] : {std::pair{exchanges, 1'750'000}, {program::kTpStream, 1'625'000}}) {
    const Program p = single({op("a", program::kCompute), op("c", stream)});
    EXPECT_NEAR(static_cast<double>(run(p, times({1'000'000, 1'000'000}), o).step.value), step, 2);
  }
}

TEST(Engine, TheHostLimitsShortOps) {
  const Program p =
      single({op("a", program::kCompute), op("b", program::kCompute), op("c", program::kCompute)});
  Pace o;
  o.host_op = Time{1000};
  const SimulationResult r = run(p, times({10, 10, 10}), o);
  EXPECT_EQ(r.step.value, 3010);
  EXPECT_EQ(r.places[0].host.value, 2980);
  o.host_op = Time{0};
  o.host_segment = Time{1000};  // a graph is launched once
  EXPECT_EQ(run(p, times({10, 10, 10}), o).step.value, 1030);
}

// A stack that takes three times as long as plain C++ to issue an op: for each op, or where it launches
// graphs for each graph.
TEST(Pace, TheHostsTimeIsTheDevicesTimesTheStacks) {
  Device d;
  d.host_op = Time{5'000'000};
  d.overlap_compute = 1.25;
  d.overlap_communication = 2;
  Stack s;
  s.host_cost_factor = 3;
  s.launch = Launch::kEager;
  const Pace eager = pace_of({&d, 1}, only(0), s);
  EXPECT_EQ(eager.host_op, Time{15'000'000});
  EXPECT_EQ(eager.host_segment, Time{0});
  EXPECT_EQ(eager.compute_slowdown, 1.25);
  EXPECT_EQ(eager.communication_slowdown, 2);
  EXPECT_EQ(eager.beside_exchanges(), 1.25);
  s.launch = Launch::kGraph;
  const Pace graph = pace_of({&d, 1}, only(0), s);
  EXPECT_EQ(graph.host_op, Time{0});
  EXPECT_EQ(graph.host_segment, Time{15'000'000});
}

// DeepEP's exchanges have 20 of an H800's 132 multiprocessors: compute takes 132/112 of its time.
TEST(Pace, ExchangesOfTokensHaveMultiprocessorsOfTheirOwn) {
  Device d;
  d.units = 132;
  d.overlap_compute = 1.05;
  Stack s;
  s.exchange_units = 20;
  EXPECT_DOUBLE_EQ(pace_of({&d, 1}, only(0), s).beside_exchanges(), 132.0 / 112);
  d.overlap_compute = 1.5;  // what all collectives take is more
  EXPECT_DOUBLE_EQ(pace_of({&d, 1}, only(0), s).beside_exchanges(), 1.5);
  d.units = 8;  // one is left
  EXPECT_DOUBLE_EQ(pace_of({&d, 1}, only(0), s).beside_exchanges(), 8.0);
}

TEST(Engine, AProgramThatCannotFinishNamesItsHeads) {
  const Program p = single({op("a", program::kCompute, {0, 1}), op("c", program::kTpStream, {1})});
  try {
    run(p, times({1, 1}), {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("a of forward"), std::string::npos) << e.what();
  }
}

// However moments coincide, events come in the order of time; at one time, first those that were pushed
// first.
TEST(Events, ComeInTheOrderOfTime) {
  constexpr unsigned kSeed = 5;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  Events<std::pair<std::int64_t, int>> events;
  std::int64_t now = 0;
  int pushed = 0, popped = 0, last = -1;
  for (int i = 0; i < 20'000; ++i) {
    if (events.empty() || (pushed < 10'000 && random() % 2 == 0)) {
      if (pushed == 10'000) break;
      const std::int64_t time = now + random() % 8;
      events.push(time, {time, pushed++});
      continue;
    }
    const std::int64_t next = events.next();
    const auto [time, number] = events.pop();
    ASSERT_EQ(time, next);
    ASSERT_GE(time, now);
    if (time == now) {
      ASSERT_GT(number, last);
    }
    now = time;
    last = number;
    ++popped;
  }
  EXPECT_EQ(popped, 10'000);
  EXPECT_TRUE(events.empty());
}

TEST(Engine, AStepThatCannotBeCountedIsAnError) {
  constexpr std::int64_t kHalf = kLongestStep.value / 2;
  const Program p =
      single({op("a", program::kCompute), op("b", program::kCompute), op("c", program::kCompute)});
  EXPECT_EQ(run(p, times({kHalf, kHalf - 1, 1}), {}).step, kLongestStep);
  EXPECT_THROW(run(p, times({kHalf, kHalf, 1}), {}), Error);
  EXPECT_THROW(run(p, times({std::numeric_limits<std::int64_t>::max(), 0, 0}), {}), Error);
  // 2^63 ps to issue three ops.
  EXPECT_THROW(run(p, times({1, 1, 1}), {.host_op = kLongestStep}), Error);
}

TEST(Engine, ProgressEndsWithAllOps) {
  std::vector<Op> ops(1 << 17, op("a", program::kCompute));
  std::vector<double> told;
  EngineOptions options;
  options.progress = [&](double share) { told.push_back(share); };
  run(single(ops), times(std::vector<std::int64_t>(ops.size(), 1)), {}, options);
  EXPECT_EQ(told, (std::vector{0.5, 1.0}));  // every 2^16 ops
}

Program pipelined(std::int64_t p, std::int64_t m, Schedule s) {
  Plan plan;
  plan.tp = 2;
  plan.pp = p;
  plan.micro_batches = m;
  plan.schedule = s;
  plan.vpp = s == Schedule::kInterleaved || chunk_placement(plan) == ChunkPlacement::kThereAndBack ? 2 : 1;
  Model model = preset_model("tiny-gpt");
  model.layers = 8;
  return program::compile(model, plan, {.global_batch = m, .sequence = 64}, Stack{});
}

Durations constant(const Program& p, std::int64_t each, std::int64_t scale = 1) {
  Durations d;
  for (const auto& c : p.classes) {
    auto& segments = d.emplace_back();
    for (const auto& s : c.segments) {
      auto& ops = segments.emplace_back();
      for (std::size_t i = 0; i < s.ops.size(); ++i)
        ops.push_back(Time{scale * (each + static_cast<std::int64_t>(i) * 7 % 13)});
    }
  }
  return d;
}

TEST(Engine, TheStepIsAtLeastAnyStagesWorkAndItsPartsAddUp) {
  for (const Schedule s : {Schedule::kGPipe, Schedule::k1F1B, Schedule::kInterleaved, Schedule::kZeroBubbleH1,
                           Schedule::kZeroBubbleV, Schedule::kDualPipeV}) {
    const Program p = pipelined(4, 8, s);
    const SimulationResult r = run(p, constant(p, 1000), {});
    for (const PlaceReport& c : r.places) {
      Time sum = c.compute() + c.host;
      for (const Time t : c.exposed) sum += t;
      EXPECT_EQ(sum, r.step) << name_of(s);
      for (const Time t : c.busy) EXPECT_LE(t, r.step);
      Time work = c.idle;
      for (const Time t : c.work) work += t;
      EXPECT_EQ(work, r.step) << name_of(s);
      const auto has = [&](StageWork w) { return c.work[static_cast<std::size_t>(w)] > Time{0}; };
      EXPECT_TRUE(has(StageWork::kForward) && has(StageWork::kOptimizer) && c.idle > Time{0});
      EXPECT_EQ(has(StageWork::kBackward), program::backwards_of(s) != program::Backwards::kSplit);
      EXPECT_EQ(has(StageWork::kBackwardInput), program::splits_backward(s));
      EXPECT_EQ(has(StageWork::kBackwardWeight), program::splits_backward(s));
      EXPECT_FALSE(has(StageWork::kSideBySide));
    }
    EXPECT_EQ(r.ops, p.ops_per_step());
  }
}

TEST(Engine, AllDurationsTimesKGiveTimeTimesK) {
  const Program p = pipelined(4, 8, Schedule::k1F1B);
  EXPECT_EQ(run(p, constant(p, 1000, 5), {}).step.value, 5 * run(p, constant(p, 1000), {}).step.value);
}

TEST(Engine, SlicesOfAStreamDoNotOverlapAndAreDeterministic) {
  const Program p = pipelined(2, 4, Schedule::kInterleaved);
  Pace o;
  o.compute_slowdown = 1.1;
  o.communication_slowdown = 1.3;
  const Timeline a = run(p, constant(p, 1000), o).timeline, b = run(p, constant(p, 1000), o).timeline;
  EXPECT_EQ(a.slices, b.slices);
  std::map<std::pair<int, int>, Time> end;
  for (const Slice& s : a.slices) {
    EXPECT_GE(s.start, (end[{s.rank, s.stream}]));
    EXPECT_LE(s.ready, s.start);
    EXPECT_LE(s.start, s.active);
    EXPECT_LE(s.active, s.end);
    end[{s.rank, s.stream}] = s.end;
  }
}

}  // namespace
}  // namespace orrery::sim
