// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
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

// What was captured: work that comes after other work of the graph.
struct Node {
  std::function<void()> run;
  std::vector<std::size_t> after;
};
using Nodes = std::vector<Node>;

std::mutex mutex;
std::vector<CUstream_st*> streams;
constexpr std::size_t kMemory = std::size_t{16} << 30;
std::atomic<std::size_t> used = 0;
std::map<void*, std::size_t> blocks;
std::minstd_rand order(1);
thread_local std::string failure;
thread_local int captures = 0;                                   // that this thread has begun
std::atomic<std::int64_t> launched = 0, works = 0, failing = 0;  // failing: the number of the work that will

}  // namespace

struct CUgraph_st {
  Nodes nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const Nodes> nodes;
};
struct CUstream_st {
  std::deque<Work> queue;
  CUgraph_st* graph = nullptr;    // that it is captured into
  std::vector<std::size_t> tail;  // nodes that what comes next comes after
};
struct CUevent_st {
  std::shared_ptr<Reached> last;
  CUgraph_st* graph = nullptr;  // that it was recorded in
  std::vector<std::size_t> tail;
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
  if (stream->graph == nullptr) {
    stream->queue.push_back(std::move(work));
    return cudaSuccess;
  }
  stream->graph->nodes.push_back({std::move(work.run), stream->tail});
  stream->tail = {stream->graph->nodes.size() - 1};
  return cudaSuccess;
}

// In any order that their dependencies allow.
void run(const Nodes& nodes) {
  std::vector<bool> done(nodes.size());
  for (std::size_t left = nodes.size(); left > 0; --left) {
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto& after = nodes[i].after;
      if (!done[i] && std::all_of(after.begin(), after.end(), [&](std::size_t n) { return done[n]; }))
        ready.push_back(i);
    }
    const std::size_t chosen = ready[order() % ready.size()];
    nodes[chosen].run();
    done[chosen] = true;
  }
}

void set_reached(const std::shared_ptr<Reached>& reached) {
  reached->done = true;
  reached->when = Clock::now();
}

}  // namespace

namespace emulation {

void set_seed(unsigned seed) {
  order.seed(seed);
  set_seed_of_threads(seed);
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  if (++works == failing) work = [] { throw std::runtime_error("an illegal memory access was encountered"); };
  push(stream, {std::move(work), nullptr});
}
void fail_work(std::int64_t number) {
  failing = number == 0 ? 0 : works + number;
}

std::int64_t graphs_launched() {
  return launched;
}
std::int64_t work_enqueued() {
  return works;
}

}  // namespace emulation

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorUnknown:
      return failure.c_str();
    case cudaErrorStreamCaptureUnsupported:
      return "not while a stream is captured";
    case cudaErrorStreamCaptureUnjoined:
      return "captured work that the first stream was not joined with";
    case cudaErrorStreamCaptureIsolation:
      return "captured work waits for work that is not";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    default:
      return "an error";
  }
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (captures > 0) return cudaErrorStreamCaptureUnsupported;
  if (bytes > kMemory - used) return cudaErrorMemoryAllocation;
  const cudaError_t e = cudaMallocHost(memory, bytes);
  if (e != cudaSuccess) return e;
  const std::lock_guard lock(mutex);
  blocks[*memory] = bytes;
  used += bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  {
    const std::lock_guard lock(mutex);
    if (const auto block = blocks.extract(memory)) used -= block.mapped();
  }
  return cudaFreeHost(memory);
}
cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  *available = kMemory - used;
  *total = kMemory;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  *memory = ::operator new (std::max<std::size_t>(1, bytes), std::align_val_t{256}, std::nothrow);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xff, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  ::operator delete (memory, std::align_val_t{256});
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return push(stream, {[=] { std::memmove(to, from, bytes); }, nullptr});
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return push(stream, {[=] { std::memset(memory, value, bytes); }, nullptr});
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void* with) {
  return push(stream, {[=] { call(with); }, nullptr});
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
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
  if (captures > 0 || stream->graph != nullptr) return cudaErrorStreamCaptureUnsupported;
  return serve([&] { return stream->queue.empty(); });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->graph == nullptr && stream->graph == nullptr)
    return event->last ? push(stream, {nullptr, event->last}) : cudaSuccess;
  const std::lock_guard lock(mutex);
  if (event->graph == nullptr || (stream->graph != nullptr && stream->graph != event->graph))
    return cudaErrorStreamCaptureIsolation;
  stream->graph = event->graph;
  stream->tail.insert(stream->tail.end(), event->tail.begin(), event->tail.end());
  return cudaSuccess;
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
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  const bool external = (flags & cudaEventRecordExternal) != 0;
  if (external && stream->graph == nullptr) return cudaErrorInvalidValue;
  event->graph = external ? nullptr : stream->graph;
  event->tail = stream->tail;
  if (event->graph != nullptr) return cudaSuccess;
  event->last = std::make_shared<Reached>();
  return push(stream, {[reached = event->last] { set_reached(reached); }, nullptr});
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return serve([&] { return !event->last || event->last->done; });
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  if (!from->last || !to->last || !from->last->done || !to->last->done) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(to->last->when - from->last->when).count();
  return cudaSuccess;
}

// --- graphs ----------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->graph != nullptr) return cudaErrorStreamCaptureUnsupported;
  stream->graph = new CUgraph_st;
  ++captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(mutex);
  *graph = stream->graph;
  --captures;
  // All that was captured comes before the end of the stream that began it.
  std::vector<bool> joined((*graph)->nodes.size());
  for (std::vector<std::size_t> open = stream->tail; !open.empty();) {
    const std::size_t n = open.back();
    open.pop_back();
    if (joined[n]) continue;
    joined[n] = true;
    open.insert(open.end(), (*graph)->nodes[n].after.begin(), (*graph)->nodes[n].after.end());
  }
  for (CUstream_st* s : streams) {
    if (s->graph != *graph) continue;
    s->graph = nullptr;
    s->tail.clear();
  }
  return std::find(joined.begin(), joined.end(), false) == joined.end() ? cudaSuccess
                                                                        : cudaErrorStreamCaptureUnjoined;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{std::make_shared<const Nodes>(graph->nodes)};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  ++launched;
  return push(stream, {[nodes = executable->nodes] { run(*nodes); }, nullptr});
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
