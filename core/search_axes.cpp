// SPDX-License-Identifier: Apache-2.0
#include "core/search_axes.h"

#include <algorithm>

namespace orrery {
namespace {

// A plan whose axes the software has, for values to be put in one at a time.
Plan plainest(const Capabilities& c) {
  Plan p;
  p.dp = 2;
  if (!c.sequence_parallel.empty()) p.sequence_parallel = c.sequence_parallel.front();
  if (!c.schedule.empty()) p.schedule = c.schedule.front();
  if (!c.zero.empty()) p.zero = c.zero.front();
  if (!c.recompute.empty()) p.recompute = c.recompute.front();
  if (!c.rank_order.empty()) p.rank_order = c.rank_order.front();
  return p;
}

void put_way(Plan& p, ContextWay way) {
  const bool gathers = way == ContextWay::kAllGather || way == ContextWay::kAllGatherUlysses;
  p.ulysses = way == ContextWay::kUlysses ? p.cp : 1;
  if (gathers) p.cp_keys = ContextKeys::kAllGather;
}

// Calls visit(name, list, put) for every axis; put(plan, value) puts a value where it has an effect.
template <class S, class Visit>
void visit_axes(const Capabilities& c, S& s, Visit visit) {
  const std::int64_t tensor = c.tensor_parallel ? 2 : 1, stages = c.schedule.empty() ? 1 : 2;
  visit("tp", s.tp, [](Plan& p, std::int64_t v) { p.tp = v; });
  visit("islands", s.islands, [](Plan& p, std::int64_t v) { p.islands = v; });
  visit("cp", s.cp, [&](Plan& p, std::int64_t v) {
    p.cp = v;
    if (!c.context_parallel.empty()) put_way(p, c.context_parallel.front());
  });
  visit("ulysses", s.ulysses, [](Plan& p, std::int64_t v) { p.cp = p.ulysses = v; });
  visit("cp_keys", s.cp_keys, [](Plan& p, ContextKeys v) {
    p.cp = 2;
    p.cp_keys = v;
  });
  visit("ep", s.ep, [](Plan& p, std::int64_t v) { p.ep = v; });
  visit("etp", s.etp, [](Plan& p, std::int64_t v) { p.etp = v; });
  visit("expert_exchange", s.expert_exchange, [](Plan& p, ExpertExchange v) {
    p.ep = 2;
    p.expert_exchange = v;
  });
  visit("overlap_exchanges", s.overlap_exchanges, [](Plan& p, bool v) {
    p.ep = 2;
    p.overlap_exchanges = v;
  });
  visit("pp", s.pp, [](Plan& p, std::int64_t v) { p.pp = v; });
  visit("vpp", s.vpp, [](Plan& p, std::int64_t v) {
    if (v == 1) return;
    p.pp = 2;
    p.schedule = Schedule::kInterleaved;
  });
  visit("schedule", s.schedule, [](Plan& p, Schedule v) {
    p.pp = 2;
    p.schedule = v;
  });
  visit("sequence_parallel", s.sequence_parallel, [&](Plan& p, bool v) {
    p.tp = v ? 2 : tensor;
    p.sequence_parallel = v;
  });
  visit("zero", s.zero, [](Plan& p, std::int64_t v) { p.zero = v; });
  visit("shard_group", s.shard_group, [&](Plan& p, std::int64_t v) {
    if (v == 0 || c.zero.empty()) return;
    p.dp = 2 * v;
    p.shard_group = v;
    p.zero = *std::max_element(c.zero.begin(), c.zero.end());
  });
  visit("reshard_after_forward", s.reshard_after_forward, [](Plan& p, bool v) {
    if (v) return;
    p.zero = 3;
    p.reshard_after_forward = false;
  });
  visit("recompute", s.recompute, [](Plan& p, Recompute v) { p.recompute = v; });
  visit("recompute_parts", s.recompute_parts, [](Plan& p, RecomputePart v) {
    p.recompute = Recompute::kSelective;
    p.recompute_parts = {v};
  });
  visit("recompute_layers", s.recompute_layers, [](Plan& p, std::int64_t v) {
    p.recompute_layers = v;
    if (v > 1) p.recompute = Recompute::kFull;
  });
  visit("recompute_first", s.recompute_first, [](Plan& p, std::int64_t v) {
    p.recompute_first = v;
    if (v > 0) p.recompute = Recompute::kFull;
  });
  visit("loss_chunks", s.loss_chunks, [](Plan& p, std::int64_t v) { p.loss_chunks = v; });
  visit("offload", s.offload, [](Plan& p, const Offload& v) { p.offload = v; });
  visit("rank_order", s.rank_order, [&](Plan& p, RankOrder v) {
    p.tp = tensor;
    p.pp = stages;
    p.rank_order = v;
  });
}

}  // namespace

void check_search(const Stack& stack, const Search& search, const Cursor& at) {
  if (!stack.runs) return;
  visit_axes(*stack.runs, search, [&](const char* name, const auto& list, auto put) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      Plan p = plainest(*stack.runs);
      put(p, list[i]);
      if (const auto problem = stack_problem(stack, p))
        at.child(name).child(i).fail(problem->text, problem->allowed);
    }
  });
}

void keep_runnable(const Stack& stack, Search& search) {
  if (!stack.runs) return;
  visit_axes(*stack.runs, search, [&](const char*, auto& list, auto put) {
    std::erase_if(list, [&](const auto& value) {
      Plan p = plainest(*stack.runs);
      put(p, value);
      return stack_problem(stack, p).has_value();
    });
  });
}

}  // namespace orrery
