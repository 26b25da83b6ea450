// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "exec/communicator.h"

namespace orrery::exec {
namespace {

using Kind = CollectiveCall::Kind;

// Runs in the last member to arrive, while the others wait.
void perform(const std::vector<const CollectiveCall*>& calls) {
  const Kind kind = calls[0]->kind;
  if (kind == Kind::kGather) {
    std::vector<float> whole;
    for (const CollectiveCall* c : calls) whole.insert(whole.end(), c->input.begin(), c->input.end());
    for (const CollectiveCall* c : calls) std::copy(whole.begin(), whole.end(), c->output.begin());
    return;
  }
  std::vector<float> total(calls[0]->input.begin(), calls[0]->input.end());
  for (std::size_t i = 1; i < calls.size(); ++i) {
    const auto& in = calls[i]->input;
    for (std::size_t j = 0; j < total.size(); ++j) {
      total[j] = kind == Kind::kMax ? std::max(total[j], in[j]) : total[j] + in[j];
    }
  }
  std::size_t at = 0;
  for (const CollectiveCall* c : calls) {
    for (std::size_t j = 0; j < c->output.size(); ++j) {
      c->output[j] = c->accumulate ? c->output[j] + total[at + j] : total[at + j];
    }
    if (kind == Kind::kScatter) at += c->output.size();
  }
}

std::string mismatch(const std::vector<const CollectiveCall*>& calls) {
  const CollectiveCall& first = *calls[0];
  std::size_t parts = 0;
  for (const CollectiveCall* c : calls) {
    if (c->kind != first.kind || c->name != first.name) {
      return fmt::format("collective \"{}\" meets \"{}\"", first.name, c->name);
    }
    parts += first.kind == Kind::kGather ? c->input.size() : c->output.size();
    if ((first.kind == Kind::kGather ? c->output.size() != first.output.size()
                                     : c->input.size() != first.input.size())) {
      return fmt::format("members of \"{}\" disagree on its size", first.name);
    }
  }
  const std::size_t whole = first.kind == Kind::kGather ? first.output.size() : first.input.size();
  const std::size_t expected =
      first.kind == Kind::kGather || first.kind == Kind::kScatter ? whole : whole * calls.size();
  return parts == expected ? std::string()
                           : fmt::format("the parts of \"{}\" do not add up to its whole", first.name);
}

}  // namespace

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(ThreadWorld& world, std::int64_t rank) : world_(world), rank_(rank) {}

  Clock::time_point collective(std::span<const std::int64_t> members, const CollectiveCall& call) override {
    const auto self = std::find(members.begin(), members.end(), rank_);
    std::unique_lock lock(world_.mutex_);
    world_.fail_if_aborted();
    ThreadWorld::Group& g = world_.group(members);
    const std::uint64_t generation = g.generation;
    g.calls[static_cast<std::size_t>(self - members.begin())] = &call;
    if (++g.arrived < members.size()) {
      const bool done = g.changed.wait_for(lock, world_.deadline_, [&] {
        return g.generation != generation || !world_.abort_reason_.empty();
      });
      if (g.generation != generation) return g.complete;
      if (done) world_.fail_if_aborted();
      std::string missing;
      for (std::size_t i = 0; i < members.size(); ++i) {
        if (g.calls[i] == nullptr) missing += fmt::format(" {}", members[i]);
      }
      lock.unlock();
      const std::string reason =
          fmt::format("rank {} waited {} ms in \"{}\" (sequence number {}) for ranks{}", rank_,
                      world_.deadline_.count(), call.name, generation, missing);
      world_.abort(reason);
      throw Error(reason);
    }
    g.complete = Clock::now();
    if (const std::string problem = mismatch(g.calls); !problem.empty()) {
      lock.unlock();
      const std::string reason = fmt::format("rank {}: {} (sequence number {})", rank_, problem, generation);
      world_.abort(reason);
      throw Error(reason);
    }
    perform(g.calls);
    std::fill(g.calls.begin(), g.calls.end(), nullptr);
    g.arrived = 0;
    ++g.generation;
    g.changed.notify_all();
    return g.complete;
  }

  void send(std::int64_t to, int channel, std::span<const float> data) override {
    const std::lock_guard lock(world_.mutex_);
    world_.fail_if_aborted();
    ThreadWorld::Mailbox& box = world_.mailbox(rank_, to, channel);
    box.messages.emplace_back(data.begin(), data.end());
    box.changed.notify_all();
  }

  Clock::time_point receive(std::int64_t from, int channel, std::string_view name,
                            std::span<float> data) override {
    std::unique_lock lock(world_.mutex_);
    ThreadWorld::Mailbox& box = world_.mailbox(from, rank_, channel);
    const bool arrived = box.changed.wait_for(
        lock, world_.deadline_, [&] { return !box.messages.empty() || !world_.abort_reason_.empty(); });
    world_.fail_if_aborted();
    if (!arrived || box.messages.front().size() != data.size()) {
      lock.unlock();
      const std::string reason =
          arrived
              ? fmt::format("rank {} got a message of another size from rank {} in \"{}\"", rank_, from, name)
              : fmt::format("rank {} waited {} ms in \"{}\" for rank {}", rank_, world_.deadline_.count(),
                            name, from);
      world_.abort(reason);
      throw Error(reason);
    }
    const Clock::time_point at = Clock::now();
    std::copy(box.messages.front().begin(), box.messages.front().end(), data.begin());
    box.messages.pop_front();
    return at;
  }

 private:
  ThreadWorld& world_;
  std::int64_t rank_;
};

std::unique_ptr<Communicator> ThreadWorld::communicator(std::int64_t rank) {
  if (rank < 0 || rank >= ranks_) throw Error(fmt::format("there is no rank {} among {}", rank, ranks_));
  return std::make_unique<ThreadCommunicator>(*this, rank);
}

void ThreadWorld::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (abort_reason_.empty()) abort_reason_ = reason.empty() ? "aborted" : reason;
  for (auto& [members, g] : groups_) g.changed.notify_all();
  for (auto& [key, box] : mailboxes_) box.changed.notify_all();
}

ThreadWorld::Group& ThreadWorld::group(std::span<const std::int64_t> members) {
  Group& g = groups_[std::vector<std::int64_t>(members.begin(), members.end())];
  g.calls.resize(members.size(), nullptr);
  return g;
}

ThreadWorld::Mailbox& ThreadWorld::mailbox(std::int64_t from, std::int64_t to, int channel) {
  return mailboxes_[{from, to, channel}];
}

void ThreadWorld::fail_if_aborted() const {
  if (!abort_reason_.empty()) throw Error(abort_reason_);
}

}  // namespace orrery::exec
