// SPDX-License-Identifier: Apache-2.0
//
// Rank 0's end of a job over TCP: it admits the ranks, which prove that they know the job's secret, brings
// their calls together and computes what they ask for. Internal to exec/tcp_*.
//
// One thread runs all connections, so no state is locked and a timer sees every deadline; a second one
// computes, so that a large sum delays nobody's deadline. A stranger costs one small connection for at most
// five seconds; of more than 64 strangers the oldest is dropped. Once all ranks are there the hub closes its
// port. Memory for what a rank sends grows as it arrives, whatever size was promised, and no message is
// larger than the one that rank 0 expects, or, before rank 0 has come to the call, than the job's largest.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "exec/secret.h"
#include "exec/tcp_meetings.h"

namespace orrery::exec {

namespace asio = boost::asio;
using asio::ip::tcp;

inline constexpr std::chrono::milliseconds kGreetingDeadline{5000};
inline constexpr std::size_t kMostStrangers = 64;

class TcpHub {
 public:
  struct Job {
    std::string name;  // the launcher's, the same for all ranks
    std::int64_t ranks = 1;
    Secret secret;
    std::chrono::milliseconds deadline;
    std::uint64_t largest_message = kMostOfPayload;  // bytes; a rank that sends more ends the job
  };
  // Listens at the first of the addresses that can be bound. Throws boost::system::system_error.
  TcpHub(Job job, const std::vector<tcp::endpoint>& at);
  // Waits until the ranks have left, at most five seconds. Of a job that failed before all ranks had come it
  // first waits for the others, until the deadline: they hear why.
  ~TcpHub();
  tcp::endpoint address() const { return address_; }
  // Returns when all ranks have come. Throws Error that names those that did not, and tells the others.
  void wait_for_ranks();

 private:
  struct Peer;
  using PeerPtr = std::shared_ptr<Peer>;
  using Step = void (TcpHub::*)(const PeerPtr&);

  // The greeting, step by step.
  void accept();
  void admit(tcp::socket socket);
  void on_hello(const PeerPtr& peer);
  void on_proof(const PeerPtr& peer);
  void welcome(const PeerPtr& peer);

  // A rank's frames.
  void read(const PeerPtr& peer, void* into, std::size_t bytes, Step then);
  void read_head(const PeerPtr& peer);
  void on_head(const PeerPtr& peer);
  void on_description(const PeerPtr& peer);
  void require_expected(const Peer& peer) const;
  void read_payload(const PeerPtr& peer);
  void on_frame(const PeerPtr& peer);
  template <class Call>
  void compute(Call call);
  void answer(std::vector<Answer> answers);
  void send(const PeerPtr& peer, const void* head, std::size_t bytes, std::vector<std::byte> body);
  void send(const PeerPtr& peer, FrameKind kind, std::vector<std::byte> description);
  void write(const PeerPtr& peer);

  // Deadlines and ends.
  void tick();
  void look_at_ranks(Clock::time_point now);
  void look_at_calls(Clock::time_point now);
  void lost(const PeerPtr& peer, const std::string& why);
  void refuse(const PeerPtr& peer, const std::string& why);
  void drop(const PeerPtr& peer);
  void fail(const std::string& reason);
  void tell_failure(const PeerPtr& peer);
  std::set<std::int64_t> silent() const;
  void tell();
  bool all_have_come() const;  // under the mutex

  Job job_;
  Clock::time_point begin_ = Clock::now();
  asio::io_context context_;
  tcp::acceptor acceptor_{context_};
  asio::steady_timer timer_{context_}, accept_again_{context_};
  tcp::endpoint address_;
  // Of the loop's thread alone.
  std::deque<PeerPtr> strangers_;  // the oldest first
  std::vector<PeerPtr> peers_;     // by rank; null: has not come, or has left
  Meetings meetings_;
  Clock::time_point asked_{};  // when ranks were last asked whether they are alive
  std::int64_t refused_ = 0;   // greetings with another secret
  bool failed_ = false;
  // Shared with the thread that owns the hub.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> come_;  // by rank
  std::string strange_;     // about greetings with another secret
  std::string reason_;      // why the job has failed; written once
  bool closing_ = false, all_left_ = false;
  asio::thread_pool computer_{1};
  std::thread loop_;
};

}  // namespace orrery::exec
