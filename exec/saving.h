// SPDX-License-Identifier: Apache-2.0
//
// What a rank writes of a checkpoint: at once, or beside the steps that follow, from a copy of its state.
// Internal to exec/.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "exec/checkpoint.h"

namespace orrery::exec {

// A rank's state at the end of a step. To copy it would leave pointers to the original's memory.
struct Snapshot {
  Snapshot() = default;
  Snapshot(Snapshot&&) = default;
  Snapshot& operator=(Snapshot&&) = default;

  std::vector<std::vector<std::byte>> copies;  // where it is not in the rank's own memory
  std::vector<UnitMemory> units;
};

class Saving {
 public:
  // Into `folder`, which is there. `beside`: by a thread of its own, and the snapshot refers to no memory but
  // its copies. `fails`: an injected fault, in place of the write.
  Saving(std::filesystem::path folder, const program::Program& program, std::int64_t rank, Snapshot snapshot,
         bool beside, bool fails);

  bool done() const { return done_.load(std::memory_order_acquire); }
  void wait() {
    if (writer_.joinable()) writer_.join();
  }
  // Once it is done: the file, or why there is none.
  const CheckpointFile& file() const { return file_; }
  const std::string& failure() const { return failure_; }

 private:
  CheckpointFile file_;
  std::string failure_;
  std::atomic<bool> done_{false};
  std::jthread writer_;
};

}  // namespace orrery::exec
