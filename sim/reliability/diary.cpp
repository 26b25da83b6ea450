// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/diary.h"

#include <fmt/format.h>

#include "core/error.h"
#include "sim/drawn_time.h"

namespace orrery::sim {

const char* words_of(Stop stop) {
  switch (stop) {
    case Stop::kHardware:
      return "a node failed";
    case Stop::kSoftware:
      return "software failed";
    case Stop::kSilent:
      return "spoiled results were noticed";
    case Stop::kPreempt:
      return "a node was taken away";
    case Stop::kPlanned:
      return "planned stop";
    case Stop::kEvict:
      return "a slow node was replaced";
    case Stop::kResize:
      return "replicas came back";
  }
  return "?";
}

const char* words_of(Doing doing) {
  switch (doing) {
    case Doing::kWork:
      return "work";
    case Doing::kSlowWork:
      return "slow work";
    case Doing::kLost:
      return "lost work";
    case Doing::kCheckpoint:
      return "checkpoint";
    case Doing::kDetection:
      return "down, not noticed";
    case Doing::kRestart:
      return "restart";
    case Doing::kWait:
      return "waiting for a node";
    case Doing::kMaintenance:
      return "maintenance";
  }
  return "?";
}

void Diary::add(Period period) {
  if (period.begin == period.end) return;
  if (!periods_.empty()) {
    Period& last = periods_.back();
    const bool with_last = period.doing == Doing::kCheckpoint && leaves_out(period.end - period.begin);
    if (with_last && (last.doing == Doing::kWork || last.doing == Doing::kSlowWork))
      period.doing = last.doing;
    if (last.doing == period.doing && last.to == period.from) {
      last.end = period.end;
      last.to = period.to;
      return;
    }
  }
  if (periods_.size() == kMostPeriods)
    throw Error(fmt::format("a run has more than {} periods between stops and checkpoints, too many to draw",
                            kMostPeriods));
  periods_.push_back(period);
}

void Diary::lose(Ticks reached, Ticks kept) {
  outages_.back().lost += reached - kept;
  for (std::size_t i = periods_.size(); i-- > 0;) {
    Period& p = periods_[i];
    if (p.doing == Doing::kLost || p.from == p.to) continue;
    if (p.to <= kept) break;
    if (p.from >= kept) {
      p.doing = Doing::kLost;
      continue;
    }
    Period lost = p;
    const double share =
        static_cast<double>((kept - p.from).value) / static_cast<double>((p.to - p.from).value);
    p.end = lost.begin = p.begin + ticks(seconds(p.end - p.begin) * share);
    p.to = lost.from = kept;
    lost.doing = Doing::kLost;
    periods_.insert(periods_.begin() + static_cast<std::ptrdiff_t>(i) + 1, lost);
    break;
  }
}

void Diary::stop(Stop stop, Ticks now) {
  if (stopped_) outages_.back().end = now;
  outages_.push_back({stop, now, now, {}});
  stopped_ = true;
}

void Diary::go_on(Ticks now) {
  outages_.back().end = now;
  stopped_ = false;
}

Timeline life_timeline(const Diary& diary) {
  Timeline t;
  t.source = "predicted: life of a run";
  const Ticks length = diary.periods().empty() ? Ticks{0} : diary.periods().back().end;
  const DrawnTime drawn(length, t.source);
  t.rank_labels.emplace_back("run");
  t.streams = {"job", "stops"};
  t.segments = {"life"};
  for (std::size_t i = 0; i < kDoings; ++i) t.names.emplace_back(words_of(static_cast<Doing>(i)));
  constexpr std::size_t kStops = static_cast<std::size_t>(Stop::kResize) + 1;
  for (std::size_t i = 0; i < kStops; ++i) t.names.emplace_back(words_of(static_cast<Stop>(i)));
  const auto slice = [&](std::size_t name, std::int32_t stream, Ticks begin, Ticks end) {
    const Time start = drawn(begin);
    t.slices.push_back({.name = static_cast<std::int32_t>(name),
                        .stream = stream,
                        .ready = start,
                        .start = start,
                        .active = start,
                        .end = drawn(end)});
  };
  for (const Period& p : diary.periods()) slice(static_cast<std::size_t>(p.doing), 0, p.begin, p.end);
  for (const Outage& o : diary.outages())
    slice(kDoings + static_cast<std::size_t>(o.stop), 1, o.begin, o.end);
  return t;
}

}  // namespace orrery::sim
