// SPDX-License-Identifier: Apache-2.0
//
// Any bytes are a scenario or an InputError. What it names is loaded, its plan is checked and estimated and,
// where it is small, simulated.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "planner/evaluate.h"
#include "sim/estimate/estimate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  static const DataFolders folders{std::filesystem::path(ORRERY_ROOT)};
  const Cursor at{"fuzz.json", ""};
  try {
    const Problem p = resolve(
        read_scenario(parse_json({reinterpret_cast<const char*>(data), size}, at.file), at), at, folders);
    if (!p.scenario.plan) return 0;
    const Plan& plan = *p.scenario.plan;
    program::check_plan(p.scenario.model, plan, p.scenario.training, at.child("plan"));
    check_ranks(plan, p.cluster, at.child("plan"));
    constexpr std::int64_t kQuickDevices = 1024, kQuickLayers = 64, kQuickRuns = 256;
    const std::int64_t layers = p.scenario.model.layers;
    if (p.cluster.devices() > kQuickDevices || layers > kQuickLayers) return 0;
    const sim::Topology topology(p.cluster);
    (void)sim::Estimator(p, topology).estimate(plan);
    if (layers * plan.micro_batches <= kQuickRuns) (void)planner::evaluate(p, topology, plan);
  } catch (const Error&) {
  }
  return 0;
}
