// SPDX-License-Identifier: Apache-2.0
//
// Prices of a spot node over time, as somebody recorded them.
//
//   time,price
//   0,9.80
//   3600,10.10
//   7200,10.10
//
// After the header come moments (seconds, or 2024-05-01 00:00:00) and dollars an hour. A price holds until
// the next line, and the last line ends the trace. Or what `aws ec2 describe-spot-price-history` prints, of
// one product in one zone: {"SpotPriceHistory": [{"Timestamp", "SpotPrice", ..}]}.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace orrery::sim {

class SpotPrices {
 public:
  // Moments in seconds, ascending, at least two; dollars an hour from each to the next.
  SpotPrices(std::vector<double> moments, const std::vector<double>& prices);

  double length_s() const { return moments_.back(); }
  double mean() const { return paid_.back() / length_s(); }
  // Of `length_s` seconds from a moment of the trace on, which begins again where it ends.
  double mean(double from_s, double length_s) const;

 private:
  double paid_until(double s) const;  // dollars an hour times seconds, from the trace's begin

  std::vector<double> moments_, paid_;
};

// Throws InputError with the file and the line, or the pointer or the number of the entry.
SpotPrices read_spot_prices(std::string_view text, const std::string& file);

}  // namespace orrery::sim
