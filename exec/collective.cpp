// SPDX-License-Identifier: Apache-2.0
#include "exec/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/fields.h"
#include "kernels/cpu/fast.h"

namespace orrery::exec {

namespace {

constexpr std::size_t kBlock = 2048;  // elements summed at a time, so that the sum stays in the cache

// 16-bit floats, summed as fp32.
template <DType kType>
struct Half {
  std::uint16_t bits;
};

template <class T>
void load(const T* from, std::size_t n, T* to) {
  std::copy_n(from, n, to);
}
template <DType kType>
void load(const Half<kType>* from, std::size_t n, float* to) {
  kernels::widen(kType, static_cast<kernels::Index>(n), from, to);
}
template <class T>
void store(const T* from, std::size_t n, T* to) {
  std::copy_n(from, n, to);
}
template <DType kType>
void store(const float* from, std::size_t n, Half<kType>* to) {
  kernels::narrow(kType, static_cast<kernels::Index>(n), from, to);
}

template <class T>
void combine(const T* x, std::size_t n, T* sum) {
  for (std::size_t i = 0; i < n; ++i) sum[i] += x[i];
}
template <DType kType>
void combine(const Half<kType>* x, std::size_t n, float* sum) {
  float wide[kBlock];
  load(x, n, wide);
  combine(wide, n, sum);
}

// Sum over members, in their order, of elements [begin, end) of their inputs, stored block by
// block at each of `outputs`.
template <class T, class Sum>
void reduce_blocks(std::span<const void* const> inputs, std::size_t begin, std::size_t end, const void* start,
                   std::span<void* const> outputs) {
  Sum sum[kBlock];
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t n = std::min(kBlock, end - at);
    const auto input = [&](std::size_t m) { return static_cast<const T*>(inputs[m]) + at; };
    load(start != nullptr ? static_cast<const T*>(start) + (at - begin) : input(0), n, sum);
    for (std::size_t m = start != nullptr ? 0 : 1; m < inputs.size(); ++m) combine(input(m), n, sum);
    for (void* output : outputs) store(sum, n, static_cast<T*>(output) + (at - begin));
  }
}

void reduce_range(DType type, std::span<const void* const> inputs, std::size_t begin, std::size_t end,
                  const void* start, std::span<void* const> outputs) {
  switch (type) {
    case DType::kFloat64:
      return reduce_blocks<double, double>(inputs, begin, end, start, outputs);
    case DType::kBfloat16:
      return reduce_blocks<Half<DType::kBfloat16>, float>(inputs, begin, end, start, outputs);
    case DType::kFloat16:
      return reduce_blocks<Half<DType::kFloat16>, float>(inputs, begin, end, start, outputs);
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kByte:  // sums are of floats (mismatch)
      return reduce_blocks<float, float>(inputs, begin, end, start, outputs);
  }
}

}  // namespace

void reduce(DType type, std::span<const void* const> inputs, std::size_t count, const void* start,
            void* output) {
  reduce_range(type, inputs, 0, count, start, {&output, 1});
}

void do_share(std::span<const CollectiveCall> calls, std::size_t self) {
  using enum CollectiveKind;
  const CollectiveCall& mine = calls[self];
  const std::size_t n = calls.size(), whole = mine.elements, part = whole / n, size = bytes_of(mine.type);
  // From an element on of a member's buffer.
  const auto input = [&](std::size_t m, std::size_t element) {
    return static_cast<const std::byte*>(calls[m].input) + element * size;
  };
  const auto output = [&](std::size_t m, std::size_t element) {
    return static_cast<std::byte*>(calls[m].output) + element * size;
  };
  const auto copy = [&](const std::byte* from, std::size_t count, std::byte* to) {
    if (count > 0 && from != to) std::memcpy(to, from, count * size);
  };
  std::array<const void*, kMostMembers> inputs;
  std::array<void*, kMostMembers> outputs;
  for (std::size_t m = 0; m < n; ++m) inputs[m] = calls[m].input;
  const auto sum = [&](std::size_t begin, std::size_t end, const void* start, std::size_t places) {
    reduce_range(mine.type, {inputs.data(), n}, begin, end, start, {outputs.data(), places});
  };
  const std::size_t begin = whole * self / n, end = whole * (self + 1) / n;
  switch (mine.kind) {
    case kAllReduce:
      for (std::size_t m = 0; m < n; ++m) outputs[m] = output(m, begin);
      return sum(begin, end, nullptr, n);
    case kReduce:
      outputs[0] = output(mine.root, begin);
      return sum(begin, end, nullptr, 1);
    case kReduceScatter:
      outputs[0] = output(self, 0);
      return sum(self * part, (self + 1) * part, mine.accumulate ? output(self, 0) : nullptr, 1);
    case kAllGather:
      for (std::size_t m = 0; m < n; ++m) copy(input(m, 0), part, output(self, m * part));
      return;
    case kGather:
      return copy(input(self, 0), part, output(mine.root, self * part));
    case kBroadcast:
      return copy(input(mine.root, 0), whole, output(self, 0));
    case kScatter:
      return copy(input(mine.root, self * part), part, output(self, 0));
    case kAllToAll:
      for (std::size_t m = 0; m < n; ++m) copy(input(m, self * part), part, output(self, m * part));
      return;
    case kShift:
      return copy(input((self + n - 1) % n, 0), whole, output(self, 0));
  }
}

// --- rounds ----------------------------------------------------------------------------------------

bool works_in_output(const CollectiveCall& call, std::size_t self) {
  return call.kind != CollectiveKind::kReduceScatter &&
         (call.kind != CollectiveKind::kReduce || self == call.root);
}

void begin_rounds(const CollectiveCall& call, std::size_t self, std::size_t members, std::byte* work) {
  const std::size_t size = bytes_of(call.type), part = call.elements / members;
  if (call.kind == CollectiveKind::kBroadcast && self != call.root) return;
  const bool gathers = call.kind == CollectiveKind::kAllGather;
  std::byte* const to = work + (gathers ? self * part * size : 0);
  const std::size_t bytes = (gathers ? part : call.elements) * size;
  if (to != call.input && bytes > 0) std::memcpy(to, call.input, bytes);
}

void end_rounds(const CollectiveCall& call, std::size_t self, std::size_t members, const std::byte* work) {
  if (call.kind != CollectiveKind::kReduceScatter) return;
  const std::size_t part = call.elements / members;
  const void* const mine = work + self * part * bytes_of(call.type);
  reduce(call.type, {&mine, 1}, part, call.accumulate ? call.output : nullptr, call.output);
}

ElementRange elements_of(const program::Rounds& rounds, const program::Transfer& t, std::size_t elements) {
  const auto at = [&](std::int32_t block) {
    return elements * static_cast<std::size_t>(block) / static_cast<std::size_t>(rounds.blocks);
  };
  return {at(t.first), at(t.first + t.blocks) - at(t.first)};
}

void receive_block(const CollectiveCall& call, bool add, const std::byte* from, std::size_t count,
                   std::byte* to) {
  if (add) {
    const std::array<const void*, 2> both{to, from};
    reduce(call.type, both, count, nullptr, to);
  } else if (count > 0) {
    std::memcpy(to, from, count * bytes_of(call.type));
  }
}

const program::Rounds& RoundsCache::find(const CollectiveCall& call, std::size_t members, std::size_t node) {
  const Key key{call.algorithm, call.kind, call.root, node};
  const auto [at, added] = rounds_.try_emplace(key);
  if (added) {
    at->second = program::rounds_of(call.algorithm, call.kind, static_cast<std::int32_t>(members),
                                    static_cast<std::int32_t>(call.root), static_cast<std::int32_t>(node));
  }
  return at->second;
}

// --- calls -----------------------------------------------------------------------------------------

// Why the calls do not belong together, or nothing.
std::string mismatch(std::span<const CollectiveCall> calls, std::span<const std::int64_t> members) {
  const CollectiveCall& first = calls[0];
  const auto text = [](const CollectiveCall& c) {
    const std::string algorithm =
        c.algorithm == Algorithm::kDirect ? "" : fmt::format("{} ", name_of(c.algorithm));
    return fmt::format("{}{} \"{}\" of {} x {} bytes", algorithm, name_of(c.kind), c.name, c.elements,
                       bytes_of(c.type));
  };
  for (std::size_t m = 1; m < calls.size(); ++m) {
    const CollectiveCall& c = calls[m];
    if (c.kind != first.kind || c.name != first.name || c.elements != first.elements ||
        c.type != first.type || c.root != first.root || c.algorithm != first.algorithm) {
      return fmt::format("rank {} is in {}, rank {} in {}", members[0], text(first), members[m], text(c));
    }
  }
  using enum CollectiveKind;
  const bool parts = first.kind == kAllGather || first.kind == kReduceScatter || first.kind == kGather ||
                     first.kind == kScatter || first.kind == kAllToAll;
  const bool sums = first.kind == kAllReduce || first.kind == kReduce || first.kind == kReduceScatter;
  if (sums && (first.type == DType::kInt32 || first.type == DType::kByte))
    return fmt::format("{} sums what are no floats", text(first));
  if (parts && first.elements % calls.size() != 0)
    return fmt::format("{} does not divide into {} parts", text(first), calls.size());
  return {};
}

}  // namespace orrery::exec
