// SPDX-License-Identifier: Apache-2.0
//
// What people do with the window: open, plan, cancel, zoom, select, compare, export; and what they see when a
// file is wrong.
#include <QAbstractBarSeries>
#include <QApplication>
#include <QBarSet>
#include <QChart>
#include <QDialog>
#include <QDockWidget>
#include <QDropEvent>
#include <QFileInfo>
#include <QLabel>
#include <QMimeData>
#include <QSettings>
#include <QSignalSpy>
#include <QTemporaryDir>
#include <QTest>
#include <QWheelEvent>
#include <numeric>

#include "core/error.h"
#include "gui/text.h"
#include "gui/window.h"

namespace orrery::gui {
namespace {

constexpr int kPatience = 300'000;  // ms for a plan: sanitizers on shared machines are slow

QString source(const char* path) {
  return QString(ORRERY_ROOT) + "/" + path;
}

void write(const QString& path, const QByteArray& text) {
  QFile file(path);
  QVERIFY(file.open(QIODevice::WriteOnly));
  file.write(text);
}

QByteArray read(const QString& path) {
  QFile file(path);
  return file.open(QIODevice::ReadOnly) ? file.readAll() : QByteArray();
}

bool idle(Window& w) {
  return w.session().jobs().idle();
}

}  // namespace

class WindowTest : public QObject {
  Q_OBJECT

 private Q_SLOTS:
  void initTestCase();
  void init();
  void cleanup();
  void plans_without_a_file();
  void opens_again_what_was_open();
  void opens_a_scenario_plans_it_and_shows_the_best_plan();
  void shows_the_cluster_size_that_the_answer_is_for();
  void filters_sorts_and_compares_plans();
  void keeps_plans_in_a_range();
  void looks_into_another_plan_and_lays_it_beside();
  void cancels_a_search();
  void opens_a_timeline_and_moves_in_it();
  void goes_back_to_what_was_shown();
  void moves_by_the_strip_of_the_whole_run();
  void shows_where_time_goes_by_layer();
  void shows_ranks_as_cells();
  void shows_tokens_of_experts();
  void opens_a_timeline_without_streams();
  void brings_panes_back();
  void goes_to_the_longest_gap();
  void selects_a_slice_and_a_part();
  void finds_ops();
  void shows_the_critical_path();
  void keeps_bookmarks();
  void compares_two_runs();
  void exports();
  void shows_memory_and_what_makes_its_peak();
  void shows_the_network_and_whose_traffic_a_link_carries();
  void follows_sliders();
  void shows_costs();
  void shows_what_failures_do();
  void says_why_a_run_cannot_be_simulated();
  void counts_values_in_bars();
  void opens_a_topology_that_is_dropped();
  void answers_malformed_files_data();
  void answers_malformed_files();
  void a_step_of_16384_gpus_opens_folded_and_unfolds();
  void opens_a_profilers_trace();
  void shows_keys_and_changes_colours();

 private:
  void open(const QString& path);
  QPoint middle_of_lane(int row) const;
  void save_timelines();

  QTemporaryDir folder_;
  std::unique_ptr<Window> window_;
  QString plan_, predicted_, slower_;
};

void WindowTest::initTestCase() {
  QSettings::setDefaultFormat(QSettings::IniFormat);
  QSettings::setPath(QSettings::IniFormat, QSettings::UserScope, folder_.path());
  QCoreApplication::setOrganizationName("orrery-test");
  QApplication::setPalette(light_theme().palette());
  save_timelines();
}

// A small plan's predicted step, and the same with twice the time of every op.
void WindowTest::save_timelines() {
  const Problem problem = load_problem(source("scenarios/tiny-cpu.json").toStdString(), DataFolders());
  const planner::Answer answer = planner::plan(problem, {.top = 3});
  QVERIFY(!answer.plans.empty());
  const sim::Topology topology(problem.cluster);
  Plan plan = answer.plans.front().plan;
  for (const planner::Ranked& r : answer.plans) {
    if (r.plan.pp > plan.pp) plan = r.plan;
  }
  planner::EvaluateOptions options;
  options.record = true;
  planner::Evaluation e = planner::evaluate(problem, topology, plan, options);
  Timeline t = std::move(e.simulation.timeline);
  predicted_ = folder_.filePath("predicted.timeline");
  save_timeline(predicted_.toStdString(), t);
  for (Slice& s : t.slices) {
    for (Time Slice::*part : {&Slice::ready, &Slice::start, &Slice::active, &Slice::end})
      s.*part = s.*part * 2;
  }
  slower_ = folder_.filePath("slower.json");
  save_timeline(slower_.toStdString(), t);
  plan_ = folder_.filePath("plan.json");
  save_text(plan_.toStdString(),
            write_fields(planner::make_plan_file(problem, plan, e.predicted, "engine")).dump());
}

void WindowTest::init() {
  window_ = std::make_unique<Window>();
  window_->resize(1200, 800);
  window_->show();
  window_->activateWindow();  // keys go to the active window
  QVERIFY(QTest::qWaitForWindowActive(window_.get()));
}

void WindowTest::cleanup() {
  window_.reset();
}

void WindowTest::open(const QString& path) {
  window_->session().open(path);
  QTRY_VERIFY_WITH_TIMEOUT(idle(*window_), kPatience);
}

QPoint WindowTest::middle_of_lane(int row) const {
  return {700, kRulerHeight + row * kRowHeight + kRowHeight / 2};
}

void WindowTest::plans_without_a_file() {
  QCOMPARE(window_->page(), QString("start"));
  StartPage& start = window_->start();
  start.model().setCurrentText("gpt2-124m");
  start.cluster().setCurrentText("p4d");
  start.nodes().setValue(1);
  start.batch().setValue(64);
  start.sequence().setValue(1024);
  start.tokens().setText("3e9");
  QVERIFY(start.plan().isEnabled());
  start.tokens().setFocus();
  QTest::keyClicks(&start.tokens(), "e");  // "3e9e" cannot be typed, "3e" is not finished
  QCOMPARE(start.tokens().text(), QString("3e9"));
  QTest::keyClick(&start.tokens(), Qt::Key_Backspace);
  QVERIFY(!start.plan().isEnabled());
  QTest::keyClicks(&start.tokens(), "9");
  QTest::keyClick(&start.tokens(), Qt::Key_Return);
  QTRY_VERIFY_WITH_TIMEOUT(idle(*window_) && window_->session().answer(), kPatience);
  QVERIFY2(window_->message().isEmpty(), qPrintable(window_->message()));
  QCOMPARE(window_->page(), QString("plans"));
  const Problem& problem = *window_->session().problem();
  QCOMPARE(problem.scenario.model.name, std::string("gpt2-124m"));
  QCOMPARE(problem.cluster.nodes, 1);
  QCOMPARE(problem.scenario.training.global_batch, 64);
  QCOMPARE(problem.scenario.training.sequence, 1024);
  QCOMPARE(problem.scenario.training.tokens, 3e9);
  // What is wrong is said as of a file: where, what, and what is near.
  start.model().setCurrentText("gpt2-124n");
  QTest::mouseClick(&start.plan(), Qt::LeftButton);
  QTRY_VERIFY_WITH_TIMEOUT(!window_->message().isEmpty(), kPatience);
  QVERIFY2(window_->message().contains("/model") && window_->message().contains("gpt2-124m"),
           qPrintable(window_->message()));
}

void WindowTest::opens_again_what_was_open() {
  open(slower_);
  open(predicted_);
  init();
  QListWidget& recent = window_->start().recent();
  QCOMPARE(recent.item(0)->text(), QFileInfo(predicted_).fileName());
  QCOMPARE(recent.item(1)->text(), QFileInfo(slower_).fileName());
  Q_EMIT recent.itemActivated(recent.item(1));
  QTRY_VERIFY_WITH_TIMEOUT(idle(*window_) && window_->session().run(0), kPatience);
  QCOMPARE(window_->session().run(0)->name, QString("slower.json"));
  QCOMPARE(recent.item(0)->text(), QString("slower.json"));
  // All scenarios that ship are there, by what they say that they are.
  QCOMPARE(window_->start().examples().count(),
           static_cast<int>(window_->session().data().names("scenarios").size()));
  QVERIFY(!window_->start().examples().findItems("Llama-3-70B fine-tune", Qt::MatchStartsWith).isEmpty());
}

void WindowTest::keeps_plans_in_a_range() {
  open(source("scenarios/tiny-cpu.json"));
  Table& table = window_->plans().table();
  ParallelChart& chart = window_->plans().parallel();
  QVERIFY(window_->bring_pane("all-degrees"));
  chart.resize(600, 400);
  const int all = table.rows();
  const auto& axes = chart.axes();
  QVERIFY(axes.size() > 3);
  for (const ParallelChart::Axis& a : axes)
    QVERIFY(*std::max_element(a.values.begin(), a.values.end()) >
            *std::min_element(a.values.begin(), a.values.end()));
  // The lower half of the last axis: the faster plans.
  const std::size_t last = axes.size() - 1;
  QCOMPARE(axes[last].title, QString("step, s"));
  const auto [fast, slow] = std::minmax_element(axes[last].values.begin(), axes[last].values.end());
  const double middle = (*fast + *slow) / 2;
  QTest::mousePress(&chart, Qt::LeftButton, {}, chart.point(last, *fast).toPoint() + QPoint(0, 2));
  QTest::mouseMove(&chart, chart.point(last, middle).toPoint());
  QTest::mouseRelease(&chart, Qt::LeftButton, {}, chart.point(last, middle).toPoint());
  const auto faster = std::count_if(axes[last].values.begin(), axes[last].values.end(),
                                    [&](double v) { return v <= middle; });
  QVERIFY(faster > 0 && faster < all);
  // A pixel may decide about plans right at the edge.
  QVERIFY(std::abs(table.rows() - static_cast<int>(faster)) <= 1);
  for (int r = 0; r < table.rows(); ++r)
    QVERIFY(axes[last].values[static_cast<std::size_t>(table.number(r))] <= middle * 1.02);
  // The axis's name keeps all again.
  const int narrowed = table.rows();
  window_->session().plan();  // the same plans again
  QTRY_VERIFY_WITH_TIMEOUT(idle(*window_), kPatience);
  QCOMPARE(table.rows(), narrowed);
  window_->set_dark(true);  // other colours keep the range
  QCOMPARE(table.rows(), narrowed);
  window_->set_dark(false);
  QTest::mouseClick(&chart, Qt::LeftButton, {}, {chart.point(last, *fast).toPoint().x() + 14, 10});
  QCOMPARE(table.rows(), all);
  // A click on a line selects its plan.
  table.clearSelection();
  const QPointF between = (chart.point(0, axes[0].values[0]) + chart.point(1, axes[1].values[0])) / 2;
  QTest::mouseClick(&chart, Qt::LeftButton, {}, between.toPoint());
  QVERIFY(table.selected() >= 0);
  const auto picked = static_cast<std::size_t>(table.selected());
  const QPointF of_picked =
      (chart.point(0, axes[0].values[picked]) + chart.point(1, axes[1].values[picked])) / 2;
  QVERIFY(std::abs(of_picked.y() - between.y()) < 10);
}

void WindowTest::opens_a_scenario_plans_it_and_shows_the_best_plan() {
  open(source("scenarios/tiny-cpu.json"));
  QCOMPARE(window_->page(), QString("plans"));
  QVERIFY(window_->session().answer());
  Table& table = window_->plans().table();
  QVERIFY(table.rows() > 3);
  QCOMPARE(table.text(0, 0), QString::fromStdString(short_name(window_->session().answer()->plans[0].plan)));
  // The best one was simulated and is shown.
  QVERIFY(window_->session().evaluated());
  QCOMPARE(window_->session().evaluated()->plan, window_->session().answer()->plans[0].plan);
  QVERIFY(window_->session().run(0));
  QVERIFY(window_->message().isEmpty());
}

void WindowTest::shows_the_cluster_size_that_the_answer_is_for() {
  Json scenario = load_json(source("scenarios/climate-1.2b.json").toStdString());
  scenario["search"]["nodes"] = {2, 4};
  scenario["goal"] = "cost";
  const QString path = folder_.filePath("sizes.json");
  save_text(path.toStdString(), scenario.dump());
  open(path);
  QVERIFY2(window_->message().isEmpty(), qPrintable(window_->message()));
  const planner::Answer& answer = *window_->session().answer();
  QVERIFY(answer.nodes == 2 || answer.nodes == 4);
  QCOMPARE(window_->session().problem()->cluster.nodes, answer.nodes);
  QCOMPARE(window_->session().topology()->cluster().nodes, answer.nodes);
  QVERIFY(window_->session().evaluated()->plan.ranks() <= window_->session().problem()->cluster.devices());
  const auto& p = window_->session().evaluated()->evaluation.predicted;
  QVERIFY(std::abs(p.cost_per_step_usd - answer.plans[0].predicted.cost_per_step_usd) < 1e-9);
}

void WindowTest::filters_sorts_and_compares_plans() {
  open(source("scenarios/tiny-cpu.json"));
  Table& table = window_->plans().table();
  const int all = table.rows();
  QTest::keyClicks(&window_->plans().filter(), "simulated");
  QVERIFY(table.rows() > 0 && table.rows() < all);
  for (int r = 0; r < table.rows(); ++r) QCOMPARE(table.text(r, 1), QString("simulated"));
  QTest::keySequence(&window_->plans().filter(), QKeySequence::Undo);
  QCOMPARE(table.rows(), all);
  // By memory: as numbers, not as text.
  table.sortByColumn(5, Qt::DescendingOrder);
  for (int r = 1; r < table.rows(); ++r)
    QVERIFY(table.text(r - 1, 5).remove(',').toDouble() >= table.text(r, 5).remove(',').toDouble());
  // Two plans side by side; the first point of the trade-off selects the first plan.
  table.clearSelection();
  table.setSelectionMode(QAbstractItemView::MultiSelection);
  table.selectRow(0);
  table.selectRow(1);
  QVERIFY(window_->plans().comparison().rows() > 4);
  const double a = table.text(0, 2).toDouble(), b = table.text(1, 2).toDouble();
  const int step = 1;  // after the names
  QCOMPARE(window_->plans().comparison().text(step, 0), QString("step time, s"));
  QVERIFY(std::abs(window_->plans().comparison().text(step, 3).toDouble() - b / a) < 0.02 * b / a ||
          std::abs(window_->plans().comparison().text(step, 3).toDouble() - a / b) < 0.02 * a / b);
  table.clearSelection();
  Q_EMIT window_->plans().trade_off().picked(0);
  QCOMPARE(table.selected(), 0);
}

void WindowTest::looks_into_another_plan_and_lays_it_beside() {
  open(source("scenarios/tiny-cpu.json"));
  Table& table = window_->plans().table();
  table.select_number(1);
  QTest::mouseClick(window_->plans().findChild<QPushButton*>("look into"), Qt::LeftButton);
  QTRY_VERIFY_WITH_TIMEOUT(idle(*window_), kPatience);
  QCOMPARE(window_->session().evaluated()->plan, window_->session().answer()->plans[1].plan);
  table.select_number(2);
  QTest::mouseClick(window_->plans().findChild<QPushButton*>("lay beside"), Qt::LeftButton);
  QTRY_VERIFY_WITH_TIMEOUT(idle(*window_), kPatience);
  QVERIFY(window_->session().run(1));
  QCOMPARE(window_->session().run(1)->name,
           QString::fromStdString(short_name(window_->session().answer()->plans[2].plan)));
  window_->show_page("timeline");
  QVERIFY(window_->timeline().view(1).isVisible());
  // The strip is of the run that is shown.
  QTRY_VERIFY(!window_->timeline().overview().bins().empty());
}

void WindowTest::cancels_a_search() {
  window_->session().open(source("scenarios/llama3-405b-16k-h100.json"));
  QTRY_VERIFY_WITH_TIMEOUT(window_->session().jobs().running("plan"), 20'000);
  auto* cancel = window_->findChild<QToolButton*>("cancel");
  QTRY_VERIFY(cancel->isVisible());
  QTest::mouseClick(cancel, Qt::LeftButton);
  QVERIFY(idle(*window_));
  QVERIFY(!cancel->isVisible());
  QTest::qWait(50);
  QVERIFY(!window_->session().answer());
  QVERIFY(window_->message().isEmpty());
}

void WindowTest::opens_a_timeline_and_moves_in_it() {
  open(predicted_);
  QCOMPARE(window_->page(), QString("timeline"));
  const TimeAxis& axis = window_->session().time().axis();
  QCOMPARE(axis.from(), axis.begin());
  QCOMPARE(axis.to(), axis.end());
  TimelineView& view = window_->timeline().view(0);
  const Time whole = axis.span();
  // Keys.
  view.setFocus();
  QTest::keyClick(&view, Qt::Key_W);
  QVERIFY(axis.span() < whole);
  const Time from = axis.from();
  QTest::keyClick(&view, Qt::Key_D);
  QVERIFY(axis.from() > from);
  QTest::keyClick(&view, Qt::Key_A);
  QVERIFY(std::abs((axis.from() - from).value) <= 1);
  QTest::keyClick(&view, Qt::Key_S);
  QTest::keyClick(&view, Qt::Key_Home);
  QCOMPARE(axis.span(), whole);
  // The wheel zooms where the pointer is.
  const QPoint at = middle_of_lane(1);
  const Time under = axis.time_at(at.x() - view.label_width());
  QWheelEvent wheel(at, view.viewport()->mapToGlobal(at), {}, {0, 240}, Qt::NoButton, Qt::ControlModifier,
                    Qt::NoScrollPhase, false);
  QApplication::sendEvent(view.viewport(), &wheel);
  QVERIFY(axis.span() < whole);
  QVERIFY(std::abs(axis.x_of(under) - (at.x() - view.label_width())) < 1);
  // A rubber band with Ctrl zooms to what it frames.
  QTest::keyClick(&view, Qt::Key_Home);
  const Time left = axis.time_at(400 - view.label_width()), right = axis.time_at(600 - view.label_width());
  QTest::mousePress(view.viewport(), Qt::LeftButton, Qt::ControlModifier, {400, 60});
  QTest::mouseMove(view.viewport(), {500, 90});
  QTest::mouseRelease(view.viewport(), Qt::LeftButton, Qt::ControlModifier, {600, 100});
  QTRY_COMPARE(axis.from(), left);
  QCOMPARE(axis.to(), right);
  // A click on a label closes its row, and opens it again.
  const std::size_t rows = view.rows().visible().size();
  QTest::mouseClick(view.viewport(), Qt::LeftButton, {}, {60, kRulerHeight + 5});
  QVERIFY(view.rows().visible().size() < rows);
  QTest::mouseClick(view.viewport(), Qt::LeftButton, {}, {60, kRulerHeight + 5});
  QCOMPARE(view.rows().visible().size(), rows);
}

void WindowTest::goes_back_to_what_was_shown() {
  open(predicted_);
  TimeView& time = window_->session().time();
  const auto shown = [&] { return TimeView::Range{time.axis().from(), time.axis().to()}; };
  const TimeView::Range all = shown();
  QElapsedTimer turn;
  turn.start();
  time.change([](TimeAxis& a) { a.zoom(3, 200); });
  time.change([](TimeAxis& a) { a.zoom(3, 200); });  // of the same turn of the wheel
  if (turn.elapsed() >= TimeView::kGesture_ms) QSKIP("the machine stood still between two statements");
  const TimeView::Range near = shown();
  QTest::qWait(TimeView::kGesture_ms + 50);
  time.change([](TimeAxis& a) { a.pan(100); });
  const TimeView::Range beside = shown();
  QVERIFY(beside != near);
  TimelineView& view = window_->timeline().view(0);
  QTest::keyClick(&view, Qt::Key_Left, Qt::AltModifier);
  QCOMPARE(shown(), near);
  QTest::keyClick(&view, Qt::Key_Left, Qt::AltModifier);
  QCOMPARE(shown(), all);
  QTest::keyClick(&view, Qt::Key_Left, Qt::AltModifier);  // there is no more
  QCOMPARE(shown(), all);
  QTest::keyClick(&view, Qt::Key_Right, Qt::AltModifier);
  QTest::keyClick(&view, Qt::Key_Right, Qt::AltModifier);
  QCOMPARE(shown(), beside);
  // Another run forgets it.
  open(slower_);
  const TimeView::Range other = shown();
  time.back();
  QCOMPARE(shown(), other);
}

void WindowTest::moves_by_the_strip_of_the_whole_run() {
  open(predicted_);
  Overview& strip = window_->timeline().overview();
  const TimeAxis& axis = window_->session().time().axis();
  QTRY_VERIFY(!strip.bins().empty());
  // The mean of its bins is the share of all time in which ranks compute.
  const sim::Lanes& lanes = window_->session().run(0)->lanes;
  double busy = 0, processes = 0;
  for (const sim::Lane& l : lanes.all()) {
    if (l.stream != 0) continue;
    busy += seconds(lanes.busy(l, lanes.begin(), lanes.end()));
    ++processes;
  }
  const double mean = std::accumulate(strip.bins().begin(), strip.bins().end(), 0.0) /
                      static_cast<double>(strip.bins().size());
  const double expected = busy / processes / seconds(lanes.end() - lanes.begin());
  QVERIFY2(std::abs(mean - expected) < 1e-3, qPrintable(QString("%1, not %2").arg(mean).arg(expected)));
  // A quarter of it is shown; the frame is dragged to the end, its edge back to the middle.
  const Time quarter = axis.span() / 4;
  window_->session().time().change([&](TimeAxis& a) { a.show(a.begin(), a.begin() + quarter); });
  const auto at = [&](Time t) { return QPoint(static_cast<int>(strip.x_of(t)), strip.height() / 2); };
  QTest::mousePress(&strip, Qt::LeftButton, {}, at(axis.begin() + quarter / 2));
  QTest::mouseMove(&strip, {strip.width() - 1, 5});
  QTest::mouseRelease(&strip, Qt::LeftButton, {}, {strip.width() - 1, 5});
  QCOMPARE(axis.to(), axis.end());
  QCOMPARE(axis.span(), quarter);
  const Time middle = axis.begin() + (axis.end() - axis.begin()) / 2;
  QTest::mousePress(&strip, Qt::LeftButton, {}, at(axis.from()));
  QTest::mouseMove(&strip, at(middle));
  QTest::mouseRelease(&strip, Qt::LeftButton, {}, at(middle));
  QCOMPARE(axis.to(), axis.end());
  const Time pixel = (axis.end() - axis.begin()) / 400;
  QVERIFY(axis.from() > middle - pixel && axis.from() < middle + pixel);
  QTest::mouseDClick(&strip, Qt::LeftButton, {}, at(middle));
  QCOMPARE(axis.from(), axis.begin());
  QCOMPARE(axis.to(), axis.end());
}

void WindowTest::shows_where_time_goes_by_layer() {
  open(predicted_);
  QVERIFY(window_->bring_pane("by-layer"));
  OpTreeView& view = window_->timeline().op_tree();
  QTRY_VERIFY(!view.bars().empty());
  const Timeline t = window_->session().run(0)->lanes.unpacked();
  Time working{0};
  for (const Slice& s : t.slices) working += s.end - s.active;
  QCOMPARE(view.bars()[0].node->time, working);
  QCOMPARE(view.bars()[0].at.width(), static_cast<double>(view.width()));
  // Bars are as wide as their share.
  for (const OpTreeView::Bar& b : view.bars())
    QVERIFY(std::abs(b.at.width() - view.width() * ratio(b.node->time, working)) <
            1e-6 * view.width() + 1e-3);
  // A click looks into a bar; Backspace comes back.
  const auto compute = std::find_if(view.bars().begin(), view.bars().end(),
                                    [](const OpTreeView::Bar& b) { return b.node->name == "compute"; });
  QVERIFY(compute != view.bars().end());
  QTest::mouseClick(&view, Qt::LeftButton, {}, compute->at.center().toPoint());
  QCOMPARE(view.shown_path(), QStringList({"all", "compute"}));
  QTest::keyClick(&view, Qt::Key_Backspace);
  QCOMPARE(view.shown_path(), QStringList({"all"}));
  // It follows the part that is shown.
  window_->session().time().change([](TimeAxis& a) { a.show(a.begin(), a.begin() + a.span() / 5); });
  QTRY_VERIFY(view.bars()[0].node->time < working);
}

void WindowTest::shows_ranks_as_cells() {
  open(predicted_);
  QVERIFY(window_->bring_pane("ranks"));
  const sim::Lanes& lanes = window_->session().run(0)->lanes;
  const Timeline t = lanes.unpacked();
  const Time from = lanes.begin() + (lanes.end() - lanes.begin()) / 7,
             to = lanes.end() - (lanes.end() - from) / 3;
  for (const RankMeasure& m : rank_measures(t)) {
    const std::vector<double> values = rank_values(lanes, m, from, to);
    QCOMPARE(values.size(), t.process_of.empty() ? t.rank_labels.size() : t.process_of.size());
    for (std::size_t r = 0; r < values.size(); ++r) {
      const std::int32_t process = t.process_of.empty() ? static_cast<std::int32_t>(r) : t.process_of[r];
      double expected = 0;
      if (m.what == RankMeasure::What::kMemory) {
        for (std::size_t i = 0; i < t.memory.size(); ++i) {
          const bool last = i + 1 == t.memory.size() || t.memory[i + 1].rank != t.memory[i].rank;
          if (t.memory[i].rank == process && t.memory[i].at < to && (last || t.memory[i + 1].at > from))
            expected = std::max(expected, static_cast<double>(t.memory[i].total()));
        }
      } else {
        for (const Slice& s : t.slices) {
          if (s.rank != process || s.stream != m.stream) continue;
          const bool waits = m.what == RankMeasure::What::kWaiting;
          const Time a = std::max(from, waits ? s.start : s.active),
                     b = std::min(to, waits ? s.active : s.end);
          if (b > a) expected += ratio(b - a, to - from);
        }
      }
      QVERIFY2(
          std::abs(values[r] - expected) <= 1e-9 * std::max(1.0, expected),
          qPrintable(
              QString("%1 of rank %2: %3, not %4").arg(name_of(m, t)).arg(r).arg(values[r]).arg(expected)));
    }
  }
  // What nobody recorded is no idle rank.
  Timeline sparse = t;
  sparse.process_of.clear();
  sparse.rank_labels.clear();
  sparse.memory.clear();
  for (Slice& slice : sparse.slices) slice.rank = 2;
  const sim::Lanes with_gaps(std::move(sparse));
  const std::vector<double> known = rank_values(with_gaps, {}, from, to);
  QCOMPARE(known.size(), std::size_t{3});
  QVERIFY(std::isnan(known[0]) && std::isnan(known[1]) && known[2] > 0);
  // Every rank has a cell of its own, and a click on it picks the rank.
  RankMap& map = window_->timeline().rank_map();
  map.set(std::vector<double>(4096, 0.5), 8, false);
  map.resize(900, 200);
  for (const std::int64_t rank : {0, 7, 8, 2047, 4095}) QCOMPARE(map.rank_at(map.cell(rank).center()), rank);
  QVERIFY(map.rect().contains(map.cell(4095)));
  QSignalSpy picked(&map, &RankMap::picked);
  QTest::mouseClick(&map, Qt::LeftButton, {}, map.cell(100).center());
  QCOMPARE(picked.takeFirst()[0].toLongLong(), 100);
}

// Two groups of ranks; the second has one layer, which works all of the step.
void WindowTest::shows_tokens_of_experts() {
  Timeline t = load_timeline(predicted_.toStdString());
  const auto ranks = static_cast<std::int64_t>(t.process_of.size());
  QVERIFY(ranks >= 2);
  const Time step = t.length();
  t.experts.groups = {{0, 1}, {1}};
  t.experts.of = {{0, 3, 0, Time{0}, step / 4, {10, 10, 30, 30}},
                  {0, 5, 0, step / 2, step / 2 + step / 4, {40, 20, 20, 0}},
                  {1, 9, 2, Time{0}, step, {7, 7}}};
  const QString path = folder_.filePath("experts.timeline");
  save_timeline(path.toStdString(), t);
  open(path);
  QVERIFY(window_->bring_pane("experts"));
  TimelinePage& page = window_->timeline();
  ExpertMap& map = page.expert_map();
  QCOMPARE(map.group_names(), (QStringList{"layers 3, 5, 2 ranks from 0 to 1", "layer 9, rank 1"}));
  QCOMPARE(map.rows(), 2);
  map.resize(800, 300);
  const auto at = [&](double x, double y) {
    const QRect tracks = map.tracks();  // which layouts may change
    return QPoint(tracks.left() + static_cast<int>(x * tracks.width()),
                  tracks.top() + static_cast<int>(y * tracks.height()));
  };
  // The second rank has 60 of 80 tokens in the first layer, which is 1.5 of the even 40; then the first
  // has 60.
  const auto fuller = map.place_at(at(0.1, 0.75));
  QVERIFY(fuller);
  QCOMPARE(map.text_of(*fuller),
           QString("rank 1, experts 2 to 3: 60 tokens, 1.50 even shares, in layer 3, micro-batch 0"));
  QCOMPARE(map.place_at(at(0.6, 0.25))->shares, 1.5);
  QVERIFY(!map.place_at(at(0.4, 0.25)));  // between the layers
  QVERIFY(!map.place_at(at(0, 0.5) - QPoint(1, 0)));
  // Darker is more.
  const QImage picture = map.grab().toImage();
  const auto colour = [&](double x, double y) { return picture.pixelColor(at(x, y)); };
  QCOMPARE(colour(0.1, 0.75), light_theme().pipeline);
  QCOMPARE(colour(0.1, 0.25), light_theme().grid);
  QCOMPARE(colour(0.4, 0.25), light_theme().row_alternate);
  // By expert: 40 of 80 tokens are 2 of 4 even shares.
  page.expert_rows().setCurrentIndex(1);
  Q_EMIT page.expert_rows().activated(1);
  QCOMPARE(map.rows(), 4);
  QCOMPARE(map.place_at(at(0.6, 0.1))->shares, 2.0);
  QVERIFY(page.experts_text().contains("one draw"));
  QVERIFY(page.experts_text().contains("rank 0, expert 0: 40 tokens, 2.00 even shares"));
  // Of the part that is shown.
  window_->session().time().change([&](TimeAxis& a) { a.show(Time{0}, step / 4); });
  QTRY_VERIFY(page.experts_text().contains("rank 1, expert 2: 30 tokens, 1.50 even shares"));
  QSignalSpy picked(&map, &ExpertMap::picked);
  QTest::mouseClick(&map, Qt::LeftButton, {}, at(0.5, 0.9));
  QCOMPARE(picked.takeFirst()[0].toLongLong(), 1);
  page.expert_group().setCurrentIndex(1);
  Q_EMIT page.expert_group().activated(1);
  QCOMPARE(map.rows(), 2);
  QCOMPARE(map.place_at(at(0.5, 0.5))->of->layer, 9);
  // A timeline that says nothing of experts.
  open(predicted_);
  QCOMPARE(map.rows(), 0);
  QVERIFY(page.experts_text().isEmpty());
  QVERIFY(page.expert_group().isHidden());
}

void WindowTest::goes_to_the_longest_gap() {
  open(predicted_);
  const sim::Lanes& lanes = window_->session().run(0)->lanes;
  // Between two ops of compute that work, or before the first, of any process.
  Time longest{0};
  for (const sim::Lane& lane : lanes.all()) {
    if (lane.stream != 0) continue;
    Time at = lanes.begin();
    const sim::LaneSlices in = lanes.slices(lane);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const Slice s = in[i];
      if (s.end <= s.active) continue;
      longest = std::max(longest, s.active - at);
      at = std::max(at, s.end);
    }
  }
  QVERIFY(longest > Time{0});
  window_->timeline().view(0).setFocus();
  QTest::keyClick(&window_->timeline().view(0), Qt::Key_G);
  QTRY_VERIFY(window_->session().time().selection().has_value());
  const auto [from, to] = *window_->session().time().selection();
  QCOMPARE(to - from, longest);
  QVERIFY(window_->session().time().axis().from() <= from && to <= window_->session().time().axis().to());
}

// Memory alone, and no op.
void WindowTest::opens_a_timeline_without_streams() {
  const QString path = folder_.filePath("memory.json");
  Json classes = Json::object();
  for (const char* name : kMemoryClassNames) classes[name] = 5;
  const Json event = {{"ph", "C"}, {"name", "memory"}, {"pid", 0}, {"ts", 1}, {"args", classes}};
  write(path, QByteArray::fromStdString(Json{{"traceEvents", {event}}}.dump()));
  open(path);
  QVERIFY2(window_->message().isEmpty(), qPrintable(window_->message()));
  QCOMPARE(window_->page(), QString("timeline"));
  for (const QString& pane : window_->pane_names()) QVERIFY(window_->bring_pane(pane));
  QTest::keyClick(&window_->timeline().view(0), Qt::Key_G);
  QTRY_VERIFY(idle(*window_) && window_->timeline().settled());
  QVERIFY(!window_->session().time().selection());
}

void WindowTest::brings_panes_back() {
  window_->show_page("timeline");
  QVERIFY(window_->pane_names().contains("why-they-differ"));
  QVERIFY(!window_->bring_pane("nothing"));
  QDockWidget* const dock = window_->findChild<QDockWidget*>("ranks");
  QVERIFY(dock);
  dock->close();
  QVERIFY(dock->isHidden());
  // Closed in another window of another day too, until somebody wants it.
  window_->save_state();
  init();
  QDockWidget* const again = window_->findChild<QDockWidget*>("ranks");
  QVERIFY(again->isHidden());
  window_->show_page("timeline");
  QVERIFY(window_->bring_pane("ranks"));
  QVERIFY(!again->isHidden());
  window_->save_state();
}

void WindowTest::selects_a_slice_and_a_part() {
  open(predicted_);
  QVERIFY(window_->timeline().slice_text().startsWith("Click a slice"));
  TimelineView& view = window_->timeline().view(0);
  // Row 1 is the compute lane of the first process.
  QTest::mouseClick(view.viewport(), Qt::LeftButton, {}, middle_of_lane(1));
  QVERIFY(view.selected());
  const Timeline t = window_->session().run(0)->lanes.unpacked();
  const Slice& s = t.slices[*view.selected()];
  QCOMPARE(s.stream, 0);
  const Time at = window_->session().time().axis().time_at(700 - view.label_width());
  const Time near{window_->session().time().axis().span().value / 50};
  QVERIFY(s.start < at + near);
  QVERIFY(at < s.end + near);
  QVERIFY(window_->timeline().slice_text().contains(
      QString::fromStdString(t.names[static_cast<std::size_t>(s.name)])));
  const std::size_t before = *view.selected();
  QTest::keyClick(&view, Qt::Key_Period);
  QCOMPARE(*view.selected(), before + 1);
  QTest::keyClick(&view, Qt::Key_Comma);
  QCOMPARE(*view.selected(), before);
  // A part: statistics of the rows it touches.
  QTest::mousePress(view.viewport(), Qt::LeftButton, {}, {300, kRulerHeight + 5});
  QTest::mouseMove(view.viewport(), {500, 60});
  QTest::mouseRelease(view.viewport(), Qt::LeftButton, {}, {900, kRulerHeight + 30});
  QTRY_VERIFY(window_->timeline().statistics().rows() > 0);
  QVERIFY(window_->session().time().selection());
  // F shows what is selected over the whole width.
  QTest::keyClick(&view, Qt::Key_F);
  QCOMPARE(window_->session().time().axis().from(), window_->session().time().selection()->first);
}

void WindowTest::finds_ops() {
  open(predicted_);
  TimelinePage& page = window_->timeline();
  page.find("mlp");
  QTRY_VERIFY(page.hits() > 0);
  const Timeline t = window_->session().run(0)->lanes.unpacked();
  std::size_t expected = 0;
  for (const Slice& s : t.slices)
    expected += t.names[static_cast<std::size_t>(s.name)].find("mlp") != std::string::npos;
  QCOMPARE(page.hits(), expected);
  Time before{-1};
  for (int i = 0; i < 5; ++i) {
    page.find_next(1);
    const Slice& s = t.slices[*page.view(0).selected()];
    QVERIFY(t.names[static_cast<std::size_t>(s.name)].find("mlp") != std::string::npos);
    QVERIFY(s.start >= before);
    before = s.start;
  }
  QVERIFY(page.hit_text().startsWith("5 of"));
  page.find_next(-1);
  QVERIFY(page.hit_text().startsWith("4 of"));
  page.find("no such op");
  QTRY_COMPARE(page.hit_text(), QString("none"));
}

void WindowTest::shows_the_critical_path() {
  open(predicted_);
  TimelineView& view = window_->timeline().view(0);
  QTest::keyClick(&view, Qt::Key_C);
  QTRY_VERIFY(!view.emphasis().path.empty());
  std::size_t links = 0;
  for (const auto& lane : view.emphasis().path) links += lane.size();
  QVERIFY(links > 10);
  const QImage with = view.viewport()->grab().toImage();
  QTest::keyClick(&view, Qt::Key_C);
  QVERIFY(view.emphasis().path.empty());
  QVERIFY(with != view.viewport()->grab().toImage());
}

void WindowTest::keeps_bookmarks() {
  open(predicted_);
  TimelinePage& page = window_->timeline();
  window_->session().time().change([](TimeAxis& a) { a.zoom(4, 100); });
  const TimeAxis axis = window_->session().time().axis();
  const int before = page.bookmarks().rows();
  QTest::keyClick(&page.view(0), Qt::Key_M);
  QCOMPARE(page.bookmarks().rows(), before + 1);
  // Another window of another day.
  init();
  open(predicted_);
  QCOMPARE(window_->timeline().bookmarks().rows(), before + 1);
  const Table& table = window_->timeline().bookmarks();
  Q_EMIT const_cast<Table&>(table).picked(before);
  QCOMPARE(window_->session().time().axis().from(), axis.from());
}

void WindowTest::compares_two_runs() {
  open(predicted_);
  window_->session().open_beside(slower_);
  QTRY_VERIFY_WITH_TIMEOUT(idle(*window_) && window_->session().run(1), 20'000);
  QTRY_VERIFY(window_->timeline().differences().rows() > 0);
  const Table& table = window_->timeline().differences();
  for (int r = 0; r < table.rows(); ++r) QCOMPARE(table.text(r, 6), QString("0.50"));
  // The strip shows the first run where it was, though the axis is longer now.
  const Overview& strip = window_->timeline().overview();
  QTRY_VERIFY(!strip.bins().empty());
  const Time end = window_->session().run(0)->lanes.end();
  QVERIFY(strip.share_between(Time{0}, end / 4) > 0.1);
  QCOMPARE(strip.share_between(end, end * 2), 0.0);
  // Why: all of it twice as long, and the last line is the whole.
  const Table& causes = window_->timeline().causes();
  QVERIFY(causes.rows() > 2);
  QCOMPARE(causes.text(causes.rows() - 1, 0), QString("the whole run"));
  const Time length = window_->session().run(0)->lanes.end() - window_->session().run(0)->lanes.begin();
  QCOMPARE(causes.text(causes.rows() - 1, 1), text(length));
  QCOMPARE(causes.text(causes.rows() - 1, 3), "+" + text(length));
  // One axis for both; the slice's twin is found.
  QVERIFY(window_->timeline().view(1).isVisible());
  QCOMPARE(window_->session().time().axis().end(), window_->session().run(1)->lanes.end());
  TimelineView& view = window_->timeline().view(0);
  view.select(5);
  QVERIFY(window_->timeline().slice_text().contains("in slower.json"));
  QVERIFY(window_->timeline().slice_text().contains("100.0 %"));
  window_->session().close_beside();
  QVERIFY(!window_->timeline().view(1).isVisible());
}

void WindowTest::exports() {
  open(predicted_);
  const auto file = [&](const char* name) { return folder_.filePath(name); };
  window_->export_to(file("out.png"));
  QCOMPARE(QImage(file("out.png")).size(), window_->timeline().size());
  window_->export_to(file("out.svg"));
  const QByteArray svg = read(file("out.svg"));
  QVERIFY(svg.contains("<svg"));
  QVERIFY(svg.count("<rect") + svg.count("<path") > 100);
  QVERIFY(!svg.contains("<image"));
  const Timeline t = window_->session().run(0)->lanes.unpacked();
  window_->export_to(file("out.timeline"));
  QTRY_VERIFY(idle(*window_));
  QCOMPARE(load_timeline(file("out.timeline").toStdString()).slices, t.slices);
  window_->export_to(file("out.json"));
  QTRY_VERIFY(idle(*window_));
  const Timeline chrome = load_timeline(file("out.json").toStdString());
  QCOMPARE(chrome.slices.size(), t.slices.size());
  for (std::size_t i = 0; i < t.slices.size(); ++i) {
    QCOMPARE(chrome.slices[i].start, t.slices[i].start);
    QCOMPARE(chrome.names[static_cast<std::size_t>(chrome.slices[i].name)],
             t.names[static_cast<std::size_t>(t.slices[i].name)]);
  }
  QVERIFY(QFileInfo(file("out.timeline")).size() * 5 < QFileInfo(file("out.json")).size());
  window_->timeline().find("mlp");
  TimelineView& view = window_->timeline().view(0);
  QTest::mousePress(view.viewport(), Qt::LeftButton, {}, {300, kRulerHeight + 5});
  QTest::mouseMove(view.viewport(), {500, 60});
  QTest::mouseRelease(view.viewport(), Qt::LeftButton, {}, {900, kRulerHeight + 30});
  QTRY_VERIFY(window_->timeline().statistics().rows() > 0);
  window_->export_to(file("out.csv"));
  const auto lines = read(file("out.csv")).split('\n');
  QCOMPARE(lines[0], QByteArray("op,stream,count,working,waiting,bytes,rate"));
  QCOMPARE(static_cast<int>(lines.size()), window_->timeline().statistics().rows() + 2);
  for (const QByteArray& line : lines.mid(1, lines.size() - 2)) {  // numbers plain: no units, no thousands
    const auto fields = line.split(',');
    QCOMPARE(fields.size(), 7);
    for (const QByteArray& field : fields.mid(2)) {
      bool number = false;
      (void)field.toDouble(&number);
      QVERIFY2(number || field.isEmpty(), line.constData());
    }
    QVERIFY(fields[3].toDouble() < 10);  // working: seconds of a step
  }
  QVERIFY_EXCEPTION_THROWN(window_->export_to(file("out.pdf")), Error);
  window_->export_to("/nowhere/out.json");
  QTRY_VERIFY(window_->message().contains("/nowhere/out.json"));
}

void WindowTest::shows_memory_and_what_makes_its_peak() {
  open(plan_);
  window_->show_page("memory");
  MemoryPage& page = window_->memory();
  const EvaluatedPtr e = window_->session().evaluated();
  QVERIFY(e);
  QCOMPARE(page.view().processes().size(), e->evaluation.program.classes.size());
  for (const std::int32_t p : page.view().processes()) {
    const auto& rank = e->evaluation.program.classes[static_cast<std::size_t>(p)];
    QCOMPARE(page.view().peak(p)->total(), rank.logical_peak.value);
    const auto& stage = e->evaluation.predicted.memory[static_cast<std::size_t>(p)];
    QCOMPARE(page.view().peak(p)->total() + page.view().overhead(p), stage.total);
  }
  QTRY_VERIFY(page.buffers().rows() > 3);
  double share = 0;
  for (int r = 0; r < page.buffers().rows(); ++r) share += page.buffers().text(r, 4).toDouble();
  QVERIFY(std::abs(share - 100) < 1);
  // A timeline from a file brings its memory along.
  open(predicted_);
  QCOMPARE(page.view().processes().size(), e->evaluation.program.classes.size());
  // The device has room for what neither buffers nor context, communicators and allocator take.
  open(source("scenarios/llama3-70b-p4d.json"));
  QTRY_VERIFY(window_->session().evaluated() && page.view().selected() >= 0 && page.view().overhead(0) > 0);
  const auto stage = static_cast<std::size_t>(page.view().selected());
  const std::int64_t room = window_->session().problem()->devices[0].memory.value -
                            window_->session().evaluated()->evaluation.predicted.memory[stage].total;
  QVERIFY(room > 0);
  const QString free = text(Bytes{room}) + " of the device are free then";
  const auto labels = page.findChildren<QLabel*>();
  QVERIFY(
      std::any_of(labels.begin(), labels.end(), [&](const QLabel* l) { return l->text().contains(free); }));
}

void WindowTest::shows_the_network_and_whose_traffic_a_link_carries() {
  open(source("scenarios/llama3-70b-p4d.json"));
  window_->show_page("topology");
  TopologyPage& page = window_->topology();
  QTRY_VERIFY(page.view().picture());
  const auto picture = page.view().picture();
  QVERIFY(!picture->use.empty());
  for (const double use : picture->use) QVERIFY(use >= 0 && use <= 1.0001);
  std::size_t fullest = 0;
  for (std::size_t e = 0; e < picture->edges.size(); ++e) {
    if (picture->edges[e].most > picture->edges[fullest].most) fullest = e;
  }
  QVERIFY(picture->edges[fullest].most > 0.01);
  Q_EMIT page.view().edge_selected(fullest);
  QTRY_VERIFY(page.users().rows() > 0);
  double share = 0;
  for (int r = 0; r < page.users().rows(); ++r) share += page.users().text(r, 3).toDouble();
  QVERIFY(std::abs(share / 100 - picture->edges[fullest].most) < 0.01);
  // Averages are what moments add up to.
  const EvaluatedPtr e = window_->session().evaluated();
  const sim::LinkId link = picture->edges[fullest].fullest;
  constexpr int kMoments = 400;
  double mean = 0;
  for (int i = 0; i < kMoments; ++i) {
    const Time t{mul_div(e->run->lanes.end().value, 2 * i + 1, 2 * kMoments)};
    const double now = e->link_use->at(e->run->lanes, t)[link];
    QVERIFY(now <= 1.001);
    mean += now / kMoments;
  }
  QVERIFY2(std::abs(mean - picture->use[link]) < 0.05,
           qPrintable(QString("%1 %2").arg(mean).arg(picture->use[link])));
  QVERIFY(page.when().isEnabled());
  page.when().setCurrentIndex(1);
  QTRY_VERIFY(idle(*window_) && page.view().picture() != picture);
  // A block opens.
  const std::size_t blocks = page.view().picture()->layout.blocks().size();
  for (std::size_t b = 0; b < blocks; ++b) {
    if (page.view().picture()->layout.blocks()[b].count == 1) continue;
    const QPointF at = page.view().block_position(b);
    QTest::mouseClick(&page.view(), Qt::LeftButton, {}, at.toPoint());
    QTRY_VERIFY(page.view().picture()->layout.blocks().size() > blocks);
    break;
  }
}

void WindowTest::follows_sliders() {
  open(plan_);
  window_->show_page("what-if");
  const Table& table = window_->what_if().table();
  QTRY_VERIFY(table.rows() > 3);
  const auto row = [&](const QString& name) {
    for (int r = 0; r < table.rows(); ++r) {
      if (table.text(r, 0) == name) return r;
    }
    return -1;
  };
  const auto step = [&] {
    const int r = row("step time, s");
    return r < 0 ? 0.0 : table.text(r, 2).toDouble();
  };
  QTRY_VERIFY(step() > 0);
  const double before = step();
  window_->what_if().slider(2).setValue(60);  // eight times the arithmetic
  QTRY_VERIFY(step() < before);
  window_->what_if().slider(2).setValue(0);
  QTRY_COMPARE(step(), before);
  // By hand: the estimate of the plan on the changed machine.
  const Problem& p = *window_->session().problem();
  const Plan& plan = window_->session().evaluated()->plan;
  const sim::Topology topology(p.cluster);
  sim::Estimator estimator(p, topology);
  QVERIFY(std::abs(numbers_of(p, plan, {}).step_s - seconds(estimator.estimate(plan).step)) < 1e-12);
  // Two nodes of $10 an hour cost 2 x 10 x 24 = $480 a day, where there was one.
  Problem priced = p;
  QCOMPARE(priced.cluster.nodes, 1);
  priced.cluster.node_hour = from_dollars(10);
  priced.scenario.training.tokens = 1e9;
  const Numbers twice = numbers_of(priced, plan, {.nodes = 2, .batch = 2});
  QVERIFY2(twice.problem.empty(), twice.problem.c_str());
  QVERIFY(std::abs(twice.dollars / twice.days - 480) < 1e-6);
  const Numbers halved = numbers_of(p, plan, {.batch = 1.37});
  QVERIFY(halved.problem.empty() || halved.problem.find("divide") != std::string::npos);
}

void WindowTest::shows_costs() {
  open(source("scenarios/llama3-70b-p4d.json"));
  window_->show_page("cost");
  const auto& best = window_->session().answer()->plans[0].predicted;
  const Table& table = window_->cost().table();
  QVERIFY(table.rows() > 1);
  QCOMPARE(table.text(0, 3), QString("%L1").arg(best.cost_usd, 0, 'f', 0));
  QVERIFY(table.text(0, 2).remove(',').toDouble() < best.cost_usd);
  QVERIFY(table.text(0, 4).remove(',').toDouble() > best.cost_usd);
  // Dollars go with the step.
  const MeasuredRange& measured = window_->session().problem()->measured;
  const QString dollars = QString("<b>$%L1</b> ($%L2 to $%L3)")
                              .arg(best.cost_usd, 0, 'f', 0)
                              .arg(measured.low * best.cost_usd, 0, 'f', 0)
                              .arg(measured.high * best.cost_usd, 0, 'f', 0);
  const auto labels = window_->cost().findChildren<QLabel*>();
  QVERIFY(std::any_of(labels.begin(), labels.end(),
                      [&](const QLabel* l) { return l->text().contains(dollars); }));
  // The money of the best plan goes where its step does: the parts add up. Qt has the first row last.
  QVERIFY(best.breakdown.exposed_s[0] > 0 && best.breakdown.exposed_s[1] > 0);
  double money = 0;
  for (const auto* chart : window_->cost().findChildren<StackedBarChart*>()) {
    if (chart->accessibleName() != "Where the money goes") continue;
    const auto* bars = qobject_cast<const QAbstractBarSeries*>(chart->chart()->series().at(0));
    for (const QBarSet* set : bars->barSets()) money += set->at(set->count() - 1);
  }
  QVERIFY2(std::abs(money / best.cost_usd - 1) < 1e-6, qPrintable(QString::number(money)));
}

void WindowTest::shows_what_failures_do() {
  Json scenario = load_json(source("scenarios/climate-1.2b.json").toStdString());
  scenario["reliability"]["failures"]["hardware_per_node_day"] = 1.0;
  const QString path = folder_.filePath("failing.json");
  save_text(path.toStdString(), scenario.dump());
  open(path);
  QVERIFY2(window_->message().isEmpty(), qPrintable(window_->message()));
  FailuresPage& page = window_->failures();
  QVERIFY(page.headline().contains("Simulating"));  // once the page is shown
  window_->show_page("failures");
  QTRY_VERIFY_WITH_TIMEOUT(idle(*window_), kPatience);
  // The same numbers as `orrery reliability` has for the plan.
  const Evaluated& e = *window_->session().evaluated();
  planner::Operated q = planner::operate(*e.problem, e.plan, e.problem->at, {}, DataFolders());
  planner::take_predicted_step(q, *e.topology, e.evaluation.predicted.step_time_s, "engine", 1);
  const sim::Answered a = planner::answered(q, {.seed = 1, .runs = 10'000, .threads = 1});
  const auto words = [](const char* form, const sim::Spread& of, int decimals) {
    return QString(form)
        .arg(of.p50, 0, 'f', decimals)
        .arg(of.p5, 0, 'f', decimals)
        .arg(of.p95, 0, 'f', decimals);
  };
  const QString days = words("<b>%L1 days</b> (90 % of runs: %L2 to %L3)", a.summary.days_of_step, 2);
  QVERIFY2(page.headline().contains(days), qPrintable(page.headline()));
  const QString usd = words("<b>$%L1</b> ($%L2 to $%L3)", a.summary.dollars_of_step, 0);
  QVERIFY2(page.headline().contains(usd), qPrintable(page.headline()));
  // The bars are the shares of the time that is no progress. Qt has the first row last.
  for (const auto* chart : page.findChildren<StackedBarChart*>()) {
    const auto* bars = qobject_cast<const QAbstractBarSeries*>(chart->chart()->series().at(0));
    const QBarSet* set = bars->barSets().at(0);
    QCOMPARE(set->at(set->count() - 1), 100 * a.summary.lost);
    double sum = 0;
    for (int i = 0; i < set->count(); ++i) sum += set->at(i);
    QVERIFY(std::abs(sum - 100 * (1 - a.summary.progress)) < 1e-6);
  }
  // What the median run did, to its end, and each of its stops.
  const sim::Diary diary = planner::diary_of_median_run(a, 1);
  const sim::Ticks end = diary.periods().back().end;
  QVERIFY(std::abs(sim::days(end) / a.summary.days.p50 - 1) < 1e-12);
  QVERIFY(diary.outages().size() > 3);
  QCOMPARE(page.stops().rows(), static_cast<int>(diary.outages().size()));
  const LifeView& view = page.life();
  QVERIFY(view.rows() >= 1 && view.rows() <= LifeView::kMostRows);
  QVERIFY(view.row_length().value * view.rows() >= end.value);
  QVERIFY(view.row_length().value * (view.rows() - 1) < end.value);
  const auto at = view.at(view.place_of({0}, sim::ticks(1.0), 0).center());
  QVERIFY(at && at->doing == sim::Doing::kWork);
  QVERIFY(!view.at({0, 0}));  // the labels
  const sim::Outage& stop = diary.outages()[2];
  const std::int64_t row = stop.begin.value / view.row_length().value;
  const auto down = view.at(view.place_of(stop.begin, stop.end, row).center());
  QVERIFY(down && (down->doing == sim::Doing::kRestart || down->doing == sim::Doing::kDetection));
  page.stops().select_number(2);
  QCOMPARE(view.marked(), 2);
}

void WindowTest::says_why_a_run_cannot_be_simulated() {
  Json scenario = load_json(source("scenarios/climate-1.2b.json").toStdString());
  scenario["reliability"]["prices"] = {{"payment", "spot"}};
  const QString path = folder_.filePath("unpriced.json");
  save_text(path.toStdString(), scenario.dump());
  open(path);
  QVERIFY2(window_->message().isEmpty(), qPrintable(window_->message()));
  window_->show_page("failures");
  QTRY_VERIFY_WITH_TIMEOUT(idle(*window_), kPatience);
  const QString words = window_->failures().headline();
  QVERIFY2(words.contains("/reliability/prices/spot_node_hour"), qPrintable(words));
  QCOMPARE(window_->failures().stops().rows(), 0);
}

void WindowTest::counts_values_in_bars() {
  // 41 values from 0 to 40: one a bar, and the last is in the last bar.
  std::vector<double> values(41);
  std::iota(values.begin(), values.end(), 0.0);
  std::vector<int> expected(HistogramChart::kBars, 1);
  expected.back() = 2;
  QCOMPARE(HistogramChart::counts(values), expected);
  const std::vector<int> alike = HistogramChart::counts({7, 7, 7});
  QCOMPARE(alike.front(), 3);
  QCOMPARE(std::accumulate(alike.begin(), alike.end(), 0), 3);
  QCOMPARE(HistogramChart::counts({}), std::vector<int>(HistogramChart::kBars, 0));
}

void WindowTest::opens_a_topology_that_is_dropped() {
  QMimeData data;
  data.setUrls({QUrl::fromLocalFile(source("topologies/dgx-h100.json"))});
  QDragEnterEvent enter(QPoint(50, 50), Qt::CopyAction, &data, Qt::LeftButton, {});
  QApplication::sendEvent(window_.get(), &enter);
  QVERIFY(enter.isAccepted());
  QDropEvent drop(QPointF(50, 50), Qt::CopyAction, &data, Qt::LeftButton, {});
  QApplication::sendEvent(window_.get(), &drop);
  QTRY_VERIFY_WITH_TIMEOUT(window_->session().topology() && idle(*window_), 20'000);
  QCOMPARE(window_->page(), QString("topology"));
  QTRY_VERIFY(window_->topology().view().picture());
  QVERIFY(window_->topology().view().picture()->use.empty());
  QVERIFY(!window_->topology().when().isEnabled());  // no plan, no traffic
}

void WindowTest::answers_malformed_files_data() {
  QTest::addColumn<QByteArray>("text");
  QTest::addColumn<QString>("expected");
  QTest::newRow("nothing") << QByteArray() << "line 1, column 1";
  QTest::newRow("not JSON") << QByteArray("{\"model\": ") << "line 1, column 11";
  QTest::newRow("of no kind") << QByteArray("{\"some\": \"thing\"}") << "none of the files";
  QTest::newRow("a scenario with a slip")
      << QByteArray(R"({"model": "llama3-70b", "cluster": {"topology": "p4x"}, "training": {}})") << "/";
  QTest::newRow("a scenario whose model is misspelt")
      << QByteArray(
             R"({"modle": "tiny-llama", "cluster": {"topology": "p4d"}, "training": {"global_batch": 8, "sequence": 64}})")
      << "/modle: there is no such field; allowed: name, model, ";
  QTest::newRow("a trace without our fields")
      << QByteArray(R"({"traceEvents": [{"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": 1, "dur": 1}]})")
      << "/traceEvents/0";
  QTest::newRow("a binary that was cut") << read(predicted_).left(2000) << "byte";
  QTest::newRow("a binary of another version")
      << QByteArray("orrery.timeline-binary/9\n12345678") << "version";
  QTest::newRow("a trace without slices") << QByteArray(R"({"traceEvents": []})") << "";
}

void WindowTest::answers_malformed_files() {
  QFETCH(QByteArray, text);
  QFETCH(QString, expected);
  const QString path = folder_.filePath("malformed.json");
  write(path, text);
  open(path);
  if (expected.isEmpty()) {
    QVERIFY(window_->message().isEmpty());
  } else {
    QVERIFY2(window_->message().contains(expected), qPrintable(window_->message()));
    QVERIFY(window_->message().contains("malformed.json"));
  }
  // It goes on.
  for (const QString& page : Window::page_names()) window_->show_page(page);
  open(predicted_);
  QVERIFY(window_->session().run(0));
  QVERIFY(window_->message().isEmpty());
}

void WindowTest::a_step_of_16384_gpus_opens_folded_and_unfolds() {
  Problem problem = load_problem(source("scenarios/llama3-405b-16k-h100.json").toStdString(), DataFolders());
  Plan plan;
  plan.tp = 8;
  plan.pp = 16;
  plan.dp = 128;
  plan.micro_batches = problem.scenario.training.global_batch / plan.dp;
  plan.zero = 1;
  plan.sequence_parallel = true;
  plan.recompute = Recompute::kFull;
  const QString path = folder_.filePath("405b.json");
  save_text(path.toStdString(), write_fields(planner::make_plan_file(problem, plan, {}, "test")).dump());
  open(path);
  QVERIFY2(window_->message().isEmpty(), qPrintable(window_->message()));
  window_->show_page("timeline");
  TimelineView& view = window_->timeline().view(0);
  QCOMPARE(view.rows().visible().size(), 16U);
  QVERIFY(view.rows().visible()[0]->label.contains("1,024 ranks"));
  // A click opens the class, another its ranks.
  QTest::mouseClick(view.viewport(), Qt::LeftButton, {}, {60, kRulerHeight + 5});
  const auto& rows = view.rows().visible();
  std::size_t members = 0;
  while (rows[members]->kind != Row::Kind::kMembers) ++members;
  QTest::mouseClick(view.viewport(), Qt::LeftButton, {},
                    {60, kRulerHeight + static_cast<int>(members) * kRowHeight + 5});
  QVERIFY(rows.size() >= 16 + 1024);
  // A deep link to one of them.
  window_->timeline().go_to(Time{1'230'000'000'000}, 9000);
  const auto row = std::find_if(rows.begin(), rows.end(), [](const Row* r) { return r->rank == 9000; });
  QVERIFY(row != rows.end());
  QVERIFY((*row)->open);
  QVERIFY((*row)->label.startsWith("rank 9000 (tp 0, dp"));
}

void WindowTest::opens_a_profilers_trace() {
  const QString path = folder_.filePath("profiler.json");
  write(path, R"({"traceEvents": [
    {"ph": "X", "cat": "python_function", "name": "train.py", "pid": 99, "tid": 99, "ts": 0, "dur": 500},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 300},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 3, "ts": 25, "dur": 80}]})");
  open(path);
  QVERIFY2(window_->message().isEmpty(), qPrintable(window_->message()));
  TimelineView& view = window_->timeline().view(0);
  QStringList labels;
  for (const Row* row : view.rows().visible()) labels << row->label;
  QCOMPARE(labels, QStringList({"GPU 0", "compute", "stream 3, NCCL"}));
  // Kinds of work are ours: what is known of other software's ops is their class.
  const sim::Lanes& lanes = window_->session().run(0)->lanes;
  const Timeline t = lanes.unpacked();
  const SliceColours colours(light_theme(), t, Colouring::kKind);
  QVERIFY(colours.of(t.slices[0]) != colours.of(t.slices[1]));
  QStringList meanings;
  for (const Meaning& m : legend(light_theme(), lanes, Colouring::kKind)) meanings << m.text;
  QCOMPARE(meanings, QStringList({"product", "all-reduce"}));
}

void WindowTest::shows_keys_and_changes_colours() {
  open(predicted_);
  window_->show_page("timeline");
  const QImage light = window_->timeline().view(0).viewport()->grab().toImage();
  window_->set_dark(true);
  QApplication::processEvents();
  const QImage dark = window_->timeline().view(0).viewport()->grab().toImage();
  QCOMPARE(light.pixelColor(5, light.height() - 5), light_theme().background);
  QCOMPARE(dark.pixelColor(5, dark.height() - 5), dark_theme().background);
  window_->set_dark(false);
  QTest::keyClick(window_.get(), Qt::Key_F1);
  QTRY_VERIFY(window_->findChild<QDialog*>("keys"));
}

}  // namespace orrery::gui

QTEST_MAIN(orrery::gui::WindowTest)
#include "window_test.moc"
