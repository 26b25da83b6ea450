// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/compare.h"

#include <algorithm>
#include <charconv>
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

// A rank's stage as its label says: "stage 3 ..." of the engine, "rank 3 (tp 1, dp 0, pp 1)" of a run.
std::int32_t stage_of(const Timeline& t, std::int32_t rank) {
  const auto at = static_cast<std::size_t>(rank);
  const std::string_view label = at < t.rank_labels.size() ? t.rank_labels[at] : std::string_view();
  for (const std::string_view name : {"stage ", "pp "}) {
    const std::size_t found = label.find(name);
    std::int32_t stage = 0;
    if (found == std::string_view::npos) continue;
    const char* const begin = label.data() + found + name.size();
    if (std::from_chars(begin, label.data() + label.size(), stage).ec == std::errc()) return stage;
  }
  return rank;
}

Key key(const Timeline& t, const Slice& s) {
  return {t.segments[static_cast<std::size_t>(s.segment)], s.chunk, s.micro_batch,
          t.names[static_cast<std::size_t>(s.name)], stage_of(t, s.rank)};
}

}  // namespace

Comparison compare(const Timeline& predicted, const Timeline& measured) {
  Comparison out;
  out.same_program = predicted.program_hash == measured.program_hash;
  out.predicted_step_s = seconds(predicted.length());
  out.measured_step_s = seconds(measured.length());
  std::map<Key, const Slice*> by_key;
  // Of several places of a stage, the first.
  for (const Slice& s : predicted.slices) by_key.try_emplace(key(predicted, s), &s);
  std::map<Key, bool> seen;
  std::map<std::string, OpComparison> ops;
  for (const Slice& s : measured.slices) {
    const auto found = by_key.find(key(measured, s));
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
