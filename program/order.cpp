// SPDX-License-Identifier: Apache-2.0
#include "program/order.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace orrery::program {
namespace {

constexpr std::array kWorkNames{std::pair{Work::kForward, "F"}, std::pair{Work::kBackward, "B"},
                                std::pair{Work::kBackwardInput, "Bi"}, std::pair{Work::kBackwardWeight, "W"}};
constexpr const char* kHowWritten =
    "allowed: F, B, Bi or W with a micro-batch, and a chunk behind a point, as F3 or F3.1";

std::string name_of_slot(const Slot& s) {
  const auto* const name =
      std::find_if(kWorkNames.begin(), kWorkNames.end(), [&](const auto& n) { return n.first == s.work; });
  return s.chunk == 0 ? fmt::format("{}{}", name->second, s.micro_batch)
                      : fmt::format("{}{}.{}", name->second, s.micro_batch, s.chunk);
}

// Takes the next word off the text; empty at its end.
std::string_view take_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(word.size());
  return word;
}

std::optional<Slot> slot_of(std::string_view word) {
  const std::string_view letters = word.substr(0, word.find_first_of("0123456789"));
  const auto* const name =
      std::find_if(kWorkNames.begin(), kWorkNames.end(), [&](const auto& n) { return n.second == letters; });
  if (name == kWorkNames.end()) return std::nullopt;
  Slot out{.work = name->first};
  const char* const end = word.data() + word.size();
  const auto number = [&](const char* from, std::int32_t& to) {
    const auto [at, error] = std::from_chars(from, end, to);
    return error == std::errc{} ? at : nullptr;
  };
  const char* at = number(word.data() + letters.size(), out.micro_batch);
  if (at != nullptr && at != end && *at == '.') at = number(at + 1, out.chunk);
  if (at != end || out.micro_batch < 0 || out.chunk < 0) return std::nullopt;
  return out;
}

// What a stage has listed so far, by chunk.
class Listed {
 public:
  explicit Listed(const Plan& p) : p_(p), done_(static_cast<std::size_t>(p.vpp)) {}

  // Why it cannot come next; empty if it can.
  std::string problem_of(const Slot& s) const {
    if (s.chunk >= p_.vpp) return fmt::format("a stage has {} chunks", p_.vpp);
    if (s.micro_batch >= p_.micro_batches)
      return fmt::format("the plan has {} micro-batches", p_.micro_batches);
    const Done& d = done_[static_cast<std::size_t>(s.chunk)];
    const auto named = [&](Work work, std::int32_t micro_batch) {
      return name_of_slot({.work = work, .chunk = s.chunk, .micro_batch = micro_batch});
    };
    const auto late = [&](const std::string& first) { return fmt::format("{} comes before it", first); };
    const auto in_order = [&](const std::string& first) {
      return late(first) + ": micro-batches of a chunk come in order";
    };
    switch (s.work) {
      case Work::kForward:
        if (s.micro_batch < d.forwards) return "it comes twice";
        if (s.micro_batch > d.forwards) return in_order(named(s.work, d.forwards));
        break;
      case Work::kBackward:
      case Work::kBackwardInput:
        if (s.micro_batch < d.backwards) return "a backward of that micro-batch has come";
        if (s.micro_batch >= d.forwards) return late(named(Work::kForward, d.forwards));
        if (s.micro_batch > d.backwards) return in_order(named(s.work, d.backwards));
        if (s.work == Work::kBackward && d.gradients < d.backwards)
          return in_order(named(Work::kBackwardWeight, d.gradients));
        break;
      case Work::kBackwardWeight:
        if (s.micro_batch < d.gradients) return "weight gradients of that micro-batch have come";
        if (s.micro_batch >= d.backwards) return late(named(Work::kBackwardInput, s.micro_batch));
        if (s.micro_batch > d.gradients) return in_order(named(s.work, d.gradients));
        break;
    }
    return {};
  }
  void add(const Slot& s) {
    Done& d = done_[static_cast<std::size_t>(s.chunk)];
    d.forwards += s.work == Work::kForward;
    d.backwards += s.work == Work::kBackward || s.work == Work::kBackwardInput;
    d.gradients += s.work == Work::kBackward || s.work == Work::kBackwardWeight;
  }
  // A piece that has not come; none if all have.
  std::optional<Slot> missing() const {
    const auto m = static_cast<std::int32_t>(p_.micro_batches);
    for (std::int32_t c = 0; c < p_.vpp; ++c) {
      const Done& d = done_[static_cast<std::size_t>(c)];
      if (d.forwards < m) return Slot{.work = Work::kForward, .chunk = c, .micro_batch = d.forwards};
      if (d.gradients < d.backwards)
        return Slot{.work = Work::kBackwardWeight, .chunk = c, .micro_batch = d.gradients};
      if (d.backwards < m) return Slot{.work = Work::kBackward, .chunk = c, .micro_batch = d.backwards};
    }
    return std::nullopt;
  }

 private:
  struct Done {  // micro-batches, each from the first on
    std::int32_t forwards = 0, backwards = 0, gradients = 0;
  };
  const Plan& p_;
  std::vector<Done> done_;  // by chunk
};

// For tensors between stages: as much as they ask for, or as little as an engine may have.
enum class Room : std::uint8_t { kAll, kLeast };

// Walks all stages together.
class Walk {
 public:
  Walk(const Plan& p, const std::vector<std::vector<Slot>>& slots, Room room)
      : p_(p),
        split_(splits_backward(p)),
        placement_(chunk_placement(p)),
        slots_(slots),
        room_(room),
        stages_(slots.size()) {
    const std::int64_t last = p.pp * p.vpp - 1;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Stage& stage = stages_[i];
      stage.chunks.resize(static_cast<std::size_t>(p.vpp));
      const std::vector<std::int32_t> most = in_flight(slots[i], p.vpp);
      for (std::size_t c = 0; c < stage.chunks.size(); ++c) stage.chunks[c].in_flight = most[c];
      for (std::size_t k = 0; k < slots[i].size(); ++k) {
        const Slot& s = slots[i][k];
        if (s.work == Work::kBackwardWeight) continue;
        const std::int64_t chunk = chunk_of(i, s);
        const bool forward = way_of(s) == 0;
        if (chunk != (forward ? last : 0)) stage.makes[line_from(chunk, forward)].push_back(k);
        if (chunk != (forward ? 0 : last)) stage.needs[line_from(chunk - 1, forward)].push_back(k);
      }
    }
  }

  // The first stage that stops before its end, and why.
  struct Stop {
    std::size_t stage;
    std::string why;
  };
  std::optional<Stop> run() {
    std::vector<std::size_t> waiting;
    std::vector<bool> listed(stages_.size(), true);
    for (std::size_t i = stages_.size(); i-- > 0;) waiting.push_back(i);
    while (!waiting.empty()) {
      const std::size_t i = waiting.back();
      waiting.pop_back();
      listed[i] = false;
      if (!advance(i)) continue;
      const std::size_t n = stages_.size();
      for (const std::size_t other : {i, (i + 1) % n, (i + n - 1) % n}) {
        if (!listed[other]) waiting.push_back(other);
        listed[other] = true;
      }
    }
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i].next < slots_[i].size()) return Stop{i, why(i)};
    }
    return std::nullopt;
  }

 private:
  // What passes between stages one behind the other.
  enum Line : std::uint8_t { kDown, kBack, kGradients };
  static constexpr std::size_t kLines = 3;
  // Of what a chunk sends.
  Line line_from(std::int64_t chunk, bool forward) const {
    return !forward ? kGradients : comes_back(placement_, p_.pp, chunk) ? kBack : kDown;
  }
  // Of a stage's chunk, by way: forwards, and backwards. What has been done, sent and received so far.
  struct Chunk {
    std::int32_t in_flight = 0;  // at most
    std::int32_t freed = 0;      // micro-batches that are through
    std::array<std::int32_t, 2> done{}, sent{}, received{};
  };
  struct Stage {
    std::size_t next = 0;  // slot
    // By line: slots whose results others need, and the reverse.
    std::array<std::vector<std::size_t>, kLines> makes, needs;
    std::array<std::size_t, kLines> sent{}, received{};  // of them
    std::vector<Chunk> chunks;
  };

  static std::size_t way_of(const Slot& s) { return s.work == Work::kForward ? 0 : 1; }
  static Chunk& local(Stage& stage, const Slot& s) { return stage.chunks[static_cast<std::size_t>(s.chunk)]; }
  std::int64_t chunk_of(std::size_t stage, const Slot& s) const {
    return global_chunk(placement_, p_.pp, static_cast<std::int64_t>(stage), s.chunk);
  }

  // Whether a chunk has room for another tensor.
  bool has_room(const Chunk& c, std::size_t way) const {
    if (room_ == Room::kAll) return true;
    const bool kept = way == 0 || split_;  // until the micro-batch is through
    return c.received[way] - c.done[way] < 2 && (!kept || c.received[way] - c.freed <= c.in_flight);
  }

  // Sends the first tensor that waits for it, where its receiver waits for that one.
  bool send(std::size_t stage, Line line) {
    Stage& from = stages_[stage];
    if (from.sent[line] == from.makes[line].size() || from.makes[line][from.sent[line]] >= from.next)
      return false;
    const Slot& made = slots_[stage][from.makes[line][from.sent[line]]];
    const std::size_t way = way_of(made);
    const std::int64_t chunk = chunk_of(stage, made) + (way == 0 ? 1 : -1);
    const auto there = static_cast<std::size_t>(stage_of_chunk(placement_, p_.pp, chunk));
    Stage& to = stages_[there];
    if (to.received[line] == to.needs[line].size()) return false;
    const Slot& needed = slots_[there][to.needs[line][to.received[line]]];
    if (chunk_of(there, needed) != chunk || !has_room(local(to, needed), way)) return false;
    ++from.sent[line];
    ++local(from, made).sent[way];
    ++to.received[line];
    ++local(to, needed).received[way];
    return true;
  }

  // What a stage's next slot waits for: a tensor from another stage, or room for its own.
  enum class Blocked : std::uint8_t { kNot, kReceive, kSend };
  Blocked blocked(std::size_t stage) const {
    const Stage& s = stages_[stage];
    const Slot& slot = slots_[stage][s.next];
    if (slot.work == Work::kBackwardWeight) return Blocked::kNot;
    const std::size_t way = way_of(slot);
    const std::int64_t chunk = chunk_of(stage, slot);
    const auto is_next = [&](const std::vector<std::size_t>& of) {
      return std::binary_search(of.begin(), of.end(), s.next);
    };
    const Chunk& c = s.chunks[static_cast<std::size_t>(slot.chunk)];
    if (is_next(s.needs[line_from(chunk - 1, way == 0)]) && c.received[way] <= slot.micro_batch)
      return Blocked::kReceive;
    if (room_ == Room::kLeast && is_next(s.makes[line_from(chunk, way == 0)]) &&
        c.done[way] - c.sent[way] > 1)
      return Blocked::kSend;
    return Blocked::kNot;
  }

  void run_next(Stage& s, const Slot& slot) {
    Chunk& c = local(s, slot);
    if (slot.work != Work::kBackwardWeight) ++c.done[way_of(slot)];
    if (slot.work == Work::kBackward || slot.work == Work::kBackwardWeight) ++c.freed;
    ++s.next;
  }

  bool advance(std::size_t i) {
    Stage& s = stages_[i];
    bool moved = false;
    for (bool again = true; again; moved = moved || again) {
      again = false;
      for (const Line line : {kDown, kBack, kGradients}) again = send(i, line) || again;
      if (s.next == slots_[i].size() || blocked(i) != Blocked::kNot) continue;
      run_next(s, slots_[i][s.next]);
      again = true;
    }
    return moved;
  }

  std::string why(std::size_t i) const {
    const Stage& s = stages_[i];
    const Slot& slot = slots_[i][s.next];
    std::string out = fmt::format("{}, its piece {}, {}: ", name_of_slot(slot), s.next + 1,
                                  room_ == Room::kAll ? "can never start" : "may never start");
    const bool forward = slot.work == Work::kForward;
    if (blocked(i) == Blocked::kSend)
      return out + "others may have no room for what the stage made before it";
    const std::int64_t chunk = chunk_of(i, slot) + (forward ? -1 : 1);
    const std::int64_t from = stage_of_chunk(placement_, p_.pp, chunk);
    const Stage& other = stages_[static_cast<std::size_t>(from)];
    const std::vector<Slot>& others = slots_[static_cast<std::size_t>(from)];
    const auto wanted = std::find_if(others.begin(), others.end(), [&](const Slot& o) {
      return o.work != Work::kBackwardWeight && (o.work == Work::kForward) == forward &&
             o.chunk == chunk / p_.pp && o.micro_batch == slot.micro_batch;
    });
    out += fmt::format("it waits for {} of stage {}", name_of_slot(*wanted), from);
    if (other.next < others.size())
      out += fmt::format(", which stops before {}", name_of_slot(others[other.next]));
    else
      out += ", whose tensors come in another order";
    return out;
  }

  const Plan& p_;
  const bool split_;
  const ChunkPlacement placement_;
  const std::vector<std::vector<Slot>>& slots_;
  const Room room_;
  std::vector<Stage> stages_;
};

}  // namespace

void check_order(const Plan& p, const Cursor& at) {
  const ScheduleOrder& order = p.schedule_order.value();
  const Cursor stages = at.child("stages");
  if (std::ssize(order.stages) != p.pp) {
    stages.fail(fmt::format("{} lists are not those of {} stages", order.stages.size(), p.pp),
                fmt::format("allowed: {} lists", p.pp));
  }
  const std::int64_t most = splits_backward(p) ? 3 : 2;
  const std::int64_t pieces = most * p.vpp * p.micro_batches;  // of a stage, at most
  if (pieces > kMostListed / p.pp) {
    at.fail(fmt::format("{} stages have up to {} pieces of work each", p.pp, pieces),
            fmt::format("allowed: {} in all", kMostListed));
  }
  std::vector<std::vector<Slot>> slots;
  for (std::size_t i = 0; i < order.stages.size(); ++i) {
    const Cursor here = stages.child(i);
    Listed listed(p);
    std::vector<Slot>& mine = slots.emplace_back();
    std::string_view text = order.stages[i];
    for (std::string_view word = take_word(text); !word.empty(); word = take_word(text)) {
      constexpr std::size_t kMostShown = 24;
      const auto refuse = [&](const std::string& why, const char* allowed) {
        here.fail(
            fmt::format("piece {}, {}: {}", mine.size() + 1, shown(Json(word.substr(0, kMostShown))), why),
            allowed);
      };
      const std::optional<Slot> slot = slot_of(word);
      if (!slot) refuse("it is no piece of work", kHowWritten);
      if (const std::string why = listed.problem_of(*slot); !why.empty())
        refuse(why, "allowed: each piece once, behind what it needs");
      listed.add(*slot);
      mine.push_back(*slot);
    }
    if (const auto missing = listed.missing())
      here.fail(fmt::format("{} is missing", name_of_slot(*missing)),
                "allowed: of each chunk and micro-batch an F, and a B or a Bi and a W");
  }
  for (const Room room : {Room::kAll, Room::kLeast}) {
    if (const auto stop = Walk(p, slots, room).run())
      stages.child(stop->stage).fail(stop->why, "allowed: an order in which no stages wait for each other");
  }
}

std::string shared_weight_problem(const Plan& p) {
  const std::int64_t last = p.pp * p.vpp - 1;
  if (!p.schedule_order || p.vpp == 1 || stage_of_chunk(p, last) != stage_of_chunk(p, 0)) return {};
  const std::vector<Slot> slots = slots_of(*p.schedule_order).front();
  const auto end_of = [&](std::int64_t chunk) {
    const auto end = std::find_if(slots.rbegin(), slots.rend(), [&](const Slot& s) {
      return s.chunk == chunk && (s.work == Work::kBackward || s.work == Work::kBackwardWeight);
    });
    return slots.rend() - end;
  };
  if (end_of(p.vpp - 1) < end_of(0)) return {};
  return fmt::format(
      "{} comes last: replicas sum the gradient of the embedding's weight, which the last chunk has too, "
      "behind the last work of chunk 0",
      name_of_slot(slots[static_cast<std::size_t>(end_of(p.vpp - 1)) - 1]));
}

std::vector<std::vector<Slot>> slots_of(const ScheduleOrder& order) {
  std::vector<std::vector<Slot>> out;
  for (std::string_view text : order.stages) {
    std::vector<Slot>& stage = out.emplace_back();
    for (std::string_view word = take_word(text); !word.empty(); word = take_word(text))
      stage.push_back(slot_of(word).value());
  }
  return out;
}

Backwards backwards_of(const ScheduleOrder& order) {
  bool split = false, whole = false;
  for (const std::string_view stage : order.stages) {
    split = split || stage.find_first_of("Wi") != std::string_view::npos;
    for (std::size_t b = stage.find('B'); b != std::string_view::npos && !whole; b = stage.find('B', b + 1))
      whole = !stage.substr(b + 1).starts_with('i');
  }
  return !split ? Backwards::kWhole : whole ? Backwards::kBoth : Backwards::kSplit;
}

ScheduleOrder order_of(const Plan& p) {
  ScheduleOrder out{.chunks = chunk_placement(p), .stages = {}};
  for (const std::vector<Slot>& stage : pipeline_schedule(p)) {
    std::string& text = out.stages.emplace_back();
    for (const Slot& s : stage) text += (text.empty() ? "" : " ") + name_of_slot(s);
  }
  return out;
}

}  // namespace orrery::program
