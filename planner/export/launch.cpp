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

std::string indented(int spaces, const std::string& text) {
  std::string out, line;
  const auto flush = [&] {
    if (!line.empty()) out += std::string(static_cast<std::size_t>(spaces), ' ') + line;
    line.clear();
  };
  for (const char c : text) {
    if (c == '\r') continue;
    if (c != '\n') {
      line += c;
      continue;
    }
    flush();
    out += '\n';
  }
  flush();
  return out;
}

std::string end_of_text(const std::string& text) {
  std::string end = "END";
  while (text.find(end) != std::string::npos) end += '_';
  return end;
}

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string slurm_job(const Launch& l) {
  std::string out = fmt::format("#!/bin/bash\n#SBATCH --job-name={}\n", launch_name(l.name));
  if (!l.by_user) out += fmt::format("#SBATCH --account={}\n", launch_name(l.tenant));
  out += fmt::format(
      "#SBATCH --nodes={}\n"
      "#SBATCH --ntasks-per-node=1\n"
      "#SBATCH --gpus-per-node={}\n",
      l.nodes, l.devices_per_node);
  if (l.whole_nodes) out += "#SBATCH --exclusive\n";
  if (l.nodes > 1 && l.switches > 0) out += fmt::format("#SBATCH --switches={}\n", l.switches);
  if (l.limit) out += fmt::format("#SBATCH --time={}\n", slurm_time(*l.limit));
  if (l.priority != 0) out += fmt::format("#SBATCH --comment=\"priority {}\"\n", l.priority);
  out += l.by_user ? "#SBATCH --export=ALL\n"
                     "# To be filled in, with one # less, where your cluster wants them:\n"
                     "##SBATCH --account=ACCOUNT\n"
                     "##SBATCH --partition=PARTITION\n"
                     "##SBATCH --time=D-HH:MM:SS\n"
                     "##SBATCH --cpus-per-task=CORES\n"
                     "##SBATCH --container-image=IMAGE\n"
                   : "#SBATCH --requeue\n";
  const std::string end = end_of_text(l.command);
  return out + fmt::format(
                   "set -euo pipefail\n\n"
                   "MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)\n"
                   "export MASTER_ADDR\n"
                   "# On each node; where it fails on one, the others stop.\n"
                   "srun --kill-on-bad-exit=1 bash -c \"$(\n  cat <<'{0}'\n"
                   "export NODE_RANK=$SLURM_NODEID\n"
                   "{1}{2}{0}\n)\"\n",
                   end, l.command, l.command.ends_with('\n') ? "" : "\n");
}

}  // namespace orrery::planner
