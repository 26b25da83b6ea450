// SPDX-License-Identifier: Apache-2.0
//
// Both forms of a timeline and traces of the PyTorch profiler, and the questions asked about whatever was
// read.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "sim/analysis/critical_path.h"
#include "sim/analysis/statistics.h"
#include "sim/analysis/twins.h"
#include "trace/load.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    Timeline t = text.starts_with("orrery.timeline") ? from_binary(text, "fuzz")
                                                     : trace::of_events(parse_json(text, "fuzz"), "fuzz");
    (void)from_binary(to_binary(t), "again");
    const sim::Lanes packed(packed_from_binary(to_binary(t), "again"));
    const sim::Lanes lanes(std::move(t));
    if (packed.size() != lanes.size() || packed.end() != lanes.end()) std::abort();
    std::vector<std::int32_t> ranks;
    for (const sim::Lane& l : lanes.all()) {
      if (ranks.empty() || ranks.back() != l.rank) ranks.push_back(l.rank);
    }
    (void)sim::statistics(lanes, {ranks, lanes.begin(), lanes.end()});
    (void)sim::critical_path(lanes, sim::Meetings(lanes));
    if (lanes.size() > 0) (void)sim::twin(lanes, 0, lanes);
  } catch (const Error&) {
  }
  return 0;
}
