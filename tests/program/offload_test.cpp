// SPDX-License-Identifier: Apache-2.0
//
// What lies in the host's memory: bytes on both sides, copies and their payloads, counted by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "core/error.h"
#include "core/model.h"
#include "program/check.h"
#include "program/program.h"
#include "program/state/units.h"
#include "tests/program/small_model.h"

namespace orrery::program {
namespace {

// 64 (2 * 64 + 2 * 32) + 3 * 64 * 128 + 2 * 64 a layer; embedding and head of 256 * 64, and a norm.
constexpr std::int64_t kTrained = 2 * (12288 + 24576 + 128) + 2 * 16384 + 64;

Training offload_training(Precision precision = Precision::kMixed) {
  return {.global_batch = 4,
          .sequence = 8,
          .precision = precision,
          .math = precision == Precision::kFp32 ? Math::kFp32 : Math::kBf16};
}

Program offload_program(const Plan& p, const Training& t = offload_training(), const Stack& s = Stack{}) {
  const Model m = small_llama();
  check_plan(m, p, t, {"plan", ""});
  Program out = compile(m, p, t, s);
  EXPECT_EQ(check(out), std::vector<std::string>());
  return out;
}

Plan offloading(Offload offload, std::int64_t zero = 0, std::int64_t dp = 1) {
  return {.dp = dp, .zero = zero, .micro_batches = 4 / dp, .offload = offload};
}

// Bytes of static buffers of a class in a memory.
std::int64_t static_bytes_in(const Program& p, BufferClass cls, Space space) {
  std::int64_t sum = 0;
  for (const Buffer& b : p.classes.front().buffers)
    sum += b.life == Life::kStatic && b.cls == cls && b.space == space ? b.bytes.value * b.instances : 0;
  return sum;
}

// Payloads of a stream over a whole step.
std::int64_t moved(const Program& p, StreamIndex stream) {
  std::int64_t sum = 0;
  const RankClass& c = p.classes.front();
  for (const Step& step : c.steps) {
    for (const Op& op : c.segments[static_cast<std::size_t>(step.segment)].ops)
      sum += op.stream == stream ? op.payload.value : 0;
  }
  return sum;
}

// Mixed precision has 12 bytes a parameter of master and moments. Gradients of 2 bytes go to the host and as
// many come back; besides them the host holds both.
TEST(Offload, OptimizerStateMovesToTheHost) {
  const Program none = offload_program(offloading({})), all = offload_program(offloading({.optimizer = 1}));
  using enum BufferClass;
  EXPECT_EQ(static_bytes_in(none, kOptimizer, Space::kDevice), 12 * kTrained);
  EXPECT_EQ(static_bytes_in(all, kOptimizer, Space::kDevice), 0);
  EXPECT_EQ(static_bytes_in(all, kOptimizer, Space::kHost), 12 * kTrained);
  EXPECT_EQ(static_bytes_in(all, kGradient, Space::kHost), 2 * kTrained);
  EXPECT_EQ(static_bytes_in(all, kParameter, Space::kHost), 2 * kTrained);
  EXPECT_EQ(static_bytes_in(all, kParameter, Space::kDevice), 2 * kTrained);
  EXPECT_EQ(none.classes[0].logical_peak.value - all.classes[0].logical_peak.value, 12 * kTrained);
  EXPECT_EQ(none.classes[0].host_bytes.value, 0);
  // Each buffer is a multiple of 256 bytes, and the norm has one.
  const auto units = std::ssize(all.classes[0].units);
  EXPECT_GE(all.classes[0].host_bytes.value, 16 * kTrained + 16);
  EXPECT_LT(all.classes[0].host_bytes.value, 16 * kTrained + 256 * (3 * units + 1));
  EXPECT_EQ(moved(all, kToHost), 2 * kTrained);
  EXPECT_EQ(moved(all, kFromHost), 2 * kTrained);
  EXPECT_EQ(moved(all, kHostStream), 16);  // the norm
  EXPECT_EQ(moved(none, kToHost) + moved(none, kFromHost), 0);
}

// ZeRO-1 over two ranks: the host of each has half.
TEST(Offload, RanksOffloadTheirShards) {
  const Program p = offload_program(offloading({.optimizer = 1}, 1, 2));
  std::int64_t shards = 0;
  for (const Unit& u : p.classes[0].units) shards += u.shard;
  EXPECT_EQ(shards, kTrained / 2);
  EXPECT_EQ(moved(p, kToHost), 2 * shards);
  EXPECT_EQ(static_bytes_in(p, BufferClass::kOptimizer, Space::kHost), 12 * shards);
}

// Whole units go, in the order of their updates: of four of 100, 50, 50 and 200 elements.
TEST(Offload, SharesAreAsNearAsUnitsCome) {
  const auto on_host = [](double share) {
    std::vector<UnitSize> units{{.elements = 100}, {.elements = 50}, {.elements = 50}, {.elements = 200}};
    units.insert(units.begin() + 1, UnitSize{.elements = 1000, .kept = Kept::kFrozen});
    offload_units(share, units);
    EXPECT_FALSE(units[1].on_host);
    std::int64_t sum = 0;
    for (const UnitSize& u : units) sum += u.on_host ? u.elements : 0;
    return sum;
  };
  EXPECT_EQ(on_host(0), 0);
  EXPECT_EQ(on_host(0.1), 0);      // 40 of 400: nearer to none than to 100
  EXPECT_EQ(on_host(0.125), 100);  // 50: as near to both
  EXPECT_EQ(on_host(0.25), 100);
  EXPECT_EQ(on_host(0.4), 150);  // 160
  EXPECT_EQ(on_host(0.5), 200);
  EXPECT_EQ(on_host(0.7), 200);   // 280
  EXPECT_EQ(on_host(0.75), 400);  // 300: as near to both
  EXPECT_EQ(on_host(1), 400);
}

// Master copies that stay on the device too: 4 bytes there, and 4 come back in place of 2.
TEST(Offload, AStackMayKeepMasterCopiesOnTheDevice) {
  Stack keeps;
  keeps.keeps_offloaded_master = true;
  const Program p = offload_program(offloading({.optimizer = 1}), offload_training(), keeps);
  EXPECT_EQ(static_bytes_in(p, BufferClass::kOptimizer, Space::kDevice), 4 * kTrained);
  EXPECT_EQ(moved(p, kToHost), 2 * kTrained);
  EXPECT_EQ(moved(p, kFromHost), 4 * kTrained);
  // Without master copies there is nothing to keep.
  const Program single =
      offload_program(offloading({.optimizer = 1}), offload_training(Precision::kFp32), keeps);
  EXPECT_EQ(static_bytes_in(single, BufferClass::kOptimizer, Space::kDevice), 0);
}

// One by one: no update before the last gradient is there, no parameter back before the last update.
TEST(Offload, WithoutOverlapOneThingFollowsTheOther) {
  Stack buckets;
  buckets.bucket = Bytes{20000};
  for (const bool overlap : {true, false}) {
    const Program p =
        offload_program(offloading({.optimizer = 1, .overlap = overlap}), offload_training(), buckets);
    const RankClass& c = p.classes.front();
    const auto units = std::ssize(c.units);
    ASSERT_GT(units, 3);
    std::map<StreamIndex, const Op*> first;
    for (const Op& op : c.segments.back().ops) {
      if (op.is<ops::Optimizer>() || op.is<ops::Copy>()) first.try_emplace(op.stream, &op);
    }
    // The host's first op fetches the norm, which waits for no copy.
    const Op* update = nullptr;
    for (const Op& op : c.segments.back().ops) {
      if (update == nullptr && op.is<ops::Optimizer>()) update = &op;
    }
    EXPECT_EQ(update->stream, kHostStream);
    EXPECT_EQ(update->after[kToHost], overlap ? 1 : units);
    EXPECT_EQ(first.at(kFromHost)->after[kHostStream], overlap ? 2 : units + 1);
  }
}

// ZeRO-3 with shards in the host's memory: each gather fetches its shard before. Two places of the largest
// shard are all that the device has of them.
TEST(Offload, ParametersAreFetchedForEachGather) {
  const Program p = offload_program(offloading({.optimizer = 1, .parameters = true}, 3, 2));
  std::int64_t shards = 0, widest = 0;
  for (const Unit& u : p.classes[0].units) {
    shards += u.shard;
    widest = std::max(widest, u.shard);
  }
  using enum BufferClass;
  EXPECT_EQ(static_bytes_in(p, kParameter, Space::kDevice), 0);
  EXPECT_EQ(static_bytes_in(p, kParameter, Space::kHost), 2 * shards);
  const Program plain = offload_program(offloading({.optimizer = 1}, 3, 2));
  EXPECT_EQ(static_bytes_in(p, kCommunication, Space::kDevice) -
                static_bytes_in(plain, kCommunication, Space::kDevice),
            2 * 2 * widest);
  // Copies and gathers alternate, and nothing comes back at the end of a step.
  std::int64_t gathered = 0, fetched = 0;
  const RankClass& c = p.classes.front();
  for (const Step& step : c.steps) {
    for (const Op& op : c.segments[static_cast<std::size_t>(step.segment)].ops) {
      const auto* collective = op.as<ops::Collective>();
      if (collective != nullptr && collective->collective == CollectiveKind::kAllGather)
        gathered += op.payload.value;
      if (op.stream == kFromHost) fetched += op.payload.value;
      EXPECT_FALSE(op.stream == kFromHost &&
                   c.segments[static_cast<std::size_t>(step.segment)].kind == SegmentKind::kOptimizer);
    }
  }
  EXPECT_GT(fetched, 0);
  EXPECT_EQ(gathered, 2 * fetched);  // each rank fetches half
}

// A layer keeps, of 8 tokens in 2 bytes: its norms' inputs and outputs (4 * 64), queries, keys and values
// (128), attention's output (64), both halves of the MLP (256) and their product (128), and 4 bytes of each
// head's log-sum. What a layer ends in is the next one's input; the head's stays.
TEST(Offload, ActivationsWaitInTheHostsMemory) {
  constexpr std::int64_t kLayer = 8 * (2 * (4 * 64 + 128 + 64 + 256 + 128) + 4 * 4);
  const auto net = [&](std::int64_t layers) {
    const Program p = offload_program(offloading({.activation_layers = layers}));
    EXPECT_EQ(moved(p, kToHost), 4 * std::min<std::int64_t>(layers, 2) * kLayer) << layers;
    EXPECT_EQ(moved(p, kFromHost), 4 * std::min<std::int64_t>(layers, 2) * kLayer) << layers;
    return p.classes[0].segments[0].net.value;
  };
  Plan without = offloading({});
  without.offload.reset();
  const std::int64_t kept = offload_program(without).classes[0].segments[0].net.value;
  EXPECT_EQ(net(1), kept - kLayer);
  EXPECT_EQ(net(2), kept - 2 * kLayer);
  EXPECT_EQ(kept - net(9), 2 * kLayer);  // there are no more
}

// Layers that are recomputed keep their inputs alone.
TEST(Offload, OfRecomputedLayersInputsWait) {
  Plan p = offloading({.activation_layers = 2});
  p.recompute = Recompute::kFull;
  EXPECT_EQ(moved(offload_program(p), kToHost), 4 * 2 * (8 * 2 * 64));
}

// While a layer's backward runs, what the layer before it needs is on its way.
TEST(Offload, FetchesComeALayerAhead) {
  const Program p = offload_program(offloading({.activation_layers = 2}));
  const RankClass& c = p.classes.front();
  const Segment& backward = c.segments.back().kind == SegmentKind::kOptimizer
                                ? c.segments[c.segments.size() - 2]
                                : c.segments.back();
  const auto index = [&](auto test) {
    return std::find_if(backward.ops.begin(), backward.ops.end(), test) - backward.ops.begin();
  };
  const auto fetch = index([](const Op& op) { return op.name.starts_with("layer0/") && op.is<ops::Copy>(); });
  const auto begins = index([](const Op& op) { return op.layer == 1 && !op.is<ops::Copy>(); });
  const auto uses = index([](const Op& op) { return op.layer == 0 && !op.is<ops::Copy>(); });
  EXPECT_LT(fetch, begins);
  EXPECT_LT(begins, uses);
}

// What a copy does not wait for is noticed.
TEST(Offload, ACopyThatDoesNotWaitIsARace) {
  Program p = offload_program(offloading({.optimizer = 1}));
  for (Segment& s : p.classes[0].segments) {
    for (Op& op : s.ops) {
      if (op.stream == kToHost) op.after.fill(0);
    }
  }
  std::erase_if(p.classes[0].waits, [](const ExternalWait&) { return true; });
  for (Step& step : p.classes[0].steps) step.first_wait = step.waits = 0;
  const std::vector<std::string> problems = check(p);
  ASSERT_FALSE(problems.empty());
  EXPECT_NE(problems.front().find("/to-host of optimizer"), std::string::npos) << problems.front();
}

// And a kernel that would read the host's memory.
TEST(Offload, TheDeviceTouchesItsOwnMemoryAlone) {
  Program p = offload_program(offloading({.optimizer = 1}));
  for (Op& op : p.classes[0].segments.back().ops) {
    if (op.is<ops::Optimizer>()) op.stream = kCompute;
  }
  const std::vector<std::string> problems = check(p);
  ASSERT_FALSE(problems.empty());
  EXPECT_NE(problems.front().find("is in the host's memory"), std::string::npos) << problems.front();
}

// On drives lie master copies and moments. The host's memory holds two places for the state of the largest
// unit, through which all of it comes and goes once a step.
TEST(Offload, StateOnDrivesPassesThroughTwoPlaces) {
  Stack buckets;
  buckets.bucket = Bytes{20000};
  const Plan plan = offloading({.optimizer = 1, .nvme = OnDrives::kOptimizer});
  const Program p = offload_program(plan, offload_training(), buckets);
  const RankClass& c = p.classes.front();
  std::int64_t widest = 0;
  for (const Unit& u : c.units) widest = std::max(widest, u.shard);
  ASSERT_GT(std::ssize(c.units), 3);
  using enum BufferClass;
  EXPECT_EQ(static_bytes_in(p, kOptimizer, Space::kDrives), 12 * kTrained);
  EXPECT_EQ(static_bytes_in(p, kOptimizer, Space::kHost), 2 * 12 * widest);
  EXPECT_EQ(static_bytes_in(p, kParameter, Space::kHost), 2 * kTrained);
  EXPECT_EQ(static_bytes_in(p, kParameter, Space::kDrives), 0);
  EXPECT_GE(c.drive_bytes.value, 12 * kTrained);
  EXPECT_LT(c.drive_bytes.value, 12 * kTrained + 256 * std::ssize(c.units));
  EXPECT_EQ(moved(p, kFromDrives), 12 * kTrained);
  EXPECT_EQ(moved(p, kToDrives), 12 * kTrained);
  // What goes between the device and its host is what goes without drives.
  const Program in_memory = offload_program(offloading({.optimizer = 1}), offload_training(), buckets);
  EXPECT_EQ(in_memory.classes[0].drive_bytes.value, 0);
  for (const StreamIndex s : {kToHost, kFromHost}) EXPECT_EQ(moved(p, s), moved(in_memory, s));
}

// With both places the third unit is read once the first is written; with one, the second.
TEST(Offload, UnitsAreReadWhileOthersAreUpdated) {
  Stack buckets;
  buckets.bucket = Bytes{20000};
  for (const bool overlap : {true, false}) {
    const Program p =
        offload_program(offloading({.optimizer = 1, .nvme = OnDrives::kOptimizer, .overlap = overlap}),
                        offload_training(), buckets);
    std::vector<const Op*> reads;
    for (const Op& op : p.classes[0].segments.back().ops) {
      if (op.stream == kFromDrives) reads.push_back(&op);
    }
    ASSERT_GT(reads.size(), 3U);
    for (std::size_t k = 1; k < 4; ++k) {
      const std::int32_t written = static_cast<std::int32_t>(k) - (overlap ? 1 : 0);
      EXPECT_EQ(reads[k]->after[kToDrives], written > 0 && (!overlap || k > 1) ? written : 0) << k;
    }
  }
}

// ZeRO-3 with all on drives: shards are read before each gather, and written after their updates, which with
// a master copy need not read them.
TEST(Offload, ParametersOnDrivesPassThroughTheHost) {
  for (const Precision precision : {Precision::kMixed, Precision::kNoMaster}) {
    const BytesPerParameter bytes = bytes_per_parameter(precision);
    const Plan plan = offloading({.optimizer = 1, .parameters = true, .nvme = OnDrives::kAll}, 3, 2);
    const Program p = offload_program(plan, offload_training(precision));
    std::int64_t shards = 0, widest = 0;
    for (const Unit& u : p.classes[0].units) {
      shards += u.shard;
      widest = std::max(widest, u.shard);
    }
    using enum BufferClass;
    EXPECT_EQ(static_bytes_in(p, kParameter, Space::kDevice), 0);
    EXPECT_EQ(static_bytes_in(p, kParameter, Space::kHost), 2 * bytes.parameter * widest);
    EXPECT_EQ(static_bytes_in(p, kParameter, Space::kDrives), bytes.parameter * shards);
    EXPECT_EQ(moved(p, kToDrives), (bytes.parameter + bytes.optimizer()) * shards);
    const std::int64_t of_updates = (bytes.master > 0 ? 0 : bytes.parameter) + bytes.optimizer();
    EXPECT_EQ(moved(p, kFromDrives), moved(p, kFromHost) + of_updates * shards);
  }
}

// Without overlap there is one place for state, and nothing is read of a unit before all of the one before is
// written.
TEST(Offload, WithoutOverlapDrivesDoOneThingAtATime) {
  const Program p = offload_program(
      offloading({.optimizer = 1, .parameters = true, .nvme = OnDrives::kAll, .overlap = false}, 3, 2));
  std::int64_t widest = 0;
  for (const Unit& u : p.classes[0].units) widest = std::max(widest, u.shard);
  EXPECT_EQ(static_bytes_in(p, BufferClass::kOptimizer, Space::kHost), 12 * widest);
  std::int32_t read = 0;
  for (const Op& op : p.classes[0].segments.back().ops) {
    if (op.stream != kFromDrives) continue;
    EXPECT_EQ(op.after[kToDrives], 2 * read++) << op.name;  // state and shard
  }
  EXPECT_GT(read, 3);
}

// A copy that goes another way than it says is noticed.
TEST(Offload, CopiesGoTheirWay) {
  Program p = offload_program(offloading({.optimizer = 1, .nvme = OnDrives::kOptimizer}));
  for (Op& op : p.classes[0].segments.back().ops) {
    if (op.stream == kFromDrives) op.kind = ops::Copy{1, 1, ops::CopyWay::kFromHost};
  }
  const std::vector<std::string> problems = check(p);
  ASSERT_FALSE(problems.empty());
  EXPECT_NE(problems.front().find("is on drives, not in the host's memory"), std::string::npos)
      << problems.front();
}

TEST(Offload, WhatCannotBeIsRefused) {
  const auto problem = [](Plan p, Training t = offload_training()) -> std::string {
    try {
      check_plan(small_llama(), p, t, {"plan", ""});
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(problem(offloading({.optimizer = 1, .activation_layers = 2})), "");
  EXPECT_NE(problem(offloading({.overlap = false})).find("/offload/overlap"), std::string::npos);
  EXPECT_NE(problem(offloading({.optimizer = 1, .parameters = true}, 1, 2)).find("/offload/parameters"),
            std::string::npos);
  EXPECT_NE(problem(offloading({.parameters = true}, 3, 2)).find("/offload/parameters"), std::string::npos);
  EXPECT_NE(problem(offloading({.activation_layers = 1, .nvme = OnDrives::kOptimizer})).find("/offload/nvme"),
            std::string::npos);
  EXPECT_NE(problem(offloading({.optimizer = 1, .nvme = OnDrives::kAll}, 3, 2)).find("/offload/nvme"),
            std::string::npos);
  Plan split = offloading({.activation_layers = 1});
  split.pp = 2;
  split.schedule = Schedule::kZeroBubbleH1;
  EXPECT_NE(problem(split).find("/offload/activation_layers"), std::string::npos);
  Training lamb = offload_training();
  lamb.lamb = true;
  EXPECT_NE(problem(offloading({.optimizer = 0.5}), lamb).find("/offload/optimizer"), std::string::npos);
}

}  // namespace
}  // namespace orrery::program
