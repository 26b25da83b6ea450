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

// A block of parameters in model order.
struct BlockSize {
  std::int64_t elements = 0;
  bool alone = false;  // never shares a unit
};

// The unit of each block, numbered in backward order from zero. A unit is closed by the first block
// (in model order) it holds.
std::vector<std::int32_t> group_blocks(std::span<const BlockSize> blocks, std::int64_t bucket_elements);

// Elements one tensor rank holds of each kind of block.
struct BlockElements {
  BlockElements(const Model& m, std::int64_t tp);
  std::int64_t embedding, positions, layer, head_norm;
};

// Bytes always allocated on a rank of `stage`: parameters, gradients, optimizer state (each padded to the
// shard group), transient rings, data, and receive buffers beyond those in flight.
std::int64_t static_bytes(const Model& m, const Plan& p, const Training& t, const Stack& s,
                          std::int64_t stage, std::span<const std::int64_t> chunk_layers);

}  // namespace orrery::program
