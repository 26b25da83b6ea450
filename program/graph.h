// SPDX-License-Identifier: Apache-2.0
//
// The forward computation of a block, written once: values, the ops between them, and parameters. The rest
// follows from it. Collectives follow from placements: where an op wants an operand placed otherwise than the
// value is, a collective turns one placement into the other. Gradients, what is kept for them and what is
// repeated follow from the ops (program/gradient.h).
//
// Sizes. A value is a matrix with a row for each token of the micro-batch; `rows` and `columns` are of all
// tensor ranks, and of all that share its sequences, together. The fields of an op are one rank's.
//
// A graph is of one kind of block under one plan; all blocks of that kind share it. program/blocks.h has the
// kinds.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/mesh.h"
#include "program/program.h"

namespace orrery::program {

// The groups of ranks that tensors of a block lie over. Those of experts part the same ranks otherwise.
enum class GraphAxis : std::uint8_t { kTp, kUlysses, kRing, kEp, kEtp };
inline constexpr std::size_t kGraphAxes = 5;
constexpr auto enum_names(GraphAxis) {
  return std::array{std::pair{GraphAxis::kTp, "tp"}, std::pair{GraphAxis::kUlysses, "ulysses"},
                    std::pair{GraphAxis::kRing, "ring"}, std::pair{GraphAxis::kEp, "ep"},
                    std::pair{GraphAxis::kEtp, "etp"}};
}

// How a tensor lies over the ranks of one axis, in the terms of GSPMD and PyTorch's DTensor.
enum class Placement : std::uint8_t {
  kReplicated,  // each rank has the whole
  kRows,        // sharded: each has a share of the rows
  kParts,    // sharded: each has, of every rank's share of the rows, its part (GShard, Lepikhin et al. 2021)
  kColumns,  // sharded: each has a share of the columns
  kSum,      // partial: the tensor is the sum of what the ranks have
};
constexpr auto enum_names(Placement) {
  using enum Placement;
  return std::array{std::pair{kReplicated, "replicated"}, std::pair{kRows, "sharded by rows"},
                    std::pair{kParts, "sharded by parts of rows"}, std::pair{kColumns, "sharded by columns"},
                    std::pair{kSum, "a partial sum"}};
}
constexpr bool is_sharded(Placement p) {
  return p == Placement::kRows || p == Placement::kParts || p == Placement::kColumns;
}
constexpr bool is_partial(Placement p) {
  return p == Placement::kSum;
}
// The placement of a value's gradient. The gradient of a partial sum is the same for all summands.
constexpr Placement dual(Placement p) {
  return is_sharded(p) ? p : Placement::kReplicated;
}

// Ranks begin with tokens of their own, but for tensor ranks.
struct Placements {
  std::array<Placement, kGraphAxes> along{Placement::kReplicated, Placement::kRows, Placement::kRows,
                                          Placement::kRows, Placement::kRows};
  Placement& operator[](GraphAxis axis) { return along[static_cast<std::size_t>(axis)]; }
  Placement operator[](GraphAxis axis) const { return along[static_cast<std::size_t>(axis)]; }
  friend bool operator==(const Placements&, const Placements&) = default;
};
Placements dual(Placements p);
bool is_partial(const Placements& p);  // along any axis

using ValueId = std::int32_t;
inline constexpr ValueId kNoValue = -1;

struct Value {
  std::string name;  // of its buffer
  std::int64_t rows = 0, columns = 0;
  DType type = DType::kFloat32;
  Placements placement;
  std::int32_t producer = -1;     // node; -1: the block is given its buffer
  std::int32_t in_place_of = -1;  // operand of the producer whose buffer it takes over
  double filled = 1;              // of its rows, how many hold something in the mean: others have room alone
  // Of its rows, those that are of one token; and the groups of experts, and how many of them, that they are
  // for.
  std::int64_t copies = 1, groups = 1, top_groups = 1;
  bool keeps_summands = false;  // of a partial one: others than the reader of its sum read them
};

// What a node reads: a value, placed as the op wants it, or a parameter.
struct Operand {
  ValueId value = kNoValue;
  Placements wanted;
  std::int32_t parameter = -1;
};

struct Node {
  std::string name;  // of its op
  ForwardOp op;
  std::vector<Operand> reads;   // in the order of Op::reads
  std::vector<ValueId> writes;  // in the order of Op::writes
  std::vector<ValueId> also;    // what only its gradient needs, or gives
  // Tensor ranks agree on what it reads: gradients of its results may stay partial sums, and so may what it
  // makes of them.
  bool passes_sums = false;
  RecomputeParts parts;  // that it is of
  // What later nodes read: where it comes from other ranks, it comes behind what this one reads, and before
  // its op.
  std::vector<Operand> brings{};
  // What software keeps of it until its gradient, beside what the rule reads. Kernels do not see it.
  std::vector<ValueId> keeps{};
};

// A value whose buffer the block is given: what a tower has come to (of that number), what an input of the
// model is made of (of that number), what the loss is taken of and added to (0 is the model's, and k that
// of tokens k further), or where documents begin that sequences are packed from. Where a model is served,
// the targets are the tokens that it chooses, and layers have a cache each.
struct Port {
  enum class Is : std::uint8_t { kTower, kInput, kTargets, kLoss, kCache, kDocuments } is = Is::kTower;
  std::int32_t number = 0;
  ValueId value = kNoValue;
};
// What a tower comes to, placed as the next block wants it.
struct Output {
  TowerIndex tower = 0;
  Operand is;
};

struct Graph {
  std::array<std::int64_t, kGraphAxes> ranks_along{1, 1, 1, 1, 1};
  std::vector<Value> values;
  std::vector<Node> nodes;  // in issue order
  // Without unit and offset; piece by piece. Parameters of a piece are gathered, reduced and updated as one.
  // The first of a piece are those whose gradients are partial sums over tensor ranks: one all-reduce
  // completes them.
  std::vector<Parameter> parameters;
  std::vector<std::int32_t> piece_of;  // by parameter
  std::int32_t piece_alone = -1;       // that never shares its unit; -1: none
  std::vector<Port> ports;
  std::vector<Output> outputs;  // none: the block ends in the loss
  bool in_layer = false;        // ops of a layer have its number, ops of the model's ends have none

  // Elements of a value that one rank has, placed so.
  std::int64_t elements(const Value& v, const Placements& placed) const;
  std::int64_t elements(const Value& v) const { return elements(v, v.placement); }
  std::int64_t ranks(GraphAxis axis) const { return ranks_along[static_cast<std::size_t>(axis)]; }
  std::int32_t pieces() const { return piece_of.empty() ? 0 : piece_of.back() + 1; }
};

}  // namespace orrery::program
