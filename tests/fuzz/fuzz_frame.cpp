// SPDX-License-Identifier: Apache-2.0
//
// What a rank sends to the hub over TCP: a head and a description. Any bytes are read, or an Error; what is
// read says the same when it is written again, and asks for no more memory than the head promises.
#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "exec/tcp_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  using namespace orrery::exec;
  constexpr std::int64_t kRank = 1, kRanks = 4;
  FrameHead head;
  if (size < sizeof head) return 0;
  std::memcpy(&head, data, sizeof head);
  const std::span description = std::as_bytes(std::span(data, size)).subspan(sizeof head);
  const auto expect = [](bool holds) {
    if (!holds) std::abort();
  };
  const auto same = [&](const std::vector<std::byte>& again) {
    expect(std::equal(again.begin(), again.end(), description.begin(), description.end()));
  };
  try {
    check_head(head);
    expect(head.description <= kMostOfDescription && head.payload <= kMostOfPayload);
    if (head.kind == FrameKind::kCollective) {
      const CollectivePart part = parse_collective(head, description, kRank, kRanks);
      expect(part.members.at(part.self) == kRank && part.call.root < part.members.size());
      expect(input_bytes(part.call, part.self, part.members.size()) <= head.payload);
      same(describe(part));
    } else if (head.kind == FrameKind::kSend || head.kind == FrameKind::kReceive) {
      const MessagePart part = parse_message(head, description, kRank, kRanks);
      expect(part.peer >= 0 && part.peer < kRanks && part.bytes <= kMostOfPayload);
      same(describe(part));
    }
  } catch (const Error&) {
  }
  return 0;
}
