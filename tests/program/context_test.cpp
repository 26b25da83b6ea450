// SPDX-License-Identifier: Apache-2.0
//
// What follows from ranks that share sequences: ops, collectives, what is kept, FLOPs; and plans that are
// none.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "program/program.h"

namespace orrery::program {
namespace {

using Names = std::vector<std::string>;

// Two layers of 4 query heads and 2 of keys and values, of 8 elements; 32 tokens.
constexpr std::int64_t kTokens = 32, kHidden = 32, kHeads = 4, kKeyHeads = 2, kHead = 8;
Model small_llama() {
  Model m = preset_model("llama-2-7b");
  m.layers = 2;
  m.hidden = kHidden;
  m.heads = kHeads;
  m.kv_heads = kKeyHeads;
  m.vocab = 96;
  m.ffn_hidden = 48;
  return m;
}
const Training kTraining{.global_batch = 2, .sequence = kTokens};

Program compiled(Plan p) {
  p.micro_batches = 2 / p.dp;
  check_plan(small_llama(), p, kTraining, Cursor{});
  return compile(small_llama(), p, kTraining, Stack{});
}

std::vector<Op> ops_of(const Program& p, SegmentKind kind, std::string_view prefix) {
  std::vector<Op> out;
  for (const Segment& s : p.classes[0].segments) {
    if (s.kind != kind || (kind == SegmentKind::kBackward && !s.last_micro_batch)) continue;
    for (const Op& op : s.ops) {
      if (op.name.starts_with(prefix)) out.push_back(op);
    }
  }
  return out;
}
Names names_of(const std::vector<Op>& ops, std::string_view prefix) {
  Names out;
  for (const Op& op : ops) out.push_back(op.name.substr(prefix.size()));
  return out;
}
const std::string kCore = "layer0/attn/core";

// Keys of a rank are 8 tokens of 2 * 2 heads of 8 elements, in 16 bits.
constexpr std::int64_t kOwn = kTokens / 4, kKeyBytes = 2 * kOwn * 2 * kKeyHeads * kHead;

TEST(Context, KeysGoAroundTheRing) {
  const Program p = compiled({.cp = 4});
  const auto forward = ops_of(p, SegmentKind::kForward, kCore);
  EXPECT_EQ(names_of(forward, kCore), (Names{"/pack", "/step0/shift", "/step0", "/step1/shift", "/step1",
                                             "/step2/shift", "/step2", "/step3"}));
  const auto backward = ops_of(p, SegmentKind::kBackward, kCore);
  EXPECT_EQ(names_of(backward, kCore),
            (Names{"/grad/step0/shift", "/grad/step0", "/grad/step1/shift", "/grad/step1/shift-dkv",
                   "/grad/step1", "/grad/step1/add-dkv", "/grad/step2/shift", "/grad/step2/shift-dkv",
                   "/grad/step2", "/grad/step2/add-dkv", "/grad/step3/shift-dkv", "/grad/step3",
                   "/grad/step3/add-dkv", "/grad/step4/shift-dkv", "/pack/grad"}));
  for (const auto* ops : {&forward, &backward}) {
    for (const Op& op : *ops) {
      if (!op.is<ops::Collective>()) continue;
      EXPECT_EQ(op.payload.value, kKeyBytes) << op.name;
      EXPECT_EQ(p.communication.groups[static_cast<std::size_t>(op.group)].name, "ring");
      EXPECT_EQ(p.communication.streams[op.stream].name, "cp");
    }
  }
}

TEST(Context, KeysAreGatheredAndGatheredAgain) {
  const Program p = compiled({.cp = 4, .cp_keys = ContextKeys::kAllGather});
  const auto forward = ops_of(p, SegmentKind::kForward, kCore);
  EXPECT_EQ(names_of(forward, kCore), (Names{"/pack", "/input/all-gather", ""}));
  EXPECT_EQ(forward[1].payload.value, 4 * kKeyBytes);
  EXPECT_EQ(names_of(ops_of(p, SegmentKind::kBackward, kCore), kCore),
            (Names{"/input/again/all-gather", "/grad", "/grad/reduce-scatter", "/pack/grad"}));
}

// Of a rank's 8 tokens, half of the heads goes to the other: as many bytes as before.
TEST(Context, HeadsAreExchangedForTokens) {
  const Program p = compiled({.cp = 2, .ulysses = 2});
  const auto forward = ops_of(p, SegmentKind::kForward, kCore);
  EXPECT_EQ(names_of(forward, kCore),
            (Names{"/pack", "/q/all-to-all", "/kv/all-to-all", "", "/out/all-to-all", "/unpack"}));
  EXPECT_EQ(forward[1].payload.value, 2 * 16 * kHeads * kHead);
  EXPECT_EQ(forward[2].payload.value, 2 * 16 * 2 * kKeyHeads * kHead);
  EXPECT_EQ(forward[4].payload.value, 2 * 16 * kHeads * kHead);
  EXPECT_EQ(p.communication.groups[static_cast<std::size_t>(forward[1].group)].name, "ulysses");
  const auto& core = std::get<ops::ContextAttention>(forward[3].kind);
  EXPECT_EQ(core.heads, kHeads / 2);
  EXPECT_EQ(core.own(), kTokens);
}

// All ways do a rank's share of the whole's FLOPs, 4 s^2 / 2 heads of 8 elements a sample and forward pass.
TEST(Context, FlopsAreShared) {
  const double whole = 4.0 * kTokens * kTokens / 2 * kHeads * kHead;
  for (const Plan& plan :
       {Plan{}, Plan{.cp = 4}, Plan{.cp = 4, .cp_keys = ContextKeys::kAllGather}, Plan{.cp = 2, .ulysses = 2},
        Plan{.cp = 4, .ulysses = 2}, Plan{.cp = 4, .ulysses = 2, .cp_keys = ContextKeys::kAllGather}}) {
    const Program p = compiled(plan);
    double forward = 0, backward = 0;
    for (const Op& op : ops_of(p, SegmentKind::kForward, kCore)) forward += op.flops;
    for (const Op& op : ops_of(p, SegmentKind::kBackward, kCore)) backward += op.flops;
    EXPECT_DOUBLE_EQ(forward, whole / static_cast<double>(plan.cp)) << short_name(plan);
    EXPECT_DOUBLE_EQ(backward, 2.5 * forward) << short_name(plan);
  }
}

// Of a layer's attention a rank keeps q, its own keys and values, and the output, in 16 bits, and a sum of
// exponentials of each head in 32: whatever the ring brings is not kept.
TEST(Context, ARankKeepsItsOwnKeys) {
  for (const Plan& plan : {Plan{.cp = 4}, Plan{.cp = 4, .cp_keys = ContextKeys::kAllGather}}) {
    const Program p = compiled(plan);
    std::int64_t kept = 0;
    for (const Buffer& b : p.classes[0].buffers) {
      if (b.life == Life::kSaved && b.name.starts_with(kCore)) kept += b.bytes.value;
    }
    EXPECT_EQ(kept, 2 * 2 * kOwn * kHeads * kHead + kKeyBytes + 4 * kOwn * kHeads) << short_name(plan);
  }
}

// All ranks that share sequences have copies of weights: gradients are summed over them and the replicas, and
// ZeRO's shards are of all of them.
TEST(Context, GradientsAreSummedOverTheRanks) {
  const Program p = compiled({.dp = 2, .cp = 2});
  EXPECT_EQ(p.mesh.size(p.communication.groups[static_cast<std::size_t>(p.communication.group("dp"))].axes),
            4);
  const Program sharded = compiled({.dp = 2, .cp = 2, .zero = 1, .shard_group = 1});
  EXPECT_EQ(sharded.mesh.size("shard"), 2);
  EXPECT_EQ(sharded.mesh.size("replica"), 2);
  EXPECT_EQ(sharded.mesh.members(sharded.mesh["cp"], 0), (std::vector<std::int64_t>{0, 1}));
  const Unit& u = sharded.classes[0].units.front();
  EXPECT_EQ(u.shard, (u.elements + 1) / 2);
}

TEST(Context, PlansThatAreNone) {
  const auto problem = [](Plan p, const Model& m = small_llama()) -> std::string {
    p.micro_batches = 2;
    try {
      check_plan(m, p, kTraining, Cursor{"plan.json", ""}.child("plan"));
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(problem({.cp = 4, .ulysses = 2}), "");
  EXPECT_NE(problem({.ulysses = 2}).find("/plan/ulysses: 2 does not divide cp 1"), std::string::npos);
  EXPECT_NE(problem({.cp = 4, .ulysses = 4}).find("/plan/ulysses: 4 does not divide the 2 key/value heads"),
            std::string::npos)
      << problem({.cp = 4, .ulysses = 4});
  EXPECT_NE(problem({.cp = 3}).find("/plan/cp: 3 ranks do not share sequences of 32 tokens"),
            std::string::npos)
      << problem({.cp = 3});
  EXPECT_NE(problem({.cp_keys = ContextKeys::kRing}).find("/plan/cp_keys"), std::string::npos);
  Model image = small_llama();
  image.inputs = {{PatchInput{.image = 8, .patch = 2, .channels = 2, .class_token = false}}};
  image.output = {ClassOutput{.classes = 13, .pool = Pool::kMean}};
  EXPECT_NE(problem({.cp = 2}, image).find("/plan/cp: only sequences of tokens"), std::string::npos)
      << problem({.cp = 2}, image);
}

}  // namespace
}  // namespace orrery::program
