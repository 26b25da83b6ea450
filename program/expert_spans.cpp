// SPDX-License-Identifier: Apache-2.0
#include "program/expert_spans.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

namespace orrery::program {
namespace {

// What an op begins or ends.
struct Edge {
  std::int32_t layer = 0, of_block = 0;
  bool begins = false;
};

using Edges = std::map<std::string_view, Edge>;

// Where a layer is walked several times, its ops have the names that they had.
Edges edges_of(const Program& program) {
  Edges out;
  std::map<std::pair<std::int32_t, bool>, std::int32_t> layers;  // of each block that have begun, and ended
  for (const RankClass& c : program.classes) {
    for (const Segment& s : c.segments) {
      for (const Op& op : s.ops) {
        const bool begins = op.is<ops::Route>();
        if (op.recomputed || (!begins && !op.is<ops::Unpermute>())) continue;
        if (const auto [edge, added] = out.try_emplace(op.name, Edge{op.layer, 0, begins}); added)
          edge->second.of_block = layers[{op.layer, begins}]++;
      }
    }
  }
  return out;
}

}  // namespace

std::vector<ExpertSpan> expert_spans(const Program& program, const Timeline& timeline) {
  const Edges edges = edges_of(program);
  std::vector<std::optional<Edge>> by_name;
  for (const std::string& name : timeline.names) {
    const auto found = edges.find(name);
    by_name.push_back(found == edges.end() ? std::nullopt : std::optional(found->second));
  }
  using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>;
  std::map<Key, ExpertSpan> spans;
  for (const Slice& s : timeline.slices) {
    const std::optional<Edge>& edge = by_name[static_cast<std::size_t>(s.name)];
    if (!edge) continue;
    ExpertSpan& span = spans[{s.rank, s.micro_batch, edge->layer, edge->of_block}];
    (edge->begins ? span.start : span.end) = edge->begins ? s.start : s.end;
  }
  std::vector<ExpertSpan> out;
  for (auto& [key, span] : spans) {
    std::tie(span.process, span.micro_batch, span.layer, span.of_block) = key;
    out.push_back(span);
  }
  std::stable_sort(out.begin(), out.end(), [](const ExpertSpan& a, const ExpertSpan& b) {
    return std::tie(a.process, a.start) < std::tie(b.process, b.start);
  });
  return out;
}

std::int64_t experts_chosen_from(const RankClass& rank) {
  std::map<std::string_view, std::int64_t> experts;  // by op, whatever number of segments has it
  for (const Segment& s : rank.segments) {
    for (const Op& op : s.ops) {
      if (const auto* route = op.as<ops::Route>(); route != nullptr && !op.recomputed)
        experts[op.name] = route->experts;
    }
  }
  std::int64_t sum = 0;
  for (const auto& [name, n] : experts) sum += n;
  return sum;
}

std::int64_t counted_micro_batches(const Program& program) {
  std::int64_t numbers = 0;
  const std::int64_t groups = program.plan.tp * program.plan.copies() / program.plan.expert_ranks();
  for (const RankClass& c : program.classes) numbers += groups * experts_chosen_from(c);
  const std::int64_t all = program.plan.micro_batches;
  return numbers == 0 ? all : std::min(all, ExpertCounts::kMost / (numbers * program.plan.islands));
}

std::vector<std::int64_t> expert_group(const Program& program, std::int64_t rank) {
  const Mesh& mesh = program.mesh;
  const std::int64_t first = mesh.moved(rank, mesh["etp"], 0);
  std::vector<std::int64_t> out;
  for (std::int64_t part = 0; part < mesh.size("ep"); ++part)
    out.push_back(mesh.moved(first, mesh["ep"], part));
  return out;
}

}  // namespace orrery::program
