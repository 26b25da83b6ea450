// SPDX-License-Identifier: Apache-2.0
//
// Traces of the PyTorch profiler (Kineto): Chrome events in which kernels, copies and sets of memory have the
// device as their process and its stream as their thread. What the host did is left out. A device's busiest
// stream that does not mostly run NCCL becomes "compute", so that sums over a part mean what they mean for
// our own timelines: its gaps are idle time, and NCCL beside it is communication, hidden or not.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "core/timeline_head.h"

namespace orrery {
namespace {

struct Activity {
  std::int32_t device, stream;  // as the trace numbers them
  std::int32_t name, segment;
  double start_us, length_us;
  bool nccl;
};

bool of_device(const Json& e) {
  constexpr std::array kKinds{"kernel", "gpu_memcpy", "gpu_memset"};
  const auto phase = e.find("ph"), kind = e.find("cat");
  return phase != e.end() && *phase == "X" && kind != e.end() &&
         std::any_of(kKinds.begin(), kKinds.end(), [&](const char* k) { return *kind == k; });
}

double number_field(const Json& e, const char* key, double least, const Cursor& at) {
  const auto found = e.find(key);
  if (found == e.end()) at.fail(fmt::format("the field \"{}\" is missing", key));
  double us = 0;
  read_value(*found, at.child(key), Field{key, "", least, 1e17}, us);
  return us;
}

std::vector<Activity> activities(const Json& events, const Cursor& at, Timeline& t) {
  Interner names(t.names), segments(t.segments);
  std::vector<Activity> out;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Json& e = events[i];
    if (!e.is_object() || !of_device(e)) continue;
    const Cursor here = at.child(i);
    const std::string name = text_field(e, "name", here);
    const bool nccl = name.find("nccl") != std::string::npos;
    out.push_back({static_cast<std::int32_t>(integer_field(e, "pid", 1 << 20, here)),
                   static_cast<std::int32_t>(integer_field(e, "tid", 1 << 30, here)), names(name),
                   segments(text_field(e, "cat", here)), number_field(e, "ts", -1e17, here),
                   number_field(e, "dur", 0, here), nccl});
  }
  return out;
}

// By device and stream, the stream's index in the timeline.
std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> number_streams(const std::vector<Activity>& all,
                                                                             const Cursor& top, Timeline& t) {
  struct Use {
    double busy_us = 0, nccl_us = 0;
    bool communicates() const { return 2 * nccl_us > busy_us; }
  };
  std::map<std::pair<std::int32_t, std::int32_t>, Use> uses;
  for (const Activity& a : all) {
    Use& u = uses[{a.device, a.stream}];
    u.busy_us += a.length_us;
    if (a.nccl) u.nccl_us += a.length_us;
  }
  std::map<std::int32_t, std::pair<std::int32_t, double>> computes;  // by device: the stream, how busy
  for (const auto& [key, use] : uses) {
    const auto [at, added] =
        computes.try_emplace(key.first, key.second, use.communicates() ? -1 : use.busy_us);
    if (!added && !use.communicates() && use.busy_us > at->second.second)
      at->second = {key.second, use.busy_us};
  }
  Interner streams(t.streams);
  streams("compute");
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> out;
  for (const auto& [key, use] : uses) {
    const auto& [stream, busy] = computes.at(key.first);
    const bool compute = stream == key.second && busy >= 0;
    out[key] = streams(compute              ? "compute"
                       : use.communicates() ? fmt::format("stream {}, NCCL", key.second)
                                            : fmt::format("stream {}", key.second));
  }
  if (t.streams.size() > kMostStreams)
    top.fail(fmt::format("{} streams are too many", t.streams.size()),
             fmt::format("allowed: {}", kMostStreams));
  return out;
}

// "GPU 3", with the rank where the trace is of one rank and says which.
std::string label_of(const Json& trace, std::int32_t device, std::size_t devices) {
  const auto job = trace.find("distributedInfo");
  if (devices == 1 && job != trace.end() && job->is_object() && job->contains("rank") &&
      (*job)["rank"].is_number_integer())
    return fmt::format("rank {}, GPU {}", (*job)["rank"].get<std::int64_t>(), device);
  return fmt::format("GPU {}", device);
}

}  // namespace

bool is_kineto(const Json& trace) {
  const Json& events = trace["traceEvents"];
  return std::any_of(events.begin(), events.end(),
                     [](const Json& e) { return e.is_object() && of_device(e); });
}

Timeline from_kineto(const Json& trace, const Cursor& top) {
  Timeline t;
  t.source = "measured: PyTorch profiler";
  const std::vector<Activity> all = activities(trace["traceEvents"], top.child("traceEvents"), t);
  const auto streams = number_streams(all, top, t);
  std::map<std::int32_t, std::int32_t> processes;
  double zero = std::numeric_limits<double>::infinity();
  for (const Activity& a : all) {
    processes[a.device] = 0;
    zero = std::min(zero, a.start_us);
  }
  for (auto& [device, process] : processes) {
    process = static_cast<std::int32_t>(t.rank_labels.size());
    t.rank_labels.push_back(label_of(trace, device, processes.size()));
  }
  for (const Activity& a : all) {
    const double start = a.start_us - zero;
    if (start + a.length_us > kMostUs)
      top.child("traceEvents").fail("spans more than 23 days", "allowed: times in microseconds");
    Slice s;
    s.name = a.name;
    s.segment = a.segment;
    s.rank = processes.at(a.device);
    s.stream = streams.at({a.device, a.stream});
    s.ready = s.start = s.active = Time{std::llround(start * 1e6)};
    s.end = s.start + Time{std::llround(a.length_us * 1e6)};
    t.slices.push_back(s);
  }
  return t;
}

}  // namespace orrery
