// SPDX-License-Identifier: Apache-2.0
#include "sim/network/sharing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "sim/cost.h"

namespace orrery::sim {
namespace {

using program::Group;
using program::Op;
using program::OpKind;
using program::Program;

struct PatternKey {
  std::size_t stage;
  program::Stream stream;
  Group group;
  std::int64_t peer;  // stage; -1 for collectives
  friend auto operator<=>(const PatternKey&, const PatternKey&) = default;
};

struct Pattern {
  std::int64_t channels = 1;
  std::int64_t rate = 0;  // of a channel, the fastest of its ops alone
};

// What one pattern puts on one link.
struct Load {
  LinkId link;
  std::int32_t pattern;
  std::int64_t weight;
};

std::int64_t peer_of(const Program& p, const Op& op) {
  return op.kind == OpKind::kSend ? stage_of_chunk(p.plan, op.peer_chunk) : -1;
}

void add_pattern(LinkLoads& loads, const Program& p, const PatternKey& key, std::int64_t domain) {
  const program::Binding& b = p.binding;
  const auto stage = static_cast<std::int64_t>(key.stage);
  for (std::int64_t dp = 0; dp < b.dp; ++dp) {
    for (std::int64_t tp = 0; tp < b.tp; ++tp) {
      const std::int64_t rank = b.rank({tp, dp, stage});
      if (key.peer >= 0) {
        loads.add_flow(rank, b.rank({tp, dp, key.peer}));
      } else if (const auto members = b.members(key.group, rank); members.front() == rank) {
        loads.add_ring(members, domain);
      }
    }
  }
}

// The links that patterns can fill together, alike ones once.
void find_shared(const Network& network, std::vector<Load>& loads, const std::vector<PatternKey>& keys,
                 const std::vector<Pattern>& patterns, Sharing& out) {
  std::sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) {
    return std::tie(a.link, a.pattern) < std::tie(b.link, b.pattern);
  });
  using Uses = std::vector<std::pair<std::int32_t, std::int64_t>>;
  std::map<std::pair<std::int64_t, Uses>, std::int32_t> known;
  std::vector<std::vector<FairShares::Use>> uses(patterns.size());
  std::vector<std::int64_t> capacities;
  Uses here;
  for (std::size_t i = 0; i < loads.size();) {
    const LinkId link = loads[i].link;
    const std::int64_t capacity = network.capacity(link);
    here.clear();
    // Ops of one stream run one after the other: the most demanding counts.
    std::map<std::pair<std::size_t, program::Stream>, double> demand;
    for (; i < loads.size() && loads[i].link == link; ++i) {
      const auto p = static_cast<std::size_t>(loads[i].pattern);
      here.emplace_back(loads[i].pattern, loads[i].weight);
      double& most = demand[{keys[p].stage, keys[p].stream}];
      most = std::max(most, static_cast<double>(loads[i].weight) / LinkLoads::kWhole *
                                static_cast<double>(patterns[p].rate));
    }
    double total = 0;
    for (const auto& [lane, d] : demand) total += d;
    if (demand.size() < 2 || total <= static_cast<double>(capacity) * (1 + 1e-9)) continue;
    const auto [found, added] =
        known.try_emplace({capacity, here}, static_cast<std::int32_t>(capacities.size()));
    if (added) {
      for (const auto& [pattern, weight] : here)
        uses[static_cast<std::size_t>(pattern)].push_back({found->second, weight});
      capacities.push_back(capacity);
      out.links.push_back({network.link_name(link), 0, Bandwidth{capacity}});
    }
    ++out.links[static_cast<std::size_t>(found->second)].alike;
  }
  out.shares = FairShares(std::move(capacities), LinkLoads::kWhole);
  for (const auto& u : uses) out.shares.add(u);
}

}  // namespace

Sharing share_links(const Topology& topology, const Program& program, const CostModel& cost) {
  if (program.binding.ranks() > topology.cluster().devices())
    throw Error(fmt::format("the plan has {} ranks and {} has {} devices", program.binding.ranks(),
                            topology.cluster().name, topology.cluster().devices()));
  Sharing out;
  std::map<PatternKey, std::int32_t> ids;
  std::vector<PatternKey> keys;
  std::vector<Pattern> patterns;
  std::vector<Load> loads;
  LinkLoads on_links(topology.network());
  for (std::size_t c = 0; c < program.classes.size(); ++c) {
    auto& segments = out.ops.emplace_back();
    for (const program::Segment& s : program.classes[c].segments) {
      auto& flows = segments.emplace_back(s.ops.size());
      for (std::size_t i = 0; i < s.ops.size(); ++i) {
        const Op& op = s.ops[i];
        if (!program::is_communication(op.kind) || op.kind == OpKind::kRecv) continue;
        const PatternKey key{c, op.stream, op.group, peer_of(program, op)};
        const auto [id, added] = ids.try_emplace(key, static_cast<std::int32_t>(patterns.size()));
        if (added) {
          on_links.clear();
          add_pattern(on_links, program, key, topology.cluster().scale_up_domain());
          const std::int64_t channels = on_links.channels();
          for (const LinkId l : on_links.used()) loads.push_back({l, id->second, on_links[l] * channels});
          keys.push_back(key);
          patterns.push_back({channels});
        }
        Pattern& pattern = patterns[static_cast<std::size_t>(id->second)];
        const Wire wire = cost.wire(op);
        flows[i] = {id->second, wire.latency, wire.rate.value / pattern.channels};
        pattern.rate = std::max(pattern.rate, flows[i].rate);
      }
    }
  }
  find_shared(topology.network(), loads, keys, patterns, out);
  if (out.links.empty()) {
    out.ops.clear();
    return out;
  }
  for (auto& segments : out.ops) {
    for (auto& flows : segments) {
      for (Sharing::Flow& f : flows) {
        if (f.pattern >= 0 && (out.shares.uses(f.pattern).empty() || f.rate == 0)) f.pattern = -1;
      }
    }
  }
  return out;
}

}  // namespace orrery::sim
