// SPDX-License-Identifier: Apache-2.0
//
// A run that stops and goes on is the run that did not stop: to the bit under the same plan and under plans
// that only move data, and near it under others. Damaged checkpoints are never used.
#include "exec/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "core/error.h"
#include "exec/data.h"
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

// Experts over ranks of their own write what one rank reads, and read what it wrote.
TEST_F(Checkpoints, ExpertsOnOtherRanksGoOn) {
  const auto sparse = [&](const Plan& p) {
    const Training t{.global_batch = 8, .sequence = 8, .precision = Precision::kFp32, .math = Math::kFp32};
    return program::compile(tiny_of("experts"), p, t, Stack{});
  };
  Plan apart = plan(2, 1, 4, 1), folded = plan(1, 2, 4, 3);
  apart.sequence_parallel = true;
  apart.ep = 2;
  apart.etp = 2;
  apart.expert_room = folded.expert_room = 2;
  folded.ep = 4;
  const auto a = sparse(apart), b = sparse(folded), alone = sparse(plan(1, 1, 1, 0));
  const RunResult written = run(a, options(2));
  std::vector<std::string> passed_over;
  const auto first = restore_newest(folder_, a, passed_over);
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->states.front() == written.parameters);
  for (const auto* other : {&b, &alone}) {
    const auto states = restore_newest(folder_, *other, passed_over);
    ASSERT_TRUE(states);
    EXPECT_TRUE(first->states == states->states);
  }
  RunOptions o = options(4);
  o.checkpoint_every = 0;
  const RunResult expected = resume(alone, o);
  fs::remove_all(folder_ / "step-00000004");
  for (const auto* other : {&a, &b}) {
    const RunResult actual = resume(*other, o);
    fs::remove_all(folder_ / "step-00000004");
    ASSERT_EQ(actual.first_step, 2);
    EXPECT_NEAR(actual.steps[1].loss, expected.steps[1].loss, 2e-6 * expected.steps[1].loss);
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
  damage([&] { fs::remove(newest / "rank-2.bin"); }, "rank-2.bin cannot be read: No such file or directory");
  damage(
      [&] {  // a pipe would wait for who writes into it
        fs::remove(newest / "rank-2.bin");
        ASSERT_EQ(::mkfifo((newest / "rank-2.bin").c_str(), 0600), 0);
      },
      "rank-2.bin cannot be read: ");
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
        index["recipe"]["seed"] = 2;
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
  // A pipe would wait for who writes into it.
  fs::remove(folder_ / "step-00000002" / "index.json");
  ASSERT_EQ(::mkfifo((folder_ / "step-00000002" / "index.json").c_str(), 0600), 0);
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

// Files of this process end at so many bytes while it lives, as if the disk were full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) out.insert(entry.path().filename());
  }
  return out;
}

// The disk is full for the second of three checkpoints, then for the last: the run goes on and says so,
// nothing half-written stays, and older checkpoints do.
TEST_F(Checkpoints, AFullDiskCostsNothingThatWasSaved) {
  const auto program = compile(plan(1, 2, 2, 1));
  for (const std::int64_t full : {4, 6}) {
    fs::remove_all(folder_);
    std::optional<FullDisk> disk;
    RunOptions o = options(6);
    o.on_step = [&](std::int64_t step, const StepReport&) {
      if (step + 1 == full - 1) disk.emplace(10000);
      if (step + 1 == full) disk.reset();
    };
    const RunResult r = run(program, o);
    ASSERT_EQ(r.steps.size(), 6U);
    for (std::int64_t step = 1; step <= 6; ++step) {
      const std::string& why = r.steps[static_cast<std::size_t>(step - 1)].unsaved;
      EXPECT_EQ(why.empty(), step != full) << step << ": " << why;
    }
    const std::string& why = r.steps[static_cast<std::size_t>(full - 1)].unsaved;
    EXPECT_NE(why.find("rank-"), std::string::npos) << why;
    EXPECT_NE(why.find("File too large"), std::string::npos) << why;
    EXPECT_EQ(names_in(folder_), (full == 4 ? std::set<std::string>{"step-00000002", "step-00000006"}
                                            : std::set<std::string>{"step-00000002", "step-00000004"}));
    EXPECT_EQ(resume(program, options(8)).first_step, full == 4 ? 6 : 4);
  }
}

std::string all_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What is written beside steps is the state at the end of its step, whatever later steps make of it: files
// are equal, byte for byte, with and without threads of their own.
TEST_F(Checkpoints, WrittenBesideStepsAreThoseWrittenBetweenThem) {
  for (const Plan& p : {plan(1, 1, 1, 0), plan(2, 2, 2, 1), plan(1, 2, 2, 3)}) {
    const auto program = compile(p);
    std::map<std::string, std::string> files[2];
    for (const bool beside : {false, true}) {
      fs::remove_all(folder_);
      RunOptions o = options(24);
      o.checkpoint_every = 3;
      o.keep_checkpoints = 0;
      o.async_checkpoints = beside;
      for (const StepReport& step : run(program, o).steps) EXPECT_EQ(step.unsaved, "");
      EXPECT_EQ(names_in(folder_).size(), 8U) << short_name(p);
      for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
        if (entry.is_regular_file() && entry.path().parent_path() != folder_)
          files[beside ? 1 : 0][fs::relative(entry.path(), folder_)] = all_of(entry.path());
      }
    }
    EXPECT_EQ(files[0].size(), files[1].size());
    EXPECT_TRUE(files[0] == files[1]) << short_name(p);
    EXPECT_EQ(resume(program, options(26)).first_step, 24);
  }
}

// All ranks hear of a failure, in the step of a later checkpoint at the latest; the run goes on.
TEST_F(Checkpoints, WrittenBesideStepsSayWhyTheyWereNot) {
  const auto program = compile(plan(1, 2, 2, 1));
  RunOptions o = options(7);
  o.async_checkpoints = true;
  std::set<std::int64_t> unsaved;
  {
    const FullDisk disk(10000);
    for (const StepReport& step : run(program, o).steps) {
      if (step.unsaved.empty()) continue;
      EXPECT_NE(step.unsaved.find("File too large"), std::string::npos) << step.unsaved;
      unsaved.insert(step.unsaved_step);
    }
  }
  // That of step 6 may end with the last step, whose own failure is the one that is said.
  unsaved.erase(6);
  EXPECT_EQ(unsaved, (std::set<std::int64_t>{2, 4, 7}));
  EXPECT_TRUE(names_in(folder_).empty());
}

TEST_F(Checkpoints, TheNewestStay) {
  const auto program = compile(plan(1, 1, 2, 1));
  const auto left = [&](std::int64_t keep) {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "step-00000100");  // of an earlier, longer run: not this run's to remove
    RunOptions o = options(10);
    o.keep_checkpoints = keep;
    run(program, o);
    auto out = names_in(folder_);
    EXPECT_EQ(out.erase("step-00000100"), 1U);
    return out;
  };
  EXPECT_EQ(left(1), (std::set<std::string>{"step-00000010"}));
  EXPECT_EQ(left(3), (std::set<std::string>{"step-00000006", "step-00000008", "step-00000010"}));
  EXPECT_EQ(left(0).size(), 5U);
  EXPECT_EQ(left(7).size(), 5U);
}

TEST_F(Checkpoints, ADurationMayPassBetweenThem) {
  const auto program = compile(plan(1, 2, 2, 1));
  const auto left = [&](double seconds) {
    fs::remove_all(folder_);
    RunOptions o = options(5);
    o.checkpoint_every = 0;
    o.checkpoint_seconds = seconds;
    o.keep_checkpoints = 0;
    o.on_step = [](std::int64_t step, const StepReport&) {
      if (step < 3) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    };
    run(program, o);
    return names_in(folder_);
  };
  EXPECT_EQ(left(1e-9).size(), 5U);
  EXPECT_EQ(left(3600), (std::set<std::string>{"step-00000005"}));
  // 60 ms and more pass between the first four steps, and more than 100 in two of them.
  const auto some = left(0.1);
  EXPECT_GE(some.size(), 2U);
  EXPECT_LE(some.size(), 4U);
  EXPECT_FALSE(some.contains("step-00000001"));
}

// What changes the training is refused, and said when it is forced; what does not is free.
TEST_F(Checkpoints, AnotherTrainingIsRefused) {
  const auto program = compile(plan(1, 1, 2, 1));
  run(program, options(2));
  const auto refused = [&](const program::Program& p, const RunOptions& o, const std::string& field,
                           const std::string& values) {
    try {
      resume(p, o);
      ADD_FAILURE() << field;
    } catch (const InputError& e) {
      const std::string what = e.what();
      EXPECT_NE(what.find("step-00000002/index.json"), std::string::npos) << what;
      EXPECT_NE(what.find("/recipe/" + field), std::string::npos) << what;
      EXPECT_NE(what.find("was trained with " + values), std::string::npos) << what;
    }
    RunOptions forced = o;
    forced.force = true;
    fs::copy(folder_, folder_.string() + "-forced", fs::copy_options::recursive);
    forced.checkpoints = folder_.string() + "-forced";
    const RunResult r = resume(p, forced);
    EXPECT_EQ(r.first_step, 2);
    EXPECT_TRUE(std::any_of(r.alerts.begin(), r.alerts.end(), [&](const std::string& a) {
      return a.starts_with("the checkpoint was trained with " + field + " ");
    })) << field;
    fs::remove_all(forced.checkpoints);
  };
  RunOptions o = options(4);
  o.learning_rate = 0.02F;
  refused(program, o, "learning_rate", "0.01, and this run has 0.02");
  o = options(4);
  o.seed = 9;
  refused(program, o, "seed", "1, and this run has 9");
  o = options(4);
  o.warm_up = 3;
  refused(program, o, "warm_up", "0, and this run has 3");
  o = options(4);
  o.weight_decay = 0.25F;
  refused(program, o, "weight_decay", "0.0, and this run has 0.25");
  program::Program clipped = program;
  clipped.training.clip = 0.5;
  refused(clipped, options(4), "clip", "1.0, and this run has 0.5");
  Plan twice = plan(1, 1, 2, 1);
  twice.micro_batches *= 2;
  refused(compile(twice, "tiny-llama", 16), options(4), "global_batch", "8, and this run has 16");
  const fs::path text = folder_.string() + ".txt";
  std::ofstream(text) << std::string(5000, 'a');
  const auto data = open_data(text, 8);
  o = options(4);
  o.data = data.get();
  EXPECT_THROW(resume(program, o), InputError);
  fs::remove(text);

  EXPECT_EQ(resume(program, options(3)).first_step, 2);  // another number of steps
  o = options(5);
  o.decay_to = 0.1F;
  EXPECT_THROW(resume(program, o), InputError);
  o.force = true;
  EXPECT_EQ(resume(program, o).first_step, 3);
  o = options(6);
  o.decay_to = 0.1F;
  const RunResult longer = resume(program, o);
  ASSERT_FALSE(longer.alerts.empty());
  EXPECT_NE(longer.alerts[0].find("decays until step 6; it was to decay until step 5"), std::string::npos)
      << longer.alerts[0];
}

// Documents that end where the data say so are others than drawn ones.
TEST_F(Checkpoints, AnotherEndOfDocumentsIsRefused) {
  const Training t{.global_batch = 8,
                   .sequence = 8,
                   .precision = Precision::kFp32,
                   .math = Math::kFp32,
                   .documents = Documents{LognormalLength{3, 1}}};
  const auto program = program::compile(tiny("tiny-llama"), plan(1, 1, 1, 0), t, stack());
  RunOptions of_data = options(2);
  of_data.end_token = 5;
  run(program, of_data);
  try {
    resume(program, options(4));
    ADD_FAILURE();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("/recipe/end_token"), std::string::npos) << e.what();
  }
  of_data.steps = 4;
  EXPECT_EQ(resume(program, of_data).first_step, 2);
}

// No other check would notice these values.
TEST_F(Checkpoints, OnlyTheChecksumKnowsTheRecipe) {
  const auto program = compile(plan(1, 1, 1, 0));
  run(program, options(4));
  const fs::path file = folder_ / "step-00000004" / "index.json";
  const std::string whole = load_text(file);
  for (const std::string key : {"\"seed\": ", "\"learning_rate\": 0.", "\"steps\": ", "\"clip\": "}) {
    const std::size_t digit = whole.find(key) + key.size();
    ASSERT_TRUE(digit < whole.size() && std::isdigit(static_cast<unsigned char>(whole[digit]))) << key;
    std::string damaged = whole;
    damaged[digit] = static_cast<char>(damaged[digit] ^ 1);  // another digit
    save_text(file, damaged);
    std::vector<std::string> passed_over;
    EXPECT_EQ(restore_newest(folder_, program, passed_over)->step, 2) << key;
    ASSERT_EQ(passed_over.size(), 1U);
    EXPECT_NE(passed_over[0].find("does not have its checksum"), std::string::npos) << passed_over[0];
  }
}

}  // namespace
}  // namespace orrery::exec
