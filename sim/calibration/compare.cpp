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

// NCCL makes an all-to-all of sends and receives, which is all that a kernel's name says of it.
bool tells_all_to_all(const Timeline& t) {
  return std::find(t.classes.begin(), t.classes.end(), OpClass::kAllToAll) != t.classes.end();
}

OpClass class_of(const Timeline& t, const Slice& s, bool all_to_all) {
  const auto name = static_cast<std::size_t>(s.name);
  const OpClass is = name < t.classes.size() ? t.classes[name] : OpClass::kUnknown;
  return is == OpClass::kAllToAll && !all_to_all ? OpClass::kSendReceive : is;
}

// Ranks that each process stands for.
std::vector<double> ranks_by_process(const Timeline& t) {
  std::vector<double> out(t.rank_labels.size(), t.process_of.empty() ? 1 : 0);
  for (const std::int32_t p : t.process_of) out[static_cast<std::size_t>(p)] += 1;
  return out;
}

using TimesByClass = std::map<OpClass, std::vector<std::pair<Time, double>>>;  // beginnings and seconds

// By process.
std::vector<TimesByClass> times_of(const Timeline& t, bool all_to_all) {
  std::vector<TimesByClass> out(t.rank_labels.size());
  for (const Slice& s : t.slices) {
    const double active = seconds(s.end - s.active);
    out[static_cast<std::size_t>(s.rank)][class_of(t, s, all_to_all)].emplace_back(s.start, active);
  }
  for (TimesByClass& process : out) {
    for (auto& [is, times] : process) std::sort(times.begin(), times.end());
  }
  return out;
}

std::map<OpClass, ClassTimes> sides(const Timeline& t, bool all_to_all, std::int64_t steps) {
  const std::vector<double> ranks = ranks_by_process(t);
  double all = 0;
  for (const double r : ranks) all += r;
  std::map<OpClass, ClassTimes> out;
  for (const Slice& s : t.slices) {
    const double share = ranks[static_cast<std::size_t>(s.rank)] / all / static_cast<double>(steps);
    ClassTimes& side = out[class_of(t, s, all_to_all)];
    side.count += share;
    side.active_s += share * seconds(s.end - s.active);
    side.waiting_s += share * seconds(s.active - s.start);
  }
  return out;
}

// The k-th of a step with the k-th, of the first processes that do such ops.
void match_in_order(const std::vector<TimesByClass>& predicted, const std::vector<TimesByClass>& measured,
                    std::int64_t steps, ClassComparison& c) {
  const auto first =
      [&](const std::vector<TimesByClass>& side) -> const std::vector<std::pair<Time, double>>* {
    for (const TimesByClass& process : side) {
      if (const auto at = process.find(c.is); at != process.end()) return &at->second;
    }
    return nullptr;
  };
  const auto *p = first(predicted), *m = first(measured);
  if (p == nullptr || m == nullptr || p->size() * static_cast<std::size_t>(steps) != m->size()) return;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < m->size(); ++i) {
    if ((*m)[i].second > 0) ratios.push_back((*p)[i % p->size()].second / (*m)[i].second);
  }
  if (ratios.empty()) return;
  std::sort(ratios.begin(), ratios.end());
  c.in_order = true;
  constexpr std::array kParts{0.1, 0.5, 0.9};
  for (std::size_t i = 0; i < kParts.size(); ++i)
    c.ratio[i] = ratios[static_cast<std::size_t>(kParts[i] * static_cast<double>(ratios.size() - 1))];
}

}  // namespace

ClassComparisons compare_classes(const Timeline& predicted, const Timeline& measured, std::int64_t steps) {
  ClassComparisons out;
  out.predicted_step_s = seconds(predicted.length());
  out.measured_step_s = seconds(measured.length()) / static_cast<double>(steps);
  const bool all_to_all = tells_all_to_all(predicted) && tells_all_to_all(measured);
  const auto left = sides(predicted, all_to_all, 1), right = sides(measured, all_to_all, steps);
  const auto left_times = times_of(predicted, all_to_all), right_times = times_of(measured, all_to_all);
  for (const auto& [is, name] : enum_names(OpClass{})) {
    const auto p = left.find(is), m = right.find(is);
    if (p == left.end() && m == right.end()) continue;
    ClassComparison& c = out.classes.emplace_back();
    c.is = is;
    if (p != left.end()) c.predicted = p->second;
    if (m != right.end()) c.measured = m->second;
    match_in_order(left_times, right_times, steps, c);
  }
  std::stable_sort(
      out.classes.begin(), out.classes.end(), [](const ClassComparison& a, const ClassComparison& b) {
        return a.measured.active_s + a.measured.waiting_s > b.measured.active_s + b.measured.waiting_s;
      });
  return out;
}

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
