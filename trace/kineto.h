// SPDX-License-Identifier: Apache-2.0
//
// Traces of the PyTorch profiler (Kineto): Chrome events in which kernels, copies and sets of memory have the
// device as their process and its stream as their thread; times in microseconds since baseTimeNanoseconds, or
// since 1970 where the trace has none. Of the host only two things are read: when it launched each kernel
// (args.correlation joins them), which orders exchanges, and its steps ("ProfilerStep#12"). A kernel is of
// the step in which it was launched: a device may lag by most of a step.
#pragma once

#include <vector>

#include "core/json.h"
#include "trace/device_trace.h"

namespace orrery::trace {

// Whether Chrome events tell what devices did as the PyTorch profiler does.
bool is_kineto(const Json& trace);
// A trace for each device. Throws InputError with the event that is wrong.
std::vector<DeviceTrace> from_kineto(const Json& trace, const std::string& file);

}  // namespace orrery::trace
