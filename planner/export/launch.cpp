// SPDX-License-Identifier: Apache-2.0
#include "planner/export/launch.h"

#include <fmt/format.h>

#include <cmath>

#include "core/json.h"

namespace orrery::planner {
namespace {

// "1-02:03:04", rounded up to a second.
std::string slurm_time(RunTime t) {
  const auto s = static_cast<std::int64_t>(std::ceil(t.value));
  return fmt::format("{}-{:02}:{:02}:{:02}", s / 86'400, s / 3600 % 24, s / 60 % 60, s % 60);
}

// The text within single quotation marks of a shell.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// A YAML string in JSON's form, which YAML 1.2 reads.
std::string yaml(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

// Lines of a block, indented; without carriage returns, which would end the block's lines.
std::string block(const std::string& text, const std::string& indent) {
  std::string out = indent;
  for (const char c : text) {
    if (c == '\r') continue;
    out += c;
    if (c == '\n') out += indent;
  }
  return out;
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
      "export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)\n";
  return out + fmt::format("srun bash -c 'export NODE_RANK=$SLURM_NODEID; exec bash -c \"$0\"' {}\n",
                           shell_quoted(l.command));
}

std::string kubernetes_job(const Launch& l) {
  const std::string name = launch_name(l.name);
  std::string out = fmt::format(
      "apiVersion: v1\n"
      "kind: Service\n"
      "metadata:\n"
      "  name: {0}\n"
      "spec:\n"
      "  clusterIP: None\n"
      "  selector:\n"
      "    job-name: {0}\n"
      "---\n"
      "apiVersion: batch/v1\n"
      "kind: Job\n"
      "metadata:\n"
      "  name: {0}\n"
      "  labels:\n"
      "    kueue.x-k8s.io/queue-name: {1}\n"
      "spec:\n"
      "  completions: {2}\n"
      "  parallelism: {2}\n"
      "  completionMode: Indexed\n"
      "  backoffLimit: 0\n",
      name, launch_name(l.tenant), l.nodes);
  if (l.limit)
    out += fmt::format("  activeDeadlineSeconds: {}\n", static_cast<std::int64_t>(std::ceil(l.limit->value)));
  out += fmt::format(
      "  template:\n"
      "    spec:\n"
      "      subdomain: {0}\n"
      "      restartPolicy: Never\n"
      "      volumes:\n"  // of the memory that NCCL and loaders share, of which a container has 64 MiB
                          // otherwise
      "        - name: shm\n"
      "          emptyDir:\n"
      "            medium: Memory\n"
      "      containers:\n"
      "        - name: training\n"
      "          image: {1}\n"
      "          env:\n"
      "            - name: MASTER_ADDR\n"
      "              value: {0}-0.{0}\n"
      "            - name: NODE_RANK\n"
      "              valueFrom:\n"
      "                fieldRef:\n"
      "                  fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']\n"
      "          volumeMounts:\n"
      "            - name: shm\n"
      "              mountPath: /dev/shm\n"
      "          resources:\n"
      "            limits:\n"
      "              nvidia.com/gpu: {2}\n"
      "          command: [bash, -c]\n"
      "          args:\n"
      "            - |\n",
      name, yaml(l.image), l.devices_per_node);
  return out + block(l.command, "              ") + "\n";
}

}  // namespace orrery::planner
