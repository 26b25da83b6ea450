// SPDX-License-Identifier: Apache-2.0
//
// What an export gives, as a job of Slurm, as an object of Kubernetes or as a task of SkyPilot.
#include <algorithm>
#include <array>
#include <utility>

#include "planner/export/export.h"
#include "planner/export/launch.h"
#include "planner/export/recipe.h"

namespace orrery::planner {
namespace {

std::string name_of(const Scenario& s) {
  return launch_name(s.name.empty() ? s.model.name : s.name);
}

// Without its first line, which names the shell.
std::string body_of(const std::string& script) {
  return script.substr(script.find('\n') + 1);
}

// As SkyPilot's catalogue names them.
constexpr std::array<std::pair<const char*, const char*>, 14> kAccelerators{{{"a100-40gb", "A100"},
                                                                             {"a100-80gb", "A100-80GB"},
                                                                             {"h100-sxm", "H100"},
                                                                             {"h100-measured", "H100"},
                                                                             {"h200", "H200"},
                                                                             {"b200", "B200"},
                                                                             {"b300", "B300"},
                                                                             {"gb200", "GB200"},
                                                                             {"gh200", "GH200"},
                                                                             {"l40s", "L40S"},
                                                                             {"l4", "L4"},
                                                                             {"t4", "T4"},
                                                                             {"v100-16gb", "V100"},
                                                                             {"v100-32gb", "V100-32GB"}}};

std::string skypilot_task(const Problem& problem, const Launch& l, const Cursor& cluster) {
  const std::string& device = problem.devices.front().name;
  const auto known = std::find_if(kAccelerators.begin(), kAccelerators.end(),
                                  [&](const auto& a) { return device == a.first; });
  if (known == kAccelerators.end() || problem.devices.size() > 1) {
    cluster.fail(fmt::format("SkyPilot's name of \"{}\" is not known", problem.device_names()),
                 "allowed: clusters of A100, H100, H200, B200, B300, GB200, GH200, L40S, L4, T4 or V100");
  }
  std::string text = fmt::format("name: \"{}\"\nresources:\n  accelerators: {}:{}\nnum_nodes: {}\n",
                                 launch_name(l.name), known->second, l.devices_per_node, l.nodes);
  if (!l.variables.empty()) text += "envs:\n";
  for (const std::string& name : l.variables) text += fmt::format("  {}: null\n", name);
  text +=
      "run: |\n"
      "  MASTER_ADDR=$(echo \"$SKYPILOT_NODE_IPS\" | head -n 1)\n"
      "  export MASTER_ADDR NODE_RANK=$SKYPILOT_NODE_RANK\n";
  return text + indented(2, l.command);
}

// What a node runs. A file is written where no other node and no other job writes.
std::string of_node(const Exported& e, const Layout& layout) {
  if (e.file.empty()) return body_of(e.text);
  const std::string end = end_of_text(e.text);
  std::string out = fmt::format(
      "set -euo pipefail\nFOLDER=$(mktemp -d)\ncat >\"$FOLDER/{0}\" <<'{1}'\n{2}{1}\n", e.file, end, e.text);
  if (!e.placeholders.empty())
    out += fmt::format(
        "if left=$(grep -owE -m1 '{0}' \"$FOLDER/{1}\"); then\n"
        "  echo \"replace $left in the configuration {1}\" >&2\n"
        "  exit 2\n"
        "fi\n",
        fmt::join(e.placeholders, "|"), e.file);
  return out + e.start(layout);
}

Exported in_kubernetes(ManifestKind kind, Exported e, Launch l) {
  l.tenant = "QUEUE";
  l.image = "IMAGE";
  e.text = manifest(kind, l);
  e.notes.push_back(
      "set IMAGE and Kueue's queue (kueue.x-k8s.io/queue-name)" +
      (e.variables.empty() ? std::string() : fmt::format("; in env, set {}", fmt::join(e.variables, ", "))));
  if (kind == ManifestKind::kTrainJob)
    e.notes.emplace_back(
        "the runtime torch-distributed gives a container 64 MiB of /dev/shm; a runtime of yours can mount "
        "more");
  if (kind == ManifestKind::kMpiJob)
    e.notes.emplace_back("the image needs Open MPI, and sshd that takes the keys which the operator mounts");
  return e;
}

}  // namespace

Exported export_job(Launcher launcher, Target target, const Problem& problem, const Plan& p,
                    const Cursor& scenario) {
  Exported e = export_plan(target, problem, p, scenario);
  const Layout at = layout_of(problem, p, scenario.child("cluster"));
  Launch l{.name = name_of(problem.scenario),
           .nodes = at.nodes,
           .devices_per_node = at.per_node,
           .switches = 0,
           .whole_nodes = at.per_node == problem.cluster.devices_per_node,
           .by_user = true,
           .command = of_node(e, at),
           .variables = e.variables};
  switch (launcher) {
    case Launcher::kSlurm:
      e.text = slurm_job(l);
      return e;
    case Launcher::kKubernetes:
      return in_kubernetes(ManifestKind::kJob, std::move(e), std::move(l));
    case Launcher::kJobSet:
      return in_kubernetes(ManifestKind::kJobSet, std::move(e), std::move(l));
    case Launcher::kTrainJob:
      return in_kubernetes(ManifestKind::kTrainJob, std::move(e), std::move(l));
    case Launcher::kPyTorchJob:
      return in_kubernetes(ManifestKind::kPyTorchJob, std::move(e), std::move(l));
    case Launcher::kMpiJob:
      return in_kubernetes(ManifestKind::kMpiJob, std::move(e), std::move(l));
    case Launcher::kSkypilot:
      break;
  }
  e.text = skypilot_task(problem, l, scenario.child("cluster"));
  std::string given;
  for (const std::string& name : e.variables) given += " --env " + name + "=..";
  if (!given.empty()) e.notes.push_back("sky launch FILE" + given + " sets what is null");
  return e;
}

}  // namespace orrery::planner
