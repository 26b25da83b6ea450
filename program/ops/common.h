// SPDX-License-Identifier: Apache-2.0
//
// What every op type says of itself. An op type is a struct with named fields and
//
//   kName        its name in timelines, profiles and messages
//   kNature      what limits it
//   fields()     its fields in order, as pointers to members
//   operands()   elements of the operands that its kernel reads and writes as floats
//   flops()      floating-point operations, where it has any that count
//   bytes(e)     bytes read and written in device memory, for elements of the sizes in `e`
//
// An op of a forward computation also has the rule of its gradient, for program/gradient.h:
//
//   gradient(r)         emits the ops that give the gradients of its operands
//   weight_gradient(r)  emits those of its weights, where they may come later
//
// program/ops.h lists the types. A type that lacks one of these does not compile.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/stack.h"
#include "core/training.h"

namespace orrery::program::ops {

enum class Nature : std::uint8_t {
  kProduct,     // matrix products: arithmetic or memory, by shape
  kAttention,   // likewise, in one kernel
  kPointwise,   // moves bytes; a stack that fuses less moves more of them
  kRouting,     // moves tokens to, in and from their experts: likewise, by a factor of its own
  kQuantised,   // moves weights that are stored in 4 bits: likewise
  kState,       // moves parameters, gradients and moments, which every stack fuses
  kCollective,  // among the ranks of a group
  kTransfer,    // between two ranks
  kCopy,        // between a device and its host's memory, or that and the host's drives
  kSoftware,    // takes the time that software takes, on any device
};
constexpr bool communicates(Nature n) {
  return n == Nature::kCollective || n == Nature::kTransfer;
}

constexpr bool moves_bytes(Nature n) {
  return n == Nature::kPointwise || n == Nature::kRouting || n == Nature::kQuantised || n == Nature::kState;
}

// How often a stack moves the operands of ops that move bytes.
struct Passes {
  double pointwise = 1, routing = 1, quantised = 1;
};
inline Passes passes_of(const Stack& s) {
  return {s.elementwise_passes, s.routing_passes, s.dequantise_passes};
}

// Elements of each operand that a kernel reads and writes as floats, in the order of Op::reads and
// Op::writes; zero for the others: token ids, state, masks, operands that are only waited for, and elements
// that are moved as they are.
struct Operands {
  std::array<std::int64_t, 6> reads{};
  std::array<std::int64_t, 4> writes{};
};

// Bytes of an element in device memory.
struct ElementBytes {
  std::int64_t activation = 2;
  std::int64_t probability = 0;  // of the loss, where the stack keeps probabilities; else 0
  BytesPerParameter parameter{};
  // Of products that round their operands (core/rounding.h): what a rounded element has, and what rounding
  // moves of each element of an operand, as often as the stack does it; zero: they do not.
  double rounded = 0, rounding = 0;
};
inline ElementBytes element_bytes(const Training& t, const Stack& s) {
  const std::int64_t activation = activation_bytes(t.precision);
  ElementBytes out{activation, keeps_logits(s.loss_keeps) ? 0 : 4, bytes_per_parameter(t.precision)};
  if (const auto how = rounding_of(t.math)) {
    out.rounded = how->bytes;
    out.rounding =
        how->reads * static_cast<double>(activation) * s.rounding_reads + how->bytes * s.rounding_writes;
  }
  return out;
}

// Operands of an op that a rule emits.
template <class Ref, class... Refs>
std::vector<Ref> refs(Ref first, Refs... others) {
  return {first, others...};
}

template <class T>
concept HasFields = requires {
  T::fields();
};
template <HasFields T>
constexpr bool operator==(const T& a, const T& b) {
  return std::apply([&](auto... member) { return ((a.*member == b.*member) && ...); }, T::fields());
}

}  // namespace orrery::program::ops
