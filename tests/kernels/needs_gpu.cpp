// SPDX-License-Identifier: Apache-2.0
//
// Tests that this is linked to are skipped where no GPU is.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

namespace {

class NeedsGpu : public testing::Environment {
 public:
  void SetUp() override {
    int devices = 0;
    const cudaError_t e = cudaGetDeviceCount(&devices);
    if (e != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no GPU here: " << (e == cudaSuccess ? "no device" : cudaGetErrorString(e));
  }
};

const testing::Environment* const needs_gpu = testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
