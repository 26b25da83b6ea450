// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/compare.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "sim/analysis/statistics.h"
#include "sim/analysis/twins.h"

namespace orrery::sim {
namespace {

using Key = std::tuple<std::string_view, std::int32_t, std::int32_t, std::string_view, std::int32_t>;

// Slices of a process are told from those of another where both sides have the same processes, and of stages
// otherwise.
class Keys {
 public:
  Keys(const Timeline& t, bool by_process) : t_(t), stages_(t), by_process_(by_process) {}
  Key operator()(const Slice& s) const {
    return {t_.segments[static_cast<std::size_t>(s.segment)], s.chunk, s.micro_batch,
            t_.names[static_cast<std::size_t>(s.name)], by_process_ ? s.rank : stages_(s.rank)};
  }

 private:
  const Timeline& t_;
  Stages stages_;
  bool by_process_;
};

}  // namespace

Comparison compare(const Timeline& predicted, const Timeline& measured) {
  Comparison out;
  out.same_program = predicted.program_hash == measured.program_hash;
  out.predicted_step_s = seconds(predicted.length());
  out.measured_step_s = seconds(measured.length());
  const bool by_process = predicted.rank_labels == measured.rank_labels;
  const Keys key_of_predicted(predicted, by_process), key_of_measured(measured, by_process);
  std::map<Key, const Slice*> by_key;
  // Of several places of a stage, the first.
  for (const Slice& s : predicted.slices) by_key.try_emplace(key_of_predicted(s), &s);
  std::map<Key, bool> seen;
  std::map<std::string, OpComparison> ops;
  for (const Slice& s : measured.slices) {
    const auto found = by_key.find(key_of_measured(s));
    if (found == by_key.end()) {
      ++out.only_measured;
      continue;
    }
    ++out.matched;
    seen[found->first] = true;
    OpComparison& op = ops[std::string(without_layer(measured.names[static_cast<std::size_t>(s.name)]))];
    ++op.count;
    op.predicted_s += seconds(found->second->end - found->second->active);
    op.measured_s += seconds(s.end - s.active);
    if (const auto name = static_cast<std::size_t>(found->second->name); name < predicted.bounds.size())
      op.bound = predicted.bounds[name];
  }
  out.only_predicted = static_cast<std::int64_t>(by_key.size() - seen.size());
  for (auto& [name, op] : ops) {
    op.name = name;
    out.ops.push_back(op);
  }
  std::stable_sort(out.ops.begin(), out.ops.end(),
                   [](const auto& a, const auto& b) { return a.measured_s > b.measured_s; });
  for (const auto& [bound, name] : enum_names(Bound{})) {
    BoundComparison sum{.bound = bound};
    for (const OpComparison& op : out.ops) {
      if (op.bound != bound) continue;
      sum.predicted_s += op.predicted_s;
      sum.measured_s += op.measured_s;
    }
    if (sum.measured_s > 0 || sum.predicted_s > 0) out.bounds.push_back(sum);
  }
  return out;
}

}  // namespace orrery::sim
