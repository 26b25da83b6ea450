// SPDX-License-Identifier: Apache-2.0
//
// What the system says of memory, in files that are written here.
#include "exec/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace orrery::exec {
namespace {

namespace fs = std::filesystem;

class HostMemory : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("orrery-memory-" + std::to_string(::getpid()));
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const char* file, const char* text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  fs::path root_;
};

TEST_F(HostMemory, IsTheLeastThatIsLeftAnywhere) {
  EXPECT_EQ(available_memory(root_).value, std::numeric_limits<std::int64_t>::max());
  write("proc/meminfo", "MemTotal:  8000 kB\nMemFree:  10 kB\nMemAvailable:    5000 kB\nBuffers: 1 kB\n");
  EXPECT_EQ(available_memory(root_).value, 5000 * 1024);

  // Version 2: the group has no limit, the one above it has 4,000,000 bytes, of which 3,000,000 are used,
  // 500,000 of those by pages of files.
  write("proc/self/cgroup", "0::/above/mine\n");
  write("sys/fs/cgroup/above/mine/memory.max", "max\n");
  write("sys/fs/cgroup/above/mine/memory.current", "2000000\n");
  write("sys/fs/cgroup/above/memory.max", "4000000\n");
  write("sys/fs/cgroup/above/memory.current", "3000000\n");
  write("sys/fs/cgroup/above/memory.stat", "anon 2500000\ninactive_file 300000\nactive_file 200000\n");
  EXPECT_EQ(available_memory(root_).value, 1500000);

  // Version 1: 300,000 of 1,000,000 bytes are left.
  write("proc/self/cgroup", "4:cpu:/other\n5:memory:/job\n0::/above/mine\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000000");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "700000");
  EXPECT_EQ(available_memory(root_).value, 300000);
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1700000");
  EXPECT_EQ(available_memory(root_).value, 0);
}

TEST_F(HostMemory, OfThisMachineIsSomething) {
  EXPECT_GT(available_memory().value, 1 << 20);
  EXPECT_LT(available_memory().value, std::int64_t{1} << 50);
}

}  // namespace
}  // namespace orrery::exec
