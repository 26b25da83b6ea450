// SPDX-License-Identifier: Apache-2.0
//
//   "orrery.timeline-binary/1\n"
//   8 bytes, little-endian: bytes of the head
//   the head: JSON, timeline_head() and the tables, lanes ([process, stream, slices]) and points of memory
//   slices lane by lane, then points of memory, as LEB128 numbers:
//     slice   2 name + changed; if changed: segment, chunk, micro-batch (else those of the slice before);
//             signed start - end of the slice before; signed start - ready; signed active - start;
//             signed end - active
//     point   process; signed at - that of the point before; by class: signed bytes - those before
// Signed numbers are zigzag-coded. Differences wrap around, so any value is written and read back.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "core/leb128.h"
#include "core/packed_slices.h"
#include "core/timeline_head.h"

namespace orrery {
namespace {

constexpr std::string_view kMagic = "orrery.timeline-binary/1\n";
constexpr std::size_t kHeadSize = 8;
constexpr std::size_t kHeadBegins = kMagic.size() + kHeadSize;

struct Lane {
  std::int32_t rank = 0, stream = 0;
  std::uint64_t count = 0;
};

void write_slices(NumberWriter& w, const PackedSlices& slices) {
  for (const PackedSlices::Lane& lane : slices.lanes()) {
    Slice before{.segment = -1};
    slices.for_each(lane, [&](const Slice& s) {
      const bool changed =
          s.segment != before.segment || s.chunk != before.chunk || s.micro_batch != before.micro_batch;
      w.number(2 * static_cast<std::uint64_t>(s.name) + (changed ? 1 : 0));
      if (changed) {
        w.number(static_cast<std::uint64_t>(s.segment));
        w.number(static_cast<std::uint64_t>(s.chunk));
        w.number(static_cast<std::uint64_t>(s.micro_batch));
      }
      w.signed_number(wrapped_minus(s.start.value, before.end.value));
      w.signed_number(wrapped_minus(s.start.value, s.ready.value));
      w.signed_number(wrapped_minus(s.active.value, s.start.value));
      w.signed_number(wrapped_minus(s.end.value, s.active.value));
      before = s;
    });
  }
}

void read_slices(NumberReader& r, const Lane& lane, const TimelineHead& t, PackedSlices& out) {
  Slice s{.segment = -1, .rank = lane.rank, .stream = lane.stream};
  out.begin_lane(lane.rank, lane.stream);
  for (std::uint64_t i = 0; i < lane.count; ++i) {
    const std::uint64_t name = r.number();
    if (name / 2 >= t.names.size())
      r.fail(fmt::format("{} is no op", name / 2), fmt::format("allowed: less than {}", t.names.size()));
    s.name = static_cast<std::int32_t>(name / 2);
    if (name % 2 == 1) {
      s.segment = r.index(t.segments.size(), "segment");
      s.chunk = r.index(kMostIndex, "chunk");
      s.micro_batch = r.index(kMostIndex, "micro-batch");
    }
    if (s.segment < 0) r.fail("the first slice of a lane has no segment");
    s.start = r.time(wrapped_plus(s.end.value, r.signed_number()));
    s.ready = r.time(wrapped_minus(s.start.value, r.signed_number()));
    s.active = r.time(wrapped_plus(s.start.value, r.signed_number()));
    s.end = r.time(wrapped_plus(s.active.value, r.signed_number()));
    if (const std::string wrong = put_in_order(s); !wrong.empty()) r.fail(wrong);
    out.add(s);
  }
  out.end_lane();
}

std::vector<Lane> read_lanes(const Json& head, const Cursor& at, std::size_t bytes) {
  constexpr std::size_t kLeast = 5;  // bytes of a slice
  const auto found = head.find("lanes");
  if (found == head.end() || !found->is_array()) at.fail("the list \"lanes\" is missing");
  std::vector<Lane> lanes;
  std::uint64_t slices = 0;
  for (std::size_t i = 0; i < found->size(); ++i) {
    const Cursor here = at.child("lanes").child(i);
    std::vector<std::int64_t> lane;
    read_value((*found)[i], here, Field{"lane", "", 0, 1e15}, lane);
    if (lane.size() != 3) here.fail(shown((*found)[i]) + " is not [process, stream, slices]");
    if (lane[0] >= kMostIndex || lane[1] >= std::int64_t{kMostStreams})
      here.fail("has no such process or stream");
    slices += static_cast<std::uint64_t>(lane[2]);
    if (slices > bytes / kLeast) here.fail("has more slices than the file has room for");
    lanes.push_back({static_cast<std::int32_t>(lane[0]), static_cast<std::int32_t>(lane[1]),
                     static_cast<std::uint64_t>(lane[2])});
  }
  return lanes;
}

void read_memory(NumberReader& r, std::size_t points, TimelineHead& t) {
  MemoryPoint p;
  for (std::size_t i = 0; i < points; ++i) {
    p.rank = r.index(kMostIndex, "process");
    p.at = r.time(wrapped_plus(p.at.value, r.signed_number()));
    for (std::int64_t& bytes : p.bytes) {
      constexpr std::int64_t kMost = 1'000'000'000'000'000;
      bytes = wrapped_plus(bytes, r.signed_number());
      if (bytes < 0 || bytes > kMost) r.fail(fmt::format("{} are no bytes", bytes));
    }
    t.memory.push_back(p);
  }
}

// What follows the magic: the head, then numbers that `r` reads.
PackedTimeline read_timeline(std::string_view text, NumberReader& r, const std::string& file) {
  const Json head = parse_json(text, file, kLargestTimelineFile);
  const Cursor top{file, ""};
  if (!head.is_object()) top.fail("the head is not an object");
  PackedTimeline out;
  TimelineHead& t = out.head;
  t.names = text_list(head, "names", top);
  t.segments = text_list(head, "segments", top);
  t.streams = text_list(head, "streams", top);
  t.rank_labels = text_list(head, "rank_labels", top);
  read_timeline_head(head, top, t);
  std::int32_t processes = 0, streams = 0;
  for (const Lane& lane : read_lanes(head, top, r.left())) {
    read_slices(r, lane, t, out.slices);
    if (lane.count == 0) continue;
    processes = std::max(processes, lane.rank + 1);
    streams = std::max(streams, lane.stream + 1);
  }
  constexpr std::size_t kLeastPoint = 2 + kMemoryClasses;  // bytes
  const auto points = static_cast<std::size_t>(integer_field(head, "memory_points", 1LL << 40, top));
  if (points > r.left() / kLeastPoint) r.fail("has no room for so many points of memory");
  t.memory.reserve(points);
  read_memory(r, points, t);
  if (r.left() > 0) r.fail("the file goes on where it should end");
  name_places(t, processes, streams, top);
  return out;
}

// The length of the head; `begin`: of the file, of which it has so many bytes.
std::size_t head_size(std::string_view begin, std::size_t size, const std::string& file) {
  if (!begin.starts_with(kMagic))
    throw InputError(
        file, "byte 0", "is no timeline of this version",
        fmt::format("allowed: a file that begins with \"{}\"", kMagic.substr(0, kMagic.size() - 1)));
  const auto early = [&](std::size_t at) {
    throw InputError(file, fmt::format("byte {}", at), "the file ends early");
  };
  if (begin.size() < kHeadBegins) early(kMagic.size());
  std::size_t out = 0;
  for (std::size_t i = 0; i < kHeadSize; ++i)
    out |= static_cast<std::size_t>(static_cast<unsigned char>(begin[kMagic.size() + i])) << (8 * i);
  if (out > size - kHeadBegins) early(kHeadBegins);
  return out;
}

}  // namespace

std::string to_binary(const PackedTimeline& t) {
  Json head = timeline_head(t.head);
  head["names"] = t.head.names;
  head["segments"] = t.head.segments;
  head["streams"] = t.head.streams;
  head["rank_labels"] = t.head.rank_labels;
  head["lanes"] = Json::array();
  for (const PackedSlices::Lane& lane : t.slices.lanes())
    head["lanes"].push_back({lane.rank, lane.stream, lane.count});
  head["memory_points"] = t.head.memory.size();
  NumberWriter body;
  write_slices(body, t.slices);
  MemoryPoint before;
  for (const MemoryPoint& p : t.head.memory) {
    body.number(static_cast<std::uint64_t>(p.rank));
    body.signed_number(wrapped_minus(p.at.value, before.at.value));
    for (std::size_t c = 0; c < kMemoryClasses; ++c)
      body.signed_number(wrapped_minus(p.bytes[c], before.bytes[c]));
    before = p;
  }
  const std::string text = head.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out(kMagic);
  for (std::size_t i = 0; i < kHeadSize; ++i) out.push_back(static_cast<char>(text.size() >> (8 * i)));
  return out + text + body.text();
}

std::string to_binary(const Timeline& t) {
  return to_binary(pack(t));
}

PackedTimeline packed_from_binary(std::string_view bytes, const std::string& file) {
  const std::size_t size = head_size(bytes, bytes.size(), file), at = kHeadBegins + size;
  NumberReader r(bytes.substr(at), at, file);
  return read_timeline(bytes.substr(kHeadBegins, size), r, file);
}

PackedTimeline load_packed(const std::filesystem::path& path) {
  const std::string file = path.string();
  std::ifstream in(path, std::ios::binary);
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!in || error) throw InputError(file, "/", "cannot be read");
  if (size > static_cast<std::uintmax_t>(kLargestTimelineFile))
    throw InputError(file, fmt::format("byte {}", kLargestTimelineFile), "the file is too large",
                     fmt::format("allowed: {} bytes", kLargestTimelineFile));
  const auto next = [&](std::size_t bytes) {
    std::string out(bytes, '\0');
    in.read(out.data(), static_cast<std::streamsize>(bytes));
    out.resize(static_cast<std::size_t>(in.gcount()));
    return out;
  };
  const std::size_t head = head_size(next(kHeadBegins), size, file);
  const std::string text = next(head);
  NumberReader r(in, kHeadBegins + head, size, file);
  return read_timeline(text, r, file);
}

Timeline from_binary(std::string_view bytes, const std::string& file) {
  return unpack(packed_from_binary(bytes, file));
}

}  // namespace orrery
