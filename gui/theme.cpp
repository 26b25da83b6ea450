// SPDX-License-Identifier: Apache-2.0
#include "gui/theme.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "sim/analysis/statistics.h"

namespace orrery::gui {
namespace {

Theme make_light() {
  Theme t;
  t.background = QColor(0xff, 0xff, 0xff);
  t.row = QColor(0xfa, 0xfa, 0xfb);
  t.row_alternate = QColor(0xf2, 0xf4, 0xf6);
  t.grid = QColor(0xd5, 0xd9, 0xde);
  t.text = QColor(0x1d, 0x21, 0x26);
  t.faint_text = QColor(0x5f, 0x67, 0x70);
  t.selection = QColor(0x1f, 0x6f, 0xeb);
  t.cursor = QColor(0xc6, 0x28, 0x28);
  t.path = QColor(0xb7, 0x1c, 0x1c);
  t.forward = QColor(0x3d, 0x8b, 0xc9);
  t.backward = QColor(0x74, 0xc0, 0xee);
  t.optimizer = QColor(0x26, 0xa6, 0x7e);
  t.tensor = QColor(0xeb, 0xa8, 0x1f);
  t.data = QColor(0xcf, 0x82, 0xb0);
  t.context = QColor(0x4f, 0xa8, 0xb8);
  t.expert = QColor(0x8e, 0x7c, 0xc3);
  t.pipeline = QColor(0xe0, 0x6c, 0x2a);
  t.other = QColor(0x9a, 0xa3, 0xad);
  return t;
}

Theme make_dark() {
  Theme t = make_light();
  t.dark = true;
  t.background = QColor(0x16, 0x19, 0x1d);
  t.row = QColor(0x1b, 0x1f, 0x24);
  t.row_alternate = QColor(0x20, 0x25, 0x2b);
  t.grid = QColor(0x38, 0x3f, 0x48);
  t.text = QColor(0xe6, 0xe9, 0xed);
  t.faint_text = QColor(0x9a, 0xa4, 0xaf);
  t.selection = QColor(0x58, 0xa6, 0xff);
  t.cursor = QColor(0xff, 0x6b, 0x6b);
  t.path = QColor(0xff, 0x7b, 0x72);
  t.forward = QColor(0x4f, 0x9d, 0xdb);
  t.backward = QColor(0x86, 0xcb, 0xf3);
  t.optimizer = QColor(0x3f, 0xb9, 0x90);
  return t;
}

QColor of_number(std::size_t n, bool dark) {
  constexpr double kGolden = 0.618033988749895;  // hues of neighbouring numbers lie far apart
  const double hue = static_cast<double>(n) * kGolden;
  return QColor::fromHsvF(static_cast<float>(hue - std::floor(hue)), dark ? 0.50F : 0.45F,
                          dark ? 0.86F : 0.90F);
}

bool has_kinds(const TimelineHead& t) {
  return std::any_of(t.segments.begin(), t.segments.end(), [](const std::string& s) {
    return s == "forward" || s == "optimizer" || s.starts_with("backward");
  });
}

QColor of_bound(const Theme& t, Bound bound) {
  switch (bound) {
    case Bound::kCompute:
      return t.forward;
    case Bound::kMemory:
      return t.optimizer;
    case Bound::kCommunication:
      return t.tensor;
    case Bound::kUnknown:
      break;
  }
  return t.other;
}

QColor of_class(const Theme& t, OpClass c) {
  switch (c) {
    case OpClass::kProduct:
      return t.forward;
    case OpClass::kAttention:
      return t.expert;
    case OpClass::kElementwise:
      return t.backward;
    case OpClass::kRouting:
      return t.context;
    case OpClass::kOptimizer:
      return t.optimizer;
    case OpClass::kAllReduce:
    case OpClass::kAllGather:
    case OpClass::kReduceScatter:
    case OpClass::kBroadcast:
      return t.data;
    case OpClass::kAllToAll:
      return t.tensor;
    case OpClass::kSendReceive:
      return t.pipeline;
    case OpClass::kUnknown:
    case OpClass::kSoftware:
    case OpClass::kCopy:
      break;
  }
  return t.other;
}

// Other software's ops have no kinds of ours; what is known of them is their class.
bool shows_classes(const TimelineHead& t, Colouring colouring) {
  return colouring == Colouring::kKind && !has_kinds(t) && !t.classes.empty();
}

}  // namespace

QColor kind_colour(const Theme& t, const std::string& stream, const std::string& segment) {
  if (stream == "tp") return t.tensor;
  if (stream == "dp") return t.data;
  if (stream == "ep") return t.expert;
  if (stream == "cp") return t.context;
  if (stream.starts_with("pp")) return t.pipeline;
  if (segment == "forward") return t.forward;
  if (segment.starts_with("backward")) return t.backward;
  if (segment == "optimizer") return t.optimizer;
  return t.other;
}

const Theme& light_theme() {
  static const Theme theme = make_light();
  return theme;
}
const Theme& dark_theme() {
  static const Theme theme = make_dark();
  return theme;
}

Theme Theme::of(const QPalette& palette) {
  return palette.color(QPalette::Window).lightness() < 128 ? dark_theme() : light_theme();
}

QPalette Theme::palette() const {
  QPalette p;
  const QColor window = dark ? QColor(0x22, 0x27, 0x2e) : QColor(0xf3, 0xf4, 0xf6);
  p.setColor(QPalette::Window, window);
  p.setColor(QPalette::WindowText, text);
  p.setColor(QPalette::Base, background);
  p.setColor(QPalette::AlternateBase, row_alternate);
  p.setColor(QPalette::Text, text);
  p.setColor(QPalette::Button, window);
  p.setColor(QPalette::ButtonText, text);
  p.setColor(QPalette::ToolTipBase, background);
  p.setColor(QPalette::ToolTipText, text);
  p.setColor(QPalette::PlaceholderText, faint_text);
  p.setColor(QPalette::Highlight, selection);
  p.setColor(QPalette::HighlightedText, dark ? QColor(0x10, 0x14, 0x18) : Qt::white);
  p.setColor(QPalette::Link, selection);
  p.setColor(QPalette::Light, dark ? QColor(0x3a, 0x41, 0x4a) : Qt::white);
  p.setColor(QPalette::Mid, grid);
  p.setColor(QPalette::Dark, dark ? QColor(0x10, 0x13, 0x17) : QColor(0xa8, 0xae, 0xb5));
  for (const auto role : {QPalette::WindowText, QPalette::Text, QPalette::ButtonText})
    p.setColor(QPalette::Disabled, role, faint_text);
  return p;
}

QColor Theme::series(std::size_t i) const {
  const std::array colours{forward,  tensor,   optimizer, data,
                           pipeline, backward, other,     QColor(0xf0, 0xd9, 0x45)};
  return i < colours.size() ? colours[i] : of_number(i, dark);
}

SliceColours::SliceColours(const Theme& theme, const TimelineHead& timeline, Colouring colouring)
    : colouring_(colouring == Colouring::kKind && !has_kinds(timeline) ? Colouring::kOp : colouring),
      segments_(timeline.segments.size()) {
  switch (colouring_) {
    case Colouring::kKind:
      for (const std::string& stream : timeline.streams) {
        for (const std::string& segment : timeline.segments)
          table_.push_back(kind_colour(theme, stream, segment).rgb());
      }
      break;
    case Colouring::kMicroBatch:
      for (std::size_t i = 0; i < 1024; ++i) table_.push_back(of_number(i, theme.dark).rgb());
      break;
    case Colouring::kOp:
      for (std::size_t i = 0; i < timeline.names.size(); ++i)
        table_.push_back(
            (shows_classes(timeline, colouring)
                 ? of_class(theme, timeline.classes[i])
                 : of_number(std::hash<std::string_view>{}(sim::without_layer(timeline.names[i])) % 1024,
                             theme.dark))
                .rgb());
      break;
    case Colouring::kBound:
      for (std::size_t i = 0; i < timeline.names.size(); ++i)
        table_.push_back(
            of_bound(theme, i < timeline.bounds.size() ? timeline.bounds[i] : Bound::kUnknown).rgb());
      break;
  }
  if (table_.empty()) table_.push_back(theme.other.rgb());
}

std::vector<Meaning> legend(const Theme& t, const sim::Lanes& lanes, Colouring colouring) {
  const TimelineHead& timeline = lanes.timeline();
  std::vector<Meaning> out;
  if (colouring == Colouring::kKind && has_kinds(timeline)) {
    out = {{t.forward, "forward"},        {t.backward, "backward"},  {t.optimizer, "optimizer"},
           {t.tensor, "tensor parallel"}, {t.data, "data parallel"}, {t.pipeline, "pipeline"}};
    // It is drawn often, and slices are many.
    const auto has = [&](const char* stream) {
      return std::any_of(lanes.all().begin(), lanes.all().end(), [&](const sim::Lane& lane) {
        return timeline.streams[static_cast<std::size_t>(lane.stream)] == stream;
      });
    };
    if (has("cp")) out.push_back({t.context, "context parallel"});
    if (has("ep")) out.push_back({t.expert, "expert parallel"});
    return out;
  }
  if (shows_classes(timeline, colouring)) {
    // Classes of one colour stand together.
    for (const auto& [is, name] : enum_names(OpClass{})) {
      if (std::find(timeline.classes.begin(), timeline.classes.end(), is) == timeline.classes.end()) continue;
      const QColor colour = of_class(t, is);
      const auto same =
          std::find_if(out.begin(), out.end(), [&](const Meaning& m) { return m.colour == colour; });
      if (same == out.end())
        out.push_back({colour, name});
      else
        same->text += QStringLiteral(", ") + QLatin1StringView(name);
    }
    return out;
  }
  if (colouring == Colouring::kBound && !timeline.bounds.empty()) {
    for (const auto& [bound, name] : enum_names(Bound{})) out.push_back({of_bound(t, bound), name});
  }
  return out;
}

}  // namespace orrery::gui
