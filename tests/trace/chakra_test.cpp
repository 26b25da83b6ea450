// SPDX-License-Identifier: Apache-2.0
#include "trace/chakra.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

#include "core/error.h"
#include "tests/folder.h"
#include "trace/load.h"

namespace orrery::trace {
namespace {

// Protobuf's wire format.
std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  return out + static_cast<char>(value);
}
std::string number(int field, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(value);
}
std::string text(int field, const std::string& value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(value.size()) + value;
}
std::string numbers(int field, const std::vector<std::uint64_t>& values) {
  std::string packed;
  for (const std::uint64_t v : values) packed += varint(v);
  return values.empty() ? "" : text(field, packed);
}
std::string delimited(const std::string& message) {
  return varint(message.size()) + message;
}

constexpr std::uint64_t kCompute = 4, kSend = 5, kCollective = 7;  // of NodeType

struct TestNode {
  std::uint64_t id;
  std::string name;
  std::uint64_t type = kCompute, us = 0, start = 0;
  bool host = false;
  std::uint64_t lane = 7;
  std::vector<std::uint64_t> after = {}, callers = {};
  std::int64_t collective = -1, bytes = 0;
  std::string group = {};
};

std::string encoded(const TestNode& n) {
  std::string out =
      number(1, n.id) + text(2, n.name) + number(3, n.type) + numbers(4, n.callers) + numbers(5, n.after);
  if (n.start > 0) out += number(6, n.start);
  if (n.us > 0) out += number(7, n.us);
  out += text(8, text(1, "[]"));
  out += text(10, text(1, "is_cpu_op") + number(27, n.host));
  // As the converter writes them: both, and the stream of the host's ops is 0.
  out += text(10, text(1, "tid") + number(9, n.host ? n.lane : 1));
  out += text(10, text(1, "stream") + number(9, n.host ? 0 : n.lane));
  if (n.collective >= 0)
    out += text(10, text(1, "comm_type") + number(9, static_cast<std::uint64_t>(n.collective)));
  if (n.bytes > 0) out += text(10, text(1, "comm_size") + number(9, static_cast<std::uint64_t>(n.bytes)));
  if (!n.group.empty()) out += text(10, text(1, "pg_name") + text(29, n.group));
  return out;
}
std::string trace_of(const std::vector<TestNode>& nodes) {
  std::string out = delimited(text(2, text(1, "schema") + text(29, "1.1.1")));
  for (const TestNode& n : nodes) out += delimited(encoded(n));
  return out;
}

// A step: the host launches two products on stream 7, an all-reduce on stream 20, waits for it and launches
// an update.
std::vector<TestNode> step() {
  return {{1, "ProfilerStep#4", kCompute, 1, 0, true, 1},
          {2, "aten::mm", kCompute, 9, 0, true, 1, {1}, {1}},
          {3, "nvjet_tst_128x256", kCompute, 20, 0, false, 7, {2}, {2}},
          {4, "aten::mm", kCompute, 5, 0, true, 1, {2}, {1}},
          {5, "nvjet_tst_128x256", kCompute, 10, 0, false, 7, {4}, {4}},
          {6, "c10d::allreduce_", kCompute, 1, 0, true, 1, {4}, {1}},
          {7,
           "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
           kCollective,
           15,
           0,
           false,
           20,
           {6, 3},
           {6},
           0,
           4096,
           "0"},
          {8, "cudaStreamSynchronize", kCompute, 2, 0, true, 1, {6, 7}, {1}},
          {9, "multi_tensor_apply_kernel<AdamFunctor>", kCompute, 4, 0, false, 7, {8}, {8}}};
}

struct Drawn {
  std::string name;
  std::int64_t stream, start_us, end_us;
  OpClass is;
  friend bool operator==(const Drawn&, const Drawn&) = default;
};
TEST(Chakra, NodesBeginWhenTheirDependenciesHaveEndedAndTheirStreamIsFree) {
  const std::string bytes = trace_of(step());
  ASSERT_TRUE(is_chakra(bytes));
  const DeviceTrace t = from_chakra(bytes, "chakra.3.et");
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.source, "measured: Chakra execution trace");
  EXPECT_TRUE(t.steps);
  EXPECT_EQ(t.segments, std::vector<std::string>{"ProfilerStep#4"});
  // Host: 0-1, 1-10, 10-15, 15-16, and from 45, when the all-reduce has ended, to 47.
  const std::string product = "nvjet_tst_128x256";
  const std::map<std::int64_t, Drawn> expected{
      {10'000, {product, 7, 10, 30, OpClass::kProduct}},
      {30'000, {product, 7, 30, 40, OpClass::kProduct}},  // launched at 15, behind the first
      {47'000, {"multi_tensor_apply_kernel<AdamFunctor>", 7, 47, 51, OpClass::kOptimizer}}};
  ASSERT_EQ(t.activities.size(), 4U);
  const auto exchange = std::find_if(t.activities.begin(), t.activities.end(),
                                     [](const Activity& a) { return a.exchange >= 0; });
  ASSERT_NE(exchange, t.activities.end());
  EXPECT_EQ(exchange->start_ns, 30'000);  // the first product has ended
  EXPECT_EQ(exchange->end_ns, 45'000);
  EXPECT_EQ(exchange->stream, 20);
  EXPECT_EQ(exchange->is, OpClass::kAllReduce);
  EXPECT_EQ(t.names[static_cast<std::size_t>(exchange->name)],
            "all-reduce, 4096 B (ncclDevKernel_AllReduce_Sum_bf16_RING_LL)");
  EXPECT_EQ(t.exchanges[0].bytes, 4096);
  EXPECT_EQ(t.exchanges[0].group, "0");
  for (const Activity& a : t.activities) {
    if (a.exchange >= 0) continue;
    const Drawn is{t.names[static_cast<std::size_t>(a.name)], a.stream, a.start_ns / 1000, a.end_ns / 1000,
                   a.is};
    EXPECT_EQ(is, expected.at(a.start_ns)) << a.start_ns;
  }
}

// A kernel is launched by the second thread of the host, which the first one does not hold up.
TEST(Chakra, ThreadsOfTheHostRunBesideEachOther) {
  const DeviceTrace t = from_chakra(trace_of({{1, "a", kCompute, 100, 0, true, 1},
                                              {2, "b", kCompute, 10, 0, true, 2},
                                              {3, "kernel", kCompute, 5, 0, false, 7, {2}}}),
                                    "x.et");
  ASSERT_EQ(t.activities.size(), 1U);
  EXPECT_EQ(t.activities[0].start_ns, 10'000);
  EXPECT_EQ(t.activities[0].stream, 7);
}

// The first node of a trace may begin at 0, which protobuf does not write; callers may go round in a circle.
TEST(Chakra, ATraceWithTimesMayBeginAtZero) {
  const DeviceTrace t = from_chakra(
      trace_of({{1, "a", kCompute, 5, 0, false, 7, {}, {2}}, {2, "b", kCompute, 5, 1000, false, 7, {}, {1}}}),
      "x.et");
  ASSERT_EQ(t.activities.size(), 2U);
  EXPECT_EQ(t.activities[0].start_ns, 0);
  EXPECT_EQ(t.activities[1].start_ns, 1'000'000);
  EXPECT_FALSE(t.steps);
}

TEST(Chakra, TimesThatTheTraceHasCount) {
  std::vector<TestNode> nodes = step();
  std::uint64_t at = 1'000'000;
  for (TestNode& n : nodes) {
    if (!n.host) n.start = at += 100;
  }
  const DeviceTrace t = from_chakra(trace_of(nodes), "x.et");
  EXPECT_EQ(t.rank, -1);
  ASSERT_EQ(t.activities.size(), 4U);
  EXPECT_EQ(t.activities[0].start_ns, 1'000'100'000);
  EXPECT_EQ(t.activities[3].start_ns, 1'000'400'000);
}

TEST(Chakra, SchemaNumbersOfCollectivesAreTheirKinds) {
  const std::map<std::int64_t, OpClass> kinds{{0, OpClass::kAllReduce},     {1, OpClass::kBroadcast},
                                              {2, OpClass::kAllGather},     {5, OpClass::kBroadcast},
                                              {6, OpClass::kAllToAll},      {7, OpClass::kReduceScatter},
                                              {8, OpClass::kReduceScatter}, {9, OpClass::kBroadcast}};
  for (const auto& [kind, is] : kinds) {
    const DeviceTrace t =
        from_chakra(trace_of({{1, "x", kCollective, 5, 0, false, 0, {}, {}, kind, 64, "g"}}), "x.et");
    EXPECT_EQ(t.activities.at(0).is, is) << kind;
  }
  EXPECT_EQ(from_chakra(trace_of({{1, "x", kSend, 5}}), "x.et").activities.at(0).is, OpClass::kSendReceive);
}

std::string refusal(const std::string& bytes) {
  try {
    from_chakra(bytes, "x.et");
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Chakra, WhatCannotBeReplayedIsRefused) {
  EXPECT_EQ(refusal(trace_of({{6, "all_reduce", kCollective, 0, 0, false, 0, {}, {}, 0, 1 << 20}})),
            "x.et: /node 6: is an exchange without a duration, which would have to be simulated; allowed: "
            "traces of a "
            "run, as chakra_trace_link makes them of the PyTorch profiler's");
  EXPECT_NE(
      refusal(trace_of({{1, "a", kCompute, 5, 0, false, 7, {2}}, {2, "b", kCompute, 5, 0, false, 7, {1}}}))
          .find("/node 1: waits for nodes that wait for it"),
      std::string::npos);
  EXPECT_NE(refusal(trace_of({{1, "a", kCompute, 5}, {1, "b", kCompute, 5}}))
                .find("/message 2: has the id 1 of another node"),
            std::string::npos);
  EXPECT_NE(refusal(trace_of({{1, "a", kCompute, std::uint64_t{1} << 60}}))
                .find("/message 1: has no time that can be"),
            std::string::npos);
  // Callers are not waited for where a trace has data dependencies, and called nodes may run before them.
  EXPECT_EQ(refusal(trace_of(
                {{1, "a", kCompute, 5, 0, false, 7, {2}}, {2, "b", kCompute, 5, 0, false, 7, {}, {1}}})),
            "accepted");
  EXPECT_NE(refusal(trace_of({{1, "a", kCompute, 5, 0, false, 7, {}, {2}},
                              {2, "b", kCompute, 5, 0, false, 7, {}, {1}}}))
                .find("/node 1: waits"),
            std::string::npos);
  // A node that another one names, and that is not there, holds nobody up.
  EXPECT_EQ(refusal(trace_of({{1, "a", kCompute, 5, 0, false, 7, {99}}})), "accepted");
}

TEST(Chakra, OpensAsATimelineAndMerges) {
  const Folder folder;
  std::vector<std::filesystem::path> files;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<TestNode> nodes = step();
    if (rank == 1) {  // which comes 6 us earlier to the exchange, and waits
      nodes[2].us -= 6;
      nodes[6].us += 6;
    }
    files.push_back(folder.path / fmt::format("chakra.{}.et", rank));
    std::ofstream(files.back(), std::ios::binary) << trace_of(nodes);
    EXPECT_TRUE(is_foreign(files.back()));
  }
  const Loaded both = load(files);
  EXPECT_TRUE(both.foreign);
  EXPECT_EQ(both.merged.processes.size(), 2U);
  EXPECT_EQ(both.merged.processes[1].rank, 1);
  ASSERT_EQ(both.merged.meetings.size(), 1U);
  EXPECT_EQ(both.merged.meetings[0].bytes, 4096);
  EXPECT_EQ(both.merged.meetings[0].here.size(), 2U);
  EXPECT_EQ(both.merged.steps, 1);
  // Without a device's op it says what is to be done.
  const std::filesystem::path host = folder.path / "host.0.et";
  std::ofstream(host, std::ios::binary)
      << trace_of({{1, "aten::mm", kCompute, 9, 0, true, 1}, {2, "aten::mm", kCompute, 9, 0, true, 1}});
  try {
    load({host});
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("is an execution trace without ops of a device"), std::string::npos)
        << e.what();
  }
}

// Cut anywhere and changed anywhere: an error or a trace, nothing else.
TEST(Chakra, DamagedTracesAreRefusedOrRead) {
  constexpr unsigned kSeed = 20261130;
  RecordProperty("seed", kSeed);
  const std::string whole = trace_of(step());
  int refused = 0;
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    const std::string part = whole.substr(0, cut);
    if (is_chakra(part)) refused += refusal(part) != "accepted";
  }
  EXPECT_GT(refused, 400);  // all but the ends of messages
  std::mt19937 random(kSeed);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = whole;
    for (unsigned n = 1 + random() % 4; n > 0; --n)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (is_chakra(bytes)) refusal(bytes);
  }
  for (const char* other : {"", "{", "{\"traceEvents\": []}", "orrery.timeline", "SQLite format 3"})
    EXPECT_FALSE(is_chakra(other)) << other;
}

}  // namespace
}  // namespace orrery::trace
