// SPDX-License-Identifier: Apache-2.0
#include "core/model.h"
#include "core/nf4.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

namespace orrery {
namespace {

// `layers` counts the blocks.
void read_depth(const Json& json, const Cursor& at, Model& out) {
  const std::int64_t said = json.contains("layers") ? out.layers : 0;
  out.blocks = read_blocks(json["blocks"], at.child("blocks"), standard_block(out));
  out.layers = 0;
  for (const BlockRun& run : out.blocks) out.layers += run.times * std::ssize(run.blocks);
  if (said != 0 && said != out.layers) {
    at.child("layers").fail(fmt::format("{} layers are not the {} blocks", said, out.layers),
                            "allowed: no such field where blocks are given, or their number");
  }
}

}  // namespace

bool read_custom(const Json& json, const Cursor& at, Model& out) {
  if (json.is_string()) {
    out = preset_model(json.get_ref<const std::string&>(), at);
    return true;
  }
  if (!json.is_object()) {
    at.fail(shown(json) + " is not a model", "allowed: a preset's name, or an object");
  }
  if (json.contains("preset") && json.contains("config"))
    at.fail("preset and config are both there", "allowed: one of them");
  if (json.contains("preset") || json.contains("config")) {
    std::string base;
    if (json.contains("preset")) {
      read_value(json["preset"], at.child("preset"), Field{"preset", ""}, base);
      out = preset_model(base, at.child("preset"));
    } else {
      read_value(json["config"], at.child("config"), Field{"config", ""}, base);
      const auto path = std::filesystem::path(at.file).parent_path() / base;
      out = import_hugging_face(load_json(path), Cursor{path.string(), ""});
    }
  }
  FieldReader reader(json, at);
  for (const char* name : base_fields(out)) reader.allow(name);
  describe(reader, out);
  reader.allow("blocks");
  std::erase_if(out.imported, [&](const auto& field) {
    return json.contains(field.first.substr(0, field.first.find('/')));
  });
  reader.finish();
  // Where nothing can be tied, the default is not meant.
  if (!json.contains("tied_embeddings") && (out.classes() != nullptr || out.has_pair() || !out.has_tokens()))
    out.tied_embeddings = false;
  if (json.contains("blocks") && json["blocks"] != Json::array()) read_depth(json, at, out);
  check_model(out, at);
  return true;
}

namespace {

// Within a few per cent, and without integers that could wrap.
double approximate_parameters(const Model& m, const Depth& depth) {
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  double total = d(m.hidden) * (2 * d(m.vocab) + d(m.head_rows()) +
                                (m.positions == Positions::kLearned ? d(m.max_positions) : 0));
  for (const Input& input : m.inputs) {
    if (const auto* bags = std::get_if<BagInput>(&input.is))
      total += d(bags->tables) * d(bags->rows) * d(m.hidden);
  }
  depth.for_each_layer([&](const auto& l, std::int64_t times) {
    total += d(times) * (5 * d(m.hidden) + d(l.parameters(m.hidden)));
  });
  return total;
}

std::int64_t norm_parameters(const Model& m) {
  return (m.has_norm_bias() ? 2 : 1) * m.hidden;
}

// Of the layers of a block that stands in a file; of the flat fields' block, where the model has them.
void check_layers(const Model& m, const ModelBlock& b,
                  const std::function<FieldPlace(std::size_t, const char*)>& places) {
  const bool norm_behind = b.form == BlockForm::kSandwichNorm || b.form == BlockForm::kPostNorm;
  for (std::size_t i = 0; i < b.layers.size(); ++i) {
    std::visit(
        [&](const auto& l) {
          const FieldPlace place = places(i, l.kName);
          l.check(m.hidden, place);
          if (l.bias && norm_behind)
            place("bias").fail(fmt::format("in {} blocks a norm follows each layer", name_of(b.form)),
                               "allowed: false");
          if (l.bias && m.residual_scale != 1)
            place("bias").fail("what is added to a layer's input is scaled, and biases are not",
                               "allowed: false, or residual_scale 1");
        },
        b.layers[i].is);
  }
}

// Names of towers; and what the last block leaves unread would be computed for nothing.
void check_towers(const Model& m, const Cursor& at) {
  std::vector<std::string> names;
  const std::vector<Input> inputs = m.all_inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Cursor input = at.child("inputs").child(i);
    if (inputs[i].tower().empty()) input.fail("the tower has no name");
    if (std::find(names.begin(), names.end(), inputs[i].tower()) != names.end())
      input.fail(fmt::format("the tower \"{}\" is there twice", inputs[i].tower()));
    names.push_back(inputs[i].tower());
  }
  const auto known = [&](const std::string& name, const Cursor& where) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      where.fail(fmt::format("there is no tower {}", shown(Json(name))), allowed_names(name, names));
  };
  for (std::size_t r = 0; r < m.blocks.size(); ++r) {
    for (std::size_t b = 0; b < m.blocks[r].blocks.size(); ++b) {
      const ModelBlock& block = m.blocks[r].blocks[b];
      const Cursor here = at.child("blocks").child(r).child("blocks").child(b);
      if (!block.tower.empty()) known(block.tower, here.child("tower"));
      for (std::size_t l = 0; l < block.layers.size(); ++l) {
        std::visit(
            [&]<class T>(const T& layer) {
              if constexpr (ReadsTower<T>) {
                const Cursor reads = here.child("layers").child(l).child(T::kName).child("reads");
                known(layer.reads, reads);
                if (m.tower(layer.reads) == m.tower(block.tower))
                  reads.fail("the block is of this tower itself", "allowed: another tower");
              }
            },
            block.layers[l].is);
      }
    }
  }
  if (m.logit_scale != 1 && (m.classes() != nullptr || m.has_pair()))
    at.child("logit_scale").fail("the model does not end in its vocabulary", "allowed: 1");
  if (m.tied_embeddings && (m.classes() != nullptr || m.has_pair() || !m.has_tokens()))
    at.child("tied_embeddings")
        .fail("the model has no embedding and head of one vocabulary", "allowed: false");
  if (m.embedding_scale != 1 && !m.has_tokens())
    at.child("embedding_scale").fail("the model embeds no tokens", "allowed: 1");
  if (m.logit_soft_cap != 0 && m.has_pair())
    at.child("logit_soft_cap").fail("the model has no logits", "allowed: 0");
  if (m.has_pair() && inputs.size() != 2)
    at.child("output").fail(fmt::format("a model of {} towers has no pair of them", inputs.size()),
                            "allowed: two inputs");
  const Depth depth = depth_of(m);
  const bool predicts = m.classes() == nullptr && !m.has_pair();
  if (m.mtp_layers > 0) {
    const auto refuse = [&](const char* why) { at.child("mtp_layers").fail(why, "allowed: 0"); };
    if (!predicts || !m.inputs.empty()) refuse("modules predict tokens of a model that has no other inputs");
    if (m.positions == Positions::kLearned) refuse("modules do not add learned positions to embeddings");
    if (depth.blocks() > 0 && depth.kind(depth.blocks() - 1).final_norm)
      refuse("modules have a block like the last one, which ends in a norm");
  }
  if (predicts && output_tower(depth) + 1 != std::ssize(inputs))
    at.child("blocks").fail(
        fmt::format("the last block is of the tower \"{}\", and the model predicts the tokens of \"{}\"",
                    names[static_cast<std::size_t>(output_tower(depth))], names.back()),
        "allowed: a last block of the last input's tower");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Cursor fields = at.child("inputs").child(i).child(PatchInput::kName);
    if (const auto* image = std::get_if<PatchInput>(&inputs[i].is)) {
      if (image->image % image->patch != 0)
        fields.child("patch").fail(
            fmt::format("{} does not divide images of {} pixels", image->patch, image->image));
    }
    if (m.has_pair()) continue;
    const auto* classes = m.classes();
    if (classes != nullptr && classes->pool == Pool::kClassToken &&
        output_tower(depth) == static_cast<TowerIndex>(i)) {
      const auto* image = std::get_if<PatchInput>(&inputs[i].is);
      if (image == nullptr || !image->class_token)
        at.child("output")
            .child(ClassOutput::kName)
            .child("pool")
            .fail(fmt::format("the tower \"{}\" has no class token", names[i]), "allowed: mean");
    }
    if (depth.towers_of(depth.blocks() - 1).touches(static_cast<TowerIndex>(i))) continue;
    at.child("inputs").child(i).fail(
        fmt::format("the tower \"{}\" is not read by the model's last block, nor changed by it", names[i]));
  }
}

}  // namespace

std::optional<PlainLayers> plain_layers(const Model& m) {
  if (!m.blocks.empty() || !m.inputs.empty() || m.classes() != nullptr) return {};
  const Depth depth = depth_of(m);
  if (depth.kinds[0].form != BlockForm::kPreNorm) return {};
  const std::vector<Layer>& layers = depth.kinds[0].layers;
  return PlainLayers{std::get<AttentionLayer>(layers[0].is), std::get<MlpLayer>(layers[1].is)};
}

ModelBlock standard_block(const Model& m) {
  const AttentionLayer attention{.heads = m.heads,
                                 .kv_heads = m.kv_heads,
                                 .head_dim = m.head_dim,
                                 .positions = m.positions,
                                 .rotary = m.rotary,
                                 .sliding_window = m.sliding_window,
                                 .soft_cap = m.soft_cap,
                                 .query_scale = m.query_scale,
                                 .causal = m.causal,
                                 .bias = m.bias,
                                 .qkv_bias = m.qkv_bias,
                                 .qk_norm = m.qk_norm};
  const MlpLayer mlp{.ffn_hidden = m.ffn_hidden, .activation = m.activation, .bias = m.bias};
  return {.form = m.form, .layers = {{attention}, {mlp}}};
}

Depth depth_of(const Model& m) {
  Depth out;
  out.add(m.blocks.empty() ? std::vector<BlockRun>{{m.layers, {standard_block(m)}}} : m.blocks);
  out.mtp = m.mtp_layers;
  for (ModelBlock& b : out.kinds) {
    BlockTowers& towers = out.towers.emplace_back(BlockTowers{.own = m.tower(b.tower)});
    for (Layer& l : b.layers) {
      std::visit(
          [&]<class T>(T& layer) {
            layer.resolve(m.hidden);
            if constexpr (ReadsTower<T>) {
              const TowerIndex read = m.tower(layer.reads);
              if (!towers.touches(read)) towers.read.push_back(read);
            }
          },
          l.is);
    }
  }
  return out;
}

TowerIndex Model::tower(std::string_view called) const {
  if (called.empty()) return 0;
  const std::vector<Input> all = all_inputs();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Input& i) { return i.tower() == called; });
  return static_cast<TowerIndex>(found - all.begin());
}

EndsAsLayers ends_as_layers(const Model& m) {
  return m.mtp_layers == 0 ? EndsAsLayers{} : EndsAsLayers{0, 1 + 2 * m.mtp_layers};
}

bool lighter_ends_are_equal(const Model& m, std::int64_t chunks) {
  const EndsAsLayers ends = ends_as_layers(m);
  const std::int64_t all = m.layers + ends.sum();
  return all % chunks == 0 && all / chunks >= ends.last;
}

std::vector<std::int64_t> lighter_ends(const Model& m, std::int64_t chunks) {
  const EndsAsLayers ends = ends_as_layers(m);
  const std::int64_t all = m.layers + ends.sum();
  const bool alone = ends.last > all / chunks;
  const std::int64_t among = alone ? chunks - 1 : chunks, dealt = alone ? all - ends.last : all;
  std::vector<std::int64_t> out(static_cast<std::size_t>(among), dealt / among);
  // The remainder goes to the middle, or to the first ones where the embedding does not count.
  for (std::int64_t extra = dealt % among, c = ends.first; extra > 0; --extra, ++c)
    ++out[static_cast<std::size_t>(c % among)];
  out.front() -= ends.first;
  if (alone)
    out.push_back(0);
  else
    out.back() -= ends.last;
  return out;
}

std::int64_t shared_count(const Model& m) {
  std::int64_t out = depth_of(m).shared(Degree::kTensor);
  for (const Input& input : m.inputs) {
    if (const auto* image = std::get_if<PatchInput>(&input.is)) out = std::gcd(out, image->values());
    if (const auto* bags = std::get_if<BagInput>(&input.is)) out = std::gcd(out, bags->rows);
  }
  return out;
}

std::vector<std::int64_t> tower_tokens(const Model& m, const Training& t) {
  std::vector<std::int64_t> out;
  for (const Input& input : m.all_inputs()) {
    struct Tokens {
      const Training& of;
      std::int64_t operator()(const TokenInput& i) const {
        return i.target ? of.target_tokens() : of.sequence;
      }
      std::int64_t operator()(const PatchInput& i) const { return i.tokens(); }
      std::int64_t operator()(const BagInput&) const { return 1; }
    };
    out.push_back(std::visit(Tokens{t}, input.is));
  }
  return out;
}

std::int64_t loss_rows(const Model& m, const Training& t) {
  return m.classes() != nullptr || m.has_pair()
             ? 1
             : tower_tokens(m, t)[static_cast<std::size_t>(output_tower(depth_of(m)))];
}

const BagInput* Model::bags() const {
  for (const Input& i : inputs) {
    if (const auto* is = std::get_if<BagInput>(&i.is)) return is;
  }
  return nullptr;
}

bool Model::has_tokens() const {
  return inputs.empty() || std::any_of(inputs.begin(), inputs.end(), [](const Input& i) {
           return std::holds_alternative<TokenInput>(i.is);
         });
}

TowerIndex output_tower(const Depth& depth) {
  return depth.towers_of(depth.blocks() - 1).own;
}

Cursor Model::place(const Cursor& at, std::string_view field) const {
  const auto found = imported.find(field);
  return found == imported.end() ? Cursor{at.file, fmt::format("{}/{}", at.pointer, field)} : found->second;
}

void check_model(const Model& m, const Cursor& at) {
  const auto need = [&](const char* field, std::int64_t value) {
    if (value <= 0) at.fail(fmt::format("the field \"{}\" is missing", field));
  };
  need("layers", m.layers);
  need("hidden", m.hidden);
  if (m.blocks.empty()) need("heads", m.heads);
  if (m.has_tokens() || (m.classes() == nullptr && !m.has_pair())) need("vocab", m.vocab);
  // What was imported names its own fields.
  if (m.blocks.empty() || !m.imported.empty()) {
    check_layers(m, standard_block(m), [&](std::size_t, const char*) {
      return [&](std::string_view field) { return m.place(at, field); };
    });
  }
  for (std::size_t r = 0; r < m.blocks.size(); ++r) {
    const std::vector<ModelBlock>& blocks = m.blocks[r].blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const Cursor block = at.child("blocks").child(r).child("blocks").child(b);
      check_layers(m, blocks[b], [&](std::size_t i, const char* name) {
        return [&m, own = block.child("layers").child(i).child(name)](std::string_view field) {
          const auto imported = m.imported.find(field);
          if (m.imported.contains("blocks") && imported != m.imported.end()) return imported->second;
          return Cursor{own.file, fmt::format("{}/{}", own.pointer, field)};
        };
      });
    }
  }
  check_towers(m, at);
  const double parameters = approximate_parameters(m, depth_of(m));
  if (parameters > limits::kMostParameters)
    at.fail(fmt::format("the model has {:.2g} parameters", parameters),
            fmt::format("allowed: at most {:.0g}", limits::kMostParameters));
}

std::int64_t count_parameters(const Model& m, const ModelBlock& resolved) {
  std::int64_t total = resolved.norms() * norm_parameters(m);
  resolved.for_each_layer([&](const auto& l) { total += l.parameters(m.hidden); });
  return total;
}

std::int64_t count_parameters(const Model& m) {
  std::int64_t total = m.has_pair() ? 0 : norm_parameters(m);
  if (m.has_tokens()) total += m.vocab * m.hidden;
  for (const Input& input : m.all_inputs()) {
    const auto* bags = std::get_if<BagInput>(&input.is);
    if (bags != nullptr) total += bags->tables * bags->rows * m.hidden;
    if (m.positions == Positions::kLearned && bags == nullptr) total += m.max_positions * m.hidden;
    if (const auto* image = std::get_if<PatchInput>(&input.is))
      total +=
          m.hidden * (image->values() + 1 + (image->class_token ? 1 : 0));  // and the bias, the class token
  }
  if (!m.tied_embeddings) total += m.head_rows() * m.hidden;
  if (m.classes() != nullptr) total += m.head_rows();  // the bias
  // What each module begins with, and the norm before its head.
  total += m.mtp_layers * (2 * m.hidden * m.hidden + 3 * norm_parameters(m));
  const Depth depth = depth_of(m);
  const std::vector<std::int64_t> counts = depth.counts();
  for (std::size_t k = 0; k < counts.size(); ++k) total += counts[k] * count_parameters(m, depth.kinds[k]);
  return total;
}

std::vector<ExpertsAt> experts_of(const Model& m) {
  std::vector<ExpertsAt> out;
  const Depth depth = depth_of(m);
  for (std::int64_t block = 0; block < depth.blocks() + depth.mtp; ++block) {
    depth.kind(block).for_each_layer([&]<class T>(const T& layer) {
      if constexpr (std::is_same_v<T, ExpertsLayer>) out.push_back({block, layer});
    });
  }
  return out;
}

double most_expert_shares(const Model& m, std::int64_t parts) {
  double most = 1;
  depth_of(m).for_each_layer([&](const auto& l, std::int64_t) {
    if constexpr (requires { l.most_shares(parts); }) most = std::max(most, l.most_shares(parts));
  });
  return most;
}

std::int64_t count_active_parameters(const Model& m) {
  std::int64_t idle = 0;
  depth_of(m).for_each_layer([&](const auto& l, std::int64_t times) {
    if constexpr (requires { l.expert_elements(m.hidden); }) {
      const std::int64_t biases = l.biases ? l.fc1_width() + m.hidden : 0;
      idle += times * (l.experts - l.top_k) * (l.expert_elements(m.hidden) + biases);
    }
  });
  return count_parameters(m) - idle;
}

namespace {

// Calls use(matrix, times, tokens of a sample) for each that has an adapter.
template <class Use>
void for_each_adapted(const Model& m, const Adapter& adapter, const std::vector<std::int64_t>& tokens,
                      Use use) {
  const AdapterTargets chosen = adapter.chosen();
  for_each_layer_tokens(m, depth_of(m), tokens, [&](const auto& l, std::int64_t n, const LayerTokens& of) {
    for (const AdapterMatrix& a : l.adapter_matrices(m.hidden)) {
      if (chosen.has(a.target)) use(a, n, a.of_read ? of.read : of.own);
    }
  });
}

}  // namespace

std::int64_t count_adapter_parameters(const Model& m, const Adapter& adapter) {
  std::int64_t sum = 0;
  for_each_adapted(
      m, adapter, tower_tokens(m, Training{}),
      [&](const AdapterMatrix& a, std::int64_t n, std::int64_t) { sum += n * a.parameters(adapter.rank); });
  return sum;
}

std::int64_t count_trained_parameters(const Model& m, const Training& t) {
  return t.adapter ? count_adapter_parameters(m, *t.adapter) : count_parameters(m);
}

namespace {

// Of moments that Muon does without. Layers count as matrices: their norms and biases are few.
double spared_by_muon(const Model& m, const Training& t) {
  if (!t.muon) return 0;
  const Depth depth = depth_of(m);
  const std::vector<std::int64_t> times = depth.counts();
  std::int64_t of_layers = 0;
  for (std::size_t k = 0; k < times.size(); ++k) of_layers += times[k] * count_parameters(m, depth.kinds[k]);
  return static_cast<double>(of_layers * (t.bytes_of(false).moments - t.bytes_of(true).moments));
}

}  // namespace

double restart_bytes(const Model& m, const Training& t) {
  const BytesPerParameter bytes = bytes_per_parameter(t.precision);
  return static_cast<double>(count_trained_parameters(m, t) * (bytes.parameter + bytes.optimizer())) -
         spared_by_muon(m, t);
}

double state_bytes(const Model& m, const Training& t) {
  const BytesPerParameter bytes = bytes_per_parameter(t.precision);
  const double trained =
      static_cast<double>(count_trained_parameters(m, t) * bytes.total()) - spared_by_muon(m, t);
  if (!t.adapter) return trained;
  const std::int64_t all = count_parameters(m);
  double frozen = 0;
  switch (t.adapter->base) {
    case BaseStorage::kAsComputed:
      frozen = static_cast<double>(all * bytes.parameter);
      break;
    case BaseStorage::kNf4:
    case BaseStorage::kNf4Double: {  // the model's ends are as they are computed
      const std::int64_t ends = std::min(all, (m.tied_embeddings ? 1 : 2) * m.vocab * m.hidden);
      const bool doubled = t.adapter->base == BaseStorage::kNf4Double;
      frozen = static_cast<double>(Nf4Layout(all - ends, doubled).bytes() + ends * bytes.parameter);
      break;
    }
  }
  return trained + frozen;
}

Flop model_flops_per_sequence(const Model& m, const Training& t, AttentionFlops convention) {
  const Depth depth = depth_of(m);
  const std::vector<std::int64_t> tokens = tower_tokens(m, t);
  // Elements of matrices that each token of a tower is multiplied with.
  std::vector<double> matrices(tokens.size());
  double core = 0;
  const auto h = static_cast<double>(m.hidden);
  if (m.classes() == nullptr && !m.has_pair())
    matrices[static_cast<std::size_t>(output_tower(depth))] =
        h * (static_cast<double>(m.vocab) +
             static_cast<double>(m.mtp_layers) * (static_cast<double>(m.vocab) + 2 * h));
  const std::vector<std::int64_t> times = depth.counts();
  for (std::size_t k = 0; k < times.size(); ++k) {
    const auto n = static_cast<double>(times[k]);
    depth.kinds[k].for_each_layer([&]<class T>(const T& l) {
      matrices[static_cast<std::size_t>(depth.towers[k].own)] +=
          n * static_cast<double>(l.matrix_elements(m.hidden));
      if constexpr (ReadsTower<T>)
        matrices[static_cast<std::size_t>(m.tower(l.reads))] +=
            n * static_cast<double>(l.read_elements(m.hidden));
    });
  }
  for_each_layer_tokens(
      m, depth, tokens,
      [&](const auto& l, std::int64_t n, const LayerTokens& of) {
        core += static_cast<double>(n) * l.core_flops(of);
      },
      t.within_documents(0));
  double products = m.classes() == nullptr ? 0 : 2.0 * h * static_cast<double>(m.classes()->classes);
  for (const Input& input : m.inputs) {
    if (const auto* image = std::get_if<PatchInput>(&input.is))
      products += 2.0 * static_cast<double>(image->patches()) * static_cast<double>(image->values()) * h;
  }
  for (std::size_t i = 0; i < tokens.size(); ++i)
    products += 2.0 * static_cast<double>(tokens[i]) * matrices[i];
  if (convention == AttentionFlops::kCausal) core /= 2;
  if (!t.adapter) return Flop{3.0 * (products + core)};
  double adapters = 0;
  for_each_adapted(m, *t.adapter, tokens, [&](const AdapterMatrix& a, std::int64_t n, std::int64_t of) {
    adapters += static_cast<double>(n) * product_flops(of, a.parameters(t.adapter->rank));
  });
  return Flop{2.0 * products + 3.0 * (core + adapters)};
}

Flop model_flops_per_sequence(const Model& m, std::int64_t sequence, AttentionFlops convention) {
  return model_flops_per_sequence(m, Training{.sequence = sequence}, convention);
}

}  // namespace orrery
