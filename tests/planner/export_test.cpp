// SPDX-License-Identifier: Apache-2.0
//
// Scripts for Megatron-LM, held against facts about its command line (tests/data/launchers/megatron-lm.json),
// read back into the model, plan and numbers they were made of, and started under stand-ins of the launchers.
#include "planner/export/export.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/planner/export_cases.h"

namespace orrery::planner {
namespace {

using Arguments = std::map<std::string, std::vector<std::string>>;

// What stands after pretrain_gpt.py, by flag; "$NAME" stands for a variable's value.
Arguments arguments_of(const std::string& script) {
  const std::string program = "pretrain_gpt.py\"";
  std::istringstream words(script.substr(script.find(program) + program.size()));
  Arguments out;
  std::string word, flag;
  while (words >> word) {
    if (word == "\\") continue;
    std::erase(word, '"');
    if (word.starts_with("--")) {
      flag = word;
      EXPECT_TRUE(out.emplace(flag, std::vector<std::string>{}).second) << flag << " stands twice";
    } else {
      out[flag].push_back(word);
    }
  }
  return out;
}

std::map<std::string, std::string> environment_of(const std::string& script) {
  std::map<std::string, std::string> out;
  const std::string set = "\nexport CUDA_DEVICE_MAX_CONNECTIONS=";
  if (const auto at = script.find(set); at != std::string::npos)
    out["CUDA_DEVICE_MAX_CONNECTIONS"] = script.substr(at + set.size(), 1);
  return out;
}

double number(const Arguments& a, const std::string& flag, double otherwise = 0) {
  const auto found = a.find(flag);
  if (found == a.end() || found->second.empty()) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(found->second[0].c_str(), &end);
  return end == found->second[0].c_str() ? NAN : value;
}
std::int64_t whole(const Arguments& a, const std::string& flag, std::int64_t otherwise = 0) {
  return static_cast<std::int64_t>(number(a, flag, static_cast<double>(otherwise)));
}
std::string text(const Arguments& a, const std::string& flag) {
  const auto found = a.find(flag);
  return found == a.end() || found->second.empty() ? "" : found->second[0];
}

bool takes(const Json& type, const std::vector<std::string>& values) {
  if (type.is_array())
    return values.size() == 1 && std::find(type.begin(), type.end(), values[0]) != type.end();
  const auto kind = type.get<std::string>();
  if (kind == "switch") return values.empty();
  if (kind == "texts") return !values.empty();
  if (values.size() != 1) return false;
  const std::string& v = values[0];
  if (v.starts_with("$") || kind == "text") return true;
  if (kind == "integers") return v.find_first_not_of("0123456789,") == std::string::npos;
  std::size_t used = 0;
  std::stod(v, &used);
  return used == v.size() && (kind == "number" || v.find_first_of(".e") == std::string::npos);
}

// "--flag", "--flag = value" or "--flag > 1".
bool holds(const std::string& condition, const Arguments& a) {
  const std::string flag = condition.substr(0, condition.find(' '));
  if (!a.contains(flag)) return false;
  if (condition.ends_with(" > 1")) return number(a, flag) > 1;
  const auto equals = condition.find(" = ");
  return equals == std::string::npos || text(a, flag) == condition.substr(equals + 3);
}

// What is wrong by the facts' rules; `fired` collects the rules that applied.
std::vector<std::string> broken_rules(const Json& facts, const Arguments& a,
                                      const std::map<std::string, std::string>& environment,
                                      std::set<std::string>& fired) {
  std::vector<std::string> out;
  for (const Json& rule : facts.at("rules")) {
    const auto all = [&](const char* key, auto test) {
      return !rule.contains(key) || std::all_of(rule[key].begin(), rule[key].end(), test);
    };
    const auto any = [&](const Json& list) {
      return std::any_of(list.begin(), list.end(), [&](const Json& c) { return holds(c, a); });
    };
    if (!any(rule["if"]) || (rule.contains("unless") && any(rule["unless"]))) continue;
    fired.insert(rule["if"].dump());
    bool fits = all("forbids", [&](const Json& f) { return !a.contains(f.get<std::string>()); }) &&
                all("needs_more_than_1", [&](const Json& f) { return number(a, f) > 1; }) &&
                (!rule.contains("needs_any") || any(rule["needs_any"]));
    const Json needs = rule.value("needs", Json::object()), set = rule.value("environment", Json::object());
    for (const auto& [flag, value] : needs.items())
      fits &= a.contains(flag) && (value.is_null() || text(a, flag) == value.get<std::string>());
    for (const auto& [name, value] : set.items())
      fits &= value.is_null()
                  ? !environment.contains(name)
                  : environment.contains(name) && environment.at(name) == value.get<std::string>();
    if (!fits) out.push_back(rule["if"].dump() + ": " + rule["because"].get<std::string>());
  }
  return out;
}

Json megatron_facts() {
  return load_json(ORRERY_ROOT "/tests/data/launchers/megatron-lm.json");
}

// Sizes that Megatron-LM divides by each other.
void expect_sizes_fit(const Arguments& a, std::int64_t world) {
  const std::int64_t tp = whole(a, "--tensor-model-parallel-size"),
                     pp = whole(a, "--pipeline-model-parallel-size"), layers = whole(a, "--num-layers"),
                     groups = whole(a, "--num-query-groups", tp);
  ASSERT_EQ(world % (tp * pp), 0);
  const std::int64_t dp = world / (tp * pp), batch = whole(a, "--global-batch-size");
  EXPECT_EQ(batch % (whole(a, "--micro-batch-size") * dp), 0);
  const std::int64_t micro_batches = batch / (whole(a, "--micro-batch-size") * dp);
  EXPECT_EQ(whole(a, "--num-attention-heads") % tp, 0);
  EXPECT_TRUE(groups % tp == 0 || tp % groups == 0);
  EXPECT_EQ(whole(a, "--padded-vocab-size") % tp, 0);
  EXPECT_GE(whole(a, "--max-position-embeddings"), whole(a, "--seq-length"));
  EXPECT_EQ(dp % whole(a, "--num-distributed-optimizer-instances", 1), 0);
  std::int64_t chunks = pp * whole(a, "--num-virtual-stages-per-pipeline-rank", 1);
  if (const std::string layout = text(a, "--pipeline-model-parallel-layout"); !layout.empty()) {
    chunks = 1 + std::count(layout.begin(), layout.end(), '|');
    std::int64_t sum = 0;
    for (std::size_t at = layout.find("t*"); at != std::string::npos; at = layout.find("t*", at + 1))
      sum += std::stoll(layout.substr(at + 2));
    EXPECT_EQ(sum, layers);
    EXPECT_TRUE(layout.starts_with("E") && layout.ends_with("L")) << layout;
    EXPECT_EQ(chunks % pp, 0);
  } else {
    EXPECT_EQ(layers % chunks, 0);
  }
  if (chunks > pp) {
    EXPECT_EQ(micro_batches % pp, 0);
  }
  EXPECT_LT(whole(a, "--lr-warmup-iters"),
            number(a, "--train-iters", 1e18) > 0 ? number(a, "--train-iters") : 1e18);
}

void expect_read(const Json& facts, const ExportCase& c, std::set<std::string>& fired) {
  SCOPED_TRACE(c.name + " " + short_name(c.plan));
  const Exported e = export_plan(Target::kMegatron, c.problem, c.plan, {});
  const Arguments a = arguments_of(e.text);
  for (const auto& [flag, values] : a) {
    ASSERT_TRUE(facts["flags"].contains(flag)) << flag << " is not known";
    EXPECT_TRUE(takes(facts["flags"][flag], values))
        << flag << " " << fmt::format("{}", fmt::join(values, " "));
  }
  for (const std::string& wrong : broken_rules(facts, a, environment_of(e.text), fired))
    ADD_FAILURE() << wrong;
  expect_sizes_fit(a, c.plan.ranks());
}

TEST(MegatronExport, EveryScriptFitsTheFactsOfTheCommandLine) {
  RecordProperty("seed", kExportSeed);
  const Json facts = megatron_facts();
  std::set<std::string> fired;
  int adapters = 0;  // which its script does not train
  for (const ExportCase& c : shipped_cases(Target::kMegatron)) {
    if (!c.problem.scenario.training.adapter) {
      expect_read(facts, c, fired);
      continue;
    }
    ++adapters;
    EXPECT_THROW(export_plan(Target::kMegatron, c.problem, c.plan, {}), InputError) << c.name;
  }
  EXPECT_EQ(adapters, 2);
  RandomCases random(Target::kMegatron);
  for (int i = 0; i < 200; ++i) expect_read(facts, random.next(), fired);
  EXPECT_EQ(fired.size(), facts["rules"].size()) << "some rules were never tried";
}

// The rules notice: what a script has or lacks is changed, one thing after the other.
TEST(MegatronExport, EveryRuleIsBrokenBySomeChange) {
  const Json facts = megatron_facts();
  RandomCases random(Target::kMegatron);
  std::set<std::string> broken;
  for (int i = 0; i < 60; ++i) {
    const ExportCase c = random.next();
    const std::string script = export_plan(Target::kMegatron, c.problem, c.plan, {}).text;
    const auto environment = environment_of(script);
    const Arguments whole = arguments_of(script);
    std::set<std::string> ignored;
    const auto note = [&](const Arguments& a, const std::map<std::string, std::string>& in) {
      for (const std::string& wrong : broken_rules(facts, a, in, ignored))
        broken.insert(wrong.substr(0, wrong.find("]: ")));
    };
    for (const auto& [flag, values] : whole) {
      Arguments less = whole;
      less.erase(flag);
      note(less, environment);
      for (const char* other : {"1", "torch_dist", "fsdp_dtensor", "adam", "rope", "learned_absolute"}) {
        Arguments changed = whole;
        if (!values.empty()) changed[flag] = {other};
        note(changed, environment);
      }
    }
    for (const auto& [flag, type] : facts["flags"].items()) {
      Arguments more = whole;
      if (more.emplace(flag, std::vector<std::string>{}).second) note(more, environment);
    }
    note(whole, {});
    note(whole, {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}});
  }
  EXPECT_EQ(broken.size(), facts["rules"].size());
}

// --- the same model, plan and numbers ------------------------------------------------------------------

Rotary rotary_of(const Arguments& a) {
  Rotary r{.base = number(a, "--rotary-base"), .fraction = number(a, "--rotary-percent")};
  if (a.contains("--rotary-seq-len-interpolation-factor")) {
    r.scaling = RotaryScaling::kLinear;
    r.factor = number(a, "--rotary-seq-len-interpolation-factor");
  }
  if (a.contains("--use-rope-scaling")) {
    r.scaling = RotaryScaling::kLlama3;
    r.factor = number(a, "--rope-scaling-factor");
  }
  if (text(a, "--position-embedding-type") == "yarn") {
    r.scaling = RotaryScaling::kYarn;
    r.factor = number(a, "--rotary-scaling-factor");
    r.original_positions = whole(a, "--yarn-original-max-position-embeddings");
    r.beta_fast = number(a, "--yarn-beta-fast");
    r.beta_slow = number(a, "--yarn-beta-slow");
  }
  return r;
}

// What the arguments say of the model. The sizes of a custom preset's defaults are filled in.
Model model_of(const Arguments& a) {
  Model m;
  m.layers = whole(a, "--num-layers");
  m.hidden = whole(a, "--hidden-size");
  m.heads = whole(a, "--num-attention-heads");
  m.kv_heads = whole(a, "--num-query-groups", m.heads);
  m.head_dim = whole(a, "--kv-channels");
  m.ffn_hidden = whole(a, "--ffn-hidden-size");
  m.vocab = whole(a, "--padded-vocab-size");
  m.norm = text(a, "--normalization") == "RMSNorm" ? Norm::kRmsNorm : Norm::kLayerNorm;
  m.norm_epsilon = number(a, "--norm-epsilon");
  const std::string positions = text(a, "--position-embedding-type");
  m.positions = positions == "learned_absolute" ? Positions::kLearned : Positions::kRotary;
  if (m.positions == Positions::kRotary) m.rotary = rotary_of(a);
  if (a.contains("--window-size")) m.sliding_window = whole(a, "--window-size") + 1;
  m.activation = a.contains("--swiglu") ? Activation::kSwiglu : Activation::kGelu;
  m.bias = !a.contains("--disable-bias-linear");
  m.qkv_bias = a.contains("--add-qkv-bias");
  if (a.contains("--qk-layernorm")) m.qk_norm = QkNorm::kPerHead;
  m.tied_embeddings = !a.contains("--untie-embeddings-and-output-weights");
  m.max_positions = whole(a, "--max-position-embeddings");
  return m;
}

Model filled(Model m, const Training& t, const Plan& p) {
  m.name = Model{}.name;
  const auto [attention, mlp] = plain_layers(m).value();
  m.kv_heads = attention.kv_heads;
  m.head_dim = attention.head_dim;
  m.ffn_hidden = mlp.ffn_hidden;
  m.vocab = (m.vocab + p.tp - 1) / p.tp * p.tp;
  if (m.positions != Positions::kLearned) m.max_positions = std::max(m.max_positions, t.sequence);
  if (!attention.windowed(t.sequence)) m.sliding_window = 0;
  return m;
}

Plan plan_of(const Arguments& a, const Model& m, std::int64_t ranks) {
  Plan p;
  p.tp = whole(a, "--tensor-model-parallel-size");
  p.pp = whole(a, "--pipeline-model-parallel-size");
  p.dp = ranks / (p.tp * p.pp);
  p.vpp = whole(a, "--num-virtual-stages-per-pipeline-rank", 1);
  if (const std::string layout = text(a, "--pipeline-model-parallel-layout"); !layout.empty()) {
    for (std::size_t at = layout.find("t*"); at != std::string::npos; at = layout.find("t*", at + 1))
      p.chunk_layers.push_back(std::stoll(layout.substr(at + 2)));
    p.vpp = static_cast<std::int64_t>(p.chunk_layers.size()) / p.pp;
    Plan even = p;
    even.chunk_layers.clear();
    if (layers_by_chunk(even, m.layers) == p.chunk_layers) p.chunk_layers.clear();
  }
  p.schedule = p.vpp > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  p.sequence_parallel = a.contains("--sequence-parallel");
  p.zero = !a.contains("--use-distributed-optimizer")                             ? 0
           : !a.contains("--use-megatron-fsdp")                                   ? 1
           : text(a, "--data-parallel-sharding-strategy") == "optim_grads_params" ? 3
                                                                                  : 2;
  if (a.contains("--optimizer-cpu-offload")) {
    p.offload = Offload{.optimizer = number(a, "--optimizer-offload-fraction"),
                        .overlap = a.contains("--overlap-cpu-optimizer-d2h-h2d")};
  }
  // A distributed optimizer of one replica shares nothing: the precision-aware one has to be one.
  if (a.contains("--use-precision-aware-optimizer") && p.copies() == 1) p.zero = 0;
  if (a.contains("--num-distributed-optimizer-instances"))
    p.shard_group = p.dp / whole(a, "--num-distributed-optimizer-instances");
  p.micro_batch = whole(a, "--micro-batch-size");
  p.micro_batches = whole(a, "--global-batch-size") / (p.micro_batch * p.dp);
  const std::string recompute = text(a, "--recompute-granularity");
  p.recompute = recompute.empty() ? Recompute::kNone : *enum_from<Recompute>(recompute);
  if (const auto modules = a.find("--recompute-modules"); modules != a.end()) {
    for (std::string name : modules->second) {
      std::replace(name.begin(), name.end(), '_', '-');
      p.recompute_parts.push_back(*enum_from<RecomputePart>(name));
    }
    if (p.recompute_parts == std::vector{RecomputePart::kCoreAttention}) p.recompute_parts.clear();
  }
  (text(a, "--recompute-method") == "block" ? p.recompute_first : p.recompute_layers) =
      whole(a, "--recompute-num-layers", 1);
  if (a.contains("--use-tp-pp-dp-mapping")) p.rank_order = RankOrder::kTpPpDp;
  return p;
}

// A scenario's own plan, as Megatron-LM's arguments, all of which are known.
Arguments exported(const Json& scenario) {
  const Json facts = megatron_facts();
  const Cursor at{"scenario.json", ""};
  const Problem p = resolve(read_fields<Scenario>(scenario, at), at, DataFolders{});
  const Arguments a = arguments_of(export_plan(Target::kMegatron, p, *p.scenario.plan, at).text);
  for (const auto& [flag, values] : a) {
    EXPECT_TRUE(facts["flags"].contains(flag) && takes(facts["flags"][flag], values))
        << flag << " " << fmt::format("{}", fmt::join(values, " "));
  }
  return a;
}

// DeepSeek-V3: three layers without experts, of 58 with them; groups by node, biases in place of a loss.
TEST(MegatronExport, SparseModelsHaveTheirExperts) {
  const Arguments a = exported({{"model", "deepseek-v3-671b"},
                                {"cluster", {{"topology", "dgx-h100"}, {"nodes", 128}}},
                                {"training", {{"global_batch", 128}, {"sequence", 4096}}},
                                {"stack", "megatron-core"},
                                {"plan",
                                 {{"tp", 2},
                                  {"pp", 8},
                                  {"dp", 64},
                                  {"ep", 64},
                                  {"etp", 1},
                                  {"expert_exchange", "by-node"},
                                  {"sequence_parallel", true},
                                  {"micro_batches", 2},
                                  {"zero", 1}}}});
  EXPECT_EQ(text(a, "--moe-layer-freq"), "([0]*3+[1]*58)");
  const std::pair<const char*, std::int64_t> sizes[] = {{"--num-experts", 256},
                                                        {"--moe-router-topk", 8},
                                                        {"--moe-ffn-hidden-size", 2048},
                                                        {"--ffn-hidden-size", 18432},
                                                        {"--moe-shared-expert-intermediate-size", 2048},
                                                        {"--moe-router-num-groups", 8},
                                                        {"--moe-router-group-topk", 4},
                                                        {"--q-lora-rank", 1536},
                                                        {"--kv-lora-rank", 512},
                                                        {"--qk-head-dim", 128},
                                                        {"--qk-pos-emb-head-dim", 64},
                                                        {"--v-head-dim", 128},
                                                        {"--expert-model-parallel-size", 64},
                                                        {"--expert-tensor-parallel-size", 1}};
  for (const auto& [flag, size] : sizes) EXPECT_EQ(whole(a, flag), size) << flag;
  EXPECT_EQ(text(a, "--moe-router-score-function"), "sigmoid");
  EXPECT_EQ(number(a, "--moe-router-topk-scaling-factor"), 2.5);
  EXPECT_TRUE(a.contains("--moe-router-enable-expert-bias"));
  EXPECT_EQ(text(a, "--moe-token-dispatcher-type"), "flex");
  EXPECT_FALSE(a.contains("--group-query-attention"));
}

TEST(MegatronExport, MultiTokenPredictionIsBehindTheLastLayer) {
  Json scenario = {{"model", {{"preset", "llama-3-8b"}, {"mtp_layers", 2}, {"mtp_loss_scale", 0.3}}},
                   {"cluster", {{"topology", "dgx-h100"}, {"nodes", 1}}},
                   {"training", {{"global_batch", 32}, {"sequence", 4096}}},
                   {"stack", "megatron-core"},
                   {"plan", {{"pp", 4}, {"dp", 2}, {"micro_batches", 16}, {"zero", 1}}}};
  Arguments a = exported(scenario);
  EXPECT_EQ(whole(a, "--mtp-num-layers"), 2);
  EXPECT_EQ(number(a, "--mtp-loss-scaling-factor"), 0.3);
  EXPECT_FALSE(a.contains("--pipeline-model-parallel-layout"));
  scenario["plan"]["chunk_layers"] = {9, 9, 9, 5};
  a = exported(scenario);
  EXPECT_EQ(text(a, "--pipeline-model-parallel-layout"), "Et*9|t*9|t*9|t*5mmL");
  scenario["plan"]["chunk_layers"] = {11, 11, 10, 0};
  EXPECT_EQ(text(exported(scenario), "--pipeline-model-parallel-layout"), "Et*11|t*11|t*10|mmL");
  scenario["model"]["mtp_layers"] = 0;
  EXPECT_FALSE(exported(scenario).contains("--mtp-num-layers"));
}

TEST(MegatronExport, ForwardsBesideBackwardsAreAskedForByTheirFlag) {
  Json scenario = {{"model", "qwen3-30b-a3b"},
                   {"cluster", {{"topology", "dgx-h100"}, {"nodes", 2}}},
                   {"training", {{"global_batch", 32}, {"sequence", 4096}}},
                   {"stack", "megatron-core"},
                   {"plan", {{"dp", 16}, {"ep", 16}, {"micro_batches", 2}, {"zero", 1}}}};
  EXPECT_FALSE(exported(scenario).contains("--overlap-moe-expert-parallel-comm"));
  scenario["plan"]["overlap_exchanges"] = true;
  EXPECT_TRUE(exported(scenario).contains("--overlap-moe-expert-parallel-comm"));
}

// GPT-OSS-20B: a window of 128 tokens in every second layer, learned scores of heads, biases everywhere;
// experts with biases are not split over tensor ranks.
TEST(MegatronExport, GptOssHasItsOptions) {
  Json scenario = {{"model", "gpt-oss-20b"},
                   {"cluster", {{"topology", "dgx-h100"}, {"nodes", 1}}},
                   {"training", {{"global_batch", 16}, {"sequence", 4096}}},
                   {"stack", "megatron-core"},
                   {"plan",
                    {{"tp", 2},
                     {"dp", 4},
                     {"ep", 4},
                     {"etp", 1},
                     {"sequence_parallel", true},
                     {"micro_batches", 4},
                     {"recompute", "selective"},
                     {"recompute_parts", {"layernorm", "moe-act"}},
                     {"zero", 1}}}};
  const Arguments a = exported(scenario);
  EXPECT_EQ(text(a, "--window-size"), "127,0");
  EXPECT_EQ(whole(a, "--window-attn-skip-freq"), 2);
  EXPECT_EQ(text(a, "--softmax-type"), "learnable");
  EXPECT_TRUE(a.contains("--quick-geglu"));
  EXPECT_FALSE(a.contains("--swiglu"));
  EXPECT_EQ(number(a, "--activation-func-clamp-value"), 7);
  EXPECT_EQ(number(a, "--glu-linear-offset"), 1);
  EXPECT_FALSE(a.contains("--disable-bias-linear"));
  EXPECT_TRUE(a.contains("--no-yarn-correction-range-round-to-int"));
  EXPECT_EQ(a.at("--recompute-modules"), (std::vector<std::string>{"layernorm", "moe_act"}));
  scenario["plan"].erase("etp");
  try {
    exported(scenario);
    ADD_FAILURE() << "experts with biases on two tensor ranks";
  } catch (const InputError& e) {
    EXPECT_EQ(e.where(), "/plan/etp") << e.what();
  }
}

// --recompute-num-layers is one number for all stages.
TEST(MegatronExport, RefusesNumbersOfRecomputedLayersByChunk) {
  Json scenario = {{"model", "llama-2-7b"},
                   {"cluster", {{"topology", "dgx-a100"}, {"nodes", 1}}},
                   {"training", {{"global_batch", 16}, {"sequence", 4096}}},
                   {"stack", "megatron-core"},
                   {"plan",
                    {{"tp", 2},
                     {"pp", 2},
                     {"dp", 2},
                     {"micro_batches", 8},
                     {"recompute", "full"},
                     {"recompute_first", 5}}}};
  EXPECT_EQ(whole(exported(scenario), "--recompute-num-layers"), 5);
  scenario["plan"].erase("recompute_first");
  scenario["plan"]["recompute_by_chunk"] = {16, 5};
  try {
    exported(scenario);
    ADD_FAILURE() << "two numbers of recomputed layers";
  } catch (const InputError& e) {
    EXPECT_EQ(e.where(), "/plan/recompute_by_chunk") << e.what();
  }
}

TEST(MegatronExport, RanksShareSequences) {
  const auto script = [](const Json& context) {
    Json plan = {{"tp", 2},   {"dp", 2},          {"micro_batches", 2},
                 {"zero", 1}, {"shard_group", 1}, {"sequence_parallel", true}};
    plan.update(context);
    return exported({{"model", "llama-3-8b"},
                     {"cluster", {{"topology", "dgx-h100"}, {"nodes", 2}}},
                     {"training", {{"global_batch", 4}, {"sequence", 32768}}},
                     {"stack", "megatron-core"},
                     {"plan", plan}});
  };
  const Arguments ring = script({{"cp", 4}});
  EXPECT_EQ(whole(ring, "--context-parallel-size"), 4);
  EXPECT_EQ(text(ring, "--cp-comm-type"), "p2p");
  // 8 ranks have copies of the weights, in two groups of shards.
  EXPECT_EQ(whole(ring, "--num-distributed-optimizer-instances"), 2);
  EXPECT_EQ(text(script({{"cp", 4}, {"cp_keys", "all-gather"}}), "--cp-comm-type"), "all_gather");
  EXPECT_EQ(text(script({{"cp", 4}, {"ulysses", 4}}), "--cp-comm-type"), "a2a");
  const Arguments both = script({{"cp", 4}, {"ulysses", 2}});
  EXPECT_EQ(text(both, "--cp-comm-type"), "a2a+p2p");
  EXPECT_EQ(both.at("--hierarchical-context-parallel-sizes"), (std::vector<std::string>{"2", "2"}));
}

TEST(MegatronExport, ScriptsHoldTheWholeModelPlanAndNumbers) {
  RecordProperty("seed", kExportSeed);
  RandomCases random(Target::kMegatron);
  int muons = 0, of_narrow_moments = 0;
  for (int i = 0; i < 200; ++i) {
    ExportCase c = random.next();
    SCOPED_TRACE(c.name + " " + short_name(c.plan));
    const Training& t = c.problem.scenario.training;
    const Arguments a = arguments_of(export_plan(Target::kMegatron, c.problem, c.plan, {}).text);
    EXPECT_EQ(write_fields(model_of(a)), write_fields(filled(c.problem.scenario.model, t, c.plan)));
    Plan wanted = c.plan;
    EXPECT_EQ(placement(wanted, plan_of(a, model_of(a), wanted.ranks()).rank_order),
              placement(wanted, wanted.rank_order));
    wanted.rank_order = plan_of(a, model_of(a), wanted.ranks()).rank_order;
    if (wanted.pp == 1) wanted.schedule = Schedule::k1F1B;
    if (wanted.shards() == wanted.dp) wanted.shard_group = 0;
    EXPECT_EQ(plan_of(a, model_of(a), wanted.ranks()), wanted);
    EXPECT_EQ(number(a, "--attention-dropout", -1), t.dropout);
    EXPECT_EQ(number(a, "--hidden-dropout", -1), t.dropout);
    EXPECT_EQ(number(a, "--clip-grad", -1), t.clip);
    EXPECT_EQ(a.contains("--bf16"), t.parameter_type() == DType::kBfloat16);
    EXPECT_EQ(a.contains("--fp16"), t.parameter_type() == DType::kFloat16);
    const std::map<Math, std::string> recipes{{Math::kFp8, "tensorwise"},
                                              {Math::kFp8Delayed, "delayed"},
                                              {Math::kFp8Blockwise, "blockwise"},
                                              {Math::kMxfp8, "mxfp8"}};
    const auto recipe = recipes.find(t.math);
    EXPECT_EQ(text(a, "--fp8-recipe"), recipe == recipes.end() ? "" : recipe->second);
    EXPECT_EQ(text(a, "--fp4-recipe"), t.math == Math::kNvfp4 ? "nvfp4" : "");
    EXPECT_EQ(text(a, "--optimizer"), t.muon ? "muon" : t.precision == Precision::kSgd ? "sgd" : "adam");
    const BytesPerParameter per = bytes_per_parameter(t.precision);
    const bool narrow = per.moment == 2;
    of_narrow_moments += narrow;
    EXPECT_EQ(a.contains("--use-precision-aware-optimizer"), narrow || wanted.offloaded_optimizer() > 0);
    for (const char* const moment : {"--exp-avg-dtype", "--exp-avg-sq-dtype"})
      EXPECT_EQ(text(a, moment), narrow ? "bf16" : "");
    EXPECT_EQ(text(a, "--main-grads-dtype"), narrow && per.gradient == 2 ? "bf16" : "");
    EXPECT_EQ(a.contains("--accumulate-allreduce-grads-in-fp32"), per.parameter == 2 && per.gradient == 4);
    EXPECT_EQ(a.contains("--muon-momentum"), t.muon.has_value());
    if (t.muon) {
      ++muons;
      EXPECT_EQ(number(a, "--muon-momentum"), t.muon->momentum);
      EXPECT_EQ(text(a, "--muon-coefficient-type"), "simple");
      EXPECT_EQ(number(a, "--muon-extra-scale-factor"), t.muon->scale);
      EXPECT_EQ(whole(a, "--muon-num-ns-steps"), t.muon->iterations);
      EXPECT_EQ(a.contains("--muon-nesterov"), t.muon->nesterov);
      EXPECT_EQ(text(a, "--muon-tp-mode"), name_of(t.muon->tp_mode));
    }
    EXPECT_EQ(text(a, "--lr").starts_with("$"), t.precision == Precision::kSgd);
    if (t.tokens > 0)
      EXPECT_EQ(whole(a, "--train-iters"),
                static_cast<std::int64_t>(std::ceil(t.tokens / t.tokens_per_step())));
    else
      EXPECT_EQ(text(a, "--train-iters"), "$TRAIN_ITERS");
  }
  EXPECT_GT(muons, 20);
  EXPECT_GT(of_narrow_moments, 20);
}

// Megatron-LM makes one matrix of both halves of a gated MLP.
TEST(MegatronExport, OfMuonGatesAreTogether) {
  RandomCases random(Target::kMegatron);
  ExportCase c = random.next();
  while (!c.problem.scenario.training.muon || !is_gated(c.problem.scenario.model.activation))
    c = random.next();
  EXPECT_NO_THROW(export_plan(Target::kMegatron, c.problem, c.plan, {}));
  c.problem.scenario.training.muon->gates = MuonGates::kApart;
  try {
    export_plan(Target::kMegatron, c.problem, c.plan, {});
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("/training/muon/gates"), std::string::npos) << e.what();
  }
}

ExportCase llama3_8b() {
  ExportCase c = RandomCases(Target::kMegatron).next();
  c.problem.scenario = {};
  c.problem.scenario.model = preset_model("llama-3-8b");
  c.problem.scenario.training = {.global_batch = 64, .sequence = 8192, .tokens = 1e12};
  c.plan = {.tp = 2, .dp = 8, .sequence_parallel = true, .zero = 1, .micro_batches = 8};
  return c;
}

// 1e12 tokens of 64 x 8192 a step: 1,907,349 steps; 375e6 tokens of warm-up: 716 steps.
// A name with a line end would be a command of the script.
TEST(MegatronExport, NamesStayInTheirComment) {
  ExportCase c = RandomCases(Target::kMegatron).next();
  c.problem.scenario.model.name = c.problem.devices[0].name = "x\ntouch pwned\n#";
  for (const std::string& script :
       {export_plan(Target::kMegatron, c.problem, c.plan, {}).text,
        export_job(Launcher::kSlurm, Target::kMegatron, c.problem, c.plan, {}).text}) {
    EXPECT_NE(script.find("touch pwned"), std::string::npos);
    EXPECT_EQ(script.find("\ntouch"), std::string::npos) << script;
  }
}

TEST(MegatronExport, TheLearningRateIsTheAdvice) {
  const ExportCase c = llama3_8b();
  const Arguments a = arguments_of(export_plan(Target::kMegatron, c.problem, c.plan, {}).text);
  const auto advice = learning_rate_advice(c.problem);
  EXPECT_NEAR(number(a, "--lr"), advice->learning_rate, 1e-3 * advice->learning_rate);
  EXPECT_NEAR(number(a, "--min-lr"), 0.1 * advice->learning_rate, 1e-4 * advice->learning_rate);
  EXPECT_EQ(whole(a, "--train-iters"), 1907349);
  EXPECT_EQ(whole(a, "--lr-warmup-iters"), 716);
}

TEST(MegatronExport, LoadsWithAsManyWorkersAsTheScenario) {
  ExportCase c = llama3_8b();
  EXPECT_FALSE(
      arguments_of(export_plan(Target::kMegatron, c.problem, c.plan, {}).text).contains("--num-workers"));
  c.problem.scenario.loading = Loading{.workers = 6};
  EXPECT_EQ(whole(arguments_of(export_plan(Target::kMegatron, c.problem, c.plan, {}).text), "--num-workers"),
            6);
}

std::string refusal(const ExportCase& c) {
  try {
    export_plan(Target::kMegatron, c.problem, c.plan, Cursor{"s.json", ""});
  } catch (const InputError& e) {
    return e.where();
  }
  return "";
}

TEST(MegatronExport, AModelThatItWouldChangeIsRefused) {
  ExportCase c = llama3_8b();
  EXPECT_EQ(refusal(c), "");
  Model& m = c.problem.scenario.model;
  const Model plain = m;
  m.norm = Norm::kLayerNorm;
  EXPECT_EQ(refusal(c), "/model/norm");
  m.bias = true;
  EXPECT_EQ(refusal(c), "");
  m.qk_norm = QkNorm::kPerHead;
  EXPECT_EQ(refusal(c), "/model/qk_norm");
  m = plain;
  m.rotary.base = 10000.5;
  EXPECT_EQ(refusal(c), "/model/rotary/base");
  m.rotary = {.scaling = RotaryScaling::kLlama3, .factor = 32};  // which Megatron-LM would train with 8
  EXPECT_EQ(refusal(c), "/model/rotary");
  m.rotary = {.scaling = RotaryScaling::kLlama3, .factor = 8};
  EXPECT_EQ(refusal(c), "");
  m.rotary = {.scaling = RotaryScaling::kLinear, .factor = 2.5};
  EXPECT_EQ(refusal(c), "/model/rotary/factor");
  m.rotary = {.fraction = 0.5, .scaling = RotaryScaling::kYarn, .factor = 4};
  EXPECT_EQ(refusal(c), "/model/rotary");
  m = plain;
  Training& t = c.problem.scenario.training;
  t.optimizer.decay = Decay::kAll;
  EXPECT_EQ(refusal(c), "/training/optimizer/decay");
  t.precision = Precision::kSgd;  // which has no weight decay
  EXPECT_EQ(refusal(c), "");
  t.optimizer.decay = Decay::kMatrices;
  c.plan.dp = 9;  // 18 ranks: two nodes of 9 are too large, three of 6 are not
  c.problem.cluster.nodes = 2;
  EXPECT_EQ(refusal(c), "/cluster");
  c.problem.cluster.nodes = 3;
  EXPECT_EQ(refusal(c), "");
}

// --- the script ----------------------------------------------------------------------------------------

struct Ran {
  int status;
  std::string out;
};

// Runs a script with stand-ins of the launchers, which print their arguments and the variable of the device.
Ran run_script(const std::string& script, const std::string& variables) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / fmt::format("orrery-export-{}", ::getpid());
  fs::create_directories(folder);
  const auto write = [&](const char* name, const std::string& body) {
    std::ofstream(folder / name) << body;
    fs::permissions(folder / name, fs::perms::owner_all);
  };
  write("torchrun",
        "#!/bin/bash\necho \"connections ${CUDA_DEVICE_MAX_CONNECTIONS-unset}\"\nprintf '%s\\n' \"$@\"\n");
  write("srun", "#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec \"$@\"\n");
  write("scontrol", "#!/bin/bash\nfor i in $(seq 1000); do echo host$i; done\n");
  write("script", script);
  const std::string command =
      fmt::format("env -i PATH={0}:/usr/bin:/bin CUDA_DEVICE_MAX_CONNECTIONS=8 {1} bash {0}/script 2>&1",
                  folder.string(), variables);
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string out;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out += static_cast<char>(c);
  const int status = ::pclose(pipe);
  fs::remove_all(folder);
  return {WEXITSTATUS(status), out};
}

constexpr const char* kSet = "MEGATRON=/opt/megatron TOKENIZER_MODEL=tok DATA_PATH='0.3 a 0.7 b' ";

TEST(MegatronScript, EndsWhereAVariableIsMissing) {
  ExportCase c = llama3_8b();
  c.problem.scenario.training.precision = Precision::kFp32;
  c.problem.scenario.training.math = Math::kFp32;
  const std::string script = export_plan(Target::kMegatron, c.problem, c.plan, {}).text;
  const Ran none = run_script(script, "");
  EXPECT_NE(none.status, 0);
  EXPECT_NE(none.out.find("MEGATRON: set MEGATRON to the folder of Megatron-LM"), std::string::npos)
      << none.out;
  EXPECT_EQ(none.out.find("--num-layers"), std::string::npos);
  const Ran no_data = run_script(script, "MEGATRON=/m TOKENIZER_MODEL=t MASTER_ADDR=h NODE_RANK=0");
  EXPECT_NE(no_data.status, 0);
  EXPECT_NE(no_data.out.find("set DATA_PATH to the prefix"), std::string::npos);
  c.problem.scenario.training.tokens = 0;
  c.problem.scenario.training.precision = Precision::kSgd;
  const std::string more = export_plan(Target::kMegatron, c.problem, c.plan, {}).text;
  const std::string nodes = std::string(kSet) + "MASTER_ADDR=h NODE_RANK=1 ";
  EXPECT_NE(run_script(more, nodes).out.find("set LR to"), std::string::npos);
  EXPECT_NE(run_script(more, nodes + "LR=1e-4").out.find("set TRAIN_ITERS to"), std::string::npos);
  EXPECT_EQ(run_script(more, nodes + "LR=1e-4 TRAIN_ITERS=10").status, 0);
}

TEST(MegatronScript, StartsTorchrunWithItsArguments) {
  const ExportCase c = llama3_8b();
  const Ran r = run_script(export_plan(Target::kMegatron, c.problem, c.plan, {}).text,
                           std::string(kSet) + "MASTER_ADDR=head NODE_RANK=1");
  ASSERT_EQ(r.status, 0) << r.out;
  EXPECT_EQ(r.out.find("connections 1\n--nnodes=2\n--nproc_per_node=8\n--node_rank=1\n--master_addr=head\n"
                       "--master_port=29500\n/opt/megatron/pretrain_gpt.py\n--num-layers\n32\n"),
            0U)
      << r.out;
  EXPECT_NE(r.out.find("--data-path\n0.3\na\n0.7\nb\n"), std::string::npos);
  EXPECT_NE(r.out.find("--save\ncheckpoints\n"), std::string::npos);
}

TEST(MegatronScript, ShardedParametersLeaveTheDeviceItsQueues) {
  ExportCase c = llama3_8b();
  c.plan.zero = 3;
  const Ran r = run_script(export_plan(Target::kMegatron, c.problem, c.plan, {}).text,
                           std::string(kSet) + "MASTER_ADDR=head NODE_RANK=0");
  ASSERT_EQ(r.status, 0) << r.out;
  EXPECT_TRUE(r.out.starts_with("connections unset\n")) << r.out;
}

TEST(MegatronScript, SlurmStartsIt) {
  const ExportCase c = llama3_8b();
  const std::string script = export_job(Launcher::kSlurm, Target::kMegatron, c.problem, c.plan, {}).text;
  EXPECT_NE(script.find("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n"),
            std::string::npos);
  const Ran r = run_script(script, std::string(kSet) + "SLURM_JOB_NODELIST=x SLURM_NODEID=1");
  ASSERT_EQ(r.status, 0) << r.out;
  EXPECT_NE(r.out.find("--node_rank=1\n--master_addr=host1\n--master_port=29500\n"
                       "/opt/megatron/pretrain_gpt.py\n"),
            std::string::npos)
      << r.out;
  const std::string of_node = script.substr(0, script.find("\nEND\n") + 1);
  EXPECT_EQ(arguments_of(of_node), arguments_of(export_plan(Target::kMegatron, c.problem, c.plan, {}).text));
}

}  // namespace
}  // namespace orrery::planner
