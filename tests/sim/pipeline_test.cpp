// SPDX-License-Identifier: Apache-2.0
//
// The closed forms of a pipeline's critical paths against the recurrence they stand for, over random costs:
// a first stage with an embedding, a last one with a head, stages with a layer more, slow and fast links.
#include "sim/estimate/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace orrery::sim {
namespace {

constexpr unsigned kSeed = 20261120;

struct Case {
  PipelineShape shape;
  PipelineCosts runs;    // as the estimate sees it
  PipelineCosts stages;  // each stage a run of its own
  std::vector<ChunkCost> costs;
};

class Cases {
 public:
  explicit Cases(unsigned seed) : random_(seed) {}

  // `uneven`: some first chunks have a layer more. `transfer`: most a transfer takes, over a layer's forward.
  // `reductions`: the flow of transfers shares links with reductions of gradients.
  Case next(Schedule schedule, bool uneven, double transfer, bool reductions) {
    Case c;
    const bool interleaved = schedule == Schedule::kInterleaved, dual = schedule == Schedule::kDualPipeV,
               v_shape = dual || schedule == Schedule::kZeroBubbleV;
    const std::int64_t p = interleaved || v_shape ? between(2, 16) : between(1, 16);
    const std::int64_t v = interleaved ? between(2, 6) : v_shape ? 2 : 1;
    const std::int64_t m = interleaved ? p * between(1, 10) : between(dual ? 2 * p : 1, 8 * p);
    c.shape = {schedule, p, v, m};
    const std::int64_t layers = between(1, 6), more = uneven ? between(0, p - 1) : 0;
    forward_ = 1e6 * real(0.3, 3);
    interleaved_ = interleaved;
    const double embedding = real(0, 0.5), head = real(0, 2);
    const program::Backwards split = program::backwards_of(schedule);
    c.costs = {chunk(static_cast<double>(layers + (more > 0)), embedding, split),
               chunk(static_cast<double>(layers + 1), 0, split), chunk(static_cast<double>(layers), 0, split),
               chunk(static_cast<double>(layers), head, split)};
    c.runs.transfer = c.stages.transfer = static_cast<std::int64_t>(forward_ * real(0, transfer));
    if (reductions) {
      const std::int64_t latency = c.runs.transfer / 4;
      c.runs.hops.assign(static_cast<std::size_t>(p),
                         {.latency = latency, .flow = c.runs.transfer - latency, .beside_reductions = true});
      c.stages.hops = c.runs.hops;
    }
    const double reduction = reductions ? real(0, 8) : 0;  // over the chunk's forward
    const auto add = [&](PipelineCosts& costs, const std::vector<const ChunkCost*>& chunks) {
      costs.chunks.insert(costs.chunks.end(), chunks.begin(), chunks.end());
      for (const ChunkCost* chunk : chunks) {
        const auto forward = static_cast<double>((*chunk)[kChunkForward].time);
        if (reductions) costs.reductions.push_back(static_cast<std::int64_t>(reduction * forward));
      }
    };
    std::vector<const ChunkCost*> before;
    for (std::int64_t i = 0; i < p; ++i) {
      std::vector<const ChunkCost*> mine;
      for (std::int64_t k = 0; k < v; ++k) {
        const std::int64_t g = v_shape && k == 1 ? 2 * p - 1 - i : k * p + i;
        mine.push_back(&c.costs[g == 0 ? 0 : g == p * v - 1 ? 3 : k == 0 && i < more ? 1 : 2]);
      }
      c.stages.runs.push_back({i, 1});
      add(c.stages, mine);
      if (mine == before) {
        ++c.runs.runs.back().count;
      } else {
        c.runs.runs.push_back({i, 1});
        add(c.runs, mine);
      }
      before = mine;
    }
    return c;
  }

 private:
  double real(double low, double high) {
    return low + (high - low) * static_cast<double>(random_()) / 4294967296.0;
  }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }

  // `extra`: work of an end of the model, in layers.
  ChunkCost chunk(double layers, double extra, program::Backwards backwards) const {
    const bool whole = backwards != program::Backwards::kSplit,
               split = backwards != program::Backwards::kWhole;
    ChunkCost c{};
    const double unit = forward_ * (layers + extra);
    c[kChunkForward].time = static_cast<std::int64_t>(unit);
    c[kChunkBackward].time = whole ? static_cast<std::int64_t>(unit * 2.0) : 0;
    c[kChunkBackwardInput].time = split ? static_cast<std::int64_t>(unit * 1.1) : 0;
    c[kChunkWeight].time = split ? static_cast<std::int64_t>(unit * 0.9) : 0;
    for (WorkCost& w : c) w.latency = w.row = w.time;
    if (interleaved_) c[kChunkBackward].row += static_cast<std::int64_t>(unit * 0.2);
    const auto kept = static_cast<std::int64_t>(1000 * (layers + 0.2 * extra));
    c[kChunkForward].net = kept;
    c[kChunkForward].peak = kept + 300 + static_cast<std::int64_t>(500 * extra);
    if (whole) {
      c[kChunkBackward].net = -kept;
      c[kChunkBackward].peak = 400 + static_cast<std::int64_t>(700 * extra);
    }
    if (split) {
      c[kChunkBackwardInput].net = -kept / 3;
      c[kChunkBackwardInput].peak = 400 + static_cast<std::int64_t>(700 * extra);
      c[kChunkWeight].net = -kept - c[kChunkBackwardInput].net;
      c[kChunkWeight].peak = 200;
    }
    return c;
  }

  std::mt19937 random_;
  double forward_ = 0;
  bool interleaved_ = false;
};

struct Errors {
  double at_95 = 0, worst = 0, most_over = 0;
};

// Time of the step and of each place's last gradients against the recurrence; peaks are equal.
Errors compare(Schedule schedule, bool uneven, double transfer, bool reductions = false) {
  Cases cases(kSeed);
  Pipeline pipeline;
  PipelineWalk walk;
  PipelineTimes walked;
  std::vector<double> errors;
  Errors out;
  for (int i = 0; i < 500; ++i) {
    const Case c = cases.next(schedule, uneven, transfer, reductions);
    walk.run(c.shape, c.stages, walked);
    const PipelineTimes& t = pipeline.run(c.shape, c.runs);
    const auto whole = static_cast<double>(walked.end);
    double error = static_cast<double>(t.end - walked.end) / whole;
    out.most_over = std::max(out.most_over, error);
    error = std::abs(error);
    std::int64_t peak = 0, walked_peak = 0;
    for (const PipelinePlace& p : walked.places) walked_peak = std::max(walked_peak, p.peak);
    for (const PipelinePlace& p : t.places) peak = std::max(peak, p.peak);
    EXPECT_EQ(peak, walked_peak) << "p " << c.shape.p << " v " << c.shape.v << " m " << c.shape.m << " seed "
                                 << kSeed << " case " << i;
    errors.push_back(error);
  }
  std::sort(errors.begin(), errors.end());
  out.at_95 = errors[errors.size() * 95 / 100];
  out.worst = errors.back();
  return out;
}

TEST(Pipeline, NaiveAndGPipeAreExact) {
  for (const Schedule s : {Schedule::kNaive, Schedule::kGPipe}) {
    EXPECT_EQ(compare(s, true, 5.0).worst, 0) << name_of(s);
  }
}

TEST(Pipeline, OneForwardOneBackwardIsNearlyExact) {
  const Errors even = compare(Schedule::k1F1B, false, 5.0), uneven = compare(Schedule::k1F1B, true, 5.0);
  EXPECT_LT(even.at_95, 0.001);
  EXPECT_LT(even.worst, 0.01);
  EXPECT_LT(uneven.at_95, 0.005);
  EXPECT_LT(uneven.worst, 0.06);
  EXPECT_LT(uneven.most_over, 0.001);
}

// Where links are slow a transfer of GPipe queues behind others, and meets less of the reductions.
TEST(Pipeline, ReductionsSlowTheLastTransfers) {
  for (const double transfer : {0.2, 1.0, 5.0}) {
    EXPECT_EQ(compare(Schedule::kNaive, true, transfer, true).worst, 0);
    const Errors gpipe = compare(Schedule::kGPipe, true, transfer, true);
    EXPECT_LT(gpipe.at_95, 1e-5);
    EXPECT_LT(gpipe.worst, 0.04);
    const Errors turns = compare(Schedule::k1F1B, true, transfer, true);
    EXPECT_LT(turns.at_95, 0.005);
    EXPECT_LT(turns.worst, 0.02);
    EXPECT_LT(turns.most_over, 0.001);
    // The last weight gradients come after all transfers.
    EXPECT_LT(compare(Schedule::kZeroBubbleH1, true, transfer, true).at_95, 0.01);
  }
}

// 1F1B on 3 stages, one micro-batch: 3 x 3000 of work, and 4 transfers of 10 + 100 each. Each reduction goes
// on for 2110 from the begin of a backward of 2000, so for 100 beside the transfer's flow: both lose half of
// that, 50, on each of the two crossings up. With a reduction of 2010 the flow finds free links.
TEST(Pipeline, ATransferLosesHalfOfItsTimeBesideAReduction) {
  ChunkCost cost{};
  cost[kChunkForward].time = cost[kChunkForward].latency = 1000;
  cost[kChunkBackward].time = cost[kChunkBackward].latency = 2000;
  PipelineCosts costs;
  costs.runs = {{0, 3}};
  costs.chunks = {&cost};
  costs.transfer = 110;
  costs.hops.assign(3, {.latency = 10, .flow = 100, .beside_reductions = true});
  Pipeline pipeline;
  for (const bool walk : {false, true}) {
    costs.walk = walk;
    costs.reductions = {2110};
    EXPECT_EQ(pipeline.run({Schedule::k1F1B, 3, 1, 1}, costs).end, 9000 + 4 * 110 + 2 * 50) << walk;
    costs.reductions = {2010};
    EXPECT_EQ(pipeline.run({Schedule::k1F1B, 3, 1, 1}, costs).end, 9000 + 4 * 110) << walk;
  }
}

TEST(Pipeline, ZeroBubbleIsNear) {
  EXPECT_LT(compare(Schedule::kZeroBubbleH1, false, 0.5).at_95, 0.001);
  EXPECT_LT(compare(Schedule::kZeroBubbleH1, true, 0.5).at_95, 0.01);
  EXPECT_LT(compare(Schedule::kZeroBubbleV, false, 0.5).at_95, 0.02);
  EXPECT_LT(compare(Schedule::kDualPipeV, false, 0.5).at_95, 0.02);
}

TEST(Pipeline, InterleavedIsNearlyExactForEvenChunksAndFastLinks) {
  EXPECT_LT(compare(Schedule::kInterleaved, false, 0.2).worst, 0.006);
  EXPECT_LT(compare(Schedule::kInterleaved, false, 3.0).at_95, 0.05);
  compare(Schedule::kInterleaved, true, 0.2);  // only peaks: the estimate takes their time from the engine
}

// The exposed transfers of 1F1B: (m + p - 1) T + 2 c (p - 1) + 2 c (m - 1 - ceil((m - 1) / p)).
TEST(Pipeline, TransfersOfOneForwardOneBackwardAreExposed) {
  ChunkCost cost{};
  cost[kChunkForward].time = cost[kChunkForward].latency = 1000;
  cost[kChunkBackward].time = cost[kChunkBackward].latency = 2000;
  const std::int64_t p = 4, m = 21, hop = 50;
  PipelineCosts costs;
  costs.runs = {{0, p}};
  costs.chunks = {&cost};
  costs.transfer = hop;
  Pipeline pipeline;
  // 24 x 3000 + 2 x 50 x 3 + 2 x 50 x (20 - 5) = 72000 + 300 + 1500.
  EXPECT_EQ(pipeline.run({Schedule::k1F1B, p, 1, m}, costs).end, 73800);
}

// By the recurrence: b of a whole backward, or of a split one's first part, whose second takes w.
std::int64_t length(Schedule s, std::int64_t p, std::int64_t v, std::int64_t m, std::int64_t f,
                    std::int64_t b, std::int64_t w, bool in_pairs = false) {
  ChunkCost cost{};
  cost[kChunkForward].time = f;
  cost[kChunkBackward].time = b + w;
  cost[kChunkBackwardInput].time = b;
  cost[kChunkWeight].time = w;
  for (WorkCost& c : cost) c.latency = c.time;
  PipelineCosts costs;
  costs.runs = {{0, p}};
  costs.chunks.assign(static_cast<std::size_t>(v), &cost);
  const PairCost saves_nothing;
  if (in_pairs) costs.pairs.assign(static_cast<std::size_t>(v), &saves_nothing);
  PipelineTimes times;
  PipelineWalk().run({s, p, v, m, in_pairs}, costs, times);
  return times.end;
}

// Idle over ideal time: (p-1)/m; interleaved (p-1)/(v m); naive p-1; ZB-H1 (p-1)(F+B-W) of the step.
TEST(Pipeline, BubblesAreTheClosedForms) {
  for (const std::int64_t p : {2, 4, 8}) {
    for (const std::int64_t m : {p, 4 * p, 32 * p}) {
      const std::int64_t f = 1000, b = 2000;
      EXPECT_EQ(length(Schedule::kGPipe, p, 1, m, f, b, 0), (m + p - 1) * (f + b));
      EXPECT_EQ(length(Schedule::k1F1B, p, 1, m, f, b, 0), (m + p - 1) * (f + b));
      EXPECT_EQ(length(Schedule::kNaive, p, 1, m, f, b, 0), m * p * (f + b));
      for (const std::int64_t v : {2, 4}) {
        EXPECT_EQ(length(Schedule::kInterleaved, p, v, m, f, b, 0), (m * v + p - 1) * (f + b))
            << "p " << p << " v " << v << " m " << m;
      }
      EXPECT_EQ(length(Schedule::kZeroBubbleH1, p, 1, m, f, f, f), m * 3 * f + (p - 1) * f)
          << "p " << p << " m " << m;
      const std::int64_t v_shape = length(Schedule::kZeroBubbleV, p, 2, m, f, f, f);
      EXPECT_LE(v_shape, m * 6 * f + (p - 1) * 2 * f) << "p " << p << " m " << m;
      if (m < 2 * p) continue;
      // In pairs T_FB = 3f: (p-1)(3f + f - 2f). Where nobody waits for the other of a pair, half of that.
      EXPECT_EQ(length(Schedule::kDualPipeV, p, 2, m, f, f, f, true), m * 6 * f + (p - 1) * 2 * f)
          << "p " << p << " m " << m;
      EXPECT_EQ(length(Schedule::kDualPipeV, p, 2, m, f, f, f), m * 6 * f + (p - 1) * f)
          << "p " << p << " m " << m;
    }
  }
}

}  // namespace
}  // namespace orrery::sim
