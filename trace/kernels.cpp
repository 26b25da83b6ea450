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
  OpClass is;
};

std::string small(std::string_view name) {
  std::string out(name);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// The first whose part is in the name.
OpClass first(std::span<const Rule> rules, const std::string& name, OpClass otherwise) {
  const auto found = std::find_if(rules.begin(), rules.end(),
                                  [&](const Rule& r) { return name.find(r.part) != std::string::npos; });
  return found == rules.end() ? otherwise : found->is;
}

// NCCL and RCCL: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL". An all-to-all is sends and receives there. One
// kernel for all of them ("ncclDevKernel_Generic") does not say which it runs.
constexpr std::array kNccl{Rule{"allreduce", OpClass::kAllReduce},
                           Rule{"allgather", OpClass::kAllGather},
                           Rule{"reducescatter", OpClass::kReduceScatter},
                           Rule{"alltoall", OpClass::kAllToAll},
                           Rule{"sendrecv", OpClass::kSendReceive},
                           Rule{"send", OpClass::kSendReceive},
                           Rule{"recv", OpClass::kSendReceive},
                           Rule{"broadcast", OpClass::kBroadcast},
                           Rule{"reduce", OpClass::kBroadcast}};

// Exchanges outside NCCL first; then what Triton fused of element-wise ops, whose names list all of them;
// attention before products, as its kernels are built of CUTLASS; products before routing, as those of
// experts are products.
constexpr std::array kKernels{
    Rule{"::ep::", OpClass::kAllToAll},  // DeepEP
    Rule{"deep_ep", OpClass::kAllToAll},
    Rule{"multimem_all_reduce", OpClass::kAllReduce},
    Rule{"cross_device_reduce", OpClass::kAllReduce},
    Rule{"triton_poi_", OpClass::kElementwise},
    Rule{"triton_red_", OpClass::kElementwise},
    Rule{"triton_per_", OpClass::kElementwise},
    Rule{"multi_tensor_apply", OpClass::kOptimizer},
    Rule{"multitensorapply", OpClass::kOptimizer},
    Rule{"adam", OpClass::kOptimizer},
    Rule{"adagrad", OpClass::kOptimizer},
    Rule{"flash", OpClass::kAttention},
    Rule{"fmha", OpClass::kAttention},
    Rule{"attn", OpClass::kAttention},
    Rule{"attention", OpClass::kAttention},
    Rule{"sdpa", OpClass::kAttention},
    Rule{"norm", OpClass::kElementwise},
    Rule{"gemm", OpClass::kProduct},
    Rule{"gemv", OpClass::kProduct},
    Rule{"bmm_", OpClass::kProduct},
    Rule{"nvjet", OpClass::kProduct},
    Rule{"cutlass", OpClass::kProduct},
    Rule{"cublas", OpClass::kProduct},
    Rule{"matmul", OpClass::kProduct},
    Rule{"splitkreduce", OpClass::kProduct},
    Rule{"triton_tem_", OpClass::kProduct},
    Rule{"cijk_", OpClass::kProduct},
    Rule{"scudnn", OpClass::kProduct},
    Rule{"winograd", OpClass::kProduct},
    Rule{"wgrad", OpClass::kProduct},
    Rule{"dgrad", OpClass::kProduct},
    Rule{"fprop", OpClass::kProduct},
    Rule{"convolve", OpClass::kProduct},
    Rule{"conv2d", OpClass::kProduct},
    Rule{"moe", OpClass::kRouting},
    Rule{"topk", OpClass::kRouting},
    Rule{"expert", OpClass::kRouting},
};

// Of torch.distributed: "_allgather_base", "reduce_scatter_tensor_coalesced", "all_to_all".
constexpr std::array kCollectives{Rule{"all_reduce", OpClass::kAllReduce},
                                  Rule{"allreduce", OpClass::kAllReduce},
                                  Rule{"all_gather", OpClass::kAllGather},
                                  Rule{"allgather", OpClass::kAllGather},
                                  Rule{"reduce_scatter", OpClass::kReduceScatter},
                                  Rule{"all_to_all", OpClass::kAllToAll},
                                  Rule{"alltoall", OpClass::kAllToAll},
                                  Rule{"send", OpClass::kSendReceive},
                                  Rule{"recv", OpClass::kSendReceive},
                                  Rule{"broadcast", OpClass::kBroadcast},
                                  Rule{"reduce", OpClass::kBroadcast},
                                  Rule{"gather", OpClass::kBroadcast},
                                  Rule{"scatter", OpClass::kBroadcast}};

}  // namespace

OpClass class_of_kernel(std::string_view name) {
  const std::string lower = small(name);
  if (lower.find("nccl") != std::string::npos || lower.find("rccl") != std::string::npos)
    return first(kNccl, lower, OpClass::kUnknown);
  return first(kKernels, lower, OpClass::kElementwise);
}

OpClass class_of_collective(std::string_view name) {
  return first(kCollectives, small(name), OpClass::kUnknown);
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
