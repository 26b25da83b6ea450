// SPDX-License-Identifier: Apache-2.0
#include "program/emitter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace orrery::program {
namespace {

// Along these, rows are exchanged, or gathered with those that were.
constexpr std::array kMovingAxes{GraphAxis::kUlysses, GraphAxis::kEp, GraphAxis::kEtp};

}  // namespace

Placements exchanged(const Placements& from, const Placements& wanted) {
  Placements out = from;
  for (const GraphAxis axis : kMovingAxes) out[axis] = wanted[axis];
  return out;
}

Emitter::Emitter(const Plan& p, const Training& t, const Stack& s, const Communication& over, RankClass& c,
                 bool named)
    : plan(p), training(t), stack(s), rank(c), over_(over), named_(named), bytes_(ops::element_bytes(t, s)) {
  for (const auto& [axis, name] : enum_names(GraphAxis{}))
    groups_[static_cast<std::size_t>(axis)] = over.group(name);
}

// --- buffers ---------------------------------------------------------------------------------------

std::int32_t Emitter::static_buffer(std::string name, BufferClass cls, std::int64_t elements, DType type) {
  rank.buffers.push_back({.name = std::move(name),
                          .cls = cls,
                          .life = Life::kStatic,
                          .type = type,
                          .bytes = Bytes{elements * static_cast<std::int64_t>(bytes_of(type))}});
  return static_cast<std::int32_t>(rank.buffers.size() - 1);
}

std::int32_t Emitter::activation(std::string name, std::int64_t elements, DType type) {
  rank.buffers.push_back({.name = std::move(name),
                          .cls = BufferClass::kWorkspace,
                          .life = Life::kLocal,
                          .chunk = segment_->chunk,
                          .type = type,
                          .bytes = Bytes{elements * static_cast<std::int64_t>(bytes_of(type))}});
  return static_cast<std::int32_t>(rank.buffers.size() - 1);
}

Ref Emitter::weight(std::int32_t parameter) const {
  const Parameter& p = rank.parameters[static_cast<std::size_t>(parameter)];
  const Unit& u = rank.units[static_cast<std::size_t>(p.unit)];
  return {u.gathered_buffer >= 0 ? u.gathered_buffer : u.parameter_buffer, p.offset};
}

Ref Emitter::used_weight(const Block& b, std::int32_t i) {
  const Ref stored = weight(b, i);
  const Parameter& p = rank.parameters[static_cast<std::size_t>(b.parameters[static_cast<std::size_t>(i)])];
  if (!is_quantised(p.kept)) return stored;
  const std::string_view of = b.graph->parameters[static_cast<std::size_t>(i)].name;
  const std::int64_t elements = p.local_elements();
  const Ref made{activation(name(b, of, "/dequantised"), elements, training.parameter_type())};
  add(ops::Dequantise{elements, p.kept == Kept::kNf4Double}, name(b, of, "/dequantise"), {stored}, {made});
  return made;
}

Ref Emitter::gradient(std::int32_t parameter) const {
  const Parameter& p = rank.parameters[static_cast<std::size_t>(parameter)];
  const Unit& u = rank.units[static_cast<std::size_t>(p.unit)];
  return {u.full_gradient >= 0 ? u.full_gradient : u.gradient_buffer, p.offset};
}

// --- ops -------------------------------------------------------------------------------------------

void Emitter::begin(SegmentKind kind, std::int32_t chunk, bool last) {
  Segment s;
  s.kind = kind;
  s.chunk = chunk;
  s.last_micro_batch = last;
  rank.segments.push_back(std::move(s));
  segment_ = &rank.segments.back();
  layer_ = -1;
}

void Emitter::shift(std::size_t first, std::int32_t buffer, std::int64_t elements) {
  for (Op& op : std::span(segment_->ops).subspan(first)) {
    for (std::vector<Ref>* const refs : {&op.reads, &op.writes}) {
      for (Ref& r : *refs) {
        if (r.buffer == buffer) r.offset += elements;
      }
    }
  }
}

Op& Emitter::first_compute_op(std::size_t index) {
  while (segment_->ops.at(index).stream != kCompute) ++index;
  return segment_->ops[index];
}

Op& Emitter::add(const OpKind& kind, std::string name, std::vector<Ref> reads, std::vector<Ref> writes) {
  Op o;
  o.name = std::move(name);
  if (recomputing_) o.name += "/recompute";
  o.kind = kind;
  o.recomputed = recomputing_;
  o.evaluates = evaluates_;
  o.layer = layer_;
  o.flops = flops_of(kind);
  o.traffic = Bytes{bytes_of(kind, bytes_, ops::passes_of(stack))};
  o.reads = std::move(reads);
  o.writes = std::move(writes);
  segment_->ops.push_back(std::move(o));
  return segment_->ops.back();
}

Op& Emitter::collective(const ops::Collective& shape, std::string name, GroupIndex group,
                        std::int64_t element_bytes, std::vector<Ref> reads, std::vector<Ref> writes) {
  Op& o = add(shape, std::move(name), std::move(reads), std::move(writes));
  o.stream = over_.groups[static_cast<std::size_t>(group)].stream;
  o.group = group;
  o.payload = Bytes{shape.elements * element_bytes};
  return o;
}

Op& Emitter::copy(const ops::Copy& shape, std::string name, Ref from, Ref to) {
  Op& o = add(shape, std::move(name), {from}, {to});
  o.stream = stream_of(shape.way);
  o.payload = Bytes{shape.elements * shape.element_bytes};
  return o;
}

void Emitter::send(const char* name, StreamIndex stream, std::int64_t peer, Ref from, std::int64_t elements,
                   std::int64_t element_bytes) {
  transfer(add(ops::Send{elements}, name, {from}, {}), stream, peer, elements * element_bytes);
}

void Emitter::receive(const char* name, StreamIndex stream, std::int64_t peer, Ref to, std::int64_t elements,
                      std::int64_t element_bytes) {
  transfer(add(ops::Recv{elements}, name, {}, {to}), stream, peer, elements * element_bytes);
}

void Emitter::transfer(Op& o, StreamIndex stream, std::int64_t peer, std::int64_t bytes) const {
  o.stream = stream;
  o.group = over_.group("pp");
  o.payload = Bytes{bytes};
  o.peer_chunk = static_cast<std::int32_t>(peer);
}

// --- blocks ----------------------------------------------------------------------------------------

std::string Emitter::name(const Block& b, std::string_view of, std::string_view suffix) const {
  std::string out;
  if (!named_) return out;
  out.reserve(b.prefix.size() + of.size() + suffix.size());
  return out.append(b.prefix).append(of).append(suffix);
}

Tensors Emitter::forward(const Block& b, std::span<const std::int32_t> ports, bool repeated) {
  const Graph& graph = *b.graph;
  enter(b);
  recomputing_ = repeated;
  Tensors t;
  t.of.assign(graph.values.size(), -1);
  for (std::size_t i = 0; i < ports.size(); ++i)
    t.of[static_cast<std::size_t>(graph.ports[i].value)] = ports[i];
  std::vector<Placed> placed;
  for (const Node& n : graph.nodes) run(b, n, t, placed);
  for (const Output& output : graph.outputs) {
    const Value& v = graph.values[static_cast<std::size_t>(output.is.value)];
    t.outputs.push_back(converted(b, v, t.of[static_cast<std::size_t>(output.is.value)], v.placement,
                                  output.is.wanted, "",
                                  graph.nodes[static_cast<std::size_t>(v.producer)].name));
  }
  recomputing_ = false;
  return t;
}

// Emits a node; results that have no buffer get one.
void Emitter::run(const Block& b, const Node& n, Tensors& t, std::vector<Placed>& placed) {
  const Graph& graph = *b.graph;
  // Where an operand's value is as it is wanted.
  const auto operand = [&](const Operand& o) -> Ref {
    if (o.parameter >= 0) return used_weight(b, o.parameter);
    const Value& v = graph.values[static_cast<std::size_t>(o.value)];
    const std::int32_t buffer = t.of[static_cast<std::size_t>(o.value)];
    const std::string_view producer =
        v.producer < 0 ? std::string_view() : graph.nodes[static_cast<std::size_t>(v.producer)].name;
    const auto place = [&](Placed is, const Placements& as, std::string_view reader, bool keep) -> Placed {
      if (is.as == as) return is;
      for (const std::vector<Placed>* all : {&placed, &t.kept}) {
        for (const Placed& p : *all) {
          if (p.value == o.value && p.as == as) return p;
        }
      }
      placed.push_back({o.value, as, converted(b, v, is.buffer, is.as, as, reader, producer)});
      if (keep) t.kept.push_back(placed.back());
      return placed.back();
    };
    Placed is{o.value, v.placement, buffer};
    const bool partial = is_partial(v.placement);
    const Placements moved = exchanged(v.placement, o.wanted);
    if (!partial) is = place(is, moved, v.name, true);
    const std::string reader = partial && moved != v.placement ? v.name : n.name + "/input";
    return {place(is, o.wanted, reader, partial).buffer};
  };
  std::vector<Ref> reads, writes;
  for (const Operand& o : n.reads) reads.push_back(operand(o));
  for (const Operand& o : n.brings) operand(o);
  for (const ValueId id : n.writes) {
    const Value& v = graph.values[static_cast<std::size_t>(id)];
    std::int32_t& buffer = t.of[static_cast<std::size_t>(id)];
    if (v.in_place_of >= 0)
      buffer = reads[static_cast<std::size_t>(v.in_place_of)].buffer;
    else if (buffer < 0)
      buffer = activation(name(b, v.name), graph.elements(v), v.type);
    writes.push_back({buffer});
  }
  for (const ValueId id : n.keeps) {
    const Value& v = graph.values[static_cast<std::size_t>(id)];
    std::int32_t& buffer = t.of[static_cast<std::size_t>(id)];
    if (buffer < 0) buffer = activation(name(b, v.name), graph.elements(v), v.type);
    writes.push_back({buffer});
  }
  if (const auto* op = std::get_if<ops::ContextAttention>(&n.op); op != nullptr && op->in_steps())
    ring_attention(name(b, n.name), *op, reads, writes[0], writes[1]);
  else
    add(kind_of(n.op), name(b, n.name), std::move(reads), std::move(writes));
}

bool Emitter::repeats_selectively(const Block& b) const {
  return std::any_of(b.graph->nodes.begin(), b.graph->nodes.end(),
                     [&](const Node& n) { return !(n.parts & plan.repeated()).empty(); });
}

void Emitter::repeat_selectively(const Block& b, Tensors& tensors) {
  const Graph& graph = *b.graph;
  const auto repeats = [&](const Node& n) { return !(n.parts & plan.repeated()).empty(); };
  const auto made_again = [&](ValueId v) {
    const std::int32_t producer = graph.values[static_cast<std::size_t>(v)].producer;
    return producer >= 0 && repeats(graph.nodes[static_cast<std::size_t>(producer)]);
  };
  // How a node that is not repeated reads the value, if there is one.
  const auto read_outside = [&](ValueId v) -> const Operand* {
    for (const Node& n : graph.nodes) {
      if (repeats(n)) continue;
      for (const Operand& o : n.reads) {
        if (o.value == v) return &o;
      }
    }
    return nullptr;
  };
  enter(b);
  recomputing_ = true;
  Tensors again = tensors;
  std::erase_if(again.kept, [&](const Placed& p) { return made_again(p.value); });
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (made_again(static_cast<ValueId>(v))) again.of[v] = -1;
  }
  std::vector<Placed> placed;
  for (const Node& n : graph.nodes) {
    if (!repeats(n)) continue;
    for (const ValueId v : n.writes) {
      const std::int32_t over = graph.values[static_cast<std::size_t>(v)].in_place_of;
      if (over >= 0 && !made_again(n.reads[static_cast<std::size_t>(over)].value))
        throw std::logic_error(n.name + " would be done twice to what is not made again");
    }
    run(b, n, again, placed);
    for (const ValueId id : n.keeps)
      tensors.of[static_cast<std::size_t>(id)] = again.of[static_cast<std::size_t>(id)];
    const bool drops = drops_results(n.parts & plan.repeated());
    for (const ValueId id : n.writes) {
      const Value& v = graph.values[static_cast<std::size_t>(id)];
      const Operand* const outside = read_outside(id);
      if (outside == nullptr || drops) {
        tensors.of[static_cast<std::size_t>(id)] = again.of[static_cast<std::size_t>(id)];
        continue;
      }
      // It was kept, and what the part ends in is scratch; a module that is run again sums over ranks again.
      std::erase_if(again.kept, [&](const Placed& p) { return p.value == id; });
      if (is_partial(v.placement))
        converted(b, v, again.of[static_cast<std::size_t>(id)], v.placement, outside->wanted, "", n.name);
    }
  }
  // Rows that ranks exchanged again take the places of those that they exchanged before.
  for (const Placed& p : again.kept) {
    if (!made_again(p.value)) continue;
    const auto same = std::find_if(tensors.kept.begin(), tensors.kept.end(),
                                   [&](const Placed& k) { return k.value == p.value && k.as == p.as; });
    if (same != tensors.kept.end())
      *same = p;
    else
      tensors.kept.push_back(p);
  }
  recomputing_ = false;
}

// What is partial is summed first: an all-to-all, and the gather that follows it, take rows in shares.
std::int32_t Emitter::converted(const Block& b, const Value& v, std::int32_t buffer, Placements from,
                                const Placements& to, std::string_view reader, std::string_view producer,
                                std::int32_t into) {
  using enum Placement;
  const Graph& graph = *b.graph;
  const auto bytes = static_cast<std::int64_t>(bytes_of(v.type));
  const auto convert = [&](std::size_t axis) {
    const Placement is = from.along[axis], wanted = to.along[axis];
    if (is == wanted || graph.ranks_along[axis] == 1) return;
    from.along[axis] = kReplicated;
    const std::int64_t whole = graph.elements(v, from);
    from.along[axis] = wanted;
    const auto emit = [&](CollectiveKind kind, std::int64_t elements, std::string name, std::int32_t made) {
      ops::Collective shape{kind, elements};
      if (kind == CollectiveKind::kAllToAll && plan.exchanges_by_node()) {
        shape.copies = v.copies;
        shape.groups = v.groups;
        shape.top_groups = v.top_groups;
      }
      Op& op = collective(shape, std::move(name), groups_[axis], bytes, {{buffer}}, {{made}});
      if (v.filled < 1) op.payload = Bytes{std::llround(v.filled * static_cast<double>(op.payload.value))};
      buffer = made;
    };
    const auto in_place = [&](CollectiveKind kind, const char* suffix) {
      emit(kind, whole, name(b, producer, suffix), buffer);
    };
    const auto to_new = [&](CollectiveKind kind, std::int64_t elements, std::string_view base,
                            const char* suffix) {
      const std::int32_t made =
          into >= 0 && from == to ? into : activation(name(b, base, suffix), graph.elements(v, from), v.type);
      emit(kind, elements, name(b, base, suffix), made);
    };
    if (is == kSum && wanted == kReplicated && v.keeps_summands)
      to_new(CollectiveKind::kAllReduce, whole, producer, "/all-reduce");
    else if (is == kSum && wanted == kReplicated)
      in_place(CollectiveKind::kAllReduce, "/all-reduce");
    else if (is == kSum && wanted == kRows)
      to_new(CollectiveKind::kReduceScatter, whole, producer, "/reduce-scatter");
    else if (is == kRows && wanted == kReplicated)
      to_new(CollectiveKind::kAllGather, whole, reader, "/all-gather");
    else if ((is == kRows && wanted == kParts) || (is == kParts && wanted == kRows))
      to_new(CollectiveKind::kAllToAll, graph.elements(v, from), reader, "/all-to-all");
    else
      throw std::logic_error(fmt::format(
          "{} of {} is {} along {} and wanted {}: no collective does that", v.name, b.prefix,
          orrery::name_of(is), orrery::name_of(static_cast<GraphAxis>(axis)), orrery::name_of(wanted)));
  };
  for (std::size_t axis = 0; axis < kGraphAxes; ++axis) {
    if (is_partial(from.along[axis])) convert(axis);
  }
  for (std::size_t axis = 0; axis < kGraphAxes; ++axis) convert(axis);
  return buffer;
}

}  // namespace orrery::program
