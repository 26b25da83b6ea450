// SPDX-License-Identifier: Apache-2.0
//
// The passes of compile() over one rank class. Internal to program/.
#pragma once

#include "program/program.h"

namespace orrery::program {

// Decides each buffer's life from what the ops touch, when it is allocated and freed, how many
// instances it has, where it stands in the arena, and the peak of it all.
void place_buffers(RankClass& rank);
// Copies of a buffer that are there whatever is in flight: static ones, and the extra copies of what is sent
// and received.
std::int64_t copies_always_live(const RankClass& rank, const Buffer& buffer);

// Derives the waits between streams from what the ops read and write.
void link_waits(RankClass& rank);

using Counts = std::array<std::int64_t, kStreamCount>;

// What each op of a walk in issue order must come after, by stream: the writes of what it reads, all uses of
// what it writes, and all uses of what stood in the memory of a buffer that begins to live. Static and kept
// buffers that one stream touches need no following. Ordinals count a stream's ops from 1.
class Hazards {
 public:
  explicit Hazards(const RankClass& rank);
  void begin_step() { ++step_; }
  Counts requirements(const Op& op, std::int32_t micro_batch);
  void record(const Op& op, std::int32_t micro_batch, std::int64_t ordinal);

 private:
  struct Access {
    std::int32_t write_stream = -1;
    std::int64_t write = 0;
    Counts reads{};
  };
  Access* access(const Ref& r, std::int32_t micro_batch);
  void move_in(std::int32_t buffer, Counts& need);

  const RankClass& rank_;
  std::vector<std::int32_t> first_;  // buffer -> its first instance in accesses_, or -1
  std::vector<Access> accesses_;
  // Local buffers share memory: who stood where last, and the step in which each moved in.
  std::vector<std::int32_t> tenants_;
  std::vector<std::int64_t> moved_in_;
  std::int64_t step_ = 0;
};

}  // namespace orrery::program
