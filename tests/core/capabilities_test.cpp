// SPDX-License-Identifier: Apache-2.0
#include "core/capabilities.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "core/scenario.h"

namespace orrery {
namespace {

Stack shipped(const std::string& name) {
  return load_stack(name, {}, DataFolders());
}

std::string problem_of(const std::string& stack, const Plan& plan, const Training& training = {}) {
  const auto wrong = stack_problem(shipped(stack), preset_model("llama-2-7b"), plan, training);
  return wrong ? wrong->pointer + ": " + wrong->text + "; " + wrong->allowed : "";
}

struct FieldNames {
  std::set<std::string> names;
  template <class T>
  void operator()(const Field& f, T&) {
    names.insert(f.name);
  }
};

// Each value is from somewhere: a version of the software, and a line or document of it.
TEST(Capabilities, EveryFieldOfEveryShippedStackHasAnOrigin) {
  const DataFolders data;
  int stacks = 0;
  for (const std::string& name : data.names("profiles/stacks")) {
    const Stack stack = load_stack(name, {}, data);
    ASSERT_TRUE(stack.runs) << name;
    Capabilities c = *stack.runs;
    FieldNames fields;
    describe(fields, c);
    for (const char* own : {"software", "refused", "origin"}) fields.names.erase(own);
    for (const auto& [key, text] : c.origin) {
      EXPECT_FALSE(text.empty()) << name << " " << key;
      if (key == "all") fields.names.clear();
      for (std::size_t at = 0; at < key.size() && key != "all";) {
        const std::size_t end = std::min(key.find(", ", at), key.size());
        EXPECT_EQ(fields.names.erase(key.substr(at, end - at)), 1U)
            << name << ": " << key.substr(at, end - at);
        at = end + 2;
      }
    }
    EXPECT_TRUE(fields.names.empty()) << name << " says nothing of " << *fields.names.begin();
    EXPECT_TRUE(stack.executable || c.software.find_first_of("0123456789") != std::string::npos)
        << name << ": \"" << c.software << "\" names no version";
    for (const Refusal& r : c.refused) EXPECT_FALSE(r.origin.empty()) << name << " " << r.why;
    ++stacks;
  }
  EXPECT_EQ(stacks, 17);
}

TEST(Capabilities, FsdpHasReplicasAlone) {
  const std::string file = shipped("fsdp").file;
  EXPECT_EQ(
      problem_of("fsdp", {.tp = 4}),
      "/plan/tp: fsdp has no tensor parallelism (PyTorch FSDP2 as configured by Accelerate v1.14.0 (11 June "
      "2026), " +
          file + "); allowed: 1");
  EXPECT_TRUE(problem_of("fsdp", {.pp = 2}).starts_with("/plan/pp: fsdp has no pipeline parallelism"));
  EXPECT_TRUE(problem_of("fsdp", {.dp = 8, .zero = 1}).ends_with("; allowed: 0, 2, 3"));
  EXPECT_EQ(problem_of("fsdp", {.dp = 8, .zero = 3}), "");
  EXPECT_EQ(problem_of("fsdp", {.dp = 8, .zero = 2, .shard_group = 4}), "");
  EXPECT_TRUE(
      problem_of("fsdp", {.dp = 8, .recompute = Recompute::kSelective}).starts_with("/plan/recompute:"));
}

TEST(Capabilities, SchedulesAreThoseOfTheSoftware) {
  const Plan zb{.pp = 4, .schedule = Schedule::kZeroBubbleH1};
  EXPECT_TRUE(
      problem_of("megatron-core", zb).starts_with("/plan/schedule: megatron-core has no zb-h1 schedule"));
  EXPECT_TRUE(problem_of("megatron-core", zb).ends_with("; allowed: 1f1b, interleaved"));
  EXPECT_EQ(problem_of("megatron-zero-bubble", zb, {.precision = Precision::kMegatron}), "");
  const Plan interleaved{.tp = 4, .pp = 2, .vpp = 8, .schedule = Schedule::kInterleaved};
  EXPECT_TRUE(
      problem_of("deepspeed", interleaved).starts_with("/plan/schedule: deepspeed has no interleaved"));
  Plan one_stage = zb;
  one_stage.pp = 1;  // where schedules are all the same
  EXPECT_EQ(problem_of("megatron-core", one_stage), "");
}

TEST(Capabilities, CombinationsAreRefusedWithTheirReason) {
  const Plan both{.pp = 2, .dp = 4, .zero = 2};
  EXPECT_TRUE(
      problem_of("deepspeed", both).starts_with("/plan/zero: deepspeed: ZeRO-2 and 3 do not run with pip"));
  EXPECT_TRUE(problem_of("megatron-core", both).starts_with("/plan/zero: megatron-core: ZeRO-2 and 3"));
  Plan stage1 = both;
  stage1.zero = 1;
  EXPECT_EQ(problem_of("deepspeed", stage1), "");
  Plan alone = both;
  alone.dp = 1;  // nothing is sharded
  EXPECT_EQ(problem_of("deepspeed", alone), "");
  EXPECT_TRUE(problem_of("megatron-core", {.tp = 2, .dp = 4, .zero = 3, .rank_order = RankOrder::kTpPpDp})
                  .starts_with("/plan/rank_order"));
  EXPECT_TRUE(
      problem_of("torchtitan", {.tp = 2, .dp = 4, .sequence_parallel = true}).starts_with("/plan/zero"));
  EXPECT_TRUE(problem_of("torchtitan", {.tp = 2, .dp = 4, .zero = 3})
                  .find("no tensor parallelism without sequence parallelism") != std::string::npos);
  EXPECT_EQ(problem_of("torchtitan", {.dp = 4}), "");
  EXPECT_TRUE(problem_of("deepspeed", {.dp = 4, .zero = 1}, {.lamb = true}).starts_with("/training/lamb"));
  EXPECT_EQ(problem_of("deepspeed", {.dp = 4}, {.lamb = true}), "");
  EXPECT_TRUE(problem_of("megatron-core", {}, {.lamb = true}).ends_with("allowed: false"));
  EXPECT_TRUE(problem_of("megatron-core", {.dp = 4, .zero = 1}, {.muon = Muon{}}).starts_with("/plan/zero"));
  EXPECT_TRUE(problem_of("megatron-core", {.dp = 4}, {.math = Math::kFp16, .muon = Muon{}})
                  .starts_with("/training/muon"));
  EXPECT_EQ(problem_of("megatron-core", {.dp = 4}, {.math = Math::kFp16}), "");
  EXPECT_EQ(problem_of("megatron-core", {.dp = 4}, {.muon = Muon{}}), "");
  EXPECT_EQ(problem_of("orrery", {.dp = 4, .zero = 1}, {.muon = Muon{}}), "");
  EXPECT_TRUE(problem_of("torchtitan", {}, {.muon = Muon{}}).ends_with("allowed: no such field"));
}

// Megatron's number of recomputed layers is one for all stages; other software has not even that.
TEST(Capabilities, DifferentNumbersOfRecomputedLayersAreOursAlone) {
  Plan p{.pp = 2, .recompute = Recompute::kFull};
  p.recompute_by_chunk = {16, 4};
  for (const char* ours : {"orrery", "orrery-graph"}) EXPECT_EQ(problem_of(ours, p), "");
  const std::string of_megatron = problem_of("megatron-core", p);
  EXPECT_TRUE(of_megatron.starts_with(
      "/plan/recompute_by_chunk: megatron-core has no recomputation of different numbers of layers by chunk"))
      << of_megatron;
  EXPECT_TRUE(of_megatron.ends_with("allowed: no such field; or recompute_first")) << of_megatron;
  const std::string of_torchtitan = problem_of("torchtitan", p);
  EXPECT_TRUE(of_torchtitan.ends_with("allowed: no such field")) << of_torchtitan;
  p.recompute_by_chunk.clear();
  p.recompute_first = 4;
  EXPECT_EQ(problem_of("megatron-core", p), "");
}

// Orders of axes that hold one rank are no other placement.
TEST(Capabilities, APlacementIsTheOrderOfAxesThatHaveRanks) {
  EXPECT_EQ(problem_of("megatron-core", {.dp = 4, .rank_order = RankOrder::kDpTpPp}), "");
  EXPECT_EQ(problem_of("megatron-core", {.tp = 4, .pp = 2, .rank_order = RankOrder::kDpTpPp}), "");
  EXPECT_TRUE(problem_of("megatron-core", {.tp = 4, .dp = 2, .rank_order = RankOrder::kDpTpPp})
                  .starts_with("/plan/rank_order: megatron-core has no placement dp-tp-pp"));
}

TEST(Capabilities, NumbersAndModelsAreThoseOfTheSoftware) {
  const auto pointer = [](const char* stack, const Model& m, const Training& t) {
    const auto wrong = stack_problem(shipped(stack), m, t);
    return wrong ? wrong->pointer : "";
  };
  const Model llama = preset_model("llama-2-7b");
  EXPECT_EQ(pointer("megatron-core", llama, {.precision = Precision::kAdam8bit}), "/training/precision");
  EXPECT_EQ(pointer("megatron-core", llama, {.math = Math::kTf32}), "/training/math");
  EXPECT_EQ(pointer("torchtitan", llama, {.math = Math::kFp16}), "/training/math");
  EXPECT_EQ(pointer("megatron-core", preset_model("bloom-176b"), {}), "/model/positions");
  EXPECT_EQ(pointer("fsdp", preset_model("mpt-7b"), {}), "");
  EXPECT_EQ(pointer("torchtitan", preset_model("gpt2-124m"), {}), "/model/positions");
  EXPECT_EQ(pointer("maxtext", preset_model("nemotron-4-15b"), {}), "/model/activation");
  EXPECT_EQ(pointer("orrery", preset_model("nemotron-4-15b"), {}), "");
  const Model windowed = preset_model("mistral-7b");
  EXPECT_EQ(pointer("torchtitan", windowed, {.sequence = 8192}), "/model/sliding_window");
  EXPECT_EQ(pointer("torchtitan", windowed, {.sequence = 4096}), "");  // all of it fits the window
  Model other = llama;
  other.form = BlockForm::kParallel;
  EXPECT_EQ(pointer("megatron-core", other, {}), "/model/form");
  other.blocks = {{32, {standard_block(other)}}};
  EXPECT_EQ(pointer("megatron-core", other, {}), "/model/blocks/form");
  other.blocks.push_back({1, {standard_block(llama)}});
  EXPECT_EQ(pointer("megatron-core", other, {}), "/model/blocks");
  EXPECT_EQ(pointer("orrery", other, {}), "");
  for (const auto& [field, value] : {std::pair{&Model::soft_cap, "/model/soft_cap"},
                                     {&Model::query_scale, "/model/query_scale"},
                                     {&Model::logit_soft_cap, "/model/logit_soft_cap"},
                                     {&Model::embedding_scale, "/model/embedding_scale"}}) {
    Model m = llama;
    m.*field = 7;
    EXPECT_EQ(pointer("torchtitan", m, {}), value);
    EXPECT_EQ(pointer("fsdp", m, {}), "");
  }
  Model yarn = llama;
  yarn.rotary = {.scaling = RotaryScaling::kYarn, .factor = 4};
  EXPECT_EQ(pointer("torchtitan", yarn, {}), "/model/rotary/scaling");
  EXPECT_EQ(pointer("megatron-core", yarn, {}), "");
}

TEST(Capabilities, AStackThatDoesNotSayTakesEveryPlan) {
  Stack stack = shipped("fsdp");
  stack.runs.reset();
  const Plan plan{.tp = 4, .pp = 2, .vpp = 8, .schedule = Schedule::kInterleaved};
  EXPECT_FALSE(stack_problem(stack, preset_model("bloom-176b"), plan, {.lamb = true}));
  EXPECT_TRUE(stack_limits(stack, preset_model("bloom-176b"), {}).empty());
}

TEST(Capabilities, LimitsAreSaid) {
  const Model llama = preset_model("llama-2-7b");
  const auto limits = stack_limits(shipped("fsdp"), llama, {});
  EXPECT_NE(std::find(limits.begin(), limits.end(), "no pipeline parallelism"), limits.end());
  EXPECT_NE(std::find(limits.begin(), limits.end(), "no ZeRO stage 1"), limits.end());
  EXPECT_EQ(stack_limits(shipped("orrery"), llama, {}), std::vector<std::string>{"no more than 256 ranks"});
  // A refusal that no plan of the model meets is not said.
  Model windowed = llama;
  windowed.sliding_window = 1024;
  const Stack megatron = shipped("megatron-core");
  const auto of_window = [&](const Model& m) {
    const auto all = stack_limits(megatron, m, {.sequence = 4096});
    return std::count_if(all.begin(), all.end(),
                         [](const std::string& s) { return s.find("window") != std::string::npos; });
  };
  EXPECT_EQ(of_window(llama), 0);
  EXPECT_EQ(of_window(windowed), 1);
}

// The quick answer that a search asks for is the other's.
TEST(Capabilities, BothWaysOfAskingAgree) {
  constexpr unsigned kSeed = 20261123;
  RecordProperty("seed", kSeed);
  std::mt19937 random(kSeed);
  const auto pick = [&](std::int64_t n) { return static_cast<std::int64_t>(random()) % n; };
  const DataFolders data;
  const Model m = preset_model("llama-2-7b");
  int accepted = 0, refused = 0;
  for (const std::string& name : data.names("profiles/stacks")) {
    const Stack stack = load_stack(name, {}, data);
    for (int i = 0; i < 2000; ++i) {
      Plan p;
      p.tp = 1 << pick(3);
      p.pp = 1 << pick(3);
      p.dp = 1 << pick(4);
      p.schedule = static_cast<Schedule>(pick(6));
      p.vpp = p.schedule == Schedule::kInterleaved ? 1 + pick(3) : 1;
      p.sequence_parallel = pick(2) == 0;
      p.zero = pick(4);
      p.shard_group = pick(3) == 0 ? 2 : 0;
      p.recompute = static_cast<Recompute>(pick(3));
      p.recompute_layers = 1 + pick(2);
      p.rank_order = static_cast<RankOrder>(pick(4));
      if (pick(3) == 0) {
        p.chunk_layers = layers_by_chunk(p, m.layers);
        --p.chunk_layers.front();
        ++p.chunk_layers.back();
      }
      if (p.recompute == Recompute::kFull && pick(2) == 0)
        p.recompute_by_chunk.assign(static_cast<std::size_t>(p.pp * p.vpp), 1);
      const Training t{.precision = Precision::kMixed, .lamb = pick(5) == 0};
      const bool of_training = stack_problem(stack, m, t).has_value();
      const bool wrong = stack_problem(stack, m, p, t).has_value();
      EXPECT_EQ(wrong, of_training || !runs_plan(stack, m, p, t)) << name << " " << short_name(p);
      ++(wrong ? refused : accepted);
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

// --- scenarios --------------------------------------------------------------------------------------

Scenario scenario(const std::string& stack) {
  Scenario s;
  s.model = preset_model("llama-2-7b");
  s.cluster.topology = "dgx-a100";
  s.training = {.global_batch = 64, .sequence = 2048};
  s.stack = stack;
  return s;
}

std::string where_refused(const Scenario& s) {
  try {
    resolve(s, Cursor{"s.json", ""}, DataFolders());
  } catch (const InputError& e) {
    return e.where();
  }
  return "";
}

TEST(Capabilities, AScenarioThatItsStackCannotRunIsRefusedWhereItSaysSo) {
  Scenario s = scenario("fsdp");
  EXPECT_EQ(where_refused(s), "");
  s.search.tp = {1, 2};
  EXPECT_EQ(where_refused(s), "/search/tp/1");
  s.search = {.zero = {0, 1}};
  EXPECT_EQ(where_refused(s), "/search/zero/1");
  s.search = {.recompute_layers = {2}};
  EXPECT_EQ(where_refused(s), "/search/recompute_layers/0");
  s.search = {.schedule = {Schedule::k1F1B}};
  EXPECT_EQ(where_refused(s), "/search/schedule/0");
  s.search = {.shard_group = {0, 4}, .sequence_parallel = {false}, .rank_order = {RankOrder::kDpTpPp}};
  EXPECT_EQ(where_refused(s), "");
  s.plan = Plan{.tp = 4};
  EXPECT_EQ(where_refused(s), "/plan/tp");
  s.stack = "megatron-core";
  s.search = {};
  EXPECT_EQ(where_refused(s), "");
  s.search.vpp = {1, 4};
  s.search.schedule = {Schedule::kInterleaved, Schedule::kZeroBubbleV};
  EXPECT_EQ(where_refused(s), "/search/schedule/1");
  s.search = {};
  s.training.lamb = true;
  EXPECT_EQ(where_refused(s), "/training/lamb");
  s.stack = "deepspeed";
  EXPECT_EQ(where_refused(s), "");
  s.search.vpp = {2};
  EXPECT_EQ(where_refused(s), "/search/vpp/0");
}

}  // namespace
}  // namespace orrery
