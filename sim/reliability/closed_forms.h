// SPDX-License-Identifier: Apache-2.0
//
// What failures cost, by formula. Times are seconds, rates events per second.
//
//   double mtbf = seconds_between(2048 * 3.8e-3 / kSecondsPerDay);          // 11,102 s: Llama 3's nodes
//   double interval = young_daly_interval(2.8, mtbf);                      // 249 s
//   double ettr = expected_ettr({.failures_per_s = 1 / mtbf, .restart_s = 800, .interval_s = 249, .write_s
//   = 2.8});
#pragma once

#include <vector>

namespace orrery::sim {

// The reciprocal of a rate; infinite when nothing happens.
double seconds_between(double events_per_s);

// The interval between checkpoints that loses least time, to first order: sqrt(2 w M), w: how long a
// checkpoint stops the job, M: mean time between failures (Young, CACM 1974; Daly, FGCS 2006). Infinite
// without failures.
double young_daly_interval(double write_s, double mtbf_s);

struct EttrTerms {
  double failures_per_s = 0;  // N r_f: of the whole job
  double restart_s = 0;       // u0: from the failure until the job runs again
  double interval_s = 0;      // dt: work between two checkpoints
  double write_s = 0;         // w: how long a checkpoint stops the job
};
// Share of a run's time that is spent on progress: (1 - N r_f (u0 + dt / 2)) / (1 + w / dt). Kokolis et al.,
// HPCA 2025, arXiv 2410.21680. A first order in N r_f; may be negative where failures are frequent.
double expected_ettr(const EttrTerms& t);
// u0 + dt / 2 that an ETTR allows, w = 0: (1 - ETTR) / (N r_f).
double allowed_loss_per_failure(double ettr, double failures_per_s);

// A kind of failure, which comes at exponential times and needs its own restart.
struct FailureKind {
  double per_s = 0;
  double restart_s = 0;
};
// Expected time of a run of `work_s` with a checkpoint, which stops it for `stall_s`, behind every
// `interval_s` of work and at its end. Failures come while it works, saves and restarts; each costs the work
// since the last checkpoint, and one in a restart begins the restart anew. Exact. With L = interval + stall,
// the sum of rates r, and p_k = r_k / r:
//
//   time of a segment = (1 / r + z) (e^(r L) - 1),   z = sum p_k (1 - e^(-r R_k)) / (r sum p_k e^(-r R_k))
//
// z is the expected time from a failure until the job works again. For one kind it is (e^(r R) - 1) / r, and
// the whole becomes Daly's e^(r R) (e^(r L) - 1) / r (FGCS 2006, equation 13). Infinite where it overflows.
double expected_run_s(double work_s, double interval_s, double stall_s,
                      const std::vector<FailureKind>& kinds);

// The interval for which expected_run_s is least, by golden sections of its logarithm; between `least_s` and
// `work_s`.
double best_interval_s(double work_s, double stall_s, double least_s, const std::vector<FailureKind>& kinds);

}  // namespace orrery::sim
