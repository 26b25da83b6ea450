// SPDX-License-Identifier: Apache-2.0
#include "program/state/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace orrery::program {
namespace {

class OptimizerSegment {
 public:
  OptimizerSegment(Emitter& e, StageParameters& state, const Communication& over)
      : e_(e),
        state_(state),
        over_(over),
        up_send_(over.stream("pp-grad-send")),
        up_recv_(over.stream("pp-grad-recv")),
        down_send_(over.stream("pp-send")),
        down_recv_(over.stream("pp-recv")) {
    for (std::int32_t i = 0; i < std::ssize(e.rank.units); ++i) {
      if (state.trains(i) && !state.updates_in_backward(i)) units_.push_back(i);
    }
  }

  void emit() {
    e_.begin(SegmentKind::kOptimizer, 0, true);
    if (!e_.stack.overlap_grad_reduce) reduce_late();
    exchange_tied();
    std::vector<Ref> factors;  // that updates read
    if (e_.training.scales_tensors() || e_.training.measures_norm()) factors = emit_factors();
    update_on_host();
    update_on_device(factors);
    for (const std::int32_t i : units_) {
      if (state_.unit(i).on_host()) take_from_host(i);
    }
  }

 private:
  std::string name(std::int32_t unit, const char* of) const { return fmt::format("unit{}{}", unit, of); }

  // Not before all gradients are there.
  void reduce_late() {
    for (const std::int32_t i : units_) state_.reduce(i);
    std::vector<Op>& ops = e_.rank.segments.back().ops;
    if (ops.empty()) return;
    for (const std::int32_t i : units_) ops.front().wait_for({state_.unit(i).gradient_buffer});
  }

  // Sums the gradient shards of the tied weight held by the first and by the last stage.
  void exchange_tied() {
    if (state_.tied_across() < 0 || !state_.trains(state_.tied_across())) return;
    const Unit& u = state_.unit(state_.tied_across());
    const bool first = state_.ends().first;
    const std::int64_t peer = first ? e_.plan.pp * e_.plan.vpp - 1 : 0;
    const std::int64_t bytes = bytes_per_parameter(e_.training.precision).gradient;
    const Ref own = state_.gradient_shard(u);
    const std::int32_t received =
        e_.activation("embedding/tie/received", u.shard, e_.training.gradient_type());
    e_.send("embedding/tie/send", first ? down_send_ : up_send_, peer, own, u.shard, bytes);
    e_.receive("embedding/tie/recv", first ? up_recv_ : down_recv_, peer, {received}, u.shard, bytes);
    e_.add(ops::Accumulate{u.shard, bytes}, "embedding/tie/add", {{received}, own}, {own});
  }

  std::vector<Ref> emit_factors() {
    std::vector<Ref> norm, out;
    if (e_.training.measures_norm()) norm.push_back(emit_gradient_norm());
    if (e_.training.scales_tensors()) out.push_back(emit_trust_ratios(norm));
    out.insert(out.end(), norm.begin(), norm.end());
    return out;
  }

  // The global gradient norm: squares of every unit's shard in exact bins, summed over tensor ranks and
  // shards, then stage by stage up to the first and back down. What several ranks hold alike is counted once.
  Ref emit_gradient_norm() {
    const Ref norm{state_.buffer(Held::kGradientNorm)}, bins{state_.buffer(Held::kGradientNormBins)};
    const bool apart =
        std::any_of(units_.begin(), units_.end(), [&](std::int32_t i) { return state_.unit(i).of_experts; });
    const std::array<Ref, kWeightKinds> bins_of{bins,
                                                {apart ? state_.buffer(Held::kExpertNormBins) : bins.buffer}};
    std::array<bool, kWeightKinds> began{};
    for (const std::int32_t i : units_) {
      if (i == state_.tied_across() && !state_.ends().first) continue;
      const Unit& u = state_.unit(i);
      const std::size_t kind = kind_of_weights(u.of_experts);
      e_.add(state_.work(i).norm, name(i, "/norm"), {state_.gradient_shard(u)}, {bins_of[kind]}).accumulate =
          std::exchange(began[kind], true);
    }
    if (!began[kind_of_weights(false)])
      e_.add(ops::ZeroGrad{kNormBins, 8}, "gradient-norm/clear", {}, {bins});
    sum_over_parts("gradient-norm", bins, kNormBins, false);
    if (apart) {
      const Ref of_experts = bins_of[kind_of_weights(true)];
      sum_over_parts("gradient-norm/experts", of_experts, kNormBins, true);
      e_.add(ops::Accumulate{kNormBins, 8}, "gradient-norm/add-experts", {of_experts, bins}, {bins});
    }
    sum_over_stages(bins);
    e_.add(ops::NormFinish{}, "gradient-norm", {bins}, {norm});
    return norm;
  }

  // Sums bins over all ranks that hold parts of this one's tensors of a kind.
  void sum_over_parts(const std::string& of, Ref bins, std::int64_t elements, bool of_experts) {
    const StateGroups& groups = state_.groups().of(of_experts);
    for (const GroupIndex group : parts_of_tensors(e_.plan, state_.groups(), of_experts)) {
      const std::string along =
          group == groups.shard ? "shards" : over_.groups[static_cast<std::size_t>(group)].name;
      e_.collective({CollectiveKind::kAllReduce, elements}, fmt::format("{}/{}/all-reduce", of, along), group,
                    8, {bins}, {bins});
    }
  }

  void sum_over_stages(Ref bins) {
    // The first chunk of each stage is numbered as the stage.
    const std::int32_t stage = e_.rank.stage;
    const bool above = stage > 0, below = !state_.ends().last_stage;
    if (below) {
      const Ref received{state_.buffer(Held::kGradientNormReceived)};
      e_.receive("gradient-norm/up/recv", up_recv_, stage + 1, received, kNormBins, 8);
      e_.add(ops::Accumulate{kNormBins, 8}, "gradient-norm/add", {received, bins}, {bins});
    }
    if (above) {
      e_.send("gradient-norm/up/send", up_send_, stage - 1, bins, kNormBins, 8);
      e_.receive("gradient-norm/down/recv", down_recv_, stage - 1, bins, kNormBins, 8);
    }
    if (below) e_.send("gradient-norm/down/send", down_send_, stage + 1, bins, kNormBins, 8);
  }

  // Of each tensor the norm of its weights over that of Adam's update of them, or of its gradient. What
  // tensor ranks hold alike is in both sums as often.
  Ref emit_trust_ratios(const std::vector<Ref>& norm) {
    const auto tensors = std::ssize(e_.rank.parameters);
    const Ref ratios{state_.buffer(Held::kTrustRatios)}, bins{state_.buffer(Held::kTrustRatioBins)};
    e_.add(ops::ZeroGrad{tensors * kTrustBins, 8}, "trust-ratio/clear", {}, {bins});
    for (const std::int32_t i : units_)
      e_.add(state_.work(i).trust, name(i, "/trust-ratio"), state_.reads_of_update(i, norm), {bins});
    sum_over_parts("trust-ratio", bins, tensors * kTrustBins, false);
    e_.add(ops::TrustRatio{tensors}, "trust-ratio", {bins}, {ratios});
    return ratios;
  }

  // Gathers of what Muon updates a unit by run beside the updates of the unit before.
  void update_on_device(const std::vector<Ref>& factors) {
    std::optional<MuonStep> gathering;
    const auto end = [&](std::optional<MuonStep> step) {
      if (step) update_by_muon(*step, factors);
    };
    for (const std::int32_t i : units_) {
      if (state_.unit(i).on_host()) continue;
      if (!state_.unit(i).muon) {
        state_.update(i, factors);
        continue;
      }
      const MuonStep step = begin_muon(i, factors);
      if (step.gathers)
        end(std::exchange(gathering, step));
      else
        end(step);
    }
    end(gathering);
  }

  // A unit whose momentum has moved: U, and all tensor ranks' parts of it where they compute with whole
  // matrices.
  struct MuonStep {
    std::int32_t unit = -1;
    std::int32_t update = -1, parts = -1;  // buffers
    Ref shard{};
    bool gathers = false;
  };

  MuonStep begin_muon(std::int32_t i, const std::vector<Ref>& factors) {
    const Unit& u = state_.unit(i);
    const UnitWork work = state_.work(i);
    const DType type = e_.training.muon_type();
    MuonStep step{.unit = i,
                  .update = e_.activation(name(i, "/update"), u.padded, type),
                  .gathers = !work.of_update.empty()};
    step.shard = {step.update, 0, u.padded > u.shard ? u.shard : 0, u.of_experts};
    std::vector<Ref> reads{state_.gradient_shard(u), {u.optimizer_buffer}};
    reads.insert(reads.end(), factors.begin(), factors.end());
    e_.add(work.momentum, name(i, "/muon-momentum"), std::move(reads), {step.shard, {u.optimizer_buffer}});
    for (const UnitExchange& x : work.of_update) {
      Ref from = step.shard, to{step.update};
      if (x.op.elements > u.padded) {  // over tensor ranks: of all their parts, not of one's shards
        step.parts = e_.activation(name(i, "/update/parts"), x.op.elements, type);
        from = to;
        to = {step.parts};
      }
      e_.collective(x.op, name(i, x.name), x.group, x.element_bytes, {from}, {to});
    }
    return step;
  }

  void update_by_muon(const MuonStep& step, const std::vector<Ref>& factors) {
    const Unit& u = state_.unit(step.unit);
    const UnitWork work = state_.work(step.unit);
    for (const ops::Orthogonalise& op : work.orthogonalise) {
      const std::string called = fmt::format("unit{}/orthogonalise/{}x{}", step.unit, op.rows, op.columns);
      const Ref scratch{e_.activation(called + "/scratch", op.scratch().elements, e_.training.muon_type())};
      e_.add(op, called, {{step.parts >= 0 ? step.parts : step.update}}, {{step.update}, scratch});
    }
    std::vector<Ref> reads{step.shard, state_.parameter_shard(u), {u.optimizer_buffer}};
    reads.insert(reads.end(), factors.begin(), factors.end());
    e_.add(work.muon_update, name(step.unit, "/muon-update"), std::move(reads),
           {state_.parameter_shard(u), {u.optimizer_buffer}});
    state_.finish_update(step.unit);
  }

  // Gradients go to the host unit by unit, which need not wait for the norm; the host fetches that, updates,
  // and parameters come back.
  void update_on_host() {
    std::vector<std::int32_t> units;
    for (const std::int32_t i : units_) {
      if (state_.unit(i).on_host()) units.push_back(i);
    }
    if (units.empty()) return;
    const BytesPerParameter bytes = bytes_per_parameter(e_.training.precision);
    const bool overlap = e_.plan.offload->overlap;
    for (const std::int32_t i : units) {
      const Unit& u = state_.unit(i);
      Op& op = e_.copy({u.shard, bytes.gradient, ops::CopyWay::kToHost}, name(i, "/gradient/to-host"),
                       state_.gradient_shard(u), {u.host_gradient});
      if (overlap || i != units.front()) continue;
      for (const std::int32_t other : units) op.wait_for({state_.unit(other).gradient_buffer});
    }
    std::vector<Ref> norm;
    if (e_.training.measures_norm()) {
      norm.push_back({state_.buffer(Held::kHostGradientNorm)});
      // Not behind gradients that are still on their way.
      e_.copy({kNormBytes, 1, ops::CopyWay::kToHost}, "gradient-norm/to-host",
              {state_.buffer(Held::kGradientNorm)}, norm.front())
          .stream = kHostStream;
    }
    std::int32_t before = -1;  // the unit that drives had before
    for (const std::int32_t i : units) {
      const Unit& u = state_.unit(i);
      const bool drives = u.staged_state >= 0, all = u.staged_parameter >= 0;
      const Ref state{drives ? u.staged_state : u.optimizer_buffer},
          parameter{all ? u.staged_parameter : u.host_parameter};
      const ops::Copy of_state{u.shard, bytes.optimizer()}, of_parameter{u.shard, bytes.parameter};
      const auto drive = [&](ops::Copy copy, ops::CopyWay way, const char* of, Ref from, Ref to) -> Op& {
        copy.way = way;
        return e_.copy(copy, name(i, of), from, to);
      };
      if (drives) {
        Op& read =
            drive(of_state, ops::CopyWay::kFromDrives, "/state/from-nvme", {u.optimizer_buffer}, state);
        if (all && !overlap && before >= 0) read.wait_for({state_.unit(before).parameter_buffer});
        before = i;
      }
      // With a master copy the update makes parameters of that alone.
      if (all && bytes.master == 0)
        drive(of_parameter, ops::CopyWay::kFromDrives, "/parameter/from-nvme", {u.parameter_buffer},
              parameter);
      std::vector<Ref> reads{{u.host_gradient}, parameter, state};
      reads.insert(reads.end(), norm.begin(), norm.end());
      Op& op = e_.add(state_.work(i).optimizer, name(i, "/optimizer"), std::move(reads), {parameter, state});
      op.stream = kHostStream;
      if (!overlap && i == units.front()) op.wait_for({state_.unit(units.back()).host_gradient});
      if (drives) drive(of_state, ops::CopyWay::kToDrives, "/state/to-nvme", state, {u.optimizer_buffer});
      if (all)
        drive(of_parameter, ops::CopyWay::kToDrives, "/parameter/to-nvme", parameter, {u.parameter_buffer});
    }
    if (e_.plan.offloads_parameters()) return;
    for (const std::int32_t i : units) {
      const Unit& u = state_.unit(i);
      Op& op = u.device_master >= 0
                   ? e_.copy({u.shard, 4, ops::CopyWay::kFromHost}, name(i, "/master/from-host"),
                             {u.optimizer_buffer}, {u.device_master})
                   : e_.copy({u.shard, bytes.parameter, ops::CopyWay::kFromHost},
                             name(i, "/parameter/from-host"), {u.host_parameter}, state_.parameter_shard(u));
      if (!overlap && i == units.front()) op.wait_for({state_.unit(units.back()).host_parameter});
    }
  }

  void take_from_host(std::int32_t i) {
    const Unit& u = state_.unit(i);
    if (u.device_master >= 0)
      e_.add(ops::Narrow{u.shard}, name(i, "/narrow"), {{u.device_master}}, {state_.parameter_shard(u)});
    state_.finish_update(i);
  }

  Emitter& e_;
  StageParameters& state_;
  const Communication& over_;
  // Towards the first stage, and towards the last one.
  const StreamIndex up_send_, up_recv_, down_send_, down_recv_;
  std::vector<std::int32_t> units_;  // that are trained, but for those that the backward pass updates
};

}  // namespace

void emit_optimizer(Emitter& e, StageParameters& state, const Communication& over) {
  OptimizerSegment(e, state, over).emit();
}

}  // namespace orrery::program
