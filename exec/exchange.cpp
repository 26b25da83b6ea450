// SPDX-License-Identifier: Apache-2.0
#include "exec/exchange.h"

#include <algorithm>
#include <numeric>

namespace orrery::exec {

namespace {

constexpr std::size_t kAlignment = 256;  // of parts in the mailbox

// How many words hold so many bytes.
std::size_t words(std::size_t bytes) {
  return (bytes + sizeof(float) - 1) / sizeof(float);
}

}  // namespace

Exchange::Exchange(Communicator& communicator, std::int64_t rank, std::int64_t ranks, std::size_t part)
    : communicator_(communicator), rank_(rank), ranks_(ranks), part_(part / kAlignment * kAlignment) {
  std::vector<std::int64_t> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  group_ = communicator.open(members);
  mailbox_ = communicator.allocate((members.size() + 1) * part_);
}

std::size_t Exchange::meet(CollectiveKind kind, std::string_view name, std::size_t bytes) {
  communicator_.collective(group_, {.kind = kind,
                                    .name = name,
                                    .input = mailbox_,
                                    .output = mailbox_ + part_,
                                    .elements = static_cast<std::size_t>(ranks_) * words(bytes)});
  return words(bytes) * sizeof(float);
}

std::vector<std::string> Exchange::gather(std::string_view name, std::string_view mine) {
  return collect(CollectiveKind::kGather, name, mine);
}

std::vector<std::string> Exchange::all_texts(std::string_view name, std::string_view mine) {
  return collect(CollectiveKind::kAllGather, name, mine);
}

std::vector<std::string> Exchange::collect(CollectiveKind kind, std::string_view name,
                                           std::string_view mine) {
  std::vector<std::size_t> sizes;
  all_gather(name, mine.size(), sizes);
  std::vector<std::string> all(rank_ == 0 || kind == CollectiveKind::kAllGather ? sizes.size() : 0);
  const std::size_t most = *std::max_element(sizes.begin(), sizes.end());
  for (std::size_t begin = 0; begin < most; begin += part_) {
    const std::string_view piece = mine.substr(std::min(begin, mine.size()), part_);
    std::copy(piece.begin(), piece.end(), reinterpret_cast<char*>(mailbox_));
    const std::size_t part = meet(kind, name, std::min(part_, most - begin));
    for (std::size_t r = 0; r < all.size(); ++r) {
      const std::size_t n = std::min(part_, sizes[r] - std::min(begin, sizes[r]));
      all[r].append(reinterpret_cast<const char*>(mailbox_ + part_ + r * part), n);
    }
  }
  return all;
}

std::string Exchange::shift(std::string_view name, std::string_view mine) {
  std::vector<std::size_t> sizes;
  all_gather(name, mine.size(), sizes);
  const std::size_t most = *std::max_element(sizes.begin(), sizes.end());
  const std::size_t n = sizes[static_cast<std::size_t>((rank_ + ranks_ - 1) % ranks_)];
  const std::size_t half = static_cast<std::size_t>(ranks_ + 1) / 2 * part_;  // of the mailbox, for each way
  std::string out;
  out.reserve(n);
  for (std::size_t begin = 0; begin < most; begin += half) {
    const std::string_view piece = mine.substr(std::min(begin, mine.size()), half);
    std::copy(piece.begin(), piece.end(), reinterpret_cast<char*>(mailbox_));
    communicator_.collective(group_, {.kind = CollectiveKind::kShift,
                                      .name = name,
                                      .input = mailbox_,
                                      .output = mailbox_ + half,
                                      .elements = words(std::min(half, most - begin))});
    out.append(reinterpret_cast<const char*>(mailbox_ + half), std::min(half, n - std::min(begin, n)));
  }
  return out;
}

std::string Exchange::broadcast(std::string_view name, std::int64_t root, std::string_view mine) {
  std::vector<std::size_t> sizes;
  all_gather(name, mine.size(), sizes);
  const std::size_t n = sizes[static_cast<std::size_t>(root)],
                    room = static_cast<std::size_t>(ranks_) * part_;
  std::string out;
  out.reserve(n);
  for (std::size_t begin = 0; begin < n; begin += room) {
    const std::size_t size = std::min(room, n - begin);
    if (rank_ == root)
      std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(begin), size, reinterpret_cast<char*>(mailbox_));
    communicator_.collective(group_, {.kind = CollectiveKind::kBroadcast,
                                      .name = name,
                                      .input = mailbox_,
                                      .output = mailbox_,
                                      .elements = words(size),
                                      .root = static_cast<std::size_t>(root)});
    out.append(reinterpret_cast<const char*>(mailbox_), size);
  }
  return out;
}

}  // namespace orrery::exec
