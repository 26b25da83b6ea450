// SPDX-License-Identifier: Apache-2.0
#include "core/model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/training.h"

namespace orrery {
namespace {

TEST(Model, ParameterCountsAreThePublishedOnes) {
  EXPECT_EQ(count_parameters(preset_model("gpt2-124m")), 124'439'808);     // the OpenAI checkpoint
  EXPECT_EQ(count_parameters(preset_model("llama-2-7b")), 6'738'415'616);  // the Hugging Face checkpoint
  EXPECT_EQ(count_parameters(preset_model("llama-3-8b")), 8'030'261'248);
  EXPECT_EQ(count_parameters(preset_model("llama-3-70b")), 70'553'706'496);
  EXPECT_EQ(count_parameters(preset_model("qwen3-8b")), 8'190'735'360);
}

// A preset's name says its size: "bloom-176b" has 176 billion parameters, give or take what names round away.
TEST(Model, PresetsAreAsLargeAsTheirNames) {
  int checked = 0;
  for (const std::string& name : preset_model_names()) {
    const std::size_t dash = name.rfind('-');
    const char unit = name.back();
    if (dash == std::string::npos) continue;
    const std::size_t digits = name.find_first_of("0123456789", dash);
    if (digits == std::string::npos || digits > dash + 2) continue;
    const double size = std::stod(name.substr(digits)) * (unit == 'm' ? 1e6 : unit == 'b' ? 1e9 : 1e12);
    const double slack = size < 2e9 ? 0.35 : 0.15;
    const auto parameters = static_cast<double>(count_parameters(preset_model(name)));
    const auto active = static_cast<double>(count_active_parameters(preset_model(name)));
    ++checked;
    if (const std::size_t x = name.find('x', dash); x != std::string::npos) {
      // "8x7b": somewhat less than eight such models, which would not share attention and embeddings.
      const double all = 8 * std::stod(name.substr(x + 1)) * 1e9;
      EXPECT_LT(parameters, all) << name;
      EXPECT_GT(parameters, 0.75 * all) << name;
    } else if (name[dash + 1] == 'a') {
      EXPECT_NEAR(active / size, 1, slack) << name;  // "30b-a3b"
    } else {
      EXPECT_NEAR(parameters / size, 1, slack) << name;
    }
  }
  EXPECT_GT(checked, 40);
}

// 72 B s L h^2 (1 + s/(6h) + V/(12 h L)) for a GPT with f = 4h (Narayanan et al. 2021).
TEST(Model, FlopsOfAGptAreThePublishedFormula) {
  for (const char* name : {"megatron-22b", "gpt3-175b", "turing-530b", "megatron-1t"}) {
    const Model m = preset_model(name);
    const double s = 2048, h = static_cast<double>(m.hidden), l = static_cast<double>(m.layers),
                 v = static_cast<double>(m.vocab);
    const double formula = 72 * s * l * h * h * (1 + s / (6 * h) + v / (12 * h * l));
    EXPECT_NEAR(model_flops_per_sequence(m, 2048, AttentionFlops::kFull).value / formula, 1, 1e-12) << name;
  }
}

TEST(Model, CausalAttentionHalvesTheCoreOnly) {
  const Model m = preset_model("llama-3-8b");
  const double full = model_flops_per_sequence(m, 8192, AttentionFlops::kFull).value;
  const double causal = model_flops_per_sequence(m, 8192, AttentionFlops::kCausal).value;
  EXPECT_DOUBLE_EQ(full - causal, 3 * 0.5 * 4 * 8192.0 * 8192.0 * 4096 * 32);
}

TEST(Model, SevenBillionRecipesAreNeverMixedUp) {
  const std::int64_t psi = 7'000'000'000;
  EXPECT_EQ(psi * bytes_per_parameter(Precision::kFp32).total(), 112'000'000'000);      // 4 + 4 + 8
  EXPECT_EQ(psi * bytes_per_parameter(Precision::kMixed).total(), 112'000'000'000);     // 2 + 2 + 12
  EXPECT_EQ(psi * bytes_per_parameter(Precision::kNoMaster).total(), 84'000'000'000);   // 2 + 2 + 8
  EXPECT_EQ(psi * bytes_per_parameter(Precision::kMegatron).total(), 126'000'000'000);  // 2 + 4 + 12
}

TEST(HuggingFace, ReadsBothGenerationsOfNames) {
  const auto read = [](const char* text) {
    return import_hugging_face(parse_json(text, "config.json"), Cursor{"config.json", ""});
  };
  const Model llama = read(
      R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 500000.0, "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})");
  Model expected = preset_model("llama-3-8b");
  expected.name = "llama";
  EXPECT_EQ(llama, expected);
  const Model gpt2 = read(
      R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257, "n_inner": null})");
  EXPECT_EQ(count_parameters(gpt2), 124'439'808);
  const Model v5 = read(
      R"({"model_type": "gpt2", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "max_position_embeddings": 1024, "vocab_size": 50257, "dtype": "float32"})");
  EXPECT_EQ(v5, gpt2);
}

// Biases and norms that a type has without saying so; the sizes here are those of the presets.
TEST(HuggingFace, EachTypeIsItsPreset) {
  const auto read = [](const char* type, const char* preset) {
    const Model m = preset_model(preset);
    const Json config = {{"model_type", type},
                         {"num_hidden_layers", m.layers},
                         {"hidden_size", m.hidden},
                         {"num_attention_heads", m.heads},
                         {"num_key_value_heads", m.kv_heads},
                         {"head_dim", m.head_dim > 0 ? Json(m.head_dim) : Json()},
                         {"intermediate_size", m.ffn_hidden},
                         {"vocab_size", m.vocab},
                         {"max_position_embeddings", m.max_positions},
                         {"rope_theta", m.rotary.base},
                         {"rms_norm_eps", m.norm_epsilon},
                         {"sliding_window", m.sliding_window > 0 ? Json(m.sliding_window) : Json()},
                         {"tie_word_embeddings", m.tied_embeddings}};
    Model out = import_hugging_face(config, Cursor{"config.json", ""});
    out.name = m.name;
    return out;
  };
  for (const auto& [type, preset] : {std::pair{"llama", "llama-2-7b"},
                                     {"mistral", "mistral-7b"},
                                     {"qwen2", "qwen2-7b"},
                                     {"qwen2", "qwen2.5-1.5b"},
                                     {"qwen3", "qwen3-8b"}})
    EXPECT_EQ(read(type, preset), preset_model(preset)) << preset;
}

// What a config says has the ranges of our own fields, under the names that it uses.
// Parameters as the checkpoints have them.
TEST(HuggingFace, BlocksOfOtherForms) {
  const auto import = [](const char* text) {
    return import_hugging_face(parse_json(text, "config.json"), Cursor{"config.json", ""});
  };
  const Model neox = import(R"({"model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44,
      "num_attention_heads": 64, "intermediate_size": 24576, "vocab_size": 50432, "rotary_pct": 0.25,
      "max_position_embeddings": 2048, "hidden_act": "gelu_fast", "tie_word_embeddings": false})");
  EXPECT_EQ(count_parameters(neox), 20'554'567'680);  // gpt-neox-20b
  EXPECT_EQ(neox.form, BlockForm::kParallel);
  EXPECT_EQ(neox.rotary.turned(96), 24);

  const Model falcon = import(R"({"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
      "num_attention_heads": 71, "vocab_size": 65024, "multi_query": true, "bias": false, "parallel_attn": true})");
  EXPECT_EQ(count_parameters(falcon), 6'921'720'704);  // falcon-7b
  EXPECT_EQ(falcon.form, BlockForm::kParallelOneNorm);
  EXPECT_EQ(depth_of(falcon).shared(Degree::kTensor), 1);  // one head of keys and values
  std::string labels = R"("0": "a")";
  for (int i = 1; i < 1000; ++i) labels += fmt::format(R"(, "{}": "a")", i);
  const Model vit = import((std::string(R"({"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12,
      "num_attention_heads": 12, "intermediate_size": 3072, "image_size": 224, "patch_size": 16, "id2label": {)") +
                            labels + "}}")
                               .c_str());
  EXPECT_EQ(count_parameters(vit), 86'567'656);  // google/vit-base-patch16-224
  EXPECT_EQ(tower_tokens(vit, {}), std::vector<std::int64_t>{197});
  EXPECT_EQ(vit.classes()->pool, Pool::kClassToken);
  // Two classes, no class token: 197 - 1 positions, and 998 rows of the head fewer.
  const Model ijepa = import(R"({"model_type": "ijepa", "hidden_size": 768, "num_hidden_layers": 12,
      "num_attention_heads": 12, "intermediate_size": 3072})");
  EXPECT_EQ(count_parameters(ijepa), 86'567'656 - 2 * 768 - 998 * 769);

  // openai/gpt-oss-20b and -120b: 20.9 G and 116.8 G parameters; windows of 128 tokens in every second layer.
  const auto gpt_oss = [&](int layers, int experts) {
    return import(
        fmt::format(
            R"({{"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": {}, "vocab_size": 201088,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "hidden_act": "silu",
        "num_local_experts": {}, "num_experts_per_tok": 4, "experts_per_token": 4, "sliding_window": 128, "swiglu_limit": 7.0,
        "rope_theta": 150000, "rms_norm_eps": 1e-05, "attention_bias": true, "max_position_embeddings": 131072,
        "tie_word_embeddings": false, "output_router_logits": false, "rope_scaling": {{"rope_type": "yarn", "factor": 32.0,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096}}}})",
            layers, experts)
            .c_str());
  };
  EXPECT_EQ(count_parameters(gpt_oss(24, 32)), 20'914'757'184);
  EXPECT_EQ(count_parameters(gpt_oss(36, 128)), 116'829'156'672);
  EXPECT_EQ(count_parameters(preset_model("gpt-oss-20b")), 20'914'757'184);
  EXPECT_EQ(count_parameters(preset_model("gpt-oss-120b")), 116'829'156'672);
  // The model card counts 3.61 G and 5.13 G active, without the embedding.
  EXPECT_NEAR(static_cast<double>(count_active_parameters(gpt_oss(24, 32)) - 201088 * 2880), 3.61e9, 5e6);
  EXPECT_NEAR(static_cast<double>(count_active_parameters(gpt_oss(36, 128)) - 201088 * 2880), 5.13e9, 5e6);
  EXPECT_EQ(depth_of(gpt_oss(24, 32)).kinds.size(), 2U);
  EXPECT_FALSE(std::get<AttentionLayer>(depth_of(gpt_oss(24, 32)).kinds[0].layers[0].is).rotary.rounded_ramp);

  // mistralai/Mixtral-8x7B-v0.1: 46.7 G parameters, 12.9 G of them for a token.
  const Model mixtral = import(R"({"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
      "num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6, "sliding_window": null})");
  EXPECT_EQ(count_parameters(mixtral), 46'702'792'704);
  EXPECT_EQ(count_active_parameters(mixtral), 12'879'925'248);
  EXPECT_EQ(depth_of(mixtral).kinds.size(), 1U);
  EXPECT_EQ(count_parameters(preset_model("mixtral-8x7b")), 46'702'792'704);
  EXPECT_EQ(count_parameters(preset_model("mixtral-8x22b")), 140'630'071'296);  // with 32,768 words
  // Qwen/Qwen3-30B-A3B: 30.5 G, 3.3 G active.
  const Model qwen3 = import(R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
      "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
      "moe_intermediate_size": 768, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
      "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "rope_theta": 1e6})");
  EXPECT_EQ(count_parameters(qwen3), 30'532'122'624);
  EXPECT_EQ(count_active_parameters(qwen3), 3'353'032'704);
  EXPECT_EQ(count_parameters(preset_model("qwen3-30b-a3b")), 30'532'122'624);
  EXPECT_EQ(count_parameters(preset_model("qwen3-235b-a22b")), 235'093'634'560);  // 235 G, 22 G active
  EXPECT_EQ(count_active_parameters(preset_model("qwen3-235b-a22b")),
            235'093'634'560 - 94 * 120LL * 3 * 4096 * 1536);
  // Qwen/Qwen1.5-MoE-A2.7B: 14.3 G, 2.7 G active but for the embedding and the head.
  const Model qwen2 = import(R"({"model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24,
      "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 5632,
      "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "vocab_size": 151936,
      "num_experts": 60, "num_experts_per_tok": 4, "norm_topk_prob": false})");
  EXPECT_EQ(count_parameters(qwen2), 14'315'784'192);
  // Every second layer of ten, and the first is dense.
  const Model listed = import(R"({"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 10,
      "num_attention_heads": 4, "intermediate_size": 96, "moe_intermediate_size": 32, "vocab_size": 256,
      "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2, "mlp_only_layers": [1]})");
  const Depth of_listed = depth_of(listed);
  for (std::int64_t i = 0; i < 10; ++i) {
    const bool sparse = std::holds_alternative<ExpertsLayer>(of_listed.kind(i).layers.back().is);
    EXPECT_EQ(sparse, i % 2 == 1 && i != 1) << i;
  }

  // deepseek-ai/DeepSeek-V3 without its head for the token after the next: 671 G parameters, 37 G of them for
  // a token. By hand: attention 7168 1536 + 1536 128 192 + 7168 (512 + 64) + 512 128 256 + 128 128 7168 and
  // two norms of latents; an expert 3 7168 2048; 58 blocks of 257 of them and a router with biases; three of
  // 18432.
  const Model v3 = import(R"({"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
      "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432, "vocab_size": 129280,
      "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
      "n_shared_experts": 1, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4,
      "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "max_position_embeddings": 163840,
      "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32,
                       "beta_slow": 1, "original_max_position_embeddings": 4096}})");
  const std::int64_t attention = 7168LL * 1536 + 1536LL * 128 * 192 + 7168LL * (512 + 64) +
                                 512LL * 128 * 256 + 128LL * 128 * 7168 + 1536 + 512;
  const std::int64_t expert = 3LL * 7168 * 2048;
  EXPECT_EQ(count_parameters(v3), 2LL * 129280 * 7168 + 7168 + 61 * (attention + 2 * 7168) +
                                      3 * 3LL * 7168 * 18432 + 58 * (257 * expert + 256 * 7168 + 256));
  EXPECT_EQ(count_parameters(v3), 671'026'419'200);
  EXPECT_EQ(count_active_parameters(v3), 671'026'419'200 - 58 * 248 * expert);  // 37.55 G
  const Depth v3_depth = depth_of(v3);
  const auto& latent = std::get<LatentAttentionLayer>(v3_depth.kind(0).layers[0].is);
  EXPECT_EQ(latent.rotary.amplitude, 1);
  EXPECT_NEAR(latent.query_scale, std::pow(0.1 * std::log(40.0) + 1, 2) / std::sqrt(192.0), 1e-12);
  EXPECT_EQ(v3_depth.stretches.size(), 2U);
  // DeepSeek-V2-Lite: 15.7 G, 2.7 G with both embeddings; queries have no latent.
  const Model lite = import(R"({"model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27,
      "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 10944, "vocab_size": 102400,
      "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "v_head_dim": 128, "n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
      "n_shared_experts": 2, "first_k_dense_replace": 1, "topk_method": "greedy"})");
  EXPECT_EQ(count_parameters(lite), 15'706'484'224);
  // zai-org/GLM-4.5-Air: 106 G, 12 G active.
  const Model glm = import(R"({"model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46,
      "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944,
      "vocab_size": 151552, "attention_bias": true, "n_routed_experts": 128, "num_experts_per_tok": 8,
      "moe_intermediate_size": 1408, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1,
      "topk_group": 1, "partial_rotary_factor": 0.5})");
  EXPECT_NEAR(static_cast<double>(count_parameters(glm)), 106e9, 1.5e9);
  EXPECT_NEAR(static_cast<double>(count_active_parameters(glm)), 12e9, 2e9);
  // moonshotai/Kimi-K2: 1.04 T, 32.6 G active.
  const Model kimi = import(R"({"model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 61,
      "num_attention_heads": 64, "num_key_value_heads": 64, "intermediate_size": 18432, "vocab_size": 163840,
      "n_routed_experts": 384, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
      "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827})");
  EXPECT_NEAR(static_cast<double>(count_parameters(kimi)) / 1.026e12, 1, 0.01);
  EXPECT_NEAR(static_cast<double>(count_active_parameters(kimi)) / 32.9e9, 1, 0.03);

  const Model gemma2 = import(R"({"model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26,
      "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216,
      "vocab_size": 256000, "sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh",
      "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})");
  EXPECT_EQ(count_parameters(gemma2), 2'614'341'888);  // gemma-2-2b
  EXPECT_EQ(gemma2.embedding_scale, 48);               // the root of 2304
  const Depth of_gemma2 = depth_of(gemma2);
  ASSERT_EQ(of_gemma2.kinds.size(), 2U);
  EXPECT_EQ(of_gemma2.stretches.size(), 1U);
  EXPECT_EQ(std::get<AttentionLayer>(of_gemma2.kind(0).layers[0].is).sliding_window, 4096);
  EXPECT_EQ(std::get<AttentionLayer>(of_gemma2.kind(1).layers[0].is).sliding_window, 0);
  EXPECT_EQ(std::get<AttentionLayer>(of_gemma2.kind(1).layers[0].is).soft_cap, 50);

  const Model gemma3 = import(R"({"model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26,
      "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 6912,
      "vocab_size": 262144, "sliding_window": 512, "sliding_window_pattern": 6, "rope_theta": 1000000,
      "rope_local_base_freq": 10000, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256})");
  EXPECT_EQ(count_parameters(gemma3), 999'885'952);  // gemma-3-1b
  const Depth of_gemma3 = depth_of(gemma3);
  EXPECT_EQ(of_gemma3.counts(), (std::vector<std::int64_t>{22, 4}));  // five with a window, then one without
  EXPECT_EQ(std::get<AttentionLayer>(of_gemma3.kind(0).layers[0].is).rotary.base, 10000);
  EXPECT_EQ(std::get<AttentionLayer>(of_gemma3.kind(5).layers[0].is).rotary.base, 1e6);
  EXPECT_EQ(gemma3.soft_cap, 0);

  // Its first two layers see everything.
  const Model qwen = import(R"({"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 5,
      "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100, "use_sliding_window": true,
      "sliding_window": 16, "max_window_layers": 2})");
  EXPECT_EQ(depth_of(qwen).kind_of, (std::vector<std::int32_t>{0, 0, 1, 1, 1}));
  EXPECT_EQ(std::get<AttentionLayer>(depth_of(qwen).kind(4).layers[0].is).sliding_window, 16);
}

// Each as its config.json says it, with the parameters that its checkpoint has.
TEST(HuggingFace, ModelsOfOtherLabs) {
  const auto import = [](const char* type, const std::string& fields) {
    const std::string text = fmt::format(R"({{"model_type": "{}", {}}})", type, fields);
    return import_hugging_face(parse_json(text, "config.json"), Cursor{"config.json", ""});
  };
  const Model phi3 =
      import("phi3", R"("hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "hidden_act": "silu",
      "sliding_window": 2047, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096)");
  EXPECT_EQ(count_parameters(phi3), 3'821'079'552);  // Phi-3-mini-4k
  EXPECT_EQ(phi3.sliding_window, 2047);
  const Model phi4 =
      import("phi3", R"("hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
      "num_key_value_heads": 10, "intermediate_size": 17920, "vocab_size": 100352, "sliding_window": null,
      "rope_theta": 250000, "rope_scaling": null)");
  EXPECT_EQ(count_parameters(phi4), 14'659'507'200);  // Phi-4
  const Model starcoder = import("starcoder2", R"("hidden_size": 3072, "num_hidden_layers": 30,
      "num_attention_heads": 24, "num_key_value_heads": 2, "intermediate_size": 12288, "vocab_size": 49152,
      "use_bias": true, "sliding_window": 4096, "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5)");
  EXPECT_EQ(count_parameters(starcoder), 3'030'371'328);  // starcoder2-3b
  EXPECT_TRUE(starcoder.tied_embeddings && starcoder.bias);
  const char* const stable = R"("hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 32, "intermediate_size": 6912, "vocab_size": 50304, "hidden_act": "silu",
      "layer_norm_eps": 1e-5)";
  EXPECT_EQ(count_parameters(import("stablelm", stable)), 2'795'443'200);  // stablelm-3b-4e1t
  EXPECT_EQ(import("stablelm", stable).rotary.fraction, 0.25);
  // One norm for both layers: 2 x 2560 parameters fewer in each.
  const Model parallel = import("stablelm", std::string(stable) + R"(, "use_parallel_residual": true)");
  EXPECT_EQ(count_parameters(parallel), 2'795'443'200 - 32 * 2 * 2560);
  const Model nemotron = import("nemotron", R"("hidden_size": 3072, "num_hidden_layers": 32,
      "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9216,
      "vocab_size": 256000, "hidden_act": "relu2", "norm_eps": 1e-5)");
  EXPECT_EQ(count_parameters(nemotron), 4'190'509'056);  // Minitron-4B
  EXPECT_EQ(nemotron.activation, Activation::kSquaredRelu);
  const Model smollm = import("smollm3", R"("hidden_size": 2048, "num_hidden_layers": 36,
      "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 11008, "vocab_size": 128256,
      "hidden_act": "silu", "rope_theta": 5e6)");
  EXPECT_EQ(count_parameters(smollm), 3'075'098'624);  // SmolLM3-3B
  for (std::int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(std::get<AttentionLayer>(depth_of(smollm).kind(i).layers[0].is).positions,
              i % 4 == 3 ? Positions::kNone : Positions::kRotary)
        << i;
  }
  const Model seed = import("seed_oss", R"("hidden_size": 5120, "num_hidden_layers": 64,
      "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 27648,
      "vocab_size": 155136, "attention_bias": true, "attention_out_bias": false, "mlp_bias": false)");
  EXPECT_EQ(count_parameters(seed), 36'151'104'512);  // Seed-OSS-36B
  const Model exaone = import("exaone4", R"("hidden_size": 5120, "num_hidden_layers": 64,
      "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 27392,
      "vocab_size": 102400, "sliding_window": 4096, "sliding_window_pattern": "LLLG")");
  EXPECT_EQ(count_parameters(exaone), 32'003'216'384);  // EXAONE-4.0-32B
  const Depth of_exaone = depth_of(exaone);
  EXPECT_EQ(of_exaone.counts(), (std::vector<std::int64_t>{48, 16}));
  const auto& near = std::get<AttentionLayer>(of_exaone.kind(0).layers[0].is);
  const auto& all = std::get<AttentionLayer>(of_exaone.kind(3).layers[0].is);
  EXPECT_EQ(near.sliding_window, 4096);
  EXPECT_EQ(near.positions, Positions::kRotary);
  EXPECT_EQ(all.sliding_window, 0);
  EXPECT_EQ(all.positions, Positions::kNone);
  const Model dots = import("dots1", R"("hidden_size": 4096, "num_hidden_layers": 62,
      "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "intermediate_size": 10944,
      "vocab_size": 152064, "n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2,
      "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "norm_topk_prob": true,
      "routed_scaling_factor": 2.5)");
  // By hand: attention 4 4096^2 + 256, an expert 3 4096 1408, 130 of them and a router with biases in 61
  // blocks, one of 10944; 142.8 G, of which 122 experts a block are idle for a token: 14 G active.
  const std::int64_t attention = 4LL * 4096 * 4096 + 256 + 2 * 4096, expert = 3LL * 4096 * 1408;
  EXPECT_EQ(count_parameters(dots), 2LL * 152064 * 4096 + 4096 + 62 * attention + 3LL * 4096 * 10944 +
                                        61 * (130 * expert + 128 * 4096 + 128));
  EXPECT_NEAR(static_cast<double>(count_active_parameters(dots)), 14e9, 0.4e9);

  const auto refusal = [&](const char* type, const char* fields) -> std::string {
    try {
      import(type, std::string(fields) + R"(, "hidden_size": 64, "num_hidden_layers": 4,
          "num_attention_heads": 4, "intermediate_size": 176, "vocab_size": 256)");
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal("nemotron", R"("hidden_act": "silu")").find("/hidden_act: \"silu\" cannot be imported"),
            std::string::npos);
  EXPECT_NE(refusal("stablelm", R"("qk_layernorm": true)").find("/qk_layernorm: true"), std::string::npos);
  EXPECT_NE(refusal("smollm3", R"("no_rope_layers": [1, 1, 0])").find("allowed: 4, one for each layer"),
            std::string::npos);
  EXPECT_NE(refusal("smollm3", R"("attention_bias": true)").find("/attention_bias: true"), std::string::npos);
  EXPECT_NE(refusal("dots1", R"("max_window_layers": 2, "sliding_window": 16, "head_dim": 16)")
                .find("/max_window_layers: layers with"),
            std::string::npos);
  // Without the field there are windows of 4,096 tokens; with null there are none, and all layers have
  // positions.
  const auto kinds = [&](const char* fields) {
    return depth_of(import("exaone4", std::string(fields) + R"(, "hidden_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "intermediate_size": 176, "vocab_size": 256)"))
        .kinds.size();
  };
  EXPECT_EQ(kinds(R"("hidden_act": "silu")"), 2U);
  EXPECT_EQ(kinds(R"("sliding_window": null)"), 1U);
  EXPECT_NE(refusal("seed_oss", R"("mlp_bias": true)").find("/mlp_bias: true"), std::string::npos);
}

TEST(HuggingFace, SizesOutOfRangeAreRefusedByTheirOwnNames) {
  const auto error_with = [](const char* name, const char* value) {
    Json config = parse_json(
        R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
            "intermediate_size": 14336, "vocab_size": 128256})",
        "config.json");
    config[name] = parse_json(value, "value");
    try {
      (void)import_hugging_face(config, Cursor{"config.json", ""});
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error_with("num_hidden_layers", "10000"), "no error");
  EXPECT_EQ(error_with("num_hidden_layers", "32000000"),
            "config.json: /num_hidden_layers: 32000000 is out of range; allowed: at least 1, at most 10000");
  EXPECT_NE(error_with("vocab_size", "0").find("/vocab_size: 0 is out of range"), std::string::npos);
  EXPECT_NE(error_with("num_key_value_heads", "0").find("is out of range"), std::string::npos);
}

TEST(Model, MoreParametersThanBytesCanBeCountedAreRefused) {
  Model m = preset_model("gpt3-175b");
  EXPECT_NO_THROW(check_model(m, {}));
  m.layers = 10'000;
  EXPECT_NO_THROW(check_model(m, {}));  // 12 h^2 a layer: 12 * 12288^2 * 1e4 = 1.8e13
  m.hidden = 1 << 20;
  m.heads = 8192;  // 12 * 2^40 * 1e4 = 1.3e17
  try {
    check_model(m, Cursor{"m.json", "/model"});
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "m.json: /model: the model has 1.3e+17 parameters; allowed: at most 1e+15");
  }
}

TEST(HuggingFace, AnotherActivationIsRefused) {
  const auto import = [](const char* activation) {
    return import_hugging_face({{"model_type", "llama"},
                                {"num_hidden_layers", 2},
                                {"hidden_size", 64},
                                {"num_attention_heads", 4},
                                {"intermediate_size", 128},
                                {"vocab_size", 100},
                                {"hidden_act", activation}},
                               Cursor{"config.json", ""});
  };
  EXPECT_EQ(import("silu").activation, Activation::kSwiglu);
  try {
    import("tanh");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "config.json: /hidden_act: \"tanh\" cannot be imported; allowed: silu, swish");
  }
}

// What is wrong in blocks that an import made stands in the config, under its name.
TEST(HuggingFace, SizesOfSparseLayersAreRefusedByTheirOwnNames) {
  const auto refused = [](const char* fields) {
    try {
      import_hugging_face(
          Json::parse(std::string(R"({"model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 4,
              "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 256, )") +
                      fields + "}"),
          {"config.json", ""});
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("imported");
  };
  EXPECT_EQ(refused(R"("n_group": 7)"),
            "config.json: /n_group: 7 groups do not divide 256 experts; allowed: a divisor of the number of "
            "experts");
  EXPECT_EQ(refused(R"("qk_rope_head_dim": 63)"),
            "config.json: /qk_rope_head_dim: 63 elements cannot turn in pairs; allowed: an even number");
  EXPECT_EQ(refused(R"("n_routed_experts": 8, "num_experts_per_tok": 9, "n_group": 1, "topk_group": 1)"),
            "config.json: /num_experts_per_tok: a token cannot choose 9 of 8 experts");
  EXPECT_EQ(refused(R"("scoring_func": "softmax")"),
            "config.json: /scoring_func: \"softmax\" cannot be imported; allowed: sigmoid");
  EXPECT_EQ(refused(R"("topk_method": "greedy")"),
            "config.json: /topk_method: \"greedy\" cannot be imported; allowed: noaux_tc");
  EXPECT_EQ(refused(R"("attention_bias": true)"),
            "config.json: /attention_bias: true cannot be imported; allowed: false");
  EXPECT_EQ(refused(R"("topk_group": 8, "topk_method": "noaux_tc", "scoring_func": "sigmoid")"), "imported");
}

// 126 layers and two ends in 16 chunks of 8. DeepSeek-V3's 61 layers, a head, and a module with its head in
// 16 chunks of 4; in 32 chunks of 2 what is behind the layers is more than a chunk.
TEST(Model, LayersAreDealtAroundTheEnds) {
  Model m = preset_model("llama-3.1-405b");
  std::vector<std::int64_t> expected(16, 8);
  expected.front() = expected.back() = 7;
  EXPECT_EQ(lighter_ends(m, 16), expected);
  EXPECT_TRUE(lighter_ends_are_equal(m, 16));
  EXPECT_FALSE(lighter_ends_are_equal(m, 12));
  m = preset_model("deepseek-v3-671b");
  m.mtp_layers = 1;
  expected.assign(16, 4);
  expected.back() = 1;
  EXPECT_EQ(lighter_ends(m, 16), expected);
  EXPECT_TRUE(lighter_ends_are_equal(m, 16));
  expected.assign(32, 2);
  expected[30] = 1;
  expected[31] = 0;
  EXPECT_EQ(lighter_ends(m, 32), expected);
  EXPECT_FALSE(lighter_ends_are_equal(m, 32));
  for (const std::int64_t chunks : {2, 3, 5, 8, 20, 31}) {
    const std::vector<std::int64_t> dealt = lighter_ends(m, chunks);
    EXPECT_EQ(std::accumulate(dealt.begin(), dealt.end(), std::int64_t{0}), 61) << chunks;
    EXPECT_GE(*std::min_element(dealt.begin(), dealt.end()), 0) << chunks;
  }
}

TEST(HuggingFace, AnUnknownTypeIsAClearError) {
  try {
    import_hugging_face(parse_json(R"({"model_type": "lama"})", "config.json"), Cursor{"config.json", ""});
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(
        e.what(),
        "config.json: /model_type: \"lama\" cannot be imported; the model can be described by fields of ours "
        "(layers, hidden, heads ..); allowed: llama, gemma, glm4, gemma2, gpt2, ijepa, olmo2, olmo3, olmoe, "
        "phi3, vit, dots1, falcon, qwen2, qwen3, smollm3, cohere, exaone4, glm4_moe, granite, kimi_k2, "
        "mistral, mixtral, cohere2 and 15 more (did you mean \"llama\"?)");
  }
}

}  // namespace
}  // namespace orrery
