// SPDX-License-Identifier: Apache-2.0
#include "exec/exchange.h"

#include <algorithm>
#include <numeric>

namespace orrery::exec {

Exchange::Exchange(Communicator& communicator, std::int64_t rank, std::int64_t ranks)
    : communicator_(communicator), rank_(rank), ranks_(ranks) {
  std::vector<std::int64_t> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  group_ = communicator.open(members);
  mailbox_ = communicator.allocate((members.size() + 1) * kPart);
}

std::size_t Exchange::meet(CollectiveKind kind, std::string_view name, std::size_t bytes) {
  const std::size_t words = (bytes + sizeof(float) - 1) / sizeof(float);
  communicator_.collective(group_, {.kind = kind,
                                    .name = name,
                                    .input = mailbox_,
                                    .output = mailbox_ + kPart,
                                    .elements = static_cast<std::size_t>(ranks_) * words});
  return words * sizeof(float);
}

std::vector<std::string> Exchange::gather(std::string_view name, std::string_view mine) {
  std::vector<std::size_t> sizes;
  all_gather(name, mine.size(), sizes);
  std::vector<std::string> all(rank_ == 0 ? sizes.size() : 0);
  const std::size_t most = *std::max_element(sizes.begin(), sizes.end());
  for (std::size_t begin = 0; begin < most; begin += kPart) {
    const std::string_view piece = mine.substr(std::min(begin, mine.size()), kPart);
    std::copy(piece.begin(), piece.end(), reinterpret_cast<char*>(mailbox_));
    const std::size_t part = meet(CollectiveKind::kGather, name, std::min(kPart, most - begin));
    for (std::size_t r = 0; r < all.size(); ++r) {
      const std::size_t n = std::min(kPart, sizes[r] - std::min(begin, sizes[r]));
      all[r].append(reinterpret_cast<const char*>(mailbox_ + kPart + r * part), n);
    }
  }
  return all;
}

}  // namespace orrery::exec
