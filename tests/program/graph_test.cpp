// SPDX-License-Identifier: Apache-2.0
//
// What follows from the graph of a block: collectives, gradients, their split, what is repeated.
#include "program/graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "program/blocks.h"
#include "program/check.h"
#include "program/gradient.h"
#include "program/program.h"

namespace orrery::program {
namespace {

using Names = std::vector<std::string>;

// Two layers of 64 columns, 4 heads, a gated MLP of 128, no biases; 16 tokens.
Model small_llama() {
  Model m = preset_model("llama-2-7b");
  m.layers = 2;
  m.hidden = 64;
  m.heads = m.kv_heads = 4;
  m.ffn_hidden = 128;
  m.vocab = 96;
  return m;
}
const Training kTraining{.global_batch = 4, .sequence = 16};

Names ops_of(const Program& p, SegmentKind kind, std::string_view prefix) {
  Names out;
  for (const Segment& s : p.classes[0].segments) {
    if (s.kind != kind ||
        (kind != SegmentKind::kForward && !s.last_micro_batch && kind != SegmentKind::kBackwardInput))
      continue;
    for (const Op& op : s.ops) {
      if (op.name.starts_with(prefix)) out.push_back(op.name.substr(prefix.size()));
    }
  }
  return out;
}

// The example of docs/architecture.md: two tensor ranks with sequence parallelism, two replicas.
TEST(Graph, TheExampleOfTheDocumentation) {
  const Plan plan{.tp = 2, .dp = 2, .sequence_parallel = true};
  const Program p = compile(small_llama(), plan, kTraining, Stack{});
  EXPECT_EQ(ops_of(p, SegmentKind::kForward, "layer0/"),
            (Names{"attn/norm", "attn/qkv/input/all-gather", "attn/qkv", "attn/rope", "attn/core", "attn/out",
                   "attn/out/reduce-scatter", "attn/residual", "mlp/norm", "mlp/fc1/input/all-gather",
                   "mlp/fc1", "mlp/act", "mlp/fc2", "mlp/fc2/reduce-scatter", "mlp/residual"}));
  EXPECT_EQ(ops_of(p, SegmentKind::kBackward, "layer0/"), (Names{"mlp/fc2/grad/all-gather",
                                                                 "mlp/fc2/dgrad",
                                                                 "mlp/fc2/wgrad",
                                                                 "mlp/act/grad",
                                                                 "mlp/fc1/input/again/all-gather",
                                                                 "mlp/fc1/dgrad",
                                                                 "mlp/fc1/dgrad/reduce-scatter",
                                                                 "mlp/fc1/wgrad",
                                                                 "mlp/norm/grad",
                                                                 "attn/out/grad/all-gather",
                                                                 "attn/out/dgrad",
                                                                 "attn/out/wgrad",
                                                                 "attn/core/grad",
                                                                 "attn/rope/grad",
                                                                 "attn/qkv/input/again/all-gather",
                                                                 "attn/qkv/dgrad",
                                                                 "attn/qkv/dgrad/reduce-scatter",
                                                                 "attn/qkv/wgrad",
                                                                 "attn/norm/grad",
                                                                 "attn/norm/weight/grad/all-reduce"}));
}

// What is kept of a layer there, in 16-bit elements of 8 of 16 tokens: both norms' outputs, the sum after
// attention, and the output, which is the next layer's input; of all tokens and half the columns: qkv,
// context, u and v; and the log-sums of two heads' softmax in 32 bits.
TEST(Graph, BytesOfTheExampleOfTheDocumentation) {
  const Plan plan{.tp = 2, .dp = 2, .sequence_parallel = true};
  const Program p = compile(small_llama(), plan, kTraining, Stack{});
  std::int64_t kept = 0;
  for (const Buffer& b : p.classes[0].buffers) {
    if (b.life == Life::kSaved && b.name.starts_with("layer0/")) kept += b.bytes.value;
  }
  EXPECT_EQ(kept, 4 * (8 * 64 * 2) + 16 * (96 + 32 + 128 + 64) * 2 + 16 * 2 * 4);
}

// Without sequence parallelism the stream is replicated: sums in place of scatters, and nothing to gather.
TEST(Graph, AReplicatedStreamNeedsSumsAlone) {
  const Program p = compile(small_llama(), {.tp = 2, .dp = 2}, kTraining, Stack{});
  Names collectives;
  for (const SegmentKind kind : {SegmentKind::kForward, SegmentKind::kBackward}) {
    for (const std::string& name : ops_of(p, kind, "layer1/")) {
      if (name.find("all-") != std::string::npos || name.find("scatter") != std::string::npos)
        collectives.push_back(name);
    }
  }
  EXPECT_EQ(collectives, (Names{"attn/out/all-reduce", "mlp/fc2/all-reduce", "mlp/fc1/dgrad/all-reduce",
                                "attn/qkv/dgrad/all-reduce"}));
}

// A split backward has the ops of a whole one, each once.
TEST(Graph, TheSplitLosesAndAddsNoOp) {
  Training t = kTraining;
  t.global_batch = 8;
  const auto sorted = [](Names names) {
    std::sort(names.begin(), names.end());
    return names;
  };
  for (const bool sequence_parallel : {false, true}) {
    Plan plan{.tp = 2, .pp = 2, .sequence_parallel = sequence_parallel, .micro_batches = 8};
    const Names whole = ops_of(compile(small_llama(), plan, t, Stack{}), SegmentKind::kBackward, "layer0/");
    plan.schedule = Schedule::kZeroBubbleH1;
    const Program split = compile(small_llama(), plan, t, Stack{});
    Names parts = ops_of(split, SegmentKind::kBackwardInput, "layer0/");
    const Names weights = ops_of(split, SegmentKind::kBackwardWeight, "layer0/");
    EXPECT_GT(weights.size(), 3U);
    parts.insert(parts.end(), weights.begin(), weights.end());
    EXPECT_EQ(sorted(parts), sorted(whole)) << sequence_parallel;
  }
}

// Attention and MLP beside each other: one collective completes the sum of both branches, and one the sum of
// what both give for the norm's output; a norm's output that both read is gathered once for both.
TEST(Graph, ParallelBranchesShareTheirCollectives) {
  Model m = small_llama();
  m.form = BlockForm::kParallelOneNorm;
  for (const bool sequence_parallel : {false, true}) {
    const Plan plan{.tp = 2, .sequence_parallel = sequence_parallel};
    const Program p = compile(m, plan, kTraining, Stack{});
    const auto collectives = [&](SegmentKind kind) {
      Names out = ops_of(p, kind, "layer0/");
      std::erase_if(
          out, [](const std::string& n) { return n.find("gather") == n.npos && n.find("reduce") == n.npos; });
      return out;
    };
    const Names forward = collectives(SegmentKind::kForward), backward = collectives(SegmentKind::kBackward);
    if (sequence_parallel) {
      EXPECT_EQ(forward, (Names{"attn/qkv/input/all-gather", "mlp/sum/reduce-scatter"}));
      EXPECT_EQ(backward, (Names{"mlp/sum/grad/all-gather", "mlp/fc1/input/again/all-gather",
                                 "attn/qkv/input/again/all-gather", "attn/qkv/dgrad/reduce-scatter",
                                 "norm/weight/grad/all-reduce"}));
    } else {
      EXPECT_EQ(forward, (Names{"mlp/sum/all-reduce"}));
      EXPECT_EQ(backward, (Names{"attn/qkv/dgrad/all-reduce"}));
    }
  }
}

// A residual adds two biases at once; where three branches have one each, each is joined by itself.
TEST(Graph, ParallelBranchesOfMoreBiasesAreJoinedOneByOne) {
  Model m = small_llama();
  m.norm = Norm::kLayerNorm;
  m.bias = true;
  m.form = BlockForm::kParallel;
  const auto joins = [&](std::size_t mlps) {
    ModelBlock block = standard_block(m);
    block.layers.resize(1 + mlps, block.layers[1]);
    m.blocks = {{2, {block}}};
    std::vector<std::int64_t> biases;
    const Program p = compile(m, {.tp = 2}, kTraining, Stack{});
    for (const Op& op : p.classes[0].segments[0].ops) {
      if (const auto* residual = op.as<ops::Residual>(); residual != nullptr && op.layer == 0)
        biases.push_back(residual->biases);
    }
    return biases;
  };
  EXPECT_EQ(joins(1), (std::vector<std::int64_t>{2}));
  EXPECT_EQ(joins(2), (std::vector<std::int64_t>{1, 1, 1}));
}

// A stage in the middle that only passes on what it receives.
TEST(Graph, AChunkMayHaveNoBlocks) {
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    const Plan plan{.pp = 3,
                    .dp = 2,
                    .zero = zero,
                    .micro_batches = 2,
                    .schedule = Schedule::kGPipe,
                    .chunk_layers = {2, 0, 2}};
    Model m = small_llama();
    m.layers = 4;
    check_plan(m, plan, kTraining, Cursor{});
    const Program p = compile(m, plan, kTraining, Stack{});
    EXPECT_TRUE(p.classes[1].units.empty());
    EXPECT_EQ(check(p), std::vector<std::string>{}) << zero;
  }
}

// ZeRO-3 gathers the parameters of both layers and of the ends for the forward pass, and for the backward
// pass again unless they are kept: then they take the memory of all, and not of two places.
TEST(Graph, ParametersThatAreKeptAreGatheredOnce) {
  const auto gathers = [](const Program& p, SegmentKind kind) {
    std::int64_t n = 0;
    for (const Segment& s : p.classes[0].segments) {
      if (s.kind != kind || (kind == SegmentKind::kBackward && !s.last_micro_batch)) continue;
      n += std::count_if(s.ops.begin(), s.ops.end(),
                         [](const Op& op) { return op.name.ends_with("/all-gather"); });
    }
    return n;
  };
  Plan plan{.dp = 2, .zero = 3, .micro_batches = 2};
  const Program again = compile(small_llama(), plan, kTraining, Stack{});
  plan.reshard_after_forward = false;
  const Program kept = compile(small_llama(), plan, kTraining, Stack{});
  // The embedding, two layers, the head's norm and the head.
  EXPECT_EQ(gathers(again, SegmentKind::kForward), 5);
  EXPECT_GE(gathers(again, SegmentKind::kBackward), 4);
  EXPECT_EQ(gathers(kept, SegmentKind::kForward), 5);
  EXPECT_EQ(gathers(kept, SegmentKind::kBackward), 0);
  const auto whole = [](const Program& p) {
    std::int64_t bytes = 0;
    for (const Buffer& b : p.classes[0].buffers) {
      if (b.name.starts_with("gathered")) bytes += b.bytes.value;
    }
    return bytes;
  };
  EXPECT_EQ(whole(kept), 2 * count_parameters(small_llama()));  // two bytes each
  EXPECT_LT(whole(again), whole(kept));
}

// A block of a test's own, on two tensor ranks.
class OwnBlock : public testing::Test {
 protected:
  OwnBlock() : emitter_(plan_, kTraining, stack_, over_, rank_, true) {}

  // Forward and backward of the graph, and the backward's ops.
  const std::vector<Op>& backward_of(const Graph& graph) {
    Block block{.graph = &graph, .prefix = "own/", .layer = 0, .parameters = {}};
    for (const Parameter& p : graph.parameters) {
      block.parameters.push_back(static_cast<std::int32_t>(rank_.parameters.size()));
      rank_.parameters.push_back(p);
    }
    rank_.units.resize(1);
    emitter_.begin(SegmentKind::kForward, 0, false);
    const std::int32_t x = emitter_.activation("x", 16 * 64, DType::kBfloat16);
    const Tensors tensors = emitter_.forward(block, std::array{x});
    emitter_.begin(SegmentKind::kBackward, 0, true);
    const std::int32_t d = emitter_.activation("d", 16 * 64, DType::kBfloat16);
    const std::int32_t to = emitter_.activation("to", 16 * 64, DType::kBfloat16);
    const Reverse::PortGradient input{.has = -1, .into = to};
    EXPECT_EQ(Reverse(emitter_, block, tensors, false).run(std::array{d}, std::array{input}).front(), to);
    return rank_.segments.back().ops;
  }
  static Graph finish(Builder& g, ValueId output) {
    g.output(0, output);
    return g.finish();
  }
  // The model's MLP.
  Branch mlp(Builder& g, ValueId x) const { return branch(g, "mlp", plain_layers(model_).value().mlp, x); }
  Builder builder() { return {model_, plan_, kTraining, stack_, Builder::Part::kLayer}; }

  const Model model_ = small_llama();
  Plan plan_{.tp = 2};
  const Stack stack_;
  const Communication over_ = communication_of(mesh_of(plan_));
  RankClass rank_;
  Emitter emitter_;
};

// Two MLPs read one norm's output: each gives a part of its gradient, which are summed before the norm's rule
// reads the sum; and the norm's rule adds the gradient of the path around them.
TEST_F(OwnBlock, GradientsOfAValueThatSeveralOpsReadAreSummed) {
  Builder g = builder();
  const ValueId x = g.input(0);
  const ValueId n = g.norm("norm", x);
  const ValueId y = g.residual("a", x, mlp(g, n), "a/out", 1);
  const Graph graph = finish(g, g.residual("b", y, mlp(g, n), "b/out", 2));
  const std::vector<Op>& ops = backward_of(graph);
  std::vector<const Op*> sums;
  for (const Op& op : ops) {
    if (op.is<ops::Accumulate>()) sums.push_back(&op);
  }
  ASSERT_EQ(sums.size(), 1U);
  EXPECT_EQ(sums[0]->name, "own/norm/out/grad/add");
  EXPECT_EQ(sums[0]->as<ops::Accumulate>()->elements, 16 * 64);
  const Op& last = ops.back();
  ASSERT_TRUE(last.is<ops::NormGrad>());
  EXPECT_TRUE(last.as<ops::NormGrad>()->residual);
  EXPECT_EQ(last.reads[2].buffer, sums[0]->writes[0].buffer);
}

// Two sums read one value around their branches, and each passes on the gradient of its result, which the
// branch's weights read too: adding to it would spoil them.
TEST_F(OwnBlock, ASumOverAGradientThatOthersReadIsRefused) {
  Builder g = builder();
  const ValueId x = g.input(0);
  const Branch branch = mlp(g, g.norm("norm", x));
  const ValueId y = g.residual("a", x, branch, "a/out", 1);
  const Graph graph = finish(g, g.residual("b", x, mlp(g, y), "b/out", 2));
  EXPECT_THROW(backward_of(graph), std::logic_error);
}

// The norm's rule gives the gradient of the sum, which both the branch and the path around it get.
TEST(Graph, AResidualAndTheNormBehindItAreOneOp) {
  Stack fused;
  fused.fused_residual_norms = true;
  const auto names = [&](Plan plan, const Training& t) {
    return ops_of(compile(small_llama(), plan, t, fused), SegmentKind::kForward, "layer0/");
  };
  const Names one{"attn/norm", "attn/qkv", "attn/rope", "attn/core", "attn/out",
                  "mlp/norm",  "mlp/fc1",  "mlp/act",   "mlp/fc2",   "mlp/residual"};
  EXPECT_EQ(names({}, kTraining), one);
  const Program p = compile(small_llama(), {}, kTraining, fused);
  for (const Segment& s : p.classes[0].segments) {
    for (const Op& op : s.ops) {
      if (op.name == "layer0/mlp/norm") {
        EXPECT_EQ(op.as<ops::ResidualNorm>()->rows, 16);
      }
      if (op.name != "layer0/mlp/norm/grad") continue;
      EXPECT_TRUE(op.as<ops::NormGrad>()->residual);
      EXPECT_EQ(op.reads.size(), 4U);
    }
  }
  // Dropout, and norms that are repeated alone, keep them apart.
  Names apart = one;
  apart.insert(apart.begin() + 5, "attn/residual");
  Training dropping = kTraining;
  dropping.dropout = 0.1;
  EXPECT_EQ(names({}, dropping), apart);
  Plan again{.recompute = Recompute::kSelective};
  again.recompute_parts = {RecomputePart::kNorms};
  EXPECT_EQ(names(again, kTraining), apart);
}

// The gradient of the input is sent from a buffer of its own: the sum of what the product and the path around
// it give is there, whether a collective completes the product's part in place or in another buffer.
TEST_F(OwnBlock, TheGradientOfAnInputThatAProductReadsIsWhereItIsSentFrom) {
  for (const bool sequence_parallel : {false, true}) {
    plan_.sequence_parallel = sequence_parallel;
    Builder g = builder();
    const ValueId x = g.input(0);
    const std::int32_t w = g.matrix("w", 64, 64, Parameter::Split::kRows);
    const std::int32_t back = g.matrix("back", 64, 64, Parameter::Split::kCols);
    const ValueId y = g.residual("a", x, {g.linear("back", g.linear("product", x, w), back), {}}, "a/out", 1);
    const Graph graph = finish(g, y);
    const std::vector<Op>& ops = backward_of(graph);
    const auto sum =
        std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.is<ops::Accumulate>(); });
    ASSERT_NE(sum, ops.end());
    EXPECT_EQ(sum->as<ops::Accumulate>()->elements, 16 * 64 / (sequence_parallel ? 2 : 1));
    EXPECT_EQ(rank_.buffers[static_cast<std::size_t>(sum->writes[0].buffer)].name, "to");
  }
}

// A product whose weight all tensor ranks have whole: with sequence parallelism each computes its 8 of 16
// rows, so the weight's gradient is a partial sum and its result is gathered for the next product; without,
// all compute all of it.
TEST_F(OwnBlock, AProductOfAWholeWeightIsPlacedAsValuesBetweenLayers) {
  for (const bool sequence_parallel : {false, true}) {
    plan_.sequence_parallel = sequence_parallel;
    Builder g = builder();
    const ValueId x = g.input(0);
    const std::int32_t low = g.matrix("low", 16, 64, Parameter::Split::kNone);
    const ValueId u = g.linear("low", x, low);
    EXPECT_EQ(g.columns_of(u), 16);
    const ValueId y = g.residual(
        "a", x, mlp(g, g.linear("up", u, g.matrix("up", 64, 16, Parameter::Split::kNone))), "a/out", 1);
    const Graph graph = finish(g, y);
    EXPECT_EQ(graph.parameters[0].partial_over_tp, sequence_parallel);
    (void)backward_of(graph);
    std::int64_t rows = 0, gathers = 0;
    const Segment& forward = *(rank_.segments.end() - 2);
    for (const Op& op : forward.ops) {
      if (op.name == "own/low") rows = op.as<ops::Gemm>()->m;
      gathers += op.name.ends_with("/all-gather");
    }
    EXPECT_EQ(rows, sequence_parallel ? 8 : 16);
    EXPECT_EQ(gathers, sequence_parallel ? 1 : 0);
  }
}

// Here no op could write it there.
TEST_F(OwnBlock, AnInputWhoseGradientIsOnlyPassedOnIsRefused) {
  Builder g = builder();
  const ValueId x = g.input(0);
  const std::int32_t w = g.matrix("w", 64, 64, Parameter::Split::kCols);
  const ValueId other =
      g.port("other", Port::Is::kInput, 0, 16, 64, g.placed(Placement::kColumns), DType::kBfloat16);
  const Graph summed = finish(g, g.residual("a", x, {g.linear("product", other, w), {}}, "a/out", 1));
  EXPECT_THROW(backward_of(summed), std::logic_error);
}

// A model that begins with an image and predicts text: the embedding that the head shares is a unit of its
// own, on both stages.
TEST(Inputs, AnEmbeddingBesideAnImageIsTiedByItself) {
  Model m = small_llama();
  m.tied_embeddings = true;
  ModelBlock seen = standard_block(m), text = seen;
  text.tower = "text";
  text.layers.insert(text.layers.begin() + 1,
                     Layer{CrossAttentionLayer{.reads = "image", .heads = m.heads, .bias = false}});
  m.inputs = {{PatchInput{.image = 8, .patch = 4}}, {TokenInput{"text", true}}};
  m.blocks = {{1, {seen}}, {1, {text}}};
  m.layers = 2;
  Training t = kTraining;
  t.sequence = 5;
  t.target_sequence = 8;
  Plan p;
  p.pp = 2;
  p.micro_batches = t.global_batch;
  check_plan(m, p, t, {"plan", ""});
  const Program program = compile(m, p, t, Stack{});
  EXPECT_TRUE(check(program).empty());
  for (const RankClass& c : program.classes) {
    for (const Parameter& parameter : c.parameters) {
      if (parameter.name != "embedding/weight") continue;
      EXPECT_EQ(c.units[static_cast<std::size_t>(parameter.unit)].elements, parameter.local_elements());
    }
  }
}

// No collective turns a share of the columns into all of them where rows are what a gather puts together.
TEST_F(OwnBlock, APlacementThatNoCollectiveMakesIsRefused) {
  Builder g = builder();
  const ValueId x = g.input(0);
  const std::int32_t w = g.matrix("w", 64, 64, Parameter::Split::kRows);
  const ValueId u = g.linear("product", x, w);  // its columns are shared
  const Graph graph = finish(g, u);
  EXPECT_THROW(backward_of(graph), std::logic_error);
}

}  // namespace
}  // namespace orrery::program
