// SPDX-License-Identifier: Apache-2.0
//
// The GPUs that this process can use, as the CUDA runtime sees them, and the NCCL beside them.
//
//   const Gpus gpus = find_gpus();
//   if (!gpus.problem.empty()) ...  // "the driver is too old: ..."
#pragma once

#include <string>
#include <vector>

#include "core/units.h"

namespace orrery::exec {

struct Gpu {
  std::string name;
  std::string bus;           // "0000:1b:00.0"
  int major = 0, minor = 0;  // compute capability
  int units = 0;             // streaming multiprocessors
  Bytes memory, l2;
  double clock_mhz = 0;         // the highest of the units
  double memory_clock_mhz = 0;  // the highest
  int memory_bus_bits = 0;
  std::vector<int> peers;  // other devices whose memory it can reach
};

struct Gpus {
  std::string problem;          // why there are none; empty when there are some
  std::string runtime, driver;  // "13.0"; empty: built without CUDA, or no driver
  std::string nccl;             // "2.28.3"; empty: not found
  std::string cudnn;            // "9.19.0"; empty: not found, or built without: attention is our own kernels'
  std::vector<Gpu> devices;
};

Gpus find_gpus();

}  // namespace orrery::exec
