// SPDX-License-Identifier: Apache-2.0
//
// In place of cuda/ where there is no CUDA toolkit.
#include "exec/gpus.h"

namespace orrery::exec {

Gpus find_gpus() {
  return {.problem = "built without the CUDA toolkit"};
}

}  // namespace orrery::exec
