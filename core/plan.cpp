// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"

#include <algorithm>

namespace orrery {
namespace {

// "8x3,4,0": three eights, a four and a nought. Where numbers change often, the most and the least: "8..0".
std::string in_runs(const std::vector<std::int64_t>& numbers) {
  constexpr int kMostRuns = 6;
  std::string out;
  int runs = 0;
  for (auto at = numbers.begin(); at != numbers.end(); ++runs) {
    const auto end = std::find_if(at, numbers.end(), [&](std::int64_t n) { return n != *at; });
    out += fmt::format("{}{}", runs > 0 ? "," : "", *at);
    if (end - at > 1) out += fmt::format("x{}", end - at);
    at = end;
  }
  if (runs <= kMostRuns) return out;
  const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
  return fmt::format("{}..{}", *most, *least);
}

}  // namespace

std::string short_name(const Plan& p) {
  std::string text = fmt::format("TP{} PP{} DP{}", p.tp, p.pp, p.dp);
  if (p.islands > 1) text += fmt::format("x{}", p.islands);
  if (p.cp > 1) text += fmt::format(" CP{}", p.cp);
  if (p.cp > 1) text += fmt::format(" {}", name_of(p.context_way()));
  if (p.ulysses > 1 && p.ulysses < p.cp) text += fmt::format("/{}", p.ulysses);
  if (p.ep > 1) text += fmt::format(" EP{}", p.ep);
  if (p.expert_tp() != p.tp) text += fmt::format(" ETP{}", p.expert_tp());
  if (p.exchanges_by_node()) text += " by-node";
  if (p.overlap_exchanges) text += " overlapped";
  if (p.vpp > 1) text += fmt::format(" VPP{}", p.vpp);
  text += fmt::format(" mb{}x{}", p.micro_batch, p.micro_batches);
  if (p.pp > 1) text += fmt::format(" {}", name_of(p.schedule));
  if (p.sequence_parallel) text += " sp";
  if (p.zero > 0) text += fmt::format(" zero{}", p.zero);
  if (p.zero > 0 && p.shards() != p.copies()) text += fmt::format("/{}", p.shards());
  if (!p.reshards()) text += " keep";
  if (p.recompute != Recompute::kNone) text += fmt::format(" {}", name_of(p.recompute));
  for (const RecomputePart part : p.recompute_parts) {
    text += part == p.recompute_parts.front() ? ' ' : '+';
    text += name_of(part);
  }
  if (p.recompute == Recompute::kFull && p.recompute_layers > 1)
    text += fmt::format("/{}", p.recompute_layers);
  if (p.recompute_first > 0) text += fmt::format(" first {}", p.recompute_first);
  if (!p.recompute_by_chunk.empty()) text += " by chunk " + in_runs(p.recompute_by_chunk);
  if (p.loss_chunks > 1) text += fmt::format(" loss/{}", p.loss_chunks);
  if (p.update_in_backward) text += " update-in-backward";
  const auto where = [](bool drives) { return drives ? "nvme" : "host"; };
  if (p.offloaded_optimizer() > 0)
    text += fmt::format(" {}-optimizer {:g}%", where(p.optimizer_on_drives()), 100 * p.offload->optimizer);
  if (p.offloads_parameters()) text += fmt::format(" {}-parameters", where(p.parameters_on_drives()));
  if (p.offloaded_layers() > 0) text += fmt::format(" host-activations {}", p.offloaded_layers());
  if (p.offloaded_optimizer() > 0 && !p.offload->overlap) text += " one-by-one";
  if (p.rank_order != RankOrder::kTpDpPp) text += fmt::format(" {}", name_of(p.rank_order));
  if (p.table_split) text += fmt::format(" by-{}", name_of(*p.table_split));
  if (!p.chunk_layers.empty()) text += " uneven";
  return text;
}

std::int64_t communicators(const Plan& p) {
  const bool mixed = p.ulysses > 1 && p.ulysses < p.cp;
  std::int64_t groups = (p.tp > 1) + (p.copies() > 1) + (p.pp > 1) + (mixed ? 2 : p.cp > 1 && p.dp > 1);
  groups += p.islands > 1;
  if (p.splits_experts()) groups += (p.ep > 1) + (p.expert_tp() > 1) + (p.expert_dp() > 1);
  return groups;
}

std::string placement(const Plan& p, RankOrder order) {
  std::string out(name_of(order));
  for (const auto& [axis, degree] : {std::pair{"tp", p.tp}, {"dp", p.copies()}, {"pp", p.pp}}) {
    if (degree == 1) out.erase(out.find(axis), 2);
  }
  std::erase(out, '-');
  return out;
}

std::vector<std::int64_t> layers_by_chunk(const Plan& p, std::int64_t layers) {
  if (!p.chunk_layers.empty()) return p.chunk_layers;
  const std::int64_t chunks = p.pp * p.vpp;
  std::vector<std::int64_t> out(static_cast<std::size_t>(chunks), layers / chunks);
  for (std::int64_t c = 0; c < layers % chunks; ++c) ++out[static_cast<std::size_t>(c)];
  return out;
}

std::int64_t recomputed_layers(const Plan& p, std::int64_t c, std::int64_t layers) {
  if (p.recompute != Recompute::kFull) return 0;
  if (!p.recompute_by_chunk.empty()) return p.recompute_by_chunk[static_cast<std::size_t>(c)];
  return p.recompute_first > 0 ? std::min(p.recompute_first, layers) : layers;
}

Plan with_recomputed(Plan p, std::vector<std::int64_t> by_chunk, std::int64_t layers) {
  const std::vector<std::int64_t> all = layers_by_chunk(p, layers);
  const std::int64_t most = *std::max_element(by_chunk.begin(), by_chunk.end());
  const auto of_first = [&](std::int64_t n, std::int64_t of_chunk) { return n == std::min(most, of_chunk); };
  p.recompute = most > 0 ? Recompute::kFull : Recompute::kNone;
  p.recompute_parts.clear();
  p.recompute_layers = 1;
  p.recompute_first = 0;
  p.recompute_by_chunk.clear();
  if (most == 0 || by_chunk == all) return p;
  if (std::equal(by_chunk.begin(), by_chunk.end(), all.begin(), all.end(), of_first))
    p.recompute_first = most;
  else
    p.recompute_by_chunk = std::move(by_chunk);
  return p;
}

ChunkPlacement chunk_placement(const Plan& p) {
  switch (p.schedule) {
    case Schedule::kNaive:
    case Schedule::kGPipe:
    case Schedule::k1F1B:
    case Schedule::kInterleaved:
    case Schedule::kZeroBubbleH1:
      break;
    case Schedule::kZeroBubbleV:
    case Schedule::kDualPipeV:
      return ChunkPlacement::kThereAndBack;
    case Schedule::kListed:
      if (p.schedule_order) return p.schedule_order->chunks;
  }
  return ChunkPlacement::kInTurns;
}

std::int64_t stage_of_chunk(ChunkPlacement placement, std::int64_t stages, std::int64_t chunk) {
  const std::int64_t lap = chunk / stages, place = chunk % stages;
  return placement == ChunkPlacement::kThereAndBack && lap % 2 == 1 ? stages - 1 - place : place;
}

std::int64_t stage_of_chunk(const Plan& p, std::int64_t chunk) {
  return stage_of_chunk(chunk_placement(p), p.pp, chunk);
}

}  // namespace orrery
