// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/spot_prices.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/fields.h"
#include "sim/trace_lines.h"

namespace orrery::sim {
namespace {

constexpr double kMostDollars = limits::kHighestPrice / kMicroDollars;
constexpr std::size_t kMostPrices = 1'000'000;

using Prices = std::vector<std::pair<double, double>>;  // moments and dollars an hour

double price(std::string_view text, const TraceLine& at) {
  const double out = number(text, "price", kMostDollars, at);
  if (out < 0) at.fail(quoted(text) + " is a price below zero");
  return out;
}

Prices of_columns(std::string_view text, const std::string& file) {
  Prices out;
  bool headed = false;
  each_line(text, file, [&](std::string_view line, const TraceLine& at) {
    const std::vector<std::string_view> row = cells(line);
    if (!std::exchange(headed, true)) {
      if (row != std::vector<std::string_view>{"time", "price"})
        at.fail(quoted(line) + " is no header of prices", "allowed: time,price");
      return;
    }
    if (row.size() != 2) at.fail(fmt::format("has {} cells", row.size()), "allowed: 2");
    if (out.size() == kMostPrices) at.fail("is one price too many", fmt::format("allowed: {}", kMostPrices));
    out.emplace_back(moment(row[0], "time: seconds, or like 2020-04-01 00:00:34", at), price(row[1], at));
  });
  return out;
}

Prices of_aws(std::string_view text, const std::string& file) {
  const Json json = parse_json(std::string(text), file);
  const Cursor all = Cursor{file, ""}.child("SpotPriceHistory");
  const auto list = json.find("SpotPriceHistory");
  if (list == json.end() || !list->is_array()) all.fail("is missing", "allowed: a list of prices");
  Prices out;
  const auto text_of = [](const Json& of, const char* name, const Cursor& at) {
    const auto field = of.is_object() ? of.find(name) : of.end();
    if (!of.is_object() || field == of.end() || !field->is_string())
      at.child(name).fail("is missing, or no text", "allowed: as the AWS command line prints it");
    return field->get<std::string>();
  };
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Json& entry = (*list)[i];
    const Cursor at = all.child(i);
    for (const char* same : {"InstanceType", "AvailabilityZone", "ProductDescription"}) {
      if (entry.is_object() && entry.contains(same) && entry[same] != (*list)[0].value(same, Json()))
        at.child(same).fail(fmt::format("{} is another than the first entry's", shown(entry[same])),
                            "allowed: prices of one product in one zone");
    }
    const TraceLine line{file, static_cast<std::int64_t>(i) + 1};
    const double when = moment(text_of(entry, "Timestamp", at), "Timestamp: like 2020-04-01T00:00:34", line);
    out.emplace_back(when, price(text_of(entry, "SpotPrice", at), line));
  }
  return out;
}

}  // namespace

SpotPrices::SpotPrices(std::vector<double> moments, const std::vector<double>& prices)
    : moments_(std::move(moments)), paid_{0} {
  const double first = moments_.front();
  for (double& m : moments_) m -= first;
  for (std::size_t i = 1; i < moments_.size(); ++i)
    paid_.push_back(paid_.back() + prices[i - 1] * (moments_[i] - moments_[i - 1]));
}

double SpotPrices::paid_until(double s) const {
  const double rest = std::clamp(std::fmod(s, length_s()), 0.0, length_s());
  const double whole = std::round((s - rest) / length_s());
  const auto after = std::upper_bound(moments_.begin(), moments_.end() - 1, rest);
  const auto i = static_cast<std::size_t>(after - moments_.begin());
  const double price = (paid_[i] - paid_[i - 1]) / (moments_[i] - moments_[i - 1]);
  return whole * paid_.back() + paid_[i - 1] + price * (rest - moments_[i - 1]);
}

double SpotPrices::mean(double from_s, double length_s) const {
  return (paid_until(from_s + length_s) - paid_until(from_s)) / length_s;
}

SpotPrices read_spot_prices(std::string_view text, const std::string& file) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  Prices prices =
      begin != std::string_view::npos && text[begin] == '{' ? of_aws(text, file) : of_columns(text, file);
  std::stable_sort(prices.begin(), prices.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<double> moments, dollars;
  for (const auto& [when, usd] : prices) {
    if (!moments.empty() && moments.back() == when)
      dollars.back() = usd;  // the later line of two
    else {
      moments.push_back(when);
      dollars.push_back(usd);
    }
  }
  if (moments.size() < 2)
    throw InputError(file, "", fmt::format("has prices of {} moments", moments.size()),
                     "allowed: two or more, the last of which ends the trace");
  if (moments.back() - moments.front() < 1)
    throw InputError(file, "", "has prices of less than a second", "allowed: a second or more");
  return {std::move(moments), dollars};
}

}  // namespace orrery::sim
