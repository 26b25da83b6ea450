// SPDX-License-Identifier: Apache-2.0
//
// One run at a time writes checkpoints into a folder. The lock is the kernel's, on a file of the folder, so
// it ends with its process however that ends. Internal to exec/.
#pragma once

#include <filesystem>

namespace orrery::exec {

class CheckpointLock {
 public:
  // Makes the folder where it is missing. Throws Error, with the pid and host of the holder, when another run
  // has the lock and keeps it for two seconds: a run that just died may need some of them.
  explicit CheckpointLock(const std::filesystem::path& folder);
  ~CheckpointLock();
  CheckpointLock(const CheckpointLock&) = delete;
  CheckpointLock& operator=(const CheckpointLock&) = delete;

 private:
  int file_;
};

}  // namespace orrery::exec
