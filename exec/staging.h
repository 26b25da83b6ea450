// SPDX-License-Identifier: Apache-2.0
//
// 16-bit floats on a processor that computes in fp32. Around each op its 16-bit operands are widened into
// fp32 images, and those it wrote are rounded back, so that what an op computes is what a device with 16-bit
// storage and fp32 accumulation computes. The images are memory of this engine, outside the arena: as much as
// the op with the largest operands needs, taken once for each stream that computes. Internal to exec/.
#pragma once

#include <span>
#include <vector>

#include "exec/cpu_ops.h"
#include "program/program.h"

namespace orrery::exec {

class Staging {
 public:
  // For the ops of a stream, whose products take operands in this format.
  Staging(const program::RankClass& rank, program::StreamIndex stream, Math math);
  // What bytes() of one will be.
  static std::int64_t bytes_for(const program::RankClass& rank, program::StreamIndex stream);

  // Points 16-bit operands of `a` at their images; those that a product takes in fewer bits are rounded to
  // that. What is updated in place, or added to, is there already.
  void widen(OpArguments& a);
  // Rounds what the op wrote back to where it belongs.
  void narrow();
  std::int64_t bytes() const { return static_cast<std::int64_t>(space_.size() * sizeof(float)); }

 private:
  struct Image {
    void* original;
    DType type;
    std::int64_t elements;
    float* image;
    bool written;
  };
  float* image_of(void* original, DType type, std::int64_t elements, bool written, bool widen);

  const program::RankClass& rank_;
  const Math math_;
  std::vector<float> space_;
  std::size_t used_ = 0;
  std::vector<Image> images_;  // of the op at hand
};

}  // namespace orrery::exec
