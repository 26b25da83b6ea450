// SPDX-License-Identifier: Apache-2.0
#include "exec/mpi_inquiry.h"

#include <utility>

#include "core/json.h"

namespace orrery::exec {
namespace {

constexpr int kAskTag = 2, kAnswerTag = 3;
static_assert(Inquiry::kFailureTag < kAskTag && kAnswerTag < Inquiry::kTags);

constexpr std::chrono::milliseconds kLook{10};

std::string text_of(const Waits& waits) {
  Json calls = Json::array();
  for (const Incomplete& c : waits.calls)
    calls.push_back({{"name", c.name}, {"number", c.number}, {"present", c.present}, {"missing", c.missing}});
  return Json{{"calls", std::move(calls)}, {"silent", waits.silent}}.dump(-1, ' ', false,
                                                                          Json::error_handler_t::replace);
}

Waits waits_of(const std::string& text) {
  const Json json = Json::parse(text);
  Waits out{{}, json.at("silent").get<std::set<std::int64_t>>()};
  for (const Json& c : json.at("calls"))
    out.calls.push_back({c.at("name"), c.at("number"), c.at("present"), c.at("missing"), {}});
  return out;
}

// The next message of this tag: its sender, or -1 where there is none. MPI's errors mean that a process is
// gone, which whoever waits for it notices.
int take(MPI_Comm messages, int tag, std::string& text) {
  int there = 0, bytes = 0;
  MPI_Status status;
  if (MPI_Iprobe(MPI_ANY_SOURCE, tag, messages, &there, &status) != MPI_SUCCESS || there == 0) return -1;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  text.resize(static_cast<std::size_t>(bytes));
  const int from = status.MPI_SOURCE;
  return MPI_Recv(text.data(), bytes, MPI_BYTE, from, tag, messages, MPI_STATUS_IGNORE) == MPI_SUCCESS ? from
                                                                                                       : -1;
}

}  // namespace

Inquiry::Inquiry(MPI_Comm messages, std::function<Waits()> own,
                 std::function<void(const std::string&)> failed)
    : messages_(messages), own_(std::move(own)), failed_(std::move(failed)), thread_([this] {
        for (; !end_.load(); std::this_thread::sleep_for(kLook)) attend();
      }) {}

Inquiry::~Inquiry() {
  end_.store(true);
  thread_.join();
}

void Inquiry::ask(std::int64_t rank, Clock::time_point since) {
  const std::lock_guard lock(mutex_);
  Question& q = questions_[rank];
  if (q.asked < since) q = {Clock::now(), false, false, {}};
}

Waits Inquiry::heard(Clock::time_point since, std::chrono::milliseconds patience) const {
  const std::lock_guard lock(mutex_);
  Waits out;
  for (const auto& [rank, q] : questions_) {
    if (q.asked < since) continue;
    if (!q.answered && Clock::now() > q.asked + patience) out.silent.insert(rank);
    out.calls.insert(out.calls.end(), q.answer.calls.begin(), q.answer.calls.end());
    out.silent.insert(q.answer.silent.begin(), q.answer.silent.end());
  }
  return out;
}

void Inquiry::attend() {
  std::string text;
  while (take(messages_, kFailureTag, text) >= 0) failed_(text);
  for (int from = 0; (from = take(messages_, kAskTag, text)) >= 0;) send(from, kAnswerTag, text_of(own_()));
  for (int from = 0; (from = take(messages_, kAnswerTag, text)) >= 0;) {
    Waits answer = waits_of(text);
    const std::lock_guard lock(mutex_);
    Question& q = questions_[from];
    q.answered = true;
    q.answer = std::move(answer);
  }
  std::vector<std::int64_t> to_ask;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [rank, q] : questions_) {
      if (!std::exchange(q.sent, true)) to_ask.push_back(rank);
    }
  }
  for (const std::int64_t rank : to_ask) send(static_cast<int>(rank), kAskTag, "");
  sent_.remove_if([](Sent& s) {
    int done = 0;
    return MPI_Test(&s.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
}

void Inquiry::send(int to, int tag, std::string text) {
  Sent& s = sent_.emplace_back(Sent{std::move(text), MPI_REQUEST_NULL});
  MPI_Isend(s.text.data(), static_cast<int>(s.text.size()), MPI_BYTE, to, tag, messages_, &s.request);
}

}  // namespace orrery::exec
