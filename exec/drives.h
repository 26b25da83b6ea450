// SPDX-License-Identifier: Apache-2.0
//
// What a rank keeps on its host's drives: a file without a name, mapped into memory. Its blocks are allocated
// at once, so that no write of a run finds the drives full. Internal to exec/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace orrery::exec {

class DriveFile {
 public:
  // In `folder`, or, where that is empty, in the folder for temporary files; no file where there are no
  // bytes. Throws Error where the folder has no room for it.
  DriveFile(const std::filesystem::path& folder, std::int64_t bytes);
  ~DriveFile();
  DriveFile(const DriveFile&) = delete;
  DriveFile& operator=(const DriveFile&) = delete;
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace orrery::exec
