// SPDX-License-Identifier: Apache-2.0
//
// From the dims of an op (program/emitter.h) to the shapes of its kernel, whichever device it runs on.
// Internal to exec/.
#pragma once

#include "kernels/cpu/reference.h"
#include "program/program.h"

namespace orrery::exec {

inline kernels::reference::NormShape norm_shape(const program::Op& op, const Model& model) {
  return {op.dims[0], op.dims[1], static_cast<Norm>(op.dims[2]) == Norm::kRmsNorm,
          static_cast<float>(model.norm_epsilon)};
}
inline kernels::reference::HeadNormShape head_norm_shape(const program::Op& op, const Model& model) {
  return {op.dims[0], op.dims[1], op.dims[2], op.dims[4], op.dims[3], static_cast<float>(model.norm_epsilon)};
}
inline kernels::reference::RopeShape rope_shape(const program::Op& op) {
  const auto& d = op.dims;
  return {d[0], d[1], d[2], d[3], d[4], d[3] - d[5], op.kind == program::OpKind::kRopeGrad};
}
// Of rotary positions; empty where the model has others.
inline RotaryTables rope_tables(const program::Program& p) {
  if (p.model.positions != Positions::kRotary) return {};
  return rotary_tables(p.model.rotary, p.model.head(), p.training.sequence);
}
inline kernels::reference::AttentionShape attention_shape(const program::Op& op, std::int64_t tp_rank,
                                                          const kernels::Dropout& dropout) {
  const auto& d = op.dims;
  return {d[0], d[1], d[2], d[3], d[4], d[5] != 0, tp_rank * d[2], dropout};
}
inline kernels::reference::LossShape loss_shape(const program::Op& op, std::int64_t tp_rank) {
  return {op.dims[0], op.dims[1], tp_rank * op.dims[1], op.dims[3]};
}

}  // namespace orrery::exec
