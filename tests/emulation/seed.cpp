// SPDX-License-Identifier: Apache-2.0
//
// Every test on the emulated GPU has its own order of streams and threads; ORRERY_SEED draws others.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "cuda_runtime.h"

namespace {

class SeedPerTest : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    const char* const given = std::getenv("ORRERY_SEED");
    seed_ = static_cast<unsigned>(std::hash<std::string>{}(test.name())) +
            (given == nullptr ? 0U : static_cast<unsigned>(std::atoi(given)));
    emulation::set_seed(seed_);
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (test.result()->Failed()) std::printf("emulated with seed %u\n", seed_);
  }
  unsigned seed_ = 0;
};

[[maybe_unused]] const bool listens = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new SeedPerTest);
  return true;
}();

}  // namespace
