// SPDX-License-Identifier: Apache-2.0
//
// Objects of Kubernetes, as YAML.
#include <fmt/format.h>

#include <cmath>

#include "core/json.h"
#include "planner/export/launch.h"

namespace orrery::planner {
namespace {

// A YAML string in JSON's form, which YAML 1.2 reads.
std::string yaml(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

// A variable of the environment with a value, or with what a field of the pod says.
struct Setting {
  std::string name, value, field;
};

constexpr const char* kIndexOfPod = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

// The list `env` of a container.
std::string environment(const Launch& l, const std::vector<Setting>& set) {
  std::string out;
  for (const Setting& v : set) {
    out += "- name: " + v.name + "\n";
    out += v.field.empty() ? "  value: " + yaml(v.value) + "\n"
                           : "  valueFrom:\n    fieldRef:\n      fieldPath: " + v.field + "\n";
  }
  for (const std::string& name : l.variables) out += "- name: " + name + "\n  value: \"\"\n";
  return out.empty() ? out : "env:\n" + indented(2, out);
}

std::string run_by_bash(const std::string& command) {
  return "command: [bash, -c]\nargs:\n  - |\n" + indented(4, command) + "\n";
}

std::string devices_of(const Launch& l) {
  return fmt::format("limits:\n  nvidia.com/gpu: {}\n", l.devices_per_node);
}

// The spec of a pod that has the node's devices. A container has 64 MiB of the memory that NCCL and loaders
// share unless a volume is mounted there.
std::string pod(const Launch& l, const std::string& container, const std::string& before,
                const std::string& env, const std::string& runs) {
  return before + "volumes:\n  - name: shm\n    emptyDir:\n      medium: Memory\n" +
         fmt::format("containers:\n  - name: {}\n    image: {}\n", container, yaml(l.image)) +
         indented(4, env + "volumeMounts:\n  - name: shm\n    mountPath: /dev/shm\nresources:\n" +
                         indented(2, devices_of(l)) + runs);
}

std::string head(const Launch& l, const char* version, const char* kind) {
  return fmt::format(
      "apiVersion: {}\nkind: {}\nmetadata:\n  name: {}\n  labels:\n    kueue.x-k8s.io/queue-name: "
      "{}\nspec:\n",
      version, kind, yaml(launch_name(l.name)), yaml(launch_name(l.tenant)));
}

std::string time_limit(const Launch& l) {
  if (!l.limit) return {};
  return fmt::format("activeDeadlineSeconds: {}\n", static_cast<std::int64_t>(std::ceil(l.limit->value)));
}

// The spec of a Job with a pod for each node, which knows its number by its index.
std::string indexed_job(const Launch& l, const std::string& first_host, const std::string& before) {
  return fmt::format("completions: {0}\nparallelism: {0}\ncompletionMode: Indexed\nbackoffLimit: 0\n",
                     l.nodes) +
         time_limit(l) + "template:\n  spec:\n" +
         indented(4, pod(l, "training", before + "restartPolicy: Never\n",
                         environment(l, {{"MASTER_ADDR", first_host, ""}, {"NODE_RANK", "", kIndexOfPod}}),
                         run_by_bash(l.command)));
}

std::string job(const Launch& l) {
  const std::string name = launch_name(l.name);
  return fmt::format(
             "apiVersion: v1\nkind: Service\nmetadata:\n  name: {0}\nspec:\n  clusterIP: None\n  selector:\n"
             "    job-name: {0}\n---\n",
             yaml(name)) +
         head(l, "batch/v1", "Job") +
         indented(2, indexed_job(l, name + "-0." + name, "subdomain: " + yaml(name) + "\n"));
}

// Its controller gives each pod the host name SET-JOB-0-INDEX in a subdomain with the set's name.
std::string job_set(const Launch& l) {
  const std::string name = launch_name(l.name);
  return head(l, "jobset.x-k8s.io/v1alpha2", "JobSet") +
         "  replicatedJobs:\n    - name: node\n      replicas: 1\n      template:\n        spec:\n" +
         indented(10, indexed_job(l, name + "-node-0-0." + name, ""));
}

// The operator sets PET_*, which are the defaults of torchrun's options.
std::string train_job(const Launch& l) {
  return head(l, "trainer.kubeflow.org/v1alpha1", "TrainJob") + indented(2, time_limit(l)) +
         "  runtimeRef:\n    name: torch-distributed\n  trainer:\n" +
         indented(4, fmt::format("image: {}\nnumNodes: {}\nnumProcPerNode: {}\nresourcesPerNode:\n",
                                 yaml(l.image), l.nodes, l.devices_per_node) +
                         indented(2, devices_of(l)) + environment(l, {}) +
                         run_by_bash("export MASTER_ADDR=$PET_MASTER_ADDR NODE_RANK=$PET_NODE_RANK\n" +
                                     l.command));
}

// The operator sets MASTER_ADDR and PET_NODE_RANK; its container has to be called pytorch.
std::string pytorch_job(const Launch& l) {
  const auto replicas = [&](const char* kind, std::int64_t n) {
    return fmt::format("{}:\n  replicas: {}\n  restartPolicy: Never\n  template:\n    spec:\n", kind, n) +
           indented(6, pod(l, "pytorch", "", environment(l, {}),
                           run_by_bash("export NODE_RANK=$PET_NODE_RANK\n" + l.command)));
  };
  return head(l, "kubeflow.org/v1", "PyTorchJob") + "  runPolicy:\n    cleanPodPolicy: Running\n" +
         indented(4, time_limit(l)) + fmt::format("  nprocPerNode: \"{}\"\n", l.devices_per_node) +
         "  pytorchReplicaSpecs:\n" + indented(4, replicas("Master", 1)) +
         (l.nodes > 1 ? indented(4, replicas("Worker", l.nodes - 1)) : "");
}

// One process of mpirun for each worker, bound to no core as it starts the node's ranks. The launcher's
// environment reaches the workers by -x alone.
std::string mpi_job(const Launch& l) {
  std::string given = "-x PATH -x LD_LIBRARY_PATH -x MASTER_ADDR";
  for (const std::string& name : l.variables) given += " -x " + name;
  const std::string launcher =
      "set -euo pipefail\n"
      "MASTER_ADDR=$(sed -n '1s/ .*//p' /etc/mpi/hostfile)\n"
      "export MASTER_ADDR\n" +
      fmt::format("exec mpirun --allow-run-as-root -np {} --map-by ppr:1:node --bind-to none {} \\\n",
                  l.nodes, given) +
      "  bash -c 'export NODE_RANK=$OMPI_COMM_WORLD_RANK; exec bash -c \"$0\"' " + shell_quoted(l.command) +
      "\n";
  return head(l, "kubeflow.org/v2beta1", "MPIJob") +
         "  slotsPerWorker: 1\n  mpiImplementation: OpenMPI\n"
         "  launcherCreationPolicy: WaitForWorkersReady\n"
         "  runPolicy:\n    cleanPodPolicy: Running\n    backoffLimit: 0\n" +
         indented(4, time_limit(l)) +
         "  mpiReplicaSpecs:\n    Launcher:\n      replicas: 1\n      restartPolicy: Never\n      template:\n"
         "        spec:\n          containers:\n            - name: launcher\n" +
         indented(14, "image: " + yaml(l.image) + "\n" + environment(l, {}) + run_by_bash(launcher)) +
         fmt::format(
             "    Worker:\n      replicas: {}\n      restartPolicy: Never\n      template:\n"
             "        spec:\n",
             l.nodes) +
         indented(10, pod(l, "worker", "", "", "command: [/usr/sbin/sshd, -De]\n"));
}

}  // namespace

std::string manifest(ManifestKind kind, const Launch& launch) {
  switch (kind) {
    case ManifestKind::kJob:
      return job(launch);
    case ManifestKind::kJobSet:
      return job_set(launch);
    case ManifestKind::kTrainJob:
      return train_job(launch);
    case ManifestKind::kPyTorchJob:
      return pytorch_job(launch);
    case ManifestKind::kMpiJob:
      return mpi_job(launch);
  }
  throw std::logic_error("a kind of manifest without its text");
}

}  // namespace orrery::planner
