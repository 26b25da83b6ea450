// SPDX-License-Identifier: Apache-2.0
//
// What-if questions put to the real engine: a base run is measured and calibrated from, and then, without
// refitting, the change of the step time is predicted for a slower link, a slow rank, larger buckets, no
// overlap and another schedule, and measured. Ranks compute for real on a device emulated to be slower than
// this machine, so that neither its load nor its number of cores decides.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "exec/run.h"
#include "planner/evaluate.h"
#include "sim/calibration/calibrate.h"
#include "sim/place.h"

namespace orrery {
namespace {

constexpr int kRepeats = 9, kSteps = 1;

struct Experiment {
  Plan plan;
  Stack stack;
  Training training;
  double link_slower = 1;               // times
  std::map<std::int64_t, double> slow;  // ranks
};

struct Spread {
  double median = 0, noise = 0;  // noise: between the quartiles
};
Spread spread(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return {v[v.size() / 2], v[v.size() * 3 / 4] - v[v.size() / 4]};
}

enum class Simulator { kWhole, kWithoutOverlap, kWithoutDependencies, kWithoutContention };
constexpr std::array kSimulators{Simulator::kWhole, Simulator::kWithoutOverlap,
                                 Simulator::kWithoutDependencies, Simulator::kWithoutContention};

class Laboratory {
 public:
  Laboratory() {
    model_ = preset_model("tiny-llama");
    cluster_ = data_cluster();
  }

  program::Program compile(const Experiment& s) const {
    return program::compile(model_, s.plan, s.training, s.stack, program::Detail::kFull);
  }

  exec::RunResult run(const Experiment& s) const {
    const program::Program p = compile(s);
    exec::RunOptions o;
    o.steps = kSteps;
    o.link = {Bandwidth{static_cast<std::int64_t>(10e6 / s.link_slower)}, Time{200'000'000}};
    o.slow = s.slow;
    o.device = [](const program::Op& op) {  // a device of 1 GFLOP/s and 0.5 GB/s
      return op.flops / 1e9 + static_cast<double>(op.traffic.value) / 0.5e9 + 50e-6;
    };
    return exec::run(p, o);
  }
  static double step(const exec::RunResult& r) { return seconds(r.timeline.length()); }

  // Measures the base alone; all that is predicted afterwards comes from it.
  void calibrate(const Experiment& base) {
    const program::Program p = compile(base);
    std::vector<Timeline> timelines;
    for (int i = 0; i < kRepeats; ++i) timelines.push_back(run(base).timeline);
    std::vector<sim::MeasuredRun> runs;
    for (const Timeline& t : timelines) runs.push_back({&p, &t});
    calibration_ = sim::calibrate(device(), cluster_, runs);
  }

  double predict(const Experiment& s, Simulator simulator) const {
    Cluster cluster = calibration_.cluster;
    cluster.intra_bandwidth = Bandwidth{
        static_cast<std::int64_t>(static_cast<double>(cluster.intra_bandwidth.value) / s.link_slower)};
    const program::Program p = compile(s);
    const sim::Topology topology(cluster);
    const sim::PlanLinks links = sim::plan_links(topology, s.plan);
    const sim::CostModel cost({&calibration_.device, 1}, s.stack, cluster, links, s.training);
    sim::Layout layout = sim::place(topology, p, cost, {.slow = s.slow});
    if (simulator == Simulator::kWithoutContention) {
      for (sim::Meeting& m : layout.meetings) m.activity = -1;
    }
    if (simulator == Simulator::kWhole || simulator == Simulator::kWithoutContention)
      return seconds(sim::simulate(p, layout, {.record = false}).step);
    // A rank's streams one after the other, or all at once and never waiting.
    double step = 0;
    for (const sim::Place& place : layout.places) {
      const auto& costs = layout.costs[static_cast<std::size_t>(place.costs)];
      const program::RankClass& rank = p.classes[static_cast<std::size_t>(place.stage)];
      std::array<double, program::kMostStreams> busy{};
      for (const program::Step& at : rank.steps) {
        const auto g = static_cast<std::size_t>(at.segment);
        const auto& ops = rank.segments[g].ops;
        for (std::size_t i = 0; i < ops.size(); ++i) busy[ops[i].stream] += seconds(costs[g][i].time);
      }
      double all = 0, most = 0;
      for (const double b : busy) {
        all += b;
        most = std::max(most, b);
      }
      step = std::max(step, simulator == Simulator::kWithoutOverlap ? all : most);
    }
    return step;
  }

 private:
  static Device device() {
    return read_fields<Device>(load_json(std::string(ORRERY_ROOT) + "/profiles/cpu-reference.json"),
                               Cursor{"cpu"});
  }
  static Cluster data_cluster() {
    return read_fields<Cluster>(load_json(std::string(ORRERY_ROOT) + "/topologies/laptop-cpu.json"),
                                Cursor{"cpu"});
  }

  Model model_;
  Cluster cluster_;
  sim::Calibration calibration_;
};

struct Intervention {
  std::string name;
  Experiment experiment;
};

struct Verdict {
  std::array<int, kSimulators.size()> wrong{};  // interventions that each simulator gets wrong
  double noise = 0;                             // the most, over the base's step
};
Verdict try_all(const Experiment& base, const std::vector<Intervention>& interventions) {
  Laboratory lab;
  lab.calibrate(base);
  std::vector<std::vector<double>> measured(interventions.size() + 1);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    measured[0].push_back(Laboratory::step(lab.run(base)));
    for (std::size_t i = 0; i < interventions.size(); ++i)
      measured[i + 1].push_back(Laboratory::step(lab.run(interventions[i].experiment)));
  }
  const Spread before = spread(measured[0]);
  Verdict verdict;
  for (std::size_t i = 0; i < interventions.size(); ++i) {
    const Spread after = spread(measured[i + 1]);
    const double change = after.median - before.median, noise = std::max(before.noise, after.noise);
    for (const Simulator s : kSimulators) {
      const double predicted = lab.predict(interventions[i].experiment, s) - lab.predict(base, s);
      const bool sign = std::abs(change) <= noise || (change > 0) == (predicted > 0);
      const bool size = std::abs(predicted - change) <= std::max(0.15 * std::abs(change), 2 * noise);
      verdict.wrong[static_cast<std::size_t>(s)] += !sign || !size;
      verdict.noise = std::max(verdict.noise, noise / before.median);
      if (s == Simulator::kWhole) {
        std::printf("  %-22s %7.1f ms -> %7.1f ms  measured %+7.1f ms (noise %.1f)  predicted %+7.1f ms%s\n",
                    interventions[i].name.c_str(), 1e3 * before.median, 1e3 * after.median, 1e3 * change,
                    1e3 * noise, 1e3 * predicted, sign && size ? "" : "  WRONG");
      }
    }
  }
  return verdict;
}

// What a simulator does not know it gets wrong every time, and whoever else uses the machine does not disturb
// every time: three attempts. In noise that hides an effect, a simulator without it cannot be told from the
// right one.
void expect_caught(const Experiment& base, const std::vector<Intervention>& interventions,
                   std::initializer_list<Simulator> caught) {
  constexpr double kQuiet = 0.05;
  std::string problem;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const Verdict v = try_all(base, interventions);
    std::printf(
        "  wrong: %d; without overlap %d, without dependencies %d, without contention %d; noise %.1f %%\n",
        v.wrong[0], v.wrong[1], v.wrong[2], v.wrong[3], 100 * v.noise);
    problem = v.wrong[0] > 0 ? "the simulator is wrong" : "";
    for (const Simulator s : caught) {
      if (!problem.empty() || v.wrong[static_cast<std::size_t>(s)] > 0) continue;
      const char* without = s == Simulator::kWithoutOverlap        ? "overlap"
                            : s == Simulator::kWithoutDependencies ? "dependencies"
                                                                   : "contention";
      if (v.noise > kQuiet) GTEST_SKIP() << "too noisy to tell a simulator without " << without << " apart";
      problem = std::string("a simulator without ") + without + " passes";
    }
    if (problem.empty()) return;
  }
  FAIL() << problem;
}

Experiment base_experiment(const Plan& plan, std::int64_t batch) {
  Experiment s;
  s.plan = plan;
  s.training = {.global_batch = batch, .sequence = 64, .precision = Precision::kFp32, .math = Math::kFp32};
  return s;
}

TEST(Interventions, OnTwoRanks) {
  Experiment base = base_experiment({.dp = 2, .zero = 1, .micro_batches = 4}, 8);
  base.stack.bucket = Bytes{200'000};
  std::vector<Intervention> all{{"link 4 times slower", base},
                                {"rank 1 30 % slower", base},
                                {"buckets 8 times larger", base},
                                {"no overlap", base}};
  all[0].experiment.link_slower = 4;
  all[1].experiment.slow = {{1, 1.3}};
  all[2].experiment.stack.bucket = Bytes{1'600'000};
  all[3].experiment.stack.overlap_grad_reduce = false;
  expect_caught(base, all, {Simulator::kWithoutOverlap, Simulator::kWithoutDependencies});
}

TEST(Interventions, OnFourRanks) {
  Experiment base =
      base_experiment({.pp = 2, .dp = 2, .zero = 1, .micro_batches = 4, .schedule = Schedule::k1F1B}, 8);
  base.stack.bucket = Bytes{200'000};
  std::vector<Intervention> all{{"link 4 times slower", base},
                                {"rank 3 30 % slower", base},
                                {"buckets 8 times larger", base},
                                {"no overlap", base},
                                {"naive schedule", base}};
  all[0].experiment.link_slower = 4;
  all[1].experiment.slow = {{3, 1.3}};
  all[2].experiment.stack.bucket = Bytes{1'600'000};
  all[3].experiment.stack.overlap_grad_reduce = false;
  all[4].experiment.plan.schedule = Schedule::kNaive;
  expect_caught(base, all, {Simulator::kWithoutOverlap, Simulator::kWithoutDependencies});
}

// Parameters are gathered and gradients reduced while activations are: both axes use a rank's one link.
TEST(Interventions, OnFourRanksWhoseAxesShareLinks) {
  Experiment base = base_experiment({.tp = 2, .dp = 2, .zero = 3, .micro_batches = 2}, 4);
  std::vector<Intervention> all{{"link 4 times slower", base},
                                {"link 2 times faster", base},
                                {"all ranks 30 % slower", base},
                                {"no overlap", base}};
  all[0].experiment.link_slower = 4;
  all[1].experiment.link_slower = 0.5;
  for (std::int64_t r = 0; r < 4; ++r) all[2].experiment.slow[r] = 1.3;
  all[3].experiment.stack.overlap_grad_reduce = false;
  expect_caught(base, all, {Simulator::kWithoutContention, Simulator::kWithoutDependencies});
}

}  // namespace
}  // namespace orrery
