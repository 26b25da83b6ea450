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
#include <numeric>

#include "core/timeline_head.h"

namespace orrery {
namespace {

constexpr std::string_view kMagic = "orrery.timeline-binary/1\n";
constexpr std::size_t kHeadSize = 8;
constexpr std::int64_t kMostIndex = 1 << 30;

std::int64_t minus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}
std::int64_t plus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

class BinaryWriter {
 public:
  void number(std::uint64_t n) {
    while (n >= 0x80) {
      out_.push_back(static_cast<char>(n | 0x80));
      n >>= 7;
    }
    out_.push_back(static_cast<char>(n));
  }
  void signed_number(std::int64_t n) {
    number((static_cast<std::uint64_t>(n) << 1) ^ static_cast<std::uint64_t>(n >> 63));
  }
  std::string& text() { return out_; }

 private:
  std::string out_;
};

class BinaryReader {
 public:
  BinaryReader(std::string_view bytes, std::size_t at, const std::string& file)
      : bytes_(bytes), at_(at), file_(file) {}
  std::uint64_t number() {
    std::uint64_t n = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ >= bytes_.size()) fail("the file ends early");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      n |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return n;
    }
    fail("is not a number");
  }
  std::int64_t signed_number() {
    const std::uint64_t n = number();
    return static_cast<std::int64_t>((n >> 1) ^ (~(n & 1) + 1));
  }
  std::int32_t index(std::size_t size, const char* what) {
    const std::uint64_t n = number();
    if (n >= size) fail(fmt::format("{} is no {}", n, what), fmt::format("allowed: less than {}", size));
    return static_cast<std::int32_t>(n);
  }
  std::size_t left() const { return bytes_.size() - at_; }
  [[noreturn]] void fail(const std::string& problem, const std::string& allowed = {}) const {
    throw InputError(file_, fmt::format("byte {}", at_), problem, allowed);
  }

 private:
  std::string_view bytes_;
  std::size_t at_;
  const std::string& file_;
};

struct Lane {
  std::int32_t rank = 0, stream = 0;
  std::uint64_t count = 0;
};

void write_slices(BinaryWriter& w, std::span<const Slice* const> lane) {
  Slice before{.segment = -1};
  for (const Slice* s : lane) {
    const bool changed =
        s->segment != before.segment || s->chunk != before.chunk || s->micro_batch != before.micro_batch;
    w.number(2 * static_cast<std::uint64_t>(s->name) + (changed ? 1 : 0));
    if (changed) {
      w.number(static_cast<std::uint64_t>(s->segment));
      w.number(static_cast<std::uint64_t>(s->chunk));
      w.number(static_cast<std::uint64_t>(s->micro_batch));
    }
    w.signed_number(minus(s->start.value, before.end.value));
    w.signed_number(minus(s->start.value, s->ready.value));
    w.signed_number(minus(s->active.value, s->start.value));
    w.signed_number(minus(s->end.value, s->active.value));
    before = *s;
  }
}

// Times of an input are neither negative nor so large that sums of them overflow.
Time checked(const BinaryReader& r, std::int64_t ps) {
  constexpr std::int64_t kMost = 1LL << 61;
  if (ps < 0 || ps > kMost)
    r.fail(fmt::format("{} ps is no time", ps), fmt::format("allowed: 0 to {}", kMost));
  return Time{ps};
}

void read_slices(BinaryReader& r, const Lane& lane, Timeline& t) {
  Slice s{.segment = -1, .rank = lane.rank, .stream = lane.stream};
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
    s.start = checked(r, plus(s.end.value, r.signed_number()));
    s.ready = checked(r, minus(s.start.value, r.signed_number()));
    s.active = checked(r, plus(s.start.value, r.signed_number()));
    s.end = checked(r, plus(s.active.value, r.signed_number()));
    if (const std::string wrong = put_in_order(s); !wrong.empty()) r.fail(wrong);
    t.slices.push_back(s);
  }
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

void read_memory(BinaryReader& r, std::size_t points, Timeline& t) {
  MemoryPoint p;
  for (std::size_t i = 0; i < points; ++i) {
    p.rank = r.index(kMostIndex, "process");
    p.at = checked(r, plus(p.at.value, r.signed_number()));
    for (std::int64_t& bytes : p.bytes) {
      constexpr std::int64_t kMost = 1'000'000'000'000'000;
      bytes = plus(bytes, r.signed_number());
      if (bytes < 0 || bytes > kMost) r.fail(fmt::format("{} are no bytes", bytes));
    }
    t.memory.push_back(p);
  }
}

}  // namespace

std::string to_binary(const Timeline& t) {
  std::vector<const Slice*> order(t.slices.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = &t.slices[i];
  std::stable_sort(order.begin(), order.end(), [](const Slice* a, const Slice* b) {
    return std::tie(a->rank, a->stream, a->start) < std::tie(b->rank, b->stream, b->start);
  });
  Json head = timeline_head(t);
  head["names"] = t.names;
  head["segments"] = t.segments;
  head["streams"] = t.streams;
  head["rank_labels"] = t.rank_labels;
  head["lanes"] = Json::array();
  head["memory_points"] = t.memory.size();
  BinaryWriter body;
  for (std::size_t i = 0; i < order.size();) {
    const std::size_t first = i;
    while (i < order.size() && order[i]->rank == order[first]->rank &&
           order[i]->stream == order[first]->stream)
      ++i;
    head["lanes"].push_back({order[first]->rank, order[first]->stream, i - first});
    write_slices(body, std::span(order).subspan(first, i - first));
  }
  MemoryPoint before;
  for (const MemoryPoint& p : t.memory) {
    body.number(static_cast<std::uint64_t>(p.rank));
    body.signed_number(minus(p.at.value, before.at.value));
    for (std::size_t c = 0; c < kMemoryClasses; ++c) body.signed_number(minus(p.bytes[c], before.bytes[c]));
    before = p;
  }
  const std::string text = head.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out(kMagic);
  for (std::size_t i = 0; i < kHeadSize; ++i) out.push_back(static_cast<char>(text.size() >> (8 * i)));
  return out + text + body.text();
}

Timeline from_binary(std::string_view bytes, const std::string& file) {
  if (!bytes.starts_with(kMagic))
    throw InputError(
        file, "byte 0", "is no timeline of this version",
        fmt::format("allowed: a file that begins with \"{}\"", kMagic.substr(0, kMagic.size() - 1)));
  std::size_t at = kMagic.size(), size = 0;
  if (bytes.size() < at + kHeadSize)
    throw InputError(file, fmt::format("byte {}", at), "the file ends early");
  for (std::size_t i = 0; i < kHeadSize; ++i)
    size |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  at += kHeadSize;
  if (size > bytes.size() - at) throw InputError(file, fmt::format("byte {}", at), "the file ends early");
  const Json head = parse_json(bytes.substr(at, size), file, kLargestTimelineFile);
  const Cursor top{file, ""};
  if (!head.is_object()) top.fail("the head is not an object");
  Timeline t;
  t.names = text_list(head, "names", top);
  t.segments = text_list(head, "segments", top);
  t.streams = text_list(head, "streams", top);
  t.rank_labels = text_list(head, "rank_labels", top);
  read_timeline_head(head, top, t);
  BinaryReader r(bytes, at + size, file);
  const std::vector<Lane> lanes = read_lanes(head, top, r.left());
  t.slices.reserve(std::accumulate(lanes.begin(), lanes.end(), std::size_t{0},
                                   [](std::size_t sum, const Lane& l) { return sum + l.count; }));
  for (const Lane& lane : lanes) read_slices(r, lane, t);
  constexpr std::size_t kLeastPoint = 2 + kMemoryClasses;  // bytes
  const auto points = static_cast<std::size_t>(integer_field(head, "memory_points", 1LL << 40, top));
  if (points > r.left() / kLeastPoint) r.fail("has no room for so many points of memory");
  t.memory.reserve(points);
  read_memory(r, points, t);
  if (r.left() > 0) r.fail("the file goes on where it should end");
  name_places(t, top);
  return t;
}

}  // namespace orrery
