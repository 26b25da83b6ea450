// SPDX-License-Identifier: Apache-2.0
//
// Megatron-LM's script as an object of Kubernetes and as a task of SkyPilot. What only the user knows stands
// there as a placeholder with a name.
#include <array>
#include <utility>

#include "core/json.h"
#include "planner/export/launch.h"
#include "planner/export/recipe.h"
#include "planner/export/targets.h"

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

}  // namespace

Exported kubernetes_manifest(ManifestKind kind, const Problem& problem, const Plan& p,
                             const Cursor& scenario) {
  Exported e = megatron_script(problem, p, scenario);
  const Layout at = layout_of(problem, p, scenario.child("cluster"));
  Launch l{.name = name_of(problem.scenario),
           .tenant = "QUEUE",
           .nodes = at.nodes,
           .devices_per_node = at.per_node};
  l.image = "IMAGE";
  l.command = body_of(e.text);
  l.variables = e.variables;
  e.text = manifest(kind, l);
  e.notes.push_back(
      fmt::format("IMAGE, the queue of Kueue (kueue.x-k8s.io/queue-name) and, in env, {} are to be set",
                  fmt::join(e.variables, ", ")));
  switch (kind) {
    case ManifestKind::kTrainJob:
      e.notes.emplace_back(
          "the runtime torch-distributed gives a container 64 MiB of /dev/shm; a runtime of yours can mount "
          "more");
      break;
    case ManifestKind::kMpiJob:
      e.notes.emplace_back(
          "the image needs Open MPI, and sshd that takes the keys which the operator mounts");
      break;
    case ManifestKind::kJob:
    case ManifestKind::kJobSet:
    case ManifestKind::kPyTorchJob:
      break;
  }
  return e;
}

Exported skypilot_task(const Problem& problem, const Plan& p, const Cursor& scenario) {
  Exported e = megatron_script(problem, p, scenario);
  const Layout at = layout_of(problem, p, scenario.child("cluster"));
  const std::string& device = problem.devices.front().name;
  const auto known = std::find_if(kAccelerators.begin(), kAccelerators.end(),
                                  [&](const auto& a) { return device == a.first; });
  if (known == kAccelerators.end() || problem.devices.size() > 1) {
    scenario.child("cluster").fail(
        fmt::format("SkyPilot's name of \"{}\" is not known", problem.device_names()),
        "allowed: clusters of A100, H100, H200, B200, B300, GB200, GH200, L40S, L4, T4 or V100");
  }
  std::string text = fmt::format("name: {}\nresources:\n  accelerators: {}:{}\nnum_nodes: {}\nenvs:\n",
                                 name_of(problem.scenario), known->second, at.per_node, at.nodes);
  std::string given;
  for (const std::string& name : e.variables) {
    text += fmt::format("  {}: null\n", name);
    given += " --env " + name + "=..";
  }
  text +=
      "run: |\n"
      "  MASTER_ADDR=$(echo \"$SKYPILOT_NODE_IPS\" | head -n 1)\n"
      "  export MASTER_ADDR NODE_RANK=$SKYPILOT_NODE_RANK\n";
  std::string line;
  for (const char c : body_of(e.text)) {
    line += c;
    if (c != '\n') continue;
    text += line == "\n" ? line : "  " + line;
    line.clear();
  }
  e.text = std::move(text);
  e.notes.push_back("sky launch FILE" + given + " sets what is null");
  return e;
}

}  // namespace orrery::planner
