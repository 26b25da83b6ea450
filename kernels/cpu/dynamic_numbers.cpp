// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/dynamic_numbers.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

namespace orrery::kernels {
namespace {

std::array<float, 256> make_numbers(bool with_sign) {
  std::vector<double> out{0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int count = with_sign ? 1 << decade : 2 << decade;
    for (int i = 0; i < count; ++i) {  // the middles of equal parts of [0.1, 1]
      const double middle = 0.1 + 0.9 * (i + 0.5) / count;
      const double x = std::pow(10.0, decade - 6) * middle;
      out.push_back(x);
      if (with_sign) out.push_back(-x);
    }
  }
  std::sort(out.begin(), out.end());
  std::array<float, 256> numbers{};
  std::transform(out.begin(), out.end(), numbers.begin(), [](double x) { return static_cast<float>(x); });
  return numbers;
}

}  // namespace

const std::array<float, 256>& dynamic_numbers() {
  static const std::array<float, 256> numbers = make_numbers(true);
  return numbers;
}

const std::array<float, 256>& unsigned_dynamic_numbers() {
  static const std::array<float, 256> numbers = make_numbers(false);
  return numbers;
}

std::size_t nearest(std::span<const float> numbers, float x) {
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), x);
  if (above == numbers.begin()) return 0;
  if (above == numbers.end()) return numbers.size() - 1;
  const auto below = std::prev(above);
  return static_cast<std::size_t>((x - *below <= *above - x ? below : above) - numbers.begin());
}

}  // namespace orrery::kernels
