// SPDX-License-Identifier: Apache-2.0
#include "trace/nsight.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <fstream>

#include "core/error.h"
#include "tests/folder.h"
#include "trace/load.h"

namespace orrery::trace {
namespace {

// An export with the columns that the reader looks at, as nsys 2025.3 names them.
class Export {
 public:
  explicit Export(const std::string& file) {
    EXPECT_EQ(sqlite3_open(file.c_str(), &db_), SQLITE_OK);
    run("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)");
    run("INSERT INTO StringIds VALUES (1, 'nvjet_tst_128x256'), (2, 'ncclDevKernel_SendRecv(x)'), (3, 'step "
        "8')");
  }
  ~Export() { sqlite3_close(db_); }
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;
  void run(const std::string& sql) {
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, &error), SQLITE_OK) << (error ? error : "");
    sqlite3_free(error);
  }
  void kernels() {
    run("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId "
        "INTEGER, "
        "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER)");
  }

 private:
  sqlite3* db_ = nullptr;
};

constexpr const char* kProcess = "((1 << 48) + (77 << 24))";  // of a host, as nsys numbers it

TEST(Nsight, ExportsSayWhatDevicesDid) {
  const Folder folder;
  const std::string file = (folder.path / "run.sqlite").string();
  {
    Export e(file);
    e.kernels();
    for (int d = 0; d < 2; ++d) {
      const std::string device = std::to_string(d), shift = std::to_string(2000 * d);
      // A product, then an exchange that ends 2 us later on the second device.
      e.run("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 5000, " + device + ", 7, " +
            std::to_string(1 + 2 * d) + ", " + kProcess + ", 1)");
      e.run("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (9000, 20000 + " + shift + ", " + device +
            ", 15, " + std::to_string(2 + 2 * d) + ", " + kProcess + ", 2)");
    }
    e.run(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId "
        "INTEGER, "
        "correlationId INTEGER, globalPid INTEGER, copyKind INTEGER)");
    e.run(std::string("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (100, 200, 0, 7, 9, ") + kProcess +
          ", 1)");
    // The product was launched in the first step, the exchange in the second.
    e.run(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, "
        "correlationId "
        "INTEGER)");
    for (int c = 1; c <= 4; ++c)
      e.run("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (" + std::to_string(c % 2 == 1 ? 500 : 700) +
            ", 0, (1 << 48) + (77 << 24) + 5, " + std::to_string(c) + ")");
    e.run(
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid "
        "INTEGER)");
    e.run(
        "INSERT INTO NVTX_EVENTS VALUES (0, 600, 'step 7', NULL, 1), (600, 900, NULL, 3, 1), (1, 2, 'other', "
        "NULL, "
        "1), (3, NULL, 'step 9', NULL, 1)");
  }
  const Loaded loaded = load({file});
  const Timeline& t = loaded.merged.timeline;
  EXPECT_TRUE(loaded.foreign);
  EXPECT_EQ(t.source, "measured: Nsight Systems");
  EXPECT_EQ(t.rank_labels, (std::vector<std::string>{"GPU 0", "GPU 1"}));
  ASSERT_EQ(t.slices.size(), 5U);
  EXPECT_EQ(loaded.merged.steps, 2);
  const auto segment = [&](std::size_t i) {
    return t.segments[static_cast<std::size_t>(t.slices[i].segment)];
  };
  EXPECT_EQ(segment(0), "step 7");
  EXPECT_EQ(segment(1), "step 8");
  EXPECT_EQ(t.slices[0].end - t.slices[0].start, Time{4'000'000});  // 4,000 ns
  EXPECT_EQ(t.classes[static_cast<std::size_t>(t.slices[0].name)], OpClass::kProduct);
  EXPECT_EQ(t.classes[static_cast<std::size_t>(t.slices[1].name)], OpClass::kSendReceive);
  ASSERT_EQ(loaded.merged.meetings.size(), 1U);
  EXPECT_EQ(loaded.merged.processes[1].ahead_us, 0);  // one file has one clock
  EXPECT_NEAR(loaded.merged.spread_us, 2, 1e-9);
}

// Each process may see one device, whose number is 0 for all of them.
TEST(Nsight, DevicesAreOfProcesses) {
  const Folder folder;
  const std::string file = (folder.path / "visible.sqlite").string();
  {
    Export e(file);
    e.kernels();
    for (const char* process : {"77", "78"}) {
      e.run(std::string("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 5000, 0, 7, 1, (") + process +
            " << 24), 1)");
      e.run(std::string("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (6000, 9000, 0, 7, 2, (") + process +
            " << 24), 2)");
    }
    // Correlations are of a process: that of 78 launched its product second.
    e.run(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, "
        "correlationId "
        "INTEGER)");
    e.run(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (10, 11, (77 << 24) + 1, 1), (900, 901, (78 << 24) + "
        "1, 1)");
    e.run(
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid "
        "INTEGER)");
    e.run("INSERT INTO NVTX_EVENTS VALUES (0, 600, 'step 1', NULL, 1), (600, 9000, 'step 2', NULL, 1)");
  }
  const Merged m = load({file}).merged;
  const Timeline& t = m.timeline;
  EXPECT_EQ(t.rank_labels, (std::vector<std::string>{"GPU 0 of process 77", "GPU 0 of process 78"}));
  EXPECT_EQ(m.meetings.size(), 1U);
  EXPECT_EQ(t.segments[static_cast<std::size_t>(t.slices[0].segment)], "step 1");
  EXPECT_EQ(t.segments[static_cast<std::size_t>(t.slices[2].segment)], "step 2");
}

TEST(Nsight, OtherDatabasesAreRefused) {
  const Folder folder;
  const auto refused = [](const std::string& file) -> std::string {
    try {
      (void)load({file});
    } catch (const InputError& e) {
      return e.what();
    }
    return {};
  };
  const std::string other = (folder.path / "other.sqlite").string();
  { Export e(other); }
  EXPECT_NE(refused(other).find("has no kernels"), std::string::npos) << refused(other);
  const std::string backwards = (folder.path / "backwards.sqlite").string();
  {
    Export e(backwards);
    e.kernels();
    e.run(std::string("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5000, 1000, 0, 7, 1, ") + kProcess +
          ", 1)");
  }
  EXPECT_NE(refused(backwards).find("row 1 is from 5000 to 1000 ns"), std::string::npos)
      << refused(backwards);
  // SQLite lets a column hold anything.
  for (const char* start : {"'soon'", "NULL", "x'0011'", "-5"}) {
    const std::string file =
        (folder.path / (std::to_string(std::string(start).size()) + start[0] + ".sqlite")).string();
    {
      Export e(file);
      e.kernels();
      e.run(std::string("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (") + start + ", 1000, 0, 7, 1, " +
            kProcess + ", 1)");
    }
    EXPECT_NE(refused(file).find("start of row 1 is"), std::string::npos) << start << ": " << refused(file);
  }
  const std::string columns = (folder.path / "columns.sqlite").string();
  {
    Export e(columns);
    e.run("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)");
  }
  EXPECT_NE(refused(columns).find("no such column"), std::string::npos) << refused(columns);
  // A header alone.
  const std::string cut = (folder.path / "cut.sqlite").string();
  std::ofstream(cut, std::ios::binary) << std::string("SQLite format 3\0", 16) << std::string(84, '\1');
  EXPECT_NE(refused(cut).find("SQLite"), std::string::npos) << refused(cut);
}

}  // namespace
}  // namespace orrery::trace
