// SPDX-License-Identifier: Apache-2.0
#include "exec/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>

#include "core/hash.h"
#include "exec/data_file.h"

namespace orrery::exec {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kMostLengths = 1 << 16;  // of RecordedLengths

// Sums documents up, and keeps some: each of n with the chance k / n (Vitter 1985, algorithm R).
class Corpus {
 public:
  void add(std::int64_t length) {
    if (length == 0) return;
    ++sum_.documents;
    sum_.tokens += length;
    sum_.longest = std::max(sum_.longest, length);
    if (sum_.lengths.size() < kMostLengths) {
      sum_.lengths.push_back(length);
      return;
    }
    const auto n = static_cast<std::uint64_t>(sum_.documents);
    const std::uint64_t place = mix(n) % n;
    if (place < kMostLengths) sum_.lengths[static_cast<std::size_t>(place)] = length;
  }
  CorpusLengths take(const std::string& path) {
    if (sum_.documents == 0) throw InputError(path, "", "has no document");
    return std::move(sum_);
  }

 private:
  CorpusLengths sum_;
};

// Numbers that stand one behind the other in a file.
template <class T>
class Numbers {
 public:
  Numbers(const DataFile& file, std::size_t first, std::size_t count)
      : file_(file), at_(first), left_(count) {}
  bool any() const { return next_ < block_.size() || left_ > 0; }
  T next() {
    if (next_ == block_.size()) {
      block_.resize(std::min<std::size_t>(left_, 1 << 16));
      file_.read(at_, std::as_writable_bytes(std::span(block_)));
      at_ += block_.size() * sizeof(T);
      left_ -= block_.size();
      next_ = 0;
    }
    return block_[next_++];
  }

 private:
  const DataFile& file_;
  std::size_t at_, left_, next_ = 0;
  std::vector<T> block_;
};

CorpusLengths of_megatron(const std::string& path) {
  const DataFile file(path);
  const auto fail = [&](const std::string& why) -> void { throw InputError(path, "", why); };
  constexpr std::array<char, 9> kBegin{'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
  constexpr std::size_t kHeader = 9 + 8 + 1 + 8 + 8;
  std::array<std::byte, kHeader> header{};
  if (file.bytes() < kHeader) fail("is too short for the header of an index of Megatron-LM (34 bytes)");
  file.read(0, header);
  const auto number = [&](std::size_t at) {
    std::uint64_t n = 0;
    std::memcpy(&n, header.data() + at, sizeof n);
    return n;
  };
  if (std::memcmp(header.data(), kBegin.data(), kBegin.size()) != 0 || number(9) != 1)
    fail("is no index of Megatron-LM: it does not begin with MMIDIDX and version 1");
  const std::uint64_t sequences = number(18), ends = number(26);
  const std::uint64_t behind = file.bytes() - kHeader;
  if (sequences > behind / 12 || ends > (behind - 12 * sequences) / 8)
    fail(fmt::format("says that it has {} sequences and {} ends of documents, and is {} bytes long",
                     sequences, ends, file.bytes()));
  Numbers<std::int32_t> lengths(file, kHeader, sequences);
  Numbers<std::int64_t> documents(file, kHeader + 12 * sequences, ends);
  Corpus corpus;
  std::int64_t sequence = 0;
  for (std::int64_t last = 0; documents.any();) {
    const std::int64_t end = documents.next();
    if (end < last || end > static_cast<std::int64_t>(sequences))
      fail(fmt::format("a document ends behind sequence {}, after one that ends behind {}, of {}", end, last,
                       sequences));
    std::int64_t tokens = 0;
    for (; sequence < end; ++sequence) {
      const std::int32_t length = lengths.next();
      if (length < 0) fail(fmt::format("sequence {} has {} tokens", sequence, length));
      tokens += length;
    }
    corpus.add(tokens);
    last = end;
  }
  return corpus.take(path);
}

template <class Token>
CorpusLengths of_tokens(const DataFile& file, const std::string& path, std::size_t header, std::int64_t count,
                        std::int64_t end_token) {
  Numbers<Token> tokens(file, header, static_cast<std::size_t>(count));
  Corpus corpus;
  std::int64_t length = 0;
  while (tokens.any()) {
    ++length;
    if (tokens.next() != end_token) continue;
    corpus.add(length);
    length = 0;
  }
  corpus.add(length);
  return corpus.take(path);
}

}  // namespace

CorpusLengths corpus_lengths(const std::string& path, std::optional<std::int64_t> end_token) {
  if (path.ends_with(".idx")) {
    if (end_token) throw InputError(path, "", "says itself where documents end (allowed: no end token)");
    return of_megatron(path);
  }
  if (!end_token)
    throw InputError(path, "", "does not say where documents end (allowed: a *.idx, or an end token)");
  const DataFile file(path);
  return path.ends_with(".bin")
             ? of_tokens<std::uint16_t>(file, path, kTokenHeader, tokens_of_file(file, path), *end_token)
             : of_tokens<std::uint8_t>(file, path, 0, static_cast<std::int64_t>(file.bytes()), *end_token);
}

}  // namespace orrery::exec
