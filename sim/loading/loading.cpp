// SPDX-License-Identifier: Apache-2.0
#include "sim/loading/loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/mesh.h"
#include "core/random.h"

namespace orrery::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double as_double(std::int64_t n) {
  return static_cast<double>(n);
}
double bytes_per_s(const std::optional<Bandwidth>& b) {
  return b ? as_double(b->value) : kInfinity;
}

struct OnNode {
  std::int64_t readers = 0, replicas = 0;
};
OnNode readers_on(std::int64_t node, const Mesh& mesh, const Plan& plan, Readers readers,
                  std::int64_t devices_per_node) {
  const AxisSet pp = mesh["pp"], dp = mesh["dp"], island = mesh["island"], tp = mesh["tp"], cp = mesh["cp"];
  const std::int64_t end = std::min((node + 1) * devices_per_node, mesh.ranks());
  OnNode out;
  std::vector<std::int64_t> replicas;
  for (std::int64_t r = node * devices_per_node; r < end; ++r) {
    const std::int64_t stage = mesh.coordinate(r, pp);
    const bool reads = readers == Readers::kRank
                           ? stage == 0 || stage == plan.pp - 1
                           : stage == 0 && mesh.coordinate(r, tp) == 0 && mesh.coordinate(r, cp) == 0;
    if (!reads) continue;
    ++out.readers;
    replicas.push_back(mesh.coordinate(r, island) * plan.dp + mesh.coordinate(r, dp));
  }
  std::sort(replicas.begin(), replicas.end());
  out.replicas = std::unique(replicas.begin(), replicas.end()) - replicas.begin();
  return out;
}

// Nodes of which one has most readers. They are densest where the grid begins; those of two stages are dense
// elsewhere too where other ranks lie between those of a stage, after a number of ranks again and again.
std::int64_t nodes_to_see(const Mesh& mesh, Readers readers, std::int64_t devices_per_node) {
  const Mesh::Range stages = mesh.range("pp");
  const std::int64_t period = stages.size * stages.stride;
  if (readers == Readers::kReplica || period == mesh.ranks()) return 1;
  const std::int64_t nodes = (mesh.ranks() + devices_per_node - 1) / devices_per_node;
  return std::min(nodes, std::lcm(period, devices_per_node) / devices_per_node);
}

// One reader's batches and steps.
class ReaderQueue {
 public:
  // Workers begin one after the other, as they work once they have waited for each other for a while.
  ReaderQueue(const Loading& l, const ReaderPlaces& places, double samples_per_s, std::int64_t steps,
              std::uint64_t seed, std::int64_t number)
      : workers_(l.workers),
        mean_s_(as_double(places.samples) / as_double(places.batches) * as_double(workers_) / samples_per_s),
        variance_(natural_log(1 + l.variation * l.variation * as_double(places.batches) /
                                      as_double(places.samples))),
        random_(seed, static_cast<std::uint64_t>(number), 0),
        taken_(static_cast<std::size_t>(std::min(workers_ * l.prefetch, steps * places.batches)), 0.0) {
    for (std::int64_t w = 0; w < workers_; ++w)
      made_.push_back(mean_s_ * as_double(w + 1 - workers_) / as_double(workers_));
  }

  // When the next batch is there.
  double next() {
    double& worker = made_[static_cast<std::size_t>(batch_ % workers_)];
    // A worker that has begun need not wait for what was not taken yet.
    const double from = batch_ < std::ssize(taken_) ? worker : std::max(worker, taken_[slot()]);
    return worker = from + draw();
  }
  void take(double at) {
    taken_[slot()] = at;
    ++batch_;
  }

 private:
  std::size_t slot() const { return static_cast<std::size_t>(batch_) % taken_.size(); }
  double draw() { return mean_s_ * random_.log_normal(variance_); }

  std::int64_t workers_;
  double mean_s_, variance_;  // of a batch; of its logarithm
  RandomStream random_;
  std::vector<double> taken_;  // of the last batches, by their number's place in a ring
  std::vector<double> made_;   // by each worker: its last batch
  std::int64_t batch_ = 0;     // that comes next
};

// The mean of the steps after the first quarter, in which what is kept ready fills.
double drawn_step_s(const Loading& l, ReaderPlaces places, double samples_per_s, double compute_s,
                    std::uint64_t seed) {
  constexpr std::int64_t kMostDraws = 1 << 17, kMostSteps = 200, kFewestSteps = 20, kFewestReaders = 16,
                         kMostBatches = 256;
  places.batches = std::min(places.batches, kMostBatches);
  const std::int64_t count =
      std::min(places.count, std::max(kFewestReaders, kMostDraws / (kMostSteps * places.batches)));
  const std::int64_t steps = std::clamp(kMostDraws / (count * places.batches), kFewestSteps, kMostSteps);
  std::vector<ReaderQueue> readers;
  for (std::int64_t i = 0; i < count; ++i) readers.emplace_back(l, places, samples_per_s, steps, seed, i);
  double now = 0, counted_from = 0;
  const double part = compute_s / as_double(places.batches);
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step == steps / 4) counted_from = now;
    double end = now;
    for (ReaderQueue& r : readers) {
      double at = now;
      for (std::int64_t b = 0; b < places.batches; ++b) {
        at = std::max(at, r.next());
        r.take(at);
        at += part;
      }
      end = std::max(end, at);
    }
    now = end;
  }
  return (now - counted_from) / as_double(steps - steps / 4);
}

// Epochs from `first` on, as one with the mean number, which are `share` of the run.
struct Epochs {
  double first, mean, share;
};
// The first alone, and after it twice as many each time.
std::vector<Epochs> epochs_of(double epochs) {
  constexpr std::size_t kMostGroups = 12;
  std::vector<Epochs> out{{1, 1, std::min(1.0, 1 / epochs)}};
  for (double first = 2; first < epochs + 1 && out.size() < kMostGroups; first *= 2) {
    const bool last = out.size() + 1 == kMostGroups;
    const double done = std::min(last ? epochs : 2 * first - 1, epochs);  // with those before
    out.push_back({first, (first + std::ceil(done)) / 2, (done - (first - 1)) / epochs});
  }
  return out;
}

}  // namespace

ReaderPlaces reader_places(const Loading& loading, const Plan& plan, std::int64_t devices_per_node) {
  const Mesh mesh = mesh_of(plan);
  ReaderPlaces out;
  out.count = plan.replicas();
  if (loading.readers == Readers::kRank) out.count *= plan.tp * plan.cp * std::min<std::int64_t>(plan.pp, 2);
  for (std::int64_t node = 0; node < nodes_to_see(mesh, loading.readers, devices_per_node); ++node) {
    const OnNode on = readers_on(node, mesh, plan, loading.readers, devices_per_node);
    out.most_on_node = std::max(out.most_on_node, on.readers);
    if (node == 0) out.parts = as_double(plan.replicas()) / as_double(on.replicas);
  }
  out.samples = plan.micro_batch * plan.micro_batches;
  out.batches = loading.batch == LoadedBatch::kMicroBatch ? plan.micro_batches : 1;
  return out;
}

Bytes sample_bytes(const Model& model, const Training& training) {
  struct Of {
    std::int64_t tokens, id_bytes;
    std::int64_t operator()(const TokenInput&) const { return tokens * id_bytes; }
    std::int64_t operator()(const PatchInput& i) const { return i.patches() * i.values(); }
    std::int64_t operator()(const BagInput& i) const { return 4 * i.tables * i.ids; }
  };
  const std::vector<std::int64_t> tokens = tower_tokens(model, training);
  const std::vector<Input> inputs = model.all_inputs();
  std::int64_t out = model.classes() != nullptr || model.has_pair() ? 4 : 0;  // of the label
  for (std::size_t i = 0; i < inputs.size(); ++i)
    out += std::visit(Of{tokens[i], model.vocab > 1 << 16 ? 4 : 2}, inputs[i].is);
  return Bytes{out};
}

double read_share(const Loading& loading, const ReaderPlaces& readers, double epoch) {
  if (!loading.cache_bytes || !loading.dataset_bytes || epoch <= 1) return 1;
  const double room = ratio(*loading.cache_bytes, *loading.dataset_bytes);
  switch (loading.shuffle) {
    case Shuffle::kShard:
      return 1 - std::min(1.0, room * readers.parts);
    case Shuffle::kGlobal:
      break;
  }
  return 1 - std::min({1.0, room, 1 - std::pow(1 - 1 / readers.parts, epoch - 1)});
}

LoadRate load_rate(const Loading& l, const ReaderPlaces& readers, Bytes sample, double read_share) {
  const double storage = bytes_per_s(l.storage_bandwidth) / as_double(readers.count);
  const double node = bytes_per_s(l.node_bandwidth) / as_double(readers.most_on_node);
  const double share = std::min(storage, node), read = std::min(share, bytes_per_s(l.worker_bandwidth));
  const double read_bytes = read_share * as_double(sample.value), cpu = seconds(l.cpu_time);
  const double of_a_worker =
      read_share * seconds(l.latency) / as_double(l.samples_per_read) + read_bytes / read + cpu;
  const auto workers = as_double(std::max<std::int64_t>(1, l.workers));
  LoadRate out{kInfinity, LoadBound::kNothing};
  const auto bound = [&](double samples, double in_s, LoadBound by) {
    if (in_s > 0 && samples / in_s < out.samples_per_s) out = {samples / in_s, by};
  };
  // Of bounds that are equal the one that more workers would not move is told.
  bound(1, read_bytes / share, storage <= node ? LoadBound::kStorage : LoadBound::kNode);
  if (l.cores) bound(as_double(*l.cores), as_double(readers.most_on_node) * cpu, LoadBound::kCores);
  bound(workers, of_a_worker, LoadBound::kWorkers);
  return out;
}

double loaded_step_s(const Loading& l, const ReaderPlaces& readers, const LoadRate& rate, double compute_s,
                     std::uint64_t seed) {
  const double load_s = as_double(readers.samples) / rate.samples_per_s;
  if (l.workers == 0) return compute_s + load_s;
  const double mean = std::max(compute_s, load_s);
  if (l.variation == 0 || load_s == 0) return mean;
  return std::max(mean, drawn_step_s(l, readers, rate.samples_per_s, compute_s, seed));
}

LoadedStep loaded_step(const Problem& problem, const Loading& l, const Plan& plan, double compute_s,
                       bool drawn) {
  constexpr std::uint64_t kSeed = 1;
  Loading as = l;
  if (!drawn) as.variation = 0;
  const Scenario& s = problem.scenario;
  const ReaderPlaces readers = reader_places(l, plan, problem.cluster.devices_per_node);
  const Bytes sample = l.sample_bytes.value_or(sample_bytes(s.model, s.training));
  double epochs = 1;  // where they are not known, as if there were one
  if (l.dataset_bytes && s.training.tokens > 0)
    epochs = s.training.tokens / as_double(s.training.sequence) * as_double(sample.value) /
             as_double(l.dataset_bytes->value);
  LoadedStep out{.readers = readers.count, .most_on_node = readers.most_on_node, .compute_s = compute_s};
  const auto tell = [&](const LoadRate& rate) {
    out.load_s = as_double(readers.samples) / rate.samples_per_s;
    out.bound = rate.bound;
    out.samples_per_s =
        rate.bound == LoadBound::kNothing ? 0 : rate.samples_per_s * as_double(plan.replicas());
  };
  LoadRate later;
  double read_before = -1, step = 0, first_wait = 0, later_wait = 0, longest = 0;
  for (const Epochs& of : epochs_of(epochs)) {
    const double read = read_share(l, readers, of.mean);
    const LoadRate rate = load_rate(as, readers, sample, read);
    if (read != read_before) step = loaded_step_s(as, readers, rate, compute_s, kSeed);
    read_before = read;
    out.step_s += of.share * step;
    const double wait = of.share * (step - compute_s);
    if (of.first == 1) {
      first_wait = wait;
      tell(rate);
      out.first_load_s = out.load_s;
    } else {
      later_wait += wait;
      if (wait > longest) later = rate;
      longest = std::max(longest, wait);
    }
  }
  if (later_wait > first_wait) tell(later);
  out.step_s = std::clamp(out.step_s, compute_s, std::max(compute_s, seconds(kLongestStep)));
  return out;
}

std::optional<LoadedStep> loaded_step(const Problem& problem, const Plan& plan, double compute_s,
                                      bool drawn) {
  const Scenario& s = problem.scenario;
  if (!s.loading || s.training.serves()) return std::nullopt;
  return loaded_step(problem, *s.loading, plan, compute_s, drawn);
}

std::string text_of(const LoadedStep& l) {
  if (l.bound == LoadBound::kNothing) return "loading: nothing bounds it";
  std::string out = fmt::format("loading: bound by {}: {:.4g} samples/s, {} for a step", name_of(l.bound),
                                l.samples_per_s, format(from_seconds(l.load_s)));
  if (l.first_load_s > l.load_s)
    out += fmt::format(" ({} in the first epoch)", format(from_seconds(l.first_load_s)));
  if (l.step_s > l.compute_s)
    out += fmt::format("; steps of {} take {}, {:.1f} % of which they wait for samples",
                       format(from_seconds(l.compute_s)), format(from_seconds(l.step_s)), 100 * l.waiting());
  else
    out += fmt::format("; steps of {} do not wait", format(from_seconds(l.compute_s)));
  return out;
}

}  // namespace orrery::sim
