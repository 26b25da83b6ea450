// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/text.h"
#include "sim/trace_lines.h"

namespace orrery::sim {
namespace {

class TraceReader {
 public:
  TraceReader(const TraceOptions& options) : options_(options) {}

  struct Row {
    std::string_view id, tenant;
    double submit = 0, devices = 0, duration = 0, requested = 0;  // s; not positive: unknown
  };
  void add(const Row& row, const TraceLine& at) {
    if (row.devices < 1) {
      ++out_.without_devices;
    } else if (row.duration <= 0) {
      ++out_.without_time;
    } else if (row.devices > static_cast<double>(options_.devices)) {
      ++out_.too_large;
    } else {
      if (std::ssize(out_.queue.jobs) == kMostScheduledJobs)
        at.fail("is one job too many", fmt::format("allowed: {} jobs", kMostScheduledJobs));
      ClusterJob job;
      job.name = fmt::format("job {}", row.id);
      job.tenant = tenant_of(row.tenant, at);
      submissions_.push_back(row.submit);
      job.devices = static_cast<std::int64_t>(row.devices);
      job.work = std::max(Ticks{1}, ticks(row.duration));
      if (row.requested > 0) job.requested = std::max(Ticks{1}, ticks(row.requested));
      out_.queue.jobs.push_back(std::move(job));
    }
  }
  TraceRead finished() {
    const auto first = std::min_element(submissions_.begin(), submissions_.end());
    for (std::size_t i = 0; i < submissions_.size(); ++i) {
      const double after = submissions_[i] - *first;
      if (after > limits::kLongestRun)
        throw Error(
            fmt::format("the trace goes over more than {:.0f} days", limits::kLongestRun / kSecondsPerDay));
      out_.queue.jobs[i].submit = ticks(after);
    }
    return std::move(out_);
  }

 private:
  std::int32_t tenant_of(std::string_view name, const TraceLine& at) {
    const auto next = static_cast<std::int32_t>(tenants_.size());
    const auto [found, added] = tenants_.try_emplace(std::string(name), next);
    if (added) {
      if (tenants_.size() > limits::kMostTenants)
        at.fail(fmt::format("is of tenant number {}", tenants_.size()),
                fmt::format("allowed: {}; --tenant group or --tenant queue has fewer", limits::kMostTenants));
      const char* kind = options_.tenant == TraceTenant::kUser    ? "user"
                         : options_.tenant == TraceTenant::kGroup ? "group"
                                                                  : "queue";
      out_.queue.tenants.push_back({fmt::format("{} {}", kind, shortened(name, 64)), 1, std::nullopt});
    }
    return found->second;
  }

  const TraceOptions& options_;
  TraceRead out_;
  std::vector<double> submissions_;
  std::unordered_map<std::string, std::int32_t> tenants_;
};

constexpr double kMostNumber = 1e12;

// --- Standard Workload Format ---------------------------------------------------------------------------

void read_swf(std::string_view text, const std::string& file, const TraceOptions& options,
              TraceReader& reader) {
  constexpr std::size_t kFields = 18;
  each_line(text, file, [&](std::string_view line, const TraceLine& at) {
    if (line.front() == ';') return;
    std::array<std::string_view, kFields> fields;
    std::size_t n = 0;
    while (!line.empty()) {
      const auto end = std::find_if(line.begin(), line.end(), is_blank);
      const auto length = static_cast<std::size_t>(end - line.begin());
      if (n < kFields) fields[n] = line.substr(0, length);
      ++n;
      line = trimmed(line.substr(length));
    }
    if (n != kFields) at.fail(fmt::format("has {} fields", n), fmt::format("allowed: {}", kFields));
    const auto field = [&](std::size_t i, const char* what) {
      return number(fields[i - 1], what, kMostNumber, at);
    };
    const double asked = field(8, "processors asked for");
    const std::size_t tenant = options.tenant == TraceTenant::kUser    ? 12
                               : options.tenant == TraceTenant::kGroup ? 13
                                                                       : 15;
    TraceReader::Row row{.id = fields[0],
                         .tenant = fields[tenant - 1],
                         .submit = field(2, "submission"),
                         .devices = asked > 0 ? asked : field(5, "processors"),
                         .duration = field(4, "run time"),
                         .requested = field(9, "time asked for")};
    if (row.duration > limits::kLongestRun || row.requested > limits::kLongestRun)
      at.fail("is a job of more than 9999 days");
    reader.add(row, at);
  });
}

// --- columns --------------------------------------------------------------------------------------------

void read_csv(std::string_view text, const std::string& file, const TraceOptions& options,
              TraceReader& reader) {
  std::map<std::string, std::size_t, std::less<>> columns;
  std::size_t width = 0;
  // Their column "queue" is a time of waiting.
  if (options.tenant == TraceTenant::kQueue)
    throw InputError(file, "line 1", "the columns of this trace do not say queues",
                     "allowed: --tenant user, group");
  const char* tenant = options.tenant == TraceTenant::kUser ? "user" : "vc";
  each_line(text, file, [&](std::string_view line, const TraceLine& at) {
    const std::vector<std::string_view> row = cells(line);
    if (columns.empty()) {
      width = row.size();
      for (std::size_t i = 0; i < width; ++i) columns.try_emplace(std::string(row[i]), i);
      for (const char* needed : {"gpu_num", "duration", "submit_time", tenant}) {
        if (!columns.contains(needed)) at.fail(fmt::format("has no column \"{}\"", needed));
      }
      return;
    }
    if (row.size() != width)
      at.fail(fmt::format("has {} cells", row.size()), fmt::format("allowed: {}", width));
    const auto cell = [&](std::string_view name) { return row[columns.find(name)->second]; };
    const auto count = [&](const char* name, double most) {
      return cell(name).empty() ? 0.0 : number(cell(name), name, most, at);
    };
    const std::string line_number = std::to_string(at.number);
    reader.add(
        {.id = columns.contains("job_id") ? cell("job_id") : std::string_view(line_number),
         .tenant = cell(tenant),
         .submit = moment(cell("submit_time"), "submit_time: seconds, or like 2020-04-01 00:00:34", at),
         .devices = count("gpu_num", kMostNumber),
         .duration = count("duration", limits::kLongestRun)},
        at);
  });
}

}  // namespace

TraceRead read_trace(std::string_view text, const std::string& file, const TraceOptions& options) {
  TraceReader reader(options);
  switch (options.format) {
    case TraceFormat::kSwf:
      read_swf(text, file, options, reader);
      break;
    case TraceFormat::kCsv:
      read_csv(text, file, options, reader);
      break;
  }
  return reader.finished();
}

}  // namespace orrery::sim
