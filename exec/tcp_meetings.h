// SPDX-License-Identifier: Apache-2.0
//
// The calls that ranks make over TCP, as the hub knows them: who has come to which, and what a call computes
// once all have come. Nothing here opens a connection. Internal to
// exec/tcp_*.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "exec/blame.h"
#include "exec/tcp_frame.h"

namespace orrery::exec {

struct Answer {
  std::int64_t rank;
  FrameKind kind;
  std::uint64_t call;
  std::vector<std::byte> payload;
};

class Meetings {
 public:
  // All members' parts, in member order.
  using Collective = std::vector<CollectivePart>;
  struct Message {
    std::int64_t from, to;
    MessagePart sent, wanted;
  };

  // Adds a rank's part; returns the call when all have come.
  std::optional<Collective> add(CollectivePart part, Clock::time_point now);
  std::optional<Message> add(std::int64_t rank, FrameKind kind, MessagePart part, Clock::time_point now);

  // Bytes that a part's payload has if it belongs to the call to which rank 0 has come; nothing where rank 0
  // has not come, or takes no part.
  std::optional<std::uint64_t> expected_by_rank_0(const CollectivePart& part) const;
  std::optional<std::uint64_t> expected_by_rank_0(std::int64_t rank, const MessagePart& sent) const;

  std::vector<Incomplete> incomplete() const;

 private:
  struct Group {
    std::vector<std::optional<CollectivePart>> parts;
    Clock::time_point since;
  };
  struct Channel {
    struct Waiting {
      MessagePart part;
      Clock::time_point since;
    };
    std::deque<Waiting> sends, receives;
    std::uint64_t passed = 0;
  };
  struct ChannelKey {
    std::int64_t from, to;
    std::int32_t channel;
    auto operator<=>(const ChannelKey&) const = default;
  };
  // By members, group and call.
  std::map<std::tuple<std::vector<std::int64_t>, std::int32_t, std::uint64_t>, Group> groups_;
  std::map<ChannelKey, Channel> channels_;
};

// What the ranks get. Throws Error when their parts do not belong together.
std::vector<Answer> complete(Meetings::Collective parts);
std::vector<Answer> complete(Meetings::Message message);

}  // namespace orrery::exec
