// SPDX-License-Identifier: Apache-2.0
//
// Runs a program for real: ranks are threads or processes, each with an arena and a thread for every stream
// of its program.
//
//   const auto program = program::compile(model, plan, training, stack);
//   RunResult r = run(program, {.steps = 3});
//   r.steps[0].loss; r.timeline; r.arena_bytes[rank];
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/run_life.h"
#include "core/stack.h"
#include "core/timeline.h"
#include "exec/data.h"
#include "exec/emulated_link.h"
#include "program/program.h"

namespace orrery::exec {

class MemoryCheckpoints;
struct Weights;

struct StepReport {
  double loss = 0;               // mean over the tokens of the global batch
  std::vector<double> mtp_loss;  // likewise, of each module of multi-token prediction, unscaled
  double gradient_norm = 0;      // before clipping; 0 when the training does not clip
  double seconds = 0;            // without validation
  double loss_scale = 0;         // that the step used; 0 when the loss is not scaled (only fp16 needs it)
  bool skipped = false;          // gradients overflowed: no parameter was changed
  // Why the checkpoint of a step, this or an earlier one, was not written; empty: it was, or none was due.
  std::string unsaved;
  std::int64_t unsaved_step = 0;  // steps that it would have had done
  bool saved = false;             // a checkpoint was due after the step
  double saving_s = 0;            // that ranks waited for checkpoints after the step
  bool kept = false;              // a checkpoint in memory was due
  double keeping_s = 0;           // that ranks took for it
  double validating_s = 0;        // and for the validation
  // Where a checkpoint that was written beside steps can be read by now: since ranks went on.
  std::optional<double> settled_s;
  double waiting = 0;            // share of the step in which compute waited for other ranks, mean over ranks
  double waited_for_data_s = 0;  // of the rank that waited longest for its batch
  double validation_loss = -1;   // below zero: not validated after this step

  void set_unsaved(std::int64_t step, std::string why) {
    unsaved = std::move(why);
    unsaved_step = step;
  }
};

// What executes the ops of a rank.
enum class Backend : std::uint8_t { kCpu, kCuda };
constexpr auto enum_names(Backend) {
  return std::array{std::pair{Backend::kCpu, "cpu"}, std::pair{Backend::kCuda, "cuda"}};
}

struct RunOptions {
  Backend backend = Backend::kCpu;
  int gpu = 0;                       // of a rank that is a process
  std::filesystem::path gemm_cache;  // CUDA: a file of what runs products, read and written; empty: none
  std::int64_t local_ranks = 0;      // on this host; 0: all
  orrery::Launch launch =
      orrery::Launch::kEager;  // kGraph: a step is launched at once; CUDA, where a rank has a GPU alone
  std::int64_t steps = 1;
  std::uint64_t seed = 1;            // of weights and of the order of data
  const Weights* weights = nullptr;  // that it starts from; null: those of the seed
  float learning_rate = 1e-3F;
  std::int64_t warm_up = 0;             // steps over which the rate grows to learning_rate
  float decay_to = 1.0F;                // of learning_rate at the last step, along half a cosine
  const Dataset* data = nullptr;        // null: the built-in corpus
  LoaderOptions loader;                 // of the data that it trains on
  const Dataset* validation = nullptr;  // for validate_every
  std::int64_t validate_every = 0;      // steps; 0: never. After the last step too
  std::int64_t validation_batches = 8;
  std::filesystem::path checkpoints;  // folder; empty: none are written
  // A checkpoint after so many steps, or after the first step that ends so many seconds after the last one;
  // after the last step too. Both 0: none is written.
  std::int64_t checkpoint_every = 0;
  double checkpoint_seconds = 0;
  std::int64_t keep_checkpoints = 3;  // the newest; 0: all
  // Ranks copy their state and write it beside the steps that follow. The next checkpoint, and the end of the
  // run, wait for it.
  bool async_checkpoints = false;
  // Checkpoints in memory (exec/memory_checkpoint.h): of each rank that is a thread; or of the one that this
  // process is. Null: none. They outlive the run, and the next start goes on from them.
  std::vector<MemoryCheckpoints>* memory = nullptr;
  std::int64_t memory_every = 0;  // steps; after the last step too
  bool resume = false;            // from the newest whole checkpoint of the folder, when there is one
  bool force = false;             // even where the checkpoint trained something else
  bool saves() const { return checkpoint_every > 0 || checkpoint_seconds > 0; }
  float weight_decay = 0.0F;
  double loss_scale = 65536;              // the first; only fp16 needs one
  std::int64_t loss_scale_window = 2000;  // steps without overflow after which it doubles
  // As soon as all ranks have done a step: told to rank 0, and to every rank that is a process. Only rank 0
  // knows why a checkpoint was not written.
  std::function<void(std::int64_t step, const StepReport&)> on_step;
  // The signal that asks this rank to stop; 0: none does. All ranks stop after the step in which one is
  // asked, with a checkpoint where there is a folder for it.
  std::function<int()> stop;
  Algorithm collectives = Algorithm::kDirect;  // of all-reduces and their like
  LinkOptions link;                            // emulated between ranks
  std::filesystem::path nvme;   // folder for what plans keep on drives; empty: that of temporary files
  Bandwidth nvme_bandwidth{0};  // emulated, of a rank and direction; zero: it is not
  Bandwidth host_link{0};       // emulated between a rank's device and its host's memory; zero: it is not
  // Ranks whose compute is slower than it is: by rank, the factor on the time of every compute op.
  std::map<std::int64_t, double> slow;
  // A slower device than this machine: seconds that a compute op takes at least. Null: as fast as it goes.
  std::function<double(const program::Op&)> device;
  // That are injected: a rank dies or freezes where it begins a step, or cannot write its part of a
  // checkpoint (exec/fault.h).
  std::vector<Fault> faults;
  bool timeline = true;    // measure when ops run; off, to see what measuring costs
  bool timelines = false;  // keep those of all steps but the first, which pays for warming up
  // Where sequences are packed from documents: the token that ends one in the data. None: where they end is
  // drawn from the lengths of Training::documents.
  std::optional<std::int32_t> end_token;
  bool capture = false;      // keep gradients and final parameters as logical tensors
  bool expert_load = false;  // count the tokens of experts; on the CPU
  std::chrono::milliseconds deadline{60000};
};

// Whole tensors by logical name, whatever the plan split them into.
using LogicalTensors = std::map<std::string, std::vector<float>>;

struct RunResult {
  std::int64_t first_step = 0;           // steps that the checkpoint had done
  bool from_memory = false;              // where it was
  std::vector<std::string> passed_over;  // what is wrong with checkpoints newer than that
  int stopped_by = 0;  // the signal that ended it before its last step; the same on all ranks
  std::vector<StepReport> steps;
  std::vector<std::int64_t> arena_bytes;  // by rank
  std::vector<std::int64_t> host_bytes;   // by rank: what its arena has in the host's memory
  std::vector<std::int64_t> drive_bytes;  // by rank: and on the host's drives
  // By rank: memory beside the arena that ops and communication worked in.
  std::vector<std::int64_t> scratch_bytes;
  // By rank: bytes of each class where the most are live (program::kBufferClassNames).
  std::vector<std::array<std::int64_t, program::kBufferClasses>> class_bytes;
  double waited_for_data_s = 0;  // the longest of any rank
  // What is odd, a sentence each: equal seeds, late data, slow ranks, checkpoints that were not removed, ...
  std::vector<std::string> alerts;
  Timeline timeline;                // of the last step
  std::vector<Timeline> timelines;  // by step, the first that was run left out; only where asked for
  // Tokens of all steps by block with experts, in order, and expert; only where asked for.
  std::vector<std::vector<std::int64_t>> expert_tokens;
  LogicalTensors gradients;   // of the first step, as the optimizer saw them
  LogicalTensors parameters;  // after the last step; none where a signal came before it
};

// Why this program cannot run on a backend; empty when it can.
std::string run_problem(const program::Program& program, Backend backend,
                        orrery::Launch launch = orrery::Launch::kEager);

// The learning rate of a step.
float learning_rate(const RunOptions& options, std::int64_t step);

// All ranks as threads of this process. Throws Error when a rank fails or the deadline passes.
RunResult run(const program::Program& program, const RunOptions& options);

// Bytes of the most that a rank of the program tells another at a time, in its ops or beside them.
std::uint64_t largest_message(const program::Program& program);

// One rank, which this process is; the others run the same program. What it returns is whole on rank 0;
// nothing is captured.
class Communicator;
class Abort;
RunResult run_rank(const program::Program& program, const RunOptions& options, std::int64_t rank,
                   Communicator& communicator, Abort& abort);

}  // namespace orrery::exec
