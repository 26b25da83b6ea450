// SPDX-License-Identifier: Apache-2.0
//
// Programs that connect to a hub and are not what it waits for.
#pragma once

#include <fstream>
#include <string>

#include "core/error.h"
#include "exec/tcp_frame.h"
#include "exec/tcp_wire.h"

namespace orrery::exec {

inline constexpr Wire::Patience kPatience{std::chrono::seconds(20)};

// A rank that speaks the protocol and is not bound to it.
class FakeRank {
 public:
  FakeRank(const tcp::endpoint& hub, std::int64_t rank, std::int64_t ranks, const Secret& secret,
           std::string_view job = "") {
    wire.connect(hub, Clock::now() + std::chrono::seconds(20));
    hello = {.rank = rank, .ranks = ranks, .nonce = random_nonce()};
    wire.write({std::as_bytes(std::span(&hello, 1))}, kPatience);
    challenge = wire.read_value<Challenge>(kPatience);
    proof = secret.sign(signed_text("rank", job, hello, challenge));
    wire.write({proof}, kPatience);
    welcome = wire.read_value<Welcome>(kPatience);
  }
  void send(FrameHead head, std::span<const std::byte> description, std::span<const std::byte> payload = {}) {
    head.description = static_cast<std::uint32_t>(description.size());
    wire.write({std::as_bytes(std::span(&head, 1)), description, payload}, kPatience);
  }
  // The hub's next word that is not whether the rank is alive.
  std::string failure() {
    for (;;) {
      const auto head = wire.read_value<FrameHead>(kPatience);
      std::string text(head.description + head.payload, '\0');
      wire.read(text.data(), text.size(), kPatience);
      if (head.kind != FrameKind::kPing) return text;
    }
  }
  Wire wire;
  Hello hello;
  Challenge challenge;
  Digest proof{};
  Welcome welcome;
};

// By how much strangers may make a process grow, in KiB; sanitizers have memory of their own beside it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::int64_t kMostGrowth = 512 * 1024;
#else
inline constexpr std::int64_t kMostGrowth = 16 * 1024;
#endif

// Kilobytes of memory that a process of this host has at the moment.
inline std::int64_t resident_kb(const std::string& process) {
  std::ifstream in("/proc/" + process + "/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  }
  return -1;
}

// Strangers, one kind after the other; what they send is a function of their number. Connects to `hub` and
// leaves at once. Returns whether it was let in.
inline bool disturb(const tcp::endpoint& hub, int number) {
  Wire wire;
  try {
    wire.connect(hub, Clock::now() + std::chrono::seconds(5));
    std::string text;
    const auto raw = [&](const auto& v) { text.append(reinterpret_cast<const char*>(&v), sizeof v); };
    switch (number % 8) {
      case 0:
        break;  // says nothing
      case 1:
        text = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        break;
      case 2:
        text.assign(4096, static_cast<char>(number));
        break;
      case 3:
        raw(FrameHead{.kind = FrameKind::kFailure, .payload = std::uint64_t{1} << 36});  // 64 GiB are to come
        break;
      case 4:
        raw(Hello{.rank = 1, .ranks = 2});
        text.resize(text.size() / 2);
        break;
      case 5:  // a whole greeting, and a proof of nothing
        raw(Hello{.rank = 1, .ranks = 2});
        raw(Digest{});
        break;
      case 6:
        raw(Hello{.rank = std::int64_t{1} << 62, .ranks = -1});
        raw(Digest{});
        raw(FrameHead{.kind = FrameKind::kCollective, .payload = ~std::uint64_t{0}, .description = 4096});
        break;
      default:
        raw(Hello{.magic = 0, .rank = 0, .ranks = 2});
    }
    wire.write({std::as_bytes(std::span(text))}, {std::chrono::seconds(5)});
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace orrery::exec
