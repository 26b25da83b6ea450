// SPDX-License-Identifier: Apache-2.0
#include "exec/tcp_hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <variant>

#include "core/error.h"

namespace orrery::exec {

using boost::system::error_code;

struct TcpHub::Peer {
  explicit Peer(tcp::socket s) : socket(std::move(s)) {}
  tcp::socket socket;
  std::int64_t rank = -1;  // below zero: a stranger
  bool dropped = false, left = false;
  bool refused = false;                    // is dropped once it has heard why
  Clock::time_point heard = Clock::now();  // something arrived, or the connection began
  Hello hello;
  Challenge challenge;
  Digest proof{};
  // The frame that is being read.
  FrameHead head;
  bool within_frame = false;
  std::vector<std::byte> description, payload;
  std::size_t received = 0;  // of the payload
  std::variant<std::monostate, CollectivePart, MessagePart> part;
  std::size_t open_calls = 0;  // not answered yet
  // What is being written, the first of which has begun.
  struct Outgoing {
    std::vector<std::byte> head, body;
    std::size_t written = 0;
  };
  std::deque<Outgoing> outgoing;
  Clock::time_point wrote;  // progress was made
};

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // of a payload; memory for the next when the last came
constexpr std::size_t kMostOpenCalls = 64;            // a rank has a call a stream

}  // namespace

TcpHub::TcpHub(Job job, const std::vector<tcp::endpoint>& at)
    : job_(std::move(job)),
      peers_(static_cast<std::size_t>(job_.ranks)),
      come_(static_cast<std::size_t>(job_.ranks), false) {
  error_code e = asio::error::address_family_not_supported;
  for (const tcp::endpoint& endpoint : at) {
    acceptor_ = tcp::acceptor(context_);
    if (acceptor_.open(endpoint.protocol(), e)) continue;
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    // The unspecified address of IPv6 stands for those of IPv4 too.
    if (endpoint.address().is_v6())
      acceptor_.set_option(asio::ip::v6_only(!endpoint.address().is_unspecified()), e);
    if (!acceptor_.bind(endpoint, e) && !acceptor_.listen(tcp::acceptor::max_listen_connections, e)) break;
  }
  if (e) throw boost::system::system_error(e);
  address_ = acceptor_.local_endpoint();
  accept();
  tick();
  loop_ = std::thread([this] {
    for (;;) {
      try {
        context_.run();
        return;
      } catch (const std::exception& error) {
        fail(fmt::format("rank 0: {}", error.what()));
      }
    }
  });
}

TcpHub::~TcpHub() {
  {
    std::unique_lock lock(mutex_);
    if (!reason_.empty()) changed_.wait_until(lock, begin_ + job_.deadline, [&] { return all_have_come(); });
  }
  asio::post(context_, [this] {
    error_code ignored;
    acceptor_.close(ignored);
    const std::lock_guard lock(mutex_);
    closing_ = true;
  });
  asio::post(context_, [this] { tell(); });
  {
    // Ranks leave when they have their last answers; a rank that does not is cut off.
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(5), [&] { return all_left_; });
  }
  context_.stop();
  loop_.join();
  computer_.join();
}

void TcpHub::wait_for_ranks() {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, begin_ + job_.deadline, [&] { return all_have_come() || !reason_.empty(); });
  if (!reason_.empty()) throw Error(reason_);
  if (all_have_come()) return;
  std::vector<std::int64_t> missing;
  for (std::size_t r = 0; r < come_.size(); ++r) {
    if (!come_[r]) missing.push_back(static_cast<std::int64_t>(r));
  }
  const std::string reason =
      fmt::format("{} did not come within {} ms{}", ranks_text(missing), job_.deadline.count(), strange_);
  asio::post(context_, [this, reason] { fail(reason); });
  throw Error(reason);
}

bool TcpHub::all_have_come() const {
  return std::all_of(come_.begin(), come_.end(), [](bool c) { return c; });
}

// --- the greeting ----------------------------------------------------------------------------------

void TcpHub::accept() {
  acceptor_.async_accept([this](const error_code& e, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (!e) {
      admit(std::move(socket));
      return accept();
    }
    // As when the process has too many open files.
    accept_again_.expires_after(std::chrono::milliseconds(50));
    accept_again_.async_wait([this](const error_code& stopped) {
      if (!stopped && acceptor_.is_open()) accept();
    });
  });
}

void TcpHub::admit(tcp::socket socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  const auto peer = std::make_shared<Peer>(std::move(socket));
  strangers_.push_back(peer);
  if (strangers_.size() > kMostStrangers) drop(PeerPtr(strangers_.front()));
  read(peer, &peer->hello, sizeof peer->hello, &TcpHub::on_hello);
}

void TcpHub::on_hello(const PeerPtr& peer) {
  if (peer->hello.magic != kMagic) return drop(peer);
  peer->challenge.nonce = random_nonce();
  send(peer, &peer->challenge, sizeof peer->challenge, {});
  read(peer, &peer->proof, sizeof peer->proof, &TcpHub::on_proof);
}

void TcpHub::on_proof(const PeerPtr& peer) {
  const Hello& hello = peer->hello;
  Welcome reply;
  const auto refuse = [&](Refusal why) {
    reply.refusal = why;
    send(peer, &reply, sizeof reply, {});
    // It closes the connection when it has read this; else the deadline of strangers does.
    read(peer, &peer->proof, 1, &TcpHub::drop);
  };
  if (!job_.secret.verify(signed_text("rank", job_.name, hello, peer->challenge), peer->proof)) {
    const std::lock_guard lock(mutex_);
    strange_ = fmt::format("; {} greetings were refused, as their secret or job was another", ++refused_);
    return refuse(Refusal::kSecret);
  }
  if (hello.ranks != job_.ranks || hello.rank < 0 || hello.rank >= job_.ranks) return refuse(Refusal::kRanks);
  if (come_[static_cast<std::size_t>(hello.rank)]) return refuse(Refusal::kTwice);
  reply.digest = job_.secret.sign(signed_text("hub", job_.name, hello, peer->challenge));
  send(peer, &reply, sizeof reply, {});
  welcome(peer);
}

void TcpHub::welcome(const PeerPtr& peer) {
  peer->rank = peer->hello.rank;
  std::erase(strangers_, peer);
  const auto r = static_cast<std::size_t>(peer->rank);
  peers_[r] = peer;
  bool all = false;
  {
    const std::lock_guard lock(mutex_);
    come_[r] = true;
    all = all_have_come();
  }
  changed_.notify_all();
  read_head(peer);
  if (failed_) tell_failure(peer);
  if (!all) return;
  error_code ignored;
  acceptor_.close(ignored);
  while (!strangers_.empty()) drop(PeerPtr(strangers_.front()));
}

// --- frames ----------------------------------------------------------------------------------------

void TcpHub::read(const PeerPtr& peer, void* into, std::size_t bytes, Step then) {
  asio::async_read(peer->socket, asio::buffer(into, bytes),
                   [this, peer, then](const error_code& e, std::size_t) {
                     if (peer->dropped) return;
                     if (e) return lost(peer, "its connection to rank 0 ended");
                     // A stranger's time does not begin anew.
                     if (peer->rank >= 0) peer->heard = Clock::now();
                     try {
                       (this->*then)(peer);
                     } catch (const std::exception& error) {
                       refuse(peer, error.what());
                     }
                   });
}

void TcpHub::read_head(const PeerPtr& peer) {
  peer->within_frame = false;
  read(peer, &peer->head, sizeof peer->head, &TcpHub::on_head);
}

void TcpHub::on_head(const PeerPtr& peer) {
  check_head(peer->head);
  peer->within_frame = true;
  peer->description.resize(peer->head.description);
  read(peer, peer->description.data(), peer->description.size(), &TcpHub::on_description);
}

void TcpHub::on_description(const PeerPtr& peer) {
  const FrameHead& head = peer->head;
  if (head.kind == FrameKind::kCollective)
    peer->part = parse_collective(head, peer->description, peer->rank, job_.ranks);
  else if (head.kind == FrameKind::kSend || head.kind == FrameKind::kReceive)
    peer->part = parse_message(head, peer->description, peer->rank, job_.ranks);
  require_expected(*peer);
  peer->payload.clear();
  peer->received = 0;
  read_payload(peer);
}

// Rank 0 keeps what the ranks send until the last has come: no more than it has reason to expect.
void TcpHub::require_expected(const Peer& peer) const {
  const auto require = [&](const std::string& name, std::optional<std::uint64_t> by_rank_0) {
    const std::uint64_t most = by_rank_0.value_or(job_.largest_message);
    if (peer.head.payload <= most) return;
    throw Error(fmt::format("it sends {} bytes for \"{}\", and {} {}", peer.head.payload, name,
                            by_rank_0 ? "rank 0 expects" : "the job's largest message has", most));
  };
  if (peer.head.kind == FrameKind::kCollective) {
    const auto& part = std::get<CollectivePart>(peer.part);
    require(part.name, meetings_.expected_by_rank_0(part));
  } else if (peer.head.kind == FrameKind::kSend) {
    const auto& part = std::get<MessagePart>(peer.part);
    require(part.name, meetings_.expected_by_rank_0(peer.rank, part));
  }
}

void TcpHub::read_payload(const PeerPtr& peer) {
  peer->received = peer->payload.size();
  if (peer->received == peer->head.payload) return on_frame(peer);
  const std::size_t piece = std::min<std::size_t>(peer->head.payload - peer->received, kPiece);
  peer->payload.resize(peer->received + piece);
  read(peer, peer->payload.data() + peer->received, piece, &TcpHub::read_payload);
}

void TcpHub::on_frame(const PeerPtr& peer) {
  const FrameHead head = peer->head;
  switch (head.kind) {
    case FrameKind::kTime: {
      if (peer->outgoing.size() > kMostOpenCalls) throw Error("it does not read its answers");
      Packer now;
      now.value(Clock::now().time_since_epoch().count());
      answer({{peer->rank, head.kind, head.call, std::move(now.body)}});
      break;
    }
    case FrameKind::kCollective: {
      if (++peer->open_calls > kMostOpenCalls) throw Error("it has too many calls at a time");
      auto& part = std::get<CollectivePart>(peer->part);
      part.payload = std::move(peer->payload);
      if (auto call = meetings_.add(std::move(part), Clock::now())) compute(std::move(*call));
      break;
    }
    case FrameKind::kSend:
    case FrameKind::kReceive: {
      if (++peer->open_calls > kMostOpenCalls) throw Error("it has too many calls at a time");
      auto& part = std::get<MessagePart>(peer->part);
      part.payload = std::move(peer->payload);
      if (auto call = meetings_.add(peer->rank, head.kind, std::move(part), Clock::now()))
        answer(complete(std::move(*call)));
      break;
    }
    case FrameKind::kFailure:
      fail(std::string(reinterpret_cast<const char*>(peer->description.data()), peer->description.size()));
      break;
    case FrameKind::kLeave:
      peer->left = true;
      return drop(peer);
    case FrameKind::kPing:
    case FrameKind::kPong:
      break;
  }
  read_head(peer);
}

template <class Call>
void TcpHub::compute(Call call) {
  // Shared, since a handler must be one that can be copied.
  auto shared = std::make_shared<Call>(std::move(call));
  asio::post(computer_, [this, shared] {
    try {
      auto answers = std::make_shared<std::vector<Answer>>(complete(std::move(*shared)));
      asio::post(context_, [this, answers] { answer(std::move(*answers)); });
    } catch (const std::exception& e) {
      asio::post(context_, [this, reason = std::string(e.what())] { fail(reason); });
    }
  });
}

void TcpHub::answer(std::vector<Answer> answers) {
  for (Answer& a : answers) {
    const PeerPtr peer = peers_[static_cast<std::size_t>(a.rank)];
    if (peer == nullptr) continue;
    if (a.kind != FrameKind::kTime) --peer->open_calls;
    const FrameHead head{.kind = a.kind, .call = a.call, .payload = a.payload.size()};
    send(peer, &head, sizeof head, std::move(a.payload));
  }
}

void TcpHub::send(const PeerPtr& peer, FrameKind kind, std::vector<std::byte> description) {
  const FrameHead head{.kind = kind, .description = static_cast<std::uint32_t>(description.size())};
  send(peer, &head, sizeof head, std::move(description));
}

void TcpHub::send(const PeerPtr& peer, const void* head, std::size_t bytes, std::vector<std::byte> body) {
  const auto* begin = static_cast<const std::byte*>(head);
  peer->outgoing.push_back({{begin, begin + bytes}, std::move(body)});
  if (peer->outgoing.size() > 1) return;
  peer->wrote = Clock::now();
  write(peer);
}

void TcpHub::write(const PeerPtr& peer) {
  const Peer::Outgoing& out = peer->outgoing.front();
  const std::size_t of_head = std::min(out.written, out.head.size());
  const std::array<asio::const_buffer, 2> rest{asio::buffer(out.head) + of_head,
                                               asio::buffer(out.body) + (out.written - of_head)};
  peer->socket.async_write_some(rest, [this, peer](const error_code& e, std::size_t n) {
    if (peer->dropped || e) return;  // reading sees the end too
    peer->wrote = Clock::now();
    Peer::Outgoing& now = peer->outgoing.front();
    now.written += n;
    if (now.written == now.head.size() + now.body.size()) peer->outgoing.pop_front();
    if (!peer->outgoing.empty())
      write(peer);
    else if (peer->refused)
      drop(peer);
  });
}

// --- deadlines and ends ----------------------------------------------------------------------------

void TcpHub::tick() {
  const auto now = Clock::now();
  while (!strangers_.empty() && now - strangers_.front()->heard > std::min(job_.deadline, kGreetingDeadline))
    drop(PeerPtr(strangers_.front()));
  if (!failed_) look_at_ranks(now);
  if (!failed_) look_at_calls(now);
  tell();
  timer_.expires_after(std::clamp<std::chrono::milliseconds>(
      job_.deadline / 20, std::chrono::milliseconds(10), std::chrono::milliseconds(200)));
  timer_.async_wait([this](const error_code& e) {
    if (!e) tick();
  });
}

// No message stops half-way, in either direction.
void TcpHub::look_at_ranks(Clock::time_point now) {
  for (const PeerPtr& peer : peers_) {
    if (peer == nullptr) continue;
    if (peer->within_frame && now - peer->heard > job_.deadline) {
      return fail(fmt::format("rank {} stopped within a message: nothing came for {} ms", peer->rank,
                              job_.deadline.count()));
    }
    if (!peer->outgoing.empty() && now - peer->wrote > job_.deadline)
      return fail(fmt::format("rank {} took no answer within {} ms", peer->rank, job_.deadline.count()));
  }
}

// Ranks are asked whether they are alive in the last quarter of a call's deadline.
void TcpHub::look_at_calls(Clock::time_point now) {
  const std::vector<Incomplete> calls = meetings_.incomplete();
  const auto oldest = std::min_element(calls.begin(), calls.end(),
                                       [](const auto& a, const auto& b) { return a.since < b.since; });
  if (oldest == calls.end()) return;
  const auto ask_at = oldest->since + job_.deadline / 4 * 3;
  if (now > ask_at && asked_ < ask_at) {
    asked_ = now;
    for (const PeerPtr& peer : peers_) {
      if (peer != nullptr) send(peer, FrameKind::kPing, {});
    }
  }
  if (now - oldest->since > job_.deadline)
    fail(blame(calls, static_cast<std::size_t>(oldest - calls.begin()), silent(), job_.deadline).sentence);
}

// Ranks of which nothing came since they were last asked whether they are alive.
std::set<std::int64_t> TcpHub::silent() const {
  std::set<std::int64_t> out;
  for (const PeerPtr& peer : peers_) {
    if (peer != nullptr && asked_ != Clock::time_point{} && peer->heard < asked_) out.insert(peer->rank);
  }
  return out;
}

void TcpHub::lost(const PeerPtr& peer, const std::string& why) {
  const std::int64_t rank = peer->rank;
  drop(peer);
  if (rank >= 0 && !peer->left) fail(fmt::format("rank {} is gone: {}", rank, why));
}

// It broke the rules: nothing more is read of it. It hears why, unless it has yet to read what was sent
// before.
void TcpHub::refuse(const PeerPtr& peer, const std::string& why) {
  if (peer->rank < 0 || failed_) return drop(peer);
  peer->refused = true;
  fail(fmt::format("rank {} is gone: {}", peer->rank, why));
  if (peer->outgoing.size() > 1) drop(peer);
}

void TcpHub::drop(const PeerPtr& peer) {
  peer->dropped = true;
  error_code ignored;
  peer->socket.close(ignored);
  if (peer->rank < 0) {
    std::erase(strangers_, peer);
  } else {
    peers_[static_cast<std::size_t>(peer->rank)] = nullptr;
    tell();
  }
}

void TcpHub::fail(const std::string& reason) {
  if (std::exchange(failed_, true)) return;
  {
    const std::lock_guard lock(mutex_);
    reason_ = reason.substr(0, kMostOfReason);
  }
  changed_.notify_all();
  for (const PeerPtr& peer : peers_) {
    if (peer != nullptr) tell_failure(peer);
  }
}

void TcpHub::tell_failure(const PeerPtr& peer) {
  Packer text;
  text.raw(reason_.data(), reason_.size());
  send(peer, FrameKind::kFailure, std::move(text.body));
}

// Wakes the thread that closes the hub when no rank is left, except those that do not answer.
void TcpHub::tell() {
  const std::set<std::int64_t> dead = silent();
  const bool none = std::all_of(peers_.begin(), peers_.end(), [&](const PeerPtr& p) {
    return p == nullptr || p->refused || (failed_ && dead.count(p->rank) > 0);
  });
  const std::lock_guard lock(mutex_);
  all_left_ = closing_ && none;
  if (all_left_) changed_.notify_all();
}

}  // namespace orrery::exec
