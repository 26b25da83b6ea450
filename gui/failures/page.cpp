// SPDX-License-Identifier: Apache-2.0
#include "gui/failures/page.h"

#include <QEvent>
#include <QSplitter>
#include <QVBoxLayout>
#include <array>
#include <utility>

#include "gui/legend.h"
#include "gui/text.h"

namespace orrery::gui {
namespace {

constexpr std::uint64_t kSeed = 1;  // of `orrery reliability`, whose numbers are the same
constexpr std::int64_t kRuns = 10'000;
constexpr std::size_t kMostStops = 5'000;  // in the table

std::vector<Meaning> doing_colours(const Theme& theme) {
  std::vector<Meaning> out;
  for (std::size_t i = 0; i < sim::kDoings; ++i) {
    const auto doing = static_cast<sim::Doing>(i);
    out.push_back({colour_of(theme, doing), FailuresPage::tr(sim::words_of(doing))});
  }
  return out;
}

// Time that is no progress.
constexpr std::array kShares{std::pair{sim::Doing::kLost, &sim::Summary::lost},
                             std::pair{sim::Doing::kSlowWork, &sim::Summary::slow},
                             std::pair{sim::Doing::kCheckpoint, &sim::Summary::checkpoint},
                             std::pair{sim::Doing::kDetection, &sim::Summary::detection},
                             std::pair{sim::Doing::kRestart, &sim::Summary::restart},
                             std::pair{sim::Doing::kWait, &sim::Summary::wait},
                             std::pair{sim::Doing::kMaintenance, &sim::Summary::maintenance}};

}  // namespace

FailuresPage::FailuresPage(Session& session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(8, 8, 8, 8);
  headline_ = new QLabel;
  headline_->setWordWrap(true);
  headline_->setTextFormat(Qt::RichText);
  headline_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  column->addWidget(headline_);
  auto* rows = new QSplitter(Qt::Vertical);
  rows->setObjectName("failures rows");
  auto* charts = new QSplitter(Qt::Horizontal);
  charts->setObjectName("failures charts");
  days_ = new HistogramChart(tr("Days of the run"));
  dollars_ = new HistogramChart(tr("Dollars of the run"));
  time_ = new StackedBarChart(tr("Time that is no progress"));
  charts->addWidget(days_);
  charts->addWidget(dollars_);
  charts->addWidget(time_);
  rows->addWidget(charts);
  auto* below = new QSplitter(Qt::Horizontal);
  below->setObjectName("failures life");
  auto* left = new QWidget;
  auto* in_left = new QVBoxLayout(left);
  in_left->setContentsMargins(0, 0, 0, 0);
  diary_words_ = new QLabel;
  diary_words_->setTextFormat(Qt::PlainText);
  in_left->addWidget(diary_words_);
  in_left->addWidget(new Legend(doing_colours, 8));
  life_ = new LifeView;
  in_left->addWidget(life_, 1);
  below->addWidget(left);
  stops_ = new Table(tr("Stops"), {tr("day"), tr("why"), tr("down"), tr("lost work")},
                     tr("Stops of the run come here once its plan was looked into."));
  below->addWidget(stops_);
  below->setSizes({900, 460});
  rows->addWidget(below);
  rows->setSizes({300, 460});
  column->addWidget(rows, 1);
  connect(stops_, &Table::selection_changed, this, [this] { life_->mark(stops_->selected()); });
  connect(&session_, &Session::evaluated_changed, this, &FailuresPage::evaluated_changed);
  refresh();
}

void FailuresPage::changeEvent(QEvent* event) {
  if (event->type() == QEvent::PaletteChange) refresh();
  QWidget::changeEvent(event);
}

void FailuresPage::showEvent(QShowEvent* event) {
  QWidget::showEvent(event);
  simulate();
}

void FailuresPage::evaluated_changed() {
  session_.jobs().cancel("failures");
  found_ = nullptr;
  simulated_ = nullptr;
  refresh();
  if (isVisible()) simulate();
}

void FailuresPage::simulate() {
  const EvaluatedPtr& e = session_.evaluated();
  if (!e || simulated_ == e) return;
  simulated_ = e;
  session_.jobs().start(
      "failures",
      [e, data = session_.data()](Job&) {
        auto out = std::make_shared<Found>();
        try {
          out->of = planner::operate(*e->problem, e->plan, e->problem->at, {}, data);
          if (!planner::take_stated_step(out->of, *e->topology))
            planner::take_predicted_step(out->of, *e->topology, e->evaluation.predicted.step_time_s, "engine",
                                         kSeed);
          out->answered =
              planner::answered(out->of, {.seed = kSeed, .runs = kRuns, .threads = hardware_threads()});
        } catch (const std::exception& error) {
          out->problem = error.what();
          return std::shared_ptr<const Found>(std::move(out));
        }
        try {
          out->diary = planner::diary_of_median_run(out->answered, kSeed);
        } catch (const std::exception& error) {
          out->no_diary = error.what();
        }
        return std::shared_ptr<const Found>(std::move(out));
      },
      [this](std::shared_ptr<const Found> found) {
        found_ = std::move(found);
        refresh();
      });
}

void FailuresPage::refresh() {
  const Theme theme = Theme::of(palette());
  if (found_ && found_->problem.empty()) {
    show_distributions(theme);
    return show_diary();
  }
  QString words =
      tr("Plan a scenario or open a plan to see what its run takes with failures, checkpoints and restarts.");
  if (found_)
    words = tr("No run to simulate: %1").arg(QString::fromStdString(found_->problem).toHtmlEscaped());
  else if (session_.evaluated())
    words = tr("Simulating runs …");
  headline_->setText(words);
  days_->set({}, {}, {}, theme.forward);
  dollars_->set({}, {}, {}, theme.forward);
  time_->set({}, {}, {});
  diary_words_->clear();
  life_->set(sim::Diary());
  stops_->fill({});
}

void FailuresPage::show_distributions(const Theme& theme) {
  const sim::Summary& s = found_->answered.summary;
  const bool priced = found_->answered.tariff.node_hour > 0;
  QString words =
      tr("<b>%1</b> ends in <b>%2 days</b> (90 % of runs: %3 to %4); <b>%5 %</b> of the time is progress")
          .arg(QString::fromStdString(short_name(*found_->of.plan)).toHtmlEscaped(),
               number(s.days_of_step.p50, 2), number(s.days_of_step.p5, 2), number(s.days_of_step.p95, 2),
               number(100 * s.progress, 1));
  if (priced)
    words += tr("; <b>$%1</b> ($%2 to $%3)")
                 .arg(number(s.dollars_of_step.p50, 0), number(s.dollars_of_step.p5, 0),
                      number(s.dollars_of_step.p95, 0));
  words += tr(". %L1 simulated runs; a stop every %2 in the mean, a checkpoint every %3; rates of %4.")
               .arg(s.runs)
               .arg(QString::fromStdString(format(RunTime{found_->answered.model.mtbf_s})),
                    QString::fromStdString(format(RunTime{found_->answered.model.interval_s})),
                    QString::fromStdString(found_->of.assumed.profile).toHtmlEscaped());
  headline_->setText(words);
  const auto marks = [](const sim::Spread& of) {
    return std::vector<HistogramChart::Mark>{{tr("p5"), of.p5}, {tr("p50"), of.p50}, {tr("p95"), of.p95}};
  };
  days_->set(s.sorted_days, marks(s.days_of_step), tr("days"), theme.forward);
  dollars_->setVisible(priced);
  if (priced) dollars_->set(s.sorted_dollars, marks(s.dollars_of_step), tr("dollars"), theme.backward);
  QStringList names;
  StackedBarChart::Part part{tr("share"), theme.pipeline, {}};
  for (const auto& [doing, share] : kShares) {
    if (s.*share <= 0) continue;
    names << tr(sim::words_of(doing));
    part.values.push_back(100 * s.*share);
  }
  time_->set(names, {part}, tr("% of the time of all runs"));
}

void FailuresPage::show_diary() {
  const std::vector<sim::Outage>& stops = found_->diary.outages();
  QString words = tr("The median run, at the predicted step: %1 days, %L2 stops")
                      .arg(number(found_->answered.summary.days.p50, 2))
                      .arg(stops.size());
  if (stops.size() > kMostStops) words += tr(" (the first %L1 are in the table)").arg(kMostStops);
  diary_words_->setText(found_->no_diary.empty() ? words : QString::fromStdString(found_->no_diary));
  life_->set(found_->diary);
  std::vector<std::vector<Cell>> rows;
  for (const sim::Outage& o : stops) {
    if (rows.size() == kMostStops) break;
    const auto cell = [](sim::Ticks t) {
      return Cell{QString::fromStdString(format(RunTime{sim::seconds(t)})), sim::seconds(t)};
    };
    rows.push_back({{number(sim::days(o.begin), 2), sim::days(o.begin)},
                    tr(sim::words_of(o.stop)),
                    cell(o.end - o.begin),
                    cell(o.lost)});
  }
  stops_->fill(rows);
}

}  // namespace orrery::gui
