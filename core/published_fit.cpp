// SPDX-License-Identifier: Apache-2.0
#include "core/published_fit.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <stdexcept>

namespace orrery {
namespace {

const char* what_is_known(Knowledge knowledge) {
  switch (knowledge) {
    case Knowledge::kBoth:
      return "stack and GPU type were known from others";
    case Knowledge::kOne:
      return "stack or GPU type was known from others";
    case Knowledge::kNeither:
      return "neither stack nor GPU type was known from others";
  }
  throw std::logic_error("unknown knowledge");
}

}  // namespace

std::string words_of(const MeasuredRange& r) {
  if (r.runs == 0) return fmt::format("its stack says {:.2f} to {:.2f} of the prediction", r.low, r.high);
  return fmt::format("80 % of {} published runs took {:.2f} to {:.2f} of the prediction where {}", r.runs,
                     r.low, r.high, what_is_known(r.knowledge));
}

double MemorySpread::fits(double needs, double has) const {
  if (deviation == 0) return needs <= has ? 1 : 0;
  return std::erfc((std::log(needs / has) + mean) / deviation / std::numbers::sqrt2) / 2;
}

}  // namespace orrery
