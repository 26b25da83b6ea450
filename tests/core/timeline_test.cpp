// SPDX-License-Identifier: Apache-2.0
#include "core/timeline.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace orrery {
namespace {

TEST(Timeline, AChromeTraceReadsBackToThePicosecond) {
  Timeline t;
  t.source = "test";
  t.program_hash = 42;
  t.names = {"layer0/attn/qkv", "unit0/all-reduce"};
  t.segments = {"forward", "backward"};
  t.streams = {"compute", "tp"};
  t.rank_labels = {"stage 0"};
  t.slices = {{0, 0, 0, 3, 0, 0, Time{1}, Time{1'234'567}, Time{1'234'567}, Time{9'999'999}},
              {1, 1, 0, 3, 0, 1, Time{9'999'999}, Time{10'000'000}, Time{10'000'001}, Time{123'456'789'012}}};
  const Timeline back = from_chrome_trace(parse_json(to_chrome_trace(t), "trace"), "trace");
  EXPECT_EQ(back.slices, t.slices);
  EXPECT_EQ(back.names, t.names);
  EXPECT_EQ(back.streams, t.streams);
  EXPECT_EQ(back.program_hash, 42);
  EXPECT_TRUE(back.bounds.empty());
}

TEST(Timeline, APackedFileIsNamed) {
  try {
    (void)parse_json("\x1f\x8b\x08", "trace.json.gz");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("gunzip"), std::string::npos);
  }
}

TEST(Timeline, WhatLimitsOpsReadsBack) {
  Timeline t;
  t.source = "test";
  t.names = {"gemm", "norm", "sum"};
  t.segments = {"forward"};
  t.streams = {"compute"};
  t.slices = {{2, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {1, 0, 0, 0, 0, 0}};
  t.bounds = {Bound::kCompute, Bound::kMemory, Bound::kCommunication};
  Json trace = parse_json(to_chrome_trace(t), "trace");
  const Timeline back = from_chrome_trace(trace, "trace");
  EXPECT_EQ(back.names, (std::vector<std::string>{"sum", "gemm", "norm"}));
  EXPECT_EQ(back.bounds, (std::vector{Bound::kCommunication, Bound::kCompute, Bound::kMemory}));
  trace["otherData"]["bounds"]["memroy"] = Json::array();
  try {
    (void)from_chrome_trace(trace, "trace");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("/otherData/bounds/memroy"), std::string::npos) << e.what();
  }
}

Timeline with_everything() {
  Timeline t;
  t.source = "test";
  t.program_hash = -42;
  t.names = {"layer0/attn/qkv", "unit0/all-reduce"};
  t.segments = {"forward", "backward"};
  t.streams = {"compute", "tp"};
  t.bounds = {Bound::kCompute, Bound::kCommunication};
  t.payloads = {0, 4096};
  t.rank_labels = {"stage 0", "stage 1"};
  t.axes = {{"tp", 2}, {"dp", 1}, {"pp", 2}};
  t.node_ranks = 4;
  t.process_of = {0, 0, 1, 1};
  t.slices = {{0, 0, 0, 3, 0, 0, Time{1}, Time{1'234'567}, Time{1'234'567}, Time{9'999'999}},
              {1, 1, 5, 3, 0, 1, Time{0}, Time{10'000'000}, Time{10'000'001}, Time{123'456'789'012}},
              {0, 0, 0, 4, 1, 0, Time{2}, Time{2}, Time{2}, Time{2}}};
  t.memory = {{0, Time{0}, {1, 2, 3, 4, 5, 6}}, {0, Time{1'000'000}, {9, 0, 3, 4, 5, 6}}, {1, Time{0}, {7}}};
  t.experts.groups = {{0, 2}, {3}};
  t.experts.of = {{0, 7, 0, Time{5}, Time{1'234'567}, {3, 0, 9, 1}},
                  {0, 7, 1, Time{2'000'000}, Time{2'000'000}, {1, 1, 1, 1}},
                  {1, 2, 0, Time{0}, Time{1}, {10'000'000'000'000}}};
  t.experts.left_out = 3;
  return t;
}

void expect_equal(const Timeline& a, const Timeline& b) {
  EXPECT_EQ(a.source, b.source);
  EXPECT_EQ(a.program_hash, b.program_hash);
  EXPECT_EQ(a.names, b.names);
  EXPECT_EQ(a.segments, b.segments);
  EXPECT_EQ(a.streams, b.streams);
  EXPECT_EQ(a.bounds, b.bounds);
  EXPECT_EQ(a.payloads, b.payloads);
  EXPECT_EQ(a.rank_labels, b.rank_labels);
  EXPECT_EQ(a.axes, b.axes);
  EXPECT_EQ(a.node_ranks, b.node_ranks);
  EXPECT_EQ(a.process_of, b.process_of);
  EXPECT_EQ(a.experts, b.experts);
  EXPECT_EQ(a.slices, b.slices);
  EXPECT_EQ(a.memory, b.memory);
}

TEST(Timeline, BothFormsReadBackWhole) {
  const Timeline t = with_everything();
  expect_equal(from_chrome_trace(parse_json(to_chrome_trace(t), "trace"), "trace"), t);
  expect_equal(from_binary(to_binary(t), "file"), t);
}

TEST(Timeline, ABinaryFileThatWasCutOrChangedIsRefusedOrReadButNeverBelieved) {
  const std::string good = to_binary(with_everything());
  int refused = 0;
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_THROW((void)from_binary(good.substr(0, length), "file"), InputError) << length;
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int flip : {1, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      try {
        const Timeline t = from_binary(bad, "file");
        for (const Slice& s : t.slices) {
          EXPECT_LT(static_cast<std::size_t>(s.name), t.names.size());
          EXPECT_LT(static_cast<std::size_t>(s.segment), t.segments.size());
        }
      } catch (const InputError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_THROW((void)from_binary(good + "x", "file"), InputError);
}

TEST(Timeline, WhatABinaryFileClaimsToHoldMustFitInIt) {
  std::string text = to_binary(with_everything());
  const std::size_t at = text.find("[0,0,1]");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 7, "[0,0,9]");  // slices
  EXPECT_THROW((void)from_binary(text, "file"), InputError);
}

// A group that has no tokens is none; those behind it move up.
TEST(Timeline, GroupsWithoutTokensAreLeftOut) {
  ExpertCounts e;
  e.groups = {{0}, {1}, {2}};
  e.of = {
      {2, 5, 0, Time{9}, Time{10}, {1}}, {2, 5, 1, Time{3}, Time{4}, {2}}, {0, 1, 0, Time{5}, Time{6}, {3}}};
  e.tidy();
  EXPECT_EQ(e.groups, (std::vector<std::vector<std::int64_t>>{{0}, {2}}));
  const std::vector<ExpertTokens> expected{
      {0, 1, 0, Time{5}, Time{6}, {3}}, {1, 5, 1, Time{3}, Time{4}, {2}}, {1, 5, 0, Time{9}, Time{10}, {1}}};
  EXPECT_EQ(e.of, expected);
}

TEST(Timeline, TokensOfExpertsThatCannotBeAreAnsweredWithAPointer) {
  const Json good = parse_json(to_chrome_trace(with_everything()), "trace");
  ASSERT_NO_THROW((void)from_chrome_trace(good, "trace"));
  const auto expect = [&](const char* pointer, const Json& value, const char* where, const char* why) {
    Json trace = good;
    trace[Json::json_pointer(std::string("/otherData/experts") + pointer)] = value;
    try {
      (void)from_chrome_trace(trace, "trace");
      ADD_FAILURE() << pointer << " = " << value << " was read";
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(where), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
  };
  expect("", 3, "/otherData/experts", "is not an object");
  expect("/groups", 3, "/otherData/experts/groups", "is not a list");
  expect("/groups/1", Json::array(), "/otherData/experts/groups/1", "has no ranks");
  expect("/groups/1/0", 4, "trace", "has experts of rank 4");  // of a plan of 4 ranks
  expect("/tokens/0", {0, 7, 0, 5, 9}, "/otherData/experts/tokens/0", "is too short");
  expect("/tokens/0/0", 2, "/otherData/experts/tokens/0/0", "2 is no group");
  expect("/tokens/0/1", 1LL << 31, "/otherData/experts/tokens/0/1", "is too large");
  expect("/tokens/0/4", 4, "/otherData/experts/tokens/0/4", "before the start");  // which is 5
  expect("/tokens/0/5", -1, "/otherData/experts/tokens/0/5", "");
  expect("/tokens/0/5", 10'000'000'000'001, "/otherData/experts/tokens/0/5", "is too large");
  expect("/left_out", -1, "/otherData/experts/left_out", "");
  // 31 * 131,071 numbers are more than 4,000,000.
  Json row = Json::array({0, 7, 0, 5, 9});
  for (int i = 0; i < (1 << 17) - 6; ++i) row.push_back(1);
  expect("/tokens", Json(31, row), "/otherData/experts/tokens/30", "more numbers of tokens");
  expect("/groups/0", Json(1 << 16, 1), "/otherData/experts/tokens/0", "a multiple of the 65536 ranks");
  expect("/tokens/0", {0, 7, 0, 5, 9, 1, 2, 3}, "/otherData/experts/tokens/0", "a multiple of the 2 ranks");
}

TEST(Timeline, ATraceWithoutOurFieldsIsAnsweredWithAPointer) {
  try {
    from_chrome_trace(
        parse_json(R"({"traceEvents": [{"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": 1, "dur": 1}]})",
                   "t.json"),
        "t.json");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "t.json: /traceEvents/0: the field \"args\" is missing");
  }
}

}  // namespace
}  // namespace orrery
