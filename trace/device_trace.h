// SPDX-License-Identifier: Apache-2.0
//
// What one device did, as a profiler of other software recorded it: kernels, copies and exchanges with other
// devices, by the clock of its host. merge.h makes a timeline of one or many.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/timeline.h"

namespace orrery::trace {

// What a profiler says of a kernel that communicates.
struct Exchange {
  std::string group;           // its ranks, or its name; empty: not said
  std::int64_t members = 0;    // ranks of the group; 0: not said
  std::int64_t sequence = -1;  // number among the exchanges of the group; -1: not said
  std::int64_t bytes = 0;      // of the larger of input and output; 0: not said
};

struct Activity {
  std::int32_t name = 0;       // index in DeviceTrace::names
  std::int32_t segment = 0;    // index in DeviceTrace::segments
  std::int32_t stream = 0;     // as the trace numbers it
  std::int32_t exchange = -1;  // index in DeviceTrace::exchanges; -1: it does not communicate
  OpClass is = OpClass::kUnknown;
  std::int64_t start_ns = 0, end_ns = 0;
  std::int64_t launch = 0;  // orders activities as the host launched them
};

struct DeviceTrace {
  std::string file, source;   // "measured: PyTorch profiler"
  std::int64_t rank = -1;     // of the job; -1: not said
  std::int64_t device = 0;    // of its host, or of its process
  std::int64_t process = -1;  // where several of one host have a device of that number
  std::vector<std::string> names, segments;
  bool steps = false;  // segments are steps of the training, in order
  std::vector<Activity> activities;
  std::vector<Exchange> exchanges;
};

// What a kernel of PyTorch, cuBLAS, cuDNN, CUTLASS, FlashAttention, Transformer Engine, Triton, DeepEP, NCCL
// or their counterparts on ROCm does, by its name. Element-wise where the name says nothing else.
OpClass class_of_kernel(std::string_view name);
// By a name of torch.distributed, "all_reduce" or "_allgather_base"; unknown where it is none.
OpClass class_of_collective(std::string_view name);
// Whether a range is a step of the training, by its name: "ProfilerStep#12", "iteration 12", "Step_12".
bool names_step(std::string_view range);

}  // namespace orrery::trace
