// SPDX-License-Identifier: Apache-2.0
//
// A file of data, read part by part. Internal to exec/.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "exec/crc32c.h"

namespace orrery::exec {

// A file that others may change meanwhile: what is mapped into memory would end the process when the file is
// truncated.
class DataFile {
 public:
  explicit DataFile(const std::string& path) : path_(path) {
    file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe opens too, and is refused
    struct stat about {};
    if (file_ < 0 || fstat(file_, &about) != 0 || !S_ISREG(about.st_mode)) {
      const std::string why = file_ < 0 ? std::strerror(errno) : "it is not a regular file";
      if (file_ >= 0) ::close(file_);
      throw InputError(path, "", "cannot be read as a file of data: " + why);
    }
    bytes_ = static_cast<std::size_t>(about.st_size);
  }
  ~DataFile() { ::close(file_); }
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  std::size_t bytes() const { return bytes_; }  // when it was opened
  void read(std::size_t offset, std::span<std::byte> into) const {
    for (std::size_t done = 0; done < into.size();) {
      const ssize_t n =
          ::pread(file_, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw Error(fmt::format("{} cannot be read: {}", path_, std::strerror(errno)));
      if (n == 0) {
        throw Error(
            fmt::format("{} was truncated: it ends before byte {}, and had {} bytes when it was opened",
                        path_, offset + into.size(), bytes_));
      }
      done += static_cast<std::size_t>(n);
    }
  }

  // As Dataset::identity has it.
  std::uint32_t checksum() const {
    constexpr std::size_t kWhole = 64 << 20, kBlock = 64 << 10, kBlocks = kWhole / kBlock;
    std::vector<std::byte> block(kBlock);
    std::uint32_t crc = 0;
    const auto add = [&](std::size_t offset) {
      const auto part = std::span(block).first(std::min(kBlock, bytes_ - offset));
      read(offset, part);
      crc = crc32c({reinterpret_cast<const char*>(part.data()), part.size()}, crc);
    };
    if (bytes_ <= kWhole) {
      for (std::size_t offset = 0; offset < bytes_; offset += kBlock) add(offset);
    } else {
      for (std::size_t i = 0; i < kBlocks; ++i) add((bytes_ - kBlock) * i / (kBlocks - 1));
    }
    return crc;
  }

 private:
  std::string path_;
  int file_ = -1;
  std::size_t bytes_ = 0;
};

// Of a file of tokens (open_data() in exec/data.h): bytes before the tokens, and how many there are. Throws
// InputError where the header is not one, or says more than there is.
inline constexpr std::size_t kTokenHeader = 256 * 4;
std::int64_t tokens_of_file(const DataFile& file, const std::string& path);

}  // namespace orrery::exec
