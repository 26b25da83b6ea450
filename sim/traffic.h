// SPDX-License-Identifier: Apache-2.0
//
// Everything that communicates in a program on a cluster: each group of ranks and each sender with its
// receiver, the links they use, what their ops cost there, and the links that ops can fill together.
//
// A group has the bandwidth of the slowest of its own links while all groups of its axis communicate, so a
// failed link slows those that use it. Internal to sim/.
#pragma once

#include <span>

#include "sim/cost.h"
#include "sim/engine/layout.h"

namespace orrery::sim {

// One group, or one sender and its receiver.
struct Instance {
  std::int32_t stage, slot;  // of the sender
  std::size_t first_end, ends;
  std::size_t first_load, loads;
  std::int64_t channels = 1;
  GroupLinks links;
  std::int32_t price = -1;
};

struct RankEnd {
  std::int64_t rank;
  program::StreamIndex stream;
};

// What the ops of one slot cost on one kind of instance, in the order of the program.
struct Price {
  std::vector<OpCost> ops;
  std::int64_t rate = 0;  // of the fastest
};

// What one instance puts on one link: so much for each of its channels.
struct OnLink {
  std::int32_t instance;
  std::int64_t weight;
};

class Traffic {
 public:
  Traffic(const Topology& topology, const program::Program& program, const CostModel& cost);
  // Gives all instances of an axis what the slowest of it has.
  void equalise();

  const Mesh& mesh() const { return program_.mesh; }

  const std::vector<Partners>& partners() const { return partners_; }  // by stage
  const std::vector<Instance>& instances() const { return instances_; }
  const Network& network() const { return topology_.network(); }
  std::span<const RankEnd> ends(const Instance& i) const {
    return std::span(ends_).subspan(i.first_end, i.ends);
  }
  // Of one of its channels.
  std::span<const LinkLoads::Load> loads(const Instance& i) const {
    return std::span(loads_).subspan(i.first_load, i.loads);
  }
  const Price& price(const Instance& i) const { return prices_[static_cast<std::size_t>(i.price)]; }
  // That a rank takes part in, by a slot of its stage; -1: nobody is at the other end.
  std::int32_t instance_of(std::int64_t rank, std::size_t slot) const {
    return instance_[static_cast<std::size_t>(rank) * width_ + slot];
  }
  // Links that ops of several lanes can fill together, and all that uses them.
  struct Shared {
    LinkId link;
    std::size_t first, count;
  };
  const std::vector<Shared>& shared() const { return shared_; }
  std::span<const OnLink> on(const Shared& s) const { return std::span(on_links_).subspan(s.first, s.count); }

 private:
  void enumerate();
  void add_slot(LinkLoads& on_links, LinkLoads& direct, std::int32_t stage, std::int32_t slot);
  void add_end(std::int64_t rank, std::int32_t stage, const Partners::Slot& slot);
  void set_prices();
  Price price_of(const Instance& i) const;
  void find_shared();
  bool fills(LinkId link, std::span<const OnLink> here) const;

  const Topology& topology_;
  const program::Program& program_;
  const CostModel& cost_;
  std::vector<Partners> partners_;
  std::size_t width_ = 0;               // most slots of a class
  std::vector<std::int32_t> instance_;  // by rank and slot
  std::vector<Instance> instances_;     // axis by axis
  std::vector<std::size_t> axis_ends_;  // in instances_
  // Of the axis at hand, where its collectives are no rings: what rings over its groups would put on links.
  std::vector<std::vector<LinkLoads::Load>> rings_;
  std::vector<RankEnd> ends_;
  std::vector<LinkLoads::Load> loads_;
  std::vector<Price> prices_;
  std::vector<OnLink> on_links_;  // link by link
  std::vector<Shared> shared_;
};

}  // namespace orrery::sim
