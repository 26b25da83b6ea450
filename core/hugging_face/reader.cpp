// SPDX-License-Identifier: Apache-2.0
#include "core/hugging_face/reader.h"

#include <algorithm>

namespace orrery {

void HuggingFaceReader::integer(const char* ours, std::initializer_list<const char*> names, std::int64_t& out,
                                bool required) const {
  Field field = declared<Model>(ours);
  field.min = std::max(field.min, 1.0);  // only in our files does 0 mean a default
  places[ours] = at.child(*names.begin());
  for (const char* name : names) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null()) continue;
    places[ours] = at.child(name);
    return read_value(*found, at.child(name), field, out);
  }
  if (required) at.fail(fmt::format("the field \"{}\" is missing", *names.begin()));
}

void HuggingFaceReader::number(const char* name, double& out, double least, double most) const {
  const auto found = config.find(name);
  if (found != config.end() && !found->is_null())
    read_value(*found, at.child(name), Field{name, "", least, most}, out);
}

void HuggingFaceReader::whole(const char* name, std::int64_t& out, double least, double most) const {
  const auto found = config.find(name);
  if (found != config.end() && !found->is_null())
    read_value(*found, at.child(name), Field{name, "", least, most}, out);
}

void HuggingFaceReader::text(const char* ours, const char* name,
                             const std::vector<std::string>& known) const {
  places[ours] = at.child(name);
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return;
  std::string value;
  read_value(*found, at.child(name), Field{name, ""}, value);
  if (std::find(known.begin(), known.end(), value) == known.end())
    at.child(name).fail(shown(*found) + " cannot be imported", allowed_names(value, known));
}

void HuggingFaceReader::boolean(const char* name, bool& out) const {
  const auto found = config.find(name);
  if (found != config.end() && !found->is_null()) read_value(*found, at.child(name), Field{name, ""}, out);
}

void HuggingFaceReader::refuse_true(const char* name) const {
  bool given = false;
  boolean(name, given);
  if (given) at.child(name).fail("true cannot be imported", "allowed: false");
}

bool HuggingFaceReader::says(const char* name) const {
  const auto found = config.find(name);
  return found != config.end() && !found->is_null();
}

std::vector<bool> HuggingFaceReader::listed_layers(const char* name, std::int64_t layers) const {
  std::vector<bool> out(static_cast<std::size_t>(layers));
  if (!says(name)) return out;
  std::vector<std::int64_t> numbers;
  read_value(config[name], at.child(name), Field{name, "", 0, static_cast<double>(layers - 1)}, numbers);
  for (const std::int64_t i : numbers) out[static_cast<std::size_t>(i)] = true;
  return out;
}

std::vector<std::string> HuggingFaceReader::kinds_of_layers(
    std::int64_t layers, const std::vector<std::string>& known,
    const std::function<std::string(std::int64_t)>& kind) const {
  std::vector<std::string> out;
  if (!says("layer_types")) {
    for (std::int64_t i = 0; i < layers; ++i) out.push_back(kind(i));
    return out;
  }
  const Json& types = config["layer_types"];
  const Cursor here = at.child("layer_types");
  if (!types.is_array() || static_cast<std::int64_t>(types.size()) != layers)
    here.fail(shown(types) + " does not name the kind of each layer",
              fmt::format("allowed: {} kinds", layers));
  for (std::size_t i = 0; i < types.size(); ++i) {
    std::string& one = out.emplace_back();
    read_value(types[i], here.child(i), Field{"layer_types", ""}, one);
    if (std::find(known.begin(), known.end(), one) == known.end())
      here.child(i).fail(shown(types[i]) + " cannot be imported", allowed_names(one, known));
  }
  return out;
}

std::vector<bool> HuggingFaceReader::windowed_layers(
    std::int64_t layers, const std::function<bool(std::int64_t)>& otherwise) const {
  static const std::vector<std::string> kKinds{"full_attention", "sliding_attention"};
  std::vector<bool> out;
  for (const std::string& kind :
       kinds_of_layers(layers, kKinds, [&](std::int64_t i) { return kKinds[otherwise(i) ? 1 : 0]; }))
    out.push_back(kind == kKinds[1]);
  return out;
}

std::vector<bool> HuggingFaceReader::layers_without_positions(std::int64_t layers) const {
  std::int64_t interval = 4;
  whole("no_rope_layer_interval", interval, 1, 1 << 20);
  std::vector<bool> out;
  for (std::int64_t i = 0; i < layers; ++i) out.push_back((i + 1) % interval == 0);
  constexpr const char* kList = "no_rope_layers";
  // Llama 4's files have an empty list where the interval says it.
  if (!says(kList) || (config[kList].is_array() && config[kList].empty())) return out;
  std::vector<std::int64_t> turned;  // 1 where a layer has positions
  read_value(config[kList], at.child(kList), Field{kList, "", 0, 1}, turned);
  if (std::ssize(turned) != layers)
    at.child(kList).fail(fmt::format("there are {} of them", turned.size()),
                         fmt::format("allowed: {}, one for each layer", layers));
  for (std::size_t i = 0; i < turned.size(); ++i) out[i] = turned[i] == 0;
  return out;
}

Model llama_like(const HuggingFaceReader& read) {
  Model m{.name = read.type,
          .norm = Norm::kRmsNorm,
          .norm_epsilon = 1e-6,
          .positions = Positions::kRotary,
          .activation = Activation::kSwiglu,
          .bias = false,
          .tied_embeddings = false};
  read.integer("layers", {"num_hidden_layers"}, m.layers, true);
  read.integer("hidden", {"hidden_size"}, m.hidden, true);
  read.integer("heads", {"num_attention_heads"}, m.heads, true);
  read.integer("kv_heads", {"num_key_value_heads"}, m.kv_heads, false);
  read.integer("head_dim", {"head_dim"}, m.head_dim, false);
  read.integer("ffn_hidden", {"intermediate_size"}, m.ffn_hidden, true);
  read.integer("max_positions", {"max_position_embeddings"}, m.max_positions, false);
  read.number("rms_norm_eps", m.norm_epsilon, 1e-20, 1);
  read.boolean("attention_bias", m.qkv_bias);
  return m;
}

std::vector<BlockRun> runs_of(const std::vector<ModelBlock>& kinds, const std::vector<std::size_t>& kind_of) {
  const auto n = std::ssize(kind_of);
  const auto first = [&](std::ptrdiff_t count) {
    std::vector<ModelBlock> out;
    for (std::ptrdiff_t i = 0; i < count; ++i) out.push_back(kinds[kind_of[static_cast<std::size_t>(i)]]);
    return out;
  };
  std::ptrdiff_t period = 1;
  while (!std::equal(kind_of.begin() + period, kind_of.end(), kind_of.begin())) ++period;
  std::vector<BlockRun> out;
  if (2 * period <= n) {
    out.push_back({n / period, first(period)});
    if (n % period > 0) out.push_back({1, first(n % period)});
    return out;
  }
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const std::size_t kind = kind_of[static_cast<std::size_t>(i)];
    if (i > 0 && kind == kind_of[static_cast<std::size_t>(i - 1)])
      ++out.back().times;
    else
      out.push_back({1, {kinds[kind]}});
  }
  return out;
}

std::vector<BlockRun> in_turn(const std::vector<bool>& is_one, const ModelBlock& one,
                              const ModelBlock& other) {
  std::vector<std::size_t> kind_of;
  for (const bool is : is_one) kind_of.push_back(is ? 0 : 1);
  return runs_of({one, other}, kind_of);
}

ModelBlock block_without_positions(const Model& m) {
  ModelBlock out = standard_block(m);
  auto& attention = std::get<AttentionLayer>(out.layers.front().is);
  attention.positions = Positions::kNone;
  attention.rotary = {};
  return out;
}

}  // namespace orrery
