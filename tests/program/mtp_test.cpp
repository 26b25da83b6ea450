// SPDX-License-Identifier: Apache-2.0
//
// Multi-token prediction: what its modules have, cost and exchange, against formulas; and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "program/check.h"
#include "program/program.h"
#include "tests/exec/small_model.h"

namespace orrery::program {
namespace {

Model with_modules(Model m, std::int64_t modules, double scale = 0.3) {
  m.mtp_layers = modules;
  m.mtp_loss_scale = scale;
  return m;
}

Program mtp_program(const Model& m, const Plan& p, const Stack& s = {}) {
  const Training t{
      .global_batch = p.global_batch(), .sequence = 16, .precision = Precision::kFp32, .math = Math::kFp32};
  check_plan(m, p, t, {"plan", ""});
  return compile(m, p, t, s);
}

// README_WEIGHTS.md of deepseek-ai/DeepSeek-V3: the module has 11.5 G parameters besides the embedding and
// the head that it shares. By hand: latent attention 7168·1536 + 1536 + 1536·128·192 + 7168·576 + 512 +
// 512·128·256 + 128·128·7168 = 187,107,328; experts (256 + 1)·3·7168·2048 + 256·7168 + 256 = 11,320,164,608;
// two norms of 7168; in front 2·7168² + 2·7168, behind 7168: 11,610,068,224 in all, with no copy of either.
TEST(Mtp, ParametersOfDeepSeekV3) {
  const Model m = preset_model("deepseek-v3-671b");
  const std::int64_t h = 7168;
  const std::int64_t attention =
      h * 1536 + 1536 + 1536 * 128 * 192 + h * 576 + 512 + 512 * 128 * 256 + 128 * 128 * h;
  const std::int64_t experts = 257 * 3 * h * 2048 + 256 * h + 256;  // the last: biases of choices
  const std::int64_t module = attention + experts + 2 * h + 2 * h * h + 3 * h;
  EXPECT_EQ(count_parameters(with_modules(m, 1)) - count_parameters(m), module);
  EXPECT_NEAR(static_cast<double>(module), 11.5e9, 0.15e9);
  EXPECT_EQ(count_parameters(with_modules(m, 3)) - count_parameters(m), 3 * module);
  // Eight of 256 experts, as in any of its layers.
  EXPECT_EQ(count_active_parameters(with_modules(m, 1)) - count_active_parameters(m),
            module - (256 - 8) * 3 * h * 2048);
}

// What is held adds up to what is counted, whether the embedding is the head's weight or apart.
TEST(Mtp, ThePipelineHoldsEachParameterOnceButTheEmbedding) {
  for (const bool tied : {false, true}) {
    for (const std::int64_t pp : {1, 2, 4}) {
      Model m = with_modules(tiny("tiny-llama"), 2);
      m.tied_embeddings = tied;
      const Program p = mtp_program(m, {.pp = pp, .micro_batches = 4});
      std::int64_t sum = 0;
      std::map<std::string, int> held;
      for (const RankClass& c : p.classes) {
        for (const Parameter& of : c.parameters) {
          sum += of.rows * of.cols;
          ++held[of.name];
        }
      }
      EXPECT_EQ(sum, count_parameters(m) + (pp > 1 ? m.vocab * m.hidden : 0)) << pp << " " << tied;
      for (const auto& [name, times] : held)
        EXPECT_EQ(times, name == "embedding/weight" && pp > 1 ? 2 : 1) << name;
      EXPECT_EQ(held.contains("head/weight"), !tied);
      EXPECT_EQ(held.contains("mtp1/attn/qkv/weight"), true);
      EXPECT_EQ(held.contains("mtp1/head/weight"), false);
    }
  }
}

// Forward and backward: 3·2·s·(elements of the block's matrices + hV + 2h²) + 3·4 s² a d_h for each module.
TEST(Mtp, FlopsOfAModule) {
  const Model m = tiny("tiny-llama");
  const std::int64_t s = 16, h = m.hidden, head = h / m.heads;
  const std::int64_t matrices = h * (h + 2 * m.kv_heads * head) + h * h + 3 * h * m.ffn_hidden;
  const double module = 6.0 * static_cast<double>(s * (matrices + h * m.vocab + 2 * h * h)) +
                        12.0 * static_cast<double>(s * s * h);
  const auto formula = [&](std::int64_t n) {
    return model_flops_per_sequence(with_modules(m, n), s, AttentionFlops::kFull).value;
  };
  EXPECT_NEAR((formula(2) - formula(0)) / (2 * module), 1, 1e-12);
  Stack plain;
  plain.flash_attention = false;
  double ops = 0;
  const Program p = mtp_program(with_modules(m, 2), {.micro_batches = 1}, plain);
  for (const Step& step : p.classes[0].steps) {
    for (const Op& op : p.classes[0].segments[static_cast<std::size_t>(step.segment)].ops) ops += op.flops;
  }
  EXPECT_NEAR(ops / formula(2), 1, 1e-12);
}

// Gradients of the modules' logits count 0.3 / 2 of the model's own, and each loss is summed by itself.
TEST(Mtp, LossesAreWeighedAndApart) {
  const Program p = mtp_program(with_modules(tiny("tiny-llama"), 2), {.micro_batches = 2});
  const RankClass& c = p.classes[0];
  ASSERT_EQ(c.mtp_losses.size(), 2);
  std::map<std::int32_t, int> added;
  std::multiset<double> weights;
  for (const Segment& s : c.segments) {
    for (const Op& op : s.ops) {
      if (op.is<ops::Loss>()) ++added[op.writes[1].buffer];
      if (const auto* grad = op.as<ops::LossGrad>(); grad != nullptr && s.last_micro_batch)
        weights.insert(grad->weight);
    }
  }
  EXPECT_EQ(added, (std::map<std::int32_t, int>{{c.loss, 1}, {c.mtp_losses[0], 1}, {c.mtp_losses[1], 1}}));
  EXPECT_EQ(weights, (std::multiset<double>{0.15, 0.15, 1.0}));
}

// Module k embeds the targets of what is before it, and predicts the tokens behind these.
TEST(Mtp, ModulesReadTheTokensThatWerePredictedBefore) {
  const Program p = mtp_program(with_modules(tiny("tiny-llama"), 2), {.pp = 2, .micro_batches = 2});
  const RankClass& last = p.classes[1];
  std::map<std::string, std::string> reads;
  for (const Op& op : last.segments[0].ops) {
    if (op.is<ops::Embedding>() || op.is<ops::LossStatistics>()) {
      for (const Ref& r : op.reads) {
        const std::string& name = last.buffers[static_cast<std::size_t>(r.buffer)].name;
        if (name.starts_with("targets")) reads[op.name] = name;
      }
    }
  }
  EXPECT_EQ(reads, (std::map<std::string, std::string>{{"loss/statistics", "targets"},
                                                       {"mtp0/embedding", "targets"},
                                                       {"mtp0/loss/statistics", "targets1"},
                                                       {"mtp1/embedding", "targets1"},
                                                       {"mtp1/loss/statistics", "targets2"}}));
  EXPECT_EQ(check(p), std::vector<std::string>{});
}

std::string refusal(const Model& m, const Plan& p) {
  try {
    mtp_program(m, p);
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

TEST(Mtp, WhatItDoesNotRunWithIsRefused) {
  const Model m = with_modules(tiny("tiny-llama"), 1);
  EXPECT_NE(refusal(m, {.dp = 2, .zero = 2, .micro_batches = 2}).find("allowed: 0, 1"), std::string::npos);
  EXPECT_NE(refusal(m, {.micro_batches = 2, .loss_chunks = 2}).find("loss_chunks"), std::string::npos);
  EXPECT_EQ(refusal(m, {.dp = 2, .zero = 1, .micro_batches = 2}), "");
  EXPECT_THROW(check_model(with_modules(preset_model("gpt2-124m"), 1), {"m", ""}), InputError);
  EXPECT_NO_THROW(check_model(m, {"m", ""}));
}

}  // namespace
}  // namespace orrery::program
