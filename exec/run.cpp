// SPDX-License-Identifier: Apache-2.0
#include "exec/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "core/error.h"
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

RunResult run(const program::Program& program, const RunOptions& options) {
  if (const std::string problem = run_problem(program); !problem.empty())
    throw InputError("", "/plan", problem);
  const auto n_ranks = static_cast<std::size_t>(program.binding.ranks());
  const auto n_steps = static_cast<std::size_t>(options.steps);
  ThreadWorld world(program.binding.ranks(), options.deadline);
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::size_t r = 0; r < n_ranks; ++r) {
    const auto rank = static_cast<std::int64_t>(r);
    communicators.push_back(world.communicator(rank));
    ranks.push_back(std::make_unique<Rank>(program, options, rank, *communicators.back(), world.abort()));
  }
  std::vector<std::vector<Rank::StepResult>> results(n_ranks, std::vector<Rank::StepResult>(n_steps));
  std::vector<std::vector<Clock::time_point>> ends(n_ranks, std::vector<Clock::time_point>(n_steps));
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
  on_ranks([&](std::size_t r) { ranks[r]->initialise(); });
  const auto begin = Clock::now();
  on_ranks([&](std::size_t r) {
    for (std::size_t s = 0; s < n_steps; ++s) {
      results[r][s] = ranks[r]->step(static_cast<std::int64_t>(s));
      ends[r][s] = Clock::now();
    }
  });

  RunResult result;
  auto last = begin;
  for (std::size_t s = 0; s < n_steps; ++s) {
    StepReport report;
    auto end = last;
    for (std::size_t r = 0; r < n_ranks; ++r) {
      if (program.binding.coordinates(static_cast<std::int64_t>(r)).tp == 0)
        report.loss += results[r][s].loss;
      end = std::max(end, ends[r][s]);
    }
    report.gradient_norm = results[0][s].gradient_norm;
    report.loss /= program.training.tokens_per_step();
    report.seconds = std::chrono::duration<double>(end - last).count();
    last = end;
    result.steps.push_back(report);
  }
  UnitShards gradients, parameters;
  for (const auto& r : ranks) {
    result.arena_bytes.push_back(r->rank_class().arena_peak.value);
    gradients.push_back(std::move(r->gradients));
    parameters.push_back(std::move(r->parameters));
  }
  if (options.capture) {
    result.gradients = assemble(program, gradients);
    result.parameters = assemble(program, parameters);
  }
  result.timeline = make_timeline(program, ranks);
  return result;
}

}  // namespace orrery::exec
