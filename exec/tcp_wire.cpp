// SPDX-License-Identifier: Apache-2.0
#include "exec/tcp_wire.h"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace orrery::exec {
namespace {

[[noreturn]] void fail(int error) {
  throw Error(std::strerror(error));
}

bool again(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

Wire::~Wire() {
  if (socket_ >= 0) ::close(socket_);
}

void Wire::wait_for(short events, const Patience& patience, Clock::time_point progress) const {
  // Not their sum, which may be beyond what a time point holds.
  const auto now = Clock::now();
  const auto left = std::min<Clock::duration>(patience.quiet - (now - progress), patience.until - now);
  if (left <= Clock::duration::zero())
    throw Error(fmt::format("nothing passed for {} ms",
                            std::chrono::duration_cast<std::chrono::milliseconds>(now - progress).count()));
  pollfd at{socket_, events, 0};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  if (::poll(&at, 1, static_cast<int>(std::min<std::int64_t>(ms, 1000))) < 0 && errno != EINTR) fail(errno);
}

void Wire::connect(const tcp::endpoint& to, Clock::time_point until) {
  if (socket_ >= 0) ::close(socket_);
  socket_ = ::socket(to.protocol().family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_ < 0) fail(errno);
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(socket_, to.data(), static_cast<socklen_t>(to.size())) == 0) return;
  if (errno != EINPROGRESS) fail(errno);
  const Patience patience{std::chrono::hours(24), until};
  for (const auto begin = Clock::now();;) {
    pollfd at{socket_, POLLOUT, 0};
    if (::poll(&at, 1, 0) > 0) break;
    wait_for(POLLOUT, patience, begin);
  }
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) fail(error);
}

void Wire::read(void* into, std::size_t bytes, const Patience& patience) {
  auto progress = Clock::now();
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = ::recv(socket_, static_cast<char*>(into) + done, bytes - done, MSG_DONTWAIT);
    if (n == 0) throw Error("the connection ended");
    if (n > 0) {
      done += static_cast<std::size_t>(n);
      progress = Clock::now();
    } else if (again(errno)) {
      wait_for(POLLIN, patience, progress);
    } else {
      fail(errno);
    }
  }
}

void Wire::write(std::initializer_list<std::span<const std::byte>> parts, const Patience& patience) {
  auto progress = Clock::now();
  std::size_t left = 0;
  for (const auto& part : parts) left += part.size();
  for (const auto& part : parts) {
    left -= part.size();
    for (std::size_t done = 0; done < part.size();) {
      const int more = left > 0 ? MSG_MORE : 0;  // the last bytes do not wait for others
      const ssize_t n =
          ::send(socket_, part.data() + done, part.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL | more);
      if (n >= 0) {
        done += static_cast<std::size_t>(n);
        progress = Clock::now();
      } else if (again(errno)) {
        wait_for(POLLOUT, patience, progress);
      } else {
        fail(errno);
      }
    }
  }
}

bool Wire::wait() {
  for (;;) {
    pollfd at{socket_, POLLIN, 0};
    if (::poll(&at, 1, -1) < 0 && errno != EINTR) return false;
    if (at.revents == 0) continue;
    std::byte next{};
    const ssize_t n = ::recv(socket_, &next, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) return true;
    if (n == 0 || !again(errno)) return false;
  }
}

void Wire::shut() noexcept {
  if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
}

}  // namespace orrery::exec
