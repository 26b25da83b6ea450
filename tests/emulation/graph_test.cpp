// SPDX-License-Identifier: Apache-2.0
//
// Graphs of the emulated GPU: they hold what was captured, and refuse what CUDA refuses.
#include <gtest/gtest.h>

#include "cuda_runtime.h"
#include "kernels/cuda/device.h"
#include "tests/exec/small_model.h"

namespace orrery {
namespace {

using namespace kernels::cuda;

TEST(EmulatedGraphs, RunWhatWasCapturedAsOftenAsTheyAreLaunched) {
  const OwnedStream first = make_stream(), second = make_stream();
  const Event fork = make_event(Timed::kNo), join = make_event(Timed::kNo);
  int sum = 0;
  Graph graph;
  {
    Capture capture(first.get());
    emulation::enqueue(first.get(), [&] { sum += 1; });
    check(cudaEventRecord(fork.get(), first.get()), "fork");
    check(cudaStreamWaitEvent(second.get(), fork.get(), 0), "fork");
    emulation::enqueue(second.get(), [&] { sum *= 3; });
    check(cudaEventRecord(join.get(), second.get()), "join");
    check(cudaStreamWaitEvent(first.get(), join.get(), 0), "join");
    emulation::enqueue(first.get(), [&] { sum += 2; });
    graph = capture.end();
  }
  EXPECT_EQ(sum, 0);
  for (int i = 0; i < 2; ++i) check(cudaGraphLaunch(graph.get(), first.get()), "launch");
  check(cudaStreamSynchronize(first.get()), "both");
  EXPECT_EQ(sum, ((0 + 1) * 3 + 2 + 1) * 3 + 2);
}

TEST(EmulatedGraphs, RefuseWhatCudaRefuses) {
  const OwnedStream first = make_stream(), second = make_stream();
  const Event fork = make_event(Timed::kNo), outside = make_event(Timed::kNo);
  check(cudaEventRecord(outside.get(), second.get()), "outside");
  cudaGraph_t left = nullptr;
  check(cudaStreamBeginCapture(first.get(), cudaStreamCaptureModeThreadLocal), "capture");
  EXPECT_EQ(cudaStreamQuery(first.get()), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamWaitEvent(first.get(), outside.get(), 0), cudaErrorStreamCaptureIsolation);
  EXPECT_THROW(allocate(1, "memory"), Error);
  check(cudaEventRecord(fork.get(), first.get()), "fork");
  check(cudaStreamWaitEvent(second.get(), fork.get(), 0), "fork");
  emulation::enqueue(second.get(), [] {});  // and never joined
  EXPECT_EQ(cudaStreamEndCapture(first.get(), &left), cudaErrorStreamCaptureUnjoined);
  check(cudaGraphDestroy(left), "graph");
}

TEST(EmulatedGraphs, AreWhatStepsAfterTheFirstAre) {
  const Training t{.global_batch = kBatch, .sequence = 8, .precision = Precision::kFp32, .math = Math::kFp32};
  const std::int64_t before = emulation::graphs_launched();
  train(tiny("tiny-gpt"), plan(1, 1, 1, 0, 16), t, stack(),
        {.backend = exec::Backend::kCuda, .launch = orrery::Launch::kGraph, .steps = 3});
  EXPECT_EQ(emulation::graphs_launched() - before, 2);
}

}  // namespace
}  // namespace orrery
