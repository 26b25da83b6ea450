// SPDX-License-Identifier: Apache-2.0
//
// The constants that published training runs are fitted with: which profiles have them, between which bounds,
// and what is expected of them before any run is seen. Everything else in a profile comes from data sheets,
// kernel tables and the software's source (`origin` of each).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/scenario.h"

namespace orrery::sim {

struct Constant {
  std::string of;                            // a GPU type, or a stack
  std::string field;                         // of the profiles, as a JSON pointer
  std::vector<std::string> devices, stacks;  // profiles that have it
  double low = 0, high = 0;                  // physical bounds
  // What is expected, and how far from it is as unexpected as a run that is off by `kUsualError`.
  double expected = 0, spread = 0;
  std::string unit;          // "1", or "us"
  std::string name() const;  // "A100.attention.backward"
  // Whether a prediction of the problem depends on it.
  bool concerns(const Problem& problem) const;
};

// In the order in which tables list them: GPU types, then stacks.
const std::vector<Constant>& fitted_constants();

// The problem with these values of fitted_constants().
Problem with_constants(Problem problem, std::span<const double> values);

// Of a profile file as JSON: the value of the constant in it.
Json constant_json(const Constant& constant, double value);

// The GPU type that a device is fitted with; empty where no published run was on one.
std::string_view fitted_gpu(std::string_view device);
// Its profiles; none for an unknown type.
std::vector<std::string> devices_of_gpu(std::string_view gpu);

}  // namespace orrery::sim
