// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "program/program.h"
#include "program/schedule.h"

namespace orrery::program {
namespace {

// What of the products in 8 bits has a size that tensor cores do not take.
struct Misfit {
  const char* what;
  std::int64_t size;
};
std::optional<Misfit> fp8_misfit(const Model& m, const Depth& depth, std::int64_t tp, std::int64_t tokens) {
  std::vector<Misfit> sizes{{"tokens of a micro-batch", tokens}, {"columns of the model's width", m.hidden}};
  depth.for_each_layer([&](const auto& layer, std::int64_t) {
    for (const SharedCount& of : layer.columns()) sizes.push_back({of.what, of.count / tp});
  });
  const auto found =
      std::find_if(sizes.begin(), sizes.end(), [](const Misfit& of) { return of.size % 16 != 0; });
  return found == sizes.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

bool takes_fp8(const Model& m, const Training& t, std::int64_t tp, std::int64_t micro_batch) {
  const Depth depth = depth_of(m);
  const std::vector<std::int64_t> tokens = tower_tokens(m, t);
  return std::none_of(tokens.begin(), tokens.end(),
                      [&](std::int64_t n) { return fp8_misfit(m, depth, tp, n * micro_batch).has_value(); });
}

void check_plan(const Model& m, const Plan& p, const Training& t, const Cursor& at) {
  const auto divides = [&](const char* field, std::int64_t d, std::int64_t n, const char* what) {
    if (n % d != 0) at.child(field).fail(fmt::format("{} does not divide the {} {}", d, n, what));
  };
  const Depth depth = depth_of(m);
  depth.for_each_layer([&](const auto& layer, std::int64_t) {
    for (const SharedCount& of : layer.shared()) divides("tp", p.tp, of.count, of.what);
  });
  for (const std::int64_t tokens : tower_tokens(m, t)) {
    if (p.sequence_parallel && p.tp > 1)
      divides("tp", p.tp, tokens * p.micro_batch, "tokens of a micro-batch");
    if (t.math != Math::kFp8) continue;
    if (const auto misfit = fp8_misfit(m, depth, p.tp, tokens * p.micro_batch)) {
      at.child("tp").fail(fmt::format("with {} the {} are {}, and math \"fp8\" takes multiples of 16", p.tp,
                                      misfit->what, misfit->size));
    }
  }
  if (p.pp * p.vpp > m.layers) {
    at.child("pp").fail(fmt::format("{} chunks are more than the model's {} layers", p.pp * p.vpp, m.layers));
  }
  if (const auto problem = schedule_problem(p.schedule, p.pp, p.vpp, p.micro_batches); !problem.empty()) {
    at.child("schedule").fail(problem);
  }
  if (p.table_split && m.bags() == nullptr)
    at.child("table_split").fail("the model has no embedding bags", "allowed: no such field");
  for (const Input& input : m.inputs) {
    const auto* bags = std::get_if<BagInput>(&input.is);
    if (bags == nullptr) continue;
    switch (p.table_split.value_or(TableSplit::kRows)) {
      case TableSplit::kRows:
        divides("tp", p.tp, bags->rows, "rows of a table");
        break;
      case TableSplit::kColumns:
        divides("tp", p.tp, m.hidden, "columns of a table");
        break;
      case TableSplit::kTables:
        divides("tp", p.tp, bags->tables, "tables");
        break;
    }
  }
  if (m.has_pair() && p.sequence_parallel && p.tp > 1)
    at.child("sequence_parallel").fail("a sample of two towers has one token in each", "allowed: false");
  for (const Feed& f : feeds_of(m, t)) {
    if (f.columns > 1) divides("tp", p.tp, f.columns, "values of a patch");
  }
  if (m.layers * p.micro_batches > kMostLayerRuns) {
    at.child("micro_batches")
        .fail(
            fmt::format("{} micro-batches of {} layers are more than are walked", p.micro_batches, m.layers),
            fmt::format("allowed: {} micro-batches", kMostLayerRuns / m.layers));
  }
  if (p.global_batch() != t.global_batch) {
    const std::int64_t step = p.micro_batch * p.dp;
    const std::int64_t below = t.global_batch / step * step;
    at.child("micro_batches")
        .fail(fmt::format("{} x {} x {} is a batch of {}, not {}", p.micro_batch, p.micro_batches, p.dp,
                          p.global_batch(), t.global_batch),
              below > 0 ? fmt::format("allowed with this micro-batch and dp: batches of {} or {}", below,
                                      below + step)
                        : fmt::format("allowed with this micro-batch and dp: a batch of {}", step));
  }
  if (!p.reshards() && p.zero != 3) {
    at.child("reshard_after_forward")
        .fail(fmt::format("ZeRO stage {} gathers nothing before the forward pass", p.zero), "allowed: true");
  }
  if (p.dp % p.shards() != 0)
    at.child("shard_group").fail(fmt::format("{} does not divide dp {}", p.shards(), p.dp));
  if (p.zero >= 2 && splits_backward(p.schedule)) {
    at.child("zero").fail(
        "ZeRO-2 and 3 reduce each micro-batch's gradient at once, zero-bubble schedules hold it back",
        "allowed: 0, 1");
  }
  if (!p.chunk_layers.empty()) {
    std::int64_t sum = 0;
    for (const std::int64_t n : p.chunk_layers) sum += n;
    if (static_cast<std::int64_t>(p.chunk_layers.size()) != p.pp * p.vpp || sum != m.layers) {
      at.child("chunk_layers")
          .fail(fmt::format("{} chunks with {} layers in all", p.chunk_layers.size(), sum),
                fmt::format("allowed: {} chunks, {} layers", p.pp * p.vpp, m.layers));
    }
  }
}

}  // namespace orrery::program
