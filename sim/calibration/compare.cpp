// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/compare.h"

#include <algorithm>
#include <array>
#include <limits>
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

// How much each process of the prediction counts: as the ranks that it stands for, of all or of some.
std::vector<double> weights(const Timeline& t, const std::vector<std::int64_t>& ranks) {
  std::vector<double> out(t.rank_labels.size(), t.process_of.empty() && ranks.empty() ? 1 : 0);
  const auto count = [&](std::int64_t process) { out[static_cast<std::size_t>(process)] += 1; };
  if (ranks.empty()) {
    for (const std::int32_t p : t.process_of) count(p);
  } else {
    for (const std::int64_t r : ranks)
      count(t.process_of.empty() ? r : t.process_of[static_cast<std::size_t>(r)]);
  }
  return out;
}

// Whether all are ranks of the prediction.
bool are_of(const std::vector<std::int64_t>& ranks, const Timeline& predicted) {
  const auto all = static_cast<std::int64_t>(predicted.process_of.empty() ? predicted.rank_labels.size()
                                                                          : predicted.process_of.size());
  return !ranks.empty() &&
         std::all_of(ranks.begin(), ranks.end(), [&](std::int64_t r) { return r >= 0 && r < all; });
}

// Of a rank and a step.
std::map<OpClass, ClassTimes> times_of(const Timeline& t, const std::vector<double>& weights, bool all_to_all,
                                       std::int64_t steps) {
  double all = 0;
  for (const double w : weights) all += w;
  std::map<OpClass, ClassTimes> out;
  for (const Slice& s : t.slices) {
    const double share = weights[static_cast<std::size_t>(s.rank)] / all / static_cast<double>(steps);
    if (share == 0) continue;
    ClassTimes& times = out[class_of(t, s, all_to_all)];
    times.count += share;
    times.active_s += share * seconds(s.end - s.active);
    times.waiting_s += share * seconds(s.active - s.start);
  }
  return out;
}

// What each op of a class took on one process, in the order of their beginnings.
std::map<OpClass, std::vector<double>> in_order(const Timeline& t, std::int32_t process, bool all_to_all) {
  std::vector<const Slice*> slices;
  for (const Slice& s : t.slices) {
    if (s.rank == process) slices.push_back(&s);
  }
  std::stable_sort(slices.begin(), slices.end(),
                   [](const Slice* a, const Slice* b) { return a->start < b->start; });
  std::map<OpClass, std::vector<double>> out;
  for (const Slice* s : slices) out[class_of(t, *s, all_to_all)].push_back(seconds(s->end - s->active));
  return out;
}

void match_in_order(const std::vector<double>& predicted, const std::vector<double>& measured,
                    std::int64_t steps, ClassComparison& c) {
  if (predicted.empty() || predicted.size() * static_cast<std::size_t>(steps) != measured.size()) return;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    if (measured[i] > 0) ratios.push_back(predicted[i % predicted.size()] / measured[i]);
  }
  if (ratios.empty()) return;
  std::sort(ratios.begin(), ratios.end());
  c.in_order = true;
  constexpr std::array kParts{0.1, 0.5, 0.9};
  for (std::size_t i = 0; i < kParts.size(); ++i)
    c.ratio[i] = ratios[static_cast<std::size_t>(kParts[i] * static_cast<double>(ratios.size() - 1))];
}

// From a process's first beginning to its last end, the median over processes, whose clocks may differ.
double length_of(const Timeline& t) {
  struct Span {
    Time from{std::numeric_limits<std::int64_t>::max()}, to{0};
  };
  std::map<std::int32_t, Span> spans;
  for (const Slice& s : t.slices) {
    Span& span = spans[s.rank];
    span.from = std::min(span.from, s.start);
    span.to = std::max(span.to, s.end);
  }
  std::vector<double> lengths;
  for (const auto& [process, span] : spans) lengths.push_back(seconds(span.to - span.from));
  if (lengths.empty()) return 0;
  const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::nth_element(lengths.begin(), middle, lengths.end());
  return *middle;
}

}  // namespace

ClassComparisons compare_classes(const Timeline& predicted, const Timeline& measured, std::int64_t steps,
                                 const std::vector<std::int64_t>& ranks) {
  ClassComparisons out;
  out.predicted_step_s = seconds(predicted.length());
  out.measured_step_s = length_of(measured) / static_cast<double>(steps);
  out.by_rank = are_of(ranks, predicted);
  const bool all_to_all = tells_all_to_all(predicted) && tells_all_to_all(measured);
  const std::vector<double> of_predicted =
      weights(predicted, out.by_rank ? ranks : std::vector<std::int64_t>{});
  const auto left = times_of(predicted, of_predicted, all_to_all, 1);
  const auto right = times_of(measured, weights(measured, {}), all_to_all, steps);
  // The first measured process, and the first that it is compared with.
  const auto counterpart =
      std::find_if(of_predicted.begin(), of_predicted.end(), [](double w) { return w > 0; });
  auto left_ops =
      in_order(predicted, static_cast<std::int32_t>(counterpart - of_predicted.begin()), all_to_all);
  auto right_ops = in_order(measured, 0, all_to_all);
  for (const auto& [is, name] : enum_names(OpClass{})) {
    const auto p = left.find(is), m = right.find(is);
    if (p == left.end() && m == right.end()) continue;
    ClassComparison& c = out.classes.emplace_back();
    c.is = is;
    if (p != left.end()) c.predicted = p->second;
    if (m != right.end()) c.measured = m->second;
    match_in_order(left_ops[is], right_ops[is], steps, c);
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
