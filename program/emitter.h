// SPDX-License-Identifier: Apache-2.0
//
// Emits the ops of one rank class. Internal to program/.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "program/graph.h"

namespace orrery::program {

// A block of a chunk.
struct Block {
  const Graph* graph = nullptr;
  std::string prefix;                    // of its names: "layer17/"
  std::int32_t layer = -1;               // of the model; -1: the block is an end
  std::vector<std::int32_t> parameters;  // by the graph's parameters, in RankClass::parameters
  bool again = false;                    // its weights have gradients of the micro-batch already
};

// A value that a collective placed in another way, for its readers.
struct Placed {
  ValueId value;
  Placements as;
  std::int32_t buffer;
};

// Of two placements, the second but for shares that are gathered: what exchanges of rows make of the first.
Placements exchanged(const Placements& from, const Placements& wanted);

// Where a block's values are.
struct Tensors {
  std::vector<std::int32_t> of;       // buffer by value
  std::vector<std::int32_t> outputs;  // buffers, as the graph has them
  // Of partial values the sums, and rows that ranks exchanged: gradients read these, where they gather others
  // anew.
  std::vector<Placed> kept;
};

class Emitter {
 public:
  Emitter(const Plan& p, const Training& t, const Stack& s, const Communication& over, RankClass& c,
          bool named);

  const Plan& plan;
  const Training& training;
  const Stack& stack;
  RankClass& rank;

  // --- buffers -----------------------------------------------------------------------------------
  // Activations are local to the segment that makes them; what another segment of the chunk also
  // touches becomes saved (program/memory.cpp decides, from what the ops read).
  std::int32_t static_buffer(std::string name, BufferClass cls, std::int64_t elements, DType type);
  std::int32_t activation(std::string name, std::int64_t elements, DType type);
  // Of a parameter of the rank, or of a block.
  Ref weight(std::int32_t parameter) const;
  Ref gradient(std::int32_t parameter) const;
  Ref weight(const Block& b, std::int32_t i) const {
    return weight(b.parameters[static_cast<std::size_t>(i)]);
  }
  // The same as ops read it: what is stored in 4 bits is made for each use.
  Ref used_weight(const Block& b, std::int32_t i);
  Ref gradient(const Block& b, std::int32_t i) const {
    return gradient(b.parameters[static_cast<std::size_t>(i)]);
  }

  // --- ops ---------------------------------------------------------------------------------------
  void begin(SegmentKind kind, std::int32_t chunk, bool last);
  Op& add(const OpKind& kind, std::string name, std::vector<Ref> reads, std::vector<Ref> writes);
  Op& collective(const ops::Collective& shape, std::string name, GroupIndex group, std::int64_t element_bytes,
                 std::vector<Ref> reads, std::vector<Ref> writes);
  // Between the device and its host's memory, or that and the drives.
  Op& copy(const ops::Copy& shape, std::string name, Ref from, Ref to);
  // To and from the stage that holds chunk `peer`.
  void send(const char* name, StreamIndex stream, std::int64_t peer, Ref from, std::int64_t elements,
            std::int64_t element_bytes);
  void receive(const char* name, StreamIndex stream, std::int64_t peer, Ref to, std::int64_t elements,
               std::int64_t element_bytes);
  // Ops from here on are forward work of a backward segment (Op::evaluates), or not.
  void evaluate(bool on) { evaluates_ = on; }
  // What ops of the segment, from `first` on, read and write of a buffer begins so many elements behind.
  void shift(std::size_t first, std::int32_t buffer, std::int64_t elements);
  std::size_t emitted() const { return segment_->ops.size(); }
  // The first compute op at or after `index`.
  Op& first_compute_op(std::size_t index);

  // --- blocks ------------------------------------------------------------------------------------
  // Ops from here on are the block's.
  void enter(const Block& b) { layer_ = b.layer; }
  // "layer17/attn/qkv", or nothing in a program that is only costed.
  std::string name(const Block& b, std::string_view of, std::string_view suffix = {}) const;
  // The forward computation, from the buffers of the ports. `repeated`: forward work that was done before.
  Tensors forward(const Block& b, std::span<const std::int32_t> ports, bool repeated = false);
  bool repeats_selectively(const Block& b) const;  // any part of the block
  // Repeats the parts of the block that selective recomputation repeats; the tensors are those that backward
  // reads then.
  void repeat_selectively(const Block& b, Tensors& tensors);
  // Attention to keys and values that go around a ring of ranks: the op in as many steps, with what passes
  // between them. `reads` as of the op: what its first step reads, and what its gradient does.
  void ring_attention(const std::string& name, const ops::ContextAttention& op, const std::vector<Ref>& reads,
                      Ref out, Ref lse);
  void ring_attention_grad(const std::string& name, const ops::ContextAttentionGrad& op,
                           const std::vector<Ref>& reads, Ref dq, Ref dkv);
  // The buffer of a value that was placed in one way, placed in another: the same buffer, or what collectives
  // make of it, in `into` where it is another one and `into` is one. They are named after the value's reader
  // where they gather shares or exchange parts, and after its producer where they add summands. Throws
  // std::logic_error when no collective turns the one into the other.
  std::int32_t converted(const Block& b, const Value& v, std::int32_t buffer, Placements from,
                         const Placements& to, std::string_view reader, std::string_view producer,
                         std::int32_t into = -1);

 private:
  // `placed`: operands that all readers share.
  void run(const Block& b, const Node& n, Tensors& t, std::vector<Placed>& placed);
  std::string step_name(const std::string& of, std::int64_t step, const char* suffix) const;
  // What the rank before in the ring has.
  Ref shifted(const std::string& name, Ref from, std::int64_t elements);
  void transfer(Op& o, StreamIndex stream, std::int64_t peer, std::int64_t bytes) const;

  const Communication& over_;
  std::array<GroupIndex, kGraphAxes> groups_;
  bool named_;
  ops::ElementBytes bytes_;
  Segment* segment_ = nullptr;
  std::int32_t layer_ = -1;
  bool recomputing_ = false, evaluates_ = false;
};

}  // namespace orrery::program
