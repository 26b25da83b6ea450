// SPDX-License-Identifier: Apache-2.0
#include "sim/link_use.h"

#include <algorithm>

namespace orrery::sim {

LinkUse::LinkUse(const Topology& topology, const program::Program& program, const CostModel& cost, Time step)
    : topology_(topology),
      program_(program),
      traffic_(topology, program, cost),
      step_(step),
      average_(topology.network().links()) {
  for (std::size_t stage = 0; stage < program.classes.size(); ++stage) {
    const program::RankClass& rank = program.classes[stage];
    std::vector<std::int64_t> runs(rank.segments.size());
    for (const program::Step& s : rank.steps) ++runs[static_cast<std::size_t>(s.segment)];
    const Partners& partners = traffic_.partners()[stage];
    auto& of_slot = ops_.emplace_back(partners.slots.size());
    auto& by_name = names_.emplace_back();
    for (std::size_t g = 0; g < rank.segments.size(); ++g) {
      for (std::size_t o = 0; o < rank.segments[g].ops.size(); ++o) {
        const std::int32_t slot = partners.slot[g][o];
        if (slot < 0) continue;
        auto& ops = of_slot[static_cast<std::size_t>(slot)];
        by_name.try_emplace(rank.segments[g].ops[o].name, NamedOp{slot, ops.size()});
        ops.push_back(runs[g]);
      }
    }
  }
  for (const Instance& i : traffic_.instances()) {
    const double seconds_of_step = seconds(step_);
    if (seconds_of_step > 0) add(i, bytes_per_step(i) / seconds_of_step, average_);
  }
}

double LinkUse::bytes_per_step(const Instance& i) const {
  const Price& price = traffic_.price(i);
  const auto& runs = ops_[static_cast<std::size_t>(i.stage)][static_cast<std::size_t>(i.slot)];
  double sum = 0;
  for (std::size_t k = 0; k < price.ops.size(); ++k) {
    const OpCost& op = price.ops[k];
    sum += static_cast<double>(op.rate) * seconds(std::max(Time{0}, op.time - op.latency)) *
           static_cast<double>(runs[k]);
  }
  return sum;
}

void LinkUse::add(const Instance& i, double bytes_per_s, std::vector<double>& out) const {
  for (const LinkLoads::Load& l : traffic_.loads(i)) {
    const std::int64_t capacity = topology_.network().capacity(l.link);
    if (capacity <= 0) continue;
    out[l.link] += bytes_per_s * static_cast<double>(l.weight) / LinkLoads::kWhole *
                   static_cast<double>(i.channels) / static_cast<double>(capacity);
  }
}

std::vector<double> LinkUse::at(const Lanes& lanes, Time t) const {
  const TimelineHead& timeline = lanes.timeline();
  std::vector<double> out(average_.size());
  // What each process's streams do then.
  std::map<std::pair<std::int32_t, std::string_view>, Slice> now;
  for (const Lane& lane : lanes.all()) {
    const auto slices = lanes.slices(lane);
    const std::size_t i = slices.first_after(t);
    if (i < slices.size() && slices[i].active <= t)
      now[{lane.rank, timeline.streams[static_cast<std::size_t>(lane.stream)]}] = slices[i];
  }
  for (const Instance& i : traffic_.instances()) {
    const RankEnd& end = traffic_.ends(i).front();
    const auto rank = static_cast<std::size_t>(end.rank);
    const std::int32_t process =
        rank < timeline.process_of.size() ? timeline.process_of[rank] : static_cast<std::int32_t>(end.rank);
    const auto found = now.find({process, std::string_view(program_.communication.streams[end.stream].name)});
    if (found == now.end()) continue;
    const Slice& s = found->second;
    const auto& names = names_[static_cast<std::size_t>(i.stage)];
    const auto op = names.find(timeline.names[static_cast<std::size_t>(s.name)]);
    if (op == names.end() || op->second.slot != i.slot) continue;
    const OpCost& cost = traffic_.price(i).ops[op->second.index];
    if (t < s.active + cost.latency) continue;
    // Slower than alone, where flows share links.
    const double alone = seconds(std::max(Time{0}, cost.time - cost.latency));
    const double took = seconds(std::max(Time{1}, s.end - s.active - cost.latency));
    add(i, static_cast<double>(cost.rate) * std::min(1.0, alone / took), out);
  }
  return out;
}

std::vector<LinkUser> LinkUse::users(LinkId link) const {
  std::map<std::pair<std::int32_t, program::StreamIndex>, LinkUser> users;
  const double capacity = static_cast<double>(std::max<std::int64_t>(1, topology_.network().capacity(link)));
  for (const Instance& i : traffic_.instances()) {
    for (const LinkLoads::Load& l : traffic_.loads(i)) {
      if (l.link != link) continue;
      const program::StreamIndex stream = traffic_.ends(i).front().stream;
      LinkUser& user = users[{i.stage, stream}];
      if (user.groups++ == 0) {
        user.stage = i.stage;
        user.stream = program_.communication.streams[stream].name;
        for (const RankEnd& e : traffic_.ends(i)) user.ranks.push_back(e.rank);
      }
      user.share += bytes_per_step(i) / seconds(step_) * static_cast<double>(l.weight) / LinkLoads::kWhole *
                    static_cast<double>(i.channels) / capacity;
    }
  }
  std::vector<LinkUser> out;
  for (auto& [key, user] : users) out.push_back(std::move(user));
  std::stable_sort(out.begin(), out.end(),
                   [](const LinkUser& a, const LinkUser& b) { return a.share > b.share; });
  return out;
}

}  // namespace orrery::sim
