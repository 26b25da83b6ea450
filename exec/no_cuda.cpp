// SPDX-License-Identifier: Apache-2.0
//
// In place of cuda/ where there is no CUDA toolkit.
#include "core/error.h"
#include "exec/cuda_backend.h"
#include "exec/gpus.h"

namespace orrery::exec {

namespace {

[[noreturn]] void fail() {
  throw Error("this program was built without the CUDA toolkit: it runs plans on the CPU only");
}

}  // namespace

ExecutorFactory on_shared_gpu() {
  fail();
}
ExecutorFactory on_own_gpu(int) {
  fail();
}

Gpus find_gpus() {
  return {.problem = "built without the CUDA toolkit"};
}

}  // namespace orrery::exec
