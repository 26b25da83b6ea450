// SPDX-License-Identifier: Apache-2.0
//
// What bounds the samples that readers get, by hand; and steps that wait for them.
#include "sim/loading/loading.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "core/mesh.h"

namespace orrery::sim {
namespace {

constexpr Bytes kSample{100'000};

// Two tensor ranks, four replicas, two stages: 16 ranks on nodes of eight, the first stage on the first node.
// A replica takes 16 samples in 8 micro-batches.
Plan two_nodes() {
  Plan p;
  p.tp = 2;
  p.dp = 4;
  p.pp = 2;
  p.micro_batch = 2;
  p.micro_batches = 8;
  return p;
}
ReaderPlaces places(const Loading& l) {
  return reader_places(l, two_nodes(), 8);
}
LoadRate rate(const Loading& l, double share = 1) {
  return load_rate(l, places(l), kSample, share);
}
void expect_rate(const Loading& l, double samples_per_s, LoadBound bound, double share = 1) {
  const LoadRate x = rate(l, share);
  EXPECT_NEAR(x.samples_per_s, samples_per_s, 1e-9 * samples_per_s);
  EXPECT_EQ(name_of(x.bound), name_of(bound));
}

TEST(Loading, ReadersStandWhereTheirReplicasBegin) {
  const ReaderPlaces one = places({});
  EXPECT_EQ(one.count, 4);
  EXPECT_EQ(one.most_on_node, 4);  // all of them on the first stage's node
  EXPECT_EQ(one.parts, 1);         // which sees all samples
  EXPECT_EQ(one.samples, 16);
  EXPECT_EQ(one.batches, 8);
  const ReaderPlaces all = places({.readers = Readers::kRank});
  EXPECT_EQ(all.count, 16);  // both stages take samples: tokens and targets
  EXPECT_EQ(all.most_on_node, 8);
  EXPECT_EQ(all.parts, 1);  // each node has ranks of all replicas
  EXPECT_EQ(places({.batch = LoadedBatch::kStep}).batches, 1);
}

// Of any plan, as counting all of its ranks has it.
TEST(Loading, TheFullestNodeIsFound) {
  std::mt19937 random(20261128);
  const auto pick = [&](std::initializer_list<std::int64_t> of) {
    return *(of.begin() + static_cast<std::ptrdiff_t>(random() % of.size()));
  };
  for (int i = 0; i < 1000; ++i) {
    Plan p;
    p.tp = pick({1, 2, 4, 8});
    p.cp = pick({1, 2, 3});
    p.dp = pick({1, 2, 3, 5, 8, 12});
    p.pp = pick({1, 2, 3, 4, 6});
    p.rank_order = static_cast<RankOrder>(random() % std::size(enum_names(RankOrder{})));
    const Loading l{.readers = random() % 2 == 0 ? Readers::kReplica : Readers::kRank};
    const std::int64_t node = pick({1, 2, 4, 8});
    const Mesh mesh = mesh_of(p);
    std::map<std::int64_t, std::int64_t> on_node;
    std::set<std::int64_t> replicas;  // on the first node
    for (std::int64_t r = 0; r < mesh.ranks(); ++r) {
      const std::int64_t stage = mesh.coordinate(r, "pp");
      const bool reads = l.readers == Readers::kRank
                             ? stage == 0 || stage == p.pp - 1
                             : stage == 0 && mesh.coordinate(r, "tp") == 0 && mesh.coordinate(r, "cp") == 0;
      if (!reads) continue;
      ++on_node[r / node];
      if (r < node) replicas.insert(mesh.coordinate(r, "dp"));
    }
    std::int64_t count = 0, most = 0;
    for (const auto& [n, here] : on_node) {
      count += here;
      most = std::max(most, here);
    }
    const ReaderPlaces found = reader_places(l, p, node);
    EXPECT_EQ(found.count, count) << short_name(p);
    EXPECT_EQ(found.most_on_node, most) << short_name(p) << " on nodes of " << node;
    EXPECT_DOUBLE_EQ(found.parts, static_cast<double>(p.dp) / static_cast<double>(replicas.size()))
        << short_name(p) << " on nodes of " << node;
  }
}

TEST(Loading, EachBoundByHand) {
  const Time ten_ms = from_seconds(0.01);
  expect_rate({.cpu_time = ten_ms, .workers = 2}, 2 / 0.01, LoadBound::kWorkers);
  // 4 readers on a node of 4 cores take a core each.
  expect_rate({.cpu_time = ten_ms, .cores = 4, .workers = 2}, 1 / 0.01, LoadBound::kCores);
  // A quarter of 8 MB/s is 20 samples/s; a worker alone would wait 50 ms for its bytes and 10 ms more.
  Loading storage{.storage_bandwidth = Bandwidth{8'000'000}, .cpu_time = ten_ms, .workers = 1};
  expect_rate(storage, 1 / 0.06, LoadBound::kWorkers);
  storage.workers = 2;
  expect_rate(storage, 20, LoadBound::kStorage);
  storage.node_bandwidth = Bandwidth{4'000'000};
  expect_rate(storage, 10, LoadBound::kNode);
  // 100 ms for each 10 samples, 100 ms for 100 kB: 110 ms.
  expect_rate({.worker_bandwidth = Bandwidth{1'000'000},
               .latency = from_seconds(0.1),
               .samples_per_read = 10,
               .workers = 3},
              3 / 0.11, LoadBound::kWorkers);
  // A cache that has three of four samples leaves a quarter of the bytes.
  storage.node_bandwidth.reset();
  storage.workers = 64;
  expect_rate(storage, 80, LoadBound::kStorage, 0.25);
  EXPECT_TRUE(std::isinf(rate({}).samples_per_s));
}

// Replicas lie over two nodes of four devices, so that a node sees half of an epoch's samples.
TEST(Loading, ACacheHasWhatItsNodeSaw) {
  Loading l{.dataset_bytes = Bytes{1'000'000'000}, .cache_bytes = Bytes{250'000'000}};
  ReaderPlaces at = reader_places(l, two_nodes(), 4);
  EXPECT_DOUBLE_EQ(at.parts, 2);
  EXPECT_DOUBLE_EQ(read_share(l, at, 1), 1);
  EXPECT_DOUBLE_EQ(read_share(l, at, 2), 0.75);  // it saw half, and has room for a quarter
  l.shuffle = Shuffle::kShard;                   // of the half that comes to it, half
  EXPECT_DOUBLE_EQ(read_share(l, at, 2), 0.5);
  l.cache_bytes = Bytes{600'000'000};
  EXPECT_DOUBLE_EQ(read_share(l, at, 2), 0);
  l.shuffle = Shuffle::kGlobal;
  EXPECT_DOUBLE_EQ(read_share(l, at, 2), 0.5);  // what it saw
  EXPECT_DOUBLE_EQ(read_share(l, at, 3), 0.4);  // it saw three quarters, and has room for 0.6
  at.parts = 64;
  EXPECT_NEAR(read_share(l, at, 2), 1 - 1 / 64.0, 1e-12);
  l.cache_bytes.reset();
  EXPECT_DOUBLE_EQ(read_share(l, at, 9), 1);
}

// 16 samples at 200/s take 80 ms.
TEST(Loading, StepsWaitForTheSlowerOfLoadingAndCompute) {
  Loading l{.cpu_time = from_seconds(0.01), .workers = 2};
  const auto step = [&](double compute_s) { return loaded_step_s(l, places(l), rate(l), compute_s, 1); };
  EXPECT_DOUBLE_EQ(step(0.05), 0.08);
  EXPECT_DOUBLE_EQ(step(0.2), 0.2);
  l.workers = 0;  // 16 samples between steps, one after the other
  EXPECT_DOUBLE_EQ(step(0.2), 0.36);
}

// The drawn steps of samples that hardly vary are the closed form's, in any regime, but for batches that
// divide a step unevenly among workers.
TEST(Loading, DrawnStepsAreTheClosedFormWithoutVariation) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    Loading l{.cpu_time = from_seconds(1e-3 * static_cast<double>(1 + random() % 50)),
              .workers = 1 + static_cast<std::int64_t>(random() % 5),
              .prefetch = 1 + static_cast<std::int64_t>(random() % 3)};
    if (i % 10 == 0) l.workers = 1 << (random() % 9);
    if (i % 3 == 0) l.batch = LoadedBatch::kStep;
    Plan p = two_nodes();
    p.dp = 1 + static_cast<std::int64_t>(random() % 5);
    p.micro_batches = 1 + static_cast<std::int64_t>(random() % 20);
    const ReaderPlaces at = reader_places(l, p, 8);
    const LoadRate x = load_rate(l, at, kSample, 1);
    const double load_s = static_cast<double>(at.samples) / x.samples_per_s;
    const double compute_s = load_s * (0.2 + 2.0 * static_cast<double>(random() % 1000) / 1000);
    const double closed = loaded_step_s(l, at, x, compute_s, 1);
    l.variation = 1e-9;
    const double drawn = loaded_step_s(l, at, x, compute_s, 1);
    EXPECT_GE(drawn, closed * (1 - 1e-6)) << i;
    // The last batch of a step is worked at beside nothing.
    EXPECT_LE(drawn, std::max(closed, load_s + compute_s / static_cast<double>(at.batches)) * (1 + 1e-6))
        << i;
  }
}

// A worker that is a step ahead of a thousand others does not hide them: as many steps as batches wait.
TEST(Loading, ManyWorkersAndBatchesAreBounded) {
  Loading l{.cpu_time = from_seconds(1), .workers = 1024, .prefetch = 1024, .batch = LoadedBatch::kStep};
  l.variation = 0.5;
  Plan p = two_nodes();
  p.dp = 4096;
  const ReaderPlaces at = reader_places(l, p, 8);
  const LoadRate x = load_rate(l, at, kSample, 1);
  const double load_s = static_cast<double>(at.samples) / x.samples_per_s;
  EXPECT_GE(loaded_step_s(l, at, x, load_s / 5, 1), load_s);
  p.micro_batches = 1 << 20;
  l.batch = LoadedBatch::kMicroBatch;
  EXPECT_GT(loaded_step_s(l, reader_places(l, p, 8), x, 1, 1), 1);
}

TEST(Loading, VariationCostsAndBatchesThatAreReadyPayForIt) {
  Loading l{.cpu_time = from_seconds(0.01), .workers = 2, .prefetch = 1, .variation = 1};
  const auto step = [&] { return loaded_step_s(l, places(l), rate(l), 0.085, 1); };
  const double shallow = step();
  EXPECT_GT(shallow, 0.09);  // 80 ms of loading and 85 of compute, had samples all the mean
  l.prefetch = 32;
  const double deep = step();
  EXPECT_LT(deep, shallow - 0.005);
  EXPECT_GE(deep, 0.085);
  l.variation = 2;
  EXPECT_GT(step(), deep);
}

Problem problem() {
  Problem p;
  p.scenario.model = preset_model("tiny-gpt");
  p.scenario.training = {.global_batch = 64, .sequence = 1000};
  p.cluster.devices_per_node = 8;
  return p;
}

// 10,000 samples of 100 kB, of which a node's memory keeps all: of 40,000 samples a quarter is read.
TEST(Loading, TheFirstEpochReadsAll) {
  Problem p = problem();
  p.scenario.training.tokens = 40e6;
  Loading l{.sample_bytes = kSample,
            .storage_bandwidth = Bandwidth{8'000'000},
            .cpu_time = from_seconds(0.01),
            .workers = 2,
            .dataset_bytes = Bytes{1'000'000'000},
            .cache_bytes = Bytes{2'000'000'000}};
  const auto loaded = [&] { return loaded_step(p, l, two_nodes(), 0.05, true); };
  const LoadedStep x = loaded();
  EXPECT_DOUBLE_EQ(x.first_load_s, 16 / 20.0);
  EXPECT_DOUBLE_EQ(x.step_s, 0.25 * 0.8 + 0.75 * 0.08);
  // They wait longest in the first epoch: a quarter of 750 ms, and three quarters of 30.
  EXPECT_EQ(x.bound, LoadBound::kStorage);
  EXPECT_DOUBLE_EQ(x.load_s, 0.8);
  EXPECT_DOUBLE_EQ(x.samples_per_s, 4 * 20);
  p.scenario.training.tokens = 0;  // nobody knows how many epochs: the first one's
  EXPECT_DOUBLE_EQ(loaded().step_s, 0.8);
  EXPECT_EQ(loaded().bound, LoadBound::kStorage);
  p.scenario.training.tokens = 5e6;  // half an epoch
  EXPECT_DOUBLE_EQ(loaded().step_s, 0.8);
  p.scenario.training.tokens = 400e6;  // forty epochs: then the workers
  EXPECT_EQ(loaded().bound, LoadBound::kWorkers);
  EXPECT_DOUBLE_EQ(loaded().load_s, 0.08);
  EXPECT_NEAR(loaded().step_s, 0.8 / 40 + 0.08 * 39 / 40, 1e-12);
}

TEST(Loading, SamplesHaveTheBytesOfWhatTheModelTakes) {
  Problem p = problem();
  EXPECT_EQ(sample_bytes(p.scenario.model, p.scenario.training).value, 2000);
  p.scenario.model.vocab = 128'256;
  EXPECT_EQ(sample_bytes(p.scenario.model, p.scenario.training).value, 4000);
  p.scenario.model.inputs = {{PatchInput{.image = 224, .patch = 16, .channels = 3}}};
  p.scenario.model.output = {ClassOutput{.classes = 1000}};
  EXPECT_EQ(sample_bytes(p.scenario.model, p.scenario.training).value, 224 * 224 * 3 + 4);
}

}  // namespace
}  // namespace orrery::sim
