// SPDX-License-Identifier: Apache-2.0
//
// The memory that a run needs and the memory that its host has, before it starts.
#include "exec/memory.h"

#include <fstream>

#include "tests/exec/small_model.h"
#include "tests/folder.h"

namespace orrery::exec {
namespace {

// Files of a system, as the kernel writes them.
class System {
 public:
  System() { file("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    1000 kB\nBuffers: 1 kB\n"); }
  void file(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_.path / name).parent_path());
    std::ofstream(folder_.path / name) << text;
  }
  AvailableMemory available() const { return available_memory(folder_.path); }
  std::string path(const std::string& name) const { return folder_.path / name; }

 private:
  Folder folder_;
};

TEST(AvailableMemory, IsTheKernelsEstimateWithoutLimits) {
  System s;
  EXPECT_EQ(s.available().bytes, Bytes{1000 * 1024});
  EXPECT_EQ(s.available().limited_by, "MemAvailable");
  s.file("proc/self/cgroup", "4:memory:/\n0::/\n");
  s.file("sys/fs/cgroup/memory.max", "max\n");
  s.file("sys/fs/cgroup/memory.current", "5\n");
  s.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  s.file("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n");
  EXPECT_EQ(s.available().bytes, Bytes{1000 * 1024});
}

// Usage counts without the page cache that can be dropped: 700,000 - (300,000 - 100,000).
TEST(AvailableMemory, IsWhatLimitsOfCgroupsLeave) {
  for (const bool second : {false, true}) {
    System s;
    const std::string base = second ? "sys/fs/cgroup/" : "sys/fs/cgroup/memory/";
    const auto group = [&](const std::string& path, const char* limit) {
      s.file(base + path + (second ? "memory.max" : "memory.limit_in_bytes"), limit);
      s.file(base + path + (second ? "memory.current" : "memory.usage_in_bytes"), "300000\n");
      s.file(base + path + "memory.stat",
             second ? "anon 7\ninactive_file 100000\n" : "inactive_file 3\ntotal_inactive_file 100000\n");
    };
    s.file("proc/self/cgroup", second ? "0::/job/step\n" : "5:cpu:/\n4:memory,hugetlb:/job/step\n");
    group("job/", "700000\n");
    group("job/step/", "900000\n");
    EXPECT_EQ(s.available().bytes, Bytes{500000});
    EXPECT_EQ(s.available().limited_by,
              s.path(base + "job/" + (second ? "memory.max" : "memory.limit_in_bytes")));
    group("job/step/", "150000\n");  // less than it uses
    EXPECT_EQ(s.available().bytes, Bytes{0});
  }
}

// Fewer ranks need less; together they need what each needs, and at least their arenas.
TEST(NeededMemory, IsTheSumOfRanks) {
  const Training t{
      .global_batch = kBatch, .sequence = 8, .precision = Precision::kMixed, .math = Math::kBf16};
  const auto program = program::compile(tiny("tiny-llama"), plan(2, 2, 2, 1), t, stack());
  const std::int64_t all = needed_memory(program, 0, 8, {}).value;
  std::int64_t sum = 0, arenas = 0;
  for (std::int64_t r = 0; r < 8; ++r) {
    sum += needed_memory(program, r, 1, {}).value;
    arenas += program.classes[static_cast<std::size_t>(program.stage_of(r))].arena_peak.value;
  }
  EXPECT_EQ(all, sum);
  // A loader of 2 batches of tokens and targets, 8 sequences of 8 tokens, 4 bytes: 1024; each rank has one.
  EXPECT_EQ(needed_memory(program, 0, 8, {.validates = true}).value, all + 8 * 1024);
  // A copy of the state has 12 bytes a parameter: the master copy and two moments. ZeRO-1 shares it, so that
  // each pair of replicas has it once.
  std::int64_t state = 0;
  for (const program::RankClass& c : program.classes) {
    for (const program::Unit& u : c.units) state += 2 * u.padded * 12;  // two tensor ranks
  }
  EXPECT_EQ(needed_memory(program, 0, 8, {.copies_state = true}).value, all + state);
  const exec::RunResult r = train(tiny("tiny-llama"), plan(2, 2, 2, 1), t, stack());
  std::int64_t taken = 0;
  for (std::size_t i = 0; i < 8; ++i) taken += r.arena_bytes[i];
  EXPECT_EQ(taken, arenas);
  EXPECT_GT(all, arenas);
}

}  // namespace
}  // namespace orrery::exec
