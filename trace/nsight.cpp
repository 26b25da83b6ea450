// SPDX-License-Identifier: Apache-2.0
#include "trace/nsight.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "core/error.h"
#include "core/fields.h"

namespace orrery::trace {
namespace {

constexpr const char* kAllowed = "allowed: an export of nsys (--type sqlite) with CUDA traced by kernel";

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close(db); }
};
struct FinishStatement {
  void operator()(sqlite3_stmt* s) const { sqlite3_finalize(s); }
};

class Database {
 public:
  explicit Database(const std::filesystem::path& file) : file_(file.string()) {
    sqlite3* db = nullptr;
    const int result = sqlite3_open_v2(file_.c_str(), &db, SQLITE_OPEN_READONLY, nullptr);
    db_.reset(db);
    if (result != SQLITE_OK) fail();
  }
  bool has(const char* table) {
    const auto s = statement("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?");
    sqlite3_bind_text(s.get(), 1, table, -1, SQLITE_STATIC);
    return next(s.get());
  }
  // Calls row(statement) for each row.
  template <class Row>
  void each(const std::string& query, Row row) {
    const auto s = statement(query);
    while (next(s.get())) row(s.get());
  }
  [[noreturn]] void fail(const std::string& what, const std::string& allowed = {}) const {
    throw InputError(file_, "/", what, allowed);
  }

 private:
  using Statement = std::unique_ptr<sqlite3_stmt, FinishStatement>;
  [[noreturn]] void fail() const { fail(std::string("SQLite says: ") + sqlite3_errmsg(db_.get()), kAllowed); }
  Statement statement(const std::string& query) {
    sqlite3_stmt* s = nullptr;
    if (sqlite3_prepare_v2(db_.get(), query.c_str(), -1, &s, nullptr) != SQLITE_OK) fail();
    return Statement(s);
  }
  bool next(sqlite3_stmt* s) {
    const int result = sqlite3_step(s);
    if (result != SQLITE_ROW && result != SQLITE_DONE) fail();
    return result == SQLITE_ROW;
  }

  std::string file_;
  std::unique_ptr<sqlite3, CloseDatabase> db_;
};

std::string text(sqlite3_stmt* s, int column) {
  const auto* t = reinterpret_cast<const char*>(sqlite3_column_text(s, column));
  return t == nullptr ? std::string() : std::string(t);
}

class NsightReader {
 public:
  explicit NsightReader(const std::filesystem::path& file) : db_(file), file_(file.string()) {}

  std::vector<DeviceTrace> read() {
    if (!db_.has("CUPTI_ACTIVITY_KIND_KERNEL") || !db_.has("StringIds"))
      db_.fail("has no kernels of CUDA", kAllowed);
    launches();
    steps();
    db_.each(
        query("CUPTI_ACTIVITY_KIND_KERNEL", "s.value", "LEFT JOIN StringIds s ON s.id = a.demangledName"),
        [&](sqlite3_stmt* row) { activity(row, text(row, kName), true); });
    if (db_.has("CUPTI_ACTIVITY_KIND_MEMCPY"))
      db_.each(query("CUPTI_ACTIVITY_KIND_MEMCPY", "a.copyKind", ""), [&](sqlite3_stmt* row) {
        activity(row, name_of_copy(sqlite3_column_int(row, kName)), false);
      });
    if (db_.has("CUPTI_ACTIVITY_KIND_MEMSET"))
      db_.each(query("CUPTI_ACTIVITY_KIND_MEMSET", "NULL", ""),
               [&](sqlite3_stmt* row) { activity(row, "Memset", false); });
    return finished();
  }

 private:
  struct Device {
    DeviceTrace trace;
    std::map<std::string, std::int32_t> names;
  };
  struct Step {
    std::int64_t from_ns;
    std::string name;
  };
  // Columns of query().
  static constexpr int kStart = 0, kEnd = 1, kDevice = 2, kStream = 3, kCorrelation = 4, kProcess = 5,
                       kRow = 6, kName = 7;

  // Threads and processes have the process's number above their lowest 24 bits.
  static std::string query(const std::string& table, const std::string& name, const std::string& join) {
    return "SELECT a.start, a.end, a.deviceId, a.streamId, a.correlationId, a.globalPid >> 24 AS globalPid, "
           "a.rowid, " +
           name + " FROM " + table + " a " + join;
  }

  void launches() {
    if (!db_.has("CUPTI_ACTIVITY_KIND_RUNTIME")) return;
    db_.each("SELECT correlationId, globalTid >> 24, start FROM CUPTI_ACTIVITY_KIND_RUNTIME",
             [&](sqlite3_stmt* row) {
               launched_.try_emplace({sqlite3_column_int64(row, 0), sqlite3_column_int64(row, 1)},
                                     sqlite3_column_int64(row, 2));
             });
  }

  void steps() {
    if (!db_.has("NVTX_EVENTS")) return;
    db_.each(
        "SELECT n.start, coalesce(n.text, s.value) FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = "
        "n.textId "
        "WHERE n.end IS NOT NULL ORDER BY n.start",
        [&](sqlite3_stmt* row) {
          // Of several threads or ranks that name the same step, the first.
          if (std::string name = text(row, 1); names_step(name) && named_.insert(name).second)
            steps_.push_back({sqlite3_column_int64(row, 0), std::move(name)});
        });
  }

  static std::string name_of_copy(int kind) {
    switch (kind) {
      case 1:
        return "Memcpy HtoD";
      case 2:
        return "Memcpy DtoH";
      case 8:
        return "Memcpy DtoD";
      case 10:
        return "Memcpy PtoP";
      default:
        return "Memcpy";
    }
  }

  // A number of a row, which SQLite lets be anything.
  std::int64_t number(sqlite3_stmt* row, int column, std::int64_t most) const {
    const std::int64_t n = sqlite3_column_int64(row, column);
    if (sqlite3_column_type(row, column) != SQLITE_INTEGER || n < 0 || n > most)
      db_.fail(fmt::format("{} of row {} is {}", sqlite3_column_name(row, column),
                           sqlite3_column_int64(row, kRow), shown(Json(text(row, column)))),
               fmt::format("allowed: 0 to {}", most));
    return n;
  }

  void activity(sqlite3_stmt* row, const std::string& name, bool kernel) {
    constexpr std::int64_t kMostNs = std::int64_t{2'000'000'000'000'000};  // 23 days
    constexpr std::int64_t kMostNumber = 1 << 16, kMostStreams = 1 << 30, kMostProcesses = 1LL << 40;
    const std::int64_t start = number(row, kStart, kMostNs), end = number(row, kEnd, kMostNs);
    if (end < start)
      db_.fail(fmt::format("row {} is from {} to {} ns", sqlite3_column_int64(row, kRow), start, end),
               "allowed: times in order");
    // Each process numbers the devices that it sees.
    const std::int64_t device = number(row, kDevice, kMostNumber),
                       process = number(row, kProcess, kMostProcesses);
    Device& d = devices_[{device, process}];
    DeviceTrace& t = d.trace;
    Activity a;
    a.start_ns = start;
    a.end_ns = end;
    a.stream = static_cast<std::int32_t>(number(row, kStream, kMostStreams));
    const auto launch = launched_.find({sqlite3_column_int64(row, kCorrelation), process});
    a.launch = launch == launched_.end() ? start : launch->second;
    a.segment = step_at(a.launch);
    a.is = kernel ? class_of_kernel(name) : OpClass::kCopy;
    if (communicates(a.is)) {
      a.exchange = static_cast<std::int32_t>(t.exchanges.size());
      t.exchanges.emplace_back();
    }
    a.name = d.names.try_emplace(name, static_cast<std::int32_t>(d.names.size())).first->second;
    t.activities.push_back(a);
  }

  std::int32_t step_at(std::int64_t ns) const {
    const auto after =
        std::partition_point(steps_.begin(), steps_.end(), [&](const Step& s) { return s.from_ns <= ns; });
    return after == steps_.begin() ? 0 : static_cast<std::int32_t>(after - steps_.begin()) - 1;
  }

  std::vector<DeviceTrace> finished() {
    std::vector<DeviceTrace> out;
    std::map<std::int64_t, int> processes;  // by device
    for (const auto& [key, device] : devices_) ++processes[key.first];
    for (auto& [key, device] : devices_) {
      DeviceTrace& t = device.trace;
      t.file = file_;
      t.source = "measured: Nsight Systems";
      t.device = key.first;
      if (processes[key.first] > 1) t.process = key.second & ((1 << 24) - 1);  // above it, of its host
      t.names.resize(device.names.size());
      for (const auto& [name, index] : device.names) t.names[static_cast<std::size_t>(index)] = name;
      t.steps = !steps_.empty();
      if (steps_.empty()) t.segments = {"all"};
      for (const Step& s : steps_) t.segments.push_back(s.name);
      out.push_back(std::move(t));
    }
    return out;
  }

  Database db_;
  std::string file_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> launched_;  // by correlation and process
  std::vector<Step> steps_;
  std::set<std::string> named_;
  std::map<std::pair<std::int64_t, std::int64_t>, Device> devices_;  // by number and process
};

}  // namespace

std::vector<DeviceTrace> from_nsight(const std::filesystem::path& file) {
  return NsightReader(file).read();
}

}  // namespace orrery::trace
