// SPDX-License-Identifier: Apache-2.0
//
// A job as Slurm and Kubernetes start it: how many nodes, for how long, for whom; what it runs is a plan
// (export.h) or a command.
//
//   Launch l{.name = "llama", .tenant = "vision", .nodes = 4, .devices_per_node = 8, .switches = 1,
//            .limit = RunTime{7200}, .command = "python train.py"};
//   slurm_job(l);                     // #!/bin/bash, #SBATCH --nodes=4 ..
//   manifest(ManifestKind::kJob, l);  // a headless Service and an Indexed Job of Kubernetes
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"

namespace orrery::planner {

struct Launch {
  std::string name, tenant;
  std::int64_t nodes = 1, devices_per_node = 8;
  std::int64_t switches = 1;  // leaf switches that it fits under; 0: unknown
  bool whole_nodes = false;   // nobody else is on its nodes
  // The user submits it, with an environment that it keeps, and fills in what clusters want; else a queue
  // does.
  bool by_user = false;
  std::optional<RunTime> limit;  // that the user asked for
  std::int64_t priority = 0;
  std::string command;                 // of every node
  std::string image;                   // of the container
  std::vector<std::string> variables;  // of the environment, that the command asks its user for
};

// Lower-case letters, digits and hyphens, beginning with a letter, as names of Kubernetes are (RFC 1035).
std::string launch_name(const std::string& name);

// The lines of a text, indented as YAML's blocks want them; without carriage returns, which would end a line
// of a block.
std::string indented(int spaces, const std::string& text);

// A word that ends the text in a shell's here-document: the text does not have it.
std::string end_of_text(const std::string& text);

// The text as one word of a shell, within single quotation marks.
std::string shell_quoted(const std::string& text);

// `#SBATCH --switches` asks for as few leaf switches as the job fits under, --account is the tenant. Where
// the user submits it, options that clusters want stand in comments. The command runs once a node; NODE_RANK
// and MASTER_ADDR are set for it.
std::string slurm_job(const Launch& launch);

// Objects of Kubernetes that start a pod on each node, by the controller that reads them (the versions are
// those whose schemas tests/data/launchers/cloud.json states).
enum class ManifestKind {
  kJob,         // batch/v1: a headless Service and an Indexed Job
  kJobSet,      // jobset.x-k8s.io: one replicated Job
  kTrainJob,    // trainer.kubeflow.org (Kubeflow Trainer 2) with its runtime torch-distributed
  kPyTorchJob,  // kubeflow.org/v1 (Kubeflow Training Operator 1): a master and workers
  kMpiJob,      // kubeflow.org/v2beta1: workers run sshd, and a launcher starts the command on each by mpirun
};

// All of the pods are started or none where Kueue admits jobs (kueue.x-k8s.io/queue-name is the tenant); each
// asks for the node's devices (nvidia.com/gpu) and has the host's shared memory. The command finds NODE_RANK
// and MASTER_ADDR set; `variables` stand in the environment with empty values, which the user fills in.
std::string manifest(ManifestKind kind, const Launch& launch);

}  // namespace orrery::planner
