// SPDX-License-Identifier: Apache-2.0
#include "exec/communicator.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/error.h"

namespace orrery::exec {
namespace {

using Kind = CollectiveCall::Kind;

// Runs body(rank, communicator) on `n` threads; returns each rank's error text.
template <class Body>
std::vector<std::string> on_ranks(std::int64_t n, std::chrono::milliseconds deadline, Body body) {
  ThreadWorld world(n, deadline);
  std::vector<std::string> errors(static_cast<std::size_t>(n));
  std::vector<std::jthread> threads;
  for (std::int64_t r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      const auto c = world.communicator(r);
      try {
        body(r, *c);
      } catch (const Error& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  }
  threads.clear();
  return errors;
}

constexpr std::chrono::milliseconds kLong{20000}, kShort{200};

// Integer-valued floats, so sums are exact: odd sizes, zero size, in place and not.
TEST(ThreadCommunicator, CollectivesAreExact) {
  for (const std::int64_t n : {1, 2, 3, 5, 8}) {
    for (const std::size_t part : {0UL, 1UL, 7UL, 1000UL}) {
      std::vector<std::int64_t> members;
      for (std::int64_t i = 0; i < n; ++i) members.push_back(i);
      const auto errors = on_ranks(n, kLong, [&](std::int64_t r, Communicator& c) {
        const std::size_t whole = part * static_cast<std::size_t>(n);
        std::vector<float> x(whole);
        for (std::size_t i = 0; i < whole; ++i)
          x[i] = static_cast<float>((r + 1) * static_cast<std::int64_t>(i % 97));
        const auto sum = [&](std::size_t i) {
          return static_cast<float>(n * (n + 1) / 2 * static_cast<std::int64_t>(i % 97));
        };
        std::vector<float> reduced = x, shard(part), gathered(whole);
        c.collective(members, {Kind::kSum, "sum", reduced, reduced});
        for (std::size_t i = 0; i < whole; ++i) ASSERT_EQ(reduced[i], sum(i));
        c.collective(members, {Kind::kScatter, "scatter", x, shard});
        for (std::size_t i = 0; i < part; ++i)
          ASSERT_EQ(shard[i], sum(static_cast<std::size_t>(r) * part + i));
        c.collective(members, {Kind::kGather, "gather", shard, gathered});
        ASSERT_EQ(gathered, reduced);
        c.collective(members, {Kind::kMax, "max", x, x});
        for (std::size_t i = 0; i < whole; ++i)
          ASSERT_EQ(x[i], static_cast<float>(n * static_cast<std::int64_t>(i % 97)));
      });
      for (const auto& e : errors) EXPECT_EQ(e, "");
    }
  }
}

TEST(ThreadCommunicator, AMissingRankIsNamedWithinTheDeadline) {
  const auto begin = Clock::now();
  const auto errors = on_ranks(3, kShort, [](std::int64_t r, Communicator& c) {
    std::vector<float> x(4);
    const std::vector<std::int64_t> members{0, 1, 2};
    if (r != 2) c.collective(members, {Kind::kSum, "layer1/attn/out/all-reduce", x, x});
  });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_NE((errors[0] + errors[1]).find("in \"layer1/attn/out/all-reduce\" (sequence number 0) for ranks 2"),
            std::string::npos)
      << errors[0];
}

TEST(ThreadCommunicator, AnotherCollectiveIsNamed) {
  const auto errors = on_ranks(2, kShort, [](std::int64_t r, Communicator& c) {
    std::vector<float> x(4);
    const std::vector<std::int64_t> members{0, 1};
    c.collective(members, {Kind::kSum, r == 0 ? "unit0/all-reduce" : "unit1/all-reduce", x, x});
  });
  EXPECT_NE((errors[0] + errors[1]).find("collective \"unit0/all-reduce\" meets \"unit1/all-reduce\""),
            std::string::npos)
      << errors[0] << errors[1];
}

TEST(ThreadCommunicator, ALostMessageEndsInAnError) {
  const auto errors = on_ranks(2, kShort, [](std::int64_t r, Communicator& c) {
    std::vector<float> x(4);
    if (r == 1) c.receive(0, 0, "pipeline/recv", x);
  });
  EXPECT_NE(errors[1].find("rank 1 waited 200 ms in \"pipeline/recv\" for rank 0"), std::string::npos)
      << errors[1];
}

}  // namespace
}  // namespace orrery::exec
