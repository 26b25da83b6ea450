// SPDX-License-Identifier: Apache-2.0
//
// Numbers of the binary timeline: LEB128, seven bits a byte, the lowest first; signed ones zigzag-coded.
// Differences wrap around, so any value is written and read back. Internal to core/.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <istream>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/units.h"

namespace orrery {

inline constexpr std::int64_t kMostIndex = 1 << 30;  // of a process, a chunk, a micro-batch

inline std::int64_t wrapped_minus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}
inline std::int64_t wrapped_plus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

inline std::uint64_t to_zigzag(std::int64_t n) {
  return (static_cast<std::uint64_t>(n) << 1) ^ static_cast<std::uint64_t>(n >> 63);
}
inline std::int64_t from_zigzag(std::uint64_t n) {
  return static_cast<std::int64_t>((n >> 1) ^ (~(n & 1) + 1));
}

class NumberWriter {
 public:
  void number(std::uint64_t n) {
    while (n >= 0x80) {
      out_.push_back(static_cast<char>(n | 0x80));
      n >>= 7;
    }
    out_.push_back(static_cast<char>(n));
  }
  void signed_number(std::int64_t n) { number(to_zigzag(n)); }
  const std::string& text() const { return out_; }

 private:
  std::string out_;
};

// Of a file that anybody may have written: every fault is said with its byte. The file is in memory, or comes
// in pieces.
class NumberReader {
 public:
  // `at`: the byte of the file that `bytes`, the rest of it, begins with.
  NumberReader(std::string_view bytes, std::size_t at, const std::string& file)
      : bytes_(bytes), before_(at), size_(at + bytes.size()), file_(file) {}
  // `size`: of the file, whose next byte is number `at`.
  NumberReader(std::istream& from, std::size_t at, std::size_t size, const std::string& file)
      : from_(&from), before_(at), size_(size), file_(file) {}
  NumberReader(const NumberReader&) = delete;
  NumberReader& operator=(const NumberReader&) = delete;

  std::uint64_t number() {
    std::uint64_t n = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (next_ >= bytes_.size() && !refill()) fail("the file ends early");
      const auto byte = static_cast<unsigned char>(bytes_[next_++]);
      n |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return n;
    }
    fail("is not a number");
  }
  std::int64_t signed_number() { return from_zigzag(number()); }
  std::int32_t index(std::size_t size, const char* what) {
    const std::uint64_t n = number();
    if (n >= size) fail(fmt::format("{} is no {}", n, what), fmt::format("allowed: less than {}", size));
    return static_cast<std::int32_t>(n);
  }
  // Times of an input are neither negative nor so large that sums of them overflow.
  Time time(std::int64_t ps) const {
    constexpr std::int64_t kMost = 1LL << 61;
    if (ps < 0 || ps > kMost)
      fail(fmt::format("{} ps is no time", ps), fmt::format("allowed: 0 to {}", kMost));
    return Time{ps};
  }
  std::size_t left() const { return size_ - before_ - next_; }
  [[noreturn]] void fail(const std::string& problem, const std::string& allowed = {}) const {
    throw InputError(file_, fmt::format("byte {}", before_ + next_), problem, allowed);
  }

 private:
  bool refill() {
    constexpr std::size_t kPiece = 1 << 20;
    if (from_ == nullptr) return false;
    before_ += bytes_.size();
    next_ = 0;
    piece_.resize(std::min(kPiece, size_ - before_));
    from_->read(piece_.data(), static_cast<std::streamsize>(piece_.size()));
    piece_.resize(static_cast<std::size_t>(from_->gcount()));
    bytes_ = piece_;
    return !piece_.empty();
  }

  std::istream* from_ = nullptr;
  std::string piece_;
  std::string_view bytes_;
  std::size_t before_, next_ = 0, size_;  // bytes before bytes_, of it, and of the file
  const std::string& file_;
};

}  // namespace orrery
