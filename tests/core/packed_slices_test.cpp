// SPDX-License-Identifier: Apache-2.0
//
// Packed slices, against the slices that they were.
#include "core/packed_slices.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <tuple>

#include "core/error.h"

namespace orrery {
namespace {

// Lanes of up to a hundred slices, one after the other unless `overlap`; some of no length, some far apart.
Timeline random_timeline(std::uint64_t seed, bool overlap) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  Timeline t;
  t.names = {"a", "b", "c"};
  t.segments = {"forward", "backward"};
  t.streams = {"compute", "tp", "dp"};
  t.rank_labels = {"0", "1", "2", "3"};
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    for (std::int32_t stream = 0; stream < 3; ++stream) {
      std::int64_t at = 0;
      for (std::int64_t i = below(100); i > 0; --i) {
        const std::int64_t gap = below(4) == 0 ? below(std::int64_t{1} << below(50)) : 0;
        const std::int64_t length = below(5) == 0 ? 0 : below(std::int64_t{1} << (1 + below(30)));
        const std::int64_t start = at + gap, active = start + (length > 0 ? below(length + 1) : 0);
        t.slices.push_back({static_cast<std::int32_t>(below(3)), static_cast<std::int32_t>(below(2)),
                            static_cast<std::int32_t>(below(3)), static_cast<std::int32_t>(below(1000)), rank,
                            stream, Time{start - below(start + 1)}, Time{start}, Time{active},
                            Time{start + length}});
        at = overlap && length > 1 ? start + length / 2 : start + length;
      }
    }
  }
  t.memory = {{0, Time{5}, {1, 2, 3, 4, 5, 6}}, {3, Time{7}, {6, 5, 4, 3, 2, 1}}};
  std::shuffle(t.slices.begin(), t.slices.end(), random);
  return t;
}

std::vector<Slice> in_order(std::vector<Slice> slices) {
  std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return std::tie(a.rank, a.stream, a.start, a.end) < std::tie(b.rank, b.stream, b.start, b.end);
  });
  return slices;
}

TEST(PackedSlices, AreTheSlices) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const bool overlap = seed % 3 == 0;
    const Timeline t = random_timeline(seed, overlap);
    const std::vector<Slice> expected = in_order(t.slices);
    const PackedTimeline packed = pack(t), read = packed_from_binary(to_binary(t), "t");
    for (const PackedTimeline* p : {&packed, &read}) {
      EXPECT_EQ(p->slices.size(), expected.size());
      EXPECT_EQ(unpack(*p).slices, expected);
      EXPECT_EQ(p->head.memory, t.memory);
      EXPECT_EQ(to_binary(*p), to_binary(t));
    }
    EXPECT_EQ(from_binary(to_binary(t), "t").slices, expected);
  }
}

// Any block by itself, and what stands before each.
TEST(PackedSlices, BlocksAreReadInAnyOrder) {
  std::mt19937_64 random(5);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const Timeline t = random_timeline(seed, false);
    const std::vector<Slice> expected = in_order(t.slices);
    const PackedTimeline packed = packed_from_binary(to_binary(t), "t");
    const PackedSlices& p = packed.slices;
    std::vector<std::uint64_t> busy{0}, waiting{0};
    for (const Slice& s : expected) {
      busy.push_back(busy.back() + static_cast<std::uint64_t>((s.end - s.start).value));
      waiting.push_back(waiting.back() + static_cast<std::uint64_t>((s.active - s.start).value));
    }
    std::array<Slice, PackedSlices::kBlock> some;
    for (const PackedSlices::Lane& lane : p.lanes()) {
      EXPECT_EQ(lane.end, expected[lane.first + lane.count - 1].end);
      std::vector<std::size_t> blocks(lane.blocks());
      for (std::size_t b = 0; b < blocks.size(); ++b) blocks[b] = b;
      std::shuffle(blocks.begin(), blocks.end(), random);
      for (const std::size_t b : blocks) {
        PackedSlices::Times times;
        EXPECT_EQ(p.unpack(lane, b, times), p.unpack(lane, b, some));
        const std::size_t n = p.unpack(lane, b, some), first = lane.first + b * PackedSlices::kBlock;
        EXPECT_EQ(n, std::min(PackedSlices::kBlock, lane.first + lane.count - first));
        Time longest{0};
        for (std::size_t i = 0; i < n; ++i) {
          EXPECT_EQ(some[i], expected[first + i]);
          EXPECT_EQ(times.start[i], some[i].start);
          EXPECT_EQ(times.active[i], some[i].active);
          EXPECT_EQ(times.end[i], some[i].end);
          EXPECT_EQ(p.with_times(lane, first - lane.first + i, times), some[i]);
          longest = std::max(longest, some[i].end - some[i].start);
        }
        const PackedSlices::Block& block = p.blocks()[lane.first_block + b];
        EXPECT_EQ(block.busy_before, busy[first]);
        EXPECT_EQ(block.waiting_before, waiting[first]);
        EXPECT_EQ(block.longest, longest);
        EXPECT_EQ(some[block.longest_at].end - some[block.longest_at].start, longest);
      }
    }
    EXPECT_EQ(p.blocks().back().busy_before, busy.back());
  }
}

TEST(PackedSlices, SayWhetherTheyAreInOrder) {
  EXPECT_TRUE(pack(random_timeline(1, false)).slices.in_order());
  EXPECT_FALSE(pack(random_timeline(3, true)).slices.in_order());
  // A lane twice.
  Timeline t;
  t.names = {"a"};
  t.segments = {"forward"};
  t.streams = {"compute"};
  const auto at = [](std::int64_t start) {
    return Slice{0, 0, 0, 0, 0, 0, Time{start}, Time{start}, Time{start}, Time{start + 1}};
  };
  const Slice one = at(0), other = at(5);
  PackedSlices p;
  const auto add = [&](const Slice& s) {
    p.begin_lane(0, 0);
    p.add(s);
    p.end_lane();
  };
  add(one);
  EXPECT_TRUE(p.in_order());
  add(other);
  EXPECT_FALSE(p.in_order());
}

// Any values of any width, what no file has among them; beside small ones in one block.
TEST(PackedSlices, AnyValuesComeBack) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 200; ++round) {
    PackedSlices p;
    std::vector<Slice> expected;
    p.begin_lane(3, 1);
    for (std::uint64_t i = 1 + random() % 40; i > 0; --i) {
      const auto any = [&] {
        return static_cast<std::int64_t>(random() >> random() % 64) * (random() % 2 == 0 ? 1 : -1);
      };
      const auto index = [&] { return static_cast<std::int32_t>(any()); };
      expected.push_back({static_cast<std::int32_t>(random() >> (33 + random() % 31)), index(), index(),
                          index(), 3, 1, Time{any()}, Time{any()}, Time{any()}, Time{any()}});
      p.add(expected.back());
    }
    p.end_lane();
    std::vector<Slice> found;
    p.for_each(p.lanes().front(), [&](const Slice& s) { found.push_back(s); });
    ASSERT_EQ(found, expected) << round;
  }
}

TEST(PackedSlices, NoneAreNone) {
  Timeline t;
  t.source = "nothing";
  const PackedTimeline packed = packed_from_binary(to_binary(t), "t");
  EXPECT_EQ(packed.slices.size(), 0U);
  EXPECT_EQ(packed.head.source, "nothing");
  EXPECT_TRUE(unpack(packed).slices.empty());
  EXPECT_EQ(to_binary(packed), to_binary(t));
}

// Ops of 10 us after gaps of 1 us: of each block, 8 bytes with the bits of all numbers; none for the only
// name, the only context and what is ready, active at the start; twice 1e6 ps take 21 bits, and twice 1e7
// ps 25.
TEST(PackedSlices, TakeFewBytes) {
  Timeline t;
  t.names = {"a"};
  t.segments = {"forward"};
  t.streams = {"compute"};
  constexpr std::int64_t kSlices = 16'000;
  for (std::int64_t i = 0; i < kSlices; ++i) {
    const Time start{11'000'000 * i + 1'000'000};
    t.slices.push_back({0, 0, 0, 0, 0, 0, start, start, start, start + Time{10'000'000}});
  }
  const PackedTimeline packed = pack(t);
  constexpr std::size_t kBlocks = kSlices / 16, kSpare = 8;
  EXPECT_EQ(packed.slices.blocks().size(), kBlocks + 1);
  EXPECT_EQ(packed.slices.bytes(),
            kBlocks * (8 + 2 * 21 + 2 * 25) + kSpare + (kBlocks + 1) * sizeof(PackedSlices::Block));
  EXPECT_EQ(sizeof(PackedSlices::Block), 48U);  // 3 bytes a slice
}

// A file that is read in pieces is what it is in memory; and a fault has the same byte.
TEST(PackedSlices, FilesAreReadInPieces) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("orrery-packed-" + std::to_string(getpid()) + ".timeline");
  Timeline t = random_timeline(4, false);
  std::vector<Slice> more;
  for (int i = 0; i < 400; ++i) more.insert(more.end(), t.slices.begin(), t.slices.end());
  t.slices = std::move(more);  // of more than one piece
  const std::string bytes = to_binary(t);
  ASSERT_GT(bytes.size(), std::size_t{3} << 20);
  const auto load = [&](std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
    return load_packed(path);
  };
  EXPECT_EQ(to_binary(load(bytes)), bytes);
  const auto fault = [&](std::string_view text, bool in_pieces) -> std::string {
    try {
      in_pieces ? load(text) : packed_from_binary(text, path.string());
    } catch (const InputError& e) {
      return e.what();
    }
    return {};
  };
  for (const std::size_t size :
       {std::size_t{10}, std::size_t{30}, std::size_t{200}, std::size_t{1} << 20, bytes.size() - 1}) {
    const std::string_view cut = std::string_view(bytes).substr(0, size);
    EXPECT_NE(fault(cut, false), "") << size;
    EXPECT_EQ(fault(cut, true), fault(cut, false)) << size;
  }
  std::string wrong = bytes;
  for (std::size_t i = wrong.size() / 2; i < wrong.size() / 2 + 40; ++i) wrong[i] = '\xff';
  EXPECT_NE(fault(wrong, false), "");
  EXPECT_EQ(fault(wrong, true), fault(wrong, false));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace orrery
