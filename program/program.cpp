// SPDX-License-Identifier: Apache-2.0
#include "program/program.h"

#include <fmt/format.h>

#include <bit>

namespace orrery::program {

std::vector<Feed> feeds_of(const Model& model, const Training& training) {
  std::vector<Feed> out;
  const std::vector<std::int64_t> tokens = tower_tokens(model, training);
  const std::vector<Input> inputs = model.all_inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Feed& f = out.emplace_back(
        Feed{.of = Feed::Of::kInput, .number = static_cast<std::int32_t>(i), .elements = tokens[i]});
    if (const auto* bags = std::get_if<BagInput>(&inputs[i].is)) f.elements = bags->tables * bags->ids;
    if (const auto* image = std::get_if<PatchInput>(&inputs[i].is)) {
      f.columns = image->values();
      f.elements = image->patches() * f.columns;
      f.type = training.activation_type();
    }
  }
  for (std::int32_t k = 0; k <= model.mtp_layers; ++k)
    out.push_back({.of = Feed::Of::kTargets, .number = k, .elements = loss_rows(model, training)});
  if (training.packs()) out.push_back({.of = Feed::Of::kDocuments, .elements = tokens.front()});
  return out;
}

Program outer_round(Program program) {
  for (RankClass& rank : program.classes) rank.steps = std::move(rank.outer);
  return program;
}

std::string describe_op(const RankClass& c, const Step& step, const Op& op) {
  const Segment& s = c.segments[static_cast<std::size_t>(step.segment)];
  return fmt::format("{} of {}[chunk {}, micro-batch {}] on stage {}", op.name,
                     kSegmentNames[static_cast<std::size_t>(s.kind)], s.chunk, step.micro_batch, c.stage);
}

std::int64_t Program::footprint_bytes() const {
  std::size_t total = sizeof(Program);
  for (const RankClass& c : classes) {
    total += sizeof(RankClass) + c.buffers.size() * sizeof(Buffer) + c.parameters.size() * sizeof(Parameter) +
             c.units.size() * sizeof(Unit) + (c.steps.size() + c.outer.size()) * sizeof(Step) +
             c.waits.size() * sizeof(ExternalWait);
    for (const Buffer& b : c.buffers) total += b.name.capacity();
    for (const Segment& s : c.segments) {
      total += sizeof(Segment) + s.memory.size() * sizeof(MemoryEvent);
      for (const Op& op : s.ops) {
        total += sizeof(Op) + op.name.capacity() + (op.reads.capacity() + op.writes.capacity()) * sizeof(Ref);
      }
    }
  }
  return static_cast<std::int64_t>(total);
}

std::int64_t Program::ops_per_step() const {
  std::int64_t total = 0;
  for (const RankClass& c : classes) {
    for (const Step& s : c.steps) {
      total += static_cast<std::int64_t>(c.segments[static_cast<std::size_t>(s.segment)].ops.size());
    }
  }
  return total;
}

std::int64_t Program::hash() const {
  std::uint64_t h = 1469598103934665603ULL;  // FNV-1a
  const auto mix = [&](std::uint64_t v) {
    for (int i = 0; i < 8; ++i) {
      h ^= v >> (8 * i) & 0xff;
      h *= 1099511628211ULL;
    }
  };
  for (const RankClass& c : classes) {
    for (const Segment& s : c.segments) {
      for (const Op& op : s.ops) {
        for (const char ch : op.name) mix(static_cast<unsigned char>(ch));
        const OpKey key = key_of(op.kind);
        mix(key.type);
        for (const std::int64_t field : key.fields) mix(static_cast<std::uint64_t>(field));
        mix(static_cast<std::uint64_t>(op.stream));
        mix(static_cast<std::uint64_t>(op.group));
        mix(op.recomputed);
        mix(op.accumulate);
        mix(static_cast<std::uint64_t>(op.peer_chunk));
      }
    }
    for (const Step& s : c.steps) {
      mix(static_cast<std::uint64_t>(s.segment));
      mix(static_cast<std::uint64_t>(s.micro_batch));
    }
  }
  for (const MeshAxis& axis : mesh.axes()) {
    for (const char ch : axis.name) mix(static_cast<unsigned char>(ch));
    mix(static_cast<std::uint64_t>(axis.size));
    mix(static_cast<std::uint64_t>(axis.stride));
  }
  const Optimizer& o = training.optimizer;
  for (const double d : {o.beta1, o.beta2, o.epsilon, o.trust}) mix(std::bit_cast<std::uint64_t>(d));
  mix(static_cast<std::uint64_t>(o.decay));
  if (training.muon) {  // of which the ops have the rest
    for (const double d : {training.muon->momentum, training.muon->scale})
      mix(std::bit_cast<std::uint64_t>(d));
    mix(static_cast<std::uint64_t>(training.muon->nesterov));
  }
  if (plan.islands > 1) {
    const OuterOptimizer& outer = training.outer.value();
    mix(static_cast<std::uint64_t>(outer.every));
    for (const double d : {outer.learning_rate, outer.momentum}) mix(std::bit_cast<std::uint64_t>(d));
  }
  return static_cast<std::int64_t>(h >> 1);
}

}  // namespace orrery::program
