// SPDX-License-Identifier: Apache-2.0
#include "exec/cpu_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <numeric>

#include "core/error.h"
#include "exec/op_shapes.h"

namespace orrery::exec {

using program::Op;
namespace ops = program::ops;
using program::Ref;
using program::StreamIndex;

namespace {

// That this thread ran on a CPU.
double thread_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

CpuExecutor::CpuExecutor(const Placement& place, const RunOptions& options, Communicator& communicator,
                         Abort& abort)
    : place_(place),
      class_(place.rank_class),
      options_(options),
      communicator_(communicator),
      abort_(abort),
      arena_(communicator.allocate(static_cast<std::size_t>(class_.arena_bytes()))),
      drives_(options.nvme, class_.drive_bytes.value),
      ops_of_(class_.segments.size()),
      staging_(class_, program::kCompute, place.program.training.math),
      host_staging_(class_, program::kHostStream, place.program.training.math),
      rotary_(rope_tables(place.program)) {
  for (const program::Group& g : place.program.communication.groups)
    groups_.push_back(g.meets() ? communicator.open(place.program.mesh.members(g.axes, place.rank), g.stream)
                                : GroupId{});
  for (std::size_t s = 0; s < class_.segments.size(); ++s) {
    const auto& ops = class_.segments[s].ops;
    for (std::size_t i = 0; i < ops.size(); ++i)
      ops_of_[s][ops[i].stream].push_back(static_cast<std::int32_t>(i));
  }
  if (const auto slow = options.slow.find(place.rank); slow != options.slow.end()) slow_ = slow->second;
  start_threads();
}

CpuExecutor::~CpuExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
}

// --- memory ----------------------------------------------------------------------------------------

// A pointer to floats whatever the type: most are.
std::int64_t CpuExecutor::scratch_bytes() const {
  return staging_.bytes() + host_staging_.bytes() + rotary_bytes(rotary_);
}

float* CpuExecutor::pointer(const Ref& r, std::int32_t micro_batch) const {
  return reinterpret_cast<float*>(at(place_.offset(r, micro_batch)));
}

void CpuExecutor::write(std::int64_t offset, std::span<const std::byte> from) {
  std::copy(from.begin(), from.end(), at(offset));
}
void CpuExecutor::read(std::int64_t offset, std::span<std::byte> to) {
  std::copy_n(at(offset), to.size(), to.begin());
}
void CpuExecutor::clear() {
  std::memset(arena_, 0, static_cast<std::size_t>(class_.arena_bytes()));
  if (class_.drive_bytes > Bytes{0})
    std::memset(drives_.data(), 0, static_cast<std::size_t>(class_.drive_bytes.value));
}
const std::byte* CpuExecutor::view(std::int64_t offset, std::size_t, std::vector<std::byte>&) {
  return at(offset);
}

// --- streams ---------------------------------------------------------------------------------------

void CpuExecutor::start_threads() {
  std::array<std::size_t, program::kMostStreams> ops{};
  for (const auto* steps : {&class_.steps, &class_.outer}) {
    for (const program::Step& step : *steps) {
      const auto& by_stream = ops_of_[static_cast<std::size_t>(step.segment)];
      for (std::size_t s = 0; s < ops.size(); ++s) ops[s] += by_stream[s].size();
    }
  }
  for (std::size_t s = 0; s < ops.size(); ++s) measured[s].reserve(ops[s]);
  // The caller's thread serves the compute stream.
  for (std::size_t s = 0; s < ops.size(); ++s) {
    const auto stream = static_cast<StreamIndex>(s);
    if (stream != program::kCompute && ops[stream] > 0)
      threads_.emplace_back([this, stream] { serve(stream); });
  }
}

void CpuExecutor::serve(StreamIndex stream) {
  for (std::int64_t served = 0;; ++served) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || runs_ > served; });
      if (stop_) return;
    }
    try {
      walk(stream);
    } catch (const std::exception& e) {
      abort_.raise(fmt::format("rank {}: {}", place_.rank, e.what()));
    }
    const std::lock_guard lock(mutex_);
    --busy_;
    changed_.notify_all();
  }
}

PassTimes CpuExecutor::run(const Pass& pass) {
  waited_ = emulated_ = {};
  const double began = thread_seconds();
  if (pass.measured) {
    for (auto& m : measured) m.clear();
  }
  for (auto& done : done_) done.store(0);
  for (auto& wanted : wanted_) wanted.store(kNobody);
  {
    const std::lock_guard lock(mutex_);
    pass_ = &pass;
    ++runs_;
    busy_ = static_cast<int>(threads_.size());
  }
  changed_.notify_all();
  std::exception_ptr failure;
  try {
    walk(program::kCompute);
  } catch (const std::exception& e) {
    abort_.raise(fmt::format("rank {}: {}", place_.rank, e.what()));
    failure = std::current_exception();
  }
  {
    // The threads end with their own waits: at the latest at their deadline.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return busy_ == 0; });
  }
  if (failure) std::rethrow_exception(failure);
  abort_.check();
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  return {seconds(waited_), thread_seconds() - began + seconds(emulated_)};
}

void CpuExecutor::walk(StreamIndex stream) {
  const Pass& pass = *pass_;
  const std::vector<program::Step>& steps = pass.what == PassOf::kExchange ? class_.outer : class_.steps;
  Counts base{};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const program::Step& step = steps[i];
    const program::Segment& segment = class_.segments[static_cast<std::size_t>(step.segment)];
    for (const std::int32_t o : ops_of_[static_cast<std::size_t>(step.segment)][stream]) {
      const Op& op = segment.ops[static_cast<std::size_t>(o)];
      wait_for(step, o, op, base);
      // Work that is left out still waits: later waits count on it.
      if (!runs(pass.what, segment.kind, op)) {
        complete(stream);
        continue;
      }
      if (pass.before_update && program::update_begun(op.kind) >= 0) pass.before_update(op);
      if (pass.measured) {
        const auto start = Clock::now();
        const auto active = std::max(start, execute(op, step.micro_batch));
        measured[stream].push_back({static_cast<std::int32_t>(i), o, start, active, Clock::now()});
      } else {
        execute(op, step.micro_batch);
      }
      if (pass.after_update && program::update_ended(op.kind) >= 0) pass.after_update(op);
      complete(stream);
    }
    for (std::size_t q = 0; q < base.size(); ++q) base[q] += segment.stream_ops[q];
  }
}

void CpuExecutor::wait_for(const program::Step& step, std::int32_t op_index, const Op& op,
                           const Counts& base) {
  for (std::size_t q = 0; q < base.size(); ++q) {
    if (op.after[q] > 0) wait_until(static_cast<StreamIndex>(q), base[q] + op.after[q], op);
  }
  for (std::int32_t w = step.first_wait; w < step.first_wait + step.waits; ++w) {
    const program::ExternalWait& wait = class_.waits[static_cast<std::size_t>(w)];
    if (wait.op == op_index) wait_until(wait.stream, wait.count, op);
  }
}

void CpuExecutor::wait_until(StreamIndex stream, std::int64_t count, const Op& waiting) {
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
                            place_.program.communication.streams[stream].name));
  }
  if (waiting.stream == program::kCompute) waited_ += Clock::now() - begin;
}

void CpuExecutor::complete(StreamIndex stream) {
  if (++done_[stream] < wanted_[stream].load()) return;
  const std::lock_guard lock(mutex_);
  wanted_[stream].store(kNobody);
  changed_.notify_all();
}

// --- ops -------------------------------------------------------------------------------------------

Clock::time_point CpuExecutor::execute(const Op& op, std::int32_t micro_batch) {
  if (program::is_communication(op.kind)) return communicate(op, micro_batch);
  const auto begin = Clock::now();
  compute(op, micro_batch);
  const auto* const copy = op.as<ops::Copy>();
  const Bandwidth copies = copy == nullptr                ? Bandwidth{0}
                           : ops::is_of_drives(copy->way) ? options_.nvme_bandwidth
                                                          : options_.host_link;
  if (copies > Bandwidth{0}) {
    const double lasts = static_cast<double>(op.payload.value) / static_cast<double>(copies.value);
    std::this_thread::sleep_until(
        begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(lasts)));
  } else if (slow_ > 1 || options_.device) {
    std::chrono::duration<double> lasts = Clock::now() - begin;
    if (options_.device) lasts = std::max(lasts, std::chrono::duration<double>(options_.device(op)));
    const auto end = begin + std::chrono::duration_cast<Clock::duration>(slow_ * lasts);
    if (op.stream == program::kCompute) emulated_ += std::max(Clock::duration::zero(), end - Clock::now());
    std::this_thread::sleep_until(end);
  }
  return {};
}

void CpuExecutor::compute(const Op& op, std::int32_t micro_batch) {
  const Training& training = place_.program.training;
  OpArguments a{.op = op, .model = place_.program.model, .at = place_.at};
  for (std::size_t i = 0; i < op.operands().size() && i < a.in.size(); ++i)
    a.in[i] = pointer(op.reads[i], micro_batch);
  for (std::size_t i = 0; i < op.writes.size() && i < a.out.size(); ++i)
    a.out[i] = pointer(op.writes[i], micro_batch);
  if (!op.writes.empty()) a.type = place_.buffer(op.writes[0]).type;
  a.token_weight = 1.0F / static_cast<float>(place_.program.rows_of_loss);
  a.loss_scale = pass_->loss_scale;
  a.cached = pass_->cached;
  const StepConstants constants{pass_->learning_rate, options_.weight_decay, pass_->updates, options_.seed};
  a.clip = static_cast<float>(training.clip);
  if (const auto* square = op.as<ops::NormSquare>()) a.counted = place_.counted(square->unit);
  a.precision = training.precision;
  if (const auto* trust = op.as<ops::TrustSquares>()) {
    a.parts = place_.parts(trust->unit);
    a.adam = adam_of(training, constants);
  }
  if (const std::int64_t unit = std::max(program::update_begun(op.kind), program::update_ended(op.kind));
      unit >= 0)
    set_update(a, place_, unit, constants);
  std::vector<MuonMatrix> matrices;
  if (op.is<ops::Orthogonalise>()) {
    matrices = muon_matrices(place_, op);
    a.matrices = matrices;
  }
  if (training.muon) a.muon = &*training.muon;
  if (op.is<ops::OuterUpdate>()) a.outer = outer_of(place_.program);
  a.rotary = rotary_;
  if (pass_->what != PassOf::kForward)
    a.dropout = place_.dropout(op, micro_batch, options_.seed, place_.first_sample(pass_->number));
  // Copies move elements as they are, in threads of their own.
  Staging* const staging = op.stream == program::kCompute      ? &staging_
                           : op.stream == program::kHostStream ? &host_staging_
                                                               : nullptr;
  if (staging != nullptr) staging->widen(a);
  run_cpu_op(a);
  if (staging != nullptr) staging->narrow();
  if (const auto* route = op.as<ops::Route>(); route != nullptr && pass_->routed && !op.recomputed) {
    pass_->routed(
        op, micro_batch,
        {reinterpret_cast<const std::int32_t*>(a.out[2]), static_cast<std::size_t>(route->experts)});
  }
  if (op.is<ops::Loss>())
    require_finite(*reinterpret_cast<const double*>(pointer(op.writes[1], micro_batch)), op, micro_batch);
  if (op.is<ops::NormSquare>() && !training.scales_loss()) {
    const auto* bins = reinterpret_cast<const double*>(a.out[0]);
    require_finite(std::accumulate(bins, bins + program::kNormBins, 0.0), op, micro_batch);
  }
}

// Where a run that diverges is stopped: at the loss, or at the first gradient of this rank.
void CpuExecutor::require_finite(double value, const Op& op, std::int32_t micro_batch) const {
  if (std::isfinite(value)) return;
  throw Error(fmt::format("\"{}\" of step {}, micro-batch {} ({}) is not a finite number", op.name,
                          pass_->number + 1, micro_batch,
                          coordinates_text(place_.program.mesh, place_.rank)));
}

Clock::time_point CpuExecutor::communicate(const Op& op, std::int32_t micro_batch) {
  const auto elements = static_cast<std::size_t>(program::elements_of(op.kind));
  if (op.is_transfer()) {
    const Ref& own = op.is<ops::Send>() ? op.reads[0] : op.writes[0];
    const std::int64_t peer = place_.peer(op);
    const std::size_t bytes = elements * bytes_of(place_.buffer(own).type);
    const int channel = place_.program.communication.channel(op.stream);
    if (op.is<ops::Send>())
      return communicator_.send(peer, channel, op.name, pointer(own, micro_batch), bytes);
    return communicator_.receive(peer, channel, op.name, pointer(own, micro_batch), bytes);
  }
  const auto& shape = std::get<ops::Collective>(op.kind);
  CollectiveCall call{.kind = shape.collective,
                      .name = op.name,
                      .input = pointer(op.reads[0], micro_batch),
                      .output = pointer(op.writes[0], micro_batch),
                      .elements = elements,
                      .type = place_.buffer(op.writes[0]).type,
                      .algorithm = options_.collectives};
  call.accumulate = op.accumulate;
  return communicator_.collective(groups_[static_cast<std::size_t>(op.group)], call);
}

}  // namespace orrery::exec
