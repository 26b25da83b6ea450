// SPDX-License-Identifier: Apache-2.0
//
// A rank's connection to the hub: reads and writes that end, at the latest, at a deadline. One thread may
// read while another writes. Internal to exec/tcp_*.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <initializer_list>
#include <span>

#include "exec/communicator.h"

namespace orrery::exec {

using boost::asio::ip::tcp;

class Wire {
 public:
  // How long the other end may take.
  struct Patience {
    std::chrono::milliseconds quiet;                     // without a byte that passes
    Clock::time_point until = Clock::time_point::max();  // altogether
  };

  Wire() = default;
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // All of these throw Error with the system's reason, or when the patience ends.
  void connect(const tcp::endpoint& to, Clock::time_point until);
  void read(void* into, std::size_t bytes, const Patience& patience);
  void write(std::initializer_list<std::span<const std::byte>> parts, const Patience& patience);
  template <class T>
  T read_value(const Patience& patience) {
    T v;
    read(&v, sizeof v, patience);
    return v;
  }

  // Waits for something to read; false when the connection has ended.
  bool wait();
  // Ends reads and writes of other threads.
  void shut() noexcept;

 private:
  void wait_for(short events, const Patience& patience, Clock::time_point progress) const;
  int socket_ = -1;
};

}  // namespace orrery::exec
