// SPDX-License-Identifier: Apache-2.0
//
// The checker accepts what the compiler makes, and names what is wrong with a broken program.
#include "program/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "program/schedule.h"
#include "tests/program/communication.h"

namespace orrery::program {
namespace {

Program compiled(const Plan& plan, const char* preset = "tiny-gpt", std::int64_t layers = 8) {
  Model m = preset_model(preset);
  m.layers = layers;
  const Training t{.global_batch = plan.global_batch(),
                   .sequence = 16,
                   .precision = Precision::kFp32,
                   .math = Math::kFp32};
  check_plan(m, plan, t, {});
  return compile(m, plan, t, Stack{});
}

Plan pipelined() {
  Plan p;
  p.tp = 2;
  p.pp = 2;
  p.dp = 2;
  p.zero = 1;
  p.micro_batches = 4;
  return p;
}

std::string first(const Program& p) {
  const auto problems = check(p);
  return problems.empty() ? "sound" : problems.front();
}

TEST(Check, AcceptsTheCompilersPrograms) {
  for (const Schedule s : {Schedule::kNaive, Schedule::kGPipe, Schedule::k1F1B, Schedule::kInterleaved,
                           Schedule::kZeroBubbleH1, Schedule::kZeroBubbleV, Schedule::kDualPipeV}) {
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      for (const Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        Plan p = pipelined();
        p.schedule = s;
        p.vpp = s == Schedule::kInterleaved || chunk_placement(p) == ChunkPlacement::kThereAndBack ? 2 : 1;
        p.zero = zero;
        p.recompute = r;
        if (zero >= 2 && splits_backward(s)) continue;
        EXPECT_EQ(first(compiled(p)), "sound") << short_name(p);
      }
    }
  }
}

TEST(Check, ASendWithoutItsReceiveIsNamed) {
  Program p = compiled(pipelined(), "tiny-llama");
  Segment& forward = p.classes[1].segments[0];
  ASSERT_TRUE(forward.ops[0].is<ops::Recv>());
  forward.ops[0].kind = ops::Norm{};
  forward.ops[0].stream = kCompute;
  // The next receive on the channel is that of the gradient norm.
  EXPECT_NE(first(p).find("pipeline/send of forward[chunk 0, micro-batch 0] on stage 0 meets"),
            std::string::npos)
      << first(p);
}

TEST(Check, ASendWithNothingLeftToReceiveItIsNamed) {
  Program p = compiled(pipelined());
  std::vector<Op>& last = p.classes[1].segments.back().ops;
  const auto down = std::find_if(last.begin(), last.end(),
                                 [](const Op& op) { return op.name == "gradient-norm/down/recv"; });
  ASSERT_NE(down, last.end());
  down->kind = ops::Accumulate{};
  down->stream = kCompute;
  EXPECT_NE(first(p).find("no receive for gradient-norm/down/send"), std::string::npos) << first(p);
}

TEST(Check, MessagesInAnotherOrderAreNamed) {
  Program p = compiled(pipelined());
  std::swap(p.classes[0].steps[0].micro_batch, p.classes[0].steps[1].micro_batch);
  EXPECT_NE(first(p).find(" meets "), std::string::npos) << first(p);
}

TEST(Check, AMissingWaitIsARace) {
  Program p = compiled(pipelined());
  for (Op& op : p.classes[0].segments[0].ops) op.after.fill(0);
  EXPECT_NE(first(p).find("does not wait for stream"), std::string::npos) << first(p);
}

TEST(Check, AReadBeforeTheWriteIsNamed) {
  Program p = compiled(pipelined());
  auto& ops = p.classes[0].segments[0].ops;
  const auto writer =
      std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.name == "layer0/attn/qkv"; });
  ASSERT_NE(writer, ops.end());
  writer->writes.clear();
  EXPECT_NE(first(p).find("reads layer0/attn/qkv/out"), std::string::npos) << first(p);
}

TEST(Check, AWriteToWhatIsNotAllocatedIsNamed) {
  Program p = compiled(pipelined());
  Segment& s = p.classes[0].segments[0];
  // What only writes: a product whose result nobody reads or frees.
  const auto writer =
      std::find_if(s.ops.begin(), s.ops.end(), [](const Op& op) { return op.name == "layer0/attn/qkv"; });
  ASSERT_NE(writer, s.ops.end());
  const std::int32_t buffer = writer->writes.at(0).buffer;
  std::erase_if(s.memory, [&](const MemoryEvent& e) { return e.buffer == buffer; });
  for (Op& op : s.ops) std::erase_if(op.reads, [&](const Ref& r) { return r.buffer == buffer; });
  EXPECT_NE(first(p).find("layer0/attn/qkv"), std::string::npos) << first(p);
  EXPECT_NE(first(p).find("writes layer0/attn/qkv/out which is not allocated"), std::string::npos)
      << first(p);
}

TEST(Check, ADeadlockNamesTheWaitingOps) {
  Program p = compiled(pipelined());
  // The last stage asks for the backward's gradient order reversed: it runs its second micro-batch first
  // but waits for a count of receives that never comes.
  auto& waits = p.classes[1].waits;
  ASSERT_FALSE(waits.empty());
  for (ExternalWait& w : waits) w.count += 1000;
  EXPECT_NE(first(p).find("never runs"), std::string::npos) << first(p);
}

TEST(Check, RandomPlansAreSound) {
  std::mt19937 random(20260131);
  int checked = 0;
  for (int i = 0; i < 300; ++i) {
    Plan p;
    p.tp = 1 << random() % 3;
    p.pp = 1 + random() % 5;
    p.dp = 1 << random() % 3;
    p.schedule = static_cast<Schedule>(random() % 7);
    p.vpp = chunk_placement(p) == ChunkPlacement::kThereAndBack ? 2
            : p.schedule == Schedule::kInterleaved              ? 2 + random() % 2
                                                                : 1;
    p.micro_batch = 1 + random() % 2;
    p.micro_batches = p.schedule == Schedule::kInterleaved ? p.pp * (1 + random() % 3)
                      : p.schedule == Schedule::kDualPipeV ? p.pp * 2 + random() % 3
                                                           : 1 + random() % 7;
    p.zero = random() % 4;
    p.recompute = static_cast<Recompute>(random() % 3);
    p.recompute_layers = 1 + random() % 3;
    p.sequence_parallel = random() % 2 == 0;
    if (!schedule_problem(p.schedule, p.pp, p.vpp, p.micro_batches).empty() || p.pp * p.vpp > 10 ||
        (p.zero >= 2 && splits_backward(p.schedule)))
      continue;
    ++checked;
    EXPECT_EQ(first(compiled(p, "tiny-gpt", 10)), "sound") << short_name(p) << " seed 20260131 case " << i;
  }
  EXPECT_GT(checked, 100);
}

TEST(Program, OneHundredThousandRanksFitIn128MiB) {
  Plan p;
  p.tp = 8;
  p.pp = 16;
  p.dp = 782;  // 100,096 ranks
  p.zero = 1;
  p.micro_batches = 64;
  p.recompute = Recompute::kFull;
  Model m = preset_model("llama-3-405b");
  const Program program = compile(m, p, {.global_batch = p.global_batch(), .sequence = 8192}, Stack{});
  EXPECT_EQ(program.mesh.ranks(), 100096);
  EXPECT_LT(program.footprint_bytes(), 128LL << 20);
  EXPECT_EQ(first(program), "sound");
}

// Llama-2-7B has 11,008 feed-forward columns, 43 * 256: at tp 32 a rank has 344, no multiple of 16; at tp 16
// it has 688 = 43 * 16. Nor are 8 tokens one.
TEST(CheckPlan, EightBitProductsHaveMultiplesOf16) {
  const Model m = preset_model("llama-2-7b");
  const auto check_with = [&](std::int64_t tp, std::int64_t sequence, Math math) {
    Plan p;
    p.tp = tp;
    check_plan(m, p, {.global_batch = 1, .sequence = sequence, .math = math}, Cursor{"plan.json", "/plan"});
  };
  EXPECT_NO_THROW(check_with(16, 1024, Math::kFp8));
  EXPECT_NO_THROW(check_with(32, 1024, Math::kBf16));
  EXPECT_NO_THROW(check_with(1, 8, Math::kBf16));
  EXPECT_THROW(check_with(1, 8, Math::kFp8), InputError);
  // Blocks of 32: 688 is 21.5 of them.
  EXPECT_NO_THROW(check_with(8, 1024, Math::kMxfp8));
  EXPECT_THROW(check_with(16, 1024, Math::kMxfp8), InputError);
  EXPECT_THROW(check_with(1, 16, Math::kNvfp4), InputError);
  try {
    check_with(32, 1024, Math::kFp8);
    FAIL() << "taken";
  } catch (const InputError& e) {
    EXPECT_EQ(e.where(), "/plan/tp");
    EXPECT_NE(std::string(e.what()).find("feed-forward columns of a rank are 344"), std::string::npos)
        << e.what();
  }
}

// Ranks compare hashes before they begin, so a program that would meet other partners has another hash.
TEST(Hash, CoversGroupsPeersAndTheBinding) {
  const Program original = compiled(pipelined());
  EXPECT_EQ(original.hash(), compiled(pipelined()).hash());
  std::vector<std::int64_t> seen{original.hash()};
  const auto differs = [&](const char* what, auto&& change) {
    Program p = original;
    change(p);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), p.hash()), 0) << what;
    seen.push_back(p.hash());
  };
  const auto op_of = []<class T>(Program& p, T) -> Op& {
    for (Segment& s : p.classes[0].segments) {
      for (Op& op : s.ops) {
        if (op.is<T>()) return op;
      }
    }
    throw std::logic_error("no such op");
  };
  differs("group", [&](Program& p) { op_of(p, ops::Collective{}).group = kReplicaGroup; });
  differs("peer", [&](Program& p) { ++op_of(p, ops::Send{}).peer_chunk; });
  differs("stream", [&](Program& p) { op_of(p, ops::Collective{}).stream = kSendStream; });
  differs("a transposed operand", [&](Program& p) {
    auto& product = std::get<ops::Gemm>(op_of(p, ops::Gemm{}).kind);
    product.transpose_b = !product.transpose_b;
  });
  differs("the kind of a collective", [&](Program& p) {
    std::get<ops::Collective>(op_of(p, ops::Collective{}).kind).collective = CollectiveKind::kReduce;
  });
  for (const Math math : {Math::kFp8, Math::kFp8Rowwise, Math::kFp8Blockwise, Math::kMxfp8, Math::kNvfp4})
    differs(std::string(name_of(math)).c_str(), [&](Program& p) {
      p = compile(p.model, p.plan, {.global_batch = p.plan.global_batch(), .sequence = 64, .math = math},
                  Stack{});
    });
  differs("shard group", [](Program& p) {
    Plan plan = p.plan;
    plan.zero = plan.zero == 0 ? 1 : 0;
    p.mesh = mesh_of(plan);
  });
  differs("order of ranks", [](Program& p) {
    Plan plan = p.plan;
    plan.rank_order = RankOrder::kDpTpPp;
    p.mesh = mesh_of(plan);
  });
  differs("beta2", [](Program& p) { p.training.optimizer.beta2 = 0.999; });
  differs("decay", [](Program& p) { p.training.optimizer.decay = Decay::kAll; });
  // By plans: the order of ranks and the group that shares shards change where ranks stand, and no op.
  Plan order = pipelined();
  order.rank_order = RankOrder::kDpTpPp;
  EXPECT_NE(compiled(order).hash(), original.hash());
}

}  // namespace
}  // namespace orrery::program
