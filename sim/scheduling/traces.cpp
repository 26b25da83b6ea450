// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_map>

#include "core/text.h"

namespace orrery::sim {
namespace {

struct Line {
  const std::string& file;
  std::int64_t number;
  [[noreturn]] void fail(const std::string& problem, const std::string& allowed = {}) const {
    throw InputError(file, fmt::format("line {}", number), problem, allowed);
  }
};

constexpr bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && is_blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_blank(s.back())) s.remove_suffix(1);
  return s;
}

std::string quoted(std::string_view s) {
  return in_quotes(shortened(s, 40));
}

// A number of a job, within what is simulated.
double number(std::string_view text, const char* what, double most, const Line& at) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value == value))
    at.fail(fmt::format("{} is not a number ({})", quoted(text), what));
  if (value > most || value < -most)
    at.fail(fmt::format("{} is out of range ({})", quoted(text), what),
            fmt::format("allowed: up to {:.0f}", most));
  return value;
}

// Lines that are not blank, with their numbers.
template <class F>
void each_line(std::string_view text, const std::string& file, const F& f) {
  for (std::int64_t n = 1; !text.empty(); ++n) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty()) f(line, Line{file, n});
  }
}

class Reader {
 public:
  Reader(const TraceOptions& options) : options_(options) {}

  struct Row {
    std::string_view id, tenant;
    double submit = 0, devices = 0, duration = 0, requested = 0;  // s; not positive: unknown
  };
  void add(const Row& row, const Line& at) {
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
  std::int32_t tenant_of(std::string_view name, const Line& at) {
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

void read_swf(std::string_view text, const std::string& file, const TraceOptions& options, Reader& reader) {
  constexpr std::size_t kFields = 18;
  each_line(text, file, [&](std::string_view line, const Line& at) {
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
    Reader::Row row{.id = fields[0],
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

// --- columns
// ------------------------------------------------------------------------------------------------

// Fields between commas; those in quotation marks may have commas.
std::vector<std::string_view> cells(std::string_view line) {
  std::vector<std::string_view> out;
  bool inside = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && line[i] == '"') inside = !inside;
    if (i < line.size() && (line[i] != ',' || inside)) continue;
    std::string_view cell = trimmed(line.substr(begin, i - begin));
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') cell = cell.substr(1, cell.size() - 2);
    out.push_back(cell);
    begin = i + 1;
  }
  return out;
}

// Days from 1970-01-01 to a date of the Gregorian calendar (Hinnant, "chrono-compatible low-level date
// algorithms").
std::int64_t days_from_civil(std::int64_t y, std::int64_t m, std::int64_t d) {
  y -= m <= 2;
  const std::int64_t era = (y >= 0 ? y : y - 399) / 400, of_era = y - era * 400;
  const std::int64_t of_year = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

// "2020-04-01 00:00:34" or "2023-05-04T08:15:30+08:00" in seconds, the zone left out; or a number of seconds.
double moment(std::string_view text, const Line& at) {
  constexpr std::string_view kForm = "dddd-dd-dd dd:dd:dd";
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  bool dated = text.size() >= kForm.size();
  for (std::size_t i = 0; dated && i < kForm.size(); ++i)
    dated = kForm[i] == 'd' ? digit(text[i]) : text[i] == kForm[i] || (i == 10 && text[i] == 'T');
  if (!dated) return number(text, "submit_time: seconds, or like 2020-04-01 00:00:34", kMostNumber, at);
  const auto part = [&](std::size_t from, std::size_t length) {
    std::int64_t v = 0;
    for (std::size_t i = from; i < from + length; ++i) v = v * 10 + (text[i] - '0');
    return v;
  };
  const std::int64_t month = part(5, 2), day = part(8, 2);
  if (month < 1 || month > 12 || day < 1 || day > 31) at.fail(quoted(text) + " is not a date");
  return static_cast<double>(days_from_civil(part(0, 4), month, day) * 86'400 + part(11, 2) * 3600 +
                             part(14, 2) * 60 + part(17, 2));
}

void read_csv(std::string_view text, const std::string& file, const TraceOptions& options, Reader& reader) {
  std::map<std::string, std::size_t, std::less<>> columns;
  std::size_t width = 0;
  // Their column "queue" is a time of waiting.
  if (options.tenant == TraceTenant::kQueue)
    throw InputError(file, "line 1", "the columns of this trace do not say queues", "allowed: --tenant user, group");
  const char* tenant = options.tenant == TraceTenant::kUser ? "user" : "vc";
  each_line(text, file, [&](std::string_view line, const Line& at) {
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
    reader.add({.id = columns.contains("job_id") ? cell("job_id") : std::string_view(line_number),
                .tenant = cell(tenant),
                .submit = moment(cell("submit_time"), at),
                .devices = count("gpu_num", kMostNumber),
                .duration = count("duration", limits::kLongestRun)},
               at);
  });
}

}  // namespace

TraceRead read_trace(std::string_view text, const std::string& file, const TraceOptions& options) {
  Reader reader(options);
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
