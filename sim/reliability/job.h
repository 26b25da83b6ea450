// SPDX-License-Identifier: Apache-2.0
//
// From what a scenario assumes to a run that can be simulated: times of checkpoints and restarts from bytes,
// bandwidths and sizes.
//
//   write      bytes / min(write_bandwidth, writers * writer_bandwidth)
//   copy       bytes / ranks / device_bandwidth: each rank's part, to its host
//   stall      sync: write; async and memory: copy
//   settle     from the end of the stall until storage has it: 0 for sync, else write
//   load       from storage: bytes / read_bandwidth, or as write; from memory: a node's part over its NICs
//   restart    fixed time + time per device * devices
//   step       step * imbalance * mean of the slowest rank (stragglers.h)
//   interval   as given, else young_daly_interval(stall, 1 / rate of stops), in whole steps, not below settle
//
// Times are seconds, sizes bytes, rates events per second.
#pragma once

#include <string>
#include <vector>

#include "core/reliability.h"
#include "sim/reliability/closed_forms.h"
#include "sim/reliability/run_model.h"
#include "sim/reliability/stragglers.h"

namespace orrery::sim {

// What a plan says of a job.
struct Job {
  std::int64_t nodes = 1, devices_per_node = 1, ranks = 1;
  std::int64_t replicas = 1;      // dp; the ranks of one are ranks / replicas
  double step_s = 1;              // predicted or stated
  std::int64_t steps = 1;         // of the run
  double tokens_per_step = 0;     // 0: unknown
  double checkpoint_bytes = 0;    // by the precision recipe
  double node_bandwidth = 1;      // bytes per second of a node's NICs
  std::vector<double> shrunk{1};  // RunModel::shrunk, of as many as may be lost

  std::int64_t devices() const { return nodes * devices_per_node; }
  // That are lost with one node, where nodes have whole replicas or replicas whole nodes.
  std::int64_t replicas_of_a_node() const { return replicas > nodes ? replicas / nodes : 1; }
};

double write_time_s(const Checkpoints& c, double bytes, const Job& job);
double copy_time_s(const Checkpoints& c, double bytes, const Job& job);
double restart_time_s(const RestartTimes& r, RestartKind kind, std::int64_t devices);

struct JobModel {
  RunModel run;
  // As they came out.
  double step_s = 0, bytes = 0, write_s = 0, stall_s = 0, settle_s = 0, interval_s = 0, memory_interval_s = 0;
  double restart_hardware_s = 0, restart_software_s = 0;  // detection, restart and load
  double mtbf_s = 0;                                      // of all that stops the job
  std::int64_t steps_per_checkpoint = 1;
  StepSpread step_spread;
  std::string interval_note;  // why the interval is not the one that was asked for, or how it was found

  // For closed forms: failures that stop the job, with their restarts. Silent failures are not among them.
  std::vector<FailureKind> kinds() const;
  EttrTerms ettr_terms() const;
  double expected_run_s() const;  // no spares, silent failures, slow nodes and planned stops
};

// All fields that profiles/reliability/default.json has must have values. Throws Error naming one that has
// none, or saying that times do not fit each other.
JobModel model_of(const ReliabilityAssumptions& a, const Job& job);

}  // namespace orrery::sim
