// SPDX-License-Identifier: Apache-2.0
#include "program/gradient.h"

#include <algorithm>
#include <stdexcept>

namespace orrery::program {

Reverse::Reverse(Emitter& e, const Block& block, Tensors tensors, bool split)
    : e_(e),
      block_(block),
      graph_(*block.graph),
      tensors_(std::move(tensors)),
      split_(split),
      gradients_(graph_.values.size()),
      targets_(graph_.values.size(), -1),
      wanted_(graph_.values.size()) {}

// A gradient is wanted where a trained weight is read, or a value whose gradient is wanted.
void Reverse::find_wanted(std::span<const PortGradient> ports) {
  for (std::size_t i = 0; i < ports.size(); ++i)
    wanted_[static_cast<std::size_t>(graph_.ports[i].value)] = ports[i].wanted;
  for (const Node& n : graph_.nodes) {
    const bool wanted = std::any_of(n.reads.begin(), n.reads.end(), [&](const Operand& o) {
      return o.value >= 0 ? wanted_[static_cast<std::size_t>(o.value)] : trains(o);
    });
    for (const std::vector<ValueId>* made : {&n.writes, &n.also}) {
      for (const ValueId v : *made) wanted_[static_cast<std::size_t>(v)] = wanted;
    }
  }
}

namespace {

template <class Op>
concept HasWeights = requires(const Op& op, Reverse& r) {
  op.weight_gradient(r);
};

}  // namespace

std::vector<std::int32_t> Reverse::run(std::span<const std::int32_t> outputs,
                                       std::span<const PortGradient> ports) {
  e_.enter(block_);
  find_wanted(ports);
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const ValueId id = graph_.ports[i].value;
    targets_[static_cast<std::size_t>(id)] = ports[i].into;
    if (ports[i].has >= 0) known(id) = {ports[i].has, dual(value(id).placement), true};
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    // As the output is placed when it is made.
    const Operand& output = graph_.outputs[i].is;
    const Value& v = value(output.value);
    const std::string& producer = graph_.nodes[static_cast<std::size_t>(v.producer)].name;
    known(output.value) = {
        e_.converted(block_, v, outputs[i], dual(output.wanted), dual(v.placement), producer + "/grad", ""),
        dual(v.placement)};
  }
  for (std::size_t n = graph_.nodes.size(); n-- > 0;) {
    select(n);
    const bool root = std::any_of(node_->writes.begin(), node_->writes.end(), [&](ValueId v) {
      return std::any_of(graph_.ports.begin(), graph_.ports.end(),
                         [v](const Port& p) { return p.value == v; });
    });
    const bool reached =
        std::any_of(node_->writes.begin(), node_->writes.end(), [&](ValueId v) { return gradient(v) >= 0; });
    const bool wanted = std::any_of(node_->writes.begin(), node_->writes.end(),
                                    [&](ValueId v) { return wanted_[static_cast<std::size_t>(v)]; });
    if ((!root && !reached) || !wanted) continue;
    const bool trained =
        std::any_of(node_->reads.begin(), node_->reads.end(), [&](const Operand& o) { return trains(o); });
    std::visit(
        [&](const auto& op) {
          if constexpr (HasWeights<std::decay_t<decltype(op)>>) {
            if (split_ || !trained) {
              op.gradient(*this);
              settle(last_);
              if (trained) later_.push_back(n);
              return;
            }
            static_cast<void>(again(0));
            op.gradient(*this);
            const std::string last = last_;
            const bool beside = e_.stack.overlap_tp;
            if (!beside) op.weight_gradient(*this);
            settle(last);
            if (beside) op.weight_gradient(*this);
          } else {
            op.gradient(*this);
            settle(last_);
          }
        },
        node_->op);
  }
  std::vector<std::int32_t> made;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    made.push_back(gradient(graph_.ports[i].value));
    if (ports[i].wanted && ports[i].into >= 0 && made.back() != ports[i].into)
      throw std::logic_error("no op writes the gradient of a block's input where it is sent from");
  }
  return made;
}

void Reverse::weights() {
  e_.enter(block_);
  for (const std::size_t n : later_) {
    select(n);
    std::visit(
        [&](const auto& op) {
          if constexpr (HasWeights<std::decay_t<decltype(op)>>) op.weight_gradient(*this);
        },
        node_->op);
  }
}

void Reverse::select(std::size_t node) {
  index_ = node;
  node_ = &graph_.nodes[node];
  given_.clear();
  gathered_.reset();
}

// --- operands --------------------------------------------------------------------------------------

Ref Reverse::in(std::size_t i) {
  const Operand& o = node_->reads[i];
  if (o.parameter >= 0) return e_.used_weight(block_, o.parameter);
  if (const auto kept = kept_of(o, o.wanted)) return *kept;
  return {tensors_.of[static_cast<std::size_t>(o.value)]};
}

std::optional<Ref> Reverse::kept_of(const Operand& o, const Placements& as) const {
  for (const Placed& p : tensors_.kept) {
    if (p.value == o.value && p.as == as) return Ref{p.buffer};
  }
  return std::nullopt;
}

Ref Reverse::again(std::size_t i) {
  if (gathered_ && gathered_->first == i) return gathered_->second;
  const Operand& o = node_->reads[i];
  if (const auto kept = kept_of(o, o.wanted)) return *kept;
  const Value& v = value(o.value);
  const Placements moved = exchanged(v.placement, o.wanted);
  const auto came = kept_of(o, moved);
  const Ref gathered{e_.converted(block_, v, came ? came->buffer : in(i).buffer, came ? moved : v.placement,
                                  o.wanted, node_->name + "/input/again", "")};
  gathered_ = {i, gathered};
  return gathered;
}

Ref Reverse::out(std::size_t i) const {
  return {tensors_.of[static_cast<std::size_t>(node_->writes[i])]};
}

Ref Reverse::also(std::size_t i) const {
  return {tensors_.of[static_cast<std::size_t>(node_->also[i])]};
}

Ref Reverse::d_out(std::size_t i) const {
  return {gradient(node_->writes[i])};
}

bool Reverse::accumulates(std::size_t i) const {
  if (!trains(i)) return false;
  if (e_.plan.zero < 2 || block_.again) return true;
  return std::any_of(graph_.nodes.begin() + static_cast<std::ptrdiff_t>(index_) + 1, graph_.nodes.end(),
                     [&](const Node& behind) {
                       return std::any_of(behind.reads.begin(), behind.reads.end(), [&](const Operand& o) {
                         return o.parameter >= 0 && o.parameter == node_->reads[i].parameter;
                       });
                     });
}

Ref Reverse::d_weight(std::size_t i) {
  const std::int32_t parameter = node_->reads[i].parameter;
  if (trains(i)) return e_.gradient(block_, parameter);
  const Parameter& p = graph_.parameters[static_cast<std::size_t>(parameter)];
  return {e_.activation(e_.name(block_, p.name, "/grad"), p.local_elements(), e_.training.gradient_type())};
}

// --- results ---------------------------------------------------------------------------------------

Op& Reverse::emit(const char* suffix, const OpKind& kind, std::vector<Ref> reads, std::vector<Ref> writes) {
  last_ = node_->name + suffix;
  Op& op = e_.add(kind, e_.name(block_, last_), std::move(reads), std::move(writes));
  for (const ValueId kept : node_->keeps) op.wait_for({tensors_.of[static_cast<std::size_t>(kept)]});
  return op;
}

Op& Reverse::emit_for(std::size_t i, const char* suffix, const OpKind& kind, std::vector<Ref> reads,
                      std::vector<Ref> writes) {
  const Value& v = value(node_->reads[i].value);
  last_ = graph_.nodes[static_cast<std::size_t>(v.producer)].name + suffix;
  return e_.add(kind, e_.name(block_, last_), std::move(reads), std::move(writes));
}

void Reverse::emit_context(const char* suffix, const ops::ContextAttentionGrad& op, std::vector<Ref> reads,
                           std::vector<Ref> writes) {
  if (!op.in_steps()) {
    emit(suffix, op, std::move(reads), std::move(writes));
    return;
  }
  last_ = node_->name + suffix;
  e_.ring_attention_grad(e_.name(block_, last_), op, reads, writes[0], writes[1]);
}

// An op that reads all of a value and makes a share of its result, or a summand, gives a summand of the
// value's gradient; and so does one that gets summands of its result's gradient.
Placements Reverse::given_placement(const Operand& o) const {
  Placements p = dual(o.wanted);
  for (std::size_t axis = 0; axis < kGraphAxes; ++axis) {
    if (o.wanted.along[axis] != Placement::kReplicated) continue;
    const Placement result = value(node_->writes.front()).placement.along[axis];
    const bool gets_sums = std::any_of(node_->writes.begin(), node_->writes.end(), [&](ValueId v) {
      return gradient(v) >= 0 &&
             gradients_[static_cast<std::size_t>(v)].placement.along[axis] == Placement::kSum;
    });
    if (is_sharded(result) || result == Placement::kSum || gets_sums) p.along[axis] = Placement::kSum;
  }
  return p;
}

// Where the gradient of a value is placed at last: a node that makes the value may go on with summands.
Placements Reverse::settled(const Value& v, const Placements& given) const {
  constexpr auto kTp = static_cast<std::size_t>(GraphAxis::kTp);
  Placements out = dual(v.placement);
  const bool passes = v.producer >= 0 && graph_.nodes[static_cast<std::size_t>(v.producer)].passes_sums;
  if (passes && given.along[kTp] == Placement::kSum) out.along[kTp] = Placement::kSum;
  return out;
}

// Whether an earlier node, whose rule comes later, reads the value too.
bool Reverse::gives_later(ValueId v) const {
  for (std::size_t n = 0; n < index_; ++n) {
    for (const Operand& o : graph_.nodes[n].reads) {
      if (o.value == v) return true;
    }
  }
  return false;
}

Ref Reverse::d_in(std::size_t i) {
  const Operand& o = node_->reads[i];
  const Value& v = value(o.value);
  const Placements placed = given_placement(o);
  // A collective that changes the size writes to another buffer.
  const std::int64_t elements = graph_.elements(v, placed);
  std::int32_t buffer = elements == graph_.elements(v, dual(v.placement)) ? destination(o.value) : -1;
  if (buffer < 0) buffer = e_.activation(e_.name(block_, v.name, "/grad"), elements, v.type);
  given_.push_back({i, buffer, placed, false});
  return {buffer};
}

Ref Reverse::d_also(std::size_t i) {
  const ValueId id = node_->also[i];
  const Value& v = value(id);
  known(id) = {e_.activation(e_.name(block_, v.name, "/grad"), graph_.elements(v), v.type),
               dual(v.placement)};
  return {gradient(id)};
}

Ref Reverse::d_also_in_place(std::size_t i) {
  const ValueId id = node_->also[i];
  const Value& v = value(id);
  const auto* product = std::get_if<ops::Gemm>(&graph_.nodes[static_cast<std::size_t>(v.producer)].op);
  if (product == nullptr || product->epilogue != ops::Gemm::Epilogue::kPlain) return d_also(i);
  known(id) = {also(i).buffer, dual(v.placement)};
  return also(i);
}

void Reverse::pass(std::size_t i, Ref g) {
  given_.push_back({i, g.buffer, given_placement(node_->reads[i]), true});
}

std::optional<Ref> Reverse::addend(std::size_t i) {
  const ValueId id = node_->reads[i].value;
  Gradient& has = known(id);
  if (has.buffer < 0 || has.of_others) return std::nullopt;
  has = placed(id, has, last_);
  return Ref{std::exchange(has.buffer, -1)};
}

Ref Reverse::scratch(std::size_t i, const char* suffix) {
  const Operand& o = node_->reads[i];
  const Value& v = value(o.value);
  return {e_.activation(e_.name(block_, v.name, suffix), graph_.elements(v, dual(o.wanted)), v.type)};
}

std::optional<Ref> Reverse::before_activation(std::size_t i) const {
  const Value& v = value(node_->reads[i].value);
  if (v.producer < 0) return std::nullopt;
  const Node& producer = graph_.nodes[static_cast<std::size_t>(v.producer)];
  const auto* product = std::get_if<ops::Gemm>(&producer.op);
  if (product == nullptr || product->epilogue != ops::Gemm::Epilogue::kGelu) return std::nullopt;
  return Ref{tensors_.of[static_cast<std::size_t>(producer.writes[1])]};
}

Ref Reverse::d_before_activation(std::size_t i) {
  const Value& v = value(node_->reads[i].value);
  const ValueId id = graph_.nodes[static_cast<std::size_t>(v.producer)].writes[1];
  const Value& before = value(id);
  if (gradient(id) >= 0)
    throw std::logic_error("two products give the gradient behind one GELU: " + before.name);
  known(id) = {e_.activation(e_.name(block_, before.name, "/grad"), graph_.elements(before), before.type),
               dual(before.placement)};
  return {gradient(id)};
}

// The gradient, placed as its value's is at last. `op` made it. `into`: a buffer for it, or -1.
Reverse::Gradient Reverse::placed(ValueId id, Gradient g, const std::string& op, std::int32_t into) {
  const Value& v = value(id);
  const std::string producer =
      v.producer < 0 ? std::string() : graph_.nodes[static_cast<std::size_t>(v.producer)].name;
  const Placements as = settled(v, g.placement);
  return {e_.converted(block_, v, g.buffer, g.placement, as, producer + "/grad", op, into), as};
}

// `sum` becomes the sum of both.
void Reverse::add(const Value& v, const Gradient& other, const Gradient& sum) {
  const std::int64_t n = graph_.elements(v, sum.placement);
  e_.add(ops::Accumulate{n, static_cast<std::int64_t>(bytes_of(v.type))},
         e_.name(block_, v.name, "/grad/add"), {{other.buffer}, {sum.buffer}}, {{sum.buffer}});
}

// Adds what the rule gave to what the values have, and places the sum as the value is once all readers gave
// theirs.
void Reverse::settle(const std::string& op) {
  for (const Given& g : given_) {
    const ValueId id = node_->reads[g.operand].value;
    if (!wanted_[static_cast<std::size_t>(id)]) continue;
    const Value& v = value(id);
    Gradient& has = known(id);
    Gradient given{g.buffer, g.placement};
    const bool more = gives_later(id);
    if (has.buffer < 0) {
      has = more ? given : placed(id, given, op, destination(id));
      continue;
    }
    if (has.of_others) {
      given = placed(id, given, op);
      add(v, given, has);
      continue;
    }
    if (has.placement != given.placement) {
      has = placed(id, has, op);
      given = placed(id, given, op, destination(id));
    }
    // The sum is written over what was given last.
    if (g.passed && given.buffer == g.buffer)
      throw std::logic_error("a gradient that an op passes on cannot hold a sum: " + v.name);
    add(v, has, given);
    has = more ? given : placed(id, given, op, destination(id));
  }
}

}  // namespace orrery::program
