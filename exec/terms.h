// SPDX-License-Identifier: Apache-2.0
//
// What all ranks of a job must agree on, and what a checkpoint says of the training that wrote it.
//
//   JobTerms mine = terms_of(program, options, data, first_step);
//   for (const Difference& d : differences(write_fields(other), write_fields(mine))) ...
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/fields.h"
#include "core/training.h"
#include "exec/run.h"

namespace orrery::exec {

// What is trained, under whatever plan.
struct Recipe {
  std::string data;     // Dataset::identity
  std::string weights;  // that it started from: Weights::identity; empty: those of the seed
  std::int64_t seed = 1, global_batch = 1, sequence = 1;
  std::optional<std::int64_t> target_sequence;
  std::int64_t steps = 1;  // to the end of the learning rate's decay
  double learning_rate = 0;
  std::int64_t warm_up = 0;
  double decay_to = 1, weight_decay = 0;
  std::string update;  // adam, lamb, sgd, lars or muon
  Optimizer optimizer;
  double clip = 1, dropout = 0;
  std::optional<Documents> documents;
  std::optional<std::int64_t> end_token;  // of documents in the data
  std::optional<Muon> muon;
  std::optional<Adapter> adapter;
  std::int64_t islands = 1;
  std::optional<OuterOptimizer> outer;  // where there are several
};

// As recipes have it: targets in order.
std::optional<Adapter> in_order(std::optional<Adapter> adapter);

struct JobTerms {
  std::int64_t program = 0;  // its hash
  std::int64_t first_step = 0;
  Recipe recipe;
  double loss_scale = 0;
  std::int64_t loss_scale_window = 0;
  std::string validation;  // Dataset::identity; empty: none
  std::int64_t validate_every = 0, validation_batches = 0;
  std::string checkpoints;  // folder, as an absolute path; empty: none
  std::int64_t checkpoint_every = 0;
  double checkpoint_seconds = 0;
  bool async_checkpoints = false;
  std::int64_t memory_every = 0, memory_replicas = 0;
};

template <class V>
void describe(V& v, Recipe& r) {
  constexpr double kMost = 9.3e18;
  v(Field{.name = "data", .help = "what it trains on: size, kind and checksum", .required = true}, r.data);
  v(Field{.name = "weights", .help = "that it started from; absent: those of the seed"}, r.weights);
  v(Field{.name = "seed", .help = "of weights and the order of data", .min = -kMost, .max = kMost}, r.seed);
  v(Field{.name = "global_batch", .help = "sequences per step", .min = 1, .max = kMost}, r.global_batch);
  v(Field{.name = "sequence", .help = "tokens per sequence", .min = 1, .max = kMost}, r.sequence);
  v(Field{.name = "target_sequence",
          .help = "tokens of a target, where they are not as many",
          .min = 1,
          .max = kMost},
    r.target_sequence);
  v(Field{.name = "steps", .help = "at whose end the learning rate has decayed", .min = 1, .max = kMost},
    r.steps);
  v(Field{.name = "learning_rate", .help = "the largest", .min = 0, .max = 1e30}, r.learning_rate);
  v(Field{.name = "warm_up", .help = "steps over which it grows", .min = 0, .max = kMost}, r.warm_up);
  v(Field{.name = "decay_to", .help = "share of it at the last step", .min = 0, .max = 1}, r.decay_to);
  v(Field{.name = "weight_decay", .help = "of AdamW", .min = 0, .max = 1e30}, r.weight_decay);
  v(Field{.name = "update", .help = "adam, lamb, sgd, lars or muon"}, r.update);
  v(Field{.name = "optimizer", .help = "constants"}, r.optimizer);
  v(Field{.name = "clip", .help = "largest gradient norm", .min = 0, .max = 1e30}, r.clip);
  v(Field{.name = "dropout", .help = "probability", .min = 0, .max = 1}, r.dropout);
  v(Field{.name = "documents", .help = "that sequences are packed from"}, r.documents);
  v(Field{.name = "end_token",
          .help = "that ends a document in the data; absent: ends are drawn",
          .min = 0,
          .max = kMost},
    r.end_token);
  v(Field{.name = "muon", .help = "its constants"}, r.muon);
  v(Field{.name = "adapter", .help = "that alone is trained"}, r.adapter);
  v(Field{.name = "islands", .help = "that train on their own", .min = 1, .max = limits::kMostIslands},
    r.islands);
  v(Field{.name = "outer", .help = "how islands exchange what they have learned"}, r.outer);
}
template <class V>
void describe(V& v, JobTerms& t) {
  v(Field{.name = "program", .help = "hash of its ops"}, t.program);
  v(Field{.name = "checkpoints", .help = "folder"}, t.checkpoints);
  v(Field{.name = "first_step", .help = "steps that a checkpoint has done"}, t.first_step);
  v(Field{.name = "recipe", .help = "what is trained"}, t.recipe);
  v(Field{.name = "loss_scale", .help = "the first; fp16"}, t.loss_scale);
  v(Field{.name = "loss_scale_window", .help = "steps after which it doubles; fp16"}, t.loss_scale_window);
  v(Field{.name = "validation", .help = "data held out"}, t.validation);
  v(Field{.name = "validate_every", .help = "steps"}, t.validate_every);
  v(Field{.name = "validation_batches", .help = "of a validation"}, t.validation_batches);
  v(Field{.name = "checkpoint_every", .help = "steps"}, t.checkpoint_every);
  v(Field{.name = "checkpoint_seconds", .help = "seconds"}, t.checkpoint_seconds);
  v(Field{.name = "async_checkpoints", .help = "beside steps"}, t.async_checkpoints);
  v(Field{.name = "memory_every", .help = "steps"}, t.memory_every);
  v(Field{.name = "memory_replicas", .help = "ranks"}, t.memory_replicas);
}

Recipe recipe_of(const program::Program& program, const RunOptions& options, const Dataset& data);
JobTerms terms_of(const program::Program& program, const RunOptions& options, const Dataset& data,
                  std::int64_t first_step);

// A value that two objects of the same fields have differently.
struct Difference {
  std::string pointer, first, second;
};
std::vector<Difference> differences(const Json& first, const Json& second);

// Why a run may not go on from what `written` trained; empty when it may. Another number of steps is no
// reason.
std::vector<Difference> differences(const Recipe& written, const Recipe& now);

}  // namespace orrery::exec
