// SPDX-License-Identifier: Apache-2.0
//
// What is odd about a run is said, and nothing is said of a sound one.
#include "exec/watch.h"

#include <gtest/gtest.h>

#include <thread>

#include "exec/data.h"
#include "tests/exec/small_model.h"

namespace orrery::exec {
namespace {

Training training() {
  return {.global_batch = kBatch, .sequence = 8, .precision = Precision::kFp32, .math = Math::kFp32};
}

// The sentences that begin with `kind`.
std::vector<std::string> only(const std::vector<std::string>& alerts, const std::string& kind) {
  std::vector<std::string> out;
  for (const std::string& a : alerts) {
    if (a.starts_with(kind)) out.push_back(a);
  }
  return out;
}

// Six steps of TP2 DP2, whose ranks differ in nothing, but for what `change` does.
template <class Change>
std::vector<std::string> alerts(Change change, std::int64_t sequences = 1000, bool crowded = false,
                                int steps = 6) {
  const program::Program program = program::compile(tiny("tiny-gpt"), plan(2, 1, 2, 0), training(), stack());
  Watch watch(program, sequences, steps, crowded);
  for (int step = 0; step < steps; ++step) {
    double seconds = 1;
    for (std::int64_t r = 0; r < 4; ++r) {
      const auto dp = static_cast<std::uint32_t>(program.mesh.coordinate(r, "dp"));
      Watch::Seen seen{0.9, 0, 100 + 10 * static_cast<std::uint32_t>(step) + dp};
      change(step, r, seen, seconds);
      watch.see(r, seen);
    }
    watch.end_step(seconds);
  }
  return watch.alerts();
}

void expect_one(const std::vector<std::string>& all, const char* text) {
  ASSERT_EQ(all.size(), 1U);
  EXPECT_NE(all[0].find(text), std::string::npos) << all[0];
}

TEST(Watch, SaysNothingOfASoundRun) {
  EXPECT_TRUE(alerts([](int, std::int64_t, Watch::Seen&, double&) {}).empty());
}

TEST(Watch, NamesReplicasWithEqualSeeds) {
  expect_one(alerts([](int, std::int64_t, Watch::Seen& s, double&) { s.batch = 7; }),
             "equal seeds: in 6 of 6 steps rank 2 (dp 1)");
}

TEST(Watch, NamesTensorRanksWithUnequalSeeds) {
  expect_one(alerts([](int, std::int64_t r, Watch::Seen& s, double&) { s.batch += r == 3 ? 1000 : 0; }),
             "unequal seeds: in 6 of 6 steps rank 3");
}

TEST(Watch, NamesRanksWhoseDataComeLate) {
  expect_one(
      alerts([](int, std::int64_t r, Watch::Seen& s, double&) { s.waited_for_data_s = r == 2 ? 0.5 : 0.05; }),
      "late data: rank 2 waited 50.0 %");
}

TEST(Watch, NamesSlowRanks) {
  const auto slower = [](double one, double others, bool crowded = false) {
    return alerts(
        [=](int, std::int64_t r, Watch::Seen& s, double&) { s.computing_s *= r == 1 ? one : others; }, 1000,
        crowded);
  };
  EXPECT_TRUE(slower(1.3, 1.1).empty());
  expect_one(slower(1.3, 1.0), "slow rank: rank 1 computed 1.30 times");
  EXPECT_TRUE(slower(1.3, 1.0, true).empty());  // ranks share cores
  // The first step says little of those that follow.
  EXPECT_TRUE(alerts([](int, std::int64_t r, Watch::Seen& s, double&) { s.computing_s *= r == 1 ? 2 : 1; },
                     1000, false, 1)
                  .empty());
}

TEST(Watch, SeesASlowStart) {
  expect_one(alerts([](int step, std::int64_t, Watch::Seen&, double& s) { s = step < 2 ? 5 : 1; }),
             "slow start: the first 2 steps took 5.0 times");
  EXPECT_TRUE(alerts([](int step, std::int64_t, Watch::Seen&, double& s) { s = step == 3 ? 5 : 1; }).empty());
  // Up to twice the median is no slow start.
  EXPECT_TRUE(
      alerts([](int step, std::int64_t, Watch::Seen&, double& s) { s = step == 0 ? 1.9 : 1; }).empty());
  expect_one(alerts([](int step, std::int64_t, Watch::Seen&, double& s) {
               s = step == 0 ? 5 : step == 1 ? 1.5 : 1;
             }),
             "slow start: the first step took 5.0 times");
}

TEST(Watch, CountsSequences) {
  expect_one(alerts([](int, std::int64_t, Watch::Seen&, double&) {}, kBatch - 1),
             "uneven data: there are 15 sequences, and a step takes 16");
}

// Real runs: data that are the same for everybody, and data that take their time.
class Odd final : public Dataset {
 public:
  Odd(bool same, std::chrono::milliseconds delay) : same_(same), delay_(delay) {}
  std::int64_t sequences() const override { return 1000; }
  std::int64_t vocabulary() const override { return 64; }
  std::string identity() const override { return "odd"; }
  void read(std::int64_t i, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const override {
    std::this_thread::sleep_for(delay_);
    for (std::size_t j = 0; j < tokens.size(); ++j) {
      const auto at = static_cast<std::int64_t>(j);
      tokens[j] = static_cast<std::int32_t>(((same_ ? 0 : i / (at + 1)) + at) % 64);
      targets[j] = (tokens[j] + 1) % 64;
    }
  }

 private:
  bool same_;
  std::chrono::milliseconds delay_;
};

TEST(Watch, SeesRealRuns) {
  RunOptions o = small_run(6);
  const auto run_on = [&](const Dataset& data) {
    o.data = &data;
    return train(tiny("tiny-gpt"), plan(1, 2, 2, 1), training(), stack(), o).alerts;
  };
  using std::chrono::milliseconds;
  EXPECT_TRUE(only(run_on(Odd(false, milliseconds(0))), "equal seeds").empty());
  EXPECT_EQ(only(run_on(Odd(true, milliseconds(0))), "equal seeds").size(), 2U) << "both stages load";
  EXPECT_FALSE(only(run_on(Odd(false, milliseconds(40))), "late data").empty());
}

}  // namespace
}  // namespace orrery::exec
