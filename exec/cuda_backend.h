// SPDX-License-Identifier: Apache-2.0
//
// Executors on GPUs. Internal to exec/.
#pragma once

#include "exec/executor.h"

namespace orrery::exec {

// For ranks that are threads of this process and share its first GPU: they compute what ranks on GPUs of
// their own do, one after the other. Throws Error where there is no GPU, or none was built for.
ExecutorFactory on_shared_gpu();
// For a rank that is this process, the host's number `local_rank`, on a GPU of its own (exec/launch.h): ranks
// exchange data by NCCL.
ExecutorFactory on_own_gpu(int local_rank);

}  // namespace orrery::exec
