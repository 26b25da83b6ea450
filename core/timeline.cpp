// SPDX-License-Identifier: Apache-2.0
#include "core/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/fields.h"

namespace orrery {
namespace {

// Picoseconds as the microseconds of a trace, exactly.
void append_us(fmt::memory_buffer& out, std::int64_t ps) {
  fmt::format_to(std::back_inserter(out), "{}.{:06}", ps / 1'000'000, ps % 1'000'000);
}

class Interner {
 public:
  explicit Interner(std::vector<std::string>& names) : names_(names) {}
  std::int32_t operator()(const std::string& name) {
    const auto [at, added] = index_.try_emplace(name, static_cast<std::int32_t>(names_.size()));
    if (added) names_.push_back(name);
    return at->second;
  }

 private:
  std::vector<std::string>& names_;
  std::map<std::string, std::int32_t> index_;
};

std::string text_field(const Json& event, const char* key, const Cursor& at) {
  std::string out;
  const auto found = event.find(key);
  if (found == event.end()) at.fail(fmt::format("the field \"{}\" is missing", key));
  read_value(*found, at.child(key), Field{key, ""}, out);
  return out;
}

std::int32_t small_field(const Json& object, const char* key, const Cursor& at) {
  std::int32_t out = 0;
  const auto found = object.find(key);
  if (found == object.end()) at.fail(fmt::format("the field \"{}\" is missing", key));
  read_value(*found, at.child(key), Field{key, "", 0, 1 << 30}, out);
  return out;
}

Time time_field(const Json& object, const char* key, const Cursor& at) {
  double us = 0;
  const auto found = object.find(key);
  if (found == object.end()) at.fail(fmt::format("the field \"{}\" is missing", key));
  read_value(*found, at.child(key), Field{key, "", 0, 9e12}, us);
  return Time{std::llround(us * 1e6)};
}

// The names of ops by what limits them.
Json bounds_of(const Timeline& t) {
  Json out = Json::object();
  for (std::size_t i = 0; i < t.bounds.size(); ++i)
    out[std::string(name_of(t.bounds[i]))].push_back(t.names[i]);
  return out;
}

void read_bounds(const Json& bounds, const Cursor& at, std::vector<std::pair<std::string, Bound>>& out) {
  if (!bounds.is_object()) at.fail(shown(bounds) + " is not an object of lists of ops");
  for (const auto& [key, ops] : bounds.items()) {
    Bound bound{};
    read_value(Json(key), at.child(key), Field{key.c_str(), ""}, bound);
    if (!ops.is_array()) at.child(key).fail(shown(ops) + " is not a list of ops");
    for (std::size_t i = 0; i < ops.size(); ++i) {
      std::string name;
      read_value(ops[i], at.child(key).child(i), Field{"op", ""}, name);
      out.emplace_back(std::move(name), bound);
    }
  }
}

}  // namespace

Time Timeline::length() const {
  Time end{0};
  for (const Slice& s : slices) end = std::max(end, s.end);
  return end;
}

std::string to_chrome_trace(const Timeline& t) {
  fmt::memory_buffer out;
  const auto text = [](const std::string& s) { return Json(s).dump(); };
  fmt::format_to(
      std::back_inserter(out),
      "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"schema\":\"orrery.timeline/1\",\"source\":{},"
      "\"program_hash\":\"{}\",\"bounds\":{}}},\n\"traceEvents\":[\n",
      text(t.source), t.program_hash, bounds_of(t).dump());
  bool first = true;
  const auto separator = [&] {
    if (!first) fmt::format_to(std::back_inserter(out), ",\n");
    first = false;
  };
  std::vector<std::int32_t> ranks;
  for (const Slice& s : t.slices) ranks.push_back(s.rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  for (const std::int32_t rank : ranks) {
    const auto r = static_cast<std::size_t>(rank);
    const std::string label = r < t.rank_labels.size() ? t.rank_labels[r] : fmt::format("rank {}", rank);
    separator();
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"args\":{{\"name\":{}}}}}", rank,
                   text(label));
    for (std::size_t s = 0; s < t.streams.size(); ++s) {
      separator();
      fmt::format_to(
          std::back_inserter(out),
          "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}", rank, s,
          text(t.streams[s]));
    }
  }
  for (const Slice& s : t.slices) {
    separator();
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"X\",\"name\":{},\"cat\":{},\"pid\":{},\"tid\":{},\"ts\":",
                   text(t.names[static_cast<std::size_t>(s.name)]),
                   text(t.segments[static_cast<std::size_t>(s.segment)]), s.rank, s.stream);
    append_us(out, s.start.value);
    fmt::format_to(std::back_inserter(out), ",\"dur\":");
    append_us(out, s.end.value - s.start.value);
    fmt::format_to(std::back_inserter(out), ",\"args\":{{\"chunk\":{},\"micro_batch\":{},\"ready\":", s.chunk,
                   s.micro_batch);
    append_us(out, s.ready.value);
    fmt::format_to(std::back_inserter(out), ",\"active\":");
    append_us(out, s.active.value);
    fmt::format_to(std::back_inserter(out), "}}}}");
  }
  fmt::format_to(std::back_inserter(out), "\n]}}\n");
  return fmt::to_string(out);
}

Timeline from_chrome_trace(const Json& trace, const std::string& file) {
  const Cursor top{file, ""};
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array()) {
    top.fail("is not a Chrome trace", "allowed: {\"traceEvents\": [...]}");
  }
  Timeline t;
  Interner names(t.names), segments(t.segments);
  std::vector<std::pair<std::string, Bound>> bounds;
  if (const auto other = trace.find("otherData"); other != trace.end() && other->is_object()) {
    const Cursor at = top.child("otherData");
    t.source = text_field(*other, "source", at);
    const std::string hash = text_field(*other, "program_hash", at);
    t.program_hash = std::strtoll(hash.c_str(), nullptr, 10);
    if (const auto found = other->find("bounds"); found != other->end())
      read_bounds(*found, at.child("bounds"), bounds);
  }
  const Json& events = trace["traceEvents"];
  constexpr std::int32_t kMostLabels = 1 << 20;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Json& e = events[i];
    const Cursor at = top.child("traceEvents").child(i);
    if (!e.is_object()) at.fail(shown(e) + " is not an event");
    const std::string phase = text_field(e, "ph", at);
    const std::string name = text_field(e, "name", at);
    if (phase == "M" && e.contains("args") && e["args"].is_object()) {
      const std::int32_t pid = small_field(e, "pid", at);
      if (name == "process_name" && pid < kMostLabels) {
        if (t.rank_labels.size() <= static_cast<std::size_t>(pid))
          t.rank_labels.resize(static_cast<std::size_t>(pid) + 1);
        t.rank_labels[static_cast<std::size_t>(pid)] = text_field(e["args"], "name", at.child("args"));
      } else if (name == "thread_name") {
        const auto tid = static_cast<std::size_t>(small_field(e, "tid", at));
        if (tid >= 256) at.child("tid").fail("is not a stream", "allowed: 0 to 255");
        if (t.streams.size() <= tid) t.streams.resize(tid + 1);
        t.streams[tid] = text_field(e["args"], "name", at.child("args"));
      }
    }
    if (phase != "X") continue;
    if (!e.contains("args") || !e["args"].is_object()) at.fail("the field \"args\" is missing");
    const Json& args = e["args"];
    Slice s;
    s.name = names(name);
    s.segment = segments(text_field(e, "cat", at));
    s.rank = small_field(e, "pid", at);
    s.stream = small_field(e, "tid", at);
    s.chunk = small_field(args, "chunk", at.child("args"));
    s.micro_batch = small_field(args, "micro_batch", at.child("args"));
    s.start = time_field(e, "ts", at);
    s.end = s.start + time_field(e, "dur", at);
    s.ready = time_field(args, "ready", at.child("args"));
    s.active = time_field(args, "active", at.child("args"));
    t.slices.push_back(s);
  }
  for (const auto& [name, bound] : bounds) {
    const auto i = static_cast<std::size_t>(names(name));
    t.bounds.resize(t.names.size());
    t.bounds[i] = bound;
  }
  return t;
}

}  // namespace orrery
