// SPDX-License-Identifier: Apache-2.0
//
// Published training runs (tests/data/README.md): how wrong we are stays known.
#include "sim/calibration/score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace orrery::sim {
namespace {

const Validation& published() {
  static const Validation v = validate_file(ORRERY_ROOT "/tests/data/training_runs.json", DataFolders());
  return v;
}

TEST(Validation, EveryShippedRowIsPredicted) {
  EXPECT_TRUE(published().skipped.empty());
  const auto out_of_memory = std::count_if(published().fits.begin(), published().fits.end(),
                                           [](const FitRow& row) { return !row.fitted; });
  EXPECT_EQ(out_of_memory, 17);
  EXPECT_EQ(summarise(published().rows, {"step_time"}).n + out_of_memory, published().read);
  EXPECT_GT(published().read, 100);
}

TEST(Validation, ErrorsAreWhatTheDocumentsSay) {
  const auto mape = [](const char* source) {
    return summarise(published().rows, {"step_time", source}).mape;
  };
  EXPECT_LT(mape("korthikanti"), 0.05);
  EXPECT_LT(mape("dgxc"), 0.065);
  EXPECT_LT(mape("internevo"), 0.055);
  EXPECT_LT(mape("zero_bubble"), 0.06);
  EXPECT_LT(mape("megatron_sc21"), 0.1);
  EXPECT_LT(mape("bigscience"), 0.057);
  EXPECT_LT(mape("llm_foundry"), 0.04);
  EXPECT_LT(mape("simumax"), 0.06);
  EXPECT_LT(mape("torchtitan"), 0.075);
  EXPECT_LT(mape("dgxc fp8"), 0.1);
  EXPECT_LT(mape("torchtitan fp8"), 0.105);
  EXPECT_LT(mape("mbridge fp4"), 0.08);
  EXPECT_GT(mape("torchtitan fp8 rowwise"), 0.2);
}

// The interval printed beside a prediction is one: about 80 % of the runs fall into it. It is that of
// predictions without their study, so that more of these fall into it, which were fitted to.
TEST(Validation, IntervalsHoldTheShareTheyClaim) {
  const DataFolders data;
  const MeasuredRange range = measured_range(load_stack("megatron-core-2024", {}, data),
                                             {load_device("h100-sxm", {}, data)}, load_published_fit(data));
  ASSERT_EQ(range.knowledge, Knowledge::kBoth);
  std::int64_t n = 0, inside = 0;
  for (const ValidationRow& r : published().rows) {
    if (r.quantity != "step_time" || r.source.starts_with("sailor")) continue;
    const double ratio = r.published / r.predicted;
    ++n;
    inside += ratio >= range.low && ratio <= range.high;
  }
  EXPECT_GT(n, 700);
  EXPECT_GT(static_cast<double>(inside), 0.76 * static_cast<double>(n));
  EXPECT_LT(static_cast<double>(inside), 0.95 * static_cast<double>(n));
}

// --- how rows are read ----------------------------------------------------------------------------

// A run of Megatron on 16 H100 that says nothing more than it has to.
Json training_row(const Json& changed) {
  Json row = {{"id", "r"},
              {"source", "a report"},
              {"source_key", "mbridge"},
              {"outcome", "ok"},
              {"gpu", "H100-SXM5-80GB"},
              {"num_gpus", 16},
              {"global_batch", 64},
              {"precision", "bf16"},
              {"model",
               {{"name", "m"},
                {"layers", 32},
                {"hidden", 2048},
                {"heads", 16},
                {"kv_heads", 16},
                {"ffn_hidden", 8192},
                {"seq_len", 2048}}},
              {"parallel", {{"tp", 2}, {"pp", 4}, {"dp", 2}}},
              {"measured", {{"step_time_s", 1.0}}}};
  if (!changed.is_null()) row.merge_patch(changed);
  return row;
}
ValidationRow read_row(const Json& changed) {
  const Validation v = validate_training(Json::array({training_row(changed)}), "rows.json", DataFolders());
  EXPECT_TRUE(v.skipped.empty()) << v.skipped.begin()->first;
  return v.rows.at(0);
}
bool assumes(const ValidationRow& row, const std::string& what) {
  return std::find(row.assumed.begin(), row.assumed.end(), what) != row.assumed.end();
}

// 32 layers on 4 stages: chunks of two layers, so four on a stage; and tensor ranks split sequences. A row
// that says otherwise is taken at its word, and older software does neither.
TEST(TrainingRows, NvidiasStackInterleavesAndSplitsSequencesWhereARowDoesNotSay) {
  const ValidationRow row = read_row({});
  EXPECT_EQ(row.knobs.at("vpp"), "4 interleaved");
  EXPECT_EQ(row.knobs.at("sequence parallel"), "");
  EXPECT_TRUE(assumes(row, "parallel.vpp"));
  EXPECT_TRUE(assumes(row, "parallel.sp"));
  const ValidationRow said = read_row({{"parallel", {{"vpp", 1}, {"sp", false}}}});
  EXPECT_EQ(said.knobs.at("vpp"), "1 1f1b");
  EXPECT_EQ(said.knobs.at("sequence parallel"), "none");
  EXPECT_FALSE(assumes(said, "parallel.vpp"));
  EXPECT_FALSE(assumes(said, "parallel.sp"));
  EXPECT_EQ(read_row({{"source_key", "megatron_sc21"}, {"gpu", "A100-SXM4-80GB"}}).knobs.at("vpp"), "1 1f1b");
}

// Six layers and two ends fill 8 chunks of one, so the ends have none; five layers fill no 8 chunks.
TEST(TrainingRows, EndsCountAsLayersWhereThatFillsTheChunks) {
  Json row = training_row({{"model", {{"layers", 6}}}, {"parallel", {{"vpp", 2}}}});
  const auto read = [&] { return validate_training(Json::array({row}), "rows.json", DataFolders()); };
  ASSERT_EQ(read().rows.size(), 1U);
  EXPECT_EQ(read().rows[0].knobs.at("vpp"), "2 interleaved");
  row["model"]["layers"] = 5;
  EXPECT_TRUE(read().rows.empty());
}

TEST(TrainingRows, WithoutAPipelineAMicroBatchIsFourSequencesWhereTheBatchAllows) {
  const Json flat = {{"parallel", {{"pp", 1}, {"dp", 8}}}};
  const ValidationRow row = read_row(flat);  // 64 sequences on 8 replicas
  EXPECT_EQ(row.knobs.at("micro-batch"), "4");
  EXPECT_TRUE(assumes(row, "micro_batch"));
  Json two = flat;
  two["global_batch"] = 16;
  EXPECT_EQ(read_row(two).knobs.at("micro-batch"), "2");
}

// Llama-3-70B in 64 shards keeps far more than 80 GB without recomputation; GB200s may move it to their CPUs.
TEST(TrainingRows, RecomputeWhatCannotBeKept) {
  Json large = {{"source_key", "llm_foundry"},
                {"num_gpus", 64},
                {"global_batch", 256},
                {"micro_batch", 4},
                {"model",
                 {{"layers", 80},
                  {"hidden", 8192},
                  {"heads", 64},
                  {"kv_heads", 8},
                  {"ffn_hidden", 28672},
                  {"seq_len", 8192},
                  {"gated_mlp", true}}},
                {"parallel", {{"tp", 1}, {"pp", 1}, {"dp", 64}, {"zero_stage", 3}}}};
  const ValidationRow row = read_row(large);
  EXPECT_EQ(row.knobs.at("recompute"), "full/1");
  EXPECT_TRUE(assumes(row, "recompute"));
  large["gpu"] = "GB200-NVL72-192GB";
  large["gpus_per_node"] = 4;
  large["source_key"] = "mbridge";
  EXPECT_EQ(read_row(large).knobs.at("recompute"), "none/1");
}

// "4 x 100 Gb/s" are of a node, "400 Gb/s per GPU" of each of eight GPUs.
TEST(TrainingRows, NetworksAreReadFromTheirWords) {
  const auto network = [](const char* words) {
    return read_row({{"interconnect", words}}).asked.at("network");
  };
  EXPECT_EQ(network("NVLink; 4x 100 Gb/s RoCE per node"), "dgx-h100 50000000000");
  EXPECT_EQ(network("NVLink; 400 Gb/s per GPU"), "dgx-h100 400000000000");
  EXPECT_EQ(network("900 Gb/s per node"), "dgx-h100 112500000000");
}

// A source that nobody knows has the software of its time, and the row says that this was assumed.
TEST(TrainingRows, SoftwareOfAnUnknownSourceIsAssumed) {
  EXPECT_TRUE(assumes(read_row({{"source_key", "somebody"}}), "software"));
  EXPECT_FALSE(assumes(read_row({}), "software"));
}

// Of four runs, a and b differ in tp alone: 100 s to 80 s published, 100 s to 90 s predicted, 12.5 % off and
// the right way. a and c differ in two knobs, d is of another source, and e changes too little to have a way.
TEST(Interventions, ArePairsThatDifferInOneKnob) {
  const auto row = [](const char* source, double predicted, double published, const char* tp,
                      const char* pp) {
    ValidationRow r{"r", source, "step_time", predicted, published, {}, 0, {{"gpus", "8"}}};
    r.knobs = {{"tp", tp}, {"pp", pp}};
    return r;
  };
  ValidationRow doubted = row("s", 90, 10, "8", "1");
  doubted.suspect = true;
  const auto by_knob =
      interventions({row("s", 100, 100, "1", "1"), row("s", 90, 80, "2", "1"), row("s", 50, 70, "4", "2"),
                     row("other", 70, 90, "8", "1"), row("s", 98, 101, "1", "8"), doubted});
  ASSERT_EQ(by_knob.size(), 2U);
  const KnobSummary& tp = by_knob.at("tp");
  EXPECT_EQ(tp.pairs, 1);
  EXPECT_NEAR(tp.mape, 0.9 / 0.8 - 1, 1e-12);
  EXPECT_EQ(tp.clear, 1);
  EXPECT_EQ(tp.right_way, 1);
  const KnobSummary& pp = by_knob.at("pp");
  EXPECT_EQ(pp.pairs, 1);
  EXPECT_NEAR(pp.median, 1 - 0.98 / 1.01, 1e-12);
  EXPECT_EQ(pp.clear, 0);
}

// Twice the batch in twice the time is no change; what is asked for is a knob too.
TEST(Interventions, CompareTimesOfASequence) {
  ValidationRow a{"a", "s", "step_time", 10, 10, {}, 0, {{"batch", "8"}}, {{"tp", "1"}}, 8};
  ValidationRow b{"b", "s", "step_time", 22, 20, {}, 0, {{"batch", "16"}}, {{"tp", "1"}}, 16};
  const KnobSummary batch = interventions({a, b}).at("batch");
  EXPECT_NEAR(batch.mape, 0.1, 1e-12);
  EXPECT_EQ(batch.clear, 0);
}

// Four plans of one question, published 10, 12, 11 (mean of 10.5 and 11.5) and 20 s, ranks 1 3 2 4; predicted
// 11, 10, 30 and 40 s, ranks 2 1 3 4. Of ranks less their mean of 2.5 the products are
// 0.75 - 0.75 - 0.25 + 2.25 = 2 and the squares 5: 0.4. The plan predicted fastest took 12 s: 20 % more.
TEST(Rankings, OfFourPlansByHand) {
  const auto row = [](const char* asked, const char* tp, double predicted, double published) {
    return ValidationRow{"r", "s", "step_time", predicted, published, {}, 0, {{"gpus", asked}}, {{"tp", tp}}};
  };
  ValidationRow doubted = row("8", "16", 1, 100);
  doubted.suspect = true;
  const std::vector<ValidationRow> rows = {row("8", "1", 11, 10),
                                           row("8", "2", 10, 12),
                                           row("8", "4", 30, 10.5),
                                           row("8", "4", 30, 11.5),
                                           row("8", "8", 40, 20),
                                           row("16", "1", 1, 1),
                                           doubted};
  const auto rankings = rank_plans(rows, 2);
  ASSERT_EQ(rankings.size(), 1U);
  EXPECT_EQ(rankings[0].plans, 4);
  EXPECT_NEAR(rankings[0].spearman, 0.4, 1e-12);
  EXPECT_NEAR(rankings[0].regret, 0.2, 1e-12);
  EXPECT_EQ(rank_plans(rows, 5).size(), 0U);
}

// Two plans predicted alike have rank 1.5 each, beside published ranks of 1 and 2: of three plans the
// products are 0.5 + 0 + 1 = 1.5 and the squares 1.5 and 2. Either may be taken: 15 s in the mean, of 10 s.
TEST(Rankings, TiesHaveTheirMean) {
  const auto row = [](const char* tp, double predicted, double published) {
    return ValidationRow{"r", "s", "step_time", predicted, published, {}, 0, {{"gpus", "8"}}, {{"tp", tp}}};
  };
  const auto r = rank_plans({row("1", 5, 10), row("2", 5, 20), row("4", 7, 30)}, 2);
  ASSERT_EQ(r.size(), 1U);
  EXPECT_NEAR(r[0].spearman, 1.5 / std::sqrt(1.5 * 2), 1e-12);
  EXPECT_NEAR(r[0].regret, 0.5, 1e-12);
}

TEST(Rankings, SourcesHaveTheirMeanAndWorst) {
  const auto of = by_source({{"a", "x", 2, 1, 0}, {"a", "y", 4, 0.5, 0.2}, {"b", "x", 2, -1, 0.1}});
  ASSERT_EQ(of.size(), 2U);
  EXPECT_EQ(of.at("a").questions, 2);
  EXPECT_EQ(of.at("a").plans, 6);
  EXPECT_NEAR(of.at("a").spearman, 0.75, 1e-12);
  EXPECT_NEAR(of.at("a").regret, 0.1, 1e-12);
  EXPECT_NEAR(of.at("a").worst_regret, 0.2, 1e-12);
}

// The plan that a study found fastest is predicted fastest, or nearly so.
TEST(Rankings, OfPublishedPlansAreWhatTheDocumentsSay) {
  const auto of = by_source(rank_plans(published().rows, 2));
  EXPECT_LT(of.at("bigscience").regret, 0.005);
  EXPECT_LT(of.at("internevo").regret, 0.005);
  EXPECT_LT(of.at("torchtitan").regret, 0.01);
  EXPECT_LT(of.at("simumax").regret, 0.005);
  EXPECT_LT(of.at("zero_bubble").regret, 0.01);
  for (const char* source : {"bigscience", "internevo", "simumax", "zero_bubble"})
    EXPECT_GT(of.at(source).spearman, 0.8) << source;
  EXPECT_GT(of.at("bigscience").questions, 10);
}

// A step of one micro-batch a replica has the batch that its plan has, so the batch is not asked for.
TEST(TrainingRows, TheBatchIsAskedForWhereMicroBatchesMakeIt) {
  EXPECT_EQ(read_row({}).asked.at("global batch"), "64");
  const ValidationRow one = read_row({{"parallel", {{"pp", 1}, {"dp", 8}}}, {"micro_batch", 8}});
  EXPECT_EQ(one.asked.at("global batch"), "a micro-batch of each replica");
  EXPECT_EQ(one.sequences, 64);
  EXPECT_FALSE(one.suspect);
  EXPECT_TRUE(read_row({{"suspect", "twice as slow as its neighbours"}}).suspect);
}

// Ten rows of 100 s, predicted as 100 over 1.0, 1.1, .. 1.9: published over predicted is that. The tenth
// percentile has one below it, the ninetieth is the largest.
TEST(Summary, OfTenRowsByHand) {
  std::vector<ValidationRow> rows;
  double size = 0, error = 0;
  for (int i = 0; i < 10; ++i) {
    const double ratio = 1 + 0.1 * ((i * 7) % 10);
    rows.push_back({"r", "a", "time", 100 / ratio, 100, {}, i < 4 ? 0 : 1 << 26});
    size += 1 - 1 / ratio;
    error += 1 / ratio - 1;
  }
  rows.push_back({"r", "b", "time", 500, 100, {"something"}, 0});
  rows.push_back({"r", "a", "memory", 500, 100, {}, 0});
  const ErrorSummary s = summarise(rows, {"time", "a"});
  EXPECT_EQ(s.n, 10);
  EXPECT_NEAR(s.mape, size / 10, 1e-12);
  EXPECT_NEAR(s.bias, error / 10, 1e-12);
  EXPECT_NEAR(s.median, 1 - 1 / 1.5, 1e-12);
  EXPECT_NEAR(s.low, 1.1, 1e-12);
  EXPECT_NEAR(s.high, 1.9, 1e-12);
  EXPECT_EQ(summarise(rows, {"time"}).n, 11);
  EXPECT_EQ(summarise(rows, {"time", {}, true}).n, 10);
  EXPECT_EQ(summarise(rows, {"time", {}, false, 1 << 20}).n, 6);
  EXPECT_EQ(summarise(rows, {"nothing"}).n, 0);
}

// --- published collectives ------------------------------------------------------------------------

Json row(const char* system, int gpus, std::int64_t bytes, double time_us, int nodes = 1) {
  return {{"id", "r"},          {"system", system},    {"collective", "all_reduce"},
          {"gpus", gpus},       {"nodes", nodes},      {"message_bytes", bytes},
          {"time_us", time_us}, {"basis", "measured"}, {"algo", "nccl-auto"}};
}

Validation collectives(const Json& rows) {
  return validate_collectives(rows, "rows.json", DataFolders());
}

// What the link profile measured on a system does not predict that system's own rows.
TEST(ValidateCollectives, AGroupIsPredictedWithoutItsOwnCurve) {
  const double measured = 2111.2;  // of the curve, us
  const auto predicted = [&](const char* system) {
    return 1e6 * collectives(Json::array({row(system, 8, 1 << 29, measured)})).rows.at(0).predicted;
  };
  EXPECT_NEAR(predicted("HGX H100 8 GPU"), measured, 1);
  EXPECT_GT(std::abs(predicted("HGX H100-SXM 80GB NVSwitch") / measured - 1), 0.02);
}

TEST(ValidateCollectives, RunsThatDisagreeAreListedNotScored) {
  const char* system = "AWS p5.48xlarge (8xH100, EFA 32x100G)";
  const Validation v =
      collectives(Json::array({row(system, 16, 1 << 26, 600, 2), row(system, 16, 1 << 26, 1000, 2),
                               row(system, 16, 1 << 20, 120, 2), row(system, 8, 1 << 26, 330)}));
  EXPECT_EQ(v.conflicting.size(), 3u);
  ASSERT_EQ(v.rows.size(), 1u);
  EXPECT_NEAR(v.rows[0].published, 330e-6, 1e-12);
}

TEST(ValidateCollectives, TheSystemSaysItsNetworkOrItIsNotScored) {
  const Validation v = collectives(Json::array({row("8xA100-80GB DGX", 16, 1 << 26, 7000, 2),
                                                row("DGX A100, 8x200G", 16, 1 << 30, 10000, 2),
                                                row("DGX A100, 4x100G", 16, 1 << 30, 40000, 2)}));
  EXPECT_EQ(v.skipped.at("network between the nodes not stated"), 1);
  ASSERT_EQ(v.rows.size(), 2u);
  EXPECT_GT(v.rows[1].predicted / v.rows[0].predicted, 2);
}

}  // namespace
}  // namespace orrery::sim
