// SPDX-License-Identifier: Apache-2.0
//
// How samples come into a step: the object `loading` of a scenario. docs/loading.md has the terms and
// formulas.
//
//   "loading": {"sample_bytes": "110 kB", "storage_bandwidth": "10 GB/s", "cpu_time": "8 ms", "workers": 8}
//
// Readers are ranks that read samples; each has workers that read, decode and augment them, a batch at a
// time, and keep some batches ready. Storage, a node's link and a node's cores are shared evenly by all
// readers. A bandwidth that is absent bounds nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/fields.h"

namespace orrery {

// Who reads a replica's samples: one rank, which hands them on; or every rank that takes tokens or targets,
// which are those of the first and the last stage.
enum class Readers { kReplica, kRank };
constexpr auto enum_names(Readers) {
  return std::array{std::pair{Readers::kReplica, "replica"}, std::pair{Readers::kRank, "rank"}};
}

// Which samples a node sees: in each epoch any of the dataset, or always the same part of it.
enum class Shuffle { kGlobal, kShard };
constexpr auto enum_names(Shuffle) {
  return std::array{std::pair{Shuffle::kGlobal, "global"}, std::pair{Shuffle::kShard, "shard"}};
}

// What a worker makes at a time: a micro-batch, or all that its reader takes in a step.
enum class LoadedBatch { kMicroBatch, kStep };
constexpr auto enum_names(LoadedBatch) {
  return std::array{std::pair{LoadedBatch::kMicroBatch, "micro-batch"},
                    std::pair{LoadedBatch::kStep, "step"}};
}

struct Loading {
  std::optional<Bytes> sample_bytes;  // read for a sample; absent: those of what the model takes
  std::optional<Bandwidth> storage_bandwidth, node_bandwidth, worker_bandwidth;
  Time latency{0};  // of a read, until its first byte
  std::int64_t samples_per_read = 1;
  Time cpu_time{0};                   // of a core for a sample
  std::optional<std::int64_t> cores;  // of a node, for loading
  std::int64_t workers = 1;           // of a reader; 0: it reads between steps
  std::int64_t prefetch = 2;          // batches that a worker makes before the first of them is taken
  LoadedBatch batch = LoadedBatch::kMicroBatch;
  double variation = 0;  // of the time that a sample takes: standard deviation over mean
  Readers readers = Readers::kReplica;
  Shuffle shuffle = Shuffle::kGlobal;
  std::optional<Bytes> dataset_bytes, cache_bytes;  // of all samples; of a node, for samples it has read
  std::optional<Dollars> bandwidth_month;           // of a GB/s more of the storage, for a month
};

// What keeps readers from more samples.
enum class LoadBound { kNothing, kWorkers, kCores, kNode, kStorage };
constexpr auto enum_names(LoadBound) {
  return std::array{std::pair{LoadBound::kNothing, "nothing"}, std::pair{LoadBound::kWorkers, "workers"},
                    std::pair{LoadBound::kCores, "cores"}, std::pair{LoadBound::kNode, "node"},
                    std::pair{LoadBound::kStorage, "storage"}};
}

// What loading does to a plan's step.
struct LoadedStep {
  std::int64_t readers = 0, most_on_node = 0;
  double compute_s = 0;      // the step, were all samples there
  double load_s = 0;         // in which readers load a step's samples, in the epochs with the longest wait
  double first_load_s = 0;   // and in the first epoch
  double step_s = 0;         // with its wait for samples, in the mean over the run's epochs
  double samples_per_s = 0;  // in load_s, each sample counted once; 0: without bound
  LoadBound bound = LoadBound::kNothing;
  double waiting() const { return 1 - compute_s / step_s; }  // share of the step
};

template <class V>
void describe(V& v, Loading& l) {
  const auto bandwidth = [](const char* name, const char* help) {
    return Field{.name = name, .help = help, .min = limits::kSlowest, .max = limits::kFastest};
  };
  const auto bytes = [](const char* name, const char* help) {
    return Field{.name = name, .help = help, .min = 1, .max = limits::kLargestMessage};
  };
  v(bytes("sample_bytes", "read for a sample; absent: bytes of what the model takes"), l.sample_bytes);
  v(bandwidth("storage_bandwidth", "of the storage, for the whole job; absent: no bound"),
    l.storage_bandwidth);
  v(bandwidth("node_bandwidth", "at which a node reads from storage; absent: no bound"), l.node_bandwidth);
  v(bandwidth("worker_bandwidth", "at which one worker reads; absent: no bound"), l.worker_bandwidth);
  v(Field{.name = "latency",
          .help = "from a read's begin until its first byte",
          .min = 0,
          .max = limits::kLongestOp},
    l.latency);
  v(Field{.name = "samples_per_read", .help = "samples that one read brings", .min = 1, .max = 1 << 24},
    l.samples_per_read);
  v(Field{.name = "cpu_time",
          .help = "of a core to decode and augment a sample",
          .min = 0,
          .max = limits::kLongestOp},
    l.cpu_time);
  v(Field{.name = "cores", .help = "of a node that load; absent: no bound", .min = 1, .max = 1 << 16},
    l.cores);
  v(Field{.name = "workers",
          .help = "of each reader; 0: the reader loads between steps, itself",
          .min = 0,
          .max = 1024},
    l.workers);
  v(Field{.name = "prefetch",
          .help = "batches that a worker makes before the first of them is taken",
          .min = 1,
          .max = 1024},
    l.prefetch);
  v(Field{.name = "batch", .help = "what a worker makes at a time"}, l.batch);
  v(Field{.name = "variation",
          .help = "of the time that a sample takes: standard deviation over mean",
          .min = 0,
          .max = 10},
    l.variation);
  v(Field{.name = "readers",
          .help = "who reads: one rank of a replica for all, or every rank that takes samples"},
    l.readers);
  v(Field{.name = "shuffle", .help = "whether a node sees all samples in turn, or always the same part"},
    l.shuffle);
  v(bytes("dataset_bytes", "of all samples"), l.dataset_bytes);
  v(bytes("cache_bytes", "of a node, for samples that it has read"), l.cache_bytes);
  v(Field{.name = "bandwidth_month",
          .help = "price of 1 GB/s more of the storage for a month",
          .min = 0,
          .max = limits::kHighestPrice},
    l.bandwidth_month);
}

template <class V>
void describe(V& v, LoadedStep& l) {
  v(Field{.name = "readers", .help = "ranks that read samples"}, l.readers);
  v(Field{.name = "most_on_node", .help = "of them, on the node that has most"}, l.most_on_node);
  v(Field{.name = "compute_s", .help = "seconds of the step, were all samples there"}, l.compute_s);
  v(Field{.name = "load_s",
          .help = "seconds in which readers load a step's samples, in the epochs with the longest wait"},
    l.load_s);
  v(Field{.name = "first_load_s",
          .help = "seconds in which readers load a step's samples in the first epoch"},
    l.first_load_s);
  v(Field{.name = "step_s",
          .help = "seconds of the step with its wait for samples, in the mean over the run's epochs"},
    l.step_s);
  v(Field{.name = "samples_per_s", .help = "samples that readers load in a second; 0: nothing bounds them"},
    l.samples_per_s);
  v(Field{.name = "bound", .help = "what keeps readers from more"}, l.bound);
}

ORRERY_FIELDS(extern, Loading);

}  // namespace orrery
