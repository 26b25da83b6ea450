// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/fit_published.h"

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/parallel.h"

namespace orrery::sim {
namespace {

using Vector = Eigen::VectorXd;
using Matrix = Eigen::MatrixXd;

// ln(predicted / published) with these constants.
double residual(const PublishedRun& run, const Vector& x) {
  const Problem problem = with_constants(run.problem, {x.data(), static_cast<std::size_t>(x.size())});
  return std::log(predict_seconds(run, problem) / run.step_s);
}

// Residuals of some runs, and how they change with the constants.
class Residuals {
 public:
  Residuals(const std::vector<const PublishedRun*>& runs, std::size_t threads)
      : runs_(runs), threads_(threads) {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      for (std::size_t c = 0; c < fitted_constants().size(); ++c) {
        if (fitted_constants()[c].concerns(runs_[i]->problem)) pairs_.push_back({i, c});
      }
    }
  }

  Vector at(const Vector& x) const {
    Vector out(static_cast<Eigen::Index>(runs_.size()));
    on_threads(threads_, 0, runs_.size(), [&](std::size_t, std::size_t i) {
      out[static_cast<Eigen::Index>(i)] = residual(*runs_[i], x);
    });
    return out;
  }

  // By differences towards the middle of the bounds; a run depends on few constants.
  Matrix slopes(const Vector& x, const Vector& here) const {
    Matrix out = Matrix::Zero(here.size(), x.size());
    on_threads(threads_, 0, pairs_.size(), [&](std::size_t, std::size_t p) {
      const auto i = static_cast<Eigen::Index>(pairs_[p].first),
                 c = static_cast<Eigen::Index>(pairs_[p].second);
      const Constant& constant = fitted_constants()[pairs_[p].second];
      const double step =
          kStep * (constant.high - constant.low) * (x[c] > (constant.high + constant.low) / 2 ? -1 : 1);
      Vector beside = x;
      beside[c] += step;
      out(i, c) = (residual(*runs_[pairs_[p].first], beside) - here[i]) / step;
    });
    return out;
  }

 private:
  static constexpr double kStep = 0.02;  // of the distance of the bounds

  std::vector<const PublishedRun*> runs_;
  std::size_t threads_;
  std::vector<std::pair<std::size_t, std::size_t>> pairs_;  // runs and the constants that concern them
};

struct Bounds {
  Vector low, high, expected, precision;  // of the expectation: 1 / variance in units of squared residuals
};
Bounds bounds() {
  const auto n = static_cast<Eigen::Index>(fitted_constants().size());
  Bounds b{Vector(n), Vector(n), Vector(n), Vector(n)};
  for (Eigen::Index c = 0; c < n; ++c) {
    const Constant& k = fitted_constants()[static_cast<std::size_t>(c)];
    b.low[c] = k.low;
    b.high[c] = k.high;
    b.expected[c] = k.expected;
    b.precision[c] = std::pow(kUsualError / k.spread, 2);
  }
  return b;
}

double cost(const Vector& r, const Vector& x, const Bounds& b) {
  constexpr double f = kUsualError;
  return 2 * f * f * ((1 + (r / f).array().square()).sqrt() - 1).sum() +
         (b.precision.array() * (x - b.expected).array().square()).sum();
}

struct Normal {
  Matrix hessian;  // of half the cost, without the curvature of the model
  Vector gradient;
  std::vector<Eigen::Index> free;  // constants that are not held by a bound
};
Normal normal_equations(const Vector& x, const Vector& r, const Matrix& slopes, const Bounds& b) {
  const Vector weights = (1 + (r / kUsualError).array().square()).rsqrt();
  Normal n;
  n.hessian = slopes.transpose() * weights.asDiagonal() * slopes;
  n.hessian.diagonal() += b.precision;
  n.gradient = slopes.transpose() * (weights.array() * r.array()).matrix() +
               (b.precision.array() * (x - b.expected).array()).matrix();
  for (Eigen::Index c = 0; c < x.size(); ++c) {
    const bool held = (x[c] <= b.low[c] && n.gradient[c] > 0) || (x[c] >= b.high[c] && n.gradient[c] < 0);
    if (!held) n.free.push_back(c);
  }
  return n;
}

struct Minimum {
  Vector x, residuals;
  Matrix slopes;
};
Minimum minimise(const Residuals& residuals, Vector x) {
  constexpr int kMostSteps = 20;
  constexpr double kEnough = 1e-4;  // of the cost
  const Bounds b = bounds();
  Vector r = residuals.at(x);
  Matrix slopes = residuals.slopes(x, r);
  double now = cost(r, x, b), damping = 1e-3;
  for (int s = 0; s < kMostSteps; ++s) {
    const Normal n = normal_equations(x, r, slopes, b);
    Matrix h = n.hessian(n.free, n.free);
    h.diagonal() *= 1 + damping;
    Vector next = x;
    next(n.free) -= h.ldlt().solve(n.gradient(n.free).eval());
    next = next.cwiseMax(b.low).cwiseMin(b.high);
    const Vector r_next = residuals.at(next);
    const double then = cost(r_next, next, b);
    if (then >= now) {
      damping *= 10;
      if (damping > 1e3) break;
      continue;
    }
    const bool enough = now - then < kEnough * now;
    x = next;
    r = r_next;
    now = then;
    damping /= 10;
    if (enough) break;
    slopes = residuals.slopes(x, r);
  }
  return {x, r, slopes};
}

}  // namespace

std::string not_fitted(const PublishedRun& run) {
  struct Rule {
    const char* study;
    const char* why;
  };
  constexpr std::array kRules{Rule{"sailor", "neither its number format nor its network is stated"},
                              Rule{"megatron_ci", "steps of a test suite"}};
  if (run.timed == Timed::kNothing) return "no time";
  if (run.timed != Timed::kStep) return "attention alone";
  if (!run.ran()) return "out of memory";
  if (run.problem.scenario.training.math == Math::kFp8Rowwise)
    return "kernels with a factor for each row, which have no rate of their own";
  const auto* rule =
      std::find_if(kRules.begin(), kRules.end(), [&](const Rule& r) { return run.study == r.study; });
  return rule == kRules.end() ? std::string() : rule->why;
}

PublishedFit fit_published(const PublishedRuns& runs, std::size_t threads,
                           const std::function<void(double)>& progress) {
  const Bounds b = bounds();
  std::set<std::string> studies;
  for (const PublishedRun& run : runs.runs) {
    if (not_fitted(run).empty()) studies.insert(run.study);
  }
  if (studies.empty()) throw Error("none of the published runs is one to fit to");
  const auto without = [&](const std::string& study) {
    std::vector<const PublishedRun*> out;
    for (const PublishedRun& run : runs.runs) {
      if (not_fitted(run).empty() && run.study != study) out.push_back(&run);
    }
    return out;
  };
  const double parts = static_cast<double>(studies.size()) + 1;
  const Minimum all = minimise(Residuals(without({}), threads), b.expected);
  progress(1 / parts);

  PublishedFit out;
  const Normal n = normal_equations(all.x, all.residuals, all.slopes, b);
  const Vector weights = (1 + (all.residuals / kUsualError).array().square()).rsqrt();
  const double variance =
      (weights.array() * all.residuals.array().square()).sum() /
      std::max(1.0, static_cast<double>(all.residuals.size()) - static_cast<double>(n.free.size()));
  Matrix covariance = Matrix::Zero(all.x.size(), all.x.size());
  covariance(n.free, n.free) = variance * Matrix(n.hessian(n.free, n.free)).inverse();
  for (Eigen::Index c = 0; c < all.x.size(); ++c) {
    out.constants.push_back({all.x[c], std::sqrt(covariance(c, c))});
    const Vector row = covariance.row(c);
    out.covariance.emplace_back(row.begin(), row.end());
  }

  const auto predict_all = [&](const Vector& x, std::vector<double>& to, const std::string& study) {
    on_threads(threads, 0, runs.runs.size(), [&](std::size_t, std::size_t i) {
      const PublishedRun& run = runs.runs[i];
      if (run.step_s == 0 || (!study.empty() && run.study != study)) return;
      to[i] = residual(run, x);
    });
  };
  out.residuals.resize(runs.runs.size());
  predict_all(all.x, out.residuals, {});
  out.left_out = out.residuals;
  out.unfitted.resize(runs.runs.size());
  predict_all(b.expected, out.unfitted, {});
  double done = 1;
  for (const std::string& study : studies) {
    const auto others = without(study);
    // A constant that no other study has is what was expected of it.
    Vector start = all.x;
    for (std::size_t c = 0; c < fitted_constants().size(); ++c) {
      const bool known = std::any_of(others.begin(), others.end(), [&](const PublishedRun* run) {
        return fitted_constants()[c].concerns(run->problem);
      });
      if (!known) start[static_cast<Eigen::Index>(c)] = fitted_constants()[c].expected;
    }
    if (others.empty())
      predict_all(start, out.left_out, study);
    else
      predict_all(minimise(Residuals(others, threads), start).x, out.left_out, study);
    progress(++done / parts);
  }
  return out;
}

}  // namespace orrery::sim
