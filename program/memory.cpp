// SPDX-License-Identifier: Apache-2.0
//
// Memory of a rank, all of it static.
//
//   logical peak  most bytes live at once, walking the schedule: static + kept activations + locals
//   arena peak    static + in-flight copies of every kept activation + the widest segment's locals,
//                 each aligned to 256 bytes. This is what the engine allocates.
//
// Both are of the device. What stands in the host's memory, or on drives, is there for the whole run,
// whatever its life.
#include <algorithm>
#include <array>

#include "program/passes.h"

namespace orrery::program {
namespace {

constexpr std::int64_t align(std::int64_t n) {
  return (n + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

// The ops of a segment that touch a buffer first and last.
struct Touch {
  std::int32_t buffer = -1, first = -1, last = -1;
};
using Touches = std::vector<std::vector<Touch>>;  // per segment, by buffer

Touches find_touches(const RankClass& rank) {
  Touches out(rank.segments.size());
  std::vector<std::int32_t> at(rank.buffers.size());  // index into the segment's touches, plus 1
  for (std::size_t s = 0; s < rank.segments.size(); ++s) {
    const auto& ops = rank.segments[s].ops;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const auto touch = [&](const std::vector<Ref>& refs) {
        for (const Ref& r : refs) {
          const auto b = static_cast<std::size_t>(r.buffer);
          if (rank.buffers[b].life == Life::kStatic) continue;
          if (at[b] == 0) {
            out[s].push_back({r.buffer, static_cast<std::int32_t>(i), 0});
            at[b] = static_cast<std::int32_t>(out[s].size());
          }
          out[s][static_cast<std::size_t>(at[b]) - 1].last = static_cast<std::int32_t>(i);
        }
      };
      touch(ops[i].reads);
      touch(ops[i].writes);
    }
    for (const Touch& t : out[s]) at[static_cast<std::size_t>(t.buffer)] = 0;
    std::sort(out[s].begin(), out[s].end(),
              [](const Touch& x, const Touch& y) { return x.buffer < y.buffer; });
  }
  return out;
}

// Work of a chunk in the order in which it comes: by kind, then by piece.
using Phase = std::pair<SegmentKind, std::int32_t>;
constexpr Phase kBeforeAll{SegmentKind::kForward, -1}, kAfterAll{SegmentKind::kOuter, 1 << 30};
Phase phase_of(const Segment& s) {
  return {s.kind, s.piece};
}
// A micro-batch goes through a chunk with a whole backward, or with one that is split.
enum class Way : std::uint8_t { kWhole, kSplit };
constexpr std::array kWays{Way::kWhole, Way::kSplit};
bool is_on(SegmentKind kind, Way way) {
  switch (kind) {
    case SegmentKind::kBackward:
      return way == Way::kWhole;
    case SegmentKind::kBackwardInput:
    case SegmentKind::kBackwardWeight:
      return way == Way::kSplit;
    case SegmentKind::kForward:
    case SegmentKind::kOptimizer:
    case SegmentKind::kOuter:
      break;
  }
  return true;
}
// In which a buffer is touched on a way, if it is.
struct PhasesOnWay {
  Phase first = kAfterAll, last = kBeforeAll;
  bool touched() const { return first <= last; }
};
// By buffer and way.
using BufferPhases = std::vector<std::array<PhasesOnWay, kWays.size()>>;

BufferPhases find_phases(const RankClass& rank, const Touches& touches) {
  BufferPhases out(rank.buffers.size());
  for (std::size_t s = 0; s < touches.size(); ++s) {
    const Phase phase = phase_of(rank.segments[s]);
    for (const Way way : kWays) {
      if (!is_on(phase.first, way)) continue;
      for (const Touch& t : touches[s]) {
        PhasesOnWay& of = out[static_cast<std::size_t>(t.buffer)][static_cast<std::size_t>(way)];
        of.first = std::min(of.first, phase);
        of.last = std::max(of.last, phase);
      }
    }
  }
  return out;
}

// Whether a buffer's life begins, or ends, in a phase: on every way that the phase is on.
template <class Bound>
bool bounds_life(const std::array<PhasesOnWay, kWays.size()>& of, const Phase& phase, Bound bound) {
  return std::all_of(kWays.begin(), kWays.end(), [&](Way way) {
    return !is_on(phase.first, way) || of[static_cast<std::size_t>(way)].*bound == phase;
  });
}

void decide_lives(RankClass& rank, const Touches& touches, const BufferPhases& phases, bool side_by_side) {
  std::vector<bool> transferred(rank.buffers.size()), in_use_after(rank.buffers.size());
  for (std::size_t s = 0; s < touches.size(); ++s) {
    for (const Op& op : rank.segments[s].ops) {
      if (follows_chunks(rank.segments[s].kind)) continue;
      // The piece that comes next does not wait for a collective of this one.
      if (side_by_side && op.stream != kCompute) {
        for (const std::vector<Ref>* refs : {&op.reads, &op.writes}) {
          for (const Ref& r : *refs) in_use_after[static_cast<std::size_t>(r.buffer)] = true;
        }
      }
      if (!op.is_transfer()) continue;
      transferred[static_cast<std::size_t>((op.is<ops::Recv>() ? op.writes : op.reads)[0].buffer)] = true;
    }
  }
  for (std::size_t b = 0; b < rank.buffers.size(); ++b) {
    Buffer& buffer = rank.buffers[b];
    const auto on_any_way = [&](auto&& holds) {
      return std::any_of(phases[b].begin(), phases[b].end(),
                         [&](const PhasesOnWay& w) { return w.touched() && holds(w); });
    };
    if (buffer.life == Life::kStatic || !on_any_way([](const PhasesOnWay&) { return true; })) continue;
    if (on_any_way([](const PhasesOnWay& w) { return w.first.first != w.last.first; })) {
      buffer.life = Life::kSaved;
      buffer.cls = BufferClass::kActivation;
      buffer.instances = rank.in_flight[static_cast<std::size_t>(buffer.chunk)];
    } else if (in_use_after[b] || on_any_way([](const PhasesOnWay& w) { return w.first != w.last; })) {
      buffer.life = Life::kHandedOn;
    }
    if (transferred[b]) {
      buffer.cls = BufferClass::kCommunication;
      ++buffer.instances;  // one may arrive, or leave, while the others are in use
    }
  }
}

// Allocation before the first touch and freeing after the last, in the right segments.
void place_events(RankClass& rank, const Touches& touches, const BufferPhases& phases) {
  for (std::size_t s = 0; s < touches.size(); ++s) {
    Segment& segment = rank.segments[s];
    const Phase phase = phase_of(segment);
    for (const Touch& t : touches[s]) {
      const auto b = static_cast<std::size_t>(t.buffer);
      if (rank.buffers[b].space != Space::kDevice) continue;
      if (bounds_life(phases[b], phase, &PhasesOnWay::first))
        segment.memory.push_back({t.first, t.buffer, true});
      if (bounds_life(phases[b], phase, &PhasesOnWay::last))
        segment.memory.push_back({t.last, t.buffer, false});
    }
    // At one op: allocations come before it, frees after it.
    std::stable_sort(segment.memory.begin(), segment.memory.end(),
                     [](const MemoryEvent& a, const MemoryEvent& c) {
                       return std::pair(a.op, !a.allocate) < std::pair(c.op, !c.allocate);
                     });
    std::int64_t live = 0, peak = 0;
    for (const MemoryEvent& e : segment.memory) {
      const std::int64_t bytes = rank.buffers[static_cast<std::size_t>(e.buffer)].bytes.value;
      live += e.allocate ? bytes : -bytes;
      peak = std::max(peak, live);
    }
    segment.peak = Bytes{peak};
    segment.net = Bytes{live};
  }
}

void set_peak(RankClass& rank) {
  std::array<std::int64_t, kBufferClasses> base{};
  std::int64_t live = 0;
  for (const Buffer& b : rank.buffers) {
    const std::int64_t bytes = b.bytes.value * copies_always_live(rank, b);
    base[static_cast<std::size_t>(b.cls)] += bytes;
    live += bytes;
  }
  std::int64_t peak = -1;
  std::size_t peak_step = 0;
  for (std::size_t i = 0; i < rank.steps.size(); ++i) {
    const Segment& s = rank.segments[static_cast<std::size_t>(rank.steps[i].segment)];
    if (live + s.peak.value > peak) {
      peak = live + s.peak.value;
      peak_step = i;
    }
    live += s.net.value;
  }
  rank.logical_peak = Bytes{peak};
  // Replay to the peak to split it by class.
  auto by_class = base;
  for (std::size_t i = 0; i <= peak_step; ++i) {
    const Segment& s = rank.segments[static_cast<std::size_t>(rank.steps[i].segment)];
    std::int64_t local = 0;
    for (const MemoryEvent& e : s.memory) {
      const Buffer& b = rank.buffers[static_cast<std::size_t>(e.buffer)];
      const std::int64_t bytes = e.allocate ? b.bytes.value : -b.bytes.value;
      by_class[static_cast<std::size_t>(b.cls)] += bytes;
      local += bytes;
      if (i == peak_step && local == s.peak.value) break;
    }
  }
  for (std::size_t c = 0; c < kBufferClasses; ++c) rank.at_peak[c] = Bytes{by_class[c]};
}

// First fit over the intervals in which a segment's locals live.
std::int64_t place_locals(RankClass& rank, const Segment& segment, std::int64_t base) {
  struct Live {
    std::int64_t begin, end;
    std::int32_t buffer;
  };
  std::vector<Live> live;
  std::int64_t top = base;
  for (const MemoryEvent& e : segment.memory) {
    Buffer& b = rank.buffers[static_cast<std::size_t>(e.buffer)];
    if (b.life != Life::kLocal || b.instances > 1) continue;
    if (!e.allocate) {
      std::erase_if(live, [&](const Live& l) { return l.buffer == e.buffer; });
      continue;
    }
    const std::int64_t size = align(b.bytes.value);
    std::int64_t at = base;
    std::size_t where = 0;
    while (where < live.size() && live[where].begin - at < size) at = live[where++].end;
    b.arena_offset = at;
    live.insert(live.begin() + static_cast<std::ptrdiff_t>(where), {at, at + size, e.buffer});
    top = std::max(top, at + size);
  }
  return top;
}

void lay_out_arena(RankClass& rank) {
  std::int64_t top = 0;
  const auto place = [&](Space space, bool locals_too) {
    for (Buffer& b : rank.buffers) {
      if (b.space != space || (!locals_too && b.life == Life::kLocal && b.instances == 1)) continue;
      b.arena_offset = top;
      b.arena_stride = align(b.bytes.value);
      top += b.arena_stride * b.instances;
    }
  };
  place(Space::kDevice, false);
  std::int64_t widest = top;
  for (const Segment& s : rank.segments) widest = std::max(widest, place_locals(rank, s, top));
  rank.arena_peak = Bytes{widest};
  const std::int64_t end = top = align(widest);
  place(Space::kHost, true);
  if (top > end) rank.host_bytes = Bytes{top - widest};
  top = rank.drives_begin();
  place(Space::kDrives, true);
  rank.drive_bytes = Bytes{top - rank.drives_begin()};
}

}  // namespace

std::int64_t copies_always_live(const RankClass& rank, const Buffer& b) {
  if (b.space != Space::kDevice) return 0;
  switch (b.life) {
    case Life::kStatic:
      return b.instances;
    case Life::kSaved:
      return b.instances - rank.in_flight[static_cast<std::size_t>(b.chunk)];
    case Life::kHandedOn:
    case Life::kLocal:
      return b.instances - 1;
  }
  return 0;
}

void place_buffers(RankClass& rank, bool side_by_side) {
  const Touches touches = find_touches(rank);
  const BufferPhases phases = find_phases(rank, touches);
  decide_lives(rank, touches, phases, side_by_side);
  place_events(rank, touches, phases);
  set_peak(rank);
  lay_out_arena(rank);
}

}  // namespace orrery::program
