// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/causes.h"

#include <algorithm>
#include <cmath>

#include "sim/analysis/statistics.h"

namespace orrery::sim {
namespace {

void add(std::vector<Cause>& to, const Lanes& lanes, double Cause::*which) {
  const Part all = whole(lanes, lanes.begin(), lanes.end());
  if (all.ranks.empty()) return;
  const Statistics sums = statistics(lanes, all);
  const auto put = [&](const std::string& name, Time time) {
    auto at = std::find_if(to.begin(), to.end(), [&](const Cause& c) { return c.name == name; });
    if (at == to.end()) at = to.insert(to.end(), Cause{.name = name});
    (*at).*which += seconds(time) / static_cast<double>(all.ranks.size());
  };
  put("compute", sums.compute);
  for (const Idle& idle : sums.idle) put(idle.cause, idle.time);
}

}  // namespace

std::vector<Cause> causes(const Lanes& first, const Lanes& second) {
  std::vector<Cause> out;
  add(out, first, &Cause::first_s);
  add(out, second, &Cause::second_s);
  std::stable_sort(out.begin(), out.end(), [](const Cause& a, const Cause& b) {
    return std::abs(a.difference()) > std::abs(b.difference());
  });
  return out;
}

}  // namespace orrery::sim
