// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/tracks.h"

#include <QFontMetrics>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

namespace orrery::gui {
namespace {

constexpr int kSliceMargin = 2;    // above and below a slice in its row
constexpr int kLeastForName = 52;  // columns
constexpr double kWaiting = 0.38;  // of a colour's strength, while a collective waits for partners
constexpr double kFaded = 0.18;    // of what a search or the critical path leaves out

QRgb mix(QRgb a, QRgb b, double share) {
  const int part = static_cast<int>(share * 256 + 0.5);
  const auto of = [&](int x, int y) { return (x * part + y * (256 - part) + 128) >> 8; };
  return qRgb(of(qRed(a), qRed(b)), of(qGreen(a), qGreen(b)), of(qBlue(a), qBlue(b)));
}

// Calls f(0) to f(n - 1) on as many threads as there are cores, four at most.
template <class F>
void in_parallel(std::size_t n, const F& f) {
  constexpr std::size_t kWorthAThread = 6;
  const std::size_t threads =
      std::min({n / kWorthAThread + 1, std::size_t{std::max(1U, std::thread::hardware_concurrency())},
                std::size_t{4}});
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < n; i = next++) f(i);
  };
  std::vector<std::jthread> others;
  for (std::size_t t = 1; t < threads; ++t) others.emplace_back(work);
  work();
}

}  // namespace

Tracks::Tracks(const sim::Lanes& lanes, const Theme& theme, Colouring colouring)
    : lanes_(lanes), theme_(theme), colours_(theme, lanes.timeline(), colouring) {}

QRgb Tracks::faded(QRgb colour, double share) const {
  return mix(colour, theme_.row.rgb(), share);
}

std::optional<std::int64_t> Tracks::moved(const TimeAxis& axis) const {
  constexpr double kExact = 0.01;  // of a column
  const TimeAxis& from = found_.axis;
  if (axis.span() != from.span() || axis.width() != from.width()) return std::nullopt;
  const double by = from.x_of(axis.from());
  const double whole = std::nearbyint(by);
  if (std::abs(by - whole) > kExact || std::abs(whole) > 1e9) return std::nullopt;
  return static_cast<std::int64_t>(whole);
}

std::vector<Column> Tracks::columns_of(std::size_t lane, const Scale& scale,
                                       const std::vector<Column>* before, std::int64_t by) const {
  const std::int64_t width = scale.axis.width();
  std::vector<Column> out(static_cast<std::size_t>(width));
  // Columns [first, last) come into view.
  std::int64_t first = 0, last = width;
  if (before != nullptr && std::abs(by) < width) {
    first = by > 0 ? width - by : 0;
    last = by > 0 ? width : -by;
    std::copy(before->begin() + std::max<std::int64_t>(0, by), before->end() + std::min<std::int64_t>(0, by),
              out.begin() + std::max<std::int64_t>(0, -by));
  }
  const auto count = static_cast<std::size_t>(last - first), at = static_cast<std::size_t>(first);
  if (count > 0) {
    find_columns(lanes_, lanes_.all()[lane], std::span(scale.edges).subspan(at, count + 1),
                 std::span(out).subspan(at, count));
  }
  return out;
}

Tracks::Line Tracks::lane_line(const Row& row, const Scale& scale, const Emphasis& emphasis,
                               std::vector<Column> columns) const {
  const sim::LaneSlices slices = lanes_.slices(lanes_.all()[row.lane]);
  const auto width = static_cast<std::size_t>(scale.axis.width());
  Line line{std::vector<QRgb>(width), std::move(columns)};
  std::int32_t known = -1;
  QRgb colour = 0;
  for (std::size_t x = 0; x < width; ++x) {
    const Column& c = line.columns[x];
    if (c.slice < 0) continue;
    if (c.slice != known) {
      known = c.slice;
      const Slice s = slices.without_times(static_cast<std::size_t>(known));
      colour = colours_.of(s);
      if (!emphasis.names.empty() && !emphasis.names[static_cast<std::size_t>(s.name)])
        colour = faded(colour, kFaded);
      if (!emphasis.path.empty()) colour = faded(colour, 0.45);
    }
    // Waiting is paler than work, and what is there for a tenth of a column can still be seen.
    const double busy = static_cast<double>(c.busy), waiting = static_cast<double>(c.waiting);
    const double strength = (0.25 + 0.75 * busy) * (busy > 0 ? 1 - (1 - kWaiting) * waiting / busy : 1);
    line.colours[x] = strength > 0.999 ? colour : faded(colour, strength);
  }
  // A line of ground between neighbours that are wide enough.
  for (const ColumnRun& run : find_runs(line.columns, 4)) {
    const auto last = static_cast<std::size_t>(run.first + run.count - 1);
    if (last + 1 < width) line.colours[last] = faded(line.colours[last], 0.55);
  }
  return line;
}

std::vector<float> Tracks::shares(const Row& row, const TimeAxis& axis) const {
  return shares(row, Scale{axis, axis.edges()});
}

std::vector<float> Tracks::shares(const Row& row, const Scale& scale) const {
  const TimeAxis& axis = scale.axis;
  const auto width = static_cast<std::size_t>(axis.width());
  std::vector<float> out(width);
  double ranks = 0;
  for (const Row::Part& part : row.parts) ranks += static_cast<double>(part.ranks);
  if (ranks == 0) return out;
  const double length = static_cast<double>((lanes_.end() - lanes_.begin()).value);
  const double bins = static_cast<double>(row.bins.size());
  if (!row.bins.empty() && static_cast<double>(axis.span().value) * bins > length * axis.width()) {
    // Each column covers a bin or more.
    const auto place = [&](std::size_t column) {
      return static_cast<double>((scale.edges[column] - lanes_.begin()).value) / length;
    };
    for (std::size_t x = 0; x < width; ++x) out[x] = mean_bin(row.bins, place(x), place(x + 1));
    return out;
  }
  if (row.bins.empty() && row.parts.size() > kManyParts) return out;
  if (row.bins.empty()) {
    std::vector<Column> columns(width);
    for (const Row::Part& part : row.parts) {
      find_columns(lanes_, lanes_.all()[part.lane], scale.edges, columns);
      for (std::size_t x = 0; x < width; ++x)
        out[x] += columns[x].busy * static_cast<float>(static_cast<double>(part.ranks) / ranks);
    }
    return out;
  }
  // Close up few slices of many lanes are on screen: each adds to the columns it begins and ends in, and to
  // those between by a running sum.
  std::vector<double> edge(width + 1);
  for (const Row::Part& part : row.parts) {
    const sim::Lane& lane = lanes_.all()[part.lane];
    const auto slices = lanes_.slices(lane);
    const double weight = static_cast<double>(part.ranks) / ranks;
    for (std::size_t i = slices.first_after(axis.from()); i < slices.size() && slices.start(i) < axis.to();
         ++i) {
      const double from = std::max(0.0, axis.x_of(slices.start(i)));
      const double to = std::min(static_cast<double>(width), axis.x_of(slices.end(i)));
      const auto a = static_cast<std::size_t>(from), b = static_cast<std::size_t>(to);
      if (a == b) {
        out[std::min(a, width - 1)] += static_cast<float>(weight * (to - from));
        continue;
      }
      out[a] += static_cast<float>(weight * (static_cast<double>(a + 1) - from));
      if (b < width) out[b] += static_cast<float>(weight * (to - static_cast<double>(b)));
      edge[a + 1] += weight;
      edge[b] -= weight;
    }
  }
  double running = 0;
  for (std::size_t x = 0; x < width; ++x) {
    running += edge[x];
    out[x] += static_cast<float>(running);
  }
  return out;
}

void Tracks::names(QPainter& painter, const Row& row, const Line& line, int top) const {
  const auto slices = lanes_.slices(lanes_.all()[row.lane]);
  const TimelineHead& t = lanes_.timeline();
  const QFontMetrics metrics(painter.font());
  painter.setPen(QColor(0x10, 0x14, 0x18));
  for (const ColumnRun& run : find_runs(line.columns, kLeastForName)) {
    const Slice s = slices.without_times(static_cast<std::size_t>(run.slice));
    const QString text = metrics.elidedText(QString::fromStdString(t.names[static_cast<std::size_t>(s.name)]),
                                            Qt::ElideMiddle, run.count - 8);
    painter.drawText(run.first + 4, top + (kRowHeight + metrics.ascent() - metrics.descent()) / 2, text);
  }
}

void Tracks::path(QPainter& painter, const Row& row, const TimeAxis& axis, const Emphasis& emphasis,
                  int top) const {
  if (emphasis.path.empty()) return;
  const auto& links = emphasis.path[row.lane];
  auto link = std::partition_point(links.begin(), links.end(),
                                   [&](const sim::Link& l) { return l.to <= axis.from(); });
  int first = 0, end = 0;  // columns that are red and not drawn yet
  const auto draw = [&] {
    if (end > first)
      painter.fillRect(first, top + kRowHeight - kSliceMargin - 4, end - first, 4, theme_.path);
  };
  for (; link != links.end() && link->from < axis.to(); ++link) {
    const int from = std::max(end, static_cast<int>(axis.x_of(link->from)));
    const int to = std::min(axis.width(), static_cast<int>(std::ceil(axis.x_of(link->to))));
    if (to <= from) continue;
    if (from > end) {
      draw();
      first = from;
    }
    end = to;
  }
  draw();
}

QImage Tracks::picture(const TimeAxis& axis, std::span<Row* const> rows, const Emphasis& emphasis,
                       const QFont& font) {
  const int width = axis.width();
  QImage out(width, std::max<int>(1, static_cast<int>(rows.size()) * kRowHeight), QImage::Format_RGB32);
  const Scale scale{axis, axis.edges()};
  std::vector<Line> lines(rows.size());
  const std::optional<std::int64_t> by = moved(axis);
  auto* const pixels = reinterpret_cast<QRgb*>(out.bits());
  const auto stride = static_cast<std::size_t>(out.bytesPerLine()) / sizeof(QRgb);
  in_parallel(rows.size(), [&](std::size_t r) {
    const auto line_at = [&](int y) {
      return pixels + (r * kRowHeight + static_cast<std::size_t>(y)) * stride;
    };
    const bool of_lane = rows[r]->kind == Row::Kind::kLane;
    const QRgb ground = (of_lane ? theme_.row : theme_.row_alternate).rgb();
    for (int y = 0; y < kRowHeight; ++y) {
      const bool is_drawn_over = of_lane && y >= kSliceMargin && y < kRowHeight - kSliceMargin;
      if (!is_drawn_over) std::fill_n(line_at(y), width, ground);
    }
    std::fill_n(line_at(kRowHeight - 1), width, theme_.grid.rgb());
    if (of_lane) {
      const auto before = found_.columns.find(rows[r]->lane);
      const bool known = by && before != found_.columns.end();
      lines[r] = lane_line(*rows[r], scale, emphasis,
                           columns_of(rows[r]->lane, scale, known ? &before->second : nullptr,
                                      known ? *by - found_.moved : 0));
      for (QRgb& c : lines[r].colours) c = c == 0 ? ground : c;
      for (int y = kSliceMargin; y < kRowHeight - kSliceMargin; ++y)
        std::memcpy(line_at(y), lines[r].colours.data(), static_cast<std::size_t>(width) * sizeof(QRgb));
      return;
    }
    const std::vector<float> share = shares(*rows[r], scale);
    const QRgb colour = faded(theme_.forward.rgb(), 0.8);
    constexpr int kHigh = kRowHeight - 2 * kSliceMargin;
    for (int y = 0; y < kHigh; ++y) {
      QRgb* const at = line_at(kSliceMargin + y);
      const float least = (static_cast<float>(kHigh - y) - 0.5F) / kHigh;
      for (int x = 0; x < width; ++x) {
        if (share[static_cast<std::size_t>(x)] >= least) at[x] = colour;
      }
    }
  });
  QPainter painter(&out);
  painter.setFont(font);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r]->kind != Row::Kind::kLane) continue;
    const int top = static_cast<int>(r) * kRowHeight;
    names(painter, *rows[r], lines[r], top);
    path(painter, *rows[r], axis, emphasis, top);
  }
  looked_for_ = 0;
  for (const Row* row : rows) {
    if (row->kind != Row::Kind::kLane) continue;
    const bool known = by && found_.columns.contains(row->lane);
    looked_for_ += known ? std::min<std::int64_t>(width, std::abs(*by - found_.moved)) : width;
  }
  if (!by) found_.axis = axis;
  found_.moved = by.value_or(0);
  found_.columns.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r]->kind == Row::Kind::kLane) found_.columns[rows[r]->lane] = std::move(lines[r].columns);
  }
  return out;
}

void Tracks::draw(QPainter& painter, const TimeAxis& axis, std::span<Row* const> rows,
                  const Emphasis& emphasis) const {
  const Scale scale{axis, axis.edges()};
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const int top = static_cast<int>(r) * kRowHeight;
    const Row& row = *rows[r];
    constexpr int kHigh = kRowHeight - 2 * kSliceMargin;
    painter.fillRect(0, top, axis.width(), kRowHeight,
                     row.kind == Row::Kind::kLane ? theme_.row : theme_.row_alternate);
    if (row.kind == Row::Kind::kLane) {
      const Line line = lane_line(row, scale, emphasis, columns_of(row.lane, scale, nullptr, 0));
      for (std::size_t x = 0; x < line.colours.size();) {
        const std::size_t first = x;
        while (x < line.colours.size() && line.colours[x] == line.colours[first]) ++x;
        if (line.colours[first] != 0)
          painter.fillRect(static_cast<int>(first), top + kSliceMargin, static_cast<int>(x - first), kHigh,
                           QColor::fromRgb(line.colours[first]));
      }
      names(painter, row, line, top);
      path(painter, row, axis, emphasis, top);
      continue;
    }
    const std::vector<float> share = shares(row, scale);
    QPolygonF area;
    const double bottom = top + kRowHeight - kSliceMargin;
    area << QPointF(0, bottom);
    for (std::size_t x = 0; x < share.size(); ++x)
      area << QPointF(static_cast<double>(x), bottom - static_cast<double>(share[x]) * kHigh);
    area << QPointF(axis.width(), bottom);
    painter.setPen(Qt::NoPen);
    painter.setBrush(QColor::fromRgb(faded(theme_.forward.rgb(), 0.8)));
    painter.drawPolygon(area);
  }
}

}  // namespace orrery::gui
