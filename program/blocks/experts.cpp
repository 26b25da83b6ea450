// SPDX-License-Identifier: Apache-2.0
//
// A router, and experts over the ranks that a plan gives them.
//
// Experts that lie over the ranks as other weights do have their widths split over tensor ranks, as an MLP's
// is. All tensor ranks route all tokens alike, so experts, like MLPs, leave partial sums; gradients stay
// partial sums until they reach x.
//
// Otherwise each rank routes the tokens that it has, and their rows go where their experts are: an all-to-all
// over ep ranks exchanges parts of rows, and etp ranks, which have columns of the same experts, gather each
// other's rows and add their results. Placements say so, collectives follow. Parts are of a fixed size, so
// that a step's memory and its collectives are known before it: rows beyond the others are room.
#include "program/blocks.h"

namespace orrery::program {
namespace {

// A product that all tensor ranks do alike, or each of its own tokens, never in 8 bits.
ValueId unsplit_linear(Builder& g, const std::string& name, ValueId x, std::int64_t columns,
                       const Placements& placed, std::int64_t rows, bool bias = false) {
  const std::int32_t w = g.matrix(name + "/weight", columns, g.model.hidden, Parameter::Split::kNone);
  const ValueId u = g.value(name + "/out", columns, placed);
  std::vector<Operand> reads{g.use(x, placed), g.weight(w)};
  if (bias) reads.push_back(g.weight(g.vector(name + "/bias", columns, Parameter::Init::kZeros)));
  g.node(name, ops::Gemm{.m = rows, .n = columns, .k = g.model.hidden, .transpose_b = true}, std::move(reads),
         {u});
  return u;
}

class Experts {
 public:
  Experts(Builder& g, const std::string& base, const ExpertsLayer& l)
      : g_(g),
        base_(base),
        l_(l),
        apart_(g.plan.splits_experts() && (g.sequence_parallel || g.ranks == 1)),
        ep_(g.plan.ep),
        sharing_(apart_ ? g.plan.expert_tp() : 1),
        tokens_(apart_ ? g.rows : g.tokens),
        room_(l.room(tokens_, g.micro_batch, ep_, g.plan.expert_room)),
        even_(l.routed_rows(tokens_)),
        own_(apart_ ? g.stream() : g.placed(Placement::kReplicated)) {}

  ValueId run(ValueId x) {
    g_.pass_sums(!apart_);
    route(x);
    const ValueId y = permute(x);
    g_.pass_sums(false);
    const std::int64_t hidden = g_.model.hidden;
    std::vector<std::int64_t> blocks(l_.gated() ? 2 : 1, l_.ffn_hidden);
    const ValueId u = product("/fc1", y, std::move(blocks), hidden, Parameter::Split::kRows);
    const ValueId z = product("/fc2", activation(u), {hidden}, l_.ffn_hidden, Parameter::Split::kCols);
    const ValueId o =
        g_.value(base_ + (apart_ ? "/out" : "/partial"), hidden, apart_ ? own_ : g_.placed(Placement::kSum));
    Placements back = g_.placement(z);
    back[GraphAxis::kEp] = back[GraphAxis::kEtp] = Placement::kRows;
    g_.node(base_ + "/unpermute", ops::Unpermute{permuted()}, {g_.use(z, back), g_.use(choice_)}, {o});
    return o;
  }

 private:
  DType type() const { return g_.training.activation_type(); }
  // Of a token's share in the mean over all tokens of a step.
  double of_each(double factor) const {
    return factor /
           (static_cast<double>(g_.training.global_batch) * static_cast<double>(g_.sequence * g_.plan.cp));
  }
  // Whether all tensor ranks have the same tokens.
  bool alike() const { return g_.ranks > 1 && !apart_; }
  bool sharded() const { return g_.ranks > 1 && apart_; }
  // Ranks that have shares of the same micro-batch's tokens.
  std::int64_t sharing_ranks() const { return g_.plan.cp * (sharded() ? g_.ranks : 1); }
  std::int64_t parts() const { return ep_ * sharing_; }
  // Rows where the experts are.
  std::int64_t rows() const { return room_ * ep_ * sharing_; }
  ops::PermuteShape permuted() const { return {tokens_, g_.model.hidden, l_.top_k, room_ * ep_, even_}; }

  // Of a value with a row for each sample.
  Placements placed_for_samples(Placement along_tp, Placement along_cp) const {
    Placements p = g_.placed(along_tp);
    p[GraphAxis::kUlysses] = p[GraphAxis::kRing] = along_cp;
    return p;
  }

  // Where the experts are; of an expert's columns so.
  Placements at_experts(Placement columns) const {
    Placements p = own_;
    if (ep_ > 1) p[GraphAxis::kEp] = Placement::kParts;
    if (!apart_)
      p[GraphAxis::kTp] = columns;
    else if (sharing_ > 1)
      p[GraphAxis::kEtp] = columns;
    return p;
  }

  // A value with a row for each of the tokens' experts.
  ValueId routed(const std::string& name, std::int64_t columns, const Placements& placed, DType type_of) {
    const std::int64_t ranks = sharing_ranks();
    const ValueId v = g_.value(base_ + name, room_ * ep_ * ranks, columns, placed, type_of);
    Value& of = g_.of(v);
    of.filled = static_cast<double>(even_) / static_cast<double>(room_ * ep_);
    of.copies = l_.top_k;
    of.groups = l_.groups;
    of.top_groups = l_.top_groups;
    return v;
  }

  // The weights of each token's experts, and which they are.
  void route(ValueId x) {
    const std::int64_t experts = l_.experts, k = l_.top_k;
    const ValueId logits = unsplit_linear(g_, base_ + "/router", x, experts, own_, tokens_, l_.biases);
    const ValueId scores = g_.value(base_ + "/router/scores", g_.all_tokens, experts, own_, DType::kFloat32);
    g_.node(base_ + "/router/scores",
            ops::RouterScores{{tokens_, experts, l_.score, of_each(l_.z_loss), alike()}}, {g_.use(logits)},
            {scores});
    weights_ = g_.value(base_ + "/router/weights", g_.all_tokens, k, own_, DType::kFloat32);
    choice_ = g_.value(base_ + "/router/choice", g_.all_tokens, 2 * k, own_, DType::kInt32);
    counts_ = g_.value(base_ + "/router/counts", sharing_ranks(), experts, own_, DType::kInt32);
    // Of a rank's tokens alone.
    const Placements of_sample = placed_for_samples(sharded() ? Placement::kSum : own_[GraphAxis::kTp],
                                                    g_.plan.cp > 1 ? Placement::kSum : Placement::kRows);
    const ValueId load =
        g_.value(base_ + "/router/load", g_.micro_batch, experts, of_sample, DType::kFloat32);
    const ops::RouteShape shape{.tokens = tokens_,
                                .sequence = g_.sequence,
                                .samples = g_.micro_batch,
                                .experts = experts,
                                .top_k = k,
                                .groups = l_.groups,
                                .top_groups = l_.top_groups,
                                .capacity = l_.capacity(tokens_),
                                .parts = ep_,
                                .room = room_,
                                .normalised = l_.normalised,
                                .scale = l_.weight_scale,
                                .biased = l_.bias_rate > 0,
                                .sharded = sharded()};
    std::vector<Operand> reads{g_.use(scores)};
    std::int32_t biases = -1;
    if (shape.biased) {
      biases = g_.vector(base_ + "/router/choice_bias", experts, Parameter::Init::kZeros);
      g_.parameter(biases).sign_rate = l_.bias_rate;
      g_.of(load).keeps_summands = true;
      reads.push_back(g_.weight(biases));
    }
    g_.node(base_ + "/route", ops::Route{shape}, std::move(reads), {weights_, choice_, counts_, load});
    // Counted from a rank's tokens, and not from gradients that tensor ranks have summands of.
    if (biases >= 0) g_.parameter(biases).partial_over_tp = sharded();
    if (l_.balance_loss == 0) return;
    // The load is of the tokens of all ranks that share the sequences, which are as many times a rank's.
    const double factor = of_each(l_.balance_loss) / static_cast<double>(g_.plan.cp);
    const ops::BalanceShape balance{.tokens = tokens_,
                                    .sequence = g_.sequence,
                                    .samples = g_.micro_batch,
                                    .experts = experts,
                                    .top_k = k,
                                    .normalises = l_.score == RouterScore::kSigmoid,
                                    .factor = factor,
                                    .first = alike(),
                                    .sharded = sharded()};
    weights_ = g_.in_place(
        base_ + "/balance", ops::Balance{balance},
        {g_.use(weights_), g_.use(scores),
         g_.use(load, placed_for_samples(Placement::kReplicated,
                                         g_.plan.cp > 1 ? Placement::kReplicated : Placement::kRows))});
  }

  ValueId permute(ValueId x) {
    const ValueId y = routed("/permuted", g_.model.hidden, own_, type());
    row_weights_ = routed("/row_weights", 1, own_, DType::kFloat32);
    g_.node(base_ + "/permute", ops::Permute{permuted()},
            {g_.use(x, own_), g_.use(weights_), g_.use(choice_)}, {y, row_weights_});
    return y;
  }

  ValueId activation(ValueId u) {
    const Builder::InPart part(g_, RecomputePart::kExpertActivation);
    const ValueId v = routed("/act/out", l_.ffn_hidden, at_experts(Placement::kColumns), type());
    const Placements whole = at_experts(Placement::kReplicated);
    g_.node(base_ + "/act",
            ops::ExpertActivation{{rows(), even_ * sharing_, l_.ffn_hidden / g_.plan.expert_tp(),
                                   l_.experts / ep_, parts(), l_.activation, l_.weighs_inputs}},
            {g_.use(u), g_.use(row_weights_, whole), g_.use(counts_, whole)}, {v});
    return v;
  }

  // Of each expert's rows with its weight, `blocks` of rows one after the other.
  ValueId product(const char* name, ValueId x, std::vector<std::int64_t> blocks, std::int64_t columns,
                  Parameter::Split split) {
    const bool by_rows = split == Parameter::Split::kRows, gates = blocks.size() > 1;
    const std::int32_t w =
        g_.expert_matrix(base_ + name + "/weight", l_.experts, std::move(blocks), columns, split);
    if (gates) g_.has_gates(w);
    const std::int64_t experts = l_.experts / ep_, n = g_.parameter(w).rows / l_.experts;
    ops::GroupedGemm shape{.rows = rows(),
                           .even = even_ * sharing_,
                           .n = g_.parameter(w).local_rows / experts,
                           .k = g_.parameter(w).local_cols,
                           .experts = experts,
                           .parts = parts()};
    if (rounds(g_.training.math)) {
      shape.format = ops::Gemm::Format::kRoundedValues;
      shape.rounding = rounding_number(g_.training.math);
    }
    const Placements reads = at_experts(by_rows ? Placement::kReplicated : Placement::kColumns),
                     writes = at_experts(by_rows ? Placement::kColumns : Placement::kSum);
    const ValueId u = routed(std::string(name) + (by_rows ? "/out" : "/partial"), n, writes, type());
    Node& node =
        g_.node(base_ + name, shape,
                {g_.use(x, reads), g_.weight(w), g_.use(counts_, at_experts(Placement::kReplicated))}, {u});
    // Rows come with their weights, which the activation reads.
    if (by_rows) node.brings = {g_.use(row_weights_, at_experts(Placement::kReplicated))};
    return l_.biases ? biased(base_ + name, u, n, split) : u;
  }

  // Of the experts' results, which ranks share by columns, or as summands: then each adds a share of the
  // bias's columns, times the weight that the token gives the expert.
  ValueId biased(const std::string& name, ValueId u, std::int64_t n, Parameter::Split split) {
    const bool summands = split == Parameter::Split::kCols;
    std::vector<std::int64_t> blocks(!summands && l_.gated() ? 2 : 1, !summands ? l_.ffn_hidden : n);
    const std::int32_t b =
        g_.expert_matrix(name + "/bias", l_.experts, std::move(blocks), 1, Parameter::Split::kRows);
    g_.parameter(b).init = Parameter::Init::kZeros;
    const std::int64_t width = n / g_.plan.expert_tp();
    const ops::ExpertBias shape{{.rows = rows(),
                                 .even = even_ * sharing_,
                                 .columns = summands ? n : width,
                                 .width = width,
                                 .experts = l_.experts / ep_,
                                 .parts = parts(),
                                 .weighted = summands}};
    const Placements whole = at_experts(Placement::kReplicated);
    std::vector<Operand> reads{g_.use(u), g_.weight(b), g_.use(counts_, whole)};
    if (summands) reads.push_back(g_.use(row_weights_, whole));
    return g_.in_place(name + "/add_bias", shape, std::move(reads));
  }

  Builder& g_;
  const std::string& base_;
  const ExpertsLayer& l_;
  const bool apart_;                 // each rank routes the tokens that it has
  const std::int64_t ep_, sharing_;  // ranks with parts of the experts; with columns of their own tokens'
  const std::int64_t tokens_;        // that a rank routes
  const std::int64_t room_, even_;   // rows for each of ep ranks; rows that all of them get, in the mean
  const Placements own_;             // of these tokens
  ValueId weights_ = kNoValue, choice_ = kNoValue, counts_ = kNoValue, row_weights_ = kNoValue;
};

// A partial sum over tensor ranks.
ValueId shared(Builder& g, const std::string& base, const ExpertsLayer& l, ValueId x) {
  const Builder::InPart part(g, RecomputePart::kSharedExperts);
  const ValueId y = branch(g, base, l.shared_experts(), x).value;
  if (!l.shared_gate) return y;
  g.pass_sums(true);
  const ValueId logit = unsplit_linear(g, base + "/gate", x, 1, g.placed(Placement::kReplicated), g.tokens);
  g.pass_sums(false);
  const ValueId gated = g.value(base + "/gated/partial", g.model.hidden, g.placed(Placement::kSum));
  g.node(base + "/gated", ops::Gate{{g.tokens, g.model.hidden}}, {g.use(y), g.use(logit)}, {gated});
  return gated;
}

}  // namespace

Branch branch(Builder& g, const std::string& base, const ExpertsLayer& l, ValueId x) {
  const ValueId routed = Experts(g, base, l).run(x);
  if (l.shared_ffn_hidden == 0) return {routed, {}};
  return {g.sum(base + "/sum", routed, shared(g, base + "/shared", l, x)), {}};
}

}  // namespace orrery::program
