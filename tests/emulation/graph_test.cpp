// SPDX-License-Identifier: Apache-2.0
//
// Graphs of the emulated GPU: they hold what was captured, and refuse what CUDA refuses.
#include <gtest/gtest.h>

#include "core/scenario.h"
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

// docs/gpu.md has these numbers beside llm.c's. GPT-2's blocks, narrow: how many launches a step has depends
// on the numbers of layers and of units alone. Buckets are as much narrower as layers are, so that two layers
// are a unit as in the real model; what a step enqueues is what a run of one step more does.
TEST(EmulatedGraphs, LaunchesOfAStepOfGpt2AreWhatTheDocumentSays) {
  const Training t{.global_batch = 1, .sequence = 16, .precision = Precision::kMixed, .math = Math::kBf16};
  const auto narrow = [](std::int64_t layers) {
    Model m = preset_model("gpt2-124m");
    m.hidden = 64, m.heads = 1, m.ffn_hidden = 256, m.vocab = 128, m.max_positions = 16, m.layers = layers;
    return m;
  };
  const Stack real = load_stack("orrery", {}, DataFolders{});
  Stack s = real;
  s.bucket = Bytes{real.bucket.value / 142};  // a layer of 64 columns has 49,984 elements, of 768 7,087,872
  const auto units = [&](const Model& m, const Stack& by) {
    return program::compile(m, Plan{}, t, by, program::Detail::kSizes).classes[0].units.size();
  };
  ASSERT_EQ(units(narrow(12), s), units(preset_model("gpt2-124m"), real));
  const auto launches = [&](std::int64_t layers) {
    std::array<std::int64_t, 2> of{};
    for (const std::int64_t steps : {2, 3}) {
      const std::int64_t before = emulation::work_enqueued();
      train(narrow(layers), Plan{}, t, s, {.backend = exec::Backend::kCuda, .steps = steps});
      of[static_cast<std::size_t>(steps - 2)] = emulation::work_enqueued() - before;
    }
    return of[1] - of[0];
  };
  const std::int64_t two = launches(2), pair = launches(4) - two;
  EXPECT_EQ(pair, 65);
  EXPECT_EQ(two - pair, 21);
}

// Likewise: of 64 sequences of 1,024 tokens. A matrix of a token's width has 64 x 1024 x 768 x 2 = 100.7 MB,
// and logits 65.4 times as much. The loss moves 3 of them: statistics 1, gradient 2.
TEST(EmulatedGraphs, BytesOfAStepOfGpt2AreWhatTheDocumentSays) {
  const Training t{.global_batch = 64, .sequence = 1024, .precision = Precision::kMixed, .math = Math::kBf16};
  const auto program = program::compile(preset_model("gpt2-124m"), Plan{.micro_batch = 64}, t,
                                        load_stack("orrery", {}, DataFolders{}));
  double bytes = 0, of_loss = 0;
  for (const program::Step& step : program.classes[0].steps) {
    for (const program::Op& op : program.classes[0].segments[static_cast<std::size_t>(step.segment)].ops) {
      bytes += static_cast<double>(op.traffic.value);
      if (op.name.starts_with("loss")) of_loss += static_cast<double>(op.traffic.value);
    }
  }
  EXPECT_NEAR(bytes, 163.2e9, 0.1e9);
  EXPECT_NEAR(of_loss, 3 * 65.44 * 100.66e6, 0.3e9);
}

}  // namespace
}  // namespace orrery
