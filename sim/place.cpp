// SPDX-License-Identifier: Apache-2.0
#include "sim/place.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/error.h"
#include "core/hash.h"
#include "sim/network/equitable.h"
#include "sim/traffic.h"

namespace orrery::sim {
namespace {

using program::Program;

std::vector<std::uint32_t> each_its_own(std::size_t n) {
  std::vector<std::uint32_t> out(n);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// What is put together: classes of ranks, of instances of communication, and of the links they share.
struct Classes {
  std::vector<std::uint32_t> ranks, instances, links;
};

class Placer {
 public:
  Placer(const Topology& topology, const Program& program, const CostModel& cost, const PlaceOptions& options)
      : program_(program),
        cost_(cost),
        options_(options),
        by_stage_(node_types_by_stage(cost.cluster(), program.mesh)),
        traffic_(topology, program, cost),
        ranks_(static_cast<std::size_t>(traffic_.mesh().ranks())) {}

  Layout run() {
    out_.fold = options_.fold;
    if (out_.fold != Fold::kStages) {
      classes_ = alike();
      if (out_.fold == Fold::kClasses && too_many()) out_.fold = Fold::kStages;
    }
    if (out_.fold == Fold::kStages) {
      traffic_.equalise();
      classes_ = stages();
    } else if (out_.fold == Fold::kRanks) {
      // Links keep their classes: they are reported by them.
      classes_.ranks = each_its_own(ranks_);
      classes_.instances = each_its_own(traffic_.instances().size());
    }
    add_places();
    add_meetings();
    add_links();
    add_costs();
    add_paces();
    out_.partners = traffic_.partners();
    return std::move(out_);
  }

 private:
  std::int64_t stage_of(std::size_t rank) const { return program_.stage_of(static_cast<std::int64_t>(rank)); }
  double slowness(std::size_t rank) const {
    const auto found = options_.slow.find(static_cast<std::int64_t>(rank));
    return found == options_.slow.end() ? 1 : found->second;
  }
  double slowness(const Place& p) const {
    if (out_.fold != Fold::kStages) return slowness(static_cast<std::size_t>(p.first_rank));
    double most = 1;
    for (const auto& [rank, factor] : options_.slow) {
      if (stage_of(static_cast<std::size_t>(rank)) == p.stage) most = std::max(most, factor);
    }
    return most;
  }

  NodeTypes types(std::size_t rank) const {
    return only(cost_.cluster().type_of_device(static_cast<std::int64_t>(rank)));
  }
  NodeTypes types(const Place& p) const {
    return out_.fold == Fold::kStages ? types_of(by_stage_, p.stage)
                                      : types(static_cast<std::size_t>(p.first_rank));
  }

  bool too_many() const {
    const std::int64_t places = 1 + *std::max_element(classes_.ranks.begin(), classes_.ranks.end());
    const auto stages = static_cast<std::int64_t>(program_.classes.size());
    return places / stages > options_.most_places &&
           program_.ops_per_step() / stages * places > options_.most_ops;
  }

  Classes stages() const {
    Classes c;
    for (std::size_t r = 0; r < ranks_; ++r) c.ranks.push_back(static_cast<std::uint32_t>(stage_of(r)));
    std::map<std::pair<std::int32_t, std::int32_t>, std::uint32_t> known;
    for (const Instance& i : traffic_.instances()) {
      const auto next = static_cast<std::uint32_t>(known.size());
      c.instances.push_back(known.try_emplace({i.stage, i.slot}, next).first->second);
    }
    c.links = each_its_own(traffic_.shared().size());
    return c;
  }

  // Instances use their ranks, each as an end of a stream, and their links, each by what they put on it.
  Classes alike() const {
    const auto& instances = traffic_.instances();
    const auto& shared = traffic_.shared();
    std::vector<std::size_t> next(instances.size() + 1, 0);
    for (std::size_t i = 0; i < instances.size(); ++i) next[i + 1] = instances[i].ends;
    for (const Traffic::Shared& s : shared) {
      for (const OnLink& o : traffic_.on(s)) ++next[static_cast<std::size_t>(o.instance) + 1];
    }
    std::partial_sum(next.begin(), next.end(), next.begin());
    Uses uses;
    uses.first = next;
    uses.things.resize(next.back());
    uses.labels.resize(next.back());
    const auto add = [&](std::size_t instance, std::size_t thing, std::uint64_t label) {
      uses.things[next[instance]] = static_cast<std::uint32_t>(thing);
      uses.labels[next[instance]++] = label;
    };
    std::vector<std::uint64_t> users, things;
    for (std::size_t i = 0; i < instances.size(); ++i) {
      users.push_back(static_cast<std::uint64_t>(instances[i].price));
      for (const RankEnd& e : traffic_.ends(instances[i])) add(i, static_cast<std::size_t>(e.rank), e.stream);
    }
    for (std::size_t r = 0; r < ranks_; ++r)
      things.push_back(mix(static_cast<std::uint64_t>(stage_of(r)) + (std::uint64_t{types(r)} << 32)) ^
                       std::bit_cast<std::uint64_t>(slowness(r)));
    for (std::size_t s = 0; s < shared.size(); ++s) {
      things.push_back(mix(~static_cast<std::uint64_t>(traffic_.network().capacity(shared[s].link))));
      for (const OnLink& o : traffic_.on(shared[s]))
        add(static_cast<std::size_t>(o.instance), ranks_ + s, static_cast<std::uint64_t>(o.weight));
    }
    Partition p = equitable(uses, std::move(users), std::move(things));
    const auto links = p.things.begin() + static_cast<std::ptrdiff_t>(ranks_);
    return {{p.things.begin(), links}, std::move(p.users), {links, p.things.end()}};
  }

  // In the order of stages and first ranks.
  void add_places() {
    std::vector<std::pair<std::int64_t, std::int64_t>> found;  // stage and first rank
    std::vector<bool> known;
    for (std::size_t r = 0; r < ranks_; ++r) {
      const std::uint32_t c = classes_.ranks[r];
      if (c >= known.size()) known.resize(c + 1);
      if (known[c]) continue;
      known[c] = true;
      found.emplace_back(stage_of(r), static_cast<std::int64_t>(r));
    }
    std::sort(found.begin(), found.end());
    std::vector<std::int32_t> place_of_class(known.size());
    for (const auto& [stage, first] : found) {
      place_of_class[classes_.ranks[static_cast<std::size_t>(first)]] =
          static_cast<std::int32_t>(out_.places.size());
      out_.places.push_back({static_cast<std::int32_t>(stage), 0, first, 0});
    }
    for (const std::uint32_t c : classes_.ranks) {
      out_.place_of.push_back(place_of_class[c]);
      ++out_.places[static_cast<std::size_t>(place_of_class[c])].ranks;
    }
  }

  void add_meetings() {
    const auto& instances = traffic_.instances();
    for (std::size_t i = 0; i < instances.size(); ++i) {
      if (classes_.instances[i] >= out_.meetings.size()) out_.meetings.resize(classes_.instances[i] + 1);
      auto& at = out_.meetings[classes_.instances[i]].ends;
      if (!at.empty()) continue;
      for (const RankEnd& e : traffic_.ends(instances[i])) {
        const Meeting::End end{out_.place_of[static_cast<std::size_t>(e.rank)], e.stream};
        if (std::find(at.begin(), at.end(), end) == at.end()) at.push_back(end);
      }
    }
    for (const Place& p : out_.places) {
      const auto& slots = traffic_.partners()[static_cast<std::size_t>(p.stage)].slots;
      auto& mine = out_.meeting.emplace_back(slots.size(), -1);
      for (std::size_t k = 0; k < slots.size(); ++k) {
        if (const std::int32_t i = traffic_.instance_of(p.first_rank, k); i >= 0)
          mine[k] = static_cast<std::int32_t>(classes_.instances[static_cast<std::size_t>(i)]);
      }
    }
  }

  // What all instances of each meeting put on a link together.
  using Carried = std::vector<std::pair<std::int32_t, std::int64_t>>;  // by meeting
  void carried_by(const Traffic::Shared& s, Carried& out) const {
    out.clear();
    for (const OnLink& o : traffic_.on(s))
      out.emplace_back(static_cast<std::int32_t>(classes_.instances[static_cast<std::size_t>(o.instance)]),
                       o.weight);
    std::sort(out.begin(), out.end());
    std::size_t kept = 0;
    for (const auto& [meeting, weight] : out) {
      if (kept > 0 && out[kept - 1].first == meeting) {
        out[kept - 1].second += weight;
      } else {
        out[kept++] = {meeting, weight};
      }
    }
    out.resize(kept);
  }

  // Links of the same capacity that carry the same are one. They come class by class, so that of several that
  // bound a flow the same is named however ranks are folded; without folding, too, a class is reported as one
  // link.
  void add_links() {
    const auto& shared = traffic_.shared();
    std::vector<std::size_t> order(shared.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return classes_.links[a] < classes_.links[b]; });
    std::map<std::pair<std::int64_t, Carried>, std::int32_t> known;
    std::vector<std::vector<FairShares::Use>> uses(out_.meetings.size());
    std::vector<std::int64_t> capacities;
    std::vector<std::int32_t> reported;  // by class
    Carried here;
    for (const std::size_t s : order) {
      carried_by(shared[s], here);
      const std::int64_t capacity = traffic_.network().capacity(shared[s].link);
      const auto [found, added] =
          known.try_emplace({capacity, here}, static_cast<std::int32_t>(capacities.size()));
      if (added) {
        for (const auto& [meeting, weight] : here)
          uses[static_cast<std::size_t>(meeting)].push_back({found->second, weight});
        capacities.push_back(capacity);
      }
      const std::size_t c =
          out_.fold == Fold::kRanks ? classes_.links[s] : static_cast<std::size_t>(found->second);
      if (c >= reported.size()) reported.resize(c + 1, -1);
      if (reported[c] < 0) {
        reported[c] = static_cast<std::int32_t>(out_.links.size());
        out_.links.push_back({traffic_.network().link_name(shared[s].link), 0, Bandwidth{capacity}});
      }
      ++out_.links[static_cast<std::size_t>(reported[c])].alike;
      if (added) out_.shared_link.push_back(reported[c]);
    }
    out_.shares = FairShares(std::move(capacities), LinkLoads::kWhole);
    for (std::size_t m = 0; m < out_.meetings.size(); ++m) {
      if (!uses[m].empty()) out_.meetings[m].activity = out_.shares.add(uses[m]);
    }
  }

  // A table for each stage, slowness, types of nodes and prices of its slots.
  void add_costs() {
    std::map<std::vector<std::int64_t>, std::int32_t> known;
    std::vector<std::int64_t> key;
    for (Place& p : out_.places) {
      const auto& slots = traffic_.partners()[static_cast<std::size_t>(p.stage)].slots;
      const double slow = slowness(p);
      key = {p.stage, std::bit_cast<std::int64_t>(slow), types(p)};
      std::vector<const OpCost*> next;  // by slot
      for (std::size_t k = 0; k < slots.size(); ++k) {
        const std::int32_t i = slots[k].receives ? -1 : traffic_.instance_of(p.first_rank, k);
        const Instance* instance = i < 0 ? nullptr : &traffic_.instances()[static_cast<std::size_t>(i)];
        key.push_back(instance == nullptr ? -1 : instance->price);
        next.push_back(instance == nullptr ? nullptr : traffic_.price(*instance).ops.data());
      }
      const auto [found, added] = known.try_emplace(key, static_cast<std::int32_t>(out_.costs.size()));
      p.costs = found->second;
      if (added) out_.costs.push_back(table(p, slow, std::move(next)));
    }
  }

  void add_paces() {
    out_.paces.clear();
    for (Place& p : out_.places) {
      const Pace pace = cost_.pace(types(p));
      const auto known = std::find(out_.paces.begin(), out_.paces.end(), pace);
      p.pace = static_cast<std::int32_t>(known - out_.paces.begin());
      if (known == out_.paces.end()) out_.paces.push_back(pace);
    }
  }

  std::vector<std::vector<OpCost>> table(const Place& p, double slow, std::vector<const OpCost*> next) const {
    std::vector<std::vector<OpCost>> out;
    const auto stage = static_cast<std::size_t>(p.stage);
    const NodeTypes on = types(p);
    const auto& segments = program_.classes[stage].segments;
    for (std::size_t g = 0; g < segments.size(); ++g) {
      auto& costs = out.emplace_back();
      for (std::size_t o = 0; o < segments[g].ops.size(); ++o) {
        const std::int32_t slot = traffic_.partners()[stage].slot[g][o];
        if (slot < 0) {
          const Time time = cost_.op(segments[g].ops[o], on);
          costs.push_back({slow == 1 ? time : from_seconds(seconds(time) * slow)});
        } else if (const OpCost*& at = next[static_cast<std::size_t>(slot)]; at != nullptr) {
          costs.push_back(*at++);
        } else {
          costs.push_back({});
        }
      }
    }
    return out;
  }

  const Program& program_;
  const CostModel& cost_;
  const PlaceOptions& options_;
  const std::vector<NodeTypes> by_stage_;
  Traffic traffic_;
  const std::size_t ranks_;
  Classes classes_;
  Layout out_;
};

}  // namespace

Layout place(const Topology& topology, const Program& program, const CostModel& cost,
             const PlaceOptions& options) {
  if (program.mesh.ranks() > topology.cluster().devices())
    throw Error(fmt::format("the plan has {} ranks and {} has {} devices", program.mesh.ranks(),
                            topology.cluster().name, topology.cluster().devices()));
  return Placer(topology, program, cost, options).run();
}

}  // namespace orrery::sim
