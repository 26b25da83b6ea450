// SPDX-License-Identifier: Apache-2.0
//
// A machine that is slower than its data sheet, of which nothing is known but a profiled step of one run.
#include "planner/fit_trace.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "planner/evaluate.h"

namespace orrery::planner {
namespace {

Problem problem(const char* model, std::int64_t sequence) {
  Scenario s;
  s.model = preset_model(model);
  s.training.global_batch = 32;
  s.training.sequence = sequence;
  s.model.max_positions = std::max(s.model.max_positions, sequence);
  s.cluster.topology = "p4d";
  s.cluster.nodes = 1;
  return resolve(std::move(s), Cursor{"test", ""}, DataFolders());
}

// What is true of the machine, and of no profile.
Problem truth(Problem p) {
  Device& d = p.devices.front();
  d.gemm.efficiency *= 0.7;
  d.attention.efficiency *= 0.6;
  d.memory_efficiency *= 0.8;
  d.factors.push_back({"optimizer", 1.7});
  p.cluster.intra_bandwidth = Bandwidth{p.cluster.intra_bandwidth.value / 2};
  return p;
}

sim::SimulationResult simulated(const Problem& p, const Plan& plan) {
  const sim::Topology topology(p.cluster);
  EvaluateOptions options;
  options.record = true;
  return evaluate(p, topology, plan, options).simulation;
}

// Two steps of it as a profiler of other software tells them: no names of ours, no prediction's hash.
Timeline profiled(const Problem& p, const Plan& plan) {
  Timeline t = simulated(p, plan).timeline;
  t.source = "measured: PyTorch profiler";
  t.program_hash = 0;
  for (std::string& name : t.names) name = "kernel " + name.substr(name.size() / 2);
  const Time step = t.length();
  const std::size_t slices = t.slices.size();
  for (std::size_t i = 0; i < slices; ++i) {
    Slice s = t.slices[i];
    for (Time* at : {&s.ready, &s.start, &s.active, &s.end}) *at += step;
    t.slices.push_back(s);
  }
  return t;
}

TEST(FitTrace, OneProfiledRunTellsTheMachine) {
  const Problem sheet = problem("llama-3.2-1b", 4096), machine = truth(sheet);
  const Plan ran{
      .tp = 2, .dp = 4, .sequence_parallel = true, .zero = 1, .micro_batch = 2, .micro_batches = 4};
  const Timeline measured = profiled(machine, ran);
  const TraceFit fit = fit_trace(sheet, ran, {&measured, 2, {}});
  EXPECT_NEAR(fit.device.gemm.efficiency, machine.devices.front().gemm.efficiency, 0.01);
  EXPECT_NEAR(fit.device.attention.efficiency, machine.devices.front().attention.efficiency, 0.01);
  EXPECT_NEAR(fit.device.memory_efficiency, machine.devices.front().memory_efficiency, 0.01);
  EXPECT_EQ(fit.classes.size(), 5U);
  for (const FittedClass& w : fit.classes) {
    EXPECT_NEAR(w.ratio_after, 1, 0.01) << w.constant;
    EXPECT_EQ(w.kept, "") << w.constant;
  }
  EXPECT_LT(fit.step_before_s, 0.9 * fit.measured_s);
  EXPECT_NEAR(fit.step_s, fit.measured_s, 0.01 * fit.measured_s);

  // Other plans, another model and longer sequences on that machine.
  const auto errs = [&](Problem other, const Plan& plan) {
    const double real = seconds(simulated(truth(other), plan).step);
    other.devices.front() = fit.device;
    other.cluster = fit.cluster;
    return seconds(simulated(other, plan).step) / real - 1;
  };
  const Plan replicas{.dp = 8, .zero = 2, .micro_batch = 1, .micro_batches = 4};
  const Plan pipeline{.tp = 2, .pp = 2, .dp = 2, .zero = 1, .micro_batch = 1, .micro_batches = 16};
  EXPECT_NEAR(errs(sheet, replicas), 0, 0.03);
  EXPECT_NEAR(errs(sheet, pipeline), 0, 0.03);
  EXPECT_NEAR(errs(problem("llama-3.2-3b", 8192), pipeline), 0, 0.03);
}

// Fused kernels take less than the latencies of the ops that they stand for: no constant explains that.
TEST(FitTrace, WhatLatencyAloneTakesIsNotFitted) {
  const Problem sheet = problem("llama-3.2-1b", 4096);
  const Plan ran{.dp = 8, .zero = 1, .micro_batch = 2, .micro_batches = 2};
  Timeline t = profiled(sheet, ran);
  for (Slice& s : t.slices) {
    if (t.classes[static_cast<std::size_t>(s.name)] == OpClass::kElementwise) s.end = s.active + Time{1000};
  }
  const TraceFit fit = fit_trace(sheet, ran, {&t, 2, {}});
  for (const FittedClass& w : fit.classes) {
    if (w.constant == "memory_efficiency") {
      EXPECT_NE(w.kept, "");
      EXPECT_EQ(w.after, w.before);
    } else {
      EXPECT_EQ(w.kept, "") << w.constant;
      EXPECT_NEAR(w.ratio_after, 1, 0.01) << w.constant;
    }
  }
}

// Where members' traces are missing, waiting is not told from the link's time.
TEST(FitTrace, LinksNeedAllMembers) {
  const Problem sheet = problem("llama-3.2-1b", 4096), machine = truth(sheet);
  const Plan ran{.dp = 8, .zero = 1, .micro_batch = 2, .micro_batches = 2};
  const Timeline t = profiled(machine, ran);
  const TraceFit fit = fit_trace(sheet, ran, {&t, 2, {}, false});
  EXPECT_EQ(fit.cluster.intra_bandwidth, sheet.cluster.intra_bandwidth);
  for (const FittedClass& w : fit.classes) EXPECT_NE(w.constant, "intra_bandwidth");
}

// What a trace does not have is not fitted: without attention's kernels its efficiency stays.
TEST(FitTrace, WhatIsNotMeasuredStays) {
  const Problem sheet = problem("llama-3.2-1b", 4096);
  const Plan ran{.dp = 8, .zero = 1, .micro_batch = 2, .micro_batches = 2};
  Timeline t = profiled(truth(sheet), ran);
  std::erase_if(t.slices, [&](const Slice& s) {
    return t.classes[static_cast<std::size_t>(s.name)] == OpClass::kAttention;
  });
  const TraceFit fit = fit_trace(sheet, ran, {&t, 2, {}});
  EXPECT_EQ(fit.device.attention.efficiency, sheet.devices.front().attention.efficiency);
  EXPECT_TRUE(std::find(fit.left.begin(), fit.left.end(), OpClass::kAttention) != fit.left.end());
  for (const FittedClass& w : fit.classes) EXPECT_NE(w.is, OpClass::kAttention);
  t.classes.assign(t.classes.size(), OpClass::kUnknown);
  EXPECT_THROW((void)fit_trace(sheet, ran, {&t, 2, {}}), Error);
}

}  // namespace
}  // namespace orrery::planner
