// SPDX-License-Identifier: Apache-2.0
#include "program/emitter.h"

#include <fmt/format.h>

namespace orrery::program {
namespace {

std::int64_t padded_vocab(const Model& m, std::int64_t t) {
  return (m.vocab + t - 1) / t * t;
}

}  // namespace

std::string Emitter::layer_name(std::int64_t layer, const char* rest) const {
  return named_ ? fmt::format("layer{}/{}", layer, rest) : std::string();
}

Shapes::Shapes(const Model& m, const Plan& p, const Training& tr)
    : b(p.micro_batch),
      s(tr.sequence),
      tokens(b * s),
      rows(p.sequence_parallel ? tokens / p.tp : tokens),
      h(m.hidden),
      heads(m.heads / p.tp),
      kv(m.kv() / p.tp),
      head(m.head()),
      q(heads * head),
      qkv((heads + 2 * kv) * head),
      f(m.ffn() / p.tp),
      fc1(m.fc1_width() / p.tp),
      vocab(padded_vocab(m, p.tp) / p.tp),
      t(p.tp),
      beta(activation_bytes(tr.precision)),
      sp(p.sequence_parallel && p.tp > 1) {}

Emitter::Emitter(const Model& m, const Plan& p, const Training& t, const Stack& s, const Communication& over,
                 RankClass& c, bool named)
    : model(m),
      plan(p),
      training(t),
      stack(s),
      rank(c),
      z(m, p, t),
      over_(over),
      tp_(over.group("tp")),
      named_(named),
      bytes_(ops::element_bytes(t, s)) {}

std::int32_t Emitter::static_buffer(std::string name, BufferClass cls, std::int64_t elements, DType type) {
  rank.buffers.push_back({.name = std::move(name),
                          .cls = cls,
                          .life = Life::kStatic,
                          .type = type,
                          .bytes = Bytes{elements * static_cast<std::int64_t>(bytes_of(type))}});
  return static_cast<std::int32_t>(rank.buffers.size() - 1);
}

std::int32_t Emitter::activation(const std::string& name, std::int64_t elements, DType type) {
  rank.buffers.push_back({.name = name,
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

Ref Emitter::gradient(std::int32_t parameter) const {
  const Parameter& p = rank.parameters[static_cast<std::size_t>(parameter)];
  const Unit& u = rank.units[static_cast<std::size_t>(p.unit)];
  return {u.full_gradient >= 0 ? u.full_gradient : u.gradient_buffer, p.offset};
}

void Emitter::begin(SegmentKind kind, std::int32_t chunk, bool last) {
  Segment s;
  s.kind = kind;
  s.chunk = chunk;
  s.last_micro_batch = last;
  rank.segments.push_back(std::move(s));
  segment_ = &rank.segments.back();
}

Op& Emitter::first_compute_op(std::size_t index) {
  while (segment_->ops[index].stream != kCompute) ++index;
  return segment_->ops[index];
}

Op& Emitter::add(const OpKind& kind, std::string name, std::vector<Ref> reads, std::vector<Ref> writes) {
  Op o;
  o.name = std::move(name);
  if (recomputing_) o.name += "/recompute";
  o.kind = kind;
  o.recomputed = recomputing_;
  o.layer = layer_;
  o.flops = flops_of(kind);
  o.traffic = Bytes{bytes_of(kind, bytes_, stack.elementwise_passes)};
  o.reads = std::move(reads);
  o.writes = std::move(writes);
  segment_->ops.push_back(std::move(o));
  return segment_->ops.back();
}

Op& Emitter::gemm(std::string name, ops::Gemm shape, std::vector<Ref> reads, std::vector<Ref> writes) {
  using enum ops::Gemm::Format;
  const bool backward = segment_->kind != SegmentKind::kForward && !recomputing_;
  if (in_fp8()) shape.format = backward ? kFp8Gradient : kFp8Values;
  return add(shape, std::move(name), std::move(reads), std::move(writes));
}

Op& Emitter::collective(const ops::Collective& shape, std::string name, GroupIndex group,
                        std::int64_t element_bytes, std::vector<Ref> reads, std::vector<Ref> writes) {
  Op& o = add(shape, std::move(name), std::move(reads), std::move(writes));
  o.stream = over_.groups[static_cast<std::size_t>(group)].stream;
  o.group = group;
  o.payload = Bytes{shape.elements * element_bytes};
  return o;
}

std::int32_t Emitter::sum_over_tp(const std::string& name, std::int32_t partial,
                                  const std::string& scattered) {
  if (z.t == 1) return partial;
  if (!z.sp) {
    collective({CollectiveKind::kAllReduce, z.tokens * z.h}, name + "/all-reduce", tp_, z.beta, {{partial}},
               {{partial}});
    return partial;
  }
  const std::int32_t shard = activation(scattered, z.rows * z.h);
  collective({CollectiveKind::kReduceScatter, z.tokens * z.h}, name + "/reduce-scatter", tp_, z.beta,
             {{partial}}, {{shard}});
  return shard;
}

std::int32_t Emitter::gather_rows(const std::string& name, std::int32_t shard) {
  if (!z.sp) return shard;
  const std::int32_t whole = activation(name + "/gathered", z.tokens * z.h);
  collective({CollectiveKind::kAllGather, z.tokens * z.h}, name + "/all-gather", tp_, z.beta, {{shard}},
             {{whole}});
  return whole;
}

void Emitter::norm_op(const std::string& name, std::int32_t weight_index, std::int32_t bias_index,
                      std::int32_t x, std::int32_t y) {
  std::vector<Ref> reads{{x}, weight(weight_index)};
  if (bias_index >= 0) reads.push_back(weight(bias_index));
  add(ops::Norm{z.rows, z.h, model.norm, bias_index >= 0}, name, std::move(reads), {{y}});
}

void Emitter::norm_grad(const std::string& name, std::int32_t weight_index, std::int32_t bias_index,
                        std::int32_t x, std::int32_t dy, std::int32_t residual, std::int32_t dx) {
  std::vector<Ref> reads{{x}, weight(weight_index), {dy}};
  if (residual >= 0) reads.push_back({residual});
  std::vector<Ref> writes{{dx}, gradient(weight_index)};
  if (bias_index >= 0) writes.push_back(gradient(bias_index));
  add(ops::NormGrad{{z.rows, z.h, model.norm, bias_index >= 0}, residual >= 0}, name, std::move(reads),
      std::move(writes))
      .accumulate = accumulates();
}

void Emitter::linear_weight_grad(const std::string& name, std::int32_t weight_index, std::int32_t bias_index,
                                 std::int64_t out, std::int64_t in, std::int32_t dy, std::int32_t x) {
  gemm(name + "/wgrad", {.m = out, .n = in, .k = z.tokens, .transpose_a = true}, {{dy}, {x}},
       {gradient(weight_index)})
      .accumulate = accumulates();
  if (bias_index < 0) return;
  add(ops::BiasGrad{z.tokens, out}, name + "/bias-grad", {{dy}}, {gradient(bias_index)}).accumulate =
      accumulates();
}

std::int32_t Emitter::add_parameter(std::string name, std::int64_t rows, std::int64_t cols,
                                    Parameter::Split split, std::vector<std::int64_t> row_blocks,
                                    Parameter::Init init, bool partial_over_tp) {
  using Split = Parameter::Split;
  Parameter p;
  p.name = std::move(name);
  p.rows = rows;
  p.cols = cols;
  p.row_blocks = row_blocks.empty() ? std::vector{rows} : std::move(row_blocks);
  p.split = split;
  p.init = init;
  p.partial_over_tp = partial_over_tp;
  p.local_rows = split == Split::kRows ? rows / z.t : rows;
  p.local_cols = split == Split::kCols ? cols / z.t : cols;
  rank.parameters.push_back(std::move(p));
  return static_cast<std::int32_t>(rank.parameters.size() - 1);
}

// Parameters whose gradients are partial sums on each tensor rank stand first and together, so that
// one all-reduce completes them.
LayerParameters Emitter::layer_parameters(std::int64_t layer) {
  using Split = Parameter::Split;
  using Init = Parameter::Init;
  LayerParameters w;
  const auto vector = [&](const char* name, std::int64_t n, Init init, bool partial) {
    return add_parameter(layer_name(layer, name), n, 1, Split::kNone, {}, init, partial);
  };
  const bool norm_bias = model.norm == Norm::kLayerNorm && model.bias;
  if (model.qk_norm) w.qk_norm = vector("attn/qk_norm/weight", 2 * z.head, Init::kOnes, z.t > 1);
  w.norm1 = vector("attn/norm/weight", z.h, Init::kOnes, z.sp);
  if (norm_bias) w.norm1_bias = vector("attn/norm/bias", z.h, Init::kZeros, z.sp);
  if (model.bias) w.out_bias = vector("attn/out/bias", z.h, Init::kZeros, z.sp);
  w.norm2 = vector("mlp/norm/weight", z.h, Init::kOnes, z.sp);
  if (norm_bias) w.norm2_bias = vector("mlp/norm/bias", z.h, Init::kZeros, z.sp);
  if (model.bias) w.fc2_bias = vector("mlp/fc2/bias", z.h, Init::kZeros, z.sp);

  const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t cols, Split split,
                          std::vector<std::int64_t> blocks = {}) {
    return add_parameter(layer_name(layer, name), rows, cols, split, std::move(blocks), Init::kNormal, false);
  };
  const auto column_bias = [&](const char* name, std::int64_t rows, std::vector<std::int64_t> blocks) {
    return add_parameter(layer_name(layer, name), rows, 1, Split::kRows, std::move(blocks), Init::kZeros,
                         false);
  };
  const std::int64_t q = model.heads * model.head(), k = model.kv() * model.head();
  const std::vector<std::int64_t> qkv_blocks{q, k, k};
  const std::vector<std::int64_t> fc1_blocks(model.gated() ? 2 : 1, model.ffn());
  w.qkv = matrix("attn/qkv/weight", model.qkv_width(), z.h, Split::kRows, qkv_blocks);
  if (model.bias || model.qkv_bias) w.qkv_bias = column_bias("attn/qkv/bias", model.qkv_width(), qkv_blocks);
  w.out = matrix("attn/out/weight", z.h, q, Split::kCols);
  w.fc1 = matrix("mlp/fc1/weight", model.fc1_width(), z.h, Split::kRows, fc1_blocks);
  if (model.bias) w.fc1_bias = column_bias("mlp/fc1/bias", model.fc1_width(), fc1_blocks);
  w.fc2 = matrix("mlp/fc2/weight", z.h, model.ffn(), Split::kCols);
  return w;
}

std::int32_t Emitter::embedding_parameter(const char* name) {
  const std::int64_t rows = padded_vocab(model, z.t);
  const std::int32_t index =
      add_parameter(name, rows, z.h, Parameter::Split::kRows, {}, Parameter::Init::kNormal, false);
  rank.parameters[static_cast<std::size_t>(index)].padding = rows - model.vocab;
  return index;
}

std::int32_t Emitter::positions_parameter() {
  if (model.positions != Positions::kLearned) return -1;
  return add_parameter("embedding/positions", model.max_positions, z.h, Parameter::Split::kNone, {},
                       Parameter::Init::kNormal, z.sp);
}

HeadParameters Emitter::head_norm_parameters() {
  HeadParameters w;
  w.norm =
      add_parameter("head/norm/weight", z.h, 1, Parameter::Split::kNone, {}, Parameter::Init::kOnes, z.sp);
  if (model.norm == Norm::kLayerNorm && model.bias) {
    w.norm_bias =
        add_parameter("head/norm/bias", z.h, 1, Parameter::Split::kNone, {}, Parameter::Init::kZeros, z.sp);
  }
  return w;
}

}  // namespace orrery::program
