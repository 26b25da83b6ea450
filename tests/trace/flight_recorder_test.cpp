// SPDX-License-Identifier: Apache-2.0
#include "trace/flight_recorder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "tests/folder.h"
#include "trace/pickle.h"

namespace orrery::trace {
namespace {

RankDump dump(std::int64_t rank, const std::vector<Call>& calls, const std::vector<Call>& transfers = {}) {
  RankDump d;
  d.file = "rank_" + std::to_string(rank);
  d.rank = rank;
  d.groups = {{"0", "default_pg", {0, 1, 2, 3}},
              {"1", "tp", rank < 2 ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{2, 3}}};
  d.calls = calls;
  d.transfers = transfers;
  return d;
}
Call call(const char* group, std::int64_t sequence, CallState state, const char* name = "all_reduce",
          const char* what = "[[8]]") {
  return {group, sequence, name, what, state, 1000 + sequence};
}
using enum CallState;
using Ranks = std::vector<std::int64_t>;

// Rank 3 stands somewhere outside: rank 2 waits for it in their group, and the others for rank 2 in the
// whole.
TEST(FlightRecorder, TheRankThatWaitsNowhereIsNamed) {
  const Hang h = find_hang({dump(0, {call("1", 1, kCompleted), call("0", 7, kStarted)}),
                            dump(1, {call("1", 1, kCompleted), call("0", 7, kStarted)}),
                            dump(2, {call("1", 5, kScheduled)}), dump(3, {call("1", 4, kCompleted)})});
  ASSERT_EQ(h.groups.size(), 2U);
  EXPECT_EQ(h.groups[0].group.description, "tp");  // called first
  EXPECT_EQ(h.groups[0].sequence, 5);
  EXPECT_EQ(h.groups[0].missing, Ranks{3});
  EXPECT_EQ(h.groups[0].waiting, Ranks{2});
  EXPECT_TRUE(h.groups[0].begun.empty());
  EXPECT_EQ(h.groups[1].sequence, 7);
  EXPECT_EQ(h.groups[1].missing, (Ranks{2, 3}));
  EXPECT_EQ(h.groups[1].begun, (Ranks{0, 1}));
  EXPECT_EQ(h.look_at, Ranks{3});
}

TEST(FlightRecorder, WhatHasCompletedIsNoHang) {
  const auto done = [](std::int64_t r) {
    return dump(r, {call("0", 1, kCompleted), call("0", 2, kCompleted)});
  };
  EXPECT_TRUE(find_hang({done(0), done(1), done(2), done(3)}).groups.empty());
  // Calls complete in order: one that a later one follows has completed, whatever its state says.
  const auto late = [](std::int64_t r) {
    return dump(r, {call("0", 1, kScheduled), call("0", 2, kCompleted)});
  };
  EXPECT_TRUE(find_hang({late(0), late(1), late(2), late(3)}).groups.empty());
}

// Nobody is missing: the network or a device does not finish it.
TEST(FlightRecorder, WhatAllHaveCalledHasNobodyToLookAt) {
  const auto in = [](std::int64_t r) { return dump(r, {call("0", 2, kStarted)}); };
  const Hang h = find_hang({in(0), in(1), in(2), in(3)});
  ASSERT_EQ(h.groups.size(), 1U);
  EXPECT_TRUE(h.groups[0].missing.empty());
  EXPECT_EQ(h.groups[0].begun.size(), 4U);
  EXPECT_TRUE(h.look_at.empty());
  EXPECT_TRUE(h.circle.empty());
}

// Rank 2 waits for rank 1 in a receive, and its replica 3 for it: look at rank 1, which waits nowhere.
TEST(FlightRecorder, SendsAndReceivesWaitToo) {
  const Hang h = find_hang({dump(0, {}), dump(1, {}), dump(2, {}, {call("0", 0, kScheduled, "recv 2<-1")}),
                            dump(3, {call("1", 4, kStarted)})});
  ASSERT_EQ(h.transfers.size(), 1U);
  EXPECT_EQ(h.transfers[0].rank, 2);
  EXPECT_EQ(h.transfers[0].peer, 1);
  EXPECT_EQ(h.look_at, Ranks{1});
  // Where both ranks have called it nobody is waited for.
  const Hang both = find_hang({dump(0, {}, {call("0", 0, kScheduled, "send 0->1")}),
                               dump(1, {}, {call("0", 0, kScheduled, "recv 1<-0")})});
  EXPECT_EQ(both.transfers.size(), 2U);
  EXPECT_TRUE(both.look_at.empty());
  EXPECT_TRUE(both.circle.empty());
  // Those of a batch that has completed are not completed one by one.
  const Hang batch = find_hang(
      {dump(0, {}, {call("0", 0, kScheduled, "send 0->1"), call("0", 0, kCompleted, "coalesced")})});
  EXPECT_TRUE(batch.transfers.empty());
}

TEST(FlightRecorder, ARankThatCalledSomethingElseIsNamed) {
  const Hang h =
      find_hang({dump(0, {call("0", 2, kStarted)}), dump(1, {call("0", 2, kStarted)}),
                 dump(2, {call("0", 2, kStarted, "all_gather")}), dump(3, {call("0", 2, kStarted)})});
  ASSERT_EQ(h.groups.size(), 1U);
  EXPECT_EQ(h.groups[0].name, "all_reduce");
  ASSERT_EQ(h.groups[0].others.size(), 1U);
  EXPECT_EQ(h.groups[0].others[0].first, 2);
  EXPECT_EQ(h.groups[0].waiting, (Ranks{0, 1, 3}));
  EXPECT_EQ(h.groups[0].begun, (Ranks{0, 1, 3}));
  EXPECT_EQ(h.look_at, Ranks{2});
  // Of two that disagree neither is right.
  const Hang two =
      find_hang({dump(0, {call("1", 2, kStarted)}), dump(1, {call("1", 2, kStarted, "all_gather")})});
  EXPECT_EQ(two.groups[0].others.size(), 2U);
  EXPECT_EQ(two.look_at, (Ranks{0, 1}));
}

// An uneven exchange has other sizes on each rank; a sum has not.
TEST(FlightRecorder, SizesTellOnlyWhereTheyMustBeEqual) {
  const auto in = [](std::int64_t r, const char* name) {
    const std::string what = "[[" + std::to_string(100 + r) + "]]";
    return dump(r, {call("0", 2, kStarted, name, what.c_str())});
  };
  const Hang uneven = find_hang({in(0, "all_to_all"), in(1, "all_to_all"), in(2, "all_to_all"), dump(3, {})});
  EXPECT_TRUE(uneven.groups[0].others.empty());
  EXPECT_EQ(uneven.look_at, Ranks{3});
  const Hang sum = find_hang({in(0, "all_reduce"), in(1, "all_reduce"), in(2, "all_reduce"), dump(3, {})});
  EXPECT_EQ(sum.groups[0].others.size(), 3U);
}

// The recorder keeps the last calls alone.
TEST(FlightRecorder, RanksWhoseCallsAreLostAreNotAccused) {
  RankDump beyond = dump(1, {call("0", 9, kCompleted)}), lost = dump(2, {});
  const Hang h =
      find_hang({dump(0, {call("0", 2, kStarted)}), beyond, lost, dump(3, {call("0", 2, kStarted)})});
  ASSERT_EQ(h.groups.size(), 1U);
  EXPECT_EQ(h.groups[0].missing, Ranks{2});  // its recorder has lost nothing, and has no such call
  lost.whole = false;
  const Hang unsure =
      find_hang({dump(0, {call("0", 2, kStarted)}), beyond, lost, dump(3, {call("0", 2, kStarted)})});
  EXPECT_TRUE(unsure.groups[0].missing.empty());
  EXPECT_EQ(unsure.groups[0].lost, Ranks{2});
  // The group's status says it.
  lost.status["0"] = {.called = 1, .completed = 1};
  const Hang missing =
      find_hang({dump(0, {call("0", 2, kStarted)}), beyond, lost, dump(3, {call("0", 2, kStarted)})});
  EXPECT_EQ(missing.look_at, Ranks{2});
  lost.status["0"] = {.called = 2, .completed = 1};
  const Hang called =
      find_hang({dump(0, {call("0", 2, kStarted)}), beyond, lost, dump(3, {call("0", 2, kStarted)})});
  EXPECT_EQ(called.groups[0].waiting, (Ranks{0, 2, 3}));
}

TEST(FlightRecorder, RanksThatWaitForEachOtherAndRanksThatDiedAreTold) {
  // 0 waits in "tp" for 1, and 1 in the whole for all others, which wait there too.
  const Hang circle = find_hang({dump(0, {call("1", 3, kStarted)}), dump(1, {call("0", 4, kStarted)}),
                                 dump(2, {call("0", 4, kStarted)}), dump(3, {call("0", 4, kStarted)})});
  EXPECT_TRUE(circle.look_at.empty());
  EXPECT_EQ(circle.circle, (Ranks{0, 1}));
  const Hang dead = find_hang({dump(0, {call("0", 2, kStarted)}), dump(1, {call("0", 2, kStarted)}),
                               dump(2, {call("0", 2, kStarted)})});
  EXPECT_EQ(dead.groups[0].no_dump, Ranks{3});
  EXPECT_EQ(dead.look_at, Ranks{3});
}

TEST(FlightRecorder, GroupsWithoutAConfigurationAreNotForgotten) {
  const Hang h = find_hang({dump(0, {call("9", 2, kScheduled)})});
  ASSERT_EQ(h.groups.size(), 1U);
  EXPECT_FALSE(h.groups[0].configured);
}

constexpr const char* kDump = R"({"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg",
  "ranks": "[0, 1]"}}, "pg_status": {"4": {"last_enqueued_collective": "9", "last_completed_collective": 2}},
  "entries": [
  {"record_id": 0, "pg_id": 4, "process_group": ["0", "default_pg"], "collective_seq_id": 3, "p2p_seq_id": 0,
   "profiling_name": "nccl:all_reduce",
   "input_sizes": [[1024]], "input_dtypes": ["Float"], "state": "scheduled", "time_created_ns": 1700000000000000000,
   "is_p2p": false},
  {"process_group": ["0", "default_pg"], "collective_seq_id": 3, "p2p_seq_id": 1, "profiling_name": "nccl:send 0->1",
   "input_sizes": [[4]], "input_dtypes": ["Float"], "state": "scheduled", "time_created_ns": 1700000000000000001,
   "is_p2p": true}]})";

TEST(FlightRecorder, DumpsAreRead) {
  const Folder folder;
  const fs::path file = folder.path / "nccl_trace_rank_12.json";
  std::ofstream(file) << kDump;
  const RankDump d = load_dump(file);
  EXPECT_EQ(d.rank, 12);
  ASSERT_EQ(d.groups.size(), 1U);
  EXPECT_EQ(d.groups[0].ranks, (std::vector<std::int64_t>{0, 1}));
  ASSERT_EQ(d.calls.size(), 1U);
  ASSERT_EQ(d.transfers.size(), 1U);
  EXPECT_EQ(d.transfers[0].name, "send 0->1");
  EXPECT_TRUE(d.whole);
  EXPECT_EQ(d.status.at("0").called, 9);
  EXPECT_EQ(d.status.at("0").completed, 2);
  EXPECT_EQ(d.calls[0].name, "all_reduce");
  EXPECT_EQ(d.calls[0].sequence, 3);
  EXPECT_EQ(d.calls[0].what, "[[1024]] [\"Float\"]");
  EXPECT_EQ(d.calls[0].state, kScheduled);
}

TEST(FlightRecorder, SlipsAreNamed) {
  const Folder folder;
  const auto message = [&](const char* key, const Json& value, const char* name = "rank_1") -> std::string {
    Json json = parse_json(kDump, "dump");
    Json& entry = json["entries"][0];
    if (json.contains(key))
      json[key] = value;
    else
      entry[key] = value;
    const fs::path file = folder.path / name;
    std::ofstream(file) << json.dump();
    try {
      (void)load_dump(file);
    } catch (const InputError& e) {
      return e.what();
    }
    return {};
  };
  EXPECT_EQ(message("collective_seq_id", 4), "");
  EXPECT_NE(message("state", "sheduled").find("/entries/0/state"), std::string::npos);
  EXPECT_NE(message("collective_seq_id", -1).find("/entries/0/collective_seq_id"), std::string::npos);
  EXPECT_NE(message("process_group", "0").find("/entries/0/process_group"), std::string::npos);
  EXPECT_NE(message("version", "3.0").find("/version"), std::string::npos);
  EXPECT_NE(message("pg_config", Json{{"0", {{"name", "0"}, {"ranks", "some"}}}}).find("/pg_config/0/ranks"),
            std::string::npos);
  EXPECT_NE(message("collective_seq_id", 4, "dump.json").find("number of its rank"), std::string::npos);
}

// What Python 3.11 writes of {"a": [1, -2, 3.5, None, True, "x"], "t": (7, "x")} by protocol 2.
TEST(Pickle, PlainValuesAreRead) {
  const std::string bytes(
      "\x80\x02}q\x00(X\x01\x00\x00\x00"
      "aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG@\x0c\x00\x00\x00\x00\x00\x00N\x88X\x01\x00"
      "\x00\x00xq\x03"
      "eX\x01\x00\x00\x00tq\x04K\x07h\x03\x86q\x05u.",
      62);
  ASSERT_TRUE(is_pickle(bytes));
  const Json v = from_pickle(bytes, "p");
  EXPECT_EQ(v, Json::parse(R"({"a": [1, -2, 3.5, null, true, "x"], "t": [7, "x"]})"));
  // Cut anywhere, it is refused.
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW((void)from_pickle(bytes.substr(0, size), "p"), InputError) << size;
}

// A list that stands twice is written once: [[1], the same].
TEST(Pickle, SharedValuesAreReadWhereverTheyStand) {
  const std::string twice(
      "\x80\x02]q\x00(]q\x01K\x01"
      "ah\x01"
      "e.",
      16);
  EXPECT_EQ(from_pickle(twice, "p"), Json::parse("[[1], [1]]"));
  // A list within itself has no end.
  const std::string itself(
      "\x80\x02]q\x00h\x00"
      "a.",
      9);
  EXPECT_THROW((void)from_pickle(itself, "p"), InputError);
  // A million lists, each within the one before.
  EXPECT_THROW(
      (void)from_pickle("\x80\x02" + std::string(1'000'000, ']') + std::string(999'999, 'a') + ".", "p"),
      InputError);
  // Lists of ten lists, one within another, that would be 10^12 values.
  std::string bomb("\x80\x02]", 3);
  for (int i = 0; i < 12; ++i) {
    bomb += std::string("q") + static_cast<char>(i) + "](";
    for (int k = 0; k < 10; ++k) bomb += std::string("h") + static_cast<char>(i);
    bomb += "e";
  }
  EXPECT_THROW((void)from_pickle(bomb + ".", "p"), InputError);
  // One key of 100 kB that 4,000 items share.
  std::string keys("\x80\x02}(X\xa0\x86\x01\x00", 9);
  keys += std::string(100'000, 'k') + std::string("q\x00N", 3);
  for (int i = 0; i < 4000; ++i) keys += std::string("h\x00N", 3);
  EXPECT_THROW((void)from_pickle(keys + "u.", "p"), InputError);
}

TEST(Pickle, ObjectsAreRefused) {
  // cos\nsystem\n(S'true'\ntR. : what runs a command where a pickle is loaded by Python.
  EXPECT_THROW((void)from_pickle("\x80\x02"
                                 "cos\nsystem\n(S'true'\ntR.",
                                 "p"),
               InputError);
  try {
    (void)from_pickle(
        "\x80\x02"
        "cos\nsystem\n.",
        "p");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("byte 2"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace orrery::trace
