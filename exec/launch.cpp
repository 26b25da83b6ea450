// SPDX-License-Identifier: Apache-2.0
#include "exec/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/error.h"

namespace orrery::exec {
namespace {

struct Names {
  const char *launcher, *rank, *ranks, *local_rank, *local_ranks;
  const char* id;  // what all hosts call the job; null: nothing
  // That tell jobs of a host apart; where none is set, the parent process does.
  std::array<const char*, 3> job;
};

// A process may see the variables of several launchers, as when srun starts torchrun's agents: the one that
// started the process itself comes first.
constexpr std::array<Names, 4> kLaunchers{{
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     "TORCHELASTIC_RUN_ID",
     {"TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_MCA_ess_base_jobid",
     {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", nullptr}},
    {"PMI",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     nullptr,
     {"PMI_ID", nullptr, nullptr}},
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     "SLURM_STEP_TASKS_PER_NODE",
     "SLURM_JOB_ID",
     {"SLURM_JOB_ID", "SLURM_STEP_ID", nullptr}},
}};

std::int64_t whole_number(const char* name, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw InputError("environment", fmt::format("/{}", name),
                     fmt::format("\"{}\" is not a whole number of ranks", text));
  }
  return value;
}

// Slurm's "4", "4(x2)" or "4(x2),1": tasks of each node, of which `node` is wanted.
std::int64_t tasks_of_node(const char* name, std::string_view text, std::int64_t node) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const std::size_t times = part.find("(x");
    const std::int64_t nodes =
        times == part.npos ? 1 : whole_number(name, part.substr(times + 2, part.size() - times - 3));
    if (node < nodes) return whole_number(name, part.substr(0, times));
    node -= nodes;
  }
  throw InputError("environment", fmt::format("/{}", name), "does not tell of this node");
}

}  // namespace

std::optional<Launch> read_launch(const Environment& environment) {
  for (const Names& n : kLaunchers) {
    const char *rank = environment(n.rank), *ranks = environment(n.ranks);
    if (rank == nullptr || ranks == nullptr) continue;
    Launch l;
    l.launcher = n.launcher;
    l.rank = whole_number(n.rank, rank);
    l.ranks = whole_number(n.ranks, ranks);
    const char *local = environment(n.local_rank), *locals = environment(n.local_ranks);
    l.local_rank = local == nullptr ? l.rank : whole_number(n.local_rank, local);
    if (locals == nullptr) {
      l.local_ranks = l.ranks;
    } else if (l.launcher == "Slurm") {
      const char* node = environment("SLURM_NODEID");
      l.local_ranks =
          tasks_of_node(n.local_ranks, locals, node == nullptr ? 0 : whole_number("SLURM_NODEID", node));
    } else {
      l.local_ranks = whole_number(n.local_ranks, locals);
    }
    if (l.rank >= l.ranks || l.local_rank >= l.local_ranks || l.local_ranks > l.ranks) {
      throw InputError("environment", fmt::format("/{}", n.rank),
                       fmt::format("rank {} of {}, {} of {} on this host, cannot be", l.rank, l.ranks,
                                   l.local_rank, l.local_ranks));
    }
    if (const char* id = n.id == nullptr ? nullptr : environment(n.id); id != nullptr) l.id = id;
    l.job = host_name();
    bool told = false;
    for (const char* name : n.job) {
      const char* value = name == nullptr ? nullptr : environment(name);
      if (value == nullptr) continue;
      l.job += fmt::format("-{}", value);
      told = true;
    }
    if (!told) l.job += fmt::format("-{}", ::getppid());
    for (char& c : l.job) c = c == '/' ? '_' : c;
    return l;
  }
  return std::nullopt;
}

std::optional<Launch> read_launch() {
  return read_launch([](const char* name) -> const char* { return std::getenv(name); });
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

int gpu_of(int local_rank, int visible) {
  if (visible == 1) return 0;
  if (local_rank < visible) return local_rank;
  throw Error(fmt::format(
      "this host has {} GPUs, and more processes of the job: every rank needs one of its own", visible));
}

}  // namespace orrery::exec
