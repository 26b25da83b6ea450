// SPDX-License-Identifier: Apache-2.0
//
// How ranks exchange data. One Communicator per rank; a group is its ordered member list. Reductions
// sum in member order, so results do not depend on timing. Every wait has a deadline; a rank that
// does not arrive, or arrives with another operation, ends the job with a message that names both.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace orrery::exec {

using Clock = std::chrono::steady_clock;

struct CollectiveCall {
  enum class Kind { kSum, kMax, kGather, kScatter } kind = Kind::kSum;
  std::string_view name;  // compared between members
  std::span<const float> input;
  std::span<float> output;
  bool accumulate = false;  // kScatter: add to the output
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  // Returns when the last member arrived. kSum, kMax: equal sizes; kGather: input is this member's part
  // of the output; kScatter: output is this member's part of the input's sum.
  virtual Clock::time_point collective(std::span<const std::int64_t> members, const CollectiveCall& call) = 0;
  // Messages between two ranks on a channel arrive in order; send does not wait for its receive.
  virtual void send(std::int64_t to, int channel, std::span<const float> data) = 0;
  virtual Clock::time_point receive(std::int64_t from, int channel, std::string_view name,
                                    std::span<float> data) = 0;
};

// Ranks as threads of this process.
class ThreadWorld {
 public:
  ThreadWorld(std::int64_t ranks, std::chrono::milliseconds deadline) : ranks_(ranks), deadline_(deadline) {}
  std::unique_ptr<Communicator> communicator(std::int64_t rank);
  // Wakes every waiting rank with `reason`; the first reason is kept.
  void abort(const std::string& reason);

 private:
  friend class ThreadCommunicator;
  struct Group {
    std::condition_variable changed;
    std::uint64_t generation = 0;
    std::size_t arrived = 0;
    std::vector<const CollectiveCall*> calls;
    Clock::time_point complete;
  };
  struct Mailbox {
    std::condition_variable changed;
    std::deque<std::vector<float>> messages;
  };
  Group& group(std::span<const std::int64_t> members);
  Mailbox& mailbox(std::int64_t from, std::int64_t to, int channel);
  void fail_if_aborted() const;

  std::int64_t ranks_;
  std::chrono::milliseconds deadline_;
  std::mutex mutex_;
  std::string abort_reason_;
  std::map<std::vector<std::int64_t>, Group> groups_;
  std::map<std::array<std::int64_t, 3>, Mailbox> mailboxes_;
};

}  // namespace orrery::exec
