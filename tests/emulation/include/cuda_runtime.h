// SPDX-License-Identifier: Apache-2.0
//
// A GPU that a test can step through: the part of CUDA's runtime and of its device functions that
// kernels/cuda and exec/cuda use, for a plain C++ compiler. Kernels run on the processor, a fiber for each
// thread of a block; streams run what was enqueued in any order that their events allow, drawn from a seed.
// So what would be a race on a device is a wrong result here, in some order:
//   * a barrier that only some threads of a block or warp reach is an error, not a hang,
//   * memory that was not written is filled with ones: NaN in every float type; what a block shares, anew for
//     each block,
//   * work that does not wait for what it needs runs before it; in a graph, too.
#pragma once

#include <math.h>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#define ORRERY_EMULATED_GPU

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct float2 {
  float x, y;
};
inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

// --- the runtime -----------------------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNotReady = 600,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorUnknown = 999
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventRecordDefault = 0,
                   cudaEventRecordExternal = 1;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total);
cudaError_t cudaMallocHost(void** memory, std::size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
using cudaHostFn_t = void (*)(void*);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void* with);
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

namespace emulation {

struct Shape {
  dim3 grid, block;
  std::size_t shared = 0;  // bytes of dynamic_shared()
  bool asks = false;       // for more shared memory than a block gets unasked
};
void enqueue(cudaStream_t stream, std::function<void()> work);
// By all streams so far.
std::int64_t graphs_launched();
// To all streams so far: kernels, products, copies and clears, not events.
std::int64_t work_enqueued();
// What a device says of a launch that is beyond its limits.
cudaError_t refusal(const Shape& shape);
// The work that is enqueued as the `number`th from now fails when it runs; 0: none does.
void fail_work(std::int64_t number);
// Calls `thread` in every thread of every block. Throws when the threads of a block wait for each other in
// vain.
void run(const Shape& shape, const std::function<void()>& thread);
// Draws anew the order in which streams and threads are served.
void set_seed(unsigned seed);
void set_seed_of_threads(unsigned seed);

std::byte* dynamic_shared();
// Memory that a kernel declares itself. Every thread of a block declares it; the first one's block finds it
// unwritten. One block runs at a time. Throws where a block has more shared memory than it gets.
void declare_shared(void* memory, std::size_t bytes);
void block_barrier();
void warp_barrier();
std::byte* warp_slot(unsigned lane);  // 64 bytes, seen by the warp
unsigned lane();
unsigned lanes();  // of this warp

// What every lane of the warp brought.
template <class V>
std::array<V, 32> exchange(const V& mine) {
  static_assert(sizeof(V) <= 64);
  std::memcpy(warp_slot(lane()), &mine, sizeof mine);
  warp_barrier();
  std::array<V, 32> all{};
  for (unsigned l = 0; l < lanes(); ++l) std::memcpy(&all[l], warp_slot(l), sizeof(V));
  warp_barrier();
  return all;
}

}  // namespace emulation

// --- device functions ------------------------------------------------------------------------------

inline void __syncthreads() {
  emulation::block_barrier();
}
inline void __syncwarp() {
  emulation::warp_barrier();
}
template <class V>
V __shfl_xor_sync(unsigned, V value, int mask) {
  return emulation::exchange(value)[emulation::lane() ^ static_cast<unsigned>(mask)];
}
template <class V>
V __shfl_sync(unsigned, V value, int from) {
  return emulation::exchange(value)[static_cast<unsigned>(from)];
}
inline unsigned __ballot_sync(unsigned, bool value) {
  unsigned out = 0;
  const auto all = emulation::exchange(value);
  for (unsigned l = 0; l < 32; ++l) out |= static_cast<unsigned>(all[l]) << l;
  return out;
}
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}
inline std::uint32_t __float_as_uint(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
inline float __uint_as_float(std::uint32_t x) {
  return std::bit_cast<float>(x);
}
inline float rsqrtf(float x) {
  return 1.0F / std::sqrt(x);
}
inline std::uint32_t atomicMax(std::uint32_t* to, std::uint32_t value) {
  const std::uint32_t old = *to;
  *to = old > value ? old : value;
  return old;
}
inline double atomicAdd(double* to, double value) {
  const double old = *to;
  *to += value;
  return old;
}
