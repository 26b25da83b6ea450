// SPDX-License-Identifier: Apache-2.0
//
// What is open and what was found for it: the values that all views show. Work runs as jobs; views follow the
// signals.
#pragma once

#include <QObject>
#include <array>
#include <optional>

#include "gui/files.h"
#include "gui/jobs.h"
#include "gui/time_view.h"
#include "planner/plan.h"
#include "sim/link_use.h"

namespace orrery::gui {

// Jobs that people see and can cancel; the others finish what is on screen.
struct JobWords {
  const char *kind, *words;
};
inline constexpr JobWords kSeenJobs[] = {{"open", "opening"},
                                         {"open beside", "opening"},
                                         {"plan", "searching plans"},
                                         {"evaluate", "simulating"},
                                         {"evaluate beside", "simulating"},
                                         {"topology", "building the network"},
                                         {"compare", "comparing"},
                                         {"critical path", "finding the critical path"},
                                         {"find", "finding ops"},
                                         {"statistics", "summing up"},
                                         {"gap", "finding the longest gap"},
                                         {"export", "writing"}};

// One plan, run through the event engine.
struct Evaluated {
  Plan plan;
  std::shared_ptr<const sim::Topology> topology;
  planner::Evaluation evaluation;  // its timeline is in `run`
  RunPtr run;
  std::shared_ptr<const Problem> problem;
  // What follows refers to what is above, and each to those before it.
  std::optional<sim::PlanLinks> links;
  std::optional<sim::CostModel> cost;
  std::optional<sim::LinkUse> link_use;
};
using EvaluatedPtr = std::shared_ptr<const Evaluated>;

class Session : public QObject {
  Q_OBJECT

 public:
  explicit Session(QObject* parent = nullptr);

  Jobs& jobs() { return jobs_; }
  const DataFolders& data() const { return data_; }
  TimeView& time() { return time_; }
  const std::shared_ptr<const Problem>& problem() const { return problem_; }
  const std::shared_ptr<const planner::Answer>& answer() const { return answer_; }
  // The plan that views look into.
  const EvaluatedPtr& evaluated() const { return evaluated_; }
  const std::shared_ptr<const sim::Topology>& topology() const { return topology_; }
  // The timelines: of the plan or the file that is open, and the one laid beside it.
  const RunPtr& run(std::size_t which) const { return runs_[which]; }

  // Replaces what is open. A scenario is planned, a plan simulated, a timeline or a topology shown.
  void open(const QString& path);
  // A scenario that stands in no file; messages name `from`.
  void open(const Json& scenario, const QString& from);
  // Lays a timeline, or a plan's, beside the one that is open.
  void open_beside(const QString& path);
  void close_beside();
  void plan();
  void cancel();  // of kSeenJobs whatever runs
  // Writes the timeline that is shown.
  void save_run(const QString& path);
  // Simulates a plan of the open problem and shows it; or lays it beside.
  void look_into(const Plan& plan);
  void lay_beside(const Plan& plan);

 Q_SIGNALS:
  void opened(const QString& path);
  void problem_changed();
  void answer_changed();
  void evaluated_changed();
  void topology_changed();
  void runs_changed();
  void failed(const QString& message);

 private:
  void show(Opened opened);
  void set_run(std::size_t which, RunPtr run);
  void evaluate(const Plan& plan, bool beside);

  DataFolders data_;
  Jobs jobs_;
  TimeView time_;
  std::shared_ptr<const Problem> asked_, problem_;  // as it was opened; with as many nodes as the answer has
  std::shared_ptr<const sim::Topology> topology_;
  std::shared_ptr<const planner::Answer> answer_;
  EvaluatedPtr evaluated_;
  std::array<RunPtr, 2> runs_;
};

}  // namespace orrery::gui
