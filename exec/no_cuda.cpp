// SPDX-License-Identifier: Apache-2.0
//
// In place of cuda/ where there is no CUDA toolkit.
#include "core/error.h"
#include "exec/cuda_backend.h"
#include "exec/gpus.h"

namespace orrery::exec {

ExecutorFactory on_shared_gpu() {
  throw Error("this program was built without the CUDA toolkit: it runs plans on the CPU only");
}

Gpus find_gpus() {
  return {.problem = "built without the CUDA toolkit"};
}

}  // namespace orrery::exec
