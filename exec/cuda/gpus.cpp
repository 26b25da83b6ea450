// SPDX-License-Identifier: Apache-2.0
#include "exec/gpus.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <array>

#include "core/error.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/fused_attention.h"
#include "kernels/cuda/library.h"

namespace orrery::exec {
namespace {

using kernels::cuda::check;

// 13020 is 13.2.
std::string version(int v) {
  return v == 0 ? std::string() : fmt::format("{}.{}", v / 1000, v % 1000 / 10);
}

// Of the NCCL that runs would use; nothing where there is none.
std::string nccl_version() {
  try {
    int v = 0;
    if (kernels::cuda::Library("libnccl.so.2").find<int(int*)>("ncclGetVersion")(&v) != 0) return {};
    return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  } catch (const Error&) {
    return {};
  }
}

int attribute(cudaDeviceAttr a, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, a, device), "cudaDeviceGetAttribute");
  return value;
}

Gpu describe(int device, int devices) {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
  Gpu g;
  g.name = p.name;
  std::array<char, 32> bus{};
  check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device), "cudaDeviceGetPCIBusId");
  g.bus = bus.data();
  g.major = p.major;
  g.minor = p.minor;
  g.units = p.multiProcessorCount;
  g.memory = Bytes{static_cast<std::int64_t>(p.totalGlobalMem)};
  g.l2 = Bytes{p.l2CacheSize};
  g.clock_mhz = attribute(cudaDevAttrClockRate, device) / 1e3;
  g.memory_clock_mhz = attribute(cudaDevAttrMemoryClockRate, device) / 1e3;
  g.memory_bus_bits = p.memoryBusWidth;
  for (int other = 0; other < devices; ++other) {
    int reaches = 0;
    if (other != device) check(cudaDeviceCanAccessPeer(&reaches, device, other), "cudaDeviceCanAccessPeer");
    if (reaches != 0) g.peers.push_back(other);
  }
  return g;
}

}  // namespace

Gpus find_gpus() {
  Gpus out;
  int runtime = 0, driver = 0, devices = 0;
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");  // 0: there is none
  out.runtime = version(runtime);
  out.driver = version(driver);
  out.nccl = nccl_version();
  out.cudnn = kernels::cuda::fused_attention_version();
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (driver == 0)
    out.problem = "no NVIDIA driver";
  else if (found != cudaSuccess || devices == 0)
    out.problem = found == cudaSuccess ? "no device" : cudaGetErrorString(found);
  if (!out.problem.empty()) return out;
  try {
    for (int d = 0; d < devices; ++d) out.devices.push_back(describe(d, devices));
  } catch (const Error& e) {
    out.problem = e.what();
    out.devices.clear();
  }
  return out;
}

}  // namespace orrery::exec
