// SPDX-License-Identifier: Apache-2.0
//
// Low-rank adapters (Hu et al. 2021, "LoRA", arXiv:2106.09685). The model's own weights are frozen; beside a
// matrix W [n, k] that is chosen there are two thin ones which are trained, A [r, k] and B [n, r]:
//
//   y = x W' + (alpha / r) (x A') B'
//
// A matrix that holds several stacked ones, such as queries, keys and values, has an A and a B for each. B
// begins as zeros and A as uniform numbers within 1 / sqrt(k), as PEFT and torchtune have them. Frozen
// weights have no gradient and no optimizer state, and nobody exchanges either of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace orrery {

// Matrices of layers that may have adapters.
enum class AdapterTarget : std::uint8_t {
  kQuery,
  kKey,
  kValue,
  kOutput,     // of attention
  kGate,       // of a gated MLP
  kUp,         // the first matrix of an MLP, or the other half of a gated one
  kDown,       // the second matrix of an MLP
  kQueryDown,  // to the latents of latent attention
  kKeyValueDown,
  kKeyValue,  // from the latent of latent attention
};
inline constexpr std::size_t kAdapterTargets = 10;
constexpr std::array<std::pair<AdapterTarget, const char*>, kAdapterTargets> enum_names(AdapterTarget) {
  using enum AdapterTarget;
  return {{{kQuery, "q"},
           {kKey, "k"},
           {kValue, "v"},
           {kOutput, "o"},
           {kGate, "gate"},
           {kUp, "up"},
           {kDown, "down"},
           {kQueryDown, "q_down"},
           {kKeyValueDown, "kv_down"},
           {kKeyValue, "kv"}}};
}

class AdapterTargets {
 public:
  static constexpr AdapterTargets all() { return AdapterTargets((1U << kAdapterTargets) - 1); }
  explicit constexpr AdapterTargets(AdapterTarget target) : bits_(1U << static_cast<unsigned>(target)) {}
  explicit AdapterTargets(const std::vector<AdapterTarget>& targets) {
    for (const AdapterTarget t : targets) bits_ |= AdapterTargets(t).bits_;
  }
  constexpr bool has(AdapterTarget target) const {
    return (bits_ >> static_cast<unsigned>(target) & 1U) != 0;
  }

 private:
  explicit constexpr AdapterTargets(unsigned bits) : bits_(bits) {}
  unsigned bits_ = 0;
};

// A matrix, or one of several stacked ones, that may have an adapter: [rows, columns].
struct AdapterMatrix {
  AdapterTarget target;
  std::int64_t rows = 0, columns = 0;
  bool of_read = false;  // it multiplies the tokens of the tower that its layer reads
  // Of its adapter.
  constexpr std::int64_t parameters(std::int64_t rank) const { return rank * (rows + columns); }
};

// How the frozen matrices of layers are stored: as other parameters are, or in 4 bits (core/nf4.h), from
// which they are made before each use.
enum class BaseStorage : std::uint8_t { kAsComputed, kNf4, kNf4Double };
constexpr auto enum_names(BaseStorage) {
  return std::array{std::pair{BaseStorage::kAsComputed, "as-computed"}, std::pair{BaseStorage::kNf4, "nf4"},
                    std::pair{BaseStorage::kNf4Double, "nf4-dq"}};
}

struct Adapter {
  std::int64_t rank = 8;
  double alpha = 16;
  BaseStorage base = BaseStorage::kAsComputed;
  std::vector<AdapterTarget> targets;  // empty: all that the model has

  double scale() const { return alpha / static_cast<double>(rank); }
  AdapterTargets chosen() const { return targets.empty() ? AdapterTargets::all() : AdapterTargets(targets); }
  friend bool operator==(const Adapter&, const Adapter&) = default;
};

template <class V>
void describe(V& v, Adapter& a) {
  v(Field{.name = "rank", .help = "rows of A and columns of B", .min = 1, .max = 1 << 16, .required = true},
    a.rank);
  v(Field{.name = "alpha",
          .help = "what the adapter adds is multiplied by alpha / rank",
          .min = 1e-6,
          .max = 1e6},
    a.alpha);
  v(Field{.name = "base",
          .help =
              "how frozen matrices of layers are stored: as-computed, in 4 bits (nf4), or with scales of 8 "
              "bits too (nf4-dq)"},
    a.base);
  v(Field{.name = "targets",
          .help = "matrices of layers that have an adapter; absent means all",
          .most = kAdapterTargets,
          .distinct = true},
    a.targets);
}

}  // namespace orrery
