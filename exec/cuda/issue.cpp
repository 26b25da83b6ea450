// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/issue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.h"

namespace orrery::exec::cuda {

using program::kMostStreams;

IssueOrder issue_order(const program::RankClass& rank, const std::vector<program::Stream>& streams) {
  using Counts = std::array<std::int64_t, kMostStreams>;
  IssueOrder out;
  // By stream: the issue of each op; and for each op what is done when it is: of every stream so many.
  std::array<std::vector<std::int32_t>, kMostStreams> issued;
  std::array<std::vector<Counts>, kMostStreams> known;
  std::array<Counts, kMostStreams> knows{};  // by stream, at its last op
  Counts base{};
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(rank.steps.size()); ++i) {
    const program::Step& step = rank.steps[static_cast<std::size_t>(i)];
    const program::Segment& segment = rank.segments[static_cast<std::size_t>(step.segment)];
    for (std::int32_t o = 0; o < static_cast<std::int32_t>(segment.ops.size()); ++o) {
      const program::Op& op = segment.ops[static_cast<std::size_t>(o)];
      Counts needs{};
      for (std::size_t q = 0; q < kMostStreams; ++q) {
        if (op.after[q] > 0) needs[q] = base[q] + op.after[q];
      }
      for (std::int32_t w = step.first_wait; w < step.first_wait + step.waits; ++w) {
        const program::ExternalWait& wait = rank.waits[static_cast<std::size_t>(w)];
        if (wait.op == o) needs[wait.stream] = std::max(needs[wait.stream], wait.count);
      }
      Issue issue{.step = i, .op = o, .first_wait = static_cast<std::int32_t>(out.waits.size())};
      Counts& mine = knows[op.stream];
      for (std::size_t q = 0; q < kMostStreams; ++q) {
        if (q == op.stream || needs[q] <= mine[q]) continue;
        if (static_cast<std::size_t>(needs[q]) > issued[q].size()) {
          throw Error(fmt::format("\"{}\" waits for op {} of stream {}, of which {} are issued before it",
                                  op.name, needs[q], streams[q].name, issued[q].size()));
        }
        const auto at = static_cast<std::size_t>(needs[q] - 1);
        Issue& awaited = out.ops[static_cast<std::size_t>(issued[q][at])];
        if (awaited.event < 0) awaited.event = out.events++;
        out.waits.push_back(awaited.event);
        for (std::size_t k = 0; k < kMostStreams; ++k) mine[k] = std::max(mine[k], known[q][at][k]);
      }
      issue.waits = static_cast<std::int32_t>(out.waits.size()) - issue.first_wait;
      mine[op.stream] = static_cast<std::int64_t>(issued[op.stream].size()) + 1;
      issued[op.stream].push_back(static_cast<std::int32_t>(out.ops.size()));
      known[op.stream].push_back(mine);
      out.ops.push_back(issue);
    }
    for (std::size_t q = 0; q < kMostStreams; ++q) base[q] += segment.stream_ops[q];
  }
  return out;
}

}  // namespace orrery::exec::cuda
