// SPDX-License-Identifier: Apache-2.0
//
// The emulated GPU, as `orrery doctor` and `--backend cuda` find it.
#include "exec/gpus.h"

namespace orrery::exec {

Gpus find_gpus() {
  return {
      .problem = {},
      .runtime = "emulated",
      .driver = "emulated",
      .nccl = {},
      .cudnn = {},
      .devices = {{.name = "emulated GPU", .bus = {}, .major = 9, .units = 1, .memory = Bytes{1LL << 30}}}};
}

}  // namespace orrery::exec
