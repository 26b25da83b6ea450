// SPDX-License-Identifier: Apache-2.0
//
// What the line of progress says.
#include "cli/progress.h"

#include <gtest/gtest.h>

namespace orrery::cli {
namespace {

TEST(Progress, SaysWhatIsLeftOnceEnoughIsDone) {
  // A quarter is done after 5 s of the phase: 15 s are left.
  EXPECT_EQ(progress_line("searching", 0.25, 12, 5),
            "searching [#######                       ]  25 %, 12 s, about 15 s left");
  // 10 % after 60 s: 9 minutes.
  EXPECT_EQ(progress_line("searching", 0.1, 60, 60),
            "searching [###                           ]  10 %, 60 s, about 9 min left");
  // Too little is known.
  EXPECT_EQ(progress_line("searching", 0.04, 60, 60),
            "searching [#                             ]   4 %, 60 s");
  EXPECT_EQ(progress_line("searching", 0.5, 3, 0.5), "searching [###############               ]  50 %, 3 s");
  // Its share is not known.
  EXPECT_EQ(progress_line("reading", 0, 3, 3), "reading, 3 s");
  // Whatever is said, the bar keeps its length.
  EXPECT_EQ(progress_line("x", 1.5, 2, 2), "x [##############################] 100 %, 2 s, about 0 s left");
}

}  // namespace
}  // namespace orrery::cli
