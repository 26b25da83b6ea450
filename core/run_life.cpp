// SPDX-License-Identifier: Apache-2.0
#include "core/run_life.h"

#include <algorithm>

namespace orrery {
namespace {

class Mean {
 public:
  void add(double s) {
    sum_ += s;
    ++count_;
  }
  std::optional<RunTime> value() const {
    if (count_ == 0) return std::nullopt;
    return RunTime{sum_ / count_};
  }

 private:
  double sum_ = 0, count_ = 0;
};

// From the end of the mark before, or from `since`.
double elapsed(const Attempt& attempt, std::size_t i, double since) {
  return attempt.steps[i].end_s - (i > 0 ? attempt.steps[i - 1].end_s : since);
}

double beside(const StepMark& m) {
  return m.saving_s + m.validating_s;
}

// Whether one of these attempts did the step again.
bool is_redone(std::vector<Attempt>::const_iterator later, std::vector<Attempt>::const_iterator end,
               std::int64_t step) {
  return std::any_of(later, end,
                     [&](const Attempt& a) { return !a.steps.empty() && a.steps.front().step <= step; });
}

double median(std::vector<double> of) {
  const auto middle = of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2);
  std::nth_element(of.begin(), middle, of.end());
  return *middle;
}

double median_step(const LifeLog& log) {
  std::vector<double> usual, all;
  for (const Attempt& a : log.attempts) {
    for (std::size_t i = 0; i < a.steps.size(); ++i) {
      all.push_back(a.steps[i].step_s);
      if (i > 0) usual.push_back(elapsed(a, i, 0) - beside(a.steps[i]));
    }
  }
  return median(usual.empty() ? all : usual);
}

}  // namespace

RunLife run_life(const LifeLog& log) {
  RunLife out;
  const auto begun = std::find_if(log.attempts.begin(), log.attempts.end(),
                                  [](const Attempt& a) { return !a.steps.empty(); });
  if (begun == log.attempts.end()) return out;
  const double step = median_step(log);
  std::vector<double> checkpoints;
  Mean settle, restart, dead, frozen;
  LifeTimes& t = out.times;
  const StepMark& first = begun->steps.front();
  out.first_step = first.step - 1;
  double since = first.end_s - beside(first) - step;  // where the attempt began
  const double begin = since;
  for (auto a = begun; a != log.attempts.end(); ++a) {
    for (std::size_t i = 0; i < a->steps.size(); ++i) {
      const StepMark& m = a->steps[i];
      double took = elapsed(*a, i, since) - beside(m);
      if (i == 0 && a != begun) {
        const double start = std::max(0.0, took - step);
        t.restart.value += start;
        restart.add(start);
        took -= start;
      }
      (is_redone(a + 1, log.attempts.end(), m.step) ? t.lost : t.progress).value += took;
      t.checkpoint.value += m.saving_s;
      t.validation.value += m.validating_s;
      if (m.saved) checkpoints.push_back(m.saving_s);
      if (m.settled_s) settle.add(*m.settled_s);
    }
    const double stepped = a->steps.empty() ? since : a->steps.back().end_s;
    if (!a->steps.empty()) out.steps = a->steps.back().step;
    since = a->failure ? a->failure->noticed_s : stepped;
    if (!a->failure) continue;
    ++out.failures;
    // One that came before a step was done belongs to the restart.
    (a->steps.empty() ? t.restart : t.detection).value += since - stepped;
    if (a->steps.empty()) continue;
    if (a->failure->injected == FaultKind::kDead) dead.add(since - stepped);
    if (a->failure->injected == FaultKind::kFrozen) frozen.add(since - stepped);
  }
  t.total = RunTime{since - begin};
  out.measured = {RunTime{step}, std::nullopt, settle.value(), restart.value(), dead.value(), frozen.value()};
  if (!checkpoints.empty()) out.measured.checkpoint = RunTime{median(checkpoints)};
  return out;
}

}  // namespace orrery
