// SPDX-License-Identifier: Apache-2.0
#include "planner/space.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <optional>

#include "core/search_axes.h"
#include "program/program.h"
#include "program/schedule.h"
#include "sim/expert_loads.h"

namespace orrery::planner {
namespace {

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    out.push_back(d);
    if (d * d != n) out.push_back(n / d);
  }
  std::sort(out.begin(), out.end());
  return out;
}

template <class T>
std::vector<T> listed_or(const std::vector<T>& listed, std::vector<T> otherwise) {
  return listed.empty() ? std::move(otherwise) : listed;
}

// Whether stages are of nearly the same size: the largest is at most a ninth above the mean, and fewer stages
// would have larger ones. A depth that fills its stages on few devices does so on many.
bool fills(std::int64_t layers, std::int64_t stages) {
  const auto largest = [&](std::int64_t n) { return (layers + n - 1) / n; };
  return 10 * layers >= 9 * stages * largest(stages) &&
         (stages == 1 || largest(stages) < largest(stages - 1) || layers % stages == 0);
}

// Powers of two that leave each rank of a long sequence at least this many tokens: below, attention is a
// small part of the work and larger micro-batches are not wanted less.
constexpr std::int64_t kLeastTokens = 8192;
std::vector<std::int64_t> context_degrees(const Problem& problem) {
  std::vector<std::int64_t> out{1};
  const Training& t = problem.scenario.training;
  for (std::int64_t cp = 2; cp * kLeastTokens <= t.sequence && cp <= problem.cluster.devices(); cp *= 2) {
    if (program::context_problem(problem.scenario.model, t, {.cp = cp}).empty()) out.push_back(cp);
  }
  return out;
}

// Sets of parts that selective recomputation may repeat, each with those before it: what costs least time for
// the memory that it saves comes first, and attention with scores in memory before all. An empty set:
// attention.
std::vector<std::vector<RecomputePart>> repeated_parts(const Problem& problem) {
  using enum RecomputePart;
  const Search& s = problem.scenario.search;
  RecomputeParts has = depth_of(problem.scenario.model).parts(problem.stack.norms_in_products);
  if (!s.recompute_parts.empty()) has = has & RecomputeParts(s.recompute_parts);
  if (problem.stack.runs) has = has & RecomputeParts(problem.stack.runs->recompute_parts);
  std::vector<std::vector<RecomputePart>> out;
  RecomputeParts repeated;
  const auto repeat_too = [&](RecomputeParts parts) {
    if ((parts & has).without(repeated).empty()) return;
    repeated = repeated | (parts & has);
    out.push_back(repeated.list());
  };
  const bool listed = !s.recompute_parts.empty();
  if (listed || !problem.stack.flash_attention) repeat_too(kCoreAttention);
  repeat_too(RecomputeParts(kNorms) | kExpertActivation);
  repeat_too(kLatentProjection);
  repeat_too(RecomputeParts(kMlp) | kSharedExperts);
  if (listed) repeat_too(kExperts);
  // Attention that keeps no scores is repeated where the search asks for it.
  const bool asked =
      std::find(s.recompute.begin(), s.recompute.end(), Recompute::kSelective) != s.recompute.end();
  if (out.empty() && asked && !listed) out.emplace_back();
  return out;
}

}  // namespace

std::vector<std::int64_t> replicas_up_to(std::int64_t batch, std::int64_t micro_batch, std::int64_t most) {
  std::vector<std::int64_t> out;
  if (batch % micro_batch == 0) {
    out = divisors(batch / micro_batch);
    out.erase(std::upper_bound(out.begin(), out.end(), most), out.end());
    std::reverse(out.begin(), out.end());
  }
  if (out.empty()) out.push_back(0);
  return out;
}

std::int64_t replicas(std::int64_t batch, std::int64_t micro_batch, std::int64_t most) {
  return replicas_up_to(batch, micro_batch, most).front();
}

Canonical canonical(const Plan& p) {
  const auto number = [](auto value) { return static_cast<std::int64_t>(value); };
  return {{p.tp,
           p.pp,
           p.vpp,
           p.dp,
           p.islands,
           p.cp,
           p.ulysses,
           number(p.rings()),
           p.ep,
           p.expert_tp(),
           number(p.exchanges_by_node()),
           number(p.overlap_exchanges),
           p.micro_batch,
           p.zero,
           p.shard_group,
           number(p.reshards()),
           number(p.schedule),
           number(p.recompute),
           p.repeated().bits(),
           p.recompute_layers,
           p.recompute_first,
           p.loss_chunks,
           number(p.rank_order),
           number(p.sequence_parallel),
           std::bit_cast<std::int64_t>(p.offloaded_optimizer()),
           number(p.offloads_parameters()),
           p.offloaded_layers(),
           number(!p.offload || p.offload->overlap),
           p.offload ? static_cast<std::int64_t>(p.offload->nvme) : 0},
          p.chunk_layers,
          p.recompute_by_chunk};
}

Space::Space(const Problem& problem)
    : problem_(problem),
      shared_(shared_count(problem.scenario.model)),
      heads_(depth_of(problem.scenario.model).shared(Degree::kHeads)),
      columns_(depth_of(problem.scenario.model).shared(Degree::kExpertTensor)),
      experts_(depth_of(problem.scenario.model).shared(Degree::kExpert)),
      expert_biases_(depth_of(problem.scenario.model).expert_biases()) {
  const Model& m = problem.scenario.model;
  const Search& s = problem.scenario.search;
  const std::int64_t devices = problem.cluster.devices();
  std::vector<std::int64_t> tp;
  for (const std::int64_t d : divisors(shared_)) {
    if (d <= devices) tp.push_back(d);
  }
  std::vector<std::int64_t> mb;
  for (const std::int64_t d : divisors(problem.scenario.training.global_batch)) {
    if (d <= 16) mb.push_back(d);
  }
  std::vector<std::int64_t> pp;
  for (std::int64_t p = 1; p <= std::min(m.layers, devices); ++p) {
    if (fills(m.layers, p) || fills(m.layers + ends_as_layers(m).sum(), p)) pp.push_back(p);
  }
  Search all = s;
  all.tp = listed_or(s.tp, std::move(tp));
  all.cp = listed_or(s.cp, context_degrees(problem));
  all.cp_keys = listed_or(s.cp_keys, {ContextKeys::kRing, ContextKeys::kAllGather});
  all.ep = listed_or(s.ep, experts_ > 0 ? divisors(experts_) : std::vector<std::int64_t>{1});
  all.expert_exchange = listed_or(s.expert_exchange, {ExpertExchange::kByNode, ExpertExchange::kFlat});
  all.overlap_exchanges = listed_or(s.overlap_exchanges, {true, false});
  all.pp = listed_or(s.pp, std::move(pp));
  all.zero = listed_or(s.zero, {0, 1, 2, 3});
  all.islands = listed_or(s.islands, {1});
  all.loss_chunks = listed_or(s.loss_chunks, {1});
  all.reshard_after_forward = listed_or(s.reshard_after_forward, {true});
  all.shard_group = listed_or(s.shard_group, {0, problem.cluster.devices_per_node});
  all.schedule =
      listed_or(s.schedule, {Schedule::k1F1B, Schedule::kGPipe, Schedule::kInterleaved,
                             Schedule::kZeroBubbleH1, Schedule::kZeroBubbleV, Schedule::kDualPipeV});
  all.recompute = listed_or(s.recompute, {Recompute::kNone, Recompute::kSelective, Recompute::kFull});
  all.recompute_layers = listed_or(s.recompute_layers, {1, 2, 4});
  all.sequence_parallel = listed_or(s.sequence_parallel, {false, true});
  all.rank_order = listed_or(s.rank_order, {RankOrder::kTpDpPp, RankOrder::kTpPpDp, RankOrder::kDpTpPp});
  keep_runnable(problem.stack, all);
  if (all.schedule.empty()) all.schedule = {Schedule::k1F1B};  // of one stage, where all are the same
  const std::vector<std::int64_t> one{1};
  if (all.tp == one && all.pp == one && !all.rank_order.empty())  // all the same
    all.rank_order = {all.rank_order.front()};
  std::sort(all.recompute.begin(), all.recompute.end());  // what repeats more comes later
  for (const Recompute r : all.recompute) {
    switch (r) {
      case Recompute::kNone:
        remat_.push_back({r, {}, 1});
        break;
      case Recompute::kSelective:
        for (std::vector<RecomputePart>& parts : repeated_parts(problem))
          remat_.push_back({r, std::move(parts), 1});
        break;
      case Recompute::kFull:
        const auto& strides = all.recompute_layers;
        const bool each = std::find(strides.begin(), strides.end(), 1) != strides.end();
        if (each && (!problem.stack.runs || problem.stack.runs->recompute_first)) {
          for (const std::int64_t first : s.recompute_first) {
            if (first > 0) remat_.push_back({r, {}, 1, first});
          }
          for (std::int64_t quarters = 1; quarters < 4 && s.recompute_first.empty(); ++quarters)
            remat_.push_back({r, {}, 1, 0, quarters});
        }
        if (!s.recompute_first.empty() &&
            std::find(s.recompute_first.begin(), s.recompute_first.end(), 0) == s.recompute_first.end())
          break;
        for (const std::int64_t k : strides) remat_.push_back({r, {}, k});
    }
  }
  sim::ExpertLoads loads(m, problem.scenario.training);
  // Numbers of ranks that share experts, and their columns.
  const auto over_experts = [&](std::int64_t t, bool sp) {
    std::vector<std::pair<std::int64_t, std::int64_t>> out;
    std::vector<std::int64_t> etp{t};
    if (experts_ > 0 && t > 1 && sp) etp.push_back(1);
    for (const std::int64_t columns : listed_or(s.etp, std::move(etp))) {
      for (const std::int64_t ep : all.ep) {
        if (ep * columns <= devices) out.emplace_back(ep, columns);
      }
    }
    return out;
  };
  for (const std::int64_t t : all.tp) {
    for (const bool sp : t == 1 ? std::vector<bool>{false} : all.sequence_parallel) {
      for (const RankOrder order : all.rank_order) {
        if (t == 1 && order == RankOrder::kDpTpPp && s.rank_order.empty()) continue;  // the same placement
        for (const Context& context : contexts(all)) {
          if (context.cp * t > devices) continue;
          for (const auto& [ep, etp] : over_experts(t, sp)) {
            for (const ExpertExchange exchange : exchanges(all, ep)) {
              for (const std::int64_t b : listed_or(s.micro_batch, mb)) {
                for (const std::int64_t islands : all.islands) {
                  for (const std::int64_t chunks : all.loss_chunks) {
                    Outer o{t, b, context, ep, etp, exchange, order, sp, islands, chunks};
                    if (program::loss_problem(m, problem.scenario.training, o.plan()) ||
                        program::mtp_problem(m, o.plan()))
                      continue;
                    const double room = loads.room(sim::shared_experts(o.plan(), problem.scenario.training));
                    if (room > 1) o.expert_room = room;
                    outer_.push_back(o);
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  pp_ = std::move(all.pp);
  zero_ = std::move(all.zero);
  if (s.zero.empty())
    std::erase_if(zero_, [&](std::int64_t z) { return program::mtp_problem(m, {.zero = z}); });
  for (std::size_t i = 0; i < s.zero.size(); ++i) {
    if (const auto wrong = program::mtp_problem(m, {.zero = s.zero[i]}))
      problem.at.child("search").child("zero").child(i).fail(wrong->why, wrong->allowed);
  }
  for (std::size_t i = 0; i < s.schedule.size(); ++i) {
    if (s.schedule[i] != Schedule::kListed) continue;
    problem.at.child("search")
        .child("schedule")
        .child(i)
        .fail("a search has no list of work", "allowed: schedules that are not listed");
  }
  for (std::size_t i = 0; i < s.islands.size(); ++i) {
    const auto wrong = program::islands_problem({.islands = s.islands[i]}, problem.scenario.training);
    if (wrong) problem.at.child("search").child("islands").child(i).fail(wrong->why, wrong->allowed);
  }
  for (std::size_t i = 0; i < s.offload.size(); ++i) {
    // Of the stage that allows most.
    const auto wrong =
        program::offload_problem({.zero = 3, .offload = s.offload[i]}, problem.scenario.training);
    if (!wrong) continue;
    const Cursor at = problem.at.child("search").child("offload").child(i);
    at.child(wrong->field).fail(wrong->why, wrong->allowed);
  }
  for (const std::int64_t shard : all.shard_group) {
    for (const bool reshards : all.reshard_after_forward) {
      if (all.offload.empty()) shards_.push_back({shard, reshards, std::nullopt});
      for (const Offload& o : all.offload)
        shards_.push_back({shard, reshards, o == Offload{} ? std::nullopt : std::optional(o)});
    }
  }
  schedules_ = std::move(all.schedule);
  overlaps_ = std::move(all.overlap_exchanges);
}

// Those that the stack runs.
std::vector<Space::Context> Space::contexts(const Search& all) const {
  std::vector<Context> out;
  for (const std::int64_t cp : all.cp) {
    std::vector<std::int64_t> heads{1};
    if (cp > 1) heads.push_back(cp);
    const std::vector<std::int64_t>& listed = problem_.scenario.search.ulysses;
    if (cp > 1 && !listed.empty()) heads = listed;
    for (const std::int64_t ulysses : heads) {
      if (cp % ulysses != 0) continue;
      std::vector<std::optional<ContextKeys>> keys{std::nullopt};
      if (ulysses < cp) keys.assign(all.cp_keys.begin(), all.cp_keys.end());
      for (const std::optional<ContextKeys> k : keys) {
        const Plan p{.cp = cp, .ulysses = ulysses, .cp_keys = k};
        if (cp == 1 || runs_context(problem_.stack, p)) out.push_back({cp, ulysses, k});
      }
    }
  }
  return out;
}

// By node, rows go round inside a node beside what they cross the network with: where links inside are as
// fast as that takes, it is the only one tried of a stack that has it.
std::vector<ExpertExchange> Space::exchanges(const Search& all, std::int64_t ep) const {
  if (ep == 1) return {ExpertExchange::kFlat};
  if (!problem_.scenario.search.expert_exchange.empty() || all.expert_exchange.empty())
    return all.expert_exchange;
  const Cluster& c = problem_.cluster;
  for (std::size_t i = 0; i < c.types(); ++i) {
    const NodeType& node = c.type(i);
    const double inside = static_cast<double>(node.intra_bandwidth.value) * node.intra_efficiency;
    const double port = static_cast<double>(node.nic_bandwidth.value) * node.nic_efficiency /
                        static_cast<double>(c.devices_per_node);
    if (inside < 2 * port) return all.expert_exchange;
  }
  return {all.expert_exchange.front()};
}

Plan Space::Outer::plan() const {
  Plan p{.tp = tp,
         .islands = islands,
         .cp = context.cp,
         .ulysses = context.ulysses,
         .cp_keys = context.keys,
         .ep = ep,
         .sequence_parallel = sequence_parallel};
  if (etp != tp) p.etp = etp;
  if (exchange == ExpertExchange::kByNode) p.expert_exchange = exchange;
  p.expert_room = expert_room;
  p.micro_batch = micro_batch;
  p.loss_chunks = loss_chunks;
  p.rank_order = rank_order;
  return p;
}

Space::Counts Space::visit(const Outer& o, const Visitor& visitor) const {
  Counts counts;
  const Model& m = problem_.scenario.model;
  const Search& s = problem_.scenario.search;
  const Training& t = problem_.scenario.training;
  const auto rows_divide = [&](std::int64_t tokens) {
    return tokens / o.context.cp * o.micro_batch % o.tp == 0;
  };
  const std::vector<std::int64_t> tokens = tower_tokens(m, t);
  const std::int64_t batch = t.global_batch / o.islands;  // of an island
  const bool divides =
      t.global_batch % o.islands == 0 && shared_ % o.tp == 0 && heads_ % (o.tp * o.context.ulysses) == 0 &&
      program::context_problem(m, t, o.plan()).empty() && columns_ % o.etp == 0 && experts_ % o.ep == 0 &&
      (!expert_biases_ || m.hidden % o.etp == 0) &&
      (!o.sequence_parallel || (!m.has_pair() && std::all_of(tokens.begin(), tokens.end(), rows_divide))) &&
      program::takes_rounding(m, t, o.plan());
  // ZeRO-2 and 3 communicate in chunks, which is dear to price: the others come first and bound them.
  std::array<std::vector<std::int64_t>, 2> passes;
  for (const std::int64_t zero : zero_) passes[zero < 2 ? 0 : 1].push_back(zero);
  std::vector<bool> closed;  // by pp and dp: counted as one combination
  for (const std::vector<std::int64_t>& zeros : passes) {
    if (zeros.empty()) continue;
    const bool first = &zeros == &passes[0] || passes[0].empty();
    std::size_t group = 0;
    Plan p = o.plan();
    for (const std::int64_t pp : pp_) {
      p.pp = pp;
      const std::int64_t most = problem_.cluster.devices() / (o.tp * o.context.cp * pp * o.islands);
      std::vector<std::int64_t> dps = listed_or(s.dp, replicas_up_to(batch, o.micro_batch, most));
      std::sort(dps.begin(), dps.end(), std::greater<>());
      std::vector<bool> hopeless;  // by what plans of a pp differ in besides dp
      for (const std::int64_t dp : dps) {
        p.dp = dp;
        if (first) closed.push_back(false);
        const std::size_t at = group++;
        if (closed[at]) continue;
        const auto close = [&](std::int64_t& why) {
          closed[at] = true;
          ++counts.considered;
          ++why;
        };
        if (!divides || dp < 1 || dp > most || batch % (dp * o.micro_batch) != 0 ||
            program::experts_problem(p)) {
          close(counts.invalid);
          continue;
        }
        p.micro_batches = batch / (dp * o.micro_batch);
        if (visitor.wanted && !visitor.wanted(p)) {
          close(counts.unwanted);
          continue;
        }
        visit_shapes(p, zeros, visitor, hopeless, counts);
      }
    }
  }
  return counts;
}

// Whether exchanges of a plan may run beside another micro-batch's compute, as far as its ranks and its
// schedule say.
std::vector<bool> Space::overlaps(const Plan& p) const {
  if (p.ep == 1) return {false};
  Plan side_by_side{.pp = p.pp, .ep = p.ep, .overlap_exchanges = true, .schedule = p.schedule};
  const bool possible = program::overlap_problem(side_by_side).empty();
  std::vector<bool> out;
  for (const bool overlapped : overlaps_) {
    if (!overlapped || possible) out.push_back(overlapped);
  }
  return out;
}

namespace {

// Layers that so many quarters of a chunk's layers are; 0 where fewer quarters are as many, or all are.
std::int64_t first_of_quarters(std::int64_t quarters, std::int64_t layers) {
  const auto first = [&](std::int64_t q) { return (layers * q + 3) / 4; };
  return first(quarters) == first(quarters - 1) || first(quarters) == layers ? 0 : first(quarters);
}

}  // namespace

// The plans of a tp, pp and dp. `hopeless`: by what else they differ in, those that did not fit with more
// replicas.
void Space::visit_shapes(Plan p, const std::vector<std::int64_t>& zeros, const Visitor& visitor,
                         std::vector<bool>& hopeless, Counts& counts) const {
  const Model& m = problem_.scenario.model;
  const Search& s = problem_.scenario.search;
  const Training& t = problem_.scenario.training;
  std::size_t shape = 0;
  for (const Schedule schedule : schedules_) {
    if (p.pp == 1 && schedule != schedules_.front()) continue;  // no pipeline: all are the same
    p.schedule = p.pp == 1 ? Schedule::k1F1B : schedule;
    std::vector<std::int64_t> vpps{1};
    if (chunk_placement(p) == ChunkPlacement::kThereAndBack) vpps = {2};
    if (p.schedule == Schedule::kInterleaved) {
      vpps = s.vpp;
      if (vpps.empty()) {
        for (std::int64_t v = 2; v * p.pp <= m.layers; ++v) {
          if (m.layers % (v * p.pp) == 0 || lighter_ends_are_equal(m, v * p.pp)) vpps.push_back(v);
        }
      }
    }
    std::vector<std::pair<std::int64_t, bool>> chunks_and_overlaps;
    for (const std::int64_t v : vpps) {
      for (const bool overlapped : overlaps(p)) chunks_and_overlaps.emplace_back(v, overlapped);
    }
    for (const auto& [v, overlapped] : chunks_and_overlaps) {
      p.vpp = v;
      p.overlap_exchanges = overlapped;
      const std::int64_t chunks = p.pp * v;
      const bool possible = chunks <= m.layers && m.layers * p.micro_batches <= program::kMostLayerRuns &&
                            program::schedule_problem(p.schedule, p.pp, v, p.micro_batches).empty();
      for (const bool light : {false, true}) {
        if (light && (p.pp == 1 || m.layers + ends_as_layers(m).sum() < 2 * chunks)) continue;
        // Interleaved chunks are equal, as Megatron wants them: unequal ones stall each other.
        if (p.schedule == Schedule::kInterleaved &&
            !(light ? lighter_ends_are_equal(m, chunks) : m.layers % chunks == 0))
          continue;
        p.chunk_layers.clear();
        if (light) {
          const auto even = layers_by_chunk(p, m.layers);
          p.chunk_layers = lighter_ends(m, chunks);
          if (p.chunk_layers == even) continue;  // the same plan
        }
        // By zero and shards, whatever is recomputed: whether it may fit, and whether it is too slow even if
        // nothing is.
        const std::size_t kinds = zeros.size() * shards_.size();
        std::vector<std::optional<bool>> holds(kinds);
        std::vector<bool> slow(kinds), slow_without(kinds);
        for (const Remat& r : remat_) {
          p.recompute = r.mode;
          p.recompute_parts = r.parts;
          p.recompute_layers = r.every;
          const std::int64_t of_chunk = (m.layers + chunks - 1) / chunks;
          p.recompute_first = r.quarters > 0       ? first_of_quarters(r.quarters, of_chunk)
                              : r.first < of_chunk ? r.first
                                                   : 0;
          for (const std::int64_t zero : zeros) {
            for (const auto& [shard, reshards, offload] : shards_) {
              const std::size_t at = shape++;
              if (at == hopeless.size()) hopeless.push_back(false);
              const bool grouped = shard > 0 && shard < p.dp;
              if (shard > 0 && (zero == 0 || !grouped)) continue;
              if (!reshards && zero != 3) continue;
              p.zero = zero;
              p.shard_group = grouped ? shard : 0;
              p.reshard_after_forward = reshards ? std::nullopt : std::optional(false);
              p.offload = offload;
              if (program::offload_problem(p, t) || program::islands_problem(p, t)) continue;
              if (!runs_plan(problem_.stack, m, p, t)) continue;
              ++counts.considered;
              const bool bad = !possible || r.every > (m.layers + chunks - 1) / chunks ||
                               (r.of_some() && p.recompute_first == 0) ||
                               (zero > 0 && p.copies() == 1 && !p.offloads_parameters()) ||
                               (grouped && p.dp % shard != 0) || !program::shards_fit_experts(p) ||
                               !program::overlap_problem(p).empty() ||
                               (zero >= 2 && program::splits_backward(p.schedule));
              if (bad || hopeless[at]) {
                ++(bad ? counts.invalid : counts.hopeless);
                continue;
              }
              const std::size_t kind = at % kinds;
              std::optional<bool>& held = holds[kind];
              if (!held) held = !visitor.may_hold || visitor.may_hold(p);
              if (!*held || (r.of_some() ? slow_without[kind] : slow[kind])) {
                hopeless[at] = !*held;
                ++counts.hopeless;
                continue;
              }
              const Verdict verdict = visitor.plan(p);
              hopeless[at] = verdict == Verdict::kTooLarge;
              // Those that come later repeat all that it repeats, but for those of some layers alone.
              const bool too_slow = verdict == Verdict::kTooSlow;
              if (r.mode != Recompute::kFull) slow[kind] = slow[kind] || too_slow;
              if (r.mode == Recompute::kNone) slow_without[kind] = too_slow;
            }
          }
        }
      }
    }
  }
}

}  // namespace orrery::planner
