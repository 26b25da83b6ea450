// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "program/order.h"
#include "program/program.h"
#include "program/state/units.h"

namespace orrery::program {
namespace {

std::int64_t of_class(const RankClass& c, BufferClass cls) {
  std::int64_t sum = 0;
  for (const Buffer& b : c.buffers) {
    if (b.life == Life::kStatic && b.cls == cls) sum += b.bytes.value;
  }
  return sum;
}

struct State {
  std::int64_t parameter, gradient, optimizer;
  std::int64_t total() const { return parameter + gradient + optimizer; }
};

State model_state(const Model& m, Precision precision, std::int64_t zero, std::int64_t n) {
  Plan p;
  p.dp = n;
  p.zero = zero;
  const Program program = compile(m, p, {.global_batch = n, .sequence = 64, .precision = precision}, Stack{});
  const RankClass& c = program.classes[0];
  return {of_class(c, BufferClass::kParameter), of_class(c, BufferClass::kGradient),
          of_class(c, BufferClass::kOptimizer)};
}

// Rajbhandari et al. 2020, table 1: 16 Psi, 4 Psi + 12 Psi/N, 2 Psi + 14 Psi/N, 16 Psi/N. Every unit of
// tiny-gpt is a multiple of 64 elements, so there is no padding up to N = 64.
TEST(ModelState, TheSixteenPsiTable) {
  const Model m = preset_model("tiny-gpt");
  const std::int64_t psi = count_parameters(m);
  for (const std::int64_t n : {2, 4, 8, 64}) {
    EXPECT_EQ(model_state(m, Precision::kMixed, 0, n).total(), 16 * psi);
    EXPECT_EQ(model_state(m, Precision::kMixed, 1, n).total(), 4 * psi + 12 * psi / n);
    EXPECT_EQ(model_state(m, Precision::kMixed, 2, n).total(), 2 * psi + 14 * psi / n);
    EXPECT_EQ(model_state(m, Precision::kMixed, 3, n).total(), 16 * psi / n);
  }
}

// Megatron's distributed optimizer: 6 + 12/d bytes per parameter; without it 18.
TEST(ModelState, MegatronKeepsFp32Gradients) {
  const Model m = preset_model("tiny-gpt");
  const std::int64_t psi = count_parameters(m);
  EXPECT_EQ(model_state(m, Precision::kMegatron, 0, 8).total(), 18 * psi);
  EXPECT_EQ(model_state(m, Precision::kMegatron, 1, 8).total(), 6 * psi + 12 * psi / 8);
}

TEST(ModelState, PaddingIsLessThanAShardGroupPerUnit) {
  Model m = preset_model("tiny-gpt");
  m.vocab = 251;
  const std::int64_t psi = count_parameters(m), n = 7;
  const State s = model_state(m, Precision::kMixed, 3, n);
  EXPECT_GE(s.total() * n, 16 * psi);
  EXPECT_LE(s.total() * n, 16 * (psi + n * (m.layers + 3)));
}

// Saved bytes of one middle layer: forward nets of three stages, layer counts 2 and 3, one micro-batch.
std::int64_t saved_per_layer(const Model& base, const Plan& plan, const Training& t, const Stack& s) {
  const auto net = [&](std::int64_t layers) {
    Plan p = plan;
    p.pp = 3;
    p.micro_batches = 2;
    p.chunk_layers = {1, layers, 1};
    Model m = base;
    m.layers = layers + 2;
    Training training = t;
    training.global_batch = p.global_batch();
    return compile(m, p, training, s).classes[1].segments[0].net.value;
  };
  return net(3) - net(2);
}

struct Activations {
  Model m;
  Training t{.global_batch = 1, .sequence = 2048, .precision = Precision::kMixed, .dropout = 0.1};
  Stack s;
  Plan p;
  double sbh, as_h;  // s b h, and a s / h
  Activations() : m(preset_model("megatron-22b")) {
    s.flash_attention = false;
    p.micro_batch = 4;
    p.tp = 8;
    sbh = 2048.0 * 4 * static_cast<double>(m.hidden);
    as_h = static_cast<double>(m.heads) * 2048 / static_cast<double>(m.hidden);
  }
  double bytes() const { return static_cast<double>(saved_per_layer(m, p, t, s)); }
};

// Korthikanti et al. 2022, table 2.
TEST(ActivationBytes, TensorParallelNoRecomputation) {
  const Activations a;
  EXPECT_DOUBLE_EQ(a.bytes(), a.sbh * (10 + 24.0 / 8 + 5 * a.as_h / 8));
}
TEST(ActivationBytes, SequenceParallelNoRecomputation) {
  Activations a;
  a.p.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(a.bytes(), a.sbh / 8 * (34 + 5 * a.as_h));
}
TEST(ActivationBytes, SelectiveRecomputationDropsTheScores) {
  Activations a;
  a.p.recompute = Recompute::kSelective;
  EXPECT_DOUBLE_EQ(a.bytes(), a.sbh * (10 + 24.0 / 8));
  a.p.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(a.bytes(), 34 * a.sbh / 8);
}
TEST(ActivationBytes, FullRecomputationKeepsTheInput) {
  Activations a;
  a.p.recompute = Recompute::kFull;
  EXPECT_DOUBLE_EQ(a.bytes(), 2 * a.sbh);
  a.p.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(a.bytes(), 2 * a.sbh / 8);
}
TEST(ActivationBytes, FlashAttentionKeepsTheLogSumExp) {
  Activations a;
  a.s.flash_attention = true;
  const double lse = 4.0 * static_cast<double>(a.m.heads) * 4 * 2048 / 8;  // 4 a b s / t
  EXPECT_DOUBLE_EQ(a.bytes(), a.sbh * (10 + 24.0 / 8) + lse);
}
TEST(ActivationBytes, SerialIs34sbhPlus5abs2) {
  Activations a;
  a.p.tp = 1;
  EXPECT_DOUBLE_EQ(a.bytes(), a.sbh * (34 + 5 * a.as_h));
}

// Llama without dropout: x, n1, y, n2 8sbh; qkv 2(h + 2 k d), ctx 2h, u 4f, v 2f.
TEST(ActivationBytes, LlamaWithGroupedQueries) {
  Activations a;
  a.m = preset_model("llama-3-70b");
  a.t.dropout = 0;
  a.s.flash_attention = true;
  a.p.micro_batch = 1;
  a.p.sequence_parallel = true;
  const double tokens = 2048, h = 8192, kv = 8 * 128, f = 28672;
  EXPECT_DOUBLE_EQ(a.bytes(), tokens / 8 * (8 * h + 2 * (h + 2 * kv) + 2 * h + 4 * f + 2 * f + 4 * 64));
}

// Recomputing k layers at once keeps every k-th input and re-makes k layers: stored plus one segment.
TEST(ActivationBytes, EveryKthLayerKeepsFewerInputs) {
  Model m = preset_model("tiny-gpt");
  m.layers = 8;
  const auto net = [&](std::int64_t k) {
    Plan p;
    p.recompute = Recompute::kFull;
    p.recompute_layers = k;
    return compile(m, p, {.global_batch = 1, .sequence = 64}, Stack{}).classes[0].segments[0].net.value;
  };
  const std::int64_t input = 2 * 64 * m.hidden;
  EXPECT_EQ(net(1) - net(2), 4 * input);
  EXPECT_EQ(net(2) - net(4), 2 * input);
}

TEST(Memory, StaticBytesInClosedFormEqualTheCompilersBuffers) {
  for (const char* preset : {"tiny-gpt", "tiny-llama"}) {
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      for (const std::int64_t pp : {1, 2, 4}) {
        Plan p;
        p.tp = 2;
        p.pp = pp;
        p.dp = 4;
        p.zero = zero;
        p.micro_batches = 4;
        const Model m = preset_model(preset);
        const Training t{.global_batch = 16, .sequence = 64, .lamb = zero % 2 == 1};
        if (!t.lamb) p.offload = Offload{.optimizer = 0.5};
        Stack s;
        s.bucket = Bytes{100000};
        const Program program = compile(m, p, t, s);
        for (const RankClass& c : program.classes) {
          std::int64_t always = 0, in_host = 0;
          for (const Buffer& b : c.buffers) {
            const std::int64_t used = b.life == Life::kStatic ? 0
                                      : b.life == Life::kSaved
                                          ? c.in_flight[static_cast<std::size_t>(b.chunk)]
                                          : 1;
            (b.space == Space::kHost ? in_host : always) += b.bytes.value * (b.instances - used);
          }
          const Depth depth = depth_of(m);
          std::vector<UnitSize> units;
          const bool first = c.stage == 0, last = c.stage + 1 == pp;
          const StageEnds ends{.first = first, .last = last, .last_stage = last};
          append_units(ModelPieces(m, depth, WeightRanks(p), t),
                       {.embedding = first,
                        .layers = std::span(depth.kind_of).first(static_cast<std::size_t>(m.layers / pp)),
                        .head = last,
                        .tied_here = ends.tied_here(m)},
                       zero, bucket_elements(t, s), units);
          EXPECT_EQ(units.size(), c.units.size());
          offload_units(p.offloaded_optimizer(), units);
          const StaticBytes bytes =
              static_bytes(m, SampleSizes(m, t), p, t, s, units, ends, 2 * (2 - first - last) * t.sequence);
          EXPECT_EQ(bytes.host, in_host);
          EXPECT_EQ(in_host > 0, !t.lamb);
          EXPECT_EQ(bytes.device, always) << preset << " " << short_name(p) << " stage " << c.stage;
          EXPECT_GE(c.arena_peak, c.logical_peak);
        }
      }
    }
  }
}

// DeepSpeed keeps 6 bytes beside the 12 of each element that a rank updates in fp16, and in bf16 4 bytes
// beside each gradient that it holds, which are all of its weights in stage 1. Two ranks update half each.
TEST(Memory, DeepSpeedsRecipesHoldMore) {
  const Model m = preset_model("tiny-gpt");
  const auto held = [&](Precision precision, Math math) {
    Plan p;
    p.dp = 2;
    p.zero = 1;
    const Training t{.global_batch = 2, .sequence = 64, .precision = precision, .math = math};
    std::int64_t bytes = 0, parameters = 0;
    const Program program = compile(m, p, t, Stack{});
    for (const Buffer& b : program.classes[0].buffers) {
      if (b.cls != BufferClass::kGradient && b.cls != BufferClass::kOptimizer) continue;
      bytes += b.bytes.value;
    }
    for (const Unit& u : program.classes[0].units) parameters += u.padded;
    return std::pair{bytes, parameters};
  };
  const auto [mixed, n] = held(Precision::kMixed, Math::kFp16);
  EXPECT_EQ(held(Precision::kDeepspeedFp16, Math::kFp16).first - mixed, 6 * n / 2);
  const std::int64_t megatron = held(Precision::kMegatron, Math::kBf16).first;
  EXPECT_EQ(held(Precision::kDeepspeedBf16, Math::kBf16).first - megatron, 4 * n);
}

// 64 tokens of 1 layer beside a vocabulary of 2^16 (V elements of logits, of 2 bytes). Where logits are kept,
// their gradient takes their place, and 2 V bytes are alive with the gradient of the head's input.
// Probabilities in place are alive with the logits that they are made from, 2 + 4, and three statistics of a
// token, 12 bytes. With log-probabilities of their own it is 4 + 4 + 2 in the backward pass:
// log-probabilities, their gradient and that of the logits.
TEST(Loss, KeepsLogitsOrProbabilitiesOrBoth) {
  Model m = preset_model("tiny-gpt");
  m.layers = 1;
  m.vocab = 1 << 16;
  const Training t{.global_batch = 1, .sequence = 64, .precision = Precision::kMixed, .math = Math::kBf16};
  const auto peak = [&](LossKeeps keeps) {
    Stack s;
    s.loss_keeps = keeps;
    return compile(m, Plan{}, t, s).classes[0].logical_peak.value;
  };
  constexpr std::int64_t kLogits = 64 << 16;
  EXPECT_EQ(peak(LossKeeps::kBoth) - peak(LossKeeps::kProbabilities), 4 * kLogits - 64 * 12);
  EXPECT_EQ(peak(LossKeeps::kProbabilities) - peak(LossKeeps::kLogits),
            4 * kLogits + 64 * 12 - 64 * m.hidden * 2);
  EXPECT_EQ(peak(LossKeeps::kLogitsApart) - peak(LossKeeps::kLogits),
            2 * kLogits + 64 * 8 - 64 * m.hidden * 2);
}

// 512 tokens and a vocabulary of 128,256 in 16 bits: 512 x 128,256 x 2 bytes of logits (131 MB), of which an
// eighth is there when rows go through the loss in eight parts. What is done is the same.
TEST(LossInParts, TakesTheMemoryOfOnePartsLogits) {
  Model m = preset_model("tiny-llama");
  m.vocab = 128'256;
  Plan whole;
  whole.micro_batches = 2;
  Plan parts = whole;
  parts.loss_chunks = 8;
  const Training t{.global_batch = 2, .sequence = 512};
  const Program at_once = compile(m, whole, t, Stack{}), in_turn = compile(m, parts, t, Stack{});
  const auto peak = [](const Program& p) { return p.classes[0].logical_peak.value; };
  const std::int64_t logits = 512 * 128'256 * 2;
  EXPECT_NEAR(static_cast<double>(peak(at_once) - peak(in_turn)) / static_cast<double>(logits), 7.0 / 8,
              0.005);
  EXPECT_LT(in_turn.classes[0].arena_peak.value, at_once.classes[0].arena_peak.value - logits * 6 / 8);
  for (const Buffer& b : in_turn.classes[0].buffers) {
    if (b.name.ends_with("head/out")) {
      EXPECT_EQ(b.bytes.value, logits / 8) << b.name;
    }
  }
  const auto flops = [](const Program& p) {
    double sum = 0;
    for (const Step& step : p.classes[0].steps) {
      for (const Op& op : p.classes[0].segments[static_cast<std::size_t>(step.segment)].ops) sum += op.flops;
    }
    return sum;
  };
  EXPECT_DOUBLE_EQ(flops(in_turn), flops(at_once));
}

// Forward passes alone find the loss: what finds it is marked, and nothing else is.
TEST(LossInParts, WhatFindsTheLossIsMarked) {
  Plan p{.tp = 2, .pp = 2, .micro_batches = 2};
  p.loss_chunks = 4;
  const Program program =
      compile(preset_model("tiny-llama"), p, {.global_batch = 2, .sequence = 64}, Stack{});
  std::int64_t losses = 0;
  for (const RankClass& c : program.classes) {
    for (const Segment& s : c.segments) {
      for (const Op& op : s.ops) {
        const bool finds = op.name.starts_with("part") && op.name.find("grad") == std::string::npos;
        EXPECT_EQ(op.evaluates, finds) << op.name;
        EXPECT_FALSE(op.is<ops::Loss>() && s.kind == SegmentKind::kForward) << op.name;
        losses += op.is<ops::Loss>() && s.last_micro_batch ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(losses, 4);
}

// File, field and what is allowed.
TEST(LossInParts, RefusesPartsThatRowsCannotTake) {
  const auto problem = [](Model m, Plan p) -> std::string {
    p.loss_chunks = 3;
    try {
      check_plan(m, p, {.global_batch = p.global_batch(), .sequence = 64}, Cursor{"s.json", "/plan"});
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const Model m = preset_model("tiny-llama");
  EXPECT_EQ(problem(m, {}),
            "s.json: /plan/loss_chunks: 3 parts do not divide the 64 tokens that a rank has of a sequence; "
            "allowed: divisors of 64");
  Plan shares{.tp = 2};
  shares.sequence_parallel = true;
  EXPECT_EQ(problem(m, shares),
            "s.json: /plan/loss_chunks: tensor ranks have rows of their own before the head "
            "(sequence_parallel); allowed: 1, or with sequence_parallel false");
}

// Autograd of a framework keeps a norm's input in fp32, which is two bytes more than in 16 bits, and the
// normed values, two, where the weight is trained; of SwiGLU the activated gate. 512 tokens, four layers with
// two norms each and one before the head, 64 wide, MLPs of 176; the peak is at the loss, where all of it is
// kept.
TEST(EagerActivations, KeepWhatAutogradKeeps) {
  Model m = preset_model("tiny-llama");
  m.vocab = 128'256;
  const auto more = [&](Training t) {
    Stack fused, eager;
    eager.eager_activations = true;
    const auto peak = [&](const Stack& s) { return compile(m, {}, t, s).classes[0].logical_peak.value; };
    return peak(eager) - peak(fused);
  };
  Training t{.global_batch = 1, .sequence = 512};
  EXPECT_EQ(more(t), 512 * (9 * 64 * (2 + 2) + 4 * 176 * 2));
  t.adapter = Adapter{.rank = 4, .alpha = 8};
  // The backward pass ends in the first layer, whose first norm has no gradient.
  EXPECT_EQ(more(t), 512 * (8 * 64 * 2 + 4 * 176 * 2));
  t.adapter.reset();
  t.precision = Precision::kFp32;
  t.math = Math::kFp32;
  EXPECT_EQ(more(t), 512 * (4 * 176 * 4));  // norms need no other copy in fp32
}

// Of a schedule with whole and split backwards, each piece of work leaves and takes what it does where all
// backwards are whole, and where all are split.
TEST(Memory, WholeAndSplitBackwardsKeepWhatEachKeepsAlone) {
  std::map<SegmentKind, int> compared;
  for (const std::int64_t mtp : {0, 2}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      Model m = preset_model("tiny-llama");
      m.layers = 8;
      m.mtp_layers = mtp;
      const Plan both{.tp = 2,
                      .pp = 2,
                      .vpp = 2,
                      .sequence_parallel = true,
                      .micro_batches = 4,
                      .schedule = Schedule::kDualPipeV,
                      .recompute = recompute};
      const auto all = [&](bool whole) {
        Plan p = both;
        p.schedule_order = order_of(both);
        p.schedule = Schedule::kListed;
        for (std::string& stage : p.schedule_order->stages) {
          std::string text;
          std::istringstream words(stage);
          for (std::string w; words >> w;) {
            const bool splits = w.starts_with("Bi"), apart = w.starts_with("W");
            const std::string of = w.substr(splits ? 2 : 1);
            if (w.starts_with("F"))
              text += w + " ";
            else if (whole && !apart)
              text += "B" + of + " ";
            else if (!whole && !apart)
              text += "Bi" + of + " W" + of + " ";
          }
          stage = text;
        }
        return p;
      };
      const auto bytes = [&](const Plan& p) {
        check_plan(m, p, {.global_batch = 4, .sequence = 16}, Cursor{});
        std::map<std::tuple<std::int32_t, SegmentKind, std::int32_t>, std::pair<Bytes, Bytes>> out;
        const Program program = compile(m, p, {.global_batch = 4, .sequence = 16}, Stack{});
        for (const RankClass& rank : program.classes) {
          for (const Segment& s : rank.segments) {
            if (!follows_chunks(s.kind)) out[{rank.stage, s.kind, s.chunk}] = {s.peak, s.net};
          }
        }
        return out;
      };
      const auto mixed = bytes(both);
      for (const bool whole : {true, false}) {
        for (const auto& [piece, alone] : bytes(all(whole))) {
          const auto found = mixed.find(piece);
          if (found == mixed.end()) continue;  // a stage that has none of these
          const auto& [stage, kind, chunk] = piece;
          ++compared[kind];
          EXPECT_EQ(found->second, alone) << "stage " << stage << " kind " << static_cast<int>(kind)
                                          << " chunk " << chunk << " mtp " << mtp;
        }
      }
    }
  }
  for (const SegmentKind kind : {SegmentKind::kForward, SegmentKind::kBackward, SegmentKind::kBackwardInput,
                                 SegmentKind::kBackwardWeight})
    EXPECT_GE(compared[kind], 12) << static_cast<int>(kind);
}

}  // namespace
}  // namespace orrery::program
