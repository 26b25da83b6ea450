// SPDX-License-Identifier: Apache-2.0
#include "core/packed_slices.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/leb128.h"

namespace orrery {
namespace {

// Numbers of a slice: name, context, and zigzag-coded start - end of the slice before, start - ready,
// active - start, end - active.
enum SliceField : std::uint8_t { kName, kContext, kStart, kReady, kActive, kEnd };
constexpr std::size_t kFields = 6;
using Numbers = std::array<std::uint64_t, PackedSlices::kBlock>;
using Fields = std::array<Numbers, kFields>;

// A block begins with the bits of each field in a byte each, and has field after field from whole bytes on.
constexpr std::size_t kHeader = 8;
// Bits that a load of eight bytes holds wherever they begin in the first; numbers of more take 64.
constexpr unsigned kMostBits = 57;
// Bytes that are read behind the last number.
constexpr std::size_t kSpare = 8;
static_assert(std::endian::native == std::endian::little);

constexpr std::size_t bytes_of(std::size_t count, std::size_t bits) {
  return (count * bits + 7) / 8;
}

unsigned bits_of(std::span<const std::uint64_t> numbers) {
  std::uint64_t any = 0;
  for (const std::uint64_t n : numbers) any |= n;
  const auto bits = static_cast<unsigned>(std::bit_width(any));
  return bits > kMostBits ? 64 : bits;
}

void write(std::span<const std::uint64_t> numbers, unsigned bits, char* to) {
  if (bits == 64) {
    std::memcpy(to, numbers.data(), numbers.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    char* const at = to + i * bits / 8;
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof word);
    word |= numbers[i] << (i * bits % 8);
    std::memcpy(at, &word, sizeof word);
  }
}

std::uint64_t read_one(const char* from, std::size_t i, unsigned bits) {
  std::uint64_t word = 0;
  std::memcpy(&word, from + i * bits / 8, sizeof word);
  return bits == 64 ? word : word >> (i * bits % 8) & ((std::uint64_t{1} << bits) - 1);
}

void read(const char* from, std::size_t count, unsigned bits, Numbers& out) {
  if (bits == 0)
    out.fill(0);
  else
    for (std::size_t i = 0; i < count; ++i) out[i] = read_one(from, i, bits);
}

}  // namespace

void PackedSlices::begin_lane(std::int32_t rank, std::int32_t stream) {
  if (!lanes_.empty())
    in_order_ &= std::pair(lanes_.back().rank, lanes_.back().stream) < std::pair(rank, stream);
  lanes_.push_back({rank, stream, size(), 0, blocks_.size() - 1, Time{0}});
  end_ = Time{0};
}

std::uint32_t PackedSlices::context_of(const Slice& s) {
  const Context context{s.segment, s.chunk, s.micro_batch};
  if (contexts_.empty() || contexts_[context_] != context) {
    const auto [known, added] = known_.try_emplace(context, static_cast<std::uint32_t>(contexts_.size()));
    if (added) contexts_.push_back(context);
    context_ = known->second;
  }
  return context_;
}

void PackedSlices::add(const Slice& s) {
  Lane& lane = lanes_.back();
  in_order_ &= lane.count == 0 || s.start >= lane.end;
  ++lane.count;
  lane.end = s.end;
  open_[open_count_++] = s;
  if (open_count_ == kBlock) end_block();
}

void PackedSlices::end_block() {
  if (open_count_ == 0) return;
  Fields fields;
  const std::size_t n = open_count_;
  // The entry behind the last block becomes this one's.
  Block& block = blocks_.back();
  block = {.at = bytes_.size() - (bytes_.empty() ? 0 : kSpare),
           .end_before = end_,
           .busy_before = busy_,
           .waiting_before = waiting_};
  for (std::size_t i = 0; i < n; ++i) {
    const Slice& s = open_[i];
    fields[kName][i] = static_cast<std::uint64_t>(s.name);
    fields[kContext][i] = context_of(s);
    fields[kStart][i] = to_zigzag(wrapped_minus(s.start.value, end_.value));
    fields[kReady][i] = to_zigzag(wrapped_minus(s.start.value, s.ready.value));
    fields[kActive][i] = to_zigzag(wrapped_minus(s.active.value, s.start.value));
    fields[kEnd][i] = to_zigzag(wrapped_minus(s.end.value, s.active.value));
    if (s.end - s.start > block.longest) {
      block.longest = s.end - s.start;
      block.longest_at = static_cast<std::uint32_t>(i);
    }
    busy_ += static_cast<std::uint64_t>((s.end - s.start).value);
    waiting_ += static_cast<std::uint64_t>((s.active - s.start).value);
    end_ = s.end;
  }
  block.context = static_cast<std::uint32_t>(fields[kContext][0]);
  const auto contexts = std::span(fields[kContext]).first(n);
  if (std::all_of(contexts.begin(), contexts.end(),
                  [&](std::uint64_t c) { return c == fields[kContext][0]; }))
    std::fill(contexts.begin(), contexts.end(), 0);  // the block's
  std::array<unsigned char, kHeader> bits{};
  std::size_t size = kHeader;
  for (std::size_t f = 0; f < kFields; ++f) {
    bits[f] = static_cast<unsigned char>(bits_of(std::span(fields[f]).first(n)));
    size += bytes_of(n, bits[f]);
  }
  bytes_.resize(block.at + size + kSpare, '\0');
  std::memcpy(bytes_.data() + block.at, bits.data(), kHeader);
  std::size_t at = block.at + kHeader;
  for (std::size_t f = 0; f < kFields; ++f) {
    write(std::span(fields[f]).first(n), bits[f], bytes_.data() + at);
    at += bytes_of(n, bits[f]);
  }
  open_count_ = 0;
  blocks_.emplace_back();
}

void PackedSlices::end_lane() {
  end_block();
  if (lanes_.back().count == 0) lanes_.pop_back();
  blocks_.back() = {.at = bytes_.size(), .busy_before = busy_, .waiting_before = waiting_};
}

// One number of slice i.
std::uint64_t PackedSlices::number(const Lane& lane, std::size_t i, std::size_t field) const {
  const std::size_t b = i / kBlock, n = std::min(kBlock, lane.count - b * kBlock);
  const char* at = bytes_.data() + blocks_[lane.first_block + b].at;
  const auto* const bits = reinterpret_cast<const unsigned char*>(at);
  if (bits[field] == 0) return 0;
  at += kHeader;
  for (std::size_t f = 0; f < field; ++f) at += bytes_of(n, bits[f]);
  return read_one(at, i % kBlock, bits[field]);
}

Slice PackedSlices::without_times(const Lane& lane, std::size_t i) const {
  const Block& block = blocks_[lane.first_block + i / kBlock];
  const bool alike = bytes_[block.at + kContext] == 0;
  Slice s{
      .name = static_cast<std::int32_t>(number(lane, i, kName)), .rank = lane.rank, .stream = lane.stream};
  std::tie(s.segment, s.chunk, s.micro_batch) = contexts_[alike ? block.context : number(lane, i, kContext)];
  return s;
}

Slice PackedSlices::with_times(const Lane& lane, std::size_t i, const Times& times) const {
  Slice s = without_times(lane, i);
  s.start = times.start[i % kBlock];
  s.active = times.active[i % kBlock];
  s.end = times.end[i % kBlock];
  s.ready = Time{wrapped_minus(s.start.value, from_zigzag(number(lane, i, kReady)))};
  return s;
}

std::size_t PackedSlices::unpack(const Lane& lane, std::size_t b, Times& out) const {
  const Block& block = blocks_[lane.first_block + b];
  const std::size_t n = std::min(kBlock, lane.count - b * kBlock);
  const char* at = bytes_.data() + block.at;
  const auto* const bits = reinterpret_cast<const unsigned char*>(at);
  at += kHeader;
  Numbers start, active, end;
  for (const SliceField f : {kName, kContext}) at += bytes_of(n, bits[f]);
  read(at, n, bits[kStart], start);
  for (const SliceField f : {kStart, kReady}) at += bytes_of(n, bits[f]);
  read(at, n, bits[kActive], active);
  at += bytes_of(n, bits[kActive]);
  read(at, n, bits[kEnd], end);
  Time before = block.end_before;
  for (std::size_t i = 0; i < n; ++i) {
    out.start[i] = Time{wrapped_plus(before.value, from_zigzag(start[i]))};
    out.active[i] = Time{wrapped_plus(out.start[i].value, from_zigzag(active[i]))};
    out.end[i] = before = Time{wrapped_plus(out.active[i].value, from_zigzag(end[i]))};
  }
  return n;
}

std::size_t PackedSlices::unpack(const Lane& lane, std::size_t b, std::array<Slice, kBlock>& out) const {
  Times times;
  const std::size_t n = unpack(lane, b, times);
  for (std::size_t i = 0; i < n; ++i) out[i] = with_times(lane, b * kBlock + i, times);
  return n;
}

PackedTimeline pack(const Timeline& t) {
  std::vector<const Slice*> order(t.slices.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = &t.slices[i];
  const auto key = [](const Slice* s) { return std::tie(s->rank, s->stream, s->start, s->end); };
  std::stable_sort(order.begin(), order.end(),
                   [&](const Slice* a, const Slice* b) { return key(a) < key(b); });
  PackedTimeline out{t, {}};
  for (std::size_t i = 0; i < order.size();) {
    const std::size_t first = i;
    out.slices.begin_lane(order[first]->rank, order[first]->stream);
    for (;
         i < order.size() && order[i]->rank == order[first]->rank && order[i]->stream == order[first]->stream;
         ++i)
      out.slices.add(*order[i]);
    out.slices.end_lane();
  }
  return out;
}

Timeline unpack(const PackedTimeline& t) {
  Timeline out;
  static_cast<TimelineHead&>(out) = t.head;
  out.slices.reserve(t.slices.size());
  for (const PackedSlices::Lane& lane : t.slices.lanes())
    t.slices.for_each(lane, [&](const Slice& s) { out.slices.push_back(s); });
  return out;
}

}  // namespace orrery
