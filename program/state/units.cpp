// SPDX-License-Identifier: Apache-2.0
#include "program/state/units.h"

#include <algorithm>

#include "program/blocks.h"

namespace orrery::program {

std::int32_t UnitPacker::add(std::int64_t elements, bool alone, std::size_t kind) {
  Open& open = open_[kind];
  if (open.unit < 0 || alone) open = {next_++, 0};
  const std::int32_t unit = open.unit;
  open.elements += elements;
  if (alone || open.elements >= bucket_) open.unit = -1;
  return unit;
}

std::int64_t bucket_elements(const Training& t, const Stack& s) {
  const std::int64_t bytes = bytes_per_parameter(t.precision).gradient;
  return (s.bucket.value + bytes - 1) / bytes;
}

namespace {

std::vector<PieceSize> pieces_of(const Graph& g, const Training& t) {
  std::vector<PieceSize> out(static_cast<std::size_t>(g.pieces()));
  for (std::size_t i = 0; i < g.parameters.size(); ++i) {
    PieceSize& piece = out[static_cast<std::size_t>(g.piece_of[i])];
    if (g.parameters[i].muon) {
      const Parameter& p = g.parameters[i];
      const std::vector<Matrices> more =
          matrices_of(p, g.ranks(p.of_experts ? GraphAxis::kEtp : GraphAxis::kTp),
                      p.of_experts ? g.ranks(GraphAxis::kEp) : 1, piece.elements, t.muon.value().tp_mode);
      piece.matrices.insert(piece.matrices.end(), more.begin(), more.end());
    }
    piece.elements += g.parameters[i].stored_elements();
    ++piece.tensors;
    piece.alone = g.piece_of[i] == g.piece_alone;
    piece.of_experts = g.parameters[i].of_experts;
    piece.kept = g.parameters[i].kept;
    piece.muon = g.parameters[i].muon;
  }
  return out;
}

}  // namespace

ModelPieces::ModelPieces(const Model& m, const Depth& depth, const WeightRanks& ranks, const Training& t) {
  Plan plan{.tp = ranks.tp, .dp = ranks.ep * ranks.etp, .ep = ranks.ep};
  if (ranks.apart) plan.etp = ranks.etp;
  const Training training{.sequence = ranks.tp, .muon = t.muon, .adapter = t.adapter};
  const Stack stack;
  embedding = pieces_of(program::embedding(m, plan, training, stack), t);
  std::vector<RotaryUse> rotary;
  for (std::size_t k = 0; k < depth.kinds.size(); ++k)
    blocks.push_back(
        pieces_of(model_block(m, depth.kinds[k], depth.towers[k], plan, training, stack, rotary), t));
  head = pieces_of(program::head(m, plan, training, stack), t);
  if (m.tied_embeddings) head.back().embedding_again = true;
  for (std::int64_t k = 1; k <= m.mtp_layers; ++k) {
    std::vector<PieceSize> input = pieces_of(mtp_input(m, plan, training, stack, k), t),
                           last = pieces_of(program::head(m, plan, training, stack, k), t);
    input.front().embedding_again = true;
    // What the model's own head has, or a module before.
    if (m.tied_embeddings || k > 1) input.erase(input.begin());
    last.pop_back();
    for (const std::vector<PieceSize>* of : {&input, &blocks[depth.kind_index(depth.blocks())], &last})
      head.insert(head.end(), of->begin(), of->end());
  }
}

void append_units(const ModelPieces& pieces, const ChunkBlocks& blocks, std::int64_t zero,
                  std::int64_t bucket, std::vector<UnitSize>& out) {
  const std::size_t base = out.size();
  UnitPacker packer(bucket);
  std::int64_t layers_done = 0, pieces_done = 0;
  const auto add = [&](std::span<const PieceSize> of_block, std::int64_t layers) {
    for (std::size_t i = of_block.size(); i-- > 0;) {
      const PieceSize& piece = of_block[i];
      if (piece.embedding_again && blocks.tied_here) continue;
      const std::size_t unit = base + static_cast<std::size_t>(packer.add(
                                          piece.elements, zero == 3 || piece.alone, kind_of_unit(piece)));
      if (unit == out.size()) out.emplace_back();
      if (i == 0) layers_done += layers;
      for (Matrices m : piece.matrices) {
        m.first += out[unit].elements;
        out[unit].matrices.push_back(m);
      }
      out[unit].elements += piece.elements;
      out[unit].tensors += piece.tensors;
      out[unit].of_experts = piece.of_experts;
      out[unit].kept = piece.kept;
      out[unit].muon = piece.muon;
      out[unit].embedding_again |= piece.embedding_again;
      out[unit].layers_done = layers_done;
      out[unit].last_piece = pieces_done++;
    }
  };
  if (blocks.head) add(pieces.head, 0);
  for (std::size_t l = blocks.layers.size(); l-- > 0;)
    add(pieces.blocks[static_cast<std::size_t>(blocks.layers[l])], 1);
  if (blocks.embedding) add(pieces.embedding, 0);
}

void offload_units(double share, std::span<UnitSize> units) {
  double left = 0;
  for (const UnitSize& u : units) left += u.trained() ? share * static_cast<double>(u.elements) : 0;
  for (UnitSize& u : units) {
    if (!u.trained()) continue;
    u.on_host = share > 0 && left >= 0.5 * static_cast<double>(u.elements);
    if (!u.on_host) return;
    left -= static_cast<double>(u.elements);
  }
}

UnitShare::UnitShare(const Plan& p, std::int64_t elements, bool of_experts) {
  const std::int64_t shards = of_experts ? p.expert_shards() : p.shards();
  shard = (elements + shards - 1) / shards;
  padded = shard * shards;
  parameter = p.zero == 3 ? shard : padded;
  gradient = p.zero >= 2 ? shard : padded;
}

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

StaticBytes static_bytes(const Model& m, const SampleSizes& sample, const Plan& p, const Training& t,
                         const Stack& s, std::span<const UnitSize> units, const StageEnds& ends,
                         std::int64_t transferred) {
  StaticBytes total{.device = boundary_elements(m, p, transferred) * activation_bytes(t.precision)};
  for_each_held(m, sample, p, t, s, units, ends, [&](const HeldBuffer& b) {
    switch (b.space) {
      case Space::kDevice:
        total.device += b.bytes();
        return;
      case Space::kHost:
        total.host += b.bytes();
        return;
      case Space::kDrives:
        total.drives += b.bytes();
        return;
    }
  });
  return total;
}

AllStateGroups::AllStateGroups(const Communication& over)
    : of_{{{{over.group("tp")}, over.group("dp"), over.group("shard"), over.group("replica")},
           {{over.group("etp"), over.group("ep")},
            over.group("edp"),
            over.group("eshard"),
            over.group("ereplica")}}} {}

namespace {

// By shape, how many matrices the rank has a part of whose shard has parts of most.
std::vector<ops::Orthogonalise> orthogonalise_ops(const UnitSize& unit, std::int64_t shard,
                                                  std::int64_t number, const Muon& muon) {
  std::vector<ops::Orthogonalise> out;
  std::vector<std::int64_t> has(static_cast<std::size_t>((unit.elements + shard - 1) / shard));
  for (std::size_t i = 0; i < unit.matrices.size(); ++i) {
    const auto alike = [&, m = unit.matrices[i]](const Matrices& other) {
      return other.rows == m.rows && other.columns == m.columns;
    };
    const auto rest = std::span(unit.matrices).subspan(i);
    if (std::any_of(unit.matrices.begin(), unit.matrices.begin() + static_cast<std::ptrdiff_t>(i), alike))
      continue;
    std::fill(has.begin(), has.end(), 0);
    for (const Matrices& m : rest) {
      if (!alike(m)) continue;
      const std::int64_t end = m.first + m.count * m.elements;
      for (std::int64_t s = m.first / shard; s * shard < end; ++s) {
        const std::int64_t from = std::max(m.first, s * shard), to = std::min(end, (s + 1) * shard);
        has[static_cast<std::size_t>(s)] +=
            (to - m.first + m.elements - 1) / m.elements - (from - m.first) / m.elements;
      }
    }
    out.push_back({number, rest.front().rows, rest.front().columns, *std::max_element(has.begin(), has.end()),
                   muon.iterations});
  }
  return out;
}

}  // namespace

std::vector<Matrices> matrices_of(const Parameter& p, std::int64_t ranks, std::int64_t parts,
                                  std::int64_t first, MuonTpMode mode) {
  std::vector<Matrices> out;
  const auto joined = static_cast<std::size_t>(p.muon_blocks);
  for (std::size_t b = 0; b < p.row_blocks.size() / static_cast<std::size_t>(parts); b += joined) {
    std::int64_t all_rows = 0;
    for (std::size_t i = b; i < b + joined; ++i) all_rows += p.row_blocks[i];
    const std::int64_t rows = all_rows / (p.split == Parameter::Split::kRows ? ranks : 1);
    const bool whole = mode == MuonTpMode::kDuplicated;
    Matrices m{first, rows * p.local_cols, whole ? all_rows : rows, whole ? p.cols : p.local_cols, 1};
    first += m.elements;
    if (!out.empty() && out.back().rows == m.rows && out.back().columns == m.columns)
      ++out.back().count;
    else
      out.push_back(m);
  }
  return out;
}

std::int64_t muon_bytes(const Plan& p, const Training& t, std::span<const UnitSize> units) {
  // Elements; of the unit that is gathered, what it has already and will have.
  std::int64_t most = 0, gathered = 0, its_scratch = 0;
  for (const UnitSize& u : units) {
    if (!u.muon) continue;
    const std::int64_t parts = gathered_parts(p, t, u.of_experts);
    const std::int64_t own = UnitShare(p, u).padded * (parts > 1 ? 1 + parts : 1);
    std::int64_t scratch = 0;
    for (const Matrices& m : u.matrices)
      scratch =
          std::max(scratch, ops::Orthogonalise{.rows = m.rows, .columns = m.columns}.scratch().elements);
    const bool gathers = parts > 1 || (u.of_experts ? p.expert_shards() : p.shards()) > 1;
    most = std::max(most, gathered + own + (gathers ? its_scratch : scratch));
    if (gathers) {
      gathered = own;
      its_scratch = scratch;
    }
  }
  return std::max(most, gathered + its_scratch) * static_cast<std::int64_t>(bytes_of(t.muon_type()));
}

UnitWork::UnitWork(const Plan& p, const Training& t, const AllStateGroups& all_groups, const UnitSize& unit,
                   std::int64_t number) {
  const std::int64_t elements = unit.elements;
  const bool of_experts = unit.of_experts;
  const UnitShare u(p, elements, of_experts);
  const StateGroups& groups = all_groups.of(of_experts);
  const std::int64_t shards = of_experts ? p.expert_shards() : p.shards();
  const std::int64_t copies = of_experts ? p.expert_dp() : p.copies();
  const BytesPerParameter bytes = bytes_per_parameter(t.precision);
  using enum CollectiveKind;
  if (p.zero == 0 && copies > 1)
    reductions.push_back({"/all-reduce", {kAllReduce, u.padded}, groups.dp, bytes.gradient});
  if (p.zero == 1 && shards > 1)
    reductions.push_back({"/reduce-scatter", {kReduceScatter, u.padded}, groups.shard, bytes.gradient});
  if (p.zero >= 1 && shards < copies)
    reductions.push_back({"/replica-all-reduce", {kAllReduce, u.shard}, groups.replica, bytes.gradient});
  norm = ops::NormSquare{u.shard, number};
  trust = ops::TrustSquares{{u.shard, number}, t.lars};
  optimizer = ops::Optimizer{{u.shard, number}, t.scales_tensors()};
  if (unit.muon) {
    momentum = ops::MuonMomentum{{u.shard, number}};
    muon_update = ops::MuonUpdate{{u.shard, number}};
    orthogonalise = orthogonalise_ops(unit, u.shard, number, t.muon.value());
    const auto size = static_cast<std::int64_t>(bytes_of(t.muon_type()));
    const std::int64_t parts = gathered_parts(p, t, of_experts);
    if (shards > 1) of_update.push_back({"/update/all-gather", {kAllGather, u.padded}, groups.shard, size});
    if (parts > 1)
      of_update.push_back(
          {"/update/parts/all-gather", {kAllGather, parts * u.padded}, groups.parts.front(), size});
  }
  clear = ops::ZeroGrad{u.gradient, bytes.gradient};
  if ((p.zero == 1 || p.zero == 2) && shards > 1)
    gathers.push_back({"/all-gather", {kAllGather, u.padded}, groups.shard, bytes.parameter});
}

boost::container::static_vector<GroupIndex, 3> parts_of_tensors(const Plan& p, const AllStateGroups& groups,
                                                                bool of_experts) {
  boost::container::static_vector<GroupIndex, 3> out;
  const auto add = [&](GroupIndex group, std::int64_t ranks) {
    if (ranks > 1) out.push_back(group);
  };
  const StateGroups& of = groups.of(of_experts);
  add(of.parts[0], of_experts ? p.expert_tp() : p.tp);
  if (of_experts) add(of.parts[1], p.ep);
  add(of.shard, of_experts ? p.expert_shards() : p.shards());
  return out;
}

}  // namespace orrery::program
