// SPDX-License-Identifier: Apache-2.0
#include "planner/export/launch.h"

#include <fmt/format.h>

#include <cmath>

namespace orrery::planner {
namespace {

// "1-02:03:04", rounded up to a second.
std::string slurm_time(RunTime t) {
  const auto s = static_cast<std::int64_t>(std::ceil(t.value));
  return fmt::format("{}-{:02}:{:02}:{:02}", s / 86'400, s / 3600 % 24, s / 60 % 60, s % 60);
}

}  // namespace

std::string launch_name(const std::string& name) {
  constexpr std::size_t kMost = 50;
  std::string out;
  for (const char c : name) {
    const bool upper = c >= 'A' && c <= 'Z';
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (upper) out += static_cast<char>(c - 'A' + 'a');
    if (plain) out += c;
    if (!upper && !plain && !out.empty() && out.back() != '-') out += '-';
    if (out.size() == kMost) break;
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  const bool letter = !out.empty() && out.front() >= 'a';  // a Service's name begins with one
  return letter ? out : out.empty() ? "job" : "job-" + out;
}

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string slurm_job(const Launch& l) {
  std::string out = fmt::format(
      "#!/bin/bash\n"
      "#SBATCH --job-name={}\n"
      "#SBATCH --account={}\n"
      "#SBATCH --nodes={}\n"
      "#SBATCH --ntasks-per-node=1\n"
      "#SBATCH --gpus-per-node={}\n",
      launch_name(l.name), launch_name(l.tenant), l.nodes, l.devices_per_node);
  if (l.nodes > 1) out += fmt::format("#SBATCH --exclusive\n#SBATCH --switches={}\n", l.switches);
  if (l.limit) out += fmt::format("#SBATCH --time={}\n", slurm_time(*l.limit));
  if (l.priority != 0) out += fmt::format("#SBATCH --comment=\"priority {}\"\n", l.priority);
  out +=
      "#SBATCH --requeue\n"
      "set -euo pipefail\n\n"
      "MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)\n"
      "export MASTER_ADDR\n";
  return out + fmt::format("srun bash -c 'export NODE_RANK=$SLURM_NODEID; exec bash -c \"$0\"' {}\n",
                           shell_quoted(l.command));
}

}  // namespace orrery::planner
