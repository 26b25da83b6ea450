// SPDX-License-Identifier: Apache-2.0
#include "program/check.h"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <optional>

#include "program/passes.h"
#include "program/races.h"

namespace orrery::program {
namespace {

struct Place {
  std::int32_t step = 0, op = 0;
};

// Where a stream of a rank is in its ops.
struct Position {
  std::int32_t step = 0, index = 0;  // of the stream's ops in the step
  std::int64_t done = 0;
};

// One rank class and how far each of its streams is. Nothing is kept for each op that a step runs.
class Lanes {
 public:
  explicit Lanes(const RankClass& of) : rank(&of) {
    for (const Segment& s : of.segments) {
      auto& lists = ops_.emplace_back();
      for (std::size_t o = 0; o < s.ops.size(); ++o)
        lists[s.ops[o].stream].push_back(static_cast<std::int32_t>(o));
    }
    Counts count{};
    for (const Step& step : of.steps) {
      base.push_back(count);
      for (std::size_t q = 0; q < kMostStreams; ++q)
        count[q] += static_cast<std::int64_t>(list(step, q).size());
    }
  }

  // What the stream runs next from a position on, which moves there; nothing when it has run all.
  std::optional<Place> next(std::size_t stream, Position& at) const {
    for (; at.step < static_cast<std::int32_t>(rank->steps.size()); ++at.step, at.index = 0) {
      const auto& here = list(rank->steps[static_cast<std::size_t>(at.step)], stream);
      if (at.index < static_cast<std::int32_t>(here.size()))
        return Place{at.step, here[static_cast<std::size_t>(at.index)]};
    }
    return std::nullopt;
  }
  std::optional<Place> head(std::size_t stream) { return next(stream, cursor[stream]); }
  static void pass(Position& at) {
    ++at.index;
    ++at.done;
  }

  const Op& op(Place p) const {
    const auto segment = rank->steps[static_cast<std::size_t>(p.step)].segment;
    return rank->segments[static_cast<std::size_t>(segment)].ops[static_cast<std::size_t>(p.op)];
  }
  std::string text(Place p) const {
    return describe_op(*rank, rank->steps[static_cast<std::size_t>(p.step)], op(p));
  }

  const RankClass* rank;
  std::array<Position, kMostStreams> cursor{};
  std::vector<Counts> base;  // ops of each stream before each step

 private:
  const std::vector<std::int32_t>& list(const Step& step, std::size_t stream) const {
    return ops_[static_cast<std::size_t>(step.segment)][stream];
  }
  std::vector<std::array<std::vector<std::int32_t>, kMostStreams>> ops_;  // by segment and stream
};

class Checker {
 public:
  Checker(const Program& program, std::size_t most) : program_(program), most_(most) {
    for (const RankClass& c : program.classes) lanes_.emplace_back(c);
  }

  std::vector<std::string> run(const std::function<void(double)>& progress) {
    check_groups();
    check_channels();
    for (const RankClass& c : program_.classes) {
      check_lifetimes(c);
      check_order(c);
      if (progress)
        progress(static_cast<double>(&c - program_.classes.data() + 1) /
                 static_cast<double>(program_.classes.size()));
    }
    if (problems_.empty()) check_progress();
    return std::move(problems_);
  }

 private:
  template <class... Args>
  void report(fmt::format_string<Args...> text, Args&&... args) {
    if (problems_.size() < most_) problems_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  // Members of one group must belong to one class: then they run the same list of collectives.
  void check_groups() {
    for (const RankClass& c : program_.classes) {
      const std::int64_t any = program_.mesh.rank({{"pp", c.stage}});
      for (const Group& g : program_.communication.groups) {
        if (!g.meets()) continue;
        for (const std::int64_t r : program_.mesh.members(g.axes, any)) {
          if (program_.stage_of(r) != c.stage)
            report("rank {} is in a group with rank {} of another stage", r, any);
        }
      }
    }
  }

  const std::vector<Stream>& streams() const { return program_.communication.streams; }

  struct Message {
    std::size_t lane;
    Place place;
  };

  // Sends and receives between two stages, each in issue order: by sender, receiver and sender's stream.
  void check_channels() {
    std::map<std::array<std::int64_t, 3>, std::deque<Message>> sent, received;
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      for (std::size_t stream = 0; stream < streams().size(); ++stream) {
        const auto [name, role, other_end] = streams()[stream];
        if (!is_transfer(role)) continue;
        Position at;
        while (const auto p = lanes_[l].next(stream, at)) {
          const std::int64_t peer = stage_of_chunk(program_.plan, lanes_[l].op(*p).peer_chunk);
          const auto here = static_cast<std::int64_t>(l);
          if (role == StreamRole::kSends)
            sent[{here, peer, static_cast<std::int64_t>(stream)}].push_back({l, *p});
          else
            received[{peer, here, other_end}].push_back({l, *p});
          Lanes::pass(at);
        }
      }
    }
    for (auto& [channel, messages] : sent) received.try_emplace(channel);
    for (auto& [channel, theirs] : received) {
      const auto& ours = sent[channel];
      for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
        if (i >= ours.size()) {
          report("no send for {}", lanes_[theirs[i].lane].text(theirs[i].place));
          break;
        }
        if (i >= theirs.size()) {
          report("no receive for {}", lanes_[ours[i].lane].text(ours[i].place));
          break;
        }
        if (!matches(ours[i], theirs[i])) {
          report("{} meets {}", lanes_[ours[i].lane].text(ours[i].place),
                 lanes_[theirs[i].lane].text(theirs[i].place));
          break;
        }
      }
    }
  }

  bool matches(const Message& send, const Message& receive) const {
    const Lanes& a = lanes_[send.lane];
    const Lanes& b = lanes_[receive.lane];
    const Step& from = a.rank->steps[static_cast<std::size_t>(send.place.step)];
    const Step& to = b.rank->steps[static_cast<std::size_t>(receive.place.step)];
    const auto chunk = [](const Lanes& l, const Step& s) {
      return l.rank
          ->chunks[static_cast<std::size_t>(l.rank->segments[static_cast<std::size_t>(s.segment)].chunk)];
    };
    const bool of_no_chunk = follows_chunks(a.rank->segments[static_cast<std::size_t>(from.segment)].kind);
    return from.micro_batch == to.micro_batch && a.op(send.place).payload == b.op(receive.place).payload &&
           (of_no_chunk || (a.op(send.place).peer_chunk == chunk(b, to) &&
                            b.op(receive.place).peer_chunk == chunk(a, from)));
  }

  void check_lifetimes(const RankClass& c) {
    enum State : char { kFree, kAllocated, kWritten };
    std::vector<std::vector<char>> state;
    for (const Buffer& b : c.buffers) {
      // In the host's memory all is there from the start.
      const State at_first = b.life == Life::kStatic     ? kWritten
                             : b.space != Space::kDevice ? kAllocated
                                                         : kFree;
      state.emplace_back(static_cast<std::size_t>(b.instances), at_first);
    }
    for (const Step& step : c.steps) {
      const Segment& s = c.segments[static_cast<std::size_t>(step.segment)];
      const auto at = [&](std::int32_t buffer) -> char& {
        auto& copies = state[static_cast<std::size_t>(buffer)];
        return copies[static_cast<std::size_t>(step.micro_batch) % copies.size()];
      };
      std::size_t event = 0;
      for (std::size_t i = 0; i < s.ops.size(); ++i) {
        check_spaces(c, step, s.ops[i]);
        const auto op_index = static_cast<std::int32_t>(i);
        for (; event < s.memory.size() && s.memory[event].op == op_index && s.memory[event].allocate;
             ++event) {
          char& is = at(s.memory[event].buffer);
          if (is != kFree)
            report("{} allocates {} which is in use", describe_op(c, step, s.ops[i]),
                   name(c, s.memory[event].buffer));
          is = kAllocated;
        }
        for (const Ref& r : s.ops[i].reads) {
          const char is = at(r.buffer);
          if (is != kWritten) {
            report("{} reads {} {}", describe_op(c, step, s.ops[i]), name(c, r.buffer),
                   is == kFree ? "which is not allocated" : "before it is written");
          }
        }
        for (const Ref& r : s.ops[i].writes) {
          char& is = at(r.buffer);
          if (is == kFree)
            report("{} writes {} which is not allocated", describe_op(c, step, s.ops[i]), name(c, r.buffer));
          else
            is = kWritten;
        }
        for (; event < s.memory.size() && s.memory[event].op == op_index; ++event)
          at(s.memory[event].buffer) = kFree;
      }
      if (problems_.size() >= most_) return;
    }
  }

  // What the device does touches its own memory alone, and copies go their way: the host's are of the norm.
  void check_spaces(const RankClass& c, const Step& step, const Op& op) {
    const auto touches = [&](std::span<const Ref> refs, Space space) {
      for (const Ref& r : refs) {
        const Space is = c.buffers[static_cast<std::size_t>(r.buffer)].space;
        if (is == space) continue;
        report("{} touches {}, which is {}, not {}", describe_op(c, step, op), name(c, r.buffer), where(is),
               where(space));
      }
    };
    if (const auto* copy = op.as<ops::Copy>()) {
      const auto [from, to] = ends_of(copy->way);
      touches(op.operands(), from);
      touches(op.writes, to);
      return;
    }
    const Space own = op.stream == kHostStream ? Space::kHost : Space::kDevice;
    touches(op.operands(), own);
    touches(op.writes, own);
  }
  static const char* where(Space s) {
    switch (s) {
      case Space::kDevice:
        return "in the device's memory";
      case Space::kHost:
        return "in the host's memory";
      case Space::kDrives:
        return "on drives";
    }
    return "";
  }
  static std::pair<Space, Space> ends_of(ops::CopyWay way) {
    switch (way) {
      case ops::CopyWay::kToHost:
        return {Space::kDevice, Space::kHost};
      case ops::CopyWay::kFromHost:
        return {Space::kHost, Space::kDevice};
      case ops::CopyWay::kToDrives:
        return {Space::kHost, Space::kDrives};
      case ops::CopyWay::kFromDrives:
        return {Space::kDrives, Space::kHost};
    }
    return {};
  }

  static const std::string& name(const RankClass& c, std::int32_t buffer) {
    return c.buffers[static_cast<std::size_t>(buffer)].name;
  }

  void check_order(const RankClass& c) {
    for (const Race& race : find_races(c, most_ - problems_.size())) {
      const Step& step = c.steps[static_cast<std::size_t>(race.step)];
      const Segment& segment = c.segments[static_cast<std::size_t>(step.segment)];
      report("{} does not wait for stream {}, which touches the same memory",
             describe_op(c, step, segment.ops[static_cast<std::size_t>(race.op)]),
             streams()[race.stream].name);
    }
  }

  bool satisfied(const Lanes& l, Place p) const {
    const Op& op = l.op(p);
    const Step& step = l.rank->steps[static_cast<std::size_t>(p.step)];
    for (std::size_t q = 0; q < kMostStreams; ++q) {
      if (op.after[q] > 0 && l.cursor[q].done < l.base[static_cast<std::size_t>(p.step)][q] + op.after[q])
        return false;
    }
    for (std::int32_t w = step.first_wait; w < step.first_wait + step.waits; ++w) {
      const ExternalWait& wait = l.rank->waits[static_cast<std::size_t>(w)];
      if (wait.op == p.op && l.cursor[wait.stream].done < wait.count) return false;
    }
    return true;
  }

  // Walks all classes together without times: a send completes with its receive.
  void check_progress() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t l = 0; l < lanes_.size(); ++l) {
        for (std::size_t s = 0; s < kMostStreams; ++s) {
          while (advance(l, s)) moved = true;
        }
      }
    }
    for (Lanes& l : lanes_) {
      for (std::size_t s = 0; s < kMostStreams; ++s) {
        if (const auto p = l.head(s)) report("never runs: {}", l.text(*p));
      }
    }
  }

  bool advance(std::size_t lane, std::size_t stream) {
    Lanes& l = lanes_[lane];
    const auto p = l.head(stream);
    if (!p || !satisfied(l, *p)) return false;
    const Op& op = l.op(*p);
    if (op.is<ops::Recv>()) return false;  // the sender moves both
    if (op.is<ops::Send>()) {
      Lanes& peer = lanes_[static_cast<std::size_t>(stage_of_chunk(program_.plan, op.peer_chunk))];
      const std::size_t there = streams()[op.stream].other_end;
      const auto q = peer.head(there);
      if (!q) return false;
      const auto from = stage_of_chunk(program_.plan, peer.op(*q).peer_chunk);
      if (from != static_cast<std::int64_t>(lane) || !satisfied(peer, *q)) return false;
      Lanes::pass(peer.cursor[there]);
    }
    Lanes::pass(l.cursor[stream]);
    return true;
  }

  const Program& program_;
  std::size_t most_;
  std::vector<Lanes> lanes_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> check(const Program& program, std::size_t most,
                               const std::function<void(double)>& progress) {
  return Checker(program, most).run(progress);
}

}  // namespace orrery::program
