// SPDX-License-Identifier: Apache-2.0
#include "gui/window.h"

#include <QApplication>
#include <QDialog>
#include <QDockWidget>
#include <QDragEnterEvent>
#include <QFileDialog>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QMenuBar>
#include <QMimeData>
#include <QSettings>
#include <QStatusBar>
#include <QSvgGenerator>
#include <QTextBrowser>
#include <QVBoxLayout>
#include <algorithm>

#include "core/error.h"
#include "gui/text.h"
#include "gui/theme.h"

namespace orrery::gui {
namespace {

// The keys of the timeline, as the menu has them and the sheet shows them.
struct Key {
  const char* keys;
  const char* what;
};
constexpr Key kPointer[] = {
    {"wheel", "rows up and down"},
    {"Ctrl + wheel", "zoom at the pointer"},
    {"Shift + wheel, Shift + drag", "earlier and later"},
    {"drag", "select a part of the rows and sum it up"},
    {"Ctrl + drag", "zoom to what is framed"},
    {"click on a slice", "select it; arrows lead to its partners"},
    {"click on a label", "open or close the row"},
};

QString words_of(const Run& run) {
  const TimelineHead& t = run.timeline();
  const QString length = text(run.lanes.end() - run.lanes.begin());
  const QString out = Window::tr("%1: %L2 slices, %3").arg(run.name).arg(run.lanes.size()).arg(length);
  return t.source.empty() ? out : out + ", " + QString::fromStdString(t.source);
}

// Of a job that people see; empty for others.
QString words_of(const QString& kind) {
  for (const JobWords& job : kSeenJobs) {
    if (kind == QLatin1String(job.kind)) return Window::tr(job.words);
  }
  return {};
}

}  // namespace

QStringList Window::page_names() {
  return {"start", "plans", "timeline", "memory", "topology", "what-if", "cost", "failures"};
}

Window::Window(QWidget* parent) : QMainWindow(parent) {
  setWindowTitle("Orrery");
  setAcceptDrops(true);
  resize(1440, 900);
  auto* central = new QWidget;
  auto* column = new QVBoxLayout(central);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  banner_ = new QWidget;
  banner_->setObjectName("banner");
  banner_->setStyleSheet("#banner { background: #b3261e; } #banner QLabel { color: white; }");
  auto* in_banner = new QHBoxLayout(banner_);
  banner_text_ = new QLabel;
  banner_text_->setWordWrap(true);
  banner_text_->setTextFormat(Qt::PlainText);
  banner_text_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  banner_text_->setAccessibleName(tr("What went wrong"));
  auto* dismiss = new QToolButton;
  dismiss->setText("✕");
  dismiss->setAccessibleName(tr("Dismiss"));
  connect(dismiss, &QToolButton::clicked, banner_, &QWidget::hide);
  in_banner->addWidget(banner_text_, 1);
  in_banner->addWidget(dismiss);
  banner_->hide();
  column->addWidget(banner_);
  pages_ = new QTabWidget;
  pages_->setDocumentMode(true);
  column->addWidget(pages_, 1);
  setCentralWidget(central);
  start_ = new StartPage(session_);
  connect(start_, &StartPage::wants_file, this, [this] { choose_and_open(false); });
  plans_ = new PlansPage(session_);
  timeline_ = new TimelinePage(session_);
  add_page("start", tr("Start"), start_);
  add_page("plans", tr("Plans"), plans_);
  add_page("timeline", tr("Timeline"), timeline_);
  add_page("memory", tr("Memory"), memory_ = new MemoryPage(session_));
  add_page("topology", tr("Topology"), topology_ = new TopologyPage(session_));
  add_page("what-if", tr("What if"), what_if_ = new WhatIfPage(session_));
  add_page("cost", tr("Cost"), cost_ = new CostPage(session_));
  add_page("failures", tr("Failures"), failures_ = new FailuresPage(session_));
  build_status();
  build_menus();
  // Keys act on the page that is shown.
  connect(pages_, &QTabWidget::currentChanged, this, [this] { pages_->currentWidget()->setFocus(); });
  connect(&session_, &Session::failed, this, &Window::show_message);
  connect(&session_, &Session::problem_changed, banner_, &QWidget::hide);
  connect(&session_, &Session::runs_changed, this, [this] {
    if (session_.run(0) && !session_.problem()) show_page("timeline");
  });
  connect(&session_, &Session::topology_changed, this, [this] {
    if (session_.topology() && !session_.problem()) show_page("topology");
  });
  connect(&session_, &Session::problem_changed, this, [this] {
    if (session_.problem()) show_page("plans");
  });
  restore_state();
}

Window::~Window() = default;

void Window::add_page(const QString& name, const QString& title, QWidget* page) {
  page->setObjectName(name);
  pages_->addTab(page, title);
}

void Window::show_page(const QString& name) {
  for (int i = 0; i < pages_->count(); ++i) {
    if (pages_->widget(i)->objectName() == name) pages_->setCurrentIndex(i);
  }
}

QString Window::page() const {
  return pages_->currentWidget()->objectName();
}

QStringList Window::pane_names() const {
  QStringList out;
  for (const Panes* p : pages_->currentWidget()->findChildren<Panes*>()) out << p->names();
  return out;
}

bool Window::bring_pane(const QString& name) {
  const auto all = pages_->currentWidget()->findChildren<Panes*>();
  return std::any_of(all.begin(), all.end(), [&](Panes* p) { return p->bring(name); });
}

void Window::build_status() {
  status_ = new QLabel(tr("Open or drop a scenario, a plan, a timeline or a topology."));
  status_->setTextFormat(Qt::PlainText);
  progress_ = new QProgressBar;
  progress_->setMaximumWidth(220);
  progress_->setMaximumHeight(14);
  progress_->setAccessibleName(tr("Progress"));
  progress_->hide();
  cancel_ = new QToolButton;
  cancel_->setText(tr("Cancel"));
  cancel_->setObjectName("cancel");
  cancel_->hide();
  connect(cancel_, &QToolButton::clicked, this, [this] {
    session_.cancel();
    status_->setText(tr("Cancelled."));
  });
  statusBar()->addWidget(status_, 1);
  statusBar()->addPermanentWidget(progress_);
  statusBar()->addPermanentWidget(cancel_);
  Jobs& jobs = session_.jobs();
  connect(&jobs, &Jobs::started, this, [this](const QString& kind) {
    if (words_of(kind).isEmpty()) return;
    running_[kind] = 0;
    show_progress();
  });
  connect(&jobs, &Jobs::progressed, this, [this](const QString& kind, double share) {
    if (running_.contains(kind)) running_[kind] = share;
    show_progress();
  });
  connect(&jobs, &Jobs::ended, this, [this](const QString& kind) {
    running_.erase(kind);
    show_progress();
  });
}

void Window::show_progress() {
  progress_->setVisible(!running_.empty());
  cancel_->setVisible(!running_.empty());
  if (running_.empty()) {
    status_->clear();
    if (const RunPtr& run = session_.run(0)) status_->setText(words_of(*run));
    return;
  }
  const auto& [kind, share] = *running_.begin();
  status_->setText(words_of(kind) + " …");
  progress_->setRange(0, share > 0 ? 100 : 0);
  progress_->setValue(static_cast<int>(share * 100));
}

void Window::show_message(const QString& text) {
  banner_text_->setText(text);
  banner_->show();
}

void Window::build_menus() {
  QMenu* file = menuBar()->addMenu(tr("&File"));
  const auto add = [this](QMenu* menu, const QString& text, const QKeySequence& key, auto&& action) {
    QAction* a = menu->addAction(text);
    a->setShortcut(key);
    connect(a, &QAction::triggered, this, std::forward<decltype(action)>(action));
    return a;
  };
  add(file, tr("&Open …"), QKeySequence::Open, [this] { choose_and_open(false); });
  add(file, tr("Lay a run &beside …"), QKeySequence("Ctrl+B"), [this] { choose_and_open(true); });
  add(file, tr("&Take the second run away"), QKeySequence("Ctrl+Shift+B"),
      [this] { session_.close_beside(); });
  file->addSeparator();
  add(file, tr("&Plan again"), QKeySequence("Ctrl+Return"), [this] { session_.plan(); });
  add(file, tr("&Cancel what runs"), QKeySequence("Escape"), [this] { cancel_->click(); });
  file->addSeparator();
  add(file, tr("&Export …"), QKeySequence("Ctrl+E"), [this] { choose_and_export(); });
  add(file, tr("&Quit"), QKeySequence::Quit, [this] { close(); });

  QMenu* view = menuBar()->addMenu(tr("&View"));
  for (int i = 0; i < pages_->count(); ++i)
    add(view, pages_->tabText(i), QKeySequence(QString("Ctrl+%1").arg(i + 1)),
        [this, i] { pages_->setCurrentIndex(i); });
  view->addSeparator();
  QMenu* panes = view->addMenu(tr("&Panes"));
  for (const Panes* of : findChildren<Panes*>()) {
    panes->addSection(pages_->tabText(pages_->indexOf(of->parentWidget())));
    for (QDockWidget* dock : of->all()) panes->addAction(dock->toggleViewAction());
  }
  add(view, tr("&Light"), {}, [this] { set_dark(false); });
  add(view, tr("&Dark"), {}, [this] { set_dark(true); });

  // Plain letters act on the timeline only, so that they can be typed elsewhere.
  QMenu* time = menuBar()->addMenu(tr("&Timeline"));
  const auto on_timeline = [&](const QString& text, const char* key, auto&& action) {
    QAction* a = new QAction(text, timeline_);
    a->setShortcut(QKeySequence(key));
    a->setShortcutContext(Qt::WidgetWithChildrenShortcut);
    timeline_->addAction(a);
    for (QDockWidget* dock : timeline_->findChildren<QDockWidget*>()) dock->addAction(a);  // torn off too
    time->addAction(a);
    connect(a, &QAction::triggered, this, std::forward<decltype(action)>(action));
  };
  on_timeline(tr("Zoom in"), "W", [this] { timeline_->zoom(1.5); });
  on_timeline(tr("Zoom out"), "S", [this] { timeline_->zoom(1 / 1.5); });
  on_timeline(tr("Earlier"), "A", [this] { timeline_->pan(-0.15); });
  on_timeline(tr("Later"), "D", [this] { timeline_->pan(0.15); });
  on_timeline(tr("Back to the part before"), "Alt+Left", [this] { session_.time().back(); });
  on_timeline(tr("Forward again"), "Alt+Right", [this] { session_.time().forward(); });
  on_timeline(tr("Show what is selected"), "F", [this] { timeline_->show_selection(); });
  on_timeline(tr("Show all"), "Home", [this] { session_.time().change([](TimeAxis& a) { a.show_all(); }); });
  on_timeline(tr("Next slice of the row"), ".", [this] { timeline_->view(0).step(1); });
  on_timeline(tr("Previous slice of the row"), ",", [this] { timeline_->view(0).step(-1); });
  on_timeline(tr("Find ops"), "/", [this] { timeline_->focus_search(); });
  on_timeline(tr("Next found op"), "N", [this] { timeline_->find_next(1); });
  on_timeline(tr("Previous found op"), "Shift+N", [this] { timeline_->find_next(-1); });
  on_timeline(tr("Critical path"), "C",
              [this] { timeline_->show_critical_path(!timeline_->critical_path_shown()); });
  on_timeline(tr("Longest gap of compute"), "G", [this] { timeline_->show_longest_gap(); });
  on_timeline(tr("Bookmark this view"), "M", [this] { timeline_->add_bookmark(); });
  on_timeline(tr("Open all rows"), "E", [this] { timeline_->view(0).set_all_open(true); });
  on_timeline(tr("Close all rows"), "Shift+E", [this] { timeline_->view(0).set_all_open(false); });

  QMenu* help = menuBar()->addMenu(tr("&Help"));
  add(help, tr("&Keys"), QKeySequence("F1"), [this] { show_keys(); });
}

void Window::show_keys() {
  QString html = "<table cellpadding='3'>";
  for (const Key& k : kPointer)
    html += QString("<tr><td><b>%1</b></td><td>%2</td></tr>").arg(tr(k.keys), tr(k.what));
  for (const QAction* menu : menuBar()->actions()) {
    for (const QAction* a : menu->menu()->actions()) {
      if (!a->shortcut().isEmpty())
        html += QString("<tr><td><b>%1</b></td><td>%2</td></tr>")
                    .arg(a->shortcut().toString(QKeySequence::NativeText).toHtmlEscaped(),
                         QString(a->text()).remove('&').toHtmlEscaped());
    }
  }
  auto* sheet = new QDialog(this);
  sheet->setObjectName("keys");
  sheet->setAttribute(Qt::WA_DeleteOnClose);
  sheet->setWindowTitle(tr("Keys"));
  auto* column = new QVBoxLayout(sheet);
  auto* text = new QTextBrowser;
  text->setHtml(html + "</table>");
  column->addWidget(text);
  sheet->resize(520, 640);
  sheet->show();
}

void Window::choose_and_open(bool beside) {
  const QString path = QFileDialog::getOpenFileName(
      this, beside ? tr("Lay a run beside") : tr("Open"), QSettings().value("folder").toString(),
      tr("Scenarios, plans, timelines, topologies (*.json *.timeline);;All files (*)"));
  if (path.isEmpty()) return;
  QSettings().setValue("folder", QFileInfo(path).absolutePath());
  if (beside)
    session_.open_beside(path);
  else
    session_.open(path);
}

void Window::choose_and_export() {
  const QString path =
      QFileDialog::getSaveFileName(this, tr("Export"), QSettings().value("folder").toString(),
                                   tr("Picture (*.png);;Shapes of the timeline (*.svg);;Table "
                                      "(*.csv);;Chrome trace (*.json);;Timeline (*.timeline)"));
  if (path.isEmpty()) return;
  try {
    export_to(path);
  } catch (const std::exception& e) {
    show_message(QString::fromUtf8(e.what()));
  }
}

Table* Window::table_on_page() const {
  Table* best = nullptr;
  for (Table* t : pages_->currentWidget()->findChildren<Table*>()) {
    if (t->visibleRegion().isEmpty() || t->rows() == 0) continue;
    if (!best || t->hasFocus()) best = t;
  }
  return best;
}

void Window::export_to(const QString& path) {
  const QString suffix = QFileInfo(path).suffix().toLower();
  const std::string file = path.toStdString();
  if (suffix == "png") {
    if (!pages_->currentWidget()->grab().save(path)) throw Error(file + ": cannot be written");
  } else if (suffix == "svg") {
    QSvgGenerator svg;
    svg.setFileName(path);
    const QSize size = timeline_->view(0).viewport()->size();
    svg.setSize(size);
    svg.setViewBox(QRect({}, size));
    QPainter painter;
    if (!painter.begin(&svg)) throw Error(file + ": cannot be written");
    timeline_->view(0).draw(painter, true);
  } else if (suffix == "csv") {
    const Table* table = table_on_page();
    if (!table) throw Error("this page shows no table to export");
    save_text(file, table->csv().toStdString());
  } else if (suffix == "json" || suffix == "timeline") {
    if (!session_.run(0)) throw Error("there is no timeline to export");
    session_.save_run(path);
  } else {
    throw Error(file + ": is of no kind that can be exported; allowed: .png, .svg, .csv, .json, .timeline");
  }
}

void Window::set_dark(bool dark) {
  QApplication::setPalette((dark ? dark_theme() : light_theme()).palette());
  QSettings().setValue("dark", dark);
}

void Window::dragEnterEvent(QDragEnterEvent* event) {
  if (event->mimeData()->hasUrls()) event->acceptProposedAction();
}

void Window::dropEvent(QDropEvent* event) {
  const auto urls = event->mimeData()->urls();
  if (!urls.isEmpty()) session_.open(urls[0].toLocalFile());
}

void Window::restore_state() {
  QSettings settings;
  restoreGeometry(settings.value("geometry").toByteArray());
  for (QSplitter* s : findChildren<QSplitter*>()) {
    if (!s->objectName().isEmpty())
      s->restoreState(settings.value("splitters/" + s->objectName()).toByteArray());
  }
  for (Panes* p : findChildren<Panes*>())
    p->restoreState(settings.value("panes/" + p->objectName()).toByteArray());
}

void Window::save_state() const {
  QSettings settings;
  settings.setValue("geometry", saveGeometry());
  for (const QSplitter* s : findChildren<QSplitter*>()) {
    if (!s->objectName().isEmpty()) settings.setValue("splitters/" + s->objectName(), s->saveState());
  }
  for (const Panes* p : findChildren<Panes*>()) settings.setValue("panes/" + p->objectName(), p->saveState());
}

void Window::closeEvent(QCloseEvent* event) {
  save_state();
  QMainWindow::closeEvent(event);
}

}  // namespace orrery::gui
