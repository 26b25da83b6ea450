// SPDX-License-Identifier: Apache-2.0
//
// Time against pixels, and what columns and rows show: without a window.
#include <QTest>
#include <QValueAxis>
#include <random>

#include "core/scenario.h"
#include "gui/charts.h"
#include "gui/timeline/columns.h"
#include "gui/timeline/rows.h"
#include "gui/timeline/ruler.h"
#include "gui/timeline/tracks.h"
#include "gui/topology/layout.h"

namespace orrery::gui {
namespace {

Timeline random_timeline(std::uint64_t seed, int slices) {
  std::mt19937_64 random(seed);
  Timeline t;
  t.names = {"a", "b"};
  t.segments = {"forward"};
  t.streams = {"compute", "tp"};
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    for (std::int32_t stream = 0; stream < 2; ++stream) {
      std::int64_t at = 0;
      for (int i = 0; i < slices; ++i) {
        const auto gap = static_cast<std::int64_t>(random() % 3 * (random() % 2000));
        const auto length = static_cast<std::int64_t>(random() % 4 * (random() % 5000));
        t.slices.push_back({static_cast<std::int32_t>(random() % 2), 0, 0, 0, rank, stream, Time{at + gap},
                            Time{at + gap}, Time{at + gap + length / 3}, Time{at + gap + length}});
        at += gap + length;
      }
    }
  }
  return t;
}

// A step of `pp` stages of `ranks` alike ranks each.
Timeline folded(int pp, int ranks) {
  Timeline t;
  t.names = {"op"};
  t.segments = {"forward"};
  t.streams = {"compute", "tp", "dp"};
  t.axes = {{"tp", ranks}, {"pp", pp}};
  t.node_ranks = 8;
  for (int p = 0; p < pp; ++p) {
    t.rank_labels.push_back("stage " + std::to_string(p));
    t.process_of.insert(t.process_of.end(), static_cast<std::size_t>(ranks), p);
    for (std::int32_t stream = 0; stream < 3; ++stream)
      t.slices.push_back({0, 0, 0, 0, p, stream, Time{0}, Time{0}, Time{0}, Time{1'000'000}});
  }
  return t;
}

}  // namespace

class DrawingTest : public QObject {
  Q_OBJECT

 private Q_SLOTS:
  void time_to_pixel_data();
  void time_to_pixel();
  void zoom_keeps_what_is_under_the_pointer_data();
  void zoom_keeps_what_is_under_the_pointer();
  void axis_stays_inside_its_limits();
  void columns_show_what_a_walk_over_all_slices_gives();
  void ticks_can_be_told_apart_data();
  void ticks_can_be_told_apart();
  void a_folded_step_opens_a_row_a_stage_and_unfolds_on_demand();
  void every_grouping_reveals_every_rank_data();
  void every_grouping_reveals_every_rank();
  void bins_say_what_lanes_say();
  void picture_has_the_colours_of_slices();
  void moved_pictures_are_pictures();
  void blocks_hold_every_vertex_and_edges_every_cable();
  void a_point_far_out_leaves_the_others_room();
};

void DrawingTest::time_to_pixel_data() {
  QTest::addColumn<qint64>("from");
  QTest::addColumn<qint64>("to");
  QTest::addColumn<int>("width");
  QTest::addColumn<qint64>("time");
  QTest::addColumn<double>("x");
  QTest::newRow("begin") << 0LL << 1'000'000LL << 1000 << 0LL << 0.0;
  QTest::newRow("end") << 0LL << 1'000'000LL << 1000 << 1'000'000LL << 1000.0;
  QTest::newRow("half") << 0LL << 1'000'000LL << 1000 << 500'000LL << 500.0;
  QTest::newRow("half a pixel") << 0LL << 1'000'000LL << 1000 << 500LL << 0.5;
  QTest::newRow("before the window") << 400'000LL << 600'000LL << 100 << 300'000LL << -50.0;
  QTest::newRow("zoomed") << 400'000LL << 600'000LL << 100 << 450'000LL << 25.0;
  QTest::newRow("a day in picoseconds")
      << 0LL << 86'400'000'000'000'000LL << 1440 << 60'000'000'000'000LL << 1.0;
  QTest::newRow("more pixels than picoseconds by far") << 0LL << 10'000LL << 20'000 << 1LL << 2.0;
}

void DrawingTest::time_to_pixel() {
  QFETCH(qint64, from);
  QFETCH(qint64, to);
  QFETCH(int, width);
  QFETCH(qint64, time);
  QFETCH(double, x);
  TimeAxis axis;
  axis.set_limits(Time{0}, Time{86'400'000'000'000'000});
  axis.set_width(width);
  axis.show(Time{from}, Time{to});
  QCOMPARE(axis.from().value, from);
  QCOMPARE(axis.to().value, to);
  QCOMPARE(axis.x_of(Time{time}), x);
  const std::vector<Time> edges = axis.edges();
  QCOMPARE(static_cast<int>(edges.size()), width + 1);
  for (int i = 0; i <= width; ++i) QCOMPARE(edges[static_cast<std::size_t>(i)], axis.time_at(i));
  // A column begins where the one before it ends, and the column of a time holds it.
  QCOMPARE(axis.time_at(0), axis.from());
  QCOMPARE(axis.time_at(width), axis.to());
  if (time >= from && time < to) {
    const int column = static_cast<int>(axis.x_of(Time{time}) + 1e-9);
    QVERIFY(axis.time_at(column).value <= time);
    QVERIFY(axis.time_at(column + 1).value > time || axis.time_at(column + 1) == axis.time_at(column));
  }
}

void DrawingTest::zoom_keeps_what_is_under_the_pointer_data() {
  QTest::addColumn<double>("factor");
  QTest::addColumn<double>("x");
  for (const double factor : {0.5, 0.9, 1.25, 2.0, 100.0}) {
    for (const double x : {0.0, 333.0, 999.0}) QTest::addRow("%g at %g", factor, x) << factor << x;
  }
}

void DrawingTest::zoom_keeps_what_is_under_the_pointer() {
  QFETCH(double, factor);
  QFETCH(double, x);
  TimeAxis axis;
  axis.set_limits(Time{0}, Time{1'000'000'000'000});
  axis.set_width(1000);
  axis.show(Time{400'000'000'000}, Time{500'000'000'000});
  const Time under = axis.time_at(static_cast<int>(x));
  axis.zoom(factor, x);
  QVERIFY(std::abs(axis.x_of(under) - x) < 0.01);
  QVERIFY(std::abs(static_cast<double>(axis.span().value) - 1e11 / factor) < 2);
}

void DrawingTest::axis_stays_inside_its_limits() {
  std::mt19937_64 random(7);
  TimeAxis axis;
  axis.set_limits(Time{5000}, Time{900'000'000});
  axis.set_width(777);
  for (int i = 0; i < 20'000; ++i) {
    const double by = static_cast<double>(random() % 4000) - 2000;
    if (random() % 2 == 0)
      axis.pan(by);
    else
      axis.zoom(std::pow(2.0, by / 300), std::abs(by));
    QVERIFY(axis.from() >= axis.begin());
    QVERIFY(axis.to() <= axis.end());
    QVERIFY(axis.span().value >= 10'000);
  }
}

void DrawingTest::columns_show_what_a_walk_over_all_slices_gives() {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const sim::Lanes lanes(random_timeline(seed, 300));
    std::mt19937_64 random(seed);
    for (int view = 0; view < 12; ++view) {
      TimeAxis axis;
      axis.set_limits(lanes.begin(), lanes.end());
      axis.set_width(1 + static_cast<int>(random() % 500));
      axis.zoom(std::pow(2.0, static_cast<double>(random() % 10)), static_cast<double>(random() % 500));
      for (const sim::Lane& lane : lanes.all()) {
        std::vector<Column> columns(static_cast<std::size_t>(axis.width()));
        find_columns(lanes, lane, axis.edges(), columns);
        const auto slices = lanes.slices(lane);
        for (int x = 0; x < axis.width(); ++x) {
          const Time from = axis.time_at(x), to = axis.time_at(x + 1);
          Time busy{0}, waiting{0}, longest{0};
          for (std::size_t at = 0; at < slices.size(); ++at) {
            const Slice s = slices[at];
            const Time inside = std::min(s.end, to) - std::max(s.start, from);
            if (inside <= Time{0}) continue;
            busy += inside;
            waiting += std::max(Time{0}, std::min(s.active, to) - std::max(s.start, from));
            longest = std::max(longest, inside);
          }
          const Column& c = columns[static_cast<std::size_t>(x)];
          const double share = ratio(busy, std::max(Time{1}, to - from));
          if (std::abs(static_cast<double>(c.busy) - share) > 1e-5)
            QFAIL(qPrintable(
                QString("seed %1 column %2: %3 busy, not %4").arg(seed).arg(x).arg(c.busy).arg(share)));
          QVERIFY(std::abs(static_cast<double>(c.waiting) - ratio(waiting, std::max(Time{1}, to - from))) <
                  1e-5);
          if (busy == Time{0}) continue;
          QVERIFY(c.slice >= 0);
          const Slice s = slices[static_cast<std::size_t>(c.slice)];
          const Time inside = std::min(s.end, to) - std::max(s.start, from);
          if (inside != longest)
            QFAIL(qPrintable(QString("seed %1 column %2 shows a shorter slice").arg(seed).arg(x)));
        }
      }
    }
  }
}

void DrawingTest::ticks_can_be_told_apart_data() {
  QTest::addColumn<qint64>("from");
  QTest::addColumn<qint64>("span");
  QTest::newRow("a day") << 0LL << 86'400'000'000'000'000LL;
  QTest::newRow("seconds") << 0LL << 120'000'000'000'000LL;
  QTest::newRow("microseconds late in a step") << 119'000'000'000'000LL << 12'000'000LL;
  QTest::newRow("nanoseconds late in a step") << 119'000'000'000'000LL << 10'000LL;
}

void DrawingTest::ticks_can_be_told_apart() {
  QFETCH(qint64, from);
  QFETCH(qint64, span);
  TimeAxis axis;
  axis.set_limits(Time{0}, Time{from + span});
  axis.set_width(1200);
  axis.show(Time{from}, Time{from + span});
  const Time step = tick_step(axis, 110);
  QVERIFY(axis.x_of(axis.from() + step) >= 109.9);
  QVERIFY(axis.x_of(axis.from() + step) < 300);
  QString before;
  for (std::int64_t t = from / step.value * step.value; t <= from + span; t += step.value) {
    const QString now = tick_text(Time{t}, step);
    QVERIFY(now != before);
    before = now;
  }
}

void DrawingTest::a_folded_step_opens_a_row_a_stage_and_unfolds_on_demand() {
  const sim::Lanes lanes(folded(16, 1024));
  Rows rows(lanes, Grouping::kStage);
  QCOMPARE(rows.visible().size(), 16U);
  Row& stage = *rows.visible()[3];
  QVERIFY(stage.label.contains("1,024 ranks"));
  rows.set_open(stage, true);
  QCOMPARE(rows.visible().size(), 16U + 3 + 1);  // lanes, and the row of its ranks
  Row& members = *rows.visible()[3 + 4];
  QCOMPARE(members.kind, Row::Kind::kMembers);
  rows.set_open(members, true);
  QCOMPARE(rows.visible().size(), 16U + 3 + 1 + 1024);
  Row& rank = *rows.visible()[3 + 5 + 17];
  QCOMPARE(rank.rank, 3 * 1024 + 17);
  QCOMPARE(rank.label, QString("rank 3089 (tp 17, pp 3)"));
  rows.set_open(rank, true);
  const Row& lane = *rows.visible()[3 + 5 + 18];
  QCOMPARE(lanes.all()[lane.lane].rank, 3);  // the lanes of its process
  rows.set_open(stage, false);
  QCOMPARE(rows.visible().size(), 16U);
  // By node: 2,048 rows, which open into ranks.
  Rows nodes(lanes, Grouping::kNode);
  QCOMPARE(nodes.visible().size(), 2048U);
  nodes.set_open(*nodes.visible()[5], true);
  QCOMPARE(nodes.visible()[6]->label, QString("rank 40 (tp 40, pp 0)"));
}

void DrawingTest::every_grouping_reveals_every_rank_data() {
  QTest::addColumn<int>("grouping");
  for (const int g : {0, 1, 2, 3}) QTest::addRow("grouping %d", g) << g;
}

void DrawingTest::every_grouping_reveals_every_rank() {
  QFETCH(int, grouping);
  const sim::Lanes lanes(folded(4, 16));
  for (std::int64_t rank = 0; rank < 64; ++rank) {
    Rows rows(lanes, static_cast<Grouping>(grouping));
    const auto process = static_cast<std::int32_t>(rank / 16);
    const int at = rows.reveal(process, rank, 1);
    QVERIFY(at >= 0);
    const Row& row = *rows.visible()[static_cast<std::size_t>(at)];
    QCOMPARE(row.kind, Row::Kind::kLane);
    QCOMPARE(lanes.all()[row.lane].rank, process);
    QCOMPARE(lanes.all()[row.lane].stream, 1);
    if (static_cast<Grouping>(grouping) != Grouping::kStream) QCOMPARE(row.rank, rank);
  }
  Rows rows(lanes, static_cast<Grouping>(grouping));
  QCOMPARE(rows.reveal(99, -1, 0), -1);
}

void DrawingTest::bins_say_what_lanes_say() {
  Timeline t = random_timeline(3, 2000);
  // Twenty ranks in one group, so that they have bins.
  t.axes = {{"dp", 20}, {"pp", 1}};
  std::vector<Slice> more;
  for (const Slice& s : t.slices) {
    for (std::int32_t k = 0; k < 10; ++k) {
      more.push_back(s);
      more.back().rank = s.rank * 10 + k;
    }
  }
  t.slices = std::move(more);
  const sim::Lanes lanes(std::move(t));
  const Rows rows(lanes, Grouping::kStage);
  Row& group = *rows.visible()[0];
  QCOMPARE(group.kind, Row::Kind::kGroup);
  QVERIFY(group.parts.size() > kManyParts);
  group.bins = bins_of(lanes, group.parts, [] {});
  // Means of whole bins, of one at least, up to the last.
  const std::vector<float> four{1, 2, 3, 6};
  QCOMPARE(mean_bin(four, 0, 1), 3.0F);
  QCOMPARE(mean_bin(four, 0.5, 1), 4.5F);
  QCOMPARE(mean_bin(four, 0.3, 0.35), 2.0F);
  QCOMPARE(mean_bin(four, 1, 1), 6.0F);
  const Tracks tracks(lanes, light_theme(), Colouring::kKind);
  for (const double zoom : {1.0, 5.0, 4000.0}) {
    TimeAxis axis;
    axis.set_limits(lanes.begin(), lanes.end());
    axis.set_width(512);
    axis.zoom(zoom, 100);
    const std::vector<float> shares = tracks.shares(group, axis);
    double mean = 0, expected = 0;
    for (const float s : shares) mean += static_cast<double>(s) / 512;
    for (const Row::Part& part : group.parts)
      expected += ratio(lanes.busy(lanes.all()[part.lane], axis.from(), axis.to()), axis.span()) / 20;
    QVERIFY2(std::abs(mean - expected) < 0.01,
             qPrintable(QString("%1: %2, not %3").arg(zoom).arg(mean).arg(expected)));
  }
}

void DrawingTest::picture_has_the_colours_of_slices() {
  Timeline t;
  t.names = {"op"};
  t.segments = {"forward", "backward"};
  t.streams = {"compute"};
  t.slices = {{0, 0, 0, 0, 0, 0, Time{0}, Time{0}, Time{0}, Time{40'000}},
              {0, 1, 0, 0, 0, 0, Time{60'000}, Time{60'000}, Time{60'000}, Time{100'000}}};
  const sim::Lanes lanes(std::move(t));
  const Rows rows(lanes, Grouping::kRank);
  QCOMPARE(rows.visible().size(), 2U);  // the rank is open: it is the only one
  TimeAxis axis;
  axis.set_limits(lanes.begin(), lanes.end());
  axis.set_width(100);
  for (const Theme* theme : {&light_theme(), &dark_theme()}) {
    const QImage picture = Tracks(lanes, *theme, Colouring::kKind).picture(axis, rows.visible(), {}, QFont());
    const int y = kRowHeight + 4;
    QCOMPARE(picture.pixelColor(90, y), theme->backward);
    QCOMPARE(picture.pixelColor(50, y), theme->row);
    QCOMPARE(picture.pixelColor(35, y), theme->forward);
  }
}

// Pictures of an axis that was moved, with what was found for those before, are those of other tracks;
// columns are of whole nanoseconds. Some moves are by less than a column, by more than the picture, or change
// the span.
void DrawingTest::moved_pictures_are_pictures() {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const sim::Lanes lanes(random_timeline(seed, 300));
    Rows rows(lanes, Grouping::kRank);
    for (int round = 0; round < 2; ++round) {
      const std::vector<Row*> visible = rows.visible();
      for (Row* row : visible) rows.set_open(*row, true);
    }
    Tracks kept(lanes, light_theme(), Colouring::kKind);
    TimeAxis axis;
    axis.set_limits(lanes.begin(), lanes.end());
    axis.set_width(200);
    std::mt19937_64 random(seed);
    std::int64_t looked_for = 0, all = 0;
    std::size_t first = 0;
    for (int i = 0; i < 60; ++i) {
      const std::int64_t column = std::int64_t{1000} << random() % 6;
      if (i % 10 == 0) {
        const Time from{static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(lanes.end().value))};
        axis.show(from, from + Time{200 * column});
      } else if (i % 10 == 7) {
        axis.pan(0.3);
      } else {
        const std::int64_t by = static_cast<std::int64_t>(random() % 500) - 250;
        axis.pan(static_cast<double>(i % 3 == 0 ? by : by / 4));
      }
      if (i % 15 == 0) first = random() % 2;
      const auto some = std::span(rows.visible()).subspan(first);
      const QImage picture = kept.picture(axis, some, {}, QFont());
      Tracks fresh(lanes, light_theme(), Colouring::kKind);
      QCOMPARE(picture, fresh.picture(axis, some, {}, QFont()));
      looked_for += kept.looked_for();
      all += fresh.looked_for();
    }
    QVERIFY(looked_for > 0 && 3 * looked_for < 2 * all);
  }
}

void DrawingTest::blocks_hold_every_vertex_and_edges_every_cable() {
  const DataFolders data;
  Cluster c = load_cluster("dgx-h100", {}, Cursor{"test", ""}, data);
  c.nodes = 256;
  const sim::Topology topology(c);
  const sim::Network& network = topology.network();
  NetworkLayout layout(network);
  std::vector<double> use(network.links());
  use[7] = 0.75;
  for (int round = 0; round < 5; ++round) {
    std::size_t vertices = 0;
    std::int64_t cables = 0;
    double most = 0, sum = 0;
    for (const Block& b : layout.blocks()) {
      vertices += b.count;
      QVERIFY(b.x > 0 && b.x < 1);
    }
    for (const Edge& e : layout.edges(use)) {
      cables += e.cables;
      most = std::max(most, e.most);
      sum += e.mean * static_cast<double>(2 * e.cables);
    }
    QCOMPARE(vertices, network.vertices());
    QCOMPARE(static_cast<std::size_t>(2 * cables), network.links());
    QCOMPARE(most, 0.75);
    QVERIFY(std::abs(sum - 0.75) < 1e-9);
    for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
      if (layout.blocks()[b].count > 1) {
        layout.open(b);
        break;
      }
    }
  }
}

// Ten plans of 1 to 10 s and one of 100: the axis shows the ten, and the one when it is picked.
void DrawingTest::a_point_far_out_leaves_the_others_room() {
  ScatterChart chart("test");
  std::vector<ScatterChart::Point> points;
  for (int i = 1; i <= 10; ++i) points.push_back({static_cast<double>(i), 50, 0, {}});
  points.push_back({100, 50, 0, {}});
  chart.set(points, {"group"}, {Qt::blue}, "time, s", "memory, GiB");
  const auto axis = [&](Qt::Orientation o) {
    return qobject_cast<QValueAxis*>(chart.chart()->axes(o).front());
  };
  QVERIFY(axis(Qt::Horizontal)->max() >= 10 && axis(Qt::Horizontal)->max() < 20);
  QCOMPARE(axis(Qt::Horizontal)->titleText(), QString("time, s (1 further out)"));
  QCOMPARE(axis(Qt::Vertical)->titleText(), QString("memory, GiB"));
  chart.mark({10});
  QVERIFY(axis(Qt::Horizontal)->max() >= 100);
  QCOMPARE(axis(Qt::Horizontal)->titleText(), QString("time, s"));
  chart.mark({0});
  QVERIFY(axis(Qt::Horizontal)->max() < 20);
}

}  // namespace orrery::gui

QTEST_MAIN(orrery::gui::DrawingTest)
#include "drawing_test.moc"
