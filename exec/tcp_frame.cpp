// SPDX-License-Identifier: Apache-2.0
#include "exec/tcp_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/fields.h"
#include "exec/collective.h"

namespace orrery::exec {
namespace {

// Throws Error where there is less than what is read.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> body) : left_(body) {}
  template <class T>
  T value() {
    static_assert(std::is_integral_v<T>);
    T v;
    std::memcpy(&v, raw(sizeof v).data(), sizeof v);
    return v;
  }
  // An enumeration of `count` values, or a truth value of two.
  template <class E>
  E choice(std::uint8_t count, const char* what) {
    const auto v = value<std::uint8_t>();
    if (v >= count) throw Error(fmt::format("{} {} is not one of {}", what, v, count));
    return static_cast<E>(v);
  }
  std::string name() {
    const auto size = value<std::uint64_t>();
    if (size > kMostOfName) throw Error(fmt::format("a name of {} bytes (allowed: {})", size, kMostOfName));
    const auto s = raw(size);
    return {reinterpret_cast<const char*>(s.data()), s.size()};
  }
  void end() const {
    if (!left_.empty()) throw Error(fmt::format("{} bytes after the end of a description", left_.size()));
  }

 private:
  std::span<const std::byte> raw(std::size_t bytes) {
    if (bytes > left_.size()) throw Error("a description ends early");
    const auto out = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return out;
  }
  std::span<const std::byte> left_;
};

constexpr std::uint8_t kKinds = static_cast<std::uint8_t>(enum_names(CollectiveKind{}).size());
constexpr std::uint8_t kTypes = static_cast<std::uint8_t>(DType::kByte) + 1;

void expect_payload(const FrameHead& head, std::uint64_t bytes, const std::string& name) {
  if (head.payload != bytes)
    throw Error(fmt::format("\"{}\" comes with {} bytes and needs {}", name, head.payload, bytes));
}

}  // namespace

std::vector<std::byte> signed_text(std::string_view signer, std::string_view job, const Hello& hello,
                                   const Challenge& challenge) {
  Packer out;
  out.text("orrery TCP greeting").text(signer).text(job).value(hello.rank).value(hello.ranks);
  out.value(hello.nonce).value(challenge.nonce);
  return std::move(out.body);
}

void check_head(const FrameHead& head) {
  using enum FrameKind;
  if (head.magic != kMagic) throw Error("this is not a message of the job");
  const bool described =
      head.kind == kCollective || head.kind == kSend || head.kind == kReceive || head.kind == kFailure;
  const bool pays = head.kind == kCollective || head.kind == kSend;
  if (head.kind > kLeave || head.kind == kPing)
    throw Error(fmt::format("ranks send no messages of kind {}", static_cast<std::uint32_t>(head.kind)));
  if (head.description > (described ? kMostOfDescription : 0) || head.payload > (pays ? kMostOfPayload : 0)) {
    throw Error(fmt::format("a message of kind {} has no {} and {} bytes",
                            static_cast<std::uint32_t>(head.kind), head.description, head.payload));
  }
}

std::vector<std::byte> describe(const CollectivePart& part) {
  Packer out;
  out.value<std::uint64_t>(part.members.size());
  for (const std::int64_t m : part.members) out.value(m);
  out.value(part.group)
      .value(part.number)
      .value(part.call.kind)
      .value(part.call.type)
      .value(part.call.accumulate);
  out.value<std::uint64_t>(part.call.root).value<std::uint64_t>(part.call.elements);
  out.text(std::string_view(part.name).substr(0, kMostOfName));
  return std::move(out.body);
}

std::vector<std::byte> describe(const MessagePart& part) {
  Packer out;
  out.value(part.peer).value(part.channel).value(part.bytes);
  out.text(std::string_view(part.name).substr(0, kMostOfName));
  return std::move(out.body);
}

CollectivePart parse_collective(const FrameHead& head, std::span<const std::byte> description,
                                std::int64_t rank, std::int64_t ranks) {
  Unpacker in(description);
  CollectivePart part;
  part.call_id = head.call;
  const auto count = in.value<std::uint64_t>();
  if (count < 1 || count > kMostMembers || count > static_cast<std::uint64_t>(ranks))
    throw Error(fmt::format("a group of {} members (allowed: 1 to {})", count, ranks));
  part.members.resize(count);
  std::set<std::int64_t> seen;
  for (std::int64_t& m : part.members) {
    m = in.value<std::int64_t>();
    if (m < 0 || m >= ranks || !seen.insert(m).second)
      throw Error(fmt::format("rank {} cannot be a member of this group", m));
  }
  part.self = static_cast<std::size_t>(std::find(part.members.begin(), part.members.end(), rank) -
                                       part.members.begin());
  if (part.self == count) throw Error("a call of a group to which the rank does not belong");
  part.group = in.value<std::int32_t>();
  part.number = in.value<std::uint64_t>();
  CollectiveCall& call = part.call;
  call.kind = in.choice<CollectiveKind>(kKinds, "collective");
  call.type = in.choice<DType>(kTypes, "type");
  call.accumulate = in.choice<bool>(2, "truth value");
  call.root = in.value<std::uint64_t>();
  call.elements = in.value<std::uint64_t>();
  part.name = in.name();
  in.end();
  if (call.root >= count)
    throw Error(fmt::format("\"{}\": root {} of a group of {}", part.name, call.root, count));
  if (call.elements > kMostOfPayload / bytes_of(call.type)) {
    throw Error(fmt::format("\"{}\" of {} x {} bytes (allowed: {} bytes)", part.name, call.elements,
                            bytes_of(call.type), kMostOfPayload));
  }
  expect_payload(head, payload_bytes(call, part.self, count), part.name);
  return part;
}

MessagePart parse_message(const FrameHead& head, std::span<const std::byte> description, std::int64_t rank,
                          std::int64_t ranks) {
  Unpacker in(description);
  MessagePart part;
  part.call_id = head.call;
  part.peer = in.value<std::int64_t>();
  part.channel = in.value<std::int32_t>();
  part.bytes = in.value<std::uint64_t>();
  part.name = in.name();
  in.end();
  if (part.peer < 0 || part.peer >= ranks || part.peer == rank)
    throw Error(fmt::format("\"{}\": rank {} is not another rank of the job", part.name, part.peer));
  if (part.bytes > kMostOfPayload)
    throw Error(fmt::format("\"{}\" of {} bytes (allowed: {})", part.name, part.bytes, kMostOfPayload));
  expect_payload(head, head.kind == FrameKind::kSend ? part.bytes : 0, part.name);
  return part;
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

std::size_t payload_bytes(const CollectiveCall& call, std::size_t self, std::size_t members) {
  return input_bytes(call, self, members) + (call.accumulate ? output_bytes(call, self, members) : 0);
}

}  // namespace orrery::exec
