// SPDX-License-Identifier: Apache-2.0
//
// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon; at scale Liu et al. 2025, arXiv:2502.16982):
// the update of a matrix W [n, k] of a layer is its momentum with all singular values set to about 1. With G
// the gradient, m `momentum`, lr the learning rate, and d the weight decay:
//
//   M = m M + G                          U = G + m M, or M without Nesterov's form
//   X = U / |U|, then `iterations` times, for n <= k (else with X turned over),
//     A = X X',  B = b A + c A A,  X = a X + B X          a, b, c = 3.4445, -4.7750, 2.0315
//   W = (1 - lr d) W - lr `scale` sqrt(max(n, k)) X
//
// Embeddings, the head, norms and biases are AdamW's, with the same learning rate: an update of AdamW has
// entries of 0.2 to 0.4 in the root mean square (Liu et al. 2025, section 2.2), and so has Muon's with a
// scale of 0.2. A matrix is one of the model's, as its published weights have them: queries, keys and values
// are three, each expert has its own, and the two halves of a gated MLP are two, or one as Megatron-LM has
// them.
//
// State: one moment in place of Adam's two. Arithmetic: an iteration of an n x k matrix takes 2 n^2 (2 k + n)
// floating-point operations.
//
// Where ranks share a matrix: ZeRO's shards of U are gathered, in the type of parameters, so that each rank
// has the matrices that its shard has a part of ("distributed Muon", Liu et al. 2025, section 2.3).
// TpMode says what tensor ranks do; its names are those of Megatron-LM's --muon-tp-mode.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "core/fields.h"

namespace orrery {

// Tensor ranks gather their parts of a matrix, and each computes with the whole; or each takes its part for a
// matrix, which is another update.
enum class MuonTpMode { kDuplicated, kBlockwise };
constexpr auto enum_names(MuonTpMode) {
  return std::array{std::pair{MuonTpMode::kDuplicated, "duplicated"},
                    std::pair{MuonTpMode::kBlockwise, "blockwise"}};
}

// How the two halves of a gated MLP's first product are updated: each as a matrix, or both as one.
enum class MuonGates { kApart, kTogether };
constexpr auto enum_names(MuonGates) {
  return std::array{std::pair{MuonGates::kApart, "apart"}, std::pair{MuonGates::kTogether, "together"}};
}

struct Muon {
  double momentum = 0.95;
  bool nesterov = true;
  std::int64_t iterations = 5;
  double scale = 0.2;
  MuonTpMode tp_mode = MuonTpMode::kDuplicated;
  MuonGates gates = MuonGates::kApart;
  friend bool operator==(const Muon&, const Muon&) = default;
};

// Of an iteration.
inline constexpr double kMuonA = 3.4445, kMuonB = -4.7750, kMuonC = 2.0315;

template <class V>
void describe(V& v, Muon& m) {
  v(Field{.name = "momentum", .help = "decay of the moment", .min = 0, .max = 0.999}, m.momentum);
  v(Field{.name = "nesterov", .help = "whether the gradient is added to the moment once more"}, m.nesterov);
  v(Field{.name = "iterations",
          .help = "steps of Newton and Schulz by which singular values come to about 1",
          .min = 1,
          .max = 32},
    m.iterations);
  v(Field{.name = "scale",
          .help = "root mean square of an update's entries; 0.2 is that of AdamW's, whose learning rate then "
                  "fits",
          .min = 1e-6,
          .max = 100},
    m.scale);
  v(Field{.name = "tp_mode",
          .help = "whether tensor ranks gather whole matrices, or take their parts for such"},
    m.tp_mode);
  v(Field{.name = "gates", .help = "whether the two halves of a gated MLP are two matrices, or one"},
    m.gates);
}

}  // namespace orrery
