// SPDX-License-Identifier: Apache-2.0
#include "planner/fit_trace.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "core/error.h"
#include "planner/evaluate.h"

namespace orrery::planner {
namespace {

// Kinds whose constant is the same are fitted together.
struct Constant {
  const char* name;
  std::vector<OpClass> classes;
  double low, high;  // bounds of the field
  std::function<double(const TraceFit&)> get;
  std::function<void(TraceFit&, double)> set;
  bool rate;  // more of it takes less time
};

constexpr const char* kOptimizer = "optimizer";

double optimizer_factor(const Device& d) {
  for (const OpFactor& f : d.factors) {
    if (f.op == kOptimizer) return f.factor;
  }
  return 1;
}
void set_optimizer_factor(Device& d, double factor) {
  std::erase_if(d.factors, [](const OpFactor& f) { return f.op == kOptimizer; });
  d.factors.push_back({kOptimizer, factor});
}

std::vector<Constant> constants(const Problem& problem) {
  std::vector<Constant> out;
  constexpr double kLeast = 0.01, kMost = 1.2;
  out.push_back({"gemm.efficiency",
                 {OpClass::kProduct},
                 kLeast,
                 kMost,
                 [](const TraceFit& f) { return f.device.gemm.efficiency; },
                 [](TraceFit& f, double v) { f.device.gemm.efficiency = v; },
                 true});
  out.push_back({"attention.efficiency",
                 {OpClass::kAttention},
                 kLeast,
                 kMost,
                 [](const TraceFit& f) { return f.device.attention.efficiency; },
                 [](TraceFit& f, double v) { f.device.attention.efficiency = v; },
                 true});
  out.push_back({"memory_efficiency",
                 {OpClass::kElementwise, OpClass::kRouting},
                 kLeast,
                 kMost,
                 [](const TraceFit& f) { return f.device.memory_efficiency; },
                 [](TraceFit& f, double v) { f.device.memory_efficiency = v; },
                 true});
  out.push_back({"factors/optimizer",
                 {OpClass::kOptimizer},
                 0.001,
                 1000,
                 [](const TraceFit& f) { return optimizer_factor(f.device); },
                 [](TraceFit& f, double v) { set_optimizer_factor(f.device, v); },
                 false});
  // Of several nodes nobody knows which link an exchange waited for.
  if (problem.cluster.nodes == 1)
    out.push_back({"intra_bandwidth",
                   {OpClass::kAllReduce, OpClass::kAllGather, OpClass::kReduceScatter, OpClass::kAllToAll,
                    OpClass::kSendReceive},
                   1e8,
                   1e13,
                   [](const TraceFit& f) { return static_cast<double>(f.cluster.intra_bandwidth.value); },
                   [](TraceFit& f, double v) { f.cluster.intra_bandwidth = Bandwidth{std::llround(v)}; },
                   true});
  return out;
}

struct Predicted {
  sim::ClassComparisons compared;
  // Of the kinds of a constant; nothing where one side has none of them.
  std::optional<double> ratio(const Constant& c) const {
    double p = 0, m = 0;
    for (const sim::ClassComparison& w : compared.classes) {
      if (std::find(c.classes.begin(), c.classes.end(), w.is) == c.classes.end()) continue;
      if (w.predicted.active_s == 0 || w.measured.active_s == 0) continue;
      p += w.predicted.active_s;
      m += w.measured.active_s;
    }
    if (p == 0 || m == 0) return std::nullopt;
    return p / m;
  }
};

Predicted predict(const Problem& problem, const TraceFit& fit, const Plan& plan, const Timeline& measured,
                  std::int64_t steps, const std::vector<std::int64_t>& ranks) {
  Problem fitted = problem;
  fitted.devices = {fit.device};
  fitted.cluster = fit.cluster;
  const sim::Topology topology(fitted.cluster);
  EvaluateOptions options;
  options.record = true;
  const Evaluation e = evaluate(fitted, topology, plan, options);
  return {sim::compare_classes(e.simulation.timeline, measured, steps, ranks)};
}

}  // namespace

TraceFit fit_trace(const Problem& problem, const Plan& plan, const Timeline& measured, std::int64_t steps,
                   const std::vector<std::int64_t>& ranks) {
  TraceFit fit;
  fit.device = problem.devices.front();
  fit.device.measured.clear();  // of single shapes, which go before what is fitted here
  fit.cluster = problem.cluster;
  const std::vector<Constant> all = constants(problem);
  Predicted now = predict(problem, fit, plan, measured, steps, ranks);
  fit.step_before_s = now.compared.predicted_step_s;
  fit.measured_s = now.compared.measured_step_s;
  for (const Constant& c : all) {
    const auto ratio = now.ratio(c);
    if (!ratio) continue;
    fit.classes.push_back({c.classes.front(), c.name, c.get(fit), 0, *ratio, 0});
  }
  if (fit.classes.empty()) throw Error("no class of op is both in the plan and in the traces");
  // A constant scales most of its kind's time, not the latency of each op, so a few rounds are needed.
  constexpr int kMostRounds = 12;
  constexpr double kClose = 0.002;
  for (int round = 0; round < kMostRounds; ++round) {
    double worst = 0;
    for (const Constant& c : all) {
      const auto ratio = now.ratio(c);
      if (!ratio) continue;
      const double old = c.get(fit);
      const double wanted = std::clamp(c.rate ? old * *ratio : old / *ratio, c.low, c.high);
      if (wanted != old) worst = std::max(worst, std::abs(*ratio - 1));
      c.set(fit, wanted);
    }
    now = predict(problem, fit, plan, measured, steps, ranks);
    if (worst < kClose) break;
  }
  fit.step_s = now.compared.predicted_step_s;
  for (FittedClass& w : fit.classes) {
    const auto c =
        std::find_if(all.begin(), all.end(), [&](const Constant& k) { return w.constant == k.name; });
    w.after = c->get(fit);
    w.ratio_after = now.ratio(*c).value_or(0);
  }
  for (const sim::ClassComparison& w : now.compared.classes) {
    const bool fitted = std::any_of(all.begin(), all.end(), [&](const Constant& c) {
      return std::find(c.classes.begin(), c.classes.end(), w.is) != c.classes.end() && now.ratio(c);
    });
    if (!fitted) fit.left.push_back(w.is);
  }
  return fit;
}

}  // namespace orrery::planner
