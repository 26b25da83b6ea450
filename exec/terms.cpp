// SPDX-License-Identifier: Apache-2.0
#include "exec/terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "core/text.h"
#include "exec/data.h"
#include "exec/hugging_face_weights.h"
#include "exec/memory_checkpoint.h"

namespace orrery::exec {
namespace {

// The number that the shortest text of a float has: 0.003, and not 0.003000000026.
double shortest(float f) {
  return std::strtod(fmt::format("{}", f).c_str(), nullptr);
}

void add_differences(const Json& first, const Json& second, const std::string& pointer,
                     std::vector<Difference>& out) {
  Json keys = first;  // and what the second has beside
  keys.update(second);
  for (const auto& [key, one] : keys.items()) {
    const Json value = first.value(key, Json()), other = second.value(key, Json());
    const std::string at = pointer + "/" + key;
    if (value.is_object() && other.is_object())
      add_differences(value, other, at, out);
    else if (value != other)
      out.push_back({at, value.dump(), other.dump()});
  }
}

}  // namespace

std::optional<Adapter> in_order(std::optional<Adapter> adapter) {
  if (adapter) std::sort(adapter->targets.begin(), adapter->targets.end());
  return adapter;
}

Recipe recipe_of(const program::Program& program, const RunOptions& o, const Dataset& data) {
  const Training& t = program.training;
  Recipe r;
  r.data = data.identity();
  if (o.weights != nullptr) r.weights = o.weights->identity;
  r.seed = static_cast<std::int64_t>(o.seed);
  r.global_batch = t.global_batch;
  r.sequence = t.sequence;
  if (t.target_sequence > 0) r.target_sequence = t.target_sequence;
  r.steps = o.steps;
  r.learning_rate = shortest(o.learning_rate);
  r.warm_up = o.warm_up;
  r.decay_to = shortest(o.decay_to);
  r.weight_decay = shortest(o.weight_decay);
  r.update = t.muon                           ? "muon"
             : t.lars                         ? "lars"
             : t.precision == Precision::kSgd ? "sgd"
             : t.lamb                         ? "lamb"
                                              : "adam";
  r.muon = t.muon;
  r.optimizer = t.optimizer;
  r.clip = t.clip;
  r.dropout = t.dropout;
  r.documents = t.documents;
  if (t.packs()) r.end_token = o.end_token;
  r.adapter = in_order(t.adapter);
  r.islands = program.plan.islands;
  if (r.islands > 1) r.outer = t.outer;
  return r;
}

JobTerms terms_of(const program::Program& program, const RunOptions& o, const Dataset& data,
                  std::int64_t first_step) {
  JobTerms out;
  out.program = program.hash();
  out.first_step = first_step;
  out.recipe = recipe_of(program, o, data);
  if (program.training.scales_loss()) {
    out.loss_scale = o.loss_scale;
    out.loss_scale_window = o.loss_scale_window;
  }
  if (o.validation != nullptr) out.validation = o.validation->identity();
  out.validate_every = o.validate_every;
  out.validation_batches = o.validation_batches;
  if (!o.checkpoints.empty())
    out.checkpoints = printable(std::filesystem::absolute(o.checkpoints / "").lexically_normal().string());
  out.checkpoint_every = o.checkpoint_every;
  out.async_checkpoints = o.async_checkpoints;
  out.memory_every = o.memory_every;
  if (o.memory != nullptr) out.memory_replicas = o.memory->front().replicas();
  out.checkpoint_seconds = o.checkpoint_seconds;
  return out;
}

std::vector<Difference> differences(const Json& first, const Json& second) {
  std::vector<Difference> out;
  add_differences(first, second, "", out);
  return out;
}

std::vector<Difference> differences(const Recipe& written, const Recipe& now) {
  Recipe as_long = written;
  as_long.steps = now.steps;
  return differences(write_fields(as_long), write_fields(now));
}

}  // namespace orrery::exec
