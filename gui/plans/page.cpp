// SPDX-License-Identifier: Apache-2.0
#include "gui/plans/page.h"

#include <QEvent>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QVBoxLayout>
#include <algorithm>
#include <array>

#include "gui/text.h"
#include "gui/theme.h"

namespace orrery::gui {
namespace {

constexpr std::array kHow{"simulated", "estimated", "too large"};
std::vector<QColor> how_colours(const Theme& t) {
  return {t.forward, t.tensor, t.pipeline};
}

// What a trade-off can be between.
struct Measure {
  const char* title;
  double (*of)(const Found&);
};
constexpr std::array kMeasures{
    Measure{"step time, s", [](const Found& f) { return f.step_s; }},
    Measure{"memory, GiB", [](const Found& f) { return f.gib; }},
    Measure{"fits, %", [](const Found& f) { return 100 * f.fits; }},
    Measure{"cost of the run, USD", [](const Found& f) { return f.dollars; }},
    Measure{"MFU, %", [](const Found& f) { return 100 * f.mfu; }},
};

// A part of a step, as charts show it.
struct StepPart {
  const char* name;
  QColor colour;
  double seconds;
};
std::vector<StepPart> parts_of(const Theme& t, const Breakdown& b) {
  const std::array waited{t.tensor, t.data, t.context, t.expert, t.pipeline, t.series(5)};
  static_assert(waited.size() == kWaitedAxes.size());
  std::vector<StepPart> out{{"forward", t.forward, b.forward_s},
                            {"backward", t.backward, b.backward_s},
                            {"recompute", t.series(7), b.recompute_s},
                            {"optimizer", t.optimizer, b.optimizer_s}};
  for (std::size_t i = 0; i < waited.size(); ++i)
    out.push_back({kWaitedAxes[i].label, waited[i], b.exposed_s[i]});
  out.push_back({"host", t.other, b.host_s});
  out.push_back({"loading", t.series(6), b.loading_s});
  out.push_back({"islands", t.series(8), b.islands_s});
  out.push_back({"documents", t.series(11), b.documents_s});
  return out;
}

}  // namespace

PlansPage::PlansPage(Session& session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(8, 8, 8, 8);
  headline_ = new QLabel(tr("Open a scenario to plan it."));
  headline_->setWordWrap(true);
  headline_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  layout->addWidget(headline_);
  auto* top = new QWidget;
  build_table(top);
  panes_ = new Panes("plans panes", top);
  build_details();
  auto* choice = new QHBoxLayout;
  x_ = new QComboBox;
  y_ = new QComboBox;
  x_->setAccessibleName(tr("Across"));
  y_->setAccessibleName(tr("Up"));
  for (const Measure& m : kMeasures) {
    x_->addItem(tr(m.title));
    y_->addItem(tr(m.title));
  }
  y_->setCurrentIndex(1);
  choice->addWidget(new QLabel(tr("Across:")));
  choice->addWidget(x_);
  choice->addWidget(new QLabel(tr("against")));
  choice->addWidget(y_);
  choice->addStretch(1);
  auto* of_two = new QWidget;
  auto* in_two = new QVBoxLayout(of_two);
  in_two->setContentsMargins(0, 6, 0, 0);
  in_two->addLayout(choice);
  trade_off_ = new ScatterChart(tr("Trade-off between plans"));
  in_two->addWidget(trade_off_, 1);
  parallel_ = new ParallelChart;
  breakdown_ = new StackedBarChart(tr("Where the step goes"));
  panes_->add("trade-off", tr("Trade-off"), of_two, Qt::RightDockWidgetArea);
  panes_->add("all-degrees", tr("All degrees"), parallel_, Qt::RightDockWidgetArea);
  panes_->add("where-the-step-goes", tr("Where the step goes"), breakdown_, Qt::RightDockWidgetArea,
              Panes::Among::kUnder);
  panes_->set_size(Qt::RightDockWidgetArea, 480);
  panes_->set_size(Qt::BottomDockWidgetArea, 260);
  layout->addWidget(panes_, 1);
  connect(&session_, &Session::answer_changed, this, &PlansPage::answer_changed);
  connect(&session_, &Session::runs_changed, this, &PlansPage::show_buttons);
  connect(x_, &QComboBox::currentIndexChanged, this, &PlansPage::show_trade_off);
  connect(y_, &QComboBox::currentIndexChanged, this, &PlansPage::show_trade_off);
  connect(parallel_, &ParallelChart::picked, this, [this](int n) { table_->select_number(n); });
  connect(parallel_, &ParallelChart::kept_changed, this, [this] { table_->set_wanted(parallel_->kept()); });
  connect(trade_off_, &ScatterChart::picked, this, [this](int n) { table_->select_number(n); });
}

void PlansPage::build_table(QWidget* into) {
  auto* column = new QVBoxLayout(into);
  column->setContentsMargins(0, 0, 0, 0);
  auto* bar = new QHBoxLayout;
  filter_ = new QLineEdit;
  filter_->setPlaceholderText(tr("show plans with all of these words, as \"TP8 zero1\""));
  filter_->setAccessibleName(tr("Filter plans"));
  filter_->setClearButtonEnabled(true);
  look_ = new QPushButton(tr("Look into"));
  look_->setObjectName("look into");
  look_->setToolTip(tr("simulate the selected plan and show its timeline and memory"));
  beside_ = new QPushButton(tr("Lay beside"));
  beside_->setObjectName("lay beside");
  beside_->setToolTip(tr("simulate the selected plan and lay its timeline beside the one that is shown"));
  bar->addWidget(filter_, 1);
  bar->addWidget(look_);
  bar->addWidget(beside_);
  column->addLayout(bar);
  table_ = new Table(tr("Plans"),
                     {tr("plan"), tr("how"), tr("step, s"), tr("tokens/s"), tr("MFU, %"), tr("GiB"),
                      tr("fits, %"), tr("days"), tr("USD"), tr("note")},
                     tr("Plans come here once a scenario was opened and searched."));
  column->addWidget(table_, 1);
  connect(filter_, &QLineEdit::textChanged, table_, &Table::set_filter);
  connect(table_, &Table::selection_changed, this, &PlansPage::selection_changed);
  connect(table_, &Table::activated_number, this, [this] { look_->click(); });
  connect(look_, &QPushButton::clicked, this, [this] {
    if (const int n = table_->selected(); n >= 0)
      session_.look_into(found_[static_cast<std::size_t>(n)].plan);
  });
  connect(beside_, &QPushButton::clicked, this, [this] {
    const auto rows = table_->selected_numbers();
    if (!rows.empty()) session_.lay_beside(found_[static_cast<std::size_t>(rows.back())].plan);
  });
}

void PlansPage::build_details() {
  why_ = new QTextBrowser;
  why_->setFrameShape(QFrame::NoFrame);
  why_->setAccessibleName(tr("Why the best plan is the best"));
  why_not_ = new Table(tr("Why not"), {tr("plan"), tr("would take, s"), tr("why not")},
                       tr("Plans that were looked at and left out come here."));
  memory_ = new Table(tr("Memory by stage, GiB"),
                      {tr("stage"), tr("total"), tr("parameters"), tr("gradients"), tr("optimizer"),
                       tr("activations"), tr("workspace"), tr("communication"), tr("overhead")},
                      tr("Select a simulated plan to see what its stages hold."));
  comparison_ = new Table(tr("Comparison of two plans"),
                          {tr("measure"), tr("first"), tr("second"), tr("second / first")},
                          tr("Select two plans in the table above (Ctrl + click) to compare them."));
  helps_ =
      new Table(tr("What would help"), {tr("change"), tr("step, s"), tr("speedup"), tr("best plan then")},
                tr("What a faster network, more memory or more nodes would bring comes here."));
  const auto below = [this](const char* name, const QString& title, QWidget* content) {
    panes_->add(name, title, content, Qt::BottomDockWidgetArea);
  };
  below("why", tr("Why"), why_);
  below("why-not", tr("Why not"), why_not_);
  below("memory", tr("Memory"), memory_);
  below("compare", tr("Compare"), comparison_);
  below("what-would-help", tr("What would help"), helps_);
}

void PlansPage::answer_changed() {
  found_.clear();
  const auto& answer = session_.answer();
  if (!answer) {
    headline_->setText(session_.problem() ? tr("Planning …") : tr("Open a scenario to plan it."));
  } else {
    found_ = found_plans(*session_.problem(), *answer);
    const Problem& p = *session_.problem();
    const auto& c = answer->search.counts;
    headline_->setText(tr("<b>%1</b>: %2 on %3 × %4 (%5), batch %L6 × %L7 tokens, stack %8.")
                           .arg(QString::fromStdString(p.scenario.name).toHtmlEscaped(),
                                QString::fromStdString(p.scenario.model.name).toHtmlEscaped())
                           .arg(p.cluster.nodes)
                           .arg(QString::fromStdString(p.cluster.name).toHtmlEscaped())
                           .arg(QString::fromStdString(p.counted_devices()).toHtmlEscaped())
                           .arg(p.scenario.training.global_batch)
                           .arg(p.scenario.training.sequence)
                           .arg(QString::fromStdString(p.stack.name).toHtmlEscaped()) +
                       " " +
                       tr("%L1 combinations in %2 s: %L3 costed, %L4 of them too large; %L5 simulated, "
                          "estimate within %6 %.")
                           .arg(c.considered)
                           .arg(c.seconds, 0, 'f', 1)
                           .arg(c.costed)
                           .arg(c.too_large)
                           .arg(answer->simulated.size())
                           .arg(100 * answer->largest_gap, 0, 'f', 2));
  }
  fill_table();
  fill_why();
  show_trade_off();
  show_parallel();
  if (!found_.empty()) table_->select_number(0);
}

void PlansPage::fill_table() {
  std::vector<std::vector<Cell>> rows;
  for (const Found& f : found_) {
    rows.push_back({QString::fromStdString(short_name(f.plan)),
                    QString(kHow[static_cast<std::size_t>(f.how)]),
                    {number(f.step_s, 3), f.step_s},
                    {number(f.tokens_per_s, 0), f.tokens_per_s},
                    {number(100 * f.mfu, 1), 100 * f.mfu},
                    {number(f.gib, 1), f.gib},
                    {number(100 * f.fits, 0), f.fits},
                    {f.days > 0 ? number(f.days, 2) : "-", f.days},
                    {f.dollars > 0 ? number(f.dollars, 0) : "-", f.dollars},
                    QString::fromStdString(f.note)});
  }
  table_->fill(rows);
}

void PlansPage::fill_why() {
  const auto& answer = session_.answer();
  std::vector<std::vector<Cell>> rejected, helps;
  QString why;
  if (answer) {
    for (const std::string& w : answer->why)
      why += "<p>" + QString::fromStdString(w).toHtmlEscaped() + "</p>";
    if (answer->plans.empty())
      why = "<p>" +
            QString::fromStdString(planner::why_none(*session_.problem(), answer->search)).toHtmlEscaped() +
            "</p>";
    for (const planner::Rejected& r : answer->rejected)
      rejected.push_back({QString::fromStdString(short_name(r.plan)),
                          {r.step_time_s > 0 ? number(r.step_time_s, 3) : "-", r.step_time_s},
                          QString::fromStdString(r.reason)});
    for (const planner::Sensitivity& s : answer->sensitivity)
      helps.push_back({QString::fromStdString(s.change),
                       {number(s.step_time_s, 3), s.step_time_s},
                       {number(s.speedup, 3), s.speedup},
                       QString::fromStdString(short_name(s.plan))});
  }
  why_->setHtml(why);
  why_not_->fill(rejected);
  helps_->fill(helps);
}

void PlansPage::selection_changed() {
  const std::vector<int> rows = table_->selected_numbers();
  trade_off_->mark(rows);
  parallel_->mark(rows);
  show_breakdown(rows);
  show_memory(rows);
  show_comparison(rows);
  show_buttons();
  if (rows.size() == 2) panes_->bring(comparison_);
}

void PlansPage::show_buttons() {
  const bool some = table_->selected() >= 0;
  look_->setEnabled(some);
  beside_->setEnabled(some && session_.run(0) != nullptr);
}

void PlansPage::show_breakdown(const std::vector<int>& rows) {
  const Theme theme = Theme::of(palette());
  QStringList names;
  std::vector<StackedBarChart::Part> parts;
  for (const StepPart& p : parts_of(theme, {})) parts.push_back({tr(p.name), p.colour, {}});
  for (const int n : rows) {
    const Found& f = found_[static_cast<std::size_t>(n)];
    if (!f.predicted || names.size() == 4) continue;
    names << QString::fromStdString(short_name(f.plan));
    const std::vector<StepPart> of_plan = parts_of(theme, f.predicted->breakdown);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].values.push_back(of_plan[i].seconds);
  }
  // What is nothing in all rows needs no colour.
  std::erase_if(parts, [](const StackedBarChart::Part& p) {
    return std::all_of(p.values.begin(), p.values.end(), [](double v) { return v == 0; });
  });
  breakdown_->set(names, parts, tr("busiest stage, s"));
}

void PlansPage::changeEvent(QEvent* event) {
  if (event->type() == QEvent::PaletteChange) {
    show_trade_off();
    show_parallel();
    show_breakdown(table_->selected_numbers());
  }
  QWidget::changeEvent(event);
}

void PlansPage::show_memory(const std::vector<int>& rows) {
  std::vector<std::vector<Cell>> lines;
  if (!rows.empty()) {
    const Found& f = found_[static_cast<std::size_t>(rows.front())];
    for (const StageMemory& m : f.predicted ? f.predicted->memory : std::vector<StageMemory>{}) {
      std::vector<Cell> line{{QString::number(m.stage), static_cast<double>(m.stage)}};
      for (const std::int64_t bytes : {m.total, m.parameter, m.gradient, m.optimizer, m.activation,
                                       m.workspace, m.communication, m.overhead}) {
        const double gib = static_cast<double>(bytes) / kGiB;
        line.push_back({number(gib, 2), gib});
      }
      lines.push_back(std::move(line));
    }
  }
  memory_->fill(lines);
}

void PlansPage::show_comparison(const std::vector<int>& rows) {
  std::vector<std::vector<Cell>> lines;
  if (rows.size() >= 2) {
    const Found& a = found_[static_cast<std::size_t>(rows[0])];
    const Found& b = found_[static_cast<std::size_t>(rows[1])];
    lines.push_back({tr("plan"), QString::fromStdString(short_name(a.plan)),
                     QString::fromStdString(short_name(b.plan)), QString()});
    const auto add = [&](const QString& name, double x, double y, int decimals) {
      lines.push_back({name,
                       {number(x, decimals), x},
                       {number(y, decimals), y},
                       {x != 0 ? number(y / x, 3) : "-", x != 0 ? y / x : 0}});
    };
    for (const Measure& m : kMeasures) add(tr(m.title), m.of(a), m.of(b), 3);
    add(tr("tokens/s"), a.tokens_per_s, b.tokens_per_s, 0);
    if (a.predicted && b.predicted) {
      const Theme theme = Theme::of(palette());
      const auto of_a = parts_of(theme, a.predicted->breakdown),
                 of_b = parts_of(theme, b.predicted->breakdown);
      for (std::size_t i = 0; i < of_a.size(); ++i)
        add(tr(of_a[i].name) + tr(", s"), of_a[i].seconds, of_b[i].seconds, 3);
    }
  }
  comparison_->fill(lines);
}

void PlansPage::show_parallel() {
  using Of = double (*)(const Found&);
  struct Degree {
    const char* title;
    Of of;
  };
  static constexpr std::array kAxes{
      Degree{"TP", [](const Found& f) { return static_cast<double>(f.plan.tp); }},
      Degree{"CP", [](const Found& f) { return static_cast<double>(f.plan.cp); }},
      Degree{"EP", [](const Found& f) { return static_cast<double>(f.plan.ep); }},
      Degree{"PP", [](const Found& f) { return static_cast<double>(f.plan.pp); }},
      Degree{"VPP", [](const Found& f) { return static_cast<double>(f.plan.vpp); }},
      Degree{"DP", [](const Found& f) { return static_cast<double>(f.plan.dp); }},
      Degree{"micro-batch", [](const Found& f) { return static_cast<double>(f.plan.micro_batch); }},
      Degree{"ZeRO", [](const Found& f) { return static_cast<double>(f.plan.zero); }},
      Degree{"MFU, %", [](const Found& f) { return 100 * f.mfu; }},
      Degree{"GiB", [](const Found& f) { return f.gib; }},
      Degree{"fits, %", [](const Found& f) { return 100 * f.fits; }},
      Degree{"USD", [](const Found& f) { return f.dollars; }},
      Degree{"step, s", [](const Found& f) { return f.step_s; }}};
  const Theme theme = Theme::of(palette());
  std::vector<ParallelChart::Axis> axes;
  for (const Degree& d : kAxes) {
    axes.push_back({tr(d.title), {}});
    for (const Found& f : found_) axes.back().values.push_back(d.of(f));
  }
  std::vector<QColor> colours;
  for (const Found& f : found_) colours.push_back(how_colours(theme)[static_cast<std::size_t>(f.how)]);
  parallel_->set(std::move(axes), std::move(colours));
  table_->set_wanted(parallel_->kept());  // the table is as new, ranges may have stayed
  parallel_->mark(table_->selected_numbers());
}

void PlansPage::show_trade_off() {
  const Measure &x = kMeasures[static_cast<std::size_t>(x_->currentIndex())],
                &y = kMeasures[static_cast<std::size_t>(y_->currentIndex())];
  const Theme theme = Theme::of(palette());
  std::vector<ScatterChart::Point> points;
  for (const Found& f : found_) {
    points.push_back(
        {x.of(f), y.of(f), static_cast<int>(f.how),
         QString("%1\n%2 s, %3 GiB")
             .arg(QString::fromStdString(short_name(f.plan)), number(f.step_s, 3), number(f.gib, 1))});
  }
  trade_off_->set(std::move(points), {tr("simulated"), tr("estimated"), tr("too large")}, how_colours(theme),
                  tr(x.title), tr(y.title));
  trade_off_->mark(table_->selected_numbers());
}

}  // namespace orrery::gui
