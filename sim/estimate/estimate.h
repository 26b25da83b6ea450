// SPDX-License-Identifier: Apache-2.0
//
// The fast path: time and peak memory of a plan without building its program. Same cost functions and
// same byte accounting as the engine; composes chunk costs (chunks.h), the pipeline's critical paths
// (pipeline.h), and per stage the gradient reduction that trails the last backward, the optimizer and
// the parameter gathers.
//
//   Estimator e(problem, topology);
//   Estimate x = e.estimate(plan);      // microseconds once its pieces are known
//
// Peak bytes equal the engine's exactly. How near the time is to the engine's,
// tests/planner/estimate_test.cpp and tests/planner/scenarios_test.cpp state.
#pragma once

#include <deque>
#include <map>
#include <optional>

#include "core/scenario.h"
#include "program/state/units.h"
#include "sim/document_loads.h"
#include "sim/estimate/pipeline.h"
#include "sim/estimate/tail.h"

namespace orrery::sim {

struct Estimate {
  Time step;          // of islands, with their share of the exchanges between them
  Time documents{0};  // that documents of unequal length add (sim/document_loads.h)
  Time exchange{0};   // between islands, after every OuterOptimizer::every steps
  Time compute;       // the step, were all samples there; the same where the scenario says nothing of loading
  Bytes peak;         // logical bytes of the stage that fills its devices most
  Bytes memory;       // of a device there
  std::int32_t fullest_stage = 0;
  friend bool operator==(const Estimate&, const Estimate&) = default;
};

// What a stage of n layers takes for a micro-batch, forward and backward: base + per_layer n, in picoseconds.
struct StageTime {
  double base = 0, per_layer = 0;
};

// Plans are best asked for in an order in which neighbours share most of their fields: what depends on the
// shared ones is kept from one call to the next.
class Estimator {
 public:
  // Estimators of several threads may share what they compile, of the same problem.
  Estimator(const Problem& problem, const Topology& topology, std::shared_ptr<Samples> samples = nullptr);

  Estimate estimate(const Plan& plan);

  // The estimate's peak, without its time.
  Estimate peak(const Plan& plan);

  // What each stage holds, and its chunks cost. At most a stage holds fixed + max(least, what its chunks'
  // work comes to in the order of the schedule).
  struct StageBytes {
    std::int64_t fixed = 0, least = 0;
    Bytes memory;                   // of a device there
    std::vector<ChunkCost> chunks;  // by local chunk
  };
  std::vector<StageBytes> stage_bytes(const Plan& plan);

  // The plan takes no less time than this; cheaper than the estimate.
  Time lower_bound(const Plan& plan);

  // What a device holds all through a step, whatever is recomputed: of the fullest stage, and of the first.
  struct HeldBytes {
    Bytes most, first;
  };
  HeldBytes held_bytes(const Plan& plan);
  // Nor has the plan fewer bytes than this: those, and what forwards leave on the first stage. Nothing is
  // priced for it.
  Bytes least_peak(const Plan& plan, const HeldBytes& held);

  // Of a plan whose pp and dp are 1: the compute of one micro-batch through all layers, nothing recomputed.
  // Plans of the same tp, micro-batch, rank order and sequence parallelism take no less time than this times
  // their micro-batches over their pp.
  Time least_work(const Plan& whole);

  // Whether stages run on different types of nodes.
  bool stages_differ(const Plan& plan);
  // Of each stage, for a micro-batch; not of interleaved chunks.
  std::vector<StageTime> stage_times(const Plan& plan);
  std::int64_t layers() const { return chunk_costs_.depth().blocks(); }

  // Bytes a rank takes of its device when its program holds `logical`: context, communicators and
  // allocator overhead of the stack on top.
  Bytes device_bytes(const Plan& plan, Bytes logical) const;
  // What the ranks of a node keep in its host's memory, each as much as the one that keeps most; of
  // activations at least as much as the plan has in flight. And the least that a host has. Likewise on
  // drives.
  struct HostMemory {
    Bytes needed, available, on_drives, drives;
    bool fits() const { return needed <= available && on_drives <= drives; }
  };
  HostMemory host_memory(const Plan& plan);

 private:
  using HardwareByStage = std::vector<StageHardware>;  // one where all stages have the same
  // One unit's work after its gradients are complete. `share`: part of its chunk's layers whose backward is
  // done by then; above 1, the chunk's whole backward.
  struct UnitCost {
    double share = 0;
    std::int64_t reduce = 0;  // beside the last backward
    std::int64_t late = 0;    // after all backwards, where the stack does not overlap
    std::int64_t norm = 0, trust = 0, optimizer = 0, gather = 0, clear = 0;
    // Of a unit that Muon updates: before its products and the update, which `optimizer` is the time of.
    std::int64_t momentum = 0, of_update = 0;
    std::int64_t ops_of_muon = 0;  // that the host launches for it beside the optimizer's
    // Of a unit that the host updates, which `optimizer` is the time of there: copies of its gradient and of
    // its parameters, the rounding of these; and what comes from drives before, and goes there after it.
    bool on_host = false, embedding_again = false;  // as program::UnitSize
    std::int64_t to_host = 0, from_host = 0, narrow = 0;
    std::int64_t state_from_drives = 0, state_to_drives = 0, shard_from_drives = 0, shard_to_drives = 0;
    std::size_t kind = 0;  // program::kind_of_weights
  };
  // A run of stages: its units, last chunk first as backwards end.
  struct StagePieces {
    std::int64_t static_bytes = 0,
                 last_static_bytes = 0;  // of the pipeline's last stage, where it is of the run
    std::int64_t end_bytes = 0;  // beside them at the end of a step: what comes of a tied weight's gradient
    Pace pace;
    std::vector<std::size_t> closing;  // units in the order in which backwards complete them
    double most = 0;    // time from the last backward to the reduced gradients' norm, at the very most
    double update = 0;  // and of the update after it
    bool uses_host = false, host_overlaps = true;  // for some of the updates; Offload::overlap
    std::int64_t host = 0;                         // to issue all of this
    std::int64_t norm_sum = 0;                     // of the norm's bins over tensor ranks and shards
    std::int64_t trust_sum = 0;  // of that, between LAMB's squares and the first unit's update
    // What reductions and tensor-parallel ops on the same links take from each other, of the time of both.
    double reduction_loss = 0, tp_loss = 0;
    std::vector<std::int64_t> reductions;  // beside backwards, by chunk
    std::vector<UnitCost> units;
    std::vector<std::size_t> chunk_end;  // index past the last unit of each chunk, in that order
  };
  // What depends on ZeRO and its shards.
  struct Pieces {
    std::int64_t zero = 0, shards = 1;
    bool reshards = true;
    std::optional<Offload> offload;
    std::vector<StagePieces> runs;
    std::int64_t tie_transfer = 0;
    std::int64_t tie_add = 0;
    // Of the norm's bins from each stage to the first, where each adds its own, and back.
    std::vector<std::int64_t> norm_up, norm_down;
    std::int64_t norm_finish = 0;
  };
  // Chunks of the plan that are alike.
  struct ChunkKind {
    Role role = Role::kMiddle;
    BlockRange blocks;         // canonical
    std::int64_t chunk = 0;    // of the model, the first of them
    std::size_t hardware = 0;  // in hardware_
    const ChunkCost* cost = nullptr;
    const PairCost* pair = nullptr;  // where forwards and backwards run side by side
    double active = 0;  // share of the step that its tensor-parallel ops are on the links of transfers
    std::array<std::optional<std::int64_t>, kChunkWorks> layers_only;  // by work, once asked for
  };

  void select(const Plan& plan);
  void set_chunk(const Plan& plan, const ChunkKind& kind);
  void set_hardware(const Plan& plan, const StageHardware& hardware);
  const Pace& pace(NodeTypes types);
  Bytes logical_peak(const StagePieces& stage, const PipelinePlace& place) const;
  void see_peak(const Plan& plan, const PipelinePlace& place, Bytes peak, Estimate& out) const;
  void split_stages(const Plan& plan);
  std::int64_t layers_only(ChunkKind& kind, ChunkWork work);
  void limit_work(const Plan& plan);
  std::int64_t limited(Time t) const;
  const Pieces& pieces(const Plan& plan);
  const Pieces& pieces_with_reductions(const Plan& plan);
  void fill_pieces(const Plan& plan, std::size_t run, StagePieces& out);
  void ranges_of_chunks(const Plan& plan, std::vector<BlockRange>& out) const;
  void look_at_stage(const Plan& plan, std::int64_t stage, std::span<const BlockRange> held);
  void hold_units(const Plan& plan);
  program::StaticBytes static_bytes(const Plan& plan) const;
  Time least_exchanged(const Plan& plan);
  void select_unsharded(const Plan& plan);
  void price_on_host(const Plan& plan, const program::UnitWork& work, NodeTypes nodes, UnitCost& u) const;
  const UnitCost& unit_cost(const Plan& plan, const program::UnitSize& size, std::size_t number,
                            const StageHardware& on);
  const HardwareByStage& hardware_by_stage(const Plan& plan);
  const Mesh& mesh(const Plan& plan);
  const StageHardware& hardware_of_run(std::size_t run) const;
  const std::vector<GroupLinks>& transfers(const Plan& plan, std::int64_t by);
  void find_hops(const Plan& plan);
  void share_links(const Plan& plan);
  void choose_path(const Plan& plan);
  PipelineShape shape_of(const Plan& plan);
  const std::vector<std::vector<program::Slot>>& listed(const ScheduleOrder& order);
  std::int64_t time_of_chunks(std::size_t run) const;
  std::int64_t host_of_chunks(std::size_t run) const;
  std::int64_t collective(CollectiveKind kind, std::int64_t bytes, std::int32_t links) const;
  std::int64_t price(const program::OpKind& kind, NodeTypes nodes) const;
  std::int64_t sum_over_parts(const Plan& plan, std::int64_t bytes, bool of_experts,
                              const StageHardware& on) const;
  void share_reductions(const Plan& plan, std::int64_t elements, const StageHardware& on,
                        StagePieces& out) const;
  struct StageEnd {
    std::int64_t reduced = 0;  // all gradients are
    std::int64_t ready = 0;    // the rank's part of the gradient norm is
    std::int64_t done = 0;     // without a norm to wait for: parameters are updated and gathered
  };
  TailEnds reduce(const StagePieces& s, std::size_t place);
  StageEnd stage_end(const StagePieces& s, std::size_t place, std::int64_t tie, std::int64_t tie_add);
  std::int64_t longer_up_to(const PipelinePlace& place) const;
  template <class After>
  void add_updates(const StagePieces& s, After after);
  void add_update(const UnitCost& u, std::int64_t after);
  // What the host's updates wait for: by unit, when the gradients that the host needs are there; and when the
  // drives have sent the last shard of parameters.
  struct HostInputs {
    std::vector<double> gradients;
    double drives_free = 0;
  };
  std::vector<double> copied_gradients(const StagePieces& s, bool has_head, double tied) const;
  // The host's updates from `start` on, with what follows them on the device; returns when the last
  // parameters are back.
  double add_host_updates(const StagePieces& s, double start, const HostInputs& inputs);
  std::int64_t updated(const StagePieces& s, std::int64_t start, const HostInputs& inputs);
  Time exchange(const Plan& plan);
  Time waits_for_documents(const Plan& plan);  // of the selected plan

  const Problem& problem_;
  const Topology& topology_;
  const program::Communication over_;
  const program::AllStateGroups state_;
  const program::StateGroups& dense_;  // of what all ranks of a stage share as tp and dp say
  const program::GroupIndex tp_, ep_, etp_, ulysses_, ring_, stages_, islands_;
  BytesPerParameter bytes_;
  const bool measured_ops_;  // some device has times of ops of some shape
  std::deque<std::pair<NodeTypes, Pace>> paces_;
  CollectiveModel collectives_;
  GroupTable groups_;
  ChunkCosts chunk_costs_;
  DocumentLoads documents_;
  std::vector<StageLoad> document_stages_;
  Pipeline pipeline_;
  std::map<std::vector<std::string>, std::vector<std::vector<program::Slot>>>
      listed_;  // by ScheduleOrder::stages
  std::map<std::array<std::int64_t, 4>, std::vector<GroupLinks>> transfers_;

  // tp, pp, dp, cp, ulysses, shards, ep, etp, order and islands of the mesh last asked for.
  std::array<std::int64_t, 10> mesh_key_{};
  Mesh mesh_;

  // Of the plan last looked at, from what changes least often to what changes most.
  std::optional<Plan> selected_;
  std::deque<std::pair<std::int64_t, HardwareByStage>> known_hardware_;  // by shards
  HardwareByStage hardware_;
  std::vector<BlockRange> held_;  // by chunk of the model
  std::vector<ChunkKind> kinds_;
  std::vector<std::size_t> places_;  // index in kinds_, by run * vpp + local chunk
  std::vector<bool> dominated_;      // by run: it cannot end the step
  std::int64_t last_run_ = 0;        // that holds the last chunk
  bool uneven_ = false;              // chunks differ in blocks, and not only the ends
  bool unequal_turns_ = false;       // of interleaved chunks: no closed form has their time
  std::vector<Pieces> pieces_;       // memory is kept from plan to plan
  std::size_t pieces_in_use_ = 0;
  ChunkKey key_;
  std::vector<Hop> hops_;             // on their own
  std::vector<ChunkCost> contended_;  // by kind, where transfers slow tensor-parallel ops
  PipelineCosts costs_;
  bool too_long_ = false;       // the plan's step is not counted; its costs are cut, so that no sum wraps
  std::vector<ChunkCost> cut_;  // then
  std::vector<PairCost> cut_pairs_;
  const PipelineTimes* times_ = nullptr;   // null until asked for
  std::int64_t least_transfer_ = 0;        // of all crossings
  std::optional<std::int64_t> least_end_;  // of the pipeline, if no crossing took longer
  struct {
    std::vector<program::ChunkBlocks> chunks;
    program::StageEnds ends;
    std::vector<program::UnitSize> units;
    std::vector<std::size_t> chunk_end;    // index past the last unit of each chunk, last chunk first
  } on_stage_;                             // last looked at
  std::vector<BlockRange> held_by_other_;  // by chunk of the model, of a plan that is not the selected one
  struct KnownUnit {
    std::int64_t elements, unit;
    bool of_experts, on_host;
    std::vector<program::Matrices> matrices;
    StageHardware hardware;
    UnitCost cost;
  };
  std::vector<KnownUnit> unit_costs_;
  std::vector<HostInputs> host_inputs_;  // by run
  std::vector<double> reduced_at_;       // by unit, if nothing came after the backward
  std::vector<std::int64_t> jobs_;       // by unit, while a tail is made
  std::vector<TailJob> tail_compute_, tail_communication_;
  std::vector<std::int64_t> reductions_;
};

}  // namespace orrery::sim
