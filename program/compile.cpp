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
#include "program/units.h"

namespace orrery::program {
namespace {

// Parameters that are gathered, reduced and updated as one: a piece of a block (graph.h).
struct Piece {
  std::int32_t first_parameter = 0, end_parameter = 0;
  bool alone = false;  // never shares its unit
  std::int32_t unit = -1;
  bool closes_unit = false;  // the unit's gradients are complete after this piece's backward
};

struct ChunkBlock {
  Block block;
  std::int32_t first_piece = 0, end_piece = 0;  // in Chunk::pieces
};

struct Chunk {
  std::int32_t global = 0;
  std::optional<ChunkBlock> embedding, head;
  std::vector<ChunkBlock> layers;
  std::vector<Piece> pieces;                       // in model order
  std::int32_t output_grad = -1, input_grad = -1;  // buffers
};

// Of the plan's blocks, one of each kind.
struct Graphs {
  Graph embedding, layer, head;
};

class ClassCompiler {
 public:
  ClassCompiler(const Model& model, const Plan& plan, const Training& training, const Stack& stack,
                const Graphs& graphs, const Communication& over, RankClass& rank, std::int32_t stage,
                bool named)
      : e_(plan, training, stack, over, rank, named),
        model_(model),
        plan_(plan),
        graphs_(graphs),
        boundary_(boundary_elements(model, plan, training)),
        tp_(over.group("tp")),
        dp_(over.group("dp")),
        shard_(over.group("shard")),
        replica_(over.group("replica")),
        stages_(over.group("pp")),
        send_(over.stream("pp-send")),
        recv_(over.stream("pp-recv")),
        grad_send_(over.stream("pp-grad-send")),
        grad_recv_(over.stream("pp-grad-recv")),
        bytes_(bytes_per_parameter(training.precision)),
        rank_(rank) {
    rank.stage = stage;
  }

  void run(const std::vector<Slot>& slots) {
    lay_out_chunks();
    make_units();
    rank_.in_flight = in_flight(slots, plan_.vpp);
    for (std::int32_t c = 0; c < plan_.vpp; ++c) emit_chunk(c);
    emit_optimizer();
    make_steps(slots);
  }

 private:
  std::int64_t last_chunk() const { return plan_.pp * plan_.vpp - 1; }
  bool split() const { return splits_backward(plan_.schedule); }
  bool tied_here() const { return tied_here_; }

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
    const bool has_first = chunks_.front().global == 0;
    const bool has_last = chunks_.back().global == last_chunk();
    tied_here_ = model_.tied_embeddings && has_first && has_last;
    tied_across_ = model_.tied_embeddings && has_first != has_last;

    const auto data = [&](const char* name) {
      const std::int32_t id = e_.static_buffer(name, BufferClass::kWorkspace,
                                               plan_.micro_batch * e_.training.sequence, DType::kInt32);
      rank_.buffers[static_cast<std::size_t>(id)].instances = static_cast<std::int32_t>(plan_.micro_batches);
      return id;
    };
    if (has_first) tokens_ = data("tokens");
    if (has_last) {
      targets_ = data("targets");
      loss_ = e_.static_buffer("loss", BufferClass::kWorkspace, 1, DType::kFloat64);
    }
    for (std::size_t c = 0; c < chunks_.size(); ++c)
      add_blocks(chunks_[c], ranges[c].first, ranges[c].second);
  }

  void add_blocks(Chunk& c, std::int64_t first_layer, std::int64_t layers) {
    if (c.global == 0) {
      c.embedding = add_block(c, graphs_.embedding, "", -1);
      embedding_ = c.embedding->block.parameters.front();
      c.pieces.front().alone = true;
    }
    for (std::int64_t l = first_layer; l < first_layer + layers; ++l)
      c.layers.push_back(
          add_block(c, graphs_.layer, fmt::format("layer{}/", l), static_cast<std::int32_t>(l)));
    if (c.global == last_chunk()) {
      // A tied weight is the embedding's; two stages exchange its gradient.
      c.head = add_block(c, graphs_.head, "", -1, tied_here());
      if (model_.tied_embeddings && !tied_here()) {
        embedding_ = c.head->block.parameters.back();
        rank_.parameters[static_cast<std::size_t>(embedding_)].name = "embedding/weight";
        c.pieces.back().alone = true;
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
        out.block.parameters.push_back(embedding_);
        break;
      }
      const auto index = static_cast<std::int32_t>(rank_.parameters.size());
      if (i == 0 || graph.piece_of[i] != graph.piece_of[i - 1])
        c.pieces.push_back({.first_parameter = index});
      c.pieces.back().end_parameter = index + 1;
      Parameter& p = rank_.parameters.emplace_back(graph.parameters[i]);
      p.name.insert(0, prefix);
      out.block.parameters.push_back(index);
    }
    out.end_piece = static_cast<std::int32_t>(c.pieces.size());
    out.block.prefix = std::move(prefix);
    return out;
  }

  // Consecutive pieces of a chunk share a unit until it holds a bucket of gradients; ZeRO-3 gathers piece by
  // piece, so there each is its own.
  void make_units() {
    const std::int64_t bucket = bucket_elements(e_.training, e_.stack);
    // The last chunk's gradients are complete first, so its units are updated first.
    for (std::size_t last = chunks_.size(); last-- > 0;) {
      Chunk& c = chunks_[last];
      UnitPacker packer(bucket);
      const auto base = static_cast<std::int32_t>(rank_.units.size());
      for (std::size_t i = c.pieces.size(); i-- > 0;) {
        Piece& piece = c.pieces[i];
        std::int64_t elements = 0;
        for (std::int32_t p = piece.first_parameter; p < piece.end_parameter; ++p)
          elements += rank_.parameters[static_cast<std::size_t>(p)].local_elements();
        piece.unit = base + packer.add(elements, plan_.zero == 3 || piece.alone);
        // The piece that joins a unit last closes it.
        piece.closes_unit = true;
        if (i + 1 < c.pieces.size() && c.pieces[i + 1].unit == piece.unit)
          c.pieces[i + 1].closes_unit = false;
        rank_.units.resize(static_cast<std::size_t>(piece.unit) + 1);
        Unit& u = rank_.units.back();
        for (std::int32_t p = piece.first_parameter; p < piece.end_parameter; ++p) {
          Parameter& parameter = rank_.parameters[static_cast<std::size_t>(p)];
          parameter.unit = piece.unit;
          parameter.offset = u.elements;
          u.elements += parameter.local_elements();
        }
      }
    }
    const std::int64_t shards = plan_.shards();
    std::int64_t widest = 0;
    for (Unit& u : rank_.units) {
      u.padded = (u.elements + shards - 1) / shards * shards;
      u.shard = u.padded / shards;
      widest = std::max(widest, u.padded);
    }
    std::int32_t full[2] = {-1, -1};
    for (std::size_t i = 0; i < 2; ++i) {
      if (plan_.zero == 3) {
        places_[i] = e_.static_buffer(fmt::format("gathered{}", i), BufferClass::kCommunication, widest,
                                      e_.training.parameter_type());
      }
      if (plan_.zero >= 2) {
        full[i] = e_.static_buffer(fmt::format("full-gradient{}", i), BufferClass::kCommunication, widest,
                                   e_.training.gradient_type());
      }
    }
    for (std::size_t i = 0; i < rank_.units.size(); ++i) {
      Unit& u = rank_.units[i];
      const std::string name = fmt::format("unit{}", i);
      u.parameter_buffer =
          e_.static_buffer(name + "/parameter", BufferClass::kParameter, plan_.zero == 3 ? u.shard : u.padded,
                           e_.training.parameter_type());
      u.gradient_buffer = e_.static_buffer(name + "/gradient", BufferClass::kGradient,
                                           plan_.zero >= 2 ? u.shard : u.padded, e_.training.gradient_type());
      // Master copy and moments one after the other, as the recipe has them.
      u.optimizer_buffer = e_.static_buffer(name + "/optimizer", BufferClass::kOptimizer,
                                            u.shard * bytes_.optimizer(), DType::kByte);
      u.gathered_buffer = places_[0];
    }
    // The two places of whole gradients are taken in turn by the units of a chunk.
    for (const Chunk& c : chunks_) {
      const std::int32_t base = c.pieces.back().unit;
      for (const Piece& p : c.pieces) unit(p.unit).full_gradient = full[(p.unit - base) % 2];
    }
    if (tied_here() && plan_.zero >= 2) give_own_transients();
  }

  // A tied weight is in use together with the head's own unit, so it may not share their ring.
  void give_own_transients() {
    Unit& u = rank_.units[static_cast<std::size_t>(unit_of(embedding_))];
    if (plan_.zero == 3) {
      u.gathered_buffer = e_.static_buffer("gathered-tied", BufferClass::kCommunication, u.padded,
                                           e_.training.parameter_type());
    }
    u.full_gradient = e_.static_buffer("full-gradient-tied", BufferClass::kCommunication, u.padded,
                                       e_.training.gradient_type());
  }

  std::int32_t unit_of(std::int32_t parameter) const {
    return rank_.parameters[static_cast<std::size_t>(parameter)].unit;
  }
  Unit& unit(std::int32_t i) { return rank_.units[static_cast<std::size_t>(i)]; }

  // --- parameter gathers and gradient synchronisation --------------------------------------------
  void begin(SegmentKind kind, std::int32_t chunk, bool last) {
    e_.begin(kind, chunk, last);
    held_ = {-1, -1};
    own_place_held_ = false;
    next_place_ = 0;
  }

  // ZeRO-3: the whole parameters of a unit, unless they are still there from the blocks before. A segment's
  // gathers take the two places in turn from the first, so that the next gather runs beside the block in use,
  // and a segment with an even number of them leaves the first place to the next segment's.
  void need(std::int32_t unit_index) {
    Unit& u = unit(unit_index);
    if (u.gathered_buffer < 0) return;
    const auto place = std::find(places_.begin(), places_.end(), u.gathered_buffer);
    if (place != places_.end()) {
      if (std::find(held_.begin(), held_.end(), unit_index) != held_.end()) return;
      held_[next_place_] = unit_index;
      u.gathered_buffer = places_[next_place_];
      next_place_ = 1 - next_place_;
    } else {
      if (own_place_held_) return;
      own_place_held_ = true;
    }
    e_.collective({CollectiveKind::kAllGather, u.padded}, fmt::format("unit{}/all-gather", unit_index),
                  shard_, bytes_.parameter, {{u.parameter_buffer}}, {{u.gathered_buffer}});
  }

  void need(const ChunkBlock& b) {
    for (const std::int32_t parameter : b.block.parameters) need(unit_of(parameter));
  }

  // Gradients of what tensor ranks hold alike are partial sums where each of them saw a share of the values.
  void complete_partial(const Piece& piece, bool last) {
    if (!last && plan_.zero < 2) return;
    std::int64_t elements = 0;
    std::int32_t first = -1;
    for (std::int32_t p = piece.first_parameter; p < piece.end_parameter; ++p) {
      const Parameter& parameter = rank_.parameters[static_cast<std::size_t>(p)];
      if (!parameter.partial_over_tp) continue;
      if (first < 0) first = p;
      elements += parameter.local_elements();
    }
    if (first < 0) return;
    const std::string name = rank_.parameters[static_cast<std::size_t>(first)].name + "/grad/all-reduce";
    const Ref at = e_.gradient(first);
    e_.collective({CollectiveKind::kAllReduce, elements}, name, tp_, bytes_.gradient, {at}, {at});
  }

  void reduce_to_shard(std::int32_t unit_index, const char* suffix = "") {
    const Unit& u = unit(unit_index);
    e_.collective({CollectiveKind::kReduceScatter, u.padded},
                  fmt::format("unit{}/reduce-scatter{}", unit_index, suffix), shard_, bytes_.gradient,
                  {{u.full_gradient}}, {{u.gradient_buffer}})
        .accumulate = true;
  }

  // The once-a-step part: over the shard group (ZeRO 0 and 1), then over replicas of the shards.
  void reduce_unit(std::int32_t unit_index) {
    const Unit& u = unit(unit_index);
    const std::int64_t bytes = bytes_.gradient;
    const std::string name = fmt::format("unit{}", unit_index);
    if (plan_.dp == 1) return;
    if (plan_.zero == 0) {
      e_.collective({CollectiveKind::kAllReduce, u.padded}, name + "/all-reduce", dp_, bytes,
                    {{u.gradient_buffer}}, {{u.gradient_buffer}});
      return;
    }
    const Ref own = gradient_shard(u);
    if (plan_.zero == 1 && plan_.shards() > 1) {
      e_.collective({CollectiveKind::kReduceScatter, u.padded}, name + "/reduce-scatter", shard_, bytes,
                    {{u.gradient_buffer}}, {own});
    }
    if (plan_.shards() < plan_.dp) {
      e_.collective({CollectiveKind::kAllReduce, u.shard}, name + "/replica-all-reduce", replica_, bytes,
                    {own}, {own});
    }
  }

  void synchronise(const Chunk& c, const ChunkBlock& b, bool last) {
    for (std::int32_t i = b.end_piece; i-- > b.first_piece;) {
      const Piece& piece = c.pieces[static_cast<std::size_t>(i)];
      complete_partial(piece, last);
      if (!piece.closes_unit) continue;
      if (plan_.zero >= 2 && unit(piece.unit).full_gradient >= 0) reduce_to_shard(piece.unit);
      if (last && e_.stack.overlap_grad_reduce) reduce_unit(piece.unit);
    }
  }

  // --- segments ----------------------------------------------------------------------------------
  std::size_t group_size() const {
    return plan_.recompute == Recompute::kFull ? static_cast<std::size_t>(plan_.recompute_layers) : 1;
  }

  // A send, or a receive, of `at` with the stage that holds chunk `peer`.
  template <class Direction>
  void pass(const char* name, StreamIndex stream, std::int64_t peer, Ref at, std::int64_t elements,
            std::int64_t element_bytes) {
    std::vector<Ref> reads, writes;
    (std::is_same_v<Direction, ops::Send> ? reads : writes).push_back(at);
    Op& o = e_.add(Direction{elements}, name, std::move(reads), std::move(writes));
    o.stream = stream;
    o.group = stages_;
    o.payload = Bytes{elements * element_bytes};
    o.peer_chunk = static_cast<std::int32_t>(peer);
  }
  template <class Direction>
  void transfer(const char* name, StreamIndex stream, std::int64_t peer, Ref at) {
    pass<Direction>(name, stream, peer, at, boundary_, activation_bytes(e_.training.precision));
  }

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
          synchronise(c, *b.block, final);
        }
      }
    }
  }

  Kept emit_forward(Chunk& c, std::int32_t index) {
    begin(SegmentKind::kForward, index, false);
    Kept kept;
    std::int32_t x = -1;
    if (c.embedding) {
      need(*c.embedding);
      kept.embedding = e_.forward(c.embedding->block, std::array{tokens_});
      x = kept.embedding.output;
    } else {
      x = boundary(fmt::format("chunk{}/input", c.global));
      transfer<ops::Recv>("pipeline/recv", recv_, c.global - 1, {x});
    }
    for (const ChunkBlock& layer : c.layers) {
      need(layer);
      kept.inputs.push_back(x);
      kept.layers.push_back(e_.forward(layer.block, std::array{x}));
      x = kept.layers.back().output;
    }
    if (c.head) {
      need(*c.head);
      kept.head = e_.forward(c.head->block, std::array{x, targets_, loss_});
    } else {
      transfer<ops::Send>("pipeline/send", send_, c.global + 1, {x});
    }
    return kept;
  }

  Backwards emit_backward(Chunk& c, std::int32_t index, const Kept& kept, bool last) {
    begin(split() ? SegmentKind::kBackwardInput : SegmentKind::kBackward, index, last && !split());
    Backwards out;
    std::vector<Tensors> tensors = kept.layers;
    // From the gradient of a block's output to the gradient of its input.
    const auto backward = [&](const ChunkBlock& b, const Tensors& of, std::int32_t d, std::int32_t to) {
      need(b);
      return out.emplace_back(Backward{&b, Reverse(e_, b.block, of, split())}).reverse.run(d, to);
    };
    std::int32_t d = -1;
    if (c.head) {
      d = backward(*c.head, kept.head, -1, -1);
      if (!split()) {
        if (tied_here() && plan_.zero >= 2) reduce_to_shard(unit_of(embedding_), "-head");
        synchronise(c, *c.head, last);
      }
    } else {
      d = shared(c.output_grad, c, "output-grad");
      transfer<ops::Recv>("pipeline/grad-recv", grad_recv_, c.global + 1, {d});
    }
    for (std::size_t end = c.layers.size(); end > 0;) {
      const std::size_t first = (end - 1) / group_size() * group_size();
      const std::size_t next = e_.emitted();
      recompute_group(c, kept, first, end, tensors);
      // Recomputation starts when the gradient is there, as autograd engines do it.
      if (plan_.recompute != Recompute::kNone) e_.first_compute_op(next).reads.push_back({d});
      for (std::size_t l = end; l-- > first;) {
        const std::int32_t to = l == 0 && c.global > 0 ? shared(c.input_grad, c, "input-grad") : -1;
        d = backward(c.layers[l], tensors[l], d, to);
        if (!split()) synchronise(c, c.layers[l], last);
      }
      end = first;
    }
    if (c.embedding) {
      out.emplace_back(Backward{&*c.embedding, Reverse(e_, c.embedding->block, kept.embedding, split())})
          .reverse.run(d, -1);
      if (!split()) synchronise(c, *c.embedding, last);
    } else {
      transfer<ops::Send>("pipeline/grad-send", grad_send_, c.global - 1, {d});
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
      need(c.layers[l]);
      tensors[l] = e_.forward(c.layers[l].block, std::array{x}, true);
      x = tensors[l].output;
    }
  }

  // Sum the gradient shards of the tied weight held by the first and by the last stage.
  void exchange_tied() {
    if (!tied_across_) return;
    const Unit& u = unit(unit_of(embedding_));
    const bool first = rank_.chunks.front() == 0;
    const std::int64_t peer = first ? last_chunk() : 0;
    const std::int64_t bytes = bytes_.gradient;
    const Ref own = gradient_shard(u);
    const std::int32_t received =
        e_.activation("embedding/tie/received", u.shard, e_.training.gradient_type());
    pass<ops::Send>("embedding/tie/send", first ? send_ : grad_send_, peer, own, u.shard, bytes);
    pass<ops::Recv>("embedding/tie/recv", first ? grad_recv_ : recv_, peer, {received}, u.shard, bytes);
    e_.add(ops::Accumulate{u.shard, bytes}, "embedding/tie/add", {{received}, own}, {own});
  }

  // The global gradient norm: squares of every unit's shard in exact bins, summed over tensor ranks and
  // shards, then stage by stage up to the first and back down. What several ranks hold alike is counted once.
  std::int32_t emit_gradient_norm() {
    const std::int32_t norm =
        e_.static_buffer("gradient-norm", BufferClass::kWorkspace, kNormBytes, DType::kByte);
    const std::int32_t bins =
        e_.static_buffer("gradient-norm/bins", BufferClass::kWorkspace, kNormBins, DType::kFloat64);
    bool first = true;
    for (std::size_t i = 0; i < rank_.units.size(); ++i) {
      const auto index = static_cast<std::int32_t>(i);
      if (tied_across_ && rank_.chunks.front() != 0 && index == unit_of(embedding_)) continue;
      const Unit& u = rank_.units[i];
      e_.add(ops::NormSquare{u.shard, index}, fmt::format("unit{}/norm", i), {gradient_shard(u)}, {{bins}})
          .accumulate = !first;
      first = false;
    }
    sum_over_parts("gradient-norm", bins, kNormBins);
    sum_over_stages(bins);
    e_.add(ops::NormFinish{}, "gradient-norm", {{bins}}, {{norm}});
    return norm;
  }

  // Of a rank's shard of each unit.
  Ref gradient_shard(const Unit& u) const { return {u.gradient_buffer, 0, plan_.zero == 1 ? u.shard : 0}; }
  Ref parameter_shard(const Unit& u) const {
    return {u.parameter_buffer, 0, plan_.zero == 1 || plan_.zero == 2 ? u.shard : 0};
  }

  // Sums bins over all ranks that hold parts of this one's tensors.
  void sum_over_parts(const std::string& name, std::int32_t bins, std::int64_t elements) {
    const auto sum = [&](const char* over, GroupIndex group) {
      e_.collective({CollectiveKind::kAllReduce, elements}, name + over, group, 8, {{bins}}, {{bins}});
    };
    if (plan_.tp > 1) sum("/tp/all-reduce", tp_);
    if (plan_.shards() > 1) sum("/shards/all-reduce", shard_);
  }

  // LAMB's: of each tensor the norm of its weights over that of Adam's update of them. What tensor ranks hold
  // alike is in both sums as often.
  std::int32_t emit_trust_ratios(std::int32_t norm) {
    const auto tensors = std::ssize(rank_.parameters);
    const std::int32_t ratios =
        e_.static_buffer("trust-ratio", BufferClass::kWorkspace, tensors, DType::kFloat32);
    const std::int32_t bins =
        e_.static_buffer("trust-ratio/bins", BufferClass::kWorkspace, tensors * kTrustBins, DType::kFloat64);
    e_.add(ops::ZeroGrad{tensors * kTrustBins, 8}, "trust-ratio/clear", {}, {{bins}});
    for (std::size_t i = 0; i < rank_.units.size(); ++i) {
      const Unit& u = rank_.units[i];
      std::vector<Ref> reads{gradient_shard(u), parameter_shard(u), {u.optimizer_buffer}};
      if (norm >= 0) reads.push_back({norm});
      e_.add(ops::TrustSquares{u.shard, static_cast<std::int64_t>(i)}, fmt::format("unit{}/trust-ratio", i),
             std::move(reads), {{bins}});
    }
    sum_over_parts("trust-ratio", bins, tensors * kTrustBins);
    e_.add(ops::TrustRatio{tensors}, "trust-ratio", {{bins}}, {{ratios}});
    return ratios;
  }

  void sum_over_stages(std::int32_t bins) {
    if (plan_.pp == 1) return;
    // The first chunk of each stage is numbered as the stage.
    const bool above = rank_.stage > 0, below = rank_.stage + 1 < plan_.pp;
    if (below) {
      const std::int32_t received =
          e_.static_buffer("gradient-norm/received", BufferClass::kWorkspace, kNormBins, DType::kFloat64);
      pass<ops::Recv>("gradient-norm/up/recv", grad_recv_, rank_.stage + 1, {received}, kNormBins, 8);
      e_.add(ops::Accumulate{kNormBins, 8}, "gradient-norm/add", {{received}, {bins}}, {{bins}});
    }
    if (above) {
      pass<ops::Send>("gradient-norm/up/send", grad_send_, rank_.stage - 1, {bins}, kNormBins, 8);
      pass<ops::Recv>("gradient-norm/down/recv", recv_, rank_.stage - 1, {bins}, kNormBins, 8);
    }
    if (below) pass<ops::Send>("gradient-norm/down/send", send_, rank_.stage + 1, {bins}, kNormBins, 8);
  }

  void emit_optimizer() {
    begin(SegmentKind::kOptimizer, 0, true);
    if (!e_.stack.overlap_grad_reduce) {
      for (std::size_t i = 0; i < rank_.units.size(); ++i) reduce_unit(static_cast<std::int32_t>(i));
      // Not before all gradients are there.
      if (auto& ops = rank_.segments.back().ops; !ops.empty()) {
        for (const Unit& u : rank_.units) ops.front().reads.push_back({u.gradient_buffer});
      }
    }
    exchange_tied();
    const std::int32_t norm = e_.training.measures_norm() ? emit_gradient_norm() : -1;
    const std::int32_t ratios = e_.training.lamb ? emit_trust_ratios(norm) : -1;
    for (std::size_t i = 0; i < rank_.units.size(); ++i) {
      const Unit& u = rank_.units[i];
      const std::string name = fmt::format("unit{}", i);
      const Ref parameter = parameter_shard(u);
      std::vector<Ref> reads{gradient_shard(u), parameter, {u.optimizer_buffer}};
      if (ratios >= 0) reads.push_back({ratios});
      if (norm >= 0) reads.push_back({norm});
      e_.add(ops::Optimizer{{u.shard, static_cast<std::int64_t>(i)}, ratios >= 0}, name + "/optimizer",
             std::move(reads), {parameter, {u.optimizer_buffer}});
      e_.add(ops::ZeroGrad{plan_.zero >= 2 ? u.shard : u.padded, bytes_.gradient}, name + "/zero-grad", {},
             {{u.gradient_buffer}});
      if ((plan_.zero == 1 || plan_.zero == 2) && plan_.shards() > 1) {
        e_.collective({CollectiveKind::kAllGather, u.padded}, name + "/all-gather", shard_, bytes_.parameter,
                      {parameter}, {{u.parameter_buffer}});
      }
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
  const Graphs& graphs_;
  const std::int64_t boundary_;  // elements that pass from stage to stage
  const GroupIndex tp_, dp_, shard_, replica_, stages_;
  const StreamIndex send_, recv_, grad_send_, grad_recv_;
  const BytesPerParameter bytes_;
  RankClass& rank_;
  std::vector<Chunk> chunks_;
  std::int32_t embedding_ = -1;                          // parameter
  std::int32_t tokens_ = -1, targets_ = -1, loss_ = -1;  // buffers
  bool tied_here_ = false, tied_across_ = false;
  // ZeRO-3's two places for gathered units, and the units this segment has in them.
  std::array<std::int32_t, 2> places_{-1, -1}, held_{-1, -1};
  std::size_t next_place_ = 0;
  bool own_place_held_ = false;  // a tied embedding is gathered beside them
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
  const Graphs graphs{embedding(model, plan, training, stack),
                      transformer_layer(model, plan, training, stack), head(model, plan, training, stack)};
  const auto slots = pipeline_schedule(plan.schedule, plan.pp, plan.vpp, plan.micro_batches);
  program.classes.resize(static_cast<std::size_t>(plan.pp));
  for (std::int64_t i = 0; i < plan.pp; ++i) {
    RankClass& rank = program.classes[static_cast<std::size_t>(i)];
    ClassCompiler(model, plan, training, stack, graphs, program.communication, rank,
                  static_cast<std::int32_t>(i), detail == Detail::kFull)
        .run(slots[static_cast<std::size_t>(i)]);
    place_buffers(rank);
    if (detail != Detail::kSizes) link_waits(rank);
  }
  return program;
}

}  // namespace orrery::program
