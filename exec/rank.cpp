// SPDX-License-Identifier: Apache-2.0
#include "exec/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "exec/crc32c.h"
#include "exec/logical.h"
#include "kernels/cpu/fast.h"

namespace orrery::exec {

using program::Group;
using program::Op;
using program::OpKind;
using program::Ref;
using program::Stream;

namespace {

constexpr Stream kHelperStreams[] = {program::kTp,   program::kDp,       program::kSend,
                                     program::kRecv, program::kGradSend, program::kGradRecv};

}  // namespace

Rank::Rank(const program::Program& program, const RunOptions& options, const Dataset& training,
           const Dataset* validation, std::int64_t rank, Communicator& communicator, Abort& abort)
    : program_(program),
      options_(options),
      at_(program.binding.coordinates(rank)),
      class_(program.classes[static_cast<std::size_t>(at_.pp)]),
      communicator_(communicator),
      abort_(abort),
      arena_(communicator.allocate(static_cast<std::size_t>(class_.arena_peak.value))),
      ops_of_(class_.segments.size()),
      staging_(class_, program.model),
      loss_scale_(program.training.scales_loss() ? options.loss_scale : 1, options.loss_scale_window) {
  for (const Group g : {Group::kTp, Group::kDp, Group::kShard, Group::kReplica})
    groups_[static_cast<std::size_t>(g)] = communicator.open(program.binding.members(g, rank));
  for (std::size_t s = 0; s < class_.segments.size(); ++s) {
    const auto& ops = class_.segments[s].ops;
    for (std::size_t i = 0; i < ops.size(); ++i)
      ops_of_[s][ops[i].stream].push_back(static_cast<std::int32_t>(i));
  }
  if (const auto slow = options.slow.find(rank); slow != options.slow.end()) slow_ = slow->second;
  loss_ = find<double>("loss");
  norm_ = find<const GradientNorm>("gradient-norm");
  find_counted();
  if (find<std::int32_t>("tokens") != nullptr || find<std::int32_t>("targets") != nullptr) {
    const Plan& p = program.plan;
    const Loader::Shape shape{p.micro_batch, p.micro_batches, at_.dp, p.dp, program.training.sequence};
    loader_ = std::make_unique<Loader>(training, options.seed, shape);
    if (validation != nullptr) validation_ = std::make_unique<Loader>(*validation, options.seed, shape);
  }
  start_threads();
}

Rank::~Rank() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
}

// --- memory and data -------------------------------------------------------------------------------

const program::Buffer& Rank::buffer(const Ref& r) const {
  return class_.buffers[static_cast<std::size_t>(r.buffer)];
}

// A pointer to floats whatever the type: most are.
float* Rank::pointer(const Ref& r, std::int32_t micro_batch) const {
  const program::Buffer& b = buffer(r);
  const std::int64_t shard = at_.dp % program_.binding.shard;
  const std::int64_t element = r.offset + shard * r.shard_stride;
  return reinterpret_cast<float*>(arena_ + b.arena_offset + (micro_batch % b.instances) * b.arena_stride +
                                  element * static_cast<std::int64_t>(bytes_of(b.type)));
}

template <class T>
T* Rank::find(const char* name) const {
  for (const program::Buffer& b : class_.buffers) {
    if (b.name == name) return reinterpret_cast<T*>(arena_ + b.arena_offset);
  }
  return nullptr;
}

// A parameter that every tensor rank holds whole counts on the first.
void Rank::find_counted() {
  counted_.resize(class_.units.size());
  for (const program::Parameter& p : class_.parameters) {
    if (p.split == program::Parameter::Split::kNone && at_.tp > 0) continue;
    const program::Unit& u = class_.units[static_cast<std::size_t>(p.unit)];
    const std::int64_t shard = at_.dp % program_.binding.shard * u.shard;
    const std::int64_t first = std::max(p.offset, shard);
    const std::int64_t end = std::min(p.offset + p.local_elements(), shard + u.shard);
    if (first >= end) continue;
    auto& ranges = counted_[static_cast<std::size_t>(p.unit)];
    if (!ranges.empty() && ranges.back().first + ranges.back().second == first - shard)
      ranges.back().second += end - first;
    else
      ranges.emplace_back(first - shard, end - first);
  }
}

// This tensor rank's whole unit, from the value of each logical element.
template <class Value>
std::vector<float> Rank::unit_values(std::size_t index, Value value) const {
  std::vector<float> all(static_cast<std::size_t>(class_.units[index].padded));
  for (const program::Parameter& p : class_.parameters) {
    if (p.unit != static_cast<std::int32_t>(index)) continue;
    const auto of = value(p);
    for_each_element(p, program_.binding.tp, at_.tp, [&](std::int64_t local, std::int64_t logical) {
      all[static_cast<std::size_t>(p.offset + local)] = of(logical);
    });
  }
  return all;
}

std::span<const float> Rank::own_shard(std::size_t index, const std::vector<float>& values) const {
  const std::int64_t n = class_.units[index].shard, shard = at_.dp % program_.binding.shard;
  return {values.data() + shard * n, static_cast<std::size_t>(n)};
}

// Parameters of a unit as this rank keeps them, rounded from the master copy where there is one.
void Rank::set_parameters(std::size_t index, const std::vector<float>& values) {
  const program::Unit& unit = class_.units[index];
  const std::span<const float> own = own_shard(index, values);
  const std::span<const float> kept = unit.gathered_buffer < 0 ? values : own;
  float* const to = pointer({unit.parameter_buffer}, 0);
  if (is_half(program_.training.parameter_type()))
    kernels::narrow(program_.training.parameter_type(), static_cast<std::int64_t>(kept.size()), kept.data(),
                    to);
  else
    std::copy(kept.begin(), kept.end(), to);
  if (bytes_per_parameter(program_.training.precision).master > 0)
    std::copy(own.begin(), own.end(), pointer({unit.optimizer_buffer}, 0));
}

void Rank::initialise() {
  std::memset(arena_, 0, static_cast<std::size_t>(class_.arena_peak.value));
  for (std::size_t u = 0; u < class_.units.size(); ++u) {
    set_parameters(u, unit_values(u, [&](const program::Parameter& p) {
                     return [values = InitialValues(options_.seed, p)](std::int64_t logical) {
                       return values.at(logical);
                     };
                   }));
  }
  gradients.resize(class_.units.size());
  parameters.resize(class_.units.size());
}

void Rank::restore(const RestoredState& state) {
  const std::vector<UnitMemory> memories = memory();
  for (std::size_t u = 0; u < class_.units.size(); ++u) {
    for (std::size_t i = 0; i < state.states.size(); ++i) {
      const std::vector<float> values = unit_values(u, [&](const program::Parameter& p) {
        return [&tensor = state.states[i].at(p.name)](std::int64_t logical) {
          const auto at = static_cast<std::size_t>(logical);
          return at < tensor.size() ? tensor[at] : 0.0F;  // padding
        };
      });
      if (i == 0) {
        set_parameters(u, values);
      } else {
        const std::span<const float> own = own_shard(u, values);
        std::copy(own.begin(), own.end(), memories[u].moments + (i - 1) * own.size());
      }
    }
  }
  if (program_.training.scales_loss() && state.loss_scale.scale > 0) loss_scale_.restore(state.loss_scale);
}

std::vector<UnitMemory> Rank::memory() const {
  const bool has_master = bytes_per_parameter(program_.training.precision).master > 0;
  std::vector<UnitMemory> out;
  for (const program::Unit& unit : class_.units) {
    const Ref own{unit.parameter_buffer, 0, unit.gathered_buffer < 0 ? unit.shard : 0};
    float* const state = pointer({unit.optimizer_buffer}, 0);
    if (has_master)
      out.push_back({state, DType::kFloat32, state + unit.shard});
    else
      out.push_back({pointer(own, 0), buffer(own).type, state});
  }
  return out;
}

// Micro-batch m is copy m of the buffers of tokens and targets.
void Rank::load(Loader* loader, std::int64_t number) {
  if (loader == nullptr) return;
  const Loader::Batch& batch = loader->step(number);
  const std::int64_t each = program_.plan.micro_batch * program_.training.sequence;
  batch_ = crc32c(
      {reinterpret_cast<const char*>(batch.tokens.data()), batch.tokens.size() * sizeof(std::int32_t)});
  for (std::int32_t b = 0; b < static_cast<std::int32_t>(class_.buffers.size()); ++b) {
    const std::string& name = class_.buffers[static_cast<std::size_t>(b)].name;
    if (name != "tokens" && name != "targets") continue;
    const auto& from = name == "tokens" ? batch.tokens : batch.targets;
    for (std::int64_t m = 0; m < program_.plan.micro_batches; ++m) {
      auto* to = reinterpret_cast<std::int32_t*>(pointer({b}, static_cast<std::int32_t>(m)));
      std::copy_n(from.begin() + m * each, each, to);
    }
  }
}

void Rank::capture(const Op& op, const Ref& from, double scale, UnitShard& into) {
  for (std::size_t u = 0; u < class_.units.size(); ++u) {
    const program::Unit& unit = class_.units[u];
    if (from.buffer != unit.gradient_buffer && from.buffer != unit.parameter_buffer) continue;
    const float* p = pointer(from, 0);
    into[u].assign(p, p + (is_half(buffer(from).type) ? 0 : op.dims[0]));
    if (is_half(buffer(from).type)) {
      into[u].resize(static_cast<std::size_t>(op.dims[0]));
      kernels::widen(buffer(from).type, op.dims[0], p, into[u].data());
    }
    for (float& x : into[u]) x = static_cast<float>(x / scale);
  }
}

// --- streams ---------------------------------------------------------------------------------------

void Rank::start_threads() {
  std::array<std::size_t, program::kStreamCount> ops{};
  for (const program::Step& step : class_.steps) {
    const auto& by_stream = ops_of_[static_cast<std::size_t>(step.segment)];
    for (std::size_t s = 0; s < ops.size(); ++s) ops[s] += by_stream[s].size();
  }
  for (std::size_t s = 0; s < ops.size(); ++s) measured[s].reserve(ops[s]);
  for (const Stream stream : kHelperStreams) {
    if (ops[stream] > 0) threads_.emplace_back([this, stream] { serve(stream); });
  }
}

void Rank::serve(Stream stream) {
  for (std::int64_t served = 0;; ++served) {
    std::int64_t number = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || runs_ > served; });
      if (stop_) return;
      number = current_;
    }
    try {
      walk(stream, number);
    } catch (const std::exception& e) {
      abort_.raise(fmt::format("rank {}: {}", program_.binding.rank(at_), e.what()));
    }
    const std::lock_guard lock(mutex_);
    --busy_;
    changed_.notify_all();
  }
}

Rank::StepResult Rank::step(std::int64_t number) {
  const double waited = waited_for_data_s();
  load(loader_.get(), number);
  forward_only_ = false;
  StepResult out = run(number);
  out.waited_for_data_s = waited_for_data_s() - waited;
  out.batch = batch_;
  if (program_.training.scales_loss()) loss_scale_.update(out.skipped);
  stepped_ = true;
  return out;
}

Rank::StepResult Rank::evaluate(std::int64_t batch) {
  load(validation_.get(), batch);
  forward_only_ = true;
  return run(batch);
}

Rank::StepResult Rank::run(std::int64_t number) {
  if (loss_ != nullptr) *loss_ = 0;
  waited_ = {};
  if (!forward_only_) {
    for (auto& m : measured) m.clear();
  }
  for (auto& done : done_) done.store(0);
  for (auto& wanted : wanted_) wanted.store(kNobody);
  {
    const std::lock_guard lock(mutex_);
    current_ = number;
    ++runs_;
    busy_ = static_cast<int>(threads_.size());
  }
  changed_.notify_all();
  std::exception_ptr failure;
  try {
    walk(program::kCompute, number);
  } catch (const std::exception& e) {
    abort_.raise(fmt::format("rank {}: {}", program_.binding.rank(at_), e.what()));
    failure = std::current_exception();
  }
  {
    // The threads end with their own waits: at the latest at their deadline.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return busy_ == 0; });
  }
  if (failure) std::rethrow_exception(failure);
  abort_.check();
  StepResult out;
  if (loss_ != nullptr) out.loss = *loss_;
  if (norm_ != nullptr) out.gradient_norm = norm_->norm;
  if (program_.training.scales_loss()) out.loss_scale = loss_scale_.scale();
  out.skipped = norm_ != nullptr && norm_->overflowed != 0;
  out.waited_s = std::chrono::duration<double>(waited_).count();
  return out;
}

void Rank::walk(Stream stream, std::int64_t number) {
  const bool capturing = options_.capture && !forward_only_ && stream == program::kCompute;
  Counts base{};
  for (std::size_t i = 0; i < class_.steps.size(); ++i) {
    const program::Step& step = class_.steps[i];
    const program::Segment& segment = class_.segments[static_cast<std::size_t>(step.segment)];
    for (const std::int32_t o : ops_of_[static_cast<std::size_t>(step.segment)][stream]) {
      const Op& op = segment.ops[static_cast<std::size_t>(o)];
      wait_for(step, o, op, base);
      // Work that is left out still waits: later waits count on it.
      if (forward_only_ && segment.kind != program::SegmentKind::kForward) {
        complete(stream);
        continue;
      }
      const bool updates = capturing && op.kind == OpKind::kOptimizer;
      if (updates && !stepped_) capture(op, op.reads[0], loss_scale_.scale(), gradients);
      if (options_.timeline && !forward_only_) {
        const auto start = Clock::now();
        const auto active = std::max(start, execute(op, step.micro_batch, number));
        measured[stream].push_back({static_cast<std::int32_t>(i), o, start, active, Clock::now()});
      } else {
        execute(op, step.micro_batch, number);
      }
      if (updates && number + 1 == options_.steps) capture(op, op.writes[0], 1, parameters);
      complete(stream);
    }
    for (std::size_t q = 0; q < base.size(); ++q) base[q] += segment.stream_ops[q];
  }
}

void Rank::wait_for(const program::Step& step, std::int32_t op_index, const Op& op, const Counts& base) {
  for (std::size_t q = 0; q < base.size(); ++q) {
    if (op.after[q] > 0) wait_until(static_cast<Stream>(q), base[q] + op.after[q], op);
  }
  for (std::int32_t w = step.first_wait; w < step.first_wait + step.waits; ++w) {
    const program::ExternalWait& wait = class_.waits[static_cast<std::size_t>(w)];
    if (wait.op == op_index) wait_until(wait.stream, wait.count, op);
  }
}

void Rank::wait_until(Stream stream, std::int64_t count, const Op& waiting) {
  const std::atomic<std::int64_t>& done = done_[stream];
  if (done.load() >= count) return;
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  std::atomic<std::int64_t>& wanted = wanted_[stream];
  // Streams that wait for other ranks have deadlines of their own, which come first.
  const auto deadline = 2 * options_.deadline;
  const bool reached = abort_.wait(changed_, lock, deadline, [&] {
    // Whoever was woken says anew what it waits for; then looks, so that no completion in between is missed.
    if (wanted.load() > count) wanted.store(count);
    return done.load() >= count;
  });
  if (!reached) {
    throw Error(fmt::format("\"{}\" waited {} ms for stream {}", waiting.name, deadline.count(),
                            program::kStreamNames[stream]));
  }
  if (waiting.stream == program::kCompute) waited_ += Clock::now() - begin;
}

void Rank::complete(Stream stream) {
  if (++done_[stream] < wanted_[stream].load()) return;
  const std::lock_guard lock(mutex_);
  wanted_[stream].store(kNobody);
  changed_.notify_all();
}

// --- ops -------------------------------------------------------------------------------------------

Clock::time_point Rank::execute(const Op& op, std::int32_t micro_batch, std::int64_t number) {
  if (program::is_communication(op.kind)) return communicate(op, micro_batch);
  const auto begin = Clock::now();
  compute(op, micro_batch, number);
  if (slow_ > 1 || options_.device) {
    std::chrono::duration<double> lasts = Clock::now() - begin;
    if (options_.device) lasts = std::max(lasts, std::chrono::duration<double>(options_.device(op)));
    std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(slow_ * lasts));
  }
  return {};
}

void Rank::compute(const Op& op, std::int32_t micro_batch, std::int64_t number) {
  OpArguments a{.op = op, .model = program_.model, .tp_rank = at_.tp};
  for (std::size_t i = 0; i < op.reads.size() && i < a.in.size(); ++i)
    a.in[i] = pointer(op.reads[i], micro_batch);
  for (std::size_t i = 0; i < op.writes.size() && i < a.out.size(); ++i)
    a.out[i] = pointer(op.writes[i], micro_batch);
  if (!op.writes.empty()) a.type = buffer(op.writes[0]).type;
  a.token_weight = 1.0F / static_cast<float>(program_.training.tokens_per_step());
  a.loss_scale = loss_scale_.scale();
  a.adam = {learning_rate(options_, number),   0.9F, 0.95F, 1e-8F, options_.weight_decay,
            number + 1 - loss_scale_.skipped()};
  a.clip = static_cast<float>(program_.training.clip);
  if (op.kind == OpKind::kNormSquare) a.counted = counted_[static_cast<std::size_t>(op.dims[1])];
  a.precision = program_.training.precision;
  a.dropout = dropout(op, micro_batch, number);
  staging_.widen(a);
  run_cpu_op(a);
  staging_.narrow();
  if (op.kind == OpKind::kLoss) require_finite(*loss_, op, micro_batch, number);
  if (op.kind == OpKind::kNormSquare && !program_.training.scales_loss()) {
    const auto* bins = reinterpret_cast<const double*>(a.out[0]);
    require_finite(std::accumulate(bins, bins + program::kNormBins, 0.0), op, micro_batch, number);
  }
}

// Elements are named as the loader numbers sequences: over all steps, micro-batches of replicas in turn.
kernels::Dropout Rank::dropout(const Op& op, std::int32_t micro_batch, std::int64_t number) const {
  if (forward_only_) return {};
  const Plan& p = program_.plan;
  const std::int64_t which = op.kind == OpKind::kResidual ? op.dims[3] : 0;
  return {program_.training.dropout, hash_mix(options_.seed),
          static_cast<std::uint32_t>(4 * op.layer + which),
          ((number * p.micro_batches + micro_batch) * p.dp + at_.dp) * p.micro_batch};
}

// Where a run that diverges is stopped: at the loss, or at the first gradient of this rank.
void Rank::require_finite(double value, const Op& op, std::int32_t micro_batch, std::int64_t number) const {
  if (std::isfinite(value)) return;
  throw Error(fmt::format("\"{}\" of step {}, micro-batch {} (tp {}, dp {}, pp {}) is not a finite number",
                          op.name, number + 1, micro_batch, at_.tp, at_.dp, at_.pp));
}

Clock::time_point Rank::communicate(const Op& op, std::int32_t micro_batch) {
  const auto elements = static_cast<std::size_t>(op.dims[0]);
  if (op.kind == OpKind::kSend || op.kind == OpKind::kRecv) {
    const std::int64_t stage = stage_of_chunk(program_.plan, op.peer_chunk);
    const std::int64_t peer = program_.binding.rank({at_.tp, at_.dp, stage});
    const bool gradient = op.stream == program::kGradSend || op.stream == program::kGradRecv;
    const std::size_t bytes =
        elements * bytes_of(buffer(op.kind == OpKind::kSend ? op.reads[0] : op.writes[0]).type);
    if (op.kind == OpKind::kSend)
      return communicator_.send(peer, gradient, op.name, pointer(op.reads[0], micro_batch), bytes);
    return communicator_.receive(peer, gradient, op.name, pointer(op.writes[0], micro_batch), bytes);
  }
  CollectiveCall call{.kind = program::collective_of(op.kind),
                      .name = op.name,
                      .input = pointer(op.reads[0], micro_batch),
                      .output = pointer(op.writes[0], micro_batch),
                      .elements = elements,
                      .type = buffer(op.writes[0]).type,
                      .algorithm = options_.collectives};
  call.accumulate = (op.flags & program::kAccumulateFlag) != 0;
  return communicator_.collective(groups_[static_cast<std::size_t>(op.group)], call);
}

}  // namespace orrery::exec
