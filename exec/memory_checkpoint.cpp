// SPDX-License-Identifier: Apache-2.0
#include "exec/memory_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "exec/crc32c.h"

namespace orrery::exec {
namespace {

constexpr std::size_t kVersions = 2;

// What the part is, as a line, and its bytes.
std::string text_of(const MemoryPart& part) {
  return write_fields(part.file).dump() + '\n' + part.bytes;
}

MemoryPart part_of(const std::string& text) {
  const std::size_t line = text.find('\n');
  return {read_fields<CheckpointFile>(Json::parse(text.substr(0, line)), Cursor{"checkpoint in memory"}),
          text.substr(line + 1)};
}

std::vector<float> floats_of(const MemoryPart& part) {
  if (std::ssize(part.bytes) != part.file.bytes ||
      crc32c(part.bytes) != static_cast<std::uint32_t>(part.file.crc32c))
    throw Error(
        fmt::format("the part {} of a checkpoint in memory does not have its checksum", part.file.name));
  std::vector<float> out(part.bytes.size() / sizeof(float));
  std::memcpy(out.data(), part.bytes.data(), out.size() * sizeof(float));
  return out;
}

// By steps done, of each part of the checkpoint: the first rank that holds it; -1: none does.
using ByStep = std::map<std::int64_t, std::vector<std::int64_t>>;

ByStep find_holders(const std::vector<std::string>& inventories) {
  ByStep out;
  for (std::size_t rank = 0; rank < inventories.size(); ++rank) {
    for (const Json& kept : Json::parse(inventories[rank])) {
      std::vector<std::int64_t>& of = out[kept.at("step")];
      of.resize(std::max(of.size(), kept.at("ranks").get<std::size_t>()), -1);
      for (const Json& part : kept.at("parts")) {
        std::int64_t& holder = of[part.get<std::size_t>()];
        if (holder < 0) holder = static_cast<std::int64_t>(rank);
      }
    }
  }
  return out;
}

std::optional<std::int64_t> newest_whole(const ByStep& held) {
  for (auto of = held.rbegin(); of != held.rend(); ++of) {
    if (std::find(of->second.begin(), of->second.end(), -1) == of->second.end()) return of->first;
  }
  return std::nullopt;
}

}  // namespace

void MemoryCheckpoints::keep(Exchange& exchange, CheckpointIndex index, MemoryPart own) {
  constexpr const char* kName = "checkpoint in memory";
  const std::int64_t step = index.step, ranks = exchange.ranks();
  Kept kept{std::move(index), ranks, {}};
  std::string passed = text_of(own);
  kept.parts[exchange.rank()] = std::move(own);
  for (std::int64_t hop = 1; hop < std::min(holders_, ranks); ++hop) {
    passed = exchange.shift(kName, passed);
    kept.parts[(exchange.rank() - hop + ranks) % ranks] = part_of(passed);
  }
  kept_[step] = std::move(kept);
  while (kept_.size() > kVersions) kept_.erase(kept_.begin());
}

std::string MemoryCheckpoints::inventory() const {
  Json out = Json::array();
  for (const auto& [step, kept] : kept_) {
    Json parts = Json::array();
    for (const auto& [rank, part] : kept.parts) parts.push_back(rank);
    out.push_back({{"step", step}, {"ranks", kept.ranks}, {"parts", std::move(parts)}});
  }
  return out.dump();
}

std::optional<std::int64_t> MemoryCheckpoints::newest(const std::vector<std::string>& inventories) {
  return newest_whole(find_holders(inventories));
}

std::optional<RestoredState> MemoryCheckpoints::restore(Exchange& exchange, const program::Program& program) {
  const ByStep held = find_holders(exchange.all_texts("checkpoints in memory", inventory()));
  const auto step = newest_whole(held);
  if (!step) {
    clear();
    return std::nullopt;
  }
  kept_.erase(kept_.upper_bound(*step), kept_.end());

  // What a rank lacks, another one has: all know which.
  const std::vector<std::int64_t>& holders = held.at(*step);
  const auto mine = kept_.find(*step);
  const auto index_of = [&] { return write_fields(mine->second.index).dump(); };
  const Cursor at{"checkpoint in memory"};
  auto index = read_fields<CheckpointIndex>(
      Json::parse(exchange.broadcast("index of a checkpoint", holders[0],
                                     holders[0] == exchange.rank() ? index_of() : "")),
      at);
  std::map<std::string, MemoryPart> parts;
  for (std::size_t rank = 0; rank < holders.size(); ++rank) {
    const bool gives = holders[rank] == exchange.rank();
    MemoryPart part = part_of(exchange.broadcast(
        "part of a checkpoint", holders[rank],
        gives ? text_of(mine->second.parts.at(static_cast<std::int64_t>(rank))) : std::string()));
    index.files.push_back(part.file);
    parts[part.file.name] = std::move(part);
  }
  complete_index(index, program);
  return exec::restore(index, at, program,
                       [&](const CheckpointFile& file) { return floats_of(parts.at(file.name)); });
}

}  // namespace orrery::exec
