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
  EXPECT_LT(tpot.median, 0.2);
  EXPECT_LT(ttft.median, 0.5);
}

}  // namespace
}  // namespace orrery::sim
