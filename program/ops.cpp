// SPDX-License-Identifier: Apache-2.0
#include "program/ops.h"

#include <bit>

#include <concepts>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>

namespace orrery::program {
namespace {

template <class T>
concept CountsFlops = requires(const T& op) {
  { op.flops() } -> std::same_as<double>;
};
// A product's or an attention's flops() may not be forgotten.
template <class... T>
constexpr bool products_count_flops(std::type_identity<std::variant<T...>>) {
  return (
      (CountsFlops<T> == (T::kNature == ops::Nature::kProduct || T::kNature == ops::Nature::kAttention)) &&
      ...);
}
static_assert(products_count_flops(std::type_identity<OpKind>{}));

}  // namespace

OpKind kind_of(const ForwardOp& op) {
  return std::visit([](const auto& o) { return OpKind(o); }, op);
}

ops::Nature nature_of(const OpKind& kind) {
  return std::visit([](const auto& op) { return op.kNature; }, kind);
}

std::string_view name_of(const OpKind& kind) {
  return std::visit(
      [](const auto& op) {
        if constexpr (requires { op.name(); })
          return op.name();
        else
          return op.kName;
      },
      kind);
}

ops::Gemm::Format format_of(const OpKind& kind) {
  return std::visit(
      [](const auto& op) {
        if constexpr (requires { op.format; })
          return op.format;
        else
          return ops::Gemm::Format::kAsStored;
      },
      kind);
}

double flops_of(const OpKind& kind) {
  return std::visit(
      [](const auto& op) {
        if constexpr (CountsFlops<std::decay_t<decltype(op)>>)
          return op.flops();
        else
          return 0.0;
      },
      kind);
}

namespace {

template <PointwiseOp T>
double times_moved(const ops::Passes& passes) {
  switch (T::kNature) {
    case ops::Nature::kPointwise:
      return passes.pointwise;
    case ops::Nature::kRouting:
      return passes.routing;
    case ops::Nature::kQuantised:
      return passes.quantised;
    case ops::Nature::kState:
      return 1;
    case ops::Nature::kProduct:
    case ops::Nature::kAttention:
    case ops::Nature::kCollective:
    case ops::Nature::kTransfer:
    case ops::Nature::kCopy:
    case ops::Nature::kSoftware:
      break;
  }
  throw std::logic_error("moves no bytes, or more than bytes");
}

}  // namespace

std::int64_t bytes_of(const OpKind& kind, const ops::ElementBytes& e, const ops::Passes& passes) {
  return std::visit(
      [&]<class T>(const T& op) -> std::int64_t {
        if constexpr (CommunicationOp<T>)
          return 0;
        else if constexpr (PointwiseOp<T>)
          return static_cast<std::int64_t>(static_cast<double>(op.bytes(e)) * times_moved<T>(passes));
        else
          return op.bytes(e);
      },
      kind);
}

std::int64_t elements_of(const OpKind& kind) {
  return std::visit(
      []<class T>(const T& op) -> std::int64_t {
        if constexpr (CommunicationOp<T>)
          return op.elements;
        else
          throw std::logic_error(std::string(op.kName) + " exchanges nothing");
      },
      kind);
}

bool is_of_documents(const OpKind& kind) {
  return std::visit(
      [](const auto& op) {
        if constexpr (requires { op.of_documents(); })
          return op.of_documents() && op.fused();
        else
          return false;
      },
      kind);
}

ops::Operands operands_of(const OpKind& kind) {
  return std::visit(
      []<class T>(const T& op) -> ops::Operands {
        if constexpr (CommunicationOp<T>)
          return {};
        else
          return op.operands();
      },
      kind);
}

namespace {

std::int64_t bits_of(double x) {
  return std::bit_cast<std::int64_t>(x);
}
template <class T>
std::int64_t bits_of(T x) {
  return static_cast<std::int64_t>(x);
}

}  // namespace

OpKey key_of(const OpKind& kind) {
  OpKey out{.type = kind.index()};
  std::visit(
      [&]<class T>(const T& op) {
        std::apply(
            [&](auto... member) {
              static_assert(sizeof...(member) <= kMostFields);
              std::size_t i = 0;
              ((out.fields[i++] = bits_of(op.*member)), ...);
            },
            T::fields());
      },
      kind);
  return out;
}

std::int64_t update_begun(const OpKind& kind) {
  if (const auto* begun = std::get_if<ops::MuonMomentum>(&kind)) return begun->unit;
  const auto* all = std::get_if<ops::Optimizer>(&kind);
  return all != nullptr ? all->unit : -1;
}

std::int64_t update_ended(const OpKind& kind) {
  if (const auto* ended = std::get_if<ops::MuonUpdate>(&kind)) return ended->unit;
  const auto* all = std::get_if<ops::Optimizer>(&kind);
  return all != nullptr ? all->unit : -1;
}

OpKind extend(const OpKind& one, const OpKind& two, std::int64_t n) {
  return std::visit(
      [&]<class T>(T op) -> OpKind {
        const T& other = std::get<T>(two);
        const auto add = [&](auto field) {
          if constexpr (std::is_same_v<std::remove_reference_t<decltype(op.*field)>, std::int64_t>)
            op.*field += (n - 1) * (other.*field - op.*field);
        };
        std::apply([&](auto... field) { (add(field), ...); }, T::fields());
        return op;
      },
      one);
}

}  // namespace orrery::program
