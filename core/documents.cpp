// SPDX-License-Identifier: Apache-2.0
#include "core/documents.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace orrery {
namespace {

double of_normal(double x) {  // P(a normal variate < x)
  return std::erfc(-x / std::numbers::sqrt2) / 2;
}

}  // namespace

DocumentLengths::DocumentLengths(const Documents& documents) {
  if (const auto* fixed = std::get_if<FixedLength>(&documents.is)) {
    mean_ = static_cast<double>(fixed->tokens);
  } else if (const auto* normal = std::get_if<LognormalLength>(&documents.is)) {
    mean_ = normal->mean;
    log_variance_ = std::log1p(normal->spread * normal->spread);
  } else {
    const auto& recorded = std::get<RecordedLengths>(documents.is);
    sorted_.assign(recorded.tokens.begin(), recorded.tokens.end());
    std::sort(sorted_.begin(), sorted_.end());
    sum_.resize(sorted_.size());
    std::partial_sum(sorted_.begin(), sorted_.end(), sum_.begin());
    from_.resize(sorted_.size());
    std::partial_sum(sorted_.rbegin(), sorted_.rend(), from_.rbegin());
    mean_ = sum_.back() / static_cast<double>(sorted_.size());
  }
}

// Of a log-normal L with mean M and log-variance v: M N(d) - a N(d - sqrt v), d = (ln(M / a) + v / 2) / sqrt
// v.
double DocumentLengths::beyond(double a) const {
  if (!sorted_.empty()) {
    const auto i = std::upper_bound(sorted_.begin(), sorted_.end(), a) - sorted_.begin();
    if (i == std::ssize(sorted_)) return 0;
    const auto longer = static_cast<double>(std::ssize(sorted_) - i);
    return (from_[static_cast<std::size_t>(i)] - longer * a) / static_cast<double>(sorted_.size());
  }
  if (log_variance_ == 0 || a <= 0) return std::max(0.0, mean_ - a);
  const double deviation = std::sqrt(log_variance_);
  const double d = (std::log(mean_ / a) + log_variance_ / 2) / deviation;
  return mean_ * of_normal(d) - a * of_normal(d - deviation);
}

double DocumentLengths::share_seen(std::int64_t sequence, std::int64_t window) const {
  const auto s = static_cast<double>(sequence);
  const double most = window > 0 ? std::min(s, static_cast<double>(window)) : s;
  // Geometric steps, as lengths are of many orders; the middle of each stands for it.
  constexpr int kSteps = 1024;
  const double ratio = std::pow(most + 1, 1.0 / kSteps);
  double seen = 0, all = 0, from = 0;
  for (int i = 1; i <= kSteps; ++i) {
    const double to = i == kSteps ? most : std::pow(ratio, i) - 1;
    const double a = (from + to) / 2, area = (s - a) * (to - from);
    seen += area * beyond(a);
    all += area;
    from = to;
  }
  return seen / (all * mean_);
}

double DocumentLengths::drawn(RandomStream& random) const {
  if (sorted_.empty()) return log_variance_ > 0 ? mean_ * random.log_normal(log_variance_) : mean_;
  const auto i = static_cast<std::size_t>(random.uniform() * static_cast<double>(sorted_.size()));
  return sorted_[std::min(i, sorted_.size() - 1)];
}

// A document has a token with a chance that is its length: of log-normal lengths these are log-normal too,
// with the mean M exp(v).
double DocumentLengths::drawn_by_tokens(RandomStream& random) const {
  if (sorted_.empty()) return drawn(random) * std::exp(log_variance_);
  const auto i = std::upper_bound(sum_.begin(), sum_.end(), random.uniform() * sum_.back()) - sum_.begin();
  return sorted_[std::min(static_cast<std::size_t>(i), sorted_.size() - 1)];
}

std::vector<std::int32_t> DocumentLengths::ends(std::uint64_t seed, std::uint64_t number,
                                                std::int64_t sequence) const {
  RandomStream random(seed, number, 0xd0c);
  const auto whole = [](double tokens) {
    return static_cast<std::int64_t>(std::clamp(std::ceil(tokens), 1.0, kLongestDocument));
  };
  // The first token is anywhere in its document.
  const double left = drawn_by_tokens(random);
  std::vector<std::int32_t> out;
  for (std::int64_t end = whole(left * random.uniform());; end += whole(drawn(random) - 0.5)) {
    out.push_back(static_cast<std::int32_t>(std::min(end, sequence)));
    if (end >= sequence) return out;
  }
}

void DocumentLengths::draw(std::uint64_t seed, std::uint64_t number, std::span<std::int32_t> first) const {
  std::int64_t begin = 0;
  for (const std::int32_t end : ends(seed, number, std::ssize(first))) {
    std::fill(first.begin() + begin, first.begin() + end, static_cast<std::int32_t>(begin));
    begin = end;
  }
}

}  // namespace orrery
