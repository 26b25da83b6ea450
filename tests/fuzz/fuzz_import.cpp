// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "sim/topology/import.h"
#include "sim/topology/network.h"

// The first byte chooses the format.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  if (size == 0) return 0;
  Cluster base;
  base.name = "fuzz";
  base.intra_bandwidth = base.nic_bandwidth = Bandwidth{1'000'000'000};
  try {
    const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
    const Cluster c = sim::import_topology(text, static_cast<sim::TopologyFormat>(data[0] % 3),
                                           Bandwidth{25'000'000'000}, base, "fuzz");
    if (c.devices() <= 4096) sim::Network{c};
  } catch (const InputError&) {
  }
  return 0;
}
