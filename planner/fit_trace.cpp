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

// Classes whose constant is the same are fitted together.
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

std::vector<Constant> constants(const Problem& problem, const ProfiledRun& run) {
  constexpr double kLeastLink = 1e8, kMostLink = 1e13;  // bytes a second, far beyond any link
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
  // Of several nodes nobody knows which link an exchange waited for, and where members are not in the traces
  // nobody knows how long. Sends and receives wait for the stage before, whatever the link.
  if (problem.cluster.nodes == 1 && run.tells_waits)
    out.push_back({"intra_bandwidth",
                   {OpClass::kAllReduce, OpClass::kAllGather, OpClass::kReduceScatter, OpClass::kAllToAll},
                   kLeastLink,
                   kMostLink,
                   [](const TraceFit& f) { return static_cast<double>(f.cluster.intra_bandwidth.value); },
                   [](TraceFit& f, double v) { f.cluster.intra_bandwidth = Bandwidth{std::llround(v)}; },
                   true});
  return out;
}

struct Predicted {
  sim::ClassComparisons compared;
  // Of the classes of a constant; nothing where one side has none of them.
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

Predicted predict(const Problem& problem, const TraceFit& fit, const Plan& plan, const ProfiledRun& run) {
  Problem fitted = problem;
  fitted.devices = {fit.device};
  fitted.cluster = fit.cluster;
  const sim::Topology topology(fitted.cluster);
  EvaluateOptions options;
  options.record = true;
  const Evaluation e = evaluate(fitted, topology, plan, options);
  return {sim::compare_classes(e.simulation.timeline, *run.timeline, run.steps, run.ranks)};
}

// What is known of how a class's time follows its constant: the last two points, x and predicted over
// measured.
struct Search {
  const Constant* constant;
  FittedClass* row;
  double first = 0;  // of the constant
  double x = 0, ratio = 0;

  double x_of(double value) const { return constant->rate ? 1 / value : value; }
  double value_of(double at) const { return constant->rate ? 1 / at : at; }

  // The next value of the constant; nothing where none would do.
  std::optional<double> next(double now, double ratio_now) {
    const double at = x_of(now);
    double wanted = at / ratio_now;  // as if there were no latencies
    if (x > 0 && at != x) {
      const double slope = (ratio_now - ratio) / (at - x);
      const double latencies = ratio_now - slope * at;
      if (slope <= 0 || latencies >= 1) {
        row->kept = "mostly latency";
        return std::nullopt;
      }
      wanted = (1 - latencies) / slope;
    }
    x = at;
    ratio = ratio_now;
    const double value = value_of(wanted);
    if (value >= constant->low && value <= constant->high) return value;
    // Latencies may have misled the first step; the second knows of them.
    if (at == x_of(first)) return std::clamp(value, constant->low, constant->high);
    row->kept = value < constant->low ? "below its bound" : "above its bound";
    return std::nullopt;
  }
};

}  // namespace

TraceFit fit_trace(const Problem& problem, const Plan& plan, const ProfiledRun& run) {
  TraceFit fit;
  fit.device = problem.devices.front();
  fit.device.measured.clear();  // of single shapes, which go before what is fitted here
  fit.cluster = problem.cluster;
  const std::vector<Constant> all = constants(problem, run);
  Predicted now = predict(problem, fit, plan, run);
  fit.step_before_s = now.compared.predicted_step_s;
  fit.measured_s = now.compared.measured_step_s;
  for (const Constant& c : all) {
    if (const auto ratio = now.ratio(c))
      fit.classes.push_back({c.classes.front(), c.name, c.get(fit), 0, *ratio, 0, {}});
  }
  if (fit.classes.empty()) throw Error("no class of op is both in the plan and in the traces");
  std::vector<Search> searches;
  for (FittedClass& row : fit.classes) {
    const auto c =
        std::find_if(all.begin(), all.end(), [&](const Constant& k) { return row.constant == k.name; });
    searches.push_back({&*c, &row, row.before});
  }
  constexpr int kMostRounds = 12;
  constexpr double kClose = 0.002;
  for (int round = 0; round < kMostRounds; ++round) {
    bool moved = false;
    for (Search& s : searches) {
      const double ratio = now.ratio(*s.constant).value_or(1);
      if (!s.row->kept.empty() || std::abs(ratio - 1) < kClose) continue;
      s.constant->set(fit, s.next(s.constant->get(fit), ratio).value_or(s.first));
      moved = true;
    }
    if (!moved) break;
    now = predict(problem, fit, plan, run);
  }
  fit.step_s = now.compared.predicted_step_s;
  for (const Search& s : searches) {
    s.row->after = s.constant->get(fit);
    s.row->ratio_after = now.ratio(*s.constant).value_or(0);
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
