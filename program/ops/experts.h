// SPDX-License-Identifier: Apache-2.0
//
// A mixture of experts, T tokens, E experts, k of them for each token. A rank's rows of tokens stand one for
// each of a token's experts, sorted by expert and then by token; `counts` [E] says how many there are of each
// expert. Where other ranks have experts, rows stand in parts, one for each of these ranks, all of the same
// size; rows that none of the counts has are room. `rows` are all of a rank, `even` the ones that hold
// something where all experts have as many.
//
//   RouterScores           reads {logits}                       writes {scores}
//   RouterScoresGrad       reads {logits, scores, dscores}      writes {dlogits}
//   Route                  reads {scores, biases?}              writes {weights, choice, counts, load}
//   ChoiceBiasGrad         reads {load}                         writes {d biases}   tokens beyond each share
//   RouteGrad              reads {scores, choice, dweights}     writes {dscores}
//   Balance                reads {weights, scores, load}        writes over weights, as they are
//   BalanceGrad            reads {scores, load}                 writes {dscores}    of the auxiliary loss
//   Permute                reads {x, weights, choice}           writes {y, row weights}
//   PermuteGrad            reads {dy, d row weights, choice}    writes {dx, dweights}
//   GroupedGemm            reads {x, w, counts}                 writes {u}          of each expert u = x w'
//                          (its gradients:) {du, w, counts} -> {dx}, {du, x, counts} -> {dw}
//   ExpertBias             reads {y, bias, counts, row weights?}       writes {y}   y += row weight bias
//   ExpertBiasGrad         reads {dy, bias, counts, row weights?}      writes {dbias, d row weights?}
//   ExpertActivation       reads {u, row weights, counts}       writes {v}          v = row weight act(u), or
//                          act(row weight u) where weights count in what experts read
//   ExpertActivationGrad   reads {u, row weights, counts, dv}   writes {du, d row weights}
//   Unpermute              reads {y, choice}                    writes {o}          sums of a token's rows
//   UnpermuteGrad          reads {do, choice}                   writes {dy}
//   Gate                   reads {y, logit}                     writes {o}          o = sigmoid(logit) y by
//   row GateGrad               reads {y, logit, do}                 writes {dy, dlogit}
//
// scores, weights and their gradients are fp32. choice [T, 2k]: a token's experts, and the rows that are for
// them; -1: dropped. load [samples, E]: tokens of each sample that chose the expert, of those that the rank
// has.
#pragma once

#include "core/layers/experts.h"
#include "program/ops/common.h"
#include "program/ops/product.h"

namespace orrery::program::ops {

struct RouterShape {
  static constexpr Nature kNature = Nature::kRouting;
  std::int64_t tokens = 0, experts = 0;
  RouterScore score{};
  double z_loss = 0;   // of a token in the mean over all of a step
  bool first = false;  // whether only the first tensor rank has the loss, as all have the same tokens
  static constexpr auto fields() {
    using S = RouterShape;
    return std::tuple(&S::tokens, &S::experts, &S::score, &S::z_loss, &S::first);
  }
  constexpr std::int64_t scores() const { return tokens * experts; }
};

struct RouterScores : RouterShape {
  static constexpr std::string_view kName = "router-scores";
  constexpr Operands operands() const { return {{scores()}, {scores()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return scores() * (e.activation + 4); }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct RouterScoresGrad : RouterShape {
  static constexpr std::string_view kName = "router-scores-grad";
  constexpr Operands operands() const { return {{scores(), scores(), scores()}, {scores()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return scores() * (2 * e.activation + 8); }
};

struct RouteShape {
  static constexpr Nature kNature = Nature::kRouting;
  std::int64_t tokens = 0, sequence = 0, samples = 0, experts = 0, top_k = 0, groups = 1, top_groups = 1;
  std::int64_t capacity = 0;         // tokens that an expert takes
  std::int64_t parts = 1, room = 0;  // parts that the experts stand in, and rows of each
  bool normalised = true;
  double scale = 1;  // of weights
  bool biased = false;
  bool sharded = false;  // tokens are a tensor rank's share of the samples'
  static constexpr auto fields() {
    using S = RouteShape;
    return std::tuple(&S::tokens, &S::sequence, &S::samples, &S::experts, &S::top_k, &S::groups,
                      &S::top_groups, &S::capacity, &S::parts, &S::room, &S::normalised, &S::scale,
                      &S::biased, &S::sharded);
  }
  constexpr std::int64_t scores() const { return tokens * experts; }
  constexpr std::int64_t chosen() const { return tokens * top_k; }
};

struct Route : RouteShape {
  static constexpr std::string_view kName = "route";
  constexpr Operands operands() const {
    return {{scores(), biased ? experts : 0}, {chosen(), 0, 0, samples * experts}};
  }
  constexpr std::int64_t bytes(const ElementBytes&) const { return 4 * scores() + 12 * chosen(); }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct RouteGrad : RouteShape {
  static constexpr std::string_view kName = "route-grad";
  constexpr Operands operands() const { return {{scores(), 0, chosen()}, {scores()}}; }
  constexpr std::int64_t bytes(const ElementBytes&) const { return 8 * scores() + 12 * chosen(); }
};

struct ChoiceBiasGrad {
  static constexpr std::string_view kName = "choice-bias-grad";
  static constexpr Nature kNature = Nature::kRouting;
  std::int64_t samples = 0, experts = 0;
  static constexpr auto fields() { return std::tuple(&ChoiceBiasGrad::samples, &ChoiceBiasGrad::experts); }
  constexpr Operands operands() const { return {{samples * experts}, {experts}}; }
  constexpr std::int64_t bytes(const ElementBytes&) const { return 4 * (samples + 1) * experts; }
};

struct BalanceShape {
  static constexpr Nature kNature = Nature::kRouting;
  std::int64_t tokens = 0, sequence = 0, samples = 0, experts = 0, top_k = 0;
  bool normalises = false;  // scores that do not sum to 1
  double factor = 0;        // of a token's share of the loss, in the mean over all of a step
  bool first = false;       // as of RouterShape
  bool sharded = false;     // as of RouteShape
  static constexpr auto fields() {
    using S = BalanceShape;
    return std::tuple(&S::tokens, &S::sequence, &S::samples, &S::experts, &S::top_k, &S::normalises,
                      &S::factor, &S::first, &S::sharded);
  }
  constexpr std::int64_t scores() const { return tokens * experts; }
  constexpr std::int64_t load() const { return samples * experts; }
};

struct Balance : BalanceShape {
  static constexpr std::string_view kName = "balance";
  constexpr Operands operands() const { return {}; }
  constexpr std::int64_t bytes(const ElementBytes&) const { return 0; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct BalanceGrad : BalanceShape {
  static constexpr std::string_view kName = "balance-grad";
  constexpr Operands operands() const { return {{scores(), load()}, {scores()}}; }
  constexpr std::int64_t bytes(const ElementBytes&) const { return 8 * scores(); }
};

struct PermuteShape {
  static constexpr Nature kNature = Nature::kRouting;
  std::int64_t tokens = 0, width = 0, top_k = 0, rows = 0, even = 0;
  static constexpr auto fields() {
    using S = PermuteShape;
    return std::tuple(&S::tokens, &S::width, &S::top_k, &S::rows, &S::even);
  }
  constexpr std::int64_t by_token() const { return tokens * width; }
  constexpr std::int64_t by_row() const { return rows * width; }
  constexpr std::int64_t moved() const { return (tokens + even) * width; }
  constexpr std::int64_t chosen() const { return tokens * top_k; }
};

struct Permute : PermuteShape {
  static constexpr std::string_view kName = "permute";
  constexpr Operands operands() const { return {{by_token(), chosen()}, {by_row(), rows}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return moved() * e.activation + 12 * chosen(); }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct PermuteGrad : PermuteShape {
  static constexpr std::string_view kName = "permute-grad";
  constexpr Operands operands() const { return {{by_row(), rows}, {by_token(), chosen()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return moved() * e.activation + 12 * chosen(); }
};

struct Unpermute : PermuteShape {
  static constexpr std::string_view kName = "unpermute";
  constexpr Operands operands() const { return {{by_row()}, {by_token()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return moved() * e.activation + 4 * chosen(); }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct UnpermuteGrad : PermuteShape {
  static constexpr std::string_view kName = "unpermute-grad";
  constexpr Operands operands() const { return {{by_token()}, {by_row()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return moved() * e.activation + 4 * chosen(); }
};

// A product for each of `experts`, whose weights [n, k] stand one behind the other. The rows are in `parts`,
// of which each has rows of all experts.
struct GroupedGemm {
  enum class Of : std::uint8_t { kResult, kInput, kWeight };  // u, or its gradient's dx or dw
  static constexpr std::string_view kName = "grouped-gemm";
  static constexpr Nature kNature = Nature::kProduct;
  std::int64_t rows = 0, even = 0, n = 0, k = 0, experts = 0, parts = 1;
  Of of = Of::kResult;
  Gemm::Format format = Gemm::Format::kAsStored;
  std::int64_t rounding = 0;  // as of Gemm

  static constexpr auto fields() {
    using S = GroupedGemm;
    return std::tuple(&S::rows, &S::even, &S::n, &S::k, &S::experts, &S::parts, &S::of, &S::format,
                      &S::rounding);
  }
  constexpr bool rounds() const { return format != Gemm::Format::kAsStored; }
  constexpr std::int64_t results() const { return rows * n; }
  constexpr std::int64_t inputs() const { return rows * k; }
  constexpr std::int64_t weights() const { return experts * n * k; }
  constexpr Operands operands() const {
    switch (of) {
      case Of::kResult:
        return {{inputs(), weights()}, {results()}};
      case Of::kInput:
        return {{results(), weights()}, {inputs()}};
      case Of::kWeight:
        break;
    }
    return {{results(), inputs()}, {weights()}};
  }
  constexpr double flops() const {
    return 2.0 * static_cast<double>(even) * static_cast<double>(n) * static_cast<double>(k);
  }
  // Without rows that are room.
  constexpr std::int64_t operand_elements() const { return filled().reads[0] + filled().reads[1]; }
  constexpr std::int64_t result_elements() const { return filled().writes[0]; }
  // As of Gemm.
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    const std::int64_t read = operand_elements(), written = result_elements() * e.activation;
    if (!rounds()) return read * e.activation + written;
    return written + static_cast<std::int64_t>(static_cast<double>(read) * (e.rounded + e.rounding));
  }
  template <class Reverse>
  void gradient(Reverse& r) const;
  template <class Reverse>
  void weight_gradient(Reverse& r) const;

 private:
  constexpr Operands filled() const {
    GroupedGemm full = *this;
    full.rows = even;
    return full.operands();
  }
  constexpr GroupedGemm gradient_of(Of what) const {
    GroupedGemm d = *this;
    d.of = what;
    if (rounds()) d.format = Gemm::Format::kRoundedGradient;
    return d;
  }
};

// Of a bias whose columns begin at a rank's share of a row's.
struct ExpertBiasShape {
  static constexpr Nature kNature = Nature::kRouting;
  std::int64_t rows = 0, even = 0, columns = 0, width = 0, experts = 0, parts = 1;
  bool weighted = false;
  static constexpr auto fields() {
    using S = ExpertBiasShape;
    return std::tuple(&S::rows, &S::even, &S::columns, &S::width, &S::experts, &S::parts, &S::weighted);
  }
  constexpr std::int64_t weights() const { return weighted ? rows : 0; }
};

struct ExpertBias : ExpertBiasShape {
  static constexpr std::string_view kName = "expert-bias";
  constexpr Operands operands() const {
    return {{rows * columns, experts * width, 0, weights()}, {rows * columns}};
  }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * even * width * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct ExpertBiasGrad : ExpertBiasShape {
  static constexpr std::string_view kName = "expert-bias-grad";
  constexpr Operands operands() const {
    return {{rows * columns, experts * width, 0, weights()}, {experts * width, weights()}};
  }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return even * width * e.activation; }
};

struct ExpertActivationShape {
  static constexpr Nature kNature = Nature::kRouting;
  std::int64_t rows = 0, even = 0, width = 0, experts = 0, parts = 1;
  orrery::Activation type{};
  bool weighs_inputs = false;
  static constexpr auto fields() {
    using S = ExpertActivationShape;
    return std::tuple(&S::rows, &S::even, &S::width, &S::experts, &S::parts, &S::type, &S::weighs_inputs);
  }
  constexpr std::int64_t columns() const { return width * (is_gated(type) ? 2 : 1); }
  constexpr std::int64_t inputs() const { return rows * columns(); }
};

struct ExpertActivation : ExpertActivationShape {
  static constexpr std::string_view kName = "expert-activation";
  constexpr Operands operands() const { return {{inputs(), rows}, {rows * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return even * (columns() + width) * e.activation;
  }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct ExpertActivationGrad : ExpertActivationShape {
  static constexpr std::string_view kName = "expert-activation-grad";
  constexpr Operands operands() const { return {{inputs(), rows, 0, rows * width}, {inputs(), rows}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return even * (2 * columns() + width) * e.activation;
  }
};

struct GateShape {
  static constexpr Nature kNature = Nature::kRouting;
  std::int64_t rows = 0, width = 0;
  static constexpr auto fields() { return std::tuple(&GateShape::rows, &GateShape::width); }
};

struct Gate : GateShape {
  static constexpr std::string_view kName = "gate";
  constexpr Operands operands() const { return {{rows * width, rows}, {rows * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * rows * width * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct GateGrad : GateShape {
  static constexpr std::string_view kName = "gate-grad";
  constexpr Operands operands() const { return {{rows * width, rows, rows * width}, {rows * width, rows}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 3 * rows * width * e.activation; }
};

template <class Reverse>
void RouterScores::gradient(Reverse& r) const {
  r.emit("/grad", RouterScoresGrad{*this}, refs(r.in(0), r.out(0), r.d_out(0)), refs(r.d_in(0)));
}

template <class Reverse>
void Route::gradient(Reverse& r) const {
  r.emit("/grad", RouteGrad{*this}, refs(r.in(0), r.out(1), r.d_out(0)), refs(r.d_in(0)));
  if (!biased || !r.trains(1)) return;
  r.emit("/bias/grad", ChoiceBiasGrad{samples, experts}, refs(r.out(3)), refs(r.d_weight(1))).accumulate =
      r.accumulates(1);
}

template <class Reverse>
void Balance::gradient(Reverse& r) const {
  r.pass(0, r.d_out(0));
  const auto load = r.again(2);
  r.emit("/grad", BalanceGrad{*this}, refs(r.in(1), load), refs(r.d_in(1)));
}

template <class Reverse>
void Permute::gradient(Reverse& r) const {
  const auto dx = r.d_in(0);
  r.emit("/grad", PermuteGrad{*this}, refs(r.d_out(0), r.d_out(1), r.in(2)), refs(dx, r.d_in(1)));
}

template <class Reverse>
void Unpermute::gradient(Reverse& r) const {
  r.emit("/grad", UnpermuteGrad{*this}, refs(r.d_out(0), r.in(1)), refs(r.d_in(0)));
}

template <class Reverse>
void GroupedGemm::gradient(Reverse& r) const {
  r.emit("/dgrad", gradient_of(Of::kInput), refs(r.d_out(0), r.in(1), r.in(2)), refs(r.d_in(0)));
}

template <class Reverse>
void GroupedGemm::weight_gradient(Reverse& r) const {
  const auto x = r.again(0);
  r.emit("/wgrad", gradient_of(Of::kWeight), refs(r.d_out(0), x, r.in(2)), refs(r.d_weight(1))).accumulate =
      r.accumulates(1);
}

template <class Reverse>
void ExpertBias::gradient(Reverse& r) const {
  if (!weighted && !r.trains(1)) return r.pass(0, r.d_out(0));
  auto reads = refs(r.d_out(0), r.in(1), r.in(2));
  auto writes = refs(r.d_weight(1));
  if (weighted) {
    reads.push_back(r.in(3));
    writes.push_back(r.d_in(3));
  }
  r.emit("/grad", ExpertBiasGrad{*this}, std::move(reads), std::move(writes)).accumulate = r.accumulates(1);
  r.pass(0, r.d_out(0));
}

template <class Reverse>
void ExpertActivation::gradient(Reverse& r) const {
  const auto du = r.d_in(0);
  r.emit("/grad", ExpertActivationGrad{*this}, refs(r.in(0), r.in(1), r.in(2), r.d_out(0)),
         refs(du, r.d_in(1)));
}

template <class Reverse>
void Gate::gradient(Reverse& r) const {
  const auto dy = r.d_in(0);
  r.emit("/grad", GateGrad{*this}, refs(r.in(0), r.in(1), r.d_out(0)), refs(dy, r.d_in(1)));
}

}  // namespace orrery::program::ops
