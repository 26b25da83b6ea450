// SPDX-License-Identifier: Apache-2.0
//
// Runs with state and activations in the hosts' memory give the bits of runs without.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "exec/checkpoint.h"
#include "exec/drives.h"
#include "tests/exec/small_model.h"
#include "tests/folder.h"

namespace orrery {
namespace {

Training numbers(Precision precision, Math math) {
  return {.global_batch = kBatch, .sequence = 8, .precision = precision, .math = math};
}

Plan offloading(Plan p, const Offload& offload) {
  p.offload = offload;
  return p;
}

void expect_equal(const exec::RunResult& a, const exec::RunResult& b, const std::string& which) {
  ASSERT_EQ(a.steps.size(), b.steps.size()) << which;
  for (std::size_t s = 0; s < a.steps.size(); ++s) {
    EXPECT_EQ(a.steps[s].loss, b.steps[s].loss) << which << " step " << s;
    EXPECT_EQ(a.steps[s].gradient_norm, b.steps[s].gradient_norm) << which << " step " << s;
  }
  EXPECT_EQ(a.gradients, b.gradients) << which;
  EXPECT_EQ(a.parameters, b.parameters) << which;
}

// With master copies, parted ones and without, in 16 bits and 32, with a loss scale. Drives have moments in
// fp32 alone.
TEST(OffloadRuns, GiveTheBitsOfRunsWithout) {
  for (const auto& [precision, math] : {std::pair{Precision::kFp32, Math::kFp32},
                                        {Precision::kMixed, Math::kBf16},
                                        {Precision::kMixed, Math::kFp16},
                                        {Precision::kMegatron, Math::kBf16},
                                        {Precision::kNoMaster, Math::kBf16},
                                        {Precision::kPrecisionAwareBf16, Math::kBf16},
                                        {Precision::kSgd, Math::kFp32}}) {
    const Training t = numbers(precision, math);
    const bool narrow = bytes_per_parameter(precision).moment < 4;
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      const Plan p = plan(1, 2, 2, zero);
      const auto expected = train(tiny("tiny-llama"), p, t, stack(), small_run(4));
      std::vector<Offload> cases{{.optimizer = 1},
                                 {.optimizer = 0.4, .activation_layers = 1, .overlap = false}};
      cases.push_back({.optimizer = 0.6, .nvme = OnDrives::kOptimizer});
      if (zero == 3) {
        cases.push_back({.optimizer = 1, .parameters = true, .activation_layers = 4});
        cases.push_back({.optimizer = 1, .parameters = true, .nvme = OnDrives::kAll});
        cases.push_back({.optimizer = 1, .parameters = true, .nvme = OnDrives::kAll, .overlap = false});
        cases.push_back({.optimizer = 1, .parameters = true, .nvme = OnDrives::kOptimizer, .overlap = false});
      }
      for (const Offload& offload : cases) {
        const Plan offloaded = offloading(p, offload);
        if (narrow && offloaded.optimizer_on_drives()) continue;
        Stack keeps = stack();
        keeps.keeps_offloaded_master = zero == 1;
        expect_equal(train(tiny("tiny-llama"), offloaded, t, keeps, small_run(4)), expected,
                     fmt::format("{} {} {}", name_of(precision), name_of(math), short_name(offloaded)));
      }
    }
  }
}

// A checkpoint knows nothing of where its run kept its state, and runs of one plan sum in one order.
TEST(OffloadRuns, GoOnFromCheckpointsOfRunsWithout) {
  const Training t = numbers(Precision::kMixed, Math::kBf16);
  const Plan plain = plan(1, 1, 2, 3);
  exec::RunOptions o = small_run(6);
  const auto whole = train(tiny("tiny-llama"), plain, t, stack(), o);
  const Plan offloaded = offloading(plain, {.optimizer = 1, .parameters = true}),
             on_drives = offloading(plain, {.optimizer = 1, .parameters = true, .nvme = OnDrives::kAll});
  for (const auto& [first, second] :
       {std::pair{plain, offloaded}, {offloaded, plain}, {on_drives, plain}, {offloaded, on_drives}}) {
    const Folder folder;
    o.resume = false;
    o.checkpoints = folder.path;
    o.checkpoint_every = 3;
    o.keep_checkpoints = 0;
    train(tiny("tiny-llama"), first, t, stack(), o);
    std::filesystem::remove_all(folder.path / "step-00000006");
    o.resume = true;
    const auto resumed = train(tiny("tiny-llama"), second, t, stack(), o);
    EXPECT_EQ(resumed.first_step, 3);
    EXPECT_EQ(resumed.parameters, whole.parameters) << short_name(second);
  }
}

// Copies over a link of 1 MB/s take at least what it takes: of 2 bytes of gradient and 2 of parameter.
TEST(OffloadRuns, CopiesTakeWhatTheirLinkTakes) {
  const Training t = numbers(Precision::kMixed, Math::kBf16);
  const Plan p = offloading(plan(1, 1, 1, 0), {.optimizer = 1, .overlap = false});
  exec::RunOptions o = small_run(2);
  o.host_link = Bandwidth{1'000'000};
  const auto program = program::compile(tiny("tiny-llama"), p, t, stack());
  double elements = 0;
  for (const program::Unit& u : program.classes[0].units) elements += static_cast<double>(u.shard);
  ASSERT_GT(elements, 10'000);
  const auto r = train(tiny("tiny-llama"), p, t, stack(), o);
  EXPECT_GE(r.steps.back().seconds, 4 * elements / 1e6);
  // What slows copies changes no number.
  EXPECT_EQ(r.steps.back().loss, train(tiny("tiny-llama"), p, t, stack(), small_run(2)).steps.back().loss);
}

// A rank reads 8 bytes of moments and 4 of master copy from drives of 2 MB/s, and then writes them: one unit
// after the other where nothing overlaps.
TEST(OffloadRuns, DrivesTakeTheirTime) {
  const Training t = numbers(Precision::kMixed, Math::kBf16);
  const Plan p =
      offloading(plan(1, 1, 1, 0), {.optimizer = 1, .nvme = OnDrives::kOptimizer, .overlap = false});
  exec::RunOptions o = small_run(2);
  o.nvme_bandwidth = Bandwidth{2'000'000};
  const auto program = program::compile(tiny("tiny-llama"), p, t, stack());
  double elements = 0;
  for (const program::Unit& u : program.classes[0].units) elements += static_cast<double>(u.shard);
  const auto r = train(tiny("tiny-llama"), p, t, stack(), o);
  EXPECT_GE(r.steps.back().seconds, 2 * 12 * elements / 2e6);
  EXPECT_GE(r.drive_bytes.front(), 12 * static_cast<std::int64_t>(elements));
}

// A folder whose drives have no room for it, and one that is not there, before anything is trained.
TEST(OffloadRuns, NeedRoomOnTheirDrives) {
  const auto wrong = [](const std::filesystem::path& folder, std::int64_t bytes) -> std::string {
    try {
      const exec::DriveFile file(folder, bytes);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const Folder folder;
  EXPECT_EQ(wrong(folder.path, 1 << 20), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path));
  EXPECT_NE(wrong(folder.path, std::int64_t{1} << 60).find("no room for"), std::string::npos);
  EXPECT_NE(wrong(folder.path / "none", 1).find("cannot make a file"), std::string::npos);
}

}  // namespace
}  // namespace orrery
