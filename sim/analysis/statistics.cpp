// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/statistics.h"

#include <algorithm>
#include <map>

namespace orrery::sim {
namespace {

constexpr std::int32_t kComputeStream = 0;

struct Interval {
  Time from, to;
};

struct Intervals {
  std::vector<Interval> compute, communication;
};

// Where what an op does counts, if anywhere.
std::vector<Interval>* place_of(const TimelineHead& t, const Lane& lane, const Slice& s, Intervals& in) {
  if (!told_by_class(t)) return lane.stream == kComputeStream ? &in.compute : &in.communication;
  const OpClass is = t.classes[static_cast<std::size_t>(s.name)];
  if (is == OpClass::kCopy) return nullptr;
  return communicates(is) ? &in.communication : &in.compute;
}

// When one lane worked, inside the part: waiting for partners is no work.
void add_intervals(const Lanes& lanes, const Lane& lane, const Part& part, Intervals& out) {
  const auto slices = lanes.slices(lane);
  for (std::size_t i = slices.first_after(part.from); i < slices.size(); ++i) {
    const Slice s = slices[i];
    if (s.start >= part.to) break;
    std::vector<Interval>* const place = place_of(lanes.timeline(), lane, s, out);
    const Interval in{std::max(s.active, part.from), std::min(s.end, part.to)};
    if (place != nullptr && in.to > in.from) place->push_back(in);
  }
}

// Sorted and disjoint.
std::vector<Interval> united(std::vector<Interval> in) {
  std::sort(in.begin(), in.end(), [](const Interval& a, const Interval& b) { return a.from < b.from; });
  std::vector<Interval> out;
  for (const Interval& i : in) {
    if (!out.empty() && i.from <= out.back().to)
      out.back().to = std::max(out.back().to, i.to);
    else
      out.push_back(i);
  }
  return out;
}

Time length(const std::vector<Interval>& intervals) {
  Time sum{0};
  for (const Interval& i : intervals) sum += i.to - i.from;
  return sum;
}

Time common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  Time sum{0};
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const Time from = std::max(a[i].from, b[k].from), to = std::min(a[i].to, b[k].to);
    if (to > from) sum += to - from;
    ++(a[i].to < b[k].to ? i : k);
  }
  return sum;
}

// The stream whose op ended last by `t`, and when.
struct Last {
  std::int32_t stream = -1;
  Time end{0};
};
Last last_before(const Lanes& lanes, std::int32_t rank, Time t) {
  Last out;
  for (const Lane& lane : lanes.of(rank)) {
    if (lane.stream == kComputeStream) continue;
    const auto slices = lanes.slices(lane);
    const std::size_t i = slices.first_after(t);
    if (i > 0 && slices.end(i - 1) >= out.end) out = {lane.stream, slices.end(i - 1)};
  }
  return out;
}

class Summing {
 public:
  Summing(const Lanes& lanes, const Part& part) : lanes_(lanes), part_(part) {}

  Statistics all() {
    for (const std::int32_t rank : part_.ranks) add_rank(rank);
    const auto longest = [](auto& items, auto&& time) {
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto& a, const auto& b) { return time(a) > time(b); });
    };
    for (const auto& [cause, time] : idle_) out_.idle.push_back({cause, time});
    longest(out_.idle, [](const Idle& i) { return i.time; });
    for (auto& [key, kind] : kinds_) out_.kinds.push_back(kind);
    longest(out_.kinds, [](const KindStatistics& k) { return k.active + k.waiting; });
    return std::move(out_);
  }

 private:
  void add_rank(std::int32_t rank) {
    Intervals in;
    for (const Lane& lane : lanes_.of(rank)) {
      if (!is_of_host(lanes_.timeline().streams[static_cast<std::size_t>(lane.stream)]))
        add_intervals(lanes_, lane, part_, in);
      add_kinds(lane);
    }
    const std::vector<Interval> compute = united(std::move(in.compute));
    const std::vector<Interval> communication = united(std::move(in.communication));
    out_.window += part_.to - part_.from;
    out_.compute += length(compute);
    const Time hidden = common(compute, communication);
    out_.hidden += hidden;
    out_.exposed += length(communication) - hidden;
    Time at = part_.from;
    for (const Interval& i : compute) {
      add_gap(rank, at, i.from, true);
      at = i.to;
    }
    add_gap(rank, at, part_.to, at < part_.to && goes_on(rank));
  }

  bool goes_on(std::int32_t rank) const {
    for (const Lane& lane : lanes_.of(rank)) {
      if (lane.stream == kComputeStream && lanes_.first_after(lane, part_.to) < lane.count) return true;
    }
    return false;
  }

  void add_gap(std::int32_t rank, Time from, Time to, bool followed) {
    if (to <= from) return;
    if (!followed) {
      idle_[kEndOfStep] += to - from;
      return;
    }
    const Last last = last_before(lanes_, rank, followed_at(rank, to));
    const auto stream = static_cast<std::size_t>(last.stream);
    const Time waited = last.stream < 0 ? from : std::clamp(last.end, from, to);
    if (waited > from) idle_[lanes_.timeline().streams[stream]] += waited - from;
    if (to > waited) idle_[kLaunch] += to - waited;
    if (out_.longest_gap && out_.longest_gap->length() >= to - from) return;
    const bool launch = to - waited > waited - from;
    out_.longest_gap = Gap{rank, from, to, launch ? kLaunch : lanes_.timeline().streams[stream]};
  }

  // When compute goes on after a gap that reaches to `to`, which may be the part's end.
  Time followed_at(std::int32_t rank, Time to) const {
    if (to < part_.to) return to;
    Time next = lanes_.end();
    for (const Lane& lane : lanes_.of(rank)) {
      if (lane.stream != kComputeStream) continue;
      const std::size_t i = lanes_.first_after(lane, to);
      if (i < lane.count) next = std::min(next, std::max(to, lanes_.slices(lane)[i].start));
    }
    return next;
  }

  void add_kinds(const Lane& lane) {
    const TimelineHead& t = lanes_.timeline();
    const auto slices = lanes_.slices(lane);
    for (std::size_t i = slices.first_after(part_.from); i < slices.size(); ++i) {
      const Slice s = slices[i];
      if (s.start >= part_.to) break;
      const auto name = static_cast<std::size_t>(s.name);
      const std::string_view kind = without_layer(t.names[name]);
      const auto inside = [&](Time from, Time to) {
        return std::max(Time{0}, std::min(to, part_.to) - std::max(from, part_.from));
      };
      KindStatistics& k = kinds_[{kind, s.stream}];
      if (k.count++ == 0) {
        k.name = kind;
        k.stream = s.stream;
      }
      const Time active = inside(s.active, s.end);
      k.active += active;
      k.waiting += inside(s.start, s.active);
      if (name < t.payloads.size() && s.end > s.active)
        k.payload += mul_div(t.payloads[name], active.value, (s.end - s.active).value);
    }
  }

  const Lanes& lanes_;
  const Part& part_;
  Statistics out_;
  std::map<std::string, Time> idle_;
  std::map<std::pair<std::string_view, std::int32_t>, KindStatistics> kinds_;
};

}  // namespace

std::string_view without_layer(std::string_view name) {
  if (!name.starts_with("layer") && !name.starts_with("unit")) return name;
  const auto slash = name.find('/');
  return slash == std::string_view::npos ? name : name.substr(slash + 1);
}

bool told_by_class(const TimelineHead& t) {
  return t.program_hash == 0 && !t.classes.empty();
}

Part whole(const Lanes& lanes, Time from, Time to) {
  Part out{{}, from, to};
  for (const Lane& lane : lanes.all()) {
    if (out.ranks.empty() || out.ranks.back() != lane.rank) out.ranks.push_back(lane.rank);
  }
  return out;
}

Statistics statistics(const Lanes& lanes, const Part& part) {
  return Summing(lanes, part).all();
}

}  // namespace orrery::sim
