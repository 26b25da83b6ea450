// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "core/error.h"

namespace orrery::kernels::cuda {

// Throws Error, which says what failed and why.
inline void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(e));
}

}  // namespace orrery::kernels::cuda
