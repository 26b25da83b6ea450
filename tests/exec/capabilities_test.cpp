// SPDX-License-Identifier: Apache-2.0
//
// What the stack files of Orrery's own engine say it runs is what the engine takes.
#include <gtest/gtest.h>

#include <random>

#include "core/scenario.h"
#include "exec/run.h"
#include "program/schedule.h"

namespace orrery::exec {
namespace {

class Cases {
 public:
  explicit Cases(unsigned seed) : random_(seed) {}

  // A plan that fits its model, in any format and with any positions; some are too large for the engine.
  void draw(Model& m, Plan& p, Training& t) {
    m = preset_model(pick(2) == 0 ? "tiny-gpt" : "tiny-llama");
    m.positions = static_cast<Positions>(pick(4));
    m.rotary = {};
    if (m.positions == Positions::kRotary && pick(2) == 0)
      m.rotary = {.scaling = static_cast<RotaryScaling>(1 + pick(3)), .factor = 2};
    m.activation = static_cast<Activation>(pick(4));
    m.sliding_window = pick(4) == 0 ? 16 << pick(3) : 0;
    t = {.sequence = 32};
    t.precision = static_cast<Precision>(pick(static_cast<int>(enum_names(Precision{}).size())));
    t.math = static_cast<Math>(pick(5));
    t.lamb = t.precision != Precision::kSgd && pick(4) == 0;
    t.stochastic_rounding = t.precision == Precision::kNoMaster && t.math == Math::kBf16 && pick(2) == 0;
    p = {};
    p.tp = 1 << pick(2);
    p.pp = 1 << pick(3);
    p.dp = 1 << pick(p.tp * p.pp == 1 ? 10 : 8);
    p.schedule = static_cast<Schedule>(pick(7));
    p.vpp = chunk_placement(p) == ChunkPlacement::kThereAndBack ? 2 : 1;
    if (p.pp == 1 || p.pp * p.vpp > m.layers || p.schedule == Schedule::kInterleaved) {
      p.schedule = Schedule::k1F1B;
      p.vpp = 1;
    }
    p.zero = p.dp == 1 ? 0 : pick(program::splits_backward(p.schedule) ? 2 : 4);
    p.sequence_parallel = p.tp > 1 && pick(2) == 0;
    p.recompute = static_cast<Recompute>(pick(3));
    p.rank_order = static_cast<RankOrder>(pick(4));
    p.micro_batches = p.schedule == Schedule::kDualPipeV ? 2 * p.pp : 2;
    t.global_batch = p.global_batch();
  }

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  std::mt19937 random_;
};

void expect_agreement(const char* name, std::initializer_list<Backend> backends) {
  constexpr unsigned kSeed = 20261123;
  testing::Test::RecordProperty("seed", kSeed);
  const Stack stack = load_stack(name, {}, DataFolders());
  Cases cases(kSeed);
  int runs = 0, refused = 0;
  for (int i = 0; i < 1500; ++i) {
    Model m;
    Plan p;
    Training t;
    cases.draw(m, p, t);
    try {
      program::check_plan(m, p, t, {});
    } catch (const InputError&) {
      continue;  // of fp8, whose tiny products have sizes that no engine takes
    }
    const auto said = stack_problem(stack, m, p, t);
    // A step of a rank or two has the same properties, and compiles at once.
    const program::Program program = program::compile(m, p, t, stack, program::Detail::kSizes);
    const bool taken = std::any_of(backends.begin(), backends.end(),
                                   [&](Backend b) { return run_problem(program, b, stack.launch).empty(); });
    EXPECT_EQ(!said, taken) << name << " plan " << i << ", seed " << kSeed << ": " << short_name(p) << " of "
                            << name_of(m.positions) << " " << name_of(m.activation) << ", "
                            << name_of(t.precision) << " " << name_of(t.math) << ": "
                            << (said ? said->text : run_problem(program, Backend::kCuda, stack.launch));
    ++(taken ? runs : refused);
  }
  EXPECT_GT(runs, 100);
  EXPECT_GT(refused, 500);
}

TEST(OwnCapabilities, TheEngineTakesWhatItsStackSays) {
  expect_agreement("orrery", {Backend::kCpu, Backend::kCuda});
}
TEST(OwnCapabilities, TheEngineWithGraphsTakesWhatItsStackSays) {
  expect_agreement("orrery-graph", {Backend::kCuda});
}

}  // namespace
}  // namespace orrery::exec
