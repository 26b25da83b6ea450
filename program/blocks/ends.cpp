// SPDX-License-Identifier: Apache-2.0
//
// The two ends of the model: vocabulary-parallel embeddings, and head with cross-entropy. A tensor rank
// holds V/t rows of the embedding; looking up a token of another rank gives zeros, and the sum over
// ranks is the lookup. The loss needs the maximum, the sum of exponentials and the target's logit over
// all ranks: three small all-reduces instead of gathering logits.
#include "program/blocks.h"

namespace orrery::program {
namespace {

// Rows that all tensor ranks share evenly; the last ones only fill the shares up.
std::int32_t vocabulary_matrix(Builder& g, const char* name) {
  const std::int64_t vocabulary = g.model.vocab, rows = (vocabulary + g.ranks - 1) / g.ranks * g.ranks;
  const std::int32_t w = g.matrix(name, rows, g.model.hidden, Parameter::Split::kRows);
  g.parameter(w).padding = rows - vocabulary;
  return w;
}

}  // namespace

Graph embedding(const Model& m, const Plan& p, const Training& t, const Stack& s) {
  Builder g(m, p, t, s, Builder::Part::kEnd);
  const std::int32_t w = vocabulary_matrix(g, "embedding/weight");
  g.keep_piece_alone();
  const std::vector<Input> inputs = m.all_inputs();
  for (TowerIndex i = 0; i < std::ssize(inputs); ++i) {
    g.in_tower(i);
    // "embedding" of the first, "decoder/embedding" of others.
    const auto named = [&, of = inputs[static_cast<std::size_t>(i)].tower()](const char* name) {
      return i == 0 ? std::string(name) : of + "/" + name;
    };
    const ValueId tokens = g.port(named("tokens"), Port::Is::kInput, i, g.tokens, 1, {}, DType::kInt32);
    ValueId x = g.value(named("embedding/out"), m.hidden, g.placed(Placement::kSum));
    g.node(named("embedding"), ops::Embedding{{g.tokens, m.hidden, g.parameter(w).local_rows, m.vocab}},
           {g.use(tokens), g.weight(w)}, {x});
    if (m.embedding_scale != 1) x = g.scale(named("embedding/scale"), x, m.embedding_scale);
    if (m.positions == Positions::kLearned) {
      g.begin_piece();
      const std::int32_t positions =
          g.matrix(named("embedding/positions"), m.max_positions, m.hidden, Parameter::Split::kNone);
      const ops::PositionsShape shape{g.rows, m.hidden, g.sequence, m.max_positions, g.sequence_parallel};
      x = g.in_place(named("embedding/positions"), ops::Positions{shape},
                     {g.use(x, g.stream()), g.weight(positions)});
    }
    g.output(i, x);
  }
  return g.finish();
}

Graph head(const Model& m, const Plan& p, const Training& t, const Stack& s) {
  Builder g(m, p, t, s, Builder::Part::kEnd);
  const TowerIndex tower = output_tower(depth_of(m));
  g.in_tower(tower);
  const ValueId x = g.input(tower);
  const ValueId targets = g.port("targets", Port::Is::kTargets, 0, g.tokens, 1, {}, DType::kInt32);
  const ValueId loss = g.port("loss", Port::Is::kLoss, 0, 1, 1, {}, DType::kFloat64);
  const ValueId n = g.norm("head/norm", x);
  g.begin_piece();
  const std::int32_t w = vocabulary_matrix(g, "head/weight");
  if (m.tied_embeddings) g.keep_piece_alone();
  ValueId logits = g.linear("head", n, w);
  if (m.logit_soft_cap > 0) logits = g.soft_cap("head/soft_cap", logits, m.logit_soft_cap);

  const ops::LogitsShape shape{g.tokens, g.parameter(w).local_rows, m.vocab};
  const DType kept = s.fp32_logits ? DType::kFloat32 : t.activation_type();
  const ValueId exponentials =
      g.value("head/probabilities", g.tokens, g.parameter(w).rows, g.placed(Placement::kColumns), kept);
  const ValueId largest = g.value("head/max", g.tokens, 1, g.placed(Placement::kMax), DType::kFloat32);
  const ValueId sums = g.value("head/sums", g.tokens, 2, g.placed(Placement::kSum), DType::kFloat32);
  const Placements whole = g.placed(Placement::kReplicated);
  g.node("loss/max", ops::LossMax{shape}, {g.use(logits)}, {largest});
  g.node("loss/sum", ops::LossSum{shape}, {g.use(logits), g.use(largest, whole), g.use(targets)},
         {exponentials, sums});
  const ValueId probabilities = g.taken_over(exponentials, 0);
  g.node("loss", ops::Loss{shape}, {g.use(exponentials), g.use(sums, whole)}, {probabilities, loss}).also = {
      logits, targets};
  return g.finish();
}

}  // namespace orrery::program
