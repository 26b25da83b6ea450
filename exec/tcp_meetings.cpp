// SPDX-License-Identifier: Apache-2.0
#include "exec/tcp_meetings.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "exec/collective.h"

namespace orrery::exec {

std::optional<Meetings::Collective> Meetings::add(CollectivePart part, Clock::time_point now) {
  const auto at = groups_.try_emplace({part.members, part.group, part.number}).first;
  Group& group = at->second;
  if (group.parts.empty()) {
    group.parts.resize(part.members.size());
    group.since = now;
  }
  auto& place = group.parts[part.self];
  if (place) {
    throw Error(fmt::format("rank {} came twice to \"{}\" (call {})", part.members[part.self], part.name,
                            part.number));
  }
  place = std::move(part);
  if (std::any_of(group.parts.begin(), group.parts.end(), [](const auto& p) { return !p; }))
    return std::nullopt;
  Collective all;
  for (auto& p : group.parts) all.push_back(std::move(*p));
  groups_.erase(at);
  return all;
}

std::optional<Meetings::Message> Meetings::add(std::int64_t rank, FrameKind kind, MessagePart part,
                                               Clock::time_point now) {
  const bool sends = kind == FrameKind::kSend;
  const ChannelKey key =
      sends ? ChannelKey{rank, part.peer, part.channel} : ChannelKey{part.peer, rank, part.channel};
  Channel& c = channels_[key];
  (sends ? c.sends : c.receives).push_back({std::move(part), now});
  if (c.sends.empty() || c.receives.empty()) return std::nullopt;
  Message out{key.from, key.to, std::move(c.sends.front().part), std::move(c.receives.front().part)};
  c.sends.pop_front();
  c.receives.pop_front();
  ++c.passed;
  return out;
}

std::optional<std::uint64_t> Meetings::expected_by_rank_0(const CollectivePart& part) const {
  const auto at = groups_.find({part.members, part.group, part.number});
  const auto zero = std::find(part.members.begin(), part.members.end(), 0) - part.members.begin();
  if (at == groups_.end() || zero == std::ssize(part.members)) return std::nullopt;
  const auto& of_zero = at->second.parts[static_cast<std::size_t>(zero)];
  if (!of_zero) return std::nullopt;
  return payload_bytes(of_zero->call, part.self, part.members.size());
}

std::optional<std::uint64_t> Meetings::expected_by_rank_0(std::int64_t rank, const MessagePart& sent) const {
  const auto at = channels_.find({rank, sent.peer, sent.channel});
  if (sent.peer != 0 || at == channels_.end() || at->second.receives.empty()) return std::nullopt;
  return at->second.receives.front().part.bytes;
}

std::vector<Incomplete> Meetings::incomplete() const {
  std::vector<Incomplete> out;
  for (const auto& [key, group] : groups_) {
    Incomplete& call = out.emplace_back();
    call.number = std::get<2>(key);
    call.since = group.since;
    for (std::size_t m = 0; m < group.parts.size(); ++m) {
      (group.parts[m] ? call.present : call.missing).push_back(std::get<0>(key)[m]);
      if (group.parts[m]) call.name = group.parts[m]->name;
    }
  }
  for (const auto& [key, channel] : channels_) {
    if (!channel.sends.empty()) {
      const auto& [part, since] = channel.sends.front();
      out.push_back({part.name, channel.passed, {key.from}, {key.to}, since});
    }
    if (!channel.receives.empty()) {
      const auto& [part, since] = channel.receives.front();
      out.push_back({part.name, channel.passed, {key.to}, {key.from}, since});
    }
  }
  return out;
}

std::vector<Answer> complete(Meetings::Collective parts) {
  const std::size_t n = parts.size();
  std::vector<CollectiveCall> calls(n);
  std::vector<std::vector<std::byte>> outputs(n);
  for (std::size_t m = 0; m < n; ++m) {
    calls[m] = parts[m].call;
    calls[m].name = parts[m].name;
  }
  if (const std::string problem = mismatch(calls, parts[0].members); !problem.empty()) throw Error(problem);
  for (std::size_t m = 0; m < n; ++m) {
    const std::size_t input = input_bytes(calls[m], m, n);
    outputs[m].resize(output_bytes(calls[m], m, n));
    if (calls[m].accumulate)
      std::copy_n(parts[m].payload.begin() + static_cast<std::ptrdiff_t>(input), outputs[m].size(),
                  outputs[m].begin());
    calls[m].input = parts[m].payload.data();
    calls[m].output = outputs[m].data();
  }
  for (std::size_t m = 0; m < n; ++m) do_share(calls, m);
  std::vector<Answer> out;
  for (std::size_t m = 0; m < n; ++m)
    out.push_back({parts[0].members[m], FrameKind::kCollective, parts[m].call_id, std::move(outputs[m])});
  return out;
}

std::vector<Answer> complete(Meetings::Message m) {
  if (m.sent.bytes != m.wanted.bytes) {
    throw Error(fmt::format("rank {} sends \"{}\" of {} bytes, and rank {} expects \"{}\" of {}", m.from,
                            m.sent.name, m.sent.bytes, m.to, m.wanted.name, m.wanted.bytes));
  }
  std::vector<Answer> out;
  out.push_back({m.to, FrameKind::kReceive, m.wanted.call_id, std::move(m.sent.payload)});
  out.push_back({m.from, FrameKind::kSend, m.sent.call_id, {}});
  return out;
}

}  // namespace orrery::exec
