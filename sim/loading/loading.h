// SPDX-License-Identifier: Apache-2.0
//
// What loading its samples does to a step. With R readers, r of them on the fullest node, W workers each, s
// bytes of a sample, and m the share of samples that no cache has, a reader's samples per second are the
// least of
//
//   workers   W / (m (latency / samples_per_read + s / b) + cpu_time)      b = min(worker_bandwidth, share)
//   cores     cores / (r cpu_time)
//   share     share / (m s)      share = min(storage_bandwidth / R, node_bandwidth / r)
//
// the bounds of operational analysis (Denning and Buzen, "The operational analysis of queueing network
// models", 1978), where a read goes at its reader's share: readers of synchronous ranks begin to read
// together.
//
// A cache of c bytes, of a dataset of d, has nothing in the first epoch. With n parts into which nodes divide
// the samples of an epoch (replicas over those on the first node), it has in epoch k
//
//   shards   min(1, c n / d)                        a node sees its part again
//   global   min(c / d, 1 - (1 - 1 / n)^(k - 1))    of what a node has seen, any may come to it
//
//   const ReaderPlaces readers = reader_places(loading, plan, 8);
//   const LoadRate x = load_rate(loading, readers, sample, 1);
//   loaded_step_s(loading, readers, x, 0.8, 1);   // seconds of a step that computes for 0.8 s
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/scenario.h"

namespace orrery::sim {

struct ReaderPlaces {
  std::int64_t count = 1, most_on_node = 1;
  double parts = 1;          // of an epoch's samples, by node
  std::int64_t samples = 1;  // of a reader in a step
  std::int64_t batches = 1;  // that it takes them in
};
ReaderPlaces reader_places(const Loading& loading, const Plan& plan, std::int64_t devices_per_node);

// Bytes of a sample of the model's inputs and targets: 2 of a token (4 where ids need more than 16 bits), 1
// of each value of an image, 4 of an id of a table or of a label.
Bytes sample_bytes(const Model& model, const Training& training);

// The share of samples that are read from storage in an epoch, which counts from 1.
double read_share(const Loading& loading, const ReaderPlaces& readers, double epoch);

struct LoadRate {
  double samples_per_s = 0;  // of one reader; infinite where nothing bounds it
  LoadBound bound = LoadBound::kNothing;
};
LoadRate load_rate(const Loading& loading, const ReaderPlaces& readers, Bytes sample, double read_share);

// The mean step, in seconds, of ranks that compute for `compute_s`. A reader takes its batches one after the
// other through the step, and the next step begins once all readers have done the last one. Workers make
// batches in turn, none further ahead than `prefetch` allows. Without variation:
//   max(compute_s, samples / samples_per_s); with no workers their sum.
// With it the time of a batch is log-normal, with the mean and the variance of its samples' sum, and 20 to
// 200 steps are drawn. Where there are many readers (more than 2^17 over steps and batches, and more than 16)
// only so many are drawn, and of more than 256 batches some are drawn as one: the wait is then a little too
// short. It is never less than without variation.
double loaded_step_s(const Loading& loading, const ReaderPlaces& readers, const LoadRate& rate,
                     double compute_s, std::uint64_t seed);

// Of a plan whose step takes `compute_s` with all samples there. The mean is over the epochs of the run, or
// the first epoch's where the run's tokens or the dataset's bytes are not known. Without `drawn`, as if all
// samples took the mean. No step takes longer than kLongestStep.
LoadedStep loaded_step(const Problem& problem, const Loading& loading, const Plan& plan, double compute_s,
                       bool drawn);
// The scenario's; none where samples are always there, or where it serves.
std::optional<LoadedStep> loaded_step(const Problem& problem, const Plan& plan, double compute_s, bool drawn);

// "loading: bound by storage: 31.2 samples/s, 0.5 s for a step ..".
std::string text_of(const LoadedStep& l);

}  // namespace orrery::sim
