// SPDX-License-Identifier: Apache-2.0
//
// The first rank's end of a job over TCP: frames, and who brings calls together. Internal to exec/tcp_*.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "exec/communicator.h"

namespace orrery::exec {

namespace asio = boost::asio;
using asio::ip::tcp;

// What passes between a rank and the hub. A reply has the call's number and kind.
enum class FrameKind : std::uint32_t { kHello, kTime, kCollective, kSend, kReceive, kFailure, kLeave };
struct FrameHead {
  std::uint32_t magic = 0x4f525259;
  FrameKind kind = FrameKind::kHello;
  std::uint64_t call = 0, bytes = 0;
};
struct Frame {
  FrameHead head;
  std::vector<std::byte> body;
};

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
    if (bytes > 0) {
      const auto* b = static_cast<const std::byte*>(from);
      body.insert(body.end(), b, b + bytes);
    }
    return *this;
  }
  std::vector<std::byte> body;
};
// Throws Error where there is less than what is read.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> body) : left_(body) {}
  template <class T>
  T value() {
    T v;
    std::memcpy(&v, raw(sizeof v).data(), sizeof v);
    return v;
  }
  std::string text() {
    const auto s = raw(value<std::uint64_t>());
    return {reinterpret_cast<const char*>(s.data()), s.size()};
  }
  std::span<const std::byte> raw(std::size_t bytes);
  std::span<const std::byte> rest() const { return left_; }

 private:
  std::span<const std::byte> left_;
};

// Throws boost::system::system_error when the connection ends, Error when what comes is no frame, or one of
// more than `most` bytes.
inline constexpr std::uint64_t kMostOfFrame = std::uint64_t{1} << 36, kMostOfHello = 64;
Frame read_frame(tcp::socket& socket, std::uint64_t most = kMostOfFrame);
void write_frame(tcp::socket& socket, FrameKind kind, std::uint64_t call, std::span<const std::byte> body);

// Bytes of a member's input and output.
std::size_t input_bytes(const CollectiveCall& call, std::size_t self, std::size_t members);
std::size_t output_bytes(const CollectiveCall& call, std::size_t self, std::size_t members);

class TcpHub {
 public:
  // Listens for `ranks` ranks at a port ("0": any).
  TcpHub(std::int64_t ranks, const std::string& port);
  ~TcpHub();
  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  // Until all ranks have come.
  void wait_for_ranks(std::chrono::milliseconds deadline);

 private:
  struct Peer {
    explicit Peer(tcp::socket s) : socket(std::move(s)) {}
    tcp::socket socket;
    std::mutex writing;
    std::int64_t rank = -1;
    bool left = false;
  };
  struct Asked {
    std::shared_ptr<Peer> peer;  // null: has not come
    Frame frame;
  };
  using MeetingKey = std::pair<std::vector<std::int64_t>, std::uint64_t>;  // members, sequence number
  struct ChannelKey {
    std::int64_t from, to;
    std::int32_t channel;
    auto operator<=>(const ChannelKey&) const = default;
  };
  struct Channel {
    std::deque<Asked> sends, receives;
  };

  void accept();
  void serve(const std::shared_ptr<Peer>& peer);
  void handle(const std::shared_ptr<Peer>& peer, Frame frame);
  void meet(const std::shared_ptr<Peer>& peer, Frame frame);
  void pass(const std::shared_ptr<Peer>& peer, Frame frame);
  void finish(const std::vector<std::int64_t>& members, std::vector<Asked>& asked);
  void leave(const std::shared_ptr<Peer>& peer);
  void fail(const std::string& reason);
  static void reply(const Asked& to, std::span<const std::byte> body);

  std::int64_t ranks_;
  asio::io_context context_;
  tcp::acceptor acceptor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Peer>> peers_;    // by rank; null: has not come, or has left
  std::vector<std::weak_ptr<Peer>> connected_;  // strangers too
  std::map<MeetingKey, std::vector<Asked>> meetings_;
  std::map<ChannelKey, Channel> channels_;
  bool stopping_ = false, failed_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace orrery::exec
