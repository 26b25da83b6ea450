// SPDX-License-Identifier: Apache-2.0
//
// Every collective on integer-valued floats, whose sums are exact whatever their order; and what happens when
// a rank does not come, or comes with something else.
#include "exec/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "core/fields.h"
#include "exec/emulated_link.h"
#include "exec/shared_world.h"
#include "kernels/cpu/fast.h"
#include "tests/exec/on_ranks.h"

namespace orrery::exec {
namespace {

using enum CollectiveKind;

constexpr std::chrono::milliseconds kShort{700};

std::vector<std::int64_t> first(std::int64_t n) {
  std::vector<std::int64_t> members(static_cast<std::size_t>(n));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// Element i of member r's input; and its sum over n members.
float value(std::int64_t r, std::size_t i) {
  return static_cast<float>((r + 1) * static_cast<std::int64_t>(i % 97));
}
float sum(std::int64_t n, std::size_t i) {
  return static_cast<float>(n * (n + 1) / 2 * static_cast<std::int64_t>(i % 97));
}

class Collectives : public testing::TestWithParam<Algorithm> {};

TEST_P(Collectives, AreExact) {
  const Algorithm algorithm = GetParam();
  for (const std::int64_t n : {1, 2, 3, 4, 5, 6, 8}) {
    for (const std::size_t part : {0UL, 1UL, 7UL, 5000UL}) {
      const auto errors = on_ranks(n, kLong, [&](std::int64_t r, Communicator& c) {
        const GroupId g = c.open(first(n));
        const auto members = static_cast<std::size_t>(n), self = static_cast<std::size_t>(r);
        const std::size_t whole = part * members, root = members - 1;
        std::vector<float> x(whole);
        for (std::size_t i = 0; i < whole; ++i) x[i] = value(r, i);
        const auto call = [&](CollectiveKind kind, const std::vector<float>& in, std::vector<float>& out,
                              bool accumulate = false) {
          c.collective(
              g, {kind, name_of(kind), in.data(), out.data(), whole, DType::kFloat32, accumulate,
                  kind == kReduce || kind == kBroadcast || kind == kGather || kind == kScatter ? root : 0,
                  algorithm});
        };
        std::vector<float> reduced = x, apart(whole), shard(part), gathered(whole);
        call(kAllReduce, reduced, reduced);
        call(kAllReduce, x, apart);
        for (std::size_t i = 0; i < whole; ++i) ASSERT_EQ(reduced[i], sum(n, i));
        ASSERT_EQ(apart, reduced);
        call(kReduceScatter, x, shard);
        for (std::size_t i = 0; i < part; ++i) ASSERT_EQ(shard[i], sum(n, self * part + i));
        call(kAllGather, shard, gathered);
        ASSERT_EQ(gathered, reduced);
        call(kReduceScatter, x, shard, true);
        for (std::size_t i = 0; i < part; ++i) ASSERT_EQ(shard[i], 2 * sum(n, self * part + i));
        std::vector<float> sent(whole, -1);
        call(kBroadcast, x, sent);
        for (std::size_t i = 0; i < whole; ++i) ASSERT_EQ(sent[i], value(n - 1, i));
        std::vector<float> at_root(whole, -1);
        call(kReduce, x, at_root);
        for (std::size_t i = 0; i < whole; ++i) ASSERT_EQ(at_root[i], self == root ? sum(n, i) : -1);
        std::vector<float> mine(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(part)), all(whole, -1);
        call(kGather, mine, all);
        for (std::size_t i = 0; i < whole; ++i)
          ASSERT_EQ(all[i], self == root ? value(static_cast<std::int64_t>(i / part), i % part) : -1);
        call(kScatter, x, shard);
        for (std::size_t i = 0; i < part; ++i) ASSERT_EQ(shard[i], value(n - 1, self * part + i));
        std::vector<float> turned(whole);
        call(kAllToAll, x, turned);
        for (std::size_t i = 0; i < whole; ++i)
          ASSERT_EQ(turned[i], value(static_cast<std::int64_t>(i / part), self * part + i % part));
        call(kShift, x, turned);
        const auto before = (static_cast<std::int64_t>(self) + n - 1) % n;
        for (std::size_t i = 0; i < whole; ++i) ASSERT_EQ(turned[i], value(before, i));
      });
      for (const auto& e : errors) EXPECT_EQ(e, "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Collectives,
                         testing::Values(Algorithm::kDirect, Algorithm::kNaive, Algorithm::kRing,
                                         Algorithm::kTree, Algorithm::kHalvingDoubling,
                                         Algorithm::kHierarchical),
                         [](const auto& param_info) {
                           std::string name(name_of(param_info.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Small whole numbers are exact in every format.
TEST_P(Collectives, SumEveryFormat) {
  constexpr std::size_t kElements = 4104;
  for (const DType type : {DType::kBfloat16, DType::kFloat16, DType::kFloat64}) {
    const auto errors = on_ranks(6, kLong, [&](std::int64_t r, Communicator& c) {
      const GroupId g = c.open(first(6));
      std::vector<float> x(kElements), sum(kElements);
      for (std::size_t i = 0; i < kElements; ++i)
        x[i] = static_cast<float>((r + 1) * static_cast<std::int64_t>(i % 5));
      std::vector<double> wide(x.begin(), x.end());
      std::vector<std::uint16_t> half(kElements), shard(kElements / 6);
      if (is_half(type)) kernels::narrow(type, kElements, x.data(), half.data());
      void* const data = is_half(type) ? static_cast<void*>(half.data()) : wide.data();
      if (is_half(type)) {
        c.collective(
            g, {kReduceScatter, "shard", half.data(), shard.data(), kElements, type, false, 0, GetParam()});
        kernels::widen(type, kElements / 6, shard.data(), sum.data());
        for (std::size_t i = 0; i < shard.size(); ++i)
          ASSERT_EQ(sum[i], 21 * static_cast<float>((static_cast<std::size_t>(r) * shard.size() + i) % 5));
      }
      c.collective(g, {kAllReduce, "sum", data, data, kElements, type, false, 0, GetParam()});
      if (is_half(type))
        kernels::widen(type, kElements, half.data(), sum.data());
      else
        sum.assign(wide.begin(), wide.end());
      for (std::size_t i = 0; i < kElements; ++i) ASSERT_EQ(sum[i], 21 * static_cast<float>(i % 5));
    });
    for (const auto& e : errors) EXPECT_EQ(e, "");
  }
}

// Sums are in member order: here the order decides the result.
TEST(Communicator, SumsAreInMemberOrder) {
  const float inputs[] = {1e8F, 1.0F, -1e8F, 1.0F};
  const float expected = ((inputs[0] + inputs[1]) + inputs[2]) + inputs[3];
  ASSERT_NE(expected, (inputs[0] + inputs[2]) + (inputs[1] + inputs[3]));
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto errors = on_ranks(4, kLong, [&](std::int64_t r, Communicator& c) {
      std::vector<float> x(1000, inputs[r]);
      c.collective(c.open(first(4)), {kAllReduce, "sum", x.data(), x.data(), x.size()});
      for (const float v : x) ASSERT_EQ(v, expected);
    });
    for (const auto& e : errors) EXPECT_EQ(e, "");
  }
}

TEST(Communicator, MessagesKeepTheirOrder) {
  const auto errors = on_ranks(2, kLong, [&](std::int64_t r, Communicator& c) {
    for (int i = 0; i < 100; ++i) {
      double x = i;
      if (r == 0) {
        c.send(1, i % 2, "message", &x, sizeof x);
      } else {
        c.receive(0, i % 2, "message", &x, sizeof x);
        ASSERT_EQ(x, i);
      }
    }
  });
  for (const auto& e : errors) EXPECT_EQ(e, "");
}

void expect_in(const std::vector<std::string>& errors, const char* text) {
  for (const std::string& e : errors) EXPECT_NE(e.find(text), std::string::npos) << e;
}

// Over links of 8 B/s with hops of 1 s a ring of 4 members passes parts of 48 / 4 = 12 B, 1.5 s each: 3 of
// them to gather, which takes 3 x 2.5 = 7.5 s, and 6 to sum, 15 s. A shift passes all 48 B over one hop: 7 s.
TEST(EmulatedLink, ARingTakesAHopLessThanItHasMembers) {
  for (const auto& [kind, takes] :
       {std::pair(kAllGather, "takes 7.5 s"), {kAllReduce, "takes 15.0 s"}, {kShift, "takes 7.0 s"}})
    expect_in(
        on_ranks(4, kLong,
                 [kind = kind](std::int64_t, Communicator& c) {
                   const auto link = emulate_link(c, {Bandwidth{8}, Time{kPicosecondsPerSecond}}, kShort);
                   std::vector<float> x(12), y(12);
                   link->collective(link->open(first(4)), {kind, "ring", x.data(), y.data(), 12});
                 }),
        takes);
}

// Every member learns when the last one came, whichever that is: here 20 ms after the other two.
TEST(Communicator, ACallIsActiveFromWhenItsLastMemberCame) {
  for (const std::size_t late : {0U, 1U, 2U}) {
    std::array<Clock::time_point, 3> came, active;
    const auto errors = on_ranks(3, kLong, [&](std::int64_t r, Communicator& c) {
      const auto self = static_cast<std::size_t>(r);
      float x = 0;
      const GroupId g = c.open(first(3));
      if (self == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      came[self] = Clock::now();
      active[self] = c.collective(g, {kAllReduce, "sum", &x, &x, 1});
    });
    for (const auto& e : errors) EXPECT_EQ(e, "");
    for (const Clock::time_point t : active) EXPECT_GE(t, came[late]) << late;
  }
}

TEST(Communicator, AMissingRankIsNamedWithinTheDeadline) {
  const auto begin = Clock::now();
  auto errors = on_ranks(3, kShort, [](std::int64_t r, Communicator& c) {
    std::vector<float> x(4);
    const GroupId g = c.open(first(3));
    c.collective(g, {kAllReduce, "first", x.data(), x.data(), 4});
    if (r != 2) c.collective(g, {kAllReduce, "layer1/attn/out/all-reduce", x.data(), x.data(), 4});
  });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(errors.back(), "");
  errors.pop_back();
  expect_in(errors, "rank 2 did not come to \"layer1/attn/out/all-reduce\" (call 1) within 700 ms: rank ");
}

TEST(Communicator, AnotherCollectiveIsNamed) {
  expect_in(on_ranks(2, kShort,
                     [](std::int64_t r, Communicator& c) {
                       std::vector<float> x(4);
                       c.collective(c.open(first(2)),
                                    {kAllReduce, r == 0 ? "unit0/all-reduce" : "unit1/all-reduce", x.data(),
                                     x.data(), 4});
                     }),
            "rank 0 is in all-reduce \"unit0/all-reduce\" of 4 x 4 bytes, rank 1 in all-reduce "
            "\"unit1/all-reduce\"");
  expect_in(
      on_ranks(2, kShort,
               [](std::int64_t r, Communicator& c) {
                 std::vector<float> x(4);
                 c.collective(c.open(first(2)), {kAllReduce, "sum", x.data(), x.data(), r == 0 ? 4UL : 3UL});
               }),
      "rank 1 in all-reduce \"sum\" of 3 x 4 bytes (call 0)");
}

TEST(Communicator, ALostMessageEndsInAnError) {
  const auto errors = on_ranks(2, kShort, [](std::int64_t r, Communicator& c) {
    float x = 0;
    if (r == 1) c.receive(0, 0, "pipeline/recv", &x, sizeof x);
  });
  EXPECT_NE(errors[1].find("rank 0 did not come to \"pipeline/recv\" (call 0) within 700 ms: rank 1 waited"),
            std::string::npos)
      << errors[1];
}

}  // namespace
}  // namespace orrery::exec
