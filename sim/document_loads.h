// SPDX-License-Identifier: Apache-2.0
//
// What documents of unequal length do to a step (Training::documents). A program's attention is that of a
// mean sequence; a sequence of one long document has more pairs of tokens, and one of many short ones fewer.
// A micro-batch of w times the mean pairs takes w A for its attention on a stage. Without a pipeline a
// replica's step is longer by the sum of (w_j - 1) A over its micro-batches j. In a pipeline, stages wait for
// each other: a long micro-batch takes its time on each of them, one after the other, and in a steady state
// all others wait meanwhile, less what they wait anyway as another stage has more to do. The schedule is
// walked with these times, and with those of mean micro-batches; all but attention takes as long in all of
// them.
//
// The replica that is longest paces the step. Replicas that meet in every micro-batch, as they share experts
// or ZeRO-2's and ZeRO-3's shards, take in each micro-batch as long as the longest of them. Ranks that share
// sequences have two of 2c parts of each (zig-zag). Under a causal mask all ranks have as many pairs; within
// documents they do not, and the rank with most of them paces its sequence, around a ring in each step.
//
// Some sequences are drawn once, 1,024 where they are of few documents; batches are drawn from these.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/plan.h"
#include "core/training.h"

namespace orrery::sim {

// Of a stage and a mean micro-batch, in any unit: its attention within documents, forward and in all, and all
// of its work.
struct StageLoad {
  double forward = 0, attention = 0, all = 0;
};

class DocumentLoads {
 public:
  explicit DocumentLoads(const Training& training);

  bool even() const { return !lengths_; }  // there are no documents
  // How much longer a step takes in the mean, in the unit of the loads, of which there is one for each stage.
  // Memoised by rounded loads.
  double longer(const Plan& plan, const std::vector<StageLoad>& stages);
  // Of one draw of the step, by micro-batch: w of the replica that paces it.
  std::vector<double> drawn(const Plan& plan, std::uint64_t draw);

 private:
  // Of a plan, what loads depend on.
  struct Batch {
    std::int64_t ring = 1;
    bool rings = false;
    std::int64_t replicas = 1, together = 1;  // that many meet in every layer
    std::int64_t micro_batch = 1, micro_batches = 1, pp = 1;
    friend auto operator<=>(const Batch&, const Batch&) = default;
  };
  static Batch batch_of(const Plan& plan);
  using Loads = std::vector<double>;  // by micro-batch
  const std::vector<double>& sequences(std::int64_t ring, bool rings);
  Loads longest(const Batch& of, std::uint64_t draw);
  const std::vector<Loads>& draws(const Batch& of);
  // What a walk depends on beside the batch.
  struct Walk {
    Batch batch;
    std::int64_t vpp = 1;
    Schedule schedule = Schedule::k1F1B;
    bool in_pairs = false;
    std::vector<std::int64_t> loads;
    friend auto operator<=>(const Walk&, const Walk&) = default;
  };

  std::int64_t sequence_ = 0;
  std::optional<DocumentLengths> lengths_;
  std::vector<std::vector<std::int32_t>> drawn_;  // where documents end, by sequence
  std::map<std::pair<std::int64_t, bool>, std::vector<double>> sequences_;  // w, by ring
  std::map<Batch, std::vector<Loads>> draws_;
  std::map<Walk, double> longer_;
};

}  // namespace orrery::sim
