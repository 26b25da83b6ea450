// SPDX-License-Identifier: Apache-2.0
#include "exec/parameters.h"

#include <cstring>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/moments.h"
#include "kernels/cpu/nf4.h"
#include "program/state/units.h"

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
  const BytesPerParameter per = bytes_per_parameter(training.precision);
  const std::int64_t to = place.offset({unit.parameter_buffer}, 0);
  const auto upper_parts = [](std::span<const float> masters, std::vector<std::int16_t>& beside) {
    std::vector<float> out(masters.size());
    beside.resize(masters.size());
    kernels::part_master(static_cast<std::int64_t>(out.size()), masters.data(), out.data(), beside.data());
    return out;
  };
  std::vector<std::int16_t> beside;
  if (is_half(type)) {
    std::vector<float> upper;
    if (per.splits_master()) upper = upper_parts(kept, beside);
    std::vector<std::uint16_t> narrow(kept.size());
    kernels::narrow(type, static_cast<std::int64_t>(kept.size()), upper.empty() ? kept.data() : upper.data(),
                    narrow.data());
    executor.write(to, std::as_bytes(std::span(narrow)));
  } else {
    executor.write(to, std::as_bytes(kept));
  }
  if (unit.on_host()) {
    const program::Ref shard{unit.parameter_buffer, 0, unit.gathered_buffer < 0 ? unit.shard : 0,
                             unit.of_experts};
    std::vector<std::byte> copy(static_cast<std::size_t>(unit.shard) * bytes_of(type));
    executor.read(place.offset(shard, 0), copy);
    executor.write(place.offset({unit.host_parameter}, 0), copy);
  }
  if (unit.optimizer_buffer >= 0 && per.master > 0) {
    const std::int64_t master = place.offset({unit.optimizer_buffer}, 0);
    if (per.splits_master()) {
      upper_parts(own, beside);
      executor.write(master, std::as_bytes(std::span(beside)));
    } else {
      executor.write(master, std::as_bytes(own));
    }
  }
  if (unit.outer_buffer >= 0) {
    std::vector<std::byte> none(static_cast<std::size_t>(unit.shard * program::outer_bytes(training)));
    std::memcpy(none.data(), own.data(), own.size_bytes());  // without momentum
    executor.write(place.offset({unit.outer_buffer}, 0), none);
  }
}

namespace {

// A unit whose tensors are stored in 4 bits, each by itself: ranks that share one quantise their parts.
template <class Value>
void write_quantised(Executor& executor, const Placement& place, std::size_t index, Value value) {
  const program::RankClass& rank = place.rank_class;
  const program::Unit& unit = rank.units[index];
  std::vector<std::byte> all(static_cast<std::size_t>(unit.padded));
  std::vector<float> tensor;
  for (const program::Parameter& p : rank.parameters) {
    if (p.unit != static_cast<std::int32_t>(index)) continue;
    tensor.resize(static_cast<std::size_t>(p.local_elements()));
    const auto of = value(p);
    for_each_element(p, place.share(p.of_experts), [&](std::int64_t local, std::int64_t logical) {
      tensor[static_cast<std::size_t>(local)] = of(logical);
    });
    kernels::quantise(p.nf4(), tensor.data(), all.data() + p.offset);
  }
  const std::span<const std::byte> whole(all);
  const auto shard = static_cast<std::size_t>(unit.shard);
  const auto of_shards = static_cast<std::size_t>(place.share(unit.of_experts).shard);
  executor.write(place.offset({unit.parameter_buffer}, 0),
                 unit.gathered_buffer < 0 ? whole : whole.subspan(of_shards * shard, shard));
}

}  // namespace

void write_initial(Executor& executor, const Placement& place, std::uint64_t seed,
                   const LogicalTensors* tensors) {
  const auto values = [&](const program::Parameter& p) {
    const std::vector<float>* tensor = nullptr;
    if (tensors != nullptr) {
      if (const auto known = tensors->find(p.name); known != tensors->end()) tensor = &known->second;
    }
    return [tensor, initial = InitialValues(seed, p)](std::int64_t logical) {
      return tensor == nullptr ? initial.at(logical) : element_of(*tensor, logical);
    };
  };
  for (std::size_t u = 0; u < place.rank_class.units.size(); ++u) {
    if (is_quantised(place.rank_class.units[u].kept))
      write_quantised(executor, place, u, values);
    else
      write_unit(executor, place, u, unit_values(place, u, values));
  }
}

const std::vector<float>& tensor_of(const Placement& place, const LogicalTensors& tensors,
                                    const std::string& name) {
  const auto own = tensors.find(name_on_island(name, island_of(place.program, place.rank)));
  return own != tensors.end() ? own->second : tensors.at(name);
}

void write_trained(Executor& executor, const Placement& place, const LogicalTensors& tensors) {
  for (std::size_t u = 0; u < place.rank_class.units.size(); ++u) {
    if (!is_trained(place, u)) continue;
    write_unit(executor, place, u, unit_values(place, u, [&](const program::Parameter& p) {
                 return [&tensor = tensor_of(place, tensors, p.name)](std::int64_t logical) {
                   return element_of(tensor, logical);
                 };
               }));
  }
}

}  // namespace orrery::exec
