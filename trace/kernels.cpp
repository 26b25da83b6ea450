// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <span>

#include "trace/device_trace.h"

namespace orrery::trace {
namespace {

struct Rule {
  std::string_view part;  // of the name, in small letters
  Work work;
};

std::string small(std::string_view name) {
  std::string out(name);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// The first whose part is in the name.
Work first(std::span<const Rule> rules, const std::string& name, Work otherwise) {
  const auto found = std::find_if(rules.begin(), rules.end(), [&](const Rule& r) {
    return name.find(r.part) != std::string::npos;
  });
  return found == rules.end() ? otherwise : found->work;
}

// NCCL and RCCL: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL". An all-to-all is sends and receives there.
constexpr std::array kNccl{Rule{"allreduce", Work::kAllReduce},         Rule{"allgather", Work::kAllGather},
                           Rule{"reducescatter", Work::kReduceScatter}, Rule{"alltoall", Work::kAllToAll},
                           Rule{"sendrecv", Work::kSendReceive},        Rule{"send", Work::kSendReceive},
                           Rule{"recv", Work::kSendReceive},            Rule{"broadcast", Work::kBroadcast},
                           Rule{"reduce", Work::kBroadcast}};

// Attention before products, as its kernels are built of CUTLASS; products before routing, as those of experts
// are products; the optimizer's many tensors before all.
constexpr std::array kKernels{
    Rule{"multi_tensor_apply", Work::kOptimizer},
    Rule{"multitensorapply", Work::kOptimizer},
    Rule{"adam", Work::kOptimizer},
    Rule{"::ep::", Work::kAllToAll},  // DeepEP
    Rule{"deep_ep", Work::kAllToAll},
    Rule{"flash", Work::kAttention},
    Rule{"fmha", Work::kAttention},
    Rule{"attn", Work::kAttention},
    Rule{"attention", Work::kAttention},
    Rule{"sdpa", Work::kAttention},
    Rule{"gemm", Work::kProduct},
    Rule{"gemv", Work::kProduct},
    Rule{"nvjet", Work::kProduct},
    Rule{"cutlass", Work::kProduct},
    Rule{"cublas", Work::kProduct},
    Rule{"matmul", Work::kProduct},
    Rule{"splitkreduce", Work::kProduct},
    Rule{"triton_tem", Work::kProduct},
    Rule{"cijk_", Work::kProduct},
    Rule{"scudnn", Work::kProduct},
    Rule{"winograd", Work::kProduct},
    Rule{"wgrad", Work::kProduct},
    Rule{"dgrad", Work::kProduct},
    Rule{"conv", Work::kProduct},
    Rule{"moe", Work::kRouting},
    Rule{"topk", Work::kRouting},
    Rule{"expert", Work::kRouting},
};

// Of torch.distributed: "_allgather_base", "reduce_scatter_tensor_coalesced", "all_to_all".
constexpr std::array kCollectives{
    Rule{"all_reduce", Work::kAllReduce},       Rule{"allreduce", Work::kAllReduce},
    Rule{"all_gather", Work::kAllGather},       Rule{"allgather", Work::kAllGather},
    Rule{"reduce_scatter", Work::kReduceScatter}, Rule{"all_to_all", Work::kAllToAll},
    Rule{"alltoall", Work::kAllToAll},          Rule{"send", Work::kSendReceive},
    Rule{"recv", Work::kSendReceive},           Rule{"broadcast", Work::kBroadcast},
    Rule{"reduce", Work::kBroadcast},           Rule{"gather", Work::kBroadcast},
    Rule{"scatter", Work::kBroadcast}};

}  // namespace

Work work_of_kernel(std::string_view name) {
  const std::string lower = small(name);
  if (lower.find("nccl") != std::string::npos || lower.find("rccl") != std::string::npos)
    return first(kNccl, lower, Work::kBroadcast);
  return first(kKernels, lower, Work::kElementwise);
}

Work work_of_collective(std::string_view name) {
  return first(kCollectives, small(name), Work::kUnknown);
}

bool names_step(std::string_view range) {
  constexpr std::array<std::string_view, 3> kWords{"profilerstep", "iteration", "step"};
  constexpr std::string_view kBetween = " _#:", kDigits = "0123456789";
  const std::string lower = small(range);
  for (const std::string_view word : kWords) {
    if (!lower.starts_with(word)) continue;
    const std::size_t number = lower.find_first_not_of(kBetween, word.size());
    return number != std::string::npos && lower.find_first_not_of(kDigits, number) == std::string::npos;
  }
  return false;
}

}  // namespace orrery::trace
