// SPDX-License-Identifier: Apache-2.0
#include "exec/tcp_world.h"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>

#include "core/error.h"
#include "exec/tcp_hub.h"

namespace orrery::exec {

Rendezvous parse_rendezvous(const std::string& text) {
  const auto fail = [&](const char* problem) -> Rendezvous {
    throw InputError("command line", "/rendezvous", fmt::format("\"{}\" {}", text, problem),
                     "allowed: tcp://HOST:PORT, file:PATH");
  };
  if (text.starts_with("file:"))
    return text.size() > 5 ? Rendezvous{.file = text.substr(5)} : fail("names no file");
  if (!text.starts_with("tcp://")) return fail("is no rendezvous");
  const std::size_t colon = text.rfind(':');
  const std::string host = text.substr(6, std::max<std::size_t>(colon, 6) - 6), port = text.substr(colon + 1);
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (colon < 6 || host.empty()) return fail("names no host");
  if (error != std::errc() || end != port.data() + port.size() || number == 0) return fail("names no port");
  return {.host = host, .port = port};
}

namespace {

// A rank's end: a thread reads what the hub says, and whoever asked waits for it.
class TcpWorld final : public ProcessWorld, public Communicator {
 public:
  TcpWorld(const Launch& launch, const Rendezvous& rendezvous, std::chrono::milliseconds deadline)
      : rank_(launch.rank), deadline_(deadline), socket_(context_) {
    if (rank_ == 0) begin_hub(launch.ranks, rendezvous);
    connect(launch.ranks, rendezvous);
    reader_ = std::jthread([this] { read(); });
    try {
      if (hub_) hub_->wait_for_ranks(deadline);
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
    out.text(abort_.reason());
    try {
      write(FrameKind::kFailure, 0, out.body);
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
  GroupId open(std::span<const std::int64_t> members) override {
    const std::lock_guard lock(mutex_);
    const auto [at, added] = opened_.try_emplace({members.begin(), members.end()}, groups_.size());
    if (added) groups_.push_back({at->first, 0});
    return at->second;
  }

  Clock::time_point collective(GroupId id, const CollectiveCall& call) override {
    if (call.algorithm != Algorithm::kDirect)
      throw Error(
          fmt::format("\"{}\": over TCP collectives are direct (allowed: --collectives direct)", call.name));
    Packer out;
    std::size_t self = 0, n = 0;
    {
      const std::lock_guard lock(mutex_);
      Group& group = groups_[id];
      n = group.members.size();
      self = static_cast<std::size_t>(std::find(group.members.begin(), group.members.end(), rank_) -
                                      group.members.begin());
      out.value<std::uint64_t>(n);
      for (const std::int64_t m : group.members) out.value(m);
      out.value<std::uint64_t>(group.calls++);
    }
    out.value(call.kind).value(call.type).value(call.accumulate);
    out.value<std::uint64_t>(call.root).value<std::uint64_t>(call.elements).text(call.name);
    out.raw(call.input, input_bytes(call, self, n));
    const std::size_t result = output_bytes(call, self, n);
    if (call.accumulate) out.raw(call.output, result);
    const Frame reply = ask(FrameKind::kCollective, call.name, out.body);
    std::memcpy(call.output, Unpacker(reply.body).raw(result).data(), result);
    return Clock::now();
  }

  Clock::time_point send(std::int64_t to, int channel, std::string_view name, const void* data,
                         std::size_t bytes) override {
    Packer out;
    out.value(to).value<std::int32_t>(channel).text(name).raw(data, bytes);
    ask(FrameKind::kSend, name, out.body);
    return Clock::now();
  }
  Clock::time_point receive(std::int64_t from, int channel, std::string_view name, void* data,
                            std::size_t bytes) override {
    Packer out;
    out.value(from).value<std::int32_t>(channel).text(name).value<std::uint64_t>(bytes);
    const Frame reply = ask(FrameKind::kReceive, name, out.body);
    std::memcpy(data, Unpacker(reply.body).raw(bytes).data(), bytes);
    return Clock::now();
  }

 private:
  struct Group {
    std::vector<std::int64_t> members;
    std::uint64_t calls = 0;
  };
  struct FreeAligned {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{256}); }
  };

  void leave() {
    leaving_ = true;
    try {
      write(FrameKind::kLeave, 0, {});
    } catch (const std::exception&) {  // the hub is gone
    }
    boost::system::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    if (reader_.joinable()) reader_.join();
    std::error_code e;
    if (!file_.empty()) std::filesystem::remove(file_, e);
  }

  void begin_hub(std::int64_t ranks, const Rendezvous& at) {
    try {
      hub_ = std::make_unique<TcpHub>(ranks, at.file.empty() ? at.port : "0");
    } catch (const std::exception& e) {
      throw Error(fmt::format("rank 0 cannot listen at port {}: {}", at.port, e.what()));
    }
    if (at.file.empty()) return;
    // Whole or not at all: others read it as soon as it is there.
    const std::string next = at.file + ".next";
    std::ofstream(next) << host_name() << ' ' << hub_->port() << '\n';
    std::error_code e;
    std::filesystem::rename(next, at.file, e);
    if (e) throw Error(fmt::format("cannot write {}: {}", at.file, e.message()));
    file_ = at.file;
  }

  // Where the first rank is, as far as it is known by now; the first rank itself is here.
  std::optional<std::pair<std::string, std::string>> address(const Rendezvous& at) const {
    if (hub_) return std::pair{std::string("127.0.0.1"), std::to_string(hub_->port())};
    if (at.file.empty()) return std::pair{at.host, at.port};
    std::pair<std::string, std::string> found;
    if (!(std::ifstream(at.file) >> found.first >> found.second)) return std::nullopt;
    return found;
  }

  // Tries until the deadline: the first rank may come later, and a file may be an earlier job's.
  void connect(std::int64_t ranks, const Rendezvous& at) {
    const auto until = Clock::now() + deadline_;
    std::string problem = "its address is not known";
    for (;;) {
      if (const auto where = address(at)) {
        try {
          tcp::resolver resolver(context_);
          socket_ = tcp::socket(context_);
          asio::connect(socket_, resolver.resolve(where->first, where->second));
          socket_.set_option(tcp::no_delay(true));
          Packer hello;
          hello.value(rank_).value(ranks);
          write_frame(socket_, FrameKind::kHello, 0, hello.body);
          read_frame(socket_);
          return;
        } catch (const std::exception& e) {
          problem = e.what();
        }
      }
      if (Clock::now() > until) {
        throw Error(fmt::format("rank {} could not reach rank 0 within {} ms: {}", rank_, deadline_.count(),
                                problem));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  // What rank 0's clock shows when ours shows the middle of asking, of the quickest answer.
  void find_clock_offset() {
    Clock::duration quickest = Clock::duration::max();
    for (int i = 0; i < 10; ++i) {
      const auto begin = Clock::now();
      const Frame reply = ask(FrameKind::kTime, "the time", {});
      const auto end = Clock::now();
      if (end - begin >= quickest) continue;
      quickest = end - begin;
      const Clock::time_point theirs{Clock::duration{Unpacker(reply.body).value<Clock::rep>()}};
      clock_offset_ = theirs - (begin + quickest / 2);
    }
  }

  void write(FrameKind kind, std::uint64_t call, std::span<const std::byte> body) {
    const std::lock_guard lock(writing_);
    write_frame(socket_, kind, call, body);
  }

  Frame ask(FrameKind kind, std::string_view name, std::span<const std::byte> body) {
    abort_.check();
    std::uint64_t call = 0;
    {
      const std::lock_guard lock(mutex_);
      call = ++asked_;
    }
    try {
      write(kind, call, body);
    } catch (const std::exception& e) {
      abort_.check();
      throw Error(fmt::format("\"{}\": the connection to rank 0: {}", name, e.what()));
    }
    std::unique_lock lock(mutex_);
    if (!abort_.wait(answered_, lock, deadline_, [&] { return answers_.contains(call); }))
      throw Error(fmt::format("\"{}\" (call {}): not all of its ranks came within {} ms", name, call,
                              deadline_.count()));
    Frame out = std::move(answers_.at(call));
    answers_.erase(call);
    return out;
  }

  void read() {
    try {
      for (;;) {
        Frame frame = read_frame(socket_);
        if (frame.head.kind == FrameKind::kFailure) {
          abort_.raise(Unpacker(frame.body).text());
        } else {
          const std::lock_guard lock(mutex_);
          answers_.emplace(frame.head.call, std::move(frame));
        }
        answered_.notify_all();
      }
    } catch (const std::exception&) {
      if (!leaving_) abort_.raise("rank 0 is gone");
    }
  }

  std::int64_t rank_;
  std::chrono::milliseconds deadline_;
  AbortState abort_state_;
  Abort abort_{abort_state_};
  std::unique_ptr<TcpHub> hub_;  // on rank 0
  std::string file_;             // that it wrote
  asio::io_context context_;
  tcp::socket socket_;
  std::mutex writing_;
  Clock::duration clock_offset_{};
  std::mutex mutex_;  // of what follows
  std::condition_variable answered_;
  std::map<std::uint64_t, Frame> answers_;
  std::uint64_t asked_ = 0;
  std::map<std::vector<std::int64_t>, GroupId> opened_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<std::byte[], FreeAligned>> memory_;
  std::atomic<bool> leaving_{false};
  std::jthread reader_;
};

}  // namespace

std::unique_ptr<ProcessWorld> join_by_tcp(const Launch& launch, const Rendezvous& rendezvous,
                                          std::chrono::milliseconds deadline) {
  return std::make_unique<TcpWorld>(launch, rendezvous, deadline);
}

}  // namespace orrery::exec
