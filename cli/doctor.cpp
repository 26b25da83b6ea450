// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <thread>

#include "cli/commands.h"
#include "exec/gpus.h"
#include "exec/process_world.h"
#include "kernels/cpu/fast.h"

namespace orrery::cli {
namespace {

Json json_of(const exec::Gpus& gpus) {
  Json devices = Json::array();
  for (const exec::Gpu& g : gpus.devices)
    devices.push_back({{"name", g.name},
                       {"bus", g.bus},
                       {"compute_capability", fmt::format("{}.{}", g.major, g.minor)},
                       {"units", g.units},
                       {"memory_bytes", g.memory.value},
                       {"l2_bytes", g.l2.value},
                       {"clock_mhz", g.clock_mhz},
                       {"memory_clock_mhz", g.memory_clock_mhz},
                       {"memory_bus_bits", g.memory_bus_bits},
                       {"peers", g.peers}});
  return {{"problem", gpus.problem}, {"cuda_runtime", gpus.runtime}, {"cuda_driver", gpus.driver},
          {"nccl", gpus.nccl},       {"cudnn", gpus.cudnn},          {"devices", devices}};
}

void print(const exec::Gpus& gpus) {
  const auto known = [](const std::string& version) { return version.empty() ? "none" : version; };
  if (gpus.runtime.empty())
    fmt::print("GPUs: none, {}\n", gpus.problem);
  else
    fmt::print("GPUs: {}{} (CUDA runtime {}, driver {}, NCCL {}, cuDNN {})\n",
               gpus.problem.empty() ? std::to_string(gpus.devices.size()) : "none, ", gpus.problem,
               gpus.runtime, known(gpus.driver), known(gpus.nccl), known(gpus.cudnn));
  if (!gpus.devices.empty() && gpus.cudnn.empty())
    fmt::print(
        "  attention runs in our own kernels: built without cuDNN's frontend, or cuDNN is not found\n");
  for (std::size_t i = 0; i < gpus.devices.size(); ++i) {
    const exec::Gpu& g = gpus.devices[i];
    fmt::print("  {}: {} ({}, sm_{}{}), {}, {} units up to {:.0f} MHz{}\n", i, g.name, g.bus, g.major,
               g.minor, format(g.memory), g.units, g.clock_mhz,
               g.peers.empty() ? "" : fmt::format(", reaches {}", fmt::join(g.peers, ", ")));
  }
}

}  // namespace

void add_doctor(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "doctor", "what this machine has and which backends work");
  command->callback([&app] {
    const unsigned cores = std::thread::hardware_concurrency();
    const auto pages = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
    const exec::Gpus gpus = exec::find_gpus();
    const auto profiles = app.data.names("profiles"), topologies = app.data.names("topologies");
    std::vector<const char*> backends{"cpu"};
    if (gpus.problem.empty()) backends.push_back("cuda");
    if (app.json) {
      return print_json({{"schema", "orrery.doctor/1"},
                         {"gpus", json_of(gpus)},
                         {"cores", cores},
                         {"memory_bytes", pages},
                         {"backends", backends},
                         {"blas", kernels::blas_name()},
                         {"instructions", kernels::pointwise().isa},
                         {"spans_hosts", exec::spans_hosts()},
                         {"profiles", profiles},
                         {"topologies", topologies}});
    }
    fmt::print("{} cores, {} of memory\n", cores, format(Bytes{pages}));
    fmt::print(
        "backends that run plans: cpu (fp32, bf16, fp16; {}, {} kernels; ranks as threads or processes{})\n",
        kernels::blas_name(), kernels::pointwise().isa,
        exec::spans_hosts() ? ", of several hosts by MPI" : " of one host: built without MPI");
    if (gpus.problem.empty())
      fmt::print(
          "                         cuda (fp32, bf16, fp16; ranks as threads on one GPU, or as processes by "
          "NCCL)\n");
    print(gpus);
    fmt::print("device profiles: {}\n", fmt::join(profiles, ", "));
    fmt::print("topologies:      {}\n", fmt::join(topologies, ", "));
    if (profiles.empty())
      fmt::print("no profiles found: set ORRERY_DATA to the folder that holds profiles/ and topologies/\n");
  });
}

}  // namespace orrery::cli
