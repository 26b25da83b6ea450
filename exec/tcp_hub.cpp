// SPDX-License-Identifier: Apache-2.0
#include "exec/tcp_hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "core/error.h"
#include "exec/collective.h"

namespace orrery::exec {

// --- frames ----------------------------------------------------------------------------------------

std::span<const std::byte> Unpacker::raw(std::size_t bytes) {
  if (bytes > left_.size()) throw Error("a message of the job ends early");
  const auto out = left_.first(bytes);
  left_ = left_.subspan(bytes);
  return out;
}

Frame read_frame(tcp::socket& socket, std::uint64_t most) {
  Frame frame;
  asio::read(socket, asio::buffer(&frame.head, sizeof frame.head));
  if (frame.head.magic != FrameHead{}.magic || frame.head.bytes > most)
    throw Error("what came is no message of the job");
  frame.body.resize(frame.head.bytes);
  asio::read(socket, asio::buffer(frame.body));
  return frame;
}

void write_frame(tcp::socket& socket, FrameKind kind, std::uint64_t call, std::span<const std::byte> body) {
  const FrameHead head{.kind = kind, .call = call, .bytes = body.size()};
  asio::write(socket, std::array{asio::buffer(&head, sizeof head), asio::buffer(body.data(), body.size())});
}

std::size_t input_bytes(const CollectiveCall& call, std::size_t self, std::size_t members) {
  using enum CollectiveKind;
  const bool from_root = call.kind == kBroadcast || call.kind == kScatter;
  const bool part = call.kind == kAllGather || call.kind == kGather;
  if (from_root && self != call.root) return 0;
  return (part ? call.elements / members : call.elements) * bytes_of(call.type);
}

std::size_t output_bytes(const CollectiveCall& call, std::size_t self, std::size_t members) {
  using enum CollectiveKind;
  const bool to_root = call.kind == kReduce || call.kind == kGather;
  const bool part = call.kind == kReduceScatter || call.kind == kScatter;
  if (to_root && self != call.root) return 0;
  return (part ? call.elements / members : call.elements) * bytes_of(call.type);
}

// --- the hub ---------------------------------------------------------------------------------------

TcpHub::TcpHub(std::int64_t ranks, const std::string& port)
    : ranks_(ranks), acceptor_(context_), peers_(static_cast<std::size_t>(ranks)) {
  tcp::resolver resolver(context_);
  const tcp::endpoint at = *resolver.resolve(tcp::v4(), "0.0.0.0", port, tcp::resolver::passive).begin();
  acceptor_.open(at.protocol());
  acceptor_.set_option(tcp::acceptor::reuse_address(true));
  acceptor_.bind(at);
  acceptor_.listen();
  threads_.emplace_back([this] { accept(); });
}

TcpHub::~TcpHub() {
  std::vector<std::jthread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  boost::system::error_code ignored;
  // Wakes the thread that accepts.
  tcp::socket last(context_);
  last.connect({asio::ip::address_v4::loopback(), port()}, ignored);
  threads.front().join();
  // Ranks leave when they have their last answers; who does not is cut off.
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(5),
                    [&] { return std::ranges::all_of(peers_, [](const auto& p) { return p == nullptr; }); });
  for (const auto& c : connected_) {
    if (const auto peer = c.lock()) peer->socket.shutdown(tcp::socket::shutdown_both, ignored);
  }
  lock.unlock();
}

void TcpHub::accept() {
  for (;;) {
    auto peer = std::make_shared<Peer>(tcp::socket(context_));
    boost::system::error_code e;
    acceptor_.accept(peer->socket, e);
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (e) continue;
    connected_.push_back(peer);
    threads_.emplace_back([this, peer] { serve(peer); });
  }
}

void TcpHub::serve(const std::shared_ptr<Peer>& peer) {
  try {
    peer->socket.set_option(tcp::no_delay(true));
    for (;;) handle(peer, read_frame(peer->socket, peer->rank < 0 ? kMostOfHello : kMostOfFrame));
  } catch (const std::exception&) {
    // Whoever never said hello is a stranger, and who has left may go.
    if (peer->rank < 0 || peer->left) return;
    leave(peer);
    fail(fmt::format("rank {} is gone", peer->rank));
  }
}

void TcpHub::leave(const std::shared_ptr<Peer>& peer) {
  const std::lock_guard lock(mutex_);
  peer->left = true;
  if (peer->rank >= 0) peers_[static_cast<std::size_t>(peer->rank)] = nullptr;
  changed_.notify_all();
}

void TcpHub::handle(const std::shared_ptr<Peer>& peer, Frame frame) {
  Unpacker in(frame.body);
  if (peer->rank < 0 && frame.head.kind != FrameKind::kHello)
    throw Error("who does not say hello is no rank");
  switch (frame.head.kind) {
    case FrameKind::kHello: {
      const auto rank = in.value<std::int64_t>(), ranks = in.value<std::int64_t>();
      if (ranks != ranks_ || rank < 0 || rank >= ranks)
        throw Error(fmt::format("rank {} of {} is of another job", rank, ranks));
      const std::lock_guard lock(mutex_);
      auto& place = peers_[static_cast<std::size_t>(rank)];
      if (place != nullptr) throw Error(fmt::format("rank {} has come twice", rank));
      peer->rank = rank;
      place = peer;
      reply({peer, std::move(frame)}, {});
      changed_.notify_all();
      return;
    }
    case FrameKind::kTime: {
      const auto now = Clock::now().time_since_epoch().count();
      return reply({peer, std::move(frame)}, std::as_bytes(std::span(&now, 1)));
    }
    case FrameKind::kCollective:
      return meet(peer, std::move(frame));
    case FrameKind::kSend:
    case FrameKind::kReceive:
      return pass(peer, std::move(frame));
    case FrameKind::kFailure:
      return fail(in.text());
    case FrameKind::kLeave:
      return leave(peer);
  }
}

void TcpHub::reply(const Asked& to, std::span<const std::byte> body) {
  const std::lock_guard lock(to.peer->writing);
  write_frame(to.peer->socket, to.frame.head.kind, to.frame.head.call, body);
}

void TcpHub::wait_for_ranks(std::chrono::milliseconds deadline) {
  std::unique_lock lock(mutex_);
  const auto here = [&] { return std::ranges::none_of(peers_, [](const auto& p) { return p == nullptr; }); };
  if (changed_.wait_for(lock, deadline, here)) return;
  std::string missing;
  for (std::size_t r = 0; r < peers_.size(); ++r) missing += peers_[r] ? "" : fmt::format(" {}", r);
  throw Error(fmt::format("ranks{} did not come within {} ms", missing, deadline.count()));
}

void TcpHub::fail(const std::string& reason) {
  std::vector<std::shared_ptr<Peer>> all;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(failed_, true)) return;
    all = peers_;
  }
  Packer out;
  out.text(reason);
  for (const auto& peer : all) {
    if (peer == nullptr) continue;
    try {
      const std::lock_guard lock(peer->writing);
      write_frame(peer->socket, FrameKind::kFailure, 0, out.body);
    } catch (const std::exception&) {  // it is gone too
    }
  }
}

void TcpHub::meet(const std::shared_ptr<Peer>& peer, Frame frame) {
  Unpacker in(frame.body);
  const auto count = in.value<std::uint64_t>();
  if (count > kMostMembers) throw Error("a group of too many members");
  std::vector<std::int64_t> members(count);
  for (std::int64_t& m : members) m = in.value<std::int64_t>();
  const auto sequence = in.value<std::uint64_t>();
  const auto self = std::find(members.begin(), members.end(), peer->rank) - members.begin();
  if (static_cast<std::size_t>(self) == members.size())
    throw Error("a call of a group that the rank is not in");
  std::vector<Asked> all;
  {
    const std::lock_guard lock(mutex_);
    auto& asked = meetings_[{members, sequence}];
    asked.resize(members.size());
    asked[static_cast<std::size_t>(self)] = {peer, std::move(frame)};
    if (std::ranges::any_of(asked, [](const Asked& a) { return a.peer == nullptr; })) return;
    all = std::move(asked);
    meetings_.erase({members, sequence});
  }
  finish(members, all);
}

// All members have come: computes what they asked for, and tells each.
void TcpHub::finish(const std::vector<std::int64_t>& members, std::vector<Asked>& asked) {
  const std::size_t n = members.size();
  std::vector<CollectiveCall> calls(n);
  std::vector<std::string> names(n);
  std::vector<std::vector<std::byte>> outputs(n);
  std::vector<std::span<const std::byte>> bodies(n);
  for (std::size_t m = 0; m < n; ++m) {
    Unpacker in(asked[m].frame.body);
    in.raw((n + 2) * sizeof(std::uint64_t));  // members and their number, the sequence number
    CollectiveCall& call = calls[m];
    call.kind = in.value<CollectiveKind>();
    call.type = in.value<DType>();
    call.accumulate = in.value<bool>();
    call.root = in.value<std::uint64_t>();
    call.elements = in.value<std::uint64_t>();
    names[m] = in.text();
    call.name = names[m];
    bodies[m] = in.rest();
  }
  if (const std::string problem = mismatch(calls, members); !problem.empty()) return fail(problem);
  for (std::size_t m = 0; m < n; ++m) {
    Unpacker in(bodies[m]);
    calls[m].input = in.raw(input_bytes(calls[m], m, n)).data();
    outputs[m].resize(output_bytes(calls[m], m, n));
    if (calls[m].accumulate) std::ranges::copy(in.raw(outputs[m].size()), outputs[m].begin());
    calls[m].output = outputs[m].data();
  }
  for (std::size_t m = 0; m < n; ++m) do_share(calls, m);
  for (std::size_t m = 0; m < n; ++m) reply(asked[m], outputs[m]);
}

void TcpHub::pass(const std::shared_ptr<Peer>& peer, Frame frame) {
  const bool sends = frame.head.kind == FrameKind::kSend;
  Unpacker in(frame.body);
  const auto other = in.value<std::int64_t>();
  const auto number = in.value<std::int32_t>();
  Asked from, to;
  {
    const std::lock_guard lock(mutex_);
    Channel& c =
        channels_[sends ? ChannelKey{peer->rank, other, number} : ChannelKey{other, peer->rank, number}];
    (sends ? c.sends : c.receives).push_back({peer, std::move(frame)});
    if (c.sends.empty() || c.receives.empty()) return;
    from = std::move(c.sends.front());
    to = std::move(c.receives.front());
    c.sends.pop_front();
    c.receives.pop_front();
  }
  const auto parse = [](const Frame& f) {
    Unpacker body(f.body);
    body.raw(sizeof(std::int64_t) + sizeof(std::int32_t));
    return body;
  };
  Unpacker sent = parse(from.frame), wanted = parse(to.frame);
  const std::string name = sent.text(), wanted_name = wanted.text();
  const auto bytes = wanted.value<std::uint64_t>();
  if (sent.rest().size() != bytes) {
    return fail(fmt::format("rank {} sends \"{}\" of {} bytes, and rank {} expects \"{}\" of {}",
                            from.peer->rank, name, sent.rest().size(), to.peer->rank, wanted_name, bytes));
  }
  reply(to, sent.rest());
  reply(from, {});
}

}  // namespace orrery::exec
