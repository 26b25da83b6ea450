// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>

#include "program/blocks.h"
#include "program/gradient.h"
#include "program/passes.h"
#include "program/schedule.h"
#include "program/state/optimizer.h"

namespace orrery::program {
namespace {

// Of the plan's blocks, one of each kind.
struct Graphs {
  Graph embedding, head;
  std::vector<Graph> blocks;  // by Depth::kinds
};

class ClassCompiler {
 public:
  ClassCompiler(const Model& model, const Plan& plan, const Training& training, const Stack& stack,
                const Depth& depth, const Graphs& graphs, const Communication& over, RankClass& rank,
                std::int32_t stage, bool named)
      : e_(plan, training, stack, over, rank, named),
        model_(model),
        plan_(plan),
        over_(over),
        depth_(depth),
        graphs_(graphs),
        boundary_(boundary_elements(model, plan, training)),
        send_(over.stream("pp-send")),
        recv_(over.stream("pp-recv")),
        grad_send_(over.stream("pp-grad-send")),
        grad_recv_(over.stream("pp-grad-recv")),
        rank_(rank) {
    rank.stage = stage;
    lay_out_chunks();
    state_.emplace(e_, model, over, ends_, chunks_, tied_);
  }

  void run(const std::vector<Slot>& slots) {
    rank_.in_flight = in_flight(slots, plan_.vpp);
    for (std::int32_t c = 0; c < plan_.vpp; ++c) emit_chunk(c);
    emit_optimizer(e_, *state_, over_);
    make_steps(slots);
  }

 private:
  std::int64_t last_chunk() const { return plan_.pp * plan_.vpp - 1; }
  bool split() const { return splits_backward(plan_.schedule); }

  void lay_out_chunks() {
    const auto layers = layers_by_chunk(plan_, model_.layers);
    std::int64_t first = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // first layer and layers, of each chunk
    for (std::int64_t g = 0; g <= last_chunk(); ++g) {
      const std::int64_t n = layers[static_cast<std::size_t>(g)];
      if (stage_of_chunk(plan_, g) == rank_.stage) {
        chunks_.emplace_back().global = static_cast<std::int32_t>(g);
        ranges.emplace_back(first, n);
        rank_.chunks.push_back(static_cast<std::int32_t>(g));
      }
      first += n;
    }
    ends_ = {.first = chunks_.front().global == 0,
             .last = chunks_.back().global == last_chunk(),
             .last_stage = rank_.stage + 1 == plan_.pp};
    for (std::size_t c = 0; c < chunks_.size(); ++c)
      add_blocks(chunks_[c], ranges[c].first, ranges[c].second);
  }

  void add_blocks(Chunk& c, std::int64_t first_layer, std::int64_t layers) {
    if (c.global == 0) {
      c.embedding = add_block(c, graphs_.embedding, "", -1);
      tied_ = c.embedding->block.parameters.front();
    }
    for (std::int64_t l = first_layer; l < first_layer + layers; ++l) {
      const auto kind = static_cast<std::size_t>(depth_.kind_of[static_cast<std::size_t>(l)]);
      c.layers.push_back(
          add_block(c, graphs_.blocks[kind], fmt::format("layer{}/", l), static_cast<std::int32_t>(l)));
    }
    if (c.global == last_chunk()) {
      // A tied weight is the embedding's; two stages exchange its gradient.
      c.head = add_block(c, graphs_.head, "", -1, ends_.tied_here(model_));
      if (ends_.tied_across(model_)) {
        tied_ = c.head->block.parameters.back();
        rank_.parameters[static_cast<std::size_t>(tied_)].name = "embedding/weight";
      }
    }
  }

  // `tied`: its last parameter is the embedding's.
  ChunkBlock add_block(Chunk& c, const Graph& graph, std::string prefix, std::int32_t layer,
                       bool tied = false) {
    ChunkBlock out;
    out.block.graph = &graph;
    out.block.layer = layer;
    out.first_piece = static_cast<std::int32_t>(c.pieces.size());
    for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
      if (tied && i + 1 == graph.parameters.size()) {
        out.block.parameters.push_back(tied_);
        break;
      }
      const auto index = static_cast<std::int32_t>(rank_.parameters.size());
      if (i == 0 || graph.piece_of[i] != graph.piece_of[i - 1])
        c.pieces.push_back({.first_parameter = index, .alone = graph.piece_of[i] == graph.piece_alone});
      c.pieces.back().end_parameter = index + 1;
      Parameter& p = rank_.parameters.emplace_back(graph.parameters[i]);
      p.name.insert(0, prefix);
      out.block.parameters.push_back(index);
    }
    out.end_piece = static_cast<std::int32_t>(c.pieces.size());
    out.block.prefix = std::move(prefix);
    return out;
  }

  void begin(SegmentKind kind, std::int32_t chunk, bool last) {
    e_.begin(kind, chunk, last);
    state_->begin(kind);
  }

  // --- segments ----------------------------------------------------------------------------------
  std::size_t group_size() const {
    return plan_.recompute == Recompute::kFull ? static_cast<std::size_t>(plan_.recompute_layers) : 1;
  }

  std::int64_t boundary_bytes() const { return activation_bytes(e_.training.precision); }  // of an element
  std::int32_t boundary(std::string name) {
    return e_.activation(std::move(name), boundary_, e_.training.activation_type());
  }
  // Every variant of the backward segment receives into one ring, and sends from one.
  std::int32_t shared(std::int32_t& buffer, const Chunk& c, const char* name) {
    if (buffer < 0) buffer = boundary(fmt::format("chunk{}/{}", c.global, name));
    return buffer;
  }

  struct Kept {                        // what the forward of a chunk leaves
    std::vector<std::int32_t> inputs;  // of each layer
    std::vector<Tensors> layers;
    Tensors embedding, head;
  };
  // A block's backward, whose weight gradients may come later.
  struct Backward {
    const ChunkBlock* block;
    Reverse reverse;
  };
  using Backwards = std::deque<Backward>;  // in issue order

  void emit_chunk(std::int32_t index) {
    Chunk& c = chunks_[static_cast<std::size_t>(index)];
    const Kept kept = emit_forward(c, index);
    for (const bool last : {false, true}) {
      if (!last && plan_.micro_batches == 1) continue;
      if (!split()) {
        emit_backward(c, index, kept, last);
        continue;
      }
      if (last && plan_.micro_batches > 1) continue;  // one input-gradient segment serves all
      Backwards backwards = emit_backward(c, index, kept, last);
      for (const bool final : {false, true}) {
        if (!final && plan_.micro_batches == 1) continue;
        begin(SegmentKind::kBackwardWeight, index, final);
        for (Backward& b : backwards) {
          b.reverse.weights();
          state_->synchronise(c, *b.block, final);
        }
      }
    }
  }

  Kept emit_forward(Chunk& c, std::int32_t index) {
    begin(SegmentKind::kForward, index, false);
    Kept kept;
    std::int32_t x = -1;
    if (c.embedding) {
      state_->need(*c.embedding);
      kept.embedding = e_.forward(c.embedding->block, std::array{state_->buffer(Held::kTokens)});
      x = kept.embedding.output;
    } else {
      x = boundary(fmt::format("chunk{}/input", c.global));
      e_.receive("pipeline/recv", recv_, c.global - 1, {x}, boundary_, boundary_bytes());
    }
    for (const ChunkBlock& layer : c.layers) {
      state_->need(layer);
      kept.inputs.push_back(x);
      kept.layers.push_back(e_.forward(layer.block, std::array{x}));
      x = kept.layers.back().output;
    }
    if (c.head) {
      state_->need(*c.head);
      kept.head = e_.forward(c.head->block,
                             std::array{x, state_->buffer(Held::kTargets), state_->buffer(Held::kLoss)});
    } else {
      e_.send("pipeline/send", send_, c.global + 1, {x}, boundary_, boundary_bytes());
    }
    return kept;
  }

  Backwards emit_backward(Chunk& c, std::int32_t index, const Kept& kept, bool last) {
    begin(split() ? SegmentKind::kBackwardInput : SegmentKind::kBackward, index, last && !split());
    Backwards out;
    std::vector<Tensors> tensors = kept.layers;
    // From the gradient of a block's output to the gradient of its input.
    const auto backward = [&](const ChunkBlock& b, const Tensors& of, std::int32_t d, std::int32_t to) {
      state_->need(b);
      return out.emplace_back(Backward{&b, Reverse(e_, b.block, of, split())}).reverse.run(d, to);
    };
    std::int32_t d = -1;
    if (c.head) {
      d = backward(*c.head, kept.head, -1, -1);
      if (!split()) {
        if (state_->tied_here() >= 0 && plan_.zero >= 2)
          state_->reduce_to_shard(state_->tied_here(), "-head");
        state_->synchronise(c, *c.head, last);
      }
    } else {
      d = shared(c.output_grad, c, "output-grad");
      e_.receive("pipeline/grad-recv", grad_recv_, c.global + 1, {d}, boundary_, boundary_bytes());
    }
    for (std::size_t end = c.layers.size(); end > 0;) {
      const std::size_t first = (end - 1) / group_size() * group_size();
      const std::size_t next = e_.emitted();
      recompute_group(c, kept, first, end, tensors);
      // Recomputation starts when the gradient is there, as autograd engines do it. Blocks without attention
      // have nothing to repeat selectively.
      if (next < e_.emitted()) e_.first_compute_op(next).wait_for({d});
      for (std::size_t l = end; l-- > first;) {
        const std::int32_t to = l == 0 && c.global > 0 ? shared(c.input_grad, c, "input-grad") : -1;
        d = backward(c.layers[l], tensors[l], d, to);
        if (!split()) state_->synchronise(c, c.layers[l], last);
      }
      end = first;
    }
    if (c.embedding) {
      out.emplace_back(Backward{&*c.embedding, Reverse(e_, c.embedding->block, kept.embedding, split())})
          .reverse.run(d, -1);
      if (!split()) state_->synchronise(c, *c.embedding, last);
    } else {
      e_.send("pipeline/grad-send", grad_send_, c.global - 1, {d}, boundary_, boundary_bytes());
    }
    return out;
  }

  void recompute_group(Chunk& c, const Kept& kept, std::size_t first, std::size_t end,
                       std::vector<Tensors>& tensors) {
    if (plan_.recompute == Recompute::kNone) return;
    if (plan_.recompute == Recompute::kSelective)
      return e_.repeat_selectively(c.layers[first].block, tensors[first]);
    std::int32_t x = kept.inputs[first];
    for (std::size_t l = first; l < end; ++l) {
      state_->need(c.layers[l]);
      tensors[l] = e_.forward(c.layers[l].block, std::array{x}, true);
      x = tensors[l].output;
    }
  }

  void make_steps(const std::vector<Slot>& slots) {
    const auto find = [&](SegmentKind kind, std::int32_t chunk, bool last) {
      std::int32_t fallback = -1;
      for (std::size_t i = 0; i < rank_.segments.size(); ++i) {
        const Segment& s = rank_.segments[i];
        if (s.kind != kind || (s.chunk != chunk && kind != SegmentKind::kOptimizer)) continue;
        if (s.last_micro_batch == last) return static_cast<std::int32_t>(i);
        fallback = static_cast<std::int32_t>(i);
      }
      return fallback;
    };
    constexpr SegmentKind kKinds[] = {SegmentKind::kForward, SegmentKind::kBackward,
                                      SegmentKind::kBackwardInput, SegmentKind::kBackwardWeight};
    for (const Slot& s : slots) {
      const bool last = s.micro_batch == plan_.micro_batches - 1;
      rank_.steps.push_back({find(kKinds[static_cast<std::size_t>(s.work)], s.chunk, last), s.micro_batch});
    }
    rank_.steps.push_back({find(SegmentKind::kOptimizer, 0, true), 0});
  }

  Emitter e_;
  const Model& model_;
  const Plan& plan_;
  const Communication& over_;
  const Depth& depth_;
  const Graphs& graphs_;
  const std::int64_t boundary_;  // elements that pass from stage to stage
  const StreamIndex send_, recv_, grad_send_, grad_recv_;
  RankClass& rank_;
  std::vector<Chunk> chunks_;
  StageEnds ends_;
  std::int32_t tied_ = -1;  // the embedding's weight: a parameter
  std::optional<StageParameters> state_;
};

}  // namespace

Program compile(const Model& model, const Plan& plan, const Training& training, const Stack& stack,
                Detail detail) {
  Program program;
  program.model = model;
  program.plan = plan;
  program.training = training;
  program.mesh = mesh_of(plan);
  program.communication = communication_of(program.mesh);
  const Depth depth = depth_of(model);
  Graphs graphs{embedding(model, plan, training, stack), head(model, plan, training, stack), {}};
  for (const ModelBlock& b : depth.kinds)
    graphs.blocks.push_back(model_block(model, b, plan, training, stack, program.rotary));
  const auto slots = pipeline_schedule(plan.schedule, plan.pp, plan.vpp, plan.micro_batches);
  program.classes.resize(static_cast<std::size_t>(plan.pp));
  for (std::int64_t i = 0; i < plan.pp; ++i) {
    RankClass& rank = program.classes[static_cast<std::size_t>(i)];
    ClassCompiler(model, plan, training, stack, depth, graphs, program.communication, rank,
                  static_cast<std::int32_t>(i), detail == Detail::kFull)
        .run(slots[static_cast<std::size_t>(i)]);
    place_buffers(rank);
    if (detail != Detail::kSizes) link_waits(rank);
  }
  return program;
}

}  // namespace orrery::program
