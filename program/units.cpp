// SPDX-License-Identifier: Apache-2.0
#include "program/units.h"

#include <algorithm>

#include "program/emitter.h"

namespace orrery::program {

std::int32_t UnitPacker::add(std::int64_t elements, bool alone) {
  const auto close = [&] {
    ++next_;
    open_ = 0;
  };
  if (alone && open_ > 0) close();
  const std::int32_t unit = next_;
  open_ += elements;
  if (alone || open_ >= bucket_) close();
  return unit;
}

BlockElements::BlockElements(const Model& m, std::int64_t tp) {
  const std::int64_t h = m.hidden, q = m.heads * m.head();
  head_norm_tensors = m.norm == Norm::kLayerNorm && m.bias ? 2 : 1;
  const std::int64_t norm = head_norm_tensors * h;
  embedding = (m.vocab + tp - 1) / tp * h;
  positions = m.positions == Positions::kLearned ? m.max_positions * h : 0;
  layer = (h * m.qkv_width() + q * h + h * m.fc1_width() + m.ffn() * h) / tp + 2 * norm;
  if (m.bias)
    layer += (m.qkv_width() + m.fc1_width()) / tp + 2 * h;
  else if (m.qkv_bias)
    layer += m.qkv_width() / tp;
  if (m.qk_norm) layer += 2 * m.head();
  layer_tensors = 4 + 2 * head_norm_tensors + (m.bias ? 4 : m.qkv_bias ? 1 : 0) + (m.qk_norm ? 1 : 0);
  head_norm = norm;
}

PartialElements::PartialElements(const Model& m, const Plan& p) {
  const bool sp = p.sequence_parallel && p.tp > 1;
  const std::int64_t norm = (m.norm == Norm::kLayerNorm && m.bias ? 2 : 1) * m.hidden;
  layer = (sp ? 2 * norm + (m.bias ? 2 * m.hidden : 0) : 0) + (m.qk_norm && p.tp > 1 ? 2 * m.head() : 0);
  head_norm = sp ? norm : 0;
  positions = sp && m.positions == Positions::kLearned ? m.max_positions * m.hidden : 0;
}

std::int64_t bucket_elements(const Training& t, const Stack& s) {
  const std::int64_t bytes = bytes_per_parameter(t.precision).gradient;
  return (s.bucket.value + bytes - 1) / bytes;
}

void append_units(const BlockElements& elements, const Model& m, std::int64_t zero, std::int64_t bucket,
                  std::int64_t layers, const ChunkEnds& ends, std::vector<UnitSize>& out) {
  const bool each = zero == 3;
  const std::size_t base = out.size();
  UnitPacker packer(bucket);
  const auto add = [&](std::int64_t n, std::int64_t tensors, std::int64_t of_layers, bool alone) {
    out.resize(base + static_cast<std::size_t>(packer.add(n, alone)) + 1);
    out.back().elements += n;
    out.back().tensors += tensors;
    out.back().layers += of_layers;
  };
  if (ends.head) {
    if (!ends.tied_here) add(elements.embedding, 1, 0, each || m.tied_embeddings);
    add(elements.head_norm, elements.head_norm_tensors, 0, each);
  }
  for (std::int64_t l = 0; l < layers; ++l) add(elements.layer, elements.layer_tensors, 1, each);
  if (ends.embedding) {
    if (elements.positions > 0) add(elements.positions, 1, 0, each);
    add(elements.embedding, 1, 0, true);
  }
}

std::int64_t static_bytes(const Model& m, const Plan& p, const Training& t, std::span<const UnitSize> units,
                          const StageEnds& ends) {
  const BytesPerParameter bytes = bytes_per_parameter(t.precision);
  const std::int64_t shards = p.shards();
  const Shapes z(m, p, t);
  std::int64_t total = 0, widest = 0, last = 0;
  for (const UnitSize& u : units) {
    const std::int64_t shard = (u.elements + shards - 1) / shards, padded = shard * shards;
    total += (p.zero == 3 ? shard : padded) * bytes.parameter +
             (p.zero >= 2 ? shard : padded) * bytes.gradient + shard * bytes.optimizer() +
             (t.lamb ? u.tensors * kTrustBytes : 0);
    widest = std::max(widest, padded);
    last = padded;
  }
  // Two units are whole at a time; a tied weight, the last unit, is in use beside them.
  const std::int64_t whole = 2 * widest + (ends.first && ends.last && m.tied_embeddings ? last : 0);
  if (p.zero == 3) total += whole * bytes.parameter;
  if (p.zero >= 2) total += whole * bytes.gradient;
  // A tensor sent or received has one copy more than are in flight.
  total += 2 * ends.received * z.rows * z.h * z.beta;
  const std::int64_t data = 4 * z.tokens * p.micro_batches;
  if (ends.first) total += data;
  if (ends.last) total += data + 8;
  if (t.measures_norm()) total += kNormBytes + (p.pp > 1 && !ends.last_stage ? 2 : 1) * kNormBinBytes;
  return total;
}

}  // namespace orrery::program
