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
  return m.keeping_s + m.saving_s + m.validating_s;
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

std::vector<Attempt>::const_iterator first_begun(const LifeLog& log) {
  return std::find_if(log.attempts.begin(), log.attempts.end(),
                      [](const Attempt& a) { return !a.steps.empty(); });
}

RunTime& of_part(LifeTimes& t, LifePart part) {
  switch (part) {
    case LifePart::kProgress:
      return t.progress;
    case LifePart::kLost:
      return t.lost;
    case LifePart::kCheckpoint:
      return t.checkpoint;
    case LifePart::kValidation:
      return t.validation;
    case LifePart::kDetection:
      return t.detection;
    case LifePart::kRestart:
      break;
  }
  return t.restart;
}

}  // namespace

std::vector<LifePeriod> life_periods(const LifeLog& log) {
  std::vector<LifePeriod> out;
  const auto begun = first_begun(log);
  if (begun == log.attempts.end()) return out;
  const double step = median_step(log);
  const StepMark& first = begun->steps.front();
  double since = first.end_s - beside(first) - step;  // where the attempt began
  const double begin = since;
  const auto add = [&](LifePart part, double from, double to) {
    if (to > from) out.push_back({part, from - begin, to - begin});
  };
  for (auto a = begun; a != log.attempts.end(); ++a) {
    double at = since;
    for (std::size_t i = 0; i < a->steps.size(); ++i) {
      const StepMark& m = a->steps[i];
      const double done = m.end_s - beside(m);
      if (i == 0 && a != begun) {
        const double stepping = std::max(at, done - step);
        add(LifePart::kRestart, at, stepping);
        at = stepping;
      }
      add(is_redone(a + 1, log.attempts.end(), m.step) ? LifePart::kLost : LifePart::kProgress, at, done);
      const double saved = done + m.keeping_s + m.saving_s;
      add(LifePart::kCheckpoint, done, saved);
      add(LifePart::kValidation, saved, m.end_s);
      at = m.end_s;
    }
    if (!a->failure) continue;
    // One that came before a step was done belongs to the restart.
    since = a->failure->noticed_s;
    add(a->steps.empty() ? LifePart::kRestart : LifePart::kDetection, at, since);
  }
  return out;
}

RunLife run_life(const LifeLog& log) {
  RunLife out;
  const auto begun = first_begun(log);
  if (begun == log.attempts.end()) return out;
  const double step = median_step(log);
  out.first_step = begun->steps.front().step - 1;
  for (const LifePeriod& p : life_periods(log)) {
    of_part(out.times, p.part).value += p.end_s - p.begin_s;
    out.times.total = RunTime{p.end_s};
  }
  std::vector<double> checkpoints, in_memory;
  Mean settle, restart, dead, frozen;
  double since = 0;
  for (auto a = begun; a != log.attempts.end(); ++a) {
    for (const StepMark& m : a->steps) {
      if (m.saved) checkpoints.push_back(m.saving_s);
      if (m.kept) in_memory.push_back(m.keeping_s);
      if (m.settled_s) settle.add(*m.settled_s);
      out.steps = m.step;
    }
    if (a != begun && !a->steps.empty()) {
      const StepMark& first = a->steps.front();
      restart.add(std::max(0.0, first.end_s - beside(first) - since - step));
    }
    if (!a->failure) continue;
    ++out.failures;
    since = a->failure->noticed_s;
    if (a->steps.empty()) continue;
    const double unnoticed = since - a->steps.back().end_s;
    if (a->failure->injected == FaultKind::kDead) dead.add(unnoticed);
    if (a->failure->injected == FaultKind::kFrozen) frozen.add(unnoticed);
  }
  out.measured = {.step = RunTime{step},
                  .settle = settle.value(),
                  .restart = restart.value(),
                  .detection_dead = dead.value(),
                  .detection_frozen = frozen.value()};
  if (!checkpoints.empty()) out.measured.checkpoint = RunTime{median(checkpoints)};
  if (!in_memory.empty()) out.measured.memory_checkpoint = RunTime{median(in_memory)};
  return out;
}

}  // namespace orrery
