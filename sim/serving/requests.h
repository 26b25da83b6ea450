// SPDX-License-Identifier: Apache-2.0
//
// Requests of a run of serving: when they arrive, and how long they and their answers are. A function of the
// seed alone. Lengths are log-normal around their mean m with a spread c, rounded, at least 1:
//
//   exp(mu + s z),  s^2 = ln(1 + c^2),  mu = ln m - s^2 / 2,  z the sum of 12 uniform numbers less 6
//
// Arrivals of a rate are Poisson, or at equal distances. With a concurrency, so many requests are there at
// the start, and each that ends is followed by another.
#pragma once

#include <cstdint>
#include <vector>

#include "core/serving.h"

namespace orrery::sim {

struct Request {
  double arrives = 0;                  // s
  std::int64_t input = 1, output = 1;  // tokens
};

// `count` requests of one lane, which gets `rate` of them a second; 0: all are there at the start.
std::vector<Request> draw_requests(const Serving& serving, double rate, std::int64_t count,
                                   std::uint64_t seed);
// Of those that the scenario lists, in order of arrival, what one of `lanes` gets: every so manyth.
std::vector<Request> listed_requests(const Serving& serving, std::int64_t lanes);

}  // namespace orrery::sim
