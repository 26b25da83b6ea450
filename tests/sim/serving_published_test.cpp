// SPDX-License-Identifier: Apache-2.0
//
// Published runs of serving (tests/data/serving_runs.json): how far predictions are from them.
#include <gtest/gtest.h>

#include "sim/calibration/score.h"
#include "sim/calibration/validate.h"

namespace orrery::sim {
namespace {

const Validation& published() {
  static const Validation v = validate_file(ORRERY_ROOT "/tests/data/serving_runs.json", DataFolders());
  return v;
}

TEST(ServingPublished, MoreThanTwentyRowsArePredicted) {
  EXPECT_EQ(published().read, 139);
  EXPECT_GT(summarise(published().rows, {"tpot"}).n, 100);
  EXPECT_GT(summarise(published().rows, {"ttft"}).n, 100);
}

// docs/serving.md states these errors.
TEST(ServingPublished, ErrorsAreAsStated) {
  const ErrorSummary tpot = summarise(published().rows, {"tpot"}),
                     ttft = summarise(published().rows, {"ttft"});
  EXPECT_NEAR(tpot.median, 0.099, 0.01);
  EXPECT_NEAR(tpot.mape, 0.141, 0.015);
  EXPECT_NEAR(tpot.bias, 0.01, 0.02);
  EXPECT_NEAR(ttft.median, 0.406, 0.04);
  EXPECT_NEAR(ttft.mape, 0.442, 0.04);
}

}  // namespace
}  // namespace orrery::sim
