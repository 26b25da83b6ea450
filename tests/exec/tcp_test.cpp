// SPDX-License-Identifier: Apache-2.0
//
// Ranks that meet over TCP, here as threads of one process.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "core/error.h"
#include "exec/exchange.h"
#include "exec/tcp_hub.h"
#include "exec/tcp_world.h"

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
                                  const std::function<void(std::int64_t, ProcessWorld&)>& f) {
  std::vector<std::string> errors(static_cast<std::size_t>(n));
  {
    std::vector<std::jthread> threads;
    for (std::int64_t r = 0; r < n; ++r) {
      threads.emplace_back([&, r] {
        try {
          const auto world = join_by_tcp({.rank = r, .ranks = n}, at, deadline);
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
    call(kAllReduceMax, x.data(), out.data());
    EXPECT_EQ(out[5], v(2, 5));
    call(kBroadcast, x.data(), out.data(), 1);
    EXPECT_EQ(out[4], v(1, 4));
    std::vector<float> untouched(6, -1);
    call(kGather, x.data(), untouched.data(), 2);
    EXPECT_EQ(untouched[3], rank == 2 ? v(1, 1) : -1);
    call(kScatter, x.data(), part.data(), 2);
    EXPECT_EQ(part[0], v(2, 2 * self));
    call(kAllToAll, x.data(), out.data());
    EXPECT_EQ(out[4], v(2, 2 * self));

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

TEST(Tcp, WhoDoesNotComeIsNamed) {
  try {
    join_by_tcp({.rank = 0, .ranks = 3}, {.file = fresh_file()}, 200ms);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "ranks 1 2 did not come within 200 ms");
  }
  EXPECT_THROW(join_by_tcp({.rank = 1, .ranks = 3}, {.file = fresh_file()}, 200ms), Error);
  const auto errors = on_ranks(2, {.file = fresh_file()}, 3s, [](std::int64_t rank, ProcessWorld& world) {
    float x = 1;
    const GroupId all = world.communicator().open(std::array<std::int64_t, 2>{0, 1});
    if (rank == 0) world.communicator().collective(all, {CollectiveKind::kAllReduce, "alone", &x, &x, 1});
    if (rank == 1) std::this_thread::sleep_for(4s);
  });
  EXPECT_NE(errors[0].find("\"alone\""), std::string::npos) << errors[0];
}

// What strangers send does not disturb the job.
TEST(Tcp, StrangersAreIgnored) {
  const std::string file = fresh_file();
  const auto errors = on_ranks(2, {.file = file}, 20s, [&](std::int64_t rank, ProcessWorld& world) {
    float x = 1;
    const GroupId all = world.communicator().open(std::array<std::int64_t, 2>{0, 1});
    if (rank == 1) {
      std::string host, port;
      std::ifstream(file) >> host >> port;
      asio::io_context context;
      for (const std::string& text :
           {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4096, '\xff'), std::string()}) {
        tcp::socket stranger(context);
        stranger.connect({asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(std::stoi(port))});
        stranger.send(asio::buffer(text));
      }
      tcp::socket greedy(context);  // a head that promises more than there is memory
      greedy.connect({asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(std::stoi(port))});
      const FrameHead head{.kind = FrameKind::kFailure, .bytes = std::uint64_t{1} << 35};
      greedy.send(asio::buffer(&head, sizeof head));
      tcp::socket twin(context);  // says that it is rank 1
      twin.connect({asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(std::stoi(port))});
      Packer hello;
      hello.value(std::int64_t{1}).value(std::int64_t{2});
      write_frame(twin, FrameKind::kHello, 0, hello.body);
      EXPECT_THROW(read_frame(twin), std::exception);
    }
    for (int i = 0; i < 3; ++i)
      world.communicator().collective(all, {CollectiveKind::kAllReduce, "a sum", &x, &x, 1});
    EXPECT_EQ(x, 8);
  });
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

TEST(Tcp, RendezvousAreParsed) {
  EXPECT_EQ(parse_rendezvous("file:/tmp/x").file, "/tmp/x");
  const Rendezvous r = parse_rendezvous("tcp://node-3.cluster:29500");
  EXPECT_EQ(r.host, "node-3.cluster");
  EXPECT_EQ(r.port, "29500");
  for (const char* wrong : {"", "file:", "tcp://", "tcp://x", "tcp://:1", "tcp://x:0", "tcp://x:65536",
                            "tcp://x:1x", "http://x:1", "/tmp/x"})
    EXPECT_THROW(parse_rendezvous(wrong), InputError) << wrong;
}

}  // namespace
}  // namespace orrery::exec
