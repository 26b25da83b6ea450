// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/cuda_executor.h"

#include <fmt/format.h>

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>

#include "core/error.h"
#include "exec/cpu_ops.h"
#include "exec/op_shapes.h"

namespace orrery::exec::cuda {

using kernels::cuda::allocate;
using kernels::cuda::check;
using kernels::cuda::make_event;
using kernels::cuda::Timed;

using program::Op;
namespace ops = program::ops;

namespace {

constexpr std::size_t kGemmWorkspace = 32 << 20;  // what cuBLAS' authors advise for Hopper

std::size_t largest_workspace(const Placement& place) {
  std::size_t most = 0;
  for (const program::Segment& segment : place.rank_class.segments) {
    for (const Op& op : segment.ops) most = std::max(most, workspace_of(op, place));
  }
  return most;
}

// Whether processors do it, in a host function of its stream.
bool is_of_processors(const Op& op) {
  const auto* const copy = op.as<ops::Copy>();
  return copy != nullptr ? ops::is_of_drives(copy->way)
                         : op.stream == program::kHostStream && op.is<ops::Optimizer>();
}

// In the timeline of NVIDIA's profilers, while it lives.
struct Range {
  explicit Range(const char* name) { nvtxRangePushA(name); }
  ~Range() { nvtxRangePop(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace

CudaExecutor::CudaExecutor(const Placement& place, const RunOptions& options,
                           std::unique_ptr<DeviceCommunicator> communicator, Abort& abort)
    : place_(place),
      class_(place.rank_class),
      options_(options),
      abort_(abort),
      communicator_(std::move(communicator)),
      order_(issue_order(class_, place.program.communication.streams)),
      arena_(allocate(static_cast<std::size_t>(class_.arena_peak.value), "memory of the arena")),
      next_scalars_(kernels::cuda::allocate_host(sizeof(kernels::cuda::StepScalars))),
      host_arena_(class_.host_bytes.value > 0
                      ? kernels::cuda::allocate_host(static_cast<std::size_t>(class_.host_bytes.value))
                      : HostMemory()),
      drives_(options.nvme, class_.drive_bytes.value),
      staging_(class_, program::kHostStream, place.program.training.math),
      fork_(make_event(Timed::kNo)),
      begin_(make_event(Timed::kYes)) {
  workspace_ = allocate(largest_workspace(place), "scratch memory");
  scalars_ = allocate(sizeof(kernels::cuda::StepScalars), "numbers of a step");
  // What other ranks wait for comes first: it is short beside products.
  for (std::size_t s = 0; s < place.program.communication.streams.size(); ++s) {
    streams_.push_back(kernels::cuda::make_stream(s == program::kCompute ? kernels::cuda::Urgent::kNo
                                                                         : kernels::cuda::Urgent::kYes));
    joins_.push_back(make_event(Timed::kNo));
  }
  for (std::int32_t i = 0; i < order_.events; ++i) events_.push_back(make_event(Timed::kNo));
  number_ops();
  try {
    open_groups();
    plan_gemms();
    fill_rope_tables();
  } catch (...) {
    communicator_->abort();  // to close what was opened would wait for partners that may never come
    throw;
  }
}

void CudaExecutor::open_groups() {
  for (const program::Group& g : place_.program.communication.groups) {
    groups_.push_back(g.meets()
                          ? communicator_->open(place_.program.mesh.members(g.axes, place_.rank), g.stream)
                          : GroupId{});
  }
  communicator_->open_channels(channels());
  for (const program::Segment& segment : class_.segments) {
    for (const Op& op : segment.ops) {
      const auto* collective = op.as<ops::Collective>();
      if (collective == nullptr || !op.accumulate) continue;
      communicator_->reserve_sum(
          groups_[static_cast<std::size_t>(op.group)],
          static_cast<std::size_t>(collective->elements) * bytes_of(place_.buffer(op.writes[0]).type));
    }
  }
  communicator_->offer({static_cast<std::byte*>(arena_.get()), arena_.bytes()});
}

void CudaExecutor::number_ops() {
  reached_ = kernels::cuda::allocate_host(streams_.size() * sizeof(std::int32_t));
  std::fill_n(static_cast<std::int32_t*>(reached_.get()), streams_.size(), -1);
  std::vector<std::int32_t> numbers(order_.ops.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::size_t bytes = numbers.size() * sizeof numbers[0];
  numbers_ = allocate(bytes, "numbers of ops");
  check(cudaMemcpyAsync(numbers_.get(), numbers.data(), bytes, cudaMemcpyHostToDevice,
                        stream(program::kCompute)),
        "cudaMemcpyAsync");
  finish(stream(program::kCompute), "numbers of ops");
}

std::vector<ChannelKey> CudaExecutor::channels() const {
  std::set<ChannelKey> found;
  for (const program::Segment& segment : class_.segments) {
    for (const Op& op : segment.ops) {
      const int channel = place_.program.communication.channel(op.stream);
      if (op.is<ops::Send>()) found.insert({place_.rank, place_.peer(op), channel});
      if (op.is<ops::Recv>()) found.insert({place_.peer(op), place_.rank, channel});
    }
  }
  return {found.begin(), found.end()};
}

void CudaExecutor::plan_gemms() {
  std::vector<kernels::cuda::GemmShape> shapes;
  for (const program::Segment& segment : class_.segments) {
    for (const Op& op : segment.ops) {
      for (const auto& shape : gemm_shapes(op, class_, place_.program.training)) shapes.push_back(shape);
    }
  }
  gemms_ = std::make_unique<kernels::cuda::Gemms>(stream(program::kCompute), shapes, kGemmWorkspace,
                                                  options_.gemm_cache);
}

void CudaExecutor::fill_rope_tables() {
  const std::vector<RotaryTables> tables = rope_tables(place_.program);
  if (tables.empty()) return;
  rope_ = allocate(static_cast<std::size_t>(rotary_bytes(tables)), "tables of rotary positions");
  auto* to = static_cast<float*>(rope_.get());
  const auto copy = [&](const std::vector<float>& from) {
    check(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice,
                          stream(program::kCompute)),
          "cudaMemcpyAsync");
    return std::exchange(to, to + from.size());
  };
  for (const RotaryTables& t : tables) {
    const float* const cosine = copy(t.cosine);
    rotary_.push_back({cosine, copy(t.sine)});
  }
  finish(stream(program::kCompute), "tables of rotary positions");
}

// --- memory ----------------------------------------------------------------------------------------

void CudaExecutor::write(std::int64_t offset, std::span<const std::byte> from) {
  for (std::size_t done = 0, part = 0; done < from.size(); part = 1 - part) {
    const std::size_t n = std::min(PinnedHalf::kBytes, from.size() - done);
    PinnedHalf& half = pinned_[part];
    wait([&] { return cudaEventQuery(half.copied.get()); }, "a copy to the device");
    std::memcpy(half.memory.get(), from.data() + done, n);
    check(cudaMemcpyAsync(at(offset) + done, half.memory.get(), n, cudaMemcpyDefault,
                          stream(program::kCompute)),
          "cudaMemcpyAsync");
    check(cudaEventRecord(half.copied.get(), stream(program::kCompute)), "cudaEventRecord");
    done += n;
  }
}

void CudaExecutor::read(std::int64_t offset, std::span<std::byte> to) {
  const auto size = [&](std::size_t begin) { return std::min(PinnedHalf::kBytes, to.size() - begin); };
  const auto fetch = [&](PinnedHalf& half, std::size_t begin) {
    check(cudaMemcpyAsync(half.memory.get(), at(offset) + begin, size(begin), cudaMemcpyDefault,
                          stream(program::kCompute)),
          "cudaMemcpyAsync");
    check(cudaEventRecord(half.copied.get(), stream(program::kCompute)), "cudaEventRecord");
  };
  if (!to.empty()) fetch(pinned_[0], 0);
  for (std::size_t begin = 0, part = 0; begin < to.size(); begin += PinnedHalf::kBytes, part = 1 - part) {
    if (begin + PinnedHalf::kBytes < to.size()) fetch(pinned_[1 - part], begin + PinnedHalf::kBytes);
    wait([&] { return cudaEventQuery(pinned_[part].copied.get()); }, "a copy from the device");
    std::memcpy(to.data() + begin, pinned_[part].memory.get(), size(begin));
  }
}

void CudaExecutor::clear() {
  check(cudaMemsetAsync(arena_.get(), 0, static_cast<std::size_t>(class_.arena_peak.value),
                        stream(program::kCompute)),
        "cudaMemsetAsync");
  if (class_.host_bytes.value > 0)
    std::memset(host_arena_.get(), 0, static_cast<std::size_t>(class_.host_bytes.value));
  if (class_.drive_bytes > Bytes{0})
    std::memset(drives_.data(), 0, static_cast<std::size_t>(class_.drive_bytes.value));
  finish(stream(program::kCompute), "clearing the arena");
}

const std::byte* CudaExecutor::view(std::int64_t offset, std::size_t bytes, std::vector<std::byte>& space) {
  space.resize(bytes);
  read(offset, space);
  return space.data();
}

std::uint64_t CudaExecutor::algorithms() const {
  return gemms_->hash();
}

std::int64_t CudaExecutor::scratch_bytes() const {
  return static_cast<std::int64_t>(workspace_.bytes() + rope_.bytes() + scalars_.bytes() + numbers_.bytes() +
                                   gemms_->workspace_bytes() + communicator_->scratch_bytes());
}

void CudaExecutor::finish(kernels::cuda::Stream s, const char* what) const {
  wait([s] { return cudaStreamQuery(s); }, what);
}

// Where streams were in a step that was not done; nothing outside the first step.
std::string CudaExecutor::under_way() const {
  std::string out;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    const std::int32_t number = static_cast<const volatile std::int32_t*>(reached_.get())[s];
    if (number < 0) continue;
    const Issue& at = order_.ops[static_cast<std::size_t>(number)];
    const program::Step& step = class_.steps[static_cast<std::size_t>(at.step)];
    const program::Segment& segment = class_.segments[static_cast<std::size_t>(step.segment)];
    out += fmt::format("{}{} at {}", out.empty() ? "; stream " : ", stream ",
                       place_.program.communication.streams[s].name,
                       program::describe_op(class_, step, segment.ops[static_cast<std::size_t>(at.op)]));
  }
  return out;
}

// A rank that fails elsewhere, or a partner that does not come, ends the wait too.
template <class Query>
void CudaExecutor::wait(Query query, const char* what) const {
  const auto until = Clock::now() + 2 * options_.deadline;
  for (;;) {
    const cudaError_t e = query();
    if (e == cudaSuccess) return;
    if (e != cudaErrorNotReady)
      throw Error(fmt::format("{}: {}{}", what, cudaGetErrorString(e), under_way()));
    abort_.check();
    communicator_->require_healthy();
    if (Clock::now() > until)
      throw Error(fmt::format("{} was not done after {} ms", what, 2 * options_.deadline.count()));
    std::this_thread::yield();
  }
}

// --- a pass ----------------------------------------------------------------------------------------

void CudaExecutor::set_scalars(const Pass& pass) {
  auto& s = *static_cast<kernels::cuda::StepScalars*>(next_scalars_.get());
  const auto updates = static_cast<float>(pass.updates);
  const Optimizer& optimizer = place_.program.training.optimizer;
  s = {.loss_scale = pass.loss_scale,
       .first_sample = place_.first_sample(pass.number),
       .learning_rate = pass.learning_rate,
       .correct1 = 1.0F - std::pow(static_cast<float>(optimizer.beta1), updates),
       .correct2 = 1.0F - std::pow(static_cast<float>(optimizer.beta2), updates),
       .updates = pass.updates};
  check(cudaMemcpyAsync(scalars_.get(), &s, sizeof s, cudaMemcpyHostToDevice, stream(program::kCompute)),
        "cudaMemcpyAsync");
}

PassTimes CudaExecutor::run(const Pass& pass) {
  try {
    return walk(pass);
  } catch (const std::exception& e) {
    const std::string reason = abort_.raise(fmt::format("rank {}: {}", place_.rank, e.what()));
    // NCCL waits for graphs that hold ops of its communicators.
    graph_ = {};
    measured_graph_ = {};
    communicator_->abort();
    // Work of processors that is still to come returns at once, but reads this executor.
    const auto is_busy = [&](program::StreamIndex s) {
      return cudaStreamQuery(stream(s)) == cudaErrorNotReady;
    };
    for (int tries = 0; tries < 1000 && (is_busy(program::kHostStream) || is_busy(program::kToDrives) ||
                                         is_busy(program::kFromDrives));
         ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    throw Error(reason);
  }
}

PassTimes CudaExecutor::walk(const Pass& pass) {
  const bool measures = pass.measured && (options_.timelines || pass.number + 1 == options_.steps);
  if (measures && before_.empty()) {
    for (std::size_t i = 0; i < order_.ops.size(); ++i) {
      before_.push_back(make_event(Timed::kYes));
      after_.push_back(make_event(Timed::kYes));
    }
  }
  constants_ = {pass.learning_rate, options_.weight_decay, pass.updates, options_.seed};
  set_scalars(pass);
  check(cudaEventRecord(begin_.get(), stream(program::kCompute)), "cudaEventRecord");
  finish(stream(program::kCompute), "the numbers of a step");
  const Clock::time_point begin = Clock::now();
  if (pass.what == PassOf::kExchange) {
    exchange_with_islands(pass);
  } else if (is_replayed(pass)) {
    kernels::cuda::Graph& graph = measures ? measured_graph_ : graph_;
    if (graph.get() == nullptr) graph = capture(pass, measures);
    check(cudaGraphLaunch(graph.get(), stream(program::kCompute)), "cudaGraphLaunch");
  } else {
    issue(pass, measures, false);
  }
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    const std::string what =
        fmt::format("stream {} of step {}", place_.program.communication.streams[s].name, pass.number + 1);
    finish(streams_[s].get(), what.c_str());
  }
  if (!warm_) std::fill_n(static_cast<std::int32_t*>(reached_.get()), streams_.size(), -1);
  warm_ = warm_ || pass.what == PassOf::kStep;
  const double lasted = std::chrono::duration<double>(Clock::now() - begin).count();
  const double waited = measures ? collect(begin) : 0;
  return {waited, lasted - waited};
}

// The first step is issued op by op: what is made when it is first needed cannot be made in a graph. Nor do
// graphs have hooks.
bool CudaExecutor::is_replayed(const Pass& pass) const {
  return options_.launch == orrery::Launch::kGraph && warm_ && pass.what == PassOf::kStep &&
         !pass.before_update && !pass.after_update;
}

// Of a step. Its numbers are in device memory, so that it serves all steps that come.
kernels::cuda::Graph CudaExecutor::capture(const Pass& pass, bool measures) {
  const kernels::cuda::Stream compute = stream(program::kCompute);
  const auto wait = [](kernels::cuda::Stream s, const Event& e) {
    check(cudaStreamWaitEvent(s, e.get(), 0), "cudaStreamWaitEvent");
  };
  kernels::cuda::Capture captured(compute);
  check(cudaEventRecord(fork_.get(), compute), "cudaEventRecord");
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    if (s != program::kCompute) wait(streams_[s].get(), fork_);
  }
  issue(pass, measures, true);
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    if (s == program::kCompute) continue;
    check(cudaEventRecord(joins_[s].get(), streams_[s].get()), "cudaEventRecord");
    wait(compute, joins_[s]);
  }
  return captured.end();
}

void CudaExecutor::issue(const Pass& pass, bool measures, bool captured) {
  // In a graph an event is a dependency, unless it is recorded for who stands outside.
  const auto record_time = [&](const Event& e, kernels::cuda::Stream s) {
    check(cudaEventRecordWithFlags(e.get(), s, captured ? cudaEventRecordExternal : cudaEventRecordDefault),
          "cudaEventRecordWithFlags");
  };
  for (std::size_t i = 0; i < order_.ops.size(); ++i) {
    const Issue& next = order_.ops[i];
    const program::Step& step = class_.steps[static_cast<std::size_t>(next.step)];
    const program::Segment& segment = class_.segments[static_cast<std::size_t>(step.segment)];
    const Op& op = segment.ops[static_cast<std::size_t>(next.op)];
    const kernels::cuda::Stream s = stream(op.stream);
    const Range range(op.name.c_str());
    try {
      for (std::int32_t w = next.first_wait; w < next.first_wait + next.waits; ++w) {
        const std::int32_t event = order_.waits[static_cast<std::size_t>(w)];
        check(cudaStreamWaitEvent(s, events_[static_cast<std::size_t>(event)].get(), 0),
              "cudaStreamWaitEvent");
      }
      if (measures) record_time(before_[i], s);
      if (!warm_) {
        check(cudaMemcpyAsync(static_cast<std::int32_t*>(reached_.get()) + op.stream,
                              static_cast<const std::int32_t*>(numbers_.get()) + i, sizeof(std::int32_t),
                              cudaMemcpyDeviceToHost, s),
              "cudaMemcpyAsync");
      }
      // Work that is left out still has its event: others wait for it.
      if (runs(pass.what, segment.kind, op)) {
        const auto hook = [&](const std::function<void(const Op&)>& call, std::int64_t unit) {
          if (unit < 0 || !call) return;
          finish(s, op.name.c_str());
          call(op);
        };
        hook(pass.before_update, program::update_begun(op.kind));
        if (program::is_communication(op.kind))
          communicate(op, step.micro_batch);
        else if (is_of_processors(op))
          enqueue_on_host(op);
        else
          compute(op, step.micro_batch, pass);
        hook(pass.after_update, program::update_ended(op.kind));
      }
      if (measures) record_time(after_[i], s);
      if (next.event >= 0) {
        check(cudaEventRecord(events_[static_cast<std::size_t>(next.event)].get(), s), "cudaEventRecord");
      }
    } catch (const std::exception& e) {
      throw Error(fmt::format("{}: {}", program::describe_op(class_, step, op), e.what()));
    }
  }
}

// One op after the other: it is rare, and its all-reduce is nearly all of it.
void CudaExecutor::exchange_with_islands(const Pass& pass) {
  const Op* before = nullptr;
  for (const program::Step& step : class_.outer) {
    for (const Op& op : class_.segments[static_cast<std::size_t>(step.segment)].ops) {
      if (before != nullptr && before->stream != op.stream)
        finish(stream(before->stream), before->name.c_str());
      before = &op;
      if (program::is_communication(op.kind))
        communicate(op, step.micro_batch);
      else
        compute(op, step.micro_batch, pass);
    }
  }
}

void CudaExecutor::compute(const Op& op, std::int64_t micro_batch, const Pass& pass) {
  const auto* const scalars = static_cast<const kernels::cuda::StepScalars*>(scalars_.get());
  CudaOp a{.op = op,
           .place = place_,
           .stream = stream(op.stream),
           .weight_decay = options_.weight_decay,
           .rounding = place_.rounding(op, options_.seed),
           .scalars = scalars,
           .workspace = {workspace_.get(), workspace_.bytes()},
           .gemms = *gemms_};
  for (std::size_t i = 0; i < op.operands().size() && i < a.in.size(); ++i) {
    a.in[i] = pointer(op.reads[i], micro_batch);
    a.in_type[i] = place_.buffer(op.reads[i]).type;
  }
  for (std::size_t i = 0; i < op.writes.size() && i < a.out.size(); ++i) {
    a.out[i] = pointer(op.writes[i], micro_batch);
    a.out_type[i] = place_.buffer(op.writes[i]).type;
  }
  if (pass.what != PassOf::kForward) a.dropout = place_.dropout(op, micro_batch, options_.seed, 0);
  a.rotary = rotary_;
  run_cuda_op(a);
}

void CudaExecutor::enqueue_on_host(const Op& op) {
  HostWork& work = host_work_.try_emplace(&op, HostWork{this, &op}).first->second;
  const auto call = [](void* of) {
    const auto* w = static_cast<const HostWork*>(of);
    if (w->executor->abort_.raised()) return;
    try {
      w->executor->run_on_host(*w->op);
    } catch (const std::exception& e) {
      w->executor->abort_.raise(fmt::format("rank {}: {}", w->executor->place_.rank, e.what()));
    }
  };
  check(cudaLaunchHostFunc(stream(op.stream), call, &work), "cudaLaunchHostFunc");
}

void CudaExecutor::run_on_host(const Op& op) {
  OpArguments a{.op = op, .model = place_.program.model, .at = place_.at};
  for (std::size_t i = 0; i < op.operands().size() && i < a.in.size(); ++i)
    a.in[i] = reinterpret_cast<const float*>(pointer(op.reads[i], 0));
  for (std::size_t i = 0; i < op.writes.size() && i < a.out.size(); ++i)
    a.out[i] = reinterpret_cast<float*>(pointer(op.writes[i], 0));
  a.type = place_.buffer(op.writes[0]).type;
  if (op.is<ops::Copy>()) return run_cpu_op(a);  // elements as they are
  set_update(a, place_, program::update_ended(op.kind), constants_);
  staging_.widen(a);
  run_cpu_op(a);
  staging_.narrow();
}

void CudaExecutor::communicate(const Op& op, std::int64_t micro_batch) {
  const auto elements = static_cast<std::size_t>(program::elements_of(op.kind));
  const kernels::cuda::Stream s = stream(op.stream);
  if (op.is_transfer()) {
    const program::Ref& own = op.is<ops::Send>() ? op.reads[0] : op.writes[0];
    const std::size_t bytes = elements * bytes_of(place_.buffer(own).type);
    const int channel = place_.program.communication.channel(op.stream);
    if (op.is<ops::Send>())
      return communicator_->send(place_.peer(op), channel, op.name, pointer(own, micro_batch), bytes, s);
    return communicator_->receive(place_.peer(op), channel, op.name, pointer(own, micro_batch), bytes, s);
  }
  const auto& shape = std::get<ops::Collective>(op.kind);
  const CollectiveCall call{.kind = shape.collective,
                            .name = op.name,
                            .input = pointer(op.reads[0], micro_batch),
                            .output = pointer(op.writes[0], micro_batch),
                            .elements = elements,
                            .type = place_.buffer(op.writes[0]).type,
                            .accumulate = op.accumulate};
  communicator_->collective(groups_[static_cast<std::size_t>(op.group)], call, s);
}

// When ops ran, in the processor's time; and what compute waited for the other streams.
double CudaExecutor::collect(Clock::time_point begin) {
  const auto when = [&](const Event& e) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_.get(), e.get()), "cudaEventElapsedTime");
    return begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms));
  };
  for (auto& m : measured) m.clear();
  double waited = 0;
  for (std::size_t i = 0; i < order_.ops.size(); ++i) {
    const Issue& at = order_.ops[i];
    const program::Step& step = class_.steps[static_cast<std::size_t>(at.step)];
    const Op& op =
        class_.segments[static_cast<std::size_t>(step.segment)].ops[static_cast<std::size_t>(at.op)];
    const auto start = when(before_[i]);
    auto& stream_ops = measured[op.stream];
    if (op.stream == program::kCompute && at.waits > 0 && !stream_ops.empty())
      waited += std::chrono::duration<double>(start - stream_ops.back().end).count();
    stream_ops.push_back({at.step, at.op, start, start, when(after_[i])});
  }
  return waited;
}

}  // namespace orrery::exec::cuda
