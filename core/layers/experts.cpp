// SPDX-License-Identifier: Apache-2.0
#include "core/layers/experts.h"

#include <algorithm>
#include <cmath>

namespace orrery {

void ExpertsLayer::resolve(std::int64_t hidden) {
  if (ffn_hidden == 0) ffn_hidden = 4 * hidden;
}

void ExpertsLayer::check(std::int64_t hidden, const FieldPlace& place) const {
  if (experts % groups != 0) {
    place("groups").fail(fmt::format("{} groups do not divide {} experts", groups, experts),
                         "allowed: a divisor of the number of experts");
  }
  if (top_groups > groups)
    place("top_groups").fail(fmt::format("a token cannot choose from {} of {} groups", top_groups, groups));
  if (top_k > experts / groups * top_groups) {
    place("top_k").fail(
        fmt::format("a token cannot choose {} of {} experts", top_k, experts / groups * top_groups));
  }
  if (weighs_inputs && biases)
    place("weighs_inputs").fail("biases of experts are not weighed with what they read", "allowed: false");
  if (shared_gate && shared_ffn_hidden == 0)
    place("shared_gate").fail("there are no shared experts", "allowed: false");
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  const double elements =
      d(experts) * 3 * d(std::max(ffn_hidden, 4 * (ffn_hidden == 0 ? hidden : 0))) * d(hidden);
  if (elements > limits::kMostParameters) {
    place("experts").fail(fmt::format("the experts of one layer have {:.2g} parameters", elements),
                          fmt::format("allowed: at most {:.0g} in the model", limits::kMostParameters));
  }
}

std::int64_t ExpertsLayer::capacity(std::int64_t tokens) const {
  if (capacity_factor == 0) return tokens;
  const double even = static_cast<double>(tokens * top_k) / static_cast<double>(experts);
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(capacity_factor * even)));
}

std::int64_t ExpertsLayer::routed_rows(std::int64_t tokens) const {
  return std::min(tokens * top_k, experts * capacity(tokens));
}

std::int64_t ExpertsLayer::room(std::int64_t tokens, std::int64_t samples, std::int64_t parts,
                                std::optional<double> shares) const {
  if (parts == 1) return routed_rows(tokens);
  const std::int64_t of_part = experts / parts;
  const std::int64_t most = std::min(tokens * std::min(top_k, of_part), of_part * capacity(tokens));
  if (capacity_factor > 0) return most;
  const std::int64_t rounded = tokens % samples == 0 ? tokens / samples : tokens;
  const double even = static_cast<double>(rounded * top_k) / static_cast<double>(parts);
  return std::min(most, tokens / rounded * static_cast<std::int64_t>(std::ceil(shares.value_or(1) * even)));
}

double ExpertsLayer::most_shares(std::int64_t parts) const {
  return static_cast<double>(std::min(top_k, experts / parts) * parts) / static_cast<double>(top_k);
}

std::int64_t ExpertsLayer::resident_elements(std::int64_t hidden) const {
  const std::int64_t shared = shared_ffn_hidden > 0 ? shared_experts().matrix_elements(hidden) : 0;
  return hidden * (experts + (shared_gate ? 1 : 0)) + shared;
}

}  // namespace orrery
