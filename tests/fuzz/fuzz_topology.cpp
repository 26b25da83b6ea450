// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/scenario.h"
#include "sim/topology/survey.h"

// Any bytes are either a cluster, whose network can be built unless links have failed, or an InputError.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const Cursor at{"fuzz.json", ""};
  try {
    const auto cluster =
        read_fields<Cluster>(parse_json({reinterpret_cast<const char*>(data), size}, at.file), at);
    constexpr std::int64_t kQuick = 4096;
    if (cluster.devices() <= kQuick) (void)sim::survey(sim::Topology(cluster));
  } catch (const Error&) {
  }
  return 0;
}
