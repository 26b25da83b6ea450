// SPDX-License-Identifier: Apache-2.0
//
// What ranks exchange. `elements`: of the whole tensor.
//   Collective   reads {input}  writes {output}    an all-gather reads a shard and writes the whole, a
//                                                  reduce-scatter the other way round
//   Send         reads {tensor}
//   Recv         writes {tensor}
#pragma once

#include "core/links.h"
#include "program/ops/common.h"

namespace orrery::program::ops {

struct Collective {
  static constexpr Nature kNature = Nature::kCollective;
  CollectiveKind collective{};
  std::int64_t elements = 0;
  static constexpr auto fields() { return std::tuple(&Collective::collective, &Collective::elements); }
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

}  // namespace orrery::program::ops
