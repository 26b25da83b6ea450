// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace orrery::sim {
namespace {

template <class T>
T needed(const std::optional<T>& value, const char* field) {
  if (!value) throw Error(fmt::format("the field \"reliability/{}\" has no value", field));
  return *value;
}

double bytes_per_s(Bandwidth b) {
  return static_cast<double>(b.value);
}

// An interval in memory or storage, in steps.
std::int64_t in_steps(double interval_s, double step_s, std::int64_t least, std::int64_t most) {
  const double n = std::round(interval_s / step_s);
  return std::clamp(saturating_cast(n), least, std::max(least, most));
}

void set_rates(const ReliabilityAssumptions& a, RunModel& m) {
  const auto daily = [](double per_node, double per_job) {
    return EventRate{per_node / kSecondsPerDay, per_job / kSecondsPerDay};
  };
  m.rate(Process::kHardware) =
      daily(needed(a.failures.hardware_per_node_day, "failures/hardware_per_node_day"), 0);
  m.rate(Process::kSoftware) =
      daily(needed(a.failures.software_per_node_day, "failures/software_per_node_day"),
            a.failures.software_per_job_day.value_or(0));
  m.rate(Process::kSilent) = daily(a.silent.per_node_day.value_or(0), 0);
  m.rate(Process::kSlow) = daily(a.stragglers.slow_per_node_day.value_or(0), 0);
  m.rate(Process::kPreempt) = daily(
      a.prices.payment == Payment::kSpot ? needed(a.preemption.per_node_day, "preemption/per_node_day") : 0,
      0);
}

}  // namespace

double write_time_s(const Checkpoints& c, double bytes, const Job& job) {
  const bool all = needed(c.writers, "checkpoint/writers") == Writers::kAll;
  const auto writers = static_cast<double>(all ? job.ranks : job.ranks / job.replicas);
  double rate = writers * bytes_per_s(needed(c.writer_bandwidth, "checkpoint/writer_bandwidth"));
  if (c.write_bandwidth) rate = std::min(rate, bytes_per_s(*c.write_bandwidth));
  return bytes / rate;
}

double copy_time_s(const Checkpoints& c, double bytes, const Job& job) {
  return bytes / static_cast<double>(job.ranks) /
         bytes_per_s(needed(c.device_bandwidth, "checkpoint/device_bandwidth"));
}

double restart_time_s(const RestartTimes& r, RestartKind kind, std::int64_t devices) {
  const auto n = static_cast<double>(devices);
  switch (kind) {
    case RestartKind::kRequeue:
      return needed(r.requeue, "restart/requeue").value +
             n * needed(r.requeue_per_device, "restart/requeue_per_device").value;
    case RestartKind::kHotSpare:
      return needed(r.hot_spare, "restart/hot_spare").value +
             n * needed(r.hot_spare_per_device, "restart/hot_spare_per_device").value;
    case RestartKind::kInPlace:
      return needed(r.in_place, "restart/in_place").value +
             n * needed(r.in_place_per_device, "restart/in_place_per_device").value;
  }
  return 0;
}

JobModel model_of(const ReliabilityAssumptions& a, const Job& job) {
  JobModel out;
  RunModel& m = out.run;
  const Checkpoints& c = a.checkpoint;
  const CheckpointKind kind = needed(c.kind, "checkpoint/kind");
  m.nodes = job.nodes;
  set_rates(a, m);

  out.step_spread = step_spread(a.stragglers.rank_noise.value_or(0), job.ranks);
  out.step_s = job.step_s * a.stragglers.imbalance.value_or(1) * out.step_spread.mean;
  const Ticks step = std::max(Ticks{1}, ticks(out.step_s));
  m.work = step * job.steps;
  if (m.work >= kLongestSimulatedRun)
    throw Error(fmt::format("the run has {:.3g} days of work, more than are simulated", days(m.work)));

  // Checkpoints.
  out.bytes = c.bytes ? static_cast<double>(c.bytes->value) : job.checkpoint_bytes;
  out.write_s = write_time_s(c, out.bytes, job);
  const double copy = copy_time_s(c, out.bytes, job);
  out.stall_s = kind == CheckpointKind::kSync ? out.write_s : copy;
  out.settle_s = kind == CheckpointKind::kSync ? 0 : out.write_s;
  double stops = 0;
  for (const Process p : {Process::kHardware, Process::kSoftware, Process::kPreempt})
    stops += m.rate(p).of(job.nodes);
  out.mtbf_s = seconds_between(stops);
  const bool memory = kind == CheckpointKind::kMemory;
  const auto least = std::max<std::int64_t>(1, saturating_cast(std::ceil(out.settle_s / out.step_s)));
  constexpr double kMemoryThenStorage = 3600;  // storage is needed only where memory is lost with nodes
  double wanted = c.interval ? c.interval->value
                  : memory   ? kMemoryThenStorage
                             : young_daly_interval(out.stall_s, out.mtbf_s);
  out.interval_note = c.interval ? "as given" : memory ? "an hour, for what memory loses" : "Young and Daly";
  if (wanted < out.settle_s) out.interval_note += "; lengthened to the time of one write";
  std::int64_t memory_steps =
      memory ? in_steps(c.memory_interval.value_or(RunTime{0}).value, out.step_s, 1, job.steps) : 0;
  out.steps_per_checkpoint = in_steps(wanted, out.step_s, least, job.steps);
  if (memory) {
    const std::int64_t rounded = (out.steps_per_checkpoint + memory_steps - 1) / memory_steps;
    out.steps_per_checkpoint = rounded * memory_steps;
    m.memory_interval = step * memory_steps;
    m.memory_stall = ticks(copy);
    out.memory_interval_s = seconds(m.memory_interval);
  }
  m.interval = step * out.steps_per_checkpoint;
  out.interval_s = seconds(m.interval);
  m.stall = memory ? Ticks{0} : ticks(out.stall_s);
  m.settle = std::min(ticks(out.settle_s), m.interval);
  m.replicas = c.replicas.value_or(1);
  m.kept = c.kept.value_or(1);

  // Restarts.
  m.detection = ticks(needed(a.failures.detection, "failures/detection"));
  const RestartKind hardware = needed(a.restart.hardware, "restart/hardware");
  const RestartKind software = needed(a.restart.software, "restart/software");
  const auto restart = [&](RestartKind k) { return ticks(restart_time_s(a.restart, k, job.devices())); };
  m.hardware_keeps_node = hardware == RestartKind::kInPlace;
  m.restart_spare = restart(hardware);
  m.restart_waited = m.restart_planned = restart(RestartKind::kRequeue);
  m.restart_software = restart(software == RestartKind::kHotSpare ? RestartKind::kInPlace : software);
  m.load_storage = ticks(c.read_bandwidth ? out.bytes / bytes_per_s(*c.read_bandwidth) : out.write_s);
  m.load_memory = ticks(out.bytes / static_cast<double>(job.nodes) / job.node_bandwidth);
  const Ticks load = memory ? m.load_memory : m.load_storage;
  out.restart_hardware_s = seconds(m.detection + m.restart_spare + load);
  out.restart_software_s = seconds(m.detection + m.restart_software + load);

  m.spares = a.spares.nodes;
  m.repair = ticks(needed(a.failures.repair, "failures/repair"));
  m.silent_detection = ticks(needed(a.silent.detection, "silent/detection"));
  const Stragglers& s = a.stragglers;
  m.slow_low = needed(s.slow_low, "stragglers/slow_low");
  m.slow_high = std::max(m.slow_low, needed(s.slow_high, "stragglers/slow_high"));
  if (s.slow_lasts) m.slow_lasts = ticks(*s.slow_lasts);
  m.evicts_slow = s.evicts.value_or(false);
  if (a.maintenance.every) m.maintenance_every = ticks(*a.maintenance.every);
  m.maintenance_lasts = ticks(a.maintenance.lasts.value_or(RunTime{0}));
  m.notice = ticks(a.preemption.notice.value_or(RunTime{0}));
  m.refill = ticks(a.preemption.refill.value_or(RunTime{0}));
  m.replica_nodes = std::max<std::int64_t>(1, job.nodes / job.replicas);
  m.shrunk = job.shrunk;
  return out;
}

std::vector<FailureKind> JobModel::kinds() const {
  // Work that is saved and not in storage yet is lost too.
  const double unsettled = run.in_memory() ? 0 : seconds(run.settle);
  const bool announced = run.notice >= run.drain();
  const double preempted =
      seconds(run.restart_spare + (announced ? run.drain() + run.load_storage : Ticks{0})) +
      (announced ? 0 : restart_hardware_s - seconds(run.detection + run.restart_spare) + unsettled);
  return {{run.rate(Process::kHardware).of(run.nodes), restart_hardware_s + unsettled},
          {run.rate(Process::kSoftware).of(run.nodes), restart_software_s + unsettled},
          {run.rate(Process::kPreempt).of(run.nodes), preempted}};
}

EttrTerms JobModel::ettr_terms() const {
  EttrTerms t;
  double weighted = 0;
  for (const FailureKind& k : kinds()) {
    t.failures_per_s += k.per_s;
    weighted += k.per_s * k.restart_s;
  }
  if (t.failures_per_s > 0) t.restart_s = weighted / t.failures_per_s;
  t.interval_s = run.in_memory() ? memory_interval_s : interval_s;
  t.write_s = stall_s;
  return t;
}

double JobModel::expected_run_s() const {
  const EttrTerms t = ettr_terms();
  return sim::expected_run_s(seconds(run.work), t.interval_s, t.write_s, kinds());
}

}  // namespace orrery::sim
