// SPDX-License-Identifier: Apache-2.0
//
// One rank of a running program, apart from who executes its ops: what its memory begins with, the data and
// numbers of each step, and what is read back. Internal to exec/.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "core/limits.h"
#include "exec/checkpoint.h"
#include "exec/data.h"
#include "exec/executor.h"
#include "exec/gradient_norm.h"
#include "exec/logical.h"
#include "exec/loss_scale.h"
#include "exec/saving.h"

namespace orrery::exec {

class Rank {
 public:
  // `validation` may be null.
  Rank(const program::Program& program, const RunOptions& options, const Dataset& training,
       const Dataset* validation, std::int64_t rank, const ExecutorFactory& make, Communicator& communicator,
       Abort& abort);

  // Fills the arena: parameters, and zeros.
  void initialise();
  struct StepResult {
    double loss = 0;  // sum over this rank's tokens on the last stage, zero elsewhere
    std::array<double, limits::kMostMtpLayers> mtp_loss{};  // likewise, of modules of multi-token prediction
    double gradient_norm = 0;  // of all gradients, before clipping; zero when it is not measured
    double loss_scale = 0;     // zero when the loss is not scaled
    bool skipped = false;      // gradients overflowed: no parameter was changed
    double waited_for_data_s = 0;
    std::uint32_t batch = 0;  // checksum of the tokens that it loaded; zero on stages that see no data
    PassTimes times;
  };
  // Parameters and optimizer state from a checkpoint, in place of the initial ones.
  void restore(const RestoredState& state);
  // For a checkpoint: in copies, or as it stands where this is memory of the processor, until the next step.
  Snapshot snapshot(bool copied);
  const LossScale& loss_scale() const { return loss_scale_; }
  // Runs a training step.
  StepResult step(std::int64_t number);
  // Runs only the forward work of a step, on a batch of the validation data.
  StepResult evaluate(std::int64_t batch);
  // Of a program of one rank. The gradients of a batch, by the parameters that are there, in fp32, nothing of
  // frozen units; an update by gradients from elsewhere; and parameters as they are stored.
  using StoredUnits = std::vector<std::vector<std::byte>>;
  StepResult compute_gradients(std::int64_t number, UnitShard& units);
  StepResult update(std::int64_t number, const UnitShard& units);
  void read_parameters(StoredUnits& out);
  void write_parameters(const StoredUnits& from);
  // Seconds that steps waited for their data.
  double waited_for_data_s() const { return loader_ ? loader_->waited_s() : 0; }
  Executor& executor() { return *executor_; }

  UnitShard gradients, parameters;  // captured
  // Of the sequences that this rank has loaded to train on: of the pairs of tokens that causal attention
  // sees, the share that lies within documents.
  struct PairShares {
    std::int64_t sequences = 0;
    double sum = 0, squares = 0;  // of the shares of sequences
  } pair_shares;
  // By block and expert: tokens of all steps that this rank counts, so that the sum over ranks has each once.
  std::map<std::int32_t, std::vector<std::int64_t>> expert_tokens;
  // Of the last step, where it was measured: tokens of experts, of each layer and micro-batch that this rank
  // counts, in the order of its work; of the micro-batches that program::counted_micro_batches() says.
  std::vector<std::vector<std::int32_t>> choices;

 private:
  std::int64_t moments(std::size_t index) const;
  void load(Loader* loader, std::int64_t number);
  void load_values(const program::Feed& f, const std::vector<float>& values);
  StepResult run(const Pass& pass);
  bool exchanges_after(std::int64_t done) const;
  void count_pairs(std::span<const std::int32_t> first_of_document);
  void count(const program::Op& route, std::int32_t micro_batch, std::span<const std::int32_t> tokens);
  void capture(std::size_t unit, const program::Ref& from, double scale, UnitShard& into);

  const program::Program& program_;
  const RunOptions& options_;
  Placement place_;
  const program::RankClass& class_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Loader> loader_, validation_;  // null on stages that see no data
  LossScale loss_scale_;
  std::int64_t counted_ = 0;  // micro-batches whose choices are kept
  bool stepped_ = false;
  std::uint32_t batch_ = 0;
  std::vector<std::int32_t> own_tokens_;  // of a micro-batch
  std::vector<std::byte> stored_;         // of a unit
};

}  // namespace orrery::exec
