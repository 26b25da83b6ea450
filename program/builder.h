// SPDX-License-Identifier: Apache-2.0
//
// Writes the graph of a block for a plan. Blocks are written with it; internal to program/.
//
//   Builder g(model, plan, training, stack, Builder::Part::kLayer);
//   const ValueId x = g.input(0);
//   const ValueId n = g.norm("mlp/norm", x);
//   ...
#pragma once

#include <string>
#include <vector>

#include "program/graph.h"

namespace orrery::program {

// What ends a residual branch: a partial sum over tensor ranks, and biases that are added after the sum.
struct Branch {
  ValueId value = kNoValue;
  std::vector<std::int32_t> biases;
};

class Builder {
 public:
  // Only products of layers take 8-bit operands; ops of layers have their number, ops of the model's ends
  // none.
  enum class Part : std::uint8_t { kLayer, kEnd };
  // `rotary`: takes in the tables of rotary positions that the block reads.
  Builder(const Model& m, const Plan& p, const Training& t, const Stack& s, Part part,
          std::vector<RotaryUse>* rotary = nullptr);

  const Model& model;
  const Plan& plan;
  const Training& training;
  const Stack& stack;
  const std::int64_t micro_batch;
  const std::int64_t ranks;  // tensor ranks
  const bool sequence_parallel;
  // Of the tower that is being written. A rank's tokens of a sample and of the micro-batch; a tensor rank's
  // of these, under sequence parallelism; and those of all ranks that share the sequences.
  std::int64_t sequence = 0, tokens = 0, rows = 0, all_tokens = 0;
  // From here on nodes are the tower's, which is the first to begin with.
  void in_tower(TowerIndex t);

  // --- values --------------------------------------------------------------------------------------
  // Along the tensor axis.
  Placements placed(Placement along_tp) const;
  std::int64_t ranks_along(GraphAxis axis) const { return graph_.ranks(axis); }
  Value& of(ValueId v) { return graph_.values[static_cast<std::size_t>(v)]; }
  // Between layers: sharded by rows under sequence parallelism.
  Placements stream() const { return placed(sequence_parallel ? Placement::kRows : Placement::kReplicated); }
  ValueId value(std::string name, std::int64_t rows, std::int64_t columns, Placements placement, DType type);
  ValueId value(std::string name, std::int64_t columns, Placements placement) {
    return value(std::move(name), all_tokens, columns, placement, training.activation_type());
  }
  // A value whose buffer the block is given.
  ValueId port(std::string name, Port::Is is, std::int32_t number, std::int64_t rows, std::int64_t columns,
               Placements placement, DType type);
  ValueId input(TowerIndex t);                  // what the tower has come to
  ValueId documents();                          // of all tokens the first one of their document
  std::int64_t tokens_of(TowerIndex t) const {  // of a micro-batch
    return micro_batch * tower_tokens_[static_cast<std::size_t>(t)];
  }
  const Placements& placement(ValueId v) const {
    return graph_.values[static_cast<std::size_t>(v)].placement;
  }

  // --- parameters ----------------------------------------------------------------------------------
  std::int32_t vector(std::string name, std::int64_t n, Parameter::Init init);
  // Split over tensor ranks by rows, or by columns; each of `row_blocks` on its own.
  std::int32_t matrix(std::string name, std::int64_t rows, std::int64_t columns, Parameter::Split split,
                      std::vector<std::int64_t> row_blocks = {});
  // Of experts, `experts` blocks of rows one behind the other (of each, row_blocks): ep ranks have some of
  // the blocks each, and etp ranks share them by rows, or by columns.
  std::int32_t expert_matrix(std::string name, std::int64_t experts, std::vector<std::int64_t> row_blocks,
                             std::int64_t columns, Parameter::Split split);
  std::int32_t split_vector(std::string name, std::int64_t rows, std::vector<std::int64_t> row_blocks);
  // The bias of a branch, of the model's width, where it has one.
  std::vector<std::int32_t> bias_if(bool has, std::string name);
  // In Program::rotary.
  std::int64_t rotary_table(const RotaryUse& use);
  // Parameters from here on are a piece of their own.
  void begin_piece() { ++piece_; }
  // Of a gated MLP's first weight.
  void has_gates(std::int32_t weight) {
    if (training.muon && training.muon->gates == MuonGates::kTogether) parameter(weight).muon_blocks = 2;
  }
  // The piece never shares its unit: a weight that two blocks may share.
  void keep_piece_alone() { graph_.piece_alone = piece_; }
  Parameter& parameter(std::int32_t index) { return graph_.parameters[static_cast<std::size_t>(index)]; }

  // --- nodes ---------------------------------------------------------------------------------------
  // Of all ranks.
  std::int64_t columns_of(ValueId v) const { return graph_.values[static_cast<std::size_t>(v)].columns; }
  std::int64_t rows_of(ValueId v) const { return graph_.values[static_cast<std::size_t>(v)].rows; }
  Operand use(ValueId v) const { return {.value = v, .wanted = placement(v)}; }
  Operand use(ValueId v, Placements wanted) const { return {.value = v, .wanted = wanted}; }
  static Operand weight(std::int32_t parameter) { return {.parameter = parameter}; }
  // Nodes from here on pass partial sums of gradients on (Node::passes_sums).
  void pass_sums(bool on) { passes_sums_ = on; }
  // Nodes that are written while it lives are of the part.
  class InPart {
   public:
    InPart(Builder& g, RecomputeParts parts) : g_(g), before_(g.parts_) { g.parts_ = before_ | parts; }
    ~InPart() { g_.parts_ = before_; }
    InPart(const InPart&) = delete;
    InPart& operator=(const InPart&) = delete;

   private:
    Builder& g_;
    const RecomputeParts before_;
  };
  // Parts that the node which makes a value is of.
  RecomputeParts parts_of(ValueId v) const {
    const std::int32_t producer = graph_.values[static_cast<std::size_t>(v)].producer;
    return producer < 0 ? RecomputeParts() : graph_.nodes[static_cast<std::size_t>(producer)].parts;
  }
  Node& node(std::string name, ForwardOp op, std::vector<Operand> reads, std::vector<ValueId> writes);

  // The node that was written last keeps as many elements as a value has (Node::keeps).
  void keep(std::string name, ValueId like, DType type);

  // An op that writes over the value it reads first.
  ValueId in_place(std::string name, ForwardOp op, std::vector<Operand> reads);
  // A value for what an op writes over its operand.
  ValueId taken_over(ValueId v, std::int32_t operand);

  // The model's norm of a value, placed as values between layers are.
  ValueId norm(const std::string& name, ValueId x);
  // u = x W' + b, split over tensor ranks as W is: W's rows, and u has a share of the columns; W's columns,
  // and u is a partial sum; or not at all, and u is placed as values between layers are.
  // `blocks`: of W's rows, which have adapters where the training asks for them.
  using AdapterBlocks = std::vector<AdapterTarget>;
  ValueId linear(const std::string& name, ValueId x, std::int32_t weight, std::int32_t bias = -1,
                 const AdapterBlocks& blocks = {});
  bool adapts(const AdapterBlocks& blocks) const;
  // v = gelu(u) in the product's kernel.
  ValueId linear_gelu(const std::string& name, ValueId x, std::int32_t weight, std::int32_t bias);
  // a + b, placed as a is.
  ValueId sum(const std::string& name, ValueId a, ValueId b);
  // x factor, and cap tanh(x / cap).
  ValueId scale(const std::string& name, ValueId x, double factor);
  ValueId soft_cap(const std::string& name, ValueId x, double cap);
  // The product that ends a branch, with its bias where it makes the whole sum and the stack sums bias
  // gradients in products; else the bias is added when the sum is complete.
  Branch last_product(const std::string& name, ValueId x, std::int32_t weight, bool bias,
                      const AdapterBlocks& blocks);
  // x + drop(branch + its biases). `site` tells the random numbers of a layer's branches apart.
  ValueId residual(const std::string& base, ValueId x, const Branch& branch, const std::string& out,
                   std::int64_t site);
  // Likewise without dropout, and the model's norm of that, which is named `norm`: in one kernel.
  struct Normed {
    ValueId sum = kNoValue, norm = kNoValue;
  };
  Normed residual_norm(const std::string& norm, ValueId x, const Branch& branch, const std::string& out);

  // What the tower comes to in this block.
  void output(TowerIndex t, ValueId v) { graph_.outputs.push_back({t, use(v, stream())}); }
  Graph finish();

 private:
  // What a norm of the value reads beside it.
  std::vector<Operand> norm_parameters(const std::string& name, ValueId x);
  ops::Gemm product(ValueId x, const Parameter& w) const;
  // Where a product reads its input, and where it leaves its result.
  struct Ends {
    Placements reads, writes;
  };
  Ends ends_of(Parameter::Split split) const;
  std::vector<Operand> product_operands(ValueId x, std::int32_t weight, std::int32_t bias) const;
  std::int32_t add(Parameter p);
  Kept kept(const Parameter& p) const;
  ValueId adapted(const std::string& name, ValueId x, std::int32_t weight, ValueId u,
                  const AdapterBlocks& blocks);
  ValueId of_each(const std::string& name, ForwardOp op, ValueId x);
  std::int64_t local_elements(ValueId v) const {
    return graph_.elements(graph_.values[static_cast<std::size_t>(v)]);
  }

  Graph graph_;
  std::vector<RotaryUse>* rotary_;
  std::vector<std::int64_t> tower_tokens_;  // of a sample
  std::int32_t piece_ = 0;
  bool passes_sums_ = false, adding_adapter_ = false;
  RecomputeParts parts_;
};

}  // namespace orrery::program
