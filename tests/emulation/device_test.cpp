// SPDX-License-Identifier: Apache-2.0
//
// What the executor does beside computing, on the emulated GPU: limits of launches, errors that name ops,
// ranges for profilers, and the file that keeps algorithms of products.
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/json.h"
#include "cuda_runtime.h"
#include "exec/checkpoint.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm_choices.h"
#include "kernels/cuda/launch.h"
#include "tests/exec/small_model.h"

namespace orrery {
namespace {

using namespace kernels::cuda;
namespace fs = std::filesystem;

const Training kTraining{
    .global_batch = kBatch, .sequence = 8, .precision = Precision::kMixed, .math = Math::kBf16};

void nothing() {}

class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(fs::temp_directory_path() / ("orrery-" + name + "-" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(EmulatedDevice, RefusesLaunchesBeyondItsLimits) {
  const OwnedStream stream = make_stream();
  const auto refused = [&](const Grid& grid) {
    try {
      launch(stream.get(), "nothing", grid, nothing);
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused({.blocks = 2, .threads = 32, .threads_y = 32}));
  EXPECT_TRUE(refused({.blocks = 2, .threads = 32, .threads_y = 33}));
  EXPECT_FALSE(refused({.blocks = 1, .blocks_y = 65535, .threads = 32}));
  EXPECT_TRUE(refused({.blocks = 1, .blocks_y = 65536, .threads = 32}));
  EXPECT_TRUE(refused({.blocks = std::int64_t{1} << 31, .threads = 32}));
  EXPECT_FALSE(refused({.threads = 32, .shared = 227 << 10}));
  EXPECT_TRUE(refused({.threads = 32, .shared = (227 << 10) + 1}));
}

// The second block reads what only the first wrote.
void remembers(float* seen) {
  ORRERY_SHARED(memory, float[32]);
  if (blockIdx.x == 0) memory[threadIdx.x] = 1;
  __syncthreads();
  seen[32 * blockIdx.x + threadIdx.x] = memory[threadIdx.x];
}

TEST(EmulatedDevice, BlocksShareNothingWithEachOther) {
  const OwnedStream stream = make_stream();
  std::vector<float> seen(64, 0);
  launch(stream.get(), "remembers", {.blocks = 2, .threads = 32}, remembers, seen.data());
  check(cudaStreamSynchronize(stream.get()), "remembers");
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(std::isnan(seen[i]), i >= 32) << i;
}

void declares_30_kib() {
  ORRERY_SHARED(memory, char[30 << 10]);
  memory[threadIdx.x] = 0;
}

// What a kernel declares counts with what it is given. More than 24 KiB of that is asked for.
TEST(EmulatedDevice, RefusesMoreSharedMemoryThanABlockGets) {
  const auto fails = [](std::size_t dynamic) {
    const OwnedStream stream = make_stream();
    launch(stream.get(), "declares", {.threads = 32, .shared = dynamic}, declares_30_kib);
    return cudaStreamSynchronize(stream.get()) != cudaSuccess;
  };
  EXPECT_FALSE(fails(18 << 10));
  EXPECT_TRUE(fails((18 << 10) + 1));
  EXPECT_FALSE(fails((24 << 10) + 1));
  EXPECT_FALSE(fails(197 << 10));
  EXPECT_TRUE(fails((197 << 10) + 1));
}

// Each kernel of a first step fails in turn: the message has what failed, the rank, and where its stream was.
TEST(EmulatedDevice, AnErrorNamesOpAndRank) {
  int named = 0;
  for (const std::int64_t kernel : {40, 60, 80, 100}) {
    emulation::fail_work(kernel);
    try {
      train(tiny("tiny-gpt"), plan(1, 1, 1, 0, 16), kTraining, stack(),
            {.backend = exec::Backend::kCuda, .steps = 1});
    } catch (const Error& e) {
      const std::string text = e.what();
      EXPECT_TRUE(text.starts_with("rank 0: ")) << text;
      EXPECT_NE(text.find("an illegal memory access"), std::string::npos) << text;
      if (text.find("; stream compute at layer") != std::string::npos &&
          text.find(", micro-batch ") != std::string::npos)
        ++named;
    }
    emulation::fail_work(0);
  }
  EXPECT_GE(named, 2);  // the others fail at ends of the model
}

// A range for each op of a step that is issued, none of which is left open.
TEST(EmulatedDevice, OpsAreRangesOfProfilers) {
  const auto program = program::compile(tiny("tiny-gpt"), plan(1, 1, 1, 0, 16), kTraining, stack());
  long long ops = 0;
  for (const program::Step& step : program.classes[0].steps)
    ops += static_cast<long long>(
        program.classes[0].segments[static_cast<std::size_t>(step.segment)].ops.size());
  long long opened = 0;
  int open = -1;
  exec::run(program, {.backend = exec::Backend::kCuda, .steps = 2, .on_step = [&](std::int64_t, const auto&) {
                        opened = emulation::ranges.opened;
                        open = emulation::ranges.open;
                      }});
  EXPECT_EQ(opened, 2 * ops);
  EXPECT_EQ(open, 0);
}

TEST(GemmChoices, AreKeptInAFile) {
  const Folder folder("gemm-choices");
  const fs::path file = folder.path() / "cache.json";
  const GemmShape shape{.m = 8, .n = 16, .k = 32, .transpose_b = true, .bias = true};
  GemmShape other = shape;
  other.accumulate = true;
  ASSERT_NE(text_of(shape, 16, 32), text_of(other, 16, 32));
  ASSERT_NE(text_of(shape, 16, 32), text_of(shape, 17, 32));
  GemmChoice choice{.fused = true};
  for (std::size_t i = 0; i < choice.algorithm.size(); ++i) choice.algorithm[i] = ~std::uint64_t{i};
  const std::string product = text_of(shape, 16, 32);
  GemmChoices written("a library for a device");
  written.read(file);  // not there yet
  written.add(product, choice);
  written.write(file);

  GemmChoices read("a library for a device");
  read.read(file);
  ASSERT_NE(read.find(product), nullptr);
  EXPECT_TRUE(read.find(product)->fused);
  EXPECT_EQ(read.find(product)->algorithm, choice.algorithm);
  EXPECT_EQ(read.find(text_of(other, 16, 32)), nullptr);
  EXPECT_EQ(hash_of(product, *read.find(product)), hash_of(product, choice));
  choice.algorithm[7] ^= 1;
  EXPECT_NE(hash_of(product, *read.find(product)), hash_of(product, choice));

  const auto refused = [&](GemmChoices& by) {
    try {
      by.read(file);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  GemmChoices of_another("another library");
  EXPECT_NE(refused(of_another).find("/library: \"a library for a device\"; allowed: \"another library\""),
            std::string::npos);
  Json json = load_json(file);
  json["products"][0]["algorithm"] = "00ff";
  save_json(file, json);
  GemmChoices again("a library for a device");
  EXPECT_NE(refused(again).find("/products/0/algorithm: \"00ff\" is no algorithm"), std::string::npos);
}

// A run writes what it chose. One that goes on from a checkpoint says when its choices are others.
TEST(GemmChoices, OfACheckpointAreComparedWithARunsOwn) {
  const Folder folder("gemm-resume");
  exec::RunOptions o{.backend = exec::Backend::kCuda, .gemm_cache = folder.path() / "cache.json", .steps = 1};
  o.checkpoints = folder.path() / "run";
  o.checkpoint_every = 1;
  const auto go = [&](std::int64_t steps) {
    o.steps = steps;
    o.resume = steps > 1;
    return train(tiny("tiny-gpt"), plan(1, 1, 2, 0, 8), kTraining, stack(), o).alerts;
  };
  const auto says = [](const std::vector<std::string>& alerts) {
    return std::count_if(alerts.begin(), alerts.end(), [](const std::string& a) {
      return a.starts_with("products run by other algorithms than when the checkpoint was written");
    });
  };
  EXPECT_EQ(says(go(1)), 0);
  EXPECT_FALSE(load_json(o.gemm_cache)["products"].empty());
  EXPECT_EQ(says(go(2)), 0);
  const fs::path index = o.checkpoints / "step-00000002" / "index.json";
  Json json = load_json(index);
  ASSERT_EQ(json["algorithms"].size(), 2U);
  EXPECT_EQ(json["algorithms"][0], json["algorithms"][1]);  // replicas
  json["algorithms"][1] = "0123456789abcdef";
  save_text(index, exec::with_checksum(json));
  EXPECT_EQ(says(go(3)), 1);
}

}  // namespace
}  // namespace orrery
