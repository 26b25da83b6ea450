// SPDX-License-Identifier: Apache-2.0
//
// A timeline: what each op of a step did when. Predicted and measured timelines have the same form, so
// they join by key: (rank, segment, chunk, micro-batch, op).
//
//   ready   its inputs were there            start   it began (a collective: this rank arrived)
//   active  the last member arrived, so that waiting is never taken for transfer        end
//
// A folded timeline has one process for ranks that did the same at the same time; `process_of` says which.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "core/units.h"

namespace orrery {

struct Slice {
  std::int32_t name = 0;     // index in Timeline::names
  std::int32_t segment = 0;  // index in Timeline::segments
  std::int32_t chunk = 0;
  std::int32_t micro_batch = 0;
  std::int32_t rank = 0;    // the process: index in Timeline::rank_labels
  std::int32_t stream = 0;  // index in Timeline::streams
  Time ready, start, active, end;
  friend bool operator==(const Slice&, const Slice&) = default;
};

// What limits an op: arithmetic, memory, or the network.
enum class Bound : std::uint8_t { kUnknown, kCompute, kMemory, kCommunication };
constexpr auto enum_names(Bound) {
  return std::array{std::pair{Bound::kUnknown, "unknown"}, std::pair{Bound::kCompute, "compute"},
                    std::pair{Bound::kMemory, "memory"}, std::pair{Bound::kCommunication, "communication"}};
}

// What an op does, whatever it is called and whoever ran it.
enum class OpClass : std::uint8_t {
  kUnknown,
  kProduct,
  kAttention,
  kElementwise,  // all that moves operands through memory: activations, norms, the loss
  kRouting,      // tokens to, in and from their experts
  kOptimizer,    // parameters, gradients and moments
  kSoftware,     // what software takes, on any device
  kCopy,         // between a device, its host and the host's drives, or within the device
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,    // and other collectives with a root
  kSendReceive,  // between two ranks, or around a ring of them
};
constexpr auto enum_names(OpClass) {
  using enum OpClass;
  return std::array{std::pair{kUnknown, "unknown"},
                    std::pair{kProduct, "product"},
                    std::pair{kAttention, "attention"},
                    std::pair{kElementwise, "element-wise"},
                    std::pair{kRouting, "routing"},
                    std::pair{kOptimizer, "optimizer"},
                    std::pair{kSoftware, "software"},
                    std::pair{kCopy, "copy"},
                    std::pair{kAllReduce, "all-reduce"},
                    std::pair{kAllGather, "all-gather"},
                    std::pair{kReduceScatter, "reduce-scatter"},
                    std::pair{kAllToAll, "all-to-all"},
                    std::pair{kBroadcast, "broadcast"},
                    std::pair{kSendReceive, "send-receive"}};
}
constexpr bool communicates(OpClass c) {
  switch (c) {
    case OpClass::kUnknown:
    case OpClass::kProduct:
    case OpClass::kAttention:
    case OpClass::kElementwise:
    case OpClass::kRouting:
    case OpClass::kOptimizer:
    case OpClass::kSoftware:
    case OpClass::kCopy:
      return false;
    case OpClass::kAllReduce:
    case OpClass::kAllGather:
    case OpClass::kReduceScatter:
    case OpClass::kAllToAll:
    case OpClass::kBroadcast:
    case OpClass::kSendReceive:
      return true;
  }
  return false;
}

// A parallel axis of the plan; ranks are numbered with the first axis of a list varying fastest.
struct Axis {
  std::string name;  // "tp"
  std::int64_t size = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

// Live bytes of a process by class (program::BufferClass) from `at` until its next point.
inline constexpr std::size_t kMemoryClasses = 6;
constexpr std::array<const char*, kMemoryClasses> kMemoryClassNames{
    "parameter", "gradient", "optimizer", "activation", "workspace", "communication"};
struct MemoryPoint {
  std::int32_t rank = 0;  // the process
  Time at;
  std::array<std::int64_t, kMemoryClasses> bytes{};
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const std::int64_t b : bytes) sum += b;
    return sum;
  }
  friend bool operator==(const MemoryPoint&, const MemoryPoint&) = default;
};

// Tokens that each expert of a layer got in a micro-batch, and when the layer worked on them in the forward
// pass: from the choice of experts until the sum of what they gave. Tokens that a capacity drops are not
// counted.
struct ExpertTokens {
  std::int32_t group = 0;  // index in ExpertCounts::groups
  std::int32_t layer = 0, micro_batch = 0;
  Time start, end;
  std::vector<std::int64_t> tokens;  // by expert
  friend bool operator==(const ExpertTokens&, const ExpertTokens&) = default;
};
// How tokens fell on experts. Ranks of a group have all experts of a layer between them: in the order of the
// list, each has as many. Where several ranks share an expert's columns, the first of them is listed.
struct ExpertCounts {
  static constexpr std::int64_t kMost = 4'000'000;  // numbers of tokens that are kept
  std::vector<std::vector<std::int64_t>> groups;    // ranks, not processes; each has tokens
  std::vector<ExpertTokens> of;                     // group by group, each in order of start
  std::int32_t left_out = 0;                        // micro-batches, the last ones, beyond kMost numbers
  // Puts `of` in order, and drops groups that have nothing in it.
  void tidy();
  friend bool operator==(const ExpertCounts&, const ExpertCounts&) = default;
};

// What a timeline says besides its slices.
struct TimelineHead {
  std::string source;  // "predicted" or "measured", and by what
  std::int64_t program_hash = 0;
  std::vector<std::string> names, segments, streams;
  std::vector<Bound> bounds;             // by name; none where nobody knows (measured timelines)
  std::vector<OpClass> classes;          // by name; none where nobody knows
  std::vector<std::int64_t> payloads;    // by name: bytes an op communicates; none where nobody knows
  std::vector<std::string> rank_labels;  // by process: "stage 1 (tp 0, dp 0)"
  std::vector<Axis> axes;                // of the ranks; none where nobody knows
  std::int64_t node_ranks = 0;           // consecutive ranks that share a node; 0: unknown
  std::vector<std::int32_t> process_of;  // by rank; none: every process is one rank
  std::vector<MemoryPoint> memory;       // process by process, each in order of time
  ExpertCounts experts;                  // none where nobody counted
};

struct Timeline : TimelineHead {
  std::vector<Slice> slices;

  Time length() const;
};

// "predicted" of "predicted: event engine"; empty where the source is not known.
std::string kind_of(const TimelineHead& t);

// Chrome trace events (also read by Perfetto): one process per rank, one thread per stream.
std::string to_chrome_trace(const Timeline& t);
Timeline from_chrome_trace(const Json& trace, const std::string& file);

// Ours (docs/file-formats.md): a sixteenth of the size. Slices come back lane by lane.
std::string to_binary(const Timeline& t);
Timeline from_binary(std::string_view bytes, const std::string& file);

// Either form: files named *.timeline are binary. Reading goes by content. trace/load.h reads the traces of
// other software too.
inline constexpr std::int64_t kLargestTimelineFile = 4LL << 30;
void save_timeline(const std::filesystem::path& path, const Timeline& t);
Timeline load_timeline(const std::filesystem::path& path);

}  // namespace orrery
