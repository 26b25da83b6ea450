// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <stdexcept>
#include <utility>

#include "program/blocks.h"
#include "program/gradient.h"
#include "program/passes.h"
#include "program/pieces.h"
#include "program/schedule.h"
#include "program/state/optimizer.h"
#include "program/state/outer.h"

namespace orrery::program {
namespace {

// Of the plan's blocks, one of each kind.
struct Graphs {
  Graph embedding, head, loss;  // the last where it is apart from the head
  std::vector<Graph> blocks;    // by Depth::kinds
  std::vector<Graph> mtp_inputs, mtp_heads;
};

// A parameter of a block that is another block's too; -1: none.
struct Shared {
  std::size_t which = 0;
  std::int32_t is = -1;
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
        inputs_(model.all_inputs()),
        down_{over.stream("pp-send"), over.stream("pp-recv")},
        back_{over.stream("pp-back-send"), over.stream("pp-back-recv")},
        grad_send_(over.stream("pp-grad-send")),
        grad_recv_(over.stream("pp-grad-recv")),
        rank_(rank) {
    rank.stage = stage;
    for (const std::int64_t tokens : tower_tokens(model, training))
      boundary_.push_back(boundary_elements(model, plan, tokens));
    lay_out_chunks();
    state_.emplace(e_, model, over, ends_, chunks_, tied_);
  }

  void run(const std::vector<Slot>& slots) {
    rank_.in_flight = in_flight(slots, plan_.vpp);
    for (std::int32_t c = 0; c < plan_.vpp; ++c) emit_chunk(c, slots);
    if (!e_.training.serves()) emit_optimizer(e_, *state_, over_);
    exchanges_ = has_outer() && emit_outer(e_, *state_, over_);
    make_steps(slots);
  }

 private:
  std::int64_t last_chunk() const { return plan_.pp * plan_.vpp - 1; }
  struct Transfers {
    StreamIndex send, receive;
  };
  bool has_outer() const { return plan_.islands > 1 && !e_.training.serves(); }

  void lay_out_chunks() {
    const auto layers = layers_by_chunk(plan_, model_.layers);
    std::int64_t first = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // first layer and layers, of each chunk
    for (std::int64_t g = 0; g <= last_chunk(); ++g) {
      const std::int64_t n = layers[static_cast<std::size_t>(g)];
      if (stage_of_chunk(plan_, g) == rank_.stage) {
        Chunk& c = chunks_.emplace_back();
        c.global = static_cast<std::int32_t>(g);
        c.output_grads.assign(boundary_.size(), -1);
        c.input_grads = c.output_grads;
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
      const bool apart = loss_is_apart(plan_, e_.training);
      const auto last_of = [](const Graph& g) { return g.parameters.size() - 1; };
      const Shared head{last_of(apart ? graphs_.loss : graphs_.head), model_.tied_embeddings ? tied_ : -1};
      c.head = add_block(c, graphs_.head, "", -1, apart ? Shared{} : head);
      if (apart) c.loss = add_block(c, graphs_.loss, "", -1, head);
      if (model_.tied_embeddings) tied_ = (apart ? c.loss : c.head)->block.parameters.back();
      for (std::size_t k = 0; k < graphs_.mtp_heads.size(); ++k) {
        const std::int32_t weight = c.head->block.parameters.back();
        const std::string prefix = fmt::format("mtp{}/", k);
        const auto layer = static_cast<std::int32_t>(model_.layers + static_cast<std::int64_t>(k));
        MtpBlocks& m = c.mtp.emplace_back();
        m.input = add_block(c, graphs_.mtp_inputs[k], prefix, layer, {0, tied_});
        tied_ = m.input.block.parameters.front();
        m.block = add_block(c, graphs_.blocks[depth_.kind_index(layer)], prefix, layer);
        m.head = add_block(c, graphs_.mtp_heads[k], prefix, -1, {last_of(graphs_.mtp_heads[k]), weight});
      }
      if (ends_.tied_across(model_))
        rank_.parameters[static_cast<std::size_t>(tied_)].name = "embedding/weight";
    }
  }

  ChunkBlock add_block(Chunk& c, const Graph& graph, std::string prefix, std::int32_t layer,
                       Shared shared = {}) {
    ChunkBlock out;
    out.block.graph = &graph;
    out.block.layer = layer;
    out.first_piece = static_cast<std::int32_t>(c.pieces.size());
    for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
      if (i == shared.which && shared.is >= 0) {
        out.block.parameters.push_back(shared.is);
        continue;
      }
      const auto index = static_cast<std::int32_t>(rank_.parameters.size());
      if (i == 0 || graph.piece_of[i] != graph.piece_of[i - 1])
        c.pieces.push_back({.first_parameter = index,
                            .alone = graph.piece_of[i] == graph.piece_alone,
                            .of_experts = graph.parameters[i].of_experts,
                            .kept = graph.parameters[i].kept,
                            .muon = graph.parameters[i].muon});
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

  // A buffer for what a tower has come to between two chunks.
  std::int32_t boundary(const Chunk& c, const char* name, std::size_t tower) {
    std::string called = fmt::format("chunk{}/{}", c.global, name);
    if (tower > 0) called += "/" + inputs_[tower].tower();
    return e_.activation(std::move(called), boundary_[tower], e_.training.activation_type());
  }
  // Every variant of the backward segment receives into one ring, and sends from one.
  std::int32_t shared(std::vector<std::int32_t>& buffers, const Chunk& c, const char* name,
                      std::size_t tower) {
    if (buffers[tower] < 0) buffers[tower] = boundary(c, name, tower);
    return buffers[tower];
  }

  using Towers = std::vector<std::int32_t>;  // buffers, by tower
  struct Left {                              // by the forward of a chunk
    std::vector<Towers> inputs;              // before each layer
    std::vector<Tensors> layers;
    Tensors embedding, head;
    struct Mtp {
      Towers before;  // the block
      Tensors input, block, head;
    };
    std::vector<Mtp> mtp;
  };
  // A block's backward, whose weight gradients may come later.
  struct Backward {
    const ChunkBlock* block;
    Reverse reverse;
  };
  using Backwards = std::deque<Backward>;  // in issue order

  // When a backward makes the gradients of weights: with those of what it reads, or in a piece of work apart.
  enum class Weights : std::uint8_t { kWith, kApart };

  // The segments that the schedule runs.
  void emit_chunk(std::int32_t index, const std::vector<Slot>& slots) {
    Chunk& c = chunks_[static_cast<std::size_t>(index)];
    const Left kept = emit_forward(c, index);
    const auto runs = [&](Work work, bool last) {
      return std::any_of(slots.begin(), slots.end(), [&](const Slot& s) {
        return s.work == work && s.chunk == index && (s.micro_batch + 1 == plan_.micro_batches) == last;
      });
    };
    for (const bool last : {false, true}) {
      if (runs(Work::kBackward, last)) emit_backward(c, index, kept, Weights::kWith, last);
    }
    if (!runs(Work::kBackwardInput, false) && !runs(Work::kBackwardInput, true)) return;
    Backwards backwards = emit_backward(c, index, kept, Weights::kApart, false);
    for (const bool last : {false, true}) {
      if (!runs(Work::kBackwardWeight, last)) continue;
      begin(SegmentKind::kBackwardWeight, index, last);
      if (c.loss) state_->synchronise(c, *c.loss, last);
      for (Backward& b : backwards) {
        b.reverse.weights();
        state_->synchronise(c, *b.block, last);
      }
    }
  }

  std::int32_t buffer_of(const Port& p, const Towers& towers) const {
    switch (p.is) {
      case Port::Is::kTower:
        return towers[static_cast<std::size_t>(p.number)];
      case Port::Is::kInput:
        return state_->buffer(Held::kInput, static_cast<std::size_t>(p.number));
      case Port::Is::kTargets:
        return state_->buffer(Held::kTargets, static_cast<std::size_t>(p.number));
      case Port::Is::kLoss:
        return state_->buffer(Held::kLoss, static_cast<std::size_t>(p.number));
      case Port::Is::kDocuments:
        return state_->buffer(Held::kDocuments);
      case Port::Is::kCache:
        break;
    }
    throw std::logic_error("a layer's cache has a buffer of its own");
  }
  // A cache for each micro-batch: they are other sequences.
  std::int32_t cache_of(const Block& b, const Port& p) {
    const Value& v = b.graph->values[static_cast<std::size_t>(p.value)];
    const std::int32_t id =
        e_.static_buffer(e_.name(b, v.name), BufferClass::kActivation, b.graph->elements(v), v.type);
    rank_.buffers[static_cast<std::size_t>(id)].instances = static_cast<std::int32_t>(plan_.micro_batches);
    return id;
  }
  Tensors forward(const ChunkBlock& b, Towers& towers, bool repeated = false) {
    state_->need(b);
    std::vector<std::int32_t> ports;
    for (const Port& p : b.block.graph->ports)
      ports.push_back(p.is == Port::Is::kCache ? cache_of(b.block, p) : buffer_of(p, towers));
    Tensors out = e_.forward(b.block, ports, repeated);
    for (std::size_t i = 0; i < out.outputs.size(); ++i)
      towers[static_cast<std::size_t>(b.block.graph->outputs[i].tower)] = out.outputs[i];
    return out;
  }
  template <class Buffer>
  void receive(StreamIndex stream, const char* name, std::int64_t from, Towers& towers, Buffer buffer) {
    for (std::size_t t = 0; t < towers.size(); ++t) {
      towers[t] = buffer(t);
      e_.receive(name, stream, from, {towers[t]}, boundary_[t], activation_bytes(e_.training.precision));
    }
  }
  void send(StreamIndex stream, const char* name, std::int64_t to, const Towers& towers) {
    for (std::size_t t = 0; t < towers.size(); ++t)
      e_.send(name, stream, to, {towers[t]}, boundary_[t], activation_bytes(e_.training.precision));
  }

  const Transfers& activations_from(std::int64_t chunk) const {
    return comes_back(chunk_placement(plan_), plan_.pp, chunk) ? back_ : down_;
  }

  // What the software takes before work on what arrived.
  void hand_over(const char* name, const Towers& arrived) {
    if (e_.stack.handover == Time{0} || plan_.pp * plan_.vpp == 1) return;
    Op& op = e_.add(ops::Handover{e_.stack.handover.value}, name, {}, {});
    for (const std::int32_t buffer : arrived) {
      if (buffer >= 0) op.wait_for({buffer});
    }
  }

  Left emit_forward(Chunk& c, std::int32_t index) {
    begin(SegmentKind::kForward, index, false);
    Left kept;
    Towers towers(boundary_.size(), -1);
    if (!c.embedding) {
      receive(activations_from(c.global - 1).receive, "pipeline/recv", c.global - 1, towers,
              [&](std::size_t t) { return boundary(c, "input", t); });
    }
    hand_over("pipeline/handover", towers);
    if (c.embedding) kept.embedding = forward(*c.embedding, towers);
    for (const ChunkBlock& layer : c.layers) {
      kept.inputs.push_back(towers);
      kept.layers.push_back(forward(layer, towers));
    }
    // What the backward pass finds gathered is gathered here.
    if (c.loss && !plan_.reshards()) state_->need(*c.loss);
    if (c.head)
      kept.head = forward(*c.head, towers);
    else
      send(activations_from(c.global).send, "pipeline/send", c.global + 1, towers);
    for (const MtpBlocks& m : c.mtp) {
      Left::Mtp& of = kept.mtp.emplace_back();
      of.input = forward(m.input, towers);
      of.before = towers;
      of.block = forward(m.block, towers);
      of.head = forward(m.head, towers);
    }
    return kept;
  }

  static bool trains(const ChunkBlock& b) {
    const std::vector<Parameter>& all = b.block.graph->parameters;
    return std::any_of(all.begin(), all.end(), [](const Parameter& p) { return p.kept == Kept::kTrained; });
  }
  // By layer of a chunk, and last behind them: the towers before which something is trained. Chunks before
  // this one are taken to train something.
  std::vector<std::vector<bool>> trained_before(const Chunk& c) const {
    std::vector<bool> towers(boundary_.size(), !c.embedding || trains(*c.embedding));
    std::vector<std::vector<bool>> out{towers};
    for (const ChunkBlock& b : c.layers) {
      const BlockTowers& of = depth_.towers_of(b.block.layer);
      bool any = trains(b);
      for (std::size_t t = 0; t < towers.size(); ++t)
        any = any || (towers[t] && of.touches(static_cast<TowerIndex>(t)));
      towers[static_cast<std::size_t>(of.own)] = any;
      out.push_back(towers);
    }
    return out;
  }

  // From the gradients of what towers come to in a block to those of what they were before, where something
  // is `trained` before. `to`: buffers for these, by tower.
  Backward backward(const ChunkBlock& b, const Tensors& of, Towers& d, const Towers& to,
                    const std::vector<bool>& trained, Weights weights) {
    const Graph& graph = *b.block.graph;
    Towers outputs;
    for (const Output& o : graph.outputs)
      outputs.push_back(std::exchange(d[static_cast<std::size_t>(o.tower)], -1));
    std::vector<Reverse::PortGradient> ports;
    for (const Port& p : graph.ports) {
      if (p.is != Port::Is::kTower) break;  // they come first
      const auto t = static_cast<std::size_t>(p.number);
      ports.push_back({d[t], to[t], trained[t]});
    }
    Backward out{&b, Reverse(e_, b.block, of, weights == Weights::kApart)};
    const Towers made = out.reverse.run(outputs, ports);
    for (std::size_t i = 0; i < made.size(); ++i)
      d[static_cast<std::size_t>(graph.ports[i].number)] = made[i];
    return out;
  }

  // Where gradients that layer l is the last to make have to be: of its own tower, and of others that no
  // gradient has arrived of, where no layer before it is of that tower.
  Towers leaving(Chunk& c, std::size_t l, const Towers& d) {
    Towers to(boundary_.size(), -1);
    if (c.global == 0) return to;
    const auto towers_of = [&](std::size_t layer) -> const BlockTowers& {
      return depth_.towers_of(c.layers[layer].block.layer);
    };
    for (std::size_t t = 0; t < to.size(); ++t) {
      const auto tower = static_cast<TowerIndex>(t);
      const bool own = towers_of(l).own == tower;
      bool last = own || (towers_of(l).touches(tower) && d[t] < 0);
      for (std::size_t before = 0; before < l && last; ++before) last = towers_of(before).own != tower;
      if (last) to[t] = shared(c.input_grads, c, "input-grad", t);
    }
    return to;
  }

  // One segment of input gradients serves all micro-batches.
  Backwards emit_backward(Chunk& c, std::int32_t index, const Left& kept, Weights weights, bool last) {
    const bool whole = weights == Weights::kWith;
    begin(whole ? SegmentKind::kBackward : SegmentKind::kBackwardInput, index, last);
    Backwards out;
    std::vector<Tensors> tensors = kept.layers;
    Towers d(boundary_.size(), -1);
    const Towers anywhere = d;
    const std::vector<std::vector<bool>> trained = trained_before(c);
    if (!c.head) {
      receive(grad_recv_, "pipeline/grad-recv", c.global + 1, d,
              [&](std::size_t t) { return shared(c.output_grads, c, "output-grad", t); });
    }
    hand_over("pipeline/grad-handover", d);
    if (c.loss) emit_loss(c, kept.head.outputs.front(), d, trained.back(), weights, last);
    for (std::size_t k = c.mtp.size(); k-- > 0;) {
      const MtpBlocks& m = c.mtp[k];
      const Left::Mtp& of = kept.mtp[k];
      const std::vector<bool> all(boundary_.size(), true);
      const auto back = [&](const ChunkBlock& b, const Tensors& t) {
        state_->need(b);
        out.push_back(backward(b, t, d, anywhere, all, weights));
        if (whole) state_->synchronise(c, b, last);
      };
      back(m.head, of.head);
      std::vector<Tensors> block{of.block};
      const std::size_t next = e_.emitted();
      if (recomputes_mtp(c)) recompute(std::span(&m.block, 1), of.before, block);
      begin_when_there(next, d[static_cast<std::size_t>(depth_.towers_of(m.block.block.layer).own)]);
      back(m.block, block.front());
      back(m.input, of.input);
    }
    if (c.head) {
      state_->need(*c.head);
      Towers to = anywhere;
      if (c.layers.empty() && c.global > 0) {
        const auto tower = static_cast<std::size_t>(c.head->block.graph->ports.front().number);
        to[tower] = shared(c.input_grads, c, "input-grad", tower);
      }
      out.push_back(backward(*c.head, kept.head, d, to, trained.back(), weights));
      if (whole) {
        if (!c.loss) end_of_head_weight();
        state_->synchronise(c, *c.head, last);
      }
    }
    const auto backs = [&](std::size_t l) {  // a gradient goes through layer l
      const auto own = static_cast<std::size_t>(depth_.towers_of(c.layers[l].block.layer).own);
      return static_cast<bool>(trained[l + 1][own]);
    };
    for (std::size_t end = c.layers.size(); end > 0;) {
      const std::size_t first = (end - 1) / group_size() * group_size();
      std::size_t top = end;
      while (top > first && !backs(top - 1)) --top;
      end = first;
      if (top == first) continue;
      const std::size_t next = e_.emitted();
      if (recomputes(c, first)) {
        recompute(std::span(c.layers).subspan(first, top - first), kept.inputs[first],
                  std::span(tensors).subspan(first, top - first));
      }
      begin_when_there(next,
                       d[static_cast<std::size_t>(depth_.towers_of(c.layers[top - 1].block.layer).own)]);
      for (std::size_t l = top; l-- > first;) {
        if (!backs(l)) continue;
        state_->need(c.layers[l]);
        out.push_back(backward(c.layers[l], tensors[l], d, leaving(c, l, d), trained[l], weights));
        if (whole) state_->synchronise(c, c.layers[l], last);
      }
    }
    if (c.embedding) {
      if (!trains(*c.embedding)) return out;
      out.push_back(backward(*c.embedding, kept.embedding, d, anywhere, trained.front(), weights));
      if (whole) state_->synchronise(c, *c.embedding, last);
    } else {
      send(grad_send_, "pipeline/grad-send", c.global - 1, d);
    }
    return out;
  }

  // Of a weight that is tied within the stage.
  void end_of_head_weight() {
    if (state_->tied_here() >= 0 && state_->trains(state_->tied_here()) && plan_.zero >= 2)
      state_->reduce_to_shard(state_->tied_here(), "-head");
  }

  // One part of the rows of `n` after the other goes through the head's product and the loss, and back: `d`
  // gets the gradient of them all. The rows of a part lie one behind the other. Its own weight's gradient
  // comes at once, and is synchronised where the chunk's are.
  void emit_loss(const Chunk& c, std::int32_t n, Towers& d, std::vector<bool> trained, Weights of_chunk,
                 bool last) {
    const Graph& graph = *c.loss->block.graph;
    const auto tower = static_cast<std::size_t>(graph.ports.front().number);
    const Value& part = graph.values[static_cast<std::size_t>(graph.ports.front().value)];
    const std::int64_t elements = graph.elements(part);
    trained[tower] = trained[tower] || trains(*c.head);
    Towers values(boundary_.size(), -1), gradients = values;
    values[tower] = n;
    gradients[tower] =
        e_.activation(e_.name(c.loss->block, part.name, "/grad"), plan_.loss_chunks * elements, part.type);
    const std::int32_t targets = state_->buffer(Held::kTargets);
    for (std::int64_t i = 0; i < plan_.loss_chunks; ++i) {
      ChunkBlock block = *c.loss;
      block.block.prefix = fmt::format("part{}/", i);
      block.block.again = i > 0;
      const std::size_t first = e_.emitted();
      e_.evaluate(true);
      const Tensors of = forward(block, values);
      e_.evaluate(false);
      Towers none(boundary_.size(), -1);
      backward(block, of, none, gradients, trained, Weights::kWith);
      e_.shift(first, n, i * elements);
      e_.shift(first, gradients[tower], i * elements);
      e_.shift(first, targets, i * part.rows / plan_.cp);
    }
    if (trained[tower]) d[tower] = gradients[tower];
    if (of_chunk == Weights::kApart) return;
    end_of_head_weight();
    state_->synchronise(c, *c.loss, last);
  }

  // Whether the backward of a chunk's layer repeats something.
  bool recomputes(const Chunk& c, std::size_t layer) const {
    if (plan_.recompute != Recompute::kFull) return plan_.recompute == Recompute::kSelective;
    return std::cmp_less(layer, recomputed_layers(plan_, c.global, std::ssize(c.layers)));
  }
  // As its last layer; where it has none, full recomputation that says nothing of single chunks is of all.
  bool recomputes_mtp(const Chunk& c) const {
    if (!c.layers.empty()) return recomputes(c, c.layers.size() - 1);
    return plan_.recompute == Recompute::kSelective || recomputes_all(plan_);
  }
  // From what towers were before the first of these blocks.
  void recompute(std::span<const ChunkBlock> blocks, Towers towers, std::span<Tensors> tensors) {
    if (plan_.recompute == Recompute::kSelective) {
      if (!e_.repeats_selectively(blocks.front().block)) return;
      state_->need(blocks.front());
      return e_.repeat_selectively(blocks.front().block, tensors.front());
    }
    for (std::size_t l = 0; l < blocks.size(); ++l) tensors[l] = forward(blocks[l], towers, true);
  }
  // Recomputation, from op `next` on, starts when the gradient is there, as autograd engines do it. Some
  // blocks have nothing to repeat.
  void begin_when_there(std::size_t next, std::int32_t gradient) {
    if (next < e_.emitted()) e_.first_compute_op(next).wait_for({gradient});
  }

  void make_steps(const std::vector<Slot>& slots) {
    std::vector<Cut> cuts;
    const auto whole = rank_.segments.size();
    const auto find = [&](SegmentKind kind, std::int32_t chunk, bool last) {
      std::optional<std::size_t> found;
      for (std::size_t i = 0; i < whole; ++i) {
        const Segment& s = rank_.segments[static_cast<std::size_t>(cuts[i].first)];
        if (s.kind != kind || (s.chunk != chunk && !follows_chunks(kind))) continue;
        if (!found || s.last_micro_batch == last) found = i;
      }
      return cuts[found.value()];
    };
    if (plan_.overlap_exchanges && pairs_up(plan_.schedule)) {
      cuts = cut_segments(rank_, over_.stream("ep"));
    } else {
      for (std::size_t i = 0; i < whole; ++i) cuts.push_back({static_cast<std::int32_t>(i), 1});
    }
    constexpr SegmentKind kKinds[] = {SegmentKind::kForward, SegmentKind::kBackward,
                                      SegmentKind::kBackwardInput, SegmentKind::kBackwardWeight};
    const auto pieces_of = [&](const Slot& s) {
      return find(kKinds[static_cast<std::size_t>(s.work)], s.chunk,
                  s.micro_batch == plan_.micro_batches - 1);
    };
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Slot& s = slots[i];
      const Cut mine = pieces_of(s);
      if (i + 1 == slots.size() || !slots[i + 1].beside) {
        for (std::int32_t k = 0; k < mine.pieces; ++k) rank_.steps.push_back({mine.first + k, s.micro_batch});
        continue;
      }
      const Slot& backward = slots[++i];
      const Cut other = pieces_of(backward);
      for (const Turn& turn :
           side_by_side(static_cast<std::size_t>(mine.pieces), static_cast<std::size_t>(other.pieces))) {
        if (turn.of_forward)
          rank_.steps.push_back({mine.first + turn.piece, s.micro_batch, true});
        else
          rank_.steps.push_back({other.first + turn.piece, backward.micro_batch, true});
      }
    }
    if (!e_.training.serves()) rank_.steps.push_back({find(SegmentKind::kOptimizer, 0, true).first, 0});
    if (exchanges_) rank_.outer.push_back({find(SegmentKind::kOuter, 0, true).first, 0});
  }

  Emitter e_;
  const Model& model_;
  const Plan& plan_;
  const Communication& over_;
  const Depth& depth_;
  const Graphs& graphs_;
  std::vector<std::int64_t> boundary_;  // elements that pass from stage to stage, by tower
  const std::vector<Input> inputs_;
  const Transfers down_, back_;  // of activations
  const StreamIndex grad_send_, grad_recv_;
  RankClass& rank_;
  std::vector<Chunk> chunks_;
  StageEnds ends_;
  std::int32_t tied_ = -1;  // the embedding's weight: a parameter
  std::optional<StageParameters> state_;
  bool exchanges_ = false;  // with other islands
};

// The classes of the stages from `first` to `end`.
Program compile_stages(const Model& model, const Plan& plan, const Training& training, const Stack& stack,
                       std::int64_t first, std::int64_t end, Detail detail) {
  Program program;
  program.model = model;
  program.plan = plan;
  program.training = training;
  program.mesh = mesh_of(plan);
  program.communication = communication_of(program.mesh);
  program.rows_of_loss = training.global_batch / plan.islands * loss_rows(model, training);
  const Depth depth = depth_of(model);
  Graphs graphs{embedding(model, plan, training, stack), head(model, plan, training, stack), {}, {}, {}, {}};
  for (std::int64_t k = 1; k <= model.mtp_layers; ++k) {
    graphs.mtp_inputs.push_back(mtp_input(model, plan, training, stack, k));
    graphs.mtp_heads.push_back(head(model, plan, training, stack, k));
  }
  if (loss_is_apart(plan, training)) graphs.loss = part_of_loss(model, plan, training, stack);
  for (std::size_t k = 0; k < depth.kinds.size(); ++k) {
    graphs.blocks.push_back(
        model_block(model, depth.kinds[k], depth.towers[k], plan, training, stack, program.rotary));
  }
  const auto slots =
      training.serves() ? forward_schedule(plan.pp, plan.vpp, plan.micro_batches) : pipeline_schedule(plan);
  program.classes.resize(static_cast<std::size_t>(plan.pp));
  for (std::int64_t i = first; i < end; ++i) {
    RankClass& rank = program.classes[static_cast<std::size_t>(i)];
    ClassCompiler(model, plan, training, stack, depth, graphs, program.communication, rank,
                  static_cast<std::int32_t>(i), detail == Detail::kFull)
        .run(slots[static_cast<std::size_t>(i)]);
    if (plan.offloaded_layers() > 0) offload_activations(rank, plan.offloaded_layers(), model.layers);
    place_buffers(rank, plan.overlap_exchanges);
    if (detail != Detail::kSizes) link_waits(rank);
  }
  return program;
}

}  // namespace

Program compile(const Model& model, const Plan& plan, const Training& training, const Stack& stack,
                Detail detail) {
  return compile_stages(model, plan, training, stack, 0, plan.pp, detail);
}

Program compile_stage(const Model& model, const Plan& plan, const Training& training, const Stack& stack,
                      std::int64_t stage, Detail detail) {
  return compile_stages(model, plan, training, stack, stage, stage + 1, detail);
}

}  // namespace orrery::program
