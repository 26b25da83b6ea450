// SPDX-License-Identifier: Apache-2.0
#include "exec/tcp_world.h"

#include <fmt/format.h>

#include <filesystem>
#include <thread>
#include <tuple>

#include "core/error.h"
#include "exec/tcp_hub.h"
#include "exec/tcp_wire.h"

namespace orrery::exec {
namespace {

// A greeting that will not be answered better when it is repeated.
class Refused : public Error {
 public:
  using Error::Error;
};

// A rank's end: a thread reads what the hub says, and a thread that asked waits for it.
class TcpWorld final : public ProcessWorld, public Communicator {
 public:
  TcpWorld(const Launch& launch, const Rendezvous& rendezvous, const std::optional<Secret>& secret,
           std::chrono::milliseconds deadline, std::uint64_t largest_message)
      : rank_(launch.rank), ranks_(launch.ranks), job_(launch.id), deadline_(deadline), given_(secret) {
    try {
      file_ = rendezvous.file;
      if (rank_ == 0) begin_hub(launch, rendezvous, largest_message);
      connect(rendezvous);
      reader_ = std::thread([this] { read(); });
      if (hub_) {
        hub_->wait_for_ranks();
        remove_contact();
      }
      find_clock_offset();
    } catch (...) {
      leave();
      throw;
    }
  }
  ~TcpWorld() override { leave(); }

  Communicator& communicator() override { return *this; }
  Abort& abort() override { return abort_; }
  void spread_failure() override {
    Packer out;
    const std::string reason = abort_.reason();
    out.raw(reason.data(), std::min(reason.size(), kMostOfReason));
    try {
      write({.kind = FrameKind::kFailure}, out.body, {}, {}, std::chrono::seconds(1));
    } catch (const std::exception&) {  // the hub is gone, and the others know it
    }
  }
  std::vector<std::int64_t> survivors() override { return {}; }

  std::byte* allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    memory_.emplace_back(new (std::align_val_t{256}) std::byte[std::max<std::size_t>(bytes, 1)]);
    return memory_.back().get();
  }
  Clock::duration clock_offset() const override { return clock_offset_; }
  using Communicator::open;
  GroupId open(std::span<const std::int64_t> members, int number) override {
    const std::lock_guard lock(mutex_);
    const auto [at, added] = opened_.try_emplace({{members.begin(), members.end()}, number}, groups_.size());
    if (added) groups_.push_back({at->first, 0});
    return at->second;
  }

  Clock::time_point collective(GroupId id, const CollectiveCall& call) override {
    if (call.algorithm != Algorithm::kDirect)
      throw Error(
          fmt::format("\"{}\": over TCP collectives are direct (allowed: --collectives direct)", call.name));
    CollectivePart part;
    {
      const std::lock_guard lock(mutex_);
      Group& group = groups_[id];
      std::tie(part.members, part.group) = group.key;
      part.number = group.calls++;
    }
    part.name = call.name;
    part.call = call;
    const std::size_t n = part.members.size();
    const auto self = static_cast<std::size_t>(std::find(part.members.begin(), part.members.end(), rank_) -
                                               part.members.begin());
    const std::size_t result = output_bytes(call, self, n);
    const auto bytes = [](const void* p, std::size_t count) {
      return std::span(static_cast<const std::byte*>(p), count);
    };
    ask({FrameKind::kCollective, call.name, part.number}, describe(part),
        bytes(call.input, input_bytes(call, self, n)), bytes(call.output, call.accumulate ? result : 0),
        {static_cast<std::byte*>(call.output), result});
    return Clock::now();
  }

  Clock::time_point send(std::int64_t to, int channel, std::string_view name, const void* data,
                         std::size_t bytes) override {
    const MessagePart part{.peer = to, .channel = channel, .name = std::string(name), .bytes = bytes};
    ask({FrameKind::kSend, name, count(to, channel, true)}, describe(part),
        {static_cast<const std::byte*>(data), bytes}, {}, {});
    return Clock::now();
  }
  Clock::time_point receive(std::int64_t from, int channel, std::string_view name, void* data,
                            std::size_t bytes) override {
    const MessagePart part{.peer = from, .channel = channel, .name = std::string(name), .bytes = bytes};
    ask({FrameKind::kReceive, name, count(from, channel, false)}, describe(part), {}, {},
        {static_cast<std::byte*>(data), bytes});
    return Clock::now();
  }

 private:
  struct Group {
    GroupKey key;
    std::uint64_t calls = 0;
  };
  struct FreeAligned {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{256}); }
  };
  struct Question {
    FrameKind kind;
    std::string_view name;
    std::uint64_t number;  // of the group's calls, or of the channel's messages
  };
  struct Pending {
    FrameKind kind;
    std::size_t bytes;
    bool answered = false;
    std::vector<std::byte> answer;
  };

  void leave() {
    leaving_ = true;
    try {
      write({.kind = FrameKind::kLeave}, {}, {}, {}, std::chrono::seconds(1));
    } catch (const std::exception&) {  // the hub is gone
    }
    wire_.shut();
    if (reader_.joinable()) reader_.join();
    hub_.reset();  // ranks that come late find it until then
    if (rank_ == 0 || hub_is_gone_) remove_contact();
  }

  void begin_hub(const Launch& launch, const Rendezvous& at, std::uint64_t largest_message) {
    Secret known = given_ ? *given_ : Secret::random();
    try {
      hub_ = std::make_unique<TcpHub>(TcpHub::Job{job_, ranks_, known, deadline_, largest_message},
                                      listening_addresses(at, launch.one_host()));
    } catch (const boost::system::system_error& e) {
      throw Error(fmt::format("rank 0 cannot listen at {}:{}: {} (the host must be that of rank 0)", at.host,
                              at.port, e.code().message()));
    }
    if (at.file.empty()) {
      contact_.emplace(Contact{"", "", std::move(known)});
      return;
    }
    contact_.emplace(
        Contact{launch.one_host() ? hub_->address().address().to_string() : reachable_as(host_name()),
                std::to_string(hub_->address().port()), std::move(known)});
    write_contact(at.file, *contact_);
  }

  // Whoever reads the file later would look for a job that has begun, or is over. Where rank 0 has died, the
  // others remove it; the file of another launch stays.
  void remove_contact() {
    if (file_.empty() || !contact_) return;
    try {
      const Contact there = read_contact(file_);
      if (there.secret.text() == contact_->secret.text() && there.port == contact_->port)
        std::filesystem::remove(file_);
    } catch (const std::exception&) {  // it is gone already
    }
    file_.clear();
  }

  // Where rank 0 is, as far as it is known by now; the first rank itself is here.
  Endpoints addresses(const Rendezvous& at) {
    if (hub_) {
      tcp::endpoint here = hub_->address();
      if (here.address().is_unspecified()) {
        here.address(here.address().is_v6() ? asio::ip::address(asio::ip::address_v6::loopback())
                                            : asio::ip::address(asio::ip::address_v4::loopback()));
      }
      return {here};
    }
    if (at.file.empty()) {
      contact_.emplace(Contact{at.host, at.port, given_.value()});
    } else {
      contact_.emplace(read_contact(at.file));
    }
    return resolve(contact_->host, contact_->port);
  }

  // Tries until the deadline: the first rank may come later, and a file may be an earlier job's.
  void connect(const Rendezvous& at) {
    const auto until = Clock::now() + deadline_;
    std::string problem;
    bool answers = false;  // a program at the last address that was tried
    for (std::chrono::milliseconds pause{10};; pause = std::min(2 * pause, std::chrono::milliseconds(500))) {
      try {
        for (const tcp::endpoint& where : addresses(at)) {
          try {
            const auto end = std::min(until, Clock::now() + kGreetingDeadline);
            answers = false;
            wire_.connect(where, end);
            answers = true;
            return greet(end);
          } catch (const Refused&) {
            throw;
          } catch (const Error& e) {
            problem = fmt::format("{}:{}: {}", where.address().to_string(), where.port(), e.what());
          }
        }
      } catch (const Refused&) {
        throw;
      } catch (const Error& e) {
        problem = e.what();
      }
      if (Clock::now() + pause > until) {
        hub_is_gone_ = !answers;
        throw Error(fmt::format("rank {} could not reach rank 0 within {} ms: {}", rank_, deadline_.count(),
                                problem));
      }
      std::this_thread::sleep_for(pause);
    }
  }

  // The user's, or the one that rank 0 made.
  const Secret& secret() const { return given_ ? *given_ : contact_->secret; }

  void greet(Clock::time_point until) {
    const Wire::Patience patience{kGreetingDeadline, until};
    const Hello hello{.rank = rank_, .ranks = ranks_, .nonce = random_nonce()};
    wire_.write({std::as_bytes(std::span(&hello, 1))}, patience);
    const auto challenge = wire_.read_value<Challenge>(patience);
    if (challenge.magic != kMagic) throw Error("a program that is not rank 0 of a job answers there");
    const Digest proof = secret().sign(signed_text("rank", job_, hello, challenge));
    wire_.write({proof}, patience);
    const auto welcome = wire_.read_value<Welcome>(patience);
    if (welcome.magic != kMagic) throw Error("a program that is not rank 0 of a job answers there");
    switch (welcome.refusal) {
      case Refusal::kNone:
        break;
      case Refusal::kRanks:
        throw Refused(
            fmt::format("rank 0 refuses rank {} of {}: its job has another number of ranks", rank_, ranks_));
      case Refusal::kTwice:
        throw Refused(fmt::format("rank 0 refuses rank {}: another process is rank {}", rank_, rank_));
      case Refusal::kSecret:
      default:
        throw Error("rank 0 refuses this rank, as its secret or its job is another");
    }
    if (!secret().verify(signed_text("hub", job_, hello, challenge), welcome.digest))
      throw Error("the program that answers there does not know the job's secret");
  }

  // What rank 0's clock shows when ours shows the middle of asking, of the quickest answer.
  void find_clock_offset() {
    Clock::duration quickest = Clock::duration::max();
    for (std::uint64_t i = 0; i < 10; ++i) {
      const auto begin = Clock::now();
      Clock::rep now = 0;
      ask({FrameKind::kTime, "the time", i}, {}, {}, {}, std::as_writable_bytes(std::span(&now, 1)));
      const auto end = Clock::now();
      if (end - begin >= quickest) continue;
      quickest = end - begin;
      clock_offset_ = Clock::time_point{Clock::duration{now}} - (begin + quickest / 2);
    }
  }

  // The next message to or from a rank on a channel.
  std::uint64_t count(std::int64_t peer, int channel, bool sends) {
    const std::lock_guard lock(mutex_);
    return messages_[{peer, channel, sends}]++;
  }

  void write(FrameHead head, std::span<const std::byte> description, std::span<const std::byte> payload,
             std::span<const std::byte> more, std::chrono::milliseconds patience) {
    head.description = static_cast<std::uint32_t>(description.size());
    head.payload = payload.size() + more.size();
    const std::lock_guard lock(writing_);
    wire_.write({std::as_bytes(std::span(&head, 1)), description, payload, more}, {patience});
  }

  // Until a question is answered; false when it was not. The hub names the ranks that do not come, and asks
  // beforehand whether this one is alive: where it did, what it says has a moment to arrive. Where nothing
  // was heard of it, rank 0 itself does not answer.
  bool wait_for_answer(std::unique_lock<std::mutex>& lock, std::uint64_t call) {
    const auto answered = [&] { return pending_.at(call).answered; };
    if (abort_.wait(answered_, lock, deadline_, answered)) return true;
    if (Clock::now() - heard_ > deadline_ / 2) return false;
    return abort_.wait(answered_, lock, deadline_ / 10 + std::chrono::seconds(1), answered);
  }

  void ask(const Question& q, std::span<const std::byte> description, std::span<const std::byte> payload,
           std::span<const std::byte> more, std::span<std::byte> answer) {
    abort_.check();
    std::unique_lock lock(mutex_);
    const std::uint64_t call = ++asked_;
    pending_[call] = {q.kind, answer.size()};
    lock.unlock();
    try {
      write({.kind = q.kind, .call = call}, description, payload, more, deadline_);
    } catch (const std::exception& e) {
      // Where the hub ended the connection, the thread that reads is about to know why.
      lock.lock();
      abort_.wait(answered_, lock, std::chrono::milliseconds(100), [] { return false; });
      throw Error(fmt::format("rank 0 did not take \"{}\" (call {}): {}", q.name, q.number, e.what()));
    }
    lock.lock();
    if (!wait_for_answer(lock, call)) {
      throw Error(fmt::format("rank 0 did not answer \"{}\" (call {}) within {} ms", q.name, q.number,
                              deadline_.count()));
    }
    const std::vector<std::byte> got = std::move(pending_.at(call).answer);
    pending_.erase(call);
    std::copy(got.begin(), got.end(), answer.begin());
  }

  void lose_hub(const std::string& why) {
    hub_is_gone_ = true;
    abort_.raise("rank 0 is gone: " + why);
  }

  void read() {
    try {
      while (wire_.wait()) read_frame();
      if (!leaving_) lose_hub("its connection ended");
    } catch (const std::exception& e) {
      if (!leaving_) lose_hub(e.what());
    }
    answered_.notify_all();
  }

  void read_frame() {
    const Wire::Patience patience{deadline_};
    const auto head = wire_.read_value<FrameHead>(patience);
    if (head.magic != kMagic || head.description > kMostOfReason)
      throw Error("it sent no message of the job");
    {
      const std::lock_guard lock(mutex_);
      heard_ = Clock::now();
    }
    if (head.kind == FrameKind::kPing) return write({.kind = FrameKind::kPong}, {}, {}, {}, deadline_);
    if (head.kind == FrameKind::kFailure) {
      std::string reason(head.description, '\0');
      wire_.read(reason.data(), reason.size(), patience);
      abort_.raise(reason);
      return answered_.notify_all();
    }
    std::unique_lock lock(mutex_);
    const auto at = pending_.find(head.call);
    if (at == pending_.end() || at->second.kind != head.kind || at->second.bytes != head.payload ||
        head.description != 0)
      throw Error("it sent an answer to no question");
    lock.unlock();
    std::vector<std::byte> answer(head.payload);
    wire_.read(answer.data(), answer.size(), patience);
    lock.lock();
    Pending& pending = pending_.at(head.call);
    pending.answer = std::move(answer);
    pending.answered = true;
    answered_.notify_all();
  }

  std::int64_t rank_, ranks_;
  std::string job_;
  std::chrono::milliseconds deadline_;
  AbortState abort_state_;
  Abort abort_{abort_state_};
  std::unique_ptr<TcpHub> hub_;  // on rank 0
  std::optional<Secret> given_;
  std::string file_;  // where ranks find rank 0, as long as it may be there
  std::optional<Contact> contact_;
  Wire wire_;
  std::mutex writing_;
  Clock::duration clock_offset_{};
  std::mutex mutex_;  // of what follows
  std::condition_variable answered_;
  std::map<std::uint64_t, Pending> pending_;
  std::uint64_t asked_ = 0;
  Clock::time_point heard_;  // a message of the hub began
  std::map<GroupKey, GroupId> opened_;
  std::vector<Group> groups_;
  std::map<std::tuple<std::int64_t, int, bool>, std::uint64_t> messages_;
  std::vector<std::unique_ptr<std::byte[], FreeAligned>> memory_;
  std::atomic<bool> leaving_{false}, hub_is_gone_{false};
  std::thread reader_;
};

}  // namespace

std::unique_ptr<ProcessWorld> join_by_tcp(const Launch& launch, const Rendezvous& rendezvous,
                                          const std::optional<Secret>& secret,
                                          std::chrono::milliseconds deadline, std::uint64_t largest_message) {
  if (!secret && rendezvous.file.empty()) {
    throw InputError(
        "command line", "/rendezvous",
        fmt::format("\"tcp://{}:{}\" needs a secret that all ranks know", rendezvous.host, rendezvous.port),
        "allowed: ORRERY_JOB_SECRET, --secret-file FILE, or file:PATH, where rank 0 makes one");
  }
  return std::make_unique<TcpWorld>(launch, rendezvous, secret, deadline, largest_message);
}

}  // namespace orrery::exec
