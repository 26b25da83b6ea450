// SPDX-License-Identifier: Apache-2.0
//
// The messages between a rank and the hub on rank 0: their form, and the checks before anything is believed.
// All hosts have the same byte order (the magic number tells). Nothing here opens a connection. Internal to
// exec/tcp_*.
//
//   greeting   rank -> hub  Hello       who the rank is, and a nonce
//              hub -> rank  Challenge   the hub's nonce
//              rank -> hub  Digest      HMAC of both nonces, rank, ranks and job under the job's secret
//              hub -> rank  Welcome     the hub's HMAC of the same, or why the rank is refused
//   then       either way   FrameHead, `description` bytes, `payload` bytes
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/communicator.h"
#include "exec/secret.h"

namespace orrery::exec {

inline constexpr std::uint32_t kMagic = 0x4f525932;

// --- the greeting ----------------------------------------------------------------------------------

struct Hello {
  std::uint32_t magic = kMagic, unused = 0;
  std::int64_t rank = 0, ranks = 0;
  Nonce nonce{};
};
struct Challenge {
  std::uint32_t magic = kMagic, unused = 0;
  Nonce nonce{};
};
enum class Refusal : std::uint32_t { kNone, kSecret, kRanks, kTwice };
struct Welcome {
  std::uint32_t magic = kMagic;
  Refusal refusal = Refusal::kNone;
  Digest digest{};
};

// What both ends sign: the rank as "rank", the hub as "hub", so that nobody can send a digest back.
std::vector<std::byte> signed_text(std::string_view signer, std::string_view job, const Hello& hello,
                                   const Challenge& challenge);

// --- frames ----------------------------------------------------------------------------------------

enum class FrameKind : std::uint32_t {
  kCollective,  // a rank's part in a collective; the answer's payload is its output
  kSend,        // a message to another rank; the answer comes when it is taken
  kReceive,     // the answer's payload is the message
  kTime,        // the answer's payload is the hub's clock
  kPing,        // from the hub: is the rank's process alive?
  kPong,
  kFailure,  // the description says why the job has failed
  kLeave,    // the rank will say no more
};
struct FrameHead {
  std::uint32_t magic = kMagic;
  FrameKind kind = FrameKind::kTime;
  std::uint64_t call = 0;  // a rank's number for its question; the answer has it too
  std::uint64_t payload = 0;
  std::uint32_t description = 0, unused = 0;
};
static_assert(sizeof(FrameHead) == 32);

inline constexpr std::size_t kMostOfDescription = 4096, kMostOfName = 1024, kMostOfReason = 1000;
inline constexpr std::uint64_t kMostOfPayload = std::uint64_t{1} << 36;

// Throws Error when no rank sends such a head.
void check_head(const FrameHead& head);

// Values one after the other.
class Packer {
 public:
  template <class T>
  Packer& value(const T& v) {
    static_assert(std::is_trivially_copyable_v<T>);
    return raw(&v, sizeof v);
  }
  Packer& text(std::string_view s) { return value<std::uint64_t>(s.size()).raw(s.data(), s.size()); }
  Packer& raw(const void* from, std::size_t bytes) {
    const auto* b = static_cast<const std::byte*>(from);
    body.insert(body.end(), b, b + bytes);
    return *this;
  }
  std::vector<std::byte> body;
};

// What a rank asks of the hub: the description of a kCollective, or of a kSend or kReceive.
struct CollectivePart {
  std::vector<std::int64_t> members;
  std::int32_t group = 0;    // number, of those of the same members
  std::uint64_t number = 0;  // of the group's calls
  std::string name;
  CollectiveCall call;   // without name, input and output
  std::size_t self = 0;  // index among the members
  std::uint64_t call_id = 0;
  std::vector<std::byte> payload;  // input, and what a sum begins with
};
struct MessagePart {
  std::int64_t peer = 0;
  std::int32_t channel = 0;
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t call_id = 0;
  std::vector<std::byte> payload;  // of a send
};

std::vector<std::byte> describe(const CollectivePart& part);
std::vector<std::byte> describe(const MessagePart& part);
// What `rank` of `ranks` sent, without its payload. Throws Error unless every value can be, and the payload
// that the head promises has exactly the size that follows from the call.
CollectivePart parse_collective(const FrameHead& head, std::span<const std::byte> description,
                                std::int64_t rank, std::int64_t ranks);
MessagePart parse_message(const FrameHead& head, std::span<const std::byte> description, std::int64_t rank,
                          std::int64_t ranks);

// Bytes of a member's input and output, and of what it sends: the input, and what a sum begins with.
std::size_t input_bytes(const CollectiveCall& call, std::size_t self, std::size_t members);
std::size_t output_bytes(const CollectiveCall& call, std::size_t self, std::size_t members);
std::size_t payload_bytes(const CollectiveCall& call, std::size_t self, std::size_t members);

}  // namespace orrery::exec
