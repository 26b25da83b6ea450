// SPDX-License-Identifier: Apache-2.0
#include "exec/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "core/error.h"
#include "core/random.h"
#include "exec/data_file.h"
#include "exec/labelled_data.h"
#include "exec/logical.h"

namespace orrery::exec {
namespace {

class BuiltIn final : public Dataset {
 public:
  BuiltIn(std::uint64_t seed, std::int64_t vocabulary) : seed_(seed), vocabulary_(vocabulary) {}
  std::int64_t sequences() const override { return std::int64_t{1} << 40; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::string identity() const override { return fmt::format("built-in corpus, vocabulary {}", vocabulary_); }

  // The successor of x is 5 x + 7, or one more every sixteenth time or so.
  void read(std::int64_t i, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const override {
    const std::uint64_t key = hash_mix(seed_ ^ hash_mix(static_cast<std::uint64_t>(i)));
    const auto v = static_cast<std::uint64_t>(vocabulary_);
    std::uint64_t x = key % v;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      if (t < tokens.size()) tokens[t] = static_cast<std::int32_t>(x);
      const bool surprise = hash_mix(key + t) % 16 == 0;
      x = (5 * x + 7 + (surprise ? 1 : 0)) % v;
      targets[t] = static_cast<std::int32_t>(x);
    }
  }

 private:
  std::uint64_t seed_;
  std::int64_t vocabulary_;
};

constexpr std::int64_t kGpt2Vocabulary = 50257;

class File final : public Dataset {
 public:
  File(const std::string& path, std::int64_t length, std::int64_t further)
      : path_(path), file_(path), length_(length), words_(path.ends_with(".bin")) {
    std::int64_t tokens = static_cast<std::int64_t>(file_.bytes());
    if (words_) {
      tokens = tokens_of_file(file_, path);
    }
    sequences_ = (tokens - 1 - further) / length;
    if (sequences_ < 1)
      throw InputError(path, "",
                       fmt::format("holds {} tokens, less than a sequence of {} and {} behind it", tokens,
                                   length, 1 + further));
  }

  std::int64_t sequences() const override { return sequences_; }
  std::int64_t vocabulary() const override { return words_ ? kGpt2Vocabulary : 256; }

  std::string identity() const override {
    return fmt::format("{}, {} bytes, CRC-32C {:08x}", words_ ? "GPT-2 tokens" : "text", file_.bytes(),
                       file_.checksum());
  }

  void read(std::int64_t i, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const override {
    const auto first = static_cast<std::size_t>(i * length_);
    const std::size_t width = words_ ? 2 : 1;
    std::vector<std::byte> bytes((std::max(tokens.size(), targets.size()) + 1) * width);
    file_.read((words_ ? kTokenHeader : 0) + first * width, bytes);
    const auto at = [&](std::size_t t) { return token(bytes, t, first); };
    for (std::size_t t = 0; t < tokens.size(); ++t) tokens[t] = at(t);
    for (std::size_t t = 0; t < targets.size(); ++t) targets[t] = at(t + 1);
  }

 private:
  // Token t of those read; the first of them is token `first` of the file.
  std::int32_t token(std::span<const std::byte> bytes, std::size_t t, std::size_t first) const {
    if (!words_) return std::to_integer<std::int32_t>(bytes[t]);
    std::uint16_t out = 0;
    std::memcpy(&out, &bytes[2 * t], sizeof out);
    if (out >= kGpt2Vocabulary)
      throw Error(fmt::format("{}: token {} is {}, outside GPT-2's vocabulary", path_, first + t, out));
    return out;
  }

  std::string path_;
  DataFile file_;
  std::int64_t length_, sequences_ = 0;
  bool words_;
};

class Part final : public Dataset {
 public:
  Part(const Dataset& whole, std::int64_t first, std::int64_t count)
      : whole_(whole), first_(first), count_(count) {}
  std::int64_t sequences() const override { return count_; }
  std::int64_t vocabulary() const override { return whole_.vocabulary(); }
  std::string identity() const override {
    if (first_ == 0 && count_ == whole_.sequences()) return whole_.identity();
    return fmt::format("{}, sequences {} to {}", whole_.identity(), first_, first_ + count_ - 1);
  }
  void read(std::int64_t i, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const override {
    whole_.read(first_ + i, tokens, targets);
  }
  void read(std::int64_t i, std::span<float> values, std::int32_t& of) const override {
    whole_.read(first_ + i, values, of);
  }
  void read(std::int64_t i, std::span<const std::span<std::int32_t>> ids,
            std::int32_t& label) const override {
    whole_.read(first_ + i, ids, label);
  }

 private:
  const Dataset& whole_;
  std::int64_t first_, count_;
};

}  // namespace

std::int64_t tokens_of_file(const DataFile& file, const std::string& path) {
  static_assert(std::endian::native == std::endian::little);
  std::array<std::int32_t, 3> header{};
  if (file.bytes() < kTokenHeader)
    throw InputError(path, "", "is too short for the header of a token file (1024 bytes)");
  file.read(0, std::as_writable_bytes(std::span(header)));
  if (header[0] != 20240520 || header[1] != 1) {
    throw InputError(
        path, "",
        fmt::format("is no token file: it begins with {}, {} (allowed: 20240520, 1)", header[0], header[1]));
  }
  const std::int64_t tokens = header[2];
  if (tokens < 0 || kTokenHeader + 2 * static_cast<std::size_t>(tokens) > file.bytes()) {
    throw InputError(path, "",
                     fmt::format("says that it holds {} tokens, and is {} bytes long", tokens, file.bytes()));
  }
  return tokens;
}

void Dataset::read(std::int64_t, std::span<std::int32_t>, std::span<std::int32_t>) const {
  throw std::logic_error(identity() + " holds no sequences of tokens");
}
void Dataset::read(std::int64_t, std::span<const std::span<std::int32_t>>, std::int32_t&) const {
  throw std::logic_error(identity() + " holds no events");
}
void Dataset::read(std::int64_t, std::span<float>, std::int32_t&) const {
  throw std::logic_error(identity() + " holds no images");
}

std::unique_ptr<Dataset> built_in_data(std::uint64_t seed, std::int64_t vocabulary) {
  return std::make_unique<BuiltIn>(seed, vocabulary);
}

std::unique_ptr<Dataset> built_in_data(std::uint64_t seed, const Model& model) {
  require_data(model);
  if (auto labelled = built_in_labelled_data(seed, model)) return labelled;
  return built_in_data(seed, model.vocab);
}

std::unique_ptr<Dataset> open_data(const std::string& path, std::int64_t sequence_length,
                                   std::int64_t further) {
  return std::make_unique<File>(path, sequence_length, further);
}

std::unique_ptr<Dataset> open_data(const std::string& path, const Model& model, const Training& training) {
  require_data(model);
  if (auto labelled = open_labelled_data(path, model)) return labelled;
  const std::vector<std::int64_t> tokens = tower_tokens(model, training);
  return open_data(path, std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}), model.mtp_layers);
}

// Sequences for token inputs, images for one of patches, events for bags: no dataset holds two of them.
void require_data(const Model& m) {
  std::size_t tokens = 0, images = 0, bags = 0;
  const std::vector<Input> inputs = m.all_inputs();
  for (const Input& i : inputs) {
    tokens += std::holds_alternative<TokenInput>(i.is);
    images += std::holds_alternative<PatchInput>(i.is);
    bags += std::holds_alternative<BagInput>(i.is);
  }
  const bool holds = m.has_pair()             ? bags == inputs.size()
                     : m.classes() != nullptr ? images == 1 && inputs.size() == 1
                                              : tokens == inputs.size();
  if (!holds)
    throw InputError(
        "", "/model/inputs", "no data has what these inputs and this output take together",
        "allowed: tokens and a vocabulary, patches of one image and classes, or bags and a pair");
}

std::unique_ptr<Dataset> part_of(const Dataset& whole, std::int64_t first, std::int64_t count) {
  return std::make_unique<Part>(whole, first, count);
}

// Four rounds of a Feistel network on the next even number of bits, walked until the result is below n.
std::int64_t shuffled(std::uint64_t seed, std::int64_t i, std::int64_t n) {
  const int half = std::max(1, (static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n - 1))) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto x = static_cast<std::uint64_t>(i);
  do {
    std::uint64_t left = x >> half, right = x & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t next = left ^ (hash_mix(seed + hash_mix(right + (round << 48))) & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= static_cast<std::uint64_t>(n));
  return static_cast<std::int64_t>(x);
}

Loader::Loader(const Dataset& data, std::uint64_t seed, const Shape& shape, const LoaderOptions& options)
    : data_(data),
      seed_(seed),
      shape_(shape),
      options_(options),
      ring_(static_cast<std::size_t>(options.workers * options.prefetch + 1)) {
  for (Slot& slot : ring_) {
    const auto all = [&](std::int64_t of_sample) {
      return static_cast<std::size_t>(shape.count() * of_sample);
    };
    if (shape.packs()) slot.batch.documents.resize(all(shape.length()));
    if (shape.documents_alone) continue;
    for (const std::int64_t n : shape.inputs) {
      slot.batch.inputs.emplace_back();
      if (shape.of == Shape::Of::kImages)
        slot.batch.inputs.back().values.resize(all(n));
      else
        slot.batch.inputs.back().tokens.resize(all(n));
    }
    slot.batch.targets.resize(all(shape.targets()));
  }
  try {
    for (std::int64_t worker = 0; worker < options.workers; ++worker)
      threads_.emplace_back([this, worker] { work(worker); });
  } catch (...) {  // no more threads: those that there are end
    stop();
    throw;
  }
}

Loader::~Loader() {
  stop();
}

void Loader::stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

void Loader::fill(std::int64_t number, Desk& desk, Batch& batch) {
  const std::int64_t n = data_.sequences();
  desk.now = Clock::now();
  for (std::int64_t i = 0; i < shape_.count(); ++i) {
    const std::int64_t m = i / shape_.micro_batch, within = i % shape_.micro_batch;
    const std::int64_t sample = number * shape_.count() * shape_.replicas +
                                (m * shape_.replicas + shape_.replica) * shape_.micro_batch + within;
    const std::int64_t epoch = sample / n;
    const std::int64_t at = shuffled(seed_ + static_cast<std::uint64_t>(epoch), sample % n, n);
    const auto documents = [&] {
      const auto length = static_cast<std::size_t>(shape_.length());
      find_documents(at, desk,
                     std::span(batch.documents).subspan(static_cast<std::size_t>(i) * length, length));
    };
    if (shape_.documents_alone && !shape_.end_token) {
      documents();
      continue;
    }
    // Storage is emulated for the stages that take tokens.
    if (options_.storage && !shape_.documents_alone) wait_as_emulated(at, epoch == 0, desk);
    if (shape_.of == Shape::Of::kIds) {
      desk.ids.clear();
      for (std::size_t k = 0; k < shape_.inputs.size(); ++k) {
        const auto of_event = static_cast<std::size_t>(shape_.inputs[k]);
        desk.ids.push_back(
            std::span(batch.inputs[k].tokens).subspan(static_cast<std::size_t>(i) * of_event, of_event));
      }
      data_.read(at, desk.ids, batch.targets[static_cast<std::size_t>(i)]);
      continue;
    }
    if (shape_.of == Shape::Of::kImages) {
      const auto values = static_cast<std::size_t>(shape_.length());
      data_.read(at,
                 std::span(batch.inputs.front().values).subspan(static_cast<std::size_t>(i) * values, values),
                 batch.targets[static_cast<std::size_t>(i)]);
      continue;
    }
    data_.read(at, desk.tokens, desk.targets);
    if (shape_.packs()) documents();
    if (shape_.documents_alone) continue;
    std::int64_t first = 0;
    for (std::size_t k = 0; k < shape_.inputs.size(); ++k) {
      const std::int64_t length = shape_.inputs[k];
      std::copy_n(desk.tokens.begin() + first, length, batch.inputs[k].tokens.begin() + i * length);
      first += length;
    }
    const std::int64_t predicted = shape_.targets();
    std::copy_n(desk.targets.end() - predicted, predicted, batch.targets.begin() + i * predicted);
  }
}

// An end token is the last one of its document.
void Loader::find_documents(std::int64_t sample, const Desk& desk, std::span<std::int32_t> first) const {
  if (!shape_.end_token) return shape_.documents->draw(seed_, static_cast<std::uint64_t>(sample), first);
  std::int32_t begin = 0;
  for (std::size_t t = 0; t < first.size(); ++t) {
    first[t] = begin;
    if (desk.tokens[t] == *shape_.end_token) begin = static_cast<std::int32_t>(t) + 1;
  }
}

// From when the sample before it was done, so that what a wait lasts too long does not add up.
void Loader::wait_as_emulated(std::int64_t sample, bool first_epoch, Desk& desk) {
  const EmulatedStorage& s = *options_.storage;
  RandomStream random(seed_, static_cast<std::uint64_t>(sample), 0);
  const bool cached = random.uniform() >= s.read_share;  // after the first epoch
  const double size = random.log_normal(natural_log(1 + s.variation * s.variation));
  const auto lasts = [](double time_s) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time_s));
  };
  std::unique_lock lock(mutex_);
  if (first_epoch || !cached) {
    const Clock::time_point begin = desk.now + lasts(s.latency_s * size);
    desk.now = begin;
    if (s.share > 0)
      desk.now = share_free_ = std::max(begin, share_free_) + lasts(s.sample_bytes * size / s.share);
    if (s.worker_bandwidth > 0)
      desk.now = std::max(desk.now, begin + lasts(s.sample_bytes * size / s.worker_bandwidth));
  }
  const Clock::time_point computes = desk.now;
  desk.now += lasts(s.cpu_s * size);
  if (s.cores_s > 0) {
    cores_free_ = std::max(computes, cores_free_) + lasts(s.cores_s * size);
    desk.now = std::max(desk.now, cores_free_);
  }
  changed_.wait_until(lock, desk.now, [&] { return stop_ || orders_ != desk.order; });
}

void Loader::work(std::int64_t worker) {
  Desk desk;
  desk.tokens.resize(static_cast<std::size_t>(shape_.length()));
  desk.targets.resize(desk.tokens.size() + static_cast<std::size_t>(shape_.further));
  const std::int64_t ahead = options_.workers * options_.prefetch;
  std::int64_t next = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(
        lock, [&] { return stop_ || (wanted_ >= 0 && (orders_ != desk.order || next < wanted_ + ahead)); });
    if (stop_) return;
    if (orders_ != desk.order) {
      desk.order = orders_;
      next = first_ + worker;
      continue;
    }
    Slot& slot = ring_[static_cast<std::size_t>(next) % ring_.size()];
    ++filling_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      fill(next, desk, slot.batch);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    --filling_;
    slot.failure = failure;
    slot.number = next;
    next += options_.workers;
    changed_.notify_all();
  }
}

const Loader::Batch& Loader::step(std::int64_t number) {
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  if (wanted_ != number) {
    wanted_ = -1;
    ++orders_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return filling_ == 0; });
    share_free_ = cores_free_ = {};
    for (Slot& slot : ring_) slot.number = -1;
    first_ = wanted_ = number;
    changed_.notify_all();
  }
  const Slot& slot = ring_[static_cast<std::size_t>(number) % ring_.size()];
  changed_.wait(lock, [&] { return slot.number == number; });
  if (slot.failure) std::rethrow_exception(slot.failure);
  waited_s_ += std::chrono::duration<double>(Clock::now() - begin).count();
  wanted_ = number + 1;
  changed_.notify_all();
  return slot.batch;
}

}  // namespace orrery::exec
