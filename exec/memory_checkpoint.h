// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints in the memory of ranks (GEMINI: Wang et al., SOSP 2023, doi 10.1145/3600006.3613145): a rank
// holds its own part, and gives it to the ranks after it, as in a ring. Where of each part a rank is left
// that holds it, the run goes on without storage, under any plan. The ranks that go on have to hold them:
// those that a smaller plan has no place for take theirs with them.
//
//   MemoryCheckpoints memory(2);                        // of a process, or of a thread; it outlives starts
//   memory.keep(exchange, program, index, part);        // all ranks, after a step
//   auto state = memory.restore(exchange, program);     // all ranks of the next start
//
// Each rank holds as many parts as there are replicas, of the two newest checkpoints: while one is passed on,
// the one before is whole. Parts are those of files of checkpoints (exec/checkpoint.h), with the same checks;
// a part that is damaged counts as lost.
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
  // `replicas`: ranks that hold each part, its own among them; as many as there are ranks at the most.
  explicit MemoryCheckpoints(std::int64_t replicas) : replicas_(replicas) {}

  // `index` has no files or tensors. Returns when this rank has its own part and those of the ranks before
  // it.
  void keep(Exchange& exchange, const program::Program& program, CheckpointIndex index, MemoryPart own);

  // The newest of which some rank or other holds every part; nothing where there is none. Later ones are
  // forgotten.
  std::optional<RestoredState> restore(Exchange& exchange, const program::Program& program);

  // Names the parts that this rank holds.
  std::string inventory() const;
  // How many steps the newest checkpoint has done of which all ranks together hold every part.
  static std::optional<std::int64_t> newest(const std::vector<std::string>& inventories);

  // A rank that dies loses what it holds.
  void clear() { kept_.clear(); }
  bool empty() const { return kept_.empty(); }
  std::int64_t replicas() const { return replicas_; }

 private:
  struct Kept {
    CheckpointIndex index;
    std::int64_t program = 0;                  // its hash: ranks of another plan have other parts
    std::int64_t ranks = 0;                    // of its plan, and so parts
    std::map<std::int64_t, MemoryPart> parts;  // by rank
  };

  std::int64_t replicas_;
  std::map<std::int64_t, Kept> kept_;  // by steps done
};

}  // namespace orrery::exec
