// SPDX-License-Identifier: Apache-2.0
#include <QApplication>
#include <QCommandLineParser>
#include <QImageWriter>
#include <QSettings>
#include <QStyleFactory>
#include <QTemporaryDir>
#include <QTimer>
#include <cstdio>
#include <optional>

#include "core/error.h"
#include "gui/theme.h"
#include "gui/window.h"

namespace orrery::gui {
namespace {

int fail(ExitCode code, const QString& message) {
  std::fprintf(stderr, "orrery-gui: %s\n", qPrintable(message));
  return static_cast<int>(code);
}

// What the command line asks for beside a file.
struct Wish {
  QString open, beside, page, pane, screenshot;
  std::optional<Time> at;
  std::int64_t rank = -1;
  QSize size;
};

// Follows the jobs until all is there that was asked for, then takes the picture and leaves.
class Director : public QObject {
 public:
  Director(Window& window, Wish wish) : window_(window), wish_(std::move(wish)) {
    Jobs& jobs = window_.session().jobs();
    connect(&jobs, &Jobs::ended, this, [this] { QTimer::singleShot(0, this, [this] { go_on(); }); });
    connect(&window_.session(), &Session::failed, this, [this](const QString& message) {
      if (wish_.screenshot.isEmpty()) return;
      failed_ = true;
      QApplication::exit(fail(ExitCode::kInvalidInput, message));
    });
    if (!wish_.open.isEmpty()) window_.session().open(wish_.open);
    QTimer::singleShot(0, this, [this] { go_on(); });
  }

 private:
  void go_on() {
    if (done_ || failed_ || !window_.session().jobs().idle()) return;
    if (!wish_.beside.isEmpty()) {
      window_.session().open_beside(std::exchange(wish_.beside, {}));
      return;
    }
    Session& session = window_.session();
    const bool of_plans = wish_.page == "plans" || wish_.page == "cost";
    if (of_plans && session.problem() && !session.answer() && !std::exchange(planned_, true)) {
      session.plan();  // a plan that is open has none beside it yet
      return;
    }
    if (!wish_.page.isEmpty()) {
      window_.show_page(std::exchange(wish_.page, {}));
      if (!session.jobs().idle()) return;  // what the page found out is missing
    }
    if (const QString pane = std::exchange(wish_.pane, {}); !pane.isEmpty() && !window_.bring_pane(pane)) {
      failed_ = true;
      const QStringList names = window_.pane_names();
      return QApplication::exit(fail(
          ExitCode::kUsage, QString("--pane: \"%1\" is no pane of this page; allowed: %2")
                                .arg(pane, names.isEmpty() ? "none, as it has no panes" : names.join(", "))));
    }
    done_ = true;
    if (wish_.at || wish_.rank >= 0) {
      window_.show_page("timeline");
      window_.timeline().go_to(wish_.at, wish_.rank);
    }
    if (!wish_.screenshot.isEmpty()) QTimer::singleShot(0, this, [this] { take_picture(); });
  }
  void take_picture() {
    QApplication::processEvents();
    if (!window_.timeline().settled() || !window_.session().jobs().idle())
      return QTimer::singleShot(20, this, [this] { take_picture(); });
    QImageWriter writer(wish_.screenshot);
    if (writer.write(window_.grab().toImage())) return QApplication::exit(0);
    const bool format = writer.error() == QImageWriter::UnsupportedFormatError;
    const QString why = format ? writer.errorString() : writer.device()->errorString();
    QApplication::exit(fail(ExitCode::kFailure, wish_.screenshot + ": cannot be written: " + why));
  }

  Window& window_;
  Wish wish_;
  bool planned_ = false, done_ = false, failed_ = false;
};

int run(int argc, char** argv) {
  // Neither a picture nor an answer on the terminal needs a display, and Qt would end the program without
  // one.
  const bool display = qEnvironmentVariableIsSet("DISPLAY") || qEnvironmentVariableIsSet("WAYLAND_DISPLAY") ||
                       qEnvironmentVariableIsSet("QT_QPA_PLATFORM");
  if (!display) qputenv("QT_QPA_PLATFORM", "offscreen");
  QApplication app(argc, argv);
  QApplication::setOrganizationName("orrery");
  QApplication::setApplicationName("orrery-gui");
  QApplication::setApplicationVersion(ORRERY_VERSION);
  QApplication::setStyle(QStyleFactory::create("Fusion"));
  QCommandLineParser parser;
  parser.setApplicationDescription("See how a plan trains: plans, timelines, memory and the network.");
  parser.addHelpOption();
  parser.addVersionOption();
  const QCommandLineOption open("open", "scenario, plan, timeline or topology to open", "FILE"),
      beside("beside", "timeline or plan to lay beside it", "FILE"), rank("rank", "show this rank", "N"),
      at("at", "show this moment, as 1.23ms", "TIME"),
      page("page", "show this page: " + Window::page_names().join(", "), "NAME"),
      pane("pane", "bring this pane of the page forward, as ranks", "NAME"),
      screenshot("screenshot", "save a picture of the window and leave", "FILE"),
      size("size", "of the window, as 1440x900", "WIDTHxHEIGHT"), theme("theme", "light or dark", "NAME");
  parser.addOptions({open, beside, rank, at, page, pane, screenshot, size, theme});
  parser.addPositionalArgument("file", "the same as --open", "[file]");
  if (!parser.parse(QApplication::arguments())) return fail(ExitCode::kUsage, parser.errorText());
  if (parser.isSet("help")) parser.showHelp();
  if (parser.isSet("version")) parser.showVersion();

  Wish wish;
  // Pictures neither depend on what people have set, nor change it.
  std::optional<QTemporaryDir> settings;
  if (parser.isSet(screenshot)) {
    settings.emplace();
    QSettings::setDefaultFormat(QSettings::IniFormat);
    QSettings::setPath(QSettings::IniFormat, QSettings::UserScope, settings->path());
  }
  wish.open = parser.isSet(open) ? parser.value(open) : parser.positionalArguments().value(0);
  wish.beside = parser.value(beside);
  wish.page = parser.value(page);
  wish.pane = parser.value(pane);
  wish.screenshot = parser.value(screenshot);
  if (!wish.page.isEmpty() && !Window::page_names().contains(wish.page))
    return fail(
        ExitCode::kUsage,
        QString("--page: \"%1\" is no page; allowed: %2").arg(wish.page, Window::page_names().join(", ")));
  if (parser.isSet(at)) {
    wish.at = parse_time(parser.value(at).toStdString());
    if (!wish.at)
      return fail(
          ExitCode::kUsage,
          QString("--at: \"%1\" is no time; allowed: a number and a unit, as 1.23ms").arg(parser.value(at)));
  }
  if (parser.isSet(rank)) {
    bool good = false;
    wish.rank = parser.value(rank).toLongLong(&good);
    if (!good || wish.rank < 0)
      return fail(ExitCode::kUsage, QString("--rank: \"%1\" is no rank").arg(parser.value(rank)));
  }
  if (parser.isSet(size)) {
    const QStringList sides = parser.value(size).split('x');
    wish.size = sides.size() == 2 ? QSize(sides[0].toInt(), sides[1].toInt()) : QSize();
    if (wish.size.width() < 320 || wish.size.height() < 240 || wish.size.width() > 10000 ||
        wish.size.height() > 10000)
      return fail(
          ExitCode::kUsage,
          QString("--size: \"%1\" is no size; allowed: 320x240 to 10000x10000").arg(parser.value(size)));
  }
  const QString shade =
      parser.isSet(theme) ? parser.value(theme) : (QSettings().value("dark").toBool() ? "dark" : "light");
  if (shade != "light" && shade != "dark")
    return fail(ExitCode::kUsage, QString("--theme: \"%1\" is no theme; allowed: light, dark").arg(shade));
  if (!display && wish.screenshot.isEmpty())
    return fail(
        ExitCode::kFailure,
        "there is no display: neither DISPLAY nor WAYLAND_DISPLAY is set; --screenshot FILE needs none");
  QApplication::setPalette((shade == "dark" ? dark_theme() : light_theme()).palette());

  Window window;
  if (wish.size.isValid())
    window.resize(wish.size);
  else if (!wish.screenshot.isEmpty())
    window.resize(1440, 900);
  window.show();
  const Director director(window, std::move(wish));
  return QApplication::exec();
}

}  // namespace
}  // namespace orrery::gui

int main(int argc, char** argv) {
  return orrery::gui::run(argc, argv);
}
