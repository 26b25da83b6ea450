// SPDX-License-Identifier: Apache-2.0
//
// Published training runs (tests/data/README.md): how wrong we are stays known.
#include "sim/calibration/validate.h"

#include <gtest/gtest.h>

namespace orrery::sim {
namespace {

const Validation& published() {
  static const Validation v = validate_file(ORRERY_ROOT "/tests/data/training_runs.json", DataFolders());
  return v;
}

TEST(Validation, EveryShippedRowIsPredicted) {
  EXPECT_TRUE(published().skipped.empty());
  EXPECT_EQ(summarise(published().rows, "step_time").n, published().read);
  EXPECT_GT(published().read, 100);
}

TEST(Validation, ErrorsAreWhatTheDocumentsSay) {
  const auto mape = [](const char* source) { return summarise(published().rows, "step_time", source).mape; };
  EXPECT_LT(mape("korthikanti"), 0.06);
  EXPECT_LT(mape("dgxc"), 0.06);
  EXPECT_LT(mape("internevo"), 0.075);
  EXPECT_LT(mape("zero_bubble"), 0.12);
  EXPECT_LT(mape("megatron_sc21"), 0.12);
  EXPECT_LT(mape("torchtitan"), 0.19);
}

// The interval printed beside a prediction is one: about 80 % of the runs fall into their stack's.
TEST(Validation, IntervalsHoldTheShareTheyClaim) {
  const DataFolders data;
  const Stack core = load_stack("megatron-core", {}, data);
  std::int64_t n = 0, inside = 0;
  for (const ValidationRow& r : published().rows) {
    if (r.quantity != "step_time" || (r.source != "dgxc" && r.source != "internevo")) continue;
    const double ratio = r.published / r.predicted;
    ++n;
    inside += ratio >= core.measured_low && ratio <= core.measured_high;
  }
  EXPECT_GT(n, 70);
  EXPECT_GT(static_cast<double>(inside), 0.7 * static_cast<double>(n));
  EXPECT_LT(inside, n);
}

}  // namespace
}  // namespace orrery::sim
