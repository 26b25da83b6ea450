// SPDX-License-Identifier: Apache-2.0
//
// Emits the ops of one rank class. Internal to program/.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "program/program.h"

namespace orrery::program {

// Sizes of one rank's share, and the bytes of its elements.
struct Shapes {
  Shapes(const Model& m, const Plan& p, const Training& t);
  std::int64_t b, s, tokens, rows;                         // rows = tokens / t under sequence parallelism
  std::int64_t h, heads, kv, head, q, qkv, f, fc1, vocab;  // local to a tensor rank
  std::int64_t t;
  std::int64_t beta;  // bytes of an activation
  bool sp;
};

// Parameter indices of a transformer layer in RankClass::parameters; -1 where there is none.
struct LayerParameters {
  std::int32_t norm1 = -1, norm1_bias = -1, norm2 = -1, norm2_bias = -1, qk_norm = -1;
  std::int32_t out_bias = -1, fc2_bias = -1;
  std::int32_t qkv = -1, qkv_bias = -1, out = -1, fc1 = -1, fc1_bias = -1, fc2 = -1;
};

struct HeadParameters {
  std::int32_t norm = -1, norm_bias = -1, weight = -1;
};

// What one layer's forward leaves for its backward; buffer ids.
struct LayerTensors {
  std::int32_t x = -1, n1 = -1, qkv_raw = -1, qkv = -1, ctx = -1, softmax = -1, scores_mask = -1;
  std::int32_t mask1 = -1, y = -1, n2 = -1, u = -1, v = -1, mask2 = -1, out = -1;
};

class Emitter {
 public:
  Emitter(const Model& m, const Plan& p, const Training& t, const Stack& s, const Communication& over,
          RankClass& c, bool named);

  const Model& model;
  const Plan& plan;
  const Training& training;
  const Stack& stack;
  RankClass& rank;
  const Shapes z;

  // "layer17/attn/qkv", or nothing in a program that is only costed.
  std::string layer_name(std::int64_t layer, const char* rest) const;

  // --- buffers -----------------------------------------------------------------------------------
  // Activations are local to the segment that makes them; what another segment of the chunk also
  // touches becomes saved (program/memory.cpp decides, from what the ops read).
  std::int32_t static_buffer(std::string name, BufferClass cls, std::int64_t elements, DType type);
  std::int32_t activation(const std::string& name, std::int64_t elements) {
    return activation(name, elements, training.activation_type());
  }
  std::int32_t activation(const std::string& name, std::int64_t elements, DType type);
  Ref weight(std::int32_t parameter) const;
  Ref gradient(std::int32_t parameter) const;

  // --- ops ---------------------------------------------------------------------------------------
  void begin(SegmentKind kind, std::int32_t chunk, bool last);
  Op& add(const OpKind& kind, std::string name, std::vector<Ref> reads, std::vector<Ref> writes);
  Op& gemm(std::string name, ops::Gemm shape, std::vector<Ref> reads, std::vector<Ref> writes);
  Op& collective(const ops::Collective& shape, std::string name, GroupIndex group, std::int64_t element_bytes,
                 std::vector<Ref> reads, std::vector<Ref> writes);
  // y (partial sums over tp, [T,h]) summed: in place, or scattered to rows under sequence parallelism.
  std::int32_t sum_over_tp(const std::string& name, std::int32_t partial, const std::string& scattered);
  // [rows,h] to [T,h] under sequence parallelism; otherwise the buffer itself.
  std::int32_t gather_rows(const std::string& name, std::int32_t shard);

  // --- blocks ------------------------------------------------------------------------------------
  LayerParameters layer_parameters(std::int64_t layer);
  HeadParameters head_norm_parameters();
  std::int32_t embedding_parameter(const char* name);
  std::int32_t positions_parameter();

  LayerTensors layer_forward(std::int64_t layer, const LayerParameters& w, std::int32_t x);
  // From the gradient of out to d_in, that of x. When `split`, weight gradients are left to
  // layer_weight_grad.
  struct WeightGradInputs {
    std::int32_t d_out = -1, d_u = -1, d_proj = -1, d_qkv = -1;
  };
  void layer_backward(std::int64_t layer, const LayerParameters& w, const LayerTensors& s, std::int32_t d_out,
                      std::int32_t d_in, bool split, WeightGradInputs& later);
  void layer_weight_grad(std::int64_t layer, const LayerParameters& w, const LayerTensors& s,
                         const WeightGradInputs& g);
  void recompute_attention(std::int64_t layer, LayerTensors& s);

  std::int32_t embedding_forward(std::int32_t weight, std::int32_t positions);
  void embedding_backward(std::int32_t weight, std::int32_t positions, std::int32_t d_x);

  struct HeadTensors {
    std::int32_t x = -1, n = -1, probabilities = -1;
  };
  HeadTensors head_forward(const HeadParameters& w, std::int32_t x);
  std::int32_t head_backward(const HeadParameters& w, const HeadTensors& s, bool split,
                             std::int32_t& d_logits);
  void head_weight_grad(const HeadParameters& w, const HeadTensors& s, std::int32_t d_logits);

  std::size_t emitted() const { return segment_->ops.size(); }
  // The first compute op at or after `index`.
  Op& first_compute_op(std::size_t index);
  // Ops emitted while this is set are repetitions of forward work.
  void set_recomputing(bool on) { recomputing_ = on; }

  std::int32_t tokens_buffer = -1, targets_buffer = -1, loss_buffer = -1;

 private:
  std::int32_t add_parameter(std::string name, std::int64_t rows, std::int64_t cols, Parameter::Split split,
                             std::vector<std::int64_t> row_blocks, Parameter::Init init,
                             bool partial_over_tp);
  void norm_op(const std::string& name, std::int32_t weight_index, std::int32_t bias_index, std::int32_t x,
               std::int32_t y);
  void norm_grad(const std::string& name, std::int32_t weight_index, std::int32_t bias_index, std::int32_t x,
                 std::int32_t dy, std::int32_t residual, std::int32_t dx);
  ops::AttentionShape attention_shape() const;
  ops::RopeShape rope_shape() const;
  ops::LogitsShape logits_shape() const { return {z.tokens, z.vocab, model.vocab}; }
  void attention_forward(const std::string& base, LayerTensors& s);
  void linear_weight_grad(const std::string& name, std::int32_t weight_index, std::int32_t bias_index,
                          std::int64_t out, std::int64_t in, std::int32_t dy, std::int32_t x);
  // Products of layers take 8-bit operands, not those of the head.
  bool in_fp8() const { return training.math == Math::kFp8 && layer_ >= 0; }
  bool fuses_gelu() const {
    return stack.fused_gelu && model.activation == Activation::kGelu && training.math != Math::kFp8;
  }
  // Gradients of a step are summed where they stand, unless each micro-batch's are reduced on their own.
  bool accumulates() const { return plan.zero < 2; }

  const Communication& over_;
  GroupIndex tp_;
  bool named_;
  ops::ElementBytes bytes_;
  Segment* segment_ = nullptr;
  std::int32_t layer_ = -1;
  bool recomputing_ = false;
};

}  // namespace orrery::program
