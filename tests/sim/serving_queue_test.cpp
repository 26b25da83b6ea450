// SPDX-License-Identifier: Apache-2.0
//
// Continuous batching against closed forms, with simple costs put in for passes.
#include "sim/serving/queue.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/error.h"

namespace orrery::sim {
namespace {

constexpr double kToken = 1e-4, kPass = 5e-3;  // s: of a token of a prompt, and of any pass

// 5 ms a pass, and 0.1 ms for each token of a prompt; a byte of cache for each token.
LaneCosts simple() {
  return {[](const PassMix& mix) {
            double s = kPass;
            for (const PromptPart& p : mix.prompts) s += kToken * static_cast<double>(p.tokens);
            return s;
          },
          [](std::int64_t tokens) { return static_cast<double>(tokens); }};
}
LaneLimits wide() {
  return {.sequences = 64, .pass_tokens = 8192, .cache = 1e9};
}
std::vector<Request> spaced(std::int64_t n, double apart, std::int64_t input, std::int64_t output) {
  std::vector<Request> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back({static_cast<double>(i) * apart, input, output});
  return out;
}

// Requests that never meet: the first token comes when the prompt's pass ends, the others a pass each.
TEST(ServingQueue, AloneARequestTakesItsPrefillAndItsDecodes) {
  const LaneRun run = serve(simple(), wide(), spaced(20, 10, 1000, 50));
  for (const Served& s : run.requests) {
    EXPECT_NEAR(s.ttft, kPass + 1000 * kToken, 1e-9);
    EXPECT_NEAR(s.tpot, kPass, 1e-9);
  }
  EXPECT_EQ(run.passes, 20 * 50);
  EXPECT_NEAR(run.busy, 20 * (50 * kPass + 1000 * kToken), 1e-6);
  EXPECT_DOUBLE_EQ(run.mean_batch, 1);
}

// 32 at a time, all alike: they are prefilled in one pass of 32 x 100 tokens, and decode in step.
TEST(ServingQueue, RequestsInStepDecodeTogether) {
  LaneLimits limits = wide();
  const std::vector<Request> requests(64, Request{0, 100, 11});
  const LaneRun run = serve(simple(), limits, requests, 32);
  for (const Served& s : run.requests) {
    EXPECT_NEAR(s.ttft, kPass + 3200 * kToken, 1e-9);
    EXPECT_NEAR(s.tpot, kPass, 1e-9);
  }
  EXPECT_EQ(run.passes, 2 * 11);
  EXPECT_DOUBLE_EQ(run.mean_batch, 32);
  EXPECT_NEAR(run.ended, 2 * (11 * kPass + 3200 * kToken), 1e-9);
}

// A prompt of 1,000 tokens, 300 of which a pass computes: four passes, of 300, 300, 300 and 100.
TEST(ServingQueue, LongPromptsAreCutIntoChunks) {
  LaneLimits limits = wide();
  limits.pass_tokens = 300;
  const LaneRun run = serve(simple(), limits, spaced(1, 0, 1000, 2));
  EXPECT_NEAR(run.requests[0].ttft, 4 * kPass + 1000 * kToken, 1e-9);
  EXPECT_EQ(run.passes, 5);
}

// While a prompt is computed in chunks beside them, decodes take longer: that is what chunks are for.
TEST(ServingQueue, ChunksBoundWhatADecodeWaits) {
  const auto longest_gap = [](std::int64_t pass_tokens) {
    LaneLimits limits = wide();
    limits.pass_tokens = pass_tokens;
    std::vector<Request> requests{{0, 10, 200}, {0.1, 8000, 2}};
    return serve(simple(), limits, requests).requests[0].tpot;
  };
  // All of it in one pass or spread out: the same work, but for the time of more passes.
  EXPECT_NEAR(longest_gap(8192), (199 * kPass + 8000 * kToken) / 199, 1e-9);
  EXPECT_NEAR(longest_gap(500), (199 * kPass + 8000 * kToken) / 199, 1e-9);
}

// The cache has room for two requests of 100 + 10 tokens at a time.
TEST(ServingQueue, TheCacheHoldsRequestsBack) {
  LaneLimits limits = wide();
  limits.cache = 250;
  const std::vector<Request> requests(4, Request{0, 100, 10});
  const LaneRun run = serve(simple(), limits, requests);
  EXPECT_DOUBLE_EQ(run.mean_batch, 2);
  EXPECT_NEAR(run.requests[0].ttft, kPass + 200 * kToken, 1e-9);
  EXPECT_NEAR(run.requests[2].ttft, 10 * kPass + 200 * kToken + kPass + 200 * kToken, 1e-9);
  limits.cache = 100;
  EXPECT_THROW(serve(simple(), limits, requests), Error);
}

// Little's law: requests under way, in the mean over time, are their rate times their time there.
TEST(ServingQueue, LittlesLawHolds) {
  constexpr std::uint64_t kSeed = 7;
  Serving s;
  s.input_tokens = 200;
  s.output_tokens = 40;
  s.input_spread = s.output_spread = 0.8;
  const std::vector<Request> requests = draw_requests(s, 10, 4000, kSeed);
  const LaneRun run = serve(simple(), wide(), requests);
  double inside = 0, stays = 0;
  for (const Served& r : run.requests) stays += r.ended - r.arrived;
  // Counted at 20,000 evenly spaced moments.
  constexpr int kMoments = 20'000;
  for (int i = 0; i < kMoments; ++i) {
    const double t = run.ended * (i + 0.5) / kMoments;
    for (const Served& r : run.requests) inside += r.arrived <= t && t < r.ended ? 1.0 / kMoments : 0;
  }
  const double rate = static_cast<double>(requests.size()) / run.ended;
  EXPECT_NEAR(inside, rate * stays / static_cast<double>(requests.size()), 0.01 * inside) << "seed " << kSeed;
  EXPECT_GT(inside, 2);
}

// M/D/1: lone prompts of 9.5 ms at a use of 0.6 wait 9.5 ms x 0.6 / (2 x 0.4) in the mean.
TEST(ServingQueue, LonePromptsWaitAsInAQueueOfOneServer) {
  constexpr std::uint64_t kSeed = 11;
  constexpr double kService = kPass + 45 * kToken, kUse = 0.6;
  Serving s;
  s.input_tokens = 45;
  s.output_tokens = 1;
  LaneLimits one = wide();
  one.sequences = 1;
  const LaneRun run = serve(simple(), one, draw_requests(s, kUse / kService, 60'000, kSeed));
  double mean = 0;
  for (const Served& r : run.requests) mean += r.ttft / static_cast<double>(run.requests.size());
  EXPECT_NEAR(mean, kService * (1 + kUse / (2 * (1 - kUse))), 0.02 * mean) << "seed " << kSeed;
}

TEST(ServingQueue, RequestsHaveTheMeanAndSpreadThatIsAskedFor) {
  constexpr std::uint64_t kSeed = 3;
  Serving s;
  s.input_tokens = 1000;
  s.input_spread = 0.5;
  s.output_tokens = 77;
  const std::vector<Request> requests = draw_requests(s, 4, 40'000, kSeed);
  double mean = 0, square = 0;
  for (const Request& r : requests) {
    mean += static_cast<double>(r.input) / static_cast<double>(requests.size());
    EXPECT_EQ(r.output, 77);
  }
  for (const Request& r : requests) square += std::pow(static_cast<double>(r.input) - mean, 2);
  EXPECT_NEAR(mean, 1000, 10) << "seed " << kSeed;
  EXPECT_NEAR(std::sqrt(square / static_cast<double>(requests.size())), 500, 15) << "seed " << kSeed;
  EXPECT_NEAR(requests.back().arrives, 10'000, 150) << "seed " << kSeed;
  // The same seed gives the same requests, another one others.
  const std::vector<Request> again = draw_requests(s, 4, 100, kSeed),
                             other = draw_requests(s, 4, 100, kSeed + 1);
  EXPECT_EQ(again[99].arrives, requests[99].arrives);
  EXPECT_NE(other[99].arrives, requests[99].arrives);
}

// Apart: the first token from the pool of prompts, the others in the other pool, with the transfer between.
TEST(ServingQueue, ApartTheCachePassesBetweenTheFirstTokenAndTheOthers) {
  constexpr double kTransfer = 0.02;
  Pools pools{.prefill_costs = simple(),
              .decode_costs = simple(),
              .prefill = wide(),
              .decode = wide(),
              .transfer = [](std::int64_t) { return kTransfer; }};
  const LaneRun run = serve_in_pools(pools, spaced(30, 10, 1000, 51));
  for (const Served& s : run.requests) {
    EXPECT_NEAR(s.ttft, kPass + 1000 * kToken, 1e-9);
    EXPECT_NEAR(s.tpot, (kTransfer + 50 * kPass) / 50, 1e-9);
  }
}

// A prompt beside decodes makes them wait; in a pool of their own they do not.
TEST(ServingQueue, ApartDecodesDoNotWaitForPrompts) {
  Serving s;
  s.input_tokens = 2000;
  s.output_tokens = 100;
  const std::vector<Request> requests = draw_requests(s, 2, 300, 5);
  const LaneRun together = serve(simple(), wide(), requests);
  const Pools pools{.prefill_costs = simple(),
                    .decode_costs = simple(),
                    .prefill = wide(),
                    .decode = wide(),
                    .transfer = [](std::int64_t) { return 0.0; }};
  const LaneRun apart = serve_in_pools(pools, requests);
  for (const Served& r : apart.requests) EXPECT_NEAR(r.tpot, kPass, 1e-6 + kPass / 99);
  double mean = 0;
  for (const Served& r : together.requests) mean += r.tpot / 300;
  EXPECT_GT(mean, 1.2 * kPass);
}

TEST(ServingQueue, PercentilesAreNearestRanks) {
  EXPECT_EQ(percentile({3, 1, 2, 4}, 0.5), 2);
  EXPECT_EQ(percentile({3, 1, 2, 4}, 0.51), 3);
  EXPECT_EQ(percentile({3, 1, 2, 4}, 1), 4);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

}  // namespace
}  // namespace orrery::sim
