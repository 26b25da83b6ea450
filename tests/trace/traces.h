// SPDX-License-Identifier: Apache-2.0
//
// Traces as the PyTorch profiler writes them, for tests: small, with all that the reader looks at.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace orrery::trace {

// A rank's trace whose clock is `ahead_us` of the others.
class KinetoRank {
 public:
  KinetoRank(std::int64_t rank, double ahead_us) : ahead_us_(ahead_us) {
    trace_ = {{"schemaVersion", 1},
              {"baseTimeNanoseconds", 1'700'000'000'000'000'000},
              {"distributedInfo", {{"backend", "nccl"}, {"rank", rank}, {"world_size", 4}}},
              {"traceEvents", Json::array()}};
  }
  KinetoRank& step(int number, double from_us, double to_us) {
    events().push_back({{"ph", "X"},
                        {"cat", "user_annotation"},
                        {"name", "ProfilerStep#" + std::to_string(number)},
                        {"pid", 77},
                        {"tid", 77},
                        {"ts", from_us + ahead_us_},
                        {"dur", to_us - from_us}});
    return *this;
  }
  // Launched some microseconds before it starts.
  Json& kernel(const std::string& name, int stream, double start_us, double length_us, double lag_us = 5) {
    ++correlation_;
    events().push_back({{"ph", "X"},
                        {"cat", "cuda_runtime"},
                        {"name", "cudaLaunchKernel"},
                        {"pid", 77},
                        {"tid", 77},
                        {"ts", start_us + ahead_us_ - lag_us},
                        {"dur", 1},
                        {"args", {{"correlation", correlation_}}}});
    events().push_back({{"ph", "X"},
                        {"cat", "kernel"},
                        {"name", name},
                        {"pid", 0},
                        {"tid", stream},
                        {"ts", start_us + ahead_us_},
                        {"dur", length_us},
                        {"args", {{"correlation", correlation_}, {"stream", stream}}}});
    return events().back();
  }
  // As PyTorch 2.2 and newer describe NCCL's kernels.
  Json& collective(const std::string& name, const std::string& ranks, std::int64_t elements, double start_us,
                   double length_us) {
    Json& e = kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", 20, start_us, length_us);
    e["args"]["Collective name"] = name;
    e["args"]["Process Group Ranks"] = ranks;
    e["args"]["Process Group Name"] = "0";
    e["args"]["Group size"] = static_cast<std::int64_t>(1 + std::count(ranks.begin(), ranks.end(), ','));
    e["args"]["In msg nelems"] = elements;
    e["args"]["Out msg nelems"] = elements;
    e["args"]["dtype"] = "BFloat16";
    return e;
  }
  const Json& trace() const { return trace_; }

 private:
  Json& events() { return trace_["traceEvents"]; }
  Json trace_;
  double ahead_us_;
  int correlation_ = 0;
};

}  // namespace orrery::trace
