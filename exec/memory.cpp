// SPDX-License-Identifier: Apache-2.0
#include "exec/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "exec/checkpoint.h"
#include "exec/logical.h"
#include "exec/staging.h"
#include "program/state/units.h"

namespace orrery::exec {
namespace {

namespace fs = std::filesystem;

// The number of a file that is a number alone, or that follows `key` on a line.
std::optional<std::int64_t> number_in(const fs::path& file, const std::string& key = {}) {
  std::ifstream in(file);
  std::int64_t value = 0;
  if (key.empty()) {
    if (in >> value) return value;
    return std::nullopt;  // no such file, or "max"
  }
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    if (words >> name && name == key && words >> value) return value;
  }
  return std::nullopt;
}

// Names of the files of a version of cgroups.
struct Cgroups {
  const char *mount, *limit, *usage, *cache;
};
constexpr Cgroups kFirst{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                         "total_inactive_file"};
constexpr Cgroups kSecond{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

// Of the cgroup at `path` and those above it. Containers often see their own cgroup as the mount itself.
void consider(const fs::path& root, const Cgroups& names, fs::path path, AvailableMemory& least) {
  for (;; path = path.parent_path()) {
    const fs::path folder = root / names.mount / path;
    const auto limit = number_in(folder / names.limit), usage = number_in(folder / names.usage);
    if (limit && usage) {
      const std::int64_t cache = number_in(folder / "memory.stat", names.cache).value_or(0);
      const std::int64_t left = std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *usage - cache));
      if (left < least.bytes.value) least = {Bytes{left}, (folder / names.limit).string()};
    }
    if (path.empty()) return;
  }
}

}  // namespace

AvailableMemory available_memory(const fs::path& root) {
  AvailableMemory least{Bytes{std::numeric_limits<std::int64_t>::max()}, {}};
  if (const auto kib = number_in(root / "proc/meminfo", "MemAvailable:"))
    least = {Bytes{*kib * 1024}, "MemAvailable"};
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/path", or "0::/path"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path path = fs::path(line.substr(second + 1)).relative_path();
    if (controllers == ",,") consider(root, kSecond, path, least);
    if (controllers.find(",memory,") != std::string::npos) consider(root, kFirst, path, least);
  }
  return least;
}

Bytes needed_memory(const program::Program& program, std::int64_t first, std::int64_t count,
                    const MemoryUse& use) {
  const Plan& p = program.plan;
  // A loader has two batches, of four bytes an element.
  std::int64_t loader = 0;
  for (const program::Feed& f : program::feeds_of(program.model, program.training))
    loader += 2 * 4 * f.elements * p.micro_batch * p.micro_batches;
  // The two newest checkpoints in memory, and the one that is made; as files, in fp32.
  const std::int64_t kept =
      3 * use.replicas * state_arrays(program) * static_cast<std::int64_t>(sizeof(float));
  std::vector<std::int64_t> by_stage, kept_by_stage;
  for (const program::RankClass& c : program.classes) {
    std::int64_t unit = 0, state = 0, elements = 0;
    for (const program::Unit& u : c.units) {
      // Of a quantised unit, which has two elements a byte, tensors are made one by one.
      unit = std::max(unit, is_quantised(u.kept) ? 2 * u.padded : u.padded);
      if (u.kept != program::Kept::kTrained) continue;
      elements += u.shard;
      const BytesPerParameter per = program.training.bytes_of(u.muon);
      const std::int64_t master = per.splits_master() ? 4 : per.master;  // copies of it are joined
      state += u.shard * ((master > 0 ? master : per.parameter) + 4 * per.moments / per.moment +
                          (u.outer_buffer >= 0 ? program::outer_bytes(program.training) : 0));
    }
    by_stage.push_back(
        c.arena_bytes() + (use.drives_take_memory ? c.drive_bytes.value : 0) +
        Staging::bytes_for(c, program::kCompute) + Staging::bytes_for(c, program::kHostStream) +
        unit * static_cast<std::int64_t>(sizeof(float)) +
        (c.feeds.empty() ? 0 : (use.validates ? 2 : 1) * loader) + (use.copies_state ? state : 0));
    kept_by_stage.push_back(kept * elements);
  }
  std::int64_t total = 0;
  for (std::int64_t r = first; r < first + count; ++r) {
    const auto stage = static_cast<std::size_t>(program.stage_of(r));
    total += by_stage[stage];
    // Of copies the first rank alone has a part.
    if (weight_share(program, r, false).copy == 0) total += kept_by_stage[stage];
  }
  std::int64_t model = 0;
  for (const auto& [name, tensor] : tensors_of(program)) model += tensor.rows * tensor.cols;
  total += use.copies_of_weights * model * static_cast<std::int64_t>(sizeof(float));
  return Bytes{total};
}

}  // namespace orrery::exec
