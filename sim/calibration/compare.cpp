// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/compare.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace orrery::sim {
namespace {

// "layer17/attn/qkv" and "unit3/optimizer" lose their number's prefix; the rest stays.
std::string without_layer(const std::string& name) {
  if (!name.starts_with("layer") && !name.starts_with("unit")) return name;
  const auto slash = name.find('/');
  return slash == std::string::npos ? name : name.substr(slash + 1);
}

using Key = std::tuple<std::string_view, std::int32_t, std::int32_t, std::string_view, std::int32_t>;

Key key(const Timeline& t, const Slice& s, std::int32_t rank) {
  return {t.segments[static_cast<std::size_t>(s.segment)], s.chunk, s.micro_batch,
          t.names[static_cast<std::size_t>(s.name)], rank};
}

// The engine's labels begin with "stage 3".
std::int32_t stage_of_place(const Timeline& predicted, std::int32_t place) {
  const auto at = static_cast<std::size_t>(place);
  constexpr std::string_view kStage = "stage ";
  if (at >= predicted.rank_labels.size() || !predicted.rank_labels[at].starts_with(kStage)) return place;
  return static_cast<std::int32_t>(
      std::strtol(predicted.rank_labels[at].c_str() + kStage.size(), nullptr, 10));
}

}  // namespace

std::vector<std::int32_t> stages_from_labels(const Timeline& measured) {
  std::vector<std::int32_t> out;
  for (const std::string& label : measured.rank_labels) {
    const auto at = label.find("pp ");
    out.push_back(at == std::string::npos
                      ? 0
                      : static_cast<std::int32_t>(std::strtol(label.c_str() + at + 3, nullptr, 10)));
  }
  return out;
}

Comparison compare(const Timeline& predicted, const Timeline& measured,
                   const std::vector<std::int32_t>& stage_of_rank) {
  Comparison out;
  out.same_program = predicted.program_hash == measured.program_hash;
  out.predicted_step_s = seconds(predicted.length());
  out.measured_step_s = seconds(measured.length());
  std::map<Key, const Slice*> by_key;
  // Of several places of a stage, the first.
  for (const Slice& s : predicted.slices)
    by_key.try_emplace(key(predicted, s, stage_of_place(predicted, s.rank)), &s);
  std::map<Key, bool> seen;
  std::map<std::string, OpComparison> ops;
  for (const Slice& s : measured.slices) {
    const auto r = static_cast<std::size_t>(s.rank);
    const std::int32_t stage = r < stage_of_rank.size() ? stage_of_rank[r] : s.rank;
    const auto found = by_key.find(key(measured, s, stage));
    if (found == by_key.end()) {
      ++out.only_measured;
      continue;
    }
    ++out.matched;
    seen[found->first] = true;
    OpComparison& op = ops[without_layer(measured.names[static_cast<std::size_t>(s.name)])];
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
