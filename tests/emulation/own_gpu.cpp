// SPDX-License-Identifier: Apache-2.0
//
// NCCL is not emulated: on the emulated GPU ranks are threads.
#include "core/error.h"
#include "exec/cuda_backend.h"

namespace orrery::exec {

ExecutorFactory on_own_gpu(int) {
  throw Error("ranks on the emulated GPU are threads");
}

}  // namespace orrery::exec
