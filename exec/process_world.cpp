// SPDX-License-Identifier: Apache-2.0
#include "exec/process_world.h"

#include <numeric>

#include "core/error.h"
#include "exec/mpi_world.h"
#include "exec/shared_world.h"
#include "exec/tcp_world.h"

namespace orrery::exec {
namespace {

class OneHost final : public ProcessWorld {
 public:
  OneHost(const Launch& launch, std::span<const std::int64_t> ranks, std::chrono::milliseconds deadline)
      : world_(launch.job, ranks, launch.rank, deadline), communicator_(world_.communicator(launch.rank)) {}
  Communicator& communicator() override { return *communicator_; }
  Abort& abort() override { return world_.abort(); }
  void spread_failure() override {}  // all see the same memory
  std::vector<std::int64_t> survivors() override { return world_.survivors(); }
  void stand_by() override { world_.stand_by(); }

 private:
  SharedWorld world_;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace

void ProcessWorld::stand_by() {
  throw Error("only processes of one host, without a rendezvous, stand by");
}

std::unique_ptr<ProcessWorld> join(const Launch& launch, const std::string& rendezvous,
                                   const std::optional<Secret>& secret, std::chrono::milliseconds deadline,
                                   std::uint64_t largest_message) {
  if (!rendezvous.empty())
    return join_by_tcp(launch, parse_rendezvous(rendezvous), secret, deadline, largest_message);
  if (!launch.one_host()) return join_by_mpi(launch, deadline);
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(launch.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<OneHost>(launch, ranks, deadline);
}

}  // namespace orrery::exec
