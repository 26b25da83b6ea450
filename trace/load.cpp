// SPDX-License-Identifier: Apache-2.0
#include "trace/load.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "core/json.h"
#include "trace/kineto.h"
#include "trace/nsight.h"

namespace orrery::trace {
namespace {

using namespace std::string_view_literals;

enum class Form : std::uint8_t { kText, kPacked, kDatabase };
Form form_of(const std::filesystem::path& path) {
  if (path == "-") return Form::kText;
  std::array<char, 16> bytes{};
  std::ifstream in(path, std::ios::binary);
  in.read(bytes.data(), bytes.size());
  const std::string_view begin(bytes.data(), static_cast<std::size_t>(in.gcount()));
  if (begin.starts_with("SQLite format 3"sv)) return Form::kDatabase;
  return begin.starts_with("\x1f\x8b"sv) ? Form::kPacked : Form::kText;
}

struct CloseArchive {
  void operator()(gzFile_s* f) const { gzclose(f); }
};

std::string unpacked(const std::filesystem::path& path) {
  const std::unique_ptr<gzFile_s, CloseArchive> in(gzopen(path.c_str(), "rb"));
  if (!in) throw InputError(path.string(), "/", "cannot be read");
  std::string out;
  std::array<char, 1 << 16> part{};
  for (;;) {
    const int read = gzread(in.get(), part.data(), part.size());
    if (read < 0) {
      int code = 0;
      throw InputError(path.string(), "/", std::string("is damaged: ") + gzerror(in.get(), &code));
    }
    if (read == 0) break;
    out.append(part.data(), static_cast<std::size_t>(read));
    if (static_cast<std::int64_t>(out.size()) > kLargestTimelineFile)
      throw InputError(path.string(), "/", "is larger than a timeline may be when it is unpacked",
                       "allowed: 4 GiB");
  }
  int code = Z_OK;
  const char* error = gzerror(in.get(), &code);
  if (code != Z_OK) throw InputError(path.string(), "/", std::string("is damaged: ") + error);
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
  if (events && !ours && is_kineto(trace)) return {std::nullopt, from_kineto(trace, file)};
  return {from_chrome_trace(trace, file), {}};
}

File read(const std::filesystem::path& path) {
  const Form form = form_of(path);
  if (form == Form::kDatabase) return {std::nullopt, from_nsight(path)};
  const std::string text = form == Form::kPacked ? unpacked(path) : load_text(path, kLargestTimelineFile);
  const std::string file = path == "-" ? "standard input" : path.string();
  if (text.starts_with("orrery.timeline")) return {from_binary(text, file), {}};
  return of(parse_json(text, file, kLargestTimelineFile), file);
}

}  // namespace

Loaded load(const std::vector<std::filesystem::path>& paths) {
  Loaded out;
  std::vector<DeviceTrace> theirs;
  for (const std::filesystem::path& path : paths) {
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
    for (DeviceTrace& t : file.theirs) theirs.push_back(std::move(t));
  }
  out.foreign = true;
  out.merged = merge(std::move(theirs));
  return out;
}

bool is_foreign(const std::filesystem::path& path) {
  return form_of(path) != Form::kText;
}

Timeline of_events(const Json& trace, const std::string& file) {
  File read = of(trace, file);
  return read.ours ? std::move(*read.ours) : merge(std::move(read.theirs)).timeline;
}

}  // namespace orrery::trace
