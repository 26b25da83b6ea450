// SPDX-License-Identifier: Apache-2.0
//
// No input wraps: fields at the ends of their ranges, in any mixture, are refused or give times, bytes and
// dollars that are positive and counted. Under UndefinedBehaviorSanitizer every sum on the way is checked
// too.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "planner/evaluate.h"
#include "sim/estimate/estimate.h"
#include "sim/topology/survey.h"

namespace orrery::planner {
namespace {

// Puts one in `one_in` fields at an end of its range.
struct ToTheEnds {
  std::mt19937_64& random;
  unsigned one_in;

  template <class T>
  void operator()(const Field& field, T& value) {
    if constexpr (Described<T> && !CustomRead<T>) {
      describe(*this, value);
    } else if (random() % one_in == 0) {
      if constexpr (std::same_as<T, bool>) {
        value = random() % 2 == 0;
      } else if constexpr (NamedEnum<T>) {
        const auto names = enum_names(T{});
        value = names[random() % names.size()].first;
      } else if constexpr (std::is_arithmetic_v<T> || UnitQuantity<T>) {
        const double end = random() % 2 == 0 ? field.min : field.max;
        if (!std::isfinite(end)) return;
        if constexpr (UnitQuantity<T>)
          value = T{static_cast<typename T::Rep>(end)};
        else
          value = static_cast<T>(end);
      }
    }
  }
};

class Extremes {
 public:
  explicit Extremes(unsigned seed) : random_(seed) {}

  // One problem and plan, estimated and, where it is small, simulated. Throws Error where it is refused.
  void run() {
    const Problem p = problem();
    const Plan plan = this->plan(p);
    check_model(p.scenario.model, {});
    check_step(p, {});
    program::check_plan(p.scenario.model, plan, p.scenario.training, {});
    check_ranks(plan, p.cluster, {});
    const sim::Topology topology(p.cluster);
    const sim::Survey s = sim::survey(topology);
    EXPECT_GE(s.bisection.value, 0);
    EXPECT_GE(s.switch_ports, 0);
    sim::Estimator estimator(p, topology);
    const Time least = estimator.lower_bound(plan);
    const sim::Estimate e = estimator.estimate(plan);
    EXPECT_GT(least.value, 0);
    EXPECT_LE(e.step, kLongestStep);
    EXPECT_GT(e.step.value, 0);
    EXPECT_GT(e.peak.value, 0);
    EXPECT_LE(estimator.least_peak(plan, estimator.held_bytes(plan)), e.peak);
    EXPECT_GE(estimator.device_bytes(plan, e.peak), e.peak);
    ++estimated;
    too_long += e.step == kLongestStep;
    if (p.scenario.model.layers * plan.micro_batches > 512) return;
    const Predicted predicted = evaluate(p, topology, plan).predicted;
    ++simulated;
    EXPECT_GT(predicted.step_time_s, 0);
    EXPECT_LE(predicted.step_time_s, seconds(kLongestStep));
    for (const double v : {predicted.tokens_per_s, predicted.mfu, predicted.hfu, predicted.step_time_high_s,
                           predicted.cost_per_step_usd})
      EXPECT_TRUE(std::isfinite(v) && v >= 0) << v;
    for (const StageMemory& m : predicted.memory) {
      for (const std::int64_t bytes : {m.total, m.parameter, m.gradient, m.optimizer, m.activation,
                                       m.workspace, m.communication, m.overhead})
        EXPECT_GE(bytes, 0);
    }
    // What is written can be read.
    const PlanFile file = make_plan_file(p, plan, predicted, "test");
    EXPECT_EQ(write_fields(read_fields<Predicted>(write_fields(file.predicted), {})),
              write_fields(file.predicted));
  }

  int estimated = 0, simulated = 0, too_long = 0;

 private:
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + random_() % values.size());
  }
  template <class T>
  void stretch(T& value) {
    ToTheEnds ends{random_, one_of({2U, 8U, 32U})};
    describe(ends, value);
  }

  Problem problem() {
    static const DataFolders data;
    Problem p;
    p.cluster = load_cluster(one_of<const char*>({"dgx-a100", "laptop-cpu", "gb200-nvl72"}), {}, {}, data);
    p.devices = {load_device(one_of<const char*>({"a100-80gb", "cpu-reference"}), {}, data)};
    p.stack = load_stack(one_of<const char*>({"megatron-core", "orrery-graph"}), {}, data);
    stretch(p.devices[0]);
    stretch(p.stack);
    stretch(p.cluster);
    p.cluster.nodes = one_of<std::int64_t>({1, 2, 8, 64});
    p.cluster.devices_per_node = one_of<std::int64_t>({1, 8, 16});
    p.cluster.scale_up_nodes = one_of<std::int64_t>({1, 2});
    for (CollectiveCurve& c : p.cluster.measured.measured) {
      for (Time& t : c.times) t = one_of({t, Time{1}, Time{static_cast<std::int64_t>(limits::kLongestOp)}});
    }
    Model& m = p.scenario.model;
    m.layers = one_of<std::int64_t>({4, 16, 16, 128, 10'000});
    m.hidden = one_of<std::int64_t>({16, 1024, 1024, 16'384, 1 << 20});
    m.heads = one_of<std::int64_t>({16, 16, 16, 1, 1 << 16});
    m.head_dim = one_of<std::int64_t>({0, 0, 0, 2, 1 << 16});
    m.kv_heads = one_of<std::int64_t>({0, 0, 1});
    m.ffn_hidden = one_of<std::int64_t>({0, 0, 16, 1 << 24});
    m.vocab = one_of<std::int64_t>({1, 256, 51'200, 1 << 24});
    m.max_positions = 1 << 24;
    m.norm = one_of({Norm::kLayerNorm, Norm::kRmsNorm});
    m.positions = one_of({Positions::kRotary, Positions::kLearned, Positions::kNone});
    m.activation = one_of({Activation::kGelu, Activation::kSwiglu});
    Training& t = p.scenario.training;
    stretch(t);
    t.global_batch = one_of<std::int64_t>({16, 16, 512, 1 << 16, 1 << 24});
    t.sequence = one_of<std::int64_t>({1, 64, 64, 4096, 1 << 20, 1 << 24});
    return p;
  }

  Plan plan(const Problem& p) {
    Plan plan;
    plan.tp = one_of<std::int64_t>({1, 1, 2, 16});
    plan.pp = one_of<std::int64_t>({1, 1, 2, 4, 16});
    plan.dp = one_of<std::int64_t>({1, 2, 8});
    plan.zero = plan.dp == 1 ? 0 : one_of<std::int64_t>({0, 1, 2, 3});
    plan.sequence_parallel = random_() % 2 == 0;
    plan.schedule =
        one_of({Schedule::k1F1B, Schedule::kGPipe, Schedule::kInterleaved, Schedule::kZeroBubbleH1,
                Schedule::kZeroBubbleV, Schedule::kDualPipeV, Schedule::kNaive});
    plan.vpp =
        plan.schedule == Schedule::kInterleaved || chunk_placement(plan) == ChunkPlacement::kThereAndBack ? 2
                                                                                                          : 1;
    plan.recompute = one_of({Recompute::kNone, Recompute::kSelective, Recompute::kFull});
    const std::int64_t each = std::max<std::int64_t>(1, p.scenario.training.global_batch / plan.dp);
    plan.micro_batch = one_of<std::int64_t>({1, 2, each});
    plan.micro_batches = std::max<std::int64_t>(1, each / plan.micro_batch);
    return plan;
  }

  std::mt19937_64 random_;
};

TEST(Extremes, NoInputWraps) {
  constexpr unsigned kSeed = 17;
  constexpr int kCases = 2000;
  Extremes extremes(kSeed);
  int refused = 0;
  for (int i = 0; i < kCases && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(fmt::format("seed {}, case {}", kSeed, i));
    try {
      extremes.run();
    } catch (const Error&) {
      ++refused;
    }
  }
  // Some of each kind, or nothing was tested.
  EXPECT_GT(refused, kCases / 10);
  EXPECT_GT(extremes.estimated, kCases / 10);
  EXPECT_GT(extremes.simulated, kCases / 40);
  EXPECT_GT(extremes.too_long, 10);
}

// Of each step below the limits, a little more is refused.
TEST(Extremes, AStepOfMoreBytesThanAreCountedIsRefused) {
  Problem p;
  p.scenario.model = preset_model("gpt3-175b");
  p.scenario.training = {.global_batch = 1536, .sequence = 2048};
  EXPECT_NO_THROW(check_step(p, {}));
  // 96 layers of 20 h + 6 * 3 h + 6 h + 6 * 8 h = 92 h, of h = 12288, 8 bytes each: 8.7e8 a token, so
  // that 3.3e8 tokens have 2^58 = 2.9e17 bytes.
  p.scenario.training.global_batch = 150'000;
  EXPECT_NO_THROW(check_step(p, {}));
  p.scenario.training.global_batch = 170'000;
  try {
    check_step(p, Cursor{"s.json", "/training"});
    FAIL();
  } catch (const InputError& e) {
    EXPECT_EQ(std::string(e.what()).substr(0, 60),
              "s.json: /training: the tensors of a step take 3e+17 bytes; a");
  }
}

}  // namespace
}  // namespace orrery::planner
