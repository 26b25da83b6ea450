// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/meetings.h"

#include <algorithm>
#include <cstdlib>

namespace orrery::sim {

// Measured members of a collective do not end at the very same time, nor far apart.
constexpr Time kLeastMeasured{50'000'000}, kMostMeasured{200'000'000};

Meetings::Meetings(const Lanes& lanes) : lanes_(lanes), tolerance_((lanes.end() - lanes.begin()) / 100'000) {
  const TimelineHead& t = lanes.timeline();
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
  lanes.for_each_slice([&](const Slice& s, std::size_t i) {
    if (meets(s)) by_end_.push_back({s.end, static_cast<std::uint32_t>(i)});
  });
  std::sort(by_end_.begin(), by_end_.end(),
            [](const End& a, const End& b) { return std::pair(a.at, a.slice) < std::pair(b.at, b.slice); });
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
  const Slice s = lanes_.slice(slice);
  if (!meets(s)) return;
  const Time from = s.end - tolerance_, to = s.end + tolerance_;
  auto i = std::partition_point(by_end_.begin(), by_end_.end(), [&](const End& o) { return o.at < from; });
  for (; i != by_end_.end() && i->at <= to; ++i) {
    const Slice o = lanes_.slice(i->slice);
    if (o.micro_batch == s.micro_batch && can_meet(s, o) && o.start <= s.active + tolerance_ &&
        s.start <= o.active + tolerance_ && !partner(std::size_t{i->slice}, o))
      return;
  }
}

std::vector<std::size_t> Meetings::partners(std::size_t slice, std::size_t most) const {
  std::vector<std::size_t> out;
  visit(slice, [&](std::size_t o, const Slice&) {
    out.push_back(o);
    return out.size() < most;
  });
  return out;
}

std::optional<std::size_t> Meetings::last_to_come(std::size_t slice) const {
  const Slice s = lanes_.slice(slice);
  if (s.active == s.start) return std::nullopt;
  std::optional<std::size_t> best;
  std::int64_t nearest = 0;
  visit(slice, [&](std::size_t o, const Slice& other) {
    const std::int64_t distance = std::abs((other.start - s.active).value);
    if (other.start > s.start && (!best || distance < nearest)) {
      best = o;
      nearest = distance;
    }
    return true;
  });
  return best;
}

}  // namespace orrery::sim
