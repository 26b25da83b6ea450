// SPDX-License-Identifier: Apache-2.0
#include "program/units.h"

#include <algorithm>

#include "program/blocks.h"

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
  const Plan plan{.tp = tp};
  const Training training{.sequence = tp};
  const Stack stack;
  const Graph first = program::embedding(m, plan, training, stack);
  const Graph one = transformer_layer(m, plan, training, stack);
  const Graph last = head(m, plan, training, stack);
  embedding = first.elements_of_piece(0);
  positions = first.pieces() > 1 ? first.elements_of_piece(1) : 0;
  layer = one.elements_of_piece(0);
  layer_tensors = one.tensors_of_piece(0);
  head_norm = last.elements_of_piece(0);
  head_norm_tensors = last.tensors_of_piece(0);
}

std::int64_t boundary_elements(const Model& m, const Plan& p, const Training& t) {
  const std::int64_t tokens = p.micro_batch * t.sequence;
  return (p.sequence_parallel ? tokens / p.tp : tokens) * m.hidden;
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
  total += 2 * ends.received * boundary_elements(m, p, t) * activation_bytes(t.precision);
  const std::int64_t data = 4 * p.micro_batch * t.sequence * p.micro_batches;
  if (ends.first) total += data;
  if (ends.last) total += data + 8;
  if (t.measures_norm()) total += kNormBytes + (p.pp > 1 && !ends.last_stage ? 2 : 1) * kNormBinBytes;
  return total;
}

}  // namespace orrery::program
