// SPDX-License-Identifier: Apache-2.0
//
// A run that stops and goes on is the run that did not stop: to the bit under the same plan and under plans
// that only move data, and near it under others. Damaged checkpoints are never used.
#include "exec/checkpoint.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <fstream>
#include <random>

#include "core/error.h"
#include "exec/run.h"
#include "tests/exec/small_model.h"

namespace orrery::exec {
namespace {

namespace fs = std::filesystem;

class Checkpoints : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("orrery-checkpoints-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static program::Program compile(const Plan& p, const char* preset = "tiny-llama", std::uint64_t total = 8) {
    Model m = tiny(preset);
    m.vocab = 61;
    m.tied_embeddings = std::string(preset) == "tiny-gpt";
    Training t{.global_batch = static_cast<std::int64_t>(total),
               .sequence = 8,
               .precision = Precision::kFp32,
               .math = Math::kFp32};
    Stack s;
    s.bucket = Bytes{20000};
    program::check_plan(m, p, t, {"plan", ""});
    return program::compile(m, p, t, s);
  }
  static Plan plan(std::int64_t tp, std::int64_t pp, std::int64_t dp, std::int64_t zero) {
    Plan p;
    p.tp = tp;
    p.pp = pp;
    p.dp = dp;
    p.zero = zero;
    p.micro_batches = 8 / dp;
    return p;
  }
  RunOptions options(std::int64_t steps) const {
    RunOptions o;
    o.steps = steps;
    o.learning_rate = 0.01F;
    o.capture = true;
    o.checkpoints = folder_;
    o.checkpoint_every = 2;
    return o;
  }
  static RunResult resume(const program::Program& program, RunOptions o) {
    o.resume = true;
    return run(program, o);
  }
  static void flip_a_byte(const fs::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(1000);
    const char byte = static_cast<char>(file.get());
    file.seekp(1000);
    file.put(static_cast<char>(byte ^ 1));
  }
  fs::path folder_;
};

TEST_F(Checkpoints, ARunGoesOnUnderTheSamePlanToTheBit) {
  for (const Plan& p :
       {plan(1, 1, 1, 0), plan(2, 2, 2, 1), plan(1, 2, 2, 3), plan(2, 1, 4, 2), plan(1, 1, 4, 0)}) {
    fs::remove_all(folder_);
    const auto program = compile(p, p.pp == 2 ? "tiny-gpt" : "tiny-llama");
    RunOptions whole = options(6);
    whole.checkpoint_every = 0;
    const RunResult expected = run(program, whole);
    run(program, options(4));
    const RunResult actual = resume(program, options(6));
    EXPECT_EQ(actual.first_step, 4);
    ASSERT_EQ(actual.steps.size(), 2U);
    EXPECT_EQ(actual.steps[1].loss, expected.steps[5].loss) << short_name(p);
    EXPECT_EQ(actual.steps[1].gradient_norm, expected.steps[5].gradient_norm) << short_name(p);
    EXPECT_TRUE(actual.parameters == expected.parameters) << short_name(p);
  }
}

TEST_F(Checkpoints, AnotherPlanGoesOn) {
  const auto written_by = compile(plan(2, 2, 2, 1));
  const RunResult expected = run(written_by, [&] {
    RunOptions o = options(6);
    o.checkpoint_every = 4;
    return o;
  }());
  fs::remove_all(folder_ / "step-00000006");
  for (const Plan& p : {plan(1, 1, 1, 0), plan(1, 4, 2, 3), plan(4, 1, 2, 2), plan(1, 1, 8, 1)}) {
    RunOptions o = options(6);
    o.checkpoint_every = 0;
    const RunResult actual = resume(compile(p), o);
    ASSERT_EQ(actual.first_step, 4);
    for (const std::size_t s : {0UL, 1UL}) {
      EXPECT_NEAR(actual.steps[s].loss, expected.steps[4 + s].loss, 2e-6 * expected.steps[4 + s].loss)
          << short_name(p);
    }
  }
}

// What one plan wrote and another read and wrote again is what the first wrote.
TEST_F(Checkpoints, StateSurvivesAChangeOfPlanToTheBit) {
  const auto a = compile(plan(2, 2, 2, 1)), b = compile(plan(1, 4, 2, 3));
  run(a, options(2));
  std::vector<std::string> passed_over;
  const auto first = restore_newest(folder_, a, passed_over);
  const auto second = restore_newest(folder_, b, passed_over);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->step, 2);
  ASSERT_EQ(first->states.size(), 3U);  // parameter, two moments
  EXPECT_TRUE(first->states == second->states);
}

TEST_F(Checkpoints, DamageIsPassedOver) {
  const auto program = compile(plan(1, 2, 2, 1));
  const fs::path newest = folder_ / "step-00000004";
  const auto damage = [&](auto&& how, const char* why) {
    fs::remove_all(folder_);
    run(program, options(4));
    ASSERT_TRUE(fs::exists(newest / "index.json"));
    how();
    std::vector<std::string> passed_over;
    const auto state = restore_newest(folder_, program, passed_over);
    ASSERT_TRUE(state) << why;
    EXPECT_EQ(state->step, 2) << why;
    ASSERT_EQ(passed_over.size(), 1U) << why;
    EXPECT_NE(passed_over[0].find(why), std::string::npos) << passed_over[0];
  };
  damage([&] { flip_a_byte(newest / "rank-1.bin"); }, "does not have its checksum");
  damage([&] { fs::resize_file(newest / "rank-0.bin", 400); }, "has 400 bytes, not");
  damage([&] { fs::remove(newest / "rank-2.bin"); }, "has 0 bytes, not");
  damage([&] { fs::resize_file(newest / "index.json", 200); }, "index.json");
  damage([&] { fs::remove(newest / "index.json"); }, "index.json");
  damage(
      [&] {  // a piece less
        Json index = load_json(newest / "index.json");
        Json& pieces = index["files"][0]["pieces"];
        pieces.erase(pieces.size() - 1);
        save_text(newest / "index.json", with_checksum(index));
      },
      "of their file");
  damage(
      [&] {  // a gap before the second piece
        Json index = load_json(newest / "index.json");
        index["files"][0]["pieces"].erase(0);
        save_text(newest / "index.json", with_checksum(index));
      },
      "and the pieces before it end at 0");
  damage(
      [&] {  // a file less
        Json index = load_json(newest / "index.json");
        index["files"].erase(0);
        save_text(newest / "index.json", with_checksum(index));
      },
      "does not hold all of");
  damage(
      [&] {  // a file twice
        Json index = load_json(newest / "index.json");
        const Json first = index["files"][0];
        index["files"].push_back(first);
        save_text(newest / "index.json", with_checksum(index));
      },
      "a second time");
  damage(
      [&] {  // another step's
        Json index = load_json(newest / "index.json");
        index["step"] = 3;
        save_text(newest / "index.json", with_checksum(index));
      },
      "3, and the folder is \"step-00000004\"");
  damage(
      [&] {  // changed by hand
        Json index = load_json(newest / "index.json");
        index["seed"] = 2;
        save_text(newest / "index.json", index.dump(1));
      },
      "index.json does not have its checksum");
  damage(
      [&] {  // a piece beyond its tensor
        Json index = load_json(newest / "index.json");
        index["files"][0]["pieces"][0]["row"] = 1000000;
        save_text(newest / "index.json", with_checksum(index));
      },
      "lies outside its tensor");
}

// A bit of any file, the index as often as the others.
TEST_F(Checkpoints, NoBitMayDiffer) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto program = compile(plan(1, 1, 2, 1));
  run(program, options(4));
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_ / "step-00000004")) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 3U);
  for (int flip = 0; flip < 200; ++flip) {
    const fs::path& file = files[random() % files.size()];
    const std::string whole = load_text(file);
    std::string damaged = whole;
    const std::size_t bit = random() % (8 * whole.size());
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    save_text(file, damaged);
    std::vector<std::string> passed_over;
    const auto state = restore_newest(folder_, program, passed_over);
    save_text(file, whole);
    ASSERT_TRUE(state && state->step == 2) << file << " bit " << bit;
    ASSERT_EQ(passed_over.size(), 1U);
    EXPECT_NE(passed_over[0].find(file.filename().string()), std::string::npos) << passed_over[0];
  }
  std::vector<std::string> passed_over;
  EXPECT_EQ(restore_newest(folder_, program, passed_over)->step, 4);
}

TEST_F(Checkpoints, WithoutAWholeOneTheRunDoesNotStart) {
  const auto program = compile(plan(1, 1, 2, 1));
  EXPECT_EQ(resume(program, options(2)).first_step, 0);  // nothing there yet: from the beginning
  flip_a_byte(folder_ / "step-00000002" / "rank-0.bin");
  EXPECT_THROW(resume(program, options(4)), Error);
}

// One rank is asked, at its third step; all end after it, with a checkpoint that goes on to the bit.
TEST_F(Checkpoints, ASignalEndsTheRunAfterItsStepWithACheckpoint) {
  const auto program = compile(plan(1, 2, 2, 1));
  RunOptions o = options(6);
  o.checkpoint_every = 0;
  const RunResult expected = run(program, o);
  o.checkpoint_every = 100;
  std::atomic<int> looks = 0;  // four ranks look once a step
  o.stop = [&] { return looks++ == 9 ? SIGTERM : 0; };
  const RunResult stopped = run(program, o);
  EXPECT_EQ(stopped.stopped_by, SIGTERM);
  EXPECT_EQ(stopped.steps.size(), 3U);
  EXPECT_TRUE(fs::exists(folder_ / "step-00000003" / "index.json"));
  o.stop = nullptr;
  const RunResult rest = resume(program, o);
  EXPECT_EQ(rest.first_step, 3);
  EXPECT_EQ(rest.stopped_by, 0);
  EXPECT_EQ(rest.steps.size(), 3U);
  EXPECT_TRUE(rest.parameters == expected.parameters);
}

TEST_F(Checkpoints, ASignalInTheLastStepChangesNothing) {
  RunOptions o = options(1);
  o.stop = [] { return SIGINT; };
  const RunResult done = run(compile(plan(1, 1, 1, 0)), o);
  EXPECT_EQ(done.stopped_by, 0);
  EXPECT_FALSE(done.parameters.empty());
}

TEST_F(Checkpoints, AnotherModelsAreRefused) {
  run(compile(plan(1, 1, 1, 0), "tiny-gpt"), options(2));
  std::vector<std::string> passed_over;
  EXPECT_THROW(restore_newest(folder_, compile(plan(1, 1, 1, 0), "tiny-llama"), passed_over), Error);
  EXPECT_NE(passed_over.at(0).find("/tensors"), std::string::npos) << passed_over[0];
}

TEST_F(Checkpoints, AnInterruptedWriteLeavesTheOneBefore) {
  const auto program = compile(plan(1, 1, 2, 1));
  run(program, options(2));
  const fs::path partial = begin_checkpoint(folder_, 4);
  std::ofstream(partial / "rank-0.bin") << "half";
  const RunResult actual = resume(program, options(4));
  EXPECT_EQ(actual.first_step, 2);
  EXPECT_TRUE(actual.passed_over.empty());
}

}  // namespace
}  // namespace orrery::exec
