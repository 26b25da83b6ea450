// SPDX-License-Identifier: Apache-2.0
//
// The window with ten and a hundred million slices, drawn by software: opening the file, the first picture,
// panning and zooming, and how long anything keeps the user interface. Times of repaints are those of the
// slowest twentieth.
#include <benchmark/benchmark.h>
#include <time.h>

#include <QApplication>
#include <QElapsedTimer>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "gui/window.h"

namespace orrery::gui {
namespace {

constexpr int kRanks = 64, kStreams = 4;

// A step of 64 ranks with four streams each, of `slices` slices of a few microseconds.
PackedTimeline big_timeline(std::int64_t slices) {
  std::mt19937_64 random(1);
  PackedTimeline out;
  TimelineHead& t = out.head;
  t.source = "made up";
  for (int i = 0; i < 2000; ++i)
    t.names.push_back("layer" + std::to_string(i / 20) + "/op" + std::to_string(i % 20));
  t.segments = {"forward", "backward", "optimizer"};
  t.streams = {"compute", "tp", "dp", "pp-send"};
  t.axes = {{"tp", 8}, {"dp", 2}, {"pp", 4}};
  t.node_ranks = 8;
  const std::int64_t count = slices / (kRanks * kStreams);
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    t.rank_labels.push_back("rank " + std::to_string(rank));
    for (std::int32_t stream = 0; stream < kStreams; ++stream) {
      std::int64_t at = 0;
      out.slices.begin_lane(rank, stream);
      for (std::int64_t i = 0; i < count; ++i) {
        const auto gap = static_cast<std::int64_t>(random() % 4'000'000 * (stream == 0 ? 1 : 3));
        const auto length = static_cast<std::int64_t>(1'000'000 + random() % 20'000'000);
        const Time start{at + gap};
        out.slices.add({static_cast<std::int32_t>(random() % t.names.size()),
                        static_cast<std::int32_t>(i * 3 / count), 0, static_cast<std::int32_t>(i / 600), rank,
                        stream, start, start, start + Time{stream == 0 ? 0 : length / 3},
                        start + Time{length}});
        at = start.value + length;
      }
      out.slices.end_lane();
    }
  }
  return out;
}

std::filesystem::path file_of(std::int64_t slices) {
  const auto path =
      std::filesystem::temp_directory_path() / ("orrery-bench-" + std::to_string(slices) + ".timeline");
  if (!std::filesystem::exists(path)) save_timeline(path, big_timeline(slices));
  return path;
}

double resident_gib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtod(line.c_str() + 6, nullptr) / (1 << 20);
  }
  return 0;
}

double thread_ms() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

// Knows the most work that one event was for the thread of the user interface since it was last asked, and
// which event. Waiting for a core does not count.
class Watched : public QApplication {
 public:
  using QApplication::QApplication;
  bool notify(QObject* receiver, QEvent* event) override {
    if (depth_ > 0) return QApplication::notify(receiver, event);
    const std::string what = std::string(receiver->metaObject()->className()) + " " +
                             receiver->objectName().toStdString() + " " + std::to_string(event->type());
    ++depth_;
    const double begin = thread_ms();
    const bool out = QApplication::notify(receiver, event);
    const double ms = thread_ms() - begin;
    --depth_;
    if (ms > longest_ms) {
      longest_ms = ms;
      longest = what;
    }
    return out;
  }

  double longest_ms = 0;
  std::string longest;

 private:
  int depth_ = 0;
};

Watched& application() {
  return *static_cast<Watched*>(QApplication::instance());
}

// Partners of ops are found while people look.
void wait_until_open(Window& window) {
  while (!window.session().run(0)) QApplication::processEvents(QEventLoop::WaitForMoreEvents);
}

void wait_until_idle(Window& window) {
  QApplication::processEvents();
  while (!window.session().jobs().idle()) QApplication::processEvents(QEventLoop::WaitForMoreEvents);
  QApplication::processEvents();
}

void Open(benchmark::State& state) {
  const QString path = QString::fromStdString(file_of(state.range(0)).string());
  double first_paint = 0;
  for (auto _ : state) {
    Window window;
    window.resize(1920, 1080);
    window.show();
    QApplication::processEvents();
    window.session().open(path);
    wait_until_open(window);
    QElapsedTimer timer;
    timer.start();
    window.show_page("timeline");
    window.timeline().view(0).viewport()->repaint();
    first_paint = static_cast<double>(timer.nsecsElapsed()) / 1e9;
  }
  state.counters["first_paint_s"] = first_paint;
  state.counters["peak_GiB"] = resident_gib();
}
BENCHMARK(Open)
    ->Arg(10'000'000)
    ->Arg(100'000'000)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(2)
    ->UseRealTime();

// A drag across the step and zooms from all of it down to microseconds, with the rows open or closed.
void Repaint(benchmark::State& state) {
  Window window;
  window.resize(1920, 1080);
  window.show();
  window.session().open(QString::fromStdString(file_of(state.range(0)).string()));
  wait_until_open(window);
  wait_until_idle(window);
  window.show_page("timeline");
  TimelineView& view = window.timeline().view(0);
  if (state.range(1) == 1) {
    for (int round = 0; round < 2; ++round) {
      const std::vector<Row*> rows = view.rows().visible();
      for (Row* row : rows) view.set_open(*row, true);
    }
  }
  QApplication::processEvents();
  TimeView& time = window.session().time();
  std::vector<double> ms;
  const auto repaint = [&](auto&& change) {
    QElapsedTimer timer;
    timer.start();
    time.change(change);
    view.viewport()->repaint();
    ms.push_back(static_cast<double>(timer.nsecsElapsed()) / 1e6);
  };
  for (auto _ : state) {
    time.change([](TimeAxis& a) { a.show_all(); });
    for (int level = 0; level < 24; ++level) {
      repaint([](TimeAxis& a) { a.zoom(1.6, 700); });
      for (int i = 0; i < 6; ++i) repaint([](TimeAxis& a) { a.pan(37); });
    }
  }
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double share) {
    return ms[static_cast<std::size_t>(share * static_cast<double>(ms.size() - 1))];
  };
  state.counters["median_ms"] = at(0.5);
  state.counters["p95_ms"] = at(0.95);
  state.counters["worst_ms"] = ms.back();
  state.counters["rows"] = static_cast<double>(view.rows().visible().size());
  state.counters["peak_GiB"] = resident_gib();
}
BENCHMARK(Repaint)
    ->Args({10'000'000, 0})
    ->Args({10'000'000, 1})
    ->Args({100'000'000, 0})
    ->Args({100'000'000, 1})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(2);

// What people do with a large timeline, one after the other: the most work in one event, each.
void Stalls(benchmark::State& state) {
  const QString path = QString::fromStdString(file_of(state.range(0)).string());
  for (auto _ : state) {
    Window window;
    window.resize(1920, 1080);
    window.show();
    QApplication::processEvents();
    double worst = 0;
    const auto step = [&](const char* name, auto&& act) {
      application().longest_ms = 0;
      QMetaObject::invokeMethod(&window, act, Qt::QueuedConnection);
      wait_until_idle(window);
      state.counters[std::string(name) + "_ms"] = application().longest_ms;
      if (application().longest_ms > worst) {
        worst = application().longest_ms;
        state.SetLabel(std::string(name) + ": " + application().longest);
      }
    };
    TimelinePage& page = window.timeline();
    step("open", [&] { window.session().open(path); });
    step("open_rows", [&] { page.view(0).set_all_open(true); });
    step("find", [&] { page.find("layer3/op7"); });
    step("next", [&] { page.find_next(1); });
    step("part", [&] {
      Q_EMIT page.view(0).part_selected(
          {page.view(0).processes_between(0, 1000), Time{0}, window.session().run(0)->lanes.end()});
    });
    step("path", [&] { page.show_critical_path(true); });
    step("beside", [&] { window.session().open_beside(path); });
    step("memory", [&] { window.show_page("memory"); });
    step("another", [&] { window.session().open(path); });
  }
}
BENCHMARK(Stalls)->Arg(10'000'000)->Unit(benchmark::kSecond)->Iterations(1)->UseRealTime();

}  // namespace
}  // namespace orrery::gui

int main(int argc, char** argv) {
  qputenv("QT_QPA_PLATFORM", "offscreen");
  const orrery::gui::Watched app(argc, argv);
  QApplication::setOrganizationName("orrery-bench");
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
