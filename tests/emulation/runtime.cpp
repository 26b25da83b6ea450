// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_runtime.h"

namespace {

using Clock = std::chrono::steady_clock;

// When an event was reached; it has not been while `done` is false.
struct Reached {
  bool done = false;
  Clock::time_point when;
};

struct Work {
  std::function<void()> run;
  std::shared_ptr<Reached> after;  // null: nothing
};

std::mutex mutex;
std::vector<CUstream_st*> streams;
std::minstd_rand order(1);
thread_local std::string failure;

}  // namespace

struct CUstream_st {
  std::deque<Work> queue;
};
struct CUevent_st {
  std::shared_ptr<Reached> last;
};

namespace {

// Runs work of any stream that may go on, until `done`.
template <class Done>
cudaError_t serve(Done done) {
  const std::lock_guard lock(mutex);
  while (!done()) {
    std::vector<CUstream_st*> ready;
    for (CUstream_st* s : streams) {
      if (!s->queue.empty() && (!s->queue.front().after || s->queue.front().after->done)) ready.push_back(s);
    }
    if (ready.empty()) {
      failure = "streams wait for each other";
      return cudaErrorUnknown;
    }
    CUstream_st* const chosen = ready[order() % ready.size()];
    const Work work = std::move(chosen->queue.front());
    chosen->queue.pop_front();
    try {
      if (work.run) work.run();
    } catch (const std::exception& e) {
      failure = e.what();
      return cudaErrorUnknown;
    }
  }
  return cudaSuccess;
}

cudaError_t push(cudaStream_t stream, Work work) {
  const std::lock_guard lock(mutex);
  stream->queue.push_back(std::move(work));
  return cudaSuccess;
}

}  // namespace

namespace emulation {

void set_seed(unsigned seed) {
  order.seed(seed);
  set_seed_of_threads(seed);
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  push(stream, {std::move(work), nullptr});
}

}  // namespace emulation

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorUnknown ? failure.c_str() : error == cudaSuccess ? "no error" : "an error";
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = ::operator new (std::max<std::size_t>(1, bytes), std::align_val_t{256}, std::nothrow);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xff, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  ::operator delete (memory, std::align_val_t{256});
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return push(stream, {[=] { std::memmove(to, from, bytes); }, nullptr});
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return push(stream, {[=] { std::memset(memory, value, bytes); }, nullptr});
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  const std::lock_guard lock(mutex);
  streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  std::erase(streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return serve([&] { return stream->queue.empty(); });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return event->last ? push(stream, {nullptr, event->last}) : cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto reached = std::make_shared<Reached>();
  event->last = reached;
  return push(stream, {[reached] {
                         reached->done = true;
                         reached->when = Clock::now();
                       },
                       nullptr});
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return serve([&] { return !event->last || event->last->done; });
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  if (!from->last || !to->last || !from->last->done || !to->last->done) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(to->last->when - from->last->when).count();
  return cudaSuccess;
}
