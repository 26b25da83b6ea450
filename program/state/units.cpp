// SPDX-License-Identifier: Apache-2.0
#include "program/state/units.h"

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

std::int64_t bucket_elements(const Training& t, const Stack& s) {
  const std::int64_t bytes = bytes_per_parameter(t.precision).gradient;
  return (s.bucket.value + bytes - 1) / bytes;
}

namespace {

std::vector<PieceSize> pieces_of(const Graph& g) {
  std::vector<PieceSize> out(static_cast<std::size_t>(g.pieces()));
  for (std::size_t i = 0; i < g.parameters.size(); ++i) {
    PieceSize& piece = out[static_cast<std::size_t>(g.piece_of[i])];
    piece.elements += g.parameters[i].local_elements();
    ++piece.tensors;
    piece.alone = g.piece_of[i] == g.piece_alone;
  }
  return out;
}

}  // namespace

ModelPieces::ModelPieces(const Model& m, const Depth& depth, std::int64_t tp) {
  const Plan plan{.tp = tp};
  const Training training{.sequence = tp};
  const Stack stack;
  embedding = pieces_of(program::embedding(m, plan, training, stack));
  std::vector<RotaryUse> rotary;
  for (std::size_t k = 0; k < depth.kinds.size(); ++k)
    blocks.push_back(
        pieces_of(model_block(m, depth.kinds[k], depth.towers[k], plan, training, stack, rotary)));
  head = pieces_of(program::head(m, plan, training, stack));
}

void append_units(const ModelPieces& pieces, const ChunkBlocks& blocks, std::int64_t zero,
                  std::int64_t bucket, std::vector<UnitSize>& out) {
  const std::size_t base = out.size();
  UnitPacker packer(bucket);
  const auto add = [&](std::span<const PieceSize> of_block, std::int64_t layers) {
    for (std::size_t i = of_block.size(); i-- > 0;) {
      const PieceSize& piece = of_block[i];
      const std::int32_t unit = packer.add(piece.elements, zero == 3 || piece.alone);
      out.resize(base + static_cast<std::size_t>(unit) + 1);
      out.back().elements += piece.elements;
      out.back().tensors += piece.tensors;
      if (i == 0) out.back().layers += layers;
    }
  };
  if (blocks.head) add(std::span(pieces.head).first(pieces.head.size() - (blocks.tied_here ? 1 : 0)), 0);
  for (std::size_t l = blocks.layers.size(); l-- > 0;)
    add(pieces.blocks[static_cast<std::size_t>(blocks.layers[l])], 1);
  if (blocks.embedding) add(pieces.embedding, 0);
}

UnitShare::UnitShare(const Plan& p, std::int64_t elements)
    : shard((elements + p.shards() - 1) / p.shards()),
      padded(shard * p.shards()),
      parameter(p.zero == 3 ? shard : padded),
      gradient(p.zero >= 2 ? shard : padded) {}

SampleSizes::SampleSizes(const Model& m, const Training& t)
    : tokens(tower_tokens(m, t)), feeds(feeds_of(m, t)) {}

std::int64_t transferred_tokens(const Depth& depth, std::span<const std::int32_t> blocks,
                                std::span<const std::int64_t> tokens, bool first, bool last) {
  const bool through = !first && !last && tokens.size() > 1;
  std::int64_t total = 0;
  for (TowerIndex t = 0; t < std::ssize(tokens); ++t) {
    const bool changes = !through || std::any_of(blocks.begin(), blocks.end(), [&](std::int32_t kind) {
      return depth.towers[static_cast<std::size_t>(kind)].own == t;
    });
    // Of values and of gradients.
    const std::int64_t buffers = 2 * (changes ? (first ? 0 : 1) + (last ? 0 : 1) : 1);
    total += buffers * tokens[static_cast<std::size_t>(t)];
  }
  return total;
}

std::int64_t static_bytes(const Model& m, const SampleSizes& sample, const Plan& p, const Training& t,
                          std::span<const UnitSize> units, const StageEnds& ends, std::int64_t transferred) {
  std::int64_t total = boundary_elements(m, p, transferred) * activation_bytes(t.precision);
  for_each_held(m, sample, p, t, units, ends, [&](const HeldBuffer& b) { total += b.bytes(); });
  return total;
}

StateGroups::StateGroups(const Communication& over)
    : tp(over.group("tp")),
      dp(over.group("dp")),
      shard(over.group("shard")),
      replica(over.group("replica")) {}

UnitWork::UnitWork(const Plan& p, const Training& t, const StateGroups& groups, std::int64_t elements,
                   std::int64_t number) {
  const UnitShare u(p, elements);
  const std::int64_t shards = p.shards();
  const BytesPerParameter bytes = bytes_per_parameter(t.precision);
  using enum CollectiveKind;
  if (p.zero == 0 && p.dp > 1)
    reductions.push_back({"/all-reduce", {kAllReduce, u.padded}, groups.dp, bytes.gradient});
  if (p.zero == 1 && shards > 1)
    reductions.push_back({"/reduce-scatter", {kReduceScatter, u.padded}, groups.shard, bytes.gradient});
  if (p.zero >= 1 && shards < p.dp)
    reductions.push_back({"/replica-all-reduce", {kAllReduce, u.shard}, groups.replica, bytes.gradient});
  norm = ops::NormSquare{u.shard, number};
  trust = ops::TrustSquares{u.shard, number};
  optimizer = ops::Optimizer{{u.shard, number}, t.lamb};
  clear = ops::ZeroGrad{u.gradient, bytes.gradient};
  if ((p.zero == 1 || p.zero == 2) && shards > 1)
    gathers.push_back({"/all-gather", {kAllGather, u.padded}, groups.shard, bytes.parameter});
}

boost::container::static_vector<GroupIndex, 2> parts_of_tensors(const Plan& p, const StateGroups& groups) {
  boost::container::static_vector<GroupIndex, 2> out;
  if (p.tp > 1) out.push_back(groups.tp);
  if (p.shards() > 1) out.push_back(groups.shard);
  return out;
}

}  // namespace orrery::program
