// SPDX-License-Identifier: Apache-2.0
//
// Activation recomputation: which of the forward pass's work the backward pass repeats, and need not keep
// (Chen et al. 2016; Korthikanti et al. 2022, section 5).
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace orrery {

enum class Recompute { kNone, kSelective, kFull };
constexpr auto enum_names(Recompute) {
  return std::array{std::pair{Recompute::kNone, "none"}, std::pair{Recompute::kSelective, "selective"},
                    std::pair{Recompute::kFull, "full"}};
}

// What selective recomputation repeats of a layer. Names are those of Megatron-core's recompute_modules
// (megatron/core/transformer/transformer_config.py).
enum class RecomputePart : std::uint8_t {
  kCoreAttention,     // attention of heads: of its results, the scores are not kept
  kNorms,             // norms before layers
  kExpertActivation,  // the activation between the products of experts
  kLatentProjection,  // of latent attention: from latents to queries, keys and values
  kMlp,
  kSharedExperts,
  kExperts  // the whole layer, with the exchange of tokens
};
inline constexpr std::size_t kRecomputeParts = 7;
constexpr std::array<std::pair<RecomputePart, const char*>, kRecomputeParts> enum_names(RecomputePart) {
  using enum RecomputePart;
  return {{{kCoreAttention, "core-attn"},
           {kNorms, "layernorm"},
           {kExpertActivation, "moe-act"},
           {kLatentProjection, "mla-up-proj"},
           {kMlp, "mlp"},
           {kSharedExperts, "shared-experts"},
           {kExperts, "moe"}}};
}

// Whether nothing of the part is kept, its results included (Megatron-core's CheckpointWithoutOutput). Of
// the others, what other work reads of their results is kept.
constexpr bool drops_results(RecomputePart part) {
  switch (part) {
    case RecomputePart::kNorms:
    case RecomputePart::kExpertActivation:
    case RecomputePart::kLatentProjection:
      return true;
    case RecomputePart::kCoreAttention:
    case RecomputePart::kMlp:
    case RecomputePart::kSharedExperts:
    case RecomputePart::kExperts:
      break;
  }
  return false;
}

class RecomputeParts {
 public:
  constexpr RecomputeParts() = default;
  constexpr RecomputeParts(RecomputePart part) { add(part); }
  explicit constexpr RecomputeParts(const std::vector<RecomputePart>& parts) {
    for (const RecomputePart part : parts) add(part);
  }
  constexpr void add(RecomputePart part) {
    bits_ = static_cast<std::uint8_t>(bits_ | 1U << static_cast<unsigned>(part));
  }
  constexpr bool has(RecomputePart part) const { return (bits_ >> static_cast<unsigned>(part) & 1U) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  // Both, either, and those that `other` has not.
  constexpr RecomputeParts operator&(RecomputeParts other) const { return of(bits_ & other.bits_); }
  constexpr RecomputeParts operator|(RecomputeParts other) const { return of(bits_ | other.bits_); }
  constexpr RecomputeParts without(RecomputeParts other) const { return of(bits_ & ~other.bits_); }
  constexpr std::uint8_t bits() const { return bits_; }
  std::vector<RecomputePart> list() const {  // in the order of the names
    std::vector<RecomputePart> out;
    for (const auto& [part, name] : enum_names(RecomputePart{})) {
      if (has(part)) out.push_back(part);
    }
    return out;
  }
  friend constexpr bool operator==(RecomputeParts, RecomputeParts) = default;

 private:
  static constexpr RecomputeParts of(unsigned bits) {
    RecomputeParts out;
    out.bits_ = static_cast<std::uint8_t>(bits);
    return out;
  }
  std::uint8_t bits_ = 0;
};

constexpr bool drops_results(RecomputeParts parts) {
  for (const auto& [part, name] : enum_names(RecomputePart{})) {
    if (parts.has(part) && drops_results(part)) return true;
  }
  return false;
}

}  // namespace orrery
