// SPDX-License-Identifier: Apache-2.0
#include "exec/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "core/error.h"
#include "exec/checkpoint.h"
#include "exec/checkpoint_lock.h"
#include "exec/cpu_executor.h"
#include "exec/cuda_backend.h"
#include "exec/data.h"
#include "exec/exchange.h"
#include "exec/job.h"
#include "exec/logical.h"
#include "exec/memory_checkpoint.h"
#include "exec/shared_world.h"
#include "exec/terms.h"

namespace orrery::exec {

std::string run_problem(const program::Program& program, Backend backend, orrery::Launch launch) {
  const Training& t = program.training;
  const char* const engine = backend == Backend::kCpu ? "CPU" : "CUDA";
  const char* lacks = nullptr;  // what the recipe has and the engine does not
  switch (t.precision) {
    case Precision::kAdam8bit:
    case Precision::kPureBf16Adam8bit:
      if (backend == Backend::kCuda) lacks = "8-bit moments";
      break;
    case Precision::kDeepspeedFp16:
    case Precision::kDeepspeedBf16:
      lacks = "copies of gradients beside its own";
      break;
    case Precision::kMixed:
    case Precision::kMegatron:
    case Precision::kNoMaster:
    case Precision::kPureBf16:
    case Precision::kFp32:
    case Precision::kAdamBf16:
    case Precision::kMegatronAdamBf16:
    case Precision::kPrecisionAware:
    case Precision::kPrecisionAwareBf16:
    case Precision::kSgd:
      break;
  }
  if (lacks != nullptr) {
    return fmt::format(
        "the {} engine has no {}: precision \"{}\" can be planned and simulated only (allowed: mixed, "
        "megatron, no-master, pure-bf16, fp32, adam-bf16, megatron-adam-bf16, precision-aware, "
        "precision-aware-bf16, sgd{})",
        engine, lacks, name_of(t.precision), backend == Backend::kCpu ? ", adam-8bit, pure-bf16-8bit" : "");
  }
  if (const BytesPerParameter per = bytes_per_parameter(t.precision); per.moment < 4) {
    const char* const what = t.lamb                               ? "LAMB"
                             : t.muon                             ? "Muon"
                             : program.plan.optimizer_on_drives() ? "an optimizer on drives"
                                                                  : nullptr;
    if (what != nullptr)
      return fmt::format(
          "the {} engine has no {} with narrow moments: precision \"{}\" is refused (allowed: mixed, "
          "megatron, no-master, fp32)",
          engine, what, name_of(t.precision));
  }
  if (bytes_per_parameter(t.precision).splits_master() && program.plan.islands > 1) {
    return fmt::format(
        "the {} engine has no islands with parted master copies: precision \"{}\" is refused (allowed: "
        "mixed, "
        "megatron, no-master, fp32, adam-bf16, megatron-adam-bf16)",
        engine, name_of(t.precision));
  }
  if (bytes_per_parameter(t.precision).splits_master() && t.parameter_type() != DType::kBfloat16) {
    return fmt::format(
        "the {} engine parts master copies of parameters in bf16: with precision \"{}\" math cannot be "
        "\"{}\" "
        "(allowed: bf16, and formats of 8 and 4 bits)",
        engine, name_of(t.precision), name_of(t.math));
  }
  const bool half = is_half(t.parameter_type());
  const bool tf32 = t.math == Math::kTf32 && backend == Backend::kCuda;
  const bool narrow =
      t.math == Math::kFp8 || (backend == Backend::kCpu && rounds(t.math) && t.math != Math::kFp8Delayed);
  if (half ? t.math != Math::kBf16 && t.math != Math::kFp16 && !narrow : t.math != Math::kFp32 && !tf32) {
    return fmt::format(
        "the {} engine multiplies what it stores or narrower: with precision \"{}\" math cannot be \"{}\" "
        "(allowed: {})",
        engine, name_of(t.precision), name_of(t.math),
        half && backend == Backend::kCpu ? "bf16, fp16, fp8, fp8-rowwise, fp8-blockwise, mxfp8, nvfp4"
        : half                           ? "bf16, fp16, fp8"
        : backend == Backend::kCuda      ? "fp32, tf32"
                                         : "fp32");
  }
  bool alibi = false;
  depth_of(program.model).for_each_layer([&](const auto& layer, std::int64_t) {
    if constexpr (requires { layer.positions; }) alibi = alibi || layer.positions == Positions::kAlibi;
  });
  if (alibi)
    return fmt::format("the {} engine has no ALiBi positions (allowed: learned, rotary, none)", engine);
  // Rows of scores stand in a multiprocessor's shared memory (kernels/cuda/plain_attention.cu).
  constexpr std::int64_t kLongestPacked = 25'000;
  const std::int64_t keys = t.sequence / (program.plan.rings() ? program.plan.ring() : 1);
  if (backend == Backend::kCuda && t.packs() && keys > kLongestPacked)
    return fmt::format(
        "the CUDA engine keeps attention within documents for {} keys at a time, and these are {} (allowed: "
        "shorter sequences, or a ring of ranks that share them)",
        kLongestPacked, keys);
  if (launch == orrery::Launch::kGraph && backend == Backend::kCpu)
    return "the CPU engine has no graphs: a stack with launch \"graph\" runs on GPUs (allowed: eager)";
  constexpr std::int64_t kMostRanks = 256;
  if (program.mesh.ranks() > kMostRanks) {
    return fmt::format("{} ranks as threads are more than this engine starts (allowed: {})",
                       program.mesh.ranks(), kMostRanks);
  }
  return {};
}

float learning_rate(const RunOptions& o, std::int64_t step) {
  if (step < o.warm_up) return o.learning_rate * static_cast<float>(step + 1) / static_cast<float>(o.warm_up);
  if (o.decay_to == 1.0F) return o.learning_rate;
  constexpr double kPi = 3.14159265358979323846;
  const double done = static_cast<double>(step - o.warm_up) /
                      static_cast<double>(std::max<std::int64_t>(1, o.steps - 1 - o.warm_up));
  const double share = o.decay_to + (1 - o.decay_to) * 0.5 * (1 + std::cos(kPi * std::min(1.0, done)));
  return static_cast<float>(o.learning_rate * share);
}

namespace {

void require_runnable(const program::Program& program, const RunOptions& options) {
  require_data(program.model);
  if (const std::string problem = run_problem(program, options.backend, options.launch); !problem.empty())
    throw InputError("", "/plan", problem);
}

// The state in storage to go on from, of a run that trained the same. It is not read where ranks hold one
// that is as new: `inventories`, by rank.
std::optional<RestoredState> restore(const program::Program& program, const RunOptions& options,
                                     const Dataset& data, const std::vector<std::string>& inventories,
                                     std::vector<std::string>& passed_over) {
  std::optional<RestoredState> restored;
  const auto kept = MemoryCheckpoints::newest(inventories);
  const bool as_new = kept && newest_checkpoint(options.checkpoints).value_or(0) <= *kept;
  if (options.resume && !as_new) {
    try {
      restored = restore_newest(options.checkpoints, program, passed_over);
    } catch (const Error& e) {
      if (!kept) throw;
      passed_over.emplace_back(e.what());
    }
  }
  if (!restored || options.force) return restored;
  const auto other = differences(restored->recipe, recipe_of(program, options, data));
  if (!other.empty()) {
    throw InputError(restored->index, "/recipe" + other[0].pointer,
                     fmt::format("the checkpoint was trained with {}, and this run has {}", other[0].first,
                                 other[0].second),
                     "allowed: the same, or --force to train on with another");
  }
  return restored;
}

std::unique_ptr<Executor> on_processor(const Placement& place, const RunOptions& options,
                                       Communicator& communicator, Abort& abort) {
  return std::make_unique<CpuExecutor>(place, options, communicator, abort);
}

// The data of `options`, or the built-in corpus, which `built_in` keeps.
const Dataset& data_of(const RunOptions& options, const Model& model, std::unique_ptr<Dataset>& built_in) {
  if (options.data != nullptr) return *options.data;
  built_in = built_in_data(options.seed, model);
  return *built_in;
}

}  // namespace

RunResult run(const program::Program& program, const RunOptions& options) {
  require_runnable(program, options);
  if (options.launch == orrery::Launch::kGraph && program.mesh.ranks() > 1) {
    throw InputError(
        "", "/stack/launch",
        "ranks that share a GPU exchange data as it comes, which no graph holds (allowed: eager, or "
        "a process with a GPU for each rank)");
  }
  std::unique_ptr<Dataset> built_in;
  const Dataset& data = data_of(options, program.model, built_in);
  std::optional<CheckpointLock> lock;
  if (options.saves()) lock.emplace(options.checkpoints);
  std::vector<std::string> passed_over, inventories;
  if (options.memory != nullptr) {
    for (const MemoryCheckpoints& of_rank : *options.memory) inventories.push_back(of_rank.inventory());
  }
  const std::optional<RestoredState> restored = restore(program, options, data, inventories, passed_over);
  const auto n = static_cast<std::size_t>(program.mesh.ranks());
  const ExecutorFactory make = options.backend == Backend::kCuda ? on_shared_gpu() : on_processor;
  SharedWorld world(program.mesh.ranks(), options.deadline);
  RunResult result;
  UnitShards gradients(n), parameters(n);
  // Jobs outlive all threads: on a shared GPU ranks copy from each other's memory, and one that fails first
  // must not free its own under the others.
  std::vector<std::unique_ptr<Communicator>> communicators(n);
  std::vector<std::unique_ptr<Job>> jobs(n);
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < n; ++r) {
      threads.emplace_back([&, r] {
        try {
          const auto rank = static_cast<std::int64_t>(r);
          communicators[r] = world.communicator(rank);
          jobs[r] = std::make_unique<Job>(program, options, data, rank, make, *communicators[r],
                                          world.abort(), RankIs::kThread,
                                          options.memory != nullptr ? &(*options.memory)[r] : nullptr);
          RunResult of_rank = jobs[r]->run(restored);
          gradients[r] = std::move(jobs[r]->gradients());
          parameters[r] = std::move(jobs[r]->parameters());
          if (r == 0) result = std::move(of_rank);
        } catch (const std::exception& e) {
          world.abort().raise(fmt::format("rank {}: {}", r, e.what()));
        }
      });
    }
  }
  world.abort().check();
  result.passed_over = std::move(passed_over);
  if (options.capture && !result.steps.empty()) {
    result.gradients = assemble(program, gradients);
    if (result.stopped_by == 0) result.parameters = assemble(program, parameters);
  }
  return result;
}

std::uint64_t largest_message(const program::Program& program) {
  std::uint64_t largest = Exchange::kPart;
  for (const program::RankClass& c : program.classes) {
    for (const program::Segment& segment : c.segments) {
      for (const program::Op& op : segment.ops) {
        if (!program::is_communication(op.kind)) continue;
        const program::Ref& own = op.is<program::ops::Send>() ? op.reads[0] : op.writes[0];
        const DType type = c.buffers[static_cast<std::size_t>(own.buffer)].type;
        const auto whole = static_cast<std::uint64_t>(program::elements_of(op.kind)) * bytes_of(type);
        // A sum that begins with what is there sends that too.
        largest = std::max(largest, op.accumulate ? 2 * whole : whole);
      }
    }
  }
  return largest;
}

RunResult run_rank(const program::Program& program, const RunOptions& options, std::int64_t rank,
                   Communicator& communicator, Abort& abort) {
  try {
    require_runnable(program, options);
    std::unique_ptr<Dataset> built_in;
    const Dataset& data = data_of(options, program.model, built_in);
    std::optional<CheckpointLock> lock;
    if (rank == 0 && options.saves()) lock.emplace(options.checkpoints);
    MemoryCheckpoints* const memory = options.memory != nullptr ? &options.memory->front() : nullptr;
    std::vector<std::string> passed_over;
    const std::vector<std::string> inventories =
        Exchange(communicator, rank, program.mesh.ranks())
            .all_texts("checkpoints in memory", memory != nullptr ? memory->inventory() : "[]");
    const std::optional<RestoredState> restored = restore(program, options, data, inventories, passed_over);
    const ExecutorFactory make = options.backend == Backend::kCuda ? on_own_gpu(options.gpu) : on_processor;
    RunResult result =
        Job(program, options, data, rank, make, communicator, abort, RankIs::kProcess, memory).run(restored);
    result.passed_over = std::move(passed_over);
    return result;
  } catch (const InputError& e) {
    abort.raise(fmt::format("rank {}: {}", rank, e.what()));
    throw;
  } catch (const std::exception& e) {
    throw Error(abort.raise(fmt::format("rank {}: {}", rank, e.what())));
  }
}

}  // namespace orrery::exec
