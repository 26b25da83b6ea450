// SPDX-License-Identifier: Apache-2.0
//
// The declared space of plans: the product of what the scenario's search lists, or of everything that
// makes sense; of these, what the scenario's stack runs. Micro-batches follow from batch, dp and micro-batch.
// Plans may leave devices idle, so the space of a cluster holds that of each smaller one.
#pragma once

#include <array>
#include <compare>
#include <functional>
#include <optional>
#include <vector>

#include "core/scenario.h"

namespace orrery::planner {

class Space {
 public:
  explicit Space(const Problem& problem);

  // How ranks share sequences.
  struct Context {
    std::int64_t cp = 1, ulysses = 1;
    std::optional<ContextKeys> keys;
  };
  // The slow axes: what chunk costs depend on. One task of the search.
  struct Outer {
    std::int64_t tp = 1, micro_batch = 1;
    Context context;
    std::int64_t ep = 1, etp = 1;
    ExpertExchange exchange = ExpertExchange::kFlat;
    RankOrder rank_order = RankOrder::kTpDpPp;
    bool sequence_parallel = false;
    std::int64_t islands = 1, loss_chunks = 1;
    std::optional<double> expert_room;  // Plan::expert_room
    // A plan with nothing else set.
    Plan plan() const;
  };
  const std::vector<Outer>& outer() const { return outer_; }

  struct Counts {
    std::int64_t considered = 0;  // combinations
    std::int64_t invalid = 0;     // of them, no plans
    std::int64_t unwanted = 0;    // of them, all plans of a pp and dp, which count as one
    std::int64_t hopeless = 0;    // of them, plans that others show not to fit or to be too slow
  };
  enum class Verdict : std::uint8_t {
    kSeen,
    kTooLarge,  // it does not fit, nor with fewer replicas
    kTooSlow    // nor is it wanted if it recomputes more
  };
  struct Visitor {
    // For each valid plan, those with more replicas first.
    std::function<Verdict(const Plan&)> plan;
    // Whether to visit plans of a pp and dp at all; the plan has nothing else set. Empty: yes.
    std::function<bool(const Plan&)> wanted;
    // Whether a valid plan may fit, or one with fewer replicas, whatever they recompute. Empty: yes.
    std::function<bool(const Plan&)> may_hold;
  };
  Counts visit(const Outer& outer, const Visitor& visitor) const;

 private:
  struct Remat {
    Recompute mode;
    std::vector<RecomputePart> parts;
    std::int64_t every;
    // Of a chunk's layers, the first ones that are recomputed: so many, or so many quarters; 0: all.
    std::int64_t first = 0, quarters = 0;
    bool of_some() const { return first > 0 || quarters > 0; }
  };
  void visit_shapes(Plan plan, const std::vector<std::int64_t>& zeros, const Visitor& visitor,
                    std::vector<bool>& hopeless, Counts& counts) const;

  const Problem& problem_;
  // By tensor ranks; with them by ulysses ranks; by etp ranks and by ep ranks.
  const std::int64_t shared_, heads_, columns_, experts_;
  const bool expert_biases_;
  std::vector<Context> contexts(const Search& all) const;
  std::vector<ExpertExchange> exchanges(const Search& all, std::int64_t ep) const;
  std::vector<bool> overlaps(const Plan& plan) const;

  std::vector<Outer> outer_;
  std::vector<std::int64_t> pp_, zero_;
  struct Shards {
    std::int64_t group;
    bool reshards;  // of ZeRO-3
    std::optional<Offload> offload;
  };
  std::vector<Shards> shards_;
  std::vector<Schedule> schedules_;
  std::vector<bool> overlaps_;
  std::vector<Remat> remat_;
};

// The numbers of replicas, at most `most`, whose micro-batches divide the batch, most first; a 0 if there are
// none.
std::vector<std::int64_t> replicas_up_to(std::int64_t batch, std::int64_t micro_batch, std::int64_t most);
// The first of them.
std::int64_t replicas(std::int64_t batch, std::int64_t micro_batch, std::int64_t most);

// A sort key that tells any two plans apart.
struct Canonical {
  std::array<std::int64_t, 29> fields{};
  std::vector<std::int64_t> chunk_layers, recompute_by_chunk;
  friend auto operator<=>(const Canonical&, const Canonical&) = default;
};
Canonical canonical(const Plan& p);

}  // namespace orrery::planner
