// SPDX-License-Identifier: Apache-2.0
//
// Who communicated with whom, found from times: ops of other processes that end when an op ends took part in
// the same collective or transfer. Where the timeline says the axes of its ranks, only ranks that differ on
// the stream's axis alone ("pp-send": pp; "dp": also cp, as ranks that share sequences have the same weights)
// meet; folded processes stand for many ranks, so times alone decide.
#pragma once

#include <optional>
#include <vector>

#include "sim/analysis/lanes.h"

namespace orrery::sim {

class Meetings {
 public:
  explicit Meetings(const Lanes& lanes);

  // Slices of other processes that ended with `slice`, at most `most`; none for one that computes.
  std::vector<std::size_t> partners(std::size_t slice, std::size_t most) const;
  // Of the partners that `slice` waited for, the one that came last; none if it waited for nobody.
  std::optional<std::size_t> last_to_come(std::size_t slice) const;

 private:
  template <class Visit>
  void visit(std::size_t slice, Visit&& partner) const;
  bool meets(const Slice& s) const;
  bool can_meet(const Slice& a, const Slice& b) const;

  const Lanes& lanes_;
  std::vector<Axis> axes_;            // of the ranks, where each is a process
  std::vector<bool> meets_;           // by stream: copies and the host's work are a process's own
  std::vector<bool> meets_by_class_;  // by name; none where the timeline does not say
  // By stream: those of axes_ that its groups lie along; none where no axis has its name.
  std::vector<std::vector<std::size_t>> axes_of_;
  struct End {
    Time at;
    std::uint32_t slice;
  };
  std::vector<End> by_end_;  // of slices that communicate
  Time tolerance_;           // of ends
};

}  // namespace orrery::sim
