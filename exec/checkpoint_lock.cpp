// SPDX-License-Identifier: Apache-2.0
#include "exec/checkpoint_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/text.h"
#include "exec/launch.h"

namespace orrery::exec {
namespace {

namespace fs = std::filesystem;

// Whether the lock is ours within two seconds.
bool acquire(int file) {
  constexpr int kLooks = 100;
  for (int look = 0; look < kLooks; ++look) {
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK && errno != EINTR) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  errno = EWOULDBLOCK;
  return false;
}

std::string holder(int file) {
  std::array<char, 256> text{};
  const ssize_t n = ::pread(file, text.data(), text.size(), 0);
  return n > 0 ? printable({text.data(), static_cast<std::size_t>(n)}) : "a process that did not say which";
}

}  // namespace

CheckpointLock::CheckpointLock(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw Error(fmt::format("{} cannot be made: {}", folder.string(), failed.message()));
  const fs::path path = folder / "lock";
  const auto fail = [&](const std::string& why) {
    if (file_ >= 0) ::close(file_);
    throw Error(why);
  };
  const auto fail_with_errno = [&](const char* what) {
    fail(fmt::format("{} cannot be {}: {}", path.string(), what, std::generic_category().message(errno)));
  };
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) fail_with_errno("opened");
  if (!acquire(file_)) {
    if (errno != EWOULDBLOCK) fail_with_errno("locked");
    fail(fmt::format("{} is in use by another run: {}", folder.string(), holder(file_)));
  }
  const std::string me = fmt::format("pid {} on host {}", ::getpid(), host_name());
  if (::ftruncate(file_, 0) != 0 || ::pwrite(file_, me.data(), me.size(), 0) < 0) fail_with_errno("written");
}

CheckpointLock::~CheckpointLock() {
  ::close(file_);
}

}  // namespace orrery::exec
