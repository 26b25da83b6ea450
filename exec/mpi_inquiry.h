// SPDX-License-Identifier: Apache-2.0
//
// For whom do the ranks of other hosts wait? A thread of each process answers this question, whatever the
// process's other threads do: a rank that does not answer has a process that does not run. The thread also
// hears of failures elsewhere. Internal to exec/.
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "exec/blame.h"

namespace orrery::exec {

class Inquiry {
 public:
  // `own` says what this process knows, and `failed` takes the reason of a failure elsewhere; both are called
  // by the inquiry's thread. `messages` joins all ranks, and its errors return.
  Inquiry(MPI_Comm messages, std::function<Waits()> own, std::function<void(const std::string&)> failed);
  ~Inquiry();
  Inquiry(const Inquiry&) = delete;
  Inquiry& operator=(const Inquiry&) = delete;

  // Asks the rank, unless it was asked at `since` or later.
  void ask(std::int64_t rank, Clock::time_point since);
  // The answers to the questions of `since` or later, as one. A rank that has not answered for `patience` is
  // silent.
  Waits heard(Clock::time_point since, std::chrono::milliseconds patience) const;

  // Tags of messages: one that says why the job has failed, and the end of those that the inquiry takes.
  static constexpr int kFailureTag = 1, kTags = 4;

 private:
  struct Question {
    Clock::time_point asked;
    bool sent = false, answered = false;
    Waits answer;
  };
  struct Sent {
    std::string text;
    MPI_Request request;
  };
  void attend();
  void send(int to, int tag, std::string text);

  MPI_Comm messages_;
  std::function<Waits()> own_;
  std::function<void(const std::string&)> failed_;
  std::list<Sent> sent_;      // by the thread, not yet taken
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::int64_t, Question> questions_;
  std::atomic<bool> end_{false};
  std::thread thread_;
};

}  // namespace orrery::exec
