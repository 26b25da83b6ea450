// SPDX-License-Identifier: Apache-2.0
//
// What ranks tell each other beside the program: reports of a step, parts of checkpoints, timelines. Every
// rank makes the same calls in the same order.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "exec/communicator.h"

namespace orrery::exec {

class Exchange {
 public:
  static constexpr std::size_t kPart = 16384;

  // `part`: bytes of a rank that are exchanged at a time at the most, kPart or more. Of it, whole 256 bytes
  // are used.
  Exchange(Communicator& communicator, std::int64_t rank, std::int64_t ranks, std::size_t part = kPart);

  std::int64_t rank() const { return rank_; }
  std::int64_t ranks() const { return ranks_; }

  // Everybody's value, by rank.
  template <class T>
  void all_gather(std::string_view name, const T& mine, std::vector<T>& all) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kPart);
    std::memcpy(mailbox_, &mine, sizeof mine);
    const std::size_t part = meet(CollectiveKind::kAllGather, name, sizeof mine);
    all.resize(static_cast<std::size_t>(ranks_));
    for (std::size_t r = 0; r < all.size(); ++r) std::memcpy(&all[r], mailbox_ + part_ + r * part, sizeof(T));
  }
  // Everybody's text, by rank, on rank 0; nothing elsewhere.
  std::vector<std::string> gather(std::string_view name, std::string_view mine);
  // Everybody's text, by rank, on all ranks.
  std::vector<std::string> all_texts(std::string_view name, std::string_view mine);
  // The text of the rank before this one; the last one's on rank 0.
  std::string shift(std::string_view name, std::string_view mine);
  // The text of `root`. Elsewhere `mine` is not read.
  std::string broadcast(std::string_view name, std::int64_t root, std::string_view mine);

 private:
  // Exchanges `bytes` of each rank; returns how far apart they are in what was received.
  std::size_t meet(CollectiveKind kind, std::string_view name, std::size_t bytes);
  // Everybody's text, where `kind` brings it.
  std::vector<std::string> collect(CollectiveKind kind, std::string_view name, std::string_view mine);

  Communicator& communicator_;
  std::int64_t rank_, ranks_;
  std::size_t part_;
  GroupId group_;
  std::byte* mailbox_;  // what this rank sends, and room for what all do
};

}  // namespace orrery::exec
