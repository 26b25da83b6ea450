// SPDX-License-Identifier: Apache-2.0
//
// Reverse mode over a block's graph. Each op type has the rule of its gradient (program/ops/): the rule names
// ops, operands and results; this class finds their buffers, and does what is the same for all rules:
//
//   * The gradient of a value has the dual placement (graph.h). A rule gives the gradient of an operand as
//   the
//     op read it; a collective places it as the value was. Where each rank read the whole of a value and made
//     a share of the result, what it gives is a summand.
//   * Where several ops read a value, its gradients are summed: by the rule that can add to its result, or by
//     an op of its own. Summands over ranks are first added on each rank, and then over the ranks once.
//   * What a rule reads of an operand that was gathered for the op is gathered again.
//   * Gradients that nothing wants are left out: of data, of frozen weights, and of values that no trained
//     weight stands before.
//   * Gradients of weights come at once, or later in an order of their own (zero-bubble schedules). At once,
//     they run beside the collective of the operand's gradient, if the stack overlaps them.
//
// Internal to program/.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "program/emitter.h"

namespace orrery::program {

class Reverse {
 public:
  // `split`: gradients of weights are left to weights().
  Reverse(Emitter& e, const Block& block, Tensors tensors, bool split);

  // Of a port's value: the buffer with the gradient that other blocks gave, to which the block adds its own;
  // or where the gradient is to be; neither for a new buffer. Not `wanted`: nothing before it is trained.
  struct PortGradient {
    std::int32_t has = -1, into = -1;
    bool wanted = true;
  };
  // Emits the gradients. `outputs`: buffers with the gradients of the block's outputs. `ports`: of the towers
  // among them; returns the buffers of their gradients.
  std::vector<std::int32_t> run(std::span<const std::int32_t> outputs, std::span<const PortGradient> ports);
  // Emits the gradients of weights that run() left out.
  void weights();

  // --- for the rules -------------------------------------------------------------------------------
  // Adds an op, named as the node with a suffix, or as the producer of operand i with one.
  Op& emit(const char* suffix, const OpKind& kind, std::vector<Ref> reads, std::vector<Ref> writes);
  Op& emit_for(std::size_t i, const char* suffix, const OpKind& kind, std::vector<Ref> reads,
               std::vector<Ref> writes);

  // Of attention of ranks that share sequences, in as many steps as it has. `reads` and `writes` as of the
  // op.
  void emit_context(const char* suffix, const ops::ContextAttentionGrad& op, std::vector<Ref> reads,
                    std::vector<Ref> writes);

  const Stack& stack() const { return e_.stack; }
  // Whether anything wants the gradient of operand i.
  bool wants(std::size_t i) const { return wanted_[static_cast<std::size_t>(node_->reads[i].value)]; }
  bool trains(std::size_t i) const { return trains(node_->reads[i]); }  // weight i
  bool has(std::size_t i) const { return i < node_->reads.size(); }
  Ref in(std::size_t i);           // operand, as its value is placed, or as the op read it where that is kept
  Ref again(std::size_t i);        // operand, as the op read it
  Ref out(std::size_t i) const;    // result
  Ref also(std::size_t i) const;   // what only the gradient needs
  Ref d_out(std::size_t i) const;  // gradient of a result
  bool given(std::size_t i) const { return d_out(i).buffer >= 0; }  // whether result i has a gradient
  // Of a frozen weight, whose gradient the kernel makes all the same, a new buffer that nothing reads.
  Ref d_weight(std::size_t i);
  // A new buffer for the gradient of operand i.
  Ref d_in(std::size_t i);
  Ref d_also(std::size_t i);
  // Likewise, in the value's own buffer where the rule of the op that made the value does not read it.
  Ref d_also_in_place(std::size_t i);
  // The gradient of operand i is what is in this buffer.
  void pass(std::size_t i, Ref gradient);
  // The gradient that operand i has from other ops, if it has one: the rule adds it to what it gives.
  std::optional<Ref> addend(std::size_t i);
  // Operand i is the activation of a value that the product which made it left beside it: that value, and a
  // new buffer for its gradient.
  std::optional<Ref> before_activation(std::size_t i) const;
  Ref d_before_activation(std::size_t i);
  // The gradient of weight i is added to what is there: of other micro-batches, or of a node behind this one.
  bool accumulates(std::size_t i) const;
  // A new buffer of the size of operand i, as the op read it.
  Ref scratch(std::size_t i, const char* suffix);

 private:
  struct Gradient {
    std::int32_t buffer = -1;  // none yet
    Placements placement;
    bool of_others = false;  // other blocks gave it: sums are written over it
  };
  void select(std::size_t node);
  bool trains(const Operand& o) const {
    return o.parameter >= 0 &&
           graph_.parameters[static_cast<std::size_t>(o.parameter)].kept == Kept::kTrained;
  }
  void find_wanted(std::span<const PortGradient> ports);
  // The value of an operand placed so, where that is kept.
  std::optional<Ref> kept_of(const Operand& o, const Placements& as) const;
  bool gives_later(ValueId v) const;
  void settle(const std::string& op);
  void add(const Value& v, const Gradient& other, const Gradient& sum);
  Gradient placed(ValueId v, Gradient g, const std::string& op, std::int32_t into = -1);
  // Where the gradient of the value has to be in the end: -1 where that does not matter, or others follow.
  std::int32_t destination(ValueId v) const {
    return gives_later(v) ? -1 : targets_[static_cast<std::size_t>(v)];
  }
  const Value& value(ValueId v) const { return graph_.values[static_cast<std::size_t>(v)]; }
  Gradient& known(ValueId v) { return gradients_[static_cast<std::size_t>(v)]; }
  std::int32_t gradient(ValueId v) const { return gradients_[static_cast<std::size_t>(v)].buffer; }
  Placements given_placement(const Operand& o) const;
  Placements settled(const Value& v, const Placements& given) const;

  Emitter& e_;
  const Block& block_;
  const Graph& graph_;
  Tensors tensors_;
  bool split_;
  std::vector<Gradient> gradients_;    // by value
  std::vector<std::int32_t> targets_;  // buffers for the gradients of ports, by value
  std::vector<bool> wanted_;           // whose gradients something wants, by value
  // Of the node whose rule runs.
  std::size_t index_ = 0;
  const Node* node_ = nullptr;
  std::string last_;  // op
  struct Given {
    std::size_t operand;
    std::int32_t buffer;
    Placements placement;
    bool passed;  // others may still read the buffer
  };
  std::vector<Given> given_;
  std::optional<std::pair<std::size_t, Ref>> gathered_;  // an operand, as the op read it
  // Nodes whose weights' gradients are to come.
  std::vector<std::size_t> later_;
};

}  // namespace orrery::program
