// SPDX-License-Identifier: Apache-2.0
#include "exec/staging.h"

#include <algorithm>
#include <variant>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/operands.h"

namespace orrery::exec {
namespace {

// Calls visit(operand index, whether written, type, elements) for each operand of 16-bit floats.
template <class Visit>
void for_each_half(const program::RankClass& rank, const program::Op& op, Visit visit) {
  const program::ops::Operands elements = program::operands_of(op.kind);
  const auto type = [&](const program::Ref& r) {
    return rank.buffers[static_cast<std::size_t>(r.buffer)].type;
  };
  for (std::size_t i = 0; i < std::min(op.operands().size(), elements.reads.size()); ++i) {
    if (is_half(type(op.reads[i])) && elements.reads[i] > 0)
      visit(i, false, type(op.reads[i]), elements.reads[i]);
  }
  for (std::size_t i = 0; i < std::min(op.writes.size(), elements.writes.size()); ++i) {
    if (is_half(type(op.writes[i])) && elements.writes[i] > 0)
      visit(i, true, type(op.writes[i]), elements.writes[i]);
  }
}

}  // namespace

std::int64_t Staging::bytes_for(const program::RankClass& rank, program::StreamIndex stream) {
  std::int64_t most = 0;
  for (const program::Segment& segment : rank.segments) {
    for (const program::Op& op : segment.ops) {
      if (op.stream != stream) continue;
      std::int64_t all = 0;
      for_each_half(rank, op, [&](std::size_t, bool, DType, std::int64_t elements) { all += elements; });
      most = std::max(most, all);
    }
  }
  return most * static_cast<std::int64_t>(sizeof(float));
}

Staging::Staging(const program::RankClass& rank, program::StreamIndex stream, Math math)
    : rank_(rank), math_(math), space_(static_cast<std::size_t>(bytes_for(rank, stream)) / sizeof(float)) {
  std::size_t operands = 0;
  for (const program::Segment& segment : rank.segments) {
    for (const program::Op& op : segment.ops)
      operands = std::max(operands, op.reads.size() + op.writes.size());
  }
  images_.reserve(operands);
}

float* Staging::image_of(void* original, DType type, std::int64_t elements, bool written, bool widen) {
  for (Image& i : images_) {
    if (i.original != original) continue;
    i.written |= written;
    return i.image;
  }
  float* const image = space_.data() + used_;
  used_ += static_cast<std::size_t>(elements);
  if (widen) kernels::widen(type, elements, original, image);
  images_.push_back({original, type, elements, image, written});
  return image;
}

void Staging::widen(OpArguments& a) {
  images_.clear();
  used_ = 0;
  for_each_half(rank_, a.op, [&](std::size_t i, bool written, DType type, std::int64_t elements) {
    if (written)
      a.out[i] = image_of(a.out[i], type, elements, true, a.op.accumulate);
    else
      a.in[i] = image_of(const_cast<float*>(a.in[i]), type, elements, false, true);
  });
  using Format = program::ops::Gemm::Format;
  const Format format = program::format_of(a.op.kind);
  if (format == Format::kAsStored) return;
  const auto stored =
      std::get<program::ops::Gemm>(a.op.kind).stored();  // experts' products do not round here
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const auto& s = stored[i];
    const bool gradient = i == 0 && format == Format::kRoundedGradient;
    kernels::round_operand(math_, {1, s.rows, s.columns, s.sums_columns, s.weight, gradient},
                           images_[i].image);
  }
}

void Staging::narrow() {
  for (const Image& i : images_) {
    if (i.written) kernels::narrow(i.type, i.elements, i.image, i.original);
  }
}

}  // namespace orrery::exec
