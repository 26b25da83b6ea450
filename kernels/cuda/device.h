// SPDX-License-Identifier: Apache-2.0
//
// What is held of a device: memory, streams, events, graphs. Calls that fail throw Error.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "kernels/cuda/check.h"

namespace orrery::kernels::cuda {

// Owns what `kFree` frees.
template <class T, cudaError_t (*kFree)(T)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(T value) : value_(value) {}
  ~Owned() {
    if (value_ != nullptr) (void)kFree(value_);
  }
  Owned(Owned&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  T get() const { return value_; }

 private:
  T value_ = nullptr;
};

using HostMemory = Owned<void*, cudaFreeHost>;  // that the device copies from and to beside other work
using OwnedStream = Owned<cudaStream_t, cudaStreamDestroy>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using Graph = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

class DeviceMemory {
 public:
  DeviceMemory() = default;
  void* get() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  friend DeviceMemory allocate(std::size_t bytes, const char* what);
  DeviceMemory(void* memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
  Owned<void*, cudaFree> memory_;
  std::size_t bytes_ = 0;
};

// At least a byte.
inline DeviceMemory allocate(std::size_t bytes, const char* what) {
  void* p = nullptr;
  bytes = bytes == 0 ? 1 : bytes;
  check(cudaMalloc(&p, bytes), what);
  return {p, bytes};
}
inline HostMemory allocate_host(std::size_t bytes) {
  void* p = nullptr;
  check(cudaMallocHost(&p, bytes), "memory of the host");
  return HostMemory(p);
}
// Blocks of an urgent stream are started before those of others that wait.
enum class Urgent : bool { kNo, kYes };
inline OwnedStream make_stream(Urgent urgent = Urgent::kNo) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams");
  cudaStream_t s = nullptr;
  check(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, urgent == Urgent::kYes ? greatest : least),
        "a stream");
  return OwnedStream(s);
}
enum class Timed : bool { kNo, kYes };
inline Event make_event(Timed timed) {
  cudaEvent_t e = nullptr;
  check(cudaEventCreateWithFlags(&e, timed == Timed::kYes ? 0 : cudaEventDisableTiming), "an event");
  return Event(e);
}

// While it lives, what this thread enqueues on the stream, and on streams that wait for events of it, is kept
// instead of run.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  ~Capture() {
    cudaGraph_t left = nullptr;
    if (stream_ != nullptr && cudaStreamEndCapture(stream_, &left) == cudaSuccess && left != nullptr)
      (void)cudaGraphDestroy(left);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // What was enqueued, to be launched as one. All streams must have been joined to the first.
  Graph end() {
    cudaGraph_t found = nullptr;
    check(cudaStreamEndCapture(std::exchange(stream_, nullptr), &found), "cudaStreamEndCapture");
    const Owned<cudaGraph_t, cudaGraphDestroy> graph(found);
    cudaGraphExec_t out = nullptr;
    check(cudaGraphInstantiate(&out, graph.get(), 0), "cudaGraphInstantiate");
    return Graph(out);
  }

 private:
  cudaStream_t stream_;
};

}  // namespace orrery::kernels::cuda
