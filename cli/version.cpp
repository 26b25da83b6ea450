// SPDX-License-Identifier: Apache-2.0
#include "cli/version.h"

#include "orrery_commit.h"  // of the build (cmake/OrreryCommit.cmake)

namespace orrery::cli {

std::string version() {
  const std::string commit = ORRERY_COMMIT;
  return ORRERY_VERSION + (commit.empty() ? "" : " (" + commit + ")");
}

}  // namespace orrery::cli
