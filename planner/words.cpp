// SPDX-License-Identifier: Apache-2.0
#include "planner/words.h"

#include <fmt/format.h>

#include <vector>

namespace orrery::planner {
namespace {

std::string counted(std::int64_t n, const char* one, const char* many) {
  return n == 1 ? fmt::format("one {}", one) : fmt::format("{} {}", n, many);
}

// How the ranks of a replica share its work.
std::string split_of(const Plan& p) {
  std::vector<std::string> parts;
  if (p.tp > 1)
    parts.push_back(fmt::format("{} ways by tensor parallelism{}", p.tp,
                                p.sequence_parallel ? " with sequence parallelism" : ""));
  if (p.cp > 1)
    parts.push_back(fmt::format("{} ways by context parallelism ({})", p.cp, name_of(p.context_way())));
  if (p.pp > 1) {
    std::string stages = fmt::format("into {} pipeline stages", p.pp);
    if (p.vpp > 1) stages += fmt::format(" of {} chunks", p.vpp);
    parts.push_back(stages + fmt::format(" under {}", name_of(p.schedule)));
  }
  if (parts.empty()) return "Each replica is one device";
  return fmt::format("Each replica is split {}", fmt::join(parts, " and "));
}

const char* shared_by_zero(std::int64_t stage) {
  constexpr const char* kWhat[] = {"", "the optimizer's state", "the optimizer's state and gradients",
                                   "the optimizer's state, gradients and parameters"};
  return kWhat[stage];
}

std::string replicas_of(const Plan& p) {
  std::string out;
  if (p.islands > 1) out = fmt::format("; {} islands of", p.islands);
  if (p.dp == 1 && p.cp == 1 && p.islands == 1) return ". There is one replica";
  out += fmt::format("{} {}", p.islands > 1 ? "" : ";", counted(p.dp, "replica", "replicas"));
  if (p.zero == 0) return out + (p.dp > 1 ? " reduce their gradients" : "");
  out += fmt::format(" share {} (ZeRO-{}", shared_by_zero(p.zero), p.zero);
  if (p.shards() != p.copies()) out += fmt::format(", {} ranks a group", p.shards());
  return out + ")";
}

std::string repeated_of(const Plan& p) {
  switch (p.recompute) {
    case Recompute::kNone:
      return "Nothing is recomputed";
    case Recompute::kSelective: {
      std::vector<std::string_view> parts;
      for (const RecomputePart part : p.repeated().list()) parts.push_back(name_of(part));
      return fmt::format("The backward pass recomputes {} of each layer", fmt::join(parts, ", "));
    }
    case Recompute::kFull:
      break;
  }
  if (p.recompute_first > 0)
    return fmt::format("The backward pass recomputes {} of each chunk",
                       p.recompute_first == 1 ? std::string("the first layer")
                                              : fmt::format("the first {} layers", p.recompute_first));
  if (!p.recompute_by_chunk.empty())
    return "The backward pass recomputes other numbers of layers on each chunk";
  if (p.recompute_layers > 1)
    return fmt::format("The backward pass recomputes all layers, from every {}th layer's input",
                       p.recompute_layers);
  return "The backward pass recomputes all layers";
}

}  // namespace

std::string in_words(const Plan& p, const Model& m) {
  std::string out =
      fmt::format("{}. {}{}", counted(p.ranks(), "device", "devices"), split_of(p), replicas_of(p));
  if (p.splits_experts())
    out += fmt::format(". Experts lie over {} ({})", counted(p.ep, "rank", "ranks"),
                       p.exchanges_by_node() ? "tokens go once to each node" : "tokens go to each by itself");
  out += fmt::format(". Each replica runs {} of {} a step",
                     counted(p.micro_batches, "micro-batch", "micro-batches"),
                     counted(p.micro_batch, "sequence", "sequences"));
  if (p.loss_chunks > 1) out += fmt::format(", with the loss in {} parts", p.loss_chunks);
  out += ". " + repeated_of(p);
  if (p.offloaded_optimizer() > 0)
    out += fmt::format(". {:g} % of the optimizer's state {}", 100 * p.offload->optimizer,
                       p.optimizer_on_drives() ? "lies on the hosts' drives" : "lies in the hosts' memory");
  if (p.offloads_parameters())
    out += fmt::format(". Parameters {}",
                       p.parameters_on_drives() ? "lie on the hosts' drives" : "lie in the hosts' memory");
  if (p.offloaded_layers() > 0)
    out += fmt::format(". Activations of {} of each chunk wait in the hosts' memory",
                       counted(p.offloaded_layers(), "layer", "layers"));
  if (!p.chunk_layers.empty())
    out += fmt::format(". Chunks have {} of the {} layers", fmt::join(p.chunk_layers, ", "), m.layers);
  return out + ".";
}

}  // namespace orrery::planner
