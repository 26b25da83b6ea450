// SPDX-License-Identifier: Apache-2.0
#include "exec/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace orrery::exec {

std::string_view name_of(CollectiveKind kind) {
  constexpr std::array<std::string_view, 9> kNames{"all-reduce",     "all-reduce-max", "all-gather",
                                                   "reduce-scatter", "broadcast",      "reduce",
                                                   "gather",         "scatter",        "all-to-all"};
  return kNames[static_cast<std::size_t>(kind)];
}

namespace {

constexpr std::size_t kBlock = 2048;  // elements summed at a time, so that the sum stays in the cache

// Sum (or maximum) over members, in their order, of elements [begin, end) of their inputs, given to `store`
// by blocks.
template <class T, class Store>
void reduce(std::span<const T* const> inputs, bool max, std::size_t begin, std::size_t end, const T* start,
            Store store) {
  T sum[kBlock];
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t n = std::min(kBlock, end - at);
    std::copy_n(start != nullptr ? start + (at - begin) : inputs[0] + at, n, sum);
    for (std::size_t m = start != nullptr ? 0 : 1; m < inputs.size(); ++m) {
      const T* x = inputs[m] + at;
      if (max) {
        for (std::size_t i = 0; i < n; ++i) sum[i] = std::max(sum[i], x[i]);
      } else {
        for (std::size_t i = 0; i < n; ++i) sum[i] += x[i];
      }
    }
    store(at, n, sum);
  }
}

template <class T>
void share_of(std::span<const CollectiveCall> calls, std::size_t self) {
  using enum CollectiveKind;
  const CollectiveCall& mine = calls[self];
  const std::size_t n = calls.size(), whole = mine.elements, part = whole / n;
  const auto input = [&](std::size_t m) { return static_cast<const T*>(calls[m].input); };
  const auto output = [&](std::size_t m) { return static_cast<T*>(calls[m].output); };
  const auto copy = [](const T* from, std::size_t count, T* to) {
    if (count > 0 && from != to) std::memcpy(to, from, count * sizeof(T));
  };
  std::array<const T*, kMostMembers> all;
  for (std::size_t m = 0; m < n; ++m) all[m] = input(m);
  const std::span<const T* const> inputs(all.data(), n);
  const std::size_t begin = whole * self / n, end = whole * (self + 1) / n;
  switch (mine.kind) {
    case kAllReduce:
    case kAllReduceMax:
      return reduce<T>(inputs, mine.kind == kAllReduceMax, begin, end, nullptr,
                       [&](std::size_t at, std::size_t count, const T* sum) {
                         for (std::size_t m = 0; m < n; ++m) std::copy_n(sum, count, output(m) + at);
                       });
    case kReduce:
      return reduce<T>(inputs, false, begin, end, nullptr,
                       [&](std::size_t at, std::size_t count, const T* sum) {
                         std::copy_n(sum, count, output(mine.root) + at);
                       });
    case kReduceScatter:
      return reduce<T>(inputs, false, self * part, (self + 1) * part,
                       mine.accumulate ? output(self) : nullptr,
                       [&](std::size_t at, std::size_t count, const T* sum) {
                         std::copy_n(sum, count, output(self) + (at - self * part));
                       });
    case kAllGather:
      for (std::size_t m = 0; m < n; ++m) copy(input(m), part, output(self) + m * part);
      return;
    case kGather:
      return copy(input(self), part, output(mine.root) + self * part);
    case kBroadcast:
      return copy(input(mine.root), whole, output(self));
    case kScatter:
      return copy(input(mine.root) + self * part, part, output(self));
    case kAllToAll:
      for (std::size_t m = 0; m < n; ++m) copy(input(m) + self * part, part, output(self) + m * part);
      return;
  }
}

}  // namespace

void do_share(std::span<const CollectiveCall> calls, std::size_t self) {
  if (calls[self].type == DType::kFloat64)
    share_of<double>(calls, self);
  else
    share_of<float>(calls, self);
}

// Why the calls do not belong together, or nothing.
std::string mismatch(std::span<const CollectiveCall> calls, std::span<const std::int64_t> members) {
  const CollectiveCall& first = calls[0];
  const auto text = [](const CollectiveCall& c) {
    return fmt::format("{} \"{}\" of {} x {} bytes", name_of(c.kind), c.name, c.elements, bytes_of(c.type));
  };
  for (std::size_t m = 1; m < calls.size(); ++m) {
    const CollectiveCall& c = calls[m];
    if (c.kind != first.kind || c.name != first.name || c.elements != first.elements ||
        c.type != first.type || c.root != first.root) {
      return fmt::format("rank {} is in {}, rank {} in {}", members[0], text(first), members[m], text(c));
    }
  }
  using enum CollectiveKind;
  const bool parts = first.kind == kAllGather || first.kind == kReduceScatter || first.kind == kGather ||
                     first.kind == kScatter || first.kind == kAllToAll;
  if (parts && first.elements % calls.size() != 0)
    return fmt::format("{} does not divide into {} parts", text(first), calls.size());
  return {};
}

}  // namespace orrery::exec
