// SPDX-License-Identifier: Apache-2.0
//
// The two ends of the model: vocabulary-parallel embeddings, and head with cross-entropy. A tensor rank
// holds V/t rows of the embedding; looking up a token of another rank gives zeros, and the sum over
// ranks is the lookup. Patches of images are multiplied likewise: a rank has columns of the matrix. The loss
// needs the maximum, the sum of exponentials and the target's logit over all ranks: three small all-reduces
// instead of gathering logits.
#include "program/blocks.h"

namespace orrery::program {
namespace {

// Rows that all tensor ranks share evenly; the last ones only fill the shares up.
std::int32_t shared_rows(Builder& g, const std::string& name, std::int64_t of) {
  const std::int64_t rows = (of + g.ranks - 1) / g.ranks * g.ranks;
  const std::int32_t w = g.matrix(name, rows, g.model.hidden, Parameter::Split::kRows);
  g.parameter(w).padding = rows - of;
  return w;
}

// What the inputs of a model make of their data, one overload each. Names of the first input's tensors begin
// with nothing, those of others with the tower's name.
class Inputs {
 public:
  explicit Inputs(Builder& g) : g_(g) {
    if (!g.model.has_tokens()) return;
    embedding_ = shared_rows(g, "embedding/weight", g.model.vocab);
    g.keep_piece_alone();
  }

  void add(TowerIndex t, const Input& input) {
    g_.in_tower(t);
    tower_ = t;
    base_ = t == 0 ? std::string() : input.tower() + "/";
    ValueId x = std::visit([&](const auto& i) { return rows_of(i); }, input.is);
    const bool has_positions = !std::holds_alternative<BagInput>(input.is);
    if (g_.model.positions == Positions::kLearned && has_positions) x = positions(x);
    g_.output(t, x);
  }

 private:
  // What an embedding or another tower has is apart.
  void begin_own_piece() {
    if (embedding_ >= 0 || tower_ > 0) g_.begin_piece();
  }
  std::string named(const char* name) const { return base_ + name; }

  ValueId rows_of(const TokenInput&) {
    const std::int64_t hidden = g_.model.hidden;
    const ValueId tokens =
        g_.port(named("tokens"), Port::Is::kInput, tower_, g_.all_tokens, 1, {}, DType::kInt32);
    const ValueId x = g_.value(named("embedding/out"), hidden, g_.placed(Placement::kSum));
    g_.node(named("embedding"),
            ops::Embedding{{g_.tokens, hidden, g_.parameter(embedding_).local_rows, g_.model.vocab}},
            {g_.use(tokens), g_.weight(embedding_)}, {x});
    return g_.model.embedding_scale == 1 ? x
                                         : g_.scale(named("embedding/scale"), x, g_.model.embedding_scale);
  }

  // A tensor rank has a share of each patch's values, and makes a part of the sum.
  ValueId rows_of(const PatchInput& image) {
    begin_own_piece();
    using Init = Parameter::Init;
    const std::int64_t hidden = g_.model.hidden, values = image.values();
    const ValueId data =
        g_.port(named("patches/data"), Port::Is::kInput, tower_, g_.micro_batch * image.patches(), values,
                g_.placed(Placement::kColumns), g_.training.activation_type());
    const std::int32_t w = g_.matrix(named("patches/weight"), hidden, values, Parameter::Split::kCols);
    std::vector<Operand> reads{g_.use(g_.linear(named("patches"), data, w))};
    reads.push_back(g_.weight(g_.vector(named("patches/bias"), hidden, Init::kZeros)));
    if (image.class_token)
      reads.push_back(g_.weight(g_.vector(named("patches/class"), hidden, Init::kNormal)));
    const ValueId x = g_.value(named("patches/tokens"), hidden, g_.placed(Placement::kSum));
    g_.node(named("patches/tokens"),
            ops::Patches{{g_.micro_batch, image.patches(), hidden, image.class_token}}, std::move(reads),
            {x});
    return x;
  }

  ValueId rows_of(const BagInput& bags) {
    begin_own_piece();
    using Split = Parameter::Split;
    const std::int64_t hidden = g_.model.hidden, rows = bags.tables * bags.rows;
    const TableSplit split = g_.plan.table_split.value_or(TableSplit::kRows);
    const ValueId ids = g_.port(named("ids"), Port::Is::kInput, tower_, g_.micro_batch,
                                bags.tables * bags.ids, {}, DType::kInt32);
    // By rows, each table is split by itself.
    std::vector<std::int64_t> blocks{rows};
    if (split == TableSplit::kRows) blocks.assign(static_cast<std::size_t>(bags.tables), bags.rows);
    const std::int32_t w = g_.matrix(named("bags/weight"), rows, hidden,
                                     split == TableSplit::kColumns ? Split::kCols : Split::kRows, blocks);
    const ValueId x = g_.value(named("bags/out"), hidden, g_.placed(Placement::kSum));
    g_.node(named("bags"),
            ops::Bags{{g_.micro_batch, hidden, bags.tables, bags.rows, bags.ids, g_.ranks, split}},
            {g_.use(ids), g_.weight(w)}, {x});
    return x;
  }

  ValueId positions(ValueId x) {
    const Model& m = g_.model;
    g_.begin_piece();
    const std::int32_t table =
        g_.matrix(named("embedding/positions"), m.max_positions, m.hidden, Parameter::Split::kNone);
    const ops::PositionsShape shape{g_.rows, m.hidden, g_.sequence, m.max_positions, g_.sequence_parallel};
    return g_.in_place(named("embedding/positions"), ops::Positions{shape},
                       {g_.use(x, g_.stream()), g_.weight(table)});
  }

  Builder& g_;
  std::int32_t embedding_ = -1;
  TowerIndex tower_ = 0;
  std::string base_;
};

// The row that stands for each sample: the same on all tensor ranks.
ValueId pooled(Builder& g, const ClassOutput& output, ValueId x) {
  const std::int64_t hidden = g.model.hidden;
  const ValueId y = g.value("head/pool/out", g.micro_batch, hidden,
                            g.placed(g.sequence_parallel ? Placement::kSum : Placement::kReplicated),
                            g.training.activation_type());
  g.node(
      "head/pool",
      ops::Pool{{g.micro_batch, g.sequence, g.rows, hidden, output.pool == Pool::kMean, g.sequence_parallel}},
      {g.use(x, g.stream())}, {y});
  return y;
}

// The loss of two towers.
Graph pair_head(Builder& g) {
  const std::int64_t batch = g.micro_batch;
  const ValueId u = g.input(0), v = g.input(1);
  const ValueId labels = g.port("targets", Port::Is::kTargets, 0, batch, 1, {}, DType::kInt32);
  const ValueId loss = g.port("loss", Port::Is::kLoss, 0, 1, 1, {}, DType::kFloat64);
  const ValueId probabilities = g.value("head/probabilities", batch, 1, {}, DType::kFloat32);
  g.node("loss", ops::PairLoss{{batch, g.model.hidden}}, {g.use(u), g.use(v), g.use(labels)},
         {probabilities, loss});
  return g.finish();
}

// The last token of each sequence: what comes behind is of as many rows.
ValueId last_tokens(Builder& g, ValueId x) {
  const std::int64_t queries = g.sequence;
  g.sequence = 1;
  g.tokens = g.rows = g.all_tokens = g.micro_batch;
  if (queries == 1) return x;
  const ValueId y = g.value("head/last", g.model.hidden, g.stream());
  g.node("head/last", ops::LastTokens{g.micro_batch, queries, g.model.hidden}, {g.use(x)}, {y});
  return y;
}

// Of each row the token that has the largest logit.
void choose(Builder& g, ValueId logits, const Parameter& w, ValueId chosen) {
  const ValueId best = g.value("head/best", g.ranks * g.tokens, ops::kBestNumbers, g.placed(Placement::kRows),
                               DType::kFloat32);
  g.node("head/best", ops::BestLogit{g.tokens, w.local_rows, g.model.head_rows()}, {g.use(logits)}, {best});
  g.node("head/choose", ops::ChooseToken{g.tokens, g.ranks}, {g.use(best, g.placed(Placement::kReplicated))},
         {chosen});
}

struct Logits {
  ValueId value = kNoValue;
  std::int32_t weight = -1;  // parameter
};

Logits logits_of(Builder& g, ValueId n) {
  const std::int32_t w = shared_rows(g, "head/weight", g.model.head_rows());
  if (g.model.tied_embeddings) g.keep_piece_alone();
  std::int32_t bias = -1;
  if (g.model.classes() != nullptr) {
    bias = g.split_vector("head/bias", g.parameter(w).rows, {g.parameter(w).rows});
    g.parameter(bias).padding = g.parameter(w).padding;
  }
  if (g.model.logit_scale != 1) n = g.scale("head/scale", n, g.model.logit_scale);
  ValueId logits = g.linear("head", n, w, bias);
  if (g.model.logit_soft_cap > 0) logits = g.soft_cap("head/soft_cap", logits, g.model.logit_soft_cap);
  return {logits, w};
}

// Of so many rows on each rank.
void loss_of(Builder& g, const Logits& logits, ValueId targets, std::int64_t rows, std::int64_t further = 0) {
  const std::int64_t all_rows = rows * g.plan.cp;
  const Parameter& w = g.parameter(logits.weight);
  const std::int64_t columns = w.rows;
  const ValueId loss =
      g.port("loss", Port::Is::kLoss, static_cast<std::int32_t>(further), 1, 1, {}, DType::kFloat64);
  const double weight = further == 0 ? 1 : g.model.mtp_loss_scale / static_cast<double>(g.model.mtp_layers);
  const ops::LogitsShape shape{rows, w.local_rows, g.model.head_rows()};
  const LossKeeps keeps = g.stack.loss_keeps;
  const auto of_logits = [&](const char* name) {
    return g.value(name, all_rows, columns, g.placed(Placement::kColumns), DType::kFloat32);
  };
  // Each tensor rank's, one behind the other.
  const ValueId statistics = g.value("head/statistics", g.ranks * all_rows, ops::kLossStatistics,
                                     g.placed(Placement::kRows), DType::kFloat32);
  const ValueId normalizers =
      g.value("head/normalizers", all_rows, ops::kLossNormalizers, {}, DType::kFloat32);
  std::vector<ValueId> found{statistics}, made{normalizers, loss};
  std::vector<Operand> reads{g.use(statistics, g.placed(Placement::kReplicated))};
  if (!keeps_logits(keeps)) found.push_back(of_logits("head/exponentials"));
  g.node("loss/statistics", ops::LossStatistics{shape}, {g.use(logits.value), g.use(targets)}, found);
  if (!keeps_logits(keeps)) {
    reads.push_back(g.use(found[1]));
    made.push_back(keeps == LossKeeps::kBoth ? of_logits("head/log_probabilities")
                                             : g.taken_over(found[1], 1));
  }
  g.node("loss", ops::Loss{shape, g.ranks, weight}, std::move(reads), std::move(made)).also = {logits.value,
                                                                                               targets};
}

}  // namespace

Graph embedding(const Model& m, const Plan& p, const Training& t, const Stack& s) {
  Builder g(m, p, t, s, Builder::Part::kEnd);
  Inputs inputs(g);
  const std::vector<Input> all = m.all_inputs();
  for (std::size_t i = 0; i < all.size(); ++i) inputs.add(static_cast<TowerIndex>(i), all[i]);
  return g.finish();
}

Graph head(const Model& m, const Plan& p, const Training& t, const Stack& s, std::int64_t further) {
  Builder g(m, p, t, s, Builder::Part::kEnd);
  if (m.has_pair()) return pair_head(g);
  const TowerIndex tower = output_tower(depth_of(m));
  g.in_tower(tower);
  ValueId x = g.input(tower);
  const ClassOutput* const classes = m.classes();
  if (loss_is_apart(p, t)) {
    g.output(tower, g.norm("head/norm", x));
    return g.finish();
  }
  const std::int64_t rows = classes != nullptr ? g.micro_batch : g.tokens;
  const ValueId targets = g.port("targets", Port::Is::kTargets, static_cast<std::int32_t>(further),
                                 rows * p.cp, 1, {}, DType::kInt32);
  if (t.serves()) x = last_tokens(g, x);
  ValueId n = g.norm("head/norm", x);
  if (further < m.mtp_layers) g.output(tower, n);
  if (classes != nullptr) n = pooled(g, *classes, n);
  g.begin_piece();
  const Logits logits = logits_of(g, n);
  if (t.serves())
    choose(g, logits.value, g.parameter(logits.weight), targets);
  else
    loss_of(g, logits, targets, rows, further);
  return g.finish();
}

Graph mtp_input(const Model& m, const Plan& p, const Training& t, const Stack& s, std::int64_t further) {
  Builder g(m, p, t, s, Builder::Part::kLayer);
  const ValueId h = g.input(0);
  const std::int32_t table = shared_rows(g, "embedding/weight", m.vocab);
  g.parameter(table).muon = false;
  g.keep_piece_alone();
  g.begin_piece();
  const ValueId tokens = g.port("tokens", Port::Is::kTargets, static_cast<std::int32_t>(further - 1),
                                g.all_tokens, 1, {}, DType::kInt32);
  ValueId e = g.value("embedding/out", m.hidden, g.placed(Placement::kSum));
  g.node("embedding", ops::Embedding{{g.tokens, m.hidden, g.parameter(table).local_rows, m.vocab}},
         {g.use(tokens), g.weight(table)}, {e});
  if (m.embedding_scale != 1) e = g.scale("embedding/scale", e, m.embedding_scale);
  const auto half = [&](const std::string& of, ValueId x) {
    const ValueId n = g.norm(of + "/norm", x);
    return g.linear(of, n, g.matrix(of + "/weight", m.hidden, m.hidden, Parameter::Split::kNone));
  };
  const ValueId from_h = half("hidden", h), from_e = half("next", e);
  g.output(0, g.sum("sum", from_h, from_e));
  return g.finish();
}

Graph part_of_loss(const Model& m, const Plan& p, const Training& t, const Stack& s) {
  Builder g(m, p, t, s, Builder::Part::kEnd);
  const TowerIndex tower = output_tower(depth_of(m));
  g.in_tower(tower);
  for (std::int64_t* const all : {&g.tokens, &g.rows, &g.all_tokens}) *all /= p.loss_chunks;
  const ValueId n = g.port("head/norm/out", Port::Is::kTower, tower, g.all_tokens, m.hidden, g.stream(),
                           t.activation_type());
  const ValueId targets = g.port("targets", Port::Is::kTargets, 0, g.all_tokens, 1, {}, DType::kInt32);
  loss_of(g, logits_of(g, n), targets, g.tokens);
  return g.finish();
}

}  // namespace orrery::program
