// SPDX-License-Identifier: Apache-2.0
#include "sim/network/flows.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/hash.h"
#include "sim/network/equitable.h"
#include "sim/network/fair_shares.h"

namespace orrery::sim {
namespace {

__extension__ using Wide = __int128;
constexpr Wide kPicoseconds = 1'000'000'000'000;

}  // namespace

// Flow classes, each with the links that one of its flows uses, by class of links.
struct Flows::Classes {
  std::vector<std::uint32_t> of_flow;
  std::vector<std::size_t> representative;  // a flow of each
  std::vector<std::int64_t> capacity;       // by class of links
  std::vector<std::vector<FairShares::Use>> uses;
};

void Flows::add(const Path& path, Bytes bytes, Time latency) {
  if (bytes.value > 0) links_.insert(links_.end(), path.begin(), path.end());
  first_.push_back(links_.size());
  bytes_.push_back(bytes.value);
  start_.push_back(latency);
}

void Flows::clear() {
  first_.assign(1, 0);
  links_.clear();
  bytes_.clear();
  start_.clear();
}

Flows::Classes Flows::each_its_own() const {
  Classes out;
  out.of_flow.resize(size());
  std::iota(out.of_flow.begin(), out.of_flow.end(), 0);
  out.representative.assign(out.of_flow.begin(), out.of_flow.end());
  std::vector<std::int32_t> ids(network_.links(), -1);
  for (std::size_t f = 0; f < size(); ++f) {
    auto& uses = out.uses.emplace_back();
    for (std::size_t i = first_[f]; i < first_[f + 1]; ++i) {
      std::int32_t& id = ids[links_[i]];
      if (id < 0) {
        id = static_cast<std::int32_t>(out.capacity.size());
        out.capacity.push_back(network_.capacity(links_[i]));
      }
      uses.push_back({id, 1});
    }
  }
  return out;
}

Flows::Classes Flows::alike() const {
  constexpr auto kUnused = UINT32_MAX;
  std::vector<std::uint32_t> id(network_.links(), kUnused);
  std::vector<std::uint64_t> flow(size()), link;
  std::vector<LinkId> used;
  Uses uses{first_, {}, {}};
  uses.things.reserve(links_.size());
  for (const LinkId l : links_) {
    if (id[l] == kUnused) {
      id[l] = static_cast<std::uint32_t>(used.size());
      used.push_back(l);
      link.push_back(static_cast<std::uint64_t>(network_.capacity(l)));
    }
    uses.things.push_back(id[l]);
  }
  for (std::size_t f = 0; f < size(); ++f)
    flow[f] = static_cast<std::uint64_t>(bytes_[f]) ^ mix(static_cast<std::uint64_t>(start_[f].value));
  Partition classes = equitable(uses, std::move(flow), std::move(link));

  Classes out;
  out.of_flow = std::move(classes.users);
  out.representative.resize(classes.user_classes);
  std::vector<std::int64_t> flows_of(classes.user_classes, 0), links_of(classes.thing_classes, 0);
  for (std::size_t f = size(); f-- > 0;) {
    out.representative[out.of_flow[f]] = f;
    ++flows_of[out.of_flow[f]];
  }
  out.capacity.resize(classes.thing_classes);
  for (std::size_t i = 0; i < used.size(); ++i) {
    out.capacity[classes.things[i]] = network_.capacity(used[i]);
    ++links_of[classes.things[i]];
  }
  for (std::size_t c = 0; c < out.representative.size(); ++c) {
    auto& mine = out.uses.emplace_back();
    const std::size_t f = out.representative[c];
    for (std::size_t i = first_[f]; i < first_[f + 1]; ++i) {
      const auto l = static_cast<std::int32_t>(classes.things[uses.things[i]]);
      const auto same = std::find_if(mine.begin(), mine.end(), [&](const auto& u) { return u.link == l; });
      if (same != mine.end()) {
        ++same->weight;
      } else {
        mine.push_back({l, 1});
      }
    }
    // All flows of the class spread evenly over all links of a class.
    for (FairShares::Use& u : mine) {
      const std::int64_t crossings = u.weight * flows_of[c],
                         links = links_of[static_cast<std::size_t>(u.link)];
      if (crossings % links != 0) throw Error("flow classes are not equitable");  // two colours fell together
      u.weight = crossings / links;
    }
  }
  return out;
}

FlowTimes Flows::run(bool fold) const {
  const Classes classes = fold ? alike() : each_its_own();
  FlowTimes out;
  out.classes = classes.representative.size();
  FairShares shares(classes.capacity);
  struct Waiting {
    Time start;
    std::int32_t activity;
  };
  std::vector<Waiting> waiting;
  std::vector<Wide> left;  // bytes times picoseconds in a second
  std::vector<Time> ends(out.classes);
  for (std::size_t c = 0; c < out.classes; ++c) {
    const std::int32_t activity = shares.add(classes.uses[c]);
    const std::size_t f = classes.representative[c];
    waiting.push_back({start_[f], activity});
    left.push_back(classes.uses[c].empty() ? 0 : kPicoseconds * bytes_[f]);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Waiting& a, const Waiting& b) {
    return std::tie(a.start, a.activity) > std::tie(b.start, b.activity);
  });

  std::vector<std::int32_t> active;
  std::vector<std::int64_t> limits;
  Time now{0};
  while (!waiting.empty() || !active.empty()) {
    if (active.empty()) now = std::max(now, waiting.back().start);
    while (!waiting.empty() && waiting.back().start <= now) {
      const auto a = static_cast<std::size_t>(waiting.back().activity);
      if (left[a] == 0) {
        ends[a] = waiting.back().start;
      } else {
        active.push_back(waiting.back().activity);
      }
      waiting.pop_back();
    }
    if (active.empty()) continue;
    limits.assign(active.size(), kNoLimit);
    const auto rates = shares.solve(active, limits);
    Wide until =
        waiting.empty() ? Wide{std::numeric_limits<std::int64_t>::max()} : waiting.back().start.value;
    for (std::size_t i = 0; i < active.size(); ++i) {
      if (rates[i] <= 0) throw Error("a flow has no rate: more flows on a link than bytes per second");
      const Wide rate = rates[i];
      until = std::min(until, now.value + (left[static_cast<std::size_t>(active[i])] + rate - 1) / rate);
    }
    if (until >= std::numeric_limits<std::int64_t>::max()) throw Error("flows take longer than 106 days");
    const Wide passed = until - now.value;
    now = Time{static_cast<std::int64_t>(until)};
    std::size_t kept = 0;
    for (std::size_t i = 0; i < active.size(); ++i) {
      const auto a = static_cast<std::size_t>(active[i]);
      left[a] -= std::min(left[a], passed * rates[i]);
      if (left[a] == 0) {
        ends[a] = now;
      } else {
        active[kept++] = active[i];
      }
    }
    active.resize(kept);
  }

  out.ends.reserve(size());
  for (const std::uint32_t c : classes.of_flow) out.ends.push_back(ends[c]);
  if (!out.ends.empty()) out.end = *std::max_element(out.ends.begin(), out.ends.end());
  return out;
}

}  // namespace orrery::sim
