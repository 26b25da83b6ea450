// SPDX-License-Identifier: Apache-2.0
//
// Plans that serve a model within bounds: tensor-parallel degree, stages, ranks that share experts, sequences
// at a time, and prefills and decodes together or on devices of their own. Every combination is priced in a
// steady state in closed form, and the best are simulated request by request (sim/serving/queue.h).
//
// In a steady state a lane has B sequences, all answers are o tokens long and all requests i. A request ends
// every o/B passes, so a pass has n = min(B i/o, N - B) tokens of prompts in the mean, N being the most of a
// pass. A prompt is cut into c = ceil(i / (N - B)) parts of p = i/c tokens:
//
//   D = decode of B sequences with i + o/2 tokens,  M = D with a part of p tokens beside it
//   tpot = D + (M - D) n/p         ttft = tpot / 2 + c M
//   requests/s of a lane = min( B / (ttft + (o - 1) tpot), (N - B) / (i tpot) )
//
// Disaggregated, P lanes compute prompts one at a time in F seconds each, and a queue forms before them
// (M/D/1: ttft = F + F u / (2 (1 - u)) with u = 0.7 of their time used), and lanes that decode have tpot = D.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/serving/queue.h"

namespace orrery::planner {

struct ServingSteady {
  double ttft_s = 0, tpot_s = 0;
  double requests_per_s = 0;  // of a lane
};
// Of a lane that does both.
ServingSteady steady(const sim::PassModel& passes, const Serving& serving, std::int64_t sequences);

// What the simulation of requests says.
struct ServingRun {
  std::int64_t requests = 0;
  double ttft_s[4] = {}, tpot_s[4] = {};               // mean, and the percentiles of kServingPercentiles
  double within = 0;                                   // share of requests that keep to the bounds
  double requests_per_s = 0, output_tokens_per_s = 0;  // of all devices that the plan uses
  double mean_batch = 0, busy = 0;  // sequences of a decoding pass of a lane; share of its time
};
inline constexpr double kServingPercentiles[3] = {0.5, 0.95, 0.99};

// Instances are alike: copies of the model that serve requests of their own.
struct ServingPool {
  Plan plan;  // of an instance: tp, pp, and dp = ep ranks that share experts
  std::int64_t instances = 0;
  std::int64_t sequences = 1;  // of a lane at a time
  std::int64_t devices() const { return plan.ranks() * instances; }
};

struct ServedPlan {
  ServingPool pool;                    // of decodes, where they are apart
  std::optional<ServingPool> prefill;  // where they are apart
  ServingSteady steady;
  double requests_per_s = 0;     // that all of its devices serve at most
  double offered_per_s = 0;      // that it is asked for: the scenario's, or as many
  sim::ServedMemory memory;      // of a device, of decodes where they are apart
  std::int64_t cache_bytes = 0;  // of the sequences at a time
  std::int64_t cache_per_token = 0;
  double transfer_s = 0;  // of a prompt's cache to a device that decodes
  std::optional<ServingRun> run;

  std::int64_t devices() const { return pool.devices() + (prefill ? prefill->devices() : 0); }
  double output_tokens_per_device_s(const Serving& s) const {
    return requests_per_s * static_cast<double>(s.output_tokens) / static_cast<double>(devices());
  }
};

// A plan that serves nothing within the bounds, and why.
struct Unserved {
  Plan plan;
  std::string why;
};

struct ServingAnswer {
  std::vector<ServedPlan> plans;  // the best first
  std::vector<Unserved> others;
  std::int64_t considered = 0;  // plans, each with several numbers of sequences
};

struct ServeOptions {
  std::size_t top = 5;           // plans that are simulated
  std::int64_t requests = 1000;  // that are simulated for each, of a lane
  std::uint64_t seed = 1;
  std::function<void(const char*, double)> progress;
};

// `problem`: of sim::served_problem(). Throws InputError where the model is not served.
ServingAnswer serve(const Problem& problem, const Serving& serving, const ServeOptions& options);

// "TP8", "TP2 PP2", "TP1 EP8".
std::string serving_name(const Plan& plan);

}  // namespace orrery::planner
