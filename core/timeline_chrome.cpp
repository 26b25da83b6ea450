// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/timeline_head.h"

namespace orrery {
namespace {

// Picoseconds as the microseconds of a trace, exactly.
void append_us(fmt::memory_buffer& out, std::int64_t ps) {
  fmt::format_to(std::back_inserter(out), "{}.{:06}", ps / 1'000'000, ps % 1'000'000);
}

std::int32_t small_field(const Json& object, const char* key, const Cursor& at) {
  return static_cast<std::int32_t>(integer_field(object, key, 1 << 30, at));
}

Time time_field(const Json& object, const char* key, const Cursor& at) {
  double us = 0;
  const auto found = object.find(key);
  if (found == object.end()) at.fail(fmt::format("the field \"{}\" is missing", key));
  read_value(*found, at.child(key), Field{key, "", 0, kMostUs}, us);
  return Time{std::llround(us * 1e6)};
}

std::int32_t stream_field(const Json& event, const Cursor& at) {
  const std::int32_t tid = small_field(event, "tid", at);
  if (tid >= static_cast<std::int32_t>(kMostStreams))
    at.child("tid").fail("is not a stream", "allowed: 0 to 255");
  return tid;
}

const Json& args_of(const Json& event, const Cursor& at) {
  if (!event.contains("args") || !event["args"].is_object()) at.fail("the field \"args\" is missing");
  return event["args"];
}

class ChromeWriter {
 public:
  explicit ChromeWriter(const Timeline& t) : t_(t) {}
  std::string text() {
    Json other = {{"schema", "orrery.timeline/1"}};
    other.update(timeline_head(t_));
    fmt::format_to(out(), "{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\n\"traceEvents\":[\n",
                   other.dump(-1, ' ', false, Json::error_handler_t::replace));
    metadata();
    for (const Slice& s : t_.slices) slice(s);
    for (const MemoryPoint& p : t_.memory) memory(p);
    fmt::format_to(out(), "\n]}}\n");
    return fmt::to_string(out_);
  }

 private:
  std::back_insert_iterator<fmt::memory_buffer> out() { return std::back_inserter(out_); }
  static std::string quoted(const std::string& s) {
    return Json(s).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  void begin_event() {
    if (!first_) fmt::format_to(out(), ",\n");
    first_ = false;
  }
  void metadata() {
    std::vector<std::int32_t> ranks;
    for (const Slice& s : t_.slices) ranks.push_back(s.rank);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    for (const std::int32_t rank : ranks) {
      const auto r = static_cast<std::size_t>(rank);
      const std::string label = r < t_.rank_labels.size() ? t_.rank_labels[r] : fmt::format("rank {}", rank);
      begin_event();
      fmt::format_to(out(), "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"args\":{{\"name\":{}}}}}",
                     rank, quoted(label));
      for (std::size_t s = 0; s < t_.streams.size(); ++s) {
        begin_event();
        fmt::format_to(
            out(), "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}",
            rank, s, quoted(t_.streams[s]));
      }
    }
  }
  void slice(const Slice& s) {
    begin_event();
    fmt::format_to(out(), "{{\"ph\":\"X\",\"name\":{},\"cat\":{},\"pid\":{},\"tid\":{},\"ts\":",
                   quoted(t_.names[static_cast<std::size_t>(s.name)]),
                   quoted(t_.segments[static_cast<std::size_t>(s.segment)]), s.rank, s.stream);
    append_us(out_, s.start.value);
    fmt::format_to(out(), ",\"dur\":");
    append_us(out_, s.end.value - s.start.value);
    fmt::format_to(out(), ",\"args\":{{\"chunk\":{},\"micro_batch\":{},\"ready\":", s.chunk, s.micro_batch);
    append_us(out_, s.ready.value);
    fmt::format_to(out(), ",\"active\":");
    append_us(out_, s.active.value);
    fmt::format_to(out(), "}}}}");
  }
  void memory(const MemoryPoint& p) {
    begin_event();
    fmt::format_to(out(), "{{\"ph\":\"C\",\"name\":\"memory\",\"pid\":{},\"ts\":", p.rank);
    append_us(out_, p.at.value);
    fmt::format_to(out(), ",\"args\":{{");
    for (std::size_t c = 0; c < kMemoryClasses; ++c)
      fmt::format_to(out(), "{}\"{}\":{}", c == 0 ? "" : ",", kMemoryClassNames[c], p.bytes[c]);
    fmt::format_to(out(), "}}}}");
  }

  const Timeline& t_;
  fmt::memory_buffer out_;
  bool first_ = true;
};

class ChromeReader {
 public:
  explicit ChromeReader(Timeline& t) : t_(t), names_(t.names), segments_(t.segments) {}
  void event(const Json& e, const Cursor& at) {
    if (!e.is_object()) at.fail(shown(e) + " is not an event");
    const std::string phase = text_field(e, "ph", at);
    const std::string name = text_field(e, "name", at);
    if (phase == "M") metadata(name, e, at);
    if (phase == "X") slice(name, e, at);
    if (phase == "C" && name == "memory") memory(e, at);
  }

 private:
  void metadata(const std::string& name, const Json& e, const Cursor& at) {
    constexpr std::int32_t kMostLabels = 1 << 20;
    if (!e.contains("args") || !e["args"].is_object()) return;
    const Json& args = e["args"];
    const std::int32_t pid = small_field(e, "pid", at);
    if (name == "process_name" && pid < kMostLabels) {
      if (t_.rank_labels.size() <= static_cast<std::size_t>(pid))
        t_.rank_labels.resize(static_cast<std::size_t>(pid) + 1);
      t_.rank_labels[static_cast<std::size_t>(pid)] = text_field(args, "name", at.child("args"));
    } else if (name == "thread_name") {
      const std::int32_t tid = stream_field(e, at);
      if (t_.streams.size() <= static_cast<std::size_t>(tid))
        t_.streams.resize(static_cast<std::size_t>(tid) + 1);
      t_.streams[static_cast<std::size_t>(tid)] = text_field(args, "name", at.child("args"));
    }
  }
  void slice(const std::string& name, const Json& e, const Cursor& at) {
    const Json& args = args_of(e, at);
    const Cursor in = at.child("args");
    Slice s;
    s.name = names_(name);
    s.segment = segments_(text_field(e, "cat", at));
    s.rank = small_field(e, "pid", at);
    s.stream = stream_field(e, at);
    s.chunk = small_field(args, "chunk", in);
    s.micro_batch = small_field(args, "micro_batch", in);
    s.start = time_field(e, "ts", at);
    s.end = s.start + time_field(e, "dur", at);
    s.ready = time_field(args, "ready", in);
    s.active = time_field(args, "active", in);
    if (const std::string wrong = put_in_order(s); !wrong.empty()) at.fail(wrong);
    t_.slices.push_back(s);
  }
  void memory(const Json& e, const Cursor& at) {
    const Json& args = args_of(e, at);
    MemoryPoint p;
    p.rank = small_field(e, "pid", at);
    p.at = time_field(e, "ts", at);
    for (std::size_t c = 0; c < kMemoryClasses; ++c)
      p.bytes[c] = integer_field(args, kMemoryClassNames[c], 1'000'000'000'000'000, at.child("args"));
    t_.memory.push_back(p);
  }

  Timeline& t_;
  Interner names_, segments_;
};

}  // namespace

std::string to_chrome_trace(const Timeline& t) {
  return ChromeWriter(t).text();
}

Timeline from_chrome_trace(const Json& trace, const std::string& file) {
  const Cursor top{file, ""};
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array()) {
    top.fail("is not a Chrome trace", "allowed: {\"traceEvents\": [...]}");
  }
  const auto other = trace.find("otherData");
  Timeline t;
  ChromeReader read(t);
  const Json& events = trace["traceEvents"];
  for (std::size_t i = 0; i < events.size(); ++i) read.event(events[i], top.child("traceEvents").child(i));
  if (other != trace.end() && other->is_object()) read_timeline_head(*other, top.child("otherData"), t);
  name_places(t, top);
  std::stable_sort(t.memory.begin(), t.memory.end(), [](const MemoryPoint& a, const MemoryPoint& b) {
    return std::tie(a.rank, a.at) < std::tie(b.rank, b.at);
  });
  return t;
}

}  // namespace orrery
