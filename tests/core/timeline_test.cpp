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
