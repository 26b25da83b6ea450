// SPDX-License-Identifier: Apache-2.0
//
// A router, and experts whose widths are split over tensor ranks as an MLP's is. All tensor ranks route all
// tokens alike, so experts, like MLPs, leave partial sums; gradients stay partial sums until they reach x.
#include "program/blocks.h"

namespace orrery::program {
namespace {

// A product that all tensor ranks do alike, never in 8 bits.
ValueId replicated_linear(Builder& g, const std::string& name, ValueId x, std::int64_t columns) {
  const Placements whole = g.placed(Placement::kReplicated);
  const std::int32_t w = g.matrix(name + "/weight", columns, g.model.hidden, Parameter::Split::kNone);
  const ValueId u = g.value(name + "/out", columns, whole);
  g.node(name, ops::Gemm{.m = g.tokens, .n = columns, .k = g.model.hidden, .transpose_b = true},
         {g.use(x, whole), g.weight(w)}, {u});
  return u;
}

class Experts {
 public:
  Experts(Builder& g, const std::string& base, const ExpertsLayer& l) : g_(g), base_(base), l_(l) {}

  ValueId run(ValueId x) {
    g_.pass_sums(true);
    route(x);
    const ValueId y = permute(x);
    g_.pass_sums(false);
    const std::int64_t hidden = g_.model.hidden;
    const ValueId u = product("/fc1", y, l_.fc1_width(), hidden, Parameter::Split::kRows);
    const ValueId v =
        g_.value(base_ + "/act/out", rows_, l_.ffn_hidden, g_.placed(Placement::kColumns), type());
    g_.node(base_ + "/act",
            ops::ExpertActivation{{rows_, l_.ffn_hidden / g_.ranks, l_.experts, l_.activation}},
            {g_.use(u), g_.use(row_weights_), g_.use(counts_)}, {v});
    const ValueId z = product("/fc2", v, hidden, l_.ffn_hidden, Parameter::Split::kCols);
    const ValueId o = g_.value(base_ + "/partial", hidden, g_.placed(Placement::kSum));
    g_.node(base_ + "/unpermute", ops::Unpermute{{g_.tokens, hidden, l_.top_k, rows_}},
            {g_.use(z), g_.use(choice_)}, {o});
    return o;
  }

 private:
  DType type() const { return g_.training.activation_type(); }
  // Of a token's share in the mean over all tokens of a step.
  double of_each(double factor) const {
    return factor / (static_cast<double>(g_.training.global_batch) * static_cast<double>(g_.sequence));
  }

  // The weights of each token's experts, and which they are.
  void route(ValueId x) {
    const std::int64_t tokens = g_.tokens, experts = l_.experts, k = l_.top_k;
    const Placements whole = g_.placed(Placement::kReplicated);
    const ValueId logits = replicated_linear(g_, base_ + "/router", x, experts);
    const ValueId scores = g_.value(base_ + "/router/scores", tokens, experts, whole, DType::kFloat32);
    g_.node(base_ + "/router/scores",
            ops::RouterScores{{tokens, experts, l_.score, of_each(l_.z_loss), g_.ranks > 1}},
            {g_.use(logits)}, {scores});
    weights_ = g_.value(base_ + "/router/weights", tokens, k, whole, DType::kFloat32);
    choice_ = g_.value(base_ + "/router/choice", tokens, 2 * k, whole, DType::kInt32);
    counts_ = g_.value(base_ + "/router/counts", 1, experts, whole, DType::kInt32);
    const ValueId load = g_.value(base_ + "/router/load", g_.micro_batch, experts, whole, DType::kFloat32);
    const ops::RouteShape shape{.tokens = tokens,
                                .sequence = g_.sequence,
                                .experts = experts,
                                .top_k = k,
                                .groups = l_.groups,
                                .top_groups = l_.top_groups,
                                .capacity = l_.capacity(tokens),
                                .normalised = l_.normalised,
                                .scale = l_.weight_scale,
                                .biased = l_.bias_rate > 0};
    std::vector<Operand> reads{g_.use(scores)};
    if (shape.biased) {
      const std::int32_t biases = g_.vector(base_ + "/router/choice_bias", experts, Parameter::Init::kZeros);
      g_.parameter(biases).sign_rate = l_.bias_rate;
      reads.push_back(g_.weight(biases));
    }
    g_.node(base_ + "/route", ops::Route{shape}, std::move(reads), {weights_, choice_, counts_, load});
    if (l_.balance_loss == 0) return;
    const ops::BalanceShape balance{
        tokens,      g_.sequence, experts, k, l_.score == RouterScore::kSigmoid, of_each(l_.balance_loss),
        g_.ranks > 1};
    weights_ = g_.in_place(base_ + "/balance", ops::Balance{balance},
                           {g_.use(weights_), g_.use(scores), g_.use(load)});
  }

  ValueId permute(ValueId x) {
    rows_ = l_.routed_rows(g_.tokens);
    const Placements whole = g_.placed(Placement::kReplicated);
    const ValueId y = g_.value(base_ + "/permuted", rows_, g_.model.hidden, whole, type());
    row_weights_ = g_.value(base_ + "/row_weights", rows_, 1, whole, DType::kFloat32);
    g_.node(base_ + "/permute", ops::Permute{{g_.tokens, g_.model.hidden, l_.top_k, rows_}},
            {g_.use(x, whole), g_.use(weights_), g_.use(choice_)}, {y, row_weights_});
    return y;
  }

  // Of each expert's rows with its weight [n, k].
  ValueId product(const char* name, ValueId x, std::int64_t n, std::int64_t k, Parameter::Split split) {
    const bool by_rows = split == Parameter::Split::kRows;
    std::vector<std::int64_t> blocks;
    if (by_rows) blocks.assign(static_cast<std::size_t>(l_.experts * n / l_.ffn_hidden), l_.ffn_hidden);
    const std::int32_t w = g_.matrix(base_ + name + "/weight", l_.experts * n, k, split, std::move(blocks));
    ops::GroupedGemm shape{.rows = rows_,
                           .n = g_.parameter(w).local_rows / l_.experts,
                           .k = g_.parameter(w).local_cols,
                           .experts = l_.experts};
    if (g_.training.math == Math::kFp8) shape.format = ops::Gemm::Format::kFp8Values;
    const ValueId u = g_.value(base_ + name + (by_rows ? "/out" : "/partial"), rows_, n,
                               g_.placed(by_rows ? Placement::kColumns : Placement::kSum), type());
    g_.node(base_ + name, shape, {g_.use(x), g_.weight(w), g_.use(counts_)}, {u});
    return u;
  }

  Builder& g_;
  const std::string& base_;
  const ExpertsLayer& l_;
  std::int64_t rows_ = 0;
  ValueId weights_ = kNoValue, choice_ = kNoValue, counts_ = kNoValue, row_weights_ = kNoValue;
};

}  // namespace

Branch branch(Builder& g, const std::string& base, const ExpertsLayer& l, ValueId x) {
  const ValueId routed = Experts(g, base, l).run(x);
  if (l.shared_ffn_hidden == 0) return {routed, {}};
  const std::string shared = base + "/shared";
  ValueId y = branch(g, shared, l.shared_experts(), x).value;
  if (l.shared_gate) {
    g.pass_sums(true);
    const ValueId logit = replicated_linear(g, shared + "/gate", x, 1);
    g.pass_sums(false);
    const ValueId gated = g.value(shared + "/gated/partial", g.model.hidden, g.placed(Placement::kSum));
    g.node(shared + "/gated", ops::Gate{{g.tokens, g.model.hidden}}, {g.use(y), g.use(logit)}, {gated});
    y = gated;
  }
  return {g.sum(base + "/sum", routed, y), {}};
}

}  // namespace orrery::program
