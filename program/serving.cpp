// SPDX-License-Identifier: Apache-2.0
#include "program/serving.h"

#include <fmt/format.h>

#include <algorithm>

namespace orrery::program {

Training pass_of(Training training, std::int64_t tokens, const KvCache& cache) {
  training.sequence = tokens;
  training.target_sequence = 0;
  training.dropout = 0;
  training.cache = cache;
  return training;
}

namespace {

// Elements of a sequence of so many tokens, an overload for each layer.
struct CachedElements {
  std::int64_t ranks, tokens;
  std::int64_t operator()(const AttentionLayer& a) const {
    const std::int64_t kept = a.windowed(tokens) ? a.sliding_window : tokens;
    return kept * 2 * a.kv_heads / ranks * a.head_dim;
  }
  std::int64_t operator()(const LatentAttentionLayer& a) const { return tokens * (a.kv_rank + a.turned); }
  template <class Layer>
  std::int64_t operator()(const Layer&) const {
    return 0;
  }
};

}  // namespace

std::int64_t cache_bytes(const Model& model, std::int64_t tensor_ranks, std::int64_t tokens,
                         std::int64_t element_bytes) {
  std::int64_t elements = 0;
  depth_of(model).for_each_layer([&](const auto& layer, std::int64_t times) {
    elements += times * CachedElements{tensor_ranks, tokens}(layer);
  });
  return elements * element_bytes;
}

std::vector<std::int32_t> cache_buffers(const RankClass& rank) {
  std::vector<std::int32_t> out;
  const auto add = [&](const Ref& cache) {
    if (std::find(out.begin(), out.end(), cache.buffer) == out.end()) out.push_back(cache.buffer);
  };
  for (const Segment& segment : rank.segments) {
    for (const Op& op : segment.ops) {
      if (op.is<ops::CachedAttention>() || op.is<ops::CachedLatentAttention>()) add(op.writes[2]);
    }
  }
  return out;
}

std::string serving_problem(const Model& model, const Plan& plan) {
  if (!model.has_tokens() || model.all_inputs().size() > 1 || model.classes() != nullptr || model.has_pair())
    return "only models of one tower of tokens that end in their vocabulary are served";
  if (model.mtp_layers > 0)
    return "modules of multi-token prediction are for training; with mtp_layers 0 the model is served";
  std::string problem;
  depth_of(model).for_each_layer([&]<class T>(const T& layer, std::int64_t) {
    if constexpr (std::is_same_v<T, AttentionLayer>) {
      if (layer.chunk > 0) problem = "attention in chunks is not served";
      if (!layer.causal) problem = "a token of the model sees those behind it, which are not there yet";
    }
  });
  if (!problem.empty()) return problem;
  if (plan.cp > 1) return "serving shares no sequence between ranks (cp)";
  if (plan.vpp > 1) return "serving has one chunk of layers a stage (vpp)";
  if (plan.zero > 0) return "serving keeps whole parameters (zero)";
  if (plan.sequence_parallel)
    return "serving shares no rows of tokens between tensor ranks (sequence_parallel)";
  return {};
}

std::string adapter_problem(const Model& model, const Training& training) {
  if (!training.adapter || !training.adapter->chosen().has(AdapterTarget::kKeyValue)) return {};
  std::string problem;
  depth_of(model).for_each_layer([&]<class T>(const T&, std::int64_t) {
    if constexpr (std::is_same_v<T, LatentAttentionLayer>)
      problem =
          "attention to cached latents has no adapter on the matrix that makes keys and values of them (kv)";
  });
  return problem;
}

}  // namespace orrery::program
