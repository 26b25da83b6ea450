// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/meetings.h"

#include <algorithm>
#include <cstdlib>

namespace orrery::sim {

// Measured members of a collective do not end at the very same time, nor far apart.
constexpr Time kLeastMeasured{50'000'000}, kMostMeasured{200'000'000};

Meetings::Meetings(const Lanes& lanes)
    : slices_(lanes.timeline().slices), tolerance_((lanes.end() - lanes.begin()) / 100'000) {
  const Timeline& t = lanes.timeline();
  if (kind_of(t) == "measured") tolerance_ = std::clamp(tolerance_, kLeastMeasured, kMostMeasured);
  if (t.process_of.empty()) axes_ = t.axes;
  for (const std::string& stream : t.streams) {
    meets_.push_back(!is_of_host(stream));
    const std::string own = stream.substr(0, stream.find('-'));
    std::vector<std::size_t>& along = axes_of_.emplace_back();
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      if (axes_[i].name == own || (own == "dp" && axes_[i].name == "cp")) along.push_back(i);
    }
  }
  for (const OpClass w : t.classes) meets_by_class_.push_back(communicates(w));
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    if (meets(slices_[i])) by_end_.push_back(static_cast<std::uint32_t>(i));
  }
  std::sort(by_end_.begin(), by_end_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(slices_[a].end, a) < std::pair(slices_[b].end, b);
  });
}

// By what the timeline says of the op, or by its stream: other software exchanges on streams of kernels too.
bool Meetings::meets(const Slice& s) const {
  if (!meets_by_class_.empty()) return meets_by_class_[static_cast<std::size_t>(s.name)];
  return s.stream != 0 && meets_[static_cast<std::size_t>(s.stream)];
}

bool Meetings::can_meet(const Slice& a, const Slice& b) const {
  const std::vector<std::size_t>& along = axes_of_[static_cast<std::size_t>(a.stream)];
  if (a.rank == b.rank || along != axes_of_[static_cast<std::size_t>(b.stream)]) return false;
  if (along.empty()) return true;
  std::int64_t x = a.rank, y = b.rank;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const bool differs = std::find(along.begin(), along.end(), i) != along.end();
    if (!differs && x % axes_[i].size != y % axes_[i].size) return false;
    x /= axes_[i].size;
    y /= axes_[i].size;
  }
  return true;
}

template <class Visit>
void Meetings::visit(std::size_t slice, Visit&& partner) const {
  const Slice& s = slices_[slice];
  if (!meets(s)) return;
  const Time from = s.end - tolerance_, to = s.end + tolerance_;
  auto i = std::partition_point(by_end_.begin(), by_end_.end(),
                                [&](std::uint32_t o) { return slices_[o].end < from; });
  for (; i != by_end_.end() && slices_[*i].end <= to; ++i) {
    const Slice& o = slices_[*i];
    if (o.micro_batch == s.micro_batch && can_meet(s, o) && o.start <= s.active + tolerance_ &&
        s.start <= o.active + tolerance_ && !partner(std::size_t{*i}))
      return;
  }
}

std::vector<std::size_t> Meetings::partners(std::size_t slice, std::size_t most) const {
  std::vector<std::size_t> out;
  visit(slice, [&](std::size_t o) {
    out.push_back(o);
    return out.size() < most;
  });
  return out;
}

std::optional<std::size_t> Meetings::last_to_come(std::size_t slice) const {
  const Slice& s = slices_[slice];
  if (s.active == s.start) return std::nullopt;
  const auto distance = [&](std::size_t o) { return std::abs((slices_[o].start - s.active).value); };
  std::optional<std::size_t> best;
  visit(slice, [&](std::size_t o) {
    if (slices_[o].start > s.start && (!best || distance(o) < distance(*best))) best = o;
    return true;
  });
  return best;
}

}  // namespace orrery::sim
