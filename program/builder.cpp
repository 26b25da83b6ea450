// SPDX-License-Identifier: Apache-2.0
#include "program/builder.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <tuple>

namespace orrery::program {

Builder::Builder(const Model& m, const Plan& p, const Training& t, const Stack& s, Part part,
                 std::vector<RotaryUse>* rotary)
    : model(m),
      plan(p),
      training(t),
      stack(s),
      micro_batch(p.micro_batch),
      ranks(p.tp),
      sequence_parallel(p.sequence_parallel && p.tp > 1),
      rotary_(rotary),
      tower_tokens_(tower_tokens(m, t)) {
  in_tower(0);
  graph_.ranks_along = {p.tp, p.ulysses, p.ring(), p.ep, p.expert_tp()};
  graph_.in_layer = part == Part::kLayer;
}

void Builder::in_tower(TowerIndex t) {
  sequence = tower_tokens_[static_cast<std::size_t>(t)] / plan.cp;
  tokens = micro_batch * sequence;
  all_tokens = tokens * plan.cp;
  rows = sequence_parallel ? tokens / ranks : tokens;
}

// --- values ----------------------------------------------------------------------------------------

Placements Builder::placed(Placement along_tp) const {
  Placements p;
  p[GraphAxis::kTp] = along_tp;
  return p;
}

ValueId Builder::value(std::string name, std::int64_t value_rows, std::int64_t columns, Placements placement,
                       DType type) {
  graph_.values.push_back({std::move(name), value_rows, columns, type, placement});
  return static_cast<ValueId>(graph_.values.size() - 1);
}

ValueId Builder::port(std::string name, Port::Is is, std::int32_t number, std::int64_t value_rows,
                      std::int64_t columns, Placements placement, DType type) {
  graph_.ports.push_back({is, number, value(std::move(name), value_rows, columns, placement, type)});
  return graph_.ports.back().value;
}

ValueId Builder::input(TowerIndex t) {
  const auto known = std::find_if(graph_.ports.begin(), graph_.ports.end(),
                                  [t](const Port& p) { return p.is == Port::Is::kTower && p.number == t; });
  if (known != graph_.ports.end()) return known->value;
  return port(
      graph_.ports.empty() ? "input" : "input/" + model.all_inputs()[static_cast<std::size_t>(t)].tower(),
      Port::Is::kTower, t, tokens_of(t), model.hidden, stream(), training.activation_type());
}

ValueId Builder::documents() {
  for (const Port& p : graph_.ports) {
    if (p.is == Port::Is::kDocuments) return p.value;
  }
  Placements whole;
  whole.along.fill(Placement::kReplicated);
  return port("documents", Port::Is::kDocuments, 0, all_tokens, 1, whole, DType::kInt32);
}

// --- parameters ------------------------------------------------------------------------------------

std::int32_t Builder::add(Parameter p) {
  if (p.row_blocks.empty()) p.row_blocks = {p.rows};
  const std::int64_t sharing = p.of_experts ? graph_.ranks(GraphAxis::kEtp) : ranks;
  p.local_rows = p.split == Parameter::Split::kRows ? p.rows / sharing : p.rows;
  if (p.of_experts) p.local_rows /= graph_.ranks(GraphAxis::kEp);
  p.local_cols = p.split == Parameter::Split::kCols ? p.cols / sharing : p.cols;
  p.kept = kept(p);
  p.muon = training.muon && graph_.in_layer && !p.is_vector();
  graph_.parameters.push_back(std::move(p));
  graph_.piece_of.push_back(piece_);
  return static_cast<std::int32_t>(graph_.parameters.size() - 1);
}

// Beside adapters all is frozen; matrices of layers are stored as the training says.
Kept Builder::kept(const Parameter& p) const {
  if (!training.adapter || adding_adapter_) return Kept::kTrained;
  if (!graph_.in_layer || p.is_vector()) return Kept::kFrozen;
  switch (training.adapter->base) {
    case BaseStorage::kAsComputed:
      return Kept::kFrozen;
    case BaseStorage::kNf4:
      return Kept::kNf4;
    case BaseStorage::kNf4Double:
      break;
  }
  return Kept::kNf4Double;
}

std::int32_t Builder::vector(std::string name, std::int64_t n, Parameter::Init init) {
  return add({.name = std::move(name), .rows = n, .init = init});
}

std::int32_t Builder::matrix(std::string name, std::int64_t matrix_rows, std::int64_t columns,
                             Parameter::Split split, std::vector<std::int64_t> row_blocks) {
  return add({.name = std::move(name),
              .rows = matrix_rows,
              .cols = columns,
              .row_blocks = std::move(row_blocks),
              .split = split});
}

std::int32_t Builder::expert_matrix(std::string name, std::int64_t experts,
                                    std::vector<std::int64_t> row_blocks, std::int64_t columns,
                                    Parameter::Split split) {
  Parameter p{.name = std::move(name), .cols = columns, .split = split, .of_experts = plan.splits_experts()};
  for (std::int64_t e = 0; e < experts; ++e)
    p.row_blocks.insert(p.row_blocks.end(), row_blocks.begin(), row_blocks.end());
  p.rows = std::accumulate(p.row_blocks.begin(), p.row_blocks.end(), std::int64_t{0});
  return add(std::move(p));
}

std::int32_t Builder::split_vector(std::string name, std::int64_t n, std::vector<std::int64_t> row_blocks) {
  return add({.name = std::move(name),
              .rows = n,
              .row_blocks = std::move(row_blocks),
              .split = Parameter::Split::kRows,
              .init = Parameter::Init::kZeros});
}

std::vector<std::int32_t> Builder::bias_if(bool has, std::string name) {
  if (!has) return {};
  return {vector(std::move(name), model.hidden, Parameter::Init::kZeros)};
}

std::int64_t Builder::rotary_table(const RotaryUse& use) {
  const auto found = std::find(rotary_->begin(), rotary_->end(), use);
  const std::int64_t index = found - rotary_->begin();
  if (found == rotary_->end()) rotary_->push_back(use);
  return index;
}

// --- nodes -----------------------------------------------------------------------------------------

// The gradient of a parameter that all tensor ranks hold is a partial sum where each of them reads a share of
// the values, or gets a partial sum of the result's gradient.
Node& Builder::node(std::string name, ForwardOp op, std::vector<Operand> reads, std::vector<ValueId> writes) {
  const auto index = static_cast<std::int32_t>(graph_.nodes.size());
  const bool sharded = std::any_of(reads.begin(), reads.end(), [&](const Operand& o) {
    return o.value != kNoValue && is_sharded(o.wanted[GraphAxis::kTp]);
  });
  const bool shares = ranks > 1 && (sharded || passes_sums_);
  for (const Operand& o : reads) {
    if (o.parameter >= 0 && parameter(o.parameter).split == Parameter::Split::kNone)
      parameter(o.parameter).partial_over_tp |= shares;
  }
  for (const ValueId v : writes) {
    Value& written = graph_.values[static_cast<std::size_t>(v)];
    if (written.producer < 0) written.producer = index;
  }
  return graph_.nodes.emplace_back(
      Node{std::move(name), op, std::move(reads), std::move(writes), {}, passes_sums_, parts_});
}

void Builder::keep(std::string name, ValueId like, DType type) {
  const ValueId kept = value(std::move(name), rows_of(like), columns_of(like), placement(like), type);
  of(kept).producer = static_cast<std::int32_t>(graph_.nodes.size()) - 1;
  graph_.nodes.back().keeps.push_back(kept);
}

ValueId Builder::taken_over(ValueId v, std::int32_t operand) {
  Value copy = graph_.values[static_cast<std::size_t>(v)];
  copy.producer = -1;
  copy.in_place_of = operand;
  graph_.values.push_back(std::move(copy));
  return static_cast<ValueId>(graph_.values.size() - 1);
}

ValueId Builder::in_place(std::string name, ForwardOp op, std::vector<Operand> reads) {
  const ValueId after = taken_over(reads.front().value, 0);
  graph_.values[static_cast<std::size_t>(after)].placement = reads.front().wanted;
  node(std::move(name), op, std::move(reads), {after});
  return after;
}

std::vector<Operand> Builder::norm_parameters(const std::string& name, ValueId x) {
  using Init = Parameter::Init;
  const std::int64_t width = columns_of(x);
  std::vector<Operand> out{weight(vector(name + "/weight", width, Init::kOnes))};
  if (model.has_norm_bias()) out.push_back(weight(vector(name + "/bias", width, Init::kZeros)));
  return out;
}

ValueId Builder::norm(const std::string& name, ValueId x) {
  const std::int64_t width = columns_of(x);
  std::vector<Operand> reads{use(x, stream())};
  for (const Operand& o : norm_parameters(name, x)) reads.push_back(o);
  const ValueId y = value(name + "/out", width, stream());
  const bool trained = parameter(reads[1].parameter).kept == Kept::kTrained;
  node(name, ops::Norm{{rows, width, model.norm, model.has_norm_bias()}}, std::move(reads), {y});
  // Beside the input in 16 bits, which the rule reads in place of the one in fp32: two bytes an element, and
  // two of what the weight multiplies.
  if (stack.eager_activations && activation_bytes(training.precision) == 2) {
    keep(name + "/in_fp32", y, training.activation_type());
    if (trained) keep(name + "/normed", y, training.activation_type());
  }
  return y;
}

ops::Gemm Builder::product(ValueId x, const Parameter& w) const {
  const bool shares_rows = w.split == Parameter::Split::kNone && is_sharded(stream()[GraphAxis::kTp]);
  ops::Gemm shape{.m = rows_of(x) / plan.cp / (shares_rows ? ranks : 1),
                  .n = w.local_rows,
                  .k = w.local_cols,
                  .transpose_b = true};
  if (rounds(training.math) && graph_.in_layer && !adding_adapter_) {
    shape.format = ops::Gemm::Format::kRoundedValues;
    shape.rounding = rounding_number(training.math);
  }
  return shape;
}

// By how tensor ranks share the product's weight.
Builder::Ends Builder::ends_of(Parameter::Split split) const {
  switch (split) {
    case Parameter::Split::kNone:
      return {stream(), stream()};
    case Parameter::Split::kRows:
      return {placed(Placement::kReplicated), placed(Placement::kColumns)};
    case Parameter::Split::kCols:
      break;
  }
  return {placed(Placement::kColumns), placed(Placement::kSum)};
}

std::vector<Operand> Builder::product_operands(ValueId x, std::int32_t w, std::int32_t bias) const {
  const auto split = graph_.parameters[static_cast<std::size_t>(w)].split;
  std::vector<Operand> reads{use(x, ends_of(split).reads), weight(w)};
  if (bias >= 0) reads.push_back(weight(bias));
  return reads;
}

ValueId Builder::linear(const std::string& name, ValueId x, std::int32_t w, std::int32_t bias,
                        const AdapterBlocks& blocks) {
  const Parameter::Split split = parameter(w).split;
  const ValueId u = value(name + (split == Parameter::Split::kCols ? "/partial" : "/out"), rows_of(x),
                          parameter(w).rows, ends_of(split).writes, training.activation_type());
  node(name, product(x, parameter(w)), product_operands(x, w, bias), {u});
  return adapts(blocks) ? adapted(name, x, w, u, blocks) : u;
}

bool Builder::adapts(const AdapterBlocks& blocks) const {
  if (!training.adapter) return false;
  const AdapterTargets chosen = training.adapter->chosen();
  return std::any_of(blocks.begin(), blocks.end(), [&](AdapterTarget t) { return chosen.has(t); });
}

// u + scale (x A') B'. Tensor ranks that share W by rows share B so, and each has all of A; of those that
// share W by columns each has as many columns of A, and h stays a partial sum, which u is as well.
ValueId Builder::adapted(const std::string& name, ValueId x, std::int32_t w, ValueId u,
                         const AdapterBlocks& blocks) {
  using Split = Parameter::Split;
  const AdapterTargets chosen = training.adapter->chosen();
  const Parameter of = parameter(w);
  const std::int64_t rank = training.adapter->rank, sharing = of.split == Split::kRows ? ranks : 1;
  ops::AdapterProduct op{.rank = rank, .scale = training.adapter->scale()};
  const std::array widths{&op.first, &op.second, &op.third};
  std::vector<std::int64_t> rows_of_b;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    *widths.at(i) = of.row_blocks[i] / sharing;
    if (!chosen.has(blocks[i])) continue;
    op.chosen = static_cast<std::uint8_t>(op.chosen | 1U << i);
    rows_of_b.push_back(of.row_blocks[i]);
  }
  adding_adapter_ = true;
  const std::int32_t a = matrix(name + "/lora_a/weight", op.adapters() * rank, of.cols,
                                of.split == Split::kCols ? Split::kCols : Split::kNone);
  const std::int64_t all_rows = std::accumulate(rows_of_b.begin(), rows_of_b.end(), std::int64_t{0});
  const std::int32_t b = matrix(name + "/lora_b/weight", all_rows, rank,
                                of.split == Split::kRows ? Split::kRows : Split::kNone, std::move(rows_of_b));
  parameter(a).init = Parameter::Init::kFanIn;
  parameter(b).init = Parameter::Init::kZeros;
  const ValueId h = linear(name + "/lora_a", x, a);
  adding_adapter_ = false;
  const Ends ends = ends_of(of.split);
  const Placements wanted = of.split == Split::kCols ? ends.writes : ends.reads;
  op.rows = product(x, of).m;
  if (of.split == Split::kCols) parameter(b).partial_over_tp = ranks > 1;  // of parts of h
  return in_place(name + "/lora_b", op, {use(u), use(h, wanted), weight(b)});
}

ValueId Builder::linear_gelu(const std::string& name, ValueId x, std::int32_t w, std::int32_t bias) {
  const Placements columns = placed(Placement::kColumns);
  const ValueId u = value(name + "/out", parameter(w).rows, columns);
  const ValueId v = value(name + "/gelu", parameter(w).rows, columns);
  ops::Gemm shape = product(x, parameter(w));
  shape.epilogue = ops::Gemm::Epilogue::kGelu;
  node(name, shape, product_operands(x, w, bias), {v, u});
  return v;
}

ValueId Builder::sum(const std::string& name, ValueId a, ValueId b) {
  const std::int64_t columns = graph_.values[static_cast<std::size_t>(a)].columns;
  const ValueId out = value(name + "/partial", columns, placement(a));
  node(name, ops::Sum{local_elements(a)}, {use(a), use(b, placement(a))}, {out});
  return out;
}

// An op that makes an element of each, placed alike.
ValueId Builder::of_each(const std::string& name, ForwardOp op, ValueId x) {
  const std::int64_t columns = graph_.values[static_cast<std::size_t>(x)].columns;
  const ValueId y = value(name + "/out", columns, placement(x));
  node(name, op, {use(x)}, {y});
  return y;
}

ValueId Builder::scale(const std::string& name, ValueId x, double factor) {
  return of_each(name, ops::Scale{local_elements(x), factor}, x);
}

ValueId Builder::soft_cap(const std::string& name, ValueId x, double cap) {
  return of_each(name, ops::SoftCap{{local_elements(x), cap}}, x);
}

Branch Builder::last_product(const std::string& name, ValueId x, std::int32_t w, bool bias,
                             const AdapterBlocks& blocks) {
  const std::vector<std::int32_t> biases = bias_if(bias, name + "/bias");
  const bool whole = ranks == 1 && product(x, parameter(w)).sums_bias_gradients(stack);
  if (!bias || !whole) return {linear(name, x, w, -1, blocks), biases};
  return {linear(name, x, w, biases.front(), blocks), {}};
}

Builder::Normed Builder::residual_norm(const std::string& norm, ValueId x, const Branch& branch,
                                       const std::string& out) {
  std::vector<Operand> reads{use(x), use(branch.value, placement(x))};
  for (const Operand& o : norm_parameters(norm, x)) reads.push_back(o);
  for (const std::int32_t bias : branch.biases) reads.push_back(weight(bias));
  const ops::ResidualNorm op{{rows, model.hidden, model.norm, model.has_norm_bias()},
                             std::ssize(branch.biases)};
  const Normed made{value(out, model.hidden, placement(x)), value(norm + "/out", model.hidden, stream())};
  node(norm, op, std::move(reads), {made.sum, made.norm});
  return made;
}

ValueId Builder::residual(const std::string& base, ValueId x, const Branch& branch, const std::string& out,
                          std::int64_t site) {
  std::vector<Operand> reads{use(x), use(branch.value, placement(x))};
  if (branch.biases.size() > ops::Residual::kMostBiases)
    throw std::logic_error("more biases than a residual takes: " + base);
  for (const std::int32_t bias : branch.biases) reads.push_back(weight(bias));
  const ValueId y = value(out, model.hidden, placement(x));
  std::vector<ValueId> writes{y};
  if (training.drops())
    writes.push_back(value(base + "/dropout-mask", all_tokens, model.hidden, placement(x), DType::kByte));
  node(base + "/residual",
       ops::Residual{.rows = rows,
                     .width = model.hidden,
                     .site = site,
                     .sequence = sequence,
                     .biases = std::ssize(branch.biases),
                     .drops = training.drops(),
                     .sharded = sequence_parallel},
       std::move(reads), std::move(writes));
  return y;
}

// --- the end ---------------------------------------------------------------------------------------

Graph Builder::finish() {
  std::vector<std::int32_t> order(graph_.parameters.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](std::int32_t i) {
    const Parameter& p = graph_.parameters[static_cast<std::size_t>(i)];
    return std::tuple(graph_.piece_of[static_cast<std::size_t>(i)], p.of_experts, p.kept, p.muon,
                      !p.partial_over_tp, p.split != Parameter::Split::kNone);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return key(a) < key(b); });
  std::vector<std::int32_t> place(order.size());
  std::vector<Parameter> parameters;
  std::vector<std::int32_t> piece_of;
  std::int32_t number = 0, last_piece = -1, alone = -1;
  for (const std::int32_t i : order) {
    Parameter& p = graph_.parameters[static_cast<std::size_t>(i)];
    place[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(parameters.size());
    const std::int32_t piece = graph_.piece_of[static_cast<std::size_t>(i)];
    // Experts of a piece that lie over other ranks are one of their own, and so are frozen weights, and what
    // Muon updates.
    if (!piece_of.empty() && (piece != last_piece || p.of_experts != parameters.back().of_experts ||
                              p.kept != parameters.back().kept || p.muon != parameters.back().muon))
      ++number;
    if (piece == graph_.piece_alone) alone = number;
    last_piece = piece;
    parameters.push_back(std::move(p));
    piece_of.push_back(number);
  }
  graph_.piece_alone = alone;
  graph_.parameters = std::move(parameters);
  graph_.piece_of = std::move(piece_of);
  for (Node& n : graph_.nodes) {
    for (Operand& o : n.reads) {
      if (o.parameter >= 0) o.parameter = place[static_cast<std::size_t>(o.parameter)];
    }
  }
  return std::move(graph_);
}

}  // namespace orrery::program
