// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints in the memory of ranks (GEMINI: Wang et al., SOSP 2023, doi 10.1145/3600006.3613145): a rank
// holds its own part, and gives it to the ranks after it, as in a ring. Where fewer of these die at once than
// hold a part, the run goes on without storage, under any plan.
//
//   MemoryCheckpoints memory(2);                        // of a process, or of a thread; it outlives starts
//   memory.keep(exchange, index, part);                 // all ranks, after a step
//   auto state = memory.restore(exchange, program);     // all ranks of the next start
//
// A rank holds `holders` parts of each of the two newest: while one is passed on, the one before is whole.
// Parts are those of files of checkpoints (exec/checkpoint.h), with the same checks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "exec/checkpoint.h"
#include "exec/exchange.h"

namespace orrery::exec {

// A rank's part: what its file would hold.
struct MemoryPart {
  CheckpointFile file;
  std::string bytes;
};

class MemoryCheckpoints {
 public:
  // `holders`: ranks that hold each part, its own among them; as many as there are ranks at the most.
  explicit MemoryCheckpoints(std::int64_t holders) : holders_(holders) {}

  // `index` has no files or tensors. Returns when this rank has its own part and those of the ranks before
  // it.
  void keep(Exchange& exchange, CheckpointIndex index, MemoryPart own);

  // The newest of which some rank or other holds every part; nothing where there is none. Later ones are
  // forgotten. Throws Error where what is held is damaged.
  std::optional<RestoredState> restore(Exchange& exchange, const program::Program& program);

  // What this rank holds, as text; and, of what all do, the steps that the newest would have done.
  std::string inventory() const;
  static std::optional<std::int64_t> newest(const std::vector<std::string>& inventories);

  // What becomes of it when its rank dies.
  void clear() { kept_.clear(); }
  bool empty() const { return kept_.empty(); }

 private:
  struct Kept {
    CheckpointIndex index;
    std::int64_t ranks = 0;                    // that it was parted into
    std::map<std::int64_t, MemoryPart> parts;  // by rank
  };

  std::int64_t holders_;
  std::map<std::int64_t, Kept> kept_;  // by steps done
};

}  // namespace orrery::exec
