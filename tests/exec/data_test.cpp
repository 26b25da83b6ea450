// SPDX-License-Identifier: Apache-2.0
#include "exec/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "core/error.h"
#include "tests/exec/small_model.h"

namespace orrery::exec {
namespace {

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("orrery-data-" + std::to_string(::getpid()) + "-" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const char* name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  std::filesystem::path folder_;
};

std::string token_file(std::vector<std::int32_t> header, const std::vector<std::uint16_t>& tokens) {
  header.resize(256);
  std::string out(reinterpret_cast<const char*>(header.data()), 1024);
  out.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2);
  return out;
}

TEST_F(Files, TextIsATokenPerByte) {
  const auto data = open_data(write("a.txt", "Hello, planets"), 4);
  EXPECT_EQ(data->sequences(), 3);  // 13 tokens have a successor
  EXPECT_EQ(data->vocabulary(), 256);
  std::vector<std::int32_t> tokens(4), targets(4);
  data->read(1, tokens, targets);
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), "o, p");
  EXPECT_EQ(std::string(targets.begin(), targets.end()), ", pl");
}

// Two more successors are read with a sequence: of 14 tokens the third sequence would end with the 15th.
TEST_F(Files, TargetsMayGoOnBehindASequence) {
  const std::string path = write("further.txt", "Hello, planets");
  const auto data = open_data(path, 4, 2);
  EXPECT_EQ(data->sequences(), 2);
  std::vector<std::int32_t> tokens(4), targets(6);
  data->read(1, tokens, targets);
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), "o, p");
  EXPECT_EQ(std::string(targets.begin(), targets.end()), ", plan");
  EXPECT_THROW(open_data(path, 12, 2), InputError);
  EXPECT_EQ(open_data(path, 12, 1)->sequences(), 1);
}

// The successors of a sequence's last targets are the corpus's, and every plan's loader has the same.
TEST(Data, LoadersReadFurtherTargets) {
  const auto data = built_in_data(3, 64);
  constexpr std::int64_t kLength = 5, kFurther = 2;
  Loader::Shape shape{2, 2, 0, 1, {kLength}};
  Loader plain(*data, 9, shape);
  shape.further = kFurther;
  Loader further(*data, 9, shape);
  const Loader::Batch &near = plain.step(4), &far = further.step(4);
  EXPECT_EQ(near.inputs[0].tokens, far.inputs[0].tokens);
  ASSERT_EQ(far.targets.size(), 4 * (kLength + kFurther));
  std::int64_t alike = 0;
  for (std::int64_t s = 0; s < 4; ++s) {
    const auto own = far.targets.begin() + s * (kLength + kFurther);
    EXPECT_TRUE(std::equal(own, own + kLength, near.targets.begin() + s * kLength));
    // x becomes 5 x + 7, or one more in a sixteenth of the cases.
    for (std::int64_t t = kLength; t < kLength + kFurther; ++t) {
      const std::int32_t rule = (5 * own[t - 1] + 7) % 64;
      EXPECT_TRUE(own[t] == rule || own[t] == (rule + 1) % 64);
      alike += own[t] == rule;
    }
  }
  EXPECT_GE(alike, 6);
}

// A sample has the same documents whoever reads it: two replicas together have what one has. A stage that
// needs nothing else reads no tokens.
TEST(Data, LoadersSayWhereDocumentsBegin) {
  const auto data = built_in_data(3, 64);
  constexpr std::int64_t kLength = 32;
  const auto shape = [&](std::int64_t replica, std::int64_t replicas) {
    Loader::Shape out{1, 4 / replicas, replica, replicas, {kLength}};
    out.documents.emplace(Documents{LognormalLength{5, 1}});
    return out;
  };
  Loader one(*data, 9, shape(0, 1)), first(*data, 9, shape(0, 2)), second(*data, 9, shape(1, 2));
  const std::vector<std::int32_t> all = one.step(4).documents;
  ASSERT_EQ(all.size(), 4 * kLength);
  const auto sample = [](const std::vector<std::int32_t>& of, std::int64_t i) {
    return std::vector(of.begin() + i * kLength, of.begin() + (i + 1) * kLength);
  };
  for (std::int64_t m = 0; m < 2; ++m) {
    EXPECT_EQ(sample(first.step(4).documents, m), sample(all, 2 * m));
    EXPECT_EQ(sample(second.step(4).documents, m), sample(all, 2 * m + 1));
  }
  EXPECT_NE(sample(all, 0), sample(all, 1));
  EXPECT_NE(one.step(5).documents, all);
  Loader::Shape alone = shape(0, 1);
  alone.documents_alone = true;
  Loader middle(*data, 9, alone);
  EXPECT_EQ(middle.step(4).documents, all);
  EXPECT_TRUE(middle.step(4).inputs.empty());
  EXPECT_TRUE(middle.step(4).targets.empty());
}

// A document ends with its end token: two sequences of eight bytes, and one behind them for the last target.
// A stage that needs no tokens finds the same.
TEST_F(Files, DocumentsEndWhereTheDataSaySo) {
  const auto data = open_data(write("a.txt", "ab\nc\n\nde\nfghijk.."), 8);
  ASSERT_EQ(data->sequences(), 2);
  Loader::Shape shape{1, 2, 0, 1, {8}};
  shape.end_token = '\n';
  Loader::Shape alone = shape;
  alone.documents_alone = true;
  Loader loader(*data, 1, shape), middle(*data, 1, alone);
  const Loader::Batch& batch = loader.step(0);
  for (std::size_t i : {0U, 1U}) {
    const auto of = [&](const std::vector<std::int32_t>& all) {
      return std::vector(all.begin() + static_cast<std::ptrdiff_t>(8 * i),
                         all.begin() + static_cast<std::ptrdiff_t>(8 * i + 8));
    };
    const std::vector<std::int32_t> tokens = of(batch.inputs[0].tokens);
    if (tokens[0] == 'a') {  // a b \n c \n \n d e
      EXPECT_EQ(of(batch.documents), (std::vector<std::int32_t>{0, 0, 0, 3, 3, 5, 6, 6}));
    } else {  // \n f g h i j k
      EXPECT_EQ(tokens[0], '\n');
      EXPECT_EQ(of(batch.documents), (std::vector<std::int32_t>{0, 1, 1, 1, 1, 1, 1, 1}));
    }
  }
  EXPECT_EQ(middle.step(0).documents, batch.documents);
  EXPECT_TRUE(middle.step(0).inputs.empty());
}

// Documents that the data say: every plan computes the loss of the serial run, whichever ranks see the
// tokens, and it is not the loss of drawn documents, nor of none.
TEST(Data, PlansAgreeOnDocumentsOfTheData) {
  Training t{.global_batch = kBatch, .sequence = 16, .precision = Precision::kFp32, .math = Math::kFp32};
  const double whole = train(tiny("tiny-llama"), plan(1, 1, 1, 0), t, stack()).steps[0].loss;
  t.documents = {LognormalLength{3, 1}};
  RunOptions options = small_run(2);
  const double drawn = train(tiny("tiny-llama"), plan(1, 1, 1, 0), t, stack(), options).steps[0].loss;
  options.end_token = 5;
  const RunResult serial = train(tiny("tiny-llama"), plan(1, 1, 1, 0), t, stack(), options);
  EXPECT_GT(std::abs(serial.steps[0].loss - drawn), 1e-4);
  EXPECT_GT(std::abs(serial.steps[0].loss - whole), 1e-4);
  for (const Plan& p : {plan(1, 4, 1, 0), plan(2, 1, 2, 1), sp(plan(2, 2, 1, 0)),
                        context(plan(1, 2, 2, 0), 2, 1), context(plan(1, 1, 2, 0), 2, 2)}) {
    const RunResult r = train(tiny("tiny-llama"), p, t, stack(), options);
    for (std::size_t s = 0; s < 2; ++s)
      EXPECT_NEAR(r.steps[s].loss, serial.steps[s].loss, 1e-5) << short_name(p) << ", step " << s;
  }
  // One token of 64 ends a document, so that most of the pairs are within one; of documents of 3 tokens few.
  const auto odd = std::find_if(serial.alerts.begin(), serial.alerts.end(), [](const std::string& alert) {
    return alert.find("documents in the data leave") != std::string::npos;
  });
  EXPECT_NE(odd, serial.alerts.end());
}

TEST_F(Files, TokenFilesHaveAHeader) {
  const auto data = open_data(write("a.bin", token_file({20240520, 1, 5}, {7, 50256, 9, 10, 11})), 2);
  EXPECT_EQ(data->sequences(), 2);
  std::vector<std::int32_t> tokens(2), targets(2);
  data->read(0, tokens, targets);
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{7, 50256}));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{50256, 9}));
}

TEST_F(Files, DamagedFilesAreRefused) {
  const auto message = [&](const std::string& path) -> std::string {
    try {
      const auto data = open_data(path, 4);
      std::vector<std::int32_t> tokens(4), targets(4);
      data->read(0, tokens, targets);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  const std::vector<std::uint16_t> tokens{1, 2, 3, 4, 5};
  const auto has = [&](const std::string& path, const char* text) {
    const std::string m = message(path);
    EXPECT_NE(m.find(text), std::string::npos) << m;
    EXPECT_NE(m.find(path), std::string::npos) << m;
  };
  has((folder_ / "none.txt").string(), "cannot be read");
  has(folder_.string(), "cannot be read");
  has(write("empty.txt", ""), "less than a sequence");
  has(write("short.txt", "abcd"), "holds 4 tokens, less than a sequence of 4");
  has(write("short.bin", "abcd"), "too short for the header");
  has(write("magic.bin", token_file({1, 1, 5}, tokens)), "is no token file: it begins with 1, 1");
  has(write("cut.bin", token_file({20240520, 1, 6}, tokens)), "says that it holds 6 tokens");
  has(write("negative.bin", token_file({20240520, 1, -6}, tokens)), "says that it holds -6 tokens");
  has(write("large.bin", token_file({20240520, 1, 5}, {1, 2, 60000, 4, 5})), "token 2 is 60000");
}

// A mapped file would end the process here.
TEST_F(Files, ATruncatedFileIsNamed) {
  const std::string path = write("a.txt", std::string(20000, 'x'));
  const auto data = open_data(path, 100);
  std::vector<std::int32_t> tokens(100), targets(100);
  data->read(150, tokens, targets);
  std::filesystem::resize_file(path, 10000);
  data->read(0, tokens, targets);
  try {
    data->read(150, tokens, targets);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              path + " was truncated: it ends before byte 15101, and had 20000 bytes when it was opened");
  }
}

// The run itself: its data are cut after the first step.
TEST_F(Files, ARunWhoseDataAreTruncatedEnds) {
  const std::string path = write("run.txt", std::string(100000, 'x'));
  const auto data = open_data(path, 8);
  const Training t{.global_batch = kBatch, .sequence = 8, .precision = Precision::kFp32, .math = Math::kFp32};
  Model m = tiny("tiny-gpt");
  m.vocab = 256;
  RunOptions o = small_run(50);
  o.data = data.get();
  o.on_step = [&](std::int64_t, const StepReport&) { std::filesystem::resize_file(path, 100); };
  try {
    train(m, plan(1, 1, 2, 1), t, stack(), o);
    FAIL() << "it goes on";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(path + " was truncated: "), std::string::npos) << e.what();
  }
}

TEST_F(Files, TheSameDataHaveTheSameIdentity) {
  const std::string text(300000, 'a');
  const auto identity = [&](const char* name, const std::string& bytes) {
    return open_data(write(name, bytes), 10)->identity();
  };
  // RFC 3720, B.4: of 32 zeros the CRC-32C is 8a9136aa.
  EXPECT_EQ(identity("zeros.txt", std::string(32, '\0')), "text, 32 bytes, CRC-32C 8a9136aa");
  EXPECT_EQ(identity("a.txt", text), identity("b.txt", text));
  std::string other = text;
  other[200000] = 'b';
  EXPECT_NE(identity("a.txt", text), identity("b.txt", other));
  EXPECT_NE(identity("a.txt", text), identity("b.txt", text + 'a'));
  const auto whole = open_data(write("a.txt", text), 10);
  EXPECT_EQ(part_of(*whole, 0, whole->sequences())->identity(), whole->identity());
  EXPECT_EQ(part_of(*whole, 5, 10)->identity(), whole->identity() + ", sequences 5 to 14");
}

// Of large files blocks count that are spread from the first byte to the last.
TEST_F(Files, OfLargeFilesBothEndsCount) {
  const std::string path = write("large.txt", "");
  constexpr std::int64_t kBytes = (64 << 20) + 12345;
  std::filesystem::resize_file(path, kBytes);
  const auto identity = [&] { return open_data(path, 10)->identity(); };
  const auto set = [&](std::int64_t at, char c) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at).put(c);
  };
  const std::string before = identity();
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{65535}, kBytes - 1}) {
    set(at, 1);
    EXPECT_NE(identity(), before) << at;
    set(at, 0);
  }
  EXPECT_EQ(identity(), before);
}

TEST(Data, ShufflingIsAPermutation) {
  for (const std::int64_t n : {1, 2, 3, 10, 64, 1000}) {
    std::vector<std::int64_t> seen;
    for (std::int64_t i = 0; i < n; ++i) seen.push_back(shuffled(5, i, n));
    if (n == 1000) {
      EXPECT_FALSE(std::is_sorted(seen.begin(), seen.end()));
    }
    std::sort(seen.begin(), seen.end());
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(seen[static_cast<std::size_t>(i)], i);
  }
  int moved = 0;
  for (std::int64_t i = 0; i < 1000; ++i) moved += shuffled(5, i, 1000) != shuffled(6, i, 1000);
  EXPECT_GT(moved, 900);  // another epoch, another order
}

// Two replicas take one's micro-batches in turn, whatever was asked before.
TEST(Data, RanksShareTheGlobalBatch) {
  const auto data = built_in_data(3, 64);
  constexpr std::int64_t kLength = 5, kEach = 2 * kLength;
  Loader whole(*data, 9, {2, 4, 0, 1, {kLength}}), even(*data, 9, {2, 2, 0, 2, {kLength}}),
      odd(*data, 9, {2, 2, 1, 2, {kLength}});
  for (const std::int64_t step : {0, 1, 2, 7, 8, 3}) {
    const auto& expected = whole.step(step).inputs[0].tokens;
    const auto &first = even.step(step).inputs[0].tokens, &second = odd.step(step).inputs[0].tokens;
    std::vector<std::int32_t> merged;
    for (std::int64_t m = 0; m < 2; ++m) {
      merged.insert(merged.end(), first.begin() + m * kEach, first.begin() + (m + 1) * kEach);
      merged.insert(merged.end(), second.begin() + m * kEach, second.begin() + (m + 1) * kEach);
    }
    EXPECT_EQ(merged, expected) << "step " << step;
  }
}

// However many workers prepare steps, and however far ahead, each step has the same batch.
TEST(Data, WorkersPrepareTheSameBatches) {
  const auto data = built_in_data(3, 64);
  const Loader::Shape shape{2, 3, 1, 2, {5}};
  Loader one(*data, 9, shape);
  for (const LoaderOptions& options :
       {LoaderOptions{.workers = 3, .prefetch = 2}, LoaderOptions{.workers = 1, .prefetch = 7},
        LoaderOptions{.workers = 5, .prefetch = 1},
        LoaderOptions{.workers = 2, .storage = EmulatedStorage{.cpu_s = 1e-5}}}) {
    Loader several(*data, 9, shape, options);
    for (const std::int64_t step : {0, 1, 2, 3, 4, 5, 6, 20, 21, 22, 3, 4, 4}) {
      const auto expected = one.step(step);
      const auto& batch = several.step(step);
      EXPECT_EQ(batch.inputs[0].tokens, expected.inputs[0].tokens) << step;
      EXPECT_EQ(batch.targets, expected.targets) << step;
    }
  }
}

double seconds_of_steps(Loader& loader, std::int64_t steps) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t step = 0; step < steps; ++step) loader.step(step);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Ten steps of four samples, each with 2 ms of latency, 1 ms for 1 kB at 1 MB/s and 2 ms of a processor: 200
// ms for one worker, and 100 ms for two. What workers take in turn bounds any number of them.
TEST(Data, EmulatedStorageTakesItsTime) {
  const auto data = built_in_data(3, 64);
  const auto took = [&](std::int64_t workers, const EmulatedStorage& storage) {
    Loader loader(*data, 9, {4, 1, 0, 1, {5}}, {.workers = workers, .prefetch = 2, .storage = storage});
    return seconds_of_steps(loader, 10);
  };
  const EmulatedStorage slow{.latency_s = 2e-3, .share = 1e6, .cpu_s = 2e-3, .sample_bytes = 1e3};
  const double one = took(1, slow), four = took(4, slow);
  EXPECT_GE(one, 0.2);
  EXPECT_GE(took(2, slow), 0.1);
  EXPECT_LT(four, one) << "workers wait beside each other";
  EmulatedStorage narrow = slow;
  narrow.share = 1e5;  // 40 kB at 100 kB/s
  EXPECT_GE(took(4, narrow), 0.4);
  EmulatedStorage busy = slow;
  busy.cores_s = 0.01;  // 40 samples
  EXPECT_GE(took(4, busy), 0.4);
  EmulatedStorage reads = slow;
  reads.share = 0;
  reads.worker_bandwidth = 1e5;  // each of the 40 samples takes a worker 10 ms and 4 more
  EXPECT_GE(took(2, reads), 40 * 0.014 / 2);
}

// Ten samples: the first epoch is read, and a cache has all in the second.
TEST(Data, AnEmulatedCacheHasWhatWasRead) {
  const auto data = built_in_data(3, 64);
  const auto ten = part_of(*data, 0, 10);
  Loader loader(*ten, 1, {10, 1, 0, 1, {5}},
                {.storage = EmulatedStorage{.latency_s = 0.05, .read_share = 0}});
  loader.step(0);
  const double first = loader.waited_s();
  EXPECT_GE(first, 0.5);
  for (std::int64_t step = 1; step <= 5; ++step) loader.step(step);
  EXPECT_LT(loader.waited_s() - first, 1.25);  // five more epochs of reads would take 2.5 s
}

// A run that ends does not wait for the sample that is being read for the step after it.
TEST(Data, WorkersStopWithTheirLoader) {
  const auto data = built_in_data(3, 64);
  std::chrono::steady_clock::time_point end;
  {
    Loader loader(*data, 9, {1, 1, 0, 1, {5}}, {.storage = EmulatedStorage{.latency_s = 2}});
    loader.step(0);
    end = std::chrono::steady_clock::now();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - end, std::chrono::milliseconds(1500));
}

TEST(Data, AnEpochHoldsEverySequenceOnce) {
  const auto data = built_in_data(3, 1 << 20);
  const auto ten = part_of(*data, 100, 10);
  Loader loader(*ten, 1, {5, 1, 0, 1, {1}});
  std::vector<std::int32_t> seen, expected;
  for (std::int64_t i = 0; i < 10; ++i) {
    std::vector<std::int32_t> token(1), target(1);
    data->read(100 + i, token, target);
    expected.push_back(token[0]);
  }
  for (const std::int64_t step : {0, 1}) {
    const auto& tokens = loader.step(step).inputs[0].tokens;
    seen.insert(seen.end(), tokens.begin(), tokens.end());
  }
  std::sort(seen.begin(), seen.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(seen, expected);
}

TEST(Data, EveryEpochHasAnOrderOfItsOwn) {
  const auto data = built_in_data(3, 1 << 20);
  const auto hundred = part_of(*data, 0, 100);
  Loader loader(*hundred, 1, {100, 1, 0, 1, {1}});
  const std::vector<std::int32_t> first = loader.step(0).inputs[0].tokens;
  std::vector<std::int32_t> second = loader.step(1).inputs[0].tokens;
  int same = 0;
  for (std::size_t i = 0; i < 100; ++i) same += first[i] == second[i];
  EXPECT_LT(same, 20);
  std::vector<std::int32_t> sorted = first;
  std::sort(sorted.begin(), sorted.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(second, sorted);
}

// Image 4 x 4 with values 0 to 15: patches of 2 x 2 from left to right and from top to bottom.
TEST_F(Files, ImagesAreCutIntoPatches) {
  Model m = preset_model("tiny-gpt");
  m.inputs = {{PatchInput{.image = 4, .patch = 2, .channels = 1}}};
  m.output = {ClassOutput{.classes = 4}};
  std::string record(1, 3);
  for (int i = 0; i < 16; ++i) record += static_cast<char>(i);
  const auto data = open_data(write("images", record + record), m, {});
  EXPECT_EQ(data->sequences(), 2);
  std::vector<float> values(16);
  std::int32_t of = 0;
  data->read(1, values, of);
  EXPECT_EQ(of, 3);
  const int expected[] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
  for (std::size_t i = 0; i < 16; ++i)
    EXPECT_NEAR(values[i], static_cast<float>(expected[i]) / 127.5F - 1, 1e-6);
  EXPECT_THROW(open_data(write("cut", record + "more"), m, {}), InputError);
  record[0] = 4;
  EXPECT_THROW(open_data(write("class", record), m, {})->read(0, values, of), Error);
}

TEST_F(Files, EventsHaveIdsOfEachTowerAndALabel) {
  Model m = preset_model("tiny-gpt");
  m.inputs = {{BagInput{"user", 1, 10, 2}}, {BagInput{"item", 2, 5, 1}}};
  m.output = {PairOutput{}};
  const auto file = [&](const char* name, std::vector<std::int32_t> numbers) {
    return write(name, std::string(reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size()));
  };
  std::vector<std::int32_t> user(2), item(2);
  const std::vector<std::span<std::int32_t>> ids{user, item};
  std::int32_t label = -1;
  open_data(file("events", {1, 2, 3, 4, 0, 9, 8, 1, 0, 1}), m, {})->read(1, ids, label);
  EXPECT_EQ(user, (std::vector<std::int32_t>{9, 8}));
  EXPECT_EQ(item, (std::vector<std::int32_t>{1, 0}));
  EXPECT_EQ(label, 1);
  EXPECT_THROW(open_data(file("short", {1, 2, 3, 4}), m, {}), InputError);
  EXPECT_THROW(open_data(file("row", {1, 2, 5, 4, 0}), m, {})->read(0, ids, label), Error);
  EXPECT_THROW(open_data(file("label", {1, 2, 3, 4, 2}), m, {})->read(0, ids, label), Error);
}

// A source of three tokens and a target of two are one sequence of the data.
TEST(Data, ASequenceIsCutIntoTheInputsOfAModel) {
  const auto data = built_in_data(3, 1 << 20);
  Loader loader(*data, 1, {2, 1, 0, 1, {3, 2}});
  const Loader::Batch& b = loader.step(0);
  ASSERT_EQ(b.inputs.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    // The successor of x is 5 x + 7, or one more.
    const std::int32_t last = b.inputs[0].tokens[3 * i + 2], first = b.inputs[1].tokens[2 * i];
    const std::int64_t next = (5 * std::int64_t{last} + 7) % (1 << 20);
    EXPECT_TRUE(first == next || first == (next + 1) % (1 << 20));
    EXPECT_EQ(b.targets[2 * i], b.inputs[1].tokens[2 * i + 1]);
  }
  EXPECT_EQ(b.targets.size(), 4U);
}

TEST_F(Files, AnErrorWhilePreparingReachesTheStep) {
  const auto data = open_data(write("late.bin", token_file({20240520, 1, 5}, {1, 2, 3, 60000, 5})), 1);
  Loader loader(*data, 1, {4, 1, 0, 1, {1}});
  EXPECT_THROW(loader.step(0), Error);
}

}  // namespace
}  // namespace orrery::exec
