// SPDX-License-Identifier: Apache-2.0
//
// Ranks that meet over TCP, here as threads of one process.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "core/error.h"
#include "exec/exchange.h"
#include "exec/tcp_frame.h"
#include "exec/tcp_world.h"
#include "tests/exec/small_model.h"

namespace orrery::exec {
namespace {

using namespace std::chrono_literals;

std::string fresh_file() {
  static int number = 0;
  return (std::filesystem::temp_directory_path() /
          ("orrery-rendezvous-" + std::to_string(::getpid()) + "-" + std::to_string(++number)))
      .string();
}

// What went wrong on each rank; empty where nothing did.
std::vector<std::string> on_ranks(std::int64_t n, const Rendezvous& at, std::chrono::milliseconds deadline,
                                  const std::function<void(std::int64_t, ProcessWorld&)>& f,
                                  const std::optional<Secret>& secret = {}) {
  std::vector<std::string> errors(static_cast<std::size_t>(n));
  {
    std::vector<std::jthread> threads;
    for (std::int64_t r = 0; r < n; ++r) {
      threads.emplace_back([&, r] {
        try {
          const auto world = join_by_tcp({.rank = r, .ranks = n}, at, secret, deadline, kMostOfPayload);
          try {
            f(r, *world);
          } catch (const std::exception& e) {
            world->abort().raise(e.what());
            world->spread_failure();
            throw;
          }
        } catch (const std::exception& e) {
          errors[static_cast<std::size_t>(r)] = e.what();
        }
      });
    }
  }
  return errors;
}

TEST(Tcp, CollectivesGiveTheSumsOfRanksInTheirOrder) {
  using enum CollectiveKind;
  const Rendezvous at{.file = fresh_file()};
  const auto errors = on_ranks(3, at, 20s, [](std::int64_t rank, ProcessWorld& world) {
    Communicator& c = world.communicator();
    const GroupId all = c.open(std::array<std::int64_t, 3>{0, 1, 2});
    const auto self = static_cast<std::size_t>(rank);
    const auto v = [](std::size_t r, std::size_t i) { return static_cast<float>(10 * r + i); };
    std::vector<float> x(6), sum(6), out(6, -1), part(2);
    for (std::size_t i = 0; i < 6; ++i) {
      x[i] = v(self, i);
      sum[i] = v(0, i) + v(1, i) + v(2, i);
    }
    const auto call = [&](CollectiveKind kind, const float* in, float* to, std::size_t root = 0,
                          bool more = false) {
      c.collective(all, {kind, "a call", in, to, 6, DType::kFloat32, more, root});
    };
    call(kAllReduce, x.data(), out.data());
    EXPECT_EQ(out, sum);
    call(kReduceScatter, x.data(), part.data());
    EXPECT_EQ(part, (std::vector{sum[2 * self], sum[2 * self + 1]}));
    call(kReduceScatter, x.data(), part.data(), 0, true);
    EXPECT_EQ(part[1], 2 * sum[2 * self + 1]);
    call(kAllGather, x.data(), out.data());
    EXPECT_EQ(out, (std::vector{v(0, 0), v(0, 1), v(1, 0), v(1, 1), v(2, 0), v(2, 1)}));
    call(kBroadcast, x.data(), out.data(), 1);
    EXPECT_EQ(out[4], v(1, 4));
    std::vector<float> untouched(6, -1);
    call(kGather, x.data(), untouched.data(), 2);
    EXPECT_EQ(untouched[3], rank == 2 ? v(1, 1) : -1);
    call(kScatter, x.data(), part.data(), 2);
    EXPECT_EQ(part[0], v(2, 2 * self));
    call(kAllToAll, x.data(), out.data());
    EXPECT_EQ(out[4], v(2, 2 * self));
    call(kShift, x.data(), out.data());
    EXPECT_EQ(out[4], v((rank + 2) % 3, 4));

    // Messages of a channel come in their order, whoever asks first.
    if (rank == 0) {
      for (const float f : {1.5F, 2.5F}) c.send(2, 1, "a message", &f, sizeof f);
    } else if (rank == 2) {
      for (const float f : {1.5F, 2.5F}) {
        float got = 0;
        c.receive(0, 1, "a message", &got, sizeof got);
        EXPECT_EQ(got, f);
      }
    }
    Exchange exchange(c, rank, 3);
    EXPECT_EQ(exchange.gather("text", std::string(static_cast<std::size_t>(20000 * rank), 'x')).size(),
              rank == 0 ? 3U : 0U);
  });
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

TEST(Tcp, OtherCallsAreNamed) {
  const auto errors = on_ranks(2, {.file = fresh_file()}, 20s, [](std::int64_t rank, ProcessWorld& world) {
    float x = 1;
    const GroupId all = world.communicator().open(std::array<std::int64_t, 2>{0, 1});
    world.communicator().collective(all,
                                    {CollectiveKind::kAllReduce, rank == 0 ? "one" : "another", &x, &x, 1});
  });
  for (const std::string& e : errors) {
    EXPECT_NE(e.find("one"), std::string::npos) << e;
    EXPECT_NE(e.find("another"), std::string::npos) << e;
  }
}

TEST(Tcp, ARankThatNeverConnectsIsNamedByAllRanks) {
  const Rendezvous at{.file = fresh_file()};
  std::vector<std::string> errors(2);
  {
    std::vector<std::jthread> threads;
    for (const std::int64_t r : {0, 2}) {
      threads.emplace_back([&, r] {
        try {
          const auto world = join_by_tcp({.rank = r, .ranks = 4}, at, {}, 700ms, kMostOfPayload);
          float x = 1;
          const GroupId all = world->communicator().open(std::array<std::int64_t, 4>{0, 1, 2, 3});
          world->communicator().collective(all, {CollectiveKind::kAllReduce, "a sum", &x, &x, 1});
        } catch (const Error& e) {
          errors[static_cast<std::size_t>(r / 2)] = e.what();
        }
      });
    }
  }
  for (const std::string& e : errors) EXPECT_EQ(e, "ranks 1 3 did not come within 700 ms");
  EXPECT_FALSE(std::filesystem::exists(at.file));
}

TEST(Tcp, ARankThatDoesNotFindRank0SaysWhere) {
  try {
    join_by_tcp({.rank = 1, .ranks = 3}, {.file = "/nowhere/file"}, {}, 200ms, kMostOfPayload);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(
        e.what(),
        "rank 1 could not reach rank 0 within 200 ms: cannot read /nowhere/file: No such file or directory");
  }
}

// A rank that works on, and answers when it is asked whether it is alive, is late all the same.
TEST(Tcp, ARankThatDoesNotComeToACallIsNamed) {
  const auto errors = on_ranks(3, {.file = fresh_file()}, 2s, [](std::int64_t rank, ProcessWorld& world) {
    float x = 1;
    Communicator& c = world.communicator();
    const GroupId all = c.open(std::array<std::int64_t, 3>{0, 1, 2}),
                  two = c.open(std::array<std::int64_t, 2>{1, 2});
    c.collective(all, {CollectiveKind::kAllReduce, "a sum", &x, &x, 1});
    if (rank == 2) return std::this_thread::sleep_for(3s);
    // Rank 0 waits for rank 1, which waits for rank 2.
    if (rank == 1)
      std::this_thread::sleep_for(200ms), c.collective(two, {CollectiveKind::kAllReduce, "later", &x, &x, 1});
    c.collective(all, {CollectiveKind::kAllReduce, "alone", &x, &x, 1});
  });
  EXPECT_EQ(errors[0], "rank 2 did not come to \"alone\" (call 1) within 2000 ms");
  EXPECT_EQ(errors[1], errors[0]);
}

TEST(Tcp, RanksOfTwoHostsMeetByTheNameOfTheFirst) {
  const auto errors = on_ranks(2, {.file = fresh_file()}, 20s, [](std::int64_t, ProcessWorld& world) {
    float x = 1;
    const GroupId all = world.communicator().open(std::array<std::int64_t, 2>{0, 1});
    world.communicator().collective(all, {CollectiveKind::kAllReduce, "a sum", &x, &x, 1});
    EXPECT_EQ(x, 2);
  });
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

TEST(Tcp, RendezvousAreParsed) {
  EXPECT_EQ(parse_rendezvous("file:/tmp/x").file, "/tmp/x");
  const Rendezvous r = parse_rendezvous("tcp://node-3.cluster:29500");
  EXPECT_EQ(r.host, "node-3.cluster");
  EXPECT_EQ(r.port, "29500");
  EXPECT_EQ(parse_rendezvous("tcp://[fe80::1]:29500").host, "fe80::1");
  for (const char* wrong :
       {"", "file:", "tcp://", "tcp://x", "tcp://:1", "tcp://x:0", "tcp://x:65536", "tcp://x:1x",
        "http://x:1", "/tmp/x", "tcp://::1:29500", "tcp://[::1:29500", "tcp://[]:1"})
    EXPECT_THROW(parse_rendezvous(wrong), InputError) << wrong;
  EXPECT_EQ(parse_rendezvous("tcp://[::1]:29500").host, "::1");
  for (const auto& [wrong, problem] :
       {std::pair{"tcp://127.0.0.1", "names no port"}, std::pair{"tcp://[::1]", "names no port"},
        std::pair{"tcp://x:", "names no port"}, std::pair{"tcp://:1", "names no host"},
        std::pair{"tcp://x:65536", "names a port that is not a number from 1 to 65535"}}) {
    try {
      parse_rendezvous(wrong);
      ADD_FAILURE() << wrong;
    } catch (const InputError& e) {
      EXPECT_EQ(e.what(), fmt::format("command line: /rendezvous: \"{}\" {}; allowed: tcp://HOST:PORT, "
                                      "tcp://[IPv6]:PORT, file:PATH",
                                      wrong, problem));
    }
  }
}

// Rank 0 refuses more than this: no op may send more, and twice as much is too loose.
TEST(Tcp, TheLargestMessageIsThatOfAnOp) {
  for (const Plan& p : {plan(2, 1, 2, 0), plan(1, 2, 2, 1), plan(1, 1, 4, 3), plan(1, 1, 4, 2)}) {
    const Training t{
        .global_batch = kBatch, .sequence = 8, .precision = Precision::kFp32, .math = Math::kFp32};
    const auto program = program::compile(tiny("tiny-llama"), p, t, stack());
    std::uint64_t payload = 0, accumulated = 0;
    for (const program::RankClass& c : program.classes) {
      for (const program::Segment& s : c.segments) {
        for (const program::Op& op : s.ops) {
          auto& most = op.accumulate ? accumulated : payload;
          most = std::max(most, static_cast<std::uint64_t>(op.payload.value));
        }
      }
    }
    EXPECT_EQ(largest_message(program), std::max({payload, 2 * accumulated, std::uint64_t{16384}}))
        << short_name(p);
  }
}

TEST(Tcp, AnAddressNeedsASecret) {
  EXPECT_THROW(
      join_by_tcp({.rank = 0, .ranks = 2}, {.host = "127.0.0.1", .port = "1"}, {}, 100ms, kMostOfPayload),
      InputError);
}

// As in a container that does not know its own name; ".invalid" is of no host (RFC 2606).
TEST(Tcp, AHostWithoutAKnownNameIsReachedByAnAddress) {
  const auto known = [](const char* name) {
    try {
      return !resolve(name, "1").empty();
    } catch (const Error&) {
      return false;
    }
  };
  if (known("localhost")) {  // a bare root has no /etc/hosts
    EXPECT_EQ(reachable_as("localhost"), "localhost");
  }
  const std::string address = reachable_as("nobody.invalid");
  using boost::asio::ip::tcp;
  boost::asio::io_context context;
  const tcp::endpoint here(boost::asio::ip::make_address(address), 0);
  const tcp::acceptor listens(context, here);  // throws where the address is not this host's
  EXPECT_EQ(resolve(address, std::to_string(listens.local_endpoint().port())).front(),
            listens.local_endpoint());
}

TEST(Tcp, RankZeroListensAtItsOwnAddressesOnly) {
  const std::optional<Secret> secret = Secret::random();
  try {  // an address for documentation (RFC 5737), which no host has
    join_by_tcp({.rank = 0, .ranks = 2}, {.host = "192.0.2.1", .port = "29511"}, secret, 200ms,
                kMostOfPayload);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "rank 0 cannot listen at 192.0.2.1:29511: Cannot assign requested address (the host must be "
                 "that of rank 0)");
  }
}

}  // namespace
}  // namespace orrery::exec
