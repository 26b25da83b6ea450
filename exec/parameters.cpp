// SPDX-License-Identifier: Apache-2.0
#include "exec/parameters.h"

#include "kernels/cpu/fast.h"

namespace orrery::exec {

std::span<const float> own_shard(const Placement& place, std::size_t index,
                                 const std::vector<float>& values) {
  const program::Unit& unit = place.rank_class.units[index];
  const std::int64_t n = unit.shard, shard = place.share(unit.of_experts).shard;
  return {values.data() + shard * n, static_cast<std::size_t>(n)};
}

void write_unit(Executor& executor, const Placement& place, std::size_t index,
                const std::vector<float>& values) {
  const Training& training = place.program.training;
  const program::Unit& unit = place.rank_class.units[index];
  const std::span<const float> own = own_shard(place, index, values);
  const std::span<const float> kept = unit.gathered_buffer < 0 ? values : own;
  const DType type = training.parameter_type();
  const std::int64_t to = place.offset({unit.parameter_buffer}, 0);
  if (is_half(type)) {
    std::vector<std::uint16_t> narrow(kept.size());
    kernels::narrow(type, static_cast<std::int64_t>(kept.size()), kept.data(), narrow.data());
    executor.write(to, std::as_bytes(std::span(narrow)));
  } else {
    executor.write(to, std::as_bytes(kept));
  }
  if (unit.optimizer_buffer >= 0 && bytes_per_parameter(training.precision).master > 0)
    executor.write(place.offset({unit.optimizer_buffer}, 0), std::as_bytes(own));
}

void write_initial(Executor& executor, const Placement& place, std::uint64_t seed,
                   const LogicalTensors* tensors) {
  for (std::size_t u = 0; u < place.rank_class.units.size(); ++u) {
    write_unit(executor, place, u, unit_values(place, u, [&](const program::Parameter& p) {
                 const auto known =
                     tensors == nullptr ? LogicalTensors::const_iterator() : tensors->find(p.name);
                 const std::vector<float>* const tensor =
                     tensors == nullptr || known == tensors->end() ? nullptr : &known->second;
                 return [tensor, initial = InitialValues(seed, p)](std::int64_t logical) {
                   return tensor == nullptr ? initial.at(logical) : element_of(*tensor, logical);
                 };
               }));
  }
}

void write_trained(Executor& executor, const Placement& place, const LogicalTensors& tensors) {
  for (std::size_t u = 0; u < place.rank_class.units.size(); ++u) {
    if (!is_trained(place, u)) continue;
    write_unit(executor, place, u, unit_values(place, u, [&](const program::Parameter& p) {
                 return [&tensor = tensors.at(p.name)](std::int64_t logical) {
                   return element_of(tensor, logical);
                 };
               }));
  }
}

}  // namespace orrery::exec
