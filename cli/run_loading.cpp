// SPDX-License-Identifier: Apache-2.0
#include "cli/run_loading.h"

#include <fmt/format.h>

#include <algorithm>

#include "exec/memory.h"
#include "sim/loading/loading.h"

namespace orrery::cli {
namespace {

// As ranks here load: all samples of a step at a time.
Loading as_run(const Scenario& s) {
  Loading l = *s.loading;
  l.batch = LoadedBatch::kStep;
  return l;
}

Bytes sample_of(const Scenario& s) {
  return s.loading->sample_bytes.value_or(sim::sample_bytes(s.model, s.training));
}

double per_second(const std::optional<Bandwidth>& b, std::int64_t shared_by) {
  return b ? static_cast<double>(b->value) / static_cast<double>(shared_by) : 0;
}

// A run here is of few epochs: in those after the first, caches have what they have in the second.
constexpr double kLater = 2;

exec::EmulatedStorage emulated(const Scenario& s, const sim::ReaderPlaces& places) {
  const Loading l = as_run(s);
  const double storage = per_second(l.storage_bandwidth, places.count),
               node = per_second(l.node_bandwidth, places.most_on_node);
  exec::EmulatedStorage out;
  out.latency_s = seconds(l.latency) / static_cast<double>(l.samples_per_read);
  out.share = storage > 0 && node > 0 ? std::min(storage, node) : std::max(storage, node);
  out.worker_bandwidth = per_second(l.worker_bandwidth, 1);
  out.cpu_s = seconds(l.cpu_time);
  if (l.cores)
    out.cores_s = out.cpu_s * static_cast<double>(places.most_on_node) / static_cast<double>(*l.cores);
  out.sample_bytes = static_cast<double>(sample_of(s).value);
  out.read_share = sim::read_share(l, places, kLater);
  out.variation = l.variation;
  return out;
}

}  // namespace

exec::LoaderOptions loader_options(const RunAsked& o, const Chosen& chosen) {
  if (!o.loading) return {};
  const Scenario& s = chosen.problem.scenario;
  const Cursor at = chosen.scenario.child("loading");
  if (!s.loading)
    at.fail("is missing, and --loading emulates it", "allowed: an object; `orrery schema scenario` has it");
  const Loading l = as_run(s);
  if (!o.proxy.empty())
    Cursor{"command line", "/loading"}.fail("the storage of the plan is not that of its proxy",
                                            "allowed: without --proxy");
  if (l.workers == 0)
    at.child("workers").fail("is 0, and ranks here load beside steps", "allowed: 1 or more to run it");
  const auto places = sim::reader_places(l, chosen.plan, chosen.problem.cluster.devices_per_node);
  const double made_s = static_cast<double>(l.workers * places.samples) /
                        sim::load_rate(l, places, sample_of(s), 1).samples_per_s;
  if (made_s > static_cast<double>(o.deadline_s))
    at.fail(fmt::format("takes {:.4g} s until a worker has the samples of a step", made_s),
            fmt::format("allowed: no more than --deadline, {} s", o.deadline_s));
  const Cursor steps{"command line", "/steps"};
  if (o.steps < 2 * l.workers + 1)
    steps.fail(fmt::format("{} steps are too few to compare what {} workers load", o.steps, l.workers),
               fmt::format("allowed: {} or more with --loading", 2 * l.workers + 1));
  constexpr std::int64_t kMostThreads = 256;
  if (l.workers * chosen.plan.ranks() > kMostThreads)
    at.child("workers").fail(
        fmt::format("gives {} ranks {} threads", chosen.plan.ranks(), l.workers * chosen.plan.ranks()),
        fmt::format("allowed: {} threads to run it", kMostThreads));
  // No element of a sample takes more than four times its bytes.
  constexpr double kOfABatch = 512;  // bytes beside it
  const double batch = kOfABatch + 4 * static_cast<double>(places.samples) *
                                       static_cast<double>(sim::sample_bytes(s.model, s.training).value);
  const double ahead = batch * static_cast<double>(l.workers * l.prefetch * chosen.plan.ranks());
  const Bytes there = exec::available_memory().bytes;
  if (ahead > static_cast<double>(there.value) / 2)
    at.child("prefetch")
        .fail(fmt::format("keeps {:.4g} GB of batches ready, and {} are free", ahead / 1e9, format(there)),
              "allowed: as much as half of it holds");
  return {.workers = l.workers, .prefetch = l.prefetch, .storage = emulated(s, places)};
}

ComparedLoading compare_loading(const Ended& run) {
  const auto& steps = run.result.steps;
  const auto burst = static_cast<std::size_t>(run.problem.scenario.loading->workers);
  std::size_t first = burst, end = first + (steps.size() - std::min(steps.size(), first)) / burst * burst;
  if (first >= end) first = 0, end = steps.size();  // a run that ended early
  ComparedLoading out;
  for (std::size_t i = first; i < end; ++i) {
    out.measured_s += steps[i].seconds / static_cast<double>(end - first);
    out.waited_s += steps[i].waited_for_data_s / static_cast<double>(end - first);
  }
  Problem as = run.problem;
  const double samples = static_cast<double>(run.samples),
               of_steps = static_cast<double>(as.scenario.training.global_batch) *
                          static_cast<double>(run.result.first_step + std::ssize(steps));
  // The run that there was: so many samples, of data that has so many.
  as.scenario.training.tokens = of_steps * static_cast<double>(as.scenario.training.sequence);
  Loading l = as_run(as.scenario);
  if (l.dataset_bytes) {
    const double cached = l.cache_bytes ? ratio(*l.cache_bytes, *l.dataset_bytes) : 0;
    const Bytes sample = sample_of(as.scenario);
    l.dataset_bytes = Bytes{saturating_cast(samples * static_cast<double>(sample.value))};
    if (l.cache_bytes)
      l.cache_bytes = Bytes{saturating_cast(cached * static_cast<double>(l.dataset_bytes->value))};
  }
  out.predicted = sim::loaded_step(as, l, run.plan, out.measured_s - out.waited_s, true);
  return out;
}

std::string text_of(const ComparedLoading& c) {
  return fmt::format("{}; measured: steps take {}, and wait for samples {:.1f} % of it",
                     sim::text_of(c.predicted), format(from_seconds(c.measured_s)),
                     100 * c.waited_s / c.measured_s);
}

Json to_json(const ComparedLoading& c) {
  return {{"predicted", write_fields(c.predicted)},
          {"measured_s", c.measured_s},
          {"measured_waiting_s", c.waited_s}};
}

}  // namespace orrery::cli
