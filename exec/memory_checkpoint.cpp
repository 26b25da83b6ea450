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
constexpr const char* kName = "checkpoint in memory";

// A part is sent as a line that describes it, and its bytes.
std::string text_of(const MemoryPart& part) {
  return write_fields(part.file).dump() + '\n' + part.bytes;
}

MemoryPart part_of(const std::string& text) {
  const std::size_t line = text.find('\n');
  return {read_fields<CheckpointFile>(Json::parse(text.substr(0, line)), Cursor{kName}),
          text.substr(line + 1)};
}

bool is_sound(const MemoryPart& part) {
  return std::ssize(part.bytes) == part.file.bytes &&
         crc32c(part.bytes) == static_cast<std::uint32_t>(part.file.crc32c);
}

std::vector<float> floats_of(const MemoryPart& part) {
  std::vector<float> out(part.bytes.size() / sizeof(float));
  std::memcpy(out.data(), part.bytes.data(), out.size() * sizeof(float));
  return out;
}

// Checkpoints by steps done and the program that made them; of each part, the first rank that holds it, or
// -1.
using Checkpoint = std::pair<std::int64_t, std::int64_t>;
using Holders = std::map<Checkpoint, std::vector<std::int64_t>>;

Holders find_holders(const std::vector<std::string>& inventories) {
  Holders out;
  for (std::size_t rank = 0; rank < inventories.size(); ++rank) {
    for (const Json& kept : Json::parse(inventories[rank])) {
      std::vector<std::int64_t>& of = out[{kept.at("step"), kept.at("program")}];
      of.resize(std::max(of.size(), kept.at("ranks").get<std::size_t>()), -1);
      for (const Json& part : kept.at("parts")) {
        std::int64_t& holder = of[part.get<std::size_t>()];
        if (holder < 0) holder = static_cast<std::int64_t>(rank);
      }
    }
  }
  return out;
}

std::optional<Checkpoint> newest_whole(const Holders& held) {
  for (auto of = held.rbegin(); of != held.rend(); ++of) {
    if (std::find(of->second.begin(), of->second.end(), -1) == of->second.end()) return of->first;
  }
  return std::nullopt;
}

}  // namespace

void MemoryCheckpoints::keep(Exchange& exchange, const program::Program& program, CheckpointIndex index,
                             MemoryPart own) {
  const std::int64_t step = index.step, ranks = exchange.ranks();
  Kept kept{std::move(index), program.hash(), ranks, {}};
  std::string passed = text_of(own);
  kept.parts[exchange.rank()] = std::move(own);
  for (std::int64_t hop = 1; hop < std::min(replicas_, ranks); ++hop) {
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
    for (const auto& [rank, part] : kept.parts) {
      if (is_sound(part)) parts.push_back(rank);
    }
    out.push_back(
        {{"step", step}, {"program", kept.program}, {"ranks", kept.ranks}, {"parts", std::move(parts)}});
  }
  return out.dump();
}

std::optional<std::int64_t> MemoryCheckpoints::newest(const std::vector<std::string>& inventories) {
  const auto newest = newest_whole(find_holders(inventories));
  return newest ? std::optional(newest->first) : std::nullopt;
}

std::optional<RestoredState> MemoryCheckpoints::restore(Exchange& exchange, const program::Program& program) {
  const Holders held = find_holders(exchange.all_texts("checkpoints in memory", inventory()));
  const auto newest = newest_whole(held);
  std::erase_if(kept_, [&](const auto& of) {
    const Checkpoint is{of.first, of.second.program};
    return !newest || is.first > newest->first || (is.first == newest->first && is != *newest);
  });
  if (!newest) return std::nullopt;

  // What a rank lacks, another one has: all know which.
  const std::vector<std::int64_t>& holders = held.at(*newest);
  const auto mine = kept_.find(newest->first);
  const auto index_of = [&] { return write_fields(mine->second.index).dump(); };
  auto index = read_fields<CheckpointIndex>(
      Json::parse(exchange.broadcast("index of a checkpoint", holders[0],
                                     holders[0] == exchange.rank() ? index_of() : "")),
      Cursor{kName});
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
  return exec::restore(index, Cursor{kName}, program,
                       [&](const CheckpointFile& file) { return floats_of(parts.at(file.name)); });
}

}  // namespace orrery::exec
