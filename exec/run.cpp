// SPDX-License-Identifier: Apache-2.0
#include "exec/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "core/error.h"
#include "exec/checkpoint.h"
#include "exec/data.h"
#include "exec/logical.h"
#include "exec/rank.h"
#include "exec/thread_world.h"

namespace orrery::exec {
namespace {

using program::Op;
using program::RankClass;

Timeline make_timeline(const program::Program& program, const std::vector<std::unique_ptr<Rank>>& ranks) {
  Timeline t;
  t.source = "measured: cpu threads";
  t.program_hash = program.hash();
  for (const char* s : program::kStreamNames) t.streams.emplace_back(s);
  for (const char* s : program::kSegmentNames) t.segments.emplace_back(s);
  Clock::time_point origin = Clock::time_point::max();
  for (const auto& r : ranks) {
    for (const auto& stream : r->measured) {
      if (!stream.empty()) origin = std::min(origin, stream.front().start);
    }
  }
  const auto since = [&](Clock::time_point p) {
    return Time{std::chrono::duration_cast<std::chrono::nanoseconds>(p - origin).count() * 1000};
  };
  std::map<std::string, std::int32_t> names;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto c = program.binding.coordinates(static_cast<std::int64_t>(r));
    t.rank_labels.push_back(fmt::format("rank {} (tp {}, dp {}, pp {})", r, c.tp, c.dp, c.pp));
    const RankClass& rank = ranks[r]->rank_class();
    for (const auto& stream : ranks[r]->measured) {
      for (const Measured& m : stream) {
        const program::Step& step = rank.steps[static_cast<std::size_t>(m.step)];
        const program::Segment& segment = rank.segments[static_cast<std::size_t>(step.segment)];
        const Op& op = segment.ops[static_cast<std::size_t>(m.op)];
        const auto [name, added] = names.try_emplace(op.name, static_cast<std::int32_t>(t.names.size()));
        if (added) t.names.push_back(op.name);
        t.slices.push_back({name->second, static_cast<std::int32_t>(segment.kind),
                            rank.chunks[static_cast<std::size_t>(segment.chunk)], step.micro_batch,
                            static_cast<std::int32_t>(r), op.stream, since(m.start), since(m.start),
                            since(m.active), since(m.end)});
      }
    }
  }
  return t;
}

}  // namespace

std::string run_problem(const program::Program& program) {
  const Precision p = program.training.precision;
  if (p != Precision::kFp32 && p != Precision::kSgd) {
    return fmt::format(
        "the CPU engine computes in fp32; precision \"{}\" can be planned and simulated only (allowed: fp32, "
        "sgd)",
        name_of(p));
  }
  if (program.training.dropout) return "the CPU engine has no dropout yet (allowed: training.dropout false)";
  if (program.model.positions == Positions::kAlibi)
    return "the CPU engine has no ALiBi positions (allowed: learned, rotary, none)";
  constexpr std::int64_t kMostRanks = 256;
  if (program.binding.ranks() > kMostRanks) {
    return fmt::format("{} ranks as threads are more than this engine starts (allowed: {})",
                       program.binding.ranks(), kMostRanks);
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

RunResult run(const program::Program& program, const RunOptions& options) {
  if (const std::string problem = run_problem(program); !problem.empty())
    throw InputError("", "/plan", problem);
  const auto n_ranks = static_cast<std::size_t>(program.binding.ranks());
  const auto n_steps = static_cast<std::size_t>(options.steps);
  const auto built_in = built_in_data(options.seed, program.model.vocab);
  const Dataset& data = options.data != nullptr ? *options.data : *built_in;
  ThreadWorld world(program.binding.ranks(), options.deadline);
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::size_t r = 0; r < n_ranks; ++r) {
    const auto rank = static_cast<std::int64_t>(r);
    communicators.push_back(world.communicator(rank));
    ranks.push_back(std::make_unique<Rank>(program, options, data, options.validation, rank,
                                           *communicators.back(), world.abort()));
  }
  struct OfRank {
    Rank::StepResult result;
    double validation_loss = 0;
    Clock::time_point begin, end;
  };
  std::vector<std::vector<OfRank>> reports(n_ranks, std::vector<OfRank>(n_steps));
  const auto on_ranks = [&](auto&& work) {
    {
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < n_ranks; ++r) {
        threads.emplace_back([&, r] {
          try {
            work(r);
          } catch (const std::exception& e) {
            world.abort().raise(fmt::format("rank {}: {}", r, e.what()));
          }
        });
      }
    }
    world.abort().check();
  };
  const auto validates = [&](std::size_t s) {
    const auto done = static_cast<std::int64_t>(s) + 1;
    return options.validate_every > 0 && options.validation != nullptr &&
           (done % options.validate_every == 0 || done == options.steps);
  };
  RunResult result;
  std::optional<RestoredState> restored;
  if (options.resume) restored = restore_newest(options.checkpoints, program, result.passed_over);
  if (restored && restored->seed != static_cast<std::int64_t>(options.seed)) {
    throw Error(
        fmt::format("the checkpoint was trained with seed {}, which orders the data; the seed here is {}",
                    restored->seed, options.seed));
  }
  on_ranks([&](std::size_t r) {
    ranks[r]->initialise();
    if (restored) ranks[r]->restore(*restored);
  });
  result.first_step = restored ? restored->step : 0;
  restored.reset();
  const auto first = static_cast<std::size_t>(std::min(result.first_step, options.steps));
  result.steps.resize(n_steps - first);
  // What all ranks say of a step.
  const auto combine = [&](std::size_t s) {
    StepReport& report = result.steps[s - first];
    auto begin = Clock::time_point::max(), end = Clock::time_point::min();
    double validation = 0, waited = 0;
    for (std::size_t r = 0; r < n_ranks; ++r) {
      const OfRank& of = reports[r][s];
      if (program.binding.coordinates(static_cast<std::int64_t>(r)).tp == 0) {
        report.loss += of.result.loss;
        validation += of.validation_loss;
      }
      waited += of.result.waited_s;
      begin = std::min(begin, of.begin);
      end = std::max(end, of.end);
    }
    const double tokens = program.training.tokens_per_step();
    report.gradient_norm = reports[0][s].result.gradient_norm;
    report.loss /= tokens;
    if (validates(s))
      report.validation_loss = validation / (tokens * static_cast<double>(options.validation_batches));
    report.seconds = std::chrono::duration<double>(end - begin).count();
    report.waiting = waited / static_cast<double>(n_ranks) / report.seconds;
    if (options.on_step) options.on_step(static_cast<std::int64_t>(s), report);
  };
  const auto saves = [&](std::size_t s) {
    const auto done = static_cast<std::int64_t>(s) + 1;
    return options.checkpoint_every > 0 && (done % options.checkpoint_every == 0 || done == options.steps);
  };
  std::mutex combining;
  std::vector<std::size_t> arrived(n_steps);
  std::map<std::size_t, std::pair<std::filesystem::path, CheckpointIndex>> saving;  // by step
  const auto save = [&](std::size_t r, std::size_t s) {
    std::unique_lock lock(combining);
    auto& [folder, index] = saving[s];
    const auto done = static_cast<std::int64_t>(s) + 1;
    if (folder.empty()) folder = begin_checkpoint(options.checkpoints, done);
    lock.unlock();
    CheckpointFile file = write_rank(folder, program, static_cast<std::int64_t>(r), ranks[r]->memory());
    lock.lock();
    index.files.push_back(std::move(file));
    if (index.files.size() < n_ranks) return;
    index.step = done;
    index.seed = static_cast<std::int64_t>(options.seed);
    finish_checkpoint(options.checkpoints, program, std::move(index));
    saving.erase(s);
  };
  on_ranks([&](std::size_t r) {
    for (std::size_t s = first; s < n_steps; ++s) {
      OfRank& report = reports[r][s];
      report.begin = Clock::now();
      report.result = ranks[r]->step(static_cast<std::int64_t>(s));
      report.end = Clock::now();
      for (std::int64_t b = 0; validates(s) && b < options.validation_batches; ++b)
        report.validation_loss += ranks[r]->evaluate(b).loss;
      if (saves(s)) save(r, s);
      const std::lock_guard lock(combining);
      if (++arrived[s] == n_ranks) combine(s);
    }
  });
  UnitShards gradients, parameters;
  for (const auto& r : ranks) {
    result.arena_bytes.push_back(r->rank_class().arena_peak.value);
    auto& by_class = result.class_bytes.emplace_back();
    for (std::size_t c = 0; c < by_class.size(); ++c) by_class[c] = r->rank_class().at_peak[c].value;
    result.waited_for_data_s = std::max(result.waited_for_data_s, r->waited_for_data_s());
    gradients.push_back(std::move(r->gradients));
    parameters.push_back(std::move(r->parameters));
  }
  if (options.capture && !result.steps.empty()) {
    result.gradients = assemble(program, gradients);
    result.parameters = assemble(program, parameters);
  }
  result.timeline = make_timeline(program, ranks);
  return result;
}

}  // namespace orrery::exec
