// SPDX-License-Identifier: Apache-2.0
//
// Strangers connect to a job of real processes over TCP: while it waits for its last rank, and while it runs.
// The environment's ORRERY_STRANGERS says how many (400).
#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>

#include "tests/exec/launched.h"
#include "tests/exec/tcp_stranger.h"

namespace orrery {
namespace {

using boost::asio::ip::tcp;

constexpr int kSteps = 60;

int strangers() {
  const char* text = std::getenv("ORRERY_STRANGERS");
  return text == nullptr ? 400 : std::stoi(text);
}

// An address of this host at which nobody listens.
tcp::endpoint free_address() {
  boost::asio::io_context context;
  return tcp::acceptor(context, {boost::asio::ip::address_v4::loopback(), 0}).local_endpoint();
}

// Strangers number `begin` to `end` - 1, eight at a time; returns how many were let in.
int attack(const tcp::endpoint& hub, int begin, int end) {
  std::atomic<int> next{begin}, heard{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = next++; i < end; i = next++) heard += exec::disturb(hub, i) ? 1 : 0;
    });
  }
  threads.clear();
  return heard;
}

struct Trained {
  Json result;
  std::int64_t grown_kb = 0;
  int heard = 0;
};

Trained train(const fs::path& folder, const Arguments& arguments, int attacks) {
  const tcp::endpoint hub = free_address();
  Arguments over_tcp = arguments;
  over_tcp.insert(over_tcp.end(),
                  {"--rendezvous", "tcp://127.0.0.1:" + std::to_string(hub.port()), "--deadline", "60"});
  Launched job(folder, {over_tcp, over_tcp, over_tcp, {}}, {{"ORRERY_JOB_SECRET", "a secret of the tests"}});
  Trained out;
  for (int i = 0; i < 3000 && !exec::disturb(hub, 0); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const std::string rank0 = std::to_string(job.pid(0));
  const std::int64_t before = exec::resident_kb(rank0);
  EXPECT_GT(before, 0);
  out.heard = attack(hub, 0, attacks / 2);
  out.grown_kb = exec::resident_kb(rank0) - before;
  job.start(3, over_tcp);
  attack(hub, attacks / 2, attacks);
  for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(job.wait(r), 0) << job.err(r);
  out.result = Json::parse(job.out(0));
  return out;
}

// Of the steps after the first: the sum, and the median.
std::pair<double, double> seconds(const Json& result) {
  std::vector<double> all;
  for (std::size_t s = 1; s < result["steps"].size(); ++s) all.push_back(result["steps"][s]["seconds"]);
  std::sort(all.begin(), all.end());
  return {std::accumulate(all.begin(), all.end(), 0.0), all[all.size() / 2]};
}

TEST(Strangers, DoNotEndAJobOrChangeOrBloatIt) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  const Json threads = run_threads(folder.path, run(file, kSteps));
  const Trained quiet = train(folder.path, run(file, kSteps), 0),
                loud = train(folder.path, run(file, kSteps), strangers());
  for (const Trained* r : {&quiet, &loud}) {
    ASSERT_EQ(r->result["steps"].size(), static_cast<std::size_t>(kSteps));
    for (std::size_t s = 0; s < static_cast<std::size_t>(kSteps); ++s)
      EXPECT_EQ(r->result["steps"][s]["loss"], threads["steps"][s]["loss"]) << s;
  }
  EXPECT_GT(loud.heard, strangers() / 4);  // the attack was one
  EXPECT_LT(loud.grown_kb, exec::kMostGrowth);
  const auto [sum, median] = seconds(loud.result);
  const auto [quiet_sum, quiet_median] = seconds(quiet.result);
  fmt::print(
      "{} strangers, of which {} were let in to greet: rank 0 grew by {} KiB; {} steps took {:.2f} of the "
      "time "
      "(the median step {:.2f}), with the strangers' own work on the same processors\n",
      strangers(), loud.heard, loud.grown_kb, kSteps - 1, sum / quiet_sum, median / quiet_median);
}

}  // namespace
}  // namespace orrery
