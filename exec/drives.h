// SPDX-License-Identifier: Apache-2.0
//
// What a rank keeps on its host's drives: a file without a name, mapped into memory. Its blocks are allocated
// at once, so that no write of a run finds the drives full. Internal to exec/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace orrery::exec {

// Where that file is: in `folder`, or, where that is empty, in the folder for temporary files; and whether
// what lies there takes memory of the host (tmpfs).
std::filesystem::path drive_folder(const std::filesystem::path& folder);
bool is_in_memory(const std::filesystem::path& folder);

class DriveFile {
 public:
  // In drive_folder(folder); no file where there are no bytes. Throws Error where there is no room for it.
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
