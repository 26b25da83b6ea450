// SPDX-License-Identifier: Apache-2.0
//
// One lane that serves requests by continuous batching (Orca, Yu et al. 2022): before each pass, sequences
// that are done leave and waiting ones join. A pass computes a token of each sequence whose prompt is done,
// and with the rest of its tokens parts of prompts, in the order of arrival (Sarathi, Agrawal et al. 2024).
// The pass that ends a prompt gives its first token.
//
//   * A request joins when fewer sequences than `sequences` are there and the cache has room for it with the
//     whole of its answer, so none is driven out.
//   * ttft: from its arrival to its first token. tpot: from the first token to the last, over the tokens
//     between them; of answers of one token there is none.
//
// Disaggregated, a lane computes whole prompts alone, several in a pass where they fit, and another lane only
// decodes; `transfer` seconds pass between a prompt's first token and the cache's being there.
//
// Time is in seconds as doubles; the same input gives the same output.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sim/serving/passes.h"
#include "sim/serving/requests.h"

namespace orrery::sim {

struct LaneLimits {
  std::int64_t sequences = 1;       // at a time
  std::int64_t pass_tokens = 8192;  // that a pass computes at most
  double cache = 0;                 // bytes of a rank
};

// What costs the passes of a lane. Functions, so that tests can put simple ones in.
struct LaneCosts {
  std::function<double(const PassMix&)> pass;        // s
  std::function<double(std::int64_t tokens)> cache;  // bytes of a sequence
};
LaneCosts costs_of(const PassModel& model);

struct Served {
  double ttft = 0, tpot = 0;  // s; tpot < 0: none
  double arrived = 0, first = 0, ended = 0;
  std::int64_t input = 0, output = 0;
};

struct LaneRun {
  std::vector<Served> requests;  // in order of arrival
  double ended = 0;              // s, when the last one was done
  double busy = 0;               // s in passes
  std::int64_t passes = 0;
  double mean_batch = 0;  // sequences of a pass that decodes, in the mean over passes
};

// Work that is refused with an Error: passes, and sequences in them all together.
inline constexpr std::int64_t kMostTurns = 300'000'000;

// `concurrency`: so many of the requests are under way at a time, whenever they are said to arrive, and the
// next one arrives when one ends; 0: they arrive when they say. Throws Error where a request never fits.
LaneRun serve(const LaneCosts& costs, const LaneLimits& limits, std::span<const Request> requests,
              std::int64_t concurrency = 0);

// Prefill lanes take the requests in turn, decode lanes too, as they come out of these.
struct Pools {
  LaneCosts prefill_costs, decode_costs;
  LaneLimits prefill, decode;
  std::int64_t prefill_lanes = 1, decode_lanes = 1;
  std::function<double(std::int64_t tokens)> transfer;  // s
};
LaneRun serve_in_pools(const Pools& pools, std::span<const Request> requests);

// The value that a share of the numbers does not exceed (nearest rank); they are sorted first. 0 of none.
double percentile(std::vector<double> values, double share);

}  // namespace orrery::sim
