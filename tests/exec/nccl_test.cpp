// SPDX-License-Identifier: Apache-2.0
//
// NCCL through the engine's communicator: every kind of collective on a communicator of one rank, which a
// single GPU allows. Sums over several GPUs are not tested here.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "exec/cuda/nccl_communicator.h"
#include "exec/shared_world.h"
#include "tests/kernels/device_memory.h"

namespace orrery::exec::cuda {
namespace {

using kernels::TestDevice;
using kernels::Vector;

class OneRank : public testing::Test {
 protected:
  static constexpr std::chrono::seconds kDeadline{60};
  SharedWorld world{1, kDeadline};
  std::unique_ptr<Communicator> host = world.communicator(0);
  NcclCommunicator nccl{*host, 0, kDeadline, world.abort()};
  TestDevice device;
};

TEST_F(OneRank, CollectivesLeaveWhatASingleMemberHas) {
  using enum CollectiveKind;
  const GroupId group = nccl.open(std::array<std::int64_t, 1>{0}, 0);
  EXPECT_EQ(nccl.open(std::array<std::int64_t, 1>{0}, 0), group);
  const Vector values{1.5F, -2, 3, 48, 0.25F};
  for (const DType type : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
    for (const CollectiveKind kind : {kAllReduce, kAllGather, kReduceScatter}) {
      void* const in = device.put(type, values);
      void* const out = device.put(type, Vector(values.size(), 1));
      nccl.collective(group,
                      {.kind = kind,
                       .name = "a test",
                       .input = in,
                       .output = out,
                       .elements = values.size(),
                       .type = type},
                      device.stream);
      EXPECT_EQ(device.get(type, out, values.size()), values);
    }
    void* const in = device.put(type, values);
    void* const out = device.put(type, Vector(values.size(), 0.5F));
    nccl.collective(group,
                    {.kind = kReduceScatter,
                     .name = "a test",
                     .input = in,
                     .output = out,
                     .elements = values.size(),
                     .type = type,
                     .accumulate = true},
                    device.stream);
    Vector sum(values);
    for (float& x : sum) x += 0.5F;
    EXPECT_EQ(device.get(type, out, values.size()), sum);
  }
  nccl.require_healthy();
}

TEST_F(OneRank, AChannelThatWasNotOpenedIsAnError) {
  float* const x = device.put(Vector{1});
  EXPECT_THROW(nccl.send(1, 0, "a message", x, 4, device.stream), Error);
}

}  // namespace
}  // namespace orrery::exec::cuda
