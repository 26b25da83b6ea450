// SPDX-License-Identifier: Apache-2.0
//
// `orrery reliability`: what its parts share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "planner/operate.h"

namespace orrery::cli {

using planner::Operated;

// One way to run and pay it.
struct Way {
  std::size_t question = 0;
  Payment payment = Payment::kOnDemand;
  sim::Answered answered;
};

struct ReliabilityReport {
  std::vector<Operated> questions;
  std::vector<Way> ways;     // those of a question side by side; its own payment first
  double deadline_days = 0;  // 0: none
  double confidence = 0.9;
  std::int64_t seed = 1;
  std::optional<planner::Advised> advised;  // of the first way
};

// Indices of ways: least mean days, least mean dollars, and the least mean dollars of those that end by the
// deadline with the confidence. Nothing where dollars are unknown, or none ends in time.
struct Choices {
  std::size_t fastest = 0;
  std::optional<std::size_t> cheapest, cheapest_in_time;
};
Choices choices(const ReliabilityReport& r);

// `orrery reliability` of files that `orrery run --life` wrote: each run's goodput beside what is predicted
// from its faults and what things took in the other runs.
bool is_life(const std::string& file);
void compare_lives(const App& app, const std::vector<std::string>& files);

Json reliability_json(const ReliabilityReport& r);
void print_reliability(const ReliabilityReport& r);

}  // namespace orrery::cli
