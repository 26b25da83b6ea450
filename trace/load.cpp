// SPDX-License-Identifier: Apache-2.0
#include "trace/load.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/json.h"
#include "trace/chakra.h"
#include "trace/kineto.h"
#include "trace/nsight.h"

namespace orrery::trace {
namespace {

constexpr std::string_view kOurs = "orrery.timeline", kPacked = "\x1f\x8b", kDatabase = "SQLite format 3";
// A packed trace may unpack to as much; what is made of it takes some five times that in memory.
constexpr std::size_t kMostUnpacked = std::size_t{1} << 30;

// At most so many of its first bytes; none of what is no regular file.
std::string beginning(const std::filesystem::path& path, std::size_t most) {
  if (!std::filesystem::is_regular_file(path)) return {};
  std::string begin(most, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(in.gcount()));
  return begin;
}
bool begins_with(const std::filesystem::path& path, std::string_view bytes) {
  return beginning(path, bytes.size()) == bytes;
}

struct EndStream {
  void operator()(z_stream* z) const { inflateEnd(z); }
};

std::string unpacked(std::string packed, const std::string& file) {
  z_stream z{};
  constexpr int kGzip = 16 + MAX_WBITS;
  if (inflateInit2(&z, kGzip) != Z_OK) throw Error("zlib could not begin");
  const std::unique_ptr<z_stream, EndStream> ends(&z);
  std::string out;
  std::array<char, 1 << 16> part{};
  int result = Z_OK;
  for (std::size_t at = 0; result != Z_STREAM_END;) {
    if (z.avail_in == 0) {
      const std::size_t more = std::min<std::size_t>(packed.size() - at, std::size_t{1} << 30);
      z.next_in = reinterpret_cast<Bytef*>(packed.data() + at);
      z.avail_in = static_cast<uInt>(more);
      at += more;
    }
    z.next_out = reinterpret_cast<Bytef*>(part.data());
    z.avail_out = static_cast<uInt>(part.size());
    result = inflate(&z, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END)
      throw InputError(file, "/", "is a damaged or cut gzip archive", "allowed: a trace, packed or not");
    out.append(part.data(), part.size() - z.avail_out);
    if (out.size() > kMostUnpacked)
      throw InputError(file, "/", "unpacks to more than 1 GiB",
                       "allowed: smaller traces, or one that is unpacked");
  }
  return out;
}

// One of ours, or the devices of another's.
struct File {
  std::optional<Timeline> ours;
  std::vector<DeviceTrace> theirs;
};

File of(const Json& trace, const std::string& file) {
  const bool events = trace.is_object() && trace.contains("traceEvents") && trace["traceEvents"].is_array();
  const bool ours = trace.is_object() && trace.contains("otherData") && trace["otherData"].is_object() &&
                    trace["otherData"].contains("schema");
  if (!events || ours) return {from_chrome_trace(trace, file), {}};
  if (is_kineto(trace)) return {std::nullopt, from_kineto(trace, file)};
  if (trace.contains("schemaVersion") || trace.contains("deviceProperties"))
    throw InputError(file, "/traceEvents", "has no kernel, copy or set of memory of a device",
                     "allowed: a trace of the PyTorch profiler with ProfilerActivity.CUDA");
  return {from_chrome_trace(trace, file), {}};
}

File read(const std::filesystem::path& path) {
  if (path != "-" && begins_with(path, kDatabase)) return {std::nullopt, from_nsight(path)};
  const std::string file = path == "-" ? "standard input" : path.string();
  std::string text = load_text(path, kLargestTimelineFile);
  if (text.starts_with(kPacked)) text = unpacked(std::move(text), file);
  if (text.starts_with(kOurs)) return {from_binary(text, file), {}};
  if (is_chakra(text)) {
    DeviceTrace trace = from_chakra(text, file);
    if (trace.activities.empty())
      throw InputError(file, "/", "is an execution trace without ops of a device",
                       "allowed: a trace that was linked with the profiler's (chakra_trace_link)");
    return {std::nullopt, {std::move(trace)}};
  }
  return of(parse_json(text, file, kLargestTimelineFile), file);
}

}  // namespace

Loaded load(const std::vector<std::filesystem::path>& paths) {
  Loaded out;
  std::vector<DeviceTrace> theirs;
  std::set<std::filesystem::path> seen;
  for (const std::filesystem::path& path : paths) {
    if (path != "-" && !seen.insert(std::filesystem::weakly_canonical(path)).second)
      throw InputError(path.string(), "/", "is given twice", "allowed: each trace once");
    File file = read(path);
    if (file.ours) {
      if (paths.size() > 1)
        throw InputError(path.string(), "/", "is a timeline of all ranks, which is compared alone",
                         "allowed: one timeline, or traces of other software");
      Timeline& t = out.merged.timeline = std::move(*file.ours);
      out.foreign = t.program_hash == 0 && !t.classes.empty() && kind_of(t) == "measured";
      out.merged.steps = std::count_if(t.segments.begin(), t.segments.end(), names_step);
      return out;
    }
    if (file.theirs.empty())
      throw InputError(path.string(), "/", "has no kernels",
                       "allowed: a trace in which a device did something");
    for (DeviceTrace& t : file.theirs) theirs.push_back(std::move(t));
  }
  out.foreign = true;
  out.merged = merge(std::move(theirs));
  return out;
}

bool is_foreign(const std::filesystem::path& path) {
  constexpr std::size_t kOfTwoMessages = std::size_t{1} << 20;  // metadata may hold the trace's own source
  return begins_with(path, kDatabase) || begins_with(path, kPacked) ||
         is_chakra(beginning(path, kOfTwoMessages));
}

bool is_binary_timeline(const std::filesystem::path& path) {
  return begins_with(path, kOurs);
}

Timeline of_events(const Json& trace, const std::string& file) {
  File read = of(trace, file);
  return read.ours ? std::move(*read.ours) : merge(std::move(read.theirs)).timeline;
}

}  // namespace orrery::trace
