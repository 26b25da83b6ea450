// SPDX-License-Identifier: Apache-2.0
#include "program/units.h"

#include <algorithm>

#include "program/emitter.h"

namespace orrery::program {

std::vector<std::int32_t> group_blocks(std::span<const BlockSize> blocks, std::int64_t bucket_elements) {
  std::vector<std::int32_t> unit(blocks.size());
  std::int32_t next = 0;
  std::int64_t open = 0;  // elements in the unit being filled
  for (std::size_t i = blocks.size(); i-- > 0;) {
    if (blocks[i].alone && open > 0) {
      ++next;
      open = 0;
    }
    unit[i] = next;
    open += blocks[i].elements;
    if (blocks[i].alone || open >= bucket_elements) {
      ++next;
      open = 0;
    }
  }
  return unit;
}

BlockElements::BlockElements(const Model& m, std::int64_t tp) {
  const std::int64_t h = m.hidden, q = m.heads * m.head();
  const std::int64_t norm = (m.norm == Norm::kLayerNorm && m.bias ? 2 : 1) * h;
  embedding = (m.vocab + tp - 1) / tp * h;
  positions = m.positions == Positions::kLearned ? m.max_positions * h : 0;
  layer = (h * m.qkv_width() + q * h + h * m.fc1_width() + m.ffn() * h) / tp + 2 * norm;
  if (m.bias)
    layer += (m.qkv_width() + m.fc1_width()) / tp + 2 * h;
  else if (m.qkv_bias)
    layer += m.qkv_width() / tp;
  if (m.qk_norm) layer += 2 * m.head();
  head_norm = norm;
}

std::int64_t static_bytes(const Model& m, const Plan& p, const Training& t, const Stack& s,
                          std::int64_t stage, std::span<const std::int64_t> chunk_layers) {
  const BytesPerParameter bytes = bytes_per_parameter(t.precision);
  const BlockElements elements(m, p.tp);
  const std::int64_t last = p.pp * p.vpp - 1, shards = p.shards();
  const std::int64_t first_stage = 0, last_stage = stage_of_chunk(p, last);
  const bool tied_here = m.tied_embeddings && stage == first_stage && stage == last_stage;
  const std::int64_t bucket = (s.bucket.value + bytes.gradient - 1) / bytes.gradient;
  const Shapes z(m, p, t);
  const std::int64_t boundary = z.rows * z.h * z.beta;

  std::int64_t total = 0, widest = 0, embedding_padded = 0;
  std::vector<BlockSize> blocks;
  for (std::int64_t g = 0; g <= last; ++g) {
    if (stage_of_chunk(p, g) != stage) continue;
    blocks.clear();
    const bool each = p.zero == 3;
    if (g == 0) {
      blocks.push_back({elements.embedding, true});
      if (elements.positions > 0) blocks.push_back({elements.positions, each});
    }
    for (std::int64_t l = 0; l < chunk_layers[static_cast<std::size_t>(g)]; ++l)
      blocks.push_back({elements.layer, each});
    if (g == last) {
      blocks.push_back({elements.head_norm, each});
      if (!tied_here) blocks.push_back({elements.embedding, each || m.tied_embeddings});
    }
    const auto unit = group_blocks(blocks, bucket);
    for (std::size_t i = blocks.size(); i > 0;) {
      std::int64_t sum = 0;
      const std::int32_t index = unit[i - 1];
      while (i > 0 && unit[i - 1] == index) sum += blocks[--i].elements;
      const std::int64_t shard = (sum + shards - 1) / shards, padded = shard * shards;
      total += (p.zero == 3 ? shard : padded) * bytes.parameter +
               (p.zero >= 2 ? shard : padded) * bytes.gradient + shard * bytes.optimizer();
      widest = std::max(widest, padded);
      if (g == 0 && i == 0) embedding_padded = padded;
    }
    // A received tensor has one copy more than are in flight.
    total += (g > 0 ? boundary : 0) + (g < last ? boundary : 0);
  }
  if (p.zero == 3) total += 2 * widest * bytes.parameter;
  if (p.zero >= 2) total += 2 * widest * bytes.gradient;
  if (tied_here && p.zero == 3) total += embedding_padded * bytes.parameter;
  if (tied_here && p.zero >= 2) total += embedding_padded * bytes.gradient;
  const std::int64_t data = 4 * z.tokens * p.micro_batches;
  if (stage == first_stage) total += data;
  if (stage == last_stage) total += data + 8;
  return total;
}

}  // namespace orrery::program
