// SPDX-License-Identifier: Apache-2.0
#include "exec/mpi_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"

namespace orrery::exec {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of one message: MPI counts in int

void copy(const std::byte* from, std::size_t bytes, std::byte* to) {
  if (from != to && bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace

void check_mpi(int result, const char* what) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  throw Error(fmt::format("{}: {}", what, text.data()));
}

Requests::~Requests() {
  for (MPI_Request& r : all) {
    if (r == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&r);
    MPI_Request_free(&r);
  }
}

void Requests::send(const void* from, std::size_t bytes, int to, int tag, MPI_Comm comm) {
  for (std::size_t at = 0; at < bytes; at += kMostBytes) {
    check_mpi(MPI_Isend(static_cast<const std::byte*>(from) + at,
                        static_cast<int>(std::min(kMostBytes, bytes - at)), MPI_BYTE, to, tag, comm,
                        &all.emplace_back()),
              "MPI_Isend");
    ends.push_back(to);
  }
}

void Requests::receive(void* to, std::size_t bytes, int from, int tag, MPI_Comm comm) {
  for (std::size_t at = 0; at < bytes; at += kMostBytes) {
    check_mpi(MPI_Irecv(static_cast<std::byte*>(to) + at, static_cast<int>(std::min(kMostBytes, bytes - at)),
                        MPI_BYTE, from, tag, comm, &all.emplace_back()),
              "MPI_Irecv");
    ends.push_back(from);
  }
}

Exchanged::Exchanged(const CollectiveCall& call, std::size_t self, std::size_t members, MPI_Comm comm,
                     std::vector<std::byte>& scratch, std::function<void(Requests&)> wait)
    : call_(call),
      self_(self),
      n_(members),
      size_(bytes_of(call.type)),
      comm_(comm),
      scratch_(scratch),
      wait_(std::move(wait)) {}

void Exchanged::at_once() {
  using enum CollectiveKind;
  const std::size_t part = call_.elements / n_;
  const auto place = [&](std::size_t m) { return output() + m * part * size_; };
  switch (call_.kind) {
    case kAllReduce:
    case kReduce:
    case kReduceScatter:
      return sum_and_spread();
    case kAllGather:
      copy(input(), part * size_, place(self_));
      return exchange([&](std::size_t) { return input(); }, place, part);
    case kAllToAll: {
      const auto from = [&](std::size_t m) { return input() + m * part * size_; };
      copy(from(self_), part * size_, place(self_));
      return exchange(from, place, part);
    }
    case kShift: {
      Requests r;
      r.receive(output(), call_.elements * size_, static_cast<int>((self_ + n_ - 1) % n_), 0, comm_);
      r.send(input(), call_.elements * size_, static_cast<int>((self_ + 1) % n_), 0, comm_);
      return wait_(r);
    }
    case kBroadcast:
    case kScatter:
      return from_root();
    case kGather:
      return to_root();
  }
}

// A round's sums are made when all its messages are there, in the order of the transfers, so that what is
// sent is what was there before the round.
void Exchanged::in_rounds(const program::Rounds& rounds) {
  const auto self = static_cast<std::int32_t>(self_);
  const auto bytes = [&](const program::Transfer& t) {
    const auto [begin, count] = elements_of(rounds, t, call_.elements);
    return std::pair(begin * size_, count * size_);
  };
  std::size_t most = 0;  // bytes that come to be added in a round
  for (const auto& round : rounds.rounds) {
    std::size_t added = 0;
    for (const program::Transfer& t : round) added += t.to == self && t.add ? bytes(t).second : 0;
    most = std::max(most, added);
  }
  const std::size_t apart = works_in_output(call_, self_) ? 0 : call_.elements * size_;
  scratch_.resize(apart + most);
  std::byte* const work = apart > 0 ? scratch_.data() : output();
  begin_rounds(call_, self_, n_, work);
  for (const auto& round : rounds.rounds) {
    Requests r;
    std::byte* arrival = scratch_.data() + apart;
    for (const program::Transfer& t : round) {
      const auto [begin, size] = bytes(t);
      if (t.from == self) r.send(work + begin, size, t.to, 0, comm_);
      if (t.to != self) continue;
      r.receive(t.add ? arrival : work + begin, size, t.from, 0, comm_);
      if (t.add) arrival += size;
    }
    wait_(r);
    arrival = scratch_.data() + apart;
    for (const program::Transfer& t : round) {
      if (t.to != self || !t.add) continue;
      const auto [begin, size] = bytes(t);
      receive_block(call_, true, arrival, size / size_, work + begin);
      arrival += size;
    }
  }
  end_rounds(call_, self_, n_, work);
}

std::pair<std::size_t, std::size_t> Exchanged::slice(std::size_t m) const {
  const bool parts = call_.kind == CollectiveKind::kReduceScatter;
  const std::size_t part = call_.elements / n_;
  const std::size_t begin = parts ? m * part : call_.elements * m / n_;
  return {begin, (parts ? begin + part : call_.elements * (m + 1) / n_) - begin};
}

// This member's slice of the sum, to whom it may concern.
void Exchanged::sum_and_spread() {
  using enum CollectiveKind;
  const auto [begin, count] = slice(self_);
  sum_slices();
  const std::byte* mine = scratch_.data() + self_ * count * size_;
  if (call_.kind == kReduceScatter) return copy(mine, count * size_, output());
  Requests r;
  for (std::size_t m = 0; m < n_; ++m) {
    if (call_.kind == kReduce && m != call_.root) continue;
    if (m == self_)
      copy(mine, count * size_, output() + begin * size_);
    else
      r.send(mine, count * size_, static_cast<int>(m), 0, comm_);
  }
  for (std::size_t m = 0; m < n_; ++m) {
    const auto [at, more] = slice(m);
    if (m != self_ && (call_.kind != kReduce || self_ == call_.root))
      r.receive(output() + at * size_, more * size_, static_cast<int>(m), 0, comm_);
  }
  wait_(r);
}

// This member's slice of everybody's input, summed into its own place in the scratch.
void Exchanged::sum_slices() {
  const auto [begin, count] = slice(self_);
  scratch_.resize(n_ * count * size_);
  std::byte* const mine = scratch_.data() + self_ * count * size_;
  copy(input() + begin * size_, count * size_, mine);
  Requests r;
  for (std::size_t m = 0; m < n_; ++m) {
    if (m == self_) continue;
    const auto [at, more] = slice(m);
    r.receive(scratch_.data() + m * count * size_, count * size_, static_cast<int>(m), 0, comm_);
    r.send(input() + at * size_, more * size_, static_cast<int>(m), 0, comm_);
  }
  wait_(r);
  std::vector<const void*> all;
  for (std::size_t m = 0; m < n_; ++m) all.push_back(scratch_.data() + m * count * size_);
  reduce(call_.type, all, count, call_.accumulate ? call_.output : nullptr, mine);
}

template <class From, class To>
void Exchanged::exchange(From from, To to, std::size_t count) {
  Requests r;
  for (std::size_t m = 0; m < n_; ++m) {
    if (m == self_) continue;
    r.receive(to(m), count * size_, static_cast<int>(m), 0, comm_);
    r.send(from(m), count * size_, static_cast<int>(m), 0, comm_);
  }
  wait_(r);
}

// Broadcast and scatter.
void Exchanged::from_root() {
  const bool parts = call_.kind == CollectiveKind::kScatter;
  const std::size_t bytes = (parts ? call_.elements / n_ : call_.elements) * size_;
  Requests r;
  if (self_ != call_.root) r.receive(output(), bytes, static_cast<int>(call_.root), 0, comm_);
  for (std::size_t m = 0; self_ == call_.root && m < n_; ++m) {
    const std::byte* from = input() + (parts ? m * bytes : 0);
    if (m == self_)
      copy(from, bytes, output());
    else
      r.send(from, bytes, static_cast<int>(m), 0, comm_);
  }
  wait_(r);
}

void Exchanged::to_root() {
  const std::size_t bytes = call_.elements / n_ * size_;
  Requests r;
  if (self_ != call_.root) r.send(input(), bytes, static_cast<int>(call_.root), 0, comm_);
  for (std::size_t m = 0; self_ == call_.root && m < n_; ++m) {
    if (m == self_)
      copy(input(), bytes, output() + m * bytes);
    else
      r.receive(output() + m * bytes, bytes, static_cast<int>(m), 0, comm_);
  }
  wait_(r);
}

}  // namespace orrery::exec
