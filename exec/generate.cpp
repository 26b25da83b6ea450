// SPDX-License-Identifier: Apache-2.0
#include "exec/generate.h"

#include <fmt/format.h>

#include <thread>

#include "exec/cpu_executor.h"
#include "exec/parameters.h"
#include "exec/shared_world.h"
#include "program/serving.h"

namespace orrery::exec {
namespace {

// One rank's passes through one of the two programs.
class Passes {
 public:
  Passes(const program::Program& program, std::int64_t rank, const RunOptions& run,
         const GenerateOptions& options, Communicator& communicator, Abort& abort)
      : place_(program, rank), executor_(place_, run, communicator, abort) {
    executor_.clear();
    write_initial(executor_, place_, options.seed, options.weights);
  }

  // Of the tokens of all sequences, one after the other, the successors of the last ones.
  std::vector<std::int32_t> run(std::span<const std::int32_t> tokens, std::int64_t cached) {
    const program::RankClass& rank = place_.rank_class;
    for (const program::Feed& f : rank.feeds) {
      if (f.of == program::Feed::Of::kInput)
        executor_.write(place_.offset({f.buffer}, 0), std::as_bytes(tokens));
    }
    executor_.run({.number = cached, .what = PassOf::kForward, .cached = cached});
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(place_.program.plan.micro_batch));
    for (const program::Feed& f : rank.feeds) {
      if (f.of == program::Feed::Of::kTargets)
        executor_.read(place_.offset({f.buffer}, 0), std::as_writable_bytes(std::span(chosen)));
    }
    return chosen;
  }

  // The caches of another program become this one's.
  void take_caches(Passes& from) {
    const auto theirs = program::cache_buffers(from.place_.rank_class);
    const auto ours = program::cache_buffers(place_.rank_class);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(place_.buffer({ours[i]}).bytes.value));
      from.executor_.read(from.place_.offset({theirs[i]}, 0), bytes);
      executor_.write(place_.offset({ours[i]}, 0), bytes);
    }
  }

 private:
  const Placement place_;
  CpuExecutor executor_;
};

Bytes cache_bytes(const program::RankClass& rank) {
  Bytes sum{0};
  for (const std::int32_t buffer : program::cache_buffers(rank))
    sum = Bytes{sum.value + rank.buffers[static_cast<std::size_t>(buffer)].bytes.value};
  return sum;
}

}  // namespace

Generated generate(const Model& model, const Plan& plan_in, const Training& training, const Stack& stack,
                   const std::vector<std::vector<std::int32_t>>& prompts, const GenerateOptions& options) {
  const auto length = static_cast<std::int64_t>(prompts.front().size());
  Plan plan = plan_in;
  plan.micro_batch = std::ssize(prompts);
  const KvCache cache{.room = length + options.tokens, .element_bytes = activation_bytes(training.precision)};
  const auto compiled = [&](std::int64_t tokens, std::int64_t cached) {
    KvCache of = cache;
    of.cached = cached;
    return program::compile(model, plan, program::pass_of(training, tokens, of), stack);
  };
  const program::Program prefill = compiled(length, 0), decode = compiled(1, length);
  std::vector<std::int32_t> first;
  for (const auto& prompt : prompts) first.insert(first.end(), prompt.begin(), prompt.end());

  Generated out;
  out.tokens.resize(prompts.size());
  out.cache = cache_bytes(decode.classes.front());
  RunOptions run;
  run.deadline = options.deadline;
  SharedWorld world(plan.tp, options.deadline), second(plan.tp, options.deadline);
  const auto answer = [&](std::int64_t rank) {
    const auto communicator = world.communicator(rank), other = second.communicator(rank);
    Passes prefills(prefill, rank, run, options, *communicator, world.abort());
    Passes decodes(decode, rank, run, options, *other, second.abort());
    std::vector<std::int32_t> tokens;
    const auto keep = [&] {
      for (std::size_t i = 0; rank == 0 && i < tokens.size(); ++i) out.tokens[i].push_back(tokens[i]);
    };
    auto began = Clock::now();
    tokens = prefills.run(first, 0);
    if (rank == 0) out.prefill_s = seconds_since(began);
    keep();
    decodes.take_caches(prefills);
    for (std::int64_t t = 1; t < options.tokens; ++t) {
      began = Clock::now();
      tokens = decodes.run(tokens, length + t - 1);
      if (rank == 0) out.decode_s.push_back(seconds_since(began));
      keep();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::int64_t rank = 0; rank < plan.tp; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          answer(rank);
        } catch (const std::exception& e) {
          const std::string reason = fmt::format("rank {}: {}", rank, e.what());
          world.abort().raise(reason);
          second.abort().raise(reason);
        }
      });
    }
  }
  world.abort().check();
  second.abort().check();
  return out;
}

}  // namespace orrery::exec
