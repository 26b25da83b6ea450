// SPDX-License-Identifier: Apache-2.0
#include "core/blocks.h"

#include <gtest/gtest.h>

#include "core/model.h"

namespace orrery {
namespace {

Model read(const std::string& blocks, const std::string& more = "") {
  return read_fields<Model>(Json::parse(R"({"preset": "tiny-llama", "blocks": )" + blocks + more + "}"),
                            Cursor{"model.json", ""});
}

// What the message of a wrong model says.
std::string message(const std::string& blocks, const std::string& more = "") {
  try {
    read(blocks, more);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

TEST(Blocks, OfAFlatModelAreOneKind) {
  const Depth depth = depth_of(preset_model("llama-3-8b"));
  ASSERT_TRUE(depth.uniform());
  EXPECT_EQ(depth.blocks(), 32);
  ASSERT_EQ(depth.stretches.size(), 1U);
  EXPECT_EQ(depth.stretches[0].period, 1);
  const auto& attention = std::get<AttentionLayer>(depth.kinds[0].layers[0].is);
  EXPECT_EQ(attention.head_dim, 4096 / 32);
  EXPECT_EQ(attention.qkv_width(), (32 + 2 * 8) * 128);
  // 32 heads, 8 of keys and values, 14336 = 2^11 * 7 columns.
  EXPECT_EQ(depth.shared(Degree::kTensor), 8);
}

// Gemma 2's: a window in every second block.
TEST(Blocks, AbsentFieldsAreTheModels) {
  const Model m = read(R"([{"times": 13, "blocks": [
      {"layers": [{"attention": {"sliding_window": 4096}}, "mlp"]}, {}]}])");
  EXPECT_EQ(m.layers, 26);
  const Depth depth = depth_of(m);
  ASSERT_EQ(depth.kinds.size(), 2U);
  EXPECT_EQ(depth.counts(), (std::vector<std::int64_t>{13, 13}));
  EXPECT_EQ(depth.kinds[1], depth_of(preset_model("tiny-llama")).kinds[0]);
  auto windowed = std::get<AttentionLayer>(depth.kinds[0].layers[0].is);
  EXPECT_EQ(windowed.sliding_window, 4096);
  windowed.sliding_window = 0;
  EXPECT_EQ(windowed, std::get<AttentionLayer>(depth.kinds[1].layers[0].is));
  EXPECT_EQ(depth.kinds[0].layers[1], depth.kinds[1].layers[1]);
  ASSERT_EQ(depth.stretches.size(), 1U);
  EXPECT_EQ(depth.stretches[0].period, 2);
}

// A pattern that a file lists block by block is found, and so is one that runs on.
TEST(Blocks, PatternsAreFound) {
  std::string list = "{}";
  for (int i = 1; i < 12; ++i) list += i % 3 == 0 ? ", {}" : R"(, {"layers": ["mlp"]})";
  const Depth depth = depth_of(read("[{\"blocks\": [" + list + "]}, {\"times\": 2}, {\"times\": 3}]"));
  EXPECT_EQ(depth.blocks(), 17);
  ASSERT_EQ(depth.stretches.size(), 2U);
  EXPECT_EQ(depth.stretches[0].period, 3);
  EXPECT_EQ(depth.stretches[1].first, 12);
  EXPECT_EQ(depth.stretches[1].blocks, 5);
  EXPECT_EQ(depth.stretches[1].period, 1);
  // Blocks 7 to 11 are as blocks 1 to 5; blocks of both stretches are only as themselves.
  EXPECT_EQ(depth.canonical(7, 5), 1);
  EXPECT_EQ(depth.canonical(14, 3), 12);
  EXPECT_EQ(depth.canonical(7, 6), 7);
}

// A block of 64 columns, 4 heads of 16 and 2 of keys and values: (64 + 2 * 32) 64 + 64^2 in attention,
// 3 * 64 * 176 in the MLP, and its norms.
TEST(Blocks, ParametersAreCounted) {
  const std::int64_t layers = 128 * 64 + 64 * 64 + 3 * 64 * 176;
  for (const auto& [form, norms] : {std::pair{"pre-norm", 2},
                                    {"sandwich-norm", 4},
                                    {"post-norm", 2},
                                    {"parallel", 2},
                                    {"parallel-one-norm", 1}}) {
    const Model m = read("[{}]", fmt::format(R"(, "form": "{}")", form));
    EXPECT_EQ(count_parameters(m, depth_of(m).kinds[0]), layers + norms * 64) << form;
    // Embedding, head and the last norm.
    EXPECT_EQ(count_parameters(m), layers + norms * 64 + 2 * 256 * 64 + 64) << form;
  }
}

TEST(Blocks, AreWrittenAsTheyAreRead) {
  const Model m = read(R"([{"times": 2, "blocks": [{"form": "parallel", "layers": ["mlp",
      {"attention": {"heads": 8, "kv_heads": 2}}, {"mlp": {"ffn_hidden": 99, "activation": "gelu"}}]}, {}]}])");
  const Json written = write_fields(m);
  EXPECT_EQ(read_fields<Model>(written, Cursor{"written", ""}), m);
  EXPECT_EQ(written["blocks"][0]["blocks"][0]["layers"][1]["attention"]["heads"], 8);
}

// Blocks may say other things than the flat fields, even where all are alike.
TEST(Blocks, OnlyFlatFieldsMakePlainLayers) {
  EXPECT_TRUE(plain_layers(preset_model("llama-2-7b")));
  EXPECT_FALSE(
      plain_layers(read(R"([{"times": 4, "blocks": [{"layers": [{"attention": {"heads": 8}}, "mlp"]}]}])")));
  EXPECT_FALSE(plain_layers(read("[{}]", R"(, "form": "parallel")")));
}

// Flat fields that every block gives anew may be absent.
TEST(Blocks, NeedNoFieldsThatTheyGive) {
  const auto read_plain = [](const char* layers) {
    return read_fields<Model>(
        Json::parse(fmt::format(
            R"({{"hidden": 64, "vocab": 96, "blocks": [{{"times": 2, "blocks": [{{"layers": {}}}]}}]}})",
            layers)),
        Cursor{"model.json", ""});
  };
  const Model m = read_plain(R"([{"attention": {"heads": 4}}, "mlp"])");
  EXPECT_EQ(m.layers, 2);
  EXPECT_EQ(std::get<MlpLayer>(depth_of(m).kinds[0].layers[1].is).ffn_hidden, 256);
  EXPECT_EQ(depth_of(read_plain(R"(["mlp"])")).shared(Degree::kTensor), 256);
  try {
    read_plain(R"(["attention"])");
    ADD_FAILURE() << "attention without heads";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find(
                  "/blocks/0/blocks/0/layers/0/attention/heads: the field \"heads\" is missing"),
              std::string::npos)
        << e.what();
  }
}

// A chunk of a pipeline may have none.
TEST(Blocks, ARunOfNoBlocksAddsNothing) {
  Depth depth;
  depth.add({{1, {}}, {1, {}}});
  EXPECT_EQ(depth.blocks(), 0);
  EXPECT_TRUE(depth.stretches.empty());
  EXPECT_EQ(depth.canonical(0, 0), 0);
}

constexpr const char* kTwoTowers =
    R"(, "inputs": [{"tokens": {"tower": "encoder"}}, {"tokens": {"tower": "decoder", "target": true}}])";

// An encoder of two blocks and a decoder of one, width 64, four heads of 16: parameters by hand.
TEST(Towers, AnEncoderAndItsDecoder) {
  const Model m = read(R"([{"times": 2, "blocks": [{"tower": "encoder", "final_norm": true}]},
                           {"blocks": [{"tower": "decoder", "layers":
                             ["attention", {"cross-attention": {"reads": "encoder", "kv_heads": 1}}, "mlp"]}]}])",
                       kTwoTowers);
  const Depth depth = depth_of(m);
  ASSERT_EQ(depth.blocks(), 3);
  EXPECT_EQ(depth.towers_of(0).own, 0);
  EXPECT_TRUE(depth.towers_of(1).read.empty());
  EXPECT_EQ(depth.towers_of(2).own, 1);
  EXPECT_EQ(depth.towers_of(2).read, std::vector<TowerIndex>{0});
  EXPECT_EQ(output_tower(depth), 1);
  // Wq and Wout 64 x 64, Wkv 2 x 16 x 64; the norm, and no biases.
  const std::int64_t cross = 2 * 64 * 64 + 32 * 64;
  const ModelBlock encoder = depth.kind(0), decoder = depth.kind(2);
  EXPECT_EQ(count_parameters(m, decoder) - count_parameters(m, encoder), cross);  // a norm more, one less
  const Training t{.sequence = 10, .target_sequence = 4};
  EXPECT_EQ(tower_tokens(m, t), (std::vector<std::int64_t>{10, 4}));
  EXPECT_EQ(tower_tokens(m, {.sequence = 10}), (std::vector<std::int64_t>{10, 10}));
  // Products of the decoder's tokens, of the encoder's, and 4 s n a d_h of attention; forward and backward.
  double flops = 2.0 * 10 * 32 * 64 + 2.0 * 4 * (2 * 64 * 64) + 4.0 * 4 * 10 * 64;  // cross-attention
  for (const auto& [times, tokens] : {std::pair{2.0, 10.0}, {1.0, 4.0}}) {
    double elements = 0;
    encoder.for_each_layer(
        [&](const auto& layer) { elements += static_cast<double>(layer.matrix_elements(64)); });
    flops += times * (2 * tokens * elements + 4 * tokens * tokens * 64);
  }
  flops += 2.0 * 4 * 64 * static_cast<double>(m.vocab);
  EXPECT_DOUBLE_EQ(model_flops_per_sequence(m, t, AttentionFlops::kFull).value, 3 * flops);
}

TEST(Towers, WrongOnesAreNamed) {
  const auto of = [](const char* blocks) { return message(blocks, kTwoTowers); };
  EXPECT_NE(of(R"([{"blocks": [{"tower": "encodr"}]}])").find("/blocks/0/blocks/0/tower: there is no tower"),
            std::string::npos);
  EXPECT_NE(of(R"([{"blocks": [{"layers": ["cross-attention"]}]}])").find("/cross-attention"),
            std::string::npos);
  EXPECT_NE(of(R"([{"blocks": [{"layers": [{"cross-attention": {"reads": "encoder"}}]}]}])")
                .find("/cross-attention/reads: the block is of this tower itself"),
            std::string::npos);
  EXPECT_NE(
      of(R"([{"blocks": [{"tower": "decoder"}]}])").find("/inputs/0: the tower \"encoder\" is not read"),
      std::string::npos);
  EXPECT_NE(of(R"([{"blocks": [{"tower": "decoder"}]}, {"blocks": [{"layers":
                  ["attention", {"cross-attention": {"reads": "decoder"}}]}]}])")
                .find("/blocks: the last block is of the tower \"encoder\""),
            std::string::npos);
  EXPECT_NE(
      message("[{}]", R"(, "output": {"classes": {"classes": 4}})").find("/output/classes/pool: the tower"),
      std::string::npos);
  EXPECT_NE(message("[{}]", R"(, "output": "pair")").find("/output: a model of 1 towers has no pair"),
            std::string::npos);
  EXPECT_NE(
      message("[{}]", R"(, "inputs": [{"patches": {"patch": 5}}], "output": {"classes": {"classes": 4}})")
          .find("/inputs/0/patches/patch: 5 does not divide images of 224 pixels"),
      std::string::npos);
  EXPECT_NE(
      message("[{}]", R"(, "inputs": ["tokens", "tokens"])").find("/inputs/1: the tower \"tokens\" is there"),
      std::string::npos);
  EXPECT_NE(message("[{}]", R"(, "inputs": ["token"])").find("/inputs/0: \"token\" is not an input"),
            std::string::npos);
}

TEST(Blocks, WrongOnesAreNamed) {
  EXPECT_NE(message(R"([{"blocks": [{"layers": ["mpl"]}]}])")
                .find("/blocks/0/blocks/0/layers/0: \"mpl\" is not a layer"),
            std::string::npos);
  EXPECT_NE(message(R"([{"blocks": [{"layers": ["mpl"]}]}])").find("mlp"), std::string::npos);
  EXPECT_NE(message(R"([{"blocks": [{"layers": [{"mlp": {"ffn": 3}}]}]}])").find("/layers/0/mlp"),
            std::string::npos);
  EXPECT_NE(message(R"([{"blocks": [{"layers": [{"mlp": {}, "attention": {}}]}]}])").find("is not a layer"),
            std::string::npos);
  EXPECT_NE(message(R"([{"blocks": [{"layers": []}]}])").find("not a list with elements"), std::string::npos);
  EXPECT_NE(message("{}").find("/blocks"), std::string::npos);
  EXPECT_NE(message("[{}, {}]", R"(, "layers": 3)").find("3 layers are not the 2 blocks"), std::string::npos);
  EXPECT_NE(message(R"([{"times": 9000}, {"times": 9000}])").find("more than 10000 blocks"),
            std::string::npos);
  EXPECT_NE(message(R"([{"times": 3, "blocks": [{"layers": [{"attention": {"heads": 3}}]}]}])")
                .find("/blocks/0/blocks/0/layers/0/attention/heads"),
            std::string::npos);
  EXPECT_NE(message("[{}]", R"(, "bias": true, "form": "sandwich-norm")")
                .find("/blocks/0/blocks/0/layers/0/attention/bias"),
            std::string::npos);
  EXPECT_EQ(message("[{}]"), "");
  EXPECT_EQ(message("[]"), "");
}

}  // namespace
}  // namespace orrery
