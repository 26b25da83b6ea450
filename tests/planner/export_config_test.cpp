// SPDX-License-Identifier: Apache-2.0
//
// Configurations of DeepSpeed and Accelerate, held against facts about what they take (tests/data/launchers)
// and read back into the plan they were made of.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/planner/export_cases.h"

namespace orrery::planner {
namespace {

bool takes(const Json& type, const Json& value) {
  if (type.is_array()) return std::find(type.begin(), type.end(), value) != type.end();
  const auto kind = type.get<std::string>();
  if (kind == "integer") return value.is_number_integer();
  if (kind == "number") return value.is_number();
  if (kind == "boolean") return value.is_boolean();
  if (kind == "text") return value.is_string();
  return kind == "numbers" && value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_number(); });
}

void expect_fields(const Json& facts, const Json& value, const std::string& pointer) {
  if (value.is_object()) {
    for (const auto& [key, child] : value.items()) expect_fields(facts, child, pointer + "/" + key);
    return;
  }
  ASSERT_TRUE(facts["fields"].contains(pointer)) << pointer << " is not known";
  EXPECT_TRUE(takes(facts["fields"][pointer], value)) << pointer << ": " << value;
}

void expect_deepspeed(const Json& facts, const ExportCase& c) {
  SCOPED_TRACE(c.name + " " + short_name(c.plan));
  const Training& t = c.problem.scenario.training;
  const Plan& p = c.plan;
  Json j = parse_json(export_plan(Target::kDeepspeed, c.problem, p, {}).text, "deepspeed.json");
  if (t.precision == Precision::kSgd || t.lamb || t.adapter) {
    EXPECT_EQ(j["optimizer"]["params"]["lr"], "LEARNING_RATE");  // a name to be replaced: no rate is advised
    j["optimizer"]["params"]["lr"] = 1e-3;
  }
  expect_fields(facts, j, "");
  EXPECT_EQ(j["train_micro_batch_size_per_gpu"], p.micro_batch);
  EXPECT_EQ(j["gradient_accumulation_steps"], p.micro_batches);
  // Where DeepSpeed splits tensors itself it would compare the batch with all ranks.
  EXPECT_EQ(j.contains("train_batch_size"), !j.contains("tensor_parallel"));
  if (j.contains("train_batch_size")) {
    EXPECT_EQ(j["train_batch_size"], p.micro_batch * p.micro_batches * p.dp);
  }
  const bool offloads = p.offloaded_optimizer() > 0;
  const std::int64_t stage = p.optimizer_on_drives() ? 3
                             : offloads              ? std::max<std::int64_t>(1, p.zero)
                             : p.dp > 1              ? p.zero
                                                     : 0;
  EXPECT_EQ(j["zero_optimization"]["stage"], stage);
  if (p.pp > 1) {
    EXPECT_LT(stage, 2);
  }
  EXPECT_EQ(j["zero_optimization"].contains("offload_optimizer"), offloads);
  EXPECT_EQ(j["zero_optimization"].contains("offload_param"), p.offloads_parameters());
  const auto in = [](bool drives) { return drives ? "nvme" : "cpu"; };
  if (offloads) {
    EXPECT_EQ(j["zero_optimization"]["offload_optimizer"]["device"], in(p.optimizer_on_drives()));
  }
  if (p.offloads_parameters()) {
    EXPECT_EQ(j["zero_optimization"]["offload_param"]["device"], in(p.parameters_on_drives()));
  }
  EXPECT_EQ(j.contains("activation_checkpointing"), p.offloaded_layers() > 0);
  EXPECT_EQ(j["zero_optimization"].value("mics_shard_size", p.dp), stage > 0 ? p.shards() : p.dp);
  EXPECT_EQ(j["bf16"]["enabled"], t.parameter_type() == DType::kBfloat16);
  EXPECT_EQ(j["fp16"]["enabled"], t.parameter_type() == DType::kFloat16);
  EXPECT_FALSE(j["bf16"]["enabled"].get<bool>() && j["fp16"]["enabled"].get<bool>());
  if (j.contains("data_types")) {
    EXPECT_EQ(j["data_types"]["grad_accum_dtype"] == "fp32", t.gradient_type() == DType::kFloat32);
  }
  EXPECT_EQ(j["gradient_clipping"], t.clip);
  EXPECT_EQ(j.contains("scheduler"), t.tokens > 0);
  if (j.contains("scheduler")) {
    EXPECT_GT(j["scheduler"]["params"]["warmup_num_steps"], 0);
  }
}

TEST(DeepspeedExport, EveryConfigurationFitsTheFactsAndHoldsThePlan) {
  RecordProperty("seed", kExportSeed);
  const Json facts = load_json(ORRERY_ROOT "/tests/data/launchers/deepspeed.json");
  for (const ExportCase& c : shipped_cases(Target::kDeepspeed)) expect_deepspeed(facts, c);
  RandomCases random(Target::kDeepspeed);
  int tensor = 0, groups = 0;
  for (int i = 0; i < 400; ++i) {
    const ExportCase c = random.next();
    expect_deepspeed(facts, c);
    tensor += c.plan.tp > 1 && c.plan.pp == 1 && !c.plan.sequence_parallel;
    groups += c.plan.shards() < c.plan.dp && c.plan.zero == 3;
  }
  EXPECT_GT(tensor, 5);
  EXPECT_GT(groups, 2);
}

TEST(DeepspeedExport, WhatIsOffloadedIsInTheFile) {
  const Json facts = load_json(ORRERY_ROOT "/tests/data/launchers/deepspeed.json");
  RandomCases random(Target::kDeepspeed);
  ExportCase c = random.next();
  c.problem.scenario.training = {.global_batch = 64, .sequence = 2048};
  c.plan = {.dp = 1,
            .micro_batches = 64,
            .recompute = Recompute::kFull,
            .offload = Offload{.optimizer = 1, .activation_layers = 4}};
  expect_deepspeed(facts, c);
  c.plan = {.dp = 8, .zero = 3, .micro_batches = 8, .offload = Offload{.optimizer = 1, .parameters = true}};
  expect_deepspeed(facts, c);
  c.plan.offload->nvme = OnDrives::kOptimizer;
  expect_deepspeed(facts, c);
  c.plan.offload->nvme = OnDrives::kAll;
  expect_deepspeed(facts, c);
  c.plan = {.dp = 8, .zero = 3, .micro_batches = 8, .offload = Offload{.optimizer = 0.25}};
  expect_deepspeed(facts, c);
  const Json j = parse_json(export_plan(Target::kDeepspeed, c.problem, c.plan, {}).text, "deepspeed.json");
  EXPECT_EQ(j["zero_optimization"]["offload_optimizer"]["ratio"], 0.25);
}

// Of one replica and eight stages the export would be ZeRO-3 with pipelines, which DeepSpeed has not.
TEST(DeepspeedExport, DrivesAreNotForPipelines) {
  RandomCases random(Target::kDeepspeed);
  ExportCase c = random.next();
  c.problem.scenario.model = preset_model("llama-2-7b");
  c.problem.scenario.training = {.global_batch = 64, .sequence = 2048};
  Plan plan{.pp = 8, .micro_batches = 64, .offload = Offload{.optimizer = 1, .nvme = OnDrives::kOptimizer}};
  const auto& [stack, model, training] =
      std::tie(c.problem.stack, c.problem.scenario.model, c.problem.scenario.training);
  ASSERT_TRUE(stack_problem(stack, model, plan, training));
  EXPECT_EQ(stack_problem(stack, model, plan, training)->pointer, "/plan/offload/nvme");
  plan.pp = 1;
  EXPECT_FALSE(stack_problem(stack, model, plan, training));
}

TEST(DeepspeedExport, WhatTheFileCannotSayIsSaid) {
  RandomCases random(Target::kDeepspeed);
  ExportCase c = random.next();
  c.problem.scenario.training = {.global_batch = 64, .sequence = 2048};
  c.plan = {.tp = 2, .pp = 4, .dp = 2, .zero = 1, .micro_batches = 32, .recompute = Recompute::kFull};
  const Exported e = export_plan(Target::kDeepspeed, c.problem, c.plan, {});
  const std::string notes = fmt::format("{}", fmt::join(e.notes, "\n"));
  EXPECT_NE(
      notes.find(
          "PipelineModule(num_stages=4, partition_method=\"uniform\", activation_checkpoint_interval=1)"),
      std::string::npos)
      << notes;
  EXPECT_NE(notes.find("given as mpu"), std::string::npos);
  EXPECT_NE(notes.find("group of their own with weight_decay 0"), std::string::npos);
  c.problem.scenario.training.optimizer.decay = Decay::kAll;
  for (const std::string& note : export_plan(Target::kDeepspeed, c.problem, c.plan, {}).notes)
    EXPECT_EQ(note.find("weight_decay"), std::string::npos) << note;
  EXPECT_EQ(e.text.find("autotp_size"), std::string::npos);
  c.plan = {.tp = 2, .dp = 8, .zero = 2, .micro_batches = 8};
  const Exported own = export_plan(Target::kDeepspeed, c.problem, c.plan, {});
  EXPECT_NE(own.text.find("\"autotp_size\": 2"), std::string::npos);
  const auto says = [&](const Plan& plan, const char* text) {
    const auto out = export_plan(Target::kDeepspeed, c.problem, plan, {}).notes;
    EXPECT_NE(fmt::format("{}", fmt::join(out, "\n")).find(text), std::string::npos) << text;
  };
  says({.dp = 16, .zero = 3, .shard_group = 8, .micro_batches = 4}, "MiCS_Init");
  says({.dp = 16, .zero = 1, .micro_batches = 4, .offload = Offload{.optimizer = 0.5}}, "offloads all");
  says({.dp = 16, .zero = 1, .micro_batches = 4, .offload = Offload{.optimizer = 1, .overlap = false}},
       "run beside its updates");
  says({.dp = 16, .zero = 1, .micro_batches = 4, .offload = Offload{.activation_layers = 2}},
       "the plan recomputes no whole layers");
  says({.dp = 16,
        .zero = 3,
        .micro_batches = 4,
        .offload = Offload{.optimizer = 1, .nvme = OnDrives::kOptimizer}},
       "NVME_FOLDER is to be replaced");
  Plan full{.dp = 16, .micro_batches = 4, .recompute = Recompute::kFull};
  says(full, "wrap every layer of the model in");
  full.recompute_layers = 2;
  says(full, "wrap every 2 layers of the model in");
}

// The two levels of keys that the file has, as "section.key".
std::map<std::string, std::string> read_yaml(const std::string& text) {
  std::map<std::string, std::string> out;
  std::istringstream lines(text);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    const std::size_t colon = line.find(':'), first = line.find_first_not_of(' ');
    std::string key = line.substr(first, colon - first),
                value = colon + 2 < line.size() ? line.substr(colon + 2) : "";
    std::erase(value, '\'');
    if (first == 0) section = value.empty() ? key + "." : "";
    if (!value.empty()) {
      EXPECT_TRUE(out.emplace(section + key, value).second) << key << " stands twice";
    }
  }
  return out;
}

void expect_accelerate(const Json& facts, const ExportCase& c) {
  SCOPED_TRACE(c.name + " " + short_name(c.plan));
  const Plan& p = c.plan;
  auto y = read_yaml(export_plan(Target::kFsdp, c.problem, p, {}).text);
  for (const auto& [key, value] : y) {
    ASSERT_TRUE(facts["fields"].contains(key)) << key << " is not known";
    const Json& type = facts["fields"][key];
    const bool word =
        value.find_first_not_of("0123456789") != std::string::npos && value != "true" && value != "false";
    EXPECT_TRUE(takes(type, word ? Json(value) : parse_json(value, key))) << key << ": " << value;
  }
  EXPECT_EQ(y["num_processes"], std::to_string(p.ranks()));
  const bool sharded = (p.dp > 1 && p.zero > 0) || p.offloads_parameters();
  EXPECT_EQ(y["fsdp_config.fsdp_offload_params"], !sharded ? "" : p.offloads_parameters() ? "true" : "false");
  EXPECT_EQ(y["distributed_type"], sharded ? "FSDP" : p.dp > 1 ? "MULTI_GPU" : "NO");
  EXPECT_EQ(y["fsdp_config.fsdp_reshard_after_forward"], !sharded ? "" : p.zero == 3 ? "true" : "false");
  EXPECT_EQ(y["fsdp_config.fsdp_activation_checkpointing"], !sharded                          ? ""
                                                            : p.recompute == Recompute::kFull ? "true"
                                                                                              : "false");
  const bool grouped = sharded && p.shards() < p.dp;
  EXPECT_EQ(y["parallelism_config.parallelism_config_dp_shard_size"],
            grouped ? std::to_string(p.shards()) : "");
  EXPECT_EQ(y["parallelism_config.parallelism_config_dp_replicate_size"],
            grouped ? std::to_string(p.dp / p.shards()) : "");
  const Training& t = c.problem.scenario.training;
  EXPECT_EQ(y["fp8_config.backend"], t.math == Math::kFp8 ? "AO" : t.math == Math::kFp8Delayed ? "TE" : "");
  EXPECT_EQ(y["mixed_precision"], rounds(t.math)          ? "fp8"
                                  : t.math == Math::kBf16 ? "bf16"
                                  : t.math == Math::kFp16 ? "fp16"
                                                          : "no");
}

TEST(FsdpExport, EveryConfigurationFitsTheFactsAndHoldsThePlan) {
  RecordProperty("seed", kExportSeed);
  const Json facts = load_json(ORRERY_ROOT "/tests/data/launchers/accelerate.json");
  for (const ExportCase& c : shipped_cases(Target::kFsdp)) expect_accelerate(facts, c);
  RandomCases random(Target::kFsdp);
  for (int i = 0; i < 200; ++i) expect_accelerate(facts, random.next());
  for (const std::int64_t dp : {1, 8}) {
    ExportCase c = random.next();
    c.problem.scenario.training = {.global_batch = 64, .sequence = 2048};
    c.plan = {.dp = dp,
              .zero = 3,
              .micro_batches = 64 / dp,
              .offload = Offload{.optimizer = 1, .parameters = true}};
    expect_accelerate(facts, c);
  }
}

TEST(Fit, NeededAndAvailableAreBytesOfTheFullestRank) {
  const Problem p = load_problem(ORRERY_ROOT "/scenarios/llama3-70b-p4d.json", DataFolders());
  const Plan& plan = *p.scenario.plan;
  const Predicted predicted = evaluate(p, sim::Topology(p.cluster), plan).predicted;
  const Fit by_engine = fit(p, plan, predicted), by_estimate = fit(p, plan);
  EXPECT_EQ(by_engine.needed, predicted.peak_memory_bytes);
  EXPECT_EQ(by_estimate.needed, by_engine.needed);
  EXPECT_EQ(by_engine.available, p.devices[0].memory.value);
  EXPECT_TRUE(by_engine.fits());
  Plan large = plan;
  large.recompute = Recompute::kNone;
  const Fit too_large = fit(p, large);
  EXPECT_FALSE(too_large.fits());
  EXPECT_EQ(too_large.stage, 0);
  EXPECT_NE(too_large.text(p).find("on stage 0, and a100-40gb has 40.00 GiB"), std::string::npos)
      << too_large.text(p);
}

}  // namespace
}  // namespace orrery::planner
