// SPDX-License-Identifier: Apache-2.0
//
// A job of a queue as Slurm and Kubernetes start it: how many nodes, for how long, for whom; what it runs is
// a plan (a script of Megatron-LM, export.h) or a command.
//
//   Launch l{.name = "llama", .tenant = "vision", .nodes = 4, .devices_per_node = 8, .switches = 1,
//            .limit = RunTime{7200}, .command = "python train.py"};
//   slurm_job(l);          // #!/bin/bash, #SBATCH --nodes=4 ..
//   kubernetes_job(l);     // a headless Service and an Indexed Job
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/units.h"

namespace orrery::planner {

struct Launch {
  std::string name, tenant;
  std::int64_t nodes = 1, devices_per_node = 8;
  std::int64_t switches = 1;     // leaf switches that it fits under
  std::optional<RunTime> limit;  // that the user asked for
  std::int64_t priority = 0;
  std::string command;  // of every node
  std::string image;    // of the container
};

// Lower-case letters, digits and hyphens, beginning with a letter, as names of Kubernetes are (RFC 1035).
std::string launch_name(const std::string& name);

// `#SBATCH --switches` asks for as few leaf switches as the job fits under, --account is the tenant. The
// command runs once a node; NODE_RANK and MASTER_ADDR are set for it.
std::string slurm_job(const Launch& launch);

// A pod for each node, all of them started or none where Kueue admits jobs (kueue.x-k8s.io/queue-name is the
// tenant); each asks for the node's devices (nvidia.com/gpu). NODE_RANK and MASTER_ADDR are set by the Job's
// index and a headless Service.
std::string kubernetes_job(const Launch& launch);

}  // namespace orrery::planner
