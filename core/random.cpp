// SPDX-License-Identifier: Apache-2.0
#include "core/random.h"

#include <cmath>

namespace orrery {

double natural_log(double x) {
  constexpr double kLn2 = 0.6931471805599453, kRootHalf = 0.7071067811865476;
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // exact; [1/2, 1)
  if (m < kRootHalf) {
    m *= 2;
    --exponent;
  }
  // ln m = 2 artanh s = 2 (s + s^3/3 + ...), |s| <= 0.172: the 11th term is below 1e-17.
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int odd = 21; odd >= 1; odd -= 2) sum = sum * square + 1.0 / odd;
  return 2 * s * sum + exponent * kLn2;
}

}  // namespace orrery
