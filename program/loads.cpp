// SPDX-License-Identifier: Apache-2.0
#include "program/loads.h"

#include <cmath>
#include <type_traits>
#include <variant>

namespace orrery::program {
namespace {

std::int64_t times(std::int64_t n, double shares) {
  return std::llround(static_cast<double>(n) * shares);
}

}  // namespace

LoadedOps::LoadedOps(const Communication& over, const Training& training, const Stack& stack)
    : ep_(over.group("ep")),
      etp_(over.group("etp")),
      bytes_(ops::element_bytes(training, stack)),
      passes_(ops::passes_of(stack)) {}

void LoadedOps::load(Op& op, double shares) const {
  if (shares == 1) return;
  if (op.group == ep_ || op.group == etp_) op.payload = Bytes{times(op.payload.value, shares)};
  const std::int64_t before = is_communication(op.kind) ? 0 : bytes_of(op.kind, bytes_, passes_);
  const bool loaded = std::visit(
      [&]<class T>(T& kind) {
        constexpr bool kOfExperts = std::is_same_v<T, ops::GroupedGemm> ||
                                    std::is_base_of_v<ops::ExpertActivationShape, T> ||
                                    std::is_base_of_v<ops::ExpertBiasShape, T>;
        if constexpr (kOfExperts) kind.even = times(kind.even, shares);
        return kOfExperts;
      },
      op.kind);
  if (!loaded) return;
  op.flops = flops_of(op.kind);
  op.traffic = op.traffic + Bytes{bytes_of(op.kind, bytes_, passes_) - before};
}

void load_experts(Program& program, const Stack& stack, std::span<const double> shares) {
  const LoadedOps loaded(program.communication, program.training, stack);
  for (RankClass& c : program.classes) {
    for (Segment& s : c.segments) {
      for (Op& op : s.ops) {
        if (op.layer >= 0) loaded.load(op, shares[static_cast<std::size_t>(op.layer)]);
      }
    }
  }
}

}  // namespace orrery::program
