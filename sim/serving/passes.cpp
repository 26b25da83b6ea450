// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/passes.h"

#include <algorithm>
#include <cmath>

#include "program/state/units.h"
#include "sim/engine/engine.h"
#include "sim/place.h"

namespace orrery::sim {
namespace ops = program::ops;

Stack load_serving_stack(const std::string& name, const Cursor& at, const DataFolders& data) {
  const std::filesystem::path path =
      data.find("profiles/serving", name, std::filesystem::path(at.file).parent_path(), at);
  const Cursor file{path.string(), ""};
  auto out = read_fields<Stack>(load_json(path), file);
  if (!out.flash_attention)
    file.child("flash_attention").fail("serving keeps no scores of attention in memory", "allowed: true");
  out.file = file.file;
  return out;
}

Problem served_problem(Problem problem, const Serving& serving, Stack stack) {
  Training& t = problem.scenario.training;
  t = Training{.global_batch = 1,
               .sequence = serving.input_tokens,
               .precision = Precision::kMixed,
               .math = serving.weights == ServedFormat::kFp8 ? Math::kFp8 : Math::kBf16,
               .clip = 0};
  // Weights are stored in 8 bits, and what is multiplied with them is rounded by the op that makes it.
  stack.rounding_reads = stack.rounding_writes = 0;
  problem.stack = std::move(stack);
  for (Device& d : problem.devices) {
    d.sustained = 1;  // that of training is of long steps at the limit of power (docs/models.md)
    // Passes are launched as graphs, whose kernels follow each other sooner: assumed half.
    if (problem.stack.launch == Launch::kGraph) d.kernel_gap = d.kernel_gap / 2;
  }
  return problem;
}

namespace {

// Sizes at which passes are measured: halves between powers of two from 32 on.
std::int64_t grid_below(std::int64_t n) {
  std::int64_t power = 1;
  while (2 * power <= n) power *= 2;
  return power >= 32 && n >= power + power / 2 ? power + power / 2 : power;
}
std::int64_t grid_above(std::int64_t n) {
  const std::int64_t below = grid_below(n);
  if (below == n) return n;
  const bool half = (below & (below - 1)) != 0;
  if (half) return below / 3 * 4;
  return below >= 32 ? below / 2 * 3 : 2 * below;
}

bool is_attention(const program::Op& op) {
  return op.is<ops::CachedAttention>() || op.is<ops::CachedLatentAttention>();
}

// The op as of another pass.
template <class Shape>
void resize(program::Op& op, std::int64_t sequences, std::int64_t tokens, std::int64_t cached) {
  auto* shape = std::get_if<Shape>(&op.kind);
  if (shape == nullptr) return;
  shape->batch = sequences;
  shape->queries = tokens;
  shape->cached = cached;
}

}  // namespace

PassModel::PassModel(const Problem& problem, const Topology& topology, const Plan& plan,
                     std::int64_t cache_element_bytes)
    : problem_(problem),
      topology_(topology),
      plan_(plan),
      element_bytes_(cache_element_bytes),
      links_(plan_links(topology, plan)),
      cost_(problem.devices, problem.stack, problem.cluster, links_, problem.scenario.training),
      types_(node_types_by_stage(problem.cluster, mesh_of(plan))) {
  // Behind so many tokens that no window is left out.
  constexpr std::int64_t kLong = std::int64_t{1} << 30;
  const Compiled one = compile(1, 1, kLong);
  for (const program::RankClass& rank : one.program.classes) {
    std::vector<Attention>& of = attention_.emplace_back();
    std::map<program::OpKey, std::size_t> known;
    for (const program::Segment& segment : rank.segments) {
      for (const program::Op& op : segment.ops) {
        if (!is_attention(op)) continue;
        const auto [at, added] = known.try_emplace(program::key_of(op.kind), of.size());
        if (added) of.push_back({op, 0});
        ++of[at->second].times;
      }
    }
  }
}

PassModel::Compiled PassModel::compile(std::int64_t sequences, std::int64_t tokens,
                                       std::int64_t cached) const {
  Plan plan = plan_;
  plan.micro_batch = sequences;
  plan.micro_batches = 1;
  const KvCache cache{.room = cached + tokens, .cached = cached, .element_bytes = element_bytes_};
  Compiled out{program::compile(problem_.scenario.model, plan,
                                program::pass_of(problem_.scenario.training, tokens, cache), problem_.stack,
                                program::Detail::kUnnamed),
               {}};
  EngineOptions quiet;
  quiet.record = false;
  quiet.scenario = problem_.at;
  out.step = simulate(out.program, place(topology_, out.program, cost_, {.most_places = 8}), quiet).step +
             problem_.stack.pass_overhead;
  return out;
}

Time PassModel::through_engine(std::int64_t sequences, std::int64_t tokens, std::int64_t cached) const {
  return compile(sequences, tokens, cached).step;
}

std::int64_t PassModel::weight_bytes(const program::RankClass& rank) const {
  std::int64_t bytes = 0, narrow = 0;
  for (const program::Unit& u : rank.units)
    bytes += u.elements *
             static_cast<std::int64_t>(bytes_of(program::stored_type(problem_.scenario.training, u.kept)));
  for (const program::Segment& segment : rank.segments) {
    for (const program::Op& op : segment.ops) {
      if (program::format_of(op.kind) == ops::Gemm::Format::kAsStored) continue;
      if (const auto* p = op.as<ops::Gemm>()) narrow += p->n * p->k;
      if (const auto* p = op.as<ops::GroupedGemm>()) narrow += p->weights();
    }
  }
  const std::optional<Adapter>& adapter = problem_.scenario.training.adapter;
  if (adapter && adapter->base != BaseStorage::kAsComputed) return bytes;  // which are fewer already
  return bytes - narrow;                                                   // a byte less each
}

const PassModel::Cost& PassModel::linear_at(std::int64_t tokens, bool decodes) const {
  const auto [at, added] = known_.try_emplace({tokens, decodes});
  Cost& cost = at->second;
  if (!added) return cost;
  const Compiled pass = decodes ? compile(tokens, 1, 1) : compile(1, tokens, 0);
  double all = 0, most = 0, attention = 0, most_attention = 0;
  for (const program::RankClass& rank : pass.program.classes) {
    double here = 0, here_attention = 0;
    std::int64_t held = 0;
    for (const program::Buffer& b : rank.buffers)
      held += b.life == program::Life::kStatic ? b.bytes.value * b.instances : 0;
    cost.workspace = std::max(cost.workspace, rank.logical_peak.value - held);
    cost.weights = std::max(cost.weights, weight_bytes(rank));
    for (const program::Segment& segment : rank.segments) {
      for (const program::Op& op : segment.ops) {
        if (op.is_transfer()) continue;
        const double time = seconds(cost_.op(op, types_of(types_, rank.stage)));
        (is_attention(op) ? here_attention : here) += time;
      }
    }
    all += here;
    attention += here_attention;
    if (here + here_attention > most + most_attention) {
      most = here;
      most_attention = here_attention;
    }
  }
  cost.total = std::max(all, seconds(pass.step) - attention);
  cost.busiest = most + seconds(problem_.stack.pass_overhead) / static_cast<double>(plan_.pp);
  return cost;
}

PassModel::Cost PassModel::linear(std::int64_t tokens, bool decodes) const {
  const std::int64_t low = grid_below(tokens), high = grid_above(tokens);
  const Cost& a = linear_at(low, decodes);
  if (low == high) return a;
  const Cost& b = linear_at(high, decodes);
  const double x = static_cast<double>(tokens - low) / static_cast<double>(high - low);
  Cost out = b;
  out.total = a.total + x * (b.total - a.total);
  out.busiest = a.busiest + x * (b.busiest - a.busiest);
  return out;
}

std::pair<double, double> PassModel::attention(std::int64_t sequences, std::int64_t tokens,
                                               double cached) const {
  const ops::ElementBytes bytes = ops::element_bytes(problem_.scenario.training, problem_.stack);
  const auto context = static_cast<std::int64_t>(std::llround(cached));
  double all = 0, most = 0;
  for (std::size_t stage = 0; stage < attention_.size(); ++stage) {
    double here = 0;
    for (const Attention& a : attention_[stage]) {
      program::Op op = a.op;
      resize<ops::CachedAttention>(op, sequences, tokens, context);
      resize<ops::CachedLatentAttention>(op, sequences, tokens, context);
      op.flops = program::flops_of(op.kind);
      op.traffic = Bytes{program::bytes_of(op.kind, bytes, ops::passes_of(problem_.stack))};
      here += static_cast<double>(a.times) *
              seconds(cost_.op(op, types_of(types_, static_cast<std::int64_t>(stage))));
    }
    all += here;
    most = std::max(most, here);
  }
  return {all, most};
}

Time PassModel::time(const PassMix& mix) const {
  std::int64_t tokens = mix.decodes;
  double all = 0, most = 0;
  const auto add = [&](const std::pair<double, double>& of) {
    all += of.first;
    most += of.second;
  };
  if (mix.decodes > 0) add(attention(mix.decodes, 1, mix.decode_context));
  for (const PromptPart& p : mix.prompts) {
    tokens += p.tokens;
    add(attention(1, p.tokens, static_cast<double>(p.cached)));
  }
  if (tokens == 0) return Time{0};
  const Cost linear = this->linear(tokens, mix.prompts.empty());
  return from_seconds(std::max(linear.total + all, static_cast<double>(plan_.pp) * (linear.busiest + most)));
}

Time PassModel::prefill(std::int64_t tokens) const {
  const PromptPart part{tokens, 0};
  return time({0, 0, {&part, 1}});
}

std::int64_t PassModel::cache_bytes(std::int64_t tokens) const {
  std::int64_t most = 0;
  for (const std::vector<Attention>& stage : attention_) {
    std::int64_t elements = 0;
    for (const Attention& a : stage) {
      if (const auto* op = a.op.as<ops::CachedAttention>())
        elements += a.times * op->row() * (op->window > 0 ? std::min(op->window, tokens) : tokens);
      if (const auto* op = a.op.as<ops::CachedLatentAttention>()) elements += a.times * op->row() * tokens;
    }
    most = std::max(most, elements * element_bytes_);
  }
  return most;
}

ServedMemory PassModel::memory(std::int64_t pass_tokens, std::int64_t sequences) const {
  const Cost& long_pass = linear_at(grid_above(pass_tokens), false);
  const Cost& wide_pass = linear_at(grid_above(sequences), true);
  ServedMemory out;
  out.weights = long_pass.weights;
  out.workspace = std::max(long_pass.workspace, wide_pass.workspace);
  out.overhead = problem_.stack.context.value + problem_.stack.communicator.value * communicators(plan_);
  NodeTypes all = 0;
  for (const NodeTypes t : types_) all |= t;
  out.device = memory_of(problem_.devices, all).value;
  return out;
}

double PassModel::decode_flops(std::int64_t sequences, std::int64_t context) const {
  const Compiled pass = compile(sequences, 1, context);
  double flops = 0;
  for (const program::RankClass& rank : pass.program.classes) {
    for (const program::Segment& segment : rank.segments) {
      for (const program::Op& op : segment.ops) flops += op.flops;
    }
  }
  return flops * static_cast<double>(plan_.tp * plan_.dp);
}

}  // namespace orrery::sim
