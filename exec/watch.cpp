// SPDX-License-Identifier: Apache-2.0
#include "exec/watch.h"

#include <fmt/format.h>

#include <algorithm>

namespace orrery::exec {
namespace {

constexpr double kSlowRank = 1.25;    // times the median of its stage
constexpr double kSlowStart = 2;      // times the median step
constexpr double kLateData = 0.1;     // share of a run spent waiting for data
constexpr std::size_t kFewSteps = 4;  // that tell a start from what follows

// The lower of two in the middle.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Watch::Watch(const program::Program& program, std::int64_t sequences, std::int64_t steps, bool crowded)
    : mesh_(program.mesh), sequences_(sequences), batch_(program.training.global_batch), crowded_(crowded) {
  const auto ranks = static_cast<std::size_t>(mesh_.ranks());
  sums_.resize(ranks);
  now_.resize(ranks);
  shared_.resize(ranks);
  differs_.resize(ranks);
  seconds_.reserve(static_cast<std::size_t>(std::max<std::int64_t>(0, steps)));
}

void Watch::see(std::int64_t rank, const Seen& seen) {
  const auto r = static_cast<std::size_t>(rank);
  sums_[r].computing_s += seen.computing_s;
  sums_[r].waited_for_data_s += seen.waited_for_data_s;
  now_[r] = seen.batch;
}

void Watch::end_step(double seconds) {
  seconds_.push_back(seconds);
  for (std::int64_t r = 0; r < mesh_.ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (now_[at] == 0) continue;
    const auto batch = [&](AxisSet axes, std::int64_t coordinate) {
      return now_[static_cast<std::size_t>(mesh_.moved(r, axes, coordinate))];
    };
    bool shared = false;
    const AxisSet dp = mesh_["dp"];
    for (std::int64_t i = 0; i < mesh_.coordinate(r, dp); ++i) shared |= batch(dp, i) == now_[at];
    shared_[at] += shared;
    differs_[at] += batch(mesh_["tp"], 0) != now_[at] || batch(mesh_["cp"], 0) != now_[at];
  }
}

std::vector<std::string> Watch::alerts() const {
  std::vector<std::string> out;
  if (sequences_ < batch_) {
    out.push_back(
        fmt::format("uneven data: there are {} sequences, and a step takes {}: some count twice in it",
                    sequences_, batch_));
  }
  same_data(out);
  late_data(out);
  // A rank's first step also takes what it does once.
  if (!crowded_ && seconds_.size() >= kFewSteps) slow_ranks(out);
  slow_start(out);
  return out;
}

void Watch::same_data(std::vector<std::string>& out) const {
  for (std::int64_t r = 0; r < mesh_.ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (shared_[at] > 0 && mesh_.coordinate(r, "tp") == 0) {
      out.push_back(
          fmt::format("equal seeds: in {} of {} steps rank {} (dp {}) trained on the very tokens of an "
                      "earlier replica",
                      shared_[at], seconds_.size(), r, mesh_.coordinate(r, "dp")));
    }
    if (differs_[at] > 0) {
      out.push_back(
          fmt::format("unequal seeds: in {} of {} steps rank {} loaded other tokens than rank {}, a "
                      "tensor rank of the same replica",
                      differs_[at], seconds_.size(), r, mesh_.moved(r, mesh_["tp"], 0)));
    }
  }
}

void Watch::late_data(std::vector<std::string>& out) const {
  double all = 0;
  for (const double s : seconds_) all += s;
  for (std::size_t r = 0; r < sums_.size(); ++r) {
    if (sums_[r].waited_for_data_s <= kLateData * all) continue;
    out.push_back(fmt::format("late data: rank {} waited {:.1f} % of the run for its batches", r,
                              100 * sums_[r].waited_for_data_s / all));
  }
}

void Watch::slow_ranks(std::vector<std::string>& out) const {
  for (std::int64_t stage = 0; stage < mesh_.size("pp"); ++stage) {
    std::vector<double> times;  // of ranks that do the same work
    for (std::int64_t r = 0; r < mesh_.ranks(); ++r) {
      if (mesh_.coordinate(r, "pp") == stage) times.push_back(sums_[static_cast<std::size_t>(r)].computing_s);
    }
    const double usual = median(times);
    for (std::int64_t r = 0; times.size() > 1 && r < mesh_.ranks(); ++r) {
      const double time = sums_[static_cast<std::size_t>(r)].computing_s;
      if (mesh_.coordinate(r, "pp") != stage || time <= kSlowRank * usual) continue;
      out.push_back(
          fmt::format("slow rank: rank {} computed {:.2f} times as long as the median rank of its stage", r,
                      time / usual));
    }
  }
}

void Watch::slow_start(std::vector<std::string>& out) const {
  if (seconds_.size() < kFewSteps) return;
  const double usual = median(seconds_);
  std::size_t slow = 0;
  while (slow < seconds_.size() && seconds_[slow] > kSlowStart * usual) ++slow;
  if (slow == 0) return;
  out.push_back(fmt::format("slow start: the first {} took {:.1f} times the median step of {:.3f} s",
                            slow == 1 ? "step" : fmt::format("{} steps", slow), seconds_[0] / usual, usual));
}

}  // namespace orrery::exec
