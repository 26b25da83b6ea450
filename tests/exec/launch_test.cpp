// SPDX-License-Identifier: Apache-2.0
#include "exec/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "core/error.h"

namespace orrery::exec {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<Launch> read(const Variables& v) {
  return read_launch([&](const char* name) -> const char* {
    const auto found = v.find(name);
    return found == v.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launch, NobodyLaunched) {
  EXPECT_FALSE(read({}));
  // A batch script of Slurm's has a task number, but no step started it.
  EXPECT_FALSE(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}));
}

TEST(Launch, EachLauncherIsRead) {
  const auto torch =
      read({{"RANK", "5"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}});
  ASSERT_TRUE(torch);
  EXPECT_EQ(torch->launcher, "torchrun");
  EXPECT_EQ(torch->rank, 5);
  EXPECT_EQ(torch->ranks, 16);
  EXPECT_EQ(torch->local_rank, 1);
  EXPECT_EQ(torch->local_ranks, 4);
  EXPECT_FALSE(torch->one_host());
  const auto open_mpi = read({{"OMPI_COMM_WORLD_RANK", "2"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  ASSERT_TRUE(open_mpi);
  EXPECT_EQ(open_mpi->launcher, "Open MPI");
  EXPECT_TRUE(open_mpi->one_host());
  const auto pmi = read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  ASSERT_TRUE(pmi);
  EXPECT_EQ(pmi->launcher, "PMI");
  EXPECT_EQ(pmi->local_rank, 1);
}

TEST(Launch, SlurmTellsTasksByNode) {
  Variables v{{"SLURM_PROCID", "8"},
              {"SLURM_STEP_NUM_TASKS", "9"},
              {"SLURM_LOCALID", "0"},
              {"SLURM_STEP_TASKS_PER_NODE", "4(x2),1"},
              {"SLURM_NODEID", "2"}};
  EXPECT_EQ(read(v)->local_ranks, 1);
  v["SLURM_PROCID"] = "4";
  v["SLURM_NODEID"] = "1";
  EXPECT_EQ(read(v)->local_ranks, 4);
  v["SLURM_NODEID"] = "3";
  EXPECT_THROW(read(v), InputError);
}

// What the launcher calls the job everywhere, without the host's name, of which TCP's greeting is made.
TEST(Launch, AJobHasOneNameOnAllHosts) {
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}})->id, "");
  const Variables torch{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "a"}, {"MASTER_PORT", "5"}};
  EXPECT_EQ(read(torch)->id, "a");
  EXPECT_EQ(read({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_JOB_ID", "77"}})->id, "77");
  EXPECT_EQ(read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_ID", "1"}})->id,
            "");  // the rank, with some launchers
}

// srun may start torchrun's agents: the workers are torchrun's.
TEST(Launch, TheInnerLauncherCounts) {
  const auto l = read({{"RANK", "3"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "3"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"SLURM_PROCID", "0"},
                       {"SLURM_STEP_NUM_TASKS", "1"}});
  ASSERT_TRUE(l);
  EXPECT_EQ(l->launcher, "torchrun");
  EXPECT_EQ(l->rank, 3);
}

TEST(Launch, JobsOfAHostAreToldApart) {
  const Variables one{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}};
  Variables other = one;
  other["MASTER_PORT"] = "29501";
  EXPECT_NE(read(one)->job, read(other)->job);
  Variables same = one;
  same["RANK"] = "1";
  EXPECT_EQ(read(one)->job, read(same)->job);
}

TEST(Launch, ContradictionsAreInputErrors) {
  EXPECT_THROW(read({{"RANK", "four"}, {"WORLD_SIZE", "4"}}), InputError);
  EXPECT_THROW(read({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), InputError);
  EXPECT_THROW(read({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}), InputError);
  EXPECT_THROW(read({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "8"}}),
               InputError);
}

TEST(Launch, AProcessHasTheGpuOfItsNumberOrTheOnlyOneItSees) {
  EXPECT_EQ(gpu_of(0, 8), 0);
  EXPECT_EQ(gpu_of(7, 8), 7);
  EXPECT_EQ(gpu_of(5, 1), 0);  // srun --gpus-per-task=1
  EXPECT_THROW(gpu_of(8, 8), Error);
  EXPECT_THROW(gpu_of(0, 0), Error);
}

}  // namespace
}  // namespace orrery::exec
