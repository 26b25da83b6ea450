// SPDX-License-Identifier: Apache-2.0
#include "trace/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/timeline_head.h"

namespace orrery::trace {
namespace {

constexpr std::int64_t kPsPerNs = 1000;
// Ends of one exchange differ by less, once clocks agree.
constexpr std::int64_t kMostSpreadNs = 1'000'000;
// The same where only the order of launches says that they are of one exchange.
constexpr std::int64_t kMostUnsaidSpreadNs = 100'000;
// Clocks that differ by less are one clock: ends of one exchange differ by as much.
constexpr std::int64_t kSameClockNs = 10'000;

// All members have the result, or nobody does.
bool ends_together(OpClass c) {
  return c == OpClass::kAllReduce || c == OpClass::kAllGather || c == OpClass::kReduceScatter;
}

template <class T>
T median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Place {
  std::size_t trace, activity;
};
struct Match {
  std::vector<Place> places;  // of different traces
  bool sure = false;          // the group is said, and its members end it together
};

// What the matches of two devices say of their clocks.
struct Edge {
  std::size_t from = 0, to = 0;
  std::int64_t later_ns = 0;  // ends of `to` against those of `from`
  std::int64_t agree = 0;     // matches that differ from it by less than they may
  bool sure = false;
};

class Merging {
 public:
  explicit Merging(std::vector<DeviceTrace> traces) : traces_(std::move(traces)) {}

  Merged merged() {
    order();
    match();
    align();
    keep_what_agrees();
    slices();
    meetings();
    return std::move(out_);
  }

 private:
  // group, step, class
  using Family = std::tuple<std::string, std::string, OpClass>;

  void order() {
    std::stable_sort(traces_.begin(), traces_.end(), [](const DeviceTrace& a, const DeviceTrace& b) {
      return std::tie(a.rank, a.file, a.device) < std::tie(b.rank, b.file, b.device);
    });
    for (std::size_t i = 1; i < traces_.size(); ++i) {
      const DeviceTrace &a = traces_[i - 1], &b = traces_[i];
      if (b.rank >= 0 && a.rank == b.rank)
        throw InputError(b.file, "/", fmt::format("is of rank {}, as is {}", b.rank, a.file),
                         "allowed: a trace for each rank");
      if (b.source != traces_[0].source)
        throw InputError(
            b.file, "/",
            fmt::format("is \"{}\", and {} is \"{}\"", b.source, traces_[0].file, traces_[0].source),
            "allowed: traces of one profiler");
    }
    for (const DeviceTrace& t : traces_)
      out_.processes.push_back({.file = t.file, .rank = t.rank, .device = t.device});
    ahead_ns_.assign(traces_.size(), 0);
  }

  // Exchanges of each family, device by device in the order of their launches.
  void match() {
    const bool by_step =
        std::all_of(traces_.begin(), traces_.end(), [](const DeviceTrace& t) { return t.steps; });
    std::map<Family, std::map<std::size_t, std::vector<std::size_t>>> families;
    for (std::size_t t = 0; t < traces_.size(); ++t) {
      const DeviceTrace& trace = traces_[t];
      for (std::size_t i = 0; i < trace.activities.size(); ++i) {
        const Activity& a = trace.activities[i];
        if (a.exchange < 0) continue;
        const std::string step = by_step ? trace.segments[static_cast<std::size_t>(a.segment)] : "";
        const std::string& group = exchange_of({t, i}).group;
        out_.groups_said = out_.groups_said && !group.empty();
        families[{group, step, a.is}][t].push_back(i);
      }
    }
    for (auto& [family, by_trace] : families) {
      const auto& [group, step, is] = family;
      add(by_trace, !group.empty() && ends_together(is));
    }
  }

  // By NCCL's number, and by which of a trace's with that number, as coalesced exchanges share one; or by
  // order alone.
  using Number = std::pair<std::int64_t, std::int64_t>;
  void add(std::map<std::size_t, std::vector<std::size_t>>& by_trace, bool sure) {
    bool numbered = true, even = true;
    const std::size_t count = by_trace.begin()->second.size();
    for (auto& [t, activities] : by_trace) {
      const DeviceTrace& trace = traces_[t];
      std::stable_sort(activities.begin(), activities.end(), [&](std::size_t a, std::size_t b) {
        const Activity &x = trace.activities[a], &y = trace.activities[b];
        return std::tie(x.launch, x.start_ns) < std::tie(y.launch, y.start_ns);
      });
      for (const std::size_t i : activities) numbered = numbered && exchange_of({t, i}).sequence >= 0;
      even = even && activities.size() == count;
    }
    std::map<Number, std::vector<Place>> by_number;
    for (const auto& [t, activities] : by_trace) {
      std::map<std::int64_t, std::int64_t> seen;
      for (std::size_t k = 0; k < activities.size(); ++k) {
        const Place p{t, activities[k]};
        const std::int64_t sequence = exchange_of(p).sequence;
        // Without numbers, those of traces that have more or fewer cannot be told.
        if (numbered)
          by_number[{sequence, seen[sequence]++}].push_back(p);
        else if (even)
          by_number[{static_cast<std::int64_t>(k), 0}].push_back(p);
        else
          ++out_.alone;
      }
    }
    for (auto& [number, places] : by_number) {
      if (places.size() < 2 || !same_bytes(places))
        out_.alone += static_cast<std::int64_t>(places.size());
      else
        matched_.push_back({std::move(places), sure});
    }
  }

  bool same_bytes(const std::vector<Place>& places) const {
    return std::all_of(places.begin(), places.end(), [&](const Place& p) {
      return exchange_of(p).bytes == exchange_of(places.front()).bytes;
    });
  }

  void align() {
    std::vector<Edge> edges = this->edges();
    std::stable_sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
      return std::tuple(!a.sure, -a.agree, a.from, a.to) < std::tuple(!b.sure, -b.agree, b.from, b.to);
    });
    join(edges);
  }

  std::vector<Edge> edges() const {
    std::map<std::tuple<std::size_t, std::size_t, bool>, std::vector<std::int64_t>> later;
    for (const Match& m : matched_) {
      for (std::size_t i = 1; i < m.places.size(); ++i)
        later[{m.places[0].trace, m.places[i].trace, m.sure}].push_back(activity_of(m.places[i]).end_ns -
                                                                        activity_of(m.places[0]).end_ns);
    }
    std::vector<Edge> out;
    for (const auto& [key, all] : later) {
      Edge e;
      std::tie(e.from, e.to, e.sure) = key;
      // Devices in one file have one clock.
      if (traces_[e.from].file != traces_[e.to].file) e.later_ns = median(all);
      if (std::abs(e.later_ns) <= kSameClockNs) e.later_ns = 0;
      e.agree = std::count_if(all.begin(), all.end(), [&](std::int64_t later_ns) {
        return std::abs(later_ns - e.later_ns) <= (e.sure ? kMostSpreadNs : kMostUnsaidSpreadNs);
      });
      const bool most = 2 * e.agree > static_cast<std::int64_t>(all.size());
      if (most) out.push_back(e);
      if (e.sure && !most)
        throw InputError(
            traces_[e.to].file, "/",
            fmt::format("{} of {} exchanges that it has in common with {} end more than {} ms apart",
                        static_cast<std::int64_t>(all.size()) - e.agree, all.size(), traces_[e.from].file,
                        kMostSpreadNs / 1'000'000),
            "allowed: complete traces of the same steps of one job");
    }
    return out;
  }

  // The best edges that join what is not joined yet (Kruskal's spanning forest), then offsets along them.
  void join(const std::vector<Edge>& edges) {
    std::vector<std::size_t> parent(traces_.size());
    for (std::size_t i = 0; i < parent.size(); ++i) parent[i] = i;
    const auto root = [&](std::size_t i) {
      while (parent[i] != i) i = parent[i] = parent[parent[i]];
      return i;
    };
    std::vector<std::vector<Edge>> of(traces_.size());
    for (const Edge& e : edges) {
      const std::size_t a = root(e.from), b = root(e.to);
      if (a == b) continue;
      parent[std::max(a, b)] = std::min(a, b);
      of[e.from].push_back(e);
      of[e.to].push_back({e.to, e.from, -e.later_ns, e.agree, e.sure});
    }
    std::vector<bool> known(traces_.size());
    for (std::size_t first = 0; first < traces_.size(); ++first) {
      if (known[first]) continue;
      known[first] = true;
      out_.processes[first].reference = static_cast<std::int32_t>(first);
      for (std::vector<std::size_t> open{first}; !open.empty();) {
        const std::size_t from = open.back();
        open.pop_back();
        for (const Edge& e : of[from]) {
          if (known[e.to]) continue;
          known[e.to] = true;
          ahead_ns_[e.to] = ahead_ns_[from] + e.later_ns;
          out_.processes[e.to].ahead_us = static_cast<double>(ahead_ns_[e.to]) / 1e3;
          out_.processes[e.to].reference = static_cast<std::int32_t>(first);
          out_.processes[e.to].by = e.agree;
          open.push_back(e.to);
        }
      }
    }
  }

  std::int64_t end_of(const Place& p) const { return activity_of(p).end_ns - ahead_ns_[p.trace]; }

  // Members whose ends agree. What is matched by order alone may be several exchanges of several groups.
  void keep_what_agrees() {
    std::vector<Match> kept;
    std::vector<std::int64_t> spreads;
    for (Match& m : matched_) {
      std::sort(m.places.begin(), m.places.end(),
                [&](const Place& a, const Place& b) { return end_of(a) < end_of(b); });
      const std::int64_t most = m.sure ? kMostSpreadNs : kMostUnsaidSpreadNs;
      for (std::size_t first = 0; first < m.places.size();) {
        std::size_t last = first + 1;
        while (last < m.places.size() && end_of(m.places[last]) - end_of(m.places[first]) <= most) ++last;
        if (last - first < 2) {
          ++out_.alone;
        } else {
          spreads.push_back(end_of(m.places[last - 1]) - end_of(m.places[first]));
          kept.push_back({{m.places.begin() + static_cast<std::ptrdiff_t>(first),
                           m.places.begin() + static_cast<std::ptrdiff_t>(last)},
                          m.sure});
        }
        first = last;
      }
    }
    matched_ = std::move(kept);
    if (!spreads.empty()) out_.spread_us = static_cast<double>(median(std::move(spreads))) / 1e3;
  }

  void slices() {
    Timeline& t = out_.timeline;
    t.source = traces_.empty() ? "measured" : traces_[0].source;
    std::int64_t zero = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < traces_.size(); ++i) {
      for (const Activity& a : traces_[i].activities) zero = std::min(zero, a.start_ns - ahead_ns_[i]);
    }
    Interner names(t.names), segments(t.segments), streams(t.streams);
    streams("compute");
    const auto labels = labels_of_processes();
    for (std::size_t i = 0; i < traces_.size(); ++i) {
      const DeviceTrace& trace = traces_[i];
      t.rank_labels.push_back(labels[i]);
      const auto stream_names = names_of_streams(trace);
      first_slice_.push_back(t.slices.size());
      for (const Activity& a : trace.activities) {
        // Times are of 1970 to 2096 in nanoseconds, so differences do not overflow.
        const std::int64_t start = a.start_ns - ahead_ns_[i] - zero, end = a.end_ns - ahead_ns_[i] - zero;
        if (static_cast<double>(end) > kMostUs * 1e3)
          throw InputError(trace.file, "/", "ends more than 23 days after the first of all traces begins",
                           "allowed: traces of one run");
        Slice s;
        s.name = names(trace.names[static_cast<std::size_t>(a.name)]);
        s.segment = segments(trace.segments[static_cast<std::size_t>(a.segment)]);
        s.rank = static_cast<std::int32_t>(i);
        s.stream = streams(stream_names.at(a.stream));
        s.ready = s.start = s.active = Time{start * kPsPerNs};
        s.end = Time{end * kPsPerNs};
        t.slices.push_back(s);
        const auto name = static_cast<std::size_t>(s.name);
        t.classes.resize(t.names.size());
        t.classes[name] = a.is;
        t.payloads.resize(t.names.size());
        if (a.exchange >= 0) t.payloads[name] = trace.exchanges[static_cast<std::size_t>(a.exchange)].bytes;
      }
      if (t.streams.size() > kMostStreams)
        throw InputError(trace.file, "/", fmt::format("has the {}th stream of all traces", t.streams.size()),
                         fmt::format("allowed: {} streams of different numbers", kMostStreams));
    }
    out_.steps = std::count_if(t.segments.begin(), t.segments.end(), names_step);
  }

  std::vector<std::string> labels_of_processes() const {
    std::set<std::string> files;
    for (const DeviceTrace& t : traces_) files.insert(t.file);
    std::vector<std::string> out;
    for (const DeviceTrace& t : traces_) {
      std::string label =
          t.rank >= 0 ? fmt::format("rank {}, GPU {}", t.rank, t.device)
          : files.size() > 1
              ? fmt::format("{}, GPU {}", std::filesystem::path(t.file).stem().string(), t.device)
              : fmt::format("GPU {}", t.device);
      if (t.process >= 0) label += fmt::format(" of process {}", t.process);
      out.push_back(std::move(label));
    }
    return out;
  }

  // A device's busiest stream that does not mostly communicate is "compute".
  static std::map<std::int32_t, std::string> names_of_streams(const DeviceTrace& trace) {
    struct Use {
      std::int64_t busy = 0, exchanging = 0;
      bool communicates() const { return 2 * exchanging > busy; }
    };
    std::map<std::int32_t, Use> uses;
    for (const Activity& a : trace.activities) {
      Use& u = uses[a.stream];
      u.busy += a.end_ns - a.start_ns;
      if (a.exchange >= 0) u.exchanging += a.end_ns - a.start_ns;
    }
    const Use* busiest = nullptr;
    for (const auto& [stream, use] : uses) {
      if (!use.communicates() && (busiest == nullptr || use.busy > busiest->busy)) busiest = &use;
    }
    std::map<std::int32_t, std::string> out;
    for (const auto& [stream, use] : uses)
      out[stream] = &use == busiest      ? "compute"
                    : use.communicates() ? fmt::format("stream {}, NCCL", stream)
                                         : fmt::format("stream {}", stream);
    return out;
  }

  void meetings() {
    for (const Match& match : matched_) {
      Meeting& m = out_.meetings.emplace_back();
      m.is = activity_of(match.places[0]).is;
      m.bytes = exchange_of(match.places[0]).bytes;
      m.members =
          std::max(exchange_of(match.places[0]).members, static_cast<std::int64_t>(match.places.size()));
      Time last{0};
      for (const Place& p : match.places) {
        m.here.push_back({static_cast<std::int32_t>(p.trace), first_slice_[p.trace] + p.activity});
        last = std::max(last, out_.timeline.slices[m.here.back().slice].start);
      }
      if (!m.whole()) continue;  // who is not here may have come last
      for (const Member& member : m.here) {
        Slice& s = out_.timeline.slices[member.slice];
        s.active = std::clamp(last, s.start, s.end);
      }
    }
  }

  const Activity& activity_of(const Place& p) const { return traces_[p.trace].activities[p.activity]; }
  const Exchange& exchange_of(const Place& p) const {
    return traces_[p.trace].exchanges[static_cast<std::size_t>(activity_of(p).exchange)];
  }

  std::vector<DeviceTrace> traces_;
  std::vector<std::int64_t> ahead_ns_;    // by trace
  std::vector<std::size_t> first_slice_;  // by trace
  std::vector<Match> matched_;
  Merged out_;
};

}  // namespace

Merged merge(std::vector<DeviceTrace> traces) {
  return Merging(std::move(traces)).merged();
}

}  // namespace orrery::trace
