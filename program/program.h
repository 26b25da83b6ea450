// SPDX-License-Identifier: Apache-2.0
//
// The program: what the simulator costs and the executor runs.
//
// A program is segments x schedule x binding.
//   * A *segment* is the op list of one kind of work on one model chunk (forward, backward, ...), with a
//     symbolic micro-batch. Ops are in issue order; an op of a stream runs after the stream's earlier ops.
//   * A *schedule* is, per rank class, the ordered list of (segment, micro-batch).
//   * The *binding* maps ranks to coordinates and classes. The ranks of one pipeline stage do the same
//     work and form one class; nothing is stored per rank or per micro-batch.
//
// Buffers. A buffer has `instances` copies; micro-batch i uses copy i mod instances. Activations kept
// for the backward pass have as many as the schedule has micro-batches in flight.
//
// Waits. Ops on different streams are ordered by counting: an op may start when stream s of its rank
// has completed its first n ops. compile() derives all waits from what ops read and write, so the
// simulator, a CUDA engine (events) and a serial walk in issue order respect the same data flow.
//
// Names are stable: "layer17/attn/qkv/dgrad" is the same op in every plan.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/model.h"
#include "core/plan.h"
#include "core/stack.h"
#include "core/timeline.h"
#include "core/training.h"
#include "program/ops.h"

namespace orrery::program {

// Streams of a rank, in the order of Program::streams.
enum Stream : std::uint8_t { kCompute, kTp, kDp, kSend, kRecv, kGradSend, kGradRecv, kStreamCount };
constexpr std::array<const char*, kStreamCount> kStreamNames{
    "compute", "tp", "dp", "pp-send", "pp-recv", "pp-grad-send", "pp-grad-recv"};

// What a stream does: kernels, collectives of groups, or transfers to or from another stage.
enum class StreamRole : std::uint8_t { kKernels, kCollectives, kTransfers };
constexpr StreamRole role_of(Stream s) {
  switch (s) {
    case kCompute:
      return StreamRole::kKernels;
    case kTp:
    case kDp:
      return StreamRole::kCollectives;
    case kSend:
    case kRecv:
    case kGradSend:
    case kGradRecv:
    case kStreamCount:
      break;
  }
  return StreamRole::kTransfers;
}
// The stream of the other stage that a transfer meets; collectives meet on the same stream.
constexpr Stream other_end(Stream s) {
  switch (s) {
    case kSend:
      return kRecv;
    case kRecv:
      return kSend;
    case kGradSend:
      return kGradRecv;
    case kGradRecv:
      return kGradSend;
    case kCompute:
    case kTp:
    case kDp:
    case kStreamCount:
      break;
  }
  return s;
}

enum class Group : std::uint8_t { kNone, kTp, kDp, kShard, kReplica, kPipeline };
// The groups whose members meet in collectives.
inline constexpr std::array kCollectiveGroups{Group::kTp, Group::kDp, Group::kShard, Group::kReplica};
constexpr std::size_t count_groups() {
  for (std::size_t count = 0;; ++count) {
    switch (static_cast<Group>(count)) {
      case Group::kNone:
      case Group::kTp:
      case Group::kDp:
      case Group::kShard:
      case Group::kReplica:
      case Group::kPipeline:
        continue;
    }
    return count;
  }
}
inline constexpr std::size_t kGroupCount = count_groups();

enum class BufferClass : std::uint8_t {
  kParameter,
  kGradient,
  kOptimizer,
  kActivation,
  kWorkspace,
  kCommunication
};
inline constexpr std::size_t kBufferClasses = 6;
constexpr std::array<const char*, kBufferClasses> kBufferClassNames{
    "parameter", "gradient", "optimizer", "activation", "workspace", "communication"};

// Static: allocated for the whole run. Saved: from its first write in the forward segment (or the
// input-gradient segment) to its last use in a later segment of the same micro-batch. Local: inside one
// segment.
enum class Life : std::uint8_t { kStatic, kSaved, kLocal };

struct Buffer {
  std::string name;
  BufferClass cls = BufferClass::kActivation;
  Life life = Life::kLocal;
  std::int32_t chunk = -1;  // local chunk index; -1: of the whole rank
  std::int32_t instances = 1;
  DType type = DType::kFloat32;   // of its elements
  Bytes bytes;                    // of one instance
  std::int64_t arena_offset = 0;  // of instance 0, from the start of the rank's arena
  std::int64_t arena_stride = 0;  // to the next instance
};

// A reference to part of a buffer. With `sharded`, the executor adds shard_rank * stride elements.
struct Ref {
  std::int32_t buffer = -1;
  std::int64_t offset = 0;        // elements
  std::int64_t shard_stride = 0;  // elements; 0: not sharded
};

struct Op {
  std::string name;
  OpKind kind;
  Stream stream = kCompute;
  Group group = Group::kNone;
  bool recomputed = false;  // repeats forward work
  bool accumulate = false;  // adds to the result that is there
  std::int32_t layer = -1;
  double flops = 0;
  Bytes traffic;                 // bytes read and written in device memory
  Bytes payload;                 // communication: bytes of the full (unsharded) tensor
  std::int32_t peer_chunk = -1;  // send/recv: the global chunk at the other end
  std::vector<Ref> reads, writes;
  // Waits inside the segment: the op may start once stream s has completed `after[s]` of its ops of
  // this segment instance (0: no wait).
  std::array<std::int32_t, kStreamCount> after{};

  // The op as one of its types, or null where it is of another.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&kind);
  }
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(kind);
  }
  bool is_transfer() const { return nature_of(kind) == ops::Nature::kTransfer; }
};

enum class SegmentKind : std::uint8_t { kForward, kBackward, kBackwardInput, kBackwardWeight, kOptimizer };
constexpr std::array<const char*, 5> kSegmentNames{"forward", "backward", "backward-input", "backward-weight",
                                                   "optimizer"};

struct MemoryEvent {
  std::int32_t op = 0;  // allocated before it, or freed after it
  std::int32_t buffer = 0;
  bool allocate = true;
};

struct Segment {
  SegmentKind kind = SegmentKind::kForward;
  std::int32_t chunk = 0;         // local chunk index
  bool last_micro_batch = false;  // carries the gradient reduction
  std::vector<Op> ops;
  std::vector<MemoryEvent> memory;
  std::array<std::int32_t, kStreamCount> stream_ops{};  // ops per stream
  Bytes peak, net;                                      // live bytes relative to the start of the segment
};

// A wait on work of an earlier step: before `op`, stream `stream` must have completed `count` ops.
struct ExternalWait {
  std::int32_t op = 0;
  Stream stream = kCompute;
  std::int64_t count = 0;
};

struct Step {
  std::int32_t segment = 0;
  std::int32_t micro_batch = 0;
  std::int32_t first_wait = 0, waits = 0;  // range in RankClass::waits
};

struct Parameter {
  std::string name;  // logical: equal in every plan
  std::int64_t rows = 0, cols = 1;
  std::vector<std::int64_t> row_blocks;  // fused matrices: each block is split over tp on its own
  enum class Split : std::uint8_t { kNone, kRows, kCols } split = Split::kNone;
  enum class Init : std::uint8_t { kNormal, kOnes, kZeros } init = Init::kNormal;
  bool partial_over_tp = false;  // its gradient is a partial sum on each tensor rank
  std::int64_t local_rows = 0, local_cols = 1;
  std::int64_t padding = 0;  // last rows, which only fill the tensor ranks' shares up
  std::int32_t unit = 0;     // index in RankClass::units
  std::int64_t offset = 0;   // elements into the unit
  std::int64_t local_elements() const { return local_rows * local_cols; }
  bool is_vector() const { return cols == 1; }  // a norm's weight, or a bias
};

// Parameters that are stored, sharded and communicated together (a gradient bucket; a layer for ZeRO-3).
struct Unit {
  std::int32_t parameter_buffer = -1, gradient_buffer = -1, optimizer_buffer = -1;
  std::int32_t gathered_buffer = -1;  // ZeRO-3: where it was gathered last; -1: it is not sharded
  std::int32_t full_gradient = -1;    // ZeRO-2/3: full gradient while it is being made
  std::int64_t elements = 0;          // unpadded
  std::int64_t padded = 0;            // a multiple of the shard group
  std::int64_t shard = 0;             // elements each rank of the group owns (padded when ZeRO is 0)
};

struct RankClass {
  std::int32_t stage = 0;
  std::vector<std::int32_t> chunks;  // global chunk of each local chunk
  std::vector<Buffer> buffers;
  std::vector<Parameter> parameters;
  std::vector<Unit> units;
  std::vector<Segment> segments;
  std::vector<Step> steps;
  std::vector<ExternalWait> waits;
  std::vector<std::int32_t> in_flight;  // per local chunk
  // Peak memory of a rank. `logical` is the most that is live at once; `arena` is what the engine
  // allocates; `at_peak` splits the logical peak by class.
  Bytes logical_peak, arena_peak;
  std::array<Bytes, kBufferClasses> at_peak{};
};

// Ranks as strided ranges: rank = sum of coordinate * stride.
struct Binding {
  std::int64_t tp = 1, dp = 1, pp = 1, shard = 1;
  std::int64_t tp_stride = 1, dp_stride = 1, pp_stride = 1;
  struct Coordinates {
    std::int64_t tp, dp, pp;
  };
  std::int64_t ranks() const { return tp * dp * pp; }
  std::int64_t rank(const Coordinates& c) const {
    return c.tp * tp_stride + c.dp * dp_stride + c.pp * pp_stride;
  }
  Coordinates coordinates(std::int64_t rank) const {
    return {rank / tp_stride % tp, rank / dp_stride % dp, rank / pp_stride % pp};
  }
  // The members of `rank`'s group in group order.
  std::vector<std::int64_t> members(Group group, std::int64_t rank) const;
};
Binding bind(const Plan& plan);
// How ranks are numbered, for timelines.
std::vector<Axis> axes_of(const Binding& binding);

struct Program {
  Model model;
  Plan plan;
  Training training;
  Binding binding;
  std::vector<RankClass> classes;  // by stage

  // Of the ops with their groups and peers, the schedules, the binding and the optimizer's constants. Ranks
  // with equal hashes run the same program.
  std::int64_t hash() const;
  std::int64_t footprint_bytes() const;  // memory this value takes
  std::int64_t ops_per_step() const;     // op instances of one rank of each class
};

// Whether products of `model` in 8 bits have the sizes that tensor cores take: multiples of 16.
bool takes_fp8(const Model& model, std::int64_t tp, std::int64_t tokens);

// Layers of a step, over all micro-batches of a replica. Each has about a hundred ops, and a second has five
// to thirteen million for the engine; runs of published size have half a million layers.
inline constexpr std::int64_t kMostLayerRuns = 1 << 24;

// Throws InputError (with `at` for its place) when the plan does not fit the model: degrees that do
// not divide, more stages than layers, a schedule that needs another vpp, more work than is walked.
void check_plan(const Model& model, const Plan& plan, const Training& training, const Cursor& at);

// The program of one training step. Precondition: check_plan passes. The estimate compiles many small ones
// and leaves out what it does not look at: without names a program can be costed but not shown, and with
// sizes alone (bytes, FLOPs, places of buffers, but no waits) neither costed nor run.
enum class Detail { kFull, kUnnamed, kSizes };
Program compile(const Model& model, const Plan& plan, const Training& training, const Stack& stack,
                Detail detail = Detail::kFull);

// "op layer3/attn/qkv of forward[chunk 0, micro-batch 5] on stage 1" for messages.
std::string describe_op(const RankClass& c, const Step& step, const Op& op);

}  // namespace orrery::program
