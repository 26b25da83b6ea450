// SPDX-License-Identifier: Apache-2.0
//
// What ranks exchange. `elements`: of the whole tensor. `copies`: in an all-to-all that goes by node, of the
// rows, those that are of the same token, of which a node gets one: they are for experts in `top_groups` of
// `groups` groups, which stand on different nodes; 1: each row goes by itself.
//   Collective   reads {input}  writes {output}    an all-gather reads a shard and writes the whole, a
//                                                  reduce-scatter the other way round
//   Send         reads {tensor}
//   Recv         writes {tensor}
//   Handover     reads {tensors that arrived}     what the software takes from there to the work on them
//                                                  (Stack::handover), on the stream of kernels
#pragma once

#include "core/links.h"
#include "program/ops/common.h"

namespace orrery::program::ops {

struct Collective {
  static constexpr Nature kNature = Nature::kCollective;
  CollectiveKind collective{};
  std::int64_t elements = 0;
  std::int64_t copies = 1, groups = 1, top_groups = 1;
  static constexpr auto fields() {
    using S = Collective;
    return std::tuple(&S::collective, &S::elements, &S::copies, &S::groups, &S::top_groups);
  }
  std::string_view name() const { return name_of(collective); }
};

struct TransferShape {
  static constexpr Nature kNature = Nature::kTransfer;
  std::int64_t elements = 0;
  static constexpr auto fields() { return std::tuple(&TransferShape::elements); }
};
struct Send : TransferShape {
  static constexpr std::string_view kName = "send";
};
struct Recv : TransferShape {
  static constexpr std::string_view kName = "recv";
};

struct Handover {
  static constexpr std::string_view kName = "handover";
  static constexpr Nature kNature = Nature::kSoftware;
  std::int64_t picoseconds = 0;
  static constexpr auto fields() { return std::tuple(&Handover::picoseconds); }
  constexpr Operands operands() const { return {}; }
  constexpr std::int64_t bytes(const ElementBytes&) const { return 0; }
};

}  // namespace orrery::program::ops
