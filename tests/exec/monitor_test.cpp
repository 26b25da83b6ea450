// SPDX-License-Identifier: Apache-2.0
#include "exec/monitor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "exec/crc32c.h"

namespace orrery::exec {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

class Monitor : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("orrery-monitor-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

// RFC 3720, appendix B.4; and the usual check value.
TEST_F(Monitor, Crc32c) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c("6789", crc32c("12345")), 0xe3069283U);
}

TEST_F(Monitor, PrometheusTextIsReplacedAsAWhole) {
  const std::string path = folder_ / "run.prom";
  write_prometheus(path, {{"loss", "nats per token", 2.5}});
  write_prometheus(path, {{"loss", "nats per token", 2.25}, {"step", "done", 7}});
  EXPECT_EQ(read(path),
            "# HELP orrery_loss nats per token\n# TYPE orrery_loss gauge\norrery_loss 2.25\n"
            "# HELP orrery_step done\n# TYPE orrery_step gauge\norrery_step 7\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  EXPECT_THROW(write_prometheus(folder_ / "none" / "run.prom", {}), Error);
}

// Reads the records back with their checksums; the scalar's bytes are those of its message.
TEST_F(Monitor, TensorBoardRecordsAreWhole) {
  {
    TensorBoard board(folder_ / "events");
    board.write(3, {{"loss", "", 1.5}});
  }
  const std::string bytes = read(*std::filesystem::directory_iterator(folder_ / "events"));
  const auto masked = [](std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8U; };
  std::vector<std::string> events;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t length = 0;
    std::uint32_t of_length = 0, of_data = 0;
    ASSERT_LE(at + 12, bytes.size());
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&of_length, bytes.data() + at + 8, 4);
    EXPECT_EQ(of_length, masked(crc32c(std::string_view(bytes).substr(at, 8))));
    ASSERT_LE(at + 16 + length, bytes.size());
    events.push_back(bytes.substr(at + 12, length));
    std::memcpy(&of_data, bytes.data() + at + 12 + length, 4);
    EXPECT_EQ(of_data, masked(crc32c(events.back())));
    at += 16 + length;
  }
  ASSERT_EQ(events.size(), 2U);
  EXPECT_NE(events[0].find("brain.Event:2"), std::string::npos);
  // step 3; summary of 13 bytes: one value of 11: tag "loss", simple_value 1.5 (0x3fc00000).
  const std::string expected("\x10\x03\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\xc0\x3f", 17);
  EXPECT_EQ(events[1].substr(9), expected);
}

TEST_F(Monitor, AFileThatCannotBeWrittenSaysWhy) {
  std::ofstream(folder_ / "file") << "no folder";
  try {
    TensorBoard(folder_ / "file");
    FAIL();
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_TRUE(what.starts_with("cannot write " + (folder_ / "file/events.out.").string())) << what;
    EXPECT_TRUE(what.ends_with(": Not a directory")) << what;
  }
}

}  // namespace
}  // namespace orrery::exec
