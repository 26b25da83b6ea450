// SPDX-License-Identifier: Apache-2.0
#include "trace/kineto.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "core/timeline_head.h"

namespace orrery::trace {
namespace {

// Kernels, copies and sets of memory; versions before 2022 have capitals.
constexpr std::array<std::string_view, 6> kOfDevices{"kernel", "gpu_memcpy", "gpu_memset",
                                                     "Kernel", "Memcpy",     "Memset"};
constexpr std::array<std::string_view, 3> kLaunches{"cuda_runtime", "cuda_driver", "Runtime"};
constexpr std::string_view kStep = "ProfilerStep#";
constexpr double kLatestUs = 4e15;  // the year 2096
constexpr std::size_t kMostDevices = 256;

std::string_view category(const Json& e) {
  const auto phase = e.find("ph"), kind = e.find("cat");
  if (phase == e.end() || *phase != "X" || kind == e.end() || !kind->is_string()) return {};
  return kind->get_ref<const std::string&>();
}
template <class Names>
bool is_one_of(std::string_view name, const Names& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

double number_field(const Json& e, const char* key, double least, double most, const Cursor& at) {
  const auto found = e.find(key);
  if (found == e.end()) at.fail(fmt::format("the field \"{}\" is missing", key));
  double us = 0;
  read_value(*found, at.child(key), Field{key, "", least, most}, us);
  return us;
}

// Of microseconds; whole ones, as old traces have since 1970, are too many for a double's digits.
std::int64_t ns_of(const Json& us) {
  constexpr std::int64_t kNsPerUs = 1000;
  return us.is_number_integer() ? us.get<std::int64_t>() * kNsPerUs
                                : std::llround(us.get<double>() * static_cast<double>(kNsPerUs));
}

// Of the arguments of an event; nothing where the trace does not say it, or in another form.
const Json* argument(const Json& e, const char* key) {
  const auto args = e.find("args");
  if (args == e.end() || !args->is_object()) return nullptr;
  const auto found = args->find(key);
  return found == args->end() ? nullptr : &*found;
}
std::optional<std::int64_t> count_of(const Json& e, const char* key) {
  const Json* v = argument(e, key);
  if (v == nullptr || !v->is_number_integer()) return std::nullopt;
  const auto count = v->get<std::int64_t>();
  constexpr std::int64_t kMost = 1LL << 50;
  if (count < 0 || count > kMost) return std::nullopt;
  return count;
}
std::string text_of(const Json& e, const char* key) {
  const Json* v = argument(e, key);
  return v != nullptr && v->is_string() ? v->get<std::string>() : std::string();
}

// "Float", "BFloat16" and what else c10::toString says.
std::int64_t bytes_of_type(std::string_view type) {
  struct Size {
    std::string_view name;
    std::int64_t bytes;
  };
  constexpr std::array kSizes{Size{"Float8", 1},   Size{"Byte", 1},   Size{"Char", 1},  Size{"Bool", 1},
                              Size{"BFloat16", 2}, Size{"Half", 2},   Size{"Short", 2}, Size{"Float", 4},
                              Size{"Int", 4},      Size{"Double", 8}, Size{"Long", 8}};
  for (const Size& s : kSizes) {
    if (type.starts_with(s.name)) return s.bytes;
  }
  return 0;
}

struct Step {
  double from_us;
  std::string name;
};

class KinetoReader {
 public:
  KinetoReader(const Json& trace, const std::string& file) : trace_(trace), at_(Cursor{file, ""}) {}

  std::vector<DeviceTrace> read() {
    base_ns_ = base_time();
    host();
    const Cursor events_at = at_.child("traceEvents");
    const Json& events = trace_["traceEvents"];
    for (std::size_t i = 0; i < events.size(); ++i) {
      const Json& e = events[i];
      if (e.is_object() && is_one_of(category(e), kOfDevices)) activity(e, events_at.child(i));
    }
    return finished();
  }

 private:
  struct Device {
    DeviceTrace trace;
    std::map<std::string, std::int32_t> names;
  };

  std::int64_t base_time() const {
    const auto found = trace_.find("baseTimeNanoseconds");
    if (found == trace_.end() || found->is_null()) return 0;
    return integer_field(trace_, "baseTimeNanoseconds", static_cast<std::int64_t>(kLatestUs) * 1000, at_);
  }

  // Launches by correlation, and steps.
  void host() {
    for (const Json& e : trace_["traceEvents"]) {
      if (!e.is_object()) continue;
      const std::string_view kind = category(e);
      if (kind.empty() || !e.contains("ts") || !e["ts"].is_number()) continue;
      const double at = e["ts"].get<double>();
      if (!(std::abs(at) <= kLatestUs)) continue;
      if (is_one_of(kind, kLaunches)) {
        if (const auto correlation = count_of(e, "correlation")) launched_.try_emplace(*correlation, at);
        continue;
      }
      if (kind == "gpu_user_annotation" || !e.contains("name") || !e["name"].is_string() ||
          !e["name"].get_ref<const std::string&>().starts_with(kStep))
        continue;
      steps_.push_back({at, e["name"].get<std::string>()});
    }
    // Several threads may name one step: it begins with the first.
    std::stable_sort(steps_.begin(), steps_.end(),
                     [](const Step& a, const Step& b) { return a.from_us < b.from_us; });
    std::set<std::string> named;
    std::erase_if(steps_, [&](const Step& s) { return !named.insert(s.name).second; });
  }

  // The step in which something was launched: the last that had begun, as steps follow each other within
  // tens of microseconds.
  std::int32_t step_at(double us) const {
    const auto after =
        std::partition_point(steps_.begin(), steps_.end(), [&](const Step& s) { return s.from_us <= us; });
    return after == steps_.begin() ? 0 : static_cast<std::int32_t>(after - steps_.begin()) - 1;
  }

  std::int32_t stream_of(const Json& e, const Cursor& at) const {
    if (const auto stream = count_of(e, "stream"); stream && *stream < 1 << 30)
      return static_cast<std::int32_t>(*stream);
    return static_cast<std::int32_t>(integer_field(e, "tid", 1 << 30, at));
  }

  // Templates' names have thousands of characters; the first say what the kernel is.
  static std::string name_of_activity(const Json& e, const Cursor& at) {
    constexpr std::size_t kMost = 300;
    if (const auto name = e.find("name"); name != e.end() && name->is_string()) {
      const auto& text = name->get_ref<const std::string&>();
      if (text.size() > kMost) return text.substr(0, kMost) + "...";
    }
    return text_field(e, "name", at);
  }

  void activity(const Json& e, const Cursor& at) {
    const auto number = static_cast<std::int32_t>(integer_field(e, "pid", 1 << 20, at));
    Device& device = devices_[number];
    if (devices_.size() > kMostDevices)
      at.child("pid").fail(fmt::format("is device {} of the trace", devices_.size()),
                           fmt::format("allowed: {} devices in a file", kMostDevices));
    DeviceTrace& t = device.trace;
    t.device = number;
    const double start = number_field(e, "ts", -kLatestUs, kLatestUs, at),
                 length = number_field(e, "dur", 0, kMostUs, at);
    const double since = start + static_cast<double>(base_ns_) / 1e3;
    if (!(since >= 0 && since <= kLatestUs))
      at.child("ts").fail(shown(e["ts"]) + " is not a time of the trace",
                          "allowed: microseconds since baseTimeNanoseconds, or since 1970");
    std::string name = name_of_activity(e, at);
    Activity a;
    a.stream = stream_of(e, at);
    a.start_ns = base_ns_ + ns_of(e["ts"]);
    a.end_ns = a.start_ns + std::llround(length * 1e3);
    const auto correlation = count_of(e, "correlation");
    const auto launch = correlation ? launched_.find(*correlation) : launched_.end();
    const double launched = launch == launched_.end() ? start : launch->second;
    a.launch = std::llround(launched * 1e3);
    const std::string_view kind = category(e);
    if (steps_.empty()) {
      a.segment = interned(segments_, std::string(kind));
    } else {
      a.segment = step_at(launched);
    }
    a.is = kind == "kernel" || kind == "Kernel" ? class_of_kernel(name) : OpClass::kCopy;
    exchange(e, name, t, a);
    a.name = interned(device.names, name);
    t.activities.push_back(a);
  }

  // What NCCL's kernels say of themselves since PyTorch 2.2: its size becomes part of the name, so that
  // exchanges of one size are one op.
  void exchange(const Json& e, std::string& name, DeviceTrace& t, Activity& a) const {
    if (const OpClass said = class_of_collective(text_of(e, "Collective name")); said != OpClass::kUnknown)
      a.is = said;
    if (!communicates(a.is)) return;
    Exchange x;
    const std::string ranks = text_of(e, "Process Group Ranks");
    // Groups of the same ranks count their exchanges each by itself; long lists of ranks are cut.
    x.group = text_of(e, "Process Group Name");
    if (!ranks.empty() && ranks.find("...") == std::string::npos) x.group += " " + ranks;
    x.members = count_of(e, "Group size").value_or(0);
    x.sequence = count_of(e, "Seq").value_or(-1);
    const std::int64_t elements =
        std::max(count_of(e, "In msg nelems").value_or(0), count_of(e, "Out msg nelems").value_or(0));
    x.bytes = elements * bytes_of_type(text_of(e, "dtype"));
    if (x.bytes > 0)
      name = fmt::format("{}, {} B ({})", name_of(a.is), x.bytes, name.substr(0, name.find('(')));
    a.exchange = static_cast<std::int32_t>(t.exchanges.size());
    t.exchanges.push_back(std::move(x));
  }

  static std::int32_t interned(std::map<std::string, std::int32_t>& names, const std::string& name) {
    return names.try_emplace(name, static_cast<std::int32_t>(names.size())).first->second;
  }
  static std::vector<std::string> in_order(const std::map<std::string, std::int32_t>& names) {
    std::vector<std::string> out(names.size());
    for (const auto& [name, index] : names) out[static_cast<std::size_t>(index)] = name;
    return out;
  }

  // The rank of a trace of one device, where the trace says it.
  std::int64_t rank() const {
    const auto job = trace_.find("distributedInfo");
    if (devices_.size() != 1 || job == trace_.end() || !job->is_object() || !job->contains("rank")) return -1;
    return integer_field(*job, "rank", 1 << 24, at_.child("distributedInfo"));
  }

  std::vector<DeviceTrace> finished() {
    std::vector<DeviceTrace> out;
    for (auto& [number, device] : devices_) {
      device.trace.file = at_.file;
      device.trace.source = "measured: PyTorch profiler";
      device.trace.rank = rank();
      device.trace.names = in_order(device.names);
      device.trace.steps = !steps_.empty();
      if (steps_.empty()) device.trace.segments = in_order(segments_);
      for (const Step& s : steps_) device.trace.segments.push_back(s.name);
      out.push_back(std::move(device.trace));
    }
    return out;
  }

  const Json& trace_;
  Cursor at_;
  std::int64_t base_ns_ = 0;
  std::map<std::int64_t, double> launched_;  // by correlation, us
  std::vector<Step> steps_;
  std::map<std::int32_t, Device> devices_;
  std::map<std::string, std::int32_t> segments_;
};

}  // namespace

bool is_kineto(const Json& trace) {
  const Json& events = trace["traceEvents"];
  return std::any_of(events.begin(), events.end(),
                     [](const Json& e) { return e.is_object() && is_one_of(category(e), kOfDevices); });
}

std::vector<DeviceTrace> from_kineto(const Json& trace, const std::string& file) {
  return KinetoReader(trace, file).read();
}

}  // namespace orrery::trace
