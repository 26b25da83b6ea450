// SPDX-License-Identifier: Apache-2.0
//
// Training data. A dataset is a list of samples: sequences of tokens, images with a class, or
// events with a label. Which of
// them a step uses is a function of (seed, step), so that every plan trains on the same batches. Replicas
// take the micro-batches of a batch in turn.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/documents.h"
#include "core/error.h"
#include "core/model.h"

namespace orrery::exec {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t sequences() const = 0;   // samples
  virtual std::int64_t vocabulary() const = 0;  // of tokens; of images, classes
  // The same for the same data, wherever it is: what it is, its size, and a CRC-32C of its bytes. Of a file
  // of more than 64 MiB the checksum is that of 1,024 blocks of 64 KiB, evenly spread from the first to the
  // last. The built-in corpus is named without its seed.
  virtual std::string identity() const = 0;
  // Sequence i: its tokens, and each one's successor; of more targets than tokens, the last ones are the
  // successors of these. Thread-safe. Throws Error naming the file when it holds
  // a token outside the vocabulary.
  virtual void read(std::int64_t i, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;
  // Image i: the values of its patches one after the other, each by channel, row and column, and its class.
  virtual void read(std::int64_t i, std::span<float> values, std::int32_t& of) const;
  // Event i: the ids of each tower's features, table after table, and its label, 0 or 1.
  virtual void read(std::int64_t i, std::span<const std::span<std::int32_t>> ids, std::int32_t& label) const;
};

// The built-in corpus: sequences of a simple rule with surprises, endless and equal on every machine.
std::unique_ptr<Dataset> built_in_data(std::uint64_t seed, std::int64_t vocabulary);
// What the model takes of built-in data: the corpus, images that are a pattern of their class and
// noise, or events whose label mostly says whether two sets of ids have more of one of two traits in common.
std::unique_ptr<Dataset> built_in_data(std::uint64_t seed, const Model& model);

// A file: *.bin holds GPT-2 tokens as llm.c writes them (a header of 256 32-bit integers {20240520, 1,
// tokens, ..}, then 16-bit tokens); anything else is text, a token per byte. Read as it is needed, never
// whole. Throws InputError when it cannot be read, is damaged, or is shorter than a sequence; reading throws
// Error when the file has become shorter since.
// `further`: tokens behind a sequence and its last successor that are read with it.
std::unique_ptr<Dataset> open_data(const std::string& path, std::int64_t sequence_length,
                                   std::int64_t further = 0);
// What the model takes of a file: sequences as above, or images. A file of images is a record for each: a
// byte with its class, and a byte for each value, by channel, row and column (CIFAR-10's binary format).
// A file of events is a record for each: 32-bit integers, the ids and then the label.
std::unique_ptr<Dataset> open_data(const std::string& path, const Model& model, const Training& training);

// Throws InputError when no dataset has what the model takes: the two functions above call it.
void require_data(const Model& model);

// Sequences [first, first + count) of another.
std::unique_ptr<Dataset> part_of(const Dataset& whole, std::int64_t first, std::int64_t count);

// A permutation of 0 .. n - 1 that needs no memory: where sample i of an epoch stands in the data.
std::int64_t shuffled(std::uint64_t seed, std::int64_t i, std::int64_t n);

// Storage and a processor slower than this machine's, as one rank's workers see them. A sample takes a worker
// its latency, its bytes at the rank's share of the storage, which its workers use in turn, and no faster
// than one worker reads, and its time of a processor, of which they use the rank's share in turn too.
// Seconds, bytes and bytes per second; a bandwidth or a time of 0 bounds nothing.
struct EmulatedStorage {
  double latency_s = 0, share = 0, worker_bandwidth = 0, cpu_s = 0;
  double cores_s = 0;  // for which a sample takes the rank's share of cores
  double sample_bytes = 0;
  double read_share = 1;  // of samples, after the first epoch; a cache has the others
  double variation = 0;   // of a sample's bytes and time, log-normal: standard deviation over mean
};

struct LoaderOptions {
  std::int64_t workers = 1;   // threads; 1 or more
  std::int64_t prefetch = 1;  // steps that a worker prepares before the first of them is asked for
  std::optional<EmulatedStorage> storage;
};

// What one replica trains on: its batch of each step, prepared while steps before it run.
class Loader {
 public:
  struct Shape {
    std::int64_t micro_batch, micro_batches;  // sequences of each; of this replica
    std::int64_t replica, replicas;
    // Tokens of a sample in each input of the model. A sequence of the data is cut into them, in order; the
    // targets are the successors of the last one's tokens.
    std::vector<std::int64_t> inputs;
    // Or inputs are no tokens, but an image of so many values, or so many ids; the target is its label.
    enum class Of : std::uint8_t { kTokens, kImages, kIds } of = Of::kTokens;
    std::int64_t further = 0;  // targets of a sequence beyond those of its tokens
    // That sequences are packed from: their ends are drawn, or are where this token stands in the data.
    std::optional<DocumentLengths> documents{};
    std::optional<std::int32_t> end_token{};
    bool documents_alone = false;  // batches have the documents of each token, and no tokens
    bool packs() const { return documents || end_token; }
    std::int64_t targets() const { return of == Of::kTokens ? inputs.back() + further : 1; }
    std::int64_t length() const { return std::accumulate(inputs.begin(), inputs.end(), std::int64_t{0}); }
    std::int64_t count() const { return micro_batch * micro_batches; }
  };
  Loader(const Dataset& data, std::uint64_t seed, const Shape& shape, const LoaderOptions& options = {});
  ~Loader();

  struct Batch {
    struct Input {
      std::vector<std::int32_t> tokens;  // or ids
      std::vector<float> values;         // of images
    };
    std::vector<Input> inputs;          // each [micro-batches, micro-batch, of a sample]
    std::vector<std::int32_t> targets;  // [micro-batches, micro-batch, Shape::targets()]
    // Where there are some, [micro-batches, micro-batch, Shape::length()]: of each token the first one of its
    // document. Where ends are drawn, they are a function of the seed and the sample.
    std::vector<std::int32_t> documents;
  };
  // The batch of a step, until the next call; asking for the first one, or for one out of order, starts the
  // preparation of those that follow it. Rethrows what reading threw.
  const Batch& step(std::int64_t number);
  double waited_s() const { return waited_s_; }  // for data that was not ready in time

 private:
  struct Slot {
    Batch batch;
    std::int64_t number = -1;  // of the step that it is ready for
    std::exception_ptr failure;
  };
  using Clock = std::chrono::steady_clock;
  // A worker's own.
  struct Desk {
    std::vector<std::int32_t> tokens, targets;  // of a sequence of the data
    std::vector<std::span<std::int32_t>> ids;   // of an event, in the batch
    std::int64_t order = 0;                     // that it works at
    Clock::time_point now;                      // when, as emulated, it is done with all samples so far
  };

  void stop();
  void work(std::int64_t worker);
  void fill(std::int64_t number, Desk& desk, Batch& batch);
  void find_documents(std::int64_t sample, const Desk& desk, std::span<std::int32_t> first) const;
  void wait_as_emulated(std::int64_t sample, bool first_epoch, Desk& desk);

  const Dataset& data_;
  std::uint64_t seed_;
  Shape shape_;
  LoaderOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> ring_;    // of what is prepared, and the batch in use
  std::int64_t first_ = 0;    // worker w prepares step first_ + w, and every workers-th after it
  std::int64_t wanted_ = -1;  // that is asked for next; -1: nothing is prepared
  std::int64_t orders_ = 0;   // how often steps began anew
  std::int64_t filling_ = 0;  // workers
  Clock::time_point share_free_, cores_free_;  // of the emulated storage, and processor
  bool stop_ = false;
  double waited_s_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace orrery::exec
