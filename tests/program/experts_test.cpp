// SPDX-License-Identifier: Apache-2.0
//
// What follows from layers of sparse models: ops, collectives, what is kept, FLOPs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "program/check.h"
#include "program/program.h"

namespace orrery::program {
namespace {

using Names = std::vector<std::string>;

// Two blocks of 64 columns; 8 experts of 32 columns, 2 of them for a token; 16 tokens.
constexpr std::int64_t kTokens = 16, kHidden = 64, kExperts = 8, kTop = 2, kWidth = 32,
                       kRows = kTokens * kTop;
Model small_mixtral(ExpertsLayer experts = {.experts = kExperts, .top_k = kTop, .ffn_hidden = kWidth}) {
  Model m = preset_model("llama-2-7b");
  m.layers = 2;
  m.hidden = kHidden;
  m.heads = m.kv_heads = 4;
  m.vocab = 96;
  ModelBlock block = standard_block(m);
  block.layers.back() = {experts};
  m.blocks = {{2, {block}}};
  return m;
}
const Training kTraining{.global_batch = 4, .sequence = kTokens};

Names ops_of(const Program& p, SegmentKind kind, std::string_view prefix) {
  Names out;
  for (const Segment& s : p.classes[0].segments) {
    if (s.kind != kind || (kind == SegmentKind::kBackward && !s.last_micro_batch)) continue;
    for (const Op& op : s.ops) {
      if (op.name.starts_with(prefix)) out.push_back(op.name.substr(prefix.size()));
    }
  }
  return out;
}

// All tensor ranks route the tokens that one all-gather brings, and what experts leave goes back by one
// reduce-scatter; gradients of the router and of experts come to the tokens as one sum.
TEST(Experts, TakeTheCollectivesOfAnMlp) {
  const Plan plan{.tp = 2, .dp = 2, .sequence_parallel = true};
  const Program p = compile(small_mixtral(), plan, kTraining, Stack{});
  EXPECT_EQ(ops_of(p, SegmentKind::kForward, "layer0/experts/"),
            (Names{"norm", "router/input/all-gather", "router", "router/scores", "route", "permute", "fc1",
                   "act", "fc2", "unpermute", "unpermute/reduce-scatter", "residual"}));
  EXPECT_EQ(ops_of(p, SegmentKind::kBackward, "layer0/experts/"),
            (Names{"unpermute/grad/all-gather", "unpermute/grad", "fc2/dgrad", "fc2/wgrad", "act/grad",
                   "fc1/dgrad", "fc1/wgrad", "permute/grad", "route/grad", "router/scores/grad",
                   "router/input/again/all-gather", "router/dgrad", "norm/out/grad/add",
                   "router/dgrad/reduce-scatter", "router/wgrad", "norm/grad"}));
}

// In bytes, 16-bit elements unless said otherwise: the norm's output, logits, scores (fp32), choice (of each
// token 2 top_k integers), counts, the experts' rows and their weights (fp32), and both sides of the
// activation.
TEST(Experts, KeepTheirRows) {
  const Program p = compile(small_mixtral(), {.dp = 4}, kTraining, Stack{});
  std::int64_t kept = 0;
  for (const Buffer& b : p.classes[0].buffers) {
    if (b.life == Life::kSaved && b.name.starts_with("layer0/experts/")) kept += b.bytes.value;
  }
  EXPECT_EQ(kept, 2 * kTokens * kHidden + (2 + 4) * kTokens * kExperts + 4 * kTokens * 2 * kTop +
                      4 * kExperts + 2 * kRows * kHidden + 4 * kRows + 2 * kRows * 3 * kWidth);
}

// A token has two of the experts: 2 x 3 h f elements, and the router's.
TEST(Experts, CountTheProductsOfChosenExperts) {
  const Model m = small_mixtral();
  const auto flops = [&](std::int64_t tp) {
    const Program p = compile(m, {.tp = tp, .dp = 4}, kTraining, Stack{});
    double sum = 0;
    for (const Segment& s : p.classes[0].segments) {
      for (const Op& op : s.ops)
        sum += s.kind == SegmentKind::kForward && op.name.starts_with("layer0/experts/") ? op.flops : 0;
    }
    return sum;
  };
  const double router = 2.0 * kTokens * kExperts * kHidden, experts = 2.0 * kRows * 3 * kHidden * kWidth;
  EXPECT_DOUBLE_EQ(flops(1), router + experts);
  EXPECT_DOUBLE_EQ(flops(2), router + experts / 2);
  const auto& layer = std::get<ExpertsLayer>(m.blocks[0].blocks[0].layers.back().is);
  EXPECT_DOUBLE_EQ(flops(1), 2.0 * kTokens * static_cast<double>(layer.matrix_elements(kHidden)));
  EXPECT_EQ(count_parameters(m) - count_active_parameters(m), 2 * 6 * 3 * kHidden * kWidth);
}

// With a capacity of 1.25 even shares, rounded up, an expert takes 5 of 16 x 2 / 8 = 4, and all of them 40;
// no more rows than 32 are routed. With half a share it takes 2, and all 16.
TEST(Experts, CapacityBoundsTheirRows) {
  ExpertsLayer l{.experts = kExperts, .top_k = kTop, .ffn_hidden = kWidth, .capacity_factor = 1.25};
  EXPECT_EQ(l.capacity(kTokens), 5);
  EXPECT_EQ(l.routed_rows(kTokens), 32);
  l.capacity_factor = 0.5;
  EXPECT_EQ(l.capacity(kTokens), 2);
  EXPECT_EQ(l.routed_rows(kTokens), 16);
  const Program p = compile(small_mixtral(l), {.dp = 4}, kTraining, Stack{});
  for (const Op& op : p.classes[0].segments[0].ops) {
    if (const auto* product = op.as<ops::GroupedGemm>()) {
      EXPECT_EQ(product->rows, 16);
    }
    if (const auto* route = op.as<ops::Route>()) {
      EXPECT_EQ(route->capacity, 2);
    }
  }
}

// Two tensor ranks and two replicas share eight experts, two each: a rank routes its own 8 tokens, and no
// tensor rank waits for another's. Of its 16 rows it sends 4 to each rank, and gets 4.
const Plan kApart{.tp = 2, .dp = 2, .ep = 4, .etp = 1, .sequence_parallel = true};
TEST(Experts, OnTheirOwnRanksExchangeRows) {
  const Program p = compile(small_mixtral(), kApart, kTraining, Stack{});
  EXPECT_EQ(ops_of(p, SegmentKind::kForward, "layer0/experts/"),
            (Names{"norm", "router", "router/scores", "route", "permute", "permuted/all-to-all",
                   "router/counts/all-to-all", "row_weights/all-to-all", "fc1", "act", "fc2",
                   "fc2/partial/all-to-all", "unpermute", "residual"}));
  EXPECT_EQ(ops_of(p, SegmentKind::kBackward, "layer0/experts/"),
            (Names{"unpermute/grad", "fc2/grad/all-to-all", "fc2/dgrad", "fc2/wgrad", "act/grad",
                   "permute/grad/all-to-all", "fc1/dgrad", "permute/grad/all-to-all", "fc1/wgrad",
                   "permute/grad", "route/grad", "router/scores/grad", "router/dgrad", "norm/out/grad/add",
                   "router/wgrad", "norm/grad"}));
  const Program roomy = compile(
      small_mixtral(),
      [] {
        Plan plan = kApart;
        plan.expert_room = 2;
        return plan;
      }(),
      kTraining, Stack{});
  constexpr std::int64_t kSent = 8 * kTop;
  for (const Program* of : {&p, &roomy}) {
    for (const Op& op : of->classes[0].segments[0].ops) {
      if (op.name == "layer0/experts/permuted/all-to-all") {
        EXPECT_EQ(op.payload.value, 2 * kSent * kHidden);
        EXPECT_EQ(std::get<ops::Collective>(op.kind).elements, kSent * kHidden * (of == &p ? 1 : 2));
        EXPECT_EQ(of->communication.groups[static_cast<std::size_t>(op.group)].name, "ep");
      }
      if (op.name == "layer0/experts/fc1") {
        EXPECT_DOUBLE_EQ(op.flops, 2.0 * kSent * kHidden * 2 * kWidth);
      }
    }
  }
  // A rank's two experts of three matrices are a unit of their own, of which there is one copy: no gradient
  // is reduced.
  std::int64_t elements = 0;
  for (const Unit& u : p.classes[0].units) elements += u.of_experts ? u.elements : 0;
  EXPECT_EQ(elements, 2 * 2 * 3 * kHidden * kWidth);
  for (const Segment& s : p.classes[0].segments) {
    for (const Op& op : s.ops) EXPECT_NE(op.group, p.communication.group("edp")) << op.name;
  }
}

// As KeepTheirRows, of a rank's 8 tokens: the rows, their weights and the counts that came, in place of the
// rows, and the counts that were sent.
TEST(Experts, OnTheirOwnRanksKeepWhatCame) {
  const Program p = compile(small_mixtral(), kApart, kTraining, Stack{});
  std::int64_t kept = 0;
  for (const Buffer& b : p.classes[0].buffers) {
    if (b.life == Life::kSaved && b.name.starts_with("layer0/experts/")) kept += b.bytes.value;
  }
  constexpr std::int64_t kOwn = 8, kCame = kOwn * kTop;
  EXPECT_EQ(kept, 2 * kOwn * kHidden + (2 + 4) * kOwn * kExperts + 4 * kOwn * 2 * kTop + 4 * kExperts +
                      2 * kCame * kHidden + 4 * kCame + 2 * kCame * 3 * kWidth);
}

// Tensor ranks that share an expert's columns have all rows of both, and sum what they make of them.
TEST(Experts, GatherRowsForColumnsOfThem) {
  const Plan plan{.tp = 2, .dp = 2, .ep = 2, .sequence_parallel = true};
  const Program p = compile(small_mixtral(), plan, kTraining, Stack{});
  const Names forward = ops_of(p, SegmentKind::kForward, "layer0/experts/");
  const auto at = [&](const char* name) {
    return std::find(forward.begin(), forward.end(), name) - forward.begin();
  };
  EXPECT_EQ(at("permuted/all-gather"), at("permuted/all-to-all") + 1);
  EXPECT_EQ(at("fc2/partial/all-to-all"), at("fc2/reduce-scatter") + 1);
  for (const Op& op : p.classes[0].segments[0].ops) {
    const auto* product = op.as<ops::GroupedGemm>();
    if (product == nullptr) continue;
    // Parts of two ranks that sent rows, of each of two that gathered them.
    EXPECT_EQ(product->parts, 4);
    EXPECT_EQ(product->rows, 2 * 8 * kTop);
    EXPECT_EQ(product->experts, 4);
  }
}

// 16 tokens of two experts among eight in four parts: 8 rows are an even share of a part, and no more than
// two of each token's can be in it: 32, four even shares. With a capacity of 5, a part of two experts
// takes 10.
TEST(Experts, HaveRoom) {
  ExpertsLayer l{.experts = kExperts, .top_k = kTop, .ffn_hidden = kWidth};
  EXPECT_EQ(l.room(kTokens, 1, 1, {}), 32);
  EXPECT_EQ(l.room(kTokens, 1, 4, {}), 8);
  EXPECT_EQ(l.room(kTokens, 1, 4, 1.3), 11);
  EXPECT_EQ(l.room(kTokens, 2, 4, 1.3), 2 * 6);  // 5.2 of each sample
  EXPECT_EQ(l.room(kTokens, 1, 4, 100), 32);
  EXPECT_EQ(l.most_shares(4), 4);
  EXPECT_EQ(l.most_shares(8), 4);  // one of each token's
  l.capacity_factor = 1.25;
  EXPECT_EQ(l.room(kTokens, 1, 4, {}), 10);
}

TEST(Experts, PlansThatCannotShareThemAreRefused) {
  const auto problem = [](const Plan& plan) {
    const Model m = small_mixtral();
    Training t = kTraining;
    t.global_batch = plan.global_batch();
    try {
      check_plan(m, plan, t, Cursor{"plan", ""});
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto expect = [&](const Plan& plan, const char* field, const char* text) {
    const std::string found = problem(plan);
    EXPECT_NE(found.find(field), std::string::npos) << found;
    EXPECT_NE(found.find(text), std::string::npos) << found;
  };
  EXPECT_EQ(problem(kApart), "");
  expect({.dp = 2, .ep = 4}, "/ep", "4 ranks that share all experts");
  expect({.dp = 16, .ep = 16}, "/ep", "16 does not divide the 8 experts");
  expect({.tp = 2, .dp = 2, .ep = 2, .etp = 1}, "/etp", "sequence_parallel");
  expect({.dp = 6, .ep = 2, .zero = 1, .shard_group = 3}, "/ep", "neither divides");
  expect({.tp = 2,
          .pp = 2,
          .dp = 2,
          .ep = 4,
          .etp = 1,
          .sequence_parallel = true,
          .rank_order = RankOrder::kTpPpDp},
         "/rank_order", "equal distances");
  Model dense = small_mixtral();
  dense.blocks.clear();
  EXPECT_THROW(check_plan(dense, {.dp = 4, .ep = 2}, kTraining, Cursor{"plan", ""}), std::exception);
}

// Latents are made of the tokens that a tensor rank has and gathered where heads begin: 24, 16 and 8 columns
// in place of 64.
constexpr LatentAttentionLayer kLatent{
    .heads = 4, .q_rank = 24, .kv_rank = 16, .turned = 8, .plain = 16, .value = 12};
Model small_deepseek() {
  Model m = small_mixtral();
  m.blocks[0].blocks[0].layers.front() = {kLatent};
  return m;
}

// In every plan that is allowed, the members of each group stand at equal distances, those of shards of
// experts among them.
TEST(Experts, GroupsOfAllowedPlansAreRanges) {
  std::int64_t allowed = 0;
  for (const RankOrder order :
       {RankOrder::kTpDpPp, RankOrder::kTpPpDp, RankOrder::kDpTpPp, RankOrder::kPpTpDp}) {
    for (const std::int64_t tp : {1, 2, 4}) {
      for (const std::int64_t cp : {1, 2}) {
        for (const std::int64_t dp : {4, 6, 8, 12, 18}) {
          for (const std::int64_t ep : {1, 2, 3, 4, 6, 8}) {
            for (const std::int64_t etp : {1, 2, 4}) {
              for (const std::int64_t shard : {0, 2, 3, 4, 6, 9}) {
                if (shard >= dp || (shard > 0 && dp % shard != 0)) continue;
                const Plan p{.tp = tp,
                             .pp = 2,
                             .dp = dp,
                             .cp = cp,
                             .ep = ep,
                             .etp = etp,
                             .sequence_parallel = tp > 1,
                             .zero = 1,
                             .shard_group = shard,
                             .rank_order = order};
                if (!p.splits_experts() || experts_problem(p)) continue;
                ++allowed;
                const Mesh mesh = mesh_of(p);
                for (const Group& g : communication_of(mesh).groups)
                  EXPECT_TRUE(mesh.find_range(g.axes)) << short_name(p) << ": " << g.name;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(allowed, 500);
}

TEST(LatentAttention, GathersLatents) {
  const Plan plan{.tp = 2, .dp = 2, .sequence_parallel = true};
  const Program p = compile(small_deepseek(), plan, kTraining, Stack{});
  EXPECT_EQ(ops_of(p, SegmentKind::kForward, "layer0/latent/"),
            (Names{"norm", "q_down", "q_norm", "q/input/all-gather", "q", "rope", "kv_down", "kv_norm",
                   "kv/input/all-gather", "kv", "turned", "turned/rope/input/all-gather", "turned/rope",
                   "pack", "core", "out", "out/reduce-scatter", "residual"}));
  std::vector<std::int64_t> gathered;  // bytes
  for (const Op& op : p.classes[0].segments[0].ops) {
    if (op.name.starts_with("layer0/latent/") && op.name.ends_with("/all-gather"))
      gathered.push_back(op.payload.value);
  }
  EXPECT_EQ(gathered, (std::vector<std::int64_t>{2 * kTokens * 24, 2 * kTokens * 16, 2 * kTokens * 8}));
}

// In 16-bit elements: the norm's output; both latents before and after their norms; queries, keys and values
// as heads take them; the context; and the log-sums of the softmax in 32 bits. What was packed is not kept.
TEST(LatentAttention, KeepsWhatHeadsTake) {
  const Program p = compile(small_deepseek(), {.dp = 4}, kTraining, Stack{});
  std::int64_t kept = 0;
  for (const Buffer& b : p.classes[0].buffers) {
    if (b.life == Life::kSaved && b.name.starts_with("layer0/latent/") &&
        b.name != "layer0/latent/residual/out")
      kept += b.bytes.value;
  }
  EXPECT_EQ(kept, 2 * kTokens * (kHidden + 2 * 24 + 2 * 16 + 4 * (2 * 24 + 12) + 4 * 12) + 4 * kTokens * 4);
}

// Products with 24 (64 + 96) + 16 (64 + 112) + 64 (8 + 48) elements a token; scores of heads of 24, and their
// products with values of 12.
TEST(LatentAttention, CountsItsProducts) {
  const Model m = small_deepseek();
  EXPECT_EQ(kLatent.matrix_elements(kHidden), 24 * (64 + 96) + 16 * (64 + 112) + 64 * (8 + 48));
  const Program p = compile(m, {.dp = 4}, kTraining, Stack{.flash_attention = false});
  double products = 0, core = 0;
  for (const Segment& s : p.classes[0].segments) {
    if (s.kind != SegmentKind::kForward) continue;
    for (const Op& op : s.ops) {
      if (!op.name.starts_with("layer0/latent/")) continue;
      (op.is<ops::Attention>() ? core : products) += op.flops;
    }
  }
  EXPECT_DOUBLE_EQ(products, 2.0 * kTokens * static_cast<double>(kLatent.matrix_elements(kHidden)));
  EXPECT_DOUBLE_EQ(core, 2.0 * kTokens * kTokens * 4 * (24 + 12));
  EXPECT_DOUBLE_EQ(core, kLatent.core_flops({.own = kTokens}));
}

// --- of GPT-OSS's kind -------------------------------------------------------------------------------

Model small_gpt_oss() {
  Model m = small_mixtral({.experts = kExperts,
                           .top_k = kTop,
                           .ffn_hidden = kWidth,
                           .biases = true,
                           .activation = Activation::kClampedSwiglu});
  auto& attention = std::get<AttentionLayer>(m.blocks[0].blocks[0].layers.front().is);
  attention.bias = attention.sinks = true;
  return m;
}

// On four ranks that share experts in pairs, each with half of an expert's columns: a rank's fc1 has a bias
// for its 2 x 16 columns of two experts, and of the results' 64 columns each of the pair adds half. Tensor
// ranks have the scores of their own heads.
TEST(Biases, AreSharedAsColumnsAre) {
  const Plan plan{.tp = 2, .dp = 2, .ep = 2, .etp = 2, .sequence_parallel = true};
  const Program p = compile(small_gpt_oss(), plan, kTraining, Stack{});
  const Names forward = ops_of(p, SegmentKind::kForward, "layer0/experts/");
  EXPECT_EQ(std::count(forward.begin(), forward.end(), "fc1/add_bias"), 1);
  EXPECT_EQ(std::count(forward.begin(), forward.end(), "fc2/add_bias"), 1);
  std::map<std::string, std::int64_t> elements;
  for (const Parameter& of : p.classes[0].parameters) elements[of.name] = of.local_elements();
  EXPECT_EQ(elements.at("layer0/experts/fc1/bias"), 4 * 2 * kWidth / 2);
  EXPECT_EQ(elements.at("layer0/experts/fc2/bias"), 4 * kHidden / 2);
  EXPECT_EQ(elements.at("layer0/experts/router/bias"), kExperts);
  EXPECT_EQ(elements.at("layer0/attn/sinks"), 2);
  std::int64_t all = 0;
  const Program serial = compile(small_gpt_oss(), {.micro_batches = 4}, kTraining, Stack{});
  for (const Parameter& of : serial.classes[0].parameters) all += of.local_elements();
  EXPECT_EQ(all, count_parameters(small_gpt_oss()));
}

// Attention with sinks that is repeated takes its share again: what is kept of it is its result.
TEST(Biases, SinksAreRepeatedWithAttention) {
  Plan plan{.dp = 4};
  plan.recompute = Recompute::kSelective;
  const Program p = compile(small_gpt_oss(), plan, kTraining, Stack{});
  Names again;
  for (const std::string& name : ops_of(p, SegmentKind::kBackward, "layer0/attn/")) {
    if (name.ends_with("/recompute")) again.push_back(name);
  }
  EXPECT_EQ(again, (Names{"core/recompute", "core/sinks/recompute"}));
}

TEST(Biases, SinksOfExchangedHeadsAreRefused) {
  const Model m = small_gpt_oss();
  try {
    check_plan(m, {.dp = 2, .cp = 2, .ulysses = 2, .micro_batches = 2}, kTraining, Cursor{"plan", ""});
    ADD_FAILURE();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("ulysses"), std::string::npos) << e.what();
  }
}

// --- selective recomputation -------------------------------------------------------------------------

Plan repeating(std::vector<RecomputePart> parts, Plan p = {.dp = 4}) {
  p.recompute = Recompute::kSelective;
  p.recompute_parts = std::move(parts);
  return p;
}
Names repeated(const Program& p, const char* prefix) {
  Names out = ops_of(p, SegmentKind::kBackward, prefix);
  std::erase_if(out, [](const std::string& name) { return !name.ends_with("/recompute"); });
  for (std::string& name : out) name.erase(name.rfind('/'));
  return out;
}
std::int64_t kept(const Program& p, std::string_view prefix) {
  std::int64_t out = 0;
  for (const Buffer& b : p.classes[0].buffers) {
    if (b.life == Life::kSaved && b.name.starts_with(prefix) && !b.name.ends_with("/residual/out"))
      out += b.bytes.value;
  }
  return out;
}

// The norm's output is 16 x 64 elements, and what leaves the activation is 32 rows of 32. Both take 16 bits,
// and neither is kept.
TEST(SelectiveRecomputation, KeepsNeitherNormsNorActivations) {
  const Program all = compile(small_mixtral(), {.dp = 4}, kTraining, Stack{});
  const auto saved = [&](std::vector<RecomputePart> parts) {
    const Program p = compile(small_mixtral(), repeating(std::move(parts)), kTraining, Stack{});
    return kept(all, "layer0/experts/") - kept(p, "layer0/experts/");
  };
  EXPECT_EQ(saved({RecomputePart::kNorms}), 2 * kTokens * kHidden);
  EXPECT_EQ(saved({RecomputePart::kExpertActivation}), 2 * kRows * kWidth);
  EXPECT_EQ(saved({RecomputePart::kNorms, RecomputePart::kExpertActivation}),
            2 * kTokens * kHidden + 2 * kRows * kWidth);
  EXPECT_EQ(saved({RecomputePart::kCoreAttention}), 0);
  const Program p = compile(small_mixtral(),
                            repeating({RecomputePart::kNorms, RecomputePart::kExpertActivation},
                                      {.tp = 2, .dp = 2, .sequence_parallel = true}),
                            kTraining, Stack{});
  EXPECT_EQ(repeated(p, "layer0/"), (Names{"attn/norm", "experts/norm", "experts/act"}));
}

// A product that does the norm before it keeps what the norm made; experts have a norm of their own.
TEST(SelectiveRecomputation, LeavesNormsInProducts) {
  Stack s;
  s.norms_in_products = true;
  const Program p = compile(small_mixtral(), repeating({RecomputePart::kNorms}), kTraining, s);
  EXPECT_EQ(repeated(p, "layer0/"), (Names{"experts/norm"}));
  EXPECT_TRUE(depth_of(small_mixtral()).parts(true).has(RecomputePart::kNorms));
  EXPECT_FALSE(depth_of(preset_model("llama-2-7b")).parts(true).has(RecomputePart::kNorms));
  EXPECT_TRUE(depth_of(preset_model("llama-2-7b")).parts(false).has(RecomputePart::kNorms));
}

// A layer of experts that is repeated keeps its input alone: the exchange of tokens is repeated too. What it
// ends in goes to its own ranks again, though no gradient reads it, as software that runs a module again
// does.
TEST(SelectiveRecomputation, ExchangesTokensAgain) {
  const Plan plan = repeating({RecomputePart::kExperts}, {.dp = 4, .ep = 4});
  const Program p = compile(small_mixtral(), plan, kTraining, Stack{});
  EXPECT_EQ(kept(p, "layer0/experts/"), 2 * kTokens * kHidden);  // the norm's output
  const Names again = repeated(p, "layer0/experts/");
  EXPECT_EQ(std::count(again.begin(), again.end(), "permuted/all-to-all"), 1);
  EXPECT_EQ(std::count(again.begin(), again.end(), "fc2/partial/all-to-all"), 1);
  EXPECT_EQ(std::count(again.begin(), again.end(), "norm"), 0);
}

// Between latents and heads nothing is kept: the norm's output and both latents before their norms are, the
// keys' turned elements, the context, and the log-sums of the softmax. The backward pass gathers latents
// again and repeats 24 x 96 + 16 x 112 elements' products of each token.
TEST(SelectiveRecomputation, MakesHeadsOfLatentsAgain) {
  const Program p =
      compile(small_deepseek(), repeating({RecomputePart::kLatentProjection}), kTraining, Stack{});
  EXPECT_EQ(kept(p, "layer0/latent/"), 2 * kTokens * (kHidden + 24 + 16 + 8 + 4 * 12) + 4 * kTokens * 4);
  double again = 0;
  for (const Segment& s : p.classes[0].segments) {
    for (const Op& op : s.ops) {
      if (s.last_micro_batch && op.recomputed && op.layer == 0) again += op.flops;
    }
  }
  EXPECT_DOUBLE_EQ(again, 2.0 * kTokens * (24 * 96 + 16 * 112));
  EXPECT_DOUBLE_EQ(again, kLatent.flops_of(RecomputePart::kLatentProjection, {.own = kTokens}, kHidden));
  const Program shared =
      compile(small_deepseek(),
              repeating({RecomputePart::kLatentProjection}, {.tp = 2, .dp = 2, .sequence_parallel = true}),
              kTraining, Stack{});
  EXPECT_EQ(repeated(shared, "layer0/latent/"), (Names{"q_norm", "q/input/all-gather", "q", "rope", "kv_norm",
                                                       "kv/input/all-gather", "kv", "pack"}));
}

// An MLP that is repeated keeps its input. 3 x 64 x 4096 elements of it are multiplied again, and its result
// is summed over tensor ranks again.
TEST(SelectiveRecomputation, RepeatsMlps) {
  Model m = small_mixtral();
  m.blocks.clear();
  m.ffn_hidden = 4096;
  const MlpLayer mlp{.ffn_hidden = 4096, .activation = Activation::kSwiglu, .bias = false};
  const Program p = compile(m, repeating({RecomputePart::kMlp}), kTraining, Stack{});
  EXPECT_EQ(kept(p, "layer0/mlp/"), 2 * kTokens * kHidden);
  double again = 0;
  for (const Segment& s : p.classes[0].segments) {
    for (const Op& op : s.ops) {
      if (s.last_micro_batch && op.recomputed && op.layer == 0) again += op.flops;
    }
  }
  EXPECT_DOUBLE_EQ(again, 2.0 * kTokens * 3 * kHidden * 4096);
  EXPECT_DOUBLE_EQ(again, mlp.flops_of(RecomputePart::kMlp, {.own = kTokens}, kHidden));
  const Program shared = compile(
      m, repeating({RecomputePart::kMlp}, {.tp = 2, .dp = 2, .sequence_parallel = true}), kTraining, Stack{});
  EXPECT_EQ(repeated(shared, "layer0/mlp/"),
            (Names{"fc1/input/all-gather", "fc1", "act", "fc2", "fc2/reduce-scatter"}));
}

// A block that has nothing to repeat gathers nothing for it, and the last one's backward pass ends in gathers
// and reductions of ZeRO-3.
TEST(SelectiveRecomputation, PassesOverBlocksWithoutTheParts) {
  Model m = small_mixtral();
  m.blocks = {{2, {m.blocks[0].blocks[0], standard_block(m)}}};
  m.layers = 4;
  Plan plan = repeating({RecomputePart::kExpertActivation}, {.dp = 4, .zero = 3});
  const Program p = compile(m, plan, kTraining, Stack{});
  EXPECT_TRUE(check(p).empty());
  EXPECT_EQ(repeated(p, "layer0/"), (Names{"experts/act"}));
  EXPECT_EQ(repeated(p, "layer1/"), Names{});
}

TEST(SelectiveRecomputation, RefusesPartsThatAreNotThere) {
  const auto expect = [](const Model& m, const Plan& p, const std::string& pointer, const std::string& text) {
    try {
      check_plan(m, p, kTraining, Cursor{"plan", ""});
      ADD_FAILURE() << text;
    } catch (const InputError& e) {
      EXPECT_EQ(e.where(), pointer);
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  };
  expect(small_mixtral(), repeating({RecomputePart::kNorms, RecomputePart::kLatentProjection}),
         "/recompute_parts/1", "no layer of the model has a part \"mla-up-proj\"");
  expect(small_mixtral(), repeating({RecomputePart::kSharedExperts}), "/recompute_parts/0", "shared-experts");
  Plan full = repeating({RecomputePart::kNorms});
  full.recompute = Recompute::kFull;
  expect(small_mixtral(), full, "/recompute_parts", "not with recompute \"full\"");
}

}  // namespace
}  // namespace orrery::program
