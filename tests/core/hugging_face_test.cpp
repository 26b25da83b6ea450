// SPDX-License-Identifier: Apache-2.0
//
// Families that differ from Llama in norms, factors, or the reach of attention. Parameters are those of the
// published checkpoints, or of the arithmetic that stands beside them.
#include <gtest/gtest.h>

#include "core/model.h"

namespace orrery {
namespace {

Model import(const char* type, const std::string& fields) {
  return import_hugging_face(
      parse_json(fmt::format(R"({{"model_type": "{}", {}}})", type, fields), "config.json"),
      Cursor{"config.json", ""});
}
std::string refusal(const char* type, const std::string& fields) {
  try {
    import(type, fields + R"(, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 176, "vocab_size": 256)");
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}
const AttentionLayer& attention(const Depth& d, std::int64_t block) {
  return std::get<AttentionLayer>(d.kind(block).layers[0].is);
}

TEST(HuggingFace, OlmoNormsAllHeadsTogether) {
  const std::string seven = R"("hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
      "intermediate_size": 11008, "vocab_size": 100352, "max_position_embeddings": 4096, "rope_theta": 500000,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false)";
  Model olmo = import("olmo2", seven);
  EXPECT_EQ(count_parameters(olmo), 7'298'617'344);  // OLMo-2-1124-7B
  olmo.name = "olmo-2-7b";
  olmo.kv_heads = 32;
  EXPECT_EQ(olmo, preset_model("olmo-2-7b"));
  EXPECT_EQ(count_parameters(preset_model("olmo-2-13b")), 13'716'198'400);
  EXPECT_EQ(count_parameters(preset_model("olmo-2-32b")), 32'234'279'936);  // grouped: 5120 + 1024 weights
  EXPECT_EQ(depth_of(olmo).shared(Degree::kTensor), 1);
  EXPECT_NE(refusal("olmo2", R"("attention_bias": true)").find("/attention_bias: true"), std::string::npos);

  // OLMo 3: three of four layers have windows, and turn as before the context was extended.
  const Model third = import("olmo3", seven + R"(, "sliding_window": 4096, "rope_scaling": {
      "rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 8192})");
  EXPECT_EQ(count_parameters(third), 7'298'617'344);
  const Depth depth = depth_of(third);
  EXPECT_EQ(depth.counts(), (std::vector<std::int64_t>{24, 8}));
  for (std::int64_t i = 0; i < 8; ++i) {
    const bool near = i % 4 != 3;
    EXPECT_EQ(attention(depth, i).sliding_window, near ? 4096 : 0) << i;
    EXPECT_EQ(attention(depth, i).rotary.scaling, near ? RotaryScaling::kNone : RotaryScaling::kYarn) << i;
    EXPECT_EQ(attention(depth, i).rotary.base, 500000) << i;
  }

  const Model sparse = import("olmoe", R"("hidden_size": 2048, "num_hidden_layers": 16,
      "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 1024, "vocab_size": 50304,
      "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false, "clip_qkv": null)");
  EXPECT_EQ(count_parameters(sparse), 6'919'161'856);  // OLMoE-1B-7B
  EXPECT_NE(refusal("olmoe", R"("clip_qkv": 8)").find("/clip_qkv: 8"), std::string::npos);
}

TEST(HuggingFace, GraniteHasFactors) {
  const Model granite = import("granite", R"("hidden_size": 4096, "num_hidden_layers": 40,
      "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12800, "vocab_size": 49155,
      "embedding_multiplier": 12.0, "attention_multiplier": 0.0078125, "residual_multiplier": 0.22,
      "logits_scaling": 16.0, "rope_theta": 10000000.0, "tie_word_embeddings": true)");
  EXPECT_EQ(count_parameters(granite), 8'170'848'256);  // granite-3.1-8b
  EXPECT_EQ(granite.embedding_scale, 12);
  EXPECT_EQ(granite.query_scale, 1.0 / 128);
  EXPECT_EQ(granite.residual_scale, 0.22);
  EXPECT_EQ(granite.logit_scale, 1.0 / 16);
  EXPECT_NE(refusal("granite", R"("attention_bias": true)").find("/attention_bias: true"), std::string::npos);

  const Model sparse = import("granitemoeshared", R"("hidden_size": 1536, "num_hidden_layers": 32,
      "num_attention_heads": 24, "num_key_value_heads": 8, "intermediate_size": 512, "vocab_size": 49155,
      "num_local_experts": 40, "num_experts_per_tok": 8, "shared_intermediate_size": 1024,
      "tie_word_embeddings": true)");
  // Attention, 40 experts and the shared one, a router, and two norms.
  const std::int64_t block =
      2 * 1536 * 1536 + 2 * 1536 * 512 + 40 * 3 * 1536 * 512 + 3 * 1536 * 1024 + 40 * 1536 + 2 * 1536;
  EXPECT_EQ(count_parameters(sparse), 32 * block + 49155 * 1536 + 1536);
}

TEST(HuggingFace, CohereAndGlmStandApartInNorms) {
  const Model command_r = import("cohere", R"("hidden_size": 8192, "num_hidden_layers": 40,
      "num_attention_heads": 64, "num_key_value_heads": 64, "intermediate_size": 22528, "vocab_size": 256000,
      "logit_scale": 0.0625, "rope_theta": 8000000.0, "use_qk_norm": false)");
  EXPECT_EQ(count_parameters(command_r), 34'980'831'232);  // c4ai-command-r-v01: tied, one norm a block
  EXPECT_EQ(command_r.logit_scale, 0.0625);
  EXPECT_NE(refusal("cohere", R"("use_qk_norm": true)").find("/use_qk_norm: true"), std::string::npos);
  const Model second = import("cohere2", R"("hidden_size": 4096, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 256000,
      "sliding_window": 4096, "sliding_window_pattern": 4, "rope_theta": 50000)");
  EXPECT_EQ(count_parameters(second), 8'028'033'024);  // c4ai-command-r7b-12-2024
  const Depth depth = depth_of(second);
  EXPECT_EQ(attention(depth, 2).sliding_window, 4096);
  EXPECT_EQ(attention(depth, 2).positions, Positions::kRotary);
  EXPECT_EQ(attention(depth, 3).sliding_window, 0);
  EXPECT_EQ(attention(depth, 3).positions, Positions::kNone);

  const Model glm = import("glm4", R"("hidden_size": 4096, "num_hidden_layers": 40,
      "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 13696,
      "vocab_size": 151552, "attention_bias": true, "partial_rotary_factor": 0.5)");
  EXPECT_EQ(count_parameters(glm), 9'400'279'040);  // GLM-4-9B-0414
  EXPECT_EQ(glm.rotary.turned(128), 64);
}

TEST(HuggingFace, MiniMaxIsItsPreset) {
  Model m = import("minimax_m2", R"("hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads": 48,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1536, "vocab_size": 200064,
      "max_position_embeddings": 196608, "num_local_experts": 256, "num_experts_per_tok": 8,
      "scoring_func": "sigmoid", "use_routing_bias": true, "shared_intermediate_size": 0, "rotary_dim": 64,
      "rope_theta": 5000000, "use_qk_norm": true, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06)");
  // Queries and their product are 48 heads of 128 wide, and a norm has a weight for each element.
  const std::int64_t q = 48 * 128, k = 8 * 128;
  const std::int64_t block =
      2 * 3072 * q + 2 * 3072 * k + q + k + 256LL * 3 * 3072 * 1536 + 256 * 3072 + 256 + 2 * 3072;
  EXPECT_EQ(count_parameters(m), 62 * block + 2LL * 200064 * 3072 + 3072);
  EXPECT_NEAR(static_cast<double>(count_parameters(m)), 229e9, 0.5e9);
  // "10 B active" is without the ends.
  EXPECT_NEAR(static_cast<double>(count_active_parameters(m) - 2LL * 200064 * 3072), 10e9, 0.5e9);
  m.name = "minimax-m2-230b";
  EXPECT_EQ(m, preset_model("minimax-m2-230b"));
  EXPECT_NE(refusal("minimax_m2", R"("qk_norm_type": "per_head")").find("/qk_norm_type"), std::string::npos);
}

TEST(HuggingFace, Llama4IsItsPreset) {
  const std::string text = R"("hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
      "vocab_size": 202048, "rope_theta": 500000.0, "rms_norm_eps": 1e-05, "hidden_act": "silu",
      "num_experts_per_tok": 1, "attention_chunk_size": 8192, "attn_temperature_tuning": 4,
      "floor_scale": 8192, "attn_scale": 0.1, "no_rope_layers": [])";
  Model scout = import("llama4_text", text + R"(, "num_local_experts": 16, "interleave_moe_layer_step": 1,
      "use_qk_norm": true, "max_position_embeddings": 10485760, "rope_scaling": {"factor": 16.0,
      "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
      "rope_type": "llama3"})");
  const std::int64_t attention_weights = 2 * 5120 * 5120 + 2 * 5120 * 1024, norms = 2 * 5120;
  const std::int64_t expert = 3 * 5120 * 8192, dense = 3 * 5120 * 16384, ends = 2LL * 202048 * 5120 + 5120;
  EXPECT_EQ(count_parameters(scout),
            48 * (attention_weights + norms + 17 * expert + 16 * 5120) + ends);  // 107.8 G without images
  EXPECT_NEAR(static_cast<double>(count_active_parameters(scout)), 17e9, 0.5e9);
  const Depth depth = depth_of(scout);
  for (std::int64_t i = 0; i < 8; ++i) {
    const AttentionLayer& a = attention(depth, i);
    const bool near = i % 4 != 3;
    EXPECT_EQ(a.chunk, near ? 8192 : 0) << i;
    EXPECT_EQ(a.reach(32768), near ? 8192 : 32768) << i;
    EXPECT_EQ(a.qk_norm, near ? QkNorm::kUnweighted : QkNorm::kNone) << i;
    EXPECT_EQ(a.positions, near ? Positions::kRotary : Positions::kNone) << i;
    EXPECT_EQ(a.query_growth.rate, near ? 0 : 0.1) << i;
  }
  scout.name = "llama-4-scout-109b";
  EXPECT_EQ(scout, preset_model("llama-4-scout-109b"));

  Model maverick = import("llama4_text", text + R"(, "num_local_experts": 128, "use_qk_norm": false,
      "interleave_moe_layer_step": 2, "max_position_embeddings": 1048576, "rope_scaling": null)");
  EXPECT_EQ(count_parameters(maverick), 48 * (attention_weights + norms) + 24 * dense +
                                            24 * (129 * expert + 128 * 5120) + ends);  // 400 G
  maverick.name = "llama-4-maverick-400b";
  EXPECT_EQ(maverick, preset_model("llama-4-maverick-400b"));
  // Blocks of four: a dense one and one with experts in turn, the fourth without positions.
  EXPECT_EQ(maverick.blocks.size(), 1U);
  EXPECT_EQ(maverick.blocks[0].times, 12);

  EXPECT_NE(refusal("llama4_text", R"("layer_types": ["chunked_attention", "mamba", "mamba", "mamba"])")
                .find("/layer_types/1: \"mamba\" cannot be imported"),
            std::string::npos);
  EXPECT_NE(refusal("llama4_text", R"("moe_layers": [4])").find("/moe_layers"), std::string::npos);
}

// What would be another model, or none.
TEST(HuggingFace, FieldsOfOtherModelsAreRefused) {
  const auto expect = [](const char* type, const char* fields, const char* text) {
    const std::string said = refusal(type, fields);
    EXPECT_NE(said.find(text), std::string::npos) << type << ": " << said;
  };
  expect("minimax_m2", R"("head_dim": 16, "rotary_dim": 4096)", "/rotary_dim: 4096 is out of range");
  expect("minimax_m2", R"("shared_intermediate_size": 64)", "/shared_intermediate_size: 64 is out of range");
  expect("granitemoe", R"("shared_intermediate_size": 64)", "/shared_intermediate_size: 64 is out of range");
  expect("cohere2", R"("sliding_window": null)", "/sliding_window: null cannot be imported");
  expect("olmo3", R"("rope_parameters": {"full_attention": {"rope_theta": 5e5}})",
         "/rope_parameters: parameters by kind of attention");
  EXPECT_EQ(import("minimax_m2", R"("num_experts": 4, "num_experts_per_tok": 2, "hidden_size": 64,
      "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
      "intermediate_size": 32, "vocab_size": 256)")
                .blocks.size(),
            1U);
  // As transformers does where fields are absent.
  const Model glm = import("glm4", R"("hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32,
      "intermediate_size": 128, "vocab_size": 256, "rope_parameters": {"rope_theta": 10000.0})");
  EXPECT_EQ(glm.kv_heads, 2);
  EXPECT_EQ(glm.head_dim, 128);
  EXPECT_EQ(glm.rotary.fraction, 0.5);
}

// Ten thousand layers without a pattern, each with 4,096 factors: blocks are compared by their kind.
TEST(HuggingFace, ManyLayersWithoutAPatternAreReadAtOnce) {
  std::string turned = "1", factors = "1";
  for (int i = 1; i < 9999; ++i) turned += ",1";
  for (int i = 1; i < 4096; ++i) factors += ",1";
  const Model m = import("smollm3", fmt::format(R"("hidden_size": 8192, "num_hidden_layers": 10000,
      "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 8, "vocab_size": 256,
      "max_position_embeddings": 65536, "no_rope_layers": [{}, 0], "rope_scaling": {{"rope_type": "longrope",
      "factor": 8, "original_max_position_embeddings": 8192, "short_factor": [{}], "long_factor": [{}]}})",
                                                turned, factors, factors));
  ASSERT_EQ(m.blocks.size(), 2U);
  EXPECT_EQ(m.blocks[0].times, 9999);
  EXPECT_EQ(m.blocks[1].times, 1);
}

// Growth by the published formula: positions 0 to 6 keep their queries, 7 begins the second eight.
TEST(Rotary, QueriesGrowByTheLogarithmOfTheirPositions) {
  const QueryGrowth g{.rate = 0.1, .positions = 8};
  EXPECT_EQ(g.at(6), 1);
  EXPECT_DOUBLE_EQ(g.at(7), 1 + 0.1 * std::log(2.0));
  EXPECT_DOUBLE_EQ(g.at(23), 1 + 0.1 * std::log(4.0));
  const RotaryTables t = growth_tables(g, 4, 9);
  ASSERT_EQ(t.cosine.size(), 18U);
  EXPECT_FLOAT_EQ(t.cosine[13], 1);
  EXPECT_FLOAT_EQ(t.cosine[15], static_cast<float>(g.at(7)));
  EXPECT_EQ(t.sine, std::vector<float>(18));
}

TEST(Attention, ChunksAndGrowthFitWhatIsBesideThem) {
  const auto problem = [](AttentionLayer a) -> std::string {
    a.heads = 4;
    try {
      a.check(64, [](std::string_view field) { return Cursor{"m.json", "/" + std::string(field)}; });
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const AttentionLayer plain{.positions = Positions::kNone};
  AttentionLayer a = plain;
  a.chunk = 4;
  a.query_growth.rate = 0.1;
  EXPECT_EQ(problem(a), "");
  a.sliding_window = 2;
  EXPECT_NE(problem(a).find("/chunk: chunks are of attention to all tokens before"), std::string::npos);
  a = plain;
  a.positions = Positions::kRotary;
  a.query_growth.rate = 0.1;
  EXPECT_NE(problem(a).find("/query_growth: queries grow where there are no positions"), std::string::npos);
}

}  // namespace
}  // namespace orrery
