// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/report.h"

#include <algorithm>
#include <cmath>

namespace orrery::sim {
namespace {

// Values of the jobs of a tenant, or of all.
struct Gathered {
  TenantReport report;
  std::vector<double> waits, slowdowns;

  void add(const ClusterJob& job, const JobOutcome& o) {
    ++report.jobs;
    report.preemptions += o.preemptions;
    report.backfilled += o.backfilled;
    waits.push_back(seconds(o.start - job.submit));
    slowdowns.push_back(std::max(1.0, seconds(o.end - job.submit) / std::max(seconds(job.work), kShortJob)));
  }
  TenantReport finished(double held_in_all) {
    report.wait = quantiles_of(std::move(waits));
    report.slowdown = quantiles_of(std::move(slowdowns));
    report.share = held_in_all > 0 ? report.device_hours / held_in_all : 0;
    return std::move(report);
  }
};

// Nodes of the largest leaf, of the two largest, ..
std::vector<std::int64_t> largest_leaves(const ClusterNodes& nodes) {
  std::vector<std::int64_t> out;
  for (std::size_t l = 0; l < nodes.pod.size(); ++l) out.push_back(nodes.first[l + 1] - nodes.first[l]);
  std::sort(out.rbegin(), out.rend());
  for (std::size_t i = 1; i < out.size(); ++i) out[i] += out[i - 1];
  return out;
}

std::int64_t leaves_for(const std::vector<std::int64_t>& sizes, std::int64_t nodes) {
  return std::lower_bound(sizes.begin(), sizes.end(), nodes) - sizes.begin() + 1;
}

double jain(const JobQueue& queue, const std::vector<TenantReport>& tenants) {
  double sum = 0, squares = 0, n = 0;
  for (std::size_t t = 0; t < tenants.size(); ++t) {
    if (tenants[t].jobs == 0) continue;
    const double x = tenants[t].device_hours / queue.tenants[t].share;
    sum += x;
    squares += x * x;
    ++n;
  }
  return squares > 0 ? sum * sum / (n * squares) : 1;
}

// What the load was, and its mean in each of equal parts of the makespan.
void add_load(const ScheduleOutcome& outcome, ScheduleReport& r) {
  const double devices = static_cast<double>(outcome.devices), width = r.makespan_s / kLoadBuckets;
  r.load.resize(kLoadBuckets);
  for (std::size_t b = 0; b < kLoadBuckets; ++b) r.load[b].at_s = width * static_cast<double>(b);
  for (std::size_t i = 0; i < outcome.load.size(); ++i) {
    const LoadPoint& p = outcome.load[i];
    const Ticks until = i + 1 < outcome.load.size() ? outcome.load[i + 1].at : outcome.end;
    const double from = seconds(p.at - outcome.begin), to = seconds(until - outcome.begin);
    const double held = static_cast<double>(p.held) / devices, free = 1 - held;
    const double share = (to - from) / r.makespan_s;
    r.held += held * share;
    if (p.fragmented) r.fragmentation += free * share;
    if (p.waiting > 0) r.wanted += free * share;
    auto b = static_cast<std::size_t>(from / width);
    for (double at = from; at < to && b < kLoadBuckets; ++b) {
      const double end = b + 1 == kLoadBuckets ? to : std::min(to, width * static_cast<double>(b + 1));
      const double part = std::max(0.0, end - at) / width;
      r.load[b].held += held * part;
      r.load[b].fragmented += p.fragmented ? free * part : 0;
      r.load[b].waiting += static_cast<double>(p.waiting) * part;
      at = std::max(at, end);
    }
  }
}

}  // namespace

Quantiles quantiles_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double v : values) sum += v;
  const auto n = static_cast<double>(values.size());
  const auto at = [&](double p) { return values[static_cast<std::size_t>(std::ceil(p * n)) - 1]; };
  return {sum / n, at(0.5), at(0.95), values.back()};
}

std::int64_t fewest_leaves(const ClusterNodes& cluster, std::int64_t nodes) {
  return leaves_for(largest_leaves(cluster), nodes);
}

ScheduleReport report_of(const JobQueue& queue, const ClusterNodes& nodes, const ScheduleOutcome& outcome) {
  ScheduleReport r;
  r.makespan_s = seconds(outcome.end - outcome.begin);
  r.attempts = std::ssize(outcome.attempts);
  std::vector<Gathered> gathered(queue.tenants.size());
  Gathered all;
  const double device_s = static_cast<double>(outcome.devices) * r.makespan_s;
  double unasked = 0, leaves = 0, fewest = 0;
  const std::vector<std::int64_t> sizes = largest_leaves(nodes);
  for (const Attempt& a : outcome.attempts) {
    const ClusterJob& job = queue.jobs[static_cast<std::size_t>(a.job)];
    const auto count = static_cast<std::int64_t>(a.count);
    const std::int64_t held = std::min(job.devices, nodes.devices_per_node) * count;
    const double time = seconds(a.end - a.start);
    gathered[static_cast<std::size_t>(job.tenant)].report.device_hours +=
        static_cast<double>(held) * time / 3600;
    unasked += static_cast<double>(held - job.devices) * time;
    if (job.devices < nodes.devices_per_node) continue;
    leaves += static_cast<double>(leaf_parts(nodes, outcome.nodes_of(a)).size());
    fewest += static_cast<double>(leaves_for(sizes, count));
  }
  for (std::size_t i = 0; i < queue.jobs.size(); ++i) {
    const ClusterJob& job = queue.jobs[i];
    const JobOutcome& o = outcome.jobs[i];
    gathered[static_cast<std::size_t>(job.tenant)].add(job, o);
    all.add(job, o);
    const auto share = [&](Ticks t) { return static_cast<double>(job.devices) * seconds(t) / device_s; };
    r.useful += share(o.useful);
    r.slow += share(o.slow);
    r.lost += share(o.lost);
    r.checkpoint += share(o.checkpoint);
    r.restart += share(o.restart);
  }
  add_load(outcome, r);
  r.unasked = unasked / device_s;
  r.free = 1 - r.held;
  r.spread = fewest > 0 ? leaves / fewest : 1;
  for (const Gathered& g : gathered) all.report.device_hours += g.report.device_hours;
  const double held_in_all = all.report.device_hours;
  for (std::size_t t = 0; t < gathered.size(); ++t) {
    gathered[t].report.name = queue.tenants[t].name;
    r.tenants.push_back(gathered[t].finished(held_in_all));
  }
  r.all = all.finished(held_in_all);
  r.all.name = "all";
  r.fairness = jain(queue, r.tenants);
  return r;
}

}  // namespace orrery::sim
