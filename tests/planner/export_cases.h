// SPDX-License-Identifier: Apache-2.0
//
// Plans to export: those of the shipped scenarios, and random ones that the target's software runs.
#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "planner/export/export.h"
#include "planner/plan.h"

namespace orrery::planner {

inline constexpr unsigned kExportSeed = 20261123;

struct ExportCase {
  std::string name;
  Problem problem;  // with the target's stack
  Plan plan;
};

// The plan that a scenario has, or a rule of thumb's, under the target's stack.
inline std::vector<ExportCase> shipped_cases(Target target) {
  const DataFolders data;
  std::vector<ExportCase> out;
  for (const auto& file : std::filesystem::directory_iterator(ORRERY_ROOT "/scenarios")) {
    if (file.is_directory()) continue;  // of queues of jobs
    ExportCase c{file.path().stem().string(), load_problem(file.path(), data), {}};
    c.problem.stack = load_stack(stack_of(target), {}, data);
    Scenario& s = c.problem.scenario;
    if (stack_problem(c.problem.stack, s.model, s.training)) s.training.precision = Precision::kMixed;
    if (stack_problem(c.problem.stack, s.model, s.training)) continue;  // its software has no such model
    if (s.plan && plan_problem(c.problem, *s.plan).empty()) {
      c.plan = *s.plan;
    } else {
      const auto rules = heuristics(c.problem);
      // Exported plans fill their nodes.
      const std::int64_t devices = c.problem.cluster.devices_per_node;
      const auto rule = std::find_if(rules.begin(), rules.end(), [&](const Heuristic& h) {
        return h.problem.empty() && (h.plan.ranks() < devices || h.plan.ranks() % devices == 0);
      });
      if (rule == rules.end()) throw Error(c.name + ": no rule of thumb gives a plan");
      c.plan = rule->plan;
    }
    out.push_back(std::move(c));
  }
  return out;
}

class RandomCases {
 public:
  explicit RandomCases(Target target) : random_(kExportSeed) {
    const DataFolders data;
    blank_.cluster = load_cluster("dgx-h100", {}, {}, data);
    blank_.cluster.nodes = 64;
    blank_.devices = {load_device("h100-sxm", {}, data)};
    blank_.stack = load_stack(stack_of(target), {}, data);
  }

  ExportCase next() {
    for (;;) {
      ExportCase c{fmt::format("random plan {}, seed {}", drawn_++, kExportSeed), blank_, {}};
      draw_model(c.problem.scenario.model);
      draw_plan(c.plan, c.problem.scenario.model);
      draw_training(c.problem.scenario.training, c.plan);
      draw_offload(random_, c.plan);
      draw_muon(random_, c.problem.scenario.training, c.plan);
      const Scenario& s = c.problem.scenario;
      const bool positions =
          s.model.positions != Positions::kLearned || s.training.sequence <= s.model.max_positions;
      if (positions && plan_problem(c.problem, c.plan).empty()) return c;
    }
  }

 private:
  template <class T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[random_() % from.size()];
  }
  bool chance(unsigned one_in) { return random_() % one_in == 0; }

  // What comes after is drawn as without.
  static void draw_offload(std::mt19937 random, Plan& p) {
    if (random() % 4 != 0) return;
    Offload& o = p.offload.emplace();
    constexpr double kShares[] = {0, 0.25, 1, 1};
    o.optimizer = kShares[random() % 4];
    o.parameters = p.zero == 3 && o.optimizer == 1 && random() % 2 == 0;
    o.activation_layers = random() % 3 == 0 ? 2 : 0;
    if (o.optimizer > 0) o.overlap = random() % 3 != 0;
    if (o == Offload{}) p.offload.reset();
  }

  static void draw_muon(std::mt19937 random, Training& t, const Plan& p) {
    random.discard(100);
    if (random() % 2 == 0 || p.zero > 0 || t.precision == Precision::kSgd) return;
    t.muon = Muon{.momentum = random() % 2 == 0 ? 0.9 : 0.95,
                  .nesterov = random() % 2 == 0,
                  .iterations = random() % 2 == 0 ? 5 : 8,
                  .tp_mode = random() % 2 == 0 ? MuonTpMode::kBlockwise : MuonTpMode::kDuplicated,
                  .gates = MuonGates::kTogether};
  }

  void draw_model(Model& m) {
    m = preset_model(pick({"llama-2-7b", "llama-3-8b", "llama-3-405b", "qwen2.5-7b", "qwen3-8b", "gpt2-774m",
                           "megatron-1.7b", "mistral-7b", "gpt3-175b", "tiny-llama"}));
    if (m.positions != Positions::kRotary || !chance(3)) return;
    m.rotary = pick<Rotary>(
        {{.scaling = RotaryScaling::kLinear, .factor = 4},
         {.base = 1e6, .scaling = RotaryScaling::kLlama3, .factor = 8},
         {.scaling = RotaryScaling::kYarn, .factor = 16, .original_positions = 4096, .beta_fast = 24},
         {.base = 250000, .fraction = 0.5}});
  }
  void draw_plan(Plan& p, const Model& m) {
    p.tp = pick({1, 1, 2, 4, 8});
    p.pp = pick({1, 1, 2, 3, 4, 8});
    p.dp = pick({1, 2, 4, 8, 16});
    p.schedule = chance(2) ? Schedule::kInterleaved : Schedule::k1F1B;
    p.vpp = p.schedule == Schedule::kInterleaved ? pick({2, 3, 4}) : 1;
    p.micro_batch = pick({1, 2, 4});
    p.micro_batches = pick({1, 2, 4, 8, 24});
    p.zero = p.dp > 1 ? pick({0, 1, 1, 2, 3}) : 0;
    if (p.zero > 0 && p.dp > 2 && chance(3)) p.shard_group = 2;
    p.sequence_parallel = p.tp > 1 && chance(2);
    p.recompute = pick({Recompute::kNone, Recompute::kSelective, Recompute::kFull});
    p.recompute_layers = p.recompute == Recompute::kFull ? pick({1, 1, 2}) : 1;
    if (p.recompute == Recompute::kSelective && chance(2)) p.recompute_parts = {RecomputePart::kMlp};
    p.rank_order = pick({RankOrder::kTpDpPp, RankOrder::kTpDpPp, RankOrder::kTpPpDp, RankOrder::kDpTpPp});
    if (p.pp * p.vpp > 1 && m.layers > p.pp * p.vpp && chance(4)) {
      p.chunk_layers = layers_by_chunk(p, m.layers);
      --p.chunk_layers.front();
      ++p.chunk_layers.back();
      if (p.chunk_layers.front() == 0) p.chunk_layers.clear();
    }
    const auto layers = layers_by_chunk(p, m.layers);
    if (p.recompute == Recompute::kFull && p.recompute_layers == 1 && chance(3))
      p.recompute_first = *std::max_element(layers.begin(), layers.end()) / 2;
  }
  void draw_training(Training& t, const Plan& p) {
    t.global_batch = p.global_batch();
    t.sequence = pick({64, 1024, 2048, 8192});
    t.precision = pick({Precision::kMixed, Precision::kMegatron, Precision::kFp32, Precision::kSgd,
                        Precision::kPrecisionAware, Precision::kPrecisionAwareBf16, Precision::kAdamBf16,
                        Precision::kMegatronAdamBf16});
    t.math =
        activation_bytes(t.precision) == 4
            ? Math::kFp32
            : pick({Math::kBf16, Math::kFp16, Math::kFp8, Math::kFp8Delayed, Math::kMxfp8, Math::kNvfp4});
    t.tokens = pick({0.0, 1e9, 1e12});
    t.dropout = pick({0.0, 0.0, 0.1});
    t.clip = pick({1.0, 0.0});
  }

  std::mt19937 random_;
  int drawn_ = 0;
  Problem blank_;
};

}  // namespace orrery::planner
