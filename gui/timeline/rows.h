// SPDX-License-Identifier: Apache-2.0
//
// The rows of a timeline as a tree that opens on demand: groups (stages, nodes), processes, ranks, lanes.
//
// A process of a folded timeline stands for ranks that did the same at the same time. It opens into its
// lanes and a row of its ranks; that row opens into the ranks one by one, whose lanes are those of the
// process. What is closed costs nothing: a step of 16,384 ranks opens with a row a stage.
#pragma once

#include <QString>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "sim/analysis/lanes.h"

namespace orrery::gui {

enum class Grouping { kStage, kNode, kRank, kStream };

struct Row {
  enum class Kind { kGroup, kProcess, kMembers, kRank, kLane };
  Kind kind = Kind::kLane;
  QString label;
  int depth = 0;
  bool open = false;
  std::int32_t process = -1;  // of the timeline; -1: a group's
  std::int64_t rank = -1;     // where the row is of one rank
  std::size_t lane = 0;       // of Lanes::all(), where it is a lane's
  int group = -1;             // of a stage or a node
  // What a row that is not a lane's sums up: lanes of compute, each with the ranks it stands for.
  struct Part {
    std::size_t lane;
    std::int64_t ranks;
  };
  std::vector<Part> parts;
  // Of many parts, once it is known: bins_of().
  std::vector<float> bins;
  std::vector<std::unique_ptr<Row>> children;  // once it was opened
  bool has_children() const { return kind != Kind::kLane; }
};

// Rows with more parts than this are drawn from bins when seen from afar.
inline constexpr std::size_t kManyParts = 12;

// The share of ranks that compute, over the length of the timeline in equal bins. Takes some milliseconds
// a part. `go_on` is called for each part, and may throw.
std::vector<float> bins_of(const sim::Lanes& lanes, std::span<const Row::Part> parts,
                           const std::function<void()>& go_on);
// The mean of the bins between two places from 0 to 1, of one bin at least.
float mean_bin(std::span<const float> bins, double from, double to);

class Rows {
 public:
  Rows(const sim::Lanes& lanes, Grouping grouping);

  // At the top.
  const std::vector<std::unique_ptr<Row>>& roots() const { return roots_; }
  // Those on screen from top to bottom, when all that is open is drawn.
  const std::vector<Row*>& visible() const { return visible_; }
  void set_open(Row& row, bool open);
  // Opens what leads to a process, and its lanes; where `rank` is not -1, down to that rank. Returns the
  // index in visible() of the lane of `stream` or, without one, of the row; -1 where there is none.
  int reveal(std::int32_t process, std::int64_t rank, std::int32_t stream);
  // What computes, of all processes; none where streams do not tell what their ops are.
  std::vector<Row::Part> computing() const;
  // The groupings that make sense for this timeline.
  static std::vector<Grouping> groupings(const TimelineHead& timeline);

  // "rank 17 (tp 1, dp 2, pp 0)"; numbers of axes only where they are known.
  static QString rank_label(const TimelineHead& timeline, std::int64_t rank);
  static QString process_label(const TimelineHead& timeline, std::int32_t process);

 private:
  void build(Grouping grouping);
  void add_children(Row& row);
  void add_lanes(Row& row);
  void flatten();
  std::unique_ptr<Row> process_row(std::int32_t process) const;
  std::unique_ptr<Row> rank_row(std::int64_t rank) const;
  std::int32_t process_of(std::int64_t rank) const;

  std::vector<Row::Part> parts_of(std::int32_t process, std::int64_t ranks) const;
  std::int64_t ranks_of(std::int32_t process) const;

  const sim::Lanes& lanes_;
  std::vector<std::int32_t> processes_;                        // that have lanes
  std::map<std::int32_t, std::vector<std::int64_t>> members_;  // by process: its ranks
  std::vector<std::unique_ptr<Row>> roots_;
  std::vector<std::vector<std::int64_t>> group_ranks_;      // by group: ranks of a node
  std::vector<std::vector<std::int32_t>> group_processes_;  // by group: processes of a stage
  std::vector<Row*> visible_;
};

}  // namespace orrery::gui
