// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/rows.h"

#include <QLocale>
#include <algorithm>
#include <map>

#include "gui/timeline/axis.h"
#include "gui/timeline/columns.h"
#include "sim/analysis/twins.h"

namespace orrery::gui {
namespace {

constexpr std::int32_t kCompute = 0;

QString counted(std::int64_t n, const char* one) {
  return QLocale(QLocale::English).toString(static_cast<qlonglong>(n)) + " " + one + (n == 1 ? "" : "s");
}

}  // namespace

std::vector<float> bins_of(const sim::Lanes& lanes, std::span<const Row::Part> parts,
                           const std::function<void()>& go_on) {
  // More of large timelines, whose columns of a bin's width have too many slices to be drawn one by one.
  constexpr std::size_t kMany = 20'000'000;
  const int bins = lanes.size() > kMany ? 1 << 17 : 1 << 14;
  TimeAxis axis;
  axis.set_limits(lanes.begin(), lanes.end());
  axis.set_width(bins);
  const std::vector<Time> edges = axis.edges();
  std::vector<Column> columns(static_cast<std::size_t>(bins));
  std::vector<float> out(columns.size());
  double ranks = 0;
  for (const Row::Part& part : parts) {
    go_on();
    find_columns(lanes, lanes.all()[part.lane], edges, columns);
    for (std::size_t i = 0; i < columns.size(); ++i)
      out[i] += columns[i].busy * static_cast<float>(part.ranks);
    ranks += static_cast<double>(part.ranks);
  }
  for (float& b : out) b /= static_cast<float>(ranks);
  return out;
}

float mean_bin(std::span<const float> bins, double from, double to) {
  const auto n = static_cast<double>(bins.size());
  const auto first = static_cast<std::size_t>(std::clamp(from * n, 0.0, n - 1));
  const auto last = std::max(first + 1, static_cast<std::size_t>(std::clamp(to * n, 0.0, n)));
  float sum = 0;
  for (std::size_t i = first; i < last; ++i) sum += bins[i];
  return sum / static_cast<float>(last - first);
}

Rows::Rows(const sim::Lanes& lanes, Grouping grouping) : lanes_(lanes) {
  const TimelineHead& t = lanes.timeline();
  for (const sim::Lane& l : lanes.all()) {
    if (processes_.empty() || processes_.back() != l.rank) processes_.push_back(l.rank);
  }
  const std::size_t count = processes_.empty() ? 0 : static_cast<std::size_t>(processes_.back()) + 1;
  if (t.process_of.empty()) {
    for (const std::int32_t p : processes_) members_[p] = {p};
  } else {
    for (std::size_t r = 0; r < t.process_of.size(); ++r) {
      if (static_cast<std::size_t>(t.process_of[r]) < count)
        members_[t.process_of[r]].push_back(static_cast<std::int64_t>(r));
    }
  }
  build(grouping);
  // What fits on a screen need not be opened by hand.
  constexpr std::size_t kFewLanes = 40;
  if (lanes.all().size() <= kFewLanes && roots_.size() <= kFewLanes) {
    for (auto& root : roots_) {
      add_children(*root);
      root->open = true;
    }
  }
  flatten();
}

std::vector<Grouping> Rows::groupings(const TimelineHead& t) {
  std::vector<Grouping> out;
  if (sim::coordinate(t, 0, "pp") >= 0) out.push_back(Grouping::kStage);
  if (t.node_ranks > 0) out.push_back(Grouping::kNode);
  out.push_back(Grouping::kRank);
  out.push_back(Grouping::kStream);
  return out;
}

QString Rows::rank_label(const TimelineHead& t, std::int64_t rank) {
  const auto r = static_cast<std::size_t>(rank);
  if (t.axes.empty() && t.process_of.empty() && r < t.rank_labels.size() && !t.rank_labels[r].empty())
    return QString::fromStdString(t.rank_labels[r]);  // a process is one rank
  QString label = QString("rank %1").arg(rank);
  if (t.axes.empty()) return label;
  QStringList parts;
  for (const Axis& a : t.axes)
    parts << QString("%1 %2").arg(QString::fromStdString(a.name)).arg(sim::coordinate(t, rank, a.name));
  return label + " (" + parts.join(", ") + ")";
}

QString Rows::process_label(const TimelineHead& t, std::int32_t process) {
  const auto p = static_cast<std::size_t>(process);
  if (p < t.rank_labels.size() && !t.rank_labels[p].empty()) return QString::fromStdString(t.rank_labels[p]);
  return rank_label(t, process);
}

void Rows::build(Grouping grouping) {
  const TimelineHead& t = lanes_.timeline();
  if (grouping == Grouping::kStage) {
    std::map<std::int64_t, std::vector<std::int32_t>> stages;
    for (const std::int32_t p : processes_) {
      const auto found = members_.find(p);
      const std::int64_t rank = found == members_.end() ? p : found->second.front();
      stages[sim::coordinate(t, rank, "pp")].push_back(p);
    }
    for (auto& [stage, processes] : stages) {
      if (processes.size() == 1) {
        roots_.push_back(process_row(processes.front()));
        continue;
      }
      auto row = std::make_unique<Row>();
      row->kind = Row::Kind::kGroup;
      std::int64_t ranks = 0;
      for (const std::int32_t p : processes) {
        const std::int64_t n = ranks_of(p);
        ranks += n;
        for (const Row::Part& part : parts_of(p, n)) row->parts.push_back(part);
      }
      row->label = QString("stage %1 · %2").arg(stage).arg(counted(ranks, "rank"));
      row->group = static_cast<int>(group_processes_.size());
      group_processes_.push_back(std::move(processes));
      roots_.push_back(std::move(row));
    }
  } else if (grouping == Grouping::kNode || grouping == Grouping::kRank) {
    std::vector<std::int64_t> ranks;
    for (const auto& [p, of] : members_) ranks.insert(ranks.end(), of.begin(), of.end());
    std::sort(ranks.begin(), ranks.end());
    if (grouping == Grouping::kRank || t.node_ranks <= 0) {
      for (const std::int64_t r : ranks) roots_.push_back(rank_row(r));
      return;
    }
    std::map<std::int64_t, std::vector<std::int64_t>> nodes;
    for (const std::int64_t r : ranks) nodes[r / t.node_ranks].push_back(r);
    for (auto& [node, of] : nodes) {
      auto row = std::make_unique<Row>();
      row->kind = Row::Kind::kGroup;
      row->label = QString("node %1 · %2").arg(node).arg(counted(std::ssize(of), "rank"));
      std::map<std::int32_t, std::int64_t> count;
      for (const std::int64_t r : of) ++count[process_of(r)];
      for (const auto& [p, n] : count) {
        for (const Row::Part& part : parts_of(p, n)) row->parts.push_back(part);
      }
      row->group = static_cast<int>(group_ranks_.size());
      group_ranks_.push_back(std::move(of));
      roots_.push_back(std::move(row));
    }
  } else {
    for (std::size_t s = 0; s < t.streams.size(); ++s) {
      auto row = std::make_unique<Row>();
      row->kind = Row::Kind::kGroup;
      row->label = QString::fromStdString(t.streams[s]);
      for (std::size_t l = 0; l < lanes_.all().size(); ++l) {
        if (lanes_.all()[l].stream == static_cast<std::int32_t>(s))
          row->parts.push_back({l, ranks_of(lanes_.all()[l].rank)});
      }
      if (row->parts.empty()) continue;
      roots_.push_back(std::move(row));
    }
  }
}

std::int64_t Rows::ranks_of(std::int32_t process) const {
  const auto found = members_.find(process);
  return found == members_.end() ? 1 : std::ssize(found->second);
}

std::int32_t Rows::process_of(std::int64_t rank) const {
  const auto& of = lanes_.timeline().process_of;
  return of.empty() ? static_cast<std::int32_t>(rank) : of[static_cast<std::size_t>(rank)];
}

std::vector<Row::Part> Rows::computing() const {
  std::vector<Row::Part> out;
  if (sim::told_by_class(lanes_.timeline())) return out;
  for (const std::int32_t p : processes_) {
    for (const Row::Part& part : parts_of(p, ranks_of(p))) out.push_back(part);
  }
  return out;
}

std::vector<Row::Part> Rows::parts_of(std::int32_t process, std::int64_t ranks) const {
  std::vector<Row::Part> out;
  for (const sim::Lane& l : lanes_.of(process)) {
    if (l.stream == kCompute) out.push_back({static_cast<std::size_t>(&l - lanes_.all().data()), ranks});
  }
  return out;
}

std::unique_ptr<Row> Rows::process_row(std::int32_t process) const {
  auto row = std::make_unique<Row>();
  row->kind = Row::Kind::kProcess;
  row->process = process;
  const std::int64_t ranks = ranks_of(process);
  row->label = process_label(lanes_.timeline(), process);
  if (ranks > 1) row->label += " · " + counted(ranks, "rank");
  if (lanes_.timeline().process_of.empty()) row->rank = process;
  row->parts = parts_of(process, ranks);
  return row;
}

std::unique_ptr<Row> Rows::rank_row(std::int64_t rank) const {
  auto row = std::make_unique<Row>();
  row->kind = Row::Kind::kRank;
  row->process = process_of(rank);
  row->rank = rank;
  row->label = rank_label(lanes_.timeline(), rank);
  row->parts = parts_of(row->process, 1);
  return row;
}

void Rows::add_lanes(Row& row) {
  for (const sim::Lane& l : lanes_.of(row.process)) {
    auto lane = std::make_unique<Row>();
    lane->label = QString::fromStdString(lanes_.timeline().streams[static_cast<std::size_t>(l.stream)]);
    if (l.depth > 0) lane->label += QString(" (%1)").arg(l.depth + 1);
    lane->process = row.process;
    lane->rank = row.rank;
    lane->lane = static_cast<std::size_t>(&l - lanes_.all().data());
    row.children.push_back(std::move(lane));
  }
}

void Rows::add_children(Row& row) {
  switch (row.kind) {
    case Row::Kind::kLane:
      return;
    case Row::Kind::kRank:
      add_lanes(row);
      break;
    case Row::Kind::kProcess:
      add_lanes(row);
      if (ranks_of(row.process) > 1) {
        auto members = std::make_unique<Row>();
        members->kind = Row::Kind::kMembers;
        members->process = row.process;
        members->label = "its " + counted(ranks_of(row.process), "rank");
        members->parts = row.parts;
        row.children.push_back(std::move(members));
      }
      break;
    case Row::Kind::kMembers:
      for (const std::int64_t r : members_.at(row.process)) row.children.push_back(rank_row(r));
      break;
    case Row::Kind::kGroup:
      if (row.group < 0) {
        for (const Row::Part& part : row.parts) {
          auto lane = std::make_unique<Row>();
          lane->process = lanes_.all()[part.lane].rank;
          lane->label = process_label(lanes_.timeline(), lane->process);
          lane->lane = part.lane;
          row.children.push_back(std::move(lane));
        }
      } else if (!group_ranks_.empty()) {
        for (const std::int64_t r : group_ranks_[static_cast<std::size_t>(row.group)])
          row.children.push_back(rank_row(r));
      } else {
        for (const std::int32_t p : group_processes_[static_cast<std::size_t>(row.group)])
          row.children.push_back(process_row(p));
      }
  }
  for (auto& child : row.children) child->depth = row.depth + 1;
}

void Rows::set_open(Row& row, bool open) {
  if (!row.has_children() || row.open == open) return;
  row.open = open;
  if (open && row.children.empty()) add_children(row);
  flatten();
}

void Rows::flatten() {
  visible_.clear();
  const auto add = [&](auto& self, Row& row) -> void {
    visible_.push_back(&row);
    if (!row.open) return;
    for (auto& child : row.children) self(self, *child);
  };
  for (auto& root : roots_) add(add, *root);
}

int Rows::reveal(std::int32_t process, std::int64_t rank, std::int32_t stream) {
  const auto leads = [&](const Row& row) {
    switch (row.kind) {
      case Row::Kind::kGroup:
        return std::any_of(row.parts.begin(), row.parts.end(), [&](const Row::Part& part) {
          return lanes_.all()[part.lane].rank == process &&
                 (row.group >= 0 || stream < 0 || lanes_.all()[part.lane].stream == stream);
        });
      case Row::Kind::kMembers:
        return row.process == process && rank >= 0;
      default:
        return row.process == process && (row.rank < 0 || rank < 0 || row.rank == rank);
    }
  };
  const auto is_it = [&](const Row& row) {
    if (row.kind == Row::Kind::kLane)
      return lanes_.all()[row.lane].stream == stream && (rank < 0 || row.rank < 0 || row.rank == rank);
    return stream < 0 && row.process == process &&
           (rank < 0 ? row.kind != Row::Kind::kMembers : row.rank == rank);
  };
  // Only rows on the way down are opened.
  const auto find = [&](auto& self, Row& row) -> Row* {
    if (!leads(row)) return nullptr;
    if (is_it(row)) return &row;
    if (!row.has_children()) return nullptr;
    if (row.children.empty()) add_children(row);
    // Where a rank is asked for, its own lanes are looked at before those of the process.
    for (auto child = row.children.rbegin(); child != row.children.rend(); ++child) {
      if (Row* found = self(self, **child)) {
        row.open = true;
        return found;
      }
    }
    return nullptr;
  };
  for (auto& root : roots_) {
    if (Row* found = find(find, *root)) {
      flatten();
      return static_cast<int>(std::find(visible_.begin(), visible_.end(), found) - visible_.begin());
    }
  }
  return -1;
}

}  // namespace orrery::gui
