// SPDX-License-Identifier: Apache-2.0
//
// What a pass of serving takes on a cluster: the tokens of prompts (prefill), one token of each sequence
// (decode), or both. The pass's program (program/serving.h) goes through the event engine, as a training step
// does. A mix of prompts and decodes has no program of its own; with n tokens in all it takes
//
//   T = L(n) + A(decodes) + sum of A(prompts)
//
// L(n): a pass of n tokens without its attention, at sizes that double at most, and in a line between them;
// A: attention, op by op. Of a decode alone, and of one prompt alone, this is the engine's time to the
// interpolation.
//
// Ranks that share experts (dp, ep) have sequences of their own, and so have the stages of a pipeline: while
// a group of sequences is in one stage, another is in the next. Each such group is a *lane*. A lane's pass
// takes the way through all stages, or, where one stage takes longer than an even share of it, as often that
// stage.
//
//   PassModel passes(problem, topology, plan);        // problem: of served_problem()
//   passes.decode(64, 1500);                          // 64 sequences of 1,500 tokens
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/scenario.h"
#include "program/serving.h"
#include "sim/cost.h"
#include "sim/topology/topology.h"

namespace orrery::sim {

// Software that serves, in profiles/serving: a stack whose fields of training say nothing.
Stack load_serving_stack(const std::string& name, const Cursor& at, const DataFolders& data);

// The problem as it is served: `stack` runs it, in the formats that `serving` says.
Problem served_problem(Problem problem, const Serving& serving, Stack stack);

// Tokens of a prompt that a pass computes, and those of it that are in the cache.
struct PromptPart {
  std::int64_t tokens = 0, cached = 0;
};
struct PassMix {
  std::int64_t decodes = 0;   // sequences
  double decode_context = 0;  // tokens of each that are in the cache, in the mean
  std::span<const PromptPart> prompts;
};

// Bytes of a rank of the stage that has most.
struct ServedMemory {
  std::int64_t weights = 0, workspace = 0, overhead = 0;  // overhead: context and communicators
  std::int64_t device = 0;                                // what the device has
};

class PassModel {
 public:
  // All must outlive it. Precondition: check_plan passes, and program::serving_problem is empty.
  PassModel(const Problem& problem, const Topology& topology, const Plan& plan,
            std::int64_t cache_element_bytes);

  // Through the engine: so many sequences with so many new tokens each.
  Time through_engine(std::int64_t sequences, std::int64_t tokens, std::int64_t cached) const;

  Time time(const PassMix& mix) const;
  Time decode(std::int64_t sequences, double context) const { return time({sequences, context, {}}); }
  Time prefill(std::int64_t tokens) const;

  const Plan& plan() const { return plan_; }
  std::int64_t lanes() const { return plan_.pp * plan_.dp; }
  // Bytes of a rank for a sequence of so many tokens, of the stage that has most.
  std::int64_t cache_bytes(std::int64_t tokens) const;
  // With room for a pass of so many tokens, and one of so many sequences.
  ServedMemory memory(std::int64_t pass_tokens, std::int64_t sequences) const;
  // FLOPs and bytes of a decode, of all ranks of a copy of the model.
  double decode_flops(std::int64_t sequences, std::int64_t context) const;

 private:
  struct Cost {
    double total = 0;    // s, attention left out
    double busiest = 0;  // of the stage with most, likewise
    std::int64_t workspace = 0, weights = 0;
  };
  // An op of attention of a stage, and how often it has it.
  struct Attention {
    program::Op op;
    std::int64_t times = 0;
  };
  struct Compiled {
    program::Program program;
    Time step;
  };
  Compiled compile(std::int64_t sequences, std::int64_t tokens, std::int64_t cached) const;
  const Cost& linear_at(std::int64_t tokens, bool decodes) const;
  Cost linear(std::int64_t tokens, bool decodes) const;
  // Seconds of all stages, and of the one with most.
  std::pair<double, double> attention(std::int64_t sequences, std::int64_t tokens, double cached) const;
  std::int64_t weight_bytes(const program::RankClass& rank) const;

  const Problem& problem_;
  const Topology& topology_;
  const Plan plan_;
  const std::int64_t element_bytes_;  // of the cache
  const PlanLinks links_;
  const CostModel cost_;
  const std::vector<NodeTypes> types_;
  std::vector<std::vector<Attention>> attention_;                // by stage
  mutable std::map<std::pair<std::int64_t, bool>, Cost> known_;  // by tokens, and whether they are of decodes
};

}  // namespace orrery::sim
