// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>

#include "program/program.h"

namespace orrery::program {

Binding bind(const Plan& plan) {
  Binding b;
  b.tp = plan.tp;
  b.dp = plan.dp;
  b.pp = plan.pp;
  b.shard = plan.shards();
  const auto order = [&](std::int64_t n1, std::int64_t& s1, std::int64_t n2, std::int64_t& s2,
                         std::int64_t& s3) {
    s1 = 1;
    s2 = n1;
    s3 = n1 * n2;
  };
  switch (plan.rank_order) {
    case RankOrder::kTpDpPp:
      order(b.tp, b.tp_stride, b.dp, b.dp_stride, b.pp_stride);
      break;
    case RankOrder::kTpPpDp:
      order(b.tp, b.tp_stride, b.pp, b.pp_stride, b.dp_stride);
      break;
    case RankOrder::kDpTpPp:
      order(b.dp, b.dp_stride, b.tp, b.tp_stride, b.pp_stride);
      break;
    case RankOrder::kPpTpDp:
      order(b.pp, b.pp_stride, b.tp, b.tp_stride, b.dp_stride);
      break;
  }
  return b;
}

std::vector<Axis> axes_of(const Binding& b) {
  struct Strided {
    const char* name;
    std::int64_t size, stride;
  };
  std::array<Strided, 3> axes{Strided{"tp", b.tp, b.tp_stride}, Strided{"dp", b.dp, b.dp_stride},
                              Strided{"pp", b.pp, b.pp_stride}};
  // Of axes with one stride all but the last have one member.
  std::stable_sort(axes.begin(), axes.end(), [](const Strided& x, const Strided& y) {
    return std::tie(x.stride, x.size) < std::tie(y.stride, y.size);
  });
  std::vector<Axis> out;
  for (const Strided& a : axes) out.push_back({a.name, a.size});
  return out;
}

std::vector<std::int64_t> Binding::members(Group group, std::int64_t of) const {
  const Coordinates c = coordinates(of);
  std::vector<std::int64_t> out;
  switch (group) {
    case Group::kTp:
      for (std::int64_t i = 0; i < tp; ++i) out.push_back(rank({i, c.dp, c.pp}));
      break;
    case Group::kDp:
      for (std::int64_t i = 0; i < dp; ++i) out.push_back(rank({c.tp, i, c.pp}));
      break;
    case Group::kShard:
      for (std::int64_t i = 0; i < shard; ++i) out.push_back(rank({c.tp, c.dp / shard * shard + i, c.pp}));
      break;
    case Group::kReplica:
      for (std::int64_t i = c.dp % shard; i < dp; i += shard) out.push_back(rank({c.tp, i, c.pp}));
      break;
    case Group::kNone:
    case Group::kPipeline:
      break;
  }
  return out;
}

}  // namespace orrery::program
