// SPDX-License-Identifier: Apache-2.0
#include "core/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>

namespace orrery {
namespace {

// The block's first layer of that kind.
template <class T>
T first_layer(const ModelBlock& block) {
  for (const Layer& l : block.layers) {
    if (const T* is = std::get_if<T>(&l.is)) return *is;
  }
  return {};
}

// What the model's flat fields say of a layer: a new kind of layer says here what it takes from them.
AttentionLayer standard_layer(const ModelBlock& standard, AttentionLayer*) {
  return first_layer<AttentionLayer>(standard);
}
MlpLayer standard_layer(const ModelBlock& standard, MlpLayer*) {
  return first_layer<MlpLayer>(standard);
}
LatentAttentionLayer standard_layer(const ModelBlock& standard, LatentAttentionLayer*) {
  const auto a = first_layer<AttentionLayer>(standard);
  return {.heads = a.heads, .rotary = a.rotary, .query_scale = a.query_scale};
}
ExpertsLayer standard_layer(const ModelBlock& standard, ExpertsLayer*) {
  const auto mlp = first_layer<MlpLayer>(standard);
  return {.ffn_hidden = mlp.ffn_hidden, .activation = mlp.activation};
}
CrossAttentionLayer standard_layer(const ModelBlock& standard, CrossAttentionLayer*) {
  const auto a = first_layer<AttentionLayer>(standard);
  return {.reads = {},
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_dim = a.head_dim,
          .query_scale = a.query_scale,
          .bias = a.bias};
}

Layer read_layer(const Json& json, const Cursor& at, const ModelBlock& standard) {
  return read_one_of<Layer>(json, at, "a layer", [&](auto* type) { return standard_layer(standard, type); });
}

template <class Read>
auto read_list(const Json& json, const Cursor& at, Read read) {
  std::vector<decltype(read(json, at))> out;
  if (!json.is_array() || json.empty()) at.fail(shown(json) + " is not a list with elements");
  if (json.size() > limits::kLongestList)
    at.fail(fmt::format("{} elements are too many", json.size()),
            fmt::format("allowed: {}", limits::kLongestList));
  for (std::size_t i = 0; i < json.size(); ++i) out.push_back(read(json[i], at.child(i)));
  return out;
}

// Reads the described fields but for the list of that name, which `read` gets where it is there.
template <class T, class Describe, class Read>
void read_with_list(const Json& json, const Cursor& at, const char* list, T& out, Describe own, Read read) {
  if (!json.is_object()) at.fail(shown(json) + " is not an object", "allowed: {...}");
  FieldReader reader(json, at);
  own(reader, out);
  reader.allow(list);
  reader.finish();
  if (json.contains(list)) read(json[list], at.child(list));
}

// The least p for which all[i] is all[i - p] everywhere: its length less that of its longest border (the
// prefix function of Knuth, Morris and Pratt, 1977), in time that grows with the length.
std::int64_t shortest_pattern(std::span<const std::int32_t> all) {
  std::vector<std::size_t> border(all.size(), 0);
  for (std::size_t i = 1; i < all.size(); ++i) {
    std::size_t k = border[i - 1];
    while (k > 0 && all[i] != all[k]) k = border[k - 1];
    border[i] = k + (all[i] == all[k] ? 1 : 0);
  }
  return static_cast<std::int64_t>(all.size() - border.back());
}

}  // namespace

std::vector<BlockRun> read_blocks(const Json& json, const Cursor& at, const ModelBlock& standard) {
  const auto layer = [&](const Json& j, const Cursor& c) { return read_layer(j, c, standard); };
  const auto block = [&](const Json& j, const Cursor& c) {
    ModelBlock out = standard;
    read_with_list(
        j, c, "layers", out, [](FieldReader& r, ModelBlock& b) { describe_own(r, b); },
        [&](const Json& layers, const Cursor& here) { out.layers = read_list(layers, here, layer); });
    return out;
  };
  std::int64_t blocks = 0;
  const auto run = [&](const Json& j, const Cursor& c) {
    BlockRun out;
    read_with_list(
        j, c, "blocks", out, [](FieldReader& r, BlockRun& b) { describe_own(r, b); },
        [&](const Json& list, const Cursor& here) { out.blocks = read_list(list, here, block); });
    if (out.blocks.empty()) out.blocks = {standard};
    blocks += out.times * static_cast<std::int64_t>(out.blocks.size());
    if (static_cast<double>(blocks) > limits::kMostLayers)
      c.fail(fmt::format("the model has more than {} blocks", limits::kMostLayers));
    return out;
  };
  return read_list(json, at, run);
}

bool BlockTowers::touches(TowerIndex t) const {
  return t == own || std::find(read.begin(), read.end(), t) != read.end();
}

std::int64_t ModelBlock::norms() const {
  const auto n = static_cast<std::int64_t>(layers.size());
  const std::int64_t behind = final_norm ? 1 : 0;
  switch (form) {
    case BlockForm::kPreNorm:
    case BlockForm::kPostNorm:
    case BlockForm::kParallel:
      return n + behind;
    case BlockForm::kSandwichNorm:
      return 2 * n + behind;
    case BlockForm::kParallelOneNorm:
      return 1 + behind;
  }
  return 0;
}

std::vector<std::int64_t> Depth::counts() const {
  std::vector<std::int64_t> out(kinds.size());
  for (const std::int32_t k : kind_of) ++out[static_cast<std::size_t>(k)];
  if (mtp > 0) out[kind_index(blocks() - 1)] += mtp;
  return out;
}

std::int64_t Depth::shared(Degree degree) const {
  std::int64_t out = 0;
  for_each_layer([&](const auto& layer, std::int64_t) {
    for (const SharedCount& of : layer.shared()) {
      if (of.degree == degree) out = std::gcd(out, of.count);
    }
  });
  return out;
}

const Stretch& Depth::stretch(std::int64_t block) const {
  return *std::find_if(stretches.begin(), stretches.end(), [&](const Stretch& s) { return block < s.end(); });
}

RecomputeParts Depth::parts(bool norms_in_products) const {
  RecomputeParts out;
  for (const ModelBlock& b : kinds) {
    b.for_each_layer([&](const auto& layer) {
      out = out | layer.parts();
      if (b.norms_first() && !(norms_in_products && layer.kBeginsInProducts)) out.add(RecomputePart::kNorms);
    });
  }
  return out;
}

bool Depth::sinks() const {
  bool out = false;
  for_each_layer([&](const auto& layer, std::int64_t) {
    if constexpr (requires { layer.sinks; }) out |= layer.sinks;
  });
  return out;
}

bool Depth::expert_biases() const {
  bool out = false;
  for_each_layer([&](const auto& layer, std::int64_t) {
    if constexpr (requires { layer.biases; }) out |= layer.biases;
  });
  return out;
}

void check_parts(const Depth& depth, const std::vector<RecomputePart>& parts, const Cursor& at,
                 bool norms_in_products) {
  const RecomputeParts has = depth.parts(norms_in_products);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (has.has(parts[i])) continue;
    std::vector<std::string_view> names;
    for (const RecomputePart part : has.list()) names.push_back(name_of(part));
    at.child(i).fail(fmt::format("no layer of the model has a part \"{}\"", name_of(parts[i])),
                     fmt::format("allowed: {}", fmt::join(names, ", ")));
  }
}

std::int64_t Depth::canonical(std::int64_t first, std::int64_t blocks) const {
  for (const Stretch& s : stretches) {
    if (first < s.first || first + blocks > s.end()) continue;
    return s.first + (first - s.first) % s.period;
  }
  return first;
}

void Depth::add(const std::vector<BlockRun>& runs) {
  for (const BlockRun& run : runs) {
    std::vector<std::int32_t> pattern;
    for (const ModelBlock& b : run.blocks) {
      const auto found = std::find(kinds.begin(), kinds.end(), b);
      pattern.push_back(static_cast<std::int32_t>(found - kinds.begin()));
      if (found == kinds.end()) kinds.push_back(b);
    }
    for (std::int64_t i = 0; i < run.times; ++i)
      kind_of.insert(kind_of.end(), pattern.begin(), pattern.end());
    const std::int64_t blocks = static_cast<std::int64_t>(kind_of.size());
    Stretch s{.first = stretches.empty() ? 0 : stretches.back().end()};
    s.blocks = blocks - s.first;
    if (s.blocks == 0) continue;
    s.period = shortest_pattern(std::span(kind_of).subspan(static_cast<std::size_t>(s.first)));
    Stretch* const before = stretches.empty() ? nullptr : &stretches.back();
    const bool same =
        before != nullptr && s.period == 1 && before->period == 1 &&
        kind_of[static_cast<std::size_t>(before->first)] == kind_of[static_cast<std::size_t>(s.first)];
    if (same)
      before->blocks += s.blocks;
    else
      stretches.push_back(s);
  }
}

}  // namespace orrery
