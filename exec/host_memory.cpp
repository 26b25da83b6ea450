// SPDX-License-Identifier: Apache-2.0
#include "exec/host_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace orrery::exec {
namespace {

namespace fs = std::filesystem;

// A file that holds a number; nothing for "max", or where there is no such file.
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t out = 0;
  return file >> out ? std::optional(out) : std::nullopt;
}

// What a group leaves of its limit. Pages of files that it could drop count as free.
std::optional<std::int64_t> left_in(const fs::path& group, const char* limit, const char* used) {
  const auto most = number_in(group / limit), now = number_in(group / used);
  if (!most || !now) return std::nullopt;
  std::int64_t files = 0;
  std::ifstream stat(group / "memory.stat");
  for (std::string key, value; stat >> key >> value;) {
    if (key == "inactive_file" || key == "active_file") files += std::stoll(value);
  }
  return std::max<std::int64_t>(0, *most - std::max<std::int64_t>(0, *now - files));
}

}  // namespace

Bytes available_memory(const fs::path& root) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  const auto see = [&](std::optional<std::int64_t> bytes) { least = std::min(least, bytes.value_or(least)); };
  std::ifstream meminfo(root / "proc/meminfo");
  for (std::string key, rest; meminfo >> key && std::getline(meminfo, rest);) {
    if (key == "MemAvailable:") see(std::stoll(rest) * 1024);
  }
  // "0::/a/b" of version 2, "5:memory:/a/b" of version 1: that group and all above it.
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && controllers != "memory") continue;
    const fs::path top = root / (unified ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    for (fs::path at = fs::path(line.substr(second + 1)).relative_path();; at = at.parent_path()) {
      see(unified ? left_in(top / at, "memory.max", "memory.current")
                  : left_in(top / at, "memory.limit_in_bytes", "memory.usage_in_bytes"));
      if (at.empty()) break;
    }
  }
  return Bytes{least};
}

}  // namespace orrery::exec
