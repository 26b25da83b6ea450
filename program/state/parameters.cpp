// SPDX-License-Identifier: Apache-2.0
#include "program/state/parameters.h"

#include <fmt/format.h>

#include <algorithm>

namespace orrery::program {
namespace {

// In the order of Held.
constexpr std::array kHeldNames = {"tokens{}",
                                   "targets{}",
                                   "loss{}",
                                   "documents",
                                   "gathered{}",
                                   "fetched{}",
                                   "staged{}",
                                   "full-gradient{}",
                                   "unit{}/parameter",
                                   "unit{}/gradient",
                                   "passing-gradient{}",
                                   "unit{}/beside-gradient",
                                   "unit{}/optimizer",
                                   "unit{}/beside-optimizer",
                                   "unit{}/host-gradient",
                                   "unit{}/host-parameter",
                                   "unit{}/master",
                                   "staged-state{}",
                                   "unit{}/outer",
                                   "outer-differences",
                                   "gathered-tied",
                                   "full-gradient-tied",
                                   "gradient-norm",
                                   "gradient-norm/bins",
                                   "gradient-norm/expert-bins",
                                   "gradient-norm/received",
                                   "gradient-norm/host",
                                   "trust-ratio",
                                   "trust-ratio/bins"};
static_assert(kHeldNames.size() == kHeldKinds);

}  // namespace

StageParameters::StageParameters(Emitter& e, const Model& m, const Communication& over, const StageEnds& ends,
                                 std::vector<Chunk>& chunks, std::int32_t tied)
    : e_(e), model_(m), ends_(ends), groups_(over) {
  make_units(chunks);
  offload_units(e.plan.offloaded_optimizer(), sizes_);
  if (ends.tied_here(m)) tied_here_ = unit_of(tied);
  if (ends.tied_across(m)) tied_across_ = unit_of(tied);
  hold();
  assign_places(chunks);
}

// Consecutive pieces of a chunk share a unit until it holds a bucket of gradients; ZeRO-3 gathers piece by
// piece, so there each is its own.
void StageParameters::make_units(std::vector<Chunk>& chunks) {
  const std::int64_t bucket = bucket_elements(e_.training, e_.stack);
  std::vector<Unit>& units = e_.rank.units;
  // The last chunk's gradients are complete first, so its units are updated first.
  for (std::size_t last = chunks.size(); last-- > 0;) {
    Chunk& c = chunks[last];
    UnitPacker packer(bucket);
    const auto base = static_cast<std::int32_t>(units.size());
    std::vector<Piece*> closing;  // by unit, the piece that joined it last
    for (std::size_t i = c.pieces.size(); i-- > 0;) {
      Piece& piece = c.pieces[i];
      std::int64_t elements = 0;
      for (std::int32_t p = piece.first_parameter; p < piece.end_parameter; ++p)
        elements += e_.rank.parameters[static_cast<std::size_t>(p)].stored_elements();
      const std::int32_t in_chunk =
          packer.add(elements, e_.plan.zero == 3 || piece.alone, kind_of_unit(piece));
      piece.unit = base + in_chunk;
      if (in_chunk == std::ssize(closing)) {
        closing.push_back(&piece);
        units.push_back({.of_experts = piece.of_experts, .kept = piece.kept, .muon = piece.muon});
        sizes_.push_back({.of_experts = piece.of_experts, .kept = piece.kept, .muon = piece.muon});
      }
      closing[static_cast<std::size_t>(in_chunk)] = &piece;
      Unit& unit = mutable_unit(piece.unit);
      for (std::int32_t p = piece.first_parameter; p < piece.end_parameter; ++p) {
        Parameter& parameter = e_.rank.parameters[static_cast<std::size_t>(p)];
        parameter.unit = piece.unit;
        parameter.offset = unit.elements;
        unit.elements += parameter.stored_elements();
      }
      UnitSize& size = sizes_[static_cast<std::size_t>(piece.unit)];
      if (piece.muon) add_matrices(piece, size);
      size.elements += elements;
      size.tensors += piece.end_parameter - piece.first_parameter;
    }
    for (Piece* piece : closing) piece->closes_unit = true;
  }
}

void StageParameters::add_matrices(const Piece& piece, UnitSize& size) const {
  const WeightRanks ranks(e_.plan);
  for (std::int32_t i = piece.first_parameter; i < piece.end_parameter; ++i) {
    const Parameter& p = e_.rank.parameters[static_cast<std::size_t>(i)];
    const std::vector<Matrices> more =
        matrices_of(p, p.of_experts ? ranks.etp : ranks.tp, p.of_experts ? ranks.ep : 1, p.offset,
                    e_.training.muon.value().tp_mode);
    size.matrices.insert(size.matrices.end(), more.begin(), more.end());
  }
}

void StageParameters::hold() {
  const SampleSizes sample(model_, e_.training);
  for_each_held(model_, sample, e_.plan, e_.training, e_.stack, sizes_, ends_, [&](const HeldBuffer& b) {
    const auto kind = static_cast<std::size_t>(b.what);
    const bool first =
        b.number == 0 && (b.what == Held::kInput || b.what == Held::kTargets || b.what == Held::kLoss);
    const std::string number = first ? std::string() : std::to_string(b.number);
    const std::int32_t id =
        e_.static_buffer(fmt::format(fmt::runtime(kHeldNames[kind]), number), b.cls, b.elements, b.type);
    Buffer& made = e_.rank.buffers[static_cast<std::size_t>(id)];
    made.instances = static_cast<std::int32_t>(b.instances);
    made.space = b.space;
    std::vector<std::int32_t>& of = held_[kind];
    of.resize(std::max(of.size(), static_cast<std::size_t>(b.number) + 1), -1);
    of[static_cast<std::size_t>(b.number)] = id;
  });
  const auto only = [&](Held what) {
    return held_[static_cast<std::size_t>(what)].empty() ? -1 : buffer(what);
  };
  e_.rank.loss = only(Held::kLoss);
  for (std::int64_t k = 1; k <= model_.mtp_layers && e_.rank.loss >= 0; ++k)
    e_.rank.mtp_losses.push_back(buffer(Held::kLoss, static_cast<std::size_t>(k)));
  e_.rank.gradient_norm = only(Held::kGradientNorm);
  for (Feed f : sample.feeds) {
    if (!ends_.takes(f)) continue;
    f.buffer = buffer(held_of(f), static_cast<std::size_t>(f.number));
    e_.rank.feeds.push_back(f);
  }
  std::size_t staged = 0;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    Unit& u = e_.rank.units[i];
    const UnitShare share(e_.plan, u.elements, u.of_experts);
    u.padded = share.padded;
    u.shard = share.shard;
    u.parameter_buffer = buffer(Held::kParameter, i);
    if (e_.training.serves() || u.kept != Kept::kTrained) continue;
    if (!updates_in_backward(static_cast<std::int32_t>(i))) u.gradient_buffer = buffer(Held::kGradient, i);
    u.optimizer_buffer = buffer(Held::kOptimizer, i);
    if (e_.plan.islands > 1) u.outer_buffer = buffer(Held::kOuter, i);
    if (!sizes_[i].on_host) continue;
    u.host_gradient = buffer(Held::kHostGradient, i);
    u.host_parameter = e_.plan.offloads_parameters() ? u.parameter_buffer : buffer(Held::kHostParameter, i);
    if (const auto& masters = held_[static_cast<std::size_t>(Held::kDeviceMaster)]; !masters.empty())
      u.device_master = buffer(Held::kDeviceMaster, i);
    if (!e_.plan.optimizer_on_drives()) continue;
    // Units take both places in turn; without overlap they wait for each other at the first.
    const std::size_t place = e_.plan.offload->overlap ? staged++ % 2 : 0;
    u.staged_state = buffer(Held::kStagedState, place);
    if (e_.plan.parameters_on_drives())
      u.staged_parameter = buffer(Held::kStaged, 2 * kind_of_unit(u) + place);
  }
}

// The two places of whole gradients are taken in turn by the units of a chunk, those of whole parameters as
// blocks need them.
void StageParameters::assign_places(const std::vector<Chunk>& chunks) {
  if (e_.plan.zero == 3) {
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      Unit& u = e_.rank.units[i];
      u.gathered_buffer = buffer(Held::kGathered, e_.plan.reshards() ? 2 * kind_of_unit(u) : i);
    }
  }
  const auto take_turns = [&](Held what, std::int32_t Unit::*at) {
    for (const Chunk& c : chunks) {
      std::array<std::size_t, kUnitKinds> units{};  // so far
      for (auto p = c.pieces.rbegin(); p != c.pieces.rend(); ++p) {
        Unit& u = mutable_unit(p->unit);
        if (u.*at >= 0 || u.kept != Kept::kTrained) continue;
        const std::size_t kind = kind_of_unit(*p);
        u.*at = buffer(what, 2 * kind + units[kind]++ % 2);
      }
    }
  };
  if (e_.plan.update_in_backward) take_turns(Held::kPassingGradient, &Unit::gradient_buffer);
  if (e_.plan.zero >= 2) {
    take_turns(Held::kWhole, &Unit::full_gradient);
    if (tied_here_ >= 0 && trains(tied_here_))
      mutable_unit(tied_here_).full_gradient = buffer(Held::kTiedWhole);
  }
  if (e_.plan.zero == 3 && e_.plan.reshards() && tied_here_ >= 0)
    mutable_unit(tied_here_).gathered_buffer = buffer(Held::kTiedGathered);
}

UnitWork StageParameters::work(std::int32_t i) const {
  return UnitWork(e_.plan, e_.training, groups_, sizes_[static_cast<std::size_t>(i)], i);
}

void StageParameters::begin(SegmentKind kind) {
  places_ = {};
  next_fetched_ = {};
  in_own_place_.assign(sizes_.size(), !e_.plan.reshards() && kind != SegmentKind::kForward);
}

void StageParameters::need(const ChunkBlock& b) {
  if (e_.plan.zero < 3) return;
  for (const std::int32_t parameter : b.block.parameters) need(unit_of(parameter));
}

// A segment's gathers take the two places in turn from the first, so that the next gather runs beside the
// block in use, and a segment with an even number of them leaves the first place to the next segment's.
void StageParameters::need(std::int32_t i) {
  Unit& u = mutable_unit(i);
  if (i == tied_here_ || !e_.plan.reshards()) {
    if (in_own_place_[static_cast<std::size_t>(i)]) return;
    in_own_place_[static_cast<std::size_t>(i)] = true;
  } else {
    const std::size_t kind = kind_of_unit(u);
    Places& places = places_[kind];
    if (std::find(places.unit.begin(), places.unit.end(), i) != places.unit.end()) return;
    places.unit[places.next] = i;
    u.gathered_buffer = buffer(Held::kGathered, 2 * kind + places.next);
    places.next = 1 - places.next;
  }
  const auto size = static_cast<std::int64_t>(bytes_of(stored_type(e_.training, u.kept)));
  Ref shard{u.parameter_buffer};
  if (e_.plan.offloads_parameters()) {
    const std::size_t kind = kind_of_unit(u);
    std::size_t& next = next_fetched_[kind];
    shard = {buffer(Held::kFetched, 2 * kind + next)};
    Ref in_host{u.parameter_buffer};
    // The group is whose shard it is.
    const GroupIndex of = groups_.of(u.of_experts).shard;
    if (e_.plan.parameters_on_drives()) {
      in_host = {buffer(Held::kStaged, 2 * kind + next)};
      e_.copy({u.shard, size, ops::CopyWay::kFromDrives}, fmt::format("unit{}/from-nvme", i),
              {u.parameter_buffer}, in_host)
          .group = of;
    }
    next = 1 - next;
    e_.copy({u.shard, size, ops::CopyWay::kFromHost}, fmt::format("unit{}/from-host", i), in_host, shard)
        .group = of;
  }
  e_.collective({CollectiveKind::kAllGather, u.padded}, fmt::format("unit{}/all-gather", i),
                groups_.of(u.of_experts).shard, size, {shard}, {{u.gathered_buffer}});
}

// Gradients of what tensor ranks hold alike are partial sums where each of them saw a share of the values.
void StageParameters::complete_partial(const Piece& piece, bool last) {
  if (!last && e_.plan.zero < 2) return;
  std::int64_t elements = 0;
  std::int32_t first = -1;
  for (std::int32_t p = piece.first_parameter; p < piece.end_parameter; ++p) {
    const Parameter& parameter = e_.rank.parameters[static_cast<std::size_t>(p)];
    if (!parameter.partial_over_tp) continue;
    if (first < 0) first = p;
    elements += parameter.local_elements();
  }
  if (first < 0) return;
  const std::string name = e_.rank.parameters[static_cast<std::size_t>(first)].name + "/grad/all-reduce";
  const Ref at = e_.gradient(first);
  e_.collective({CollectiveKind::kAllReduce, elements}, name, groups_.of(false).parts.front(),
                bytes_per_parameter(e_.training.precision).gradient, {at}, {at});
}

void StageParameters::reduce_to_shard(std::int32_t i, const char* suffix) {
  const Unit& u = unit(i);
  e_.collective({CollectiveKind::kReduceScatter, u.padded}, fmt::format("unit{}/reduce-scatter{}", i, suffix),
                groups_.of(u.of_experts).shard, bytes_per_parameter(e_.training.precision).gradient,
                {{u.full_gradient}}, {{u.gradient_buffer}})
      .accumulate = true;
}

void StageParameters::reduce(std::int32_t i) {
  const Unit& u = unit(i);
  const Ref own = gradient_shard(u);
  for (const UnitExchange& x : work(i).reductions) {
    const Ref from = x.op.collective == CollectiveKind::kReduceScatter ? Ref{u.gradient_buffer} : own;
    e_.collective(x.op, fmt::format("unit{}{}", i, x.name), x.group, x.element_bytes, {from}, {own});
  }
}

void StageParameters::synchronise(const Chunk& c, const ChunkBlock& b, bool last) {
  for (std::int32_t i = b.end_piece; i-- > b.first_piece;) {
    const Piece& piece = c.pieces[static_cast<std::size_t>(i)];
    if (piece.kept != Kept::kTrained) continue;
    complete_partial(piece, last);
    if (!piece.closes_unit) continue;
    if (e_.plan.zero >= 2) reduce_to_shard(piece.unit);
    if (last && e_.stack.overlap_grad_reduce) reduce(piece.unit);
    if (updates_in_backward(piece.unit)) update(piece.unit, {});
  }
}

std::vector<Ref> StageParameters::reads_of_update(std::int32_t i, const std::vector<Ref>& factors) const {
  const Unit& u = unit(i);
  std::vector<Ref> reads{gradient_shard(u), parameter_shard(u), {u.optimizer_buffer}};
  reads.insert(reads.end(), factors.begin(), factors.end());
  return reads;
}

void StageParameters::update(std::int32_t i, const std::vector<Ref>& factors) {
  const Unit& u = unit(i);
  e_.add(work(i).optimizer, fmt::format("unit{}/optimizer", i), reads_of_update(i, factors),
         {parameter_shard(u), {u.optimizer_buffer}});
  finish_update(i);
}

void StageParameters::finish_update(std::int32_t i) {
  const Unit& u = unit(i);
  const UnitWork of = work(i);
  e_.add(of.clear, fmt::format("unit{}/zero-grad", i), {}, {{u.gradient_buffer}});
  for (const UnitExchange& x : of.gathers)
    e_.collective(x.op, fmt::format("unit{}{}", i, x.name), x.group, x.element_bytes, {parameter_shard(u)},
                  {{u.parameter_buffer}});
}

}  // namespace orrery::program
