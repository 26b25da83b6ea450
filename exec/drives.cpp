// SPDX-License-Identifier: Apache-2.0
#include "exec/drives.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>

#include "core/error.h"
#include "core/units.h"
#include "exec/descriptor.h"

namespace orrery::exec {

std::filesystem::path drive_folder(const std::filesystem::path& folder) {
  return folder.empty() ? std::filesystem::temp_directory_path() : folder;
}

bool is_in_memory(const std::filesystem::path& folder) {
  struct statfs of {};
  return ::statfs(folder.c_str(), &of) == 0 && (of.f_type == TMPFS_MAGIC || of.f_type == RAMFS_MAGIC);
}

DriveFile::DriveFile(const std::filesystem::path& folder, std::int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const std::filesystem::path in = drive_folder(folder);
  const auto fail = [&](int error, const char* what) {
    throw Error(fmt::format("{}: {} for {} that the plan keeps on drives: {}", in.string(), what,
                            format(Bytes{bytes}), std::generic_category().message(error)));
  };
  std::string name = (in / "orrery-nvme-XXXXXX").string();
  const Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.get() < 0) fail(errno, "cannot make a file");
  ::unlink(name.c_str());
  if (const int error = ::posix_fallocate(file.get(), 0, bytes); error != 0) fail(error, "no room");
  void* const mapped =
      ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) fail(errno, "cannot map a file");
  data_ = static_cast<std::byte*>(mapped);
}

DriveFile::~DriveFile() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(bytes_));
}

}  // namespace orrery::exec
