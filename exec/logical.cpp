// SPDX-License-Identifier: Apache-2.0
#include "exec/logical.h"

#include <fmt/format.h>

#include <cmath>

namespace orrery::exec {

// splitmix64's finaliser.
std::uint64_t hash_mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

InitialValues::InitialValues(std::uint64_t seed, const program::Parameter& p)
    : init_(p.init),
      elements_((p.rows - p.padding) * p.cols),
      bound_(1 / std::sqrt(static_cast<double>(p.cols))),
      key_(seed) {
  for (const char c : p.name) key_ = hash_mix(key_ ^ static_cast<unsigned char>(c));
}

float InitialValues::at(std::int64_t logical_index) const {
  if (logical_index >= elements_) return 0.0F;
  if (init_ == program::Parameter::Init::kOnes) return 1.0F;
  if (init_ == program::Parameter::Init::kZeros) return 0.0F;
  const std::uint64_t h = hash_mix(key_ ^ static_cast<std::uint64_t>(logical_index));
  if (init_ == program::Parameter::Init::kFanIn)  // of 24 bits
    return static_cast<float>((static_cast<double>(h >> 40) / 8388608.0 - 1.0) * bound_);
  // Irwin-Hall of four 16-bit uniforms: normal enough, and equal on every machine. Deviation 0.02.
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>(h >> (16 * i) & 0xffff) / 65536.0;
  return static_cast<float>((sum - 2.0) * std::sqrt(3.0) * 0.02);
}

WeightShare weight_share(const program::Program& program, std::int64_t rank, bool of_experts) {
  const Mesh& mesh = program.mesh;
  const auto at = [&](const char* name) { return mesh.coordinate(rank, name); };
  // Without ZeRO all ranks have whole copies, those that share a sequence too.
  const bool sharded = program.plan.zero > 0;
  if (!of_experts)
    return {
        1, 0, program.plan.tp, at("tp"), sharded ? at("shard") : 0, sharded ? at("replica") : at("copies")};
  return {program.plan.ep, at("ep"), program.plan.expert_tp(), at("etp"), at("eshard"), at("ereplica")};
}

std::string name_on_island(std::string_view tensor, std::int64_t island) {
  return island == 0 ? std::string(tensor) : fmt::format("island{}/{}", island, tensor);
}

std::int64_t island_of(const program::Program& program, std::int64_t rank) {
  return program.mesh.coordinate(rank, "island");
}

LogicalTensors assemble(const program::Program& program, const UnitShards& shards) {
  LogicalTensors out;
  for (std::int64_t rank = 0; rank < program.mesh.ranks(); ++rank) {
    if (island_of(program, rank) > 0) continue;
    const program::RankClass& c = program.classes[static_cast<std::size_t>(program.stage_of(rank))];
    for (std::size_t u = 0; u < c.units.size(); ++u) {
      const program::Unit& unit = c.units[u];
      if (unit.kept != program::Kept::kTrained) continue;
      const WeightShare share = weight_share(program, rank, unit.of_experts);
      if (share.shard > 0 || share.copy > 0) continue;
      std::vector<float> whole;  // the unit on this rank, from the first shard group
      const AxisSet along = program.mesh[unit.of_experts ? "eshard" : "shard"];
      for (std::int64_t s = 0; s * unit.shard < unit.padded; ++s) {
        const auto& shard = shards[static_cast<std::size_t>(program.mesh.moved(rank, along, s))][u];
        whole.insert(whole.end(), shard.begin(), shard.end());
      }
      for (const program::Parameter& p : c.parameters) {
        if (p.unit != static_cast<std::int32_t>(u)) continue;
        auto& tensor = out[p.name];
        tensor.resize(static_cast<std::size_t>(p.rows * p.cols));
        for_each_element(p, share, [&](std::int64_t local, std::int64_t logical) {
          tensor[static_cast<std::size_t>(logical)] = whole[static_cast<std::size_t>(p.offset + local)];
        });
      }
    }
  }
  return out;
}

}  // namespace orrery::exec
