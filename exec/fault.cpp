// SPDX-License-Identifier: Apache-2.0
#include "exec/fault.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

namespace orrery::exec {
namespace {

void die(RankIs is, std::int64_t step) {
  switch (is) {
    case RankIs::kThread:
      throw Error(fmt::format("died at step {} (injected)", step));
    case RankIs::kProcess:
      ::kill(::getpid(), SIGKILL);
      return;
  }
}

void freeze(const Abort& abort) {
  while (!abort.raised()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  abort.check();
}

}  // namespace

void strike(std::span<const Fault> faults, std::int64_t rank, std::int64_t step, RankIs is,
            const Abort& abort) {
  for (const Fault& f : faults) {
    if (f.rank != rank || f.step != step) continue;
    switch (f.kind) {
      case FaultKind::kDead:
        die(is, step);
        break;
      case FaultKind::kFrozen:
        freeze(abort);
        break;
      case FaultKind::kDisk:
        break;
    }
  }
}

namespace {

bool has(std::span<const Fault> faults, const Fault& fault) {
  return std::find(faults.begin(), faults.end(), fault) != faults.end();
}

}  // namespace

bool dies(std::span<const Fault> faults, std::int64_t rank, std::int64_t step) {
  return has(faults, {FaultKind::kDead, rank, step});
}

bool disk_fails(std::span<const Fault> faults, std::int64_t rank, std::int64_t step) {
  return has(faults, {FaultKind::kDisk, rank, step});
}

}  // namespace orrery::exec
