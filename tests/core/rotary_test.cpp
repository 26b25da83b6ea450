// SPDX-License-Identifier: Apache-2.0
#include "core/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/model.h"

namespace orrery {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

TEST(Rotary, FrequenciesFallFromOneByTheBase) {
  // base^(-2j/8) for j = 0 .. 3 with base 16: 1, 16^-1/4, 16^-1/2, 16^-3/4.
  const auto f = rotary_frequencies({.base = 16}, 8, 1);
  ASSERT_EQ(f.size(), 4U);
  for (std::size_t j = 0; j < 4; ++j) EXPECT_DOUBLE_EQ(f[j], std::pow(0.5, static_cast<double>(j)));
}

TEST(Rotary, AFractionTurnsTheFirstElementsWithFrequenciesOfTheirOwn) {
  EXPECT_EQ(rotary_frequencies({.base = 16, .fraction = 0.5}, 16, 1), rotary_frequencies({.base = 16}, 8, 1));
}

TEST(Rotary, LinearScalingDividesEveryFrequency) {
  const auto plain = rotary_frequencies({}, 64, 1);
  const auto scaled = rotary_frequencies({.scaling = RotaryScaling::kLinear, .factor = 4}, 64, 1);
  for (std::size_t j = 0; j < plain.size(); ++j) EXPECT_DOUBLE_EQ(scaled[j], plain[j] / 4);
}

TEST(Rotary, Llama3KeepsShortWavesDividesLongOnesAndRampsBetween) {
  const Rotary r{.base = 500000, .scaling = RotaryScaling::kLlama3, .factor = 8};  // Llama 3.1
  const auto plain = rotary_frequencies({.base = 500000}, 128, 1), scaled = rotary_frequencies(r, 128, 1);
  int shorter = 0, longer = 0, between = 0;
  for (std::size_t j = 0; j < plain.size(); ++j) {
    const double wave = kTurn / plain[j];
    if (wave < 8192.0 / 4) {
      EXPECT_EQ(scaled[j], plain[j]);
      ++shorter;
    } else if (wave > 8192) {
      EXPECT_EQ(scaled[j], plain[j] / 8);
      ++longer;
    } else {
      // From 4 waves in the original context (kept) down to 1 (divided): a third of the way each.
      const double kept = (8192 / wave - 1) / 3;
      EXPECT_DOUBLE_EQ(scaled[j], plain[j] * (kept + (1 - kept) / 8));
      ++between;
    }
  }
  EXPECT_EQ(shorter, 29);  // 2 pi 500000^(j/64) < 2048: j < 28.2
  EXPECT_EQ(longer, 29);   // > 8192: j > 34.98
  EXPECT_EQ(between, 6);
}

TEST(Rotary, YarnRampsOverPairsAndGrowsTheAmplitude) {
  // Turns of pair j over 32768 positions: 32768 / (2 pi 10^(6 j/64)). 32 turns at j = 23.7, 1 at j = 39.7:
  // pairs up to 23 stay, from 40 on they are divided by 4, and pair 30 is 7/17 of the way.
  const Rotary r{
      .base = 1e6, .scaling = RotaryScaling::kYarn, .factor = 4, .original_positions = 32768};  // Qwen 2.5's
  const auto plain = rotary_frequencies({.base = 1e6}, 128, 1), scaled = rotary_frequencies(r, 128, 1);
  EXPECT_EQ(scaled[23], plain[23]);
  EXPECT_LT(scaled[24], plain[24]);
  EXPECT_NEAR(scaled[30] / plain[30], 1 - 7.0 / 17 * (1 - 1.0 / 4), 1e-12);
  EXPECT_GT(scaled[39], plain[39] / 4);
  EXPECT_DOUBLE_EQ(scaled[40], plain[40] / 4);
  const double amplitude = 0.1 * std::log(4.0) + 1;
  EXPECT_FLOAT_EQ(rotary_tables(r, 128, 1).cosine[0], static_cast<float>(amplitude));
  Rotary given = r;
  given.amplitude = 1.25;
  EXPECT_FLOAT_EQ(rotary_tables(given, 128, 1).cosine[5], 1.25F);
}

TEST(Rotary, LongRopeDividesEachPairByANumberOfItsOwn) {
  const Rotary r{.scaling = RotaryScaling::kLongRope,
                 .factor = 32,
                 .original_positions = 4096,
                 .short_factors = {1, 1.25},
                 .long_factors = {2, 64}};  // 4,096 positions extended to 131,072, as Phi-3's are
  const auto plain = rotary_frequencies({}, 4, 1);
  EXPECT_EQ(rotary_frequencies(r, 4, 4096), (std::vector<double>{plain[0], plain[1] / 1.25}));
  EXPECT_EQ(rotary_frequencies(r, 4, 4097), (std::vector<double>{plain[0] / 2, plain[1] / 64}));
  // ln 32 / ln 4096 = 5/12: cosines and sines grow by the root of 17/12 in both.
  EXPECT_FLOAT_EQ(rotary_tables(r, 4, 1).cosine[0], std::sqrt(17.0F / 12));
  const RotaryTables longer = rotary_tables(r, 4, 4097);
  EXPECT_FLOAT_EQ(longer.cosine[3 * 2],
                  static_cast<float>(std::sqrt(17.0 / 12) * std::cos(3 * plain[0] / 2)));
}

TEST(Rotary, TablesHoldTheAnglesOfEveryPosition) {
  const RotaryTables t = rotary_tables({.base = 16}, 8, 3);
  ASSERT_EQ(t.cosine.size(), 12U);
  EXPECT_EQ(t.bytes(), 96);  // 2 tables x 12 x 4 bytes
  EXPECT_FLOAT_EQ(t.cosine[2 * 4 + 1], static_cast<float>(std::cos(2 * 0.5)));
  EXPECT_FLOAT_EQ(t.sine[2 * 4 + 3], static_cast<float>(std::sin(2 * 0.125)));
}

Model imported(const std::string& type, const std::string& fields) {
  const std::string text =
      R"({"model_type": ")" + type +
      R"(", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 176,
          "vocab_size": 256, "max_position_embeddings": 131072)" +
      (fields.empty() ? "" : ", " + fields) + "}";
  return import_hugging_face(parse_json(text, "config.json"), Cursor{"config.json", ""});
}

std::string refusal(const std::string& type, const std::string& fields) {
  try {
    imported(type, fields);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(RotaryImport, OldAndNewFieldsGiveTheSame) {
  const Rotary llama31{.base = 500000, .scaling = RotaryScaling::kLlama3, .factor = 8};
  EXPECT_EQ(imported("llama", R"("rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3",
      "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})")
                .rotary,
            llama31);
  EXPECT_EQ(imported("llama", R"("rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3",
      "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})")
                .rotary,
            llama31);
  EXPECT_EQ(imported("llama", R"("rope_scaling": null)").rotary, Rotary{});
  EXPECT_EQ(imported("llama", R"("rope_parameters": {"rope_theta": 1e6, "rope_type": "default"})").rotary,
            Rotary{.base = 1e6});
  EXPECT_EQ(imported("llama", R"("rope_scaling": {"type": "linear", "factor": 4.0})").rotary.factor, 4);
  const Rotary yarn = imported("qwen2", R"("rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn",
      "factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": 1.5})")
                          .rotary;
  EXPECT_EQ(yarn.original_positions, 32768);
  EXPECT_EQ(yarn.amplitude, 1.5);
  EXPECT_EQ(imported("llama", R"("partial_rotary_factor": 0.5)").rotary.fraction, 0.5);
}

TEST(RotaryImport, LongRopeIsThatOfPhi3) {
  // A head of 16: 8 pairs. 131,072 positions over 4,096.
  const char* const scaling = R"("original_max_position_embeddings": 4096, "rope_scaling": {"type": "su",
      "short_factor": [1, 1, 1, 1, 1, 1, 1, 1.5], "long_factor": [1, 2, 3, 4, 5, 6, 7, 8]})";
  const Rotary r = imported("phi3", scaling).rotary;
  EXPECT_EQ(r.scaling, RotaryScaling::kLongRope);
  EXPECT_EQ(r.factor, 32);
  EXPECT_EQ(r.original_positions, 4096);
  EXPECT_EQ(r.short_factors[7], 1.5);
  EXPECT_EQ(r.long_factors[6], 7);
  EXPECT_NE(
      refusal("phi3", R"("rope_scaling": {"type": "longrope", "short_factor": [1, 1], "long_factor": [1]})")
          .find("/rope_scaling/short_factor: there are 2 of them; allowed: 8, one for each pair"),
      std::string::npos);
  EXPECT_EQ(imported("phi3", R"("original_max_position_embeddings": 4096, "rope_scaling": {"type": "yarn",
      "short_factor": [1, 1, 1, 1, 1, 1, 1, 1.5], "long_factor": [1, 2, 3, 4, 5, 6, 7, 8]})")
                .rotary,
            r);
  EXPECT_NE(refusal("phi3", R"("rope_scaling": {"type": "longrope", "short_factor": [1]})")
                .find("needs short_factor and"),
            std::string::npos);
}

TEST(RotaryImport, WhatWouldChangeTheAnglesUnseenIsRefused) {
  EXPECT_EQ(refusal("llama", R"("rope_scaling": {"rope_type": "dynamic", "factor": 2.0})"),
            "config.json: /rope_scaling/rope_type: \"dynamic\" cannot be imported; allowed: default, linear, "
            "llama3, yarn, longrope");
  EXPECT_NE(refusal("llama", R"("rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1.0})")
                .find("/rope_scaling/mscale: the one is given without the other"),
            std::string::npos);
  EXPECT_NE(
      refusal("llama", R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})").find("low_freq_factor"),
      std::string::npos);
  EXPECT_NE(refusal("llama", R"("rope_scaling": {"rope_type": "linear"})").find("\"factor\" is missing"),
            std::string::npos);
  EXPECT_NE(refusal("llama", R"("rope_theta": "500000")").find("/rope_theta: \"500000\" is not a number"),
            std::string::npos);
}

TEST(RotaryImport, FieldsThatTurnNothingAreRefused) {
  Model m = preset_model("gpt2-124m");
  m.rotary.base = 500000;
  EXPECT_THROW(check_model(m, {}), InputError);
  m.positions = Positions::kRotary;
  EXPECT_NO_THROW(check_model(m, {}));
  m.rotary.fraction = 0.3;  // 19 elements of 64
  EXPECT_THROW(check_model(m, {}), InputError);
  m.rotary = {.factor = 2};
  EXPECT_THROW(check_model(m, {}), InputError);
}

TEST(WindowImport, MistralHasOneAndQwenOnlyWhereItSaysSo) {
  EXPECT_EQ(imported("mistral", "").sliding_window, 4096);
  EXPECT_EQ(imported("mistral", R"("sliding_window": 1024)").sliding_window, 1024);
  EXPECT_EQ(imported("mistral", R"("sliding_window": null)").sliding_window, 0);
  EXPECT_EQ(imported("qwen2", R"("sliding_window": 1024, "use_sliding_window": false)").sliding_window, 0);
  EXPECT_EQ(imported("qwen2", R"("sliding_window": 1024, "use_sliding_window": true, "max_window_layers": 0)")
                .sliding_window,
            1024);
  EXPECT_EQ(imported("qwen2", R"("sliding_window": 1024, "use_sliding_window": true, "max_window_layers": 4)")
                .sliding_window,
            0);
  const Model mixed =
      imported("qwen2", R"("sliding_window": 9, "use_sliding_window": true, "max_window_layers": 2)");
  EXPECT_EQ(mixed.sliding_window, 0);
  EXPECT_EQ(depth_of(mixed).kind_of, (std::vector<std::int32_t>{0, 0, 1, 1}));
  EXPECT_NE(refusal("qwen2", R"("sliding_window": 9, "use_sliding_window": true, "layer_types": ["sliding"])")
                .find("does not name the kind of each layer"),
            std::string::npos);
  EXPECT_EQ(imported("llama", R"("rms_norm_eps": 1e-5)").norm_epsilon, 1e-5);
  EXPECT_EQ(imported("llama", "").norm_epsilon, 1e-6);  // where transformers' own default is
}

TEST(PositionsImport, AlibiIsRefusedAndNotTurnedIntoLearnedPositions) {
  EXPECT_NE(refusal("bloom", "").find("ALiBi"), std::string::npos);
  EXPECT_NE(refusal("mpt", "").find("ALiBi"), std::string::npos);
}

TEST(Presets, RotaryBasesAreThePublishedOnes) {
  EXPECT_EQ(preset_model("llama-2-7b").rotary, Rotary{});
  EXPECT_EQ(preset_model("llama-3-8b").rotary, Rotary{.base = 500000});
  EXPECT_EQ(preset_model("llama-3-405b").rotary.scaling, RotaryScaling::kLlama3);
  EXPECT_EQ(preset_model("qwen2.5-7b").rotary.base, 1e6);
  EXPECT_EQ(preset_model("qwen2.5-7b").norm_epsilon, 1e-6);
  EXPECT_EQ(preset_model("mistral-7b").sliding_window, 4096);
  EXPECT_EQ(preset_model("nemotron-4-340b").rotary.turned(192), 96);
}

}  // namespace
}  // namespace orrery
