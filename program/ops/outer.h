// SPDX-License-Identifier: Apache-2.0
//
// What an island's exchange with the others is made of (core/outer.h). `elements`: of the shard that the rank
// updates. The outer state is the anchor, and behind it the momentum where there is any.
//   OuterDifference  reads {weights, outer state}  writes {difference}     anchor - weights, which are the
//                    master copy where there is one
//   OuterUpdate      reads {sum of differences, outer state}  writes {parameter, outer state, master?}
#pragma once

#include "program/ops/common.h"

namespace orrery::program::ops {

struct OuterDifference {
  static constexpr std::string_view kName = "outer-difference";
  static constexpr Nature kNature = Nature::kState;
  std::int64_t elements = 0, element_bytes = 0;  // of a difference
  static constexpr auto fields() {
    return std::tuple(&OuterDifference::elements, &OuterDifference::element_bytes);
  }
  constexpr Operands operands() const { return {{elements}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    const BytesPerParameter& p = e.parameter;
    return elements * (4 + (p.master > 0 ? p.master : p.parameter) + element_bytes);
  }
};

struct OuterUpdate {
  static constexpr std::string_view kName = "outer-update";
  static constexpr Nature kNature = Nature::kState;
  std::int64_t elements = 0, element_bytes = 0;
  bool momentum = false;
  static constexpr auto fields() {
    return std::tuple(&OuterUpdate::elements, &OuterUpdate::element_bytes, &OuterUpdate::momentum);
  }
  constexpr Operands operands() const { return {{elements}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return elements * (element_bytes + 2 * (momentum ? 8 : 4) + e.parameter.parameter + e.parameter.master);
  }
};

}  // namespace orrery::program::ops
