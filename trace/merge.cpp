// SPDX-License-Identifier: Apache-2.0
#include "trace/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <map>
#include <tuple>

#include "core/error.h"
#include "core/timeline_head.h"

namespace orrery::trace {
namespace {

constexpr std::int64_t kPsPerNs = 1000;
// Ends of matched exchanges that differ by more are of different exchanges.
constexpr std::int64_t kMostSpreadNs = 1'000'000;
// Sends and receives are matched by order alone, which is right where all ranks take part in each.
constexpr std::int64_t kMostSpreadOfPairsNs = 100'000;

// All members have the result, or nobody does.
bool ends_together(OpClass w) {
  return w == OpClass::kAllReduce || w == OpClass::kAllGather || w == OpClass::kReduceScatter;
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
      const DeviceTrace& a = traces_[i - 1];
      const DeviceTrace& b = traces_[i];
      if (a.rank >= 0 && a.rank == b.rank)
        throw InputError(b.file, "/", fmt::format("is of rank {}, as is {}", b.rank, a.file),
                         "allowed: a trace for each rank");
    }
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
        families[{exchange_of({t, i}).group, step, a.is}][t].push_back(i);
      }
    }
    for (auto& [family, by_trace] : families) add(by_trace);
  }

  void add(std::map<std::size_t, std::vector<std::size_t>>& by_trace) {
    std::map<std::int64_t, std::vector<Place>> by_number;
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
    for (const auto& [t, activities] : by_trace) {
      for (std::size_t k = 0; k < activities.size(); ++k) {
        const Place p{t, activities[k]};
        // Without numbers, those of traces that have more or fewer cannot be told.
        const std::int64_t number = numbered ? exchange_of(p).sequence : static_cast<std::int64_t>(k);
        if (numbered || even)
          by_number[number].push_back(p);
        else
          ++out_.alone;
      }
    }
    for (auto& [number, places] : by_number) {
      if (places.size() < 2 || !same_bytes(places))
        out_.alone += static_cast<std::int64_t>(places.size());
      else
        matched_.push_back(std::move(places));
    }
  }

  bool same_bytes(const std::vector<Place>& places) const {
    return std::all_of(places.begin(), places.end(), [&](const Place& p) {
      return exchange_of(p).bytes == exchange_of(places.front()).bytes;
    });
  }

  // From device to device by the median difference of the ends of what they took part in, first by exchanges
  // that end together.
  void align() {
    std::map<std::pair<std::size_t, std::size_t>, std::vector<std::int64_t>> firm, loose;
    for (const auto& places : matched_) {
      auto& pairs = ends_together(activity_of(places.front()).is) ? firm : loose;
      for (std::size_t i = 1; i < places.size(); ++i) {
        const std::int64_t later = activity_of(places[i]).end_ns - activity_of(places[0]).end_ns;
        pairs[{places[0].trace, places[i].trace}].push_back(later);
        pairs[{places[i].trace, places[0].trace}].push_back(-later);
      }
    }
    out_.clocks.resize(traces_.size());
    for (std::size_t t = 0; t < traces_.size(); ++t) out_.clocks[t].file = traces_[t].file;
    if (!traces_.empty()) out_.clocks[0].known = true;
    spread_from(0, firm, loose);
  }

  using Pairs = std::map<std::pair<std::size_t, std::size_t>, std::vector<std::int64_t>>;
  void spread_from(std::size_t first, const Pairs& firm, const Pairs& loose) {
    std::vector<std::size_t> reached{first};
    for (const Pairs* pairs : {&firm, &loose}) {
      for (std::size_t i = 0; i < reached.size(); ++i) {
        const std::size_t from = reached[i];
        for (auto at = pairs->lower_bound({from, 0}); at != pairs->end() && at->first.first == from; ++at) {
          const std::size_t to = at->first.second;
          if (out_.clocks[to].known) continue;
          ahead_ns_[to] = ahead_ns_[from] + median(at->second);
          out_.clocks[to] = {traces_[to].file, static_cast<double>(ahead_ns_[to]) / 1e3, true,
                             static_cast<std::int64_t>(at->second.size())};
          reached.push_back(to);
        }
      }
    }
  }

  std::int64_t end_of(const Place& p) const { return activity_of(p).end_ns - ahead_ns_[p.trace]; }
  std::int64_t spread(const std::vector<Place>& places) const {
    std::int64_t first = end_of(places[0]), last = first;
    for (const Place& p : places) {
      first = std::min(first, end_of(p));
      last = std::max(last, end_of(p));
    }
    return last - first;
  }

  void keep_what_agrees() {
    std::erase_if(matched_, [&](const std::vector<Place>& places) {
      if (ends_together(activity_of(places[0]).is) || spread(places) <= kMostSpreadOfPairsNs) return false;
      out_.alone += static_cast<std::int64_t>(places.size());
      return true;
    });
    if (matched_.empty()) return;
    std::vector<std::int64_t> spreads;
    for (const auto& places : matched_) spreads.push_back(spread(places));
    const std::int64_t middle = median(std::move(spreads));
    out_.spread_us = static_cast<double>(middle) / 1e3;
    if (middle > kMostSpreadNs)
      throw InputError(
          traces_[matched_[0].back().trace].file, "/",
          fmt::format("half of its exchanges end more than {:.1f} ms before or after those of {} "
                      "that they were matched with",
                      out_.spread_us / 1e3, traces_[matched_[0].front().trace].file),
          "allowed: complete traces of the same steps of one job");
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
    for (std::size_t i = 0; i < traces_.size(); ++i) {
      const DeviceTrace& trace = traces_[i];
      t.rank_labels.push_back(label_of(trace));
      const auto stream_names = names_of_streams(trace);
      first_slice_.push_back(t.slices.size());
      for (const Activity& a : trace.activities) {
        Slice s;
        s.name = names(trace.names[static_cast<std::size_t>(a.name)]);
        s.segment = segments(trace.segments[static_cast<std::size_t>(a.segment)]);
        s.rank = static_cast<std::int32_t>(i);
        s.stream = streams(stream_names.at(a.stream));
        if (static_cast<double>(a.end_ns - ahead_ns_[i] - zero) > kMostUs * 1e3)
          throw InputError(trace.file, "/", "spans more than 23 days", "allowed: traces of one run");
        s.ready = s.start = s.active = Time{(a.start_ns - ahead_ns_[i] - zero) * kPsPerNs};
        s.end = Time{(a.end_ns - ahead_ns_[i] - zero) * kPsPerNs};
        t.slices.push_back(s);
        const auto name = static_cast<std::size_t>(s.name);
        t.classes.resize(t.names.size());
        t.classes[name] = a.is;
        t.payloads.resize(t.names.size());
        if (a.exchange >= 0) t.payloads[name] = trace.exchanges[static_cast<std::size_t>(a.exchange)].bytes;
      }
      if (trace.steps) out_.steps = std::max(out_.steps, static_cast<std::int64_t>(trace.segments.size()));
    }
    if (t.streams.size() > kMostStreams)
      throw InputError(traces_[0].file, "/", fmt::format("{} streams are too many", t.streams.size()),
                       fmt::format("allowed: {}", kMostStreams));
  }

  std::string label_of(const DeviceTrace& trace) const {
    if (trace.rank >= 0) return fmt::format("rank {}, GPU {}", trace.rank, trace.device);
    const bool alone = std::all_of(traces_.begin(), traces_.end(),
                                   [&](const DeviceTrace& t) { return t.file == trace.file; });
    if (alone) return fmt::format("GPU {}", trace.device);
    return fmt::format("{}, GPU {}", std::filesystem::path(trace.file).stem().string(), trace.device);
  }

  // A device's busiest stream that does not mostly communicate is "compute", so that sums over a part mean
  // what they mean for our own timelines: its gaps are idle time, and exchanges beside it are hidden.
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
    for (const auto& places : matched_) {
      Meeting& m = out_.meetings.emplace_back();
      m.is = activity_of(places[0]).is;
      m.bytes = exchange_of(places[0]).bytes;
      m.members = std::max(exchange_of(places[0]).members, static_cast<std::int64_t>(places.size()));
      Time last{0};
      for (const Place& p : places) {
        m.here.push_back({static_cast<std::int32_t>(p.trace), first_slice_[p.trace] + p.activity});
        last = std::max(last, out_.timeline.slices[m.here.back().slice].start);
      }
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
  std::vector<std::vector<Place>> matched_;
  Merged out_;
};

}  // namespace

Merged merge(std::vector<DeviceTrace> traces) {
  return Merging(std::move(traces)).merged();
}

}  // namespace orrery::trace
