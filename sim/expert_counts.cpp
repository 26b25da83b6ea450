// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_counts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "program/expert_spans.h"
#include "sim/expert_loads.h"

namespace orrery::sim {
namespace {

// The first rank that a process stands for.
std::vector<std::int64_t> first_ranks(const Timeline& t) {
  std::vector<std::int64_t> out(t.rank_labels.size(), -1);
  for (std::size_t p = 0; p < out.size() && t.process_of.empty(); ++p) out[p] = static_cast<std::int64_t>(p);
  for (std::size_t r = 0; r < t.process_of.size(); ++r) {
    std::int64_t& first = out[static_cast<std::size_t>(t.process_of[r])];
    if (first < 0) first = static_cast<std::int64_t>(r);
  }
  return out;
}

}  // namespace

ExpertCounts drawn_counts(const program::Program& program, const Timeline& timeline) {
  ExpertCounts out;
  if (!program.training.expert_load) return out;
  const std::vector<ExpertsAt> layers = experts_of(program.model);
  // By block and the number in it: which of all.
  std::map<std::pair<std::int64_t, std::int32_t>, std::size_t> number_of;
  std::map<std::int64_t, std::int32_t> seen;
  for (std::size_t i = 0; i < layers.size(); ++i) number_of[{layers[i].block, seen[layers[i].block]++}] = i;

  // A group is shown by the first process that has some of its ranks.
  const std::vector<std::int64_t> rank_of = first_ranks(timeline);
  std::vector<std::int32_t> group_of(rank_of.size(), -1);
  std::map<std::vector<std::int64_t>, std::int32_t> known;
  std::int64_t numbers = 0;  // of a micro-batch
  for (std::size_t p = 0; p < rank_of.size(); ++p) {
    const std::int64_t chosen =
        program::experts_chosen_from(program.classes[static_cast<std::size_t>(program.stage_of(rank_of[p]))]);
    if (chosen == 0) continue;
    std::vector<std::int64_t> ranks = program::expert_group(program, rank_of[p]);
    const auto group = static_cast<std::int32_t>(out.groups.size());
    if (!known.try_emplace(ranks, group).second) continue;
    out.groups.push_back(std::move(ranks));
    group_of[p] = group;
    numbers += chosen;
  }
  const std::int64_t all = program.plan.micro_batches,
                     kept = numbers == 0 ? all : std::min(all, ExpertCounts::kMost / numbers);
  out.left_out = static_cast<std::int32_t>(all - kept);

  const Plan& plan = program.plan;
  // Where ranks have experts as they have other weights, tensor ranks choose alike for all of their tokens.
  const SharedExperts of = plan.splits_experts()
                               ? shared_experts(plan, program.training)
                               : SharedExperts{1, 1, plan.micro_batch * program.training.sequence / plan.cp};
  const ExpertLoads loads(program.model, program.training);
  std::map<std::pair<std::int32_t, std::size_t>, std::vector<std::vector<std::int64_t>>> drawn;
  for (const program::ExpertSpan& span : program::expert_spans(program, timeline)) {
    const std::int32_t group = group_of[static_cast<std::size_t>(span.process)];
    if (group < 0 || span.micro_batch >= kept) continue;
    const std::size_t layer = number_of.at({span.layer, span.of_block});
    auto& by_micro_batch = drawn[{group, layer}];
    if (by_micro_batch.empty())
      by_micro_batch = loads.tokens(of, layer, static_cast<std::uint64_t>(group), kept);
    out.of.push_back({group, span.layer, span.micro_batch, span.start, span.end,
                      std::move(by_micro_batch[static_cast<std::size_t>(span.micro_batch)])});
  }
  out.tidy();
  return out;
}

}  // namespace orrery::sim
