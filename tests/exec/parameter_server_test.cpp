// SPDX-License-Identifier: Apache-2.0
//
// Training through a parameter server, for real: against plain runs, and by what comes late.
#include "exec/parameter_server.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "exec/data.h"
#include "tests/exec/small_model.h"

namespace orrery {
namespace {

program::Program worker_of(std::int64_t samples, Precision precision = Precision::kFp32) {
  const Model m = tiny("tiny-gpt");
  const Training t{.global_batch = samples,
                   .sequence = 8,
                   .precision = precision,
                   .math = precision == Precision::kMixed ? Math::kBf16 : Math::kFp32};
  const Plan p{.micro_batches = samples};
  program::check_plan(m, p, t, {"plan", ""});
  return program::compile(m, p, t, stack());
}

exec::ServedRun serve(const ServerRules& rules, const program::Program& worker,
                      const exec::RunOptions& options) {
  const auto data = exec::built_in_data(options.seed, worker.model);
  return exec::run_server(worker, options, *data, rules);
}

exec::RunOptions served_run(std::int64_t updates, float rate = 3e-3F) {
  exec::RunOptions o = small_run(updates);
  o.learning_rate = rate;
  o.timeline = false;
  return o;
}

double mean_of(const std::vector<double>& x, std::size_t first, std::size_t count) {
  return std::accumulate(x.begin() + static_cast<std::ptrdiff_t>(first),
                         x.begin() + static_cast<std::ptrdiff_t>(first + count), 0.0) /
         static_cast<double>(count);
}

// One worker is a plain run, to the bit: the server's update is the program's own.
TEST(ServedRuns, OfOneWorkerArePlainRuns) {
  for (const Precision precision : {Precision::kFp32, Precision::kMixed, Precision::kSgd}) {
    const program::Program worker = worker_of(4, precision);
    const auto plain = exec::run(worker, served_run(6));
    for (const ServerMode mode : {ServerMode::kAsynchronous, ServerMode::kSynchronous}) {
      const exec::ServedRun served = serve({.mode = mode}, worker, served_run(6));
      ASSERT_EQ(served.losses.size(), 6U);
      for (std::size_t s = 0; s < 6; ++s)
        EXPECT_EQ(served.losses[s], plain.steps[s].loss) << name_of(precision) << " " << s;
      EXPECT_EQ(served.staleness, std::vector<std::int64_t>{6});
    }
  }
}

// Those that wait for all have no stale gradient, and learn as one batch of all does.
TEST(ServedRuns, ThatWaitForAllLearnAsOneBatch) {
  const exec::ServedRun four =
      serve({.workers = 4, .mode = ServerMode::kSynchronous, .wait_for = 4}, worker_of(2), served_run(40));
  EXPECT_EQ(four.gradients, 160);
  EXPECT_EQ(four.dropped, 0);
  EXPECT_EQ(four.staleness, std::vector<std::int64_t>{160});
  const auto one = exec::run(worker_of(8), served_run(40));
  double last = 0;
  for (std::size_t s = 30; s < 40; ++s) last += one.steps[s].loss / 10;
  EXPECT_NEAR(mean_of(four.losses, 30, 10), last, 0.25 * last);
  EXPECT_LT(mean_of(four.losses, 30, 10), four.losses.front() - 0.5);
}

// Stale gradients still learn. A worker three times slower is never waited for.
TEST(ServedRuns, LearnFromStaleGradients) {
  exec::RunOptions o = served_run(120, 1e-3F);
  o.slow = {{0, 3.0}};
  const exec::ServedRun r = serve({.workers = 4}, worker_of(4), o);
  ASSERT_EQ(r.losses.size(), 120U);
  EXPECT_LT(mean_of(r.losses, 110, 10), r.losses.front() - 0.5);
  const std::int64_t all = std::accumulate(r.staleness.begin(), r.staleness.end(), std::int64_t{0});
  EXPECT_EQ(all, 120);
  EXPECT_GT(std::ssize(r.staleness), 1) << "no gradient was stale";
}

// Of four workers one is thirty times slower: what it computes is dropped, and updates do not wait for it.
TEST(ServedRuns, BackupWorkersAreNotWaitedFor) {
  exec::RunOptions o = served_run(30);
  o.slow = {{2, 30.0}};
  const exec::ServedRun all =
      serve({.workers = 4, .mode = ServerMode::kSynchronous, .wait_for = 4}, worker_of(4), [&] {
        exec::RunOptions few = o;
        few.steps = 5;
        return few;
      }());
  const exec::ServedRun most =
      serve({.workers = 4, .mode = ServerMode::kSynchronous, .wait_for = 3}, worker_of(4), o);
  EXPECT_LT(most.seconds / 30, 0.5 * all.seconds / 5);
  EXPECT_EQ(most.staleness, std::vector<std::int64_t>{90});
  EXPECT_EQ(all.dropped, 0);
}

// A worker that is at most two gradients ahead of the slowest: no gradient joins after more than three of
// each of the others.
TEST(ServedRuns, KeepTheBoundOnStaleness) {
  exec::RunOptions o = served_run(40);
  o.slow = {{1, 10.0}};
  const exec::ServedRun r = serve({.workers = 3, .bound = 2}, worker_of(2), o);
  EXPECT_LE(std::ssize(r.staleness), 2 * 4 + 1);
  const exec::ServedRun free = serve({.workers = 3}, worker_of(2), o);
  EXPECT_LT(free.seconds, r.seconds);
}

// The server's link carries gradients one after the other: 24 updates take as long as their bytes.
TEST(ServedRuns, WaitForTheServersLink) {
  const program::Program worker = worker_of(1);
  std::int64_t bytes = 0;
  for (const program::Unit& u : worker.classes.front().units) bytes += 4 * u.padded;
  exec::RunOptions o = served_run(24);
  o.link.bandwidth = Bandwidth{bytes * 50};  // 20 ms each
  const exec::ServedRun r = serve({.workers = 4}, worker, o);
  EXPECT_GT(r.seconds, 24 * 0.020);
  EXPECT_LT(r.seconds, 24 * 0.020 * 2.5);
}

TEST(ServedRuns, OfLessDataThanWorkersAreRefused) {
  const program::Program worker = worker_of(1);
  const auto all = exec::built_in_data(1, worker.model);
  const auto few = exec::part_of(*all, 0, 3);
  EXPECT_THROW(exec::run_server(worker, served_run(2), *few, {.workers = 4}), InputError);
}

TEST(ServedRuns, AWorkerThatFailsEndsTheRun) {
  class Broken : public exec::Dataset {
   public:
    std::int64_t sequences() const override { return 1 << 20; }
    std::int64_t vocabulary() const override { return 64; }
    std::string identity() const override { return "broken"; }
    void read(std::int64_t i, std::span<std::int32_t> tokens,
              std::span<std::int32_t> targets) const override {
      if (i % 2 == 1) throw Error("sector 7 is gone");
      std::fill(tokens.begin(), tokens.end(), 1);
      std::fill(targets.begin(), targets.end(), 1);
    }
  };
  try {
    exec::run_server(worker_of(2), served_run(50), Broken(), {.workers = 2});
    FAIL() << "a worker whose data cannot be read has trained";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), "worker 1: sector 7 is gone");
  }
}

}  // namespace
}  // namespace orrery
