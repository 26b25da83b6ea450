// SPDX-License-Identifier: Apache-2.0
//
// Chakra execution traces (MLCommons, schema/protobuf/et_def.proto): a file for each rank, NAME.RANK.et, of
// nodes with durations and dependencies. Nodes of a run as chakra_trace_link and chakra_converter write them
// have no times of starting. Such a node begins when all nodes that its data depend on have ended and its
// thread or stream is free; where several nodes wait for a stream, the node that was ready first begins first
// (a device would keep the order of launches). Control dependencies are calls. Where nodes of the device have
// times, these count.
#pragma once

#include <string>
#include <string_view>

#include "trace/device_trace.h"

namespace orrery::trace {

// By the first two messages: metadata, and a node.
bool is_chakra(std::string_view bytes);

// What the device did: nodes that are no op of the host. Throws InputError where messages are damaged, where
// an exchange has no duration (it would have to be simulated), or where dependencies go round in a circle.
DeviceTrace from_chakra(std::string_view bytes, const std::string& file);

}  // namespace orrery::trace
