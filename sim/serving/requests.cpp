// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/requests.h"

#include <algorithm>
#include <cmath>

#include "core/random.h"

namespace orrery::sim {
namespace {

enum Process : std::uint64_t { kArrival, kInput, kOutput };

class Lengths {
 public:
  Lengths(std::int64_t mean, double spread, std::uint64_t seed, std::uint64_t process)
      : mean_(static_cast<double>(mean)),
        variance_(natural_log(1 + spread * spread)),
        random_(seed, 0, process) {}
  std::int64_t next() {
    if (variance_ == 0) return static_cast<std::int64_t>(mean_);
    const double length = mean_ * random_.log_normal(variance_);
    return static_cast<std::int64_t>(std::llround(std::clamp(length, 1.0, limits::kMostServedTokens)));
  }

 private:
  double mean_, variance_;
  RandomStream random_;
};

}  // namespace

std::vector<Request> draw_requests(const Serving& s, double rate, std::int64_t count, std::uint64_t seed) {
  Lengths input(s.input_tokens, s.input_spread, seed, kInput);
  Lengths output(s.output_tokens, s.output_spread, seed, kOutput);
  RandomStream arrivals(seed, 0, kArrival);
  std::vector<Request> out;
  double now = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (rate > 0) now += (s.arrivals == Arrivals::kPoisson ? arrivals.exponential() : 1.0) / rate;
    out.push_back({now, input.next(), output.next()});
  }
  return out;
}

std::vector<Request> listed_requests(const Serving& s, std::int64_t lanes) {
  std::vector<Request> all;
  for (const RequestLine& r : s.requests) all.push_back({r.at.value, r.input, r.output});
  std::stable_sort(all.begin(), all.end(),
                   [](const Request& a, const Request& b) { return a.arrives < b.arrives; });
  std::vector<Request> out;
  for (std::size_t i = 0; i < all.size(); i += static_cast<std::size_t>(lanes)) out.push_back(all[i]);
  return out;
}

}  // namespace orrery::sim
