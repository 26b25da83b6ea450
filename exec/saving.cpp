// SPDX-License-Identifier: Apache-2.0
#include "exec/saving.h"

#include "core/error.h"
#include "core/text.h"

namespace orrery::exec {

Saving::Saving(std::filesystem::path folder, const program::Program& program, std::int64_t rank,
               Snapshot snapshot, bool beside, bool fails) {
  // Moved, not copied: the state's pointers lead into its copies.
  auto write = [this, folder = std::move(folder), &program, rank, fails, state = std::move(snapshot)] {
    try {
      if (fails) throw Error("No space left on device (injected)");
      file_ = write_rank(folder, program, rank, state.units);
    } catch (const std::exception& e) {
      failure_ = printable(e.what());
    }
    done_.store(true, std::memory_order_release);
  };
  if (beside)
    writer_ = std::jthread(std::move(write));
  else
    write();
}

}  // namespace orrery::exec
