// SPDX-License-Identifier: Apache-2.0
//
// How a model is served: the object `serving` of a scenario. Requests arrive with some tokens, and are
// answered with others, one at a time. docs/serving.md has the terms and formulas.
//
//   "serving": {"input_tokens": 1024, "output_tokens": 256, "requests_per_s": 8, "ttft": "1 s"}
//
// Lengths are drawn from log-normal distributions of these means; a spread of 0 gives every request the mean.
// Requests arrive at a rate, or so many at a time are under way, or they are listed.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace orrery {

// Of weights of layers' products, and of the cache; all else is in bf16.
enum class ServedFormat { kBf16, kFp8 };
constexpr auto enum_names(ServedFormat) {
  return std::array{std::pair{ServedFormat::kBf16, "bf16"}, std::pair{ServedFormat::kFp8, "fp8"}};
}
constexpr std::int64_t bytes_of(ServedFormat f) {
  return f == ServedFormat::kBf16 ? 2 : 1;
}

// Poisson: independent of each other. Even: at equal distances.
enum class Arrivals { kPoisson, kEven };
constexpr auto enum_names(Arrivals) {
  return std::array{std::pair{Arrivals::kPoisson, "poisson"}, std::pair{Arrivals::kEven, "even"}};
}

struct RequestLine {
  RunTime at{0};
  std::int64_t input = 1, output = 1;  // tokens
};

struct Serving {
  std::int64_t input_tokens = 1024, output_tokens = 256;  // of a request, in the mean
  double input_spread = 0, output_spread = 0;             // standard deviation over mean
  std::optional<double> requests_per_s;                   // of the whole cluster
  std::optional<std::int64_t> concurrency;                // requests under way, of the whole cluster
  Arrivals arrivals = Arrivals::kPoisson;
  std::vector<RequestLine> requests;
  std::optional<Time> ttft, tpot;  // bounds
  double percentile = 0.9;         // share of requests that keep to the bounds
  ServedFormat weights = ServedFormat::kBf16, cache = ServedFormat::kBf16;
  std::int64_t pass_tokens = 8192;    // that a pass computes at most
  std::optional<bool> disaggregated;  // prefills and decodes on devices of their own; absent: both are tried
  double memory_share = 0.9;          // of a device's memory that may be used
  std::string stack = "vllm";
};

namespace limits {
inline constexpr double kMostServedTokens = 1 << 22;  // of a request, either way
inline constexpr double kMostRequestRate = 1e6;
inline constexpr std::size_t kMostRequests = 100'000;
}  // namespace limits

template <class V>
void describe(V& v, RequestLine& r) {
  v(Field{.name = "at", .help = "when it arrives", .min = 0, .max = limits::kLongestRun}, r.at);
  v(Field{.name = "input", .help = "tokens of the request", .min = 1, .max = limits::kMostServedTokens},
    r.input);
  v(Field{.name = "output", .help = "tokens of the answer", .min = 1, .max = limits::kMostServedTokens},
    r.output);
}

template <class V>
void describe(V& v, Serving& s) {
  const auto tokens = [](const char* name, const char* help) {
    return Field{.name = name, .help = help, .min = 1, .max = limits::kMostServedTokens};
  };
  const auto spread = [](const char* name, const char* help) {
    return Field{.name = name, .help = help, .min = 0, .max = 10};
  };
  const auto bound = [](const char* name, const char* help) {
    return Field{.name = name, .help = help, .min = 1, .max = limits::kLongestOp};
  };
  v(tokens("input_tokens", "mean tokens of a request"), s.input_tokens);
  v(tokens("output_tokens", "mean tokens of an answer"), s.output_tokens);
  v(spread("input_spread", "standard deviation over mean of the tokens of requests; 0: all have the mean"),
    s.input_spread);
  v(spread("output_spread", "standard deviation over mean of the tokens of answers; 0: all have the mean"),
    s.output_spread);
  v(Field{.name = "requests_per_s",
          .help = "requests that arrive a second, of the whole cluster; absent: as many as it serves",
          .min = 1e-6,
          .max = limits::kMostRequestRate},
    s.requests_per_s);
  v(Field{.name = "concurrency",
          .help = "requests under way at a time, of the whole cluster: one that ends is followed by another",
          .min = 1,
          .max = limits::kMostReplicas},
    s.concurrency);
  v(Field{.name = "arrivals", .help = "how requests of a rate arrive"}, s.arrivals);
  v(Field{.name = "requests",
          .help = "requests one by one, in place of lengths and a rate",
          .most = limits::kMostRequests},
    s.requests);
  v(bound("ttft", "longest time from a request to the first token of its answer"), s.ttft);
  v(bound("tpot", "longest mean time of an answer's other tokens"), s.tpot);
  v(Field{.name = "percentile",
          .help = "share of requests that keep to the bounds",
          .min = 0.01,
          .max = 0.999},
    s.percentile);
  v(Field{.name = "weights", .help = "format of the weights of layers' products"}, s.weights);
  v(Field{.name = "cache", .help = "format of cached keys and values"}, s.cache);
  v(Field{.name = "pass_tokens",
          .help = "tokens that a pass computes at most; longer prompts are cut into chunks",
          .min = 1,
          .max = limits::kMostServedTokens},
    s.pass_tokens);
  v(Field{.name = "disaggregated",
          .help = "whether prefills and decodes have devices of their own; absent: both ways are compared"},
    s.disaggregated);
  v(Field{.name = "memory_share",
          .help = "share of a device's memory that weights, cache and workspace may take",
          .min = 0.1,
          .max = 1},
    s.memory_share);
  v(Field{.name = "stack", .help = "software that serves"}, s.stack);
}

ORRERY_FIELDS(extern, Serving);

}  // namespace orrery
