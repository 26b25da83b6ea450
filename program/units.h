// SPDX-License-Identifier: Apache-2.0
//
// How a rank's parameters are grouped into units (gradient buckets; single blocks for ZeRO-3) and the
// bytes that are there whatever is in flight. compile() and the estimate share these, so both count the
// same static memory to the byte.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model.h"
#include "core/plan.h"
#include "core/stack.h"
#include "core/training.h"

namespace orrery::program {

// Puts blocks of parameters into units, in the order in which backwards complete them: a unit takes blocks
// until it holds a bucket.
class UnitPacker {
 public:
  explicit UnitPacker(std::int64_t bucket_elements) : bucket_(bucket_elements) {}
  // The unit of the next block, counted from zero. An `alone` block never shares its unit.
  std::int32_t add(std::int64_t elements, bool alone);

 private:
  std::int64_t bucket_;
  std::int64_t open_ = 0;  // elements in the unit being filled
  std::int32_t next_ = 0;
};

// Gradient elements that fill a bucket.
std::int64_t bucket_elements(const Training& t, const Stack& s);

// Elements one tensor rank holds of each kind of block.
struct BlockElements {
  BlockElements(const Model& m, std::int64_t tp);
  std::int64_t embedding, positions, layer, head_norm;
  std::int64_t layer_tensors, head_norm_tensors;  // that they are of; the others are one
};

// Elements of a hidden state that one rank has, as they pass from stage to stage.
std::int64_t boundary_elements(const Model& m, const Plan& p, const Training& t);

// The units of one chunk, last block first: the order in which backwards complete them.
struct UnitSize {
  std::int64_t elements = 0;
  std::int64_t tensors = 0;  // that they are of
  std::int64_t layers = 0;   // of them
};
struct ChunkEnds {
  bool embedding = false, head = false;
  bool tied_here = false;  // the head's weight is the embedding's, on this stage
};
void append_units(const BlockElements& elements, const Model& m, std::int64_t zero, std::int64_t bucket,
                  std::int64_t layers, const ChunkEnds& ends, std::vector<UnitSize>& out);

// Bytes always allocated on a rank that holds `units`: parameters, gradients, optimizer state (each padded to
// the shard group), transient rings, data, and one copy more of what is sent and received than is in flight.
struct StageEnds {
  bool first = false, last = false;  // holds the first chunk, the last one
  bool last_stage = false;
  std::int64_t received = 0;  // tensors that arrive from other chunks; as many leave for them
};
std::int64_t static_bytes(const Model& m, const Plan& p, const Training& t, std::span<const UnitSize> units,
                          const StageEnds& ends);

}  // namespace orrery::program
