// SPDX-License-Identifier: Apache-2.0
#include "exec/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <thread>

#include "core/error.h"
#include "exec/communicator.h"
#include "exec/cpu_ops.h"
#include "exec/logical.h"

namespace orrery::exec {
namespace {

using program::Group;
using program::Op;
using program::OpKind;
using program::RankClass;
using program::Ref;

struct AlignedFree {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{256}); }
};
using Arena = std::unique_ptr<std::byte[], AlignedFree>;

struct Measured {
  std::int32_t step, op;
  Clock::time_point start, active, end;
};

class RankRunner {
 public:
  RankRunner(const program::Program& program, const RunOptions& options, std::int64_t rank,
             Communicator& communicator)
      : program_(program),
        options_(options),
        at_(program.binding.coordinates(rank)),
        class_(program.classes[static_cast<std::size_t>(at_.pp)]),
        communicator_(communicator),
        arena_(static_cast<std::byte*>(
            ::operator new[](static_cast<std::size_t>(class_.arena_peak.value), std::align_val_t{256}))) {
    std::memset(arena_.get(), 0, static_cast<std::size_t>(class_.arena_peak.value));
    for (const Group g : {Group::kTp, Group::kDp, Group::kShard, Group::kReplica}) {
      members_[static_cast<std::size_t>(g)] = program.binding.members(g, rank);
    }
    initialise();
  }

  // Returns the sum of the losses of this rank's tokens (last stage), zero elsewhere.
  double step(std::int64_t number) {
    load_data(number);
    double* loss = loss_slot();
    if (loss != nullptr) *loss = 0;
    const bool record = number + 1 == options_.steps;
    const bool capture = options_.capture && number == 0;
    for (std::size_t i = 0; i < class_.steps.size(); ++i) {
      const program::Step& step = class_.steps[i];
      const auto& ops = class_.segments[static_cast<std::size_t>(step.segment)].ops;
      for (std::size_t o = 0; o < ops.size(); ++o) {
        if (capture && ops[o].kind == OpKind::kOptimizer) capture_shard(ops[o], ops[o].reads[0], gradients);
        const auto start = Clock::now();
        const auto active = execute(ops[o], step.micro_batch, number);
        if (record)
          measured.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(o), start,
                              std::max(start, active), Clock::now()});
        if (options_.capture && record && ops[o].kind == OpKind::kOptimizer)
          capture_shard(ops[o], ops[o].writes[0], parameters);
      }
    }
    return loss != nullptr ? *loss : 0;
  }

  std::vector<Measured> measured;
  std::vector<std::vector<float>> gradients, parameters;  // by unit

 private:
  float* pointer(const Ref& r, std::int32_t micro_batch) const {
    const program::Buffer& b = class_.buffers[static_cast<std::size_t>(r.buffer)];
    const std::int64_t shard = at_.dp % program_.binding.shard;
    std::byte* base = arena_.get() + b.arena_offset + (micro_batch % b.instances) * b.arena_stride;
    return reinterpret_cast<float*>(base) + r.offset + shard * r.shard_stride;
  }

  double* loss_slot() const {
    for (const program::Buffer& b : class_.buffers) {
      if (b.name == "loss") return reinterpret_cast<double*>(arena_.get() + b.arena_offset);
    }
    return nullptr;
  }

  void initialise() {
    for (std::size_t u = 0; u < class_.units.size(); ++u) {
      const program::Unit& unit = class_.units[u];
      std::vector<float> whole(static_cast<std::size_t>(unit.padded));
      for (const program::Parameter& p : class_.parameters) {
        if (p.unit != static_cast<std::int32_t>(u)) continue;
        for_each_element(p, program_.binding.tp, at_.tp, [&](std::int64_t local, std::int64_t logical) {
          whole[static_cast<std::size_t>(p.offset + local)] = initial_value(options_.seed, p, logical);
        });
      }
      const std::int64_t shard = at_.dp % program_.binding.shard;
      const bool sharded = unit.gathered_buffer >= 0;
      const auto first = whole.begin() + (sharded ? shard * unit.shard : 0);
      std::copy(first, first + (sharded ? unit.shard : unit.padded), pointer({unit.parameter_buffer}, 0));
    }
    gradients.resize(class_.units.size());
    parameters.resize(class_.units.size());
  }

  void load_data(std::int64_t number) {
    const auto& plan = program_.plan;
    const std::int64_t seq = program_.training.sequence;
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq)), targets(tokens.size());
    for (std::int32_t b = 0; b < static_cast<std::int32_t>(class_.buffers.size()); ++b) {
      const bool is_tokens = class_.buffers[static_cast<std::size_t>(b)].name == "tokens";
      if (!is_tokens && class_.buffers[static_cast<std::size_t>(b)].name != "targets") continue;
      for (std::int64_t m = 0; m < plan.micro_batches; ++m) {
        auto* to = reinterpret_cast<std::int32_t*>(pointer({b}, static_cast<std::int32_t>(m)));
        for (std::int64_t i = 0; i < plan.micro_batch; ++i) {
          const std::int64_t sample =
              number * plan.global_batch() + (at_.dp * plan.micro_batches + m) * plan.micro_batch + i;
          corpus_sequence(options_.seed, sample, program_.model.vocab, tokens, targets);
          const auto& from = is_tokens ? tokens : targets;
          std::copy(from.begin(), from.end(), to + i * seq);
        }
      }
    }
  }

  void capture_shard(const Op& op, const Ref& from, std::vector<std::vector<float>>& into) {
    for (std::size_t u = 0; u < class_.units.size(); ++u) {
      const program::Unit& unit = class_.units[u];
      if (from.buffer != unit.gradient_buffer && from.buffer != unit.parameter_buffer) continue;
      const float* p = pointer(from, 0);
      into[u].assign(p, p + op.dims[0]);
    }
  }

  Clock::time_point execute(const Op& op, std::int32_t micro_batch, std::int64_t number) {
    if (program::is_communication(op.kind)) return communicate(op, micro_batch);
    OpArguments a{.op = op, .model = program_.model, .tp_rank = at_.tp};
    for (std::size_t i = 0; i < op.reads.size(); ++i) a.in[i] = pointer(op.reads[i], micro_batch);
    for (std::size_t i = 0; i < op.writes.size(); ++i) a.out[i] = pointer(op.writes[i], micro_batch);
    a.loss_scale = 1.0F / static_cast<float>(program_.training.tokens_per_step());
    a.adam = {options_.learning_rate, 0.9F, 0.95F, 1e-8F, options_.weight_decay, number + 1};
    a.sgd = program_.training.precision == Precision::kSgd;
    run_cpu_op(a);
    return {};
  }

  Clock::time_point communicate(const Op& op, std::int32_t micro_batch) {
    const auto elements = static_cast<std::size_t>(op.dims[0]);
    if (op.kind == OpKind::kSend || op.kind == OpKind::kRecv) {
      const std::int64_t stage = stage_of_chunk(program_.plan, op.peer_chunk);
      const std::int64_t peer = program_.binding.rank({at_.tp, at_.dp, stage});
      const bool gradient = op.stream == program::kGradSend || op.stream == program::kGradRecv;
      if (op.kind == OpKind::kSend) {
        communicator_.send(peer, gradient, {pointer(op.reads[0], micro_batch), elements});
        return {};
      }
      return communicator_.receive(peer, gradient, op.name, {pointer(op.writes[0], micro_batch), elements});
    }
    const auto& members = members_[static_cast<std::size_t>(op.group)];
    const std::size_t part = elements / members.size();
    CollectiveCall call;
    call.name = op.name;
    call.accumulate = (op.flags & program::kAccumulateFlag) != 0;
    const float* in = pointer(op.reads[0], micro_batch);
    float* out = pointer(op.writes[0], micro_batch);
    switch (op.kind) {
      case OpKind::kAllGather:
        call.kind = CollectiveCall::Kind::kGather;
        call.input = {in, part};
        call.output = {out, elements};
        break;
      case OpKind::kReduceScatter:
        call.kind = CollectiveCall::Kind::kScatter;
        call.input = {in, elements};
        call.output = {out, part};
        break;
      default:
        call.kind =
            op.kind == OpKind::kAllReduceMax ? CollectiveCall::Kind::kMax : CollectiveCall::Kind::kSum;
        call.input = {in, elements};
        call.output = {out, elements};
    }
    return communicator_.collective(members, call);
  }

  const program::Program& program_;
  const RunOptions& options_;
  program::Binding::Coordinates at_;
  const RankClass& class_;
  Communicator& communicator_;
  Arena arena_;
  std::array<std::vector<std::int64_t>, 6> members_;
};

Timeline make_timeline(const program::Program& program,
                       const std::vector<std::unique_ptr<RankRunner>>& runners) {
  Timeline t;
  t.source = "measured: cpu threads, reference kernels";
  t.program_hash = program.hash();
  for (const char* s : program::kStreamNames) t.streams.emplace_back(s);
  for (const char* s : program::kSegmentNames) t.segments.emplace_back(s);
  Clock::time_point origin = Clock::time_point::max();
  for (const auto& r : runners) {
    if (!r->measured.empty()) origin = std::min(origin, r->measured.front().start);
  }
  const auto since = [&](Clock::time_point p) {
    return Time{std::chrono::duration_cast<std::chrono::nanoseconds>(p - origin).count() * 1000};
  };
  std::map<std::string, std::int32_t> names;
  for (std::size_t r = 0; r < runners.size(); ++r) {
    const auto c = program.binding.coordinates(static_cast<std::int64_t>(r));
    t.rank_labels.push_back(fmt::format("rank {} (tp {}, dp {}, pp {})", r, c.tp, c.dp, c.pp));
    const RankClass& rank = program.classes[static_cast<std::size_t>(c.pp)];
    for (const Measured& m : runners[r]->measured) {
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
  const std::int64_t ranks = program.binding.ranks();
  ThreadWorld world(ranks, options.deadline);
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::unique_ptr<RankRunner>> runners;
  for (std::int64_t r = 0; r < ranks; ++r) {
    communicators.push_back(world.communicator(r));
    runners.push_back(std::make_unique<RankRunner>(program, options, r, *communicators.back()));
  }
  const auto n_steps = static_cast<std::size_t>(options.steps);
  const auto n_ranks = static_cast<std::size_t>(ranks);
  std::vector<std::vector<double>> losses(n_ranks, std::vector<double>(n_steps));
  std::vector<std::vector<Clock::time_point>> ends(n_ranks, std::vector<Clock::time_point>(n_steps));
  std::mutex failure_mutex;
  std::string failure;
  const auto begin = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < n_ranks; ++r) {
      threads.emplace_back([&, r] {
        try {
          for (std::size_t s = 0; s < n_steps; ++s) {
            losses[r][s] = runners[r]->step(static_cast<std::int64_t>(s));
            ends[r][s] = Clock::now();
          }
        } catch (const std::exception& e) {
          world.abort(fmt::format("rank {}: {}", r, e.what()));
          const std::lock_guard lock(failure_mutex);
          if (failure.empty()) failure = e.what();
        }
      });
    }
  }
  if (!failure.empty()) throw Error(failure);

  RunResult result;
  auto last = begin;
  for (std::size_t s = 0; s < n_steps; ++s) {
    StepReport report;
    auto end = last;
    for (std::size_t r = 0; r < n_ranks; ++r) {
      if (program.binding.coordinates(static_cast<std::int64_t>(r)).tp == 0) report.loss += losses[r][s];
      end = std::max(end, ends[r][s]);
    }
    report.loss /= program.training.tokens_per_step();
    report.seconds = std::chrono::duration<double>(end - last).count();
    last = end;
    result.steps.push_back(report);
  }
  UnitShards gradients, parameters;
  for (const auto& r : runners) {
    const auto& rank = program.classes[static_cast<std::size_t>(
        program.binding.coordinates(static_cast<std::int64_t>(result.arena_bytes.size())).pp)];
    result.arena_bytes.push_back(rank.arena_peak.value);
    gradients.push_back(std::move(r->gradients));
    parameters.push_back(std::move(r->parameters));
  }
  if (options.capture) {
    result.gradients = assemble(program, gradients);
    result.parameters = assemble(program, parameters);
  }
  result.timeline = make_timeline(program, runners);
  return result;
}

}  // namespace orrery::exec
