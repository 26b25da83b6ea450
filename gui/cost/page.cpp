// SPDX-License-Identifier: Apache-2.0
#include "gui/cost/page.h"

#include <QEvent>
#include <QHBoxLayout>
#include <QSplitter>
#include <QVBoxLayout>
#include <algorithm>
#include <array>

#include "gui/text.h"
#include "gui/theme.h"

namespace orrery::gui {
namespace {

constexpr std::size_t kMostPlans = 8;

// Where the step goes, summed up for money.
struct MoneyPart {
  const char* name;
  double (*seconds)(const Breakdown&);
};
double waited(const Breakdown& b, WaitedAxis::Of of) {
  double sum = 0;
  for (std::size_t i = 0; i < kWaitedAxes.size(); ++i) sum += kWaitedAxes[i].of == of ? b.exposed_s[i] : 0;
  return sum;
}
constexpr std::array kParts{
    MoneyPart{"model arithmetic", [](const Breakdown& b) { return b.forward_s + b.backward_s; }},
    MoneyPart{"recomputation", [](const Breakdown& b) { return b.recompute_s; }},
    MoneyPart{"optimizer", [](const Breakdown& b) { return b.optimizer_s; }},
    MoneyPart{"communication", [](const Breakdown& b) { return waited(b, WaitedAxis::Of::kAxis); }},
    MoneyPart{"pipeline bubble", [](const Breakdown& b) { return waited(b, WaitedAxis::Of::kStages); }},
    MoneyPart{"offload", [](const Breakdown& b) { return waited(b, WaitedAxis::Of::kHost); }},
    MoneyPart{"host", [](const Breakdown& b) { return b.host_s; }},
    MoneyPart{"loading", [](const Breakdown& b) { return b.loading_s; }},
    MoneyPart{"islands", [](const Breakdown& b) { return b.islands_s; }},
    MoneyPart{"documents", [](const Breakdown& b) { return b.documents_s; }},
};

}  // namespace

CostPage::CostPage(Session& session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(8, 8, 8, 8);
  headline_ = new QLabel;
  headline_->setWordWrap(true);
  column->addWidget(headline_);
  auto* bar = new QHBoxLayout;
  measure_ = new QComboBox;
  measure_->setAccessibleName(tr("Measure"));
  for (const char* m : {"cost of the run, USD", "days", "step time, s"}) measure_->addItem(tr(m));
  bar->addWidget(new QLabel(tr("Best plans by")));
  bar->addWidget(measure_);
  bar->addWidget(new QLabel(tr("(box: 80 % of published runs; line: predicted)")));
  bar->addStretch(1);
  column->addLayout(bar);
  auto* split = new QSplitter(Qt::Horizontal);
  split->setObjectName("cost columns");
  auto* left = new QSplitter(Qt::Vertical);
  intervals_ = new IntervalChart(tr("How sure"));
  table_ = new Table(tr("Costs"), {tr("#"), tr("plan"), tr("low"), tr("predicted"), tr("high")},
                     tr("Plan a scenario with tokens and prices to see what it costs."));
  left->addWidget(intervals_);
  left->addWidget(table_);
  left->setSizes({420, 240});
  auto* right = new QSplitter(Qt::Vertical);
  money_ = new StackedBarChart(tr("Where the money goes"));
  help_ = new StackedBarChart(tr("What would help"));
  help_->setMinimumHeight(190);  // names of lower bars are cut
  right->addWidget(money_);
  right->addWidget(help_);
  right->setSizes({380, 280});
  split->addWidget(left);
  split->addWidget(right);
  split->setSizes({760, 600});
  column->addWidget(split, 1);
  connect(&session_, &Session::answer_changed, this, &CostPage::refresh);
  connect(measure_, &QComboBox::currentIndexChanged, this, &CostPage::refresh);
  refresh();
}

void CostPage::changeEvent(QEvent* event) {
  if (event->type() == QEvent::PaletteChange) refresh();
  QWidget::changeEvent(event);
}

void CostPage::refresh() {
  const Theme theme = Theme::of(palette());
  const auto& answer = session_.answer();
  std::vector<IntervalChart::Interval> intervals;
  std::vector<std::vector<Cell>> rows;
  QStringList names, changes;
  std::vector<StackedBarChart::Part> money, help{{tr("seconds saved of a step"), theme.optimizer, {}}};
  for (std::size_t i = 0; i < kParts.size(); ++i) money.push_back({tr(kParts[i].name), theme.series(i), {}});
  headline_->setText(tr("Plan a scenario to see what its plans cost."));
  const bool priced = answer && !answer->plans.empty() && answer->plans[0].predicted.cost_usd > 0;
  if (answer && !answer->plans.empty()) {
    const Problem& p = *session_.problem();
    const Predicted& best = answer->plans[0].predicted;
    headline_->setText(
        priced
            ? tr("<b>%1</b> costs <b>$%2</b> ($%3 to $%4) in %5 days on %6 nodes at $%7 an hour%8.")
                  .arg(QString::fromStdString(short_name(answer->plans[0].plan)), number(best.cost_usd, 0),
                       number(best.cost_usd * best.step_time_low_s / best.step_time_s, 0),
                       number(best.cost_usd * best.step_time_high_s / best.step_time_s, 0),
                       number(best.days, 2))
                  .arg(p.cluster.nodes)
                  .arg(p.cluster.dollars_per_hour(p.cluster.nodes) / static_cast<double>(p.cluster.nodes), 0,
                       'f', 2)
                  .arg(p.cluster.price_as_of.empty()
                           ? QString()
                           : tr(" (%1)").arg(QString::fromStdString(p.cluster.price_as_of).toHtmlEscaped()))
            : tr("This scenario has no token budget or no price, so only times are known."));
    if (!priced && measure_->currentIndex() != 2) {
      measure_->setCurrentIndex(2);  // comes back here
      return;
    }
    for (std::size_t i = 0; i < std::min(kMostPlans, answer->plans.size()); ++i) {
      const planner::Ranked& r = answer->plans[i];
      const Predicted& q = r.predicted;
      const double value = measure_->currentIndex() == 0   ? q.cost_usd
                           : measure_->currentIndex() == 1 ? q.days
                                                           : q.step_time_s;
      const double low = value * q.step_time_low_s / q.step_time_s,
                   high = value * q.step_time_high_s / q.step_time_s;
      const int decimals = measure_->currentIndex() == 0 ? 0 : 3;
      intervals.push_back({QString::number(i + 1), low, value, high});
      rows.push_back({{QString::number(i + 1), static_cast<double>(i + 1)},
                      QString::fromStdString(short_name(r.plan)),
                      {number(low, decimals), low},
                      {number(value, decimals), value},
                      {number(high, decimals), high}});
      if (i >= 4) continue;
      names << QString::number(i + 1);
      const double dollars_per_s = (priced ? q.cost_usd : q.step_time_s) / q.step_time_s;
      for (std::size_t k = 0; k < kParts.size(); ++k)
        money[k].values.push_back(kParts[k].seconds(q.breakdown) * dollars_per_s);
    }
    for (const planner::Sensitivity& s : answer->sensitivity) {
      changes << QString::fromStdString(s.change);
      help[0].values.push_back(std::max(0.0, best.step_time_s * (1 - 1 / s.speedup)));
    }
  }
  std::erase_if(money, [](const StackedBarChart::Part& part) {
    return std::all_of(part.values.begin(), part.values.end(), [](double v) { return v == 0; });
  });
  intervals_->set(intervals, measure_->currentText(), theme.backward);
  table_->fill(rows);
  money_->set(names, money, priced ? tr("where the money goes, USD") : tr("where the step goes, s"));
  help_->set(changes, help, tr("a step would be shorter by, s"));
}

}  // namespace orrery::gui
