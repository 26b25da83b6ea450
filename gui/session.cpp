// SPDX-License-Identifier: Apache-2.0
#include "gui/session.h"

#include <algorithm>

namespace orrery::gui {
namespace {

EvaluatedPtr evaluated_of(const std::shared_ptr<const Problem>& shared, const Plan& plan) {
  const Problem& problem = *shared;
  auto out = make_large<Evaluated>();
  out->plan = plan;
  out->problem = shared;
  out->topology = std::make_shared<const sim::Topology>(problem.cluster);
  planner::EvaluateOptions options;
  options.record = true;
  out->evaluation = planner::evaluate(problem, *out->topology, plan, options);
  Timeline& timeline = out->evaluation.simulation.timeline;
  out->run = make_large<Run>(QString::fromStdString(short_name(plan)), std::move(timeline));
  timeline = {};
  out->links = sim::plan_links(*out->topology, plan);
  out->cost.emplace(problem.devices, problem.stack, problem.cluster, *out->links, problem.scenario.training);
  out->link_use.emplace(*out->topology, out->evaluation.program, *out->cost, out->evaluation.simulation.step);
  return out;
}

}  // namespace

Session::Session(QObject* parent) : QObject(parent) {
  connect(&jobs_, &Jobs::failed, this,
          [this](const QString&, const QString& message) { Q_EMIT failed(message); });
}

void Session::open(const QString& path) {
  jobs_.start(
      "open", [path = path.toStdString(), data = data_](Job&) { return open_file(path, data); },
      [this, path](Opened opened) {
        show(std::move(opened));
        Q_EMIT this->opened(path);
      });
}

void Session::open(const Json& scenario, const QString& from) {
  jobs_.start(
      "open",
      [scenario, from = from.toStdString(), data = data_](Job&) {
        return open_scenario(scenario, from, data);
      },
      [this](Opened opened) { show(std::move(opened)); });
}

void Session::show(Opened opened) {
  cancel();
  problem_ = nullptr;
  answer_ = nullptr;
  evaluated_ = nullptr;
  topology_ = nullptr;
  runs_ = {};
  time_.select(std::nullopt);
  asked_ = problem_ = opened.problem;
  Q_EMIT problem_changed();
  Q_EMIT answer_changed();
  Q_EMIT evaluated_changed();
  Q_EMIT runs_changed();
  Q_EMIT topology_changed();
  if (opened.plan) look_into(*opened.plan);
  if (opened.problem && !opened.plan) plan();
  if (opened.run) set_run(0, std::move(opened.run));
  if (opened.cluster) {
    jobs_.start(
        "topology",
        [cluster = opened.cluster](Job&) { return std::make_shared<const sim::Topology>(*cluster); },
        [this](std::shared_ptr<const sim::Topology> t) {
          topology_ = std::move(t);
          Q_EMIT topology_changed();
        });
  }
}

void Session::open_beside(const QString& path) {
  jobs_.start(
      "open beside",
      [path = path.toStdString(), data = data_](Job&) {
        const Opened opened = open_file(path, data);
        if (opened.run) return opened.run;
        if (!opened.plan)
          throw Error(path + ": is no timeline and no plan, so there is nothing to lay beside");
        return evaluated_of(opened.problem, *opened.plan)->run;
      },
      [this](RunPtr run) { set_run(1, std::move(run)); });
}

void Session::close_beside() {
  set_run(1, nullptr);
}

void Session::set_run(std::size_t which, RunPtr run) {
  runs_[which] = std::move(run);
  Time begin{0}, end{0};
  for (const RunPtr& r : runs_) {
    if (r) end = std::max(end, r->lanes.end());
  }
  for (const RunPtr& r : runs_) {
    if (r) begin = std::min(begin, r->lanes.begin());
  }
  // Laying a run beside keeps what is looked at.
  if (which == 0 || end > time_.axis().end()) {
    time_.change([&](TimeAxis& a) { a.set_limits(begin, end); });
    time_.select(std::nullopt);
  }
  Q_EMIT runs_changed();
}

void Session::plan() {
  if (!asked_) return;
  jobs_.start(
      "plan",
      [problem = asked_](Job& job) {
        planner::PlanOptions options;
        options.top = 20;
        options.threads = hardware_threads();
        options.progress = [&job](double share) { job.progress(share); };
        return planner::plan(*problem, options);
      },
      [this](planner::Answer answer) {
        auto sized = std::make_shared<Problem>(*asked_);
        if (answer.nodes > 0) sized->cluster.nodes = sized->scenario.cluster.nodes = answer.nodes;
        problem_ = std::move(sized);
        answer_ = std::make_shared<const planner::Answer>(std::move(answer));
        Q_EMIT answer_changed();
        if (!answer_->plans.empty()) look_into(answer_->plans.front().plan);
      });
}

void Session::cancel() {
  for (const JobWords& job : kSeenJobs) jobs_.cancel(job.kind);
}

void Session::save_run(const QString& path) {
  if (!runs_[0]) return;
  jobs_.start(
      "export",
      [run = runs_[0], path = path.toStdString()](Job&) {
        save_timeline(path, run->lanes.packed());
        return true;
      },
      [](bool) {});
}

void Session::look_into(const Plan& plan) {
  evaluate(plan, false);
}

void Session::lay_beside(const Plan& plan) {
  evaluate(plan, true);
}

void Session::evaluate(const Plan& plan, bool beside) {
  if (!problem_) return;
  jobs_.start(
      beside ? "evaluate beside" : "evaluate",
      [problem = problem_, plan](Job&) { return evaluated_of(problem, plan); },
      [this, beside](EvaluatedPtr evaluated) {
        if (beside) return set_run(1, evaluated->run);
        evaluated_ = std::move(evaluated);
        topology_ = evaluated_->topology;
        Q_EMIT evaluated_changed();
        Q_EMIT topology_changed();
        set_run(0, evaluated_->run);
      });
}

}  // namespace orrery::gui
