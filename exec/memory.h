// SPDX-License-Identifier: Apache-2.0
//
// The memory that ranks on processors take of their host, and the memory that the host has for them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/units.h"
#include "program/program.h"

namespace orrery::exec {

// Of ranks [first, first + count): arenas (parameters, gradients, optimizer state, activations), fp32 images
// of 16-bit operands, batches, and what the largest unit of parameters takes while it is filled. Memory of
// collectives and threads, and of a checkpoint that is read, comes on top.
struct MemoryUse {
  bool validates = false;
  bool copies_state = false;           // for checkpoints that are written beside steps
  std::int64_t replicas = 0;           // of each part of checkpoints in memory
  bool drives_take_memory = false;     // what lies on drives is in a folder that takes memory
  std::int64_t copies_of_weights = 0;  // of the whole model in fp32, that runs start from: one a process
};
Bytes needed_memory(const program::Program& program, std::int64_t first, std::int64_t count,
                    const MemoryUse& use);

struct AvailableMemory {
  Bytes bytes{0};
  std::string limited_by;  // "MemAvailable", or a cgroup's file
};
// The least of /proc/meminfo's MemAvailable and, of this process's memory cgroup and those above it, the
// limit less the usage, where page cache that can be dropped does not count. Unlimited where the system tells
// neither. Files are those under `root`.
AvailableMemory available_memory(const std::filesystem::path& root = "/");

}  // namespace orrery::exec
