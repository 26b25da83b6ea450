// SPDX-License-Identifier: Apache-2.0
//
// The program: what the simulator costs and the executor runs.
//
// A program is segments x schedule x mesh.
//   * A *segment* is the op list of one kind of work on one model chunk (forward, backward, ...), with a
//     symbolic micro-batch. Ops are in issue order; an op of a stream runs after the stream's earlier ops.
//   * A *schedule* is, per rank class, the ordered list of (segment, micro-batch).
//   * The *mesh* maps ranks to coordinates. The ranks of one pipeline stage do the same work and form one
//     class; nothing is stored per rank or per micro-batch.
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
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mesh.h"
#include "core/model.h"
#include "core/nf4.h"
#include "core/plan.h"
#include "core/stack.h"
#include "core/timeline.h"
#include "core/training.h"
#include "program/ops.h"

namespace orrery::program {

// What a stream does: kernels, collectives of groups, one direction of the transfers between stages, one
// direction of the copies between a device and its host's memory or between that and the drives, or work of
// the host's processors.
enum class StreamRole : std::uint8_t { kKernels, kCollectives, kSends, kReceives, kCopies, kHost };
constexpr bool is_transfer(StreamRole role) {
  return role == StreamRole::kSends || role == StreamRole::kReceives;
}
constexpr bool is_offload(StreamRole role) {
  return role == StreamRole::kCopies || role == StreamRole::kHost;
}

// Ops of a stream run one after the other.
using StreamIndex = std::uint8_t;  // in Communication::streams
inline constexpr std::size_t kMostStreams = 16;
inline constexpr StreamIndex kCompute = 0, kHostStream = 9, kToHost = 10, kFromHost = 11, kToDrives = 12,
                             kFromDrives = 13;
// Of copies that go this way.
constexpr StreamIndex stream_of(ops::CopyWay way) {
  switch (way) {
    case ops::CopyWay::kToHost:
      return kToHost;
    case ops::CopyWay::kFromHost:
      return kFromHost;
    case ops::CopyWay::kToDrives:
      return kToDrives;
    case ops::CopyWay::kFromDrives:
      return kFromDrives;
  }
  return kCompute;
}
struct Stream {
  std::string name;
  StreamRole role;
  StreamIndex other_end;  // of the stage that a transfer goes to, or comes from; collectives meet on the same
};

// Ranks that communicate: along some axes of the mesh.
using GroupIndex = std::int8_t;  // in Communication::groups
inline constexpr GroupIndex kNoGroup = -1;
inline constexpr std::size_t kMostGroups = 13;
struct Group {
  std::string name;
  AxisSet axes;
  StreamIndex stream;       // of its collectives; kCompute: its members exchange transfers alone
  bool of_experts = false;  // as experts lie over the ranks, where they do otherwise than other weights
  bool meets() const { return stream != kCompute; }
};

template <class T>
struct ByGroup {
  std::array<T, kMostGroups> of{};
  T& operator[](GroupIndex g) { return of[static_cast<std::size_t>(g)]; }
  const T& operator[](GroupIndex g) const { return of[static_cast<std::size_t>(g)]; }
  // Without branches: these are compared for every plan of a search.
  friend bool operator==(const ByGroup& a, const ByGroup& b) {
    bool same = true;
    for (std::size_t i = 0; i < kMostGroups; ++i) same &= a.of[i] == b.of[i];
    return same;
  }
};

// The communication of a plan: streams and groups are numbered alike in the programs of all plans.
struct Communication {
  std::vector<Stream> streams;
  std::vector<Group> groups;

  // Transfers of one stream, with the stream at their other end, have a channel of their own.
  int channel(StreamIndex stream) const;
  // By name. Throws std::logic_error when there is none.
  StreamIndex stream(std::string_view name) const;
  GroupIndex group(std::string_view name) const;
};
Communication communication_of(const Mesh& mesh);
// How ranks are numbered, for timelines.
std::vector<Axis> axes_of(const Mesh& mesh);

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
// input-gradient segment) to its last use in a later segment of the same micro-batch. Handed on: from one
// piece of a segment to a later one, or to a collective that runs on beside the next piece. Local: inside one
// segment, or piece.
enum class Life : std::uint8_t { kStatic, kSaved, kHandedOn, kLocal };

// Whose memory a buffer stands in, or whether on the node's drives.
enum class Space : std::uint8_t { kDevice, kHost, kDrives };

inline constexpr std::int64_t kBufferAlignment = 256;  // bytes

struct Buffer {
  std::string name;
  Space space = Space::kDevice;
  BufferClass cls = BufferClass::kActivation;
  Life life = Life::kLocal;
  std::int32_t chunk = -1;  // local chunk index; -1: of the whole rank
  std::int32_t instances = 1;
  DType type = DType::kFloat32;  // of its elements
  Bytes bytes;                   // of one instance
  // Of instance 0, from the start of the rank's arena, which goes on in the host's memory where the device's
  // ends, and then on the drives.
  std::int64_t arena_offset = 0;
  std::int64_t arena_stride = 0;  // to the next instance
};

// A reference to part of a buffer. The executor adds shard_stride elements for each rank before it of those
// that share shards, of experts or of all else.
struct Ref {
  std::int32_t buffer = -1;
  std::int64_t offset = 0;        // elements
  std::int64_t shard_stride = 0;  // elements; 0: not sharded
  bool of_experts = false;
};

struct Op {
  std::string name;
  OpKind kind;
  StreamIndex stream = kCompute;
  GroupIndex group = kNoGroup;
  bool recomputed = false;  // repeats forward work
  bool accumulate = false;  // adds to the result that is there
  bool evaluates = false;   // forward work of a backward segment: passes that go forward alone do it too
  std::int32_t layer = -1;
  double flops = 0;
  Bytes traffic;                 // bytes read and written in device memory
  Bytes payload;                 // communication: bytes of the full (unsharded) tensor
  std::int32_t peer_chunk = -1;  // send/recv: the global chunk at the other end
  std::vector<Ref> reads, writes;
  std::size_t only_waits = 0;  // of the reads, the last ones: the op waits for them, its kernel reads others
  // Waits inside the segment: the op may start once stream s has completed `after[s]` of its ops of
  // this segment instance (0: no wait).
  std::array<std::int32_t, kMostStreams> after{};

  // The op as one of its types, or null where it is of another.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&kind);
  }
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(kind);
  }
  std::span<const Ref> operands() const { return std::span(reads).first(reads.size() - only_waits); }
  void wait_for(Ref r) {
    reads.push_back(r);
    ++only_waits;
  }
  bool is_transfer() const { return nature_of(kind) == ops::Nature::kTransfer; }
};

enum class SegmentKind : std::uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kOptimizer,
  kOuter  // the exchange between islands
};
constexpr std::array<const char*, 6> kSegmentNames{"forward",         "backward",  "backward-input",
                                                   "backward-weight", "optimizer", "outer"};
constexpr bool is_backward(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kBackward:
    case SegmentKind::kBackwardInput:
    case SegmentKind::kBackwardWeight:
      return true;
    case SegmentKind::kForward:
    case SegmentKind::kOptimizer:
    case SegmentKind::kOuter:
      return false;
  }
  return false;
}
// Of no chunk: it follows all of them.
constexpr bool follows_chunks(SegmentKind kind) {
  return kind == SegmentKind::kOptimizer || kind == SegmentKind::kOuter;
}

struct MemoryEvent {
  std::int32_t op = 0;  // allocated before it, or freed after it
  std::int32_t buffer = 0;
  bool allocate = true;
};

struct Segment {
  SegmentKind kind = SegmentKind::kForward;
  std::int32_t chunk = 0;         // local chunk index
  bool last_micro_batch = false;  // carries the gradient reduction
  // Where forwards and backwards run side by side, their segments are cut where ops wait for exchanges of
  // experts, and pieces of both take turns.
  std::int32_t piece = 0;
  std::vector<Op> ops;
  std::vector<MemoryEvent> memory;
  std::array<std::int32_t, kMostStreams> stream_ops{};  // ops per stream
  Bytes peak, net;                                      // live bytes relative to the start of the segment
};

// A wait on work of an earlier step: before `op`, stream `stream` must have completed `count` ops.
struct ExternalWait {
  std::int32_t op = 0;
  StreamIndex stream = kCompute;
  std::int64_t count = 0;
};

struct Step {
  std::int32_t segment = 0;
  std::int32_t micro_batch = 0;
  bool side_by_side = false;               // of a forward and a backward that take turns
  std::int32_t first_wait = 0, waits = 0;  // range in RankClass::waits
};

// How ranks keep a parameter: with a gradient and the optimizer's state; alone; or alone in 4 bits.
enum class Kept : std::uint8_t { kTrained, kFrozen, kNf4, kNf4Double };
inline constexpr std::size_t kWaysToKeep = 4;
constexpr bool is_quantised(Kept k) {
  return k == Kept::kNf4 || k == Kept::kNf4Double;
}

struct Parameter {
  std::string name;  // logical: equal in every plan
  Kept kept = Kept::kTrained;
  bool muon = false;             // it is updated by Muon
  std::int64_t muon_blocks = 1;  // so many row blocks are one matrix then
  std::int64_t rows = 0, cols = 1;
  std::vector<std::int64_t> row_blocks;  // fused matrices: each block is split over tp on its own
  enum class Split : std::uint8_t { kNone, kRows, kCols } split = Split::kNone;
  // kFanIn: uniform within 1 / sqrt(cols).
  enum class Init : std::uint8_t { kNormal, kOnes, kZeros, kFanIn } init = Init::kNormal;
  // It lies over the ranks of experts: ep ranks have some of the blocks each, etp ranks take tp's part.
  bool of_experts = false;
  bool partial_over_tp = false;  // its gradient is a partial sum on each tensor rank
  // After a step it moves by so much against the sign of its gradient, which no norm counts; 0: it is the
  // optimizer's.
  double sign_rate = 0;
  std::int64_t local_rows = 0, local_cols = 1;
  std::int64_t padding = 0;  // last rows, which only fill the tensor ranks' shares up
  std::int32_t unit = 0;     // index in RankClass::units
  std::int64_t offset = 0;   // into the unit, in its elements
  std::int64_t local_elements() const { return local_rows * local_cols; }
  Nf4Layout nf4() const { return {local_elements(), kept == Kept::kNf4Double}; }
  // Elements of its unit that it takes: bytes where it is quantised.
  std::int64_t stored_elements() const { return is_quantised(kept) ? nf4().bytes() : local_elements(); }
  bool is_vector() const { return cols == 1; }  // a norm's weight, or a bias
};

// Parameters that are stored, sharded and communicated together (a gradient bucket; a layer for ZeRO-3).
struct Unit {
  bool of_experts = false;  // as its parameters are, and kept, and updated
  Kept kept = Kept::kTrained;
  bool muon = false;
  std::int32_t parameter_buffer = -1, gradient_buffer = -1, optimizer_buffer = -1;
  std::int32_t gathered_buffer = -1;  // ZeRO-3: where it was gathered last; -1: it is not sharded
  std::int32_t full_gradient = -1;    // ZeRO-2/3: full gradient while it is being made
  // Where the host updates the unit: the rank's shard of its gradient and parameters there, with the
  // optimizer's state; and the master copy that stays on the device too, where the stack keeps one.
  std::int32_t host_gradient = -1, host_parameter = -1, device_master = -1;
  std::int32_t outer_buffer =
      -1;  // where there are islands: the anchor of the rank's shard, and its momentum
  // Where that state lies on drives: the place in the host's memory where it is updated; and the same of
  // parameters.
  std::int32_t staged_state = -1, staged_parameter = -1;
  bool on_host() const { return host_gradient >= 0; }
  std::int64_t elements = 0;  // unpadded; bytes, where its parameters are quantised
  std::int64_t padded = 0;    // a multiple of the shard group
  std::int64_t shard = 0;     // elements each rank of the group owns (padded when ZeRO is 0)
};

// What a data loader gives a stage for each sample.
struct Feed {
  // What an input of the model is made of; what the loss is taken of; and of each token the first one of its
  // document (core/documents.h).
  enum class Of : std::uint8_t { kInput, kTargets, kDocuments } of = Of::kTargets;
  std::int32_t number = 0;    // of the input; of targets, how many tokens further (Model::mtp_layers)
  std::int64_t elements = 0;  // of a sample
  std::int64_t columns = 1;   // of a row of them; tensor ranks share the columns where there are several
  DType type = DType::kInt32;
  // What a rank gets of a sample.
  std::int64_t local_elements(const Plan& p) const {
    return of == Of::kDocuments ? elements : elements / p.cp / (columns > 1 ? p.tp : 1);
  }
  std::int32_t buffer = -1;  // of the stage, with a copy for each micro-batch
};
// Of a model, its inputs first; without buffers.
std::vector<Feed> feeds_of(const Model& model, const Training& training);

struct RankClass {
  std::int32_t stage = 0;
  std::vector<std::int32_t> chunks;  // global chunk of each local chunk
  std::vector<Buffer> buffers;
  std::vector<Parameter> parameters;
  std::vector<Unit> units;
  std::vector<Segment> segments;
  std::vector<Step> steps;
  std::vector<Step> outer;  // the exchange between islands, a walk of its own after every so many steps
  std::vector<ExternalWait> waits;
  std::vector<std::int32_t> in_flight;         // per local chunk
  std::vector<Feed> feeds;                     // of the stage
  std::int32_t loss = -1, gradient_norm = -1;  // buffers; -1: the stage has none
  std::vector<std::int32_t> mtp_losses;        // of the modules of multi-token prediction, in order
  // Peak memory of a rank. `logical` is the most that is live at once; `arena` is what the engine
  // allocates; `at_peak` splits the logical peak by class.
  Bytes logical_peak, arena_peak;
  std::array<Bytes, kBufferClasses> at_peak{};
  Bytes host_bytes;   // of the arena, in the host's memory behind the device's part
  Bytes drive_bytes;  // of the arena, on the drives behind both
  // In memory; and where the part on drives begins.
  std::int64_t arena_bytes() const { return arena_peak.value + host_bytes.value; }
  std::int64_t drives_begin() const {
    return (arena_bytes() + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  }
};

// A table of rotary positions: for heads of that size. Of queries that grow with their positions nothing
// turns.
struct RotaryUse {
  Rotary rotary;
  std::int64_t head = 0;
  QueryGrowth growth;
  friend bool operator==(const RotaryUse&, const RotaryUse&) = default;
};

struct Program {
  Model model;
  Plan plan;
  Training training;
  Mesh mesh;
  Communication communication;
  std::vector<RotaryUse> rotary;   // tables that ops read
  std::int64_t rows_of_loss = 0;   // of a step of an island, which its loss is the mean of
  std::vector<RankClass> classes;  // by stage

  std::int64_t stage_of(std::int64_t rank) const { return mesh.coordinate(rank, "pp"); }

  // Of the ops with their groups and peers, the schedules, the mesh and the optimizer's constants. Ranks
  // with equal hashes run the same program.
  std::int64_t hash() const;
  std::int64_t footprint_bytes() const;  // memory this value takes
  std::int64_t ops_per_step() const;     // op instances of one rank of each class
};

// Whether products of `model` that round their operands have the sizes that tensor cores take.
bool takes_rounding(const Model& model, const Training& training, const Plan& plan);

// Layers of a step, over all micro-batches of a replica. Each has about a hundred ops, and a second has five
// to thirteen million for the engine; runs of published size have half a million layers.
inline constexpr std::int64_t kMostLayerRuns = 1 << 24;

// What is wrong with a plan, whatever the model: the field that says it.
struct PlanProblem {
  const char* field;
  std::string why, allowed;
};
// Of the ranks that share experts.
std::optional<PlanProblem> experts_problem(const Plan& plan);
// Of what lies in the hosts' memory, in the fields of `offload`; "": of the object.
std::optional<PlanProblem> offload_problem(const Plan& plan, const Training& training);
// Of modules of multi-token prediction.
std::optional<PlanProblem> mtp_problem(const Model& model, const Plan& plan);
// Of the parts that rows go through the loss in.
std::optional<PlanProblem> loss_problem(const Model& model, const Training& training, const Plan& plan);
// Of updates in the backward pass.
std::optional<PlanProblem> update_problem(const Training& training, const Plan& plan);
// Of islands.
std::optional<PlanProblem> islands_problem(const Plan& plan, const Training& training);
// Why forwards and backwards cannot run side by side as the plan says; nothing when they can, or need not.
std::string overlap_problem(const Plan& plan);
// Why ranks cannot share the model's sequences as the plan says; nothing when they can.
std::string context_problem(const Model& model, const Training& training, const Plan& plan);
// As far as the problem depends on ZeRO's shards.
bool shards_fit_experts(const Plan& plan);

// Throws InputError (with `at` for its place) when the plan does not fit the model: degrees that do
// not divide, more stages than layers, a schedule that needs another vpp, more work than is walked.
void check_plan(const Model& model, const Plan& plan, const Training& training, const Cursor& at);

// The program of one training step. Precondition: check_plan passes. The estimate compiles many small ones
// and leaves out what it does not look at: without names a program can be costed but not shown, and with
// sizes alone (bytes, FLOPs, places of buffers, but no waits) neither costed nor run.
enum class Detail { kFull, kUnnamed, kSizes };
Program compile(const Model& model, const Plan& plan, const Training& training, const Stack& stack,
                Detail detail = Detail::kFull);
// Of that program one stage's class; the classes of other stages are empty.
Program compile_stage(const Model& model, const Plan& plan, const Training& training, const Stack& stack,
                      std::int64_t stage, Detail detail);

// The exchange between islands as a program of its own, for who costs or draws it. Precondition: the plan has
// islands.
Program outer_round(Program program);

// "op layer3/attn/qkv of forward[chunk 0, micro-batch 5] on stage 1" for messages.
std::string describe_op(const RankClass& c, const Step& step, const Op& op);

}  // namespace orrery::program
